"""Estimators by name, as tables and the command line show them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from poolwise.estimators.calibrated import Calibrated, SelfNormalised
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.estimators.model import DirectMethod, DoublyRobust
from poolwise.estimators.period import PeriodBalanced, PeriodDoublyRobust

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from poolwise.moments.estimate import Estimator

BY_NAME: Mapping[str, type[Estimator]] = {
    "calibrated": Calibrated,
    "naive": Naive,
    "balanced": Balanced,
    "weighted": Weighted,
    "self-normalised": SelfNormalised,
}
# with a reward model, the default has a column for it
WITH_MODEL: Mapping[str, Callable[[], Estimator]] = {
    **BY_NAME,
    "calibrated": partial(Calibrated, columns=("loggers", "target", "dr")),
    "doubly-robust": DoublyRobust,
    "direct-method": DirectMethod,
    "doubly-robust-naive": partial(DoublyRobust, weights="naive"),
    "doubly-robust-weighted": partial(DoublyRobust, weights="weighted"),
}
OF_PERIODS: Mapping[str, Callable[[], Estimator]] = {
    "period-dr": PeriodDoublyRobust,
    "period-balanced": PeriodBalanced,
}
ALL: Mapping[str, Callable[[], Estimator]] = {**WITH_MODEL, **OF_PERIODS}


def recommend(estimators: Mapping[str, Estimator]) -> str:
    """Return the name of the estimator to rely on: the first of the highest rank; "" of none.

    >>> recommend({"a": Naive(), "b": Calibrated()}), recommend({"a": Naive(), "b": Weighted()})
    ('b', 'b')
    """
    return max(estimators, key=lambda name: estimators[name].rank, default="")


def by_default(*, modelled: bool, periods: bool) -> Mapping[str, Callable[[], Estimator]]:
    """Return the estimators of an evaluation that names none, the recommended one first."""
    usable = WITH_MODEL if modelled else BY_NAME
    of_periods = OF_PERIODS if modelled else {"period-balanced": PeriodBalanced}
    return {**of_periods, **usable} if periods else usable
