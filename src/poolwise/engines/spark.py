"""Spark: the engine for logs that outgrow one machine.

Two ways in, one result.  Plain Parquet files that every worker sees are read by tasks that
run the embedded engine's kernel; tables, DataFrames and everything else that Spark can read
are aggregated by Spark SQL.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.engines.spark_files import SparkFileRows
from poolwise.engines.spark_sources import frame_of, scored, viewed
from poolwise.engines.spark_tables import first_line, spark_errors
from poolwise.errors import MissingExtraError, UsageError
from poolwise.rows.roles import assign

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from poolwise.engines.spark_tables import SparkRows
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.rows.reader import Files


@dataclass(frozen=True)
class Spark:
    """Evaluates files, tables and DataFrames on a cluster.

    A session that was given, or that runs already, stays as it is; one that had to be started
    is stopped when the log is closed.

    Attributes:
        session: Your session; without it the one that runs, or a new one.
        master: Where a new session runs, such as "spark://host:7077" or "local[4]"; empty
            means what Spark is configured for.
        task_rows: Rows that a task reads at least, where it reads files.
    """

    session: SparkSession | None = None
    master: str = ""
    task_rows: int = 1_000_000

    @contextmanager
    def open(self, log: Log, targets: Mapping[str, PolicyLike]) -> Iterator[SparkRows]:
        """Open a log with its targets; policies in Python are scored by the workers."""
        with ExitStack() as stack:
            session = self.session or stack.enter_context(_session(self.master))
            frame = frame_of(session, log)
            view = stack.enter_context(viewed(session, frame))
            roles = assign(log, targets, frame.columns, view)
            table, files = roles.table, _plain_files(session, log)
            if roles.scored:
                with spark_errors("scoring policies in Python"):
                    frame = stack.enter_context(scored(log, roles, frame))
                relation = stack.enter_context(viewed(session, frame))
                table, files = replace(table, relation=relation), None
            yield SparkFileRows(table, session, files=files, task_rows=self.task_rows)


def _plain_files(session: SparkSession, log: Log) -> Files | None:
    """Files that tasks can read by themselves, under names that hold on every machine."""
    import duckdb

    from poolwise.rows.sources import plain_files

    if type(session).__module__.startswith("pyspark.sql.connect"):  # it has no tasks of ours
        return None
    if any(
        "://" in path for part in log.parts if part.kind == "parquet" for path in part.value
    ):
        return None
    with duckdb.connect() as connection:
        found = plain_files(connection, log)
    return found and tuple((str(Path(path).absolute()), label) for path, label in found)


@contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    """The session that runs already, or a new one that ends with us."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as reason:
        raise MissingExtraError("pyspark", "spark") from reason
    running = SparkSession.getActiveSession()
    if running is not None:
        there = running.sparkContext.master
        if master and master != there:
            raise UsageError(
                f"a Spark session runs at {there!r}: stop it before you ask for {master!r}"
            )
        yield running
        return
    session = _started(master)
    try:
        yield session
    finally:
        session.stop()


def _started(master: str) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise UsageError(
            "Spark needs Java, and there is none: install Java 17 or newer, or set JAVA_HOME"
        )
    builder = SparkSession.builder.appName("poolwise").config("spark.ui.enabled", "false")
    if master:
        builder = builder.master(master)
    try:
        with _same_python():
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as reason:
        where = f" at {master!r}" if master else ""
        raise UsageError(f"Spark does not start{where}: {first_line(reason)}") from reason


@contextmanager
def _same_python() -> Iterator[None]:
    """Have workers run this Python, unless PYSPARK_PYTHON names another."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = chosen or sys.executable
    try:
        yield
    finally:
        if chosen is None:
            del os.environ["PYSPARK_PYTHON"]
