"""Sessions and DataFrames: open a log in Spark, and translate Spark's errors.

Files that this process sees are listed one by one, so that Spark and the tasks that read
files by themselves have the same rows; other paths (``s3a://``, ``hdfs://``) go to Spark as
they are.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import partial, reduce
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from sqlglot import exp
from threadpoolctl import threadpool_limits

from poolwise.errors import (
    EngineError,
    MissingExtraError,
    PolicyError,
    SourceError,
    UsageError,
)
from poolwise.log.log import PART_LOGGER, SELECT
from poolwise.rows.guard import expanded, named_files, refuse_tables
from poolwise.rows.repeats import refuse_repeated
from poolwise.rows.score import Scorer, scorer_of
from poolwise.rows.sources import plain_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from sqlglot.expressions import Expr as Expression

    from poolwise.log.log import Log, Part
    from poolwise.rows.reader import Files
    from poolwise.rows.roles import Roles

VIEW_NUMBERS = count()
READER_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "parquet": {"mergeSchema": True},
    "csv": {"header": True, "inferSchema": True},
    "json": {},
}
PROGRAMS = re.compile(r'"class":"[\w.]*\.(CallMethodViaReflection|\w*ScriptTransformation)"')
ZONE, ANSI = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"
POLICY_FAILED = "poolwise policy failed: "  # prefix of a worker's message


@contextmanager
def running_session(master: str) -> Iterator[SparkSession]:
    """Use the session that is running, or start one and stop it at the end."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as reason:
        raise MissingExtraError("pyspark", "spark") from reason
    running = SparkSession.getActiveSession()
    if running is None:
        session = _started(master)
        try:
            yield session
        finally:
            session.stop()
    elif master in {"", running.sparkContext.master}:
        yield running
    else:
        raise UsageError(
            f"a Spark session is running at {running.sparkContext.master!r}: stop it before "
            f"starting one at {master!r}"
        )


@contextmanager
def configured(session: SparkSession, timezone: str) -> Iterator[None]:
    """Fix the settings that change results; restore those of the session at the end."""
    own = {name: session.conf.get(name, None) for name in (ZONE, ANSI)}
    try:
        with spark_errors("", f"the session in the time zone {timezone!r}"):
            session.conf.set(ZONE, timezone)
            session.conf.set(ANSI, "true")  # an integer that overflows is an error
        yield
    finally:
        with suppress(*_errors()):  # of a session that was stopped meanwhile
            for name, value in own.items():
                session.conf.unset(name) if value is None else session.conf.set(name, value)


def _started(master: str) -> SparkSession:
    from pyspark.sql import SparkSession

    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise UsageError(
            "Spark needs Java, which was not found: install Java 17 or newer, or set JAVA_HOME"
        )
    builder = SparkSession.builder.appName("poolwise").config("spark.ui.enabled", "false")
    if master:
        builder = builder.master(master)
    chosen = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = chosen or sys.executable  # workers run this Python
    try:
        return builder.getOrCreate()
    except _errors() as reason:
        where = f" at {master!r}" if master else ""
        raise UsageError(f"Spark does not start{where}: {first_line(reason)}") from reason
    finally:
        if chosen is None:
            del os.environ["PYSPARK_PYTHON"]


def _errors() -> tuple[type[Exception], ...]:
    """The exceptions of Spark, of its bridge to Java and of their connection."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError, OSError


@contextmanager
def spark_errors(text: str, source: str = "") -> Iterator[None]:
    """Raise Spark's errors as ours, with one line in place of two languages' traces.

    Args:
        text: The query, or the work of tasks.
        source: The source that is opened, if any.
    """
    try:
        yield
    except _errors() as reason:
        line = first_line(reason)
        if source:
            raise SourceError(source, line) from reason
        raise _from_worker(str(reason)) or EngineError(
            "Spark", text, RuntimeError(line)
        ) from reason


def _from_worker(text: str) -> PolicyError | UsageError | None:
    """The error of a worker before or while it ran our code."""
    if "No module named 'poolwise'" in text:
        return UsageError(
            "Spark's workers cannot import poolwise: install it for the Python that they run, "
            "and name that Python in PYSPARK_PYTHON before the session starts. Where poolwise "
            "cannot be installed, `poolwise sql --dialect spark` prints a query that does "
            "without it"
        )
    failure = re.search(re.escape(POLICY_FAILED) + r"(\{.*\})", text)
    return None if failure is None else PolicyError(**json.loads(failure.group(1)))


def first_line(reason: Exception) -> str:
    r"""The line of Spark's message that names the cause.

    >>> first_line(RuntimeError("Job aborted:\n  Lost task 0\nValueError: no\n\tat org.x"))
    'ValueError: no'
    >>> first_line(RuntimeError("[TABLE_NOT_FOUND] no table.\n'Project [*]"))
    '[TABLE_NOT_FOUND] no table.'
    """
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    python = [line for line in raised if not re.match(r"(java|org|scala|py4j)\.", line)]
    return (python or raised or lines or [type(reason).__name__])[0]


def spark_text(query: exp.Select) -> str:
    """The text of a query for Spark 4; invalid numbers and divisions by zero become NULL.

    >>> spark_text(exp.select("a / b AS c").from_("log"))
    'SELECT TRY_DIVIDE(a, b) AS c FROM log'
    """
    text: str = query.transform(_lenient).sql(dialect="spark")
    return text


def _lenient(node: Expression) -> Expression:
    if isinstance(node, exp.TryCast):
        node.set("safe", True)  # noqa: FBT003 - SQLGlot's mark of TRY_CAST
    if isinstance(node, exp.Div) and not isinstance(node.expression, exp.Nullif):
        return exp.Anonymous(this="TRY_DIVIDE", expressions=[node.this, node.expression])
    return node


def frame_of(session: SparkSession, log: Log) -> DataFrame:
    """All parts of a log as one DataFrame, with the columns of all parts."""
    from pyspark.sql import functions

    if log.connection is not None:
        raise UsageError("Spark does not read through a `connection`: leave `engine` out")
    refuse_repeated(log, named_files(log))
    frames = []
    for part in log.parts:
        with spark_errors("", _shown(part)):
            frame = _frame(session, part, log.reader_options)
        if isinstance(log.source, Mapping):
            frame = frame.withColumn(PART_LOGGER, functions.lit(str(part.logger)))
        frames.append(frame)
    with spark_errors("", "the source"):
        return _union(frames)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)


def _frame(session: SparkSession, part: Part, options: Mapping[str, object]) -> DataFrame:
    if part.kind == "database":
        raise UsageError("Spark does not read DuckDB files: write the table to Parquet first")
    if part.kind == "table" and not SELECT.match(part.value):
        return session.table(part.value)
    if part.kind in {"select", "table"}:  # brackets admit a query and nothing else
        text = part.value.strip().rstrip(";")
        return _only_reading(session.sql(f"SELECT * FROM (\n{text}\n) AS source"))
    if part.kind == "frame":
        return _from_frame(session, part.value)
    chosen = {**READER_OPTIONS[part.kind], **options}
    if part.kind == "csv" and re.search(r"\.tsv\b", part.value[0].lower()):
        chosen.setdefault("sep", "\t")
    located: dict[str, list[str]] = {}  # paths by the folder above their partition folders
    for path in (file for pattern in part.value for file in _files(pattern, part.kind)):
        above = re.match(r"(.*?)/[^/]*=[^/]*/", path)
        base = re.sub(r"\\(.)", r"\1", above.group(1)) if above else ""  # is no pattern
        located.setdefault(base, []).append(path)
    frames = []
    for base, paths in located.items():
        rooted = {**chosen, "basePath": base} if base else chosen
        frames.append(session.read.options(**rooted).format(part.kind).load(paths))  # type: ignore[arg-type, unused-ignore]
    return _union(frames)


def _only_reading(frame: DataFrame) -> DataFrame:
    """Return a query that runs no program; Spark's plan names these in any spelling."""
    query: Any = getattr(frame, "_jdf", None)  # a client of Spark Connect has no plan
    if query is not None and PROGRAMS.search(query.queryExecution().analyzed().toJSON()):
        raise UsageError(
            "a source in SQL must only read, but this SELECT runs a program: leave out "
            "reflect(), java_method() and TRANSFORM ... USING"
        )
    return frame


def _from_frame(session: SparkSession, frame: Any) -> DataFrame:  # noqa: ANN401 - see log.Frame
    if type(frame).__module__.startswith("pyspark."):
        spark_frame: DataFrame = frame
        return spark_frame
    try:
        if hasattr(frame, "to_arrow"):  # Polars
            frame = frame.to_arrow()
        elif not isinstance(frame, pa.Table):
            frame = pa.Table.from_pandas(frame, preserve_index=False)
    except (AttributeError, TypeError, pa.ArrowException) as reason:
        raise UsageError(
            f"a value of type {type(frame).__name__} is not a source: give a path, a glob, a "
            "SELECT, a Spark DataFrame, another frame, a list of these, or a mapping by logger"
        ) from reason
    copied: DataFrame = session.createDataFrame(frame)  # type: ignore[arg-type, unused-ignore]
    return copied


def _files(pattern: str, kind: str) -> list[str]:
    """Patterns of the files that match a path; the path where this process sees none."""
    if "://" in pattern:
        return [pattern]
    with duckdb.connect() as connection:
        query = "SELECT file FROM glob(?)"
        lines = connection.execute(query, [expanded(pattern, kind)]).fetchall()
    names = [str(line[0]) for line in lines]
    if kind == "parquet":
        refuse_tables(names, spark=True)
    located = [f"file://{Path(name).absolute()}" for name in names]
    return [re.sub(r"([\\*?\[\]{}])", r"\\\1", name) for name in located] or [pattern]


def local_files(session: SparkSession, log: Log) -> Files | None:
    """Files that tasks can read by themselves, under absolute paths."""
    paths = [path for part in log.parts if part.kind == "parquet" for path in part.value]
    connect = type(session).__module__.startswith("pyspark.sql.connect")  # has no RDDs
    if connect or any("://" in path for path in paths):
        return None
    with duckdb.connect() as connection:
        files = plain_files(connection, log)
    return files and tuple((str(Path(path).absolute()), label) for path, label in files)


def _shown(part: Part) -> str:
    if part.kind in READER_OPTIONS or part.kind == "database":
        more = f" and {len(part.value) - 1} more" if len(part.value) > 1 else ""
        return f"{part.value[0]!r}{more}"
    if part.kind == "frame":
        return "the frame"
    return "the SELECT" if SELECT.match(part.value) else f"table {part.value!r}"


@contextmanager
def viewed(session: SparkSession, frame: DataFrame) -> Iterator[exp.Table]:
    """Name a DataFrame for queries, and drop the name at the end."""
    name = f"poolwise_{next(VIEW_NUMBERS)}"
    frame.createOrReplaceTempView(name)
    try:
        yield exp.to_table(name)
    finally:
        session.catalog.dropTempView(name)


def narrow(frame: DataFrame, roles: Roles) -> DataFrame:
    """Select the columns and fields that policies, models and queries read."""
    return frame.selectExpr(*(e.sql(dialect="spark") for e in roles.selected(roles.read)))


def collected(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """All rows in batches, each of which a worker writes to bytes."""
    packed = frame.mapInArrow(_packed, "batch binary")
    for (content,) in packed.toLocalIterator(prefetchPartitions=True):
        yield from pa.ipc.open_stream(bytes(content))


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        content = pa.array([sink.getvalue().to_pybytes()], pa.binary())
        yield pa.record_batch({"batch": content})


@contextmanager
def scored(roles: Roles, frame: DataFrame) -> Iterator[DataFrame]:
    """The columns that queries read and the policies' probabilities, cached by the workers."""
    from pyspark import StorageLevel
    from pyspark.sql.types import DoubleType, StructType

    needed = narrow(frame, roles)
    schema = StructType([needed.schema[n] for n in roles.queried])
    for name in roles.scored:
        schema = schema.add(name, DoubleType())
    scoring = partial(_score, scorer_of(roles), schema.names)
    try:
        with_scores = needed.mapInArrow(scoring, schema)
    except (pickle.PicklingError, TypeError, AttributeError) as reason:
        raise UsageError(
            "these policies cannot be sent to Spark's workers: "
            f"{str(reason).splitlines()[0]}. Write their probabilities as columns of the log, "
            "or define them in a module that workers can import"
        ) from reason
    with_scores = with_scores.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield with_scores
    finally:
        with_scores.unpersist()


def _score(
    scorer: Scorer, columns: list[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Score the batches of one partition, on a worker."""
    first_row = 0
    with threadpool_limits(limits=1):
        for rows in batches:
            try:
                scores = scorer(rows, first_row)
            except PolicyError as error:
                details = {"policy": error.policy, "reason": error.reason, "rows": error.rows}
                raise RuntimeError(POLICY_FAILED + json.dumps(details)) from None
            first_row += rows.num_rows
            yield scores.select(columns)
