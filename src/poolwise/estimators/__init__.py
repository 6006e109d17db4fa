"""Estimators by name, as tables and the command line show them."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from poolwise.estimators.calibrated import Calibrated, SelfNormalised
from poolwise.estimators.clicks import OF_CLICKS
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.estimators.model import DirectMethod, DoublyRobust
from poolwise.estimators.period import PeriodBalanced, PeriodDoublyRobust
from poolwise.estimators.shrink import SHRINK_RULES, Shrink

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
SHRUNK = re.compile(
    rf"(balanced|doubly-robust)-({'|'.join(SHRINK_RULES)})-(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
)


def find_shrunk(name: str) -> Estimator | None:
    """Return the estimator with shrunk weights that a name describes; None for other names.

    >>> find_shrunk("balanced-clip-10"), find_shrunk("balanced")
    (Balanced(shrink=Shrink(rule='clip', bound=10.0)), None)
    """
    match = SHRUNK.fullmatch(name)
    if match is None:
        return None
    rule: Any = match[2]
    kind = Balanced if match[1] == "balanced" else DoublyRobust
    return kind(shrink=Shrink(rule, float(match[3])))


def recommend(estimators: Mapping[str, Estimator]) -> str:
    """Return the name of the estimator to rely on: the first of the highest rank; "" of none.

    >>> recommend({"a": Naive(), "b": Calibrated()}), recommend({"a": Naive(), "b": Weighted()})
    ('b', 'b')
    """
    return max(estimators, key=lambda name: estimators[name].rank, default="")


def by_default(
    *, modelled: bool, periods: bool, clicks: bool = False
) -> Mapping[str, Callable[[], Estimator]]:
    """Return the estimators of an evaluation that names none, the recommended one first."""
    if clicks:
        return OF_CLICKS
    usable = WITH_MODEL if modelled else BY_NAME
    of_periods = OF_PERIODS if modelled else {"period-balanced": PeriodBalanced}
    return {**of_periods, **usable} if periods else usable
