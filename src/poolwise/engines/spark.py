"""Spark: the engine for logs that outgrow one machine.

Spark schedules and retries tasks; each task runs the embedded engine's kernel and returns
sums, which this process adds in the order of the tasks.  Tasks read plain Parquet files by
themselves.  Tables, DataFrames, SELECTs and everything else are read by Spark, which hands
the roles' columns to the tasks as Arrow batches.
"""

from __future__ import annotations

import pickle
import socket
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp

from poolwise.engines.kernel import Kernel
from poolwise.engines.query import CHANGED, QueryRows
from poolwise.engines.spark_sources import (
    frame_of,
    local_files,
    running_session,
    scored,
    spark_errors,
    spark_text,
    viewed,
)
from poolwise.engines.sums import Sums, bucketed_moments, moments_of
from poolwise.engines.workspace import Workspace
from poolwise.errors import EngineError, LogError, SourceError
from poolwise.moments.histogram import BINS
from poolwise.moments.moments import LONGEST_TAIL
from poolwise.moments.terms import unite
from poolwise.rows.reader import (
    BadRowsError,
    ParquetFeed,
    ParquetReader,
    Piece,
    arrow_rows,
    feed_of,
    layout_of,
)
from poolwise.rows.roles import assign
from poolwise.rows.rules import row_steps, rows_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from poolwise.log.log import Log
    from poolwise.log.policy import AnyArray, PolicyLike
    from poolwise.moments.moments import Moments
    from poolwise.moments.terms import Needs
    from poolwise.rows.reader import Files, Layout, Rows

RESULT_BYTES = 256_000_000  # of all tasks together; Spark's driver may have 1 GB
FEWEST_TASKS, MOST_TASKS = 8, 2_000
PARTITION_ROWS = 2**33  # more than a partition has: numbers its rows after the last one's


@dataclass(frozen=True)
class Spark:
    """Evaluates files, tables and DataFrames on a cluster.

    A session that is passed, or that is running, is left as it is; one that had to be started
    is stopped when the log is closed.

    Attributes:
        session: Your session; by default the one that is running, or a new one.
        master: Address of a new session, such as "spark://host:7077" or "local[4]"; empty
            for the one that Spark is configured for.
        task_rows: Fewest rows that a task reads, where tasks read files.
    """

    session: SparkSession | None = None
    master: str = ""
    task_rows: int = 1_000_000

    @contextmanager
    def open(self, log: Log, targets: Mapping[str, PolicyLike]) -> Iterator[SparkRows]:
        """Open a log with its targets; workers score the policies in Python."""
        with ExitStack() as stack:
            session = self.session or stack.enter_context(running_session(self.master))
            frame = frame_of(session, log)
            view = stack.enter_context(viewed(session, frame))
            roles = assign(log, targets, frame.columns, view)
            table, files = roles.table, local_files(session, log)
            if roles.scored:
                with spark_errors("scoring policies in Python"):
                    frame = stack.enter_context(scored(log, roles, frame))
                relation = stack.enter_context(viewed(session, frame))
                table, files = replace(table, relation=relation), None
            yield SparkRows(table, session, files, self.task_rows)


class Failure(NamedTuple):
    """A permanent failure: returned rather than raised, so that Spark does not retry."""

    host: str
    path: str = ""  # of a file that the host does not see; empty where a row breaks a rule


FileWork = tuple[int, list[Piece]]  # row groups, after the number of their first row
Outcome = Sums | Failure | None  # None for a task without rows


def _total(kernel: Kernel, batches: Iterator[Rows]) -> Outcome:
    """Sum all batches, in their order."""
    from threadpoolctl import threadpool_limits

    try:
        with threadpool_limits(limits=1):
            first = next(batches, None)
            return first and _trimmed(kernel.together(chain([first], batches)))
    except BadRowsError:
        return Failure(socket.gethostname())


def _trimmed(sums: Sums) -> Sums:
    """Drop the values that are too many to be among the largest."""
    for tails in sums.tails:
        tails[:] = [np.sort(values)[-LONGEST_TAIL:] for values in tails]
    return sums


@dataclass(frozen=True, eq=False)
class FileTask:
    """Reads row groups on a worker and sums them.

    Attributes:
        layout: The columns that batches have.
        workspace: Rows and products to compute from them.
        feed: The columns to read; it lists no files.
    """

    layout: Layout
    workspace: Workspace
    feed: ParquetFeed

    def __call__(self, work: FileWork) -> Outcome:
        """Sum some row groups."""
        first_row, pieces = work
        hidden = [piece.path for piece in pieces if not Path(piece.path).is_file()]
        if hidden:
            return Failure(socket.gethostname(), hidden[0])
        kernel, reader = Kernel(self.layout, self.workspace), ParquetReader(self.feed)
        try:
            batches = chain.from_iterable(reader.read(p, kernel.rows) for p in pieces)
            return _total(kernel, self._grouped(batches, first_row))
        finally:
            reader.close()

    def _grouped(self, batches: Iterable[Rows], first_row: int) -> Iterator[Rows]:
        """Code the rows by logger and bucket; skip those of loggers outside the layout."""
        layout, feed = self.layout, self.feed
        number = {label: k for k, label in enumerate(layout.loggers)}
        numbers = np.array([number.get(label, -1) for label in feed.loggers])
        for codes, columns in batches:
            groups = codes if feed.loggers == layout.loggers else numbers[codes]
            used = groups >= 0
            if layout.buckets > 1:
                buckets = _row_buckets(first_row, len(codes), layout.buckets)
                groups = groups + len(number) * buckets
            first_row += len(codes)
            if used.all():
                yield groups, columns
            elif used.any():
                yield groups[used], {name: values[used] for name, values in columns.items()}


@dataclass(frozen=True, eq=False)
class TableTask:
    """Sums one partition of the rows that Spark reads.

    Attributes:
        layout: The columns that batches have.
        workspace: Rows and products to compute from them.
        clustered: Whether a column ``bucket`` holds the cluster of each row.
    """

    layout: Layout
    workspace: Workspace
    clustered: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row: the partition's number and its pickled outcome."""
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        kernel = Kernel(self.layout, self.workspace)
        joined = _joined(batches, kernel.rows)
        if self.layout.buckets > 1:
            joined = self._bucketed(joined, partition * PARTITION_ROWS)
        rows = (arrow_rows(batch, self.layout.loggers, kernel.rows) for batch in joined)
        outcome = pickle.dumps(_total(kernel, chain.from_iterable(rows)))
        yield pa.record_batch({"partition": [partition], "outcome": [outcome]})

    def _bucketed(
        self, batches: Iterable[pa.RecordBatch], first_row: int
    ) -> Iterator[pa.RecordBatch]:
        buckets = self.layout.buckets
        for batch in batches:
            if self.clustered:
                numbers = cluster_buckets(batch.column("bucket"), buckets)
                yield batch.set_column(batch.schema.names.index("bucket"), "bucket", numbers)
            else:
                numbers = pa.array(_row_buckets(first_row, batch.num_rows, buckets))
                yield batch.append_column("bucket", numbers)
            first_row += batch.num_rows


def _row_buckets(first_row: int, rows: int, buckets: int) -> AnyArray:
    """Deal rows out one by one, as DuckDB's engine does: row numbers start at 1."""
    return (np.arange(first_row + 1, first_row + 1 + rows) % buckets).astype(np.int64)


def cluster_buckets(clusters: pa.Array, buckets: int) -> pa.Array:
    """The bucket of each cluster: the remainder of DuckDB's hash, as in DuckDB's engine.

    >>> cluster_buckets(pa.array(["7", "12", "7"]), 50).to_pylist()
    [6, 5, 6]
    """
    connection = _connection().register("clusters", pa.table({"cluster": clusters}))
    query = f"SELECT CAST(hash(cluster) % {buckets} AS BIGINT) AS bucket FROM clusters"
    return connection.sql(query).to_arrow_table().column("bucket").combine_chunks()


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """This process's connection: opening one takes longer than hashing a batch."""
    return duckdb.connect(config={"threads": 1})


def _joined(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Join batches up to so many rows, or a few more: Spark's are small."""
    waiting: list[pa.RecordBatch] = []
    for batch in chain(batches, [None]):
        waiting += [] if batch is None else [batch]
        if waiting and (batch is None or sum(b.num_rows for b in waiting) >= rows):
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting = []


def tasks_of(pieces: Sequence[Piece], rows: int, most: int = MOST_TASKS) -> list[FileWork]:
    """Neighbouring pieces of at least so many rows, with the number of their first row.

    >>> tasks = tasks_of([Piece("a", 0, 60), Piece("a", 1, 60), Piece("b", 0, 5)], rows=100)
    >>> [(first, [(piece.path, piece.group) for piece in task]) for first, task in tasks]
    [(0, [('a', 0), ('a', 1)]), (120, [('b', 0)])]
    """
    least = max(rows, sum(piece.rows for piece in pieces) // most)
    tasks: list[FileWork] = []
    row = end = 0
    for piece in pieces:
        if row >= end:
            tasks.append((row, []))
            end = row + least
        tasks[-1][1].append(piece)
        row += piece.rows
    return tasks


def most_tasks(layout: Layout, workspace: Workspace) -> int:
    """Tasks whose results this process can hold at the same time."""
    needs = workspace.needs
    values = 2 * len(workspace.singles) + 2 * len(needs.extremes) + len(workspace.pairs.T)
    values += sum(len(cross.stems) * len(cross.factors) for cross in workspace.crosses)
    values += LONGEST_TAIL * len(needs.tails) + BINS * len(needs.histograms)
    size = 8 * values * len(layout.groups)
    return min(max(RESULT_BYTES // size, FEWEST_TASKS), MOST_TASKS)


@dataclass(frozen=True, eq=False)
class SparkRows(QueryRows):
    """An open log; implements `engines.base.Rows`.

    Attributes:
        session: The session that has the view of the log.
        files: Files that tasks read by themselves, each with the label of its rows where no
            column has it; None where Spark reads the rows.
        task_rows: Fewest rows that a task reads, where tasks read files.
        labels: Loggers whose rows the files hold; empty for those that are counted.
        counted: Rows of each logger, where an earlier count gives them.
    """

    session: SparkSession
    files: Files | None = None
    task_rows: int = 1_000_000
    labels: tuple[str, ...] = ()
    counted: Mapping[str, int] | None = None

    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        query.set("order", None)  # callers sort the few lines
        text = spark_text(query)
        with spark_errors(text):
            return [row.asDict() for row in self.session.sql(text).collect()]

    @cached_property
    def counts(self) -> dict[str, int]:
        return super().counts if self.counted is None else dict(self.counted)

    @property
    def by_kernel(self) -> bool:
        return True

    def without(self, logger: str) -> Self:
        """The same rows without those of one logger, and without it in the mixture."""
        rest = {label: count for label, count in self.counts.items() if label != logger}
        return replace(
            super().without(logger),
            labels=self.labels or tuple(self.counts),
            # with `drop`, rows that are bad because of this logger become usable
            counted=None if self.table.drop else rest,
        )

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Moments of each logger."""
        layout, workspace = layout_of(self.table, self.counts), Workspace(needs)
        moments = moments_of(self._sums(layout, workspace), workspace, self.counts)
        if moments is None:
            raise LogError([CHANGED])
        return moments

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[list[dict[str, Moments]]]:
        """Moments of each bucket and logger, without tails and histograms."""
        layout = replace(layout_of(self.table, self.counts), buckets=buckets)
        workspace = Workspace(replace(unite(needs), tails=(), histograms=()))
        moments = bucketed_moments(self._sums(layout, workspace), workspace, needs, self.counts)
        if moments is None:
            raise LogError([CHANGED])
        return moments

    def _sums(self, layout: Layout, workspace: Workspace) -> Sums | None:
        """Sums over all rows, added in the order of the tasks."""
        clustered = layout.buckets > 1 and self.table.cluster is not None
        feed = None if clustered else self._feed()
        if feed is not None:
            outcomes = self._run_on_files(feed, layout, workspace)
        else:
            outcomes = self._run_on_rows(TableTask(layout, workspace, clustered))
        total: Sums | None = None
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                raise self._error(outcome)
            if outcome is not None:
                total = outcome if total is None else total.add(outcome, workspace)
        return total

    def _feed(self) -> ParquetFeed | None:
        """The files, where tasks can read them as they are."""
        try:
            return feed_of(self.table, self.files, self.labels or tuple(self.counts))
        except (pa.ArrowException, OSError) as reason:
            raise EngineError("pyarrow", "reading Parquet", reason) from reason

    def _run_on_files(
        self, feed: ParquetFeed, layout: Layout, workspace: Workspace
    ) -> list[Outcome]:
        tasks = tasks_of(feed.pieces, self.task_rows, most_tasks(layout, workspace))
        run = FileTask(layout, workspace, replace(feed, files=()))
        with spark_errors("reading Parquet in tasks"):
            work = self.session.sparkContext.parallelize(tasks, len(tasks))
            outcomes: list[Outcome] = work.map(run).collect()
        return outcomes

    def _run_on_rows(self, task: TableTask) -> list[Outcome]:
        table = self.table
        if task.clustered and table.cluster is not None:
            table = replace(table, bucket=exp.cast(table.cluster.copy(), "varchar"))
        query = exp.select("*").from_(rows_name(table))
        for name, step in row_steps(table):
            query = query.with_(name, as_=step)
        text = spark_text(query)
        with spark_errors(text):
            # fewer partitions only: their results must fit into this process
            frame = self.session.sql(text).coalesce(most_tasks(task.layout, task.workspace))
            lines = frame.mapInArrow(task, "partition BIGINT, outcome BINARY").collect()
        ordered = sorted(lines, key=lambda line: int(line["partition"]))
        return [pickle.loads(line["outcome"]) for line in ordered]  # noqa: S301 - our own tasks'

    def _error(self, failure: Failure) -> LogError | SourceError:
        if not failure.path:
            return LogError(self.check() or (CHANGED,))
        return SourceError(
            repr(failure.path),
            f"Spark's worker on {failure.host!r} does not see this file. Put the files where "
            "every worker sees them under the same path, or read them as a table or DataFrame",
        )
