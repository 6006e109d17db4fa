"""Spark files: plain Parquet files, read by tasks that Spark schedules and retries.

Each task reads its row groups with pyarrow, runs the same kernel as the embedded
engine, and returns sums; this process adds them up in the order of the row groups.  What a
task reads depends on the files alone, not on how many workers there are, which of them was
faster or which was lost: the same files give the same bits.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from poolwise.engines.answer import CHANGED
from poolwise.engines.kernel import Kernel, fresh_floors
from poolwise.engines.program import Program
from poolwise.engines.spark_tables import SparkRows, spark_errors
from poolwise.engines.sums import Sums, moments_of
from poolwise.errors import EngineError, LogError, SourceError
from poolwise.moments.moments import LONGEST_TAIL
from poolwise.rows.reader import (
    BadRowsError,
    ParquetFeed,
    ParquetReader,
    Piece,
    feed_of,
    layout_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from poolwise.moments.moments import FloatArray, Moments
    from poolwise.moments.terms import Needs
    from poolwise.rows.reader import Files, Layout, Rows

MOST_TASKS = 2_000  # more than that, and each reads more rows instead
FIRST_WAVE = 64  # tasks whose largest values are all sent; later ones know better


@dataclass(frozen=True)
class Trouble:
    """What a second attempt would not mend, so that a task returns it and does not fail.

    Attributes:
        path: A file that the worker does not see; empty where a row breaks a rule.
        host: Name of the worker's machine.
    """

    path: str
    host: str


@dataclass(frozen=True, eq=False)
class Work:
    """What a worker does with its row groups.

    Attributes:
        feed: Which columns to read; it lists no files.
        layout: The columns that batches have; rows of other loggers are passed over.
        program: What is computed of them.
        floors: Values below them are known not to be among the largest of all.
    """

    feed: ParquetFeed
    layout: Layout
    program: Program
    floors: FloatArray

    def __call__(self, pieces: Sequence[Piece]) -> Sums | Trouble | None:
        """Sums of all pieces, in their order; None where there are no rows."""
        from threadpoolctl import threadpool_limits

        hidden = [piece.path for piece in pieces if not Path(piece.path).is_file()]
        if hidden:
            return Trouble(hidden[0], socket.gethostname())
        kernel, reader = (
            Kernel(self.layout, self.program, self.floors),
            ParquetReader(self.feed),
        )
        try:
            with threadpool_limits(limits=1):
                batches = self._batches(reader, pieces)
                first = next(batches, None)
                return first and _trimmed(kernel.together(chain([first], batches)))
        except BadRowsError:
            return Trouble("", socket.gethostname())
        finally:
            reader.close()

    def _batches(self, reader: ParquetReader, pieces: Sequence[Piece]) -> Iterator[Rows]:
        """Rows of the layout's loggers, by their places in it."""
        place = {label: k for k, label in enumerate(self.layout.loggers)}
        places = np.array([place.get(label, -1) for label in self.feed.loggers])
        for piece in pieces:
            for codes, columns in reader.read(piece, self.program.batch_rows):
                here = places[codes]
                kept = here >= 0
                if kept.all():
                    yield here, columns
                elif kept.any():
                    yield here[kept], {name: values[kept] for name, values in columns.items()}


def _trimmed(sums: Sums) -> Sums:
    """Without values that cannot be among the largest: they need not travel."""
    for tails in sums.tails:
        tails[:] = [np.sort(values)[-LONGEST_TAIL:] for values in tails]
    return sums


def tasks_of(pieces: Sequence[Piece], rows: int) -> list[list[Piece]]:
    """Neighbouring pieces of at least so many rows together.

    >>> tasks = tasks_of([Piece("a", 0, 60), Piece("a", 1, 60), Piece("b", 0, 5)], rows=100)
    >>> [[(piece.path, piece.group) for piece in task] for task in tasks]
    [[('a', 0), ('a', 1)], [('b', 0)]]
    """
    least = max(rows, sum(piece.rows for piece in pieces) // MOST_TASKS)
    tasks: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if room <= 0:
            tasks.append([])
            room = least
        tasks[-1].append(piece)
        room -= piece.rows
    return tasks


@dataclass(frozen=True, eq=False)
class SparkFileRows(SparkRows):
    """An open log of Parquet files; what needs no kernel is asked of Spark SQL.

    Attributes:
        files: The files, each with the label of its rows where no column has it; None
            where Spark must read them.
        task_rows: Rows that a task reads at least.
        labels: Loggers whose rows the files hold; empty for those that are counted.
    """

    files: Files | None = None
    task_rows: int = 1_000_000
    labels: tuple[str, ...] = ()

    def without(self, logger: str) -> Self:
        """The same rows without those of one logger, and without it in the mixture."""
        return replace(super().without(logger), labels=self.labels or tuple(self.counts))

    @property
    def by_kernel(self) -> bool:
        return self._feed() is not None

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Moments of each logger: row groups go through the kernel, on the workers."""
        feed = self._feed()
        if feed is None:
            return super().moments(needs)
        layout, program = layout_of(self.table, self.counts), Program(needs)
        found = moments_of(self._sums(feed, layout, program), program, self.counts)
        if found is None:
            raise LogError([CHANGED])
        return found

    def _feed(self) -> ParquetFeed | None:
        """The files, where they can be read as they are."""
        try:
            return feed_of(self.table, self.files, self.labels or tuple(self.counts))
        except (pa.ArrowException, OSError) as reason:
            raise EngineError("pyarrow", "reading Parquet", reason) from reason

    def _sums(self, feed: ParquetFeed, layout: Layout, program: Program) -> Sums | None:
        """Sums over all tasks, added in the order of the files.

        Each wave of tasks is twice as long as the last and knows which values cannot be among
        the largest any more, so that no wave returns more than the first.
        """
        tasks = tasks_of(feed.pieces, self.task_rows)
        narrow, floors = replace(feed, files=()), fresh_floors(layout, program)
        total: Sums | None = None
        size = FIRST_WAVE
        while tasks:
            wave, tasks = tasks[:size], tasks[size:]
            for sums in self._run(Work(narrow, layout, program, floors), wave):
                total = sums if total is None else total.add(sums, program)
            floors = floors if total is None else _floors(total, floors)
            size *= 2
        return total

    def _run(self, work: Work, tasks: Sequence[Sequence[Piece]]) -> Iterator[Sums]:
        with spark_errors("reading Parquet in tasks"):
            given = self.session.sparkContext.parallelize(tasks, len(tasks))
            found = given.map(work).collect()
        for outcome in found:
            if isinstance(outcome, Trouble):
                raise self._error(outcome)
            if outcome is not None:
                yield outcome

    def _error(self, trouble: Trouble) -> LogError | SourceError:
        if not trouble.path:
            return LogError(self.check() or (CHANGED,))
        return SourceError(
            repr(trouble.path),
            f"Spark's worker on {trouble.host!r} does not see this file. Put the files where "
            "every worker sees them under the same path, or read them as a table or DataFrame",
        )


def _floors(sums: Sums, known: FloatArray) -> FloatArray:
    """The smallest of the largest values so far, where there are enough of them."""
    floors = known.copy()
    for place, tails in enumerate(sums.tails):
        for group, values in enumerate(tails):
            if len(values) >= LONGEST_TAIL:
                floors[place, group] = np.partition(values, -LONGEST_TAIL)[-LONGEST_TAIL]
    return floors
