"""Results: an evaluation, with the results of its targets and of its segments."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from poolwise.errors import NotShownError, RefusedError, UsageError, did_you_mean
from poolwise.evaluation.differences import check_requirement
from poolwise.evaluation.output import (
    Reported,
    Row,
    listed_findings,
    of_requests,
    share_findings,
)
from poolwise.moments.estimate import student_quantile
from poolwise.report.breakdown import period_tables
from poolwise.report.sentence import answer
from poolwise.report.tables import (
    Grid,
    as_html,
    as_text,
    estimates_table,
    evaluation_tables,
    main_table,
    metrics_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import altair as alt

    from poolwise.diagnosis.agreement import Diagnosis
    from poolwise.diagnosis.over_time import OverTime
    from poolwise.diagnosis.overlap import Overlap
    from poolwise.errors import Finding
    from poolwise.evaluation.backtest import Backtest
    from poolwise.evaluation.comparison import Comparison, Pairs
    from poolwise.evaluation.differences import Difference, Requirement
    from poolwise.evaluation.distribution import Distribution
    from poolwise.evaluation.position_bias import PositionBias
    from poolwise.evaluation.segments import Segments
    from poolwise.intervals.student import Interval
    from poolwise.log.clicks import Support
    from poolwise.log.metrics import Metric
    from poolwise.moments.estimate import Estimate


@dataclass(frozen=True, repr=False)
class TargetResult:
    """Estimates, intervals and diagnosis of one target.

    Attributes:
        estimates: Estimate of each estimator, in the order requested.
        intervals: Interval of each estimator.
        loggers: Overlap of the target with each logger.
        mixture: Overlap with the mixture; None without cross-propensities.
        findings: Findings that limit the estimates, most serious first.
        diagnosis: Tests of agreement between the logs.
        over_time: Value in each period; None if the log has no periods.
        recommended: Name of the estimator to rely on; empty if there is no estimate.
        pooling: Estimators whose intervals assume policies that were fixed beforehand.
        support: Part of the target's examinations on shown items; None without a click log.
    """

    estimates: Mapping[str, Estimate]
    intervals: Mapping[str, Interval]
    loggers: Mapping[str, Overlap]
    mixture: Overlap | None
    findings: tuple[Finding, ...]
    diagnosis: Diagnosis
    over_time: OverTime | None = None
    recommended: str = ""
    pooling: frozenset[str] = frozenset()
    support: Support | None = None

    def supported(self, estimator: str) -> float:
        """Return the part of the target's examinations that an estimator rests on."""
        if self.support is None:
            return 1.0
        if estimator == self.recommended:
            return self.support.together
        return self.support.alone(self.estimates[estimator].shares)

    def _grid(self) -> Grid:
        ends = {name: vars(interval) for name, interval in self.intervals.items()}
        return estimates_table(
            [
                {**ends[name], "estimator": name, "value": e.value, "std_error": e.std_error}
                for name, e in self.estimates.items()
            ]
        )

    def __repr__(self) -> str:
        codes = ", ".join(dict.fromkeys(finding.code for finding in self.findings))
        return as_text([self._grid()], sentences=[f"findings: {codes or 'none'}"])

    def _repr_html_(self) -> str:
        return as_html([self._grid()], listed_findings(self.findings))


@dataclass(frozen=True, repr=False)
class Evaluation(Reported):
    """Estimated values of one or more targets.

    Attributes:
        targets: Result of each target.
        rows: Usable rows of each logger.
        mean_reward: Mean logged reward of each logger.
        level: Level of the intervals.
        reward: Column or SQL expression of the reward.
        findings: Findings about the log as a whole.
        truth: True values, where they are known.
        baseline: Label of the logger, or name of the target, that the headline compares with.
        baseline_reason: Reason for this baseline, such as "largest logger"; empty if you
            named it.
        differences: Each target minus the baseline, with simultaneous intervals.
        fingerprint: Hash of the rows, independent of the engine and of their order.
        pairs: Moments for the comparison; None for one target, for more than 30 targets,
            and if the engine would have to read more.
        segments: Results by segment; None without `by`.
        backtest: Predictions of each logger from the others; None if there are none.
        rows_per_request: Rows per request of a ranking log; None if values are per row.
        position_bias: How often each position is examined; None without a click log.
        distribution: Distribution of the reward under each target; None without `thresholds`
            and `quantiles`.
        metrics: The same for every metric, by name; empty without `metrics`.
        metric: The metric that the values are of; None for the log's own reward, which is not
            among several metrics.
    """

    kind = "evaluation"
    labels = ("metric", "target", "estimator")
    targets: Mapping[str, TargetResult]
    rows: Mapping[str, int]
    mean_reward: Mapping[str, float]
    level: float
    reward: str = ""
    findings: tuple[Finding, ...] = ()
    truth: Mapping[str, float] = field(default_factory=dict)
    fingerprint: str = ""
    baseline: str = ""
    baseline_reason: str = ""
    differences: Mapping[str, Difference] = field(default_factory=dict)
    pairs: Pairs | None = field(default=None, compare=False)
    segments: Segments | None = field(default=None, compare=False)
    backtest: Backtest | None = field(default=None, compare=False)
    rows_per_request: int | None = None
    position_bias: PositionBias | None = field(default=None, compare=False)
    distribution: Distribution | None = field(default=None, compare=False)
    metrics: Mapping[str, Evaluation] = field(default_factory=dict)
    metric: Metric | None = None

    @cached_property
    def comparison(self) -> Comparison | None:
        """Comparison of the targets, from the same rows; None where there is none."""
        baseline = self.baseline if self.baseline in self.targets else ""
        try:
            return None if self.pairs is None else self.pairs.rank(self, baseline)
        except RefusedError:  # the findings of the targets give the reason
            return None

    def against(self, baseline: str) -> Evaluation:
        """Return the evaluation with the differences of all targets from one of them.

        Targets without an estimate, which a segment may have, have no difference.
        """
        known = {name: r for name, r in self.targets.items() if r.recommended}
        whole = replace(self, targets=known, baseline=baseline)
        compared = whole.comparison if baseline in known and len(known) > 1 else None
        pairs = () if compared is None else compared.differences
        return replace(self, baseline=baseline, differences={d.target: d for d in pairs})

    @property
    def headline(self) -> str:
        """The result in one or two sentences: estimate, interval, difference, caution."""
        return answer(self._uncompared())

    def tradeoff(self, x: str, y: str) -> alt.LayerChart:
        """Draw two metrics of all targets, and the targets that no other one dominates.

        Metrics are never added up: which of these targets to choose is for you to say.

        Args:
            x: Metric of the horizontal axis.
            y: Metric of the vertical axis.
        """
        from poolwise.report.tradeoff import Direction, tradeoff_chart

        for name in (x, y):
            if name not in self.metrics:
                hint = did_you_mean(name, self.metrics)
                raise UsageError(f"the evaluation has no metric {name!r}{hint}")
        sides = [self.metrics[name] for name in (x, y)]
        shown = [t for t in self.targets if all(e[t].recommended for e in sides)]
        if not shown:
            raise UsageError(f"no target has an estimate of both {x!r} and {y!r}")
        first, second = ({t: e.summarise(t) for t in shown} for e in sides)
        points = {t: (first[t], second[t]) for t in shown}
        axes = [
            Direction(name, 1.0 if e.metric is None else e.metric.sign)
            for name, e in zip((x, y), sides, strict=True)
        ]
        return tradeoff_chart(points, *axes)

    def rows_to_detect(self, target: str, lift: float, *, power: float = 0.8) -> float:
        r"""Return how many rows, of loggers mixed as now, show a lift over the baseline.

        $$n \left(\frac{(z_{(1 + level) / 2} + z_{power}) \, s}{lift}\right)^2$$

        with the present number of rows n and standard error s of the difference.

        Args:
            target: Name of the target.
            lift: True difference that the interval must exclude 0 for.
            power: Probability of showing it.
        """
        check_lift(lift, power)
        quantiles = (
            student_quantile((1 + self.level) / 2, math.inf),
            student_quantile(power, math.inf),
        )
        error = self.differences[target].std_error
        return sum(self.rows.values()) * (sum(quantiles) * error / lift) ** 2

    def require(
        self, verdict: Requirement, target: str | None = None, *, margin: float = 0.0
    ) -> None:
        """Raise NotShownError unless targets are better than the baseline, or not worse.

        With `by`, it must be shown in every segment. Alarms fail every requirement.

        Args:
            verdict: "better": the interval of the difference is above `margin`;
                "not-worse": it is above -`margin`.
            target: Target that must meet the requirement; by default all.
            margin: Smallest difference that matters, 0 or more.
        """
        asked = {*self.targets} - {self.baseline} if target is None else {target}
        names = [name for name in self.targets if name in asked]
        shown = [self.differences[name] for name in names if name in self.differences]
        check_requirement(verdict, margin, shown, target, self.baseline)
        reasons = [d.lack(verdict, margin) for d in shown]
        missing = [name for name in names if name not in self.differences]
        reasons += [f"{name!r} has no difference from {self.baseline!r}" for name in missing]
        findings = [f for f in self.findings if f.target in {"", *names}]
        findings += [f for name in names for f in self.targets[name].findings]
        if self.segments is not None:
            reasons += self.segments.lacks(verdict, margin, names)
        reasons += [f"alarm {f.code}" for f in findings if f.severity == "alarm"]
        if any(reasons):
            raise NotShownError(
                f"{verdict} than {self.baseline!r} by a margin of {margin:g}",
                list(dict.fromkeys(filter(None, reasons))),
            )

    def __getitem__(self, target: str) -> TargetResult:
        return self.targets[target]

    @property
    def warnings(self) -> list[Row]:
        """All findings, most serious first, the log's before the targets'.

        A finding that all metrics share appears once.
        """
        if not self.metrics:
            return listed_findings(self.named_findings)
        each = {name: e.named_findings for name, e in self.metrics.items()}
        ratios = [name for name, e in self.metrics.items() if e.metric and e.metric.ratio]
        return listed_findings(share_findings(each, ratios))

    @property
    def named_findings(self) -> list[Finding]:
        """Findings of the log, and of each target under its name, if there are several."""
        findings, several = [*self.findings], len(self.targets) > 1
        for name, result in self.targets.items():
            own = name if several else ""
            findings += [replace(f, target=own) for f in result.findings]
        return findings

    @property
    def target_findings(self) -> list[Finding]:
        """Findings of all targets; a finding that all targets share appears once."""
        results = self.targets.values()
        shared = set.intersection(*(set(result.findings) for result in results))
        own = [
            replace(finding, target=name)
            for name, result in self.targets.items()
            for finding in result.findings
            if finding not in shared
        ]
        return [*(f for f in next(iter(results)).findings if f in shared), *own]

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per target and estimator, with unrounded numbers.

        With `metrics`, one per metric, target and estimator.
        """
        if self.metrics:
            every = [(name, row) for name, e in self.metrics.items() for row in e.to_dicts()]
            return [{"metric": name, **row} for name, row in every]
        return [
            {"target": name, **self._estimate(result, estimator)}
            for name, result in self.targets.items()
            for estimator in result.estimates
        ]

    def _estimate(self, result: TargetResult, estimator: str) -> Row:
        estimate, interval = result.estimates[estimator], result.intervals[estimator]
        return {
            "estimator": estimator,
            "value": estimate.value,
            "std_error": estimate.std_error,
            "lower": interval.lower,
            "upper": interval.upper,
            "level": interval.level,
        }

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        row = {"headline": self.headline, **self._uncompared()}
        row |= {"metrics": self._metrics} if self.metrics else {}
        row |= {"distribution": self.distribution.to_dict()} if self.distribution else {}
        row |= {"segments": self.segments.to_dict()} if self.segments else {}
        row |= {"backtest": self.backtest.to_dict()} if self.backtest else {}
        if self.position_bias is not None:
            row["position_bias"] = self.position_bias.to_dict()
        return (
            row if self.comparison is None else row | {"comparison": self.comparison.to_dict()}
        )

    @property
    def _metrics(self) -> list[Row]:
        """The recommended estimates of every metric, with the differences."""
        return [
            {
                "metric": name,
                **({} if e.metric is None else e.metric.to_dict()),
                "targets": [e.summarise(target) for target in e.targets],
            }
            for name, e in self.metrics.items()
        ]

    def summarise(self, target: str) -> Row:
        """Return the recommended estimate of a target, and its difference from the baseline."""
        result = self.targets[target]
        row: Row = {"target": target, "estimator": result.recommended or None}
        if result.recommended:
            row |= self._estimate(result, result.recommended)
        if target in self.differences:
            row["difference"] = self.differences[target].to_dict()
        return row

    def _uncompared(self) -> Row:
        """Return everything but the comparison, which takes longer than all the rest."""
        measured: Row = {} if self.metric is None else {"measured": self.metric.to_dict()}
        return measured | {
            "baseline": {"name": self.baseline, "reason": self.baseline_reason or "named"},
            "targets": [self._target(name) for name in self.targets],
            "loggers": [
                {"logger": i, "rows": n, "mean_reward": self.mean_reward[i]}
                for i, n in self.rows.items()
            ],
            "reward": self.reward,
            "warnings": self.warnings,
            "fingerprint": self.fingerprint,
            **of_requests(self.rows_per_request),
        }

    def _target(self, name: str) -> Row:
        result = self.targets[name]
        estimates = [
            {
                **self._estimate(result, e),
                "shares": dict(estimate.shares),
                "recommended": e == result.recommended,
                "assumes_fixed": e in result.pooling,
            }
            for e, estimate in result.estimates.items()
        ]
        if result.support is not None:
            for e in estimates:
                e["support"] = result.supported(str(e["estimator"]))
        entry: Row = {"target": name, "estimates": estimates}
        if name in self.differences:
            entry["difference"] = self.differences[name].to_dict()
        if name in self.truth:
            entry["truth"] = self.truth[name]
        entry["loggers"] = [
            {"logger": i, **overlap.to_dict(), **result.diagnosis.of_logger(i)}
            for i, overlap in result.loggers.items()
        ]
        if result.mixture is not None:
            entry["mixture"] = result.mixture.to_dict()
        entry |= {} if result.over_time is None else result.over_time.to_dict()
        return entry | result.diagnosis.to_dict()

    @property
    def opening(self) -> Sequence[str]:
        return (self.headline,)

    def grids(self) -> list[Grid]:
        """Return all tables, in reading order."""
        facts = self._uncompared()
        parts = (self.distribution, self.backtest, self.position_bias)
        tested = [grid for part in parts if part is not None for grid in part.grids()]
        tables = [*evaluation_tables(facts), *period_tables(facts), *tested]
        return [*self._measured(), *tables, *self._segmented()]

    def brief(self) -> list[Grid]:
        """Return the table of the estimates."""
        own = self._measured() or [main_table(self._uncompared())]
        shown = [] if self.distribution is None else self.distribution.grids()
        return [*own, *shown, *self._segmented()]

    def _measured(self) -> list[Grid]:
        """Return the table of all metrics, if there are several."""
        if not self.metrics:
            return []
        return [metrics_table(self._uncompared() | {"metrics": self._metrics})]

    def _segmented(self) -> list[Grid]:
        return [] if self.segments is None else self.segments.grids()

    @property
    def sentences(self) -> Sequence[str]:
        return self.segments.sentences if self.segments else ()


def check_lift(lift: float, power: float) -> None:
    """Reject a lift of 0, and a power that is not a probability."""
    if not (0 < abs(lift) < math.inf and 0 < power < 1):
        raise UsageError(
            f"lift must be finite and not 0, power between 0 and 1, got {lift:g} and {power:g}"
        )
