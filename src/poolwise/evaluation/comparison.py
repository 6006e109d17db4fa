"""Comparison: which of several targets is better, and which differences are real.

Estimates from the same rows share their errors, so a difference is far more precise than
either; and the highest of many estimates is biased upwards.  Differences therefore use the
covariance of the estimates, and the intervals of all pairs hold together.  Limits,
adjusted p-values, verdicts and groups come from one distribution (single-step max-T): a
verdict is "better" or "worse" exactly where the interval excludes 0 and the adjusted p-value
is below 1 - level, and targets of one group have no such verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, get_args

import numpy as np

from poolwise.diagnosis.provenance import on_own_log
from poolwise.errors import Finding, NotShownError, RefusedError, UsageError
from poolwise.evaluation.differences import (
    Difference,
    Requirement,
    conclude,
    find_doubts,
    tie,
)
from poolwise.evaluation.output import Reported, Row, of_requests
from poolwise.evaluation.spread import Candidates, firsts
from poolwise.intervals.simultaneous import ALONE
from poolwise.intervals.skew import auto_interval, reaching
from poolwise.report.sentence import conclusion, repeats
from poolwise.report.tables import Grid, comparison_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.diagnosis.provenance import Conflicts
    from poolwise.evaluation.results import Evaluation
    from poolwise.intervals.student import Interval, Limits
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.pool import Pool
    from poolwise.moments.terms import Term

SEED = 20170813  # the same rows give the same intervals


@dataclass(frozen=True)
class Ranked:
    """One target in the order of the estimates.

    Attributes:
        target: The target.
        estimate: Estimate of its value.
        interval: Simultaneous interval over all targets.
        group: 1 if no target was shown to be better; otherwise one more than the largest
            group of the targets shown to be better.
        better_than: Targets that it was shown to be better than.
        worse_than: Targets that were shown to be better.
    """

    target: str
    estimate: Estimate
    interval: Interval
    group: int
    better_than: tuple[str, ...]
    worse_than: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Comparison(Reported):
    """A ranking of targets, and their differences.

    Attributes:
        ranking: Targets, the highest estimate first.
        differences: Each target minus the baseline; empty without a baseline.
        pairs: Each target minus each target ranked below it.
        baseline: Name of the baseline, or empty.
        estimator: Name of the estimator.
        level: Simultaneous level of the intervals.
        rows: Usable rows of each logger.
        findings: Findings of the log and of every target.
        doubted: Alarms of targets whose probabilities cannot be right, by target.
        evaluation: The estimates and findings of each target, for the report.
        rows_per_request: Rows per request of a ranking log; None if values are per row.
    """

    kind = "comparison"
    ranking: tuple[Ranked, ...]
    differences: tuple[Difference, ...]
    pairs: tuple[Difference, ...]
    baseline: str
    estimator: str
    level: float
    rows: Mapping[str, int]
    findings: tuple[Finding, ...] = ()
    doubted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    evaluation: Evaluation | None = field(default=None, compare=False)
    rows_per_request: int | None = None

    def __getitem__(self, target: str) -> Ranked:
        return {r.target: r for r in self.ranking}[target]

    def difference(self, target: str, other: str = "") -> Difference:
        """Return the difference of one target from another, or from the baseline."""
        by_names = {(d.target, d.other): d for d in (*self.pairs, *self.differences)}
        return by_names[target, other or self.baseline]

    def require(
        self, verdict: Requirement, target: str | None = None, *, margin: float = 0.0
    ) -> None:
        """Raise NotShownError unless targets are better than the baseline, or not worse.

        Alarms fail every requirement.

        Args:
            verdict: "better": the interval of the difference is above `margin`;
                "not-worse": it is above -`margin`.
            target: Target that must meet the requirement; by default all but the baseline.
            margin: Smallest difference that matters, 0 or more.
        """
        pairs = [d for d in self.differences if target in {None, d.target}]
        if verdict not in get_args(Requirement) or not 0 <= margin < math.inf or not pairs:
            raise UsageError(
                "require takes 'better' or 'not-worse', a finite margin of 0 or more, and a "
                "comparison with a baseline and the target; got "
                f"{verdict!r}, {margin:g} and {target!r} against {self.baseline!r}"
            )
        reasons = [d.lack(verdict, margin) for d in pairs]
        reasons += [f"alarm {f.code}" for f in self.findings if f.severity == "alarm"]
        if any(reasons):
            wanted = f"{verdict} than {self.baseline!r} by a margin of {margin:g}"
            raise NotShownError(wanted, list(dict.fromkeys(filter(None, reasons))))

    @property
    def repeats(self) -> dict[str, list[str]]:
        """Targets that equal an earlier one on every row, by that one."""
        return repeats([pair.to_dict() for pair in self.pairs])

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        return str(self.to_dict()["sentence"])

    @property
    def opening(self) -> Sequence[str]:
        return (self.sentence,)

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per target, the highest estimate first."""
        against = {d.target: d.to_dict() for d in self.differences}
        itself: Row = dict.fromkeys(("difference", "std_error", "lower", "upper"), 0.0)
        itself |= {"p_value": 1.0, "adjusted": 1.0, "verdict": ""}
        rows = []
        for rank, r in enumerate(self.ranking, 1):
            row: Row = {"target": r.target, "rank": rank, "group": r.group}
            row |= {"value": r.estimate.value, "std_error": r.estimate.std_error}
            row |= {"lower": r.interval.lower, "upper": r.interval.upper, "level": self.level}
            if self.baseline:
                gap = against.get(r.target, itself)
                row["difference"] = gap["difference"]
                row |= {f"difference_{k}": gap[k] for k in ("std_error", "lower", "upper")}
                row |= {k: gap[k] for k in ("p_value", "adjusted", "verdict")}
            rows.append(row)
        return rows

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        shown = [
            {**row, "better_than": list(r.better_than), "worse_than": list(r.worse_than)}
            for row, r in zip(self.to_dicts(), self.ranking, strict=True)
        ]
        other = self.baseline or self.ranking[0].target
        row: Row = {
            "estimator": self.estimator,
            "baseline": self.baseline or None,
            "level": self.level,
            "targets": shown,
            "pairs": [d.to_dict() for d in self.pairs],
            "differences": [d.to_dict() for d in _from(other, self.pairs)],
            "loggers": [{"logger": i, "rows": n} for i, n in self.rows.items()],
            **of_requests(self.rows_per_request),
        }
        sentence = conclusion(row, self.doubted)
        return {**row, "sentence": sentence, "warnings": self.warnings}

    def grids(self) -> list[Grid]:
        """Return all tables, in reading order."""
        return comparison_tables(self.to_dict())

    def facts(self) -> Row:
        """Return the dictionary that the charts and the report read."""
        if self.evaluation is None:
            raise UsageError("a report needs the evaluation of the comparison, got None")
        whole = replace(self.evaluation, baseline=self.baseline, pairs=None).to_dict()
        return {**whole, "comparison": self.to_dict(), "warnings": self.warnings}

    def page_opening(self) -> Mapping[str, str]:
        """Return title, answer, severity and first section of the report."""
        title = f"{len(self.ranking)} targets: comparison on the same rows"
        severities = [f.severity for f in self.findings]
        severity = next((s for s in ("alarm", "warning") if s in severities), "sound")
        start = {"title": title, "begins_with": "comparison"}
        return {**start, "answer": self.sentence, "severity": severity}


def _from(other: str, pairs: Sequence[Difference]) -> tuple[Difference, ...]:
    """Return the differences of all targets from one of them."""
    return tuple(p.against(other) for p in pairs if other in {p.target, p.other})


@dataclass(frozen=True, eq=False)
class Pairs:
    """Moments from which the targets of an evaluation are compared.

    Attributes:
        estimator: Name of the estimator that targets are compared in.
        pool: Moments of the terms of all targets together.
        weight: The weight that distinguishes targets.
        targets: Moments of each target alone.
        limits: Bounds on the rows of each target.
        trained: Loggers that were trained on logs of this set, with these logs.
    """

    estimator: str
    pool: Pool
    weight: Term
    targets: Mapping[str, Pool]
    limits: Mapping[str, Limits]
    trained: Conflicts

    def ranked(self, evaluation: Evaluation, baseline: str = "") -> Comparison:
        """Rank the targets of an evaluation; an empty baseline means none.

        Raises:
            RefusedError: The rows show no spread, or all belong to one cluster.
        """
        evaluation, name = without_training(evaluation, self.trained), self.estimator
        lacking = [n for n, r in evaluation.targets.items() if name not in r.estimates]
        if lacking:
            names = ", ".join(map(repr, lacking))
            raise RefusedError("not-comparable", f"{name} has no estimate of {names}")
        targets = _Targets(evaluation, self)
        pairs = targets.pairs()
        ranking, notes = targets.ranking(pairs)
        return Comparison(
            ranking=ranking,
            differences=_from(baseline, pairs),
            pairs=pairs,
            baseline=baseline,
            estimator=name,
            level=evaluation.level,
            rows=evaluation.rows,
            findings=(*evaluation.findings, *evaluation.target_findings, *notes),
            doubted=targets.doubted,
            evaluation=evaluation,
            rows_per_request=evaluation.rows_per_request,
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


@dataclass(frozen=True, eq=False)
class _Targets:
    """The targets of an evaluation, with intervals that hold together."""

    evaluation: Evaluation
    source: Pairs

    @cached_property
    def candidates(self) -> Candidates:
        results, name = self.evaluation.targets, self.source.estimator
        estimates = {target: r.estimates[name] for target, r in results.items()}
        pools, limits = self.source.targets, self.source.limits
        reaches = {n: reaching(e, pools[n], limits[n]) for n, e in estimates.items()}
        return Candidates(estimates, self.source.pool, reaches)

    @cached_property
    def first(self) -> dict[str, str]:
        """The first target that equals each one on every row, in the order of the ranking."""
        names, estimates = list(self.evaluation.targets), self.candidates.estimates
        first = firsts(self.source.pool, names, self.source.weight)

        def place(name: str) -> tuple[float, int, int]:  # equal targets are neighbours
            leader = first[name]
            return -estimates[leader].value, names.index(leader), names.index(name)

        return {name: first[name] for name in sorted(names, key=place)}

    @cached_property
    def doubted(self) -> dict[str, tuple[str, ...]]:
        """Alarms of targets whose probabilities cannot be right."""
        results = self.evaluation.targets
        alarms = {name: find_doubts(result.findings) for name, result in results.items()}
        return {name: codes for name, codes in alarms.items() if codes}

    def pairs(self) -> tuple[Difference, ...]:
        """Return the differences of all pairs, whose intervals hold together.

        Equal targets count once, and the difference between them is exactly 0.
        """
        first = self.first
        family = list(combinations(dict.fromkeys(first.values()), 2))
        members = dict(zip(family, self._family(family), strict=True)) if family else {}
        same = tie("", "", self.evaluation.level)
        return tuple(
            replace(members.get((first[one], first[two]), same), target=one, other=two)
            for one, two in combinations(first, 2)
        )

    def _family(self, pairs: list[tuple[str, str]]) -> list[Difference]:
        """Return the differences of some pairs, whose intervals hold together.

        Where the ranking contradicts the paired estimate, nothing is shown.
        """
        spread, level = self.candidates.differences(pairs), self.evaluation.level
        estimates = self.candidates.estimates
        gaps = [estimates[one].value - estimates[two].value for one, two in pairs]
        return conclude(
            pairs,
            spread,
            spread.together(np.random.default_rng(SEED)),
            level,
            reward_range=next(iter(self.source.limits.values())).reward_range,
            doubted=[pair for pair in pairs if self.doubted.keys() & pair],
            agree=np.sign(spread.values) == np.sign(gaps),
        )

    def ranking(self, pairs: Sequence[Difference]) -> tuple[tuple[Ranked, ...], list[Finding]]:
        """Return the targets in order, with intervals that cover all of them together."""
        level, order = self.evaluation.level, list(dict.fromkeys(self.first.values()))
        spread = self.candidates.singles(order)
        together = spread.together(np.random.default_rng(SEED))
        one = 1 - float(ALONE.p_values(np.array([together.critical(level)]))[0])
        ranking: dict[str, Ranked] = {}
        notes: list[Finding] = []
        for name, first in self.first.items():
            k = order.index(first)
            variance, freedom = float(spread.errors[k]) ** 2, float(spread.freedom[k])
            alone = self.candidates.estimates[name]
            estimate = replace(alone, variance=variance, freedom=freedom)
            pool, limits = self.source.targets[name], self.source.limits[name]
            interval, findings = auto_interval(estimate, pool, one, limits)
            interval = replace(interval, level=level)
            notes += [replace(finding, target=name) for finding in findings]
            # a pair is in order: its second target is never shown to be better
            shown = [p for p in pairs if p.verdict == "better" and name in {p.target, p.other}]
            worse = tuple(p.target for p in shown if p.other == name)
            better = tuple(p.other for p in shown if p.target == name)
            group = 1 + max((ranking[other].group for other in worse), default=0)
            ranking[name] = Ranked(name, estimate, interval, group, better, worse)
        return tuple(ranking.values()), notes
