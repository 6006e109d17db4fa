"""Families: rankings and differences whose intervals hold together.

Estimates from the same rows share their errors, so a difference is far more precise than
either; and the highest of many estimates is biased upwards.  Differences therefore use the
covariance of the estimates, and each family of intervals covers all of its members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from poolwise.diagnosis.trained import conflicts, on_own_log
from poolwise.errors import Finding, RefusedError
from poolwise.evaluation.contrasts import Candidates, firsts, united, weight_of
from poolwise.evaluation.ranking import Comparison, Difference, Ranked, Verdict
from poolwise.intervals.simultaneous import holm
from poolwise.intervals.student import Interval, Limits, default_interval
from poolwise.moments.terms import Needs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.evaluation.contrasts import Spread
    from poolwise.evaluation.read import Answers, OpenLog
    from poolwise.evaluation.request import Request
    from poolwise.evaluation.results import Evaluation
    from poolwise.moments.buckets import Buckets, Split
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.moments import Moments, MomentsByLogger
    from poolwise.moments.terms import Term

SEED = 20170813  # the same rows give the same intervals
MOST = 30  # targets that an evaluation compares by itself: 435 pairs
DOUBTED = frozenset({"weights-off", "propensities-off"})  # probabilities cannot be right
RECOMMENDED = "calibrated"


def pair_needs(rows: OpenLog, estimator: str) -> Needs:
    """Return the terms of all targets together, which a comparison reads."""
    log = rows.request.log
    chosen = rows.served.estimators[estimator]
    own = chosen.needs(rows.loggers, crossed=log.crossed)
    return united(own, rows.request.names, crossed=log.crossed)


def recommended(names: Sequence[str]) -> str:
    """Return the estimator that targets are compared in."""
    return next((n for n in names if n.startswith(RECOMMENDED)), next(iter(names), ""))


def needs_beside(rows: OpenLog) -> Needs:
    """Return the terms that an evaluation reads for a comparison of its targets.

    None for one target, for more than `MOST`, and where a database would have to sum each
    pair of terms by name.
    """
    name = recommended(list(rows.served.estimators))
    if not (2 <= len(rows.request.targets) <= MOST and rows.rows.by_kernel and name):
        return Needs()
    return pair_needs(rows, name)


@dataclass(frozen=True, eq=False)
class Comparing:
    """A comparison of the targets of an evaluation, computed when it is first shown.

    It holds moments and no rows.

    Attributes:
        evaluation: The results.
        estimator: Name of the estimator that targets are compared in.
        moments: Moments of the terms of all targets together.
        clusters: Means of the same terms by bucket, where rows of a cluster share one.
        weight: The weight that distinguishes targets.
        limits: Bounds on the rows of each target.
    """

    evaluation: Evaluation
    estimator: str
    moments: MomentsByLogger
    clusters: Buckets
    weight: Term
    limits: Mapping[str, Limits]

    def comparison(self, baseline: str = "") -> Comparison:
        """Rank the targets; an empty baseline means none.

        Raises:
            RefusedError: The rows show no spread, or all belong to one cluster.
        """
        targets = self.evaluation.targets
        missing = [name for name, r in targets.items() if self.estimator not in r.estimates]
        if missing:
            names = ", ".join(map(repr, missing))
            raise RefusedError("not-comparable", f"{self.estimator} has no estimate of {names}")
        estimates = {name: r.estimates[self.estimator] for name, r in targets.items()}
        candidates = Candidates(estimates, self.moments, self.clusters)
        return _Families(self, candidates, _doubted(self.evaluation)).comparison(baseline)


def comparing(
    asked: Request, answers: Answers, evaluation: Evaluation, pairs: Needs, estimator: str
) -> Comparing:
    """Keep the moments that a comparison of an evaluation's targets needs."""
    terms = {t: t for t in pairs.terms}
    weight = weight_of(crossed=asked.log.crossed)
    return Comparing(
        evaluation=without_training(evaluation, asked, answers),
        estimator=estimator,
        moments={i: _narrow(m, terms) for i, m in answers.whole.items()},
        clusters=answers.means if asked.clustered else (),
        weight=weight,
        limits={name: _limits(asked, split, weight) for name, split in answers.splits.items()},
    )


def _narrow(moments: Moments, terms: Mapping[Term, Term]) -> Moments:
    return replace(moments.select(terms), tails={}, histograms={})


def _limits(asked: Request, split: Split, weight: Term) -> Limits:
    whole = split.whole.values()
    largest = max(m.max(weight) for m in whole)
    return Limits(sum(m.count for m in whole), asked.log.reward_range, largest)


def without_training(evaluation: Evaluation, asked: Request, answers: Answers) -> Evaluation:
    """Return the results for a verb whose intervals do not allow for trained loggers.

    Its finding says so, in place of the one that names replaced intervals.
    """
    trained = conflicts(asked.log.trained_on, answers.loggers)
    on_own = {i: logs for i, logs in trained.items() if i in answers.loggers}
    if not on_own:
        return evaluation
    code = on_own_log(on_own).code
    targets = {
        name: replace(r, findings=tuple(f for f in r.findings if f.code != code))
        for name, r in evaluation.targets.items()
    }
    findings = (on_own_log(on_own), *evaluation.findings)
    return replace(evaluation, targets=targets, findings=findings)


def _doubted(evaluation: Evaluation) -> dict[str, tuple[str, ...]]:
    """Return the alarms of targets whose probabilities cannot be right."""
    codes = {
        name: tuple(sorted({f.code for f in r.findings if f.severity == "alarm"} & DOUBTED))
        for name, r in evaluation.targets.items()
    }
    return {name: alarms for name, alarms in codes.items() if alarms}


@dataclass(frozen=True, eq=False)
class _Families:
    """Families of intervals over the targets of one comparison."""

    source: Comparing
    candidates: Candidates
    doubted: Mapping[str, tuple[str, ...]]

    @property
    def _level(self) -> float:
        return self.source.evaluation.level

    @property
    def estimates(self) -> Mapping[str, Estimate]:
        return self.candidates.estimates

    @cached_property
    def _firsts(self) -> dict[str, str]:
        """The first target that equals each one on every logged row."""
        return firsts(self.source.moments, tuple(self.estimates), self.source.weight)

    def comparison(self, baseline: str) -> Comparison:
        index = {name: k for k, name in enumerate(self.estimates)}
        # equal targets are neighbours, whatever their last digits are
        order = sorted(
            self.estimates,
            key=lambda n: (
                -self.estimates[self._firsts[n]].value,
                index[self._firsts[n]],
                index[n],
            ),
        )
        pairs = self._differences(list(combinations(order, 2)))
        others = [(name, baseline) for name in order if baseline and name != baseline]
        ranking, notes = self._ranking(order, pairs)
        evaluation = self.source.evaluation
        return Comparison(
            ranking=ranking,
            differences=self._differences(others),
            pairs=pairs,
            baseline=baseline,
            estimator=self.source.estimator,
            level=self._level,
            rows=evaluation.rows,
            findings=(*evaluation.findings, *shared_findings(evaluation), *notes),
            doubted=self.doubted,
        )

    def _differences(self, pairs: list[tuple[str, str]]) -> tuple[Difference, ...]:
        """Return a family of differences whose intervals hold together.

        Equal targets count once in the family, and the difference between them is exactly 0.
        """
        first = self._firsts
        reduced = [(first[left], first[right]) for left, right in pairs]
        family = list(dict.fromkeys(pair for pair in reduced if pair[0] != pair[1]))
        members = dict(zip(family, self._family(family), strict=True))
        tie = Difference(
            "", "", 0.0, 0.0, Interval(0.0, 0.0, self._level), 1.0, 1.0, "identical"
        )
        return tuple(
            replace(members.get(pair, tie), target=target, other=other)
            for pair, (target, other) in zip(reduced, pairs, strict=True)
        )

    def _family(self, pairs: list[tuple[str, str]]) -> list[Difference]:
        if not pairs:
            return []
        spread = self.candidates.differences(pairs)
        halves, p_values = self._halves(spread), spread.p_values()
        adjusted = holm(p_values)
        return [
            self._difference(pair, spread, k, (halves[k], p_values[k], adjusted[k]))
            for k, pair in enumerate(pairs)
        ]

    def _halves(self, spread: Spread) -> Sequence[float]:
        critical = spread.critical(self._level, np.random.default_rng(SEED))
        halves: list[float] = spread.half_widths(critical).tolist()
        return halves

    def _difference(
        self, pair: tuple[str, str], spread: Spread, k: int, numbers: tuple[float, ...]
    ) -> Difference:
        half, p_value, adjusted = map(float, numbers)
        value, error = float(spread.values[k]), float(spread.errors[k])
        if 0 < error < math.inf:
            lower, upper = value - half, value + half
        else:  # no spread: only the range of the rewards bounds it
            lower, upper = self._possible()
        verdict: Verdict = "better" if lower > 0 else "worse" if upper < 0 else "undecided"
        gap = self.estimates[pair[0]].value - self.estimates[pair[1]].value
        if value * gap < 0:  # the paired estimate contradicts the ranking: nothing is shown
            verdict = "undecided"
        if set(pair) & set(self.doubted):
            verdict = "unreliable"
        interval = Interval(lower, upper, self._level)
        return Difference(*pair, value, error, interval, p_value, adjusted, verdict)

    def _possible(self) -> tuple[float, float]:
        reward_range = next(iter(self.source.limits.values())).reward_range
        if reward_range is None:
            return -math.inf, math.inf
        width = reward_range[1] - reward_range[0]
        return -width, width

    def _ranking(
        self, order: list[str], pairs: tuple[Difference, ...]
    ) -> tuple[tuple[Ranked, ...], list[Finding]]:
        worse: dict[str, list[str]] = {name: [] for name in order}
        better: dict[str, list[str]] = {name: [] for name in order}
        for pair in pairs:  # a pair is ordered: its second target never has the larger value
            if pair.verdict == "better":
                better[pair.target].append(pair.other)
                worse[pair.other].append(pair.target)
        group: dict[str, int] = {}
        for name in order:
            group[name] = 1 + max((group.get(other, 0) for other in worse[name]), default=0)
        estimates, intervals, notes = self._singles(order)
        ranking = tuple(
            Ranked(
                target=name,
                estimate=estimates[name],
                interval=intervals[name],
                group=group[name],
                better_than=tuple(better[name]),
                worse_than=tuple(worse[name]),
            )
            for name in order
        )
        return ranking, notes

    def _singles(
        self, order: list[str]
    ) -> tuple[dict[str, Estimate], dict[str, Interval], list[Finding]]:
        """Return estimates, and intervals that cover all targets together."""
        distinct = list(dict.fromkeys(self._firsts[n] for n in order))
        spread = self.candidates.singles(distinct)
        halves = self._halves(spread)
        estimates, intervals, notes = {}, {}, []
        for name in order:
            k = distinct.index(self._firsts[name])
            error, freedom = float(spread.errors[k]), float(spread.freedom[k])
            plain = self.estimates[name]
            estimates[name] = replace(plain, variance=error**2, freedom=freedom)
            intervals[name] = Interval(
                plain.value - halves[k], plain.value + halves[k], self._level
            )
            if not 0 < halves[k] < math.inf:
                intervals[name], found = default_interval(
                    estimates[name], self._level, self.source.limits[name]
                )
                notes += [of_target(name, note) for note in found]
        return estimates, intervals, notes


def shared_findings(evaluation: Evaluation) -> list[Finding]:
    """Return the findings of all targets; one that every target has appears once."""
    targets = evaluation.targets
    owners: dict[Finding, list[str]] = {}
    for name, result in targets.items():
        for finding in result.findings:
            owners.setdefault(finding, []).append(name)
    return [
        finding if len(names) == len(targets) else of_target(name, finding)
        for finding, names in owners.items()
        for name in (names[:1] if len(names) == len(targets) else names)
    ]


def of_target(name: str, finding: Finding) -> Finding:
    """Return a finding that says which target it concerns."""
    return replace(finding, message=f"Target {name!r}: {finding.message}")
