"""Target: estimates, intervals and findings of each target, from the moments of a pass.

Every verb uses `make_results`, so every verb reports the same findings.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poolwise.diagnosis.agreement import Diagnosis, diagnose
from poolwise.diagnosis.findings import (
    ALARMING,
    SAME_AS_DECISIVE,
    decided_by_few,
    decisive_rows,
    few_rewarded,
    judge,
    keep_significant,
    no_cross_propensities,
    not_set_apart,
    propensities_estimated,
    unlogged_actions,
)
from poolwise.diagnosis.over_time import over_time
from poolwise.diagnosis.overlap import mixed_overlap, own_overlap
from poolwise.diagnosis.provenance import (
    HONEST,
    SUCCESSION,
    agreeing,
    apart,
    conflicts,
    on_own,
    on_own_log,
    target_on_log,
    untested_drift,
)
from poolwise.errors import Finding, RefusedError
from poolwise.estimators import recommend
from poolwise.estimators.calibrated import Calibrated, is_uncovered, target_uncovered
from poolwise.estimators.decisive import set_apart
from poolwise.estimators.ips import Balanced
from poolwise.estimators.model import ESTIMATED_MIXTURE
from poolwise.evaluation.clicks import support_findings
from poolwise.evaluation.comparison import Pairs
from poolwise.evaluation.output import fingerprint
from poolwise.evaluation.read import is_unlogged, unlogged
from poolwise.evaluation.results import Evaluation, TargetResult
from poolwise.intervals.skew import shaped_interval
from poolwise.moments.buckets import jackknife
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, WEIGHT
from poolwise.rows.mixture import MISFIT
from poolwise.text import interval_text, with_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.diagnosis.over_time import OverTime
    from poolwise.evaluation.read import Answers
    from poolwise.intervals.student import Interval
    from poolwise.log.clicks import Support
    from poolwise.moments.estimate import Estimate, Estimator, SetsLimits
    from poolwise.moments.heavy import HeavyRows
    from poolwise.moments.pool import Pool
    from poolwise.moments.shape import Powers, Shape

LEFT_OUT: Mapping[str, Estimator] = {"balanced": Balanced(), "calibrated": Calibrated()}
Errors = dict[str, float]
NONE: Mapping[str, Any] = {}
MOST_SEEN = 0.99  # mean weight below which frequencies miss actions
DIFFERENT_P = 1e-2  # p-value of two estimates from which it matters if loggers learned


def make_results(
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
    in_time = _in_time(answers, results)
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
        reward=asked.log.reward,
        findings=(
            *answers.findings,
            *in_time,
            *_fixed_beforehand(answers),
            *lacking,
            *served.refused,
            *asked.findings,
        ),
        fingerprint=fingerprint(pools, coverage, timezone=asked.log.timezone),
        rows_per_request=None if asked.log.requests is None else asked.log.requests.rows,
    )


def make_pairs(answers: Answers) -> Pairs:
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
        heavy=answers.heavy.of_pair,
    )


class _Target:
    """One target: its moments, and the estimates, intervals and findings so far."""

    def __init__(self, answers: Answers, name: str) -> None:
        self.asked, self.answers, self.name = answers.request, answers, name
        self.pool = answers.pool(name)
        self.limits = answers.limits(name)
        self.heavy = answers.heavy.of_value(name)
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
        if is_unlogged(pool):  # in this segment
            reason = unlogged([self.name])
            finding = Finding(reason.code, str(reason))
            return TargetResult({}, {}, {}, None, (finding,), Diagnosis())
        self.findings += self._estimated()
        self._add_all()
        if self.asked.log.clicks is not None:
            return self._conclude_clicks(self.answers.support[self.name])
        trained = self._replace_pooled()
        self._guarantee(bets)
        self.findings += few_rewarded(pool, coverage, skewed=self.skewed)
        self.findings += self._unlogged()
        own = own_overlap(pool, coverage)
        mixed = mixed_overlap(pool) if coverage.crossed else None
        diagnosis = diagnose(pool, own, mixed, self.asked.level)
        if without:
            diagnosis = replace(diagnosis, with_all=find_errors(pool), without=without)
        self.findings += self._unseen()
        self.findings += self._in_succession(diagnosis)
        tests = self.asked.tests
        self.findings = keep_significant(self.findings, own, mixed, tests)
        codes = {f.code for f in self.findings}
        if SUCCESSION in codes:  # the same difference, with its likely cause
            codes.add("hausman")
        if self.asked.log.period is not None:  # declared for a difference from honest ones
            codes.add("hausman")
        if "target-uncovered" in codes:  # the same, about all logs
            codes.add("thin-overlap")
        apart = None if trained else self._apart
        if apart is not None and mixed is not None:
            mixed = replace(mixed, decisive_rows=apart.number, decisive_share=apart.mass)
        decisive = self._decisive(apart)
        if apart is not None:
            codes |= SAME_AS_DECISIVE
        rows = {i: pool[i].count for i in pool.loggers}
        first = next(iter(self.answers.served.estimators.values()))
        pooled = first.by_cell or first.pools
        judged = judge(
            own, mixed, diagnosis, rows, skewed=self.skewed, pooled=pooled, tests=tests
        )
        findings = [*self.findings, *trained, *(f for f in judged if f.code not in codes)]
        findings += decisive
        course = self._course()
        findings += course.findings() if course else ()
        ordered = tuple(sorted(dict.fromkeys(findings), key=lambda f: f.rank))
        parts = (own, mixed, ordered, diagnosis)
        used = {**self.answers.served.estimators, HONEST.name: HONEST}
        used = {name: used[name] for name in self.estimates}
        pooling = frozenset(name for name, estimator in used.items() if estimator.pools)
        traits = (recommend(used), pooling)
        return TargetResult(self.estimates, self.intervals, *parts, course, *traits)

    def _estimated(self) -> list[Finding]:
        """Return the finding that propensities are estimates, if they are."""
        log = self.asked.log
        if log.confounders is None:
            return []
        misfit = any(finding.code == MISFIT for finding in self.answers.findings)
        conclusive = log.conclusive and not misfit
        return [propensities_estimated(log.confounders, conclusive=conclusive)]

    def _unlogged(self) -> list[Finding]:
        """Return the finding about actions of the target that are in no row."""
        found = self.answers.unlogged.get(self.name)
        if found is None:
            return []
        usable = self.answers.served.estimators
        name = recommend({name: usable[name] for name in self.estimates if name in usable})
        modelled = bool(name) and usable[name].predicts
        grouped = self.asked.log.action_group is not None
        return unlogged_actions(found, grouped=grouped, modelled=modelled)

    def _add_all(self) -> None:
        """Estimate the value with each estimator; a refusal is a finding, or an error."""
        for name, estimator in self.answers.served.estimators.items():
            try:
                notes = self._add(name, estimator)
            except RefusedError as reason:
                if self.asked.strict:
                    raise
                self.findings.append(Finding(reason.code, str(reason)))
            else:
                self.findings += [*self.estimates[name].findings, *notes]

    def _conclude_clicks(self, support: Support) -> TargetResult:
        """Return the result of a click log, which has support in place of overlap."""
        usable = self.answers.served.estimators
        used = {name: usable[name] for name in self.estimates}
        findings = [
            *self.findings,
            *few_rewarded(self.pool, self.answers.served.coverage, skewed=self.skewed),
            *support_findings(support, self.estimates),
        ]
        return TargetResult(
            self.estimates,
            self.intervals,
            loggers={},
            mixture=None,
            findings=tuple(sorted(dict.fromkeys(findings), key=lambda f: f.rank)),
            diagnosis=Diagnosis(),
            recommended=recommend(used),
            support=support,
        )

    def _add(self, name: str, estimator: Estimator) -> tuple[Finding, ...]:
        """Estimate the value and its interval; return findings about the interval."""
        asked, limits = self.asked, self.limits
        pool, coverage = self.answers.pool(self.name, estimator), self.answers.served.coverage
        estimate = jackknife(estimator, pool) if asked.clustered else estimator.estimate(pool)
        if estimator.sets_apart and self.heavy is not None:
            estimate = _set_apart(estimate, pool, self.heavy)
        if coverage.mixture == "estimate" and estimator.needs(coverage).mixed:
            estimate = replace(estimate, findings=(ESTIMATED_MIXTURE, *estimate.findings))
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

    def _unseen(self) -> list[Finding]:
        """Return the alarm that frequencies miss actions that the target plays.

        Their weights average 1 exactly if every action was played in each context.
        """
        log, mean = self.asked.log, self.pool.together.mean(WEIGHT)
        if not log.estimated or log.estimate_mixture is not False or mean >= MOST_SEEN:
            return []
        return [target_uncovered(mean, "in contexts in which it was never played.")]

    def _in_succession(self, diagnosis: Diagnosis) -> list[Finding]:
        """Warn if it matters whether loggers that follow each other learned on the way.

        The honest estimate then joins the others.
        """
        used = {n: e for n, e in self.answers.served.estimators.items() if n in self.estimates}
        name = recommend(used)
        if not self.answers.chain or not name or not used[name].pools or used[name].by_cell:
            return []
        gap = diagnosis.checks.get("hausman")
        differs = gap is not None and gap.p_value < DIFFERENT_P
        reason = "Calibrated and own propensities disagree" if differs else ""
        try:
            notes = self._add(HONEST.name, HONEST)
        except RefusedError:
            return []
        honest, pooled = self.intervals[HONEST.name], self.intervals[name]
        largest = max(self.pool.loggers, key=lambda i: self.pool[i].count)
        earned = self.pool[largest].mean(REWARD)
        if differs and gap is not None:
            reason += f" ({abs(gap.statistic):.1f} standard errors)."
        elif _side(pooled, earned) and _side(honest, earned) != _side(pooled, earned):
            reason = f"Whether the target differs from {largest!r} rests on pooling them."
        else:
            del self.estimates[HONEST.name], self.intervals[HONEST.name]
            return []
        estimate = self.estimates[HONEST.name]
        text = f"{with_error(estimate.value, estimate.std_error)}, "
        text += interval_text(honest.lower, honest.upper, estimate.std_error)
        finding = apart(self.answers.chain, name, text, reason)
        if gap is not None and gap.p_value < ALARMING:
            finding = replace(finding, severity="alarm")
        return [finding, *notes]

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

    @property
    def _apart(self) -> SetsLimits | None:
        """The heavy rows that the recommended estimate sets apart."""
        usable = self.answers.served.estimators
        name = recommend({name: usable[name] for name in self.estimates if name in usable})
        return self.estimates[name].decisive if name else None

    def _decisive(self, apart: SetsLimits | None) -> list[Finding]:
        """Return the finding about rows that decide the value, if few do."""
        if apart is not None:
            return [decisive_rows(self.name, apart, self.pool.rows)]
        if not self.answers.served.coverage.mixture:
            own = self.estimates.get("self-normalised")
            return decided_by_few(self.pool, own.shares) if own else []
        heavy, estimator = self.answers.heavy, ""
        if heavy.able:
            usable = self.answers.served.estimators
            estimator = recommend({n: usable[n] for n in self.estimates if n in usable})
            if not estimator or self._apart or heavy.of_value(self.name) is None:
                return []
        return not_set_apart(
            self.pool, self.name, clustered=self.asked.clustered, estimator=estimator
        )

    def _guarantee(self, bets: Mapping[str, Interval]) -> None:
        """Give the interval of the value itself to every estimator, where it was requested."""
        asked, coverage = self.asked, self.answers.served.coverage
        interval = bets.get(self.name) or asked.interval.bound(
            self.pool, asked.log, coverage, asked.level, asked.sides
        )
        if interval is not None:
            self.intervals.update(dict.fromkeys(self.estimates, interval))


def estimate_plainly(answers: Answers, target: str, name: str) -> Estimate:
    """Return the estimate of a target without setting heavy rows apart."""
    estimator = answers.served.estimators[name]
    pool = answers.pool(target, estimator)
    clustered = answers.request.clustered
    return jackknife(estimator, pool) if clustered else estimator.estimate(pool)


def _set_apart(estimate: Estimate, pool: Pool, heavy: HeavyRows) -> Estimate:
    """Return the estimate with the heavy rows that decide it set apart."""
    own = set_apart(pool, heavy)
    return replace(
        estimate,
        value=own.decisive.value,
        variance=own.decisive.variance,
        findings=tuple(f for f in estimate.findings if f.code not in SAME_AS_DECISIVE),
        linear=own.linear,
        decisive=own.decisive,
    )


def find_errors(pool: Pool) -> Errors:
    """Return the standard errors of `LEFT_OUT`; infinite if the target is uncovered."""
    errors = dict.fromkeys(LEFT_OUT, math.inf)
    if not any(m.max(WEIGHT) for m in pool.values()) or is_uncovered(pool):
        return errors
    for name, estimator in LEFT_OUT.items():
        with suppress(RefusedError):
            clustered = pool.clustered
            estimate = jackknife(estimator, pool) if clustered else estimator.estimate(pool)
            errors[name] = estimate.std_error
    return errors


def _side(interval: Interval, value: float) -> int:
    """Return 1 if an interval is above a value, -1 if below, 0 if it contains it."""
    return (interval.lower > value) - (interval.upper < value)


def _in_time(answers: Answers, results: Mapping[str, TargetResult]) -> tuple[Finding, ...]:
    """Return findings about loggers that follow each other, which concern all targets."""
    if not answers.chain:
        return ()
    checks = [r.diagnosis.checks for r in results.values()]
    tested, compared = (any(n in c for c in checks) for n in ("drift", "hausman"))
    warned = any(f.code == SUCCESSION for r in results.values() for f in r.findings)
    return (
        *(() if tested else (untested_drift(answers.chain),)),
        *(() if warned else (agreeing(answers.chain, compared=compared),)),
    )


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
