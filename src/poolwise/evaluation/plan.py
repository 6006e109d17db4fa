"""Planning: how many more rows, and from whom, make an estimate sure enough.

Variances are known functions of the rows of each logger, so the log at hand can say
what a larger one would show, for each estimator, and which split of new traffic over
the loggers gets there with the fewest rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from poolwise.engines.duckdb import DuckDBRows
from poolwise.engines.single_rows import sample_terms
from poolwise.errors import UsageError, nearest
from poolwise.estimators.calibrated import many
from poolwise.estimators.ips import pooled_divergences
from poolwise.evaluation.design import (
    RowSample,
    balanced_variance,
    best_plan,
    best_split,
    calibrated_variance,
    less_target,
    naive_variance,
    rows_needed,
    three_digits,
    weighted_variance,
)
from poolwise.evaluation.evaluate import results_of
from poolwise.evaluation.families import without_training
from poolwise.evaluation.outlook import AS_NOW, BEST, NO_SPREAD, Option, Plan
from poolwise.evaluation.read import opened
from poolwise.evaluation.request import named_targets, request
from poolwise.moments.linear import row_variances
from poolwise.moments.terms import BALANCED_REWARD, BALANCED_WEIGHT, WEIGHTED_REWARD, ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engines.base import Rows
    from poolwise.engines.choose import EngineLike
    from poolwise.evaluation.design import Variance
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.moments import FloatArray, MomentsByLogger

PLANNED = ("calibrated", "balanced", "weighted", "naive")
ALWAYS = (
    "New rows are like the old ones, and all policies stay as they are.",
    "The present variances are taken as true: where few rows carry much, the plan is rough.",
)
SAMPLE_ROWS = 50_000  # rows that stand for the log where its moments do not say enough
FEWEST_ROWS = 5_000  # of them, however many loggers there are
SAMPLE_WORK = SAMPLE_ROWS * 40**2  # rows times pairs of loggers: under a minute


def plan(
    log: Log,
    target: Mapping[str, PolicyLike] | PolicyLike,
    *,
    half_width: float,
    estimators: Sequence[str] | None = None,
    level: float = 0.95,
    engine: EngineLike = None,
) -> Plan:
    """Say how many more rows bring the interval of a target to a wanted half-width.

    For each estimator: if new rows come from the loggers as now, from one logger alone,
    or in the best split over the loggers.

    Args:
        log: The rows and what their columns mean.
        target: Probability of the logged action under the new policy, or one such by name.
        half_width: Wanted distance from the estimate to either end of its interval.
        estimators: Of calibrated, balanced, weighted and naive; by default all that the
            log can serve.
        level: Level of the interval.
        engine: What reads the rows: "duckdb" (the default, in this process), "spark", a
            SparkSession, or an object such as ``DuckDB(threads=4)``.
    """
    if not 0 < half_width < math.inf:
        raise UsageError(f"half_width must be positive and finite, got {half_width:g}")
    named = named_targets(target)
    if len(named) != 1:
        raise UsageError(f"plan takes one target, got {len(named)}: call it for each")
    if log.estimate_mixture and not log.crossed:
        raise UsageError(
            "plan does not estimate mixtures: give `propensities` under every logger"
        )
    asked = request(log, named, _wanted(estimators, log), level=level)
    asked = replace(asked, strict=estimators is not None)
    (name,) = named
    with opened(asked, engine) as rows:
        answers = rows.read()
        rowwise = {"calibrated", "balanced"} & set(rows.served.estimators) and log.crossed
        sample = _sample(rows.rows, name) if rowwise else None
    evaluation = without_training(results_of(asked, answers, rows), asked, answers)
    result, view = evaluation[name], answers.splits[name].whole
    outlook = _Outlook(view, sample, half_width, level, crossed=log.crossed)
    estimates = {
        e: result.estimates[e] for e in rows.served.estimators if e in result.estimates
    }
    options = []
    with threadpool_limits(limits=1):  # thousands of small products: threads only wait
        for estimator, estimate in estimates.items():
            options += outlook.options(estimator, estimate)
    return Plan(
        target=name,
        half_width=half_width,
        level=level,
        rows=evaluation.rows,
        estimates=estimates,
        options=tuple(options),
        assumptions=_assumptions(log, outlook, len(view)),
        findings=(*evaluation.findings, *result.findings),
    )


def _wanted(estimators: Sequence[str] | None, log: Log) -> Sequence[str]:
    if estimators is None:
        return PLANNED if log.crossed else ("naive",)
    if isinstance(estimators, str):
        estimators = [estimators]
    unknown = [e for e in estimators if e not in PLANNED]
    if unknown or not estimators:
        close = nearest(unknown[0], PLANNED) if unknown else None
        hint = f"; did you mean {close!r}?" if close else ""
        found = f"no plan for estimator {unknown[0]!r}{hint} " if unknown else "no estimator; "
        raise UsageError(f"{found}there are {', '.join(PLANNED)}")
    return list(dict.fromkeys(estimators))


def _sample(rows: Rows, name: str) -> RowSample:
    if not isinstance(rows, DuckDBRows):
        raise UsageError(
            "plans of calibrated and balanced read single rows, which DuckDB alone can do: ask "
            "for weighted and naive, or plan on a sample of the log"
        )
    terms = (
        BALANCED_REWARD.bind(name),
        BALANCED_WEIGHT.bind(name),
        *(ratio(i) for i in rows.counts),
    )
    most = max(FEWEST_ROWS, SAMPLE_WORK // len(rows.counts) ** 2)
    values, shares = sample_terms(rows, terms, min(SAMPLE_ROWS, most))
    return RowSample(shares, values[0], values[1], values[2:].T)


@dataclass(frozen=True, eq=False)
class _Outlook:
    """Rows that reach the half-width, from the moments of the log and a sample of its rows."""

    view: MomentsByLogger
    sample: RowSample | None
    half_width: float
    level: float
    crossed: bool

    @property
    def counts(self) -> FloatArray:
        return np.array([float(m.count) for m in self.view.values()])

    def options(self, name: str, estimate: Estimate) -> list[Option]:
        """All ways of getting there with one estimator."""
        refusal = self._refusal(name, estimate)
        if refusal:
            return [Option(name, source, math.inf, {}, refusal) for source in self._sources()]
        covered = all(f.code != "target-uncovered" for f in estimate.findings)
        variance = self._variance(name, target_column=covered)
        now = variance(self.counts)
        reached = partial(self._reached, variance, now, estimate)
        mix = self.counts / self.counts.sum()
        found = [self._option(name, AS_NOW, mix, rows_needed(reached, self.counts, mix))]
        for k, logger in enumerate(self.view):
            alone = np.eye(len(mix))[k]
            found.append(
                self._option(name, logger, alone, rows_needed(reached, self.counts, alone))
            )
        rows, split = self._best(name, reached, target_column=covered)
        single = min(found, key=lambda option: option.rows)
        if single.rows < rows:
            rows, split = single.rows, np.array([single.split.get(i, 0.0) for i in self.view])
        return [*found, self._option(name, BEST, split, rows)]

    def _sources(self) -> list[str]:
        return [AS_NOW, *self.view, BEST]

    def _option(self, name: str, source: str, split: FloatArray, rows: float) -> Option:
        shares = {i: float(s) for i, s in zip(self.view, split, strict=True) if s > 0}
        reason = "" if rows < math.inf else "these rows alone never narrow it so far"
        return Option(name, source, three_digits(rows), shares, reason)

    def _refusal(self, name: str, estimate: Estimate) -> str:
        if not 0 < estimate.variance < math.inf:
            return NO_SPREAD
        unsupported = [
            i for i, d in zip(self.view, self._divergence, strict=True) if math.isinf(d)
        ]
        if name == "naive" and unsupported:
            found = ", ".join(map(repr, unsupported))
            return f"biased: {found} gave probability 0 to rewarded actions of the target"
        return ""

    @property
    def _divergence(self) -> FloatArray:
        by_logger = (
            pooled_divergences(self.view)
            if self.crossed
            else row_variances(self.view, {WEIGHTED_REWARD: 1.0})
        )
        return np.array([by_logger[i] for i in self.view])

    def _variance(self, name: str, *, target_column: bool) -> Variance:
        """Variance of an estimator as a function of the rows of each logger."""
        if self.sample is not None and name in {"calibrated", "balanced"}:
            sample, column = self._rowwise(self.sample, name, target_column=target_column)
            if column is None:
                return partial(balanced_variance, sample)
            return partial(calibrated_variance, sample, target_column=column)
        if name == "weighted" and self.crossed:
            return partial(weighted_variance, self._divergence)
        return partial(naive_variance, self._divergence)

    def _rowwise(
        self, sample: RowSample, name: str, *, target_column: bool
    ) -> tuple[RowSample, bool | None]:
        """Rows, and whether the target has a column beside the loggers; None without these."""
        if name == "balanced":
            return sample, None
        if many(self.view):  # the estimate has no columns of the loggers either
            return (less_target(sample, self.counts) if target_column else sample), None
        return sample, target_column

    def _reached(
        self, variance: Variance, now: float, estimate: Estimate, counts: FloatArray
    ) -> bool:
        """Whether these counts are enough; predictions are scaled to what is seen now."""
        from scipy.special import stdtrit

        if not now > 0:
            return False
        predicted = estimate.variance * variance(counts) / now
        freedom = min(1e9, estimate.freedom * counts.sum() / self.counts.sum())
        quantile = float(stdtrit(freedom, (1 + self.level) / 2))
        return quantile * math.sqrt(predicted) <= self.half_width

    def _best(
        self, name: str, reached: partial[bool], *, target_column: bool
    ) -> tuple[float, FloatArray]:
        if self.sample is None or name not in {"calibrated", "balanced"}:
            alone = np.eye(len(self.counts))[int(np.argmin(self._divergence))]
            return rows_needed(reached, self.counts, alone), alone
        sample, column = self._rowwise(self.sample, name, target_column=target_column)

        def split_for(extra: float, start: FloatArray) -> FloatArray:
            return best_split(sample, self.counts, extra, target_column=column, start=start)

        return best_plan(reached, self.counts, split_for)


def _assumptions(log: Log, outlook: _Outlook, loggers: int) -> tuple[str, ...]:
    found = [*ALWAYS]
    if outlook.sample is not None:
        total, taken = sum(m.count for m in outlook.view.values()), len(outlook.sample.shares)
        part = "all" if taken == total else f"{taken:,} of {total:,}"
        found.append(f"Calibrated and balanced are predicted from {part} rows.")
        if many(outlook.view):
            found.append("The best split of calibrated and balanced minimises a second moment.")
        elif loggers > 1:
            found.append(
                "The best split of calibrated is the best there is; that of balanced minimises "
                "its second moment."
            )
    if log.cluster is not None:
        found.append("New clusters have as many rows as the old ones.")
    return tuple(found)
