"""Simultaneous: intervals and p-values of many candidates, valid together.

The best of twenty estimates is biased by selection, which its own interval ignores.
Simultaneous intervals cover all candidates together, and so the selected one.  Limits and
adjusted p-values come from one distribution, that of the largest |Z| (single-step max-T), so
an interval excludes 0 if and only if its adjusted p-value is below 1 - level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError
from poolwise.intervals.student import check_level
from poolwise.moments.shape import kurtosis_freedom

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolwise.intervals.skew import Reaching
    from poolwise.types import FloatArray

    Sides = tuple[Reaching, Reaching]  # of a value and its baseline

DRAWN_NUMBERS = 2_000_000  # numbers per batch of draws: 16 MB
EIGENVALUE_ROUNDING = 1e-10  # relative to the largest: a smaller eigenvalue is rounding
QUANTILES = 1_000  # of the drawn directions; they replace them
FLAT = 1e-12  # smaller skewness is none
SMALLEST_TAIL = 1e-15  # probability outside a limit; 1 less a smaller one is 1
HALVINGS = 50  # of the search for a critical value
LARGEST_SCORE, BISECTIONS, SECANTS = 37.0, 16, 5  # of the inverse of skewed limits


@dataclass(frozen=True, eq=False)
class MaxT:
    r"""Distribution of $\max_k |Z_k|$, with $Z \sim N(0, R)$ and $R$ a correlation.

    Directions are drawn and the length is integrated,
    $P(\max_k |Z_k| > c) = E[1 - F_{\chi^2_d}(c^2 / \max_k |Z_k / \lVert Z \rVert|^2)]$, which
    is exact for one candidate.  It is a normal distribution, and so too narrow for few or
    skewed rows; `student_multiples` and `skew_multiples` allow for these.

    Attributes:
        candidates: Number of candidates with variance.
        rank: Dimension d of the directions.
        furthest: Quantiles of the largest absolute coordinate of a direction.

    References:
        Hothorn, Bretz & Westfall (2008), simultaneous inference.
    """

    candidates: int
    rank: int
    furthest: FloatArray

    def p_values(self, scores: FloatArray) -> FloatArray:
        """Return the probability that the largest |Z| exceeds each score.

        It lies between that of one candidate and that of independent ones (Šidák).
        """
        from scipy.special import chdtrc, ndtr, xlog1py

        single = 2 * ndtr(-scores)
        if self.candidates <= 1 or self.rank <= 1:
            return np.asarray(single)
        drawn = [chdtrc(self.rank, (score / self.furthest) ** 2).mean() for score in scores]
        most = -np.expm1(xlog1py(self.candidates, -single))
        return np.asarray(np.clip(drawn, single, most))

    def critical(self, level: float) -> float:
        """Return the score that the largest |Z| exceeds with probability 1 - level."""
        from scipy.optimize import brentq
        from scipy.special import ndtri

        def excess(score: float) -> float:
            return 1 - level - float(self.p_values(np.array([score]))[0])

        single = float(ndtri((1 + check_level(level)) / 2))
        widest = float(ndtri((1 + level ** (1 / max(1, self.candidates))) / 2))
        if excess(single) >= 0:
            return single
        return float(brentq(excess, single, widest)) if excess(widest) > 0 else widest


ALONE = MaxT(1, 1, np.ones(1))  # one candidate: the normal distribution


def max_t(factor: FloatArray, rng: np.random.Generator, draws: int = 200_000) -> MaxT:
    """Return the distribution of the largest of several correlated |Z|.

    Args:
        factor: Matrix A with A A' the correlation; see `factor_correlation`.
        rng: Generator of the draws; the same seed gives the same numbers.
        draws: Number of directions; 200,000 give a critical value a standard error of at
            most 0.003.

    Examples:
        >>> independent = factor_correlation(np.eye(2))  # Šidák is exact: the quantile at √0.95
        >>> round(max_t(independent, np.random.default_rng(1)).critical(0.95), 2)
        2.24
    """
    if draws < 1:
        raise UsageError(f"draws must be positive, got {draws}")
    candidates, rank = factor.shape
    if candidates <= 1 or rank <= 1:
        return MaxT(candidates, rank, np.ones(1))
    furthest, size = np.empty(draws), max(1, DRAWN_NUMBERS // candidates)
    for start in range(0, draws, size):
        normal = rng.standard_normal((min(size, draws - start), rank))
        length = np.linalg.norm(normal, axis=1)
        furthest[start : start + size] = np.abs(normal @ factor.T).max(axis=1) / length
    middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return MaxT(candidates, rank, np.quantile(furthest, middles))


def factor_correlation(covariance: FloatArray) -> FloatArray:
    """Return A, of full column rank, with A A' the correlation of candidates that vary.

    Args:
        covariance: Covariance of the estimates, shape (k, k); may be singular.
    """
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
        raise UsageError(f"covariance must be square, got shape {covariance.shape}")
    if not np.isfinite(covariance).all() or (np.diag(covariance) < 0).any():
        raise UsageError("covariance must have finite entries and no negative variance")
    errors = np.sqrt(np.diag(covariance))
    varies = errors > 0
    correlation = covariance[np.ix_(varies, varies)] / np.outer(errors[varies], errors[varies])
    if not len(correlation):
        return np.zeros((0, 0))
    values, vectors = np.linalg.eigh(correlation)
    large = values > EIGENVALUE_ROUNDING * values[-1]
    factor: FloatArray = vectors[:, large] * np.sqrt(values[large])
    return factor


def least_reaches(sides: Sequence[Sides], critical: float) -> FloatArray:
    """Return the distances that limits of differences have at least, shape (2, c) or (2, 1).

    A value is the baseline and the difference: limits of the difference that are nearer than
    those of the value reach further than those of the baseline would contradict the value.

    Args:
        sides: Distances of the own limits of value and baseline, of each difference.
        critical: Normal critical value of the limits.
    """
    least = [_least_reach(pair, critical) for pair in sides]
    return np.array(least or [(0.0, 0.0)]).T


def _least_reach(sides: Sides, critical: float) -> tuple[float, float]:
    """Return the least distances of the limits below and above one difference."""
    alpha = max(SMALLEST_TAIL, tail_above(critical))
    value, baseline = (reach(alpha) for reach in sides)
    if math.inf in {baseline.below, baseline.above}:  # nothing is known of the baseline
        return 0.0, 0.0
    below = max(value.below - baseline.below, baseline.above - value.above, 0.0)
    above = max(value.above - baseline.above, baseline.below - value.below, 0.0)
    return below, above


def least_scores(sides: Sequence[Sides], values: FloatArray, scores: FloatArray) -> FloatArray:
    """Return scores that are not above those which `least_reaches` allow."""
    lowered = scores.copy()
    for k, pair in enumerate(sides):
        value, side = abs(values[k]), 0 if values[k] > 0 else 1
        low, high = 0.0, float(scores[k])
        if _least_reach(pair, high)[side] < value:
            continue
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            excluded = _least_reach(pair, middle)[side] < value
            low, high = (middle, high) if excluded else (low, middle)
        lowered[k] = low
    return lowered


def tail_above(critical: float) -> float:
    """Return the probability that a normal number is above a critical value."""
    from scipy.special import ndtr

    return float(ndtr(-critical))


def score_at_zero(distances: Callable[[float], tuple[float, float]], value: float) -> float:
    """Return the critical value at which the interval around a value ends at 0.

    Args:
        distances: Distances to the limits, from the probability outside each.
        value: The value.
    """
    side = 0 if value > 0 else 1
    low, high = 0.0, LARGEST_SCORE
    if distances(tail_above(low))[side] >= abs(value):
        return 0.0
    if distances(tail_above(high))[side] < abs(value):
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        inside = distances(tail_above(middle))[side] < abs(value)
        low, high = (middle, high) if inside else (low, middle)
    return low


def student_multiples(critical: FloatArray | float, freedom: FloatArray) -> FloatArray:
    """Return Student's quantiles with the tail probability of a normal critical value."""
    from scipy.special import ndtr, stdtrit

    finite = np.isfinite(freedom)
    quantiles = stdtrit(np.where(finite, freedom, 1.0), ndtr(-np.asarray(critical)))
    return np.where(finite, -quantiles, critical)


@dataclass(frozen=True, eq=False)
class DifferenceShape:
    """Shape of the distribution of several differences.

    Rows add positive and negative numbers to a difference.  If most rewarded rows happen to
    have one sign, the difference is far from 0 and skewed away from 0, so the limit towards 0
    must not be nearer than Student's.  And rewarded rows may show no skewness where the
    weights of all rows have it.

    Attributes:
        skewness: Skewness of each difference.
        noise: Variance of each estimated variance, over its square.
        of_weights: Skewness of the same difference if every reward were 1, or -1 where rewards
            are costs.
    """

    skewness: FloatArray
    noise: FloatArray
    of_weights: FloatArray | float = 0.0

    @property
    def sides(self) -> tuple[FloatArray, FloatArray]:
        """Skewness towards the side below and above, at least 0."""
        below, above = (
            np.maximum(np.maximum(sign * self.skewness, sign * self.of_weights), 0.0)
            for sign in (-1.0, 1.0)
        )
        return below, above

    def freedom(self, most: FloatArray) -> FloatArray:
        """Return the degrees of freedom that the kurtosis leaves."""
        return kurtosis_freedom(self.skewness, self.noise, most)


SYMMETRIC = DifferenceShape(np.zeros(()), np.zeros(()))  # whose limits are Student's


def skew_multiples(
    shape: DifferenceShape, freedom: FloatArray, critical: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """Return the standard errors from several differences to their limits, below and above.

    Args:
        shape: Shape of the differences.
        freedom: Degrees of freedom of each variance.
        critical: Normal critical value of each, or of all.
    """
    student = student_multiples(critical, shape.freedom(freedom))
    below, above = (far_multiple(skew, student, critical) for skew in shape.sides)
    return below, above


def skew_scores(ratios: FloatArray, shape: DifferenceShape, freedom: FloatArray) -> FloatArray:
    """Return the critical value at which the interval of each value / error ends at 0.

    It is the inverse of `skew_multiples`: bisection until the limits are nearly linear,
    then the secant method.
    """
    free, sizes = shape.freedom(freedom), np.abs(ratios)
    skew = np.where(ratios >= 0, *shape.sides)

    def excess(critical: FloatArray) -> FloatArray:
        return far_multiple(skew, student_multiples(critical, free), critical) - sizes

    inside, outside = np.zeros_like(ratios), np.full_like(ratios, LARGEST_SCORE)
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2
        short = excess(middle) < 0
        inside, outside = np.where(short, middle, inside), np.where(short, outside, middle)
    last, score = inside, outside
    before, value = excess(last), excess(score)
    for _ in range(SECANTS):
        rise, step = value - before, np.zeros_like(score)
        np.divide(value * (score - last), rise, out=step, where=rise != 0)
        last, before = score, value
        score = np.clip(score - step, inside, outside)
        value = excess(score)
    return score


def near_multiple(skew: FloatArray | float, student: FloatArray | float) -> FloatArray:
    """Return the limit against the skew: Hall's cubic transformation."""
    flat = np.maximum(skew, FLAT)
    shift = flat * (student - flat / 6)
    small = 2 * np.abs(shift) < 1  # where 1 + shift would lose digits
    root = np.expm1(np.log1p(np.where(small, shift, 0.0)) / 3)
    return np.where(small, root, np.cbrt(1 + shift) - 1) * 3 / flat


def far_multiple(
    skew: FloatArray | float, student: FloatArray | float, normal: FloatArray | float
) -> FloatArray:
    """Return the limit on the side of the skew: the root of d² = z²(1 + skew d)."""
    half = normal * np.asarray(skew) / 2
    return np.asarray(student * (half + np.sqrt(1 + half**2)))
