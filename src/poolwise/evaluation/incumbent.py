"""Incumbent: the policy that is in use, and the difference of each target from it.

Where every logger scores every row, the incumbent's own policy is estimated from the same
rows as the target, and the errors that both share cancel.  Otherwise its value is the mean
reward of its own rows; these rows are in the estimate of the target too, and the covariance
of the moments accounts for that.  The differences of several targets hold together
(Bonferroni), because a sentence reports the highest of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from scipy.special import ndtr, ndtri

from poolwise.diagnosis.provenance import on_own
from poolwise.errors import RefusedError, UsageError, did_you_mean
from poolwise.evaluation.contrasts import Candidates, firsts
from poolwise.evaluation.periods import (
    at_first,
    is_periodic,
    needs_of,
    own_mean,
    strata_of,
    suited,
)
from poolwise.intervals.simultaneous import ALONE
from poolwise.intervals.student import Interval, tail_of
from poolwise.moments.estimate import estimated
from poolwise.moments.moments import selected, selected_each
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, Factor, Needs, Term, ratio
from poolwise.report.sentence import preferred

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from poolwise.errors import Finding
    from poolwise.evaluation.output import Row
    from poolwise.evaluation.read import Answers, OpenLog
    from poolwise.evaluation.results import TargetResult
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.moments import Moments, MomentsByLogger

Verdict = Literal["better", "worse", "undecided", "identical", "unreliable"]
Requirement = Literal["better", "not-worse"]
FLIPPED: Mapping[Verdict, Verdict] = {"better": "worse", "worse": "better"}
DOUBTED = frozenset({"weights-off", "propensities-off"})  # probabilities cannot be right
TARGET, INCUMBENT = "target", "incumbent"  # names of the two sides in a contrast
NOTHING = Needs()
OF_POLICY = frozenset({"reward", "ratio", "balanced_weight", "period_weight"})  # of loggers too
RATIOS = {"balanced_weight": "ratio", "period_weight": "period_ratio"}  # of a logger's policy


@dataclass(frozen=True)
class Difference:
    """One target less another.

    Attributes:
        target: The target.
        other: The target that is subtracted.
        value: Estimated difference, paired by row.
        std_error: Standard error of `value`.
        interval: Interval that holds for all reported differences together. In a comparison
            it includes 0 where the ranking contradicts `value`.
        p_value: P-value of no difference, for this pair alone.
        adjusted: P-value adjusted for all of them, by single-step max-T in a comparison and by
            Bonferroni in an evaluation: below 1 - level if and only if the interval excludes 0.
        verdict: "better" or "worse" where the interval excludes 0; "unreliable" where an alarm
            says that the probabilities of either target cannot be right.
    """

    target: str
    other: str
    value: float
    std_error: float
    interval: Interval
    p_value: float
    adjusted: float
    verdict: Verdict

    def against(self, baseline: str) -> Difference:
        """Return the difference with the baseline as the target that is subtracted."""
        if self.other == baseline:
            return self
        return replace(
            self,
            target=self.other,
            other=self.target,
            value=-self.value,
            interval=Interval(-self.interval.upper, -self.interval.lower, self.interval.level),
            verdict=FLIPPED.get(self.verdict, self.verdict),
        )

    def lack(self, required: Requirement, margin: float) -> str:
        """Return the reason why a requirement does not hold; empty if it does."""
        if self.verdict == "unreliable":
            return f"the probabilities of {self.target!r} or {self.other!r} cannot be right"
        if self.verdict == "identical" and required == "not-worse":
            return ""
        bound = margin if required == "better" else -margin
        if self.interval.lower > bound:
            return ""
        start = f"the interval of {self.target!r} less {self.other!r} begins at"
        return f"{start} {self.interval.lower:.4g}, not above {bound:g}"

    def to_dict(self) -> Row:
        """Return the difference under flat names."""
        ends = {"lower": self.interval.lower, "upper": self.interval.upper}
        row = {"target": self.target, "other": self.other, "difference": self.value}
        rest = {k: getattr(self, k) for k in ("p_value", "adjusted", "verdict")}
        return {**row, "std_error": self.std_error, **ends, **rest}


def doubts(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the codes of alarms that say that probabilities cannot be right."""
    return tuple(sorted(DOUBTED & {finding.code for finding in findings}))


def verdict_of(interval: Interval, *, doubted: bool) -> Verdict:
    """Return the verdict of a difference with this interval."""
    if doubted:
        return "unreliable"
    if 0.0 in interval:
        return "undecided"
    return "better" if interval.lower > 0 else "worse"


@dataclass(frozen=True)
class Incumbent:
    """The logger that targets are compared with.

    Attributes:
        name: Label of the logger.
        reason: Reason for the choice, "largest logger" for example; empty if it was named.
        estimator: Name of the estimator of the differences.
        joins: Whether the logger's own policy is estimated from the rows of all loggers.
        needs: Moments of the differences, for one target.
    """

    name: str
    reason: str
    estimator: str
    joins: bool = False
    needs: Needs = NOTHING

    def differences(
        self, answers: Answers, results: Mapping[str, TargetResult]
    ) -> dict[str, Difference]:
        """Return each target less the incumbent; targets without an estimate have none."""
        level = answers.request.level
        tail = (1 - level) / len(results)
        differences = {}
        for target, result in results.items():
            if result.estimates:
                difference = self._difference(answers, target, result, tail)
                interval = replace(difference.interval, level=level)
                differences[target] = replace(
                    difference,
                    interval=interval,
                    adjusted=min(1.0, difference.p_value * len(results)),
                    verdict="identical"
                    if difference.verdict == "identical"
                    else verdict_of(interval, doubted=bool(doubts(result.findings))),
                )
        return differences

    def _difference(
        self, answers: Answers, target: str, result: TargetResult, tail: float
    ) -> Difference:
        estimate = result.estimates.get(self.estimator)
        critical = -float(ndtri(tail / 2))
        if estimate is not None and estimate.linear.parts and self.needs.terms:
            try:
                return self._paired(answers, target, estimate, critical)
            except RefusedError:  # a finding of the target gives the reason
                pass
        return self._apart(answers, target, result, critical)

    def _paired(
        self, answers: Answers, target: str, estimate: Estimate, critical: float
    ) -> Difference:
        """Return the difference with the covariance of both sides."""
        answers = suited(answers, answers.served.estimators[self.estimator])
        split, clustered = answers.splits[target], answers.request.clustered
        (whole,) = self._sides([split.whole])
        sides = {TARGET: estimate, INCUMBENT: self._own(answers, split.whole)}
        clusters = self._sides(split.buckets) if clustered else ()
        spread = Candidates(sides, whole, clusters).differences([(TARGET, INCUMBENT)])
        (value,), (error,) = spread.values.tolist(), spread.errors.tolist()
        (lower,), (upper,) = (ends.tolist() for ends in spread.limits(critical))
        first = firsts(whole, list(sides), BALANCED_WEIGHT) if self.joins else {}
        if first.get(INCUMBENT) == TARGET:
            nothing = Interval(0.0, 0.0, answers.request.level)
            return Difference(target, self.name, 0.0, 0.0, nothing, 1.0, 1.0, "identical")
        if error == 0:  # rows without spread bound no difference
            lower, upper = -math.inf, math.inf
        p_value = float(ALONE.p_values(spread.scores())[0])
        interval = Interval(lower, upper, answers.request.level)
        return Difference(target, self.name, value, error, interval, p_value, 1.0, "undecided")

    def _sides(self, buckets: Buckets) -> list[dict[str, Moments]]:
        """Return the moments of both sides, each under the terms of its own name."""
        terms = {t.bind(TARGET): t for t in self.needs.scattered}
        if self.joins:
            named = {t: _of_logger(t, self.name) for t in self.needs.scattered}
            terms |= {t.bind(INCUMBENT): own for t, own in named.items()}
        return selected_each(buckets, terms)

    def _own(self, answers: Answers, moments: MomentsByLogger) -> Estimate:
        """Return the incumbent's own value: that of its policy, or its mean reward."""
        if not self.joins:
            return estimated(own_mean(self.name, moments), moments)
        estimator = answers.served.estimators[self.estimator]
        strata = tuple(moments) if is_periodic(estimator) else answers.loggers
        own = estimator.needs(strata, crossed=True)
        terms = {t: _of_logger(t, self.name) for t in (*own.terms, BALANCED_WEIGHT)}
        return estimator.estimate(selected(moments, terms))

    def _apart(
        self, answers: Answers, target: str, result: TargetResult, critical: float
    ) -> Difference:
        """Return the difference from the mean reward, without a covariance.

        The errors of both sides add up, which holds however they depend on each other.  The
        variance of rewards between m and M with mean r is at most (M - r) (r - m).
        """
        name = (
            self.estimator
            if self.estimator in result.estimates
            else next(iter(result.estimates))
        )
        estimate, interval = result.estimates[name], result.intervals[name]
        own = answers.splits[target].whole[self.name]
        mean = own.mean(REWARD)
        bound = (own.max(REWARD) - mean) * (mean - own.min(REWARD))
        error = math.sqrt(max(0.0, bound) / (own.count - 1)) if own.count > 1 else math.inf
        value, both = estimate.value - mean, estimate.std_error + error
        normal = -float(ndtri(tail_of(interval.level, answers.request.sides)))
        below = (estimate.value - interval.lower) / normal + error  # at a critical value of 1
        above = (interval.upper - estimate.value) / normal + error
        reach = below if value >= 0 else above
        p_value = 2 * float(ndtr(-abs(value) / reach)) if 0 < reach < math.inf else 1.0
        ends = Interval(value - critical * below, value + critical * above, interval.level)
        return Difference(target, self.name, value, both, ends, p_value, 1.0, "undecided")


def _of_logger(term: Term, logger: str) -> Term:
    """Return the term with the logger's policy in place of the target's."""
    ratios = {weight: Factor(name, logger) for weight, name in RATIOS.items()}
    return Term(tuple(sorted(ratios.get(f.name, f) for f in term.factors)))


def incumbent_of(rows: OpenLog, baseline: str | None) -> Incumbent:
    """Return the logger to compare with: the named one, or the one with the most rows."""
    asked, counts = rows.request, rows.rows.counts
    if baseline is not None and baseline not in counts:
        names = [*asked.names, *counts]
        hint = did_you_mean(baseline, names)
        raise UsageError(f"baseline {baseline!r} is neither a target nor a logger{hint}")
    name = max(counts, key=lambda i: counts[i]) if baseline is None else baseline
    largest = sum(count == max(counts.values()) for count in counts.values())
    default = "largest logger" if largest == 1 else "first of the largest loggers"
    default = default if len(counts) > 1 else "only logger"
    usable = rows.served.estimators
    estimator = preferred(usable)
    incumbent = Incumbent(name, "" if baseline else default, estimator)
    trained = asked.log.crossed and on_own(asked.log.trained_on, tuple(counts))
    if not estimator or trained or rows.rows.saved:
        return incumbent
    return _with_needs(incumbent, rows, usable[estimator])


def _with_needs(incumbent: Incumbent, rows: OpenLog, estimator: Estimator) -> Incumbent:
    """Return the incumbent with the moments of its differences."""
    asked, strata = rows.request, tuple(rows.rows.counts)
    strata = strata_of(rows.rows, asked.log) if is_periodic(estimator) else strata
    wanted = needs_of(estimator, strata, asked.log)
    own, means = wanted.scattered, wanted.means
    factors = [factor for term in own for factor in term.factors]
    joins = (
        asked.log.crossed
        and not asked.extra.mixture
        and all(f.name in OF_POLICY and not f.rule for f in factors)
        and incumbent.name in at_first(strata)
    )
    if joins:
        weights = (BALANCED_WEIGHT, ratio(incumbent.name))
        terms = {*own, *weights, *(_of_logger(t, incumbent.name) for t in own)}
    else:
        terms = {*own, REWARD}
    group = tuple(sorted(terms))
    shaped = asked.method == "skew" and rows.rows.shaped
    crossed = tuple(_of_logger(t, incumbent.name) for t in means) if joins else ()
    needs = Needs(crossed, (group,), slices=group if shaped else ())
    return replace(incumbent, joins=joins, needs=needs)
