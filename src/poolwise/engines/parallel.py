"""Parallel: batches go to kernels in several threads, and their sums come back in order.

Sums are added in the order of the rows, whichever thread is faster: the same files give the
same bits.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Self

import duckdb
import numpy as np
from threadpoolctl import threadpool_limits

from poolwise.engines.base import CHANGED, QueryRows
from poolwise.engines.blocks import (
    BlockKernel,
    GroupCounts,
    as_one,
    by_period,
    by_slot,
    counting_layout,
    parts_of,
    slot_layout,
)
from poolwise.engines.kernel import Kernel
from poolwise.engines.sums import (
    bucketed_moments,
    fresh_floors,
    moments_of,
    raise_floors,
    tallies_of,
)
from poolwise.engines.workspace import MOST_ROWS as MOST_BATCH_ROWS
from poolwise.engines.workspace import Workspace
from poolwise.errors import LogError
from poolwise.moments.cells import periods_of
from poolwise.moments.terms import unite
from poolwise.rows.reader import PerThread, in_order, numbered, to_rows
from poolwise.rows.roles import layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from poolwise.engines.blocks import Added, Folding
    from poolwise.engines.sums import Sums
    from poolwise.moments.blocks import Payoff, Settled
    from poolwise.moments.cells import Cell
    from poolwise.moments.moments import FloatArray, IntArray, Moments
    from poolwise.moments.terms import Needs, Term
    from poolwise.rows.reader import Piece, Rows, Stream
    from poolwise.rows.roles import Layout

MOST_ROWS = 65_536  # of a batch of single rows
SMALL_GROUP = 4_000_000  # values of a row group that one more thread may hold: 32 MB


def workers(threads: int) -> int:
    """Return the number of threads; 0 means one for each core."""
    return threads or os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over a stream of scored rows.

    Attributes:
        layout: Columns of the batches.
        workspace: Rows and products to compute.
        threads: Threads to use; 0 means one for each core.
        on_rows: Called with a number of rows whenever these are done.
    """

    layout: Layout
    workspace: Workspace
    threads: int = 0
    on_rows: Callable[[int], object] = lambda _: None

    def sums(self, stream: Stream) -> Sums | None:
        """Sums over all rows, added in their order; None if there are no rows."""
        floors = fresh_floors(self.layout, self.workspace)
        own = PerThread(lambda: (Kernel(self.layout, self.workspace, floors), stream.reader()))

        def work(item: tuple[Piece, int]) -> tuple[Sums | None, int]:
            (piece, first_row), (kernel, read) = item, own.value
            batches = to_rows(
                read(piece, self.layout.names), self.layout, first_row, kernel.rows
            )
            first = next(batches, None)
            sums = None if first is None else kernel.together(chain([first], batches))
            return sums, piece.num_rows

        total: Sums | None = None
        pieces = numbered(stream, self.layout, workers(self.threads))
        with threadpool_limits(1):  # matrix products are small, and the threads are ours
            for sums, rows in in_order(work, pieces, self._workers(stream)):
                self.on_rows(rows)
                if sums is not None:
                    total = sums if total is None else total.add(sums, self.workspace)
                    raise_floors(floors, total)
        return total

    def _workers(self, stream: Stream) -> int:
        """Threads: one more than cores, since one waits while Arrow reads a file.

        Where row groups are large, or the number was given, memory matters more.
        """
        if self.threads or not stream.columns:
            return workers(self.threads)
        largest = max((piece.num_rows for piece in stream.pieces), default=0)
        return workers(0) + (largest * len(stream.columns) <= SMALL_GROUP)


def read_rows(stream: Stream, layout: Layout, threads: int, size: int) -> Iterator[Rows]:
    """Read batches of at most `size` rows in threads, and yield them in order."""
    reader = PerThread(stream.reader)

    def read(item: tuple[Piece, int]) -> list[Rows]:
        piece, first_row = item
        return list(to_rows(reader.value(piece, layout.names), layout, first_row, size))

    for batches in in_order(read, numbered(stream, layout, threads), threads):
        yield from batches


def good_counts(stream: Stream, layout: Layout, threads: int) -> dict[str | None, int]:
    """Good rows of each logger, of a layout that drops the others."""
    total = np.zeros(len(layout.loggers), dtype=np.int64)
    for codes, _ in read_rows(stream, layout, threads, MOST_ROWS):
        total += np.bincount(codes, minlength=len(total))
    by_label = zip(layout.loggers, total.tolist(), strict=True)
    return {label: rows for label, rows in by_label if rows}


def sample_rows(
    batches: Iterable[Rows], kernel: Kernel, terms: Sequence[Term], steps: Sequence[int]
) -> tuple[IntArray, FloatArray]:
    """Codes of some rows, and the values of terms in them, shape (terms, rows).

    A row is taken if the hash of its number is a multiple of its logger's step.
    """
    places = [kernel.workspace.rows[term] for term in terms]
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
                ends, work = kernel.values(groups[chosen], part)
                codes.append(np.repeat(np.arange(len(step)), np.diff(ends)))
                values.append(work[places])
    return np.concatenate(codes), np.concatenate(values, axis=1)


def fold(stream: Stream, work: Folding[Added], layout: Layout, threads: int) -> Added:
    """Add up all rows of a stream, in threads and in their order."""
    reader = PerThread(stream.reader)

    def part(item: tuple[Piece, int]) -> Added:
        piece, first_row = item
        tables = reader.value(piece, layout.names)
        return work.together(to_rows(tables, layout, first_row, work.rows))

    total = work.together(())
    for more in in_order(part, numbered(stream, layout, threads), threads):
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

    @property
    def by_period(self) -> Self:
        """The same rows, summed by period and logger."""
        apart = self.apart is not None
        return self if apart else replace(self, apart=self.cells, counted=self.counts)

    @property
    def _strata(self) -> dict[str, int]:
        """Rows of each cell or logger whose rows are summed apart."""
        return {key: count for key, count in (self.apart or self.counts).items()}  # noqa: C416

    def _layout(self) -> Layout:
        return layout_of(self.table, self.counts, self.apart)

    @abstractmethod
    def _sums(self, layout: Layout, workspace: Workspace) -> Sums | None:
        """Sums over all rows; None if there are none."""

    @abstractmethod
    def _fold(self, work: Folding[Added]) -> Added:
        """Return the sum over all rows."""

    by_kernel = True
    shaped = True

    @property
    def batch_rows(self) -> int:
        """Largest number of rows that a thread works on at once."""
        return MOST_BATCH_ROWS

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Moments of each logger."""
        workspace = Workspace(needs, self.batch_rows)
        sums = self._sums(self._layout(), workspace)
        moments = moments_of(sums, workspace, self._strata)
        if moments is None:
            raise LogError([CHANGED])
        return moments

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[list[dict[str, Moments]]]:
        """Moments of each bucket and logger, without tails and histograms."""
        apart = [replace(part, tails=(), histograms=()) for part in needs]
        return self.bucketed_and_tallied(apart, buckets)[0]

    def bucketed_and_tallied(
        self, needs: Sequence[Needs], buckets: int
    ) -> tuple[list[list[dict[str, Moments]]], dict[str, Moments]]:
        """Moments of each bucket and logger; tails and histograms of each logger."""
        layout = replace(self._layout(), buckets=buckets)
        workspace = Workspace(replace(unite(needs), slices=()), self.batch_rows)
        sums = self._sums(layout, workspace)
        moments = bucketed_moments(sums, workspace, needs, self._strata)
        if moments is None:
            raise LogError([CHANGED])
        return moments, tallies_of(sums, workspace, self._strata)

    def settle(
        self, payoffs: Sequence[Payoff], *, pooled: bool, watched: bool = False
    ) -> Settled:
        """Return the histograms of payoffs, by block."""
        cells: Mapping[Cell, int] = {} if self.table.period is None else self.cells
        layout = layout_of(self.table, self.counts, cells)
        if watched or parts_of(sum(self.counts.values()), len(periods_of(cells))) == 1:
            cut = by_period(cells, layout.loggers) if cells else as_one(self.counts)
        else:
            layout = slot_layout(layout)
            slots = self._fold(GroupCounts(counting_layout(layout)))
            cut = by_slot(slots.reshape(layout.buckets, -1), layout.cells, layout.loggers)
        kernel = BlockKernel(layout, cut, tuple(payoffs), pooled, watched)
        sums = self._fold(kernel)
        if not np.array_equal(sums.counts, cut.counts):
            raise LogError([CHANGED])
        return kernel.settled(sums)
