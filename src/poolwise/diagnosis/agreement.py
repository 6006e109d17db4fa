"""Agreement: tests of numbers that theory makes equal.

Each test compares means of the same pass: the mean weight is 1, a logger over the mixture
averages 1, the loggers' own estimates of a target are of one value, two estimators of one
value agree.  Wrong probabilities, drift between the logs, or a logger that was trained on
them break such equalities.  A test that these rows cannot support is left out.
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
    bearable,
    logger_controls,
    many,
)
from poolwise.estimators.ips import Weighted
from poolwise.intervals.student import Interval, check_level
from poolwise.moments.linear import Deviation, Score, by_count, deviation
from poolwise.moments.moments import FloatArray
from poolwise.moments.terms import (
    BALANCED_WEIGHT,
    OVERLAP,
    OVERLAP_REWARD,
    ratio,
    unsupported_weight,
)

if TYPE_CHECKING:
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.moments import Moments, MomentsByLogger

Numbers = Sequence[float] | FloatArray
Estimates = Mapping[str, tuple[float, float]]  # value and variance, by logger
ENOUGH = 30  # rows of one logger below which its own mean proves nothing
ENOUGH_OVERLAP = 50  # effective rows of the overlap policy, likewise
FULL: tuple[Columns, ...] = ("loggers", "target")  # the columns of calibrated


@dataclass(frozen=True)
class Check:
    """A test of an equality.

    Attributes:
        name: Equality that is tested, in words.
        statistic: Distance in standard errors, Q or F.
        p_value: Probability of a larger one if the equality holds.
    """

    name: str
    statistic: float
    p_value: float


def mean_weight(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    """Test that the balanced weights have mean 1."""
    mean = deviation(Score({BALANCED_WEIGHT: 1.0}).over(view), view, buckets)
    return {"mean-weight": Check("mean balanced weight is 1 (z)", mean.z, mean.p_value)}


def column_means(view: MomentsByLogger, buckets: Buckets) -> dict[str, Deviation]:
    """Return the mean of each logger's probability over the mixture's, which should be 1.

    Empty where there are too many loggers to give each a column.
    """
    if many(view):
        return {}
    one = Score({}, 1.0)
    return {
        logger: deviation((column + one).over(view), view, buckets)
        for logger, column in zip(view, logger_controls(view), strict=True)
    }


def columns(means: Mapping[str, Deviation]) -> dict[str, Check]:
    """Test the column furthest from 1; the p-value allows for the number of loggers."""
    if len(means) < 2:
        return {}
    worst = min(means.values(), key=lambda d: d.p_value)
    p_value = min(1.0, len(means) * worst.p_value)
    return {"columns": Check("logger / mixture averages 1 (worst z)", worst.z, p_value)}


def own_columns(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    r"""Test that a logger over the mixture averages 1 or more in the logger's *own* rows.

    $$E_i[\pi_i / \pi_{avg}] = E_{avg}[(\pi_i / \pi_{avg})^2] \ge 1$$

    Swapped columns of two loggers break this, even where their logs are of the same size
    and the means over all rows show nothing.
    """
    *others, last = view
    if not others or many(view):
        return {}
    share = by_count(view)
    scores = {i: Score({ratio(i): 1.0}) for i in others}
    rest = {ratio(i): -share[i] / share[last] for i in others}
    scores[last] = Score(rest, 1 / share[last])
    means = [deviation(scores[i].of(i), view, buckets) for i in view if view[i].count >= ENOUGH]
    if not means:
        return {}
    worst = min(means, key=lambda d: d.z)
    below = worst.p_value / 2 if worst.z < 0 else 1 - worst.p_value / 2
    p_value = min(1.0, len(means) * below)
    return {"own-columns": Check("own column is 1 or more (worst z)", worst.z, p_value)}


def drift(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    r"""Compare rewards of the overlap policy $\propto \min_k \pi_k$ between loggers.

    Its weights are light under every logger, so the test has power where one on the target
    has none.  Self-normalised, by Welch.
    """
    values = {}
    for logger, moments in view.items():
        if _overlap_rows(moments) < ENOUGH_OVERLAP:
            continue
        mean = moments.mean(OVERLAP)
        value = moments.mean(OVERLAP_REWARD) / mean
        score = Score({OVERLAP_REWARD: 1 / mean, OVERLAP: -value / mean}, value)
        values[logger] = (value, score.of(logger).deviation_variance(view, buckets)[0])
    test = _by_welch(view, values)
    return {} if test is None else {"drift": Check("overlap policy by logger (F)", *test)}


def _overlap_rows(moments: Moments) -> float:
    square = moments.mean_square(OVERLAP)
    return moments.count * moments.mean(OVERLAP) ** 2 / square if square > 0 else 0.0


def estimates(view: MomentsByLogger, values: Estimates) -> dict[str, Check]:
    """Compare the loggers' own estimates of the target, by Welch and by Cochran's Q."""
    test = _by_welch(view, values)
    if test is None:
        return {}
    q = cochran(*_scaled(values)[:2])
    return {
        "estimates": Check("target by logger (Welch's F)", *test),
        "estimates-q": Check("target by logger (Cochran's Q)", q.statistic, q.p_value),
    }


def comparable(view: MomentsByLogger, values: Estimates) -> dict[str, tuple[float, float]]:
    """Return estimates with an error, of loggers that play all that the target plays."""
    never = {i: unsupported_weight(i) for i in view}
    crossed = all(m.has(never[i]) for i, m in view.items())
    missing = {i for i in view if crossed and any(m.mean(never[i]) for m in view.values())}
    return {i: v for i, v in _with_error(values).items() if i not in missing}


def typical(values: Estimates, level: float) -> Interval | None:
    """Return the interval of a typical period's value, if loggers are periods that differ."""
    if len(values) < 2:
        return None
    means, spreads, unit = _scaled(values)
    interval = random_effects(means, spreads, level).interval
    return Interval(unit * interval.lower, unit * interval.upper, level)


def _with_error(values: Estimates) -> dict[str, tuple[float, float]]:
    return {i: v for i, v in values.items() if 0 < v[1] < math.inf}


def _scaled(values: Estimates) -> tuple[list[float], list[float], float]:
    """Return values and variances in units of the largest error, and that unit."""
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
    test = welch(means, rows, counts)
    return test.statistic, test.p_value


def hausman(view: MomentsByLogger, buckets: Buckets) -> dict[str, Check]:
    """Test that calibrated and reward-free weighted estimate one value (Hausman, 1978).

    The first rests on the mixture, the second on each row's own propensity: wrong
    probabilities, drift, or a logger trained on these logs pull them apart.  The variance of
    the difference comes from row differences within each logger; it is at least the
    difference of the variances, which pooled divergences know even where the largest own
    weights were not seen.
    """
    if bearable(view, FULL)[0] != FULL:
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


@dataclass(frozen=True)
class Homogeneity:
    """A test of the hypothesis that all logs have the same value.

    Attributes:
        statistic: Cochran's Q, or Welch's F.
        freedom: Degrees of freedom of the numerator.
        freedom_within: Those of the denominator; infinite where variances count as known.
        p_value: Chance of a larger statistic if the values are the same.
        inconsistency: I², the part of the spread that the errors do not explain.
    """

    statistic: float
    freedom: int
    freedom_within: float
    p_value: float
    inconsistency: float


def cochran(values: Numbers, variances: Numbers) -> Homogeneity:
    r"""Cochran's test that independent estimates are of one value.

    $$Q = \sum_i W_i (\hat U_i - \hat U_W)^2, \qquad W_i = 1 / V_i,
      \qquad I^2 = \max(0, (Q - m + 1) / Q)$$

    Against $\chi^2_{m-1}$.  Rejects too often when the variances come from few or
    skewed rows; then use `welch`.  Logs without support have another value and do not
    belong here.

    Args:
        values: Estimate of each log.
        variances: Variance of each estimate (not of one row).

    References:
        Cochran (Biometrics, 1954); Higgins & Thompson (2002) for I².

    Examples:
        >>> test = cochran([1.0, 1.5, 0.8], [0.01, 0.04, 0.0225])
        >>> round(test.statistic, 6), round(test.p_value, 6), round(test.inconsistency, 6)
        (7.95082, 0.018772, 0.748454)
    """
    from scipy.special import chdtrc

    estimates, precisions = _checked(values, variances)
    centre = float((precisions * estimates).sum() / precisions.sum())
    statistic = float((precisions * (estimates - centre) ** 2).sum())
    freedom = len(estimates) - 1
    p_value = float(chdtrc(freedom, statistic))
    return Homogeneity(statistic, freedom, math.inf, p_value, _unexplained(statistic, freedom))


def welch(means: Numbers, variances: Numbers, counts: Sequence[int]) -> Homogeneity:
    r"""Welch's test that means of rows of unequal variance are the same.

    $$F = \frac{A}{1 + 2 (m - 2) L / (m^2 - 1)}, \qquad
      A = \frac{\sum_i W_i (\bar z_i - \bar z_W)^2}{m - 1}, \qquad
      L = \sum_i \frac{(1 - W_i / W)^2}{n_i - 1}$$

    with $W_i = n_i / s_i^2$, against $F$ with $m - 1$ and $(m^2 - 1) / (3 L)$ degrees of
    freedom.  Allows for variances estimated from few rows, not for skewed ones.

    Args:
        means: Mean of the rows of each log.
        variances: Variance of one row of each log.
        counts: Number of rows of each log, two at least.

    References:
        Welch (Biometrika, 1951).

    Examples:
        >>> test = welch([1.0, 1.5, 0.8], [1.0, 2.0, 1.5], [100, 50, 60])
        >>> round(test.statistic, 6), round(test.freedom_within, 4), round(test.p_value, 7)
        (3.838697, 102.6138, 0.0246771)
    """
    from scipy.special import fdtrc

    rows = np.asarray(counts, dtype=np.float64)
    if len(rows) != len(means) or not (rows >= 2).all():
        raise UsageError("Welch's test needs two rows at least of each log")
    estimates, precisions = _checked(means, np.asarray(variances) / rows)
    groups = len(estimates)
    part = precisions / precisions.sum()
    centre = float((part * estimates).sum())
    between = float((precisions * (estimates - centre) ** 2).sum()) / (groups - 1)
    lack = float(((1 - part) ** 2 / (rows - 1)).sum())
    statistic = between / (1 + 2 * (groups - 2) * lack / (groups**2 - 1))
    within = (groups**2 - 1) / (3 * lack) if lack > 0 else math.inf
    p_value = float(fdtrc(groups - 1, min(within, 1e12), statistic))
    unexplained = _unexplained(statistic * (groups - 1), groups - 1)
    return Homogeneity(statistic, groups - 1, within, p_value, unexplained)


@dataclass(frozen=True)
class RandomEffects:
    """The mean of values that differ between logs.

    Attributes:
        value: Estimated mean of the values of all logs that could have been.
        variance: Variance of `value`.
        between: Estimated variance of the values between logs.
        interval: Confidence interval of that mean.
    """

    value: float
    variance: float
    between: float
    interval: Interval


def random_effects(values: Numbers, variances: Numbers, level: float) -> RandomEffects:
    r"""Mean over logs whose values differ, each a draw from a wider population.

    $$\tau^2 = \max\Big(0, \frac{Q - (m - 1)}{\sum_i W_i - \sum_i W_i^2 / \sum_i W_i}\Big),
      \qquad W_i^* = 1 / (V_i + \tau^2)$$

    The value is the mean in shares of $W_i^*$, its variance $1/\sum_i W_i^*$, and the
    interval is Student's with $m - 1$ degrees of freedom, since $\tau^2$ is known from
    $m$ values only: from two logs it is very wide, as it should be.  The logs must be
    independent; the value is that of a typical period, not of any one.

    Args:
        values: Estimate of each log.
        variances: Variance of each estimate (not of one row).
        level: Confidence of the interval.

    References:
        DerSimonian & Laird (1986); Follmann & Proschan (Biometrics, 1999) for Student's.

    Examples:
        >>> test = random_effects([1.0, 1.5, 0.8], [0.01, 0.04, 0.0225], 0.95)
        >>> round(test.value, 6), round(test.between, 6), round(test.interval.lower, 4)
        (1.07153, 0.062586, 0.3471)
    """
    from scipy.special import stdtrit

    estimates, precisions = _checked(values, variances)
    spare = cochran(values, variances).statistic - (len(estimates) - 1)
    part = precisions / precisions.sum()  # squares of precisions may overflow
    scale = precisions.sum() * (1 - float((part**2).sum()))
    # one log may outweigh the rest by more digits than there are: then nothing is between
    between = max(0.0, spare / float(scale)) if scale > 0 else 0.0
    mass = 1 / (1 / precisions + between)
    value, variance = float((mass * estimates).sum() / mass.sum()), 1 / float(mass.sum())
    tail = 1 - (1 - check_level(level)) / 2
    half = float(stdtrit(len(estimates) - 1, tail)) * math.sqrt(variance)
    interval = Interval(value - half, value + half, level)
    return RandomEffects(value, variance, between, interval)


def _checked(values: Numbers, variances: Numbers) -> tuple[FloatArray, FloatArray]:
    """Estimates and precisions; refuses what no test of agreement can use."""
    estimates = np.asarray(values, dtype=np.float64)
    spread = np.asarray(variances, dtype=np.float64)
    if len(estimates) < 2 or len(estimates) != len(spread):
        raise UsageError("agreement takes two logs at least, and one variance for each")
    bad = int((~(np.isfinite(estimates) & (spread > 0) & (spread < math.inf))).sum())
    if bad:
        raise UsageError(
            f"{bad:,} of {len(estimates):,} logs have no finite value with a variance above "
            "0; leave them out of the test"
        )
    return estimates, 1 / spread


def _unexplained(statistic: float, freedom: int) -> float:
    return max(0.0, (statistic - freedom) / statistic) if statistic > 0 else 0.0
