"""Design: the variance of an estimate as a function of the rows of each logger.

From divergences, or from a sample of rows that carries the shares of the present log, come
the rows that reach a half-width and the split of new rows that needs the fewest.

He & Owen (2014).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.estimators.calibrated import least_effective

if TYPE_CHECKING:
    from poolwise.types import FloatArray

Variance = Callable[["FloatArray"], float]  # from rows of each logger
SplitFor = Callable[[float, "FloatArray"], "FloatArray"]  # from new rows and a first split
MOST_FOLD = 1e9  # more rows than this many times the log are infeasible
COLLINEAR = 1e-10  # of the largest: singular values below it are rounding
CLOSE_ENOUGH = 1e-3  # relative error of a number of rows
STEADY = 5  # a number of rows may be so many times the number of those that determine it
DESIGN_STEPS = 30  # of the search for split and size together; about five suffice


@dataclass(frozen=True, eq=False)
class RowSample:
    """Rows that represent the present log.

    Attributes:
        shares: Part of each row in an average over all rows, shape (n,); sums to 1.
        outcome: Balanced weight times reward, shape (n,).
        weight: Balanced weight, shape (n,).
        ratios: Each logger's probability over the mixture's, shape (n, loggers).
    """

    shares: FloatArray
    outcome: FloatArray
    weight: FloatArray
    ratios: FloatArray

    @cached_property
    def design(self) -> FloatArray:
        """Columns of the loggers and of the target, shape (n, loggers + 1)."""
        return np.vstack([self.ratios.T, self.weight]).T  # column by column, as sampled


def naive_variance(divergence: FloatArray, counts: FloatArray) -> float:
    r"""Return $\sum_i n_i \sigma_i^2 / n^2$, the variance of naive IPS."""
    if np.isinf(divergence[counts > 0]).any():
        return math.inf
    return float(counts @ np.where(counts > 0, divergence, 0.0) / counts.sum() ** 2)


def weighted_variance(divergence: FloatArray, counts: FloatArray) -> float:
    r"""Return $1 / \sum_i n_i / \sigma_i^2$, the variance of weighted IPS."""
    if (divergence[counts > 0] == 0).any():
        return 0.0
    precision = float(np.sum(counts / divergence))
    return 1 / precision if precision > 0 else math.inf


def normalised_variance(
    effective: FloatArray, divergence: FloatArray, counts: FloatArray
) -> float:
    r"""Return the variance of self-normalised by log, $\sum_i s_i^2 \sigma_i^2 / n_i$.

    The shares $s_i$ are those of the effective rows, of the logs that have enough of them.

    Args:
        effective: Effective rows that a row of each logger adds; 0 if its log is left out.
        divergence: Variance of one row of each logger in the ratio of its log.
        counts: Rows of each logger.
    """
    rows = effective * counts
    used = rows > least_effective(float(rows.sum()))
    total, fitted = float(rows[used].sum()), int(used.sum())
    if total <= fitted:
        return math.inf
    shares = rows[used] / total
    return float(shares**2 @ (divergence[used] / counts[used])) * total / (total - fitted)


def period_variance(
    divergence: FloatArray, present: FloatArray, now: float, counts: FloatArray
) -> float:
    """Return the variance of period-balanced with new rows in periods of their own.

    New rows in the present proportions are periods like the present ones; what a logger has
    in addition is a period in which it is live alone.  Precisions add up.
    """
    extra = counts - present
    alike = max(0.0, float((extra / present).min()))
    alone = extra - alike * present
    used = alone > 0
    with np.errstate(divide="ignore"):
        precision = (1 + alike) / now + float(np.sum(alone[used] / divergence[used]))
    return 1 / precision


def balanced_variance(sample: RowSample, counts: FloatArray) -> float:
    r"""Return the variance of balanced IPS for other counts $c$.

    $$\sum_i c_i Var_i\Big[\frac{\bar\pi \delta}{\sum_k c_k \pi_k}\Big]
      = E_{avg}\Big[\frac{z^2}{C}\Big] - \sum_i c_i E_{avg}\Big[\frac{z \rho_i}{C}\Big]^2,
      \qquad C = \sum_k c_k \rho_k, \quad \rho_k = \pi_k / \pi_{avg}$$
    """
    each = sample.shares * sample.outcome / (sample.ratios @ counts)
    return max(0.0, float(each @ sample.outcome - counts @ (each @ sample.ratios) ** 2))


def rows_behind(squares: FloatArray) -> float:
    r"""Return the number of rows that determine a variance, $(\sum q)^2 / \sum q^2$.

    The squared relative error of the variance is its inverse.

    Args:
        squares: What each row adds to the variance.

    >>> rows_behind(np.array([1.0, 1.0, 0.0])), rows_behind(np.zeros(2))
    (2.0, 0.0)
    """
    total = float(squares.sum())
    return total**2 / float(squares @ squares) if total > 0 else 0.0


def rows_shown(squares: FloatArray, weights: FloatArray, known: float | None = None) -> float:
    """Return the number of rows that determine a variance, as far as they can show it.

    Where the tail is heavy, rows that would raise the variance are missing, and the rows at
    hand show too large a number.  It is therefore at most the number of rows that determine
    the squared weights, as rewards may come in any of these rows, and at most five times the
    number of rows that determine the number itself.

    Args:
        squares: What each row adds to the variance.
        weights: What each row would add if every reward were 1; empty if this is unknown.
        known: The number that the rows show, by default `rows_behind`.

    >>> rows_shown(np.ones(90), np.ones(90)), rows_shown(np.ones(90), np.eye(90)[0])
    (90.0, 1.0)
    """
    largest = float(squares.max(initial=0.0))
    if not largest > 0:
        return 0.0
    known = rows_behind(squares) if known is None else known
    known = min(known, STEADY * rows_behind((squares / largest) ** 2))
    return min(known, rows_behind(weights)) if weights.any() else known


def own_squares(sample: RowSample, counts: FloatArray, per_row: FloatArray) -> FloatArray:
    r"""Return what each row adds to the variance of a mean of weights against own loggers.

    Args:
        sample: The rows.
        counts: Rows of each logger.
        per_row: Squared coefficient of one row of each logger in the mean.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = counts * per_row
        weights = np.where(parts > 0, parts / sample.ratios, 0.0).sum(axis=1)
        squares = np.where(sample.outcome == 0, 0.0, sample.outcome**2 * weights)
    return sample.shares * squares


def balanced_squares(sample: RowSample, counts: FloatArray) -> FloatArray:
    """Return what each row adds to the second moment behind the variance of balanced."""
    return sample.shares * sample.outcome**2 / (sample.ratios @ counts)


def calibrated_squares(
    sample: RowSample, counts: FloatArray, *, target_column: bool = True
) -> FloatArray:
    """Return what each row adds to the variance of calibrated."""
    residual = _residual(sample, counts, target_column=target_column)
    return sample.shares * residual**2 / (sample.ratios @ counts)


def calibrated_variance(
    sample: RowSample, counts: FloatArray, *, target_column: bool = True
) -> float:
    r"""Return the variance of calibrated for other counts, slopes fitted anew.

    $$\min_b E_{avg}\Big[\frac{(z - \sum_k b_k \rho_k - b_0 w)^2}{C}\Big]$$

    The columns of the loggers hold the constant, and leave residuals that have mean zero
    under every logger.  Convex in the counts.
    """
    return float(calibrated_squares(sample, counts, target_column=target_column).sum())


def less_target(sample: RowSample, counts: FloatArray) -> RowSample:
    r"""Return the rows with outcome $z - b w$: calibrated on the target's column alone.

    Its variance is `balanced_variance` of these rows.  The slope $b$ is that within the
    loggers of the present log, and is kept fixed.
    """
    share = counts / counts.sum()
    outcome, weight = (
        (sample.shares * x) @ sample.ratios for x in (sample.outcome, sample.weight)
    )
    each = sample.shares * sample.weight
    inner = float(each @ sample.weight - share @ weight**2)
    outer = float(each @ sample.outcome - share @ (weight * outcome))
    slope = outer / inner if inner > COLLINEAR * float(each @ sample.weight) else 0.0
    return replace(sample, outcome=sample.outcome - slope * sample.weight)


def _residual(sample: RowSample, counts: FloatArray, *, target_column: bool) -> FloatArray:
    design = sample.design if target_column else sample.ratios
    root = np.sqrt(sample.shares / (sample.ratios @ counts))
    scaled = design.T * root
    inner = scaled @ scaled.T
    size = np.sqrt(np.diag(inner))
    size = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(inner / np.outer(size, size))
    usable = values > COLLINEAR * values[-1]
    inverse = vectors[:, usable] / values[usable] @ vectors[:, usable].T
    slopes = inverse @ (scaled @ (root * sample.outcome) / size) / size
    left: FloatArray = sample.outcome - design @ slopes
    return left


def best_split(
    sample: RowSample,
    counts: FloatArray,
    extra: float,
    *,
    target_column: bool | None,
    start: FloatArray,
) -> FloatArray:
    r"""Return the shares of `extra` new rows that lower the variance most.

    Minimises $E_{avg}[e^2 / C]$ over the simplex, with $e$ the residual of the calibrated
    estimator, or the plain outcome where `target_column` is None (balanced).  Convex, so
    the minimum is global.
    """
    from scipy.optimize import LinearConstraint, minimize

    def loss(split: FloatArray) -> tuple[float, FloatArray]:
        added = extra * np.maximum(split, 0.0)
        value, slope = _residual_moment(sample, counts, added, target_column=target_column)
        return value / scale, slope * (extra / scale)

    scale = 1.0
    scale = loss(start)[0] or 1.0
    optimum = minimize(
        loss,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * len(counts),
        constraints=LinearConstraint(np.ones((1, len(counts))), 1.0, 1.0),
        options={"maxiter": 100, "ftol": 1e-9},
    )
    split = np.where(optimum.x < CLOSE_ENOUGH / 2, 0.0, optimum.x)
    split = split / split.sum()
    return split if loss(split)[0] <= loss(start)[0] else start


def _residual_moment(
    sample: RowSample, counts: FloatArray, added: FloatArray, *, target_column: bool | None
) -> tuple[float, FloatArray]:
    """Return the second moment of residuals with more rows, and its gradient."""
    left = sample.outcome
    if target_column is not None:
        left = _residual(sample, counts + added, target_column=target_column)
    mixed = sample.ratios @ (counts + added)
    each = sample.shares * left**2 / mixed
    # by the envelope theorem the coefficients of the residual count as fixed
    return float(each.sum()), -((each / mixed) @ sample.ratios)


def rows_needed(
    reached: Callable[[FloatArray], bool], counts: FloatArray, split: FloatArray
) -> float:
    """Return the least number of new rows in a split that suffices; infinite if none does."""
    if reached(counts):
        return 0.0
    low, high = 0.0, max(1.0, counts.sum() / 100)
    while not reached(counts + high * split):
        low, high = high, 4 * high
        if high > MOST_FOLD * counts.sum():
            return math.inf
    while high - low > CLOSE_ENOUGH * high and high - low > 1:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(counts + middle * split) else (middle, high)
    return float(math.ceil(high))


def three_digits(rows: float) -> float:
    """Round a number of rows up to three digits; more would be a promise.

    >>> three_digits(3_450_625.0), three_digits(128.0), three_digits(math.inf)
    (3460000.0, 128.0, inf)
    """
    if not 0 < rows < math.inf:
        return rows
    unit = 10.0 ** max(0, math.floor(math.log10(rows)) - 2)
    return math.ceil(rows / unit) * unit


def best_plan(
    reached: Callable[[FloatArray], bool],
    counts: FloatArray,
    split_for: SplitFor,
) -> tuple[float, FloatArray]:
    """Return the least number of new rows, and its split.

    The best split for a size needs fewer rows, for which another split is best: iterate
    until the size no longer falls.
    """
    split = counts / counts.sum()
    rows = rows_needed(reached, counts, split)
    for _ in range(DESIGN_STEPS):
        if not 0 < rows < math.inf:
            break
        better = split_for(rows, split)
        fewer = rows_needed(reached, counts, better)
        if fewer >= rows * (1 - 2 * CLOSE_ENOUGH):
            if fewer < rows:
                rows, split = fewer, better
            break
        rows, split = fewer, better
    return rows, split
