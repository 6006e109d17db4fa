"""Design: the variance of an estimate as a function of the rows of each logger.

From divergences, or from a sample of rows that carries the shares of the present log, come
the rows that reach a half-width and the split of new rows that needs the fewest.

He & Owen (2014).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from poolwise.estimators.calibrated import many
from poolwise.estimators.divergences import pooled_divergences
from poolwise.moments.linear import row_variances
from poolwise.moments.terms import WEIGHTED_REWARD
from poolwise.report.tables import BEST_SPLIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.moments.estimate import Estimate
    from poolwise.moments.moments import FloatArray, MomentsByLogger

Variance = Callable[["FloatArray"], float]  # from rows of each logger
SplitFor = Callable[[float, "FloatArray"], "FloatArray"]  # from new rows and a first split
MOST_FOLD = 1e9  # more rows than this many times the log are infeasible
COLLINEAR = 1e-10  # of the largest: singular values below it are rounding
CLOSE_ENOUGH = 1e-3  # relative error of a number of rows
STEPS = 30  # of the search for split and size together; about five suffice
AS_NOW = "(as now)"
BEST = BEST_SPLIT
NO_SPREAD = "the rows at hand show no spread, so nothing can be predicted"


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


def calibrated_variance(
    sample: RowSample, counts: FloatArray, *, target_column: bool = True
) -> float:
    r"""Return the variance of calibrated for other counts, slopes fitted anew.

    $$\min_b E_{avg}\Big[\frac{(z - \sum_k b_k \rho_k - b_0 w)^2}{C}\Big]$$

    The columns of the loggers hold the constant, and leave residuals that have mean zero
    under every logger.  Convex in the counts.
    """
    residual = _residual(sample, counts, target_column=target_column)
    return float(np.sum(sample.shares * residual**2 / (sample.ratios @ counts)))


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
        value, slope = _loss(sample, counts, added, target_column=target_column)
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


def _loss(
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
    for _ in range(STEPS):
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


@dataclass(frozen=True)
class Option:
    """A number of new rows that reaches the wanted half-width.

    Attributes:
        estimator: Name of the estimator.
        source: Logger that writes the new rows, `AS_NOW` or `BEST`.
        rows: New rows that are needed: 0 if none are, infinite if no number suffices.
        split: Share of each logger in the new rows; loggers without one are absent.
        reason: Reason why no number of rows suffices; empty if one does.
    """

    estimator: str
    source: str
    rows: float
    split: Mapping[str, float]
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Outlook:
    """Numbers of new rows that reach a half-width, predicted from the present log.

    Attributes:
        view: Moments of the target, by logger.
        sample: Rows of the log; None where no estimator needs them.
        half_width: Wanted half-width.
        level: Level of the interval.
        crossed: Whether every logger scores every row.
        together: Rows that are logged together: those of a request.
    """

    view: MomentsByLogger
    sample: RowSample | None
    half_width: float
    level: float
    crossed: bool
    together: int = 1

    @property
    def counts(self) -> FloatArray:
        return np.array([float(m.count) for m in self.view.values()])

    def options(self, name: str, estimate: Estimate) -> list[Option]:
        """Return the options of one estimator."""
        counts, loggers = self.counts, list(self.view)
        refusal = self._refusal(name, estimate)
        if refusal:
            sources = (AS_NOW, *loggers, BEST)
            return [Option(name, source, math.inf, {}, refusal) for source in sources]
        covered = all(f.code != "target-uncovered" for f in estimate.findings)
        variance, split_for = self._model(name, estimate.variance, target_column=covered)
        now = variance(counts)

        def reached(rows: FloatArray) -> bool:
            return now > 0 and self._reached(estimate, variance(rows) / now, rows)

        splits = {AS_NOW: counts / counts.sum()}
        splits |= dict(zip(loggers, np.eye(len(loggers)), strict=True))
        needed = {
            source: self._rounded(rows_needed(reached, counts, s))
            for source, s in splits.items()
        }
        if split_for is not None:
            rows, split = best_plan(reached, counts, split_for)
        else:  # naive and weighted: from the logger of least divergence
            split = np.eye(len(loggers))[int(np.argmin(self._divergence))]
            rows = rows_needed(reached, counts, split)
        first = min(needed, key=lambda source: needed[source])
        if needed[first] < rows:
            rows, split = needed[first], splits[first]
        splits[BEST], needed[BEST] = split, self._rounded(rows)
        return [
            Option(
                name,
                source,
                needed[source],
                {i: float(s) for i, s in zip(loggers, split, strict=True) if s > 0},
                "" if needed[source] < math.inf else "these rows alone never reach it",
            )
            for source, split in splits.items()
        ]

    def _rounded(self, rows: float) -> float:
        return self.together * three_digits(rows / self.together)

    def _refusal(self, name: str, estimate: Estimate) -> str:
        if not 0 < estimate.variance < math.inf:
            return NO_SPREAD
        unsupported = [
            i for i, d in zip(self.view, self._divergence, strict=True) if math.isinf(d)
        ]
        if name == "naive" and unsupported:
            names = ", ".join(map(repr, unsupported))
            return f"biased: {names} gave probability 0 to rewarded actions of the target"
        return ""

    @property
    def _divergence(self) -> FloatArray:
        by_logger = (
            pooled_divergences(self.view)
            if self.crossed
            else row_variances(self.view, {WEIGHTED_REWARD: 1.0})
        )
        return np.array([by_logger[i] for i in self.view])

    def _model(
        self, name: str, now: float, *, target_column: bool
    ) -> tuple[Variance, SplitFor | None]:
        """Return the variance of an estimator, and its best split if that needs a search."""
        counts, sample = self.counts, self.sample
        if name.startswith("period-"):
            return partial(period_variance, self._divergence, counts, now), None
        if sample is None or name not in {"calibrated", "balanced"}:
            weighted = name == "weighted" and self.crossed
            kind = weighted_variance if weighted else naive_variance
            return partial(kind, self._divergence), None
        column: bool | None = target_column
        if name == "balanced":
            column = None
        elif many(self.view):  # the estimate has no columns of the loggers either
            sample, column = less_target(sample, counts) if target_column else sample, None

        def split_for(extra: float, start: FloatArray) -> FloatArray:
            return best_split(sample, counts, extra, target_column=column, start=start)

        if column is None:
            return partial(balanced_variance, sample), split_for
        return partial(calibrated_variance, sample, target_column=column), split_for

    def _reached(self, estimate: Estimate, ratio: float, rows: FloatArray) -> bool:
        """Test if an estimate with this ratio to its present variance is precise enough."""
        from scipy.special import stdtrit

        freedom = min(1e9, estimate.freedom * rows.sum() / self.counts.sum())
        quantile = float(stdtrit(freedom, (1 + self.level) / 2))
        return quantile * math.sqrt(estimate.variance * ratio) <= self.half_width
