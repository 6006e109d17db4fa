"""Ranking: the result of a comparison, and the sentence that concludes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from poolwise.evaluation.results import Result, Row
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
        other: The target that is subtracted.
        value: Estimated difference, paired by row.
        std_error: Standard error of `value`.
        interval: Simultaneous interval over the family of differences.
        p_value: P-value of no difference, for this pair alone.
        adjusted: P-value adjusted for the family (Holm).
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

    def to_dict(self) -> Row:
        """Return the difference under flat names."""
        return {
            "target": self.target,
            "other": self.other,
            "difference": self.value,
            "std_error": self.std_error,
            "lower": self.interval.lower,
            "upper": self.interval.upper,
            "p_value": self.p_value,
            "adjusted": self.adjusted,
            "verdict": self.verdict,
        }


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


@dataclass(frozen=True)
class Comparison(Result):
    """A ranking of targets, and their differences.

    Attributes:
        ranking: Targets, the highest estimate first.
        differences: Each target less the baseline; empty without one.
        pairs: Each target less each one ranked below it.
        baseline: Name of the baseline; empty without one.
        estimator: Name of the estimator.
        level: Simultaneous level of each family of intervals.
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
        """Return one target less another, or less the baseline."""
        by_names = {(d.target, d.other): d for d in (*self.pairs, *self.differences)}
        return by_names[target, other or self.baseline]

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        conclusion = _against(self) if self.baseline else _leader(self)
        return " ".join(filter(None, [*_doubts(self), conclusion, *_repeated(self)]))

    @property
    def repeats(self) -> dict[str, list[str]]:
        """Targets that equal an earlier one on every row, by that one."""
        repeats: dict[str, list[str]] = {}
        seen: set[str] = set()
        for pair in self.pairs:  # of equal targets, the first is ranked first
            if pair.verdict == "identical" and pair.target not in seen:
                repeats.setdefault(pair.target, []).append(pair.other)
                seen.add(pair.other)
        return repeats

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per target, the highest estimate first."""
        against = {d.target: d.to_dict() for d in self.differences}
        itself: Row = dict.fromkeys(("difference", "std_error", "lower", "upper"), 0.0)
        itself |= {"p_value": 1.0, "adjusted": 1.0, "verdict": ""}
        return [
            {
                "target": r.target,
                "rank": rank,
                "group": r.group,
                "value": r.estimate.value,
                "std_error": r.estimate.std_error,
                "lower": r.interval.lower,
                "upper": r.interval.upper,
                "level": self.level,
                **self._from_baseline(against.get(r.target, itself)),
            }
            for rank, r in enumerate(self.ranking, 1)
        ]

    def _from_baseline(self, row: Mapping[str, object]) -> Row:
        if not self.baseline:
            return {}
        ends = {f"difference_{name}": row[name] for name in ("std_error", "lower", "upper")}
        rest = {name: row[name] for name in ("p_value", "adjusted", "verdict")}
        return {"difference": row["difference"], **ends, **rest}

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        shown = [
            {**row, "better_than": list(r.better_than), "worse_than": list(r.worse_than)}
            for row, r in zip(self.to_dicts(), self.ranking, strict=True)
        ]
        return {
            "estimator": self.estimator,
            "baseline": self.baseline or None,
            "level": self.level,
            "targets": shown,
            "pairs": [d.to_dict() for d in self.pairs],
            "loggers": [{"logger": i, "rows": n} for i, n in self.rows.items()],
            "sentence": self.sentence,
            "warnings": self.warnings,
        }

    @property
    def sentences(self) -> Sequence[str]:
        return (self.sentence,)

    def grids(self) -> list[Grid]:
        """Return all tables, in reading order."""
        return comparison_tables(self.to_dict())


def _against(comparison: Comparison) -> str:
    """Return the targets by their verdict against the baseline."""
    by_verdict: dict[str, list[str]] = {}
    for difference in comparison.differences:
        by_verdict.setdefault(difference.verdict, []).append(difference.target)
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
    """Return sentences on equal targets, except duplicates of the baseline."""
    baseline = comparison.baseline
    repeats = {
        first: others
        for first, others in comparison.repeats.items()
        if not baseline or baseline not in {first, *others}
    }
    if len(repeats) > FEW:
        return [f"{sum(map(len, repeats.values()))} targets equal another one on every row."]
    return [
        f"{_list(others)} {'equals' if len(others) == 1 else 'equal'} {first!r} on every row."
        for first, others in repeats.items()
    ]


def _counted(names: Sequence[str]) -> str:
    return f"{_list(names)} {'is' if len(names) == 1 else 'are'}"


def _list(names: Sequence[str]) -> str:
    """Return the names, or their number if there are many.

    >>> _list(["a"]), _list(["a", "b", "c"]), _list("abcdefg")
    ("'a'", "'a', 'b' and 'c'", '7 targets')
    """
    if len(names) > FEW:
        return f"{len(names)} targets"
    *most, last = map(repr, names)
    return f"{', '.join(most)} and {last}" if most else last
