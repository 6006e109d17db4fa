"""Which logs help: how sure the answer would be without each of them.

Leaving a logger out changes the mixture, so that every weight changes with it: the rows
are read again, once for each logger.  That is cheap for small logs and done by itself;
for large ones it must be asked for.
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
    """Standard errors of the estimators that pool; infinite where the target is uncovered."""
    view = split.whole
    if not any(m.max(WEIGHT) for m in view.values()) or uncovered(view):
        return dict.fromkeys(ESTIMATORS, math.inf)
    return {name: _error(estimator, split) for name, estimator in ESTIMATORS.items()}


def _error(estimator: Estimator, split: Split) -> float:
    try:
        several = len(split.buckets) > 1
        found = jackknife(estimator, split) if several else estimator.estimate(split.whole)
    except RefusedError:
        return math.inf
    return found.std_error


def errors_without(
    rows: Rows, targets: Sequence[str], buckets: int
) -> dict[str, dict[str, Errors]]:
    """Standard errors by target and by the logger that is left out.

    Args:
        rows: The rows of all loggers.
        targets: Names of the targets.
        buckets: Into how many the rows are split for a jackknife; 1 for none.
    """
    loggers = tuple(rows.counts)
    found: dict[str, dict[str, Errors]] = {name: {} for name in targets}
    if len(loggers) < 2:
        return found
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
        for name, mine in zip(targets, parts, strict=True):
            names = {t: t.bind(name) for t in needs.terms}
            view = [{i: m.select(names) for i, m in part.items()} for part in mine]
            found[name][logger] = errors(Split(view))
    return found
