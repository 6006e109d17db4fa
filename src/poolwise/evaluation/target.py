"""Target: estimates, intervals and findings of each target, from the moments of a pass.

Every verb uses `results_of`, so every verb reports the same findings.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poolwise.diagnosis.agreement import diagnose
from poolwise.diagnosis.findings import few_rewarded, judge, no_cross_propensities
from poolwise.diagnosis.over_time import over_time
from poolwise.diagnosis.overlap import mixed_overlap, own_overlap
from poolwise.diagnosis.provenance import (
    HONEST,
    conflicts,
    on_own,
    on_own_log,
    target_on_log,
)
from poolwise.errors import Finding, RefusedError
from poolwise.estimators import recommend
from poolwise.estimators.calibrated import Calibrated, uncovered
from poolwise.estimators.ips import Balanced
from poolwise.estimators.model import ESTIMATED
from poolwise.evaluation.comparison import Pairs
from poolwise.evaluation.output import fingerprint
from poolwise.evaluation.results import Evaluation, TargetResult
from poolwise.intervals.skew import shaped_interval
from poolwise.moments.buckets import jackknife
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, WEIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.diagnosis.over_time import OverTime
    from poolwise.evaluation.read import Answers
    from poolwise.intervals.student import Interval
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.pool import Pool
    from poolwise.moments.shape import Powers, Shape

LEFT_OUT: Mapping[str, Estimator] = {"balanced": Balanced(), "calibrated": Calibrated()}
Errors = dict[str, float]
NONE: Mapping[str, Any] = {}


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
    coverage = served.coverage
    lacking = no_cross_propensities(
        served.uncrossed, coverage.missing, live=coverage.period_mixed
    )
    pools = {name: answers.pool(name) for name in asked.names}
    first = next(iter(pools.values()))
    return Evaluation(
        targets=results,
        rows={i: first[i].count for i in loggers},
        mean_reward={i: first[i].mean(REWARD) for i in loggers},
        level=asked.level,
        findings=(
            *answers.findings,
            *_fixed_beforehand(answers),
            *lacking,
            *served.refused,
            *asked.findings,
        ),
        fingerprint=fingerprint(pools, coverage, timezone=asked.log.timezone),
        rows_per_request=None if asked.log.requests is None else asked.log.requests.rows,
    )


def pairs_of(answers: Answers) -> Pairs:
    """Return the moments from which the targets are compared, without any row."""
    asked, compared = answers.request, answers.served.estimators[answers.compared]
    trained = on_own(asked.log.trained_on, answers.loggers)
    return Pairs(
        estimator=answers.compared,
        pool=answers.pairs if compared.by_cell else answers.pairs.by_logger,
        weight=BALANCED_WEIGHT if answers.served.coverage.crossed else WEIGHT,
        targets={name: answers.pool(name, compared) for name in asked.names},
        limits={name: answers.limits(name) for name in asked.names},
        trained={} if compared.by_cell else trained,
    )


class _Target:
    """One target: its moments, and the estimates, intervals and findings so far."""

    def __init__(self, answers: Answers, name: str) -> None:
        self.asked, self.answers, self.name = answers.request, answers, name
        self.pool = answers.pool(name)
        self.limits = answers.limits(name)
        self.estimates: dict[str, Estimate] = {}
        self.intervals: dict[str, Interval] = {}
        self.findings: list[Finding] = []

    @property
    def skewed(self) -> bool:
        """True if intervals are skew-score ones: the pass has clusters or slices."""
        shaped = self.asked.clustered or all(m.slices for m in self.pool.values())
        return self.asked.interval.shaped and shaped

    def result(
        self, bets: Mapping[str, Interval], without: Mapping[str, Errors]
    ) -> TargetResult:
        """Estimate and diagnose the target."""
        pool, coverage = self.pool, self.answers.served.coverage
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
        self.findings += few_rewarded(pool, coverage, skewed=self.skewed)
        own = own_overlap(pool, coverage)
        mixed = mixed_overlap(pool) if coverage.crossed else None
        diagnosis = diagnose(pool, own, mixed, self.asked.level)
        if without:
            diagnosis = replace(diagnosis, with_all=errors_of(pool), without=without)
        codes = {f.code for f in self.findings}
        if self.asked.log.period is not None:  # declared for a difference from honest ones
            codes.add("hausman")
        if "target-uncovered" in codes:  # the same, about all logs
            codes.add("thin-overlap")
        rows = {i: pool[i].count for i in pool.loggers}
        first = next(iter(self.answers.served.estimators.values()))
        pooled = first.by_cell or first.pools
        judged = judge(own, mixed, diagnosis, rows, skewed=self.skewed, pooled=pooled)
        findings = [*self.findings, *trained, *(f for f in judged if f.code not in codes)]
        course = self._course()
        findings += course.findings() if course else ()
        ordered = tuple(sorted(dict.fromkeys(findings), key=lambda f: f.rank))
        parts = (own, mixed, ordered, diagnosis)
        used = {**self.answers.served.estimators, HONEST.name: HONEST}
        used = {name: used[name] for name in self.estimates}
        pooling = frozenset(name for name, estimator in used.items() if estimator.pools)
        traits = (recommend(used), pooling)
        return TargetResult(self.estimates, self.intervals, *parts, course, *traits)

    def _add(self, name: str, estimator: Estimator) -> tuple[Finding, ...]:
        """Estimate the value and its interval; return findings about the interval."""
        asked, limits = self.asked, self.limits
        pool, coverage = self.answers.pool(self.name, estimator), self.answers.served.coverage
        estimate = jackknife(estimator, pool) if asked.clustered else estimator.estimate(pool)
        if coverage.mixture == "estimate" and estimator.needs(coverage).mixed:
            estimate = replace(estimate, findings=(ESTIMATED, *estimate.findings))
        interval, notes = asked.interval.surround(
            estimate, pool, asked.level, limits, asked.sides
        )
        self.estimates[name], self.intervals[name] = estimate, interval
        return notes

    def _replace_pooled(self) -> list[Finding]:
        """Where a logger was trained on a log of these, replace intervals that pool."""
        loggers, trained_on = self.answers.loggers, self.asked.log.trained_on
        logs = conflicts(trained_on, loggers).get(self.name)
        findings = [target_on_log(self.name, logs)] if logs else []
        trained = on_own(trained_on, loggers)
        if not trained or not self.answers.served.coverage.crossed:
            return findings
        usable = self.answers.served.estimators
        pooling = [n for n in self.intervals if usable[n].pools]
        try:
            notes = self._add(HONEST.name, HONEST)
        except RefusedError:
            return [*findings, on_own_log(trained, replaced=())]
        self.intervals.update(dict.fromkeys(pooling, self.intervals[HONEST.name]))
        finding = on_own_log(trained, replaced=pooling)
        if any(usable[n].by_cell for n in self.intervals if n in usable):  # these allow for it
            finding = replace(finding, severity="note")
        return [*findings, finding, *notes]

    def _course(self) -> OverTime | None:
        """Return the value in each period, by the recommended estimator of periods.

        Running estimates have Student's interval if the evaluation has it, else the default.
        """
        asked, usable = self.asked, self.answers.served.estimators
        name = recommend(
            {n: usable[n] for n in self.estimates if n in usable and usable[n].by_cell}
        )
        if not name:
            return None

        def rule(estimate: Estimate, shape: Shape | None, powers: Powers | None) -> Interval:
            of_shape = shape if asked.interval.shaped else None
            return shaped_interval(
                estimate, of_shape, powers, asked.level, self.limits, asked.sides
            )[0]

        now = (self.estimates[name], self.intervals[name])
        return over_time(name, now, self.answers.pools[self.name], rule)

    def _guarantee(self, bets: Mapping[str, Interval]) -> None:
        """Give the interval of the value itself to every estimator, where it was requested."""
        asked, coverage = self.asked, self.answers.served.coverage
        interval = bets.get(self.name) or asked.interval.bound(
            self.pool, asked.log, coverage, asked.level, asked.sides
        )
        if interval is not None:
            self.intervals.update(dict.fromkeys(self.estimates, interval))


def errors_of(pool: Pool) -> Errors:
    """Return the standard errors of `LEFT_OUT`; infinite if the target is uncovered."""
    errors = dict.fromkeys(LEFT_OUT, math.inf)
    if not any(m.max(WEIGHT) for m in pool.values()) or uncovered(pool):
        return errors
    for name, estimator in LEFT_OUT.items():
        with suppress(RefusedError):
            clustered = pool.clustered
            estimate = jackknife(estimator, pool) if clustered else estimator.estimate(pool)
            errors[name] = estimate.std_error
    return errors


def _fixed_beforehand(answers: Answers) -> tuple[Finding, ...]:
    """Return the note that estimators which pool loggers do not allow for policies that learn.

    Weights against the row's own logger do, with shares that do not depend on rewards.
    """
    usable, crossed = answers.served.estimators, answers.served.coverage.crossed
    pooling = [name for name, estimator in usable.items() if estimator.pools]
    if answers.request.log.period is None or not crossed or not pooling:
        return ()
    return (
        Finding(
            "fixed-beforehand",
            f"{', '.join(pooling)}: valid only if all policies were fixed before the first "
            "row. Estimates of periods also hold for policies that learn from earlier periods.",
            "Rely on period-balanced, or on period-dr where there is a reward model.",
            "note",
        ),
    )
