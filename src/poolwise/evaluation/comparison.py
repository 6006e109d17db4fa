"""Comparison: which of several targets is better, and which differences are real.

Estimates from the same rows share their errors, so a difference is far more precise than
either; and the highest of many estimates is biased upwards.  Differences therefore use the
covariance of the estimates, and the intervals of all pairs hold together.  Limits,
adjusted p-values, verdicts and groups come from one distribution (single-step max-T): a
verdict is "better" or "worse" exactly where the interval excludes 0 and the adjusted p-value
is below 1 - level, and targets of one group have no such verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from poolwise.diagnosis.provenance import on_own_log
from poolwise.errors import Finding, NotShownError, RefusedError
from poolwise.evaluation.differences import (
    Difference,
    Requirement,
    check_requirement,
    conclude,
    find_doubts,
    relate_none,
    tie,
)
from poolwise.evaluation.output import (
    Reported,
    Row,
    listed_findings,
    of_requests,
    share_findings,
)
from poolwise.evaluation.spread import Candidates, find_equals
from poolwise.intervals.simultaneous import ALONE
from poolwise.intervals.skew import auto_interval, reaching
from poolwise.report.sentence import conclusion, repeats
from poolwise.report.tables import Grid, comparison_tables, metrics_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from poolwise.diagnosis.provenance import Conflicts
    from poolwise.evaluation.relation import Relative
    from poolwise.evaluation.results import Evaluation
    from poolwise.evaluation.sensitivity import Sensitivity
    from poolwise.intervals.student import Interval, Limits
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.heavy import HeavyRows
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
    """A ranking of the targets of an evaluation, and their differences.

    Attributes:
        evaluation: The estimates and findings of each target. It has no comparison: this is
            the one.
        ranking: Targets, the highest estimate first.
        pairs: Each target minus each target ranked below it.
        baseline: Name of the baseline, or empty.
        estimator: Name of the estimator.
        findings: Findings of the log, of every target, and of the intervals.
        metrics: The same by every metric, by name; empty without `metrics`.
    """

    kind = "comparison"
    labels = ("target",)
    evaluation: Evaluation = field(compare=False)
    ranking: tuple[Ranked, ...]
    pairs: tuple[Difference, ...]
    baseline: str
    estimator: str
    findings: tuple[Finding, ...] = ()
    metrics: Mapping[str, Comparison] = field(default_factory=dict)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Each target minus the baseline; empty without a baseline."""
        return _subtract(self.baseline, self.pairs)

    @property
    def level(self) -> float:
        """Simultaneous level of the intervals."""
        return self.evaluation.level

    @property
    def rows(self) -> Mapping[str, int]:
        """Usable rows of each logger."""
        return self.evaluation.rows

    @property
    def rows_per_request(self) -> int | None:
        """Rows per request of a ranking log; None if values are per row."""
        return self.evaluation.rows_per_request

    @property
    def doubted(self) -> Mapping[str, tuple[str, ...]]:
        """Alarms that forbid a verdict, by target."""
        return _find_doubted(self.evaluation)

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
        check_requirement(verdict, margin, pairs, target, self.baseline)
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
        measured = self.evaluation.metric
        row: Row = {} if measured is None else {"measured": measured.to_dict()}
        row |= {
            "estimator": self.estimator,
            "baseline": self.baseline or None,
            "level": self.level,
            "targets": shown,
            "pairs": [d.to_dict() for d in self.pairs],
            "differences": [d.to_dict() for d in _subtract(other, self.pairs)],
            "loggers": [{"logger": i, "rows": n} for i, n in self.rows.items()],
            **of_requests(self.rows_per_request),
        }
        row["sentence"] = conclusion(row, self.doubted)
        row["warnings"] = self.warnings
        return row | ({"metrics": self._metrics} if self.metrics else {})

    @property
    def _metrics(self) -> list[Row]:
        """Values and differences of every metric, from the baseline or from the best target."""
        return [
            {
                "metric": name,
                **(c.evaluation.metric.to_dict() if c.evaluation.metric else {}),
                "targets": c.summarise(),
            }
            for name, c in self.metrics.items()
        ]

    def summarise(self) -> list[Row]:
        """Return the value of each target, and its difference."""
        other = self.baseline or self.ranking[0].target
        differences = {d.target: d.to_dict() for d in _subtract(other, self.pairs)}
        rows: list[Row] = []
        for r in self.ranking:
            row: Row = {"target": r.target, "estimator": self.estimator}
            row |= {"value": r.estimate.value, "std_error": r.estimate.std_error}
            row |= {"lower": r.interval.lower, "upper": r.interval.upper, "level": self.level}
            own = differences.get(r.target)
            rows.append(row | ({} if own is None else {"difference": own}))
        return rows

    @property
    def warnings(self) -> list[Row]:
        """All findings, most serious first; what all metrics share appears once."""
        if not self.metrics:
            return listed_findings(self.findings)
        each = {name: c.findings for name, c in self.metrics.items()}
        metrics = {name: c.evaluation.metric for name, c in self.metrics.items()}
        ratios = [name for name, metric in metrics.items() if metric and metric.ratio]
        return listed_findings(share_findings(each, ratios))

    def grids(self) -> list[Grid]:
        """Return all tables, in reading order."""
        row = self.to_dict()
        measured = [metrics_table(row)] if self.metrics else []
        return [*comparison_tables(row), *measured]

    def facts(self) -> Row:
        """Return the dictionary that the charts and the report read."""
        whole = self.evaluation.to_dict()
        return {**whole, "comparison": self.to_dict(), "warnings": self.warnings}

    def page_opening(self) -> Mapping[str, str]:
        """Return title, answer, severity and first section of the report."""
        title = f"{len(self.ranking)} targets: comparison on the same rows"
        severities = [f.severity for f in self.findings]
        severity = next((s for s in ("alarm", "warning") if s in severities), "sound")
        start = {"title": title, "begins_with": "comparison"}
        return {**start, "answer": self.sentence, "severity": severity}


def _subtract(other: str, pairs: Sequence[Difference]) -> tuple[Difference, ...]:
    """Return the differences of all targets from one of them."""
    return tuple(p.against(other) for p in pairs if other in {p.target, p.other})


def _find_doubted(evaluation: Evaluation) -> dict[str, tuple[str, ...]]:
    """Return the alarms that forbid a verdict, by target."""
    alarms = {name: find_doubts(r.findings) for name, r in evaluation.targets.items()}
    return {name: codes for name, codes in alarms.items() if codes}


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
        heavy: Returns the heavy rows that decide the difference of two targets, if few do.
        sensitivity: Rows of a log with estimated propensities; None for other logs.
    """

    estimator: str
    pool: Pool
    weight: Term
    targets: Mapping[str, Pool]
    limits: Mapping[str, Limits]
    trained: Conflicts
    heavy: Callable[[str, str], HeavyRows | None] = lambda _left, _right: None
    sensitivity: Sensitivity | None = None

    def rank(self, evaluation: Evaluation, baseline: str = "") -> Comparison:
        """Rank the targets of an evaluation; an empty baseline means none.

        Raises:
            RefusedError: The rows show no spread, or all belong to one cluster.
        """
        targets = self._targets(evaluation, evaluation.targets, baseline)
        pairs = targets.pairs()
        if self.sensitivity is not None:
            pairs = tuple(map(self.sensitivity.mark, pairs))
        ranking, notes = targets.ranking(pairs)
        own = replace(targets.evaluation, baseline=baseline, pairs=None)
        findings = (*own.findings, *own.target_findings, *notes)
        return Comparison(own, ranking, pairs, baseline, self.estimator, findings)

    def contrast(
        self, evaluation: Evaluation, target: str, other: str, *, widening: float = 1.0
    ) -> Difference:
        """Return one target minus another, with an interval that holds for this pair alone.

        Args:
            evaluation: The evaluation; its level is that of the interval.
            target: Name of the target.
            other: Name of the target that is subtracted.
            widening: Factor on the errors.

        Raises:
            RefusedError: The rows show no spread, or all belong to one cluster.
        """
        targets = self._targets(evaluation, (target, other))
        if targets.first[target] == targets.first[other]:
            return tie(target, other, evaluation.level)
        (difference,) = targets.family([(target, other)], widening)
        return difference

    def _targets(
        self, evaluation: Evaluation, names: Iterable[str], baseline: str = ""
    ) -> _Targets:
        """Return some targets of an evaluation; raise if one has no estimate to compare."""
        name = self.estimator
        lacking = [n for n in names if name not in evaluation.targets[n].estimates]
        if lacking:
            listed = ", ".join(map(repr, lacking))
            raise RefusedError("not-comparable", f"{name} has no estimate of {listed}")
        kept = {n: evaluation.targets[n] for n in names}
        own = without_training(replace(evaluation, targets=kept), self.trained)
        return _Targets(own, self, baseline)


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
    baseline: str = ""

    @cached_property
    def candidates(self) -> Candidates:
        results, name = self.evaluation.targets, self.source.estimator
        estimates = {target: r.estimates[name] for target, r in results.items()}
        pools, limits = self.source.targets, self.source.limits
        reaches = {n: reaching(e, pools[n], limits[n]) for n, e in estimates.items()}
        return Candidates(estimates, self.source.pool, reaches, self.source.heavy)

    @property
    def sign(self) -> float:
        """1 if higher values are better, -1 if lower ones are."""
        metric = self.evaluation.metric
        return 1.0 if metric is None else metric.sign

    @cached_property
    def first(self) -> dict[str, str]:
        """The first target that equals each one on every row, in the order of the ranking."""
        names, estimates = list(self.evaluation.targets), self.candidates.estimates
        first = find_equals(self.source.pool, names, self.source.weight)

        def place(name: str) -> tuple[float, int, int]:  # equal targets are neighbours
            leader = first[name]
            value = self.sign * estimates[leader].value
            return -value, names.index(leader), names.index(name)

        return {name: first[name] for name in sorted(names, key=place)}

    def pairs(self) -> tuple[Difference, ...]:
        """Return the differences of all pairs, whose intervals hold together.

        Equal targets count once, and the difference between them is exactly 0.
        """
        first = self.first
        family = list(combinations(dict.fromkeys(first.values()), 2))
        members = dict(zip(family, self.family(family), strict=True)) if family else {}
        same = tie("", "", self.evaluation.level).facing(self.sign)
        return tuple(
            replace(members.get((first[one], first[two]), same), target=one, other=two)
            for one, two in combinations(first, 2)
        )

    def family(self, pairs: list[tuple[str, str]], widening: float = 1.0) -> list[Difference]:
        """Return the differences of some pairs, whose intervals hold together.

        Where the ranking contradicts the paired estimate, nothing is shown.
        """
        doubted = _find_doubted(self.evaluation)
        spread = self.candidates.differences(pairs).widen(widening)
        level = self.evaluation.level
        estimates = self.candidates.estimates
        gaps = [estimates[one].value - estimates[two].value for one, two in pairs]
        differences = conclude(
            pairs,
            spread,
            spread.together(np.random.default_rng(SEED)),
            level,
            reward_range=next(iter(self.source.limits.values())).reward_range,
            doubted=[pair for pair in pairs if doubted.keys() & pair],
            agree=np.sign(spread.values) == np.sign(gaps),
            relate=partial(self._relate, pairs) if widening == 1 else relate_none,
        )
        return [difference.facing(self.sign) for difference in differences]

    def _relate(
        self, pairs: Sequence[tuple[str, str]], number: int, critical: float
    ) -> Relative | None:
        """Return the relation of a pair with the baseline, or with the best target."""
        first, other = pairs[number]
        shown = self.baseline or next(iter(self.first.values()))
        if shown == first:  # whose inverse is shown
            relative = self.candidates.relate(other, first, critical, self.evaluation.level)
            return relative and relative.inverse
        if shown != other:
            return None
        return self.candidates.relate(first, other, critical, self.evaluation.level)

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
            estimate = alone
            if alone.decisive is None:
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
