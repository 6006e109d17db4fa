"""Clusters: the bucket of each row's cluster, by DuckDB's hash of the cluster's text.

To hash a text takes longer than to read it.  Users and sessions are often numbered: once a
range of numbers has occurred in many rows, the buckets of all its numbers are computed and
kept, and rows only look them up.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from poolwise.types import AnyArray

WIDEST = 1 << 24  # numbers whose buckets are kept
ROWS_OF_NUMBER = 0.5  # rows that are hashed for each number of a range before it is kept


def cluster_buckets(clusters: pa.ChunkedArray, buckets: int) -> AnyArray:
    """Return the bucket of each cluster.

    >>> cluster_buckets(pa.chunked_array([["7", "12", "7"]]), 50).tolist()
    [6, 5, 6]
    >>> cluster_buckets(pa.chunked_array([[7, 12, 7]]), 50).tolist()
    [6, 5, 6]
    """
    numbered = pa.types.is_integer(clusters.type) and clusters.type != pa.uint64()
    if numbered and len(clusters) and not clusters.null_count:
        return _numbered.setdefault(buckets, NumberedBuckets(buckets))(_join_columns(clusters))
    return _hash_clusters(clusters, buckets)


def _hash_clusters(clusters: pa.ChunkedArray, buckets: int) -> AnyArray:
    table = pa.table({"cluster": clusters})
    return _answer(f"SELECT hash(CAST(cluster AS VARCHAR)) % {buckets} FROM clusters", table)


def _answer(query: str, clusters: pa.Table | None = None) -> AnyArray:
    """Return the only column of an answer, from the connection of this thread."""
    import duckdb

    if not hasattr(_own, "connection"):  # opening one takes longer than hashing a batch
        _own.connection = duckdb.connect(config={"threads": 1})
    connection: duckdb.DuckDBPyConnection = _own.connection
    if clusters is not None:
        connection.register("clusters", clusters)
    return _join_columns(connection.sql(query).to_arrow_table().column(0))


def _join_columns(values: pa.ChunkedArray) -> AnyArray:
    """Return numbers, none of them missing."""
    parts = [np.from_dlpack(chunk) for chunk in values.chunks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0)])


class NumberedBuckets:
    """Buckets of clusters that are numbers; threads share one.

    Args:
        buckets: Number of buckets.
        widest: Numbers whose buckets are kept, at most.
    """

    def __init__(self, buckets: int, widest: int = WIDEST) -> None:
        self.buckets, self.widest = buckets, widest
        self._kept = 0, np.empty(0, dtype=np.min_scalar_type(buckets - 1))
        self._hashed_rows = 0
        self._lock = threading.Lock()

    def __call__(self, numbers: AnyArray) -> AnyArray:
        """Return the bucket of each number."""
        low, top = int(numbers.min()), int(numbers.max())
        first, table = self._kept
        if not first <= low <= top < first + len(table) and self._lock.acquire(blocking=False):
            try:
                self._hashed_rows += len(numbers)
                first, table = self._kept = self._extended(low, top)
            finally:
                self._lock.release()
        if not first <= low <= top < first + len(table):
            return _hash_clusters(pa.chunked_array([numbers]), self.buckets)
        return table.take(numbers.astype(np.int64, copy=False) - first)

    def _extended(self, low: int, top: int) -> tuple[int, AnyArray]:
        """Return the kept buckets, extended to a range where enough rows were hashed."""
        first, table = self._kept
        last = first + len(table) - 1
        if len(table) == 0 or max(top, last) - min(low, first) >= self.widest:
            first, last, table = low, low - 1, table[:0]  # of another log
        before, after = max(first - low, 0), max(top - last, 0)
        numbers = len(table) + before + after
        if numbers > self.widest or before + after > self._hashed_rows / ROWS_OF_NUMBER:
            return self._kept
        self._hashed_rows = 0
        parts = [self._range(first - before, before), table, self._range(last + 1, after)]
        return first - before, np.concatenate(parts)

    def _range(self, first: int, size: int) -> AnyArray:
        """Return the buckets of successive numbers."""
        hashes = f"SELECT hash(CAST(i AS VARCHAR)) % {self.buckets} "
        answer = _answer(hashes + f"FROM range({first}, {first + size}) t(i)")
        return answer.astype(self._kept[1].dtype)


_numbered: dict[int, NumberedBuckets] = {}
_own = threading.local()  # a connection for each thread
