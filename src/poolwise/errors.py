"""Errors and findings: each has attributes for programs, and a message for people.

All errors that poolwise raises on purpose derive from `PoolwiseError`, so that a caller can
catch these only.  A message names the fault, the rows and the remedy.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class PoolwiseError(Exception):
    """Base of all errors that poolwise raises on purpose.

    Errors of every subclass can be pickled and copied, with their message and attributes: a
    process pool returns the error of its task.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the message and the attributes; `__init__` of a subclass takes others."""
        return _restore_error, (type(self), self.args), vars(self)

    def _render_traceback_(self) -> list[str]:
        """Return the message alone: notebooks show it without the frames of this package."""
        return [f"{type(self).__name__}: {self}"]


def _restore_error(kind: type[PoolwiseError], args: tuple[object, ...]) -> PoolwiseError:
    """Return an error with these `args`, without a call of its own `__init__`."""
    error = kind.__new__(kind)
    super(PoolwiseError, error).__init__(*args)
    return error


class UsageError(PoolwiseError):
    """Invalid or inconsistent arguments."""


class ExpressionError(UsageError):
    """An SQL expression that is not a value of one row.

    Attributes:
        sql: The expression.
        part: What it must not contain; empty if the text is not one expression.
        role: Role that the expression plays; empty if that is not known.
    """

    def __init__(self, sql: str, part: str = "", role: str = "", hint: str = "") -> None:
        self.sql, self.part, self.role, self.hint = sql, part, role, hint
        where = f"{role}: " if role else ""
        if part:
            text = (
                f"an expression of one row may not contain {part}, got {sql}: compute that "
                "column in a SELECT as the source, and name the column"
            )
        else:
            text = f"expected one scalar SQL expression, got {sql}"
        super().__init__(f"{where}{text}{hint}")

    def in_role(self, role: str, hint: str = "") -> ExpressionError:
        """Return the error with the role that the expression plays."""
        return ExpressionError(self.sql, self.part, role, hint or self.hint)


class SourceError(PoolwiseError):
    """A source of rows that cannot be read."""

    def __init__(self, source: str, reason: str) -> None:
        self.source, self.reason = source, reason
        super().__init__(f"cannot read {source}: {reason}")


class NotShownError(PoolwiseError):
    """A required difference that the rows do not show.

    Attributes:
        reasons: Reason for each target or alarm that fails the requirement.
    """

    def __init__(self, required: str, reasons: Sequence[str]) -> None:
        self.required, self.reasons = required, tuple(reasons)
        super().__init__(f"not shown: {required}: {'; '.join(reasons)}")


SHOWN_MISSING = 10  # columns in a message; `MissingColumnError.missing` has all


class MissingColumnError(PoolwiseError):
    """Columns that a role names and the source lacks.

    Attributes:
        missing: Role of each missing name.
        available: Columns of the source.
    """

    def __init__(self, missing: Mapping[str, str], available: Sequence[str]) -> None:
        self.missing = dict(missing)
        self.available = tuple(available)
        lines = [
            f"{role}: there is no column {name!r}{did_you_mean(name, available)}"
            for name, role in missing.items()
        ]
        left = len(lines) - SHOWN_MISSING
        lines = [*lines[:SHOWN_MISSING], f"and {left} more"] if left > 1 else lines
        columns = ", ".join(available) or "none"
        super().__init__("\n".join([*lines, f"The source has these columns: {columns}."]))


def did_you_mean(name: str, available: Iterable[str]) -> str:
    """Return a hint at the nearest name, or no text.

    >>> did_you_mean("propensty", ["reward", "propensity"])
    "; did you mean 'propensity'?"
    """
    close = nearest(name, available)
    return f"; did you mean {close!r}?" if close else ""


def nearest(name: str, available: Iterable[str]) -> str | None:
    """Return the available name most like a mistyped one, or None."""
    by_lower = {candidate.lower(): candidate for candidate in available}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[close[0]] if close else None


SHOWN_FAULTS = 40  # in a message; `LogError.faults` has all


@dataclass(frozen=True)
class Fault:
    """A rule that rows of one logger break.

    Attributes:
        rule: The broken rule, in words.
        logger: Label of the logger; empty if the fault concerns the whole log.
        rows: Number of rows that break the rule.
        example: One such row, by column.
        advice: Remedy.
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
    """A log that breaks rules, with all faults by logger."""

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
    """An estimator that is not valid for this log.

    Attributes:
        code: Stable name of the reason, for programs.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class EngineError(PoolwiseError):
    """A query that an engine rejected, with its text; or, without one, why no query can run."""

    def __init__(self, engine: str, query: str, reason: Exception) -> None:
        self.engine, self.query = engine, query
        failed = "refused the query" if query else "cannot run"
        super().__init__(f"{engine} {failed}: {reason}")


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
    """One observation about a log or an estimate.

    Attributes:
        code: Stable name, such as ``no-spread``.
        message: The observation, in a sentence.
        advice: Remedy.
        severity: "note" explains, "warning" limits, "alarm" invalidates the estimate.
        target: Name of the target that it concerns; empty if it concerns all of them.
        metric: Name of the metric that it concerns, likewise.
    """

    code: str
    message: str
    advice: str = ""
    severity: Severity = "warning"
    target: str = ""
    metric: str = ""

    @property
    def rank(self) -> int:
        """Sort key that puts the gravest findings first."""
        return GRAVEST_FIRST.index(self.severity)

    @property
    def text(self) -> str:
        """The observation and its remedy, without the name of the target."""
        return f"{self.message} {self.advice}".strip()

    def __str__(self) -> str:
        return name_target(self.text, self.target, self.metric)


def name_target(sentence: str, target: str = "", metric: str = "") -> str:
    """Begin a sentence with the target and the metric that it concerns, if these are single.

    >>> name_target("The rows do not vary.", "new"), name_target("The rows do not vary.")
    ("Target 'new': The rows do not vary.", 'The rows do not vary.')
    >>> name_target("Rewards are rare.", "new", "clicks")
    "Metric 'clicks', target 'new': Rewards are rare."
    """
    names = {"metric": metric, "target": target}
    named = ", ".join(f"{kind} {name!r}" for kind, name in names.items() if name)
    return f"{named[:1].upper()}{named[1:]}: {sentence}" if named else sentence
