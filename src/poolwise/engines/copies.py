"""Copies: hashes of a sample of rows, in which doubled rows show.

A row is in the sample or not by its content, so that all copies of a row are in it or none.
The hashes see what the kernel sees: logger, reward and probabilities, in single precision,
since a policy in Python may round a copy differently in another batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from poolwise.rows.reader import RowArrays
    from poolwise.types import AnyArray

SAMPLE_ROWS = 1 << 14  # rows of a sample
DECIDING_COLUMNS = 5  # columns that decide whether a row is in the sample
SPREAD_FACTOR = 0x9E3779B97F4A7C15  # odd: a product with it, modulo 2**64, spreads bits


class CopySample:
    """Collects rows from batches of the first pass over a log; threads may share one.

    Attributes:
        groups: Number of groups of rows that are not buckets: loggers, or cells of periods; 0
            before the first pass.
        threshold: Rows whose short hash is below it are in the sample.
        watched: Whether rows were offered to the sample.
    """

    def __init__(self, most: int = SAMPLE_ROWS) -> None:
        self.groups = self.threshold = 0
        self.watched = False
        self._most = most
        self._parts: list[NDArray[np.uint64]] = []  # hashes of rows; append is atomic

    def start(self, rows: int, groups: int) -> Self | None:
        """Return the sample to be filled; None for all passes but the first."""
        if self.groups:
            return None
        self.groups, self.threshold = groups, 2**64 * self._most // max(rows, self._most)
        return self

    def watch(self, batches: Iterable[RowArrays]) -> Iterator[RowArrays]:
        """Yield batches unchanged; add their rows to the sample."""
        self.watched = True
        for groups, columns in batches:
            if self._few():
                self._add(groups, columns)
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
        return sum(map(len, self._parts)) <= 4 * self._most

    def _add(self, groups: AnyArray, columns: Mapping[str, AnyArray]) -> None:
        if self.threshold < 2**64:
            rows = np.flatnonzero(_shorten(list(columns.values())) < self.threshold)
            groups, columns = groups[rows], {k: v.take(rows) for k, v in columns.items()}
        if len(groups):
            self._parts.append(self._hashes(groups, columns))

    def _hashes(self, groups: AnyArray, columns: Mapping[str, AnyArray]) -> NDArray[np.uint64]:
        """Return the hash of each row, in single precision."""
        hashes = groups.astype(np.uint64) % np.uint64(self.groups)
        with np.errstate(all="ignore"):  # a large number is infinite
            for values in columns.values():
                hashes ^= values.astype(np.float32).view(np.uint32)
                hashes *= np.uint64(SPREAD_FACTOR)
                hashes ^= hashes >> np.uint64(29)
        return hashes


def copies_query(part: int = 1) -> str:
    """Return the query of all copies, of every `part`-th content by all columns of the log."""
    hashed = f"SELECT hash(log) AS h FROM log WHERE h % {part} = 0"
    copies = f"SELECT count(*) AS copies FROM ({hashed}) GROUP BY h"
    return f"SELECT copies, count(*) AS contents FROM ({copies}) GROUP BY copies"


def _shorten(columns: Sequence[AnyArray]) -> NDArray[np.uint64]:
    """Return a hash of the sum of a few columns: to read more of them takes longer."""
    few = (
        columns
        if len(columns) <= DECIDING_COLUMNS
        else [*columns[: DECIDING_COLUMNS - 1], columns[-1]]
    )
    total = np.add(few[0], few[1] if len(few) > 1 else 0.0, dtype=np.float64)
    for values in few[2:]:
        total += values
    bits = total.view(np.uint64)
    bits *= np.uint64(SPREAD_FACTOR)  # modulo 2**64
    return bits
