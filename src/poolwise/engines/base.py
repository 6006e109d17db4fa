"""Base: engines open logs, and open logs answer questions about their rows.

`evaluation` only knows these protocols.  An engine holds no statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from poolwise.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from poolwise.errors import Fault
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.moments import FloatArray, IntArray, Moments
    from poolwise.moments.terms import Needs, Term

# An engine, its name, or a SparkSession, whose type is not ours to import.
EngineLike = Any
NAMES = ("duckdb", "spark")


class Rows(Protocol):
    """The rows of one log with the probabilities of its policies."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Usable rows of each logger, in the order in which loggers are shown."""
        ...

    @property
    def found(self) -> Mapping[str, int]:
        """Rows of each logger, unusable ones included."""
        ...

    @property
    def by_kernel(self) -> bool:
        """Whether rows go through the kernel, which is fast for many terms."""
        ...

    @property
    def rereadable(self) -> bool:
        """Whether rows can be read again: False for saved moments."""
        ...

    def check(self) -> tuple[Fault, ...]:
        """Count the rows that break each rule, by logger."""
        ...

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Return the moments of each logger; raise LogError if rows break a rule."""
        ...

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[list[dict[str, Moments]]]:
        """Return moments of each bucket and logger, for each of several needs.

        Rows of a cluster share a bucket. Tails and histograms may be missing.
        """
        ...

    def without(self, logger: str) -> Rows:
        """Exclude one logger from the rows and from the mixture."""
        ...


@runtime_checkable
class SingleRows(Protocol):
    """Rows that can be read one by one: those of the default engine."""

    def weighted_rewards(
        self, target: str, base: float = 0.0, sign: float = 1.0
    ) -> Iterable[tuple[IntArray, FloatArray]]:
        """Batches of logger numbers and of w sign (r - base), shuffled; can be read again."""
        ...

    def sample(self, terms: tuple[Term, ...], most: int) -> tuple[FloatArray, FloatArray]:
        """Values of terms in at most about `most` rows, and the share of each row.

        Each logger keeps its share of the log, however few of its rows are taken, and a
        small log is taken whole. The same log gives the same rows.

        Returns:
            Values, shape (terms, rows), and shares, shape (rows,), which sum to 1.
        """
        ...


class Engine(Protocol):
    """Opens logs."""

    def open(
        self, log: Log, targets: Mapping[str, PolicyLike]
    ) -> AbstractContextManager[Rows]: ...


def as_engine(engine: EngineLike, log: Log) -> Engine:
    """Resolve the `engine` argument; None chooses by the log."""
    from poolwise.engines.duckdb import DuckDB

    if engine is None:
        return _fitting(log)
    if engine == "duckdb":
        return DuckDB()
    if engine == "spark" or _is_session(engine):
        from poolwise.engines.spark import Spark

        return Spark() if engine == "spark" else Spark(engine)
    if hasattr(engine, "open") and not isinstance(engine, str):
        opener: Engine = engine
        return opener
    raise UsageError(
        f"no engine {engine!r}; there are {', '.join(map(repr, NAMES))}, a SparkSession, and "
        "objects such as DuckDB(threads=4)"
    )


def _fitting(log: Log) -> Engine:
    """The engine that reads the source of a log."""
    from poolwise.engines.duckdb import DuckDB

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


def _is_session(engine: object) -> bool:
    return _module(engine).startswith("pyspark.") and type(engine).__name__ == "SparkSession"


def _module(value: object) -> str:
    return type(value).__module__
