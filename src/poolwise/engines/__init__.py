"""Engines: turn the rows of a log into moments; `as_engine` resolves the argument."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poolwise.errors import UsageError
from poolwise.log.log import PATTERN, Log

if TYPE_CHECKING:
    from poolwise.engines.base import Engine, EngineLike

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
    if not isinstance(log.propensities, str):
        return log
    bare = Log(
        log.source,
        reward="1",
        logger=log.logger,
        propensity="1",
        on_fault=log.on_fault,
        reader_options=log.reader_options,
        table=log.table,
        connection=log.connection,
    )
    labels = getattr(engine, "moments", None)  # of a `Summary`, which has no rows
    if labels is None:
        with as_engine(engine, log).open(bare, {}) as rows:
            labels = rows.counts
    return replace(log, propensities={i: log.propensities.replace(PATTERN, i) for i in labels})


def _of_pyspark(value: object) -> bool:
    return type(value).__module__.startswith("pyspark.")
