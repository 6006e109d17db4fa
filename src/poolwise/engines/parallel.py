"""Parallel: batches go to kernels in several threads, and their sums come back in order.

Sums are added in the order of the rows, whichever thread is faster: the same files give the
same bits.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from poolwise.engines.base import CHANGED, QueryRows
from poolwise.engines.blocks import (
    BlockKernel,
    GroupCounts,
    as_one,
    bucket_layout,
    by_period,
    count_cuts,
    counting_layout,
    cut_blocks,
)
from poolwise.engines.heavy import HeavyKernel
from poolwise.engines.kernel import Kernel
from poolwise.engines.sums import (
    bucketed_moments,
    raise_floors,
    total_moments,
    total_tallies,
)
from poolwise.engines.workspace import MOST_ROWS as MOST_BATCH_ROWS
from poolwise.engines.workspace import Workspace
from poolwise.errors import LogError, UsageError
from poolwise.moments.blocks import MARK, MOST_MARKS, ClusterMarks
from poolwise.moments.pool import Pool, find_logger, list_periods
from poolwise.moments.terms import NO_NEEDS, Needs, ratio, unite
from poolwise.rows.guard import named_files
from poolwise.rows.layout import (
    cells_query,
    clusters_query,
    list_cells,
    marks_query,
    missing_query,
    plan_layout,
    requests_query,
)
from poolwise.rows.reader import (
    GATHERED,
    MOST_GATHERED,
    PerThread,
    gather,
    in_order,
    number_pieces,
    to_rows,
)
from poolwise.rows.repeats import REMOTE
from poolwise.rows.rules import measured_by, zero_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from poolwise.engines.base import Bucketed
    from poolwise.engines.blocks import Added, Folding
    from poolwise.engines.copies import CopySample
    from poolwise.engines.sums import Sums
    from poolwise.log.log import Log
    from poolwise.moments.blocks import Payoff, Settled
    from poolwise.moments.heavy import Contrast, Found
    from poolwise.moments.pool import Cell, Stratum
    from poolwise.moments.terms import Term
    from poolwise.rows.layout import Layout
    from poolwise.rows.reader import Piece, RowArrays, Stream
    from poolwise.types import FloatArray, IntArray

MOST_ROWS = 65_536  # of a batch of single rows


def workers(threads: int) -> int:
    """Return the number of threads; 0 means one for each core."""
    return threads or os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over a stream of scored rows.

    Attributes:
        layout: Columns of the batches.
        threads: Threads to use; 0 means one for each core.
        on_rows: Called with a number of rows whenever these are done.
        copies: Collects hashes of the rows.
    """

    layout: Layout
    threads: int = 0
    on_rows: Callable[[int], object] = lambda _: None
    copies: CopySample | None = None

    def sum_layouts(
        self, stream: Stream, parts: Sequence[tuple[Layout, Workspace]]
    ) -> list[Sums | None]:
        """Sums of several layouts of the same rows, which are read once, in their order.

        They are None if there are no rows.
        """
        of_parts = [Kernel(*part) for part in parts]
        own = PerThread(lambda: ([kernel.copy() for kernel in of_parts], stream.reader()))

        def work(item: tuple[list[Piece], int]) -> tuple[list[Sums | None], int]:
            (gathered, first_row), (kernels, read) = item, own.value
            tables: Iterable[pa.Table] = read(gathered, self.layout.names)
            if len(kernels) > 1:
                tables = list(tables)
            watches = chain([iter if self.copies is None else self.copies.watch], repeat(iter))
            each = zip(kernels, watches, strict=False)
            sums = [_sum_piece(k, tables, first_row, watch) for k, watch in each]
            return sums, sum(piece.num_rows for piece in gathered)

        totals: list[Sums | None] = [None] * len(parts)
        known = isinstance(stream.pieces, list)
        total = sum(piece.num_rows for piece in stream.pieces) if known else None
        held = not known or len(parts) > 1  # rows of a query, or of several kernels
        most = GATHERED if held else MOST_GATHERED
        pieces = gather(number_pieces(stream), most, total)
        for each, rows in in_order(work, pieces, workers(self.threads)):
            self.on_rows(rows)
            for k, (sums, kernel) in enumerate(zip(each, of_parts, strict=True)):
                totals[k] = total = _add_sums(totals[k], sums, kernel.workspace)
                if total is not None:
                    raise_floors(kernel.floors, total)
        return totals


def _sum_piece(
    kernel: Kernel,
    tables: Iterable[pa.Table],
    first_row: int,
    watch: Callable[[Iterable[RowArrays]], Iterator[RowArrays]],
) -> Sums | None:
    """Sums of the rows of one piece."""
    batches = watch(to_rows(tables, kernel.layout, first_row, kernel.rows))
    first = next(batches, None)
    return None if first is None else kernel.together(chain([first], batches))


def _add_sums(total: Sums | None, more: Sums | None, workspace: Workspace) -> Sums | None:
    if total is None or more is None:
        return more if total is None else total
    return total.add(more, workspace)


def read_rows(stream: Stream, layout: Layout, threads: int, size: int) -> Iterator[RowArrays]:
    """Read batches of at most `size` rows in threads, and yield them in order."""
    reader = PerThread(stream.reader)

    def read(item: tuple[Piece, int]) -> list[RowArrays]:
        piece, first_row = item
        return list(to_rows(reader.value([piece], layout.names), layout, first_row, size))

    for batches in in_order(read, number_pieces(stream), threads):
        yield from batches


def good_counts(stream: Stream, layout: Layout, threads: int) -> dict[str | None, int]:
    """Good rows of each logger, of a layout that drops the others."""
    total = np.zeros(len(layout.loggers), dtype=np.int64)
    for codes, _ in read_rows(stream, layout, threads, MOST_ROWS):
        total += np.bincount(codes, minlength=len(total))
    by_label = zip(layout.loggers, total.tolist(), strict=True)
    return {label: rows for label, rows in by_label if rows}


def sample_rows(
    batches: Iterable[RowArrays], kernel: Kernel, terms: Sequence[Term], steps: Sequence[int]
) -> tuple[IntArray, FloatArray]:
    """Codes of some rows, and the values of terms in them, shape (terms, rows).

    A row is taken if the hash of its number is a multiple of its logger's step.
    """
    import duckdb

    codes, values = [np.empty(0, dtype=np.int64)], [np.empty((len(terms), 0))]
    step = np.array(steps, dtype=np.uint64)
    first = 1
    with duckdb.connect(config={"threads": 1}) as connection:
        for groups, columns in batches:
            query = f"SELECT hash(i) AS h FROM range({first}, {first + len(groups)}) t(i)"
            hashes = connection.sql(query).to_arrow_table().column("h").to_numpy()
            chosen = np.flatnonzero(hashes % step[groups] == 0)
            first += len(groups)
            if len(chosen):
                part = {name: column[chosen] for name, column in columns.items()}
                ends, of_terms = kernel.values(groups[chosen], part, terms)
                codes.append(np.repeat(np.arange(len(step)), np.diff(ends)))
                values.append(of_terms)
    return np.concatenate(codes), np.concatenate(values, axis=1)


def fold(stream: Stream, work: Folding[Added], layout: Layout, threads: int) -> Added:
    """Add up all rows of a stream, in threads and in their order."""
    reader = PerThread(stream.reader)

    def part(item: tuple[Piece, int]) -> Added:
        piece, first_row = item
        tables = reader.value([piece], layout.names)
        return work.together(to_rows(tables, layout, first_row, work.rows))

    total = work.together(())
    for more in in_order(part, number_pieces(stream), threads):
        total = total + more
    return total


@dataclass(frozen=True, eq=False)
class KernelRows(QueryRows):
    """An open log whose rows go through the kernel; queries only check them.

    Attributes:
        apart: Cells whose rows are summed apart, so that moments have cells for keys; None
            where they are summed by logger.
    """

    apart: Mapping[Cell, int] | None = field(default=None, kw_only=True)

    @cached_property
    def cells(self) -> dict[Cell, int]:
        cells = list_cells(self._lines(cells_query(self.table)), list(self.counts), self.table)
        by_logger = Counter[str]()
        for cell, count in cells.items():
            by_logger[cell.logger] += count
        if by_logger != self.counts:
            raise LogError(self.check() or (CHANGED,))
        return cells

    @property
    def by_period(self) -> Self:
        """The same rows, summed by period and logger."""
        apart = self.apart is not None
        return self if apart else replace(self, apart=self.cells, counted=self.counts)

    def complete(self) -> Self:
        table = self.table
        crossed = bool(table.labels) and {*table.labels} == {*table.propensities}
        declared = table.period is not None and table.period_kind == "period"
        live = self.missing if crossed and declared else ()
        return replace(self, table=zero_missing(table, live)) if live else self

    @property
    def missing(self) -> tuple[str, ...]:
        """Loggers without a probability in rows of periods in which they are not live.

        Empty if one is missing where its logger is live.
        """
        lines = self._lines(missing_query(self.table))
        live = {(line["period"], line["logger"]) for line in lines}
        lacking = [
            (label, (line["period"], label) in live)
            for k, label in enumerate(self.table.propensities)
            for line in lines
            if line[f"p_{k}"]
        ]
        if any(needed for _, needed in lacking):
            return ()
        return tuple(dict.fromkeys(label for label, _ in lacking))

    def measuring(self, measure: str) -> Self:
        """Return the rows with another measure in place of the reward, if one is named."""
        if not measure:
            return self
        return replace(self, table=measured_by(self.table, measure), counted=self.counts)

    def requests_in_periods(self) -> list[dict[str, Any]]:
        return self._lines(requests_query(self.table))

    @property
    def _strata(self) -> dict[Stratum, int]:
        """Rows of each cell or logger whose rows are summed apart."""
        return {key: count for key, count in (self.apart or self.counts).items()}  # noqa: C416

    def _layout(self) -> Layout:
        return plan_layout(self.table, self.counts, self.apart)

    @abstractmethod
    def _sums(self, layout: Layout, workspace: Workspace) -> Sums | None:
        """Sums over all rows; None if there are none."""

    def _sum_parts(self, parts: Sequence[tuple[Layout, Workspace]]) -> list[Sums | None]:
        """Sums over all rows, for each of several layouts: the first has all columns."""
        return [self._sums(*part) for part in parts]

    @abstractmethod
    def _fold(self, work: Folding[Added]) -> Added:
        """Return the sum over all rows."""

    @property
    def by_kernel(self) -> bool:
        return True

    @property
    def shaped(self) -> bool:
        return True

    def local_files(self, log: Log) -> list[str]:
        return [file for file, _ in named_files(log) if not REMOTE.match(file)]

    @property
    def batch_rows(self) -> int:
        """Largest number of rows that a thread works on at once."""
        return MOST_BATCH_ROWS

    def moments(self, needs: Needs) -> Pool:
        """Moments of each logger."""
        workspace = Workspace(needs, self.batch_rows)
        sums = self._sums(self._layout(), workspace)
        moments = total_moments(sums, workspace, self._strata)
        if moments is None:
            raise LogError([CHANGED])
        return Pool(moments, loggers=self.counts)

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[Pool]:
        """Moments of each bucket and logger, without tails and histograms."""
        apart = [replace(part, tails=(), histograms=()) for part in needs]
        return self.bucketed_and_tallied(apart, buckets)[0]

    def bucketed_and_tallied(
        self, needs: Sequence[Needs], buckets: int, also: Needs = NO_NEEDS
    ) -> Bucketed:
        """Moments of each bucket and logger; tails, histograms and others of each logger."""
        layout, strata = self._layout(), self._strata
        workspace = Workspace(replace(unite(needs), slices=()), self.batch_rows)
        more = Workspace(also, self.batch_rows)
        parts = [(replace(layout, buckets=buckets), workspace), (layout, more)]
        sums, *others = self._sum_parts(parts if also.terms else parts[:1])
        moments = bucketed_moments(sums, workspace, needs, strata)
        whole = total_moments(others[0], more, strata) if others else {}
        if moments is None or whole is None:
            raise LogError([CHANGED])
        tallies = total_tallies(sums, workspace, strata)
        for i, m in whole.items():
            t = tallies.get(i, m)
            tallies[i] = replace(m, tails=t.tails, histograms=t.histograms)
        pools = [Pool(None, parts, self.counts) for parts in moments]
        return pools, Pool(tallies, loggers=self.counts)

    def heaviest(
        self, contrasts: Sequence[Contrast], centre: float
    ) -> dict[str, dict[Contrast, Found]]:
        """Return the heaviest rows of contrasts, in one more pass over the rows."""
        layout = self._layout()
        periods = list_periods(layout.cells) or ("",)
        part = np.array([periods.index(cell.period) for cell in layout.cells])
        part = part if layout.cells else np.zeros(len(layout.strata), dtype=np.int64)
        columns = tuple(map(ratio, layout.crossed))
        kernel = HeavyKernel(layout, tuple(contrasts), columns, centre, part)
        loggers = [find_logger(i) for i in layout.strata]
        found = kernel.found(self._fold(kernel), loggers)
        return dict(zip(periods, found, strict=True))

    def settle(
        self, payoffs: Sequence[Payoff], *, pooled: bool, watched: bool = False
    ) -> Settled:
        """Return the histograms of payoffs, by block."""
        cells: Mapping[Cell, int] = {} if self.table.period is None else self.cells
        layout = plan_layout(self.table, self.counts, cells)
        if watched or count_cuts(sum(self.counts.values()), len(list_periods(cells))) == 1:
            cut = by_period(cells, layout.loggers) if cells else as_one(self.counts)
        else:
            layout = bucket_layout(layout)
            buckets = self._fold(GroupCounts(counting_layout(layout)))
            by_bucket = buckets.reshape(layout.buckets, -1)
            clustered = layout.clustered
            cut = cut_blocks(by_bucket, layout.cells, layout.loggers, clustered=clustered)
        kernel = BlockKernel(layout, cut, tuple(payoffs), pooled, watched)
        sums = self._fold(kernel)
        if not np.array_equal(sums.counts, cut.counts):
            raise LogError([CHANGED])
        settled = replace(kernel.settled(sums), cluster_rows=self._cluster_rows())
        marked = watched and self.table.cluster is not None
        return replace(settled, clusters=self._clusters()) if marked else settled

    def _clusters(self) -> dict[str, ClusterMarks]:
        """Return the clusters of each period; without periods, under an empty name."""
        marks: dict[str, list[str]] = {}
        rows: dict[str, int] = {}
        for line in self._lines(marks_query(self.table, MOST_MARKS)):
            marks.setdefault(str(line["period"]), []).append(str(line["mark"])[:MARK])
            rows[str(line["period"])] = int(line["rows"])
        return {name: ClusterMarks(rows[name], tuple(sorted(marks[name]))) for name in marks}

    def _cluster_rows(self) -> int:
        """Return the rows of the largest cluster; refuse clusters that span periods."""
        if self.table.cluster is None:
            return 1
        (line,) = self._lines(clusters_query(self.table))
        if line["periods"] > 1:
            raise UsageError(
                "bets require that the rows of a cluster are in one period, and some have rows "
                f"in {line['periods']:,}: use interval='auto', or name a finer cluster, such "
                "as a user on one day"
            )
        return int(line["rows"])
