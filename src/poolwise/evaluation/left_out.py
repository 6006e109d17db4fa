"""Left out: standard errors of a target without the rows of one logger."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from poolwise.errors import RefusedError
from poolwise.estimators.calibrated import Calibrated, uncovered
from poolwise.estimators.ips import Balanced
from poolwise.evaluation.read import split_of
from poolwise.moments.buckets import BUCKETS, Split, jackknife
from poolwise.moments.terms import WEIGHT, Needs, unite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.evaluation.read import OpenLog
    from poolwise.moments.estimate import Estimator

LEFT_OUT: Mapping[str, Estimator] = {"balanced": Balanced(), "calibrated": Calibrated()}
Errors = dict[str, float]


def without_each(rows: OpenLog) -> dict[str, dict[str, Errors]]:
    """Return standard errors by target and left-out logger.

    Leaving a logger out changes the mixture and so every weight: the rows are read again,
    once per logger.
    """
    targets, loggers = rows.request.names, tuple(rows.rows.counts)
    by_target: dict[str, dict[str, Errors]] = {name: {} for name in targets}
    for logger in loggers if len(loggers) > 1 else ():
        others = tuple(i for i in loggers if i != logger)
        kinds = [e.needs(others, crossed=True) for e in LEFT_OUT.values()]
        needs = unite([*kinds, Needs(extremes=(WEIGHT,))])
        bound = [needs.bind(name) for name in targets]
        rest = rows.rows.without(logger)
        if rows.request.clustered:
            parts = rest.bucketed(bound, BUCKETS)
        else:
            parts = [[rest.moments(unite(bound))]] * len(targets)
        for name, buckets in zip(targets, parts, strict=True):
            by_target[name][logger] = errors_of(split_of(buckets, needs, name))
    return by_target


def errors_of(split: Split) -> Errors:
    """Return the standard errors of `LEFT_OUT`; infinite if the target is uncovered."""
    errors = dict.fromkeys(LEFT_OUT, math.inf)
    if not any(m.max(WEIGHT) for m in split.whole.values()) or uncovered(split.whole):
        return errors
    for name, estimator in LEFT_OUT.items():
        with suppress(RefusedError):
            lone = len(split.buckets) == 1
            estimate = estimator.estimate(split.whole) if lone else jackknife(estimator, split)
            errors[name] = estimate.std_error
    return errors
