r"""Blocks: histograms of weighted rewards, from which any bet can be settled later.

A bet multiplies $1 + \lambda (z - m)$ over rows, for many candidates $m$.  A histogram with
narrow bins replaces the rows: each bin has the number of its values, and the sums of their
relative distances $e$ from its lower edge $l$ and of $e^2$.  For all $z \ge l$ and $\kappa > 0$

$$\sum \ln(1 + \kappa z) \;\ge\; (n - p) \ln(1 + \kappa l)
  + p \ln\big(1 + \kappa l (1 + \textstyle\sum e^2 / \sum e)\big),
  \qquad p = (\textstyle\sum e)^2 / \sum e^2$$

because the third derivative of the logarithm is positive: these two atoms have the values'
count, mean and mean square, and of all such values they have the smallest sum of logarithms.
So capital computed from atoms is never above that of the rows, and below it by a term of third
order in the width of a bin.  Histograms of two groups of rows add.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.tallies import mixed_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from poolwise.types import FloatArray, IntArray

BITS = 5  # of the fraction of a double: 32 bins for each power of two
LOW, HIGH = -64, 64  # powers of two; smaller values become 0, larger ones 2**HIGH
SHIFT = 52 - BITS
FIRST = (1023 + LOW) << BITS
BLOCK_BINS = ((HIGH - LOW) << BITS) + 2  # the first holds zeros, the last 2**HIGH
MOST_MARKS, MARK = 256, 16  # hashes of clusters of a block, and their digits
COUNT, FIRST_POWER, SECOND_POWER = range(3)


@dataclass(frozen=True, eq=False)
class Atoms:
    """Values with multiplicities that replace the rows of a bet.

    Attributes:
        group: Group of each atom, ascending, shape (a,).
        value: Its value.
        rows: Its number of rows, a fraction.
    """

    group: IntArray
    value: FloatArray
    rows: FloatArray


@dataclass(frozen=True, eq=False)
class Blocks:
    """Histogram of the values of each group of rows: one group per block and stratum.

    Attributes:
        keys: Group times `BLOCK_BINS` plus the bin, of each bin that has rows, ascending.
        sums: Number of rows, sum of relative distances from the lower edge, and of their
            squares, shape (3, bins).
    """

    keys: IntArray
    sums: FloatArray

    @classmethod
    def of(cls, groups: IntArray, values: FloatArray) -> Blocks:
        """Return the histogram of non-negative values.

        >>> blocks = Blocks.of(np.array([0, 0, 2]), np.array([1.0, 1.0, 0.0]))
        >>> (blocks.keys // BLOCK_BINS).tolist(), blocks.sums[COUNT].tolist()
        ([0, 2], [2.0, 1.0])
        """
        if not len(values):
            return NO_BLOCKS
        values = np.minimum(values, 2.0**HIGH)
        numbers, edges = _bins(values)
        away = np.divide(values, edges, out=np.ones(len(values)), where=edges > 0) - 1.0
        first = int(groups.min())
        keys = (groups.astype(np.int64) - first) * BLOCK_BINS + numbers
        counts = np.bincount(keys)
        used = np.flatnonzero(counts)
        powers = [np.bincount(keys, weights)[used] for weights in (away, away * away)]
        return cls(
            used + first * BLOCK_BINS, np.stack([counts[used].astype(np.float64), *powers])
        )

    def __add__(self, other: Blocks) -> Blocks:
        keys, where = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        sums = np.zeros((3, len(keys)))
        sums[:, where[: len(self.keys)]] = self.sums
        sums[:, where[len(self.keys) :]] += other.sums
        return Blocks(keys, sums)

    def until(self, groups: int) -> Blocks:
        """Return the histograms of the first groups."""
        end = int(np.searchsorted(self.keys, groups * BLOCK_BINS))
        return Blocks(self.keys[:end], self.sums[:, :end])

    def moved(self, groups: int) -> Blocks:
        """Return the same histograms with the number of each group raised."""
        return Blocks(self.keys + groups * BLOCK_BINS, self.sums)

    def moments(self, groups: int) -> FloatArray:
        """Count, sum and sum of squares of the values of each group, shape (3, groups)."""
        edges = _edges(self.keys % BLOCK_BINS)
        count, first, second = self.sums
        powers = (count, edges * (count + first), edges**2 * (count + 2 * first + second))
        index = self.keys // BLOCK_BINS
        return np.stack([np.bincount(index, power, minlength=groups) for power in powers])

    def atoms(self) -> Atoms:
        """Return the atoms whose bets never win more than those of the rows."""
        count, first, second = self.sums
        edges, group = _edges(self.keys % BLOCK_BINS), self.keys // BLOCK_BINS
        spread = second > 0
        ratio = np.divide(second, first, out=np.zeros_like(first), where=spread)
        far = np.divide(first**2, second, out=np.zeros_like(first), where=spread)
        far = np.minimum(far, count)  # Cauchy-Schwarz, but for rounding
        value = np.stack([edges, edges * (1 + ratio)], axis=1).ravel()
        rows = np.stack([count - far, far], axis=1).ravel()
        used = rows > 0
        return Atoms(np.repeat(group, 2)[used], value[used], rows[used])


NO_BLOCKS = Blocks(np.empty(0, dtype=np.int64), np.empty((3, 0)))


@dataclass(frozen=True)
class Payoff:
    r"""Value of a row to a bet: $w s (\delta - \delta_0) / c$, with $w$ the target's weight.

    Attributes:
        target: The target.
        zero: Reward of value 0, $\delta_0$.
        sign: 1 for gains, -1 for losses, $s$.
        scale: Width of the range of the rewards, $c$.
        against: Logger whose weight is subtracted from the target's, if any.
    """

    target: str
    zero: float
    sign: float
    scale: float
    against: str = ""


@dataclass(frozen=True, eq=False)
class BlockSums:
    """Histograms of several payoffs over the same rows.

    Attributes:
        histograms: Histogram of each payoff.
        counts: Rows of each block and logger, shape (blocks, loggers).
        marks: Sum of the hashes of the rows of each block, modulo 2**64; the same for the same
            rows in any order.  0 where it was not requested.
    """

    histograms: tuple[Blocks, ...]
    counts: IntArray
    marks: NDArray[np.uint64]

    def __add__(self, other: BlockSums) -> BlockSums:
        pairs = zip(self.histograms, other.histograms, strict=True)
        histograms = tuple(a + b for a, b in pairs)
        return BlockSums(histograms, self.counts + other.counts, self.marks + other.marks)


@dataclass(frozen=True)
class ClusterMarks:
    """The clusters of a block.

    Attributes:
        rows: Largest number of rows of a cluster.
        marks: The smallest hashes of clusters, in order, at most `MOST_MARKS`: two blocks
            that share many clusters share one of these.
    """

    rows: int = 1
    marks: tuple[str, ...] = ()

    def shared(self, other: ClusterMarks) -> int:
        """Return the number of marks in both blocks."""
        return len(set(self.marks) & set(other.marks))


@dataclass(frozen=True, eq=False)
class Settled:
    """Rows of a log, as histograms that settle bets.

    Attributes:
        sums: Histograms of the payoffs, and rows of each block.
        shifts: Added to the values of each payoff in each block; infinite without a bet.
        strata: Strata of a block.
        names: Name of each block, where blocks are periods.
        cluster_rows: Largest number of rows of a cluster.
        clusters: Clusters of each block of a watch, by name; empty if rows are independent.
    """

    sums: BlockSums
    shifts: tuple[FloatArray, ...]
    strata: int = 1
    names: tuple[str, ...] = ()
    cluster_rows: int = 1
    clusters: Mapping[str, ClusterMarks] = field(default_factory=dict)


def _bins(values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the bin of each value, and its lower edge."""
    numbers = (np.ascontiguousarray(values).view(np.int64) >> SHIFT) - (FIRST - 1)
    numbers[numbers < 1] = 0
    return numbers, _edges(numbers)


def _edges(numbers: IntArray) -> FloatArray:
    """Return the lower edge of each bin; 0 for the first."""
    edges = ((numbers + (FIRST - 1)) << SHIFT).view(np.float64)
    return np.where(numbers > 0, edges, 0.0)


def hash_blocks(
    block: IntArray, label: NDArray[np.uint64], columns: Iterable[FloatArray], blocks: int
) -> NDArray[np.uint64]:
    """Return the sum of the hashes of the rows of each block, shape (blocks,).

    Args:
        block: Block of each row.
        label: Hash of the label of its logger.
        columns: Its numbers, in a fixed order.
        blocks: Number of blocks.
    """
    hashes = label
    for column in columns:
        hashes = mixed_bits(hashes ^ np.ascontiguousarray(column + 0.0).view(np.uint64))
    marks = np.zeros(blocks, dtype=np.uint64)
    np.add.at(marks, block, hashes)
    return marks
