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
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from poolwise.engine.feed import ParquetFeed, ParquetReader, Piece, arrow_rows
from poolwise.engine.kernel import Kernel, fresh_floors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    import pyarrow as pa

    from poolwise.engine.layout import Layout
    from poolwise.engine.program import Program
    from poolwise.engine.sums import Sums
    from poolwise.moments import FloatArray


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over the rows.

    Attributes:
        layout: The columns that batches have.
        program: What is computed of them.
        threads: Threads to use; 0 means one for each core.
        on_rows: Called with the number of rows whenever some are done.
    """

    layout: Layout
    program: Program
    threads: int = 0
    on_rows: Callable[[int], object] = lambda _: None
    _local: threading.local = field(default_factory=threading.local)

    def parquet(self, feed: ParquetFeed) -> Sums:
        """Sums over all pieces of a feed."""
        floors, readers = fresh_floors(self.layout, self.program), []

        def work(piece: Piece) -> Sums:
            kernel = self._kernel(floors)
            if not hasattr(self._local, "reader"):
                self._local.reader = ParquetReader(feed)
                readers.append(self._local.reader)
            reader: ParquetReader = self._local.reader
            return kernel.together(reader.read(piece, self.program.batch_rows))

        try:
            return self._in_order(work, ((piece, piece.rows) for piece in feed.pieces))
        finally:
            for reader in readers:
                reader.close()

    def arrow(self, batches: Iterable[pa.RecordBatch]) -> Sums:
        """Sums over the batches that a database hands out."""
        floors, loggers = fresh_floors(self.layout, self.program), self.layout.loggers

        def work(batch: pa.RecordBatch) -> Sums:
            rows = arrow_rows(batch, loggers, self.program.batch_rows)
            return self._kernel(floors).together(rows)

        return self._in_order(work, ((b, b.num_rows) for b in batches if b.num_rows))

    def _kernel(self, floors: FloatArray) -> Kernel:
        """This thread's own."""
        if not hasattr(self._local, "kernel"):
            self._local.kernel = Kernel(self.layout, self.program, floors)
        kernel: Kernel = self._local.kernel
        return kernel

    def _in_order(self, work: Callable[[Any], Sums], items: Iterable[tuple[Any, int]]) -> Sums:
        """Work on all items, a few ahead, and add up in their order."""
        threads = self.threads or os.cpu_count() or 1
        waiting: deque[tuple[Future[Sums], int]] = deque()
        total: Sums | None = None

        def take() -> Sums:
            future, rows = waiting.popleft()
            found = future.result()
            self.on_rows(rows)
            return found if total is None else total.add(found, self.program)

        pool = ThreadPoolExecutor(threads)
        try:
            with threadpool_limits(1):  # matrix products are small; the threads are ours
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
