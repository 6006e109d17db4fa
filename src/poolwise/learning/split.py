"""Split: folds that depend on the content of rows, not on their order.

Rows are put in an order that follows from a hash of their content and a seed, so that the
same rows give the same folds and, to the last bit, the same sums, from any source and in any
order.  Rows of one cluster share a fold.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from poolwise.log.policy import AnyArray, FloatArray, IntArray

Hashes = NDArray[np.uint64]
FACTOR = np.uint64(0xBF58476D1CE4E5B9)  # odd, with well mixed bits


def mix(hashes: Hashes, values: AnyArray) -> Hashes:
    """Return new hashes that depend on the old ones and on 64-bit values."""
    mixed: Hashes = hashes ^ values.astype(np.uint64)
    for shift in (np.uint64(31), np.uint64(29)):
        mixed = (mixed + FACTOR) * FACTOR
        mixed ^= mixed >> shift
    return mixed


def number_bits(values: FloatArray) -> Hashes:
    """Return the bits of numbers, equal for equal numbers and for all NaN."""
    doubles = np.where(np.isnan(values), np.nan, np.asarray(values, np.float64) + 0.0)
    bits: Hashes = doubles.view(np.uint64)
    return bits


def label_bits(codes: IntArray, labels: Sequence[Hashable]) -> Hashes:
    """Return a hash of each row's label."""
    digests = [hashlib.blake2b(repr(label).encode(), digest_size=8) for label in labels]
    hashes = [int.from_bytes(digest.digest()) for digest in digests]
    return np.array([*hashes, 0], dtype=np.uint64)[codes]


def start(rows: int, seed: int) -> Hashes:
    """Return the hashes of rows without content."""
    return mix(np.zeros(rows, np.uint64), np.full(rows, seed % 2**63))


def row_hashes(parts: Iterable[Hashes], rows: int, seed: int) -> Hashes:
    """Return distinct hashes of rows; equal rows differ by their number."""
    hashes = start(rows, seed)
    for part in parts:
        hashes = mix(hashes, part)
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    first = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if rows else order
    sizes = np.diff(np.r_[first, rows])
    numbers = np.empty(rows, np.int64)
    numbers[order] = np.arange(rows) - np.repeat(first, sizes)
    return mix(hashes, numbers)


def positions(hashes: Hashes, groups: IntArray) -> IntArray:
    """Return the position of each row in its group, in the order of the hashes.

    Rows with equal hashes share a position.
    """
    position = np.empty(len(hashes), np.int64)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        _, position[rows] = np.unique(hashes[rows], return_inverse=True)
    return position


def fold_of(hashes: Hashes, groups: IntArray, folds: int) -> IntArray:
    """Return the fold of each row: each fold has its share of each group.

    >>> fold_of(np.array([9, 5, 5, 7], np.uint64), np.zeros(4, np.int64), 2).tolist()
    [0, 0, 0, 1]
    """
    return positions(hashes, groups) % folds


def held_out(hashes: Hashes, groups: IntArray, share: float) -> NDArray[np.bool]:
    """Mark a share of the rows of each group, spread evenly in the order of the hashes.

    >>> held_out(np.arange(6, dtype=np.uint64), np.zeros(6, np.int64), 0.5).tolist()
    [False, True, False, True, False, True]
    """
    position = positions(hashes, groups)
    held: NDArray[np.bool] = np.floor((position + 1) * share) > np.floor(position * share)
    return held
