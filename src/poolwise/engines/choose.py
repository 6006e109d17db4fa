"""Choose: what "engine" means, said in any of the ways in which people say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolwise.engines.duckdb import DuckDB
from poolwise.errors import UsageError

if TYPE_CHECKING:
    from poolwise.engines.base import Engine
    from poolwise.log.log import Log

# An engine, its name, or a SparkSession, whose type is not ours to import.
EngineLike = Any
NAMES = ("duckdb", "spark")


def as_engine(wanted: EngineLike, log: Log) -> Engine:
    """The engine that reads a log; without a wish, the one that the log asks for."""
    if wanted is None:
        return _fitting(log)
    if wanted == "duckdb":
        return DuckDB()
    if wanted == "spark" or _is_session(wanted):
        from poolwise.engines.spark import Spark

        return Spark() if wanted == "spark" else Spark(wanted)
    if hasattr(wanted, "open") and not isinstance(wanted, str):
        engine: Engine = wanted
        return engine
    raise UsageError(
        f"no engine {wanted!r}; there are {', '.join(map(repr, NAMES))}, a SparkSession, and "
        "objects such as DuckDB(threads=4)"
    )


def _fitting(log: Log) -> Engine:
    if log.connection is not None:
        from poolwise.engines.warehouse import Warehouse

        return Warehouse()
    frame: Any = log.source
    if _module(frame).startswith("pyspark."):
        from poolwise.engines.spark import Spark

        return Spark(frame.sparkSession)
    if log.table is not None:
        raise UsageError(
            "the log is a `table`: give the `connection` that has it, or engine='spark'"
        )
    return DuckDB()


def _is_session(wanted: object) -> bool:
    return _module(wanted).startswith("pyspark.") and type(wanted).__name__ == "SparkSession"


def _module(value: object) -> str:
    return type(value).__module__
