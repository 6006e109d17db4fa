"""DataFrames: open a log in Spark, and write its queries in Spark's SQL.

Files that this process sees are listed one by one, so that Spark and the tasks that read
files by themselves have the same rows; other paths (``s3a://``, ``hdfs://``) go to Spark as
they are.
"""

from __future__ import annotations

import json
import pickle
import re
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

from poolwise.engines.spark_session import (
    POLICY_FAILED,
    SameVersion,
    error_classes,
    is_remote,
    spark_errors,
)
from poolwise.errors import PolicyError, UsageError
from poolwise.log.log import PART_LOGGER, SELECT
from poolwise.log.scalar import SAME_FIELDS
from poolwise.rows.guard import expand_path, named_files, refuse_tables
from poolwise.rows.repeats import refuse_repeated
from poolwise.rows.score import Scorer, make_scorer
from poolwise.rows.sources import plain_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from sqlglot.expressions import Expr as Expression

    from poolwise.log.log import Log, Part
    from poolwise.rows.reader import Files
    from poolwise.rows.roles import Roles

VIEW_NUMBERS = count()
TRANSLATED = (
    exp.Anonymous,
    exp.Cast,
    exp.DayOfWeek,
    exp.DayOfWeekIso,
    exp.Dayname,
    exp.Div,
    exp.Extract,
    exp.Format,
    exp.Log,
    exp.Monthname,
)
OTHERWISE = {
    "hash()",
    "date_part()",
    "datepart()",
    "weekday()",
    "dayname()",
    "monthname()",
    "format()",
}
SAME_IN_SPARK = SAME_FIELDS | {"week"}  # ISO weeks, as in DuckDB
LARGER = {  # types that hold all numbers of types that Spark lacks
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20),
    pa.float16(): pa.float32(),
}
READER_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "parquet": {"mergeSchema": True},
    # a quote is doubled, not escaped; columns in another order are refused, not misread
    "csv": {"header": True, "inferSchema": True, "escape": '"', "enforceSchema": False},
    "json": {},
}
PROGRAMS = re.compile(r'"class":"[\w.]*\.(CallMethodViaReflection|\w*ScriptTransformation)"')
ZONE, ANSI = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"


@contextmanager
def configure_session(session: SparkSession, timezone: str) -> Iterator[None]:
    """Fix the settings that change results; restore those of the session at the end."""
    own = {name: session.conf.get(name, None) for name in (ZONE, ANSI)}
    try:
        with spark_errors("", f"the session in the time zone {timezone!r}"):
            session.conf.set(ZONE, timezone)
            session.conf.set(ANSI, "true")  # an integer that overflows is an error
        yield
    finally:
        with suppress(*error_classes()):  # of a session that was stopped meanwhile
            for name, value in own.items():
                session.conf.unset(name) if value is None else session.conf.set(name, value)


def spark_text(query: exp.Select) -> str:
    """The text of a query for Spark 4, with DuckDB's meaning of its expressions.

    Invalid numbers become NULL, and divisions by zero infinite.

    >>> spark_text(exp.select("log(a)").from_("log"))
    'SELECT LOG10(a) FROM log'
    """
    query = query.copy()
    for node in [*query.find_all(*TRANSLATED)][::-1]:  # inner ones first
        node.replace(_translate_node(node))
    text: str = query.sql(dialect="spark")
    return text


def _translate_node(node: Expression) -> Expression:
    """Return an expression that is in Spark what a node is in DuckDB."""
    if isinstance(node, exp.Cast):
        return _cast(node)
    if isinstance(node, exp.Div):
        return node if isinstance(node.expression, exp.Nullif) else _quotient(node)
    if isinstance(node, exp.Log):  # with one argument Spark's is natural
        return node if node.expression else _call_spark("LOG10", node.this)
    if isinstance(node, exp.DayOfWeek | exp.DayOfWeekIso):
        from_monday = _call_spark("WEEKDAY", node.this) + 1
        return exp.paren(
            from_monday % 7 if isinstance(node, exp.DayOfWeek) else from_monday, copy=False
        )
    if isinstance(node, exp.Extract):
        known = node.name.lower() in SAME_IN_SPARK
        name = f"extract({node.name.lower()} FROM ...)"
    else:
        name = f"{node.name.lower() if isinstance(node, exp.Anonymous) else node.key}()"
        known = name not in OTHERWISE
    if not known:
        raise UsageError(
            f"Spark has another {name} than DuckDB, whose SQL the expressions of a log are in: "
            "write the value as a column, or give the rows as a SELECT in Spark's SQL"
        )
    return node


def _call_spark(name: str, *arguments: Expression) -> Expression:
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def _quotient(node: exp.Div) -> Expression:
    """Return a / b, and a times infinity where b is 0: infinite, or NaN if a is 0 as well."""
    a, b = node.this.copy(), node.expression.copy()
    infinity = exp.cast(exp.Literal.string("Infinity"), "double")
    by_zero = exp.paren(a) * exp.If(this=exp.paren(b).eq(0), true=infinity, false=exp.Null())
    return exp.func("coalesce", _call_spark("TRY_DIVIDE", a, b), by_zero)


def _cast(node: exp.Cast) -> Expression:
    """Return a cast that reads "30d" as no number, and that rounds: Spark cuts digits off.

    Spark knows the type of a column before it reads a row, and drops the other cases.
    """
    kind, text = _call_spark("TYPEOF", node.this), exp.cast(node.this.copy(), "varchar")
    if isinstance(node, exp.TryCast):
        node.set("safe", True)  # noqa: FBT003 - SQLGlot's mark of TRY_CAST
    if node.to.is_type("double"):
        lettered = exp.RegexpLike(this=text, expression=exp.Literal.string(r"[0-9.][dDfF]\s*$"))
        read = node.copy()
        return exp.If(this=kind.eq("string").and_(lettered), true=exp.Null(), false=read)
    if not node.to.is_type(*exp.DataType.INTEGER_TYPES):
        return node
    number = exp.TryCast(this=text, to=exp.DataType.build("double"), safe=True)
    whole = exp.Case(default=node.copy())
    for kinds, rounding in ((("float", "double"), "RINT"), (("decimal",), "ROUND")):
        rounded = node.copy()
        rounded.set("this", _call_spark(rounding, number))
        name = exp.func("split_part", kind.copy(), exp.Literal.string("("), exp.convert(1))
        whole = whole.when(name.isin(*kinds), rounded)
    return whole


def open_frame(session: SparkSession, log: Log) -> DataFrame:
    """All parts of a log as one DataFrame, with the columns of all parts."""
    if log.connection is not None:
        raise UsageError("Spark does not read through a `connection`: leave `engine` out")
    refuse_repeated(log, named_files(log))
    frames = []
    for part in log.parts:
        with spark_errors("", _show_part(part)):
            frame = _read_part(session, part, log)
        if isinstance(log.source, Mapping):
            label = exp.Literal.string(str(part.logger)).sql(dialect="spark")
            frame = frame.selectExpr("*", f"{label} AS {PART_LOGGER}")
        frames.append(frame)
    with spark_errors("", "the source"):
        return _union(frames)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)


def _read_part(session: SparkSession, part: Part, log: Log) -> DataFrame:
    if part.kind == "database":
        raise UsageError("Spark does not read DuckDB files: write the table to Parquet first")
    if part.kind == "table" and not SELECT.match(part.value):
        return session.table(part.value)
    if part.kind in {"select", "table"}:  # brackets admit a query and nothing else
        text = part.value.strip().rstrip(";")
        return _only_reading(session.sql(f"SELECT * FROM (\n{text}\n) AS source"))
    if part.kind == "frame":
        return _from_frame(session, part.value)
    chosen = {**READER_OPTIONS[part.kind], **log.reader_options}
    if part.kind == "csv" and re.search(r"\.tsv\b", part.value[0].lower()):
        chosen.setdefault("sep", "\t")
    located: dict[str, list[str]] = {}  # paths by the folder above their partition folders
    for path in (file for pattern in part.value for file in _find_files(pattern, part.kind)):
        above = re.match(r"(.*?)/[^/]*=[^/]*/", path)
        base = re.sub(r"\\(.)", r"\1", above.group(1)) if above else ""  # is no pattern
        located.setdefault(base, []).append(path)
    frames = []
    for base, paths in located.items():
        rooted = {**chosen, "basePath": base} if base else chosen
        reader = session.read.options(**rooted).format(part.kind)  # type: ignore[arg-type, unused-ignore]
        frame = reader.load(paths)
        if part.kind == "csv":
            frame = reader.schema(_text_labels(frame.schema, log)).load(paths)
        frames.append(frame)
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


def _text_labels(schema: StructType, log: Log) -> StructType:
    """Return the columns with labels as text, so that 1.1 and 1.10 stay distinct."""
    from pyspark.sql.types import StringType, StructField, StructType

    labels = [name.strip('"`').lower() for name in (log.logger, log.cluster) if name]
    return StructType(
        [StructField(f.name, StringType()) if f.name.lower() in labels else f for f in schema]
    )


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
    copied: DataFrame = session.createDataFrame(_widen_numbers(frame))  # type: ignore[arg-type, unused-ignore]
    return copied


def column_types(schema: StructType) -> dict[str, str]:
    """Return the type of each column as text, with the names of fields quoted."""
    return {field.name: _type_text(field.dataType) for field in schema}


def _type_text(kind: Any) -> str:  # noqa: ANN401 - a type of Spark
    name = kind.typeName()
    if name == "struct":
        fields = [
            f"{exp.to_identifier(f.name, quoted=True).sql(dialect='spark')}: "
            f"{_type_text(f.dataType)}"
            for f in kind
        ]
        return f"struct<{', '.join(fields)}>"
    if name == "map":
        return f"map<{_type_text(kind.keyType)}, {_type_text(kind.valueType)}>"
    return f"array<{_type_text(kind.elementType)}>" if name == "array" else kind.simpleString()


def _widen_numbers(table: pa.Table) -> pa.Table:
    """Return a table with numbers that Spark has: it lacks unsigned integers and halves."""
    for k, field in enumerate(table.schema):
        if field.type in LARGER:
            column = table.column(k).cast(LARGER[field.type])
            table = table.set_column(k, field.name, column)
    return table


def _find_files(pattern: str, kind: str) -> list[str]:
    """Patterns of the files that match a path; the path where this process sees none."""
    if "://" in pattern:
        return [pattern]
    with duckdb.connect() as connection:
        query = "SELECT file FROM glob(?)"
        lines = connection.execute(query, [expand_path(pattern, kind)]).fetchall()
    names = [str(line[0]) for line in lines]
    if kind == "parquet":
        refuse_tables(names, spark=True)
    located = [f"file://{Path(name).absolute()}" for name in names]
    return [re.sub(r"([\\*?\[\]{}])", r"\\\1", name) for name in located] or [pattern]


def local_files(session: SparkSession, log: Log) -> Files | None:
    """Files that tasks can read by themselves, under absolute paths."""
    paths = [path for part in log.parts if part.kind == "parquet" for path in part.value]
    if is_remote(session) or any("://" in path for path in paths):
        return None
    with duckdb.connect() as connection:
        files = plain_files(connection, log)
    return files and tuple((str(Path(path).absolute()), label) for path, label in files)


def _show_part(part: Part) -> str:
    if part.kind in READER_OPTIONS or part.kind == "database":
        more = f" and {len(part.value) - 1} more" if len(part.value) > 1 else ""
        return f"{part.value[0]!r}{more}"
    if part.kind == "frame":
        return "the frame"
    return "the SELECT" if SELECT.match(part.value) else f"table {part.value!r}"


@contextmanager
def make_view(session: SparkSession, frame: DataFrame) -> Iterator[exp.Table]:
    """Name a DataFrame for queries, and drop the name at the end."""
    name = f"poolwise_{next(VIEW_NUMBERS)}"
    with spark_errors(f"CREATE VIEW {name}"):
        frame.createOrReplaceTempView(name)
    try:
        yield exp.to_table(name)
    finally:
        with spark_errors(f"DROP VIEW {name}"):
            session.catalog.dropTempView(name)


def narrow(frame: DataFrame, roles: Roles) -> DataFrame:
    """Select the columns and fields that policies, models and queries read."""
    return frame.selectExpr(*(e.sql(dialect="spark") for e in roles.selected(roles.read)))


def collect_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """All rows in batches, each of which a worker writes to bytes."""
    packed = frame.mapInArrow(partial(_pack_batches, SameVersion()), "batch binary")
    for (content,) in packed.toLocalIterator(prefetchPartitions=True):
        yield from pa.ipc.open_stream(bytes(content))


def _pack_batches(
    _: SameVersion, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write each batch to bytes, on a worker."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        content = pa.array([sink.getvalue().to_pybytes()], pa.binary())
        yield pa.record_batch({"batch": content})


@contextmanager
def score_frame(roles: Roles, frame: DataFrame) -> Iterator[DataFrame]:
    """The columns that queries read and the policies' probabilities, cached by the workers."""
    from pyspark import StorageLevel
    from pyspark.sql.types import DoubleType, StructType

    needed = narrow(frame, roles)
    schema = StructType([needed.schema[n] for n in roles.queried])
    for name in roles.scored:
        schema = schema.add(name, DoubleType())
    scoring = partial(_score, SameVersion(), make_scorer(roles), schema.names)
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
    _: SameVersion,
    scorer: Scorer,
    columns: list[str],
    batches: Iterator[pa.RecordBatch],
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
