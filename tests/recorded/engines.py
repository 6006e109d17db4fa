"""The engines whose values are recorded: their construction, and the logs they read.

Names that may change are used only here: the options of DuckDB, and the helpers of other
tests.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import poolwise as pw
from tests.recorded.logs import EVERYWHERE, LOGS, Case
from tests.recorded.verbs import Questions, Values, answers
from tests.support.postgres import load, server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Where the values of an engine are found: whatever runs the kernel gives those of DuckDB.
RECORDED = {
    "duckdb": "duckdb",
    "batches": "duckdb",
    "postgres": "postgres",
    "spark-files": "duckdb",
    "spark-frame": "duckdb",
}


def pairs() -> list[tuple[str, str]]:
    """Every log with every engine that reads it."""
    slow = [engine for engine in RECORDED if engine not in {"duckdb", "batches"}]
    embedded = [(name, engine) for name in LOGS for engine in ("duckdb", "batches")]
    return [*embedded, *((name, engine) for name in EVERYWHERE for engine in slow)]


def values_of(name: str, engine: str, folder: Path) -> Values:
    """Ask an engine about a log; skips where the engine is not installed.

    Args:
        name: Name of the log.
        engine: Name of the engine.
        folder: Where files of the log may be written.
    """
    case = LOGS[name]()
    if engine == "duckdb":
        return answers(Questions(case, pw.DuckDB()).all(), case.asked)
    if engine == "batches":
        return answers(Questions(case, pw.DuckDB(batch_rows=100)).main(), case.asked)
    with opened(case, engine, folder) as questions:
        return answers(questions.few())


@contextmanager
def opened(case: Case, engine: str, folder: Path) -> Iterator[Questions]:
    """A case whose rows are where PostgreSQL or Spark finds them."""
    if engine == "postgres":
        with server().connect() as connection:
            load(connection, case.log.source, "recorded")
            yield Questions(_moved(case, table="recorded", connection=connection))
    elif engine == "spark-files":
        path = folder / "recorded.parquet"
        pq.write_table(case.log.source, path, row_group_size=400)
        spark = pw.Spark(session(), task_rows=500)
        yield Questions(_moved(case, source=str(path)), spark, which_logs=False)
    else:
        source: Any = case.log.source
        frame = session().createDataFrame(source.to_pandas())
        yield Questions(_moved(case, source=frame), pw.Spark(session()), which_logs=False)


def _moved(case: Case, **where: Any) -> Case:  # noqa: ANN401 - fields of a log
    return replace(case, log=replace(case.log, **{"source": None, **where}))


def end_session() -> None:
    """Stop the Spark session, if it was started here."""
    for started in _OURS:
        started.stop()
    _OURS.clear()
    session.cache_clear()


_OURS: list[Any] = []  # the session that was started here


@cache
def session() -> Any:  # noqa: ANN401 - an optional package
    """A Spark session of two threads, or the one that runs already; skips without Spark."""
    pytest.importorskip("pyspark", reason="Spark's values need pyspark: poolwise[spark]")
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        pytest.skip("Spark's values need Java 17 or newer")
    from pyspark.sql import SparkSession

    if (running := SparkSession.getActiveSession()) is not None:
        return running
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("recorded")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    _OURS.append(started)
    return started
