"""Parallel: batches go to kernels in several threads, and their sums come back in order.

Sums are added in the order of the rows, whichever thread is faster: the same files give the
same bits.
"""

from __future__ import annotations

import os
import tempfile
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import duckdb
import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from poolwise.engines.base import CHANGED, QueryRows
from poolwise.engines.kernel import Kernel
from poolwise.engines.sums import bucketed_moments, fresh_floors, moments_of, raise_floors
from poolwise.engines.workspace import MOST_ROWS as MOST_BATCH_ROWS
from poolwise.engines.workspace import Workspace
from poolwise.errors import LogError
from poolwise.moments.terms import unite
from poolwise.rows.reader import PerThread, in_order, numbered, to_rows
from poolwise.rows.roles import layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from poolwise.engines.sums import Sums
    from poolwise.log.policy import AnyArray
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


@dataclass(frozen=True, eq=False)
class WeightedRewards:
    """Batches of logger codes and weighted rewards w sign (r - base), in shuffled order.

    Iterating again reads the rows again.

    Attributes:
        read: Reads batches of rows, in order.
        layout: Their columns.
        target: Name of the target.
        base: Subtracted from each reward.
        sign: 1, or -1 to reverse rewards.
        limits: Settings of DuckDB, which sorts on disk if it must.
    """

    read: Callable[[], Iterable[Rows]]
    layout: Layout
    target: str
    base: float
    sign: float
    limits: Mapping[str, Any]

    def __iter__(self) -> Iterator[tuple[IntArray, FloatArray]]:
        schema = pa.schema({"number": pa.int64(), "code": pa.int64(), "value": pa.float64()})
        reader = pa.RecordBatchReader.from_batches(schema, self._batches(schema))
        query = "SELECT code, value FROM weighted ORDER BY hash(number)"
        with (
            tempfile.TemporaryDirectory(prefix="poolwise-") as folder,
            duckdb.connect(config={**self.limits, "temp_directory": folder}) as connection,
        ):
            connection.register("weighted", reader)
            shuffled: Any = connection.sql(query).to_arrow_reader(MOST_ROWS)
            for batch in shuffled:
                yield batch.column("code").to_numpy(), batch.column("value").to_numpy()

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        first = 1
        for codes, columns in self.read():
            numbers = np.arange(first, first + len(codes))
            reward = self.sign * (np.asarray(columns["reward"], dtype=np.float64) - self.base)
            value = self._weights(codes, columns) * reward
            arrays = [numbers, codes.astype(np.int64), value]
            yield pa.record_batch([pa.array(a) for a in arrays], schema=schema)
            first += len(codes)

    def _weights(self, codes: AnyArray, columns: Mapping[str, AnyArray]) -> FloatArray:
        """The target's probability over that of the logger that wrote the row."""
        layout = self.layout
        target = np.asarray(columns[f"t_{layout.targets.index(self.target)}"], dtype=np.float64)
        if layout.propensity:
            own = columns["propensity"]
        else:
            crossed = np.array([layout.crossed.index(label) for label in layout.loggers])
            probs = np.stack([columns[f"p_{k}"] for k in range(len(layout.crossed))])
            own = probs[crossed[codes], np.arange(len(codes))]
        return np.exp(target - own) if layout.logs else target / own


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
        return replace(self, apart=self.cells, counted=self.counts)

    @property
    def _strata(self) -> dict[str, int]:
        """Rows of each cell or logger whose rows are summed apart."""
        return {key: count for key, count in (self.apart or self.counts).items()}  # noqa: C416

    def _layout(self) -> Layout:
        return layout_of(self.table, self.counts, self.apart)

    @abstractmethod
    def _sums(self, layout: Layout, workspace: Workspace) -> Sums | None:
        """Sums over all rows; None if there are none."""

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
        layout = replace(self._layout(), buckets=buckets)
        united = replace(unite(needs), tails=(), histograms=(), slices=())
        workspace = Workspace(united, self.batch_rows)
        sums = self._sums(layout, workspace)
        moments = bucketed_moments(sums, workspace, needs, self._strata)
        if moments is None:
            raise LogError([CHANGED])
        return moments
