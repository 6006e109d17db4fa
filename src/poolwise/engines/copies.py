"""Copies: hashes of a sample of rows, in which doubled rows show.

A row is in the sample or not by its content, so that all copies of a row are in it or none.
The hashes see what the kernel sees: logger, reward and probabilities, in single precision,
since a policy in Python may round a copy differently in another batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolwise.rows.reader import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from poolwise.log.policy import AnyArray, IntArray
    from poolwise.rows.reader import Rows

MOST = 1 << 14  # rows of a sample
CACHED = 1 << 14  # rows that are hashed at once
FACTOR = 0x9E3779B1  # odd: a product with it, modulo 2**32, spreads the bits of a number
WIDE_FACTOR = 0x9E3779B97F4A7C15


class CopySample:
    """Collects hashes from batches of a pass; threads may share one.

    Attributes:
        groups: Number of groups of rows that are not buckets: loggers, or cells of periods.
        threshold: Rows whose short hash is below it are in the sample.
    """

    def __init__(self, rows: int, groups: int, most: int = MOST) -> None:
        self.groups = groups
        self.threshold = 2**32 * most // max(rows, most)
        self._most = 4 * most
        self._parts: list[NDArray[np.uint64]] = []  # append is atomic

    def watch(self, batches: Iterable[Rows]) -> Iterator[Rows]:
        """Yield batches unchanged; add their rows to the sample."""
        for groups, columns in batches:
            if self._few():
                for part in cut(groups, columns, CACHED):
                    self._add(*part)
            yield groups, columns

    def contents(self) -> dict[int, int]:
        """Number of contents that occur 1, 2, 3, ... times; empty if there are too few."""
        if not self._parts or not self._few():
            return {}
        hashes = np.sort(np.concatenate(self._parts))
        starts = np.flatnonzero(np.diff(hashes, prepend=hashes[:1] - 1, append=hashes[-1:] - 1))
        copies, contents = np.unique(np.diff(starts), return_counts=True)
        return dict(zip(copies.tolist(), contents.tolist(), strict=True))

    def _few(self) -> bool:
        """Return False once frequent contents have overfilled the sample."""
        return sum(map(len, self._parts)) <= self._most

    def _add(self, groups: AnyArray, columns: Mapping[str, AnyArray]) -> None:
        values = list(columns.values())
        if self.threshold < 2**32:
            chosen = _below(values, self.threshold)
            groups, values = groups[chosen], [value[chosen] for value in values]
        if len(groups):
            hashes = groups.astype(np.uint64) % np.uint64(self.groups)
            for value in values:
                hashes ^= _bits(value)
                hashes *= np.uint64(WIDE_FACTOR)
                hashes ^= hashes >> np.uint64(29)
            self._parts.append(hashes)


def copies_query(part: int = 1) -> str:
    """Return the query of all copies, of every `part`-th content by all columns of the log."""
    hashed = f"SELECT hash(log) AS h FROM log WHERE h % {part} = 0"
    copies = f"SELECT count(*) AS copies FROM ({hashed}) GROUP BY h"
    return f"SELECT copies, count(*) AS contents FROM ({copies}) GROUP BY copies"


class FirstPass:
    """Holds the sample of the first pass over the rows of a log."""

    def __init__(self) -> None:
        self._sample: CopySample | None = None

    def start(self, rows: int, groups: int) -> CopySample | None:
        """Return a sample to be filled; None for all passes but the first."""
        if self._sample is not None:
            return None
        self._sample = CopySample(rows, groups)
        return self._sample

    def contents(self) -> dict[int, int]:
        """Number of contents that occur 1, 2, 3, ... times in the sample."""
        return {} if self._sample is None else self._sample.contents()


def _below(values: Sequence[AnyArray], threshold: int) -> IntArray:
    """Return the rows whose short hash, of at most three columns, is below a threshold."""
    first, *others = (*values[:2], *values[2:][-1:])
    short = _bits(first) * np.uint32(FACTOR)
    for value in others:
        short ^= _bits(value)
        short *= np.uint32(FACTOR)
    return np.flatnonzero(short < threshold)


def _bits(values: AnyArray) -> NDArray[np.uint32]:
    with np.errstate(all="ignore"):  # too large a number is infinite, for a hash
        return np.asarray(values, dtype=np.float32).view(np.uint32)
