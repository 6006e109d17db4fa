"""Engines: turn the rows of a log into moments; `as_engine` resolves the argument."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from poolwise.errors import UsageError
from poolwise.log.log import PART_LOGGER, PATTERN, Log
from poolwise.rows.output import temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolwise.engines.base import Engine, EngineLike
    from poolwise.engines.duckdb import DuckDB

NAMES = ("duckdb", "spark")


def as_engine(engine: EngineLike, log: Log) -> Engine:
    """Resolve the `engine` argument; None chooses by the log."""
    source: Any = log.source
    if engine is None and log.connection is not None:
        from poolwise.engines.warehouse import Warehouse

        return Warehouse()
    if engine is None and _of_pyspark(source):
        engine = source.sparkSession
    if engine is None and log.table is not None:
        raise UsageError(
            "the log is a `table`: give the `connection` that has it, or engine='spark'"
        )
    if engine is None or engine == "duckdb":
        from poolwise.engines.duckdb import DuckDB

        return DuckDB()
    if engine == "spark" or (_of_pyspark(engine) and type(engine).__name__ == "SparkSession"):
        from poolwise.engines.spark import Spark

        return Spark() if engine == "spark" else Spark(engine)
    if hasattr(engine, "open") and not isinstance(engine, str):
        opener: Engine = engine
        return opener
    raise UsageError(
        f"no engine {engine!r}; there are {', '.join(map(repr, NAMES))}, a SparkSession, and "
        "objects such as DuckDB(threads=4)"
    )


def with_loggers(log: Log, engine: EngineLike = None) -> Log:
    """Return the log with propensities by label; a pattern is applied to the rows' loggers."""
    if not isinstance(log, Log):
        raise UsageError(
            f"the first argument must be a pw.Log, got {type(log).__name__}: wrap the rows, as "
            "in pw.Log(rows, reward='click', propensity='p')"
        )
    pattern = log.propensities
    if not isinstance(pattern, str):
        return log
    bare = Log(
        log.source,
        reward="1",
        logger=log.logger,
        propensity="1",
        timezone=log.timezone,
        on_fault=log.on_fault,
        reader_options=log.reader_options,
        table=log.table,
        connection=log.connection,
    )
    labels = getattr(engine, "moments", None)  # a `Summary` has no rows
    if labels is None:
        with as_engine(engine, log).open(bare, {}) as rows:
            labels = tuple(rows.counts)
    return replace(log, propensities={i: pattern.replace(PATTERN, i) for i in labels})


@contextmanager
def local_log(log: Log, engine: EngineLike) -> Iterator[tuple[Log, DuckDB]]:
    """Yield a log that DuckDB reads, and DuckDB: the log itself, or a copy of its columns.

    Learning reads its rows again, in the same order, with policies in Python.  A database
    cannot run those, and a second query may return another order.
    """
    from poolwise.engines.duckdb import DuckDB

    reader = as_engine(engine, log)
    if reader.local is not None:
        yield log, reader.local
        return
    with temporary_folder() as folder:
        for number, batch in enumerate(reader.learner_batches(log)):
            pq.write_table(_plain(batch), folder / f"{number:09}.parquet")
        mapped = isinstance(log.source, Mapping)
        copied = replace(
            log,
            source=str(folder / "*.parquet"),
            logger=PART_LOGGER if mapped else log.logger,
            table=None,
            connection=None,
            reader_options={"union_by_name": True},  # a batch of NULL has no type
        )
        yield copied, DuckDB()


def _plain(batch: pa.RecordBatch) -> pa.Table:
    """Return the rows with decimal numbers as doubles, whose digits may differ by batch."""
    table = pa.Table.from_batches([batch])
    for k, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type):
            table = table.set_column(k, field.name, table.column(k).cast(pa.float64()))
    return table


def _of_pyspark(value: object) -> bool:
    return type(value).__module__.startswith("pyspark.")
