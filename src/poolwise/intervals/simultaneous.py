"""Simultaneous: intervals and p-values of many candidates, valid together.

The best of twenty estimates is biased by selection, which its own interval ignores.
Simultaneous intervals cover all candidates together, and so the selected one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError
from poolwise.intervals.student import check_level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.moments.moments import FloatArray

CHUNK = 20_000  # draws per batch: 16 MB for 100 candidates
ROUNDING = 1e-10  # relative to the largest: a smaller eigenvalue is rounding


def max_t_critical(
    covariance: FloatArray, level: float, rng: np.random.Generator, draws: int = 200_000
) -> float:
    r"""Return the number of standard errors that covers all candidates together.

    $$P\big(\max_k |Z_k| \le c\big) = \text{level}, \qquad Z \sim N(0, R)$$

    with $R$ the correlation of the estimates.  Directions are drawn and the length is
    integrated, $P = E[F_{\chi^2_d}(c^2 / \max_k |Z_k / \lVert Z \rVert|^2)]$, which is exact
    for one candidate.  Candidates without variance are left out.  It is a normal quantile,
    and so too small for few or skewed rows.

    Args:
        covariance: Covariance of the estimates, shape (k, k); may be singular.
        level: Confidence of all intervals together.
        rng: Generator of the draws; the same seed gives the same number.
        draws: Number of directions; 200,000 give a standard error of at most 0.003.

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

    widest = float(ndtri((1 + level ** (1 / candidates)) / 2))  # Šidák's upper bound
    if excess(single) >= 0:
        return single
    return float(brentq(excess, single, widest)) if excess(widest) > 0 else widest


def _factor(covariance: FloatArray) -> FloatArray:
    """Return A, of full column rank, such that A A' is the correlation."""
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


def _furthest(factor: FloatArray, rng: np.random.Generator, draws: int) -> list[FloatArray]:
    """Return the largest absolute coordinate of each random direction, in batches."""
    if draws < 1:
        raise UsageError(f"draws must be positive, got {draws}")
    batches = []
    for start in range(0, draws, CHUNK):
        normal = rng.standard_normal((min(CHUNK, draws - start), factor.shape[1]))
        length = np.linalg.norm(normal, axis=1)
        batches.append(np.abs(normal @ factor.T).max(axis=1) / length)
    return batches


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    r"""Return Holm's adjusted p-values, valid under any dependence of the tests.

    $$\tilde p_{(i)} = \max_{j \le i} \min\big(1, (k - j + 1) p_{(j)}\big)$$

    In the order given.  Controls the probability of *any* false rejection; the p-values must
    include all tests that were made, not only the significant ones.

    References:
        Holm (Scandinavian Journal of Statistics, 1979).

    Examples:
        >>> holm([0.01, 0.04, 0.03]).round(6).tolist()
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    outside = int((~((values >= 0) & (values <= 1))).sum())
    if outside:
        raise UsageError(
            f"p-values must lie between 0 and 1; {outside:,} of {len(values):,} do not"
        )
    order = np.argsort(values, kind="stable")
    steps = np.minimum(1.0, values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted
