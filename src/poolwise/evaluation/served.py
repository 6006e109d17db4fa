"""Served: the estimators that a log can serve, and the moments that they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolwise.diagnosis.overlap import shown
from poolwise.diagnosis.provenance import HONEST
from poolwise.errors import Finding, RefusedError
from poolwise.estimators.ips import require_crossed
from poolwise.evaluation.periods import is_periodic, needs_of
from poolwise.intervals.skew import interval_needs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.evaluation.read import Request
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.terms import Needs


@dataclass(frozen=True)
class Served:
    """Estimators that a log can serve, and their needs.

    Attributes:
        estimators: Usable estimators by name.
        needs: Needs of the estimators and of the tables, for one target.
        refused: Reasons why others are not used.
        uncrossed: Names of estimators that lack nothing but cross-propensities.
    """

    estimators: Mapping[str, Estimator]
    needs: Needs
    refused: tuple[Finding, ...] = ()
    uncrossed: tuple[str, ...] = ()


def served(
    asked: Request, loggers: Sequence[str], cells: Sequence[str] = (), *, shaped: bool = False
) -> Served:
    """Unite the needs of the estimators that a log with these loggers can serve.

    Estimators of periods are served by `cells`. The needs of skewed intervals are among them
    if `shaped`.
    """
    crossed = asked.log.crossed
    ratios = loggers if crossed and not asked.extra.mixture else ()
    needs, refused, uncrossed = shown(loggers, crossed=crossed), [], []
    if shaped and crossed and asked.log.trained_on:
        needs |= interval_needs(HONEST.needs(loggers, crossed=True))
    usable: dict[str, Estimator] = {}
    for estimator in asked.estimators:
        strata = cells if is_periodic(estimator) else loggers
        try:
            own = _needs(estimator, strata, asked)
            needs |= own | interval_needs(own, ratios) if shaped else own
        except RefusedError as reason:
            only_crossing = not crossed and _lacks_only_crossing(estimator, strata)
            missing = asked.log.uncrossed(loggers)
            if asked.strict and only_crossing and len(missing) < len(loggers):
                require_crossed(estimator.name, missing, crossed=False)
            if asked.strict:
                raise
            if not only_crossing:
                refused.append(Finding(reason.code, str(reason)))
            else:
                uncrossed.append(estimator.name)
        else:
            usable[_free_name(estimator.name, usable)] = estimator
    return Served(usable, needs, tuple(refused), tuple(uncrossed))


def _needs(estimator: Estimator, loggers: Sequence[str], asked: Request) -> Needs:
    needs, name = needs_of(estimator, loggers, asked.log), estimator.name
    if needs.modelled and not asked.extra.predicted_reward:
        raise RefusedError(
            f"{name}-refused",
            f"{name} needs a reward model: give `model`, a scikit-learn regressor or "
            "classifier, or GivenModel(...) for predictions that are columns already.",
        )
    return needs


def _lacks_only_crossing(estimator: Estimator, loggers: Sequence[str]) -> bool:
    try:
        estimator.needs(loggers, crossed=True)
    except RefusedError:
        return False
    return True


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """Return the name, numbered where the caller gave the same estimator twice."""
    names = [name, *(f"{name}-{k}" for k in range(2, len(taken) + 3))]
    return next(n for n in names if n not in taken)
