"""Agreement: whether several logs tell of one value.

Each log gives its own estimate of the same quantity.  If contexts or rewards drifted
between the logs, the estimates differ by more than their errors, and a pooled estimate
is of a mixture that nobody asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poolwise.errors import UsageError
from poolwise.intervals.student import Interval, check_level
from poolwise.moments.moments import FloatArray

Numbers = Sequence[float] | FloatArray


@dataclass(frozen=True)
class Check:
    """A test of something that must hold if all is well.

    Attributes:
        name: What is compared.
        statistic: What is tested: a distance in standard errors, Q or F.
        p_value: Chance of a larger one if all is well.
    """

    name: str
    statistic: float
    p_value: float


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
        >>> found = cochran([1.0, 1.5, 0.8], [0.01, 0.04, 0.0225])
        >>> round(found.statistic, 6), round(found.p_value, 6), round(found.inconsistency, 6)
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
        >>> found = welch([1.0, 1.5, 0.8], [1.0, 2.0, 1.5], [100, 50, 60])
        >>> round(found.statistic, 6), round(found.freedom_within, 4), round(found.p_value, 7)
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
        >>> found = random_effects([1.0, 1.5, 0.8], [0.01, 0.04, 0.0225], 0.95)
        >>> round(found.value, 6), round(found.between, 6), round(found.interval.lower, 4)
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


@dataclass(frozen=True)
class Hausman:
    """How far two estimates of one value are apart, in standard errors of the difference."""

    z: float
    p_value: float


def hausman(left: float, right: float, variance: float) -> Hausman:
    r"""Hausman's test that two estimates from the same rows are of one value.

    $$z = (\hat U_1 - \hat U_2) / \sqrt{Var(\hat U_1 - \hat U_2)}$$

    The variance is that of the *difference*, from row differences within each logger:
    the estimates share their rows, so the sum of their variances is far too large.
    Without variance any difference is infinitely many errors away.

    References:
        Hausman (Econometrica, 1978).

    Examples:
        >>> found = hausman(0.60, 0.57, 0.0001)
        >>> round(found.z, 6), round(found.p_value, 6)
        (3.0, 0.0027)
    """
    from scipy.special import ndtr

    gap = left - right
    if not (math.isfinite(gap) and variance >= 0):
        raise UsageError("a Hausman test needs finite estimates and a variance of 0 or more")
    if variance == 0:
        z = math.copysign(math.inf, gap) if gap else 0.0
    else:
        z = gap / math.sqrt(variance)
    return Hausman(z, 2 * float(ndtr(-abs(z))))


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
