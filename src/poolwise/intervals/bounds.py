"""Bounds: intervals for bounded rows, valid for finite samples or skewed rows.

Student's interval uses the sample variance.  With heavy weights the largest may be missing
from the sample, and the interval then lies below the value.  Empirical Bernstein requires only
a bound on the rows; the likelihood interval follows the skewness of the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from poolwise.errors import UsageError
from poolwise.intervals.student import (
    SIDES,
    Interval,
    Sides,
    bernstein_half_width,
    check_level,
    one_sided,
)
from poolwise.moments.estimate import student_quantile

ROUNDING = 1e-12  # relative to the mean square: a smaller variance is rounding


def _error_of_one_side(level: float, sides: Sides) -> float:
    if sides not in SIDES:
        raise UsageError(f"sides must be 'two', 'lower' or 'upper', got {sides!r}")
    return (1 - check_level(level)) / (2 if sides == "two" else 1)


def empirical_bernstein(
    mean: float, variance: float, rows: int, width: float, level: float, sides: Sides = "two"
) -> Interval:
    r"""Return an interval for the mean of independent rows within a known width.

    $$\bar z \pm \Big(\sqrt{2 V \ln(2/\alpha') / n}
      + \frac{7 (b - a) \ln(2/\alpha')}{3 (n - 1)}\Big)$$

    with $\alpha' = \alpha/2$ for two sides, $\alpha$ for one.  The rows may have different
    means, as balanced rows do.  The width must be known, such as the largest *possible*
    weight times the range of the rewards.  Two to three times as wide as Student's.

    References:
        Maurer & Pontil (COLT 2009).

    Examples:
        >>> interval = empirical_bernstein(0.5, 0.25252525, 100, 1.0, 0.95)
        >>> round(interval.upper - 0.5, 6)
        0.252047
    """
    error = _error_of_one_side(level, sides)
    half = bernstein_half_width(variance, width, rows, 1 - 2 * error)
    return one_sided(Interval(mean - half, mean + half, level), sides)


@dataclass(frozen=True)
class WeightSums:
    r"""The six sums of the Euclidean likelihood.

    Attributes:
        count: Number of rows.
        weight: $\sum w$.
        squared_weight: $\sum w^2$.
        weighted_reward: $\sum w \delta$.
        cross: $\sum w^2 \delta$.
        squared_weighted_reward: $\sum w^2 \delta^2$.
    """

    count: int
    weight: float
    squared_weight: float
    weighted_reward: float
    cross: float
    squared_weighted_reward: float


def euclidean_likelihood(
    sums: WeightSums,
    level: float,
    *,
    weight_range: tuple[float, float] = (0.0, math.inf),
    reward_range: tuple[float, float] = (0.0, 1.0),
    sides: Sides = "two",
) -> Interval:
    r"""Return an interval from six sums that allows for missing large weights.

    $$\min_g \textstyle\sum_j g_j w_j \delta_j \quad \text{with} \quad
      \sum_j g_j = 1, \; \sum_j g_j w_j = 1, \;
      \sum_j (M g_j - 1)^2 \le q + d$$

    over the rows and one ghost row with the worst reward and the smallest or largest possible
    weight, or 1, so that equal rows have a width; $M = n + 1$, $q$ is the quantile of
    $F_{1,n}$ and $d$ the cost of the constraints alone.  Without ghosts it is the interval
    of the estimate regressed on $w - 1$.  Approximate, not valid for every $n$; requires that
    the loggers cover the target; treats rows of several loggers as rows of their mixture.

    References:
        Karampatziakis, Langford & Mineiro (AISTATS 2020), Cressie-Read power -2.

    Examples:
        >>> sums = WeightSums(100, 98.0, 150.0, 40.0, 62.0, 62.0)
        >>> interval = euclidean_likelihood(sums, 0.95, weight_range=(0.0, 10.0))
        >>> round(interval.lower, 6), round(interval.upper, 6)
        (0.256711, 0.577576)
    """
    worst, best = reward_range
    lightest, heaviest = weight_range
    if not (-math.inf < worst < best < math.inf and 0 <= lightest <= 1 <= heaviest):
        raise UsageError(
            "the likelihood requires a finite `reward_range` and a `weight_range` around 1, "
            f"got {reward_range} and {weight_range}"
        )
    error = _error_of_one_side(level, sides)
    if sums.count < 1:
        return Interval(worst, best, level)
    quantile = student_quantile(max(1 - error, 0.5), sums.count) ** 2  # of F(1, n)
    flipped = replace(sums, weighted_reward=-sums.weighted_reward, cross=-sums.cross)
    lower = max(_least_value(sums, weight_range, worst, quantile), worst)
    upper = min(-_least_value(flipped, weight_range, -best, quantile), best)
    if upper - lower < math.sqrt(ROUNDING) * (best - worst):  # no freedom left
        lower, upper = worst, best
    lower, upper = worst if sides == "upper" else lower, best if sides == "lower" else upper
    return Interval(lower, upper, level)


def _least_value(
    sums: WeightSums, weight_range: tuple[float, float], worst: float, quantile: float
) -> float:
    """Return the least value over the ghosts; the worst reward if no weighting is feasible."""
    ghosts = [_with_ghost(sums, weight, worst) for weight in (*weight_range, 1.0)]
    cost = ghosts[1 if sums.weight < sums.count else 0][2]
    budget = cost + quantile / (sums.count + 1)
    ends = [
        centre - math.sqrt(residual * (budget - own))
        for centre, residual, own in ghosts
        if own <= budget < math.inf
    ]
    return min(ends, default=worst)


def _with_ghost(sums: WeightSums, ghost: float, worst: float) -> tuple[float, float, float]:
    r"""Return centre, residual variance and cost of the constraints with one ghost row.

    In terms of $u = w(\delta - \delta_{worst})$, which is 0 for the ghost.
    """
    rows = sums.count + 1
    excess = sums.weighted_reward - worst * sums.weight
    cross = sums.cross - worst * sums.squared_weight
    square = sums.squared_weighted_reward - worst * (sums.cross + cross)
    size = sums.squared_weighted_reward + worst**2 * sums.squared_weight  # for rounding
    if math.isinf(ghost):
        residual = square - excess**2 / sums.count
        return worst + excess / sums.count, _cut(residual, size) / rows, 1 / sums.count
    mean, mean_excess = (sums.weight + ghost) / rows, excess / rows
    mean_square = (sums.squared_weight + ghost**2) / rows
    spread = _cut(mean_square - mean**2, mean_square)
    slope = (cross / rows - mean * mean_excess) / spread if spread else 0.0
    gap = 1 - mean if abs(1 - mean) > ROUNDING else 0.0
    cost = gap**2 / spread if spread else (math.inf if gap else 0.0)
    residual = square / rows - mean_excess**2 - slope**2 * spread
    return worst + mean_excess + gap * slope, _cut(residual, size / rows), cost


def _cut(difference: float, size: float) -> float:
    """Return a difference of squares, or 0 if it is rounding."""
    return difference if difference > ROUNDING * size else 0.0
