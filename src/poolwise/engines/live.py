"""Live policies, and clean logs: verbs that may read a log a second time, in another way.

A policy that was live on some days often has a probability only in the rows of these days.
The mixture of a period needs no other: such a log becomes a `LiveLog`, whose estimates by
period are those of a complete log but for the shares of the periods.

To drop bad rows takes two passes, since the good rows fix the mixture.  Most logs have no bad
row: as a `CleanLog` they are read in one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from poolwise.engines import as_engine, with_loggers
from poolwise.engines.duckdb import DuckDB
from poolwise.engines.parallel import KernelRows
from poolwise.errors import LogError, PoolwiseError
from poolwise.log.log import CleanLog, LiveLog, Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.engines.base import EngineLike

P = ParamSpec("P")
T = TypeVar("T")
READ_AGAIN = frozenset({"parquet", "frame"})  # kinds of sources whose rows are not copied


def live_log(log: Log, engine: EngineLike = None) -> Log | None:
    """Return a log that lacks only probabilities of policies that are not live; else None."""
    if log.period is None or not log.crossed or log.estimate_mixture is not False:
        return None
    if isinstance(log, CleanLog):
        return None
    log = with_loggers(log, engine)
    with as_engine(engine, log).open(log, {}) as rows:
        missing = rows.missing if isinstance(rows, KernelRows) else ()
    if not missing:
        return None
    return LiveLog(**_arguments(log), incomplete=missing)


def _arguments(log: Log) -> dict[str, Any]:
    return {f.name: getattr(log, f.name) for f in fields(log)}


def by_live(verb: Callable[P, T]) -> Callable[P, T]:
    """Let a verb read logs that lack only probabilities of policies that are not live.

    Complete logs are read once: missing probabilities are counted after the verb has refused
    the rows, or before if it would drop them.
    """

    @wraps(verb)
    def read(*args: P.args, **options: P.kwargs) -> T:
        log = next((v for v in (*args, *options.values()) if isinstance(v, Log)), None)
        if log is None:  # the verb says what it must be
            return verb(*args, **options)
        engine: Any = options.get("engine")
        live = live_log(log, engine) if log.on_fault == "drop" else None
        if live is None:
            try:
                return verb(*args, **options)
            except LogError:
                live = live_log(log, engine)
                if live is None:
                    raise
        return _with_log(verb, log, live, args, options)

    return read


def _with_log(
    verb: Callable[..., T], log: Log, other: Log, args: tuple[Any, ...], options: dict[str, Any]
) -> T:
    """Call a verb with another log in place of its own."""
    positional = [other if value is log else value for value in args]
    named = {name: other if value is log else value for name, value in options.items()}
    return verb(*positional, **named)


def by_clean(verb: Callable[P, T]) -> Callable[P, T]:
    """Let a verb that drops bad rows first read its log as if there were none.

    If that fails for any reason, the verb reads the log as it is, and raises its own error.
    """

    @wraps(verb)
    def read(*args: P.args, **options: P.kwargs) -> T:
        log = next((v for v in (*args, *options.values()) if isinstance(v, Log)), None)
        if log is not None and _may_be_clean(log, options.get("engine")):
            clean = CleanLog(**_arguments(log) | {"on_fault": "raise"})
            with suppress(PoolwiseError):
                return _with_log(verb, log, clean, args, options)
        return verb(*args, **options)

    return read


def _may_be_clean(log: Log, engine: EngineLike) -> bool:
    """Test if bad rows would be dropped by DuckDB, from a source that is cheap to open."""
    if type(log) is not Log or log.on_fault != "drop" or log.connection is not None:
        return False
    if not all(part.kind in READ_AGAIN for part in log.parts):
        return False
    chosen = as_engine(None, log) if engine is None else engine
    return isinstance(chosen, DuckDB) or engine == "duckdb"
