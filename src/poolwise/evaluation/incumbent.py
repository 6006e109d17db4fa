"""Incumbent: the policy that is in use, and the difference of each target from it.

Where every logger scores every row, the incumbent's own policy is estimated from the same
rows as the target, and the errors that both share cancel.  Otherwise its value is the mean
reward of its own rows; these rows are in the estimate of the target too, and the covariance
of the moments accounts for that.  The differences of several targets hold together
(Bonferroni), because a sentence reports the highest of them.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scipy.special import ndtr, ndtri

from poolwise.diagnosis.provenance import on_own
from poolwise.errors import RefusedError, UsageError, did_you_mean
from poolwise.estimators.period import PeriodBalanced
from poolwise.evaluation.contrasts import Candidates, firsts
from poolwise.evaluation.output import Difference, doubts, identical, verdict_of
from poolwise.evaluation.target import limits_of
from poolwise.intervals.simultaneous import ALONE
from poolwise.intervals.skew import reaching
from poolwise.intervals.student import Interval, tail_of, within
from poolwise.moments.buckets import Split
from poolwise.moments.cells import Cell
from poolwise.moments.estimate import estimated
from poolwise.moments.linear import Linear, shares, stacked
from poolwise.moments.moments import selected, selected_each
from poolwise.moments.shape import weight_of
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, Factor, Needs, Term, ratio
from poolwise.report.sentence import preferred

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.evaluation.read import Answers, OpenLog
    from poolwise.evaluation.results import TargetResult
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.moments import Moments

TARGET, INCUMBENT = "target", "incumbent"  # names of the two sides in a contrast
NOTHING = Needs()
OF_POLICY = frozenset({"reward", "ratio", "balanced_weight", "period_weight"})  # of loggers too
RATIOS = {"balanced_weight": "ratio", "period_weight": "period_ratio"}  # of a logger's policy


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
        number = len(results)  # of intervals that hold together
        critical = -float(ndtri((1 - answers.request.level) / number / 2))
        differences = {}
        for target, result in results.items():
            if not result.estimates:
                continue
            difference = self._difference(answers, target, result, critical)
            if difference.verdict != "identical":
                adjusted = min(1.0, difference.p_value * number)
                doubted = bool(doubts(result.findings))
                verdict = verdict_of(difference.interval, doubted=doubted)
                difference = replace(difference, adjusted=adjusted, verdict=verdict)
            differences[target] = difference
        return differences

    def _difference(
        self, answers: Answers, target: str, result: TargetResult, critical: float
    ) -> Difference:
        estimate = result.estimates.get(self.estimator)
        if estimate is not None and estimate.linear.parts and self.needs.terms:
            with suppress(RefusedError):  # a finding of the target gives the reason
                return self._paired(answers, target, estimate, critical)
        return self._apart(answers, target, result, critical)

    def _paired(
        self, answers: Answers, target: str, estimate: Estimate, critical: float
    ) -> Difference:
        """Return the difference with the covariance of both sides."""
        answers = answers.suited(answers.served.estimators[self.estimator])
        split, clustered = answers.splits[target], answers.request.clustered
        (whole,) = self._sides([split.whole])
        own, rows = self._own(answers, split)
        sides, splits = {TARGET: estimate, INCUMBENT: own}, {TARGET: split, INCUMBENT: rows}
        clusters = self._sides(split.buckets) if clustered else ()
        limits = limits_of(answers.request, split)
        if clustered:
            between = own.linear.deviation_variance(rows.whole, rows.buckets)
            own = replace(own, variance=between[0], freedom=between[1])
        alone = {TARGET: estimate, INCUMBENT: own}
        reaches = {n: reaching(alone[n], s.whole, s.buckets, limits) for n, s in splits.items()}
        candidates = Candidates(sides, whole, clusters, reaches)
        spread = candidates.differences([(TARGET, INCUMBENT)])
        (value,), (error,) = spread.values.tolist(), spread.errors.tolist()
        (lower,), (upper,) = (ends.tolist() for ends in spread.limits(critical))
        first = firsts(whole, list(sides), BALANCED_WEIGHT) if self.joins else {}
        if first.get(INCUMBENT) == TARGET:
            return identical(target, self.name, answers.request.level)
        if error == 0:  # rows without spread bound no difference
            lower, upper = -math.inf, math.inf
        p_value = float(ALONE.p_values(spread.scores())[0])
        interval = within(Interval(lower, upper, answers.request.level), limits.reward_range)
        return Difference(target, self.name, value, error, interval, p_value, 1.0, "undecided")

    def _sides(self, buckets: Buckets) -> list[dict[str, Moments]]:
        """Return the moments of both sides, each under the terms of its own name."""
        terms = {t.bind(TARGET): t for t in self.needs.scattered}
        if self.joins:
            named = {t: _of_logger(t, self.name) for t in self.needs.scattered}
            terms |= {t.bind(INCUMBENT): own for t, own in named.items()}
        return selected_each(buckets, terms)

    def _own(self, answers: Answers, split: Split) -> tuple[Estimate, Split]:
        """Return the incumbent's own value, and the moments behind it.

        It is that of its policy, or its mean reward.
        """
        moments = split.whole
        if self.joins:
            estimator = answers.served.estimators[self.estimator]
            periodic = isinstance(estimator, PeriodBalanced)
            strata = tuple(moments) if periodic else answers.loggers  # not as in buckets
            own = estimator.needs(strata, crossed=True)
            terms = {t: _of_logger(t, self.name) for t in (*own.terms, BALANCED_WEIGHT)}
            split = Split(selected_each(split.buckets, terms))
            estimate = estimator.estimate(selected(moments, terms))
        else:
            counts = {
                i: m.count for i, m in moments.items() if getattr(i, "logger", i) == self.name
            }
            parts = {i: {REWARD: share} for i, share in shares(counts).items()}
            estimate = estimated(Linear(parts), moments)
        return estimate, split

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
        if answers.request.clustered:
            error = max(error, _clustered_error(answers.splits[target].buckets, self.name))
        value, both = estimate.value - mean, estimate.std_error + error
        normal = -float(ndtri(tail_of(interval.level, answers.request.sides)))
        below = (estimate.value - interval.lower) / normal + error  # at a critical value of 1
        above = (interval.upper - estimate.value) / normal + error
        reach = below if value >= 0 else above
        p_value = 2 * float(ndtr(-abs(value) / reach)) if 0 < reach < math.inf else 1.0
        level = answers.request.level
        ends = Interval(value - critical * below, value + critical * above, level)
        ends = within(ends, answers.request.log.reward_range)
        return Difference(target, self.name, value, both, ends, p_value, 1.0, "undecided")


def _clustered_error(buckets: Buckets, logger: str) -> float:
    """Return the error of a logger's mean reward, from buckets of clusters."""
    present, counts, means = stacked(buckets, logger, (REWARD,))
    if len(present) < 2:
        return math.inf
    total = counts.sum()
    sums = counts * (means[:, 0] - counts @ means[:, 0] / total)
    return math.sqrt(len(present) / (len(present) - 1) * float(sums @ sums)) / float(total)


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
    asked, wanted = rows.request, rows.needs_of(estimator)
    own, means = wanted.scattered, wanted.means
    factors = [factor for term in own for factor in term.factors]
    joins = (
        asked.log.crossed
        and not asked.extra.mixture
        and all(f.name in OF_POLICY and not f.rule for f in factors)
        and incumbent.name in _at_first(rows.strata_of(estimator))
    )
    if joins:
        weights = (BALANCED_WEIGHT, ratio(incumbent.name))
        terms = {*own, *weights, *(_of_logger(t, incumbent.name) for t in own)}
    else:
        terms = {*own, REWARD, *(w for t in own if (w := weight_of(t)) is not None)}
    group = tuple(sorted(terms))
    shaped = asked.method == "skew" and rows.rows.shaped
    crossed = tuple(_of_logger(t, incumbent.name) for t in means) if joins else ()
    needs = Needs(crossed, (group,), slices=group if shaped else ())
    return replace(incumbent, joins=joins, needs=needs)


def _at_first(strata: Sequence[str]) -> set[str]:
    """Return the loggers that were live in the first period: no row of the log trained them.

    All loggers, if the strata are not cells.
    """
    cells = [i for i in strata if isinstance(i, Cell)]
    if not cells:
        return set(strata)
    return {cell.logger for cell in cells if cell.period == cells[0].period}
