"""Statistics of plain numbers: the tail index of weights, and tests that estimates agree.

A mean of weighted rewards converges at the usual rate only if the tail of the weights is
light enough.  The tail index is estimated from the few largest weights.  The tests of
agreement compare independent estimates, each with its variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError
from poolwise.intervals.student import Interval, check_level, student
from poolwise.moments.estimate import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.types import FloatArray

    Numbers = Sequence[float] | FloatArray

ENOUGH = 30  # rows that a test of their mean requires
MIN_TAIL = 5  # fewer points do not determine the shape of a generalised Pareto
MIN_DISTINCT = 10  # fewer distinct weights are a discrete distribution
HEAVIEST = 0.7  # Vehtari et al. (2024): above it no practical number of rows suffices
GRID, PRIOR = 30, 3.0  # Zhang & Stephens (2009), as in Pareto smoothing
LEVEL = 0.5  # index of the top of a tail, relative to the threshold, below which it ends there
PRIOR_ROWS, PRIOR_INDEX = 10, 0.5  # weak prior that regularises the fit of a short tail


@dataclass(frozen=True)
class TailIndex:
    """Tail index of the weights.

    Attributes:
        value: Tail index k; moments of order 1/k and above are infinite.  0 if discrete, and
            at most 0 if the weights are known to be bounded.
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


def tail_index(largest_weights: Numbers, count: int, *, bounded: bool = False) -> TailIndex:
    r"""Return the tail index, from the largest weights.

    A generalised Pareto is fitted to the $M$ largest weights less the next one,
    $\hat k = (M k + 5) / (M + 10)$ with $k$ the fit of Zhang & Stephens.  The
    threshold is $\min(1 - 1/\log_{10} n, 0.7)$.  Weights with few distinct values, as of
    policies that play one action with a fixed probability, are not fitted.  An index below
    the threshold does not prove that the tail was sampled.

    The fit sees differences of weights, even if these are tiny, and ties mislead it.  So a
    tail counts as heavy only if its weights also differ by factors: Hill's index of the $j$
    largest, the mean of $\ln(w / w_0)$ with $w_0$ the next weight, estimates $k$ as well.
    If it is below the threshold for the $\sqrt M$ largest *and* for all $M$, the larger of
    the two takes the place of a fitted index above the threshold.  So does the index of the
    $\sqrt M$ largest if it is near 0: these weights are nearly equal, as at a bound.

    Args:
        largest_weights: The `tail_size(count) + 1` largest weights, in any order; all
            weights if there are fewer.
        count: Number of rows.
        bounded: Whether the weights are known to be bounded.

    References:
        Vehtari, Simpson, Gelman, Yao & Gabry (JMLR 2024); Zhang & Stephens (2009); Hill
        (Annals of Statistics, 1975).

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
    if 1 + np.count_nonzero(np.diff(weights[1:])) < MIN_DISTINCT:
        return TailIndex(0.0, threshold, discrete=True)
    excesses = (weights[1:] - weights[0]) / (weights[-1] - weights[0])
    fitted = pareto_shape(excesses[excesses > 0])  # ties with the next weight are left out
    if fitted > threshold:
        top = _hill(weights, math.ceil(math.sqrt(len(weights) - 1)))
        hill = top if top < LEVEL * threshold else max(top, _hill(weights))
        fitted = hill if hill < threshold else fitted
    return TailIndex(min(fitted, 0.0) if bounded else fitted, threshold, discrete=False)


def _hill(weights: FloatArray, number: int = 0) -> float:
    """Return Hill's index of the largest of ascending weights, or of all but the smallest.

    It is infinite if the next weight is 0.

    >>> round(_hill(np.array([1.0, 1.0, 1.0, 2.0, 2.0]), 2), 4)
    0.6931
    """
    top = weights[-1 - (number or len(weights) - 1) :]
    return float(np.log(top[1:] / top[0]).mean()) if top[0] > 0 else math.inf


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


def cochran(values: Numbers, variances: Numbers) -> tuple[float, float]:
    r"""Return Q and p-value of Cochran's test that independent estimates agree.

    $$Q = \sum_i W_i (\hat U_i - \hat U_W)^2, \qquad W_i = 1 / V_i$$

    against $\chi^2_{m-1}$.  Rejects too often if the variances come from few or skewed
    rows; then use `welch`.  Logs without support estimate another value and must be left out.

    Args:
        values: Estimate of each log.
        variances: Variance of each estimate (not of one row).

    References:
        Cochran (Biometrics, 1954).

    Examples:
        >>> statistic, p_value = cochran([1.0, 1.5, 0.8], [0.01, 0.04, 0.0225])
        >>> round(statistic, 6), round(p_value, 6)
        (7.95082, 0.018772)
    """
    from scipy.special import chdtrc

    estimates, precisions, _ = _scale_values(values, variances)
    centre = float((precisions * estimates).sum() / precisions.sum())
    statistic = float((precisions * (estimates - centre) ** 2).sum())
    return statistic, float(chdtrc(len(estimates) - 1, statistic))


def welch(means: Numbers, variances: Numbers, counts: Sequence[int]) -> tuple[float, float]:
    r"""Return F and p-value of Welch's test that means of unequal variance agree.

    $$F = \frac{A}{1 + 2 (m - 2) L / (m^2 - 1)}, \qquad
      A = \frac{\sum_i W_i (\bar z_i - \bar z_W)^2}{m - 1}, \qquad
      L = \sum_i \frac{(1 - W_i / W)^2}{n_i - 1}$$

    with $W_i = 1 / V_i$, against $F$ with $m - 1$ and $(m^2 - 1) / (3 L)$ degrees of
    freedom.  Allows for variances estimated from few rows, not for skewed rows.

    Args:
        means: Mean of the rows of each log.
        variances: Variance of each mean (not of one row).
        counts: Number of rows of each log, at least two.

    References:
        Welch (Biometrika, 1951).

    Examples:
        >>> statistic, p_value = welch([1.0, 1.5, 0.8], [0.01, 0.04, 0.025], [100, 50, 60])
        >>> round(statistic, 6), round(p_value, 7)
        (3.838697, 0.0246771)
    """
    from scipy.special import fdtrc

    rows = np.asarray(counts, dtype=np.float64)
    if len(rows) != len(means) or not (rows >= 2).all():
        raise UsageError("Welch's test requires at least two rows of each log")
    estimates, precisions, _ = _scale_values(means, variances)
    groups = len(estimates)
    part = precisions / precisions.sum()
    centre = float((part * estimates).sum())
    between = float((precisions * (estimates - centre) ** 2).sum()) / (groups - 1)
    lack = float(((1 - part) ** 2 / (rows - 1)).sum())
    statistic = between / (1 + 2 * (groups - 2) * lack / (groups**2 - 1))
    within = (groups**2 - 1) / (3 * lack) if lack > 0 else math.inf
    return statistic, float(fdtrc(groups - 1, min(within, 1e12), statistic))


def random_effects(values: Numbers, variances: Numbers, level: float) -> Interval:
    r"""Return the interval of the mean over logs whose values differ at random.

    $$\tau^2 = \max\Big(0, \frac{Q - (m - 1)}{\sum_i W_i - \sum_i W_i^2 / \sum_i W_i}\Big),
      \qquad W_i^* = 1 / (V_i + \tau^2)$$

    The centre is the mean with shares $W_i^*$, its variance $1/\sum_i W_i^*$, and the
    interval is Student's with $m - 1$ degrees of freedom, since $\tau^2$ is estimated from
    $m$ values; with two logs it is very wide.  The logs must be independent.

    Args:
        values: Estimate of each log.
        variances: Variance of each estimate (not of one row).
        level: Confidence of the interval.

    References:
        DerSimonian & Laird (1986); Follmann & Proschan (Biometrics, 1999) for Student's.

    Examples:
        >>> interval = random_effects([1.0, 1.5, 0.8], [0.01, 0.04, 0.0225], 0.95)
        >>> round(interval.lower, 4), round(interval.upper, 4)
        (0.3471, 1.7959)
    """
    estimates, precisions, unit = _scale_values(values, variances)
    freedom = len(estimates) - 1
    part = precisions / precisions.sum()  # squares of precisions may overflow
    scale = precisions.sum() * (1 - float((part**2).sum()))
    # scale is 0 if the precision of one log exceeds the others' by more than rounding
    excess = cochran(values, variances)[0] - freedom
    between = max(0.0, excess / float(scale)) if scale > 0 else 0.0
    mass = 1 / (1 / precisions + between)
    value, variance = float((mass * estimates).sum() / mass.sum()), 1 / float(mass.sum())
    interval = student(Estimate(value, variance, {}, freedom), check_level(level))
    return Interval(unit * interval.lower, unit * interval.upper, level)


def _scale_values(values: Numbers, variances: Numbers) -> tuple[FloatArray, FloatArray, float]:
    """Return estimates and precisions in units of the largest standard error, and the unit.

    Rejects fewer than two logs and unusable numbers.
    """
    estimates = np.asarray(values, dtype=np.float64)
    spread = np.asarray(variances, dtype=np.float64)
    if len(estimates) < 2 or len(estimates) != len(spread):
        raise UsageError("a test of agreement requires at least two logs, each with a variance")
    unusable = int((~(np.isfinite(estimates) & (spread > 0) & (spread < math.inf))).sum())
    if unusable:
        raise UsageError(
            "a test of agreement requires finite values with positive, finite variances; "
            f"{unusable:,} of {len(estimates):,} logs have none and must be left out"
        )
    unit = math.sqrt(spread.max())
    return estimates / unit, 1 / (spread / unit / unit), unit
