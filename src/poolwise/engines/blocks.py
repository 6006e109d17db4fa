"""Blocks of rows: what each row is worth to a bet, against the mixture of its own block.

Blocks are random, by a hash of the row's number, and each has about the same share of every
logger's rows; those of a log with periods lie within a period.  A first pass counts the rows
of each logger in `MOST_BUCKETS` buckets, from which blocks are put together; a second one sorts
the rows' payoffs into histograms, which add up over batches, threads and workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar
from zlib import crc32

import numpy as np

from poolwise.moments.blocks import NO_BLOCKS, Blocks, BlockSums, Settled, hash_blocks
from poolwise.moments.pool import list_periods
from poolwise.moments.tallies import MOST_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from poolwise.moments.blocks import Payoff
    from poolwise.moments.pool import Cell
    from poolwise.rows.layout import Layout
    from poolwise.rows.reader import RowArrays
    from poolwise.types import AnyArray, FloatArray, IntArray

SIZES = ((30, 2), (300, 10), (2_000, 40), (20_000, 100))  # blocks for so many rows
MOST_ROWS = 65_536  # of a batch
FEWEST_BUCKETS, MOST_COUNTS = 256, 1_000_000  # 8 MB of counts, unless strata are very many


def blocks_for(rows: int) -> int:
    """Return the number of random blocks: more rows, more and larger blocks.

    >>> [blocks_for(n) for n in (5, 300, 1_000, 2_000, 20_000, 10_000_000)]
    [2, 10, 24, 40, 100, 100]
    """
    sizes, numbers = np.log(np.array(SIZES, dtype=np.float64)).T
    return round(float(np.exp(np.interp(np.log(max(rows, 1)), sizes, numbers))))


class Addable(Protocol):
    """A sum over rows."""

    def __add__(self, other: Self, /) -> Self: ...


Added = TypeVar("Added", bound=Addable)


@dataclass(frozen=True, eq=False)
class Folding(ABC, Generic[Added]):
    """Adds up batches of rows; picklable, so that Spark's tasks can do it.

    Attributes:
        layout: Columns of the batches.
    """

    layout: Layout

    @property
    def rows(self) -> int:
        """Largest number of rows of a batch."""
        return MOST_ROWS

    @abstractmethod
    def together(self, batches: Iterable[RowArrays]) -> Added:
        """Return the sum over batches."""


@dataclass(frozen=True, eq=False)
class Cut:
    """The blocks of a layout.

    Attributes:
        block: Block of each group of the layout.
        logger: Number of the logger of each group.
        counts: Rows of each block and logger, shape (blocks, loggers).
        names: Name of each block, where blocks are periods.
    """

    block: IntArray
    logger: IntArray
    counts: IntArray
    names: tuple[str, ...] = ()


def cut_blocks(
    buckets: IntArray,
    cells: Sequence[Cell] = (),
    loggers: Sequence[str] = (),
    *,
    clustered: bool = False,
) -> Cut:
    """Put buckets together to random blocks, stratified by logger, within each period.

    Args:
        buckets: Rows of each bucket and logger, or of each bucket and cell, shape
            (buckets, strata).
        cells: The cells, if the log has periods.
        loggers: Every logger, likewise.
        clustered: Whether buckets hold clusters, which must stay whole: all rows of a bucket
            and period are in one block then, and blocks are not stratified.
    """
    names = list_periods(cells)
    periods = np.array([names.index(cell.period) for cell in cells] or [0] * buckets.shape[1])
    codes = [loggers.index(cell.logger) for cell in cells] or range(buckets.shape[1])
    number = count_cuts(int(buckets.sum()), len(names))
    sizes = buckets
    if clustered:
        of_period = periods[:, None] == periods  # of each pair of strata
        sizes = buckets @ of_period
    before = np.cumsum(sizes, axis=0) - sizes
    part = before * number // np.maximum(sizes.sum(axis=0), 1)
    part = np.minimum(part, number - 1)  # of buckets after the last row
    block = part + number * periods
    logger = np.broadcast_to(np.array(codes), buckets.shape)
    counts = np.zeros((number * max(len(names), 1), max(codes) + 1), dtype=np.int64)
    np.add.at(counts, (block, logger), buckets)
    return Cut(block.ravel(), logger.ravel(), counts)


def count_cuts(rows: int, periods: int) -> int:
    """Return the number of random blocks of each period, or of a log without periods.

    >>> count_cuts(2_000, 0), count_cuts(2_000, 1), count_cuts(2_000, 8), count_cuts(2_000, 200)
    (40, 40, 5, 1)
    """
    return max(round(blocks_for(rows) / max(periods, 1)), 1)


def as_one(counts: Mapping[str, int]) -> Cut:
    """Return all rows as one block; the groups of the layout are the loggers."""
    rows = np.array([list(counts.values())], dtype=np.int64)
    loggers = np.arange(len(counts))
    return Cut(np.zeros_like(loggers), loggers, rows)


def by_period(cells: Mapping[Cell, int], loggers: Sequence[str]) -> Cut:
    """Return periods as blocks; the groups of the layout are the cells, in their order."""
    names = list_periods(cells)
    number = {name: k for k, name in enumerate(names)}
    block = np.array([number[cell.period] for cell in cells], dtype=np.int64)
    logger = np.array([loggers.index(cell.logger) for cell in cells], dtype=np.int64)
    counts = np.zeros((len(names), len(loggers)), dtype=np.int64)
    counts[block, logger] = list(cells.values())
    return Cut(block, logger, counts, names)


@dataclass(frozen=True, eq=False)
class GroupCounts(Folding[Any]):
    """Counts the rows of each group."""

    def together(self, batches: Iterable[RowArrays]) -> IntArray:
        """Return the rows of each group, over all batches."""
        total = np.zeros(len(self.layout.groups), dtype=np.int64)
        for groups, _ in batches:
            total += np.bincount(groups, minlength=len(total))
        return total


def bucket_layout(layout: Layout) -> Layout:
    """Return the layout of random buckets of rows, or of clusters.

    There are fewer where there are many loggers or cells.
    """
    buckets = MOST_BUCKETS
    while buckets > FEWEST_BUCKETS and buckets * len(layout.strata) > MOST_COUNTS:
        buckets //= 2
    return replace(layout, buckets=buckets)


def counting_layout(layout: Layout) -> Layout:
    """Return the layout with only the columns that decide whether a row counts."""
    if layout.drop:
        return layout
    few = replace(layout, crossed=(), shares=(), targets=(), valued=(), propensity=False)
    return replace(few, predicted=False, mixture=False)


@dataclass(frozen=True, eq=False)
class BlockKernel(Folding[BlockSums]):
    """Turns batches of rows into histograms of their payoffs.

    Attributes:
        cut: The blocks.
        payoffs: Values of each row.
        pooled: Whether weights are those against the block's mixture, and bets those on a
            block; otherwise weights and bets are those of the row's own logger.
        watched: Whether blocks will be followed by others: bets are those on a block then, and
            its rows are hashed.
    """

    cut: Cut
    payoffs: tuple[Payoff, ...]
    pooled: bool
    watched: bool = False

    @property
    def strata(self) -> int:
        """Strata of a block."""
        return 1 if self.pooled or self.watched else len(self.layout.loggers)

    @cached_property
    def shares(self) -> FloatArray:
        """Share of each crossed logger in the mixture of each block."""
        counts, loggers = self.cut.counts, self.layout.loggers
        known = [loggers.index(i) if i in loggers else -1 for i in self.layout.crossed]
        padded = np.column_stack([counts, np.zeros(len(counts), dtype=np.int64)])
        return np.asarray(padded[:, known] / np.maximum(counts.sum(axis=1), 1)[:, None])

    def together(self, batches: Iterable[RowArrays]) -> BlockSums:
        """Return the histograms of all batches."""
        counts = np.zeros_like(self.cut.counts)
        marks = np.zeros(len(counts), dtype=np.uint64)
        total = BlockSums((NO_BLOCKS,) * len(self.payoffs), counts, marks)
        for groups, columns in batches:
            total += self(groups, columns)
        return total

    def __call__(self, groups: AnyArray, columns: Mapping[str, AnyArray]) -> BlockSums:
        """Return the histograms of one batch."""
        block, logger = self.cut.block[groups], self.cut.logger[groups]
        doubles = {n: np.asarray(c, dtype=np.float64) for n, c in columns.items()}
        blocks, loggers = self.cut.counts.shape
        counts = np.bincount(block * loggers + logger, minlength=blocks * loggers)
        key = block if self.strata == 1 else block * self.strata + logger
        with np.errstate(all="ignore"):  # weights that overflow are cut
            ratios = self._ratios(logger, block, doubles)
            values = [self._values(p, block, doubles["reward"], ratios) for p in self.payoffs]
        histograms = []
        for payoff, value in zip(self.payoffs, values, strict=True):
            used = np.isfinite(self.shifts(payoff))[block]
            histograms.append(Blocks.of(key[used], value[used]))
        marks = np.zeros(blocks, dtype=np.uint64)
        if self.watched:
            values = [doubles[name] for name in sorted(doubles)]
            marks = hash_blocks(block, self._labels[logger], values, blocks)
        return BlockSums(tuple(histograms), counts.reshape(blocks, loggers), marks)

    @cached_property
    def _labels(self) -> NDArray[np.uint64]:
        """Hash of the label of each logger."""
        return np.array([crc32(i.encode()) for i in self.layout.loggers], dtype=np.uint64)

    def _ratios(
        self, logger: IntArray, block: IntArray, columns: Mapping[str, FloatArray]
    ) -> dict[str, FloatArray]:
        """Return targets and crossed loggers over the probability that rows are weighed by."""
        layout = self.layout
        names = [f"p_{k}" for k in range(len(layout.crossed))]
        targets = [f"t_{k}" for k in range(len(layout.targets))]
        probs = {name: columns[name] for name in (*names, *targets)}
        own = self._own(logger, columns)
        if layout.scale.logs:
            top = np.max([own, *(columns[name] for name in names)], axis=0)
            probs = {name: np.exp(prob - top) for name, prob in probs.items()}
            own = np.exp(own - top)
        if self.pooled:
            own = np.zeros(len(block))
            for k, name in enumerate(names):
                own += self.shares[block, k] * probs[name]
        return {name: prob / own for name, prob in probs.items()}

    def _own(self, logger: IntArray, columns: Mapping[str, FloatArray]) -> FloatArray:
        """Return the probability under the logger that wrote the row."""
        if self.layout.propensity:
            return columns["propensity"]
        crossed = np.array([self.layout.crossed.index(i) for i in self.layout.loggers])
        probs = np.stack([columns[f"p_{k}"] for k in range(len(self.layout.crossed))])
        return np.asarray(probs[crossed[logger], np.arange(len(logger))])

    def _values(
        self,
        payoff: Payoff,
        block: IntArray,
        reward: FloatArray,
        ratios: Mapping[str, FloatArray],
    ) -> FloatArray:
        """Return the payoff of each row plus the shift of its block."""
        weight = ratios[f"t_{self.layout.targets.index(payoff.target)}"]
        if payoff.against in self.layout.crossed:
            weight = weight - ratios[f"p_{self.layout.crossed.index(payoff.against)}"]
        gain = np.maximum(payoff.sign * (reward - payoff.zero) / payoff.scale, 0.0)
        values = np.where(gain > 0, weight * gain, 0.0) + self.shifts(payoff)[block]
        return np.asarray(np.maximum(values, 0.0))

    def shifts(self, payoff: Payoff) -> FloatArray:
        """Return the shift of each block that makes its payoffs non-negative.

        The logger's ratio to a mixture in which it has a share is at most one over this share.
        A logger that is not live has no share.
        """
        if not payoff.against:
            return np.zeros(len(self.cut.counts))
        shifts: FloatArray = np.full(len(self.cut.counts), np.inf)
        if payoff.against not in self.layout.crossed:
            return shifts
        share = self.shares[:, self.layout.crossed.index(payoff.against)]
        return np.divide(1.0, share, out=shifts, where=share > 0)

    def settled(self, sums: BlockSums) -> Settled:
        """Return the sums of all rows with what a bet must know about the blocks."""
        shifts = tuple(self.shifts(payoff) for payoff in self.payoffs)
        return Settled(sums, shifts, self.strata, self.cut.names)
