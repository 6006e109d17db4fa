"""Metrics: the evaluations of several metrics from one pass.

Each metric has an `Evaluation` of its own, as if it were the reward of the log.  A ratio
divides the recommended estimates of two of them, with the moments of both together.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from poolwise.diagnosis.agreement import Diagnosis
from poolwise.diagnosis.provenance import on_own
from poolwise.errors import Finding, RefusedError
from poolwise.estimators import recommend
from poolwise.evaluation.decisive import INCUMBENT, TARGET
from poolwise.evaluation.differences import Bonferroni, Difference
from poolwise.evaluation.results import Evaluation, TargetResult
from poolwise.evaluation.spread import Candidates
from poolwise.evaluation.target import estimate_plainly, make_pairs, make_results
from poolwise.intervals.ratio import Ratio, divide_intervals
from poolwise.intervals.simultaneous import tail_above
from poolwise.intervals.student import Interval, one_sided, tail_probability
from poolwise.text import interval_text, with_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.evaluation.comparison import Comparison, Pairs
    from poolwise.evaluation.differences import Incumbent
    from poolwise.evaluation.read import Answers, Joint
    from poolwise.evaluation.sensitivity import Sensitivity
    from poolwise.log.metrics import Metric
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.pool import Pool
    from poolwise.moments.terms import Term


def add_metrics(
    evaluation: Evaluation,
    measures: Mapping[str, Evaluation],
    answers: Answers,
    incumbent: Incumbent,
    among: str,
) -> Evaluation:
    """Return the evaluation of the log's own reward with those of all metrics.

    Args:
        evaluation: Evaluation of the log's own reward.
        measures: Evaluations of other columns and expressions.
        answers: Moments of the pass.
        incumbent: The logger that targets are compared with.
        among: Target that is the baseline; empty if that is a logger.
    """
    asked = answers.request
    each = {"": evaluation, **measures}
    metrics = {}
    for name, metric in asked.metrics.items():
        own = each[asked.find_measure(metric.reward)]
        if metric.per is not None:
            below = each[asked.find_measure(metric.per)]
            divided = _Divided(name, metric, answers, own, below)
            own = divided.against(incumbent, among)
        differences = {t: d.facing(metric.sign) for t, d in own.differences.items()}
        metrics[name] = replace(own, metric=metric, differences=differences)
    return replace(evaluation, metrics=metrics)


def compare_metrics(
    answers: Answers, baseline: str, sensitivity: Sensitivity | None = None
) -> Comparison:
    """Return the comparison by the log's own reward, with those by all metrics.

    Args:
        answers: Moments of the pass.
        baseline: Name of the baseline, or empty.
        sensitivity: Rows of a log with estimated propensities; None for other logs.
    """
    asked = answers.request
    each = {m: make_results(answers.measuring(m)) for m in asked.measures}
    metrics = {}
    for name, metric in asked.metrics.items():
        measure = asked.find_measure(metric.reward)
        pairs, own = make_pairs(answers.measuring(measure)), each[measure]
        if metric.per is not None:
            below = each[asked.find_measure(metric.per)]
            divided = _Divided(name, metric, answers, own, below)
            own, pairs = divided.evaluation, divided.pairs
        own = replace(own, metric=metric)
        metrics[name] = pairs.rank(own, baseline)
    pairs = replace(make_pairs(answers), sensitivity=sensitivity)
    return replace(pairs.rank(each[""], baseline), metrics=metrics)


@dataclass(frozen=True, eq=False)
class _Divided:
    """A ratio of two measures, for all targets.

    Attributes:
        name: Name of the metric.
        metric: The metric.
        answers: Moments of the pass.
        above: Evaluation of the measure that is divided.
        below: Evaluation of the measure that divides it.
    """

    name: str
    metric: Metric
    answers: Answers
    above: Evaluation
    below: Evaluation

    @property
    def measures(self) -> tuple[str, str]:
        """The two measures."""
        find = self.answers.request.find_measure
        return find(self.metric.reward), find(self.metric.per or "")

    @property
    def joint(self) -> Joint:
        """Moments of both measures together."""
        return self.answers.ratios[self.measures]

    @cached_property
    def estimator(self) -> str:
        """Name of the estimator of both measures."""
        return recommend(self.answers.served.estimators)

    @cached_property
    def ratios(self) -> dict[str, Ratio]:
        """The ratio of each target that has one."""
        found = {target: self._divide(target) for target in self.answers.request.names}
        return {target: ratio for target, ratio in found.items() if ratio is not None}

    def _divide(self, target: str) -> Ratio | None:
        """Return the ratio of a target; None if its denominator may be 0."""
        shown = (self.above[target], self.below[target])
        if not all(self.estimator in result.estimates for result in shown):
            return None
        below = shown[1].estimates[self.estimator]
        if not below.value or 0.0 in self._interval(self.below, self.measures[1], target):
            return None
        above, below = (self._bound(target, m) for m in self.measures)
        ratio = Ratio(above, below, self.find_strata(self.joint.pools[target]))
        asked = self.answers.request
        alpha = tail_probability(asked.level, asked.sides)
        varies = ratio.estimate.variance > 0
        return None if varies and not (self.is_apart(ratio) or ratio.bounded(alpha)) else ratio

    @cached_property
    def evaluation(self) -> Evaluation:
        """The evaluation of the ratio, without differences."""
        targets = {name: self._result(name) for name in self.answers.request.names}
        return replace(
            self.above,
            targets=targets,
            mean_reward={i: self._divide_rewards(i) for i in self.above.rows},
            fingerprint=self._fingerprint,
            differences={},
            pairs=self.pairs if self.answers.compared else None,
            backtest=None,
            distribution=None,
        )

    def against(self, incumbent: Incumbent, among: str) -> Evaluation:
        """Return the evaluation of the ratio, with the differences from the baseline."""
        evaluation = self.evaluation
        if among:
            return evaluation.against(among)
        if incumbent.name not in self.answers.loggers:  # of a segment
            return evaluation
        differences = _Subtracted(self, incumbent).differences(evaluation.targets)
        return replace(evaluation, differences=differences)

    def is_apart(self, ratio: Ratio) -> bool:
        """Test if both sides of a ratio have intervals that moments do not combine.

        Heavy rows were set apart, or intervals are those of another estimator.
        """
        trained = on_own(self.answers.request.log.trained_on, self.answers.loggers)
        return bool(trained) or ratio.decided_by_few

    def _bound(self, target: str, measure: str) -> Estimate:
        """Return the estimate of a measure, with terms that name the measure."""
        answers = self.answers.measuring(measure)
        shown = (self.above if measure == self.measures[0] else self.below)[target]
        estimate = shown.estimates[self.estimator]
        if estimate.decisive is not None:  # its combination is one of other moments
            plain = estimate_plainly(answers, target, self.estimator)
            estimate = replace(estimate, linear=plain.linear)
        return replace(estimate, linear=estimate.linear.bind(measure=measure))

    def find_strata(self, pool: Pool) -> Pool:
        """Return moments with the strata that the estimator reads."""
        by_cell = self.answers.served.estimators[self.estimator].by_cell
        return pool if by_cell else pool.by_logger

    def _interval(self, evaluation: Evaluation, measure: str, target: str) -> Interval:
        """Return the two-sided interval of one measure."""
        answers, asked = self.answers.measuring(measure), self.answers.request
        result = evaluation[target]
        if asked.sides == "two":
            return result.intervals[self.estimator]
        pool = answers.pool(target, answers.served.estimators[self.estimator])
        estimate, limits = result.estimates[self.estimator], answers.limits(target)
        return asked.interval.surround(estimate, pool, asked.level, limits)[0]

    def _refusal(self, target: str) -> tuple[Finding, ...]:
        """Return the finding that the measure below is not significantly away from 0."""
        estimate = self.below[target].estimates[self.estimator]
        interval = self._interval(self.below, self.measures[1], target)
        value = with_error(estimate.value, estimate.std_error)
        ends = interval_text(interval.lower, interval.upper, estimate.std_error)
        advice = "Collect more rows, or divide by a measure that is seldom 0."
        if not estimate.variance:
            advice = f"{self.metric.per!r} is the same in every row: leave `per` out."
        return (
            Finding(
                "metric-refused",
                f"{self.name!r} is divided by {self.metric.per!r}, which is not significantly "
                f"away from 0: {value}, {100 * interval.level:g}% interval {ends}.",
                advice,
            ),
        )

    def _result(self, target: str) -> TargetResult:
        """Return estimate, interval and findings of one target."""
        asked = self.answers.request
        shown = (self.above[target], self.below[target])
        findings = tuple(dict.fromkeys(f for result in shown for f in result.findings))
        if target not in self.ratios:
            usable = all(self.estimator in result.estimates for result in shown)
            more = self._refusal(target) if usable else ()
            return TargetResult({}, {}, {}, None, (*findings, *more), Diagnosis())
        ratio = self.ratios[target]
        both = zip((self.above, self.below), self.measures, strict=True)
        apart = tuple(self._interval(e, m, target) for e, m in both)
        interval = ratio.interval(asked.level, asked.sides)
        if self.is_apart(ratio):
            ends = replace(divide_intervals(*apart), level=asked.level)
            interval = one_sided(ends, asked.sides)
        return TargetResult(
            {self.estimator: ratio.estimate},
            {self.estimator: interval},
            {},
            None,
            findings,
            Diagnosis(),
            recommended=self.estimator,
            pooling=shown[0].pooling & {self.estimator},
        )

    def _divide_rewards(self, logger: str) -> float:
        """Return the ratio of a logger's mean rewards; NaN where it has none."""
        below = self.below.mean_reward[logger]
        return self.above.mean_reward[logger] / below if below else math.nan

    @property
    def _fingerprint(self) -> str:
        parts = self.above.fingerprint + self.below.fingerprint
        return sha256(parts.encode()).hexdigest()[:16]

    @property
    def pairs(self) -> Pairs:
        """Moments from which targets are compared."""
        pairs = make_pairs(self.answers)
        return replace(
            pairs,
            pool=self.find_strata(self.joint.pairs),
            targets={name: self.find_strata(pool) for name, pool in self.joint.pools.items()},
            limits={k: replace(v, reward_range=None) for k, v in pairs.limits.items()},
            heavy=lambda _left, _right: None,
        )


@dataclass(frozen=True, eq=False)
class _Subtracted:
    """Differences of a ratio from that of the incumbent."""

    divided: _Divided
    incumbent: Incumbent

    def differences(self, results: Mapping[str, TargetResult]) -> dict[str, Difference]:
        """Return each target less the incumbent; targets without a ratio have none."""
        differences = {}
        for target in self.divided.ratios:
            apart = self.divided.is_apart(self.divided.ratios[target])
            if self.incumbent.needs.terms and not apart:
                with suppress(RefusedError):  # a finding of the target gives the reason
                    found = self._paired(target, results[target])
                    if found is not None:
                        differences[target] = found
            if target not in differences:
                found = self._apart(target, results[target])
                differences |= {} if found is None else {target: found}
        return differences

    def _paired(self, target: str, result: TargetResult) -> Difference | None:
        """Return the difference with the covariance of all four values."""
        divided, incumbent = self.divided, self.incumbent
        answers = divided.answers
        names: dict[Term, Term] = {}
        for measure in divided.measures:
            names |= incumbent.name_terms(measure)
        both = divided.find_strata(divided.joint.pools[target]).select(names)
        own = [
            incumbent.estimate_own(answers.measuring(m), target)[0] for m in divided.measures
        ]
        named = [
            replace(e, linear=e.linear.bind(INCUMBENT, m))
            for e, m in zip(own, divided.measures, strict=True)
        ]
        baseline, ratio = Ratio(named[0], named[1], both), divided.ratios[target]
        level = answers.request.level
        alpha = tail_above(Bonferroni(len(answers.request.names)).critical(level))
        if ratio.constant and baseline.constant:
            nothing = Interval(0.0, 0.0, level)
            return Difference(target, incumbent.name, 0.0, 0.0, nothing, 1.0, 1.0, "undecided")
        if not own[1].value or not baseline.bounded(alpha):
            return None
        candidates = Candidates(
            {TARGET: ratio.estimate, INCUMBENT: baseline.estimate},
            both,
            {TARGET: ratio.reach, INCUMBENT: baseline.reach},
        )
        return incumbent.subtract(candidates, answers, target, result, None)

    def _apart(self, target: str, result: TargetResult) -> Difference | None:
        """Return the difference from the ratio of mean rewards, without a covariance.

        Errors add up, which holds however they depend on each other.
        """
        answers = self.divided.answers
        level = answers.request.level
        means = [
            self.incumbent.bound_own(answers.measuring(m), target)
            for m in self.divided.measures
        ]
        critical = Bonferroni(len(answers.request.names)).critical(level)
        ends = [
            Interval(mean - critical * error, mean + critical * error, level)
            for mean, error in means
        ]
        baseline = divide_intervals(*ends)
        if not math.isfinite(baseline.upper - baseline.lower):
            return None
        own = means[0][0] / means[1][0]
        errors = ((own - baseline.lower) / critical, (baseline.upper - own) / critical)
        return self.incumbent.subtract_apart(answers, target, result, own, errors)
