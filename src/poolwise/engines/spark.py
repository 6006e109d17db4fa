"""Spark: the engine for logs that outgrow one machine.

Spark schedules and retries tasks; each task runs the embedded engine's kernel and returns
sums, which this process adds in the order of the tasks.  Tasks read plain Parquet files by
themselves.  Tables, DataFrames, SELECTs and everything else are read by Spark, which hands
the roles' columns to the tasks as Arrow batches.
"""

from __future__ import annotations

import pickle
import socket
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from sqlglot import exp
from threadpoolctl import threadpool_limits

from poolwise.engines.base import CHANGED, Engine, refuse_extra
from poolwise.engines.blocks import Folding
from poolwise.engines.kernel import Kernel
from poolwise.engines.parallel import KernelRows
from poolwise.engines.spark_session import SameVersion, running_session, spark_errors
from poolwise.engines.spark_sources import (
    collect_batches,
    column_types,
    configure_session,
    local_files,
    make_view,
    narrow,
    open_frame,
    score_frame,
    spark_text,
)
from poolwise.errors import EngineError, LogError, SourceError
from poolwise.log.scalar import refuse_different
from poolwise.moments.moments import LONGEST_TAIL
from poolwise.moments.tallies import BINS
from poolwise.rows.layout import BadRowsError
from poolwise.rows.learners import NO_EXTRA
from poolwise.rows.mixture import learner_extra
from poolwise.rows.reader import Reader, RowGroup, to_rows
from poolwise.rows.roles import assign
from poolwise.rows.rules import row_steps, rows_name
from poolwise.rows.streams import plain_stream
from poolwise.rows.values import attach_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from poolwise.engines.blocks import Added
    from poolwise.engines.sums import Sums
    from poolwise.engines.workspace import Workspace
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.rows.layout import Layout
    from poolwise.rows.learners import Extra
    from poolwise.rows.reader import Files, RowArrays, Stream

RESULT_BYTES = 256_000_000  # of all tasks together; Spark's driver may have 1 GB
FEWEST_TASKS, MOST_TASKS = 8, 2_000
PARTITION_ROWS = 2**33  # more than a partition has: numbers its rows after the last one's


@dataclass(frozen=True)
class Spark(Engine):
    """Evaluates files, tables and DataFrames on a cluster.

    poolwise leaves a session that you pass, or that is running, as it was: it restores
    settings that change results, such as the time zone. If poolwise had to start a session,
    it stops the session when it closes the log.

    Attributes:
        session: Your session, classic or of Spark Connect; by default the running session,
            or a new session.
        master: Address of a new session, such as "spark://host:7077", "local[4]" or, of a
            Spark Connect server, "sc://host:15002"; empty for the address that Spark is
            configured for.
        task_rows: Fewest rows that a task reads, where tasks read files.
    """

    session: SparkSession | None = None
    master: str = ""
    task_rows: int = 1_000_000

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NO_EXTRA
    ) -> Iterator[SparkRows]:
        """Open a log with its targets; workers score the policies in Python.

        The columns of `extra` are columns of the log: Spark learns no model.
        """
        refuse_extra(extra, columns=True)
        log, targets = attach_values(log, targets)
        with ExitStack() as stack:
            session = stack.enter_context(self._running())
            stack.enter_context(configure_session(session, log.timezone))
            frame = open_frame(session, log)
            view = stack.enter_context(make_view(session, frame))
            roles = assign(log, targets, column_types(frame.schema), view, extra, "spark")
            refuse_different(roles.table.roles, "spark", "Spark", translated=True)
            table, files = roles.table, local_files(session, log)
            if roles.scored:
                with spark_errors("scoring policies in Python"):
                    frame = stack.enter_context(score_frame(roles, frame))
                relation = stack.enter_context(make_view(session, frame))
                table, files = replace(table, relation=relation), None
            yield SparkRows(table, session, files, self.task_rows)

    def learner_batches(self, log: Log) -> Iterator[pa.RecordBatch]:
        """Yield the columns that a learner reads, in batches that workers pack."""
        with self._running() as session, configure_session(session, log.timezone):
            frame = open_frame(session, log)
            roles = assign(log, {}, frame.columns, exp.to_table("log"), learner_extra(log))
            with spark_errors("copying the rows"):
                yield from collect_batches(narrow(frame, roles))

    def _running(self) -> AbstractContextManager[SparkSession]:
        own = self.session
        return running_session(self.master) if own is None else nullcontext(own)


class Failure(NamedTuple):
    """A permanent failure: returned rather than raised, so that Spark does not retry."""

    host: str
    path: str = ""  # of a file that the host does not see; empty where a row breaks a rule


FileWork = tuple[int, list[RowGroup]]  # row groups, after the number of their first row
TaskResult = Any  # the sum of a task's rows, a Failure, or None without rows


@dataclass(frozen=True, eq=False)
class KernelWork(Folding[Any]):
    """Work of a task: the sums of its rows.

    Attributes:
        workspace: Rows and products to compute.
    """

    workspace: Workspace

    @property
    def rows(self) -> int:
        return Kernel(self.layout, self.workspace).rows

    def together(self, batches: Iterable[RowArrays]) -> Sums:
        """Sum at least one batch; drop values that are too many to be among the largest."""
        sums = Kernel(self.layout, self.workspace).together(batches)
        for tails in sums.tails:
            tails[:] = [np.sort(values)[-LONGEST_TAIL:] for values in tails]
        return sums


def sum_groups(
    _: SameVersion, task: Folding[Any], columns: Mapping[str, str], work: FileWork
) -> TaskResult:
    """Read row groups on a worker and add them up.

    Args:
        task: What is added up.
        columns: Column of the files for each column of the layout.
        work: The row groups.
    """
    first_row, pieces = work
    hidden = [piece.path for piece in pieces if not Path(piece.path).is_file()]
    if hidden:
        return Failure(socket.gethostname(), hidden[0])
    tables = Reader(columns)(pieces, task.layout.names)
    return _add_tables(task, tables, first_row)


def sum_partition(
    _: SameVersion, task: Folding[Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Add up rows that Spark reads; yield the partition's number and its pickled outcome."""
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    outcome = _add_tables(task, _join_batches(batches, task.rows), partition * PARTITION_ROWS)
    yield pa.record_batch({"partition": [partition], "outcome": [pickle.dumps(outcome)]})


def _add_tables(task: Folding[Any], tables: Iterable[pa.Table], first_row: int) -> TaskResult:
    """Add up all tables, in their order."""
    batches = to_rows(tables, task.layout, first_row, task.rows)
    try:
        with threadpool_limits(limits=1):
            first = next(batches, None)
            return None if first is None else task.together(chain([first], batches))
    except BadRowsError:
        return Failure(socket.gethostname())


def _join_batches(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Join batches up to so many rows, or a few more: Spark's are small.

    A bucket of Spark's query is a cluster, which the reader hashes.
    """
    waiting: list[pa.RecordBatch] = []
    for batch in chain(batches, [None]):
        waiting += [] if batch is None else [batch]
        if waiting and (batch is None or sum(b.num_rows for b in waiting) >= rows):
            table = pa.Table.from_batches(waiting).combine_chunks()
            names = ["cluster" if n == "bucket" else n for n in table.schema.names]
            yield table.rename_columns(names)
            waiting = []


def split_tasks(
    pieces: Sequence[RowGroup], rows: int, most: int = MOST_TASKS
) -> list[FileWork]:
    """Neighbouring pieces of at least so many rows, with the number of their first row.

    >>> groups = [RowGroup("a", 0, 60), RowGroup("a", 1, 60), RowGroup("b", 0, 5)]
    >>> tasks = split_tasks(groups, rows=100)
    >>> [(first, [(piece.path, piece.group) for piece in task]) for first, task in tasks]
    [(0, [('a', 0), ('a', 1)]), (120, [('b', 0)])]
    """
    least = max(rows, sum(piece.num_rows for piece in pieces) // most)
    tasks: list[FileWork] = []
    row = end = 0
    for piece in pieces:
        if row >= end:
            tasks.append((row, []))
            end = row + least
        tasks[-1][1].append(piece)
        row += piece.num_rows
    return tasks


def most_tasks(layout: Layout, workspace: Workspace) -> int:
    """Tasks whose results this process can hold at the same time."""
    needs = workspace.needs
    values = 1 + 2 * len(workspace.singles)  # rows are counted in any case
    values += 2 * len(needs.extremes) + len(workspace.pairs.T)
    values += len(workspace.plain)
    values += LONGEST_TAIL * len(needs.tails) + BINS * len(needs.histograms)
    size = 8 * values * len(layout.groups)
    return min(max(RESULT_BYTES // size, FEWEST_TASKS), MOST_TASKS)


@dataclass(frozen=True, eq=False)
class SparkRows(KernelRows):
    """An open log; implements `engines.base.Rows`.

    Attributes:
        session: The session that has the view of the log.
        files: Files that tasks read by themselves, each with the label of its rows where no
            column has it; None where Spark reads the rows.
        task_rows: Fewest rows that a task reads, where tasks read files.
    """

    session: SparkSession
    files: Files | None = None
    task_rows: int = 1_000_000

    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        query.set("order", None)  # callers sort the few lines
        text = spark_text(query)
        with spark_errors(text):
            return [row.asDict() for row in self.session.sql(text).collect()]

    def _sums(self, layout: Layout, workspace: Workspace) -> Sums | None:
        """Sums over all rows, added in the order of the tasks."""
        total: Sums | None = None
        most = most_tasks(layout, workspace)
        for sums in self._outcomes(KernelWork(layout, workspace), most):
            total = sums if total is None else total.add(sums, workspace)
        return total

    def _fold(self, work: Folding[Added]) -> Added:
        total = work.together(())
        for part in self._outcomes(work, MOST_TASKS):
            total = total + part
        return total

    def _outcomes(self, work: Folding[Any], most: int) -> Iterator[Any]:
        """Yield the outcome of each task that has rows, in the order of the tasks."""
        stream = self._stream()
        if stream is None:
            outcomes = self._run_on_rows(work, most)
        else:
            tasks = split_tasks(list(stream.pieces), self.task_rows, most)
            layout = replace(work.layout, excluded=self.excluded)
            work = replace(work, layout=layout)
            run = partial(sum_groups, SameVersion(), work, stream.columns)
            with spark_errors("reading Parquet in tasks"):
                pieces = self.session.sparkContext.parallelize(tasks, len(tasks))
                outcomes = pieces.map(run).collect()
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                raise self._error(outcome)
            if outcome is not None:
                yield outcome

    def _stream(self) -> Stream | None:
        """The files, where tasks can read them as they are."""
        try:
            return plain_stream(self.table, self.files)
        except (pa.ArrowException, OSError) as reason:
            raise EngineError("pyarrow", "reading Parquet", reason) from reason

    def _run_on_rows(self, work: Folding[Any], most: int) -> list[TaskResult]:
        table = self.table
        if work.layout.buckets > 1 and table.cluster is not None:
            table = replace(table, bucket=exp.cast(table.cluster.copy(), "varchar"))
        query = exp.select("*").from_(rows_name(table))
        for name, step in row_steps(table):
            query = query.with_(name, as_=step)
        text = spark_text(query)
        run = partial(sum_partition, SameVersion(), work)
        with spark_errors(text):
            # fewer partitions only: their results must fit into this process
            frame = self.session.sql(text).coalesce(most)
            lines = frame.mapInArrow(run, "partition BIGINT, outcome BINARY").collect()
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
