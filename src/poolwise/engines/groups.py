"""Groups: rows of one logger, or of one logger in one bucket, that lie next to each other.

A batch with buckets has a thousand groups of a hundred rows.  So sums, extremes and powers
are computed for many groups at once, and only matrix products group by group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.tallies import LARGEST, POWERS, powers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolwise.log.policy import AnyArray, FloatArray, IntArray

FEW_GROUPS = 12  # from more groups on, sorting is faster than one search for each
RUN = 8_192  # rows that go through all steps together, or more of one group
CHUNK, SMALL = 1024, 900  # columns of a matrix product that has so few entries


@dataclass(frozen=True, eq=False)
class Groups:
    """Adjacent groups of rows, without the empty ones.

    Attributes:
        numbers: Number of each group in the batch, shape (g,).
        starts: First row of each, shape (g,).
        counts: Rows of each, at least one, shape (g,).
    """

    numbers: IntArray
    starts: IntArray
    counts: IntArray

    @classmethod
    def between(cls, first: int, ends: IntArray) -> Groups:
        """Return the groups from number `first` on that end there; `ends` starts with 0."""
        counts = np.diff(ends)
        present = np.flatnonzero(counts)
        return cls(first + present, ends[present], counts[present])

    @cached_property
    def spans(self) -> list[slice]:
        """Rows of each group."""
        pairs = zip(self.starts.tolist(), self.counts.tolist(), strict=True)
        return [slice(start, start + count) for start, count in pairs]

    def sums(self, values: FloatArray, ones: FloatArray | None = None) -> FloatArray:
        """Add up the rows of each group; rows are on the last axis, and so are groups.

        With `ones`, shape (1, n), one group is added up by a matrix product.
        """
        if ones is not None and len(self.starts) == 1:
            return multiply(values, ones)
        return np.add.reduceat(values, self.starts, axis=-1)

    def lowest(self, values: FloatArray) -> FloatArray:
        return np.minimum.reduceat(values, self.starts, axis=-1)

    def largest(self, values: FloatArray) -> FloatArray:
        return np.maximum.reduceat(values, self.starts, axis=-1)

    def dots(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Multiply each row of a matrix with that of another, shape (k, g)."""
        if len(self.starts) == 1:
            dots: FloatArray = np.vecdot(left, right)
            return dots[:, None]
        return self.sums(left * right)

    def products(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Multiply each row of a matrix with each of another, shape (g, left, right)."""
        out = np.empty((len(self.starts), len(left), len(right)))
        for span, product in zip(self.spans, out, strict=True):
            product[:] = multiply(left[:, span], right[:, span])
        return out

    def powers(self, values: FloatArray) -> FloatArray:
        """Return the powers of terms with these values, shape (g, terms, 6)."""
        if len(self.starts) == 1:
            return powers_of(values)[None]
        powers = np.empty((len(self.starts), len(values), POWERS))
        for k, of_term in enumerate(values):
            sizes = np.abs(of_term)
            squares = sizes * sizes
            each = np.stack([np.sign(sizes), sizes, squares, sizes * squares, squares**2])
            powers[:, k, :LARGEST] = self.sums(each).T
            powers[:, k, LARGEST] = self.largest(sizes)
        return powers

    def among(self, rows: IntArray) -> Groups:
        """Return the groups of some of the rows, in ascending order."""
        last = int(self.starts[-1] + self.counts[-1])
        ends = np.searchsorted(rows, [*self.starts.tolist(), last])
        part = Groups.between(0, ends)
        return Groups(self.numbers[part.numbers], part.starts, part.counts)

    def chosen(self, values: FloatArray, places: IntArray) -> FloatArray:
        """Return for the rows of each group one row of a matrix, shape (n,)."""
        one = len(self.starts) == 1
        rows = slice(None) if one else np.arange(values.shape[1])
        chosen: FloatArray = values[places[0] if one else self.spread(places), rows]
        return chosen

    def spread(self, values: AnyArray) -> AnyArray:
        """Repeat values of groups for their rows; those of one group are broadcast."""
        return values if len(self.starts) == 1 else np.repeat(values, self.counts, axis=-1)


def order_of(codes: AnyArray, groups: int) -> tuple[IntArray | None, IntArray]:
    """Return the order of the rows by group, None if they have it, and where groups end."""
    if (codes[1:] >= codes[:-1]).all():
        return None, np.searchsorted(codes, np.arange(groups + 1))
    if groups <= FEW_GROUPS:
        parts = [np.flatnonzero(codes == group) for group in range(groups)]
        return np.concatenate(parts), np.cumsum([0, *map(len, parts)])
    narrow = codes.astype(np.uint16) if groups <= np.iinfo(np.uint16).max else codes
    ends = np.concatenate([[0], np.bincount(codes, minlength=groups).cumsum()])
    return np.argsort(narrow, kind="stable"), ends


def runs(ends: IntArray, size: int = RUN) -> Iterator[slice]:
    """Split groups into runs of at most so many rows, or of one group; skip empty runs."""
    first = 0
    while first < len(ends) - 1:
        last = int(np.searchsorted(ends, ends[first] + size, side="right")) - 1
        last = max(last, first + 1)
        if ends[first] < ends[last]:
            yield slice(first, last)
        first = last


def multiply(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return left @ right.T; small products are faster in chunks of columns."""
    n = left.shape[1]
    chunked = n - n % CHUNK
    if not chunked or len(left) * len(right) > SMALL:
        return left @ right.T
    parts = np.matmul(
        left[:, :chunked].reshape(len(left), -1, CHUNK).transpose(1, 0, 2),
        right[:, :chunked].reshape(len(right), -1, CHUNK).transpose(1, 2, 0),
    )
    product: FloatArray = parts.sum(axis=0)
    return product + left[:, chunked:] @ right[:, chunked:].T
