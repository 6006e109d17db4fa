"""Engines: turn the rows of a log into moments; `as_engine` resolves the argument."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from poolwise.engines.base import lacking
from poolwise.errors import UsageError
from poolwise.files import temporary_folder
from poolwise.log.log import PART_LOGGER, PATTERN, Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from poolwise.engines.base import Engine, EngineLike
    from poolwise.engines.duckdb import DuckDB
    from poolwise.engines.saved import Summary as Summary
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.moments import Moments
    from poolwise.moments.terms import Needs

ENGINES = ("duckdb", "spark")


def as_engine(engine: EngineLike, log: Log) -> Engine:
    """Resolve the `engine` argument; None chooses by the log."""
    found = _choose_engine(engine, log)
    if log.clicks is not None and found.local is None:
        raise lacking("clicks")
    if log.action_group is not None and found.local is None:
        raise lacking("groups")
    return found


def _choose_engine(engine: EngineLike, log: Log) -> Engine:
    source: Any = log.source
    if engine is None and log.connection is not None:
        from poolwise.engines.warehouse import Warehouse

        return Warehouse()
    if engine is None and _is_spark(source):
        engine = source.sparkSession
    if engine is None and log.table is not None:
        raise UsageError(
            "the log is a `table`: give the `connection` that has it, or engine='spark'"
        )
    if engine is None or engine == "duckdb":
        from poolwise.engines.duckdb import DuckDB

        return DuckDB()
    if engine == "spark" or (_is_spark(engine) and type(engine).__name__ == "SparkSession"):
        from poolwise.engines.spark import Spark

        return Spark() if engine == "spark" else Spark(engine)
    if hasattr(engine, "open") and not isinstance(engine, str):
        opener: Engine = engine
        return opener
    raise UsageError(
        f"no engine {engine!r}; there are {', '.join(map(repr, ENGINES))}, a SparkSession, and "
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
    if not isinstance(pattern, str) or log.estimated:
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
            pq.write_table(_widen_decimals(batch), folder / f"{number:09}.parquet")
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


def make_summary(
    moments: Mapping[str, Moments],
    log: Log,
    targets: Mapping[str, PolicyLike],
    manifest: Mapping[str, float],
) -> Summary:
    """Return the moments of a log's rows as an engine that can be saved.

    Args:
        moments: Moments of each logger.
        log: The log; only its roles are read.
        targets: The targets that the moments were computed for.
        manifest: Rows of each logger that fixed the mixture; empty without a mixture.
    """
    from poolwise.engines.saved import Summary
    from poolwise.engines.saved_files import question

    return Summary(moments, question(log, targets), manifest)


def read_saved(path: Path, read_other: Callable[[Path], Summary]) -> Summary:
    """Read a file of `Summary.save`; pass another file to `read_other`."""
    from poolwise.engines.saved import Summary
    from poolwise.engines.saved_files import holds_moments

    return Summary.load(path) if holds_moments(path) else read_other(path)


def read_exported(
    path: Path, log: Log, targets: Mapping[str, PolicyLike], needs: Needs
) -> Summary:
    """Read the exported answer to `write_query`."""
    from poolwise.engines.saved_files import read_answer

    moments = read_answer(path, log, targets, needs)
    counts = {logger: m.count for logger, m in moments.items()}
    return make_summary(moments, log, targets, counts if log.crossed else {})


def write_query(
    log: Log, table: str, targets: Mapping[str, PolicyLike], needs: Needs, dialect: str
) -> str:
    """Return the text of the query that computes the moments of a table in a database."""
    from poolwise.engines.saved_files import standalone_query

    return standalone_query(log, table, targets, needs, dialect)


def _widen_decimals(batch: pa.RecordBatch) -> pa.Table:
    """Return the rows with decimal numbers as doubles, whose digits may differ by batch."""
    table = pa.Table.from_batches([batch])
    for k, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type):
            table = table.set_column(k, field.name, table.column(k).cast(pa.float64()))
    return table


def _is_spark(value: object) -> bool:
    return type(value).__module__.startswith("pyspark.")
