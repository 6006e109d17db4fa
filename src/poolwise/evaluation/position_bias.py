"""Position bias: how often each position is examined, with intervals, as a result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolwise.evaluation.output import Reported, Row
from poolwise.intervals.student import check_level
from poolwise.moments.estimate import student_quantile
from poolwise.report.clicks import pair_table, position_chart, position_table
from poolwise.text import count_noun, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import altair as alt

    from poolwise.errors import Finding
    from poolwise.log.clicks import Curve, Pair
    from poolwise.report.tables import Grid


@dataclass(frozen=True)
class Examined:
    """Examination of one position, relative to the first.

    Attributes:
        position: The position, from 1.
        examination: How often users examine it, for each time that they examine the first.
        log_error: Standard error of its logarithm.
        lower: Lower limit of its interval.
        upper: Upper limit.
    """

    position: int
    examination: float
    log_error: float
    lower: float
    upper: float


@dataclass(frozen=True, repr=False)
class PositionBias(Reported):
    """Examination of each position, from the differences of rankers.

    Attributes:
        positions: Examination of each position.
        pairs: Pairs of positions that the curve was fitted to.
        misfit: Weighted sum of squared residuals of the fit.
        freedom: Pairs that the fit could choose to miss.
        requests: Requests of each ranker.
        level: Level of the intervals.
        findings: Findings about the log.
    """

    kind = "position-bias"
    labels = ("position",)
    positions: tuple[Examined, ...]
    pairs: tuple[Pair, ...]
    misfit: float
    freedom: int
    requests: Mapping[str, int]
    level: float
    findings: tuple[Finding, ...] = ()

    def __getitem__(self, position: int) -> Examined:
        return self.positions[position - 1]

    @property
    def curve(self) -> dict[int, float]:
        """Examination by position, as `bias` of `click_log` takes it."""
        return {p.position: p.examination for p in self.positions}

    @property
    def opening(self) -> Sequence[str]:
        return (self.sentence,)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        last = self.positions[-1]
        return (
            f"Position {last.position} is examined {percent(last.examination)} as often as "
            f"position 1, from {count_noun(len(self.requests), 'ranker')} with "
            f"{sum(self.requests.values()):,} requests."
        )

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per position, with unrounded numbers."""
        return [{**vars(p), "level": self.level} for p in self.positions]

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        return {
            "sentence": self.sentence,
            "level": self.level,
            "positions": [dict(vars(p)) for p in self.positions],
            "pairs": [p._asdict() for p in self.pairs],
            "misfit": self.misfit,
            "freedom": self.freedom,
            "loggers": [{"logger": i, "requests": n} for i, n in self.requests.items()],
            "warnings": self.warnings,
        }

    def brief(self) -> list[Grid]:
        """Return the table of the positions."""
        return [position_table(self.to_dict())]

    def grids(self) -> list[Grid]:
        """Return the tables of the positions and of the pairs."""
        facts = self.to_dict()
        return [position_table(facts), pair_table(facts)]

    def charts(self) -> dict[str, alt.LayerChart]:
        """Return the chart of the curve by name, as an Altair object."""
        return {"position-bias": position_chart(self.to_dict())}

    def page_text(self, command: str = "", question: Mapping[str, object] | None = None) -> str:
        from poolwise.report.page import position_page

        return position_page(self.to_dict(), command=command, question=question)


def describe(curve: Curve, requests: Mapping[str, int], level: float) -> PositionBias:
    """Return a curve with intervals.

    Args:
        curve: Examination of each position.
        requests: Requests of each ranker.
        level: Level of the intervals.
    """
    check_level(level)
    critical = student_quantile((1 + level) / 2, max(1.0, len(curve.shifts) - 1.0))
    numbers = zip(curve.logs.tolist(), curve.log_errors.tolist(), strict=True)
    positions = tuple(
        Examined(
            k, math.exp(log), e, math.exp(log - critical * e), math.exp(log + critical * e)
        )
        for k, (log, e) in enumerate(numbers, 1)
    )
    return PositionBias(
        positions, curve.pairs, curve.misfit, curve.freedom, dict(requests), level
    )
