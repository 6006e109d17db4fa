r"""Skew-score interval: the default, which holds with few, rare and heavy rewards.

Student's interval is symmetric, but a weighted mean of few rows is skewed: it misses the
value more often on the side of the skew.  Here the limit on the side of the skew is a score
limit, for which the variance grows with the hypothesised value (as Wilson's does for a
proportion); the other is Hall's cubic transformation.  The variance is raised if the known
means of weights show that heavy rows are missing.  Two guards widen the side of the skew:
one if few rewards differ from 0, one if rewards themselves have heavy tails.  Both vanish
in large logs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from poolwise.estimators.calibrated import Calibrated, Columns, many
from poolwise.intervals.simultaneous import far_multiple, near_multiple
from poolwise.intervals.student import (
    BOUNDED,
    Interval,
    clip_interval,
    one_sided,
    student,
    student_interval,
    tail_probability,
)
from poolwise.moments.estimate import student_quantile
from poolwise.moments.linear import Score
from poolwise.moments.shape import (
    Shape,
    ShapeLine,
    cube,
    estimate_powers,
    find_weight,
    kurtosis_freedom,
    measure_shape,
)
from poolwise.moments.tallies import LARGEST, NONZERO
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    PERIOD_RESIDUAL,
    PERIOD_REWARD,
    PERIOD_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    ratio,
)
from poolwise.moments.units import centre_units, find_pull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.errors import Finding
    from poolwise.intervals.student import Limits, Sides
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.linear import Linear
    from poolwise.moments.pool import Pool
    from poolwise.moments.shape import Powers
    from poolwise.types import FloatArray

GHOSTS = 2.0  # rewarded rows added, with the weights of all rows, where rewards are rare
LIGHT, HEAVY = 5.0, 15.0  # kurtosis of the rewards from which, and at which, they are heavy
KEPT = 100  # levels whose distances are kept, for the differences of many targets
STEPS, CLOSE, FURTHEST = 60, 1e-13, 50  # of the search for the limits of a ratio


@dataclass(frozen=True)
class Reach:
    """Distances from an estimate to its limits."""

    below: float
    above: float


Reaching = Callable[[float], Reach]  # from the probability outside each limit


def measure_reach(
    estimate: Estimate, shape: Shape, powers: Powers | None, alpha: float
) -> Reach:
    """Return the distances to the two limits, each of which errs with probability alpha."""
    plain = estimate.variance / estimate.linear.inflation
    heavy = _heaviness(powers) if powers else 0.0
    freedom = float(kurtosis_freedom(shape.skewness, shape.noise, estimate.freedom, heavy))
    normal = student_quantile(1 - alpha, math.inf)
    student = student_quantile(1 - alpha, freedom)
    skew = abs(shape.skewness)
    near = float(near_multiple(skew, student))
    if estimate.linear.adapted:  # shares that fall with the rewards lower the estimate
        near = max(near, student)
    far = _far_guarded(skew, student, normal, plain, heavy, powers)
    error = math.sqrt(estimate.variance * shape.rise)
    below, above = (near, far) if shape.skewness >= 0 else (far, near)
    return Reach(below * error, above * error)


def _far_guarded(
    skew: float,
    student: float,
    normal: float,
    plain: float,
    heavy: float,
    powers: Powers | None,
) -> float:
    """Return the limit on the side of the skew, widened by the two guards."""
    if powers is None:
        return float(far_multiple(skew, student, normal))
    largest = float(powers.weighted[LARGEST]) / powers.rows / math.sqrt(plain) if heavy else 0.0
    wider = 1 + heavy * largest**2  # one more row like the largest
    skew = (skew + heavy * largest**3) / wider**1.5
    spread, tilt = _ghosts(powers)
    rare = math.sqrt(spread) * float(
        far_multiple(skew * tilt / math.sqrt(spread), student, normal)
    )
    return max(float(far_multiple(skew, student, normal)), rare) * math.sqrt(wider)


def _heaviness(powers: Powers) -> float:
    """Return how heavy the tails of the rewards are: 0 for clicks, 1 for revenues."""
    rewarded, _, second, _, fourth, _ = powers.reward
    with np.errstate(all="ignore"):
        kurtosis = float(rewarded * fourth / second**2)
    if not math.isfinite(kurtosis):  # no reward, or powers out of range
        return 0.0
    return min(max((kurtosis - LIGHT) / (HEAVY - LIGHT), 0.0), 1.0)


def _ghosts(powers: Powers) -> tuple[float, float]:
    """Return the factors by which ghost rewards raise the variance and the skewness.

    They have the rewards that were seen and the weights of all rows, rewarded or not.
    """
    rewarded, seen = powers.reward[NONZERO], powers.weighted[1:4]
    with np.errstate(all="ignore"):
        more = GHOSTS * powers.reward[1:4] / rewarded * powers.weight[1:4] / powers.rows
        rise = (seen + more) / seen
        spread, tilt = map(float, rise[1:] / rise[:-1])
    if not math.isfinite(spread + tilt):  # no reward, or powers out of range
        return 1.0, 1.0
    return max(1.0, spread), max(1.0, tilt)


def without_rewards(powers: Powers, limits: Limits, level: float, sides: Sides) -> Interval:
    """Return the interval if no reward was seen and the least possible one is 0.

    Rows of one cluster count once: `limits` has the number of independent ones.
    """
    largest = limits.reward_range[1] if limits.reward_range else math.inf
    normal = student_quantile(1 - tail_probability(level, sides), math.inf)
    second, third = map(float, powers.weight[2:4])
    upper = normal**2 * third / second * largest / limits.rows if second > 0 else largest
    return one_sided(Interval(0.0, min(upper, largest), level), sides)


def interval_needs(needs: Needs, crossed: Sequence[str] = ()) -> Needs:
    """Return the slices and powers behind the estimators with these needs.

    Args:
        needs: Needs of the estimators.
        crossed: Loggers with a probability of every row.
    """
    terms = set(needs.scattered)
    weights = {t: w for t in needs.scattered if (w := find_weight(t)) is not None}
    slices = terms | set(weights.values())
    if BALANCED_REWARD in terms and not many(crossed):
        slices |= set(map(ratio, crossed[:-1]))
    if crossed and WEIGHTED_REWARD in weights:  # one pair of guards is enough
        del weights[WEIGHTED_REWARD]
        weights[BALANCED_REWARD] = BALANCED_WEIGHT
    return Needs(
        means=tuple(map(cube, weights.values())),
        groups=tuple((w,) for w in weights.values()),
        slices=tuple(slices),
        powers=(REWARD, *weights) if weights else (),
    )


def auto_interval(
    estimate: Estimate, pool: Pool, level: float, limits: Limits, sides: Sides = "two"
) -> tuple[Interval, tuple[Finding, ...]]:
    """Return the skew-score interval within the range of the rewards.

    Student's where the pass has no slices; one from `limits` if the rows do not vary.
    """
    reach = skewed_reach(estimate, pool)
    if reach is None:
        powers = estimate_powers(estimate.linear, pool)
        return shaped_interval(estimate, None, powers, level, limits, sides)
    return _reaching(estimate, reach(tail_probability(level, sides)), level, limits, sides), ()


def skewed_reach(estimate: Estimate, pool: Pool) -> Reaching | None:
    """Return the distances to the skew-score limits; None without slices or spread."""
    if estimate.decisive is not None:
        apart = estimate.decisive
        return lambda alpha: Reach(*apart.distances(alpha))
    linear = estimate.linear
    varies = 0 < estimate.variance < math.inf
    strata = centre_units(linear, pool) if varies else None
    if strata is None:
        return None
    columns, within = known_columns(linear, pool)
    fitted = linear.fit is not None
    pull = find_pull(columns, pool, within=within, fitted=fitted)
    shape, powers = measure_shape(strata, pull), estimate_powers(linear, pool)

    def reach(alpha: float) -> Reach:
        of_ratio = None
        if linear.ratio is not None:
            top, bottom = (Score({t: 1.0}).over(pool) for t in linear.ratio)
            of_ratio = reach_ratio(estimate, top, bottom, pool, pull, alpha)
        return of_ratio or measure_reach(estimate, shape, powers, alpha)

    return reach


def reaching(estimate: Estimate, pool: Pool, limits: Limits) -> Reaching:
    """Return the distances from an estimate to the limits of `auto_interval`, at any level."""
    skewed = skewed_reach(estimate, pool)
    powers = estimate_powers(estimate.linear, pool)

    @lru_cache(KEPT)
    def reach(alpha: float) -> Reach:
        if skewed is not None:
            return skewed(alpha)
        interval, _ = shaped_interval(estimate, None, powers, 1 - 2 * alpha, limits)
        return Reach(estimate.value - interval.lower, interval.upper - estimate.value)

    return reach


def shaped_interval(
    estimate: Estimate,
    shape: Shape | None,
    powers: Powers | None,
    level: float,
    limits: Limits,
    sides: Sides = "two",
) -> tuple[Interval, tuple[Finding, ...]]:
    """Return the skew-score interval of an estimate of this shape, Student's of no shape."""
    if not 0 < estimate.variance < math.inf:
        lowest = limits.reward_range[0] if limits.reward_range else math.nan
        if powers and powers.own and not powers.reward[NONZERO] and lowest == 0:
            return without_rewards(powers, limits, level, sides), (BOUNDED,)
        return student_interval(estimate, level, limits, sides)
    if shape is None:
        return student(estimate, level, sides), ()
    reach = measure_reach(estimate, shape, powers, tail_probability(level, sides))
    return _reaching(estimate, reach, level, limits, sides), ()


def _reaching(
    estimate: Estimate, reach: Reach, level: float, limits: Limits, sides: Sides
) -> Interval:
    """Return the interval with these distances, within the range of the rewards."""
    lower, upper = estimate.value - reach.below, estimate.value + reach.above
    interval = clip_interval(Interval(lower, upper, level), limits.reward_range)
    return one_sided(interval, sides)


def reach_ratio(
    estimate: Estimate,
    top: Linear,
    bottom: Linear,
    pool: Pool,
    pull: FloatArray | float,
    alpha: float,
) -> Reach | None:
    """Return the distances to the limits of a ratio; None if one of them is unbounded.

    A value u is in the interval if that of the mean of "above - u below" contains 0
    (Fieller), so that the error of the denominator counts at the limit and not at the
    estimate.

    Args:
        estimate: The ratio, linearised.
        top: What is divided.
        bottom: What it is divided by, positive.
        pool: Moments of the rows.
        pull: What each unit's square adds to the variance, from `find_pull`.
        alpha: Probability outside each limit.
    """
    scored = top - bottom * estimate.value
    units, slopes = centre_units(scored, pool), centre_units(bottom, pool)
    line = ShapeLine(units, slopes, pull) if units and slopes else None
    powers = estimate_powers(top, pool)
    mean = bottom.value(pool)
    flat, _ = estimate.linear.plain.variance(pool)
    above, below = (linear.variance(pool)[0] for linear in (top, bottom))
    unit = math.sqrt(above / below) if above > 0 and below > 0 else 1.0
    slope = ((top - bottom * unit).variance(pool)[0] - above) / unit - below * unit

    def excess(side: int, distance: float) -> float:
        """Distance of 0 from the limit, at a value so far from the estimate."""
        u = estimate.value + side * distance
        variance = above + u * (slope + u * below)
        if not variance > 0:
            return math.inf
        at_value = replace(estimate, variance=variance * estimate.variance / flat)
        shape = Shape() if line is None else line.shape(side * distance)
        reach = measure_reach(at_value, shape, powers, alpha)
        return mean * distance - (reach.below if side < 0 else reach.above)

    start = 2 * estimate.std_error
    reach = Reach(*(root(partial(excess, side), start) for side in (-1, 1)))
    return reach if math.isfinite(reach.below + reach.above) else None


def root(function: Callable[[float], float], start: float) -> float:
    """Return where an increasing function, negative at 0, crosses 0; infinity if nowhere.

    False position after Illinois, within an interval that grows from `start`: an end that
    stays in place for a second step counts half.
    """
    left, right, middle, last = 0.0, start, start, 0.0
    below, above = function(left), function(right)
    while above <= 0:
        left, below, right = right, above, 2 * right
        if right > FURTHEST * start:
            return math.inf
        above = function(right)
    for _ in range(STEPS):
        middle = (left * above - right * below) / (above - below)
        value = function(middle)
        if abs(value) <= CLOSE * start or right - left <= CLOSE * start:
            return middle
        half = 0.5 if value * last > 0 else 1.0
        if value < 0:
            left, below, above = middle, value, above * half
        else:
            right, above, below = middle, value, below * half
        last = value
    return middle


def known_columns(linear: Linear, pool: Pool) -> tuple[tuple[Score, ...], bool]:
    """Return the columns with known means, and a flag for centring them by logger.

    They are those of the regression behind an estimate, or those that calibrated would
    use; for weights against the row's own logger or its period, that weight.
    """
    if linear.fit is not None:
        return linear.fit.columns, linear.fit.within
    if linear.unknown_means:
        return (), True
    terms = {t for parts in linear.parts.values() for t in parts}
    if BALANCED_REWARD in terms:
        first = next(iter(pool.values()))
        crossed = sum(ratio(i) in first.slices for i in pool.loggers) >= len(pool) - 1
        wanted: tuple[Columns, ...] = ("loggers", "target") if crossed else ("target",)
        columns, within, _ = Calibrated(wanted, guard=False).controls(pool)
        return tuple(columns), within
    if WEIGHTED_REWARD in terms:
        return (Score({WEIGHT: 1.0}, -1.0),), True
    if terms & {PERIOD_REWARD, PERIOD_RESIDUAL}:
        return (Score({PERIOD_WEIGHT: 1.0}, -1.0),), True
    return (), True
