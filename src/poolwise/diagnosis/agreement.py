"""Agreement: tests of numbers that are equal in theory.

Each test compares means of the same pass: the mean weight is 1, the mean of a logger over
the mixture is 1, the loggers' own estimates of a target have one expectation, and so have
two estimators.  Wrong probabilities, drift between the logs, or a logger that was trained on
them break these equalities.  Tests without enough rows are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import RefusedError, UsageError
from poolwise.estimators.calibrated import (
    Calibrated,
    Columns,
    logger_columns,
    many,
    supported_columns,
)
from poolwise.estimators.ips import Weighted
from poolwise.intervals.student import Interval, check_level, student
from poolwise.log.policy import FloatArray
from poolwise.moments.estimate import Estimate
from poolwise.moments.linear import Deviation, Score, deviation, ratio_score
from poolwise.moments.terms import (
    BALANCED_WEIGHT,
    OVERLAP,
    OVERLAP_REWARD,
    unsupported_weight,
)

if TYPE_CHECKING:
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.moments import MomentsByLogger

Numbers = Sequence[float] | FloatArray
Estimates = Mapping[str, tuple[float, float]]  # value and variance, by logger
ENOUGH = 30  # rows of a logger required to test its own mean
ENOUGH_OVERLAP = 50  # effective sample size of the overlap policy required for the test
FULL: tuple[Columns, ...] = ("loggers", "target")  # columns of calibrated


@dataclass(frozen=True)
class Check:
    """A test of an equality.

    Attributes:
        name: Description of the equality.
        statistic: Distance in standard errors, Q or F.
        p_value: Probability of a larger statistic if the equality holds.
    """

    name: str
    statistic: float
    p_value: float


def mean_weight(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    """Test that the balanced weights have mean 1."""
    mean = deviation(Score({BALANCED_WEIGHT: 1.0}).over(view), view, buckets)
    return {"mean-weight": Check("mean balanced weight is 1 (z)", mean.z, mean.p_value)}


def column_means(view: MomentsByLogger, buckets: Buckets) -> dict[str, Deviation]:
    """Test that the mean of each logger over the mixture is 1.

    Empty if there are too many loggers for a column each.
    """
    if many(view):
        return {}
    return {i: deviation(s.over(view), view, buckets) for i, s in _ratios(view).items()}


def _ratios(view: MomentsByLogger) -> dict[str, Score]:
    """Return the score of each logger over the mixture, which averages 1 over all rows."""
    columns = logger_columns(view)
    return {i: columns[i] + Score({}, 1.0) for i in view}


def columns(means: Mapping[str, Deviation]) -> dict[str, Check]:
    """Return the test of the column furthest from 1, with Bonferroni's correction."""
    if len(means) < 2:
        return {}
    worst = min(means.values(), key=lambda d: d.p_value)
    p_value = min(1.0, len(means) * worst.p_value)
    return {"columns": Check("logger / mixture averages 1 (worst z)", worst.z, p_value)}


def own_columns(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    r"""Test that the mean of a logger over the mixture is 1 or more in its *own* rows.

    $$E_i[\pi_i / \pi_{avg}] = E_{avg}[(\pi_i / \pi_{avg})^2] \ge 1$$

    Swapped columns of two loggers break this, even if their logs have the same size and
    the means over all rows are 1.
    """
    if len(view) < 2 or many(view):
        return {}
    scores = {i: s for i, s in _ratios(view).items() if view[i].count >= ENOUGH}
    means = [deviation(score.of(i), view, buckets) for i, score in scores.items()]
    if not means:
        return {}
    worst = min(means, key=lambda d: d.z)
    below = worst.p_value / 2 if worst.z < 0 else 1 - worst.p_value / 2
    p_value = min(1.0, len(means) * below)
    return {"own-columns": Check("own column is 1 or more (worst z)", worst.z, p_value)}


def drift(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    r"""Test that the overlap policy $\propto \min_k \pi_k$ has one value in all logs.

    Its weights are light under every logger, so the test has more power than one on the
    target.  The estimates are self-normalised, the test is Welch's.
    """
    values = {}
    for logger, moments in view.items():
        if moments.effective(OVERLAP) < ENOUGH_OVERLAP:
            continue
        score = ratio_score(moments, OVERLAP_REWARD, OVERLAP)
        variance, _ = score.of(logger).deviation_variance(view, buckets)
        values[logger] = (score.constant, variance)
    test = _by_welch(view, values)
    return {} if test is None else {"drift": Check("overlap policy by logger (F)", *test)}


def estimates(view: MomentsByLogger, values: Estimates) -> dict[str, Check]:
    """Test that the loggers' own estimates of the target agree, by Welch and by Cochran."""
    test = _by_welch(view, values)
    if test is None:
        return {}
    return {
        "estimates": Check("target by logger (Welch's F)", *test),
        "estimates-q": Check("target by logger (Cochran's Q)", *cochran(*_scaled(values)[:2])),
    }


def comparable(view: MomentsByLogger, values: Estimates) -> dict[str, tuple[float, float]]:
    """Return the estimates with a variance, of loggers that support the target."""
    terms = {i: unsupported_weight(i) for i in view}
    crossed = all(m.has(terms[i]) for i, m in view.items())
    lacking = {i for i in view if crossed and any(m.mean(terms[i]) for m in view.values())}
    return {i: v for i, v in _with_error(values).items() if i not in lacking}


def typical(values: Estimates, level: float) -> Interval | None:
    """Return the random-effects interval of a typical log, e.g. if logs are periods."""
    if len(values) < 2:
        return None
    means, spreads, unit = _scaled(values)
    interval = random_effects(means, spreads, level)
    return Interval(unit * interval.lower, unit * interval.upper, level)


def _with_error(values: Estimates) -> dict[str, tuple[float, float]]:
    return {i: v for i, v in values.items() if 0 < v[1] < math.inf}


def _scaled(values: Estimates) -> tuple[list[float], list[float], float]:
    """Return values and variances in units of the largest standard error, and the unit."""
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
    return welch(means, rows, counts)


def hausman(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    """Test that calibrated and reward-free weighted estimate one value (Hausman, 1978).

    The first divides by the mixture, the second by each row's own propensity: wrong
    probabilities, drift, or a logger trained on these logs make them differ.  The variance
    of the difference comes from the rows of each logger; it is at least the difference of
    the variances, since pooled divergences include large own weights that were not observed.
    """
    if supported_columns(view, FULL)[0] != FULL:
        return {}
    try:
        weighted = Weighted(divergence="reward-free").estimate(view)
    except RefusedError:
        return {}
    calibrated = Calibrated(FULL, guard=False).estimate(view)
    gap = calibrated.linear.plain - weighted.linear.plain
    own, _ = calibrated.linear.plain.deviation_variance(view, buckets)
    test = deviation(
        replace(gap, constant=gap.constant + weighted.value),
        view,
        buckets,
        expected=weighted.value,
        at_least=weighted.variance - own,
    )
    return {"hausman": Check("calibrated = reward-free weighted (z)", test.z, test.p_value)}


def cochran(values: Numbers, variances: Numbers) -> tuple[float, float]:
    r"""Return Q and p-value of Cochran's test that independent estimates agree.

    $$Q = \sum_i W_i (\hat U_i - \hat U_W)^2, \qquad W_i = 1 / V_i$$

    against $\chi^2_{m-1}$.  Rejects too often if the variances come from few or skewed
    rows; then use `welch`.  Logs without support estimate another value and must be left out.

    Args:
        values: Estimate of each log.
        variances: Variance of each estimate (not of one row).

    References:
        Cochran (Biometrics, 1954).

    Examples:
        >>> statistic, p_value = cochran([1.0, 1.5, 0.8], [0.01, 0.04, 0.0225])
        >>> round(statistic, 6), round(p_value, 6)
        (7.95082, 0.018772)
    """
    from scipy.special import chdtrc

    estimates, precisions = _checked(values, variances)
    centre = float((precisions * estimates).sum() / precisions.sum())
    statistic = float((precisions * (estimates - centre) ** 2).sum())
    return statistic, float(chdtrc(len(estimates) - 1, statistic))


def welch(means: Numbers, variances: Numbers, counts: Sequence[int]) -> tuple[float, float]:
    r"""Return F and p-value of Welch's test that means of unequal variance agree.

    $$F = \frac{A}{1 + 2 (m - 2) L / (m^2 - 1)}, \qquad
      A = \frac{\sum_i W_i (\bar z_i - \bar z_W)^2}{m - 1}, \qquad
      L = \sum_i \frac{(1 - W_i / W)^2}{n_i - 1}$$

    with $W_i = n_i / s_i^2$, against $F$ with $m - 1$ and $(m^2 - 1) / (3 L)$ degrees of
    freedom.  Allows for variances estimated from few rows, not for skewed rows.

    Args:
        means: Mean of the rows of each log.
        variances: Variance of one row of each log.
        counts: Number of rows of each log, at least two.

    References:
        Welch (Biometrika, 1951).

    Examples:
        >>> statistic, p_value = welch([1.0, 1.5, 0.8], [1.0, 2.0, 1.5], [100, 50, 60])
        >>> round(statistic, 6), round(p_value, 7)
        (3.838697, 0.0246771)
    """
    from scipy.special import fdtrc

    rows = np.asarray(counts, dtype=np.float64)
    if len(rows) != len(means) or not (rows >= 2).all():
        raise UsageError("Welch's test requires at least two rows of each log")
    estimates, precisions = _checked(means, np.asarray(variances) / rows)
    groups = len(estimates)
    part = precisions / precisions.sum()
    centre = float((part * estimates).sum())
    between = float((precisions * (estimates - centre) ** 2).sum()) / (groups - 1)
    lack = float(((1 - part) ** 2 / (rows - 1)).sum())
    statistic = between / (1 + 2 * (groups - 2) * lack / (groups**2 - 1))
    within = (groups**2 - 1) / (3 * lack) if lack > 0 else math.inf
    return statistic, float(fdtrc(groups - 1, min(within, 1e12), statistic))


def random_effects(values: Numbers, variances: Numbers, level: float) -> Interval:
    r"""Return the interval of the mean over logs whose values differ at random.

    $$\tau^2 = \max\Big(0, \frac{Q - (m - 1)}{\sum_i W_i - \sum_i W_i^2 / \sum_i W_i}\Big),
      \qquad W_i^* = 1 / (V_i + \tau^2)$$

    The centre is the mean with shares $W_i^*$, its variance $1/\sum_i W_i^*$, and the
    interval is Student's with $m - 1$ degrees of freedom, since $\tau^2$ is estimated from
    $m$ values; with two logs it is very wide.  The logs must be independent.

    Args:
        values: Estimate of each log.
        variances: Variance of each estimate (not of one row).
        level: Confidence of the interval.

    References:
        DerSimonian & Laird (1986); Follmann & Proschan (Biometrics, 1999) for Student's.

    Examples:
        >>> interval = random_effects([1.0, 1.5, 0.8], [0.01, 0.04, 0.0225], 0.95)
        >>> round(interval.lower, 4), round(interval.upper, 4)
        (0.3471, 1.7959)
    """
    estimates, precisions = _checked(values, variances)
    freedom = len(estimates) - 1
    part = precisions / precisions.sum()  # squares of precisions may overflow
    scale = precisions.sum() * (1 - float((part**2).sum()))
    # scale is 0 if the precision of one log exceeds the others' by more than rounding
    excess = cochran(values, variances)[0] - freedom
    between = max(0.0, excess / float(scale)) if scale > 0 else 0.0
    mass = 1 / (1 / precisions + between)
    value, variance = float((mass * estimates).sum() / mass.sum()), 1 / float(mass.sum())
    return student(Estimate(value, variance, {}, freedom), check_level(level))


def _checked(values: Numbers, variances: Numbers) -> tuple[FloatArray, FloatArray]:
    """Return estimates and precisions; reject fewer than two logs and unusable numbers."""
    estimates = np.asarray(values, dtype=np.float64)
    spread = np.asarray(variances, dtype=np.float64)
    if len(estimates) < 2 or len(estimates) != len(spread):
        raise UsageError("a test of agreement requires at least two logs, each with a variance")
    unusable = int((~(np.isfinite(estimates) & (spread > 0) & (spread < math.inf))).sum())
    if unusable:
        raise UsageError(
            "a test of agreement requires finite values with positive, finite variances; "
            f"{unusable:,} of {len(estimates):,} logs have none and must be left out"
        )
    return estimates, 1 / spread
