"""Left out: standard errors of a target without the rows of one logger."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from poolwise.engines.parallel import KernelRows
from poolwise.errors import RefusedError
from poolwise.estimators.calibrated import Calibrated, uncovered
from poolwise.estimators.ips import Balanced
from poolwise.evaluation.read import split_of
from poolwise.moments.buckets import BUCKETS, Split, jackknife
from poolwise.moments.terms import WEIGHT, Needs, unite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engines.base import Rows
    from poolwise.evaluation.read import OpenLog
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import Moments

LEFT_OUT: Mapping[str, Estimator] = {"balanced": Balanced(), "calibrated": Calibrated()}
Errors = dict[str, float]


def without_each(rows: OpenLog) -> dict[str, dict[str, Errors]]:
    """Return standard errors by target and left-out logger.

    Leaving a logger out changes the mixture and so every weight: the rows are read once more,
    by databases once per logger.
    """
    targets, loggers = rows.request.names, tuple(rows.rows.counts)
    by_target: dict[str, dict[str, Errors]] = {name: {} for name in targets}
    if len(loggers) < 2:
        return by_target
    needs = {logger: _needs([i for i in loggers if i != logger]) for logger in loggers}
    bound = {i: [part.bind(name) for name in targets] for i, part in needs.items()}
    buckets = BUCKETS if rows.request.clustered else 1
    for logger, parts in _moments(rows.rows, bound, buckets).items():
        for name, split in zip(targets, parts, strict=True):
            by_target[name][logger] = errors_of(split_of(split, needs[logger], name))
    return by_target


def _needs(others: Sequence[str]) -> Needs:
    """Return the moments that the errors without a logger need."""
    kinds = [e.needs(others, crossed=True) for e in LEFT_OUT.values()]
    return unite([*kinds, Needs(extremes=(WEIGHT,))])


def _moments(
    rows: Rows, bound: Mapping[str, Sequence[Needs]], buckets: int
) -> dict[str, list[list[dict[str, Moments]]]]:
    """Return the moments of each target and bucket, without each logger."""
    if isinstance(rows, KernelRows):
        return rows.without_each(bound, buckets)
    rest = {logger: rows.without(logger) for logger in bound}
    if buckets > 1:
        return {i: rest[i].bucketed(needs, buckets) for i, needs in bound.items()}
    return {i: [[rest[i].moments(unite(needs))]] * len(needs) for i, needs in bound.items()}


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
