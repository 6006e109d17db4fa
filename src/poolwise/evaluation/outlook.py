"""Outlook: numbers of new rows that reach a half-width, and how precisely they are known.

A plan predicts the variance for other numbers of rows (`evaluation.design`).  The prediction
is as precise as the present variance: where N rows determine the variance, its squared
relative error is 1 / N, and its limits have 2 N degrees of freedom.  If N is small, rows that
would raise the variance are probably missing, and the plan has a lower limit only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import Finding
from poolwise.estimators.calibrated import OWN_TERMS, effective_rows, is_uncovered, many
from poolwise.estimators.divergences import pooled_divergences
from poolwise.estimators.ips import with_row_errors
from poolwise.evaluation.design import (
    balanced_squares,
    balanced_variance,
    best_plan,
    best_split,
    calibrated_squares,
    calibrated_variance,
    less_target,
    naive_variance,
    normalised_variance,
    own_squares,
    period_variance,
    rows_needed,
    rows_shown,
    three_digits,
    weighted_variance,
)
from poolwise.moments.linear import ratio_score, row_variance, row_variances
from poolwise.moments.shape import cumulants
from poolwise.moments.terms import WEIGHT, WEIGHTED_REWARD
from poolwise.moments.units import centre_units, slice_sums
from poolwise.report.tables import BEST_SPLIT
from poolwise.text import join_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from poolwise.evaluation.design import RowSample, SplitFor, Variance
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.pool import ByStratum, Pool
    from poolwise.types import FloatArray

AS_NOW = "(as now)"
BEST = BEST_SPLIT
NO_SPREAD = "the rows at hand show no spread, so nothing can be predicted"
FEWEST_BEHIND = 50  # rows that determine a variance, for an upper limit of it


@dataclass(frozen=True)
class Option:
    """A number of new rows that reaches the wanted half-width.

    Attributes:
        estimator: Name of the estimator.
        source: Logger that writes the new rows, `AS_NOW` or `BEST`.
        rows: New rows that are needed: 0 if none are, infinite if no number suffices.
        split: Share of each logger in the new rows; loggers without one are absent.
        reason: Reason why no number of rows suffices; empty if one does.
        lower: Rows that are needed if the variance is at its lower limit.
        upper: Rows that are needed if it is at its upper limit; infinite if it has none,
            because fewer than 50 rows determine the variance.
        behind: Rows that determine the variance; 0 if this is unknown.
    """

    estimator: str
    source: str
    rows: float
    split: Mapping[str, float]
    reason: str = ""
    lower: float = math.inf
    upper: float = math.inf
    behind: float = 0.0


@dataclass(frozen=True, eq=False)
class VarianceModel:
    """The variance of an estimator as a function of the rows of each logger.

    Attributes:
        variance: The variance.
        behind: Rows of the present log that determine this variance.
        split_for: Best split of new rows, if it needs a search.
    """

    variance: Variance
    behind: Callable[[FloatArray], float]
    split_for: SplitFor | None = None


def variance_limits(
    behind: float, level: float, *, bounded: bool | None = None
) -> tuple[float, float]:
    """Return the limits of a variance that so many rows determine, over its estimate.

    Args:
        behind: The rows.
        level: Level of the interval.
        bounded: Whether it has an upper limit; by default if there are enough rows.

    >>> [round(limit, 3) for limit in variance_limits(50.0, 0.95)]
    [0.772, 1.347]
    >>> variance_limits(0.0, 0.95)
    (0.0, inf)
    """
    from scipy.special import chdtri

    if not behind > 0:
        return 0.0, math.inf
    bounded = behind >= FEWEST_BEHIND if bounded is None else bounded
    freedom, tail = 2 * behind, (1 - level) / 2
    lower = float(freedom / chdtri(freedom, tail))
    upper = float(freedom / chdtri(freedom, 1 - tail)) if bounded else math.inf
    return lower, upper


@dataclass(frozen=True, eq=False)
class Outlook:
    """Numbers of new rows that reach a half-width, predicted from the present log.

    Attributes:
        pool: Moments of the target, by logger.
        estimators: Estimators to plan, by name.
        pools: Moments of the target, with the strata that each estimator reads.
        sample: Rows of the log; None where there are none.
        half_width: Wanted half-width.
        level: Level of the interval.
        coverage: Which probabilities of the log are known.
        together: Rows that are logged together: those of a request.
    """

    pool: Pool
    estimators: Mapping[str, Estimator]
    pools: Mapping[str, Pool]
    sample: RowSample | None
    half_width: float
    level: float
    coverage: Coverage
    together: int = 1

    @property
    def counts(self) -> FloatArray:
        return np.array([float(m.count) for m in self.pool.values()])

    def present(self, name: str, estimate: Estimate) -> Estimate:
        """Return an estimate with the variance that its plan predicts for the present rows.

        With cross-propensities the variance of naive is that of pooled divergences, as its
        change is: a logger's own rows may have missed its largest weights.
        """
        own_weights = self.estimators[name].formula == "naive"
        if not own_weights or not self.coverage.crossed or self._refusal(name, estimate):
            return estimate
        own, _ = estimate.linear.plain.variance(self.pool)
        pooled = with_row_errors(self.pool, estimate).variance
        return replace(estimate, variance=pooled * estimate.variance / own)

    def options(self, name: str, estimate: Estimate) -> list[Option]:
        """Return the options of one estimator."""
        counts, loggers = self.counts, list(self.pool.loggers)
        refusal = self._refusal(name, estimate)
        if refusal:
            sources = (AS_NOW, *loggers, BEST)
            return [Option(name, source, math.inf, {}, refusal) for source in sources]
        model = self._model(name, estimate)
        reached = self._reached(estimate, model.variance)
        splits = {AS_NOW: counts / counts.sum()}
        splits |= dict(zip(loggers, np.eye(len(loggers)), strict=True))
        needed = {source: rows_needed(reached, counts, s) for source, s in splits.items()}
        if model.split_for is not None:
            rows, split = best_plan(reached, counts, model.split_for)
        else:  # naive and weighted: from the logger of least divergence
            split = np.eye(len(loggers))[int(np.argmin(self._divergence))]
            rows = rows_needed(reached, counts, split)
        first = min(needed, key=lambda source: needed[source])
        if needed[first] < rows:
            rows, split = needed[first], splits[first]
        splits[BEST], needed[BEST] = split, rows
        found = []
        for source, split in splits.items():
            rows = needed[source]
            lower, upper, behind = self._range(estimate, model, rows, split)
            parts = {i: float(s) for i, s in zip(loggers, split, strict=True) if s > 0}
            reason = "" if rows < math.inf else "these rows alone never reach it"
            rows, lower, upper = map(self._rounded, (rows, lower, upper))
            found.append(Option(name, source, rows, parts, reason, lower, upper, behind))
        return found

    def _rounded(self, rows: float) -> float:
        return self.together * three_digits(rows / self.together)

    def _range(
        self, estimate: Estimate, model: VarianceModel, rows: float, split: FloatArray
    ) -> tuple[float, float, float]:
        """Return the limits of a number of rows, and the rows that determine the variance."""
        counts = self.counts
        if math.isinf(rows):
            return math.inf, math.inf, model.behind(counts)
        behind = model.behind(counts + rows * split)
        limits = []
        # with buckets of clusters the later variance will be as uncertain as the present one
        known = behind / 2 if self.pool.clustered else behind
        ends = variance_limits(known, self.level, bounded=behind >= FEWEST_BEHIND)
        for factor in ends:
            if factor in {0.0, math.inf}:
                limits.append(factor)
                continue
            scaled = replace(estimate, variance=estimate.variance * factor)
            reached = self._reached(scaled, model.variance)
            limits.append(rows_needed(reached, counts, split))
        return limits[0], limits[1], behind

    def _refusal(self, name: str, estimate: Estimate) -> str:
        if not 0 < estimate.variance < math.inf:
            return NO_SPREAD
        unsupported = [
            i for i, d in zip(self.pool.loggers, self._divergence, strict=True) if math.isinf(d)
        ]
        if self.estimators[name].formula == "naive" and unsupported:
            names = ", ".join(map(repr, unsupported))
            return f"biased: {names} gave probability 0 to rewarded actions of the target"
        return ""

    @property
    def _divergence(self) -> FloatArray:
        by_logger: ByStratum[float] = (
            pooled_divergences(self.pool)
            if self.coverage.crossed
            else row_variances(self.pool, {WEIGHTED_REWARD: 1.0})
        )
        return np.array([by_logger[i] for i in self.pool.loggers])

    def _model(self, name: str, estimate: Estimate) -> VarianceModel:
        """Return the variance of an estimator, and the rows that determine it."""
        counts, sample, divergence = self.counts, self.sample, self._divergence
        from_units = partial(self._behind_units, name, estimate)
        formula = self.estimators[name].formula
        if formula == "period":
            now = estimate.variance
            return VarianceModel(partial(period_variance, divergence, counts, now), from_units)
        if formula == "self-normalised":
            variance = partial(normalised_variance, *self._normalised())
            return VarianceModel(variance, from_units)
        if formula not in {"calibrated", "balanced"} or sample is None:
            weighted = formula == "weighted" and self.coverage.crossed
            variance = partial(weighted_variance if weighted else naive_variance, divergence)
            per_row = 1 / divergence**2 if weighted else np.ones_like(divergence)
            squares = partial(own_squares, per_row=per_row)
            return VarianceModel(variance, self._behind_rows(squares, from_units, own=True))
        column: bool | None = None
        if formula == "calibrated":
            column = all(f.code != "target-uncovered" for f in estimate.findings)
            if many(self.pool):  # the estimate has no columns of the loggers either
                sample, column = less_target(sample, counts) if column else sample, None

        def split_for(extra: float, start: FloatArray) -> FloatArray:
            return best_split(sample, counts, extra, target_column=column, start=start)

        if column is None:
            rest = replace(self, sample=sample)
            behind = rest._behind_rows(balanced_squares, from_units)  # noqa: SLF001 - its own
            return VarianceModel(partial(balanced_variance, sample), behind, split_for)
        fitted = partial(calibrated_squares, target_column=column)
        variance = partial(calibrated_variance, sample, target_column=column)
        return VarianceModel(variance, self._behind_rows(fitted, from_units), split_for)

    def _normalised(self) -> tuple[FloatArray, FloatArray]:
        """Return effective rows per row and divergence of self-normalised, by logger."""
        pool = self.pool
        low = [i for i in pool if is_uncovered(pool.keep([i]), WEIGHT)]
        effective = effective_rows(pool, low)
        per_row = [effective.get(i, 0.0) / m.count for i, m in pool.items()]
        divergence = [
            row_variance(m, ratio_score(m, *OWN_TERMS).parts) if m.mean(WEIGHT) > 0 else 0.0
            for m in pool.values()
        ]
        return np.array(per_row), np.array(divergence)

    def _behind_rows(
        self,
        squares: Callable[[RowSample, FloatArray], FloatArray],
        from_units: Callable[[FloatArray], float],
        *,
        own: bool = False,
    ) -> Callable[[FloatArray], float]:
        """Return the number of rows behind a variance, from the sample if there is one.

        Rows of a cluster are not independent: their buckets determine the variance as well.
        """
        sample = self.sample
        if sample is None:
            return from_units
        part = float(self.counts.sum()) / len(sample.shares)
        ones = replace(sample, outcome=sample.weight)  # as if every reward were 1
        # columns of a regression would take the weights away
        weight_squares = squares if own else balanced_squares

        def behind(counts: FloatArray) -> float:
            weights = weight_squares(ones, counts)
            rows = part * rows_shown(squares(sample, counts), weights)
            return min(rows, from_units(counts)) if self.pool.clustered else rows

        return behind

    def _behind_units(self, name: str, estimate: Estimate, counts: FloatArray) -> float:
        """Return the number of rows behind the variance, from slices or buckets; 0 if none.

        New rows of a logger change its part in the variance of naive.
        """
        strata = centre_units(estimate.linear, self.pools[name])
        if strata is None:
            return 0.0
        variance, _, noise = np.array([cumulants(units) for units in strata]).T
        change = counts / self.counts if len(strata) == len(counts) else np.ones(len(strata))
        below = float(change**2 @ noise)
        if not below > 0:
            return 0.0
        known = float(change @ variance) ** 2 / below
        if self.pool.clustered and self.sample is not None:  # whose rows show the tail better
            return known
        squares = np.concatenate([c * u**2 for c, u in zip(change, strata, strict=True)])
        return rows_shown(squares, self._unit_weights(estimate, change), known)

    def _unit_weights(self, estimate: Estimate, change: FloatArray) -> FloatArray:
        """Return what each slice would add if every reward were 1; nothing without slices."""
        parts = estimate.linear.parts
        own = [parts.get(i, {}).get(WEIGHTED_REWARD, 0.0) for i in self.pool]
        if self.pool.clustered or len(change) != len(own):
            return np.empty(0)
        if not all(WEIGHT in m.slices for m in self.pool.values()):
            return np.empty(0)
        sums = [
            c * (part * slice_sums([WEIGHT], m)[1][0] / m.count) ** 2
            for c, part, m in zip(change, own, self.pool.values(), strict=True)
        ]
        return np.concatenate(sums)

    def _reached(self, estimate: Estimate, variance: Variance) -> Callable[[FloatArray], bool]:
        """Return a test if numbers of rows give an estimate that is precise enough."""
        from scipy.special import stdtrit

        now, total = variance(self.counts), self.counts.sum()

        def reached(rows: FloatArray) -> bool:
            if not now > 0:
                return False
            freedom = min(1e9, estimate.freedom * rows.sum() / total)
            quantile = float(stdtrit(freedom, (1 + self.level) / 2))
            ratio = variance(rows) / now
            return quantile * math.sqrt(estimate.variance * ratio) <= self.half_width

        return reached


def rough(options: Sequence[Option]) -> tuple[Finding, ...]:
    """Return findings about the estimators whose numbers of rows have no upper limit."""
    open_ended = {
        o.estimator: o.behind
        for o in options
        if o.source == AS_NOW and o.rows < math.inf == o.upper
    }
    few = [f"{name} ({n:,.0f})" for name, n in open_ended.items() if n]
    findings = []
    if few:
        finding = Finding(
            "rough-plan",
            f"Fewer than {FEWEST_BEHIND} rows determine the variance of {join_names(few)}, and "
            "rows that would raise it may be missing: the numbers of new rows have no upper "
            "limit.",
            "Plan again when the log has more rows.",
        )
        findings.append(finding)
    if len(few) < len(open_ended):
        finding = Finding(
            "no-range",
            "The numbers of new rows have no range: the engine does not compute how precisely "
            "the variances are known.",
            "Plan with the DuckDB engine, on a sample of the log if it is too large.",
        )
        findings.append(finding)
    return tuple(findings)
