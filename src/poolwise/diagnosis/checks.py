"""Checks: what must hold if the probabilities are right and the logs tell of one world.

Each check compares numbers of the same pass that theory makes equal.  A check that
these rows cannot bear is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from poolwise.diagnosis.agreement import Check, cochran, random_effects, welch
from poolwise.errors import RefusedError
from poolwise.estimators.calibrated import (
    Columns,
    bearable,
    controls_of,
    least_squares,
    logger_controls,
    many,
)
from poolwise.estimators.ips import Weighted
from poolwise.intervals.student import Interval
from poolwise.moments.estimate import by_count
from poolwise.moments.linear import Combination, deviation, mean_of, mean_over, variance
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    OVERLAP,
    OVERLAP_REWARD,
    WEIGHTED_REWARD,
    ratio,
    unsupported_weight,
)

if TYPE_CHECKING:
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.linear import Deviation
    from poolwise.moments.moments import Moments, MomentsByLogger

ENOUGH = 30  # rows of one logger below which a mean of its own proves nothing
ENOUGH_OVERLAP = 50  # effective rows, likewise, of those that all loggers might have written
FULL: tuple[Columns, ...] = ("loggers", "target")  # what calibrated uses if it can
Estimates = Mapping[str, tuple[float, float]]  # value and variance, by logger


def mean_weight(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    """The balanced weights have mean 1."""
    found = deviation(mean_over(view, {BALANCED_WEIGHT: 1.0}), view, buckets)
    return {"mean-weight": Check("mean balanced weight is 1 (z)", found.z, found.p_value)}


def column_means(view: MomentsByLogger, buckets: Buckets) -> dict[str, Deviation]:
    """Mean of each logger's probability over the mixture's, which should be 1.

    Nothing where there are too many loggers to give each a column.
    """
    found: dict[str, Deviation] = {}
    if many(view):
        return found
    for logger, control in zip(view, logger_controls(view), strict=True):
        mean = mean_over(view, control.parts)
        mean = replace(mean, value=mean.value + 1 - control.mean)
        found[logger] = deviation(mean, view, buckets)
    return found


def columns(found: Mapping[str, Deviation]) -> dict[str, Check]:
    """The column furthest from 1; its p-value allows for the number of loggers."""
    if len(found) < 2:
        return {}
    worst = min(found.values(), key=lambda d: d.p_value)
    p_value = min(1.0, len(found) * worst.p_value)
    return {"columns": Check("logger / mixture averages 1 (worst z)", worst.z, p_value)}


def own_columns(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    r"""A logger over the mixture averages 1 or more in the logger's *own* rows.

    $$E_i[\pi_i / \pi_{avg}] = E_{avg}[(\pi_i / \pi_{avg})^2] \ge 1$$

    Columns of two loggers that were swapped break this, even where their logs are of the
    same size and the means over all rows show nothing.
    """
    *others, last = view
    share = by_count(view)
    parts = {i: {ratio(i): 1.0} for i in others}
    parts[last] = {ratio(i): -share[i] / share[last] for i in others}
    found = []
    for logger in view:
        if view[logger].count < ENOUGH or not others or many(view):
            continue
        mean = mean_of(view, logger, parts[logger])
        known = 1 / share[last] if logger == last else 0.0
        found.append(deviation(replace(mean, value=mean.value + known), view, buckets))
    if not found:
        return {}
    worst = min(found, key=lambda d: d.z)
    below = worst.p_value / 2 if worst.z < 0 else 1 - worst.p_value / 2
    p_value = min(1.0, len(found) * below)
    return {"own-columns": Check("own column is 1 or more (worst z)", worst.z, p_value)}


def drift(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    r"""Rewards of the overlap policy $\propto \min_k \pi_k$, logger against logger.

    Its weights are light under every logger, so that the test has power where one on the
    target has none.  Self-normalised, by Welch.
    """
    estimates = {}
    for logger, moments in view.items():
        if _overlap_rows(moments) < ENOUGH_OVERLAP:
            continue
        mean = moments.mean(OVERLAP)
        value = moments.mean(OVERLAP_REWARD) / mean
        parts = {OVERLAP_REWARD: 1 / mean, OVERLAP: -value / mean}
        spread, _ = variance(Combination({logger: parts}, value), view, buckets)
        estimates[logger] = (value, spread)
    found = _by_welch(view, estimates)
    return {} if found is None else {"drift": Check("overlap policy by logger (F)", *found)}


def _overlap_rows(moments: Moments) -> float:
    square = moments.mean_square(OVERLAP)
    return moments.count * moments.mean(OVERLAP) ** 2 / square if square > 0 else 0.0


def estimates(view: MomentsByLogger, values: Estimates) -> dict[str, Check]:
    """Each logger's own estimate of the target: Welch, and Cochran's Q."""
    found = _by_welch(view, values)
    if found is None:
        return {}
    q = cochran(*_scaled(values)[:2])
    return {
        "estimates": Check("target by logger (Welch's F)", *found),
        "estimates-q": Check("target by logger (Cochran's Q)", q.statistic, q.p_value),
    }


def comparable(view: MomentsByLogger, values: Estimates) -> dict[str, tuple[float, float]]:
    """Estimates of loggers that play all that the target plays, and have an error."""
    never = {i: unsupported_weight(i) for i in view}
    crossed = all(m.has(never[i]) for i, m in view.items())
    missing = {i for i in view if crossed and any(m.mean(never[i]) for m in view.values())}
    return {i: v for i, v in _with_error(values).items() if i not in missing}


def typical(values: Estimates, level: float) -> Interval | None:
    """Interval of the value of a typical period, if loggers are periods that differ."""
    if len(values) < 2:
        return None
    means, spreads, unit = _scaled(values)
    found = random_effects(means, spreads, level).interval
    return Interval(unit * found.lower, unit * found.upper, level)


def _with_error(values: Estimates) -> dict[str, tuple[float, float]]:
    return {i: v for i, v in values.items() if 0 < v[1] < math.inf}


def _scaled(values: Estimates) -> tuple[list[float], list[float], float]:
    """Values and variances in units of the largest error, which no square overflows."""
    unit = math.sqrt(max(spread for _, spread in values.values()))
    means = [value / unit for value, _ in values.values()]
    return means, [spread / unit / unit for _, spread in values.values()], unit


def _by_welch(view: MomentsByLogger, values: Estimates) -> tuple[float, float] | None:
    used = {i: v for i, v in _with_error(values).items() if view[i].count > 1}
    if len(used) < 2:
        return None
    counts = [view[i].count for i in used]
    means, spreads, _ = _scaled(used)
    rows = [spread * count for spread, count in zip(spreads, counts, strict=True)]
    found = welch(means, rows, counts)
    return found.statistic, found.p_value


def hausman(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    """Calibrated against reward-free weighted: two estimates of one value.

    The first rests on the mixture, the second on each row's own propensity.  A logger
    that was trained on these logs, wrong probabilities or drift pull them apart.  The
    variance of the difference comes from row differences within each logger; it is at
    least the difference of the variances (Hausman, 1978), which pooled divergences know
    even where the largest own weights were not seen.
    """
    if bearable(view, FULL)[0] != FULL:
        return {}
    try:
        weighted = Weighted(divergence="reward-free").estimate(view)
    except RefusedError:
        return {}
    calibrated = calibration(view)
    gap = difference(calibrated, weighted)
    at_least = weighted.variance - variance(calibrated, view, buckets)[0]
    found = deviation(gap, view, buckets, at_least=at_least)
    return {"hausman": Check("calibrated = reward-free weighted (z)", found.z, found.p_value)}


def calibration(view: MomentsByLogger) -> Combination:
    """The calibrated estimate as a combination of means, its slopes taken as fixed."""
    controls = controls_of(view, FULL)
    slopes, _ = least_squares(view, BALANCED_REWARD, controls, within=False)
    parts = {BALANCED_REWARD: 1.0}
    for slope, control in zip(slopes, controls, strict=True):
        for term, part in control.parts.items():
            parts[term] = parts.get(term, 0.0) - slope * part
    known = sum(s * c.mean for s, c in zip(slopes, controls, strict=True))
    found = mean_over(view, parts)
    return replace(found, value=found.value + known)


def difference(calibrated: Combination, weighted: Estimate) -> Combination:
    """Calibrated less a weighted estimate, row by row; they should be equal."""
    parts = {
        i: {**calibrated.parts[i], WEIGHTED_REWARD: -share}
        for i, share in weighted.shares.items()
    }
    return Combination(parts, calibrated.value, weighted.value)
