"""Gains of a learned policy over each logger, with bounds that allow for how it was learned.

Where every logger's probability of a row is known, the gain is paired by row; else it is over
the logger's mean reward, and the errors of both add up.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from poolwise.errors import RefusedError
from poolwise.evaluation.compare import compare
from poolwise.evaluation.design import AS_NOW
from poolwise.evaluation.evaluate import evaluate
from poolwise.evaluation.plan import plan
from poolwise.learning.learned import Gain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.evaluation.results import Evaluation
    from poolwise.learning.data import LearningRows
    from poolwise.learning.unseen import UnseenLog
    from poolwise.moments.estimate import Estimate


def paired(unseen: UnseenLog, evaluation: Evaluation) -> list[Gain]:
    """Return the gain over each logger, paired by row, with its one-sided bound."""
    name, _, *loggers = unseen.targets
    return [_gain(unseen, evaluation, name, logger) for logger in loggers]


def _gain(unseen: UnseenLog, evaluation: Evaluation, name: str, logger: str) -> Gain:
    targets = {key: unseen.targets[key] for key in (name, logger)}
    sided = 2 * evaluation.level - 1  # its lower end is a one-sided bound
    try:
        compared = compare(
            unseen.log, targets, baseline=logger, level=sided, model=unseen.model
        )
    except RefusedError:  # the rows show no spread
        return Gain(logger, 0.0, math.inf, -math.inf, shown=False)
    difference = compared.difference(name)
    return Gain(
        logger,
        difference.value,
        difference.std_error,
        difference.interval.lower,
        shown=difference.verdict == "better",
    )


def allowance(parts: int) -> float:
    """Return the factor of errors where the policies of parts were learned from common rows.

    Their errors are correlated, and were measured to be 5% to 20% larger than the errors of
    independent rows; with K parts they count as sqrt(K / (K - 1)) times as large.
    """
    return math.sqrt(parts / (parts - 1)) if parts > 1 else 1.0


def widened(evaluation: Evaluation, name: str, factor: float) -> Evaluation:
    """Return the evaluation with larger errors of the learned policy."""
    learned = evaluation[name]
    estimates = {
        e: replace(estimate, variance=factor**2 * estimate.variance)
        for e, estimate in learned.estimates.items()
    }
    intervals = {
        e: replace(
            interval,
            lower=estimates[e].value - factor * (estimates[e].value - interval.lower),
            upper=estimates[e].value + factor * (interval.upper - estimates[e].value),
        )
        for e, interval in learned.intervals.items()
    }
    wider = replace(learned, estimates=estimates, intervals=intervals)
    return replace(evaluation, targets={**evaluation.targets, name: wider})


def careful(gain: Gain, factor: float, level: float, *, alarmed: bool) -> Gain:
    """Return the gain with larger errors, a bound that skew does not raise, and alarms.

    The bound is at most the normal one, and an alarm forbids a conclusion.
    """
    error = factor * gain.std_error
    skewed = gain.value - factor * (gain.value - gain.lower)
    lower = min(skewed, gain.value - float(stats.norm.ppf(level)) * error)
    shown = gain.shown and lower > 0 and not alarmed
    return replace(gain, std_error=error, lower=lower, shown=shown)


def over_means(
    estimates: Mapping[str, Estimate], data: LearningRows, level: float
) -> list[Gain]:
    """Return gains over the mean rewards of loggers whose other propensities are unknown.

    The errors of both add up, which holds however the two depend on each other.
    """
    learned = next(iter(estimates.values()))
    critical = float(stats.norm.ppf(level))
    gains = []
    for k, logger in enumerate(data.loggers):
        own = data.reward[data.logger == k]
        error = learned.std_error
        error += float(own.std(ddof=1)) / math.sqrt(len(own)) if len(own) > 1 else math.inf
        value = learned.value - float(own.mean()) if len(own) else math.nan
        lower = value - critical * error
        gains.append(Gain(logger, value, error, lower, shown=bool(lower > 0)))
    return gains


def more_rows(unseen: UnseenLog, gains: Sequence[Gain], level: float) -> float | None:
    """Return the new rows that would show gains of the estimated size; None if unknown.

    The interval must shrink by the ratio of the gain to the distance from its bound, and
    `plan` knows how many rows that takes.
    """
    weak = [gain for gain in gains if not gain.shown]
    if not all(-math.inf < gain.lower <= 0 < gain.value for gain in weak):
        return None
    ratios = [gain.value / (gain.value - gain.lower) for gain in weak]
    name, column = next(iter(unseen.targets.items()))
    pooled = unseen.log.crossed or unseen.log.mixture is not None
    estimator = "calibrated" if pooled else "naive"
    now = evaluate(unseen.log, {name: column}, estimator, level=level)
    interval = now[name].intervals[estimator]
    half_width = min(ratios) * (interval.upper - interval.lower) / 2
    try:
        outlook = plan(
            unseen.log,
            {name: column},
            half_width=half_width,
            estimators=[estimator],
            level=level,
        )
    except RefusedError:
        return None
    rows = outlook.option(estimator, AS_NOW).rows
    return rows if np.isfinite(rows) else None
