"""Spark sources: tables, DataFrames, files and SELECTs become one temporary view.

Only this module knows how Spark opens things.  Files that this process sees as well are
named one by one, so that Spark and the tasks that read files by themselves have the same
rows before them; anything else (``s3a://``, ``hdfs://``) is left to Spark.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from poolwise.engines.spark_tables import POLICY_FAILED, first_line
from poolwise.errors import PolicyError, SourceError, UsageError
from poolwise.log.log import SELECT
from poolwise.rows.guessed import expanded
from poolwise.rows.roles import PART_LOGGER
from poolwise.rows.score import Scorer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from poolwise.log.log import Log, Part
    from poolwise.rows.roles import Roles

NUMBERS = count()  # of the views of this process
READING: Mapping[str, Mapping[str, object]] = {
    "parquet": {"mergeSchema": True},
    "csv": {"header": True, "inferSchema": True},
    "json": {},
}


def frame_of(session: SparkSession, log: Log) -> DataFrame:
    """All parts of a log as one DataFrame, whose columns are those of all parts together."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    if log.connection is not None:
        raise UsageError("Spark does not read through a `connection`: leave `engine` out")
    frames = []
    for part in log.parts:
        try:
            frame = _frame(session, part, log.reader_options)
        except (PySparkException, Py4JError) as reason:
            raise SourceError(_shown(part), first_line(reason)) from reason
        if isinstance(log.source, Mapping):
            frame = frame.withColumn(PART_LOGGER, functions.lit(str(part.logger)))
        frames.append(frame)
    try:
        return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)
    except PySparkException as reason:
        raise SourceError("the source", first_line(reason)) from reason


def _frame(session: SparkSession, part: Part, options: Mapping[str, object]) -> DataFrame:
    if part.kind == "table" and not SELECT.match(part.value):
        return session.table(part.value)
    if part.kind in {"select", "table"}:  # in brackets it can be a query and nothing else
        text = part.value.strip().rstrip(";")
        return session.sql(f"SELECT * FROM (\n{text}\n) AS source")
    if part.kind == "frame":
        return _from_frame(session, part.value)
    reading = {**READING[part.kind], **options}
    if part.kind == "csv" and re.search(r"\.tsv\b", part.value[0].lower()):
        reading.setdefault("sep", "\t")
    frames = []
    for base, paths in _located(part).items():
        rooted = {**reading, "basePath": base} if base else reading
        frames.append(session.read.options(**rooted).format(part.kind).load(paths))  # type: ignore[arg-type, unused-ignore]
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)


def _from_frame(session: SparkSession, frame: Any) -> DataFrame:  # noqa: ANN401 - see log.Frame
    if type(frame).__module__.startswith("pyspark."):
        found: DataFrame = frame
        return found
    import pyarrow as pa

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
    made: DataFrame = session.createDataFrame(frame)  # type: ignore[arg-type, unused-ignore]
    return made


def _located(part: Part) -> dict[str, list[str]]:
    """Paths as Spark wants them, by the folder that partitions are counted from."""
    found: dict[str, list[str]] = {}
    for pattern in part.value:
        for path in _files(pattern, part.kind):
            above = re.match(r"(.*?)/[^/]*=[^/]*/", path)
            found.setdefault(above.group(1) if above else "", []).append(path)
    return found


def _files(pattern: str, kind: str) -> list[str]:
    """The files that a path stands for, where this process sees them."""
    import duckdb

    if "://" in pattern:
        return [pattern]
    with duckdb.connect() as connection:
        found = [expanded(pattern, kind)]
        lines = connection.execute("SELECT file FROM glob(?)", found).fetchall()
    files = [f"file://{Path(str(line[0])).absolute()}" for line in lines]
    return files or [pattern]  # what is not here may be where Spark looks


def _shown(part: Part) -> str:
    if part.kind == "frame":
        return "the frame"
    if part.kind in {"select", "table"}:
        return "the SELECT" if SELECT.match(part.value) else f"table {part.value!r}"
    more = f" and {len(part.value) - 1} more" if len(part.value) > 1 else ""
    return f"{part.value[0]!r}{more}"


@contextmanager
def viewed(session: SparkSession, frame: DataFrame) -> Iterator[exp.Table]:
    """A name under which queries read a DataFrame, for as long as it is needed."""
    name = f"poolwise_{next(NUMBERS)}"
    frame.createOrReplaceTempView(name)
    try:
        yield exp.to_table(name)
    finally:
        session.catalog.dropTempView(name)


@dataclass(frozen=True)
class _Scoring:
    """Scores the batches of one partition, on a worker."""

    scorer: Scorer
    kept: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from threadpoolctl import threadpool_limits

        first_row = 0
        with threadpool_limits(limits=1):
            for rows in batches:
                try:
                    scored = self.scorer(rows, first_row)
                except PolicyError as error:
                    told = {"policy": error.policy, "reason": error.reason, "rows": error.rows}
                    raise RuntimeError(POLICY_FAILED + json.dumps(told)) from None
                first_row += rows.num_rows
                yield scored.select(list(self.kept))


@contextmanager
def scored(log: Log, roles: Roles, frame: DataFrame) -> Iterator[DataFrame]:
    """The needed columns with the policies' probabilities beside them, kept by the workers."""
    from pyspark import StorageLevel
    from pyspark.sql.types import DoubleType, StructType

    names = list(dict.fromkeys([*roles.needed, *roles.context]))
    narrow = frame.select([f"`{n.replace('`', '``')}`" for n in names])
    schema = StructType([narrow.schema[n] for n in roles.queried])
    for name in roles.scored:
        schema = schema.add(name, DoubleType())
    scorer = Scorer(
        dict(roles.scored),
        roles.action,
        tuple(roles.context),
        log_probabilities=log.log_probabilities,
    )
    try:
        found = narrow.mapInArrow(_Scoring(scorer, tuple(schema.names)), schema)
    except (pickle.PicklingError, TypeError, AttributeError) as reason:
        raise UsageError(
            "these policies cannot be sent to Spark's workers: "
            f"{str(reason).splitlines()[0]}. Write their probabilities as columns of the log, "
            "or define them in a module that workers can import"
        ) from reason
    found = found.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield found
    finally:
        found.unpersist()
