"""Evaluate: read the log, estimate each target, diagnose.

`results_of` turns the answers of a pass into results; every verb uses it, so every verb
reports the same findings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from poolwise.diagnosis.findings import AS_NAIVE, few_rewarded, judge, no_cross_propensities
from poolwise.diagnosis.leave_one_out import errors, errors_without
from poolwise.diagnosis.overlap import diagnose, mixed_overlap, own_overlap
from poolwise.diagnosis.trained import HONEST, conflicts, on_own_log, pools, target_on_log
from poolwise.engines.base import SingleRows
from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.estimators.crossfit import CrossFitted
from poolwise.evaluation.families import comparing, needs_beside, recommended
from poolwise.evaluation.read import opened
from poolwise.evaluation.request import request
from poolwise.evaluation.results import Evaluation, TargetResult
from poolwise.intervals.guarantees import by_betting, from_moments
from poolwise.intervals.student import Interval, Limits, default_interval, one_sided
from poolwise.moments.buckets import BUCKETS, Split, bootstrap, jackknife
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, WEIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.diagnosis.leave_one_out import Errors
    from poolwise.engines.base import EngineLike
    from poolwise.evaluation.read import Answers, OpenLog
    from poolwise.evaluation.request import IntervalMethod, Request
    from poolwise.intervals.student import Sides
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.moments import Moments, MomentsByLogger
    from poolwise.moments.terms import Term
    from poolwise.rows.reward_model import ModelLike

BOOTSTRAP_SEED = 20170813  # the same rows give the same interval
STEPS = 2**26  # of a fingerprint to each doubling: eight digits
# Round numbers (halves, tenths, integers) must not lie where a cut is made, or rounding
# would decide on which side they fall: cuts are at odd offsets.
ODD, BETWEEN = math.pi / 3, 1 / math.pi


def evaluate(  # noqa: PLR0913 - options are keyword-only, each with a default
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    estimators: Sequence[str | Estimator] | str | Estimator | None = None,
    *,
    level: float = 0.95,
    interval: IntervalMethod = "auto",
    sides: Sides = "two",
    engine: EngineLike = None,
    truth: Mapping[str, float] | None = None,
    which_logs: bool = False,
    model: ModelLike | None = None,
) -> Evaluation:
    """Estimate the value of each target with each estimator, in one pass over the log.

    Args:
        log: The rows and what their columns mean.
        targets: Probability of the logged action under each new policy, by name: a
            column, a SQL expression or a `Policy`. A single one is called "target".
        estimators: Names or objects. By default calibrated and the estimators it is compared
            with; one that the log cannot serve becomes a finding. An estimator named here
            that the log cannot serve is an error.
        level: Level of the intervals.
        interval: "student" (stratified, Satterthwaite), "jackknife" or "bootstrap" over
            buckets of rows; "auto" is the jackknife where the log names a `cluster`.
            "bernstein", "betting" and "likelihood" bound the value itself, the same for
            every estimator; they need the log's `reward_range`.
        sides: "two", or "lower" or "upper" for a one-sided bound.
        engine: "duckdb" (the default, in this process), "spark", a SparkSession, or an
            object such as ``DuckDB(threads=4)``.
        truth: True values of the targets, where they are known.
        which_logs: Also report standard errors with each logger left out, which reads the
            log once more for each.
        model: A reward model for the doubly robust estimators and for calibrated: a
            scikit-learn regressor or classifier, a `RewardModel`, or a `GivenModel`.
    """
    asked = request(
        log, targets, estimators, level=level, interval=interval, sides=sides, model=model
    )
    with opened(asked, engine) as rows:
        pair_needs = needs_beside(rows)
        answers = rows.read(pair_needs)
        aside = _aside(rows, which_logs=which_logs)
    evaluation = replace(results_of(asked, answers, rows, aside), truth=truth or {})
    if not pair_needs.groups:
        return evaluation
    name = recommended(list(rows.served.estimators))
    pairs = comparing(asked, answers, evaluation, pair_needs, name)
    return replace(evaluation, pairs=pairs)


@dataclass(frozen=True)
class Aside:
    """Answers that need the rows once more.

    Attributes:
        bets: Betting interval of each target.
        without: Standard errors of each target with each logger left out.
    """

    bets: Mapping[str, Interval] = field(default_factory=dict)
    without: Mapping[str, Mapping[str, Errors]] = field(default_factory=dict)


def _aside(rows: OpenLog, *, which_logs: bool) -> Aside:
    asked = rows.request
    bets = {}
    if asked.method == "betting":
        if not isinstance(rows.rows, SingleRows):
            raise UsageError(
                "interval='betting' reads single rows, which requires the DuckDB engine"
            )
        bets = {
            name: by_betting(rows.rows, name, asked.log, asked.level, asked.sides)
            for name in asked.names
        }
    if not (which_logs and asked.log.crossed):
        return Aside(bets)
    buckets = BUCKETS if asked.method == "jackknife" else 1
    return Aside(bets, errors_without(rows.rows, asked.names, buckets))


def results_of(
    asked: Request, answers: Answers, rows: OpenLog, aside: Aside | None = None
) -> Evaluation:
    """Estimate and diagnose every target of a request."""
    judged = _Judge(asked, answers, rows, aside or Aside())
    results = {name: judged.result(name) for name in asked.names}
    fallen = [n for code, n in AS_NAIVE.items() if code in judged.codes]
    served = rows.served
    lacking = no_cross_propensities(served.uncrossed, fallen, answers.loggers)
    wholes = {name: split.whole for name, split in answers.splits.items()}
    first = next(iter(wholes.values()))
    return Evaluation(
        targets=results,
        rows={i: first[i].count for i in answers.loggers},
        mean_reward={i: first[i].mean(REWARD) for i in answers.loggers},
        level=asked.level,
        findings=(*answers.findings, *lacking, *served.refused, *asked.findings),
        fingerprint=fingerprint(wholes, crossed=asked.log.crossed),
    )


@dataclass(frozen=True, eq=False)
class _Judge:
    """Estimates and diagnoses targets; `codes` collects the codes of their findings."""

    asked: Request
    answers: Answers
    rows: OpenLog
    aside: Aside
    codes: set[str] = field(default_factory=set)

    @property
    def _estimators(self) -> Mapping[str, Estimator]:
        return self.rows.served.estimators

    def result(self, target: str) -> TargetResult:
        """Return estimates, intervals, diagnosis and findings of one target."""
        split, view = self.answers.splits[target], self.answers.view(target)
        crossed = self.asked.log.crossed
        estimates, intervals, findings = self._estimate_all(split)
        own = own_overlap(view, split.buckets, crossed=crossed)
        mixed = mixed_overlap(view, split.buckets) if crossed else None
        diagnosis = diagnose(view, split.buckets, self.asked.level, crossed=crossed)
        without = self.aside.without.get(target, {})
        if without:
            diagnosis = replace(diagnosis, with_all=errors(split), without=without)
        trained = self._honest(target, split, estimates, intervals)
        findings += self._guaranteed(target, estimates, intervals)
        findings += few_rewarded(view, crossed=crossed)
        judged = judge(own, mixed, diagnosis, {i: m.count for i, m in view.items()})
        codes = {f.code for f in findings}
        self.codes.update(codes)
        new = [f for f in judged if f.code not in codes]
        told = dict.fromkeys([*findings, *trained, *new])
        if self.rows.served.uncrossed:  # one finding of the log covers these
            told = {f: None for f in told if f.code not in AS_NAIVE}
        ordered = tuple(sorted(told, key=lambda f: f.rank))
        return TargetResult(estimates, intervals, own, mixed, ordered, diagnosis)

    def _estimate_all(
        self, split: Split
    ) -> tuple[dict[str, Estimate], dict[str, Interval], list[Finding]]:
        estimates, intervals, findings = {}, {}, []
        for name, estimator in self._estimators.items():
            try:
                estimate, interval, notes = self._estimate(estimator, split)
            except RefusedError as reason:
                if self.asked.strict:
                    raise
                findings.append(Finding(reason.code, str(reason)))
                continue
            estimates[name], intervals[name] = estimate, interval
            findings += [*estimate.findings, *notes]
        return estimates, intervals, findings

    def _estimate(
        self, estimator: Estimator, split: Split
    ) -> tuple[Estimate, Interval, tuple[Finding, ...]]:
        method, asked = self.asked.method, self.asked
        if isinstance(estimator, CrossFitted):
            estimate = estimator.estimate_folds(split.buckets)
            if method == "jackknife":  # folds change the value a little, its error less
                spread = jackknife(estimator, split)
                estimate = replace(estimate, variance=spread.variance, freedom=spread.freedom)
        elif method == "jackknife" or asked.clustered:
            estimate = jackknife(estimator, split)
        else:
            estimate = estimator.estimate(split.whole)
        interval, notes = default_interval(
            estimate, asked.level, limits_of(asked, split), asked.sides
        )
        if method == "bootstrap" and not notes:
            interval = self._percentiles(estimator, split)
        return estimate, interval, notes

    def _percentiles(self, estimator: Estimator, split: Split) -> Interval:
        values = bootstrap(estimator, split, np.random.default_rng(BOOTSTRAP_SEED))
        level, sides = self.asked.level, self.asked.sides
        tail = (1 - level) / 2 if sides == "two" else 1 - level
        lower, upper = (float(q) for q in np.quantile(values, [tail, 1 - tail]))
        return one_sided(Interval(lower, upper, level), sides)

    def _honest(
        self,
        target: str,
        split: Split,
        estimates: dict[str, Estimate],
        intervals: dict[str, Interval],
    ) -> list[Finding]:
        """Where a logger was trained on a log of these, replace intervals that pool."""
        loggers = self.answers.loggers
        trained = conflicts(self.asked.log.trained_on, loggers)
        findings = [target_on_log(target, trained[target])] if target in trained else []
        on_own = {i: logs for i, logs in trained.items() if i in loggers}
        if not on_own or not self.asked.log.crossed:
            return findings
        replaced = [
            n for n, e in self._estimators.items() if n in intervals and pools(e, loggers)
        ]
        try:
            estimate, interval, notes = self._estimate(HONEST, split)
        except RefusedError:
            return [*findings, on_own_log(on_own, replaced=())]
        estimates[HONEST.name] = estimate
        intervals.update(dict.fromkeys([*replaced, HONEST.name], interval))
        return [*findings, on_own_log(on_own, replaced=replaced), *notes]

    def _guaranteed(
        self, target: str, estimates: Mapping[str, Estimate], intervals: dict[str, Interval]
    ) -> tuple[Finding, ...]:
        """Give the interval of the value itself to every estimator, where it was requested."""
        asked = self.asked
        findings: tuple[Finding, ...] = ()
        if asked.method == "betting":
            interval = self.aside.bets[target]
        elif asked.method in {"bernstein", "likelihood"}:
            view = self.answers.splits[target].whole
            interval, findings = from_moments(
                asked.method, view, asked.log, asked.level, asked.sides
            )
        else:
            return ()
        intervals.update(dict.fromkeys(estimates, interval))
        return findings


def limits_of(asked: Request, split: Split) -> Limits:
    """Return the bounds on the rows of a target, for intervals without spread."""
    weights = (WEIGHT, BALANCED_WEIGHT) if asked.log.crossed else (WEIGHT,)
    whole = split.whole.values()
    rows = sum(m.count for m in whole)
    return Limits(
        rows=min(rows, len(split.buckets)) if asked.clustered else rows,  # independent ones
        reward_range=asked.log.reward_range,
        largest_weight=max(m.max(w) for m in whole for w in weights),
    )


def fingerprint(views: Mapping[str, MomentsByLogger], *, crossed: bool) -> str:
    """Return a hash of the rows with the probabilities of their policies.

    Two results with the same hash rest on the same rows.  It digests counts, rewards and
    weights of each logger, cut to eight digits: threads and the order of rows change the
    last digits of a sum.

    Args:
        views: Moments of each logger, by target.
        crossed: Whether the mixture is known.
    """
    digest = sha256()
    terms = (REWARD, WEIGHT, BALANCED_WEIGHT) if crossed else (REWARD, WEIGHT)
    for target, view in sorted(views.items()):
        for logger, moments in sorted(view.items()):
            line = (target, logger, moments.count, *_numbers(moments, terms))
            digest.update(f"{line!r}\n".encode())
    return digest.hexdigest()[:16]


def _numbers(moments: Moments, terms: Sequence[Term]) -> list[tuple[int, int]]:
    return [number for term in terms for number in _of_term(moments, term)]


def _of_term(moments: Moments, term: Term) -> list[tuple[int, int]]:
    low, high, mean = moments.min(term), moments.max(term), moments.mean(term)
    # a sum with cancellation is known to the digits of its largest summands
    scale = abs(mean) if low >= 0 else max(-low, abs(high))
    return [cut(low, abs(low)), cut(high, abs(high)), cut(mean, scale)]


def cut(value: float, scale: float) -> tuple[int, int]:
    """Return a number to eight digits of a scale: power of two and steps within it.

    >>> cut(0.3, 0.3) == cut(0.1 + 0.2, 0.1 + 0.2)
    True
    >>> cut(0.5, 0.5) == cut(0.5000001, 0.5000001)
    False
    """
    if scale == 0 or not math.isfinite(value / scale):
        return 0, 0
    power = math.floor(math.log2(scale * ODD))
    return power, math.floor(math.ldexp(value, -power) * STEPS + BETWEEN)
