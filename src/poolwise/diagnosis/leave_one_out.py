"""Leave one out: standard errors without each logger.

Leaving a logger out changes the mixture and so every weight: the rows are read again, once
per logger.  Small logs do so by default, large ones on request.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from poolwise.errors import RefusedError
from poolwise.estimators.calibrated import Calibrated, uncovered
from poolwise.estimators.ips import Balanced
from poolwise.moments.buckets import Split, jackknife
from poolwise.moments.terms import WEIGHT, Needs, unite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engines.base import Rows
    from poolwise.moments.estimate import Estimator

ESTIMATORS: Mapping[str, Estimator] = {"balanced": Balanced(), "calibrated": Calibrated()}
Errors = dict[str, float]


def errors(split: Split) -> Errors:
    """Return the standard errors of `ESTIMATORS`; infinite if the target is uncovered."""
    view = split.whole
    if not any(m.max(WEIGHT) for m in view.values()) or uncovered(view):
        return dict.fromkeys(ESTIMATORS, math.inf)
    return {name: _error(estimator, split) for name, estimator in ESTIMATORS.items()}


def _error(estimator: Estimator, split: Split) -> float:
    try:
        if len(split.buckets) > 1:
            return jackknife(estimator, split).std_error
        return estimator.estimate(split.whole).std_error
    except RefusedError:
        return math.inf


def errors_without(
    rows: Rows, targets: Sequence[str], buckets: int
) -> dict[str, dict[str, Errors]]:
    """Return standard errors by target and left-out logger.

    Args:
        rows: Rows of all loggers.
        targets: Names of the targets.
        buckets: Number of buckets for the jackknife; 1 for none.
    """
    loggers = tuple(rows.counts)
    by_target: dict[str, dict[str, Errors]] = {name: {} for name in targets}
    if len(loggers) < 2:
        return by_target
    for logger in loggers:
        others = tuple(i for i in loggers if i != logger)
        kinds = [e.needs(others, crossed=True) for e in ESTIMATORS.values()]
        needs = unite([*kinds, Needs(extremes=(WEIGHT,))])
        bound = [needs.bind(name) for name in targets]
        rest = rows.without(logger)
        if buckets < 2:
            parts = [[rest.moments(unite(bound))]] * len(targets)
        else:
            parts = rest.bucketed(bound, buckets)
        for name, split in zip(targets, parts, strict=True):
            names = {t: t.bind(name) for t in needs.terms}
            view = [{i: m.select(names) for i, m in part.items()} for part in split]
            by_target[name][logger] = errors(Split(view))
    return by_target
