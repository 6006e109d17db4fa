"""Ranking: what a comparison of several targets found, without the data.

Tables, frames, JSON and HTML all start from the same dictionaries, so they cannot
disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from poolwise.evaluation.results import Presented, Row
from poolwise.report.tables import Grid, comparison_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.errors import Finding
    from poolwise.intervals.student import Interval
    from poolwise.moments.estimate import Estimate

Verdict = Literal["better", "worse", "undecided", "identical", "unreliable"]
FEW = 5  # names that a sentence lists; more are counted


@dataclass(frozen=True)
class Difference:
    """One target less another.

    Attributes:
        target: The target.
        other: What it is compared with.
        value: Estimated difference, in pairs.
        std_error: Its standard error.
        interval: Covers together with the intervals of all other differences.
        p_value: Of no difference, for this pair alone.
        adjusted: The same for all differences together (Holm).
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


@dataclass(frozen=True)
class Ranked:
    """One target in the order of the estimates.

    Attributes:
        target: The target.
        estimate: Its estimate.
        interval: Covers together with the intervals of all other targets.
        group: 1 where no target was shown to be better; otherwise one more than that of
            the last group which holds a better one.
        better_than: Targets that it was shown to be better than.
        worse_than: Targets that were shown to be better.
    """

    target: str
    estimate: Estimate
    interval: Interval
    group: int
    better_than: tuple[str, ...]
    worse_than: tuple[str, ...]


@dataclass(frozen=True)
class Comparison(Presented):
    """Several targets beside each other.

    Attributes:
        ranking: Targets, the highest estimate first.
        differences: Every other target less the baseline; empty without one.
        pairs: Every target less every one ranked below it.
        baseline: Name of the baseline; empty without one.
        estimator: Name of the estimator.
        level: Level of the intervals, each family of them together.
        rows: Usable rows of each logger.
        findings: Findings of the log and of every target.
        doubted: Alarms of targets whose probabilities cannot be right, by target.
    """

    ranking: tuple[Ranked, ...]
    differences: tuple[Difference, ...]
    pairs: tuple[Difference, ...]
    baseline: str
    estimator: str
    level: float
    rows: Mapping[str, int]
    findings: tuple[Finding, ...] = ()
    doubted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __getitem__(self, target: str) -> Ranked:
        return {r.target: r for r in self.ranking}[target]

    def difference(self, target: str, other: str = "") -> Difference:
        """One target less another, or less the baseline."""
        known = {(d.target, d.other): d for d in (*self.pairs, *self.differences)}
        return known[target, other or self.baseline]

    @property
    def warnings(self) -> list[Row]:
        """All findings, the gravest first."""
        ranked = sorted(self.findings, key=lambda finding: finding.rank)
        return [{"code": f.code, "severity": f.severity, "message": str(f)} for f in ranked]

    @property
    def sentence(self) -> str:
        """What was found, for people who read no tables."""
        conclusion = _against(self) if self.baseline else _leader(self)
        return " ".join(filter(None, [*_doubts(self), conclusion, *_repeated(self)]))

    @property
    def repeats(self) -> dict[str, list[str]]:
        """Targets that play as an earlier one on every row, by that one."""
        found: dict[str, list[str]] = {}
        known: set[str] = set()
        for pair in self.pairs:  # of those alike, the first stands before the others
            if pair.verdict == "identical" and pair.target not in known:
                found.setdefault(pair.target, []).append(pair.other)
                known.add(pair.other)
        return found

    def to_dicts(self) -> list[Row]:
        """One dictionary per target, the highest estimate first."""
        against = {d.target: d for d in self.differences}
        return [
            {**self._ranked(rank, r), **self._difference(against.get(r.target))}
            for rank, r in enumerate(self.ranking, 1)
        ]

    def _ranked(self, rank: int, ranked: Ranked) -> Row:
        return {
            "target": ranked.target,
            "rank": rank,
            "group": ranked.group,
            "value": ranked.estimate.value,
            "std_error": ranked.estimate.std_error,
            "lower": ranked.interval.lower,
            "upper": ranked.interval.upper,
            "level": self.level,
        }

    def _difference(self, found: Difference | None) -> Row:
        if not self.baseline:
            return {}
        names = ("difference", "difference_std_error", "difference_lower", "difference_upper")
        if found is None:  # the baseline less itself
            return {**dict.fromkeys(names, 0.0), "p_value": 1.0, "adjusted": 1.0, "verdict": ""}
        lower, upper = found.interval.lower, found.interval.upper
        numbers = (found.value, found.std_error, lower, upper)
        return {
            **dict(zip(names, numbers, strict=True)),
            "p_value": found.p_value,
            "adjusted": found.adjusted,
            "verdict": found.verdict,
        }

    def to_dict(self) -> Row:
        """Everything, nested; the names are part of the public face."""
        shown = [
            {**row, "better_than": list(r.better_than), "worse_than": list(r.worse_than)}
            for row, r in zip(self.to_dicts(), self.ranking, strict=True)
        ]
        return {
            "estimator": self.estimator,
            "baseline": self.baseline or None,
            "level": self.level,
            "targets": shown,
            "pairs": [_flat(d) for d in self.pairs],
            "loggers": [{"logger": i, "rows": n} for i, n in self.rows.items()],
            "sentence": self.sentence,
            "warnings": self.warnings,
        }

    @property
    def sentences(self) -> Sequence[str]:
        return (self.sentence,)

    def grids(self) -> list[Grid]:
        """All tables, in the order in which they are read."""
        return comparison_tables(self.to_dict())


def _flat(found: Difference) -> Row:
    return {
        "target": found.target,
        "other": found.other,
        "difference": found.value,
        "std_error": found.std_error,
        "lower": found.interval.lower,
        "upper": found.interval.upper,
        "p_value": found.p_value,
        "adjusted": found.adjusted,
        "verdict": found.verdict,
    }


def _against(comparison: Comparison) -> str:
    """Who beats the baseline."""
    by_verdict: dict[str, list[str]] = {}
    for found in comparison.differences:
        by_verdict.setdefault(found.verdict, []).append(found.target)
    words = {
        "better": "shown to be better",
        "worse": "shown to be worse",
        "undecided": "not significantly different from it",
        "identical": "the same policy on every logged row",
        "unreliable": "not compared",
    }
    parts = [
        f"{_counted(by_verdict[verdict])} {text}"
        for verdict, text in words.items()
        if verdict in by_verdict
    ]
    return f"Against {comparison.baseline!r}: {'; '.join(parts)}."


def _leader(comparison: Comparison) -> str:
    """Return which targets the highest reliable estimate beats."""
    reliable = [r for r in comparison.ranking if r.target not in comparison.doubted]
    if not reliable:
        return "No target can be called better than another."
    best, *others = reliable
    beaten, equal = set(best.better_than), comparison.repeats.get(best.target, [])
    rivals = [r.target for r in others if r.target not in equal]
    unresolved = [name for name in rivals if name not in beaten]
    of_rest = " of the others" if comparison.doubted else ""
    first = f"{best.target!r} has the highest estimate{of_rest}"
    if not rivals:
        return "" if comparison.doubted else "All of these targets are the same policy."
    if not unresolved:
        whom = "every target that differs from it" if equal else "every other target"
        return f"{first} and was shown to be better than {whom}."
    shown = f", and was shown to be better than {len(beaten)} of {len(rivals)} others"
    return (
        f"{first}{shown if beaten else ''}; it is not significantly different from "
        f"{_list(unresolved)}."
    )


def _doubts(comparison: Comparison) -> list[str]:
    """Return the sentence about targets whose probabilities cannot be right."""
    if not comparison.doubted:
        return []
    codes = dict.fromkeys(code for alarms in comparison.doubted.values() for code in alarms)
    names, whom = list(comparison.doubted), "it" if len(comparison.doubted) == 1 else "them"
    reason = f"The probabilities of {_list(names)} cannot be right ({', '.join(codes)})"
    return [f"{reason}: no conclusion is drawn about {whom}."]


def _repeated(comparison: Comparison) -> list[str]:
    """Who plays as somebody else; the baseline's own repeats are told already."""
    told = comparison.baseline
    found = {
        first: others
        for first, others in comparison.repeats.items()
        if not told or told not in {first, *others}
    }
    if len(found) > FEW:
        return [f"{sum(map(len, found.values()))} targets play as another one on every row."]
    return [
        f"{_list(others)} {'plays' if len(others) == 1 else 'play'} as {first!r} on every row."
        for first, others in found.items()
    ]


def _counted(names: Sequence[str]) -> str:
    return f"{_list(names)} {'is' if len(names) == 1 else 'are'}"


def _list(names: Sequence[str]) -> str:
    """Names, or their number where they are many.

    >>> _list(["a"]), _list(["a", "b", "c"]), _list("abcdefg")
    ("'a'", "'a', 'b' and 'c'", '7 targets')
    """
    if len(names) > FEW:
        return f"{len(names)} targets"
    *most, last = map(repr, names)
    return f"{', '.join(most)} and {last}" if most else last
