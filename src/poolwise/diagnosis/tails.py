"""Tails: whether the largest weights that were seen speak for those that were not.

A mean of weighted rewards settles only if the tail of the weights is light enough.  The
tail index says how heavy it is, from the few largest weights alone.
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


MIN_TAIL = 5  # fewer points leave the generalised Pareto fit without a shape
MIN_DISTINCT = 10  # fewer distinct weights are a list, not a tail
HEAVIEST = 0.7  # Vehtari et al. (2024): beyond it no practical number of rows is enough
GRID, PRIOR = 30, 3.0  # of Zhang & Stephens (2009), as used for Pareto smoothing
PRIOR_ROWS, PRIOR_INDEX = 10, 0.5  # a weak prior that steadies the fit of a short tail


@dataclass(frozen=True)
class TailIndex:
    """How heavy the tail of the weights is.

    Attributes:
        value: The tail index; moments of order 1/value and above are infinite.  0 where
            the tail is discrete, that is, has too few distinct weights to be fitted.
        threshold: What the index must stay below for this number of rows.
        discrete: Whether the fit was left out.
    """

    value: float
    threshold: float
    discrete: bool

    @property
    def heavy(self) -> bool:
        """Whether the tail forbids to rely on the mean."""
        return self.value > self.threshold


def tail_size(count: int) -> int:
    r"""Number of largest weights that the tail index is fitted to.

    $$M = \lceil \min(n / 5, 3 \sqrt n) \rceil$$

    The share of the tail must shrink as n grows, or the fit is biased by the body.

    References:
        Vehtari, Simpson, Gelman, Yao & Gabry (JMLR 2024).

    Examples:
        >>> tail_size(1000), tail_size(100), tail_size(3)
        (95, 20, 5)
    """
    return max(MIN_TAIL, math.ceil(min(count / 5, 3 * math.sqrt(count))))


def tail_index(largest_weights: Sequence[float] | FloatArray, count: int) -> TailIndex:
    r"""Tail index of the weights, from the largest ones.

    A generalised Pareto is fitted to the $M$ largest weights less the next one,
    $\hat k = (M k + 5) / (M + 10)$ with $k$ the fit of Zhang & Stephens.  The
    threshold is $\min(1 - 1/\log_{10} n, 0.7)$.  Weights of few distinct values, as of
    policies that play one action with a fixed probability, have no tail to fit.  An
    index below the threshold does not prove that the tail was sampled.

    Args:
        largest_weights: The `tail_size(count) + 1` largest weights, in any order; all of
            them where there are fewer.
        count: Number of rows.

    References:
        Vehtari, Simpson, Gelman, Yao & Gabry (JMLR 2024); Zhang & Stephens (2009).

    Examples:
        >>> weights = (1 - (np.arange(1000) + 0.5) / 1000) ** -0.5  # of Pareto(2)
        >>> found = tail_index(np.sort(weights)[-96:], 1000)
        >>> round(found.value, 5), round(found.threshold, 5), found.discrete
        (0.49709, 0.66667, False)
    """
    weights = np.sort(np.asarray(largest_weights, dtype=np.float64))
    if not np.isfinite(weights).all() or len(weights) > count:
        raise UsageError("a tail has finite weights, and no more of them than there are rows")
    wanted = tail_size(count) + 1
    if len(weights) < min(wanted, count):
        raise UsageError(
            f"the tail of {count:,} rows needs their {min(wanted, count):,} largest weights, "
            f"not {len(weights):,}"
        )
    weights = weights[-wanted:]
    threshold = min(1 - 1 / math.log10(count), HEAVIEST) if count > 10 else 0.0
    if len(np.unique(weights[1:])) < MIN_DISTINCT:
        return TailIndex(0.0, threshold, discrete=True)
    excesses = (weights[1:] - weights[0]) / (weights[-1] - weights[0])
    fitted = pareto_shape(excesses[excesses > 0])  # a tie with the next one is no excess
    return TailIndex(fitted, threshold, discrete=False)


def pareto_shape(excesses: FloatArray) -> float:
    r"""Shape of a generalised Pareto, by Zhang & Stephens with a weak prior.

    The posterior mean of $\theta = -k/\sigma$ over a grid of profile likelihoods
    $n (\ln(-\theta/k) - k - 1)$, $k(\theta) = \frac1n \sum_j \ln(1 - \theta x_j)$.

    Args:
        excesses: What the tail is above its threshold, ascending and above 0.

    Examples:
        >>> round(pareto_shape(np.arange(1.0, 11.0)), 4)  # uniform: a bounded tail
        -0.1436
    """
    rows = len(excesses)
    points = GRID + math.floor(math.sqrt(rows))
    quartile = float(excesses[math.floor(rows / 4 + 0.5) - 1])
    steps = 1 - np.sqrt(points / (np.arange(points) + 0.5))
    grid = 1 / excesses[-1] + steps / (PRIOR * quartile)
    grid = np.where(grid == 0, np.finfo(np.float64).eps, grid)  # 0 is the exponential's limit
    shapes = np.array([np.log1p(-theta * excesses).mean() for theta in grid])
    profile = rows * (np.log(-grid / shapes) - shapes - 1)
    posterior = np.exp(profile - profile.max())
    theta = float((grid * posterior).sum() / posterior.sum())
    shape = float(np.log1p(-theta * excesses).mean())
    return (rows * shape + PRIOR_ROWS * PRIOR_INDEX) / (rows + PRIOR_ROWS)
