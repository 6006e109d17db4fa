"""Simultaneous: intervals and p-values of many candidates, valid together.

The best of twenty estimates is biased by selection, which its own interval ignores.
Simultaneous intervals cover all candidates together, and so the selected one.  Limits and
adjusted p-values come from one distribution, that of the largest |Z| (single-step max-T), so
an interval excludes 0 if and only if its adjusted p-value is below 1 - level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError
from poolwise.intervals.student import check_level

if TYPE_CHECKING:
    from poolwise.moments.moments import FloatArray

CELLS = 2_000_000  # numbers per batch of draws: 16 MB
ROUNDING = 1e-10  # relative to the largest: a smaller eigenvalue is rounding
QUANTILES = 1_000  # of the drawn directions; they replace them


@dataclass(frozen=True, eq=False)
class MaxT:
    r"""Distribution of $\max_k |Z_k|$, with $Z \sim N(0, R)$ and $R$ a correlation.

    Directions are drawn and the length is integrated,
    $P(\max_k |Z_k| > c) = E[1 - F_{\chi^2_d}(c^2 / \max_k |Z_k / \lVert Z \rVert|^2)]$, which
    is exact for one candidate.  It is a normal distribution, and so too narrow for few or
    skewed rows; `student_multiples` allows for few.

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
        factor: Matrix A with A A' the correlation; see `factor_of`.
        rng: Generator of the draws; the same seed gives the same numbers.
        draws: Number of directions; 200,000 give a critical value a standard error of at
            most 0.003.

    Examples:
        >>> independent = factor_of(np.eye(2))  # Šidák is exact: the quantile at √0.95
        >>> round(max_t(independent, np.random.default_rng(1)).critical(0.95), 2)
        2.24
    """
    if draws < 1:
        raise UsageError(f"draws must be positive, got {draws}")
    candidates, rank = factor.shape
    if candidates <= 1 or rank <= 1:
        return MaxT(candidates, rank, np.ones(1))
    furthest, size = np.empty(draws), max(1, CELLS // candidates)
    for start in range(0, draws, size):
        normal = rng.standard_normal((min(size, draws - start), rank))
        length = np.linalg.norm(normal, axis=1)
        furthest[start : start + size] = np.abs(normal @ factor.T).max(axis=1) / length
    middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return MaxT(candidates, rank, np.quantile(furthest, middles))


def factor_of(covariance: FloatArray) -> FloatArray:
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
    large = values > ROUNDING * values[-1]
    factor: FloatArray = vectors[:, large] * np.sqrt(values[large])
    return factor


def limits(
    values: FloatArray, errors: FloatArray, below: FloatArray, above: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper limits, by the multiples of the error below and above."""
    return values - below * errors, values + above * errors


def student_multiples(critical: FloatArray | float, freedom: FloatArray) -> FloatArray:
    """Return Student's quantiles with the tail probability of a normal critical value."""
    from scipy.special import ndtr, stdtrit

    finite = np.isfinite(freedom)
    quantiles = stdtrit(np.where(finite, freedom, 1.0), ndtr(-np.asarray(critical)))
    return np.where(finite, -quantiles, critical)


def student_scores(ratios: FloatArray, freedom: FloatArray) -> FloatArray:
    """Return the critical value at which the interval of each |value / error| ends at 0.

    It is the inverse of `student_multiples`.

    >>> freedom = np.array([5.0, np.inf])
    >>> student_scores(student_multiples(1.96, freedom), freedom).round(9).tolist()
    [1.96, 1.96]
    """
    from scipy.special import ndtri, stdtr

    finite = np.isfinite(freedom)
    tails = stdtr(np.where(finite, freedom, 1.0), -np.abs(ratios))
    return np.where(finite, -ndtri(tails), np.abs(ratios))
