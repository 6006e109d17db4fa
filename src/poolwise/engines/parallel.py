"""Parallel: batches go to kernels in several threads, and their sums come back in order.

The order of the sums does not hang on which thread was faster, so that the same files give
the same bits however busy the machine is.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from poolwise.engines.kernel import Kernel, fresh_floors, raise_floors
from poolwise.rows.reader import ParquetFeed, ParquetReader, Piece, arrow_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    import pyarrow as pa

    from poolwise.engines.sums import Sums
    from poolwise.engines.workspace import Workspace
    from poolwise.moments.moments import FloatArray
    from poolwise.rows.reader import Layout

SMALL_GROUP = 4_000_000  # values of a row group that one more thread may hold: 32 MB


def workers(threads: int) -> int:
    """So many threads, or one for each core where 0 are asked for."""
    return threads or os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over the rows.

    Attributes:
        layout: The columns that batches have.
        workspace: Rows and products to compute.
        threads: Threads to use; 0 means one for each core.
        on_rows: Called with the number of rows whenever some are done.
    """

    layout: Layout
    workspace: Workspace
    threads: int = 0
    on_rows: Callable[[int], object] = lambda _: None
    _local: threading.local = field(default_factory=threading.local)

    def parquet(self, feed: ParquetFeed) -> Sums:
        """Sums over all pieces of a feed."""
        floors, readers = fresh_floors(self.layout, self.workspace), []

        def work(piece: Piece) -> Sums:
            kernel = self._kernel(floors)
            if not hasattr(self._local, "reader"):
                self._local.reader = ParquetReader(feed)
                readers.append(self._local.reader)
            reader: ParquetReader = self._local.reader
            return kernel.together(reader.read(piece, kernel.rows))

        try:
            pieces = ((p, p.rows) for p in feed.pieces)
            return self._in_order(work, pieces, floors, self._readers(feed))
        finally:
            for reader in readers:
                reader.close()

    def _readers(self, feed: ParquetFeed) -> int:
        """Threads for a feed: one more than cores, for one waits while Arrow reads the file.

        Where row groups are large, or the number was asked for, memory is worth more.
        """
        largest = max((p.rows for p in feed.pieces), default=0) * len(feed.columns)
        spare = not self.threads and largest <= SMALL_GROUP
        return workers(self.threads) + spare

    def arrow(self, parts: Iterable[Sequence[pa.RecordBatch]]) -> Sums:
        """Sums over batches in memory, or that a database hands out."""
        floors, loggers = fresh_floors(self.layout, self.workspace), self.layout.loggers

        def work(batches: Sequence[pa.RecordBatch]) -> Sums:
            kernel = self._kernel(floors)
            rows = (arrow_rows(batch, loggers, kernel.rows) for batch in batches)
            return kernel.together(chain.from_iterable(rows))

        sized = ((part, sum(b.num_rows for b in part)) for part in parts)
        items = ((part, rows) for part, rows in sized if rows)
        return self._in_order(work, items, floors, workers(self.threads))

    def _kernel(self, floors: FloatArray) -> Kernel:
        """This thread's own."""
        if not hasattr(self._local, "kernel"):
            self._local.kernel = Kernel(self.layout, self.workspace, floors)
        kernel: Kernel = self._local.kernel
        return kernel

    def _in_order(
        self,
        work: Callable[[Any], Sums],
        items: Iterable[tuple[Any, int]],
        floors: FloatArray,
        threads: int,
    ) -> Sums:
        """Work on all items, a few ahead, and add up in their order."""
        waiting: deque[tuple[Future[Sums], int]] = deque()
        total: Sums | None = None

        def take() -> Sums:
            future, rows = waiting.popleft()
            found = future.result()
            self.on_rows(rows)
            found = found if total is None else total.add(found, self.workspace)
            raise_floors(floors, found)
            return found

        pool = ThreadPoolExecutor(threads)
        try:
            with threadpool_limits(1):  # matrix products are small, and the threads are ours
                for item, rows in items:
                    waiting.append((pool.submit(work, item), rows))
                    if len(waiting) > 2 * threads:
                        total = take()
                while waiting:
                    total = take()
        finally:
            pool.shutdown(cancel_futures=True)
        if total is None:
            raise ValueError("there are no rows")
        return total
