"""Tails: the tail index of the weights, which shows if a mean is reliable.

A mean of weighted rewards converges at the usual rate only if the tail of the weights is
light enough.  The tail index is estimated from the few largest weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.moments.moments import FloatArray

MIN_TAIL = 5  # fewer points do not determine the shape of a generalised Pareto
MIN_DISTINCT = 10  # fewer distinct weights are a discrete distribution
HEAVIEST = 0.7  # Vehtari et al. (2024): above it no practical number of rows suffices
GRID, PRIOR = 30, 3.0  # Zhang & Stephens (2009), as in Pareto smoothing
PRIOR_ROWS, PRIOR_INDEX = 10, 0.5  # weak prior that regularises the fit of a short tail


@dataclass(frozen=True)
class TailIndex:
    """Tail index of the weights.

    Attributes:
        value: Tail index k; moments of order 1/k and above are infinite.  0 if discrete.
        threshold: Largest index at which the mean is reliable for this number of rows.
        discrete: True if there are too few distinct weights for a fit.
    """

    value: float
    threshold: float
    discrete: bool

    @property
    def heavy(self) -> bool:
        """True if the tail is too heavy for the mean to be reliable."""
        return self.value > self.threshold


def tail_size(count: int) -> int:
    r"""Return the number of largest weights in the fit of the tail index.

    $$M = \lceil \min(n / 5, 3 \sqrt n) \rceil$$

    The share of the tail must shrink as n grows, or the body of the distribution biases
    the fit.

    References:
        Vehtari, Simpson, Gelman, Yao & Gabry (JMLR 2024).

    Examples:
        >>> tail_size(1000), tail_size(100), tail_size(3)
        (95, 20, 5)
    """
    return max(MIN_TAIL, math.ceil(min(count / 5, 3 * math.sqrt(count))))


def tail_index(largest_weights: Sequence[float] | FloatArray, count: int) -> TailIndex:
    r"""Return the tail index, from the largest weights.

    A generalised Pareto is fitted to the $M$ largest weights less the next one,
    $\hat k = (M k + 5) / (M + 10)$ with $k$ the fit of Zhang & Stephens.  The
    threshold is $\min(1 - 1/\log_{10} n, 0.7)$.  Weights with few distinct values, as of
    policies that play one action with a fixed probability, are not fitted.  An index below
    the threshold does not prove that the tail was sampled.

    Args:
        largest_weights: The `tail_size(count) + 1` largest weights, in any order; all
            weights if there are fewer.
        count: Number of rows.

    References:
        Vehtari, Simpson, Gelman, Yao & Gabry (JMLR 2024); Zhang & Stephens (2009).

    Examples:
        >>> weights = (1 - (np.arange(1000) + 0.5) / 1000) ** -0.5  # of Pareto(2)
        >>> index = tail_index(np.sort(weights)[-96:], 1000)
        >>> round(index.value, 5), round(index.threshold, 5), index.discrete
        (0.49709, 0.66667, False)
    """
    weights = np.sort(np.asarray(largest_weights, dtype=np.float64))
    if not np.isfinite(weights).all() or len(weights) > count:
        raise UsageError("a tail must have finite weights, at most one per row")
    size = tail_size(count) + 1
    if len(weights) < min(size, count):
        raise UsageError(
            f"the tail of {count:,} rows must have their {min(size, count):,} largest weights, "
            f"got {len(weights):,}"
        )
    weights = weights[-size:]
    threshold = min(1 - 1 / math.log10(count), HEAVIEST) if count > 10 else 0.0
    if len(np.unique(weights[1:])) < MIN_DISTINCT:
        return TailIndex(0.0, threshold, discrete=True)
    excesses = (weights[1:] - weights[0]) / (weights[-1] - weights[0])
    fitted = pareto_shape(excesses[excesses > 0])  # ties with the next weight are left out
    return TailIndex(fitted, threshold, discrete=False)


def pareto_shape(excesses: FloatArray) -> float:
    r"""Return the shape of a generalised Pareto, by Zhang & Stephens with a weak prior.

    The posterior mean of $\theta = -k/\sigma$ over a grid of profile likelihoods
    $n (\ln(-\theta/k) - k - 1)$, $k(\theta) = \frac1n \sum_j \ln(1 - \theta x_j)$.

    Args:
        excesses: Weights of the tail less its threshold, ascending and positive.

    Examples:
        >>> round(pareto_shape(np.arange(1.0, 11.0)), 4)  # uniform: a bounded tail
        -0.1436
    """
    rows = len(excesses)
    points = GRID + math.floor(math.sqrt(rows))
    quartile = float(excesses[math.floor(rows / 4 + 0.5) - 1])
    steps = 1 - np.sqrt(points / (np.arange(points) + 0.5))
    grid = 1 / excesses[-1] + steps / (PRIOR * quartile)
    grid = np.where(
        grid == 0, np.finfo(np.float64).eps, grid
    )  # 0 is the limit of the exponential
    shapes = np.array([np.log1p(-theta * excesses).mean() for theta in grid])
    profile = rows * (np.log(-grid / shapes) - shapes - 1)
    posterior = np.exp(profile - profile.max())
    theta = float((grid * posterior).sum() / posterior.sum())
    shape = float(np.log1p(-theta * excesses).mean())
    return (rows * shape + PRIOR_ROWS * PRIOR_INDEX) / (rows + PRIOR_ROWS)
