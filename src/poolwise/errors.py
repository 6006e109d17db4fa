"""Errors: what went wrong, where, in how many rows, and what to do.

Every error that poolwise raises on purpose belongs to one family, so that a
caller can catch us and nothing else.  Each carries its data as attributes, for
programs, and a sentence, for people; the command line prints the sentence.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class PoolwiseError(Exception):
    """Base of every error this package raises on purpose."""


class UsageError(PoolwiseError):
    """Arguments that do not fit together, or a request that has no meaning."""


class SourceError(PoolwiseError):
    """A source of rows that cannot be read."""

    def __init__(self, source: str, reason: str) -> None:
        self.source, self.reason = source, reason
        super().__init__(f"cannot read {source}: {reason}")


class MissingColumnError(PoolwiseError):
    """Columns that a role names and the source does not have.

    Attributes:
        missing: The role of each missing name.
        available: The columns that exist.
    """

    def __init__(self, missing: Mapping[str, str], available: Sequence[str]) -> None:
        self.missing = dict(missing)
        self.available = tuple(available)
        lines = [f"{role}: {_no_such(name, available)}" for name, role in missing.items()]
        found = ", ".join(available) or "none"
        super().__init__("\n".join([*lines, f"The source has these columns: {found}."]))


def _no_such(name: str, available: Sequence[str]) -> str:
    close = nearest(name, available)
    hint = f"; did you mean {close!r}?" if close else ""
    return f"there is no column {name!r}{hint}"


def nearest(name: str, available: Iterable[str]) -> str | None:
    """The known name most like a mistyped one, if any is alike.

    >>> nearest("propensty", ["reward", "propensity"])
    'propensity'
    """
    by_lower = {known.lower(): known for known in available}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[close[0]] if close else None


SHOWN_FAULTS = 40  # that a message lists; all of them are in `LogError.faults`


@dataclass(frozen=True)
class Fault:
    """One way in which rows of one logger are unusable.

    Attributes:
        rule: What must hold, in words.
        logger: Label of the logger, empty where the fault has none.
        rows: How many rows break the rule.
        example: One such row, by column.
        advice: What to do about it.
    """

    rule: str
    logger: str
    rows: int
    example: Mapping[str, object] = field(default_factory=dict)
    advice: str = ""

    def __str__(self) -> str:
        where = f"logger {self.logger!r}: " if self.logger else ""
        count = f"{self.rows:,} row{'' if self.rows == 1 else 's'}: " if self.rows else ""
        shown = ", ".join(f"{k}={v!r}" for k, v in self.example.items())
        example = f" (for example {shown})" if shown else ""
        return f"{where}{count}{self.rule}{example}"


NO_ROWS = Fault("the log has no rows", "", 0)


class LogError(PoolwiseError):
    """A log that breaks rules: all faults together, by logger."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        advice = dict.fromkeys(f.advice for f in faults if f.advice)
        lines = ["the log cannot be used as it is:", *(f"- {f}" for f in faults[:SHOWN_FAULTS])]
        left = len(faults) - SHOWN_FAULTS
        lines += [f"- and {left:,} more", *advice] if left > 0 else advice
        super().__init__("\n".join(lines))


class PolicyError(PoolwiseError):
    """A policy that could not be scored, with the rows where it failed."""

    def __init__(self, policy: str, reason: str, rows: Sequence[int] = ()) -> None:
        self.policy, self.reason, self.rows = policy, reason, tuple(rows)
        super().__init__(f"policy {policy!r} {reason}")


class ModelError(PoolwiseError):
    """A model that could not be fitted or could not predict."""

    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason
        super().__init__(f"the {model} {reason}")


class RefusedError(PoolwiseError):
    """An estimator that cannot give an honest answer on this log.

    Attributes:
        code: A stable name of the reason, for programs.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class EngineError(PoolwiseError):
    """A query that the engine refused, with its text."""

    def __init__(self, engine: str, query: str, reason: Exception) -> None:
        self.engine, self.query = engine, query
        super().__init__(f"{engine} refused the query: {reason}")


class MissingExtraError(PoolwiseError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'poolwise[{extra}]'")


def optional_module(name: str, package: str, extra: str) -> Any:  # noqa: ANN401 - a module
    """Import a module of an optional dependency."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(package, extra) from error


Severity = Literal["note", "warning", "alarm"]
GRAVEST_FIRST: tuple[Severity, ...] = ("alarm", "warning", "note")


@dataclass(frozen=True, order=True)
class Finding:
    """One thing to know.

    Attributes:
        code: Stable name, such as ``no-spread``.
        message: A sentence that says what was seen.
        advice: What to do about it.
        severity: "note" explains, "warning" limits, "alarm" forbids to rely on it.
    """

    code: str
    message: str
    advice: str = ""
    severity: Severity = "warning"

    @property
    def rank(self) -> int:
        """Place among findings when the gravest come first."""
        return GRAVEST_FIRST.index(self.severity)

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()
