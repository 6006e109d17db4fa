"""Live policies: logs whose rows lack the probabilities of policies of other periods.

A policy that was live on some days often has a probability only in the rows of these days.
The mixture of a period needs no other: such a log becomes a `LiveLog`, whose estimates by
period are those of a complete log but for the shares of the periods.
"""

from __future__ import annotations

from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from poolwise.engines import as_engine, with_loggers
from poolwise.engines.parallel import KernelRows
from poolwise.errors import LogError
from poolwise.log.log import LiveLog, Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.engines.base import EngineLike

P = ParamSpec("P")
T = TypeVar("T")


def live_log(log: Log, engine: EngineLike = None) -> Log | None:
    """Return a log that lacks only probabilities of policies that are not live; else None."""
    if log.period is None or not log.crossed or log.estimate_mixture is not False:
        return None
    log = with_loggers(log, engine)
    with as_engine(engine, log).open(log, {}) as rows:
        missing = rows.missing if isinstance(rows, KernelRows) else ()
    if not missing:
        return None
    roles: dict[str, Any] = {f.name: getattr(log, f.name) for f in fields(log)}
    return LiveLog(**roles, incomplete=missing)


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
        positional: Any = [live if value is log else value for value in args]
        named: Any = {name: live if v is log else v for name, v in options.items()}
        return verb(*positional, **named)

    return read
