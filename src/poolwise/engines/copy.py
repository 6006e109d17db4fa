"""Copy: the rows of a warehouse or of Spark as local files, for work that reads them twice.

Learning reads its rows again, in the same order, with policies in Python.  A database cannot
run those, and a second query may return another order, so the columns that are needed are
copied to a folder, batch by batch, and DuckDB reads them from there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from sqlglot import exp

from poolwise.engines import as_engine
from poolwise.engines.duckdb import DuckDB
from poolwise.engines.spark import Spark
from poolwise.engines.spark_sources import frame_of, narrow, running_session, spark_errors
from poolwise.engines.warehouse import Warehouse, relation_of
from poolwise.errors import UsageError
from poolwise.log.log import PART_LOGGER
from poolwise.rows.mixture import learner_extra
from poolwise.rows.roles import assign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame
    from sqlglot.expressions import Expr as Expression

    from poolwise.engines.base import Engine, EngineLike
    from poolwise.log.log import Log

BATCH_ROWS = 65_536


@contextmanager
def local_log(log: Log, engine: EngineLike) -> Iterator[tuple[Log, DuckDB]]:
    """Yield a log that DuckDB reads, and DuckDB: the log itself, or a copy of its columns."""
    reader = as_engine(engine, log)
    if isinstance(reader, DuckDB):
        yield log, reader
        return
    with tempfile.TemporaryDirectory(prefix="poolwise-") as folder:
        for number, batch in enumerate(_rows(reader, log)):
            pq.write_table(_plain(batch), Path(folder) / f"{number:09}.parquet")
        mapped = isinstance(log.source, Mapping)
        copied = replace(
            log,
            source=str(Path(folder) / "*.parquet"),
            logger=PART_LOGGER if mapped else log.logger,
            table=None,
            connection=None,
            reader_options={"union_by_name": True},  # a batch of NULL has no type
        )
        yield copied, DuckDB()


def _rows(engine: Engine, log: Log) -> Iterator[pa.RecordBatch]:
    if isinstance(engine, Warehouse):
        return _of_warehouse(engine, log)
    if isinstance(engine, Spark):
        return _of_spark(engine, log)
    raise UsageError(
        f"learning needs rows, and {type(engine).__name__} has none: use DuckDB, Spark or a "
        "warehouse"
    )


def _of_warehouse(engine: Warehouse, log: Log) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table, in batches."""
    with engine.session(log) as session:
        relation = relation_of(str(log.table), session.dialect)
        names = _needed(log, list(session.columns(relation)), relation)
        columns = [exp.column(name, quoted=True) for name in names]
        query = exp.select(*columns).from_(relation.copy())
        yield from session.batches(query, BATCH_ROWS)


def _of_spark(engine: Spark, log: Log) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, tables and DataFrames, in batches that workers pack."""
    with ExitStack() as stack:
        session = engine.session or stack.enter_context(running_session(engine.master))
        frame = frame_of(session, log)
        names = _needed(log, frame.columns, exp.to_table("log"))
        with spark_errors("copying the rows"):
            yield from _collected(narrow(frame, names))


def _needed(log: Log, columns: Sequence[str], relation: Expression) -> list[str]:
    roles = assign(log, {}, columns, relation, learner_extra(log))
    return list(dict.fromkeys([*roles.needed, roles.action, *roles.context]))


def _collected(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    packed = frame.mapInArrow(_packed, "batch binary")
    for (content,) in packed.toLocalIterator(prefetchPartitions=True):
        yield from pa.ipc.open_stream(bytes(content))


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write each batch of a partition to bytes, on a worker."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        content = pa.array([sink.getvalue().to_pybytes()], pa.binary())
        yield pa.record_batch({"batch": content})


def _plain(batch: pa.RecordBatch) -> pa.Table:
    """Return the rows with decimal numbers as doubles, whose digits may differ by batch."""
    table = pa.Table.from_batches([batch])
    for k, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type):
            table = table.set_column(k, field.name, table.column(k).cast(pa.float64()))
    return table
