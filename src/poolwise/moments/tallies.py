"""Tallies: histograms, slices and powers, arrays that a pass over the rows adds up.

The rows of a logger are dealt to slices in turn, like cards: row k goes to slice k modulo
their number.  Up to 509 rows, each row has a slice of its own.  Sums of terms over slices
then give the skewness and kurtosis of *any* combination of these terms, without third and
fourth products of all of them.  A later batch continues where the last one ended, so the
slices depend on the order of the rows but not on how they were split into batches.

The powers of a term are its number of non-zero values, the sums of its absolute value to
the power 1, 2, 3 and 4, and its largest absolute value.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poolwise.types import FloatArray, IntArray

MOST_BUCKETS = 4_096  # of rows by a hash of their number, for random blocks
SLICES = (509, 251, 127, 61, 31, 13)  # primes: no period of the log has one of them in it
MOST_SUMS = 4_000_000  # of all loggers and terms: 32 MB
POWERS = 6  # numbers of each term
NONZERO, LARGEST = 0, 5  # places of the count and of the maximum; place p has power p

# Histograms of weights have two bins per power of two, from the bits of the doubles.  The
# bins do not depend on the data, so the counts of two groups of rows add.
LOW, HIGH = -64, 64  # powers of two; the outermost bins also count values outside
BINS = 2 * (HIGH - LOW) + 1  # the first bin holds zeros
SHIFT = 51  # bits below the exponent and the first bit of the fraction
FIRST = (1023 + LOW) << 1  # remaining bits of the smallest power; NaN counts in the last bin


def slices_for(terms: int) -> int:
    """Return the number of slices for so many terms, over all loggers."""
    return next((s for s in SLICES if terms * s <= MOST_SUMS), SLICES[-1])


def add_slices(sums: FloatArray, more: FloatArray, rows: int) -> None:
    """Add the sums of later rows, slices on the last axis, after so many rows were dealt.

    >>> sums = np.array([10.0, 20.0, 30.0])
    >>> add_slices(sums, np.array([1.0, 2.0, 3.0]), 4)
    >>> sums.tolist()
    [13.0, 21.0, 32.0]
    """
    first = rows % sums.shape[-1]  # slice of the first later row
    sums[..., first:] += more[..., : sums.shape[-1] - first]
    sums[..., :first] += more[..., sums.shape[-1] - first :]


@lru_cache(maxsize=1_024)  # loggers
def slice_rows(rows: int, slices: int) -> FloatArray:
    """Return the number of rows of each slice that has any.

    >>> slice_rows(5, 3).tolist(), slice_rows(2, 3).tolist()
    ([2.0, 2.0, 1.0], [1.0, 1.0])
    """
    whole = rows // slices + (np.arange(min(rows, slices)) < rows % slices)
    counts = whole.astype(np.float64)
    counts.flags.writeable = False  # callers share it
    return counts


def hash_buckets(numbers: IntArray) -> IntArray:
    """Return the bucket of each row, by a hash of its number (Steele, Lea & Flood, 2014).

    >>> hash_buckets(np.array([1, 2, 3])).tolist()
    [3503, 1524, 1359]
    """
    return (mixed_bits(numbers.astype(np.uint64)) % np.uint64(MOST_BUCKETS)).astype(np.int64)


def mixed_bits(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each number."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def add_powers(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the powers of both groups of rows together."""
    with np.errstate(over="ignore"):
        both = left + right
    both[..., LARGEST] = np.maximum(left[..., LARGEST], right[..., LARGEST])
    return both


def edges() -> FloatArray:
    """Return the lower edge of each bin, shape (BINS,).

    >>> edges()[[0, 129, 130, 131]].tolist()
    [0.0, 1.0, 1.5, 2.0]
    """
    powers = 2.0 ** np.arange(LOW, HIGH)
    return np.concatenate([[0.0], np.stack([powers, 1.5 * powers], axis=1).ravel()])
