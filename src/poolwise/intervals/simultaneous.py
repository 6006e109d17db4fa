"""Simultaneous: intervals and p-values of many candidates that hold together.

The best of twenty estimates is also the luckiest, which its own interval ignores.  A
simultaneous interval covers all candidates together, and so the one that was picked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError
from poolwise.intervals.student import check_level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.moments.moments import FloatArray


CHUNK = 20_000  # draws at once: 16 MB for 100 candidates
ROUNDING = 1e-10  # of the largest: an eigenvalue below it is the noise of equal candidates


def max_t_critical(
    covariance: FloatArray, level: float, rng: np.random.Generator, draws: int = 200_000
) -> float:
    r"""Number of standard errors that covers all candidates together.

    $$P\big(\max_k |Z_k| \le c\big) = \text{level}, \qquad Z \sim N(0, R)$$

    with $R$ the correlation of the estimates.  Directions are drawn and the length is
    integrated, $P = E[F_{\chi^2_d}(c^2 / \max_k |Z_k / \lVert Z \rVert|^2)]$, which is exact
    for one candidate.  A candidate without variance is always covered and left out.
    Normal: with few or skewed rows too small, as any normal quantile is.

    Args:
        covariance: Of the estimates, shape (k, k); may be singular.
        level: Confidence of all intervals together.
        rng: Source of the draws; the same seed gives the same number.
        draws: Number of directions; 200,000 leave a standard error of 0.003 at most.

    References:
        Hothorn, Bretz & Westfall (2008), simultaneous inference.

    Examples:
        >>> independent = np.eye(2)  # Šidák is exact: the normal quantile at √0.95
        >>> round(max_t_critical(independent, 0.95, np.random.default_rng(1)), 2)
        2.24
    """
    from scipy.optimize import brentq
    from scipy.special import chdtr, ndtri

    factor = _factor(np.asarray(covariance, dtype=np.float64))
    candidates, rank = factor.shape
    single = float(ndtri((1 + check_level(level)) / 2))
    if candidates == 0 or rank == 1:
        return single
    furthest = np.concatenate(list(_furthest(factor, rng, draws)))

    def excess(critical: float) -> float:
        return float(chdtr(rank, (critical / furthest) ** 2).mean()) - level

    widest = float(ndtri((1 + level ** (1 / candidates)) / 2))  # Šidák: never more than this
    if excess(single) >= 0:
        return single
    return float(brentq(excess, single, widest)) if excess(widest) > 0 else widest


def _factor(covariance: FloatArray) -> FloatArray:
    """A matrix A, of full column rank, whose A A' is the correlation."""
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
        raise UsageError(f"a covariance is square, not of shape {covariance.shape}")
    if not np.isfinite(covariance).all() or (np.diag(covariance) < 0).any():
        raise UsageError("a covariance has finite entries and no variance below 0")
    errors = np.sqrt(np.diag(covariance))
    kept = errors > 0
    correlation = covariance[np.ix_(kept, kept)] / np.outer(errors[kept], errors[kept])
    if not len(correlation):
        return np.zeros((0, 0))
    values, vectors = np.linalg.eigh(correlation)
    large = values > ROUNDING * values[-1]
    factor: FloatArray = vectors[:, large] * np.sqrt(values[large])
    return factor


def _furthest(factor: FloatArray, rng: np.random.Generator, draws: int) -> list[FloatArray]:
    """Largest absolute coordinate of each of many random directions."""
    if draws < 1:
        raise UsageError(f"the number of draws must be positive, not {draws}")
    found = []
    for start in range(0, draws, CHUNK):
        normal = rng.standard_normal((min(CHUNK, draws - start), factor.shape[1]))
        length = np.linalg.norm(normal, axis=1)
        found.append(np.abs(normal @ factor.T).max(axis=1) / length)
    return found


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    r"""Holm's adjusted p-values, valid however the tests depend.

    $$\tilde p_{(i)} = \max_{j \le i} \min\big(1, (k - j + 1) p_{(j)}\big)$$

    In the order given.  Controls the chance of *any* false finding, so it is strict;
    p-values must come from the tests that were made, not only from those worth telling.

    References:
        Holm (Scandinavian Journal of Statistics, 1979).

    Examples:
        >>> holm([0.01, 0.04, 0.03]).round(6).tolist()
        [0.03, 0.06, 0.06]
    """
    found = _checked(p_values)
    order = np.argsort(found, kind="stable")
    steps = np.minimum(1.0, found[order] * np.arange(len(found), 0, -1))
    adjusted = np.empty_like(found)
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted


def _checked(p_values: Sequence[float] | FloatArray) -> FloatArray:
    found = np.asarray(p_values, dtype=np.float64)
    bad = int((~((found >= 0) & (found <= 1))).sum())
    if bad:
        raise UsageError(f"{bad:,} of {len(found):,} p-values lie outside 0 to 1")
    return found
