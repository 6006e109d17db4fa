"""Outlook: what a plan found, without the data.

Tables, frames, JSON and HTML all start from the same dictionaries, so they cannot
disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolwise.evaluation.results import Presented, Row
from poolwise.intervals.student import student
from poolwise.report.tables import BEST_SPLIT, Grid, needed_rows, plan_tables
from poolwise.text import percent, short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.errors import Finding
    from poolwise.moments.estimate import Estimate

AS_NOW = "(as now)"
BEST = BEST_SPLIT
NO_SPREAD = "the rows at hand show no spread, so nothing can be predicted"
FEW = 5  # loggers that a sentence lists


@dataclass(frozen=True)
class Option:
    """One way of getting there.

    Attributes:
        estimator: Name of the estimator.
        source: Logger that writes the new rows, `AS_NOW` or `BEST`.
        rows: New rows that are needed; 0 where none are, infinite where none suffice.
        split: Part of each logger in the new rows; loggers without a part are left out.
        reason: Why no number of rows suffices; empty where one does.
    """

    estimator: str
    source: str
    rows: float
    split: Mapping[str, float]
    reason: str = ""


@dataclass(frozen=True)
class Plan(Presented):
    """How many more rows reach a wanted half-width.

    Attributes:
        target: Name of the target.
        half_width: What is wanted.
        level: Level of the interval.
        rows: Rows of each logger now.
        estimates: Estimate of each estimator now.
        options: Ways of getting there, estimator by estimator.
        assumptions: What the plan takes for granted, in sentences.
        findings: What to know before trusting it.
    """

    target: str
    half_width: float
    level: float
    rows: Mapping[str, int]
    estimates: Mapping[str, Estimate]
    options: tuple[Option, ...]
    assumptions: tuple[str, ...]
    findings: tuple[Finding, ...] = ()

    def option(self, estimator: str, source: str = BEST) -> Option:
        """One way of getting there; by default the best split."""
        return {(o.estimator, o.source): o for o in self.options}[estimator, source]

    def half_width_now(self, estimator: str) -> float:
        """Half-width of the interval as the log is; infinite where rows show no spread."""
        estimate = self.estimates[estimator]
        if not 0 < estimate.variance < math.inf:
            return math.inf
        return student(estimate, self.level).upper - estimate.value

    @property
    def warnings(self) -> list[Row]:
        """All findings, the gravest first."""
        ranked = sorted(self.findings, key=lambda finding: finding.rank)
        return [{"code": f.code, "severity": f.severity, "message": str(f)} for f in ranked]

    @property
    def sentence(self) -> str:
        """What to do, for people who read no tables."""
        wanted = f"a half-width of {short(self.half_width)}"
        if not self.estimates:
            return f"No estimator can be planned for {self.target!r}."
        # the first that gets there: estimators stand in the order of preference
        first = next((e for e in self.estimates if self.option(e).rows < math.inf), "")
        if not first:
            reasons = {e: self.option(e).reason for e in self.estimates}
            said = "; ".join(f"{e}: {reason}" for e, reason in reasons.items())
            return f"No number of rows is known to reach {wanted} ({said})."
        best, mixed = self.option(first), self.option(first, AS_NOW)
        now = self.half_width_now(first)
        if not best.rows:
            return f"{first.capitalize()} has already reached {wanted}: it is {short(now)} now."
        return (
            f"{first.capitalize()} needs {needed_rows(best.rows, now)} more rows for {wanted}, "
            f"if they come {_split_words(best)}; with the loggers mixed as they are now, "
            f"{needed_rows(mixed.rows, now)}."
        )

    def to_dicts(self) -> list[Row]:
        """One dictionary per estimator and source of rows."""
        return [
            {
                "estimator": o.estimator,
                "source": o.source,
                "rows": o.rows,
                "half_width_now": self.half_width_now(o.estimator),
                "half_width": self.half_width,
                "level": self.level,
                "reason": o.reason,
            }
            for o in self.options
        ]

    def to_dict(self) -> Row:
        """Everything, nested; the names are part of the public face."""
        options = [
            {**row, "split": dict(o.split)}
            for row, o in zip(self.to_dicts(), self.options, strict=True)
        ]
        return {
            "target": self.target,
            "half_width": self.half_width,
            "level": self.level,
            "options": options,
            "loggers": [{"logger": i, "rows": n} for i, n in self.rows.items()],
            "assumptions": list(self.assumptions),
            "sentence": self.sentence,
            "warnings": self.warnings,
        }

    @property
    def sentences(self) -> Sequence[str]:
        return (self.sentence, *self.assumptions)

    def grids(self) -> list[Grid]:
        """All tables, in the order in which they are read."""
        return plan_tables(self.to_dict())


def _split_words(option: Option) -> str:
    """Who writes the new rows, largest part first."""
    parts = sorted(option.split.items(), key=lambda part: -part[1])
    if len(parts) > FEW:
        return "in the best split"
    *most, last = [f"{percent(round(share, 3))} from {i!r}" for i, share in parts]
    return f"{', '.join(most)} and {last}" if most else last
