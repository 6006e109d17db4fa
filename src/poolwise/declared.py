"""Declared: which estimators run, and what they ask of the rows.

Names become estimators, each of which declares what it needs; what a log cannot serve is
refused here, before any row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolwise.diagnosis.diagnostics import shown
from poolwise.errors import RefusedError, UsageError, nearest
from poolwise.estimators import BY_NAME, WITH_MODEL
from poolwise.findings import Finding
from poolwise.learned.extras import require_model

if TYPE_CHECKING:
    from poolwise.estimators.base import Estimator
    from poolwise.terms import Needs


def chosen_estimators(
    wanted: Sequence[str | Estimator] | str | Estimator | None,
    names: Mapping[str, Callable[[], Estimator]] = BY_NAME,
) -> list[Estimator]:
    """The estimators that were asked for, by name or as objects; None asks for all names."""
    return [_estimator(e, names) for e in _listed(wanted, names)]


def _listed(
    estimators: Sequence[str | Estimator] | str | Estimator | None, names: Iterable[str]
) -> Sequence[str | Estimator]:
    if estimators is None:
        return tuple(names)
    if isinstance(estimators, Sequence) and not isinstance(estimators, str):
        if not estimators:
            raise UsageError(f"no estimator was asked for; there are {', '.join(names)}")
        return estimators
    return [estimators]


def _estimator(
    wanted: str | Estimator, names: Mapping[str, Callable[[], Estimator]]
) -> Estimator:
    if not isinstance(wanted, str):
        return wanted
    if wanted in names:
        return names[wanted]()
    if wanted in WITH_MODEL:  # refused with its reason once its needs are known
        return WITH_MODEL[wanted]()
    close = nearest(wanted, WITH_MODEL)
    hint = f"did you mean {close!r}? " if close else ""
    raise UsageError(f"no estimator {wanted!r}; {hint}There are {', '.join(WITH_MODEL)}.")


@dataclass(frozen=True)
class Plan:
    """Which estimators run, and what they and the tables ask of the rows.

    Attributes:
        estimators: Those that this log can serve, by name.
        needs: What they and the tables ask of one target.
        refused: Why others do not run.
        uncrossed: Names of those that only lack cross-propensities.
        crossed: Whether every logger's probability of every row is known.
        strict: Whether the estimators were asked for by name.
    """

    estimators: Mapping[str, Estimator]
    needs: Needs
    refused: tuple[Finding, ...]
    uncrossed: tuple[str, ...]
    crossed: bool
    strict: bool


def declare(
    chosen: Sequence[Estimator],
    loggers: Sequence[str],
    *,
    crossed: bool,
    strict: bool,
    modelled: bool = False,
) -> Plan:
    """Unite the needs of the estimators that this log can serve."""
    needs, refused, uncrossed = shown(loggers, crossed=crossed), [], []
    usable: dict[str, Estimator] = {}
    for estimator in chosen:
        try:
            asked = estimator.needs(loggers, crossed=crossed)
            needs |= require_model(estimator.name, asked, modelled=modelled)
        except RefusedError as reason:
            if strict:
                raise
            if crossed or not _served(estimator, loggers):
                refused.append(Finding(reason.code, str(reason)))
            else:
                uncrossed.append(estimator.name)
        else:
            usable[_free_name(estimator.name, usable)] = estimator
    return Plan(usable, needs, tuple(refused), tuple(uncrossed), crossed, strict)


def _served(estimator: Estimator, loggers: Sequence[str]) -> bool:
    """Whether cross-propensities are all that an estimator lacks."""
    try:
        estimator.needs(loggers, crossed=True)
    except RefusedError:
        return False
    return True


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """The same estimator may be asked for twice, with other settings."""
    names = [name, *(f"{name}-{k}" for k in range(2, len(taken) + 3))]
    return next(n for n in names if n not in taken)
