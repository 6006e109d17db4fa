"""Evaluate: read the log, estimate each target, diagnose.

`results_of` turns the answers of a pass into results; every verb uses it, so every verb
reports the same findings.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.diagnosis.agreement import diagnose
from poolwise.diagnosis.findings import AS_NAIVE, few_rewarded, judge, no_cross_propensities
from poolwise.diagnosis.overlap import mixed_overlap, own_overlap
from poolwise.diagnosis.provenance import (
    HONEST,
    conflicts,
    on_own,
    on_own_log,
    pools,
    target_on_log,
)
from poolwise.engines import with_loggers
from poolwise.engines.base import BlockRows
from poolwise.engines.live import by_clean, by_live
from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.estimators.crossfit import CrossFitted
from poolwise.evaluation.incumbent import incumbent_of
from poolwise.evaluation.left_out import errors_of, without_each
from poolwise.evaluation.output import fingerprint
from poolwise.evaluation.periods import (
    course_of,
    fixed_beforehand,
    is_periodic,
    suited,
    superseded,
)
from poolwise.evaluation.read import request
from poolwise.evaluation.results import Evaluation, Pairs, TargetResult
from poolwise.evaluation.segment_rows import opened_by
from poolwise.evaluation.segments import segments_of
from poolwise.intervals.guarantees import by_betting, from_moments
from poolwise.intervals.skew import auto_interval
from poolwise.intervals.student import Interval, Limits, one_sided, student_interval, tail_of
from poolwise.moments.buckets import Split, bootstrap, jackknife
from poolwise.moments.moments import selected
from poolwise.moments.terms import (
    BALANCED_WEIGHT,
    PERIOD_WEIGHT,
    REWARD,
    WEIGHT,
    Needs,
)
from poolwise.report.sentence import preferred

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from poolwise.diagnosis.provenance import Conflicts
    from poolwise.engines.base import EngineLike
    from poolwise.evaluation.incumbent import Incumbent
    from poolwise.evaluation.left_out import Errors
    from poolwise.evaluation.read import Answers, IntervalMethod, OpenLog, Request
    from poolwise.intervals.student import Sides
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.rows.reward_model import ModelLike

MOST = 30  # targets that an evaluation compares by itself: 435 pairs
NONE: Mapping[str, Any] = {}
BOOTSTRAP_SEED = 20170813  # the same rows give the same interval


@by_clean
@by_live
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
    baseline: str | None = None,
    by: str | None = None,
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
        interval: "auto" is "skew", which allows for few effective rows, rare and heavy
            rewards, and clusters if the log names a `cluster`. "student" is symmetric
            (stratified, Satterthwaite); "jackknife" and "bootstrap" resample buckets.
            "betting", "smoothed", "bernstein" and "likelihood" bound the value itself, the
            same for every estimator; they need the log's `reward_range`.
        sides: "two", or "lower" or "upper" for a one-sided bound.
        engine: "duckdb" (the default, in this process), "spark", a SparkSession, or an
            object such as ``DuckDB(threads=4)``.
        truth: True values of the targets, where they are known.
        which_logs: Also report standard errors with each logger left out, which reads the
            log once more, in a warehouse and where rows are dropped once more for each.
        model: A reward model for the doubly robust estimators and for calibrated: a
            scikit-learn regressor or classifier, a `RewardModel`, or a `GivenModel`.
        baseline: Label of a logger, or name of a target, that the headline compares with. By
            default the logger with the most rows.
        by: Column or SQL expression of segments, such as a country: the same question for
            each, with intervals that hold together, in one more pass over the rows.
    """
    log = with_loggers(log, engine)
    asked = request(
        log, targets, estimators, level=level, interval=interval, sides=sides, model=model
    )
    among = baseline if baseline in asked.names else ""
    with opened_by(asked, engine, by) as rows:
        incumbent = incumbent_of(rows, None if among else baseline)
        answer = partial(_answered, incumbent=incumbent, among=among)
        compared = _compared(rows, always=bool(among))
        bets = partial(_bets, rows) if asked.method == "betting" else dict
        without = without_each(rows) if which_logs and log.crossed else {}
        evaluation = answer(rows, compared, bets, without)
        segments = None
        if by is not None:
            segments = segments_of(
                rows, by, partial(answer, compared=compared if among else "")
            )
    return replace(evaluation, truth=truth or {}, segments=segments)


def _answered(
    rows: OpenLog,
    compared: str,
    bets: Callable[[], Mapping[str, Interval]] = dict,
    without: Mapping[str, Mapping[str, Errors]] = NONE,
    *,
    incumbent: Incumbent,
    among: str,
) -> Evaluation:
    """Make the pass over rows and estimate; `among` is the target that is the baseline.

    Bets are placed after the pass, which rejects rows that break a rule.
    """
    needs = rows.served.needs | (Needs() if among else incumbent.needs)
    wider = replace(rows, served=replace(rows.served, needs=needs))
    answers = wider.read(compared)
    evaluation = replace(
        results_of(answers, bets(), without),
        pairs=pairs_of(answers) if answers.compared else None,
        baseline=among or incumbent.name,
        baseline_reason="" if among else incumbent.reason,
    )
    if among:
        return evaluation.against(among)
    if incumbent.name not in answers.loggers:  # of a segment
        return evaluation
    return replace(evaluation, differences=incumbent.differences(answers, evaluation.targets))


def _compared(rows: OpenLog, *, always: bool) -> str:
    """Return the estimator that targets are compared in, if they are compared.

    Unless `always`, they are not if there are more than `MOST`, or if a database would have
    to sum each pair of terms by name.
    """
    names, targets = rows.served.estimators, len(rows.request.targets)
    if targets < 2 or not (always or (targets <= MOST and rows.rows.by_kernel)):
        return ""
    plain = {n.removesuffix("-estimated"): n for n in names}
    return plain.get(preferred(plain), "")


def _bets(rows: OpenLog) -> dict[str, Interval]:
    """Return the betting interval of each target, from histograms of the rows."""
    asked = rows.request
    if not isinstance(rows.rows, BlockRows):
        raise UsageError(
            "interval='betting' reads the rows in blocks, which requires the DuckDB or the "
            "Spark engine; saved moments and databases have interval='smoothed'"
        )
    learned = on_own(asked.log.trained_on, tuple(rows.rows.counts))
    trained = bool(learned) and asked.log.period is None
    return by_betting(
        rows.rows, asked.names, asked.log, asked.level, asked.sides, trained=trained
    )


def results_of(
    answers: Answers,
    bets: Mapping[str, Interval] = NONE,
    without: Mapping[str, Mapping[str, Errors]] = NONE,
) -> Evaluation:
    """Estimate and diagnose every target of a request.

    Args:
        answers: Moments of the rows.
        bets: Betting interval of each target, where it was requested.
        without: Standard errors of each target with each logger left out, likewise.
    """
    asked, served, loggers = answers.request, answers.served, answers.loggers
    results = {
        name: _Target(answers, name).result(bets, without.get(name, NONE))
        for name in asked.names
    }
    codes = {f.code for r in results.values() for e in r.estimates.values() for f in e.findings}
    fallen = [name for code, name in AS_NAIVE.items() if code in codes]
    missing, live = asked.log.uncrossed(loggers), asked.log.mixed
    lacking = no_cross_propensities(served.uncrossed, fallen, missing, live=live)
    wholes = {name: split.whole for name, split in answers.splits.items()}
    first = next(iter(wholes.values()))
    return Evaluation(
        targets=results,
        rows={i: first[i].count for i in loggers},
        mean_reward={i: first[i].mean(REWARD) for i in loggers},
        level=asked.level,
        findings=(
            *answers.findings,
            *fixed_beforehand(answers),
            *lacking,
            *served.refused,
            *asked.findings,
        ),
        fingerprint=fingerprint(wholes, crossed=asked.log.crossed),
    )


def pairs_of(answers: Answers) -> Pairs:
    """Return the moments from which the targets are compared, without any row."""
    asked, terms = answers.request, {t: t for t in answers.pairs.terms}
    compared = answers.served.estimators[answers.compared]
    answers = suited(answers, compared)
    trained = on_own(asked.log.trained_on, answers.loggers)
    return Pairs(
        estimator=answers.compared,
        moments={
            i: replace(m, tails={}, histograms={})
            for i, m in selected(answers.whole, terms).items()
        },
        clusters=answers.means if asked.clustered else (),
        weight=BALANCED_WEIGHT if asked.log.crossed else WEIGHT,
        splits=answers.splits,
        limits={name: _limits(asked, split) for name, split in answers.splits.items()},
        trained={} if is_periodic(compared) else trained,
    )


def without_training(evaluation: Evaluation, trained: Conflicts) -> Evaluation:
    """Return the results for a verb whose intervals do not allow for trained loggers.

    Its finding says so, in place of the one that names replaced intervals.
    """
    if not trained:
        return evaluation
    finding = on_own_log(trained)
    targets = {
        name: replace(r, findings=tuple(f for f in r.findings if f.code != finding.code))
        for name, r in evaluation.targets.items()
    }
    return replace(evaluation, targets=targets, findings=(finding, *evaluation.findings))


class _Target:
    """One target: its moments, and the estimates, intervals and findings so far."""

    def __init__(self, answers: Answers, name: str) -> None:
        self.asked, self.answers, self.name = answers.request, answers, name
        self.split, self.view = answers.splits[name], answers.view(name)
        self.limits = _limits(self.asked, self.split)
        self.estimates: dict[str, Estimate] = {}
        self.intervals: dict[str, Interval] = {}
        self.findings: list[Finding] = []

    @property
    def skewed(self) -> bool:
        """True if intervals are skew-score ones: the pass has clusters or slices."""
        shaped = self.asked.clustered or all(m.slices for m in self.view.values())
        return self.asked.method == "skew" and shaped

    def result(
        self, bets: Mapping[str, Interval], without: Mapping[str, Errors]
    ) -> TargetResult:
        """Estimate and diagnose the target."""
        view, buckets, crossed = self.view, self.split.buckets, self.asked.log.crossed
        for name, estimator in self.answers.served.estimators.items():
            try:
                notes = self._add(name, estimator)
            except RefusedError as reason:
                if self.asked.strict:
                    raise
                self.findings.append(Finding(reason.code, str(reason)))
            else:
                self.findings += [*self.estimates[name].findings, *notes]
        trained = self._replace_pooled()
        self._guarantee(bets)
        self.findings += few_rewarded(view, crossed=crossed, skewed=self.skewed)
        own = own_overlap(view, buckets, crossed=crossed)
        mixed = mixed_overlap(view, buckets) if crossed else None
        diagnosis = diagnose(view, buckets, own, mixed, self.asked.level)
        if without:
            diagnosis = replace(diagnosis, with_all=errors_of(self.split), without=without)
        codes = {f.code for f in self.findings} | superseded(self.answers)
        rows = {i: m.count for i, m in view.items()}
        judged = judge(own, mixed, diagnosis, rows, skewed=self.skewed)
        findings = [*self.findings, *trained, *(f for f in judged if f.code not in codes)]
        if self.answers.served.uncrossed:  # one finding of the log covers these
            findings = [f for f in findings if f.code not in AS_NAIVE]
        course = course_of(self.answers, self.name, self.estimates, self.intervals, self.limits)
        findings += course.findings() if course else ()
        ordered = tuple(sorted(dict.fromkeys(findings), key=lambda f: f.rank))
        parts = (own, mixed, ordered, diagnosis)
        return TargetResult(self.estimates, self.intervals, *parts, course)

    def _add(self, name: str, estimator: Estimator) -> tuple[Finding, ...]:
        """Estimate the value and its interval; return findings about the interval."""
        asked, method = self.asked, self.asked.method
        split = suited(self.answers, estimator).splits[self.name]
        if isinstance(estimator, CrossFitted):
            estimate = estimator.estimate_folds(split.buckets)
            if method == "jackknife" or asked.clustered:
                # folds change the value a little, its error less
                spread = jackknife(estimator, split)
                estimate = replace(estimate, variance=spread.variance, freedom=spread.freedom)
        elif method == "jackknife" or asked.clustered:
            estimate = jackknife(estimator, split)
        else:
            estimate = estimator.estimate(split.whole)
        limits = self.limits
        if method == "skew":
            interval, notes = auto_interval(
                estimate, split.whole, split.buckets, asked.level, limits, asked.sides
            )
        else:
            interval, notes = student_interval(estimate, asked.level, limits, asked.sides)
        if method == "bootstrap" and not notes:
            values = bootstrap(estimator, split, np.random.default_rng(BOOTSTRAP_SEED))
            tail = tail_of(asked.level, asked.sides)
            lower, upper = np.quantile(values, [tail, 1 - tail]).tolist()
            interval = one_sided(Interval(lower, upper, asked.level), asked.sides)
        self.estimates[name], self.intervals[name] = estimate, interval
        return notes

    def _replace_pooled(self) -> list[Finding]:
        """Where a logger was trained on a log of these, replace intervals that pool."""
        loggers, trained_on = self.answers.loggers, self.asked.log.trained_on
        logs = conflicts(trained_on, loggers).get(self.name)
        findings = [target_on_log(self.name, logs)] if logs else []
        trained = on_own(trained_on, loggers)
        if not trained or not self.asked.log.crossed:
            return findings
        usable = self.answers.served.estimators
        fixed = [n for n in self.intervals if not is_periodic(usable[n])]
        pooling = [n for n in fixed if pools(usable[n], loggers)]
        try:
            notes = self._add(HONEST.name, HONEST)
        except RefusedError:
            return [*findings, on_own_log(trained, replaced=())]
        self.intervals.update(dict.fromkeys(pooling, self.intervals[HONEST.name]))
        finding = on_own_log(trained, replaced=pooling)
        if len(fixed) < len(usable):  # estimates of periods allow for it
            finding = replace(finding, severity="note")
        return [*findings, finding, *notes]

    def _guarantee(self, bets: Mapping[str, Interval]) -> None:
        """Give the interval of the value itself to every estimator, where it was requested."""
        asked, interval = self.asked, bets.get(self.name)
        if asked.method in {"bernstein", "likelihood", "smoothed"}:
            interval, findings = from_moments(
                asked.method, self.split.whole, asked.log, asked.level, asked.sides
            )
            self.findings += findings
        if interval is not None:
            self.intervals.update(dict.fromkeys(self.estimates, interval))


def _limits(asked: Request, split: Split) -> Limits:
    """Return the bounds on the rows of a target, for intervals without spread."""
    whole = split.whole.values()
    weights = [WEIGHT, BALANCED_WEIGHT] if asked.log.crossed else [WEIGHT]
    weights += [PERIOD_WEIGHT] if all(m.has(PERIOD_WEIGHT) for m in whole) else []
    rows = sum(m.count for m in whole)
    return Limits(
        rows=min(rows, len(split.buckets)) if asked.clustered else rows,  # independent ones
        reward_range=asked.log.reward_range,
        largest_weight=max(m.max(w) for m in whole for w in weights),
    )
