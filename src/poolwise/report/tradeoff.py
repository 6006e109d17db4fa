"""Trade-off: two metrics of many targets in one chart, and the targets that none dominates."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from poolwise.report.charts import ACCENT, INK, MUTED, inline, style_chart
from poolwise.text import interval_text, with_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.report.charts import Chart
    from poolwise.report.sentence import Facts

HEIGHT = 360


class Direction(NamedTuple):
    """A metric, and whether more of it is better.

    Attributes:
        metric: Name of the metric.
        sign: 1 if higher is better, -1 if lower is.
    """

    metric: str
    sign: float


def find_frontier(values: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names that no other dominates, by the first number; more is better.

    One dominates another if it is at least as good in both numbers, and better in one.

    >>> find_frontier({"a": (1.0, 3.0), "b": (2.0, 2.0), "c": (1.5, 1.0), "d": (1.0, 3.0)})
    ['a', 'd', 'b']
    """
    kept = [
        name
        for name, (x, y) in values.items()
        if not any(p >= x and q >= y and (p, q) != (x, y) for p, q in values.values())
    ]
    return sorted(kept, key=lambda name: values[name])


def tradeoff_chart(
    points: Mapping[str, tuple[Facts, Facts]], x: Direction, y: Direction
) -> Chart:
    """Draw the estimates of two metrics with their intervals, and their frontier as a step.

    Args:
        points: Estimate of both metrics, with `value`, `lower`, `upper` and `std_error`, by
            target.
        x: Metric of the horizontal axis.
        y: Metric of the vertical axis.
    """
    import altair as alt

    good = {name: (x.sign * a["value"], y.sign * b["value"]) for name, (a, b) in points.items()}
    frontier = find_frontier(good)
    rows = [
        {
            "target": name,
            "kind": "not dominated" if name in frontier else "dominated",
            "x": a["value"],
            "low x": a["lower"],
            "high x": a["upper"],
            "y": b["value"],
            "low y": b["lower"],
            "high y": b["upper"],
            "first": _text(a),
            "second": _text(b),
        }
        for name, (a, b) in points.items()
    ]
    kinds = ["not dominated", "dominated"]
    colour = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=kinds, range=[ACCENT, MUTED]),
        legend=alt.Legend(title=None, orient="top"),
    )
    tips = [alt.Tooltip("target:N")]
    tips += [alt.Tooltip("first:N", title=x.metric), alt.Tooltip("second:N", title=y.metric)]
    base = alt.Chart(inline(rows)).encode(color=colour, tooltip=tips)
    free = alt.Scale(zero=False, padding=12)
    titles = [f"{d.metric} ({'more' if d.sign > 0 else 'less'} is better)" for d in (x, y)]

    def across(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title=titles[0], scale=free)

    def up(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title=titles[1], scale=free)

    lines = base.mark_rule(strokeWidth=1.5, opacity=0.6)
    layers = [
        alt.Chart(
            inline(
                _steps([(points[n][0]["value"], points[n][1]["value"]) for n in frontier], x, y)
            )
        )
        .mark_line(color=MUTED, strokeWidth=1.5, strokeDash=[5, 4])
        .encode(x=across("x"), y=up("y"), order=alt.Order("order:Q")),
        lines.encode(x=across("low x"), x2=alt.X2("high x:Q"), y=up("y")),
        lines.encode(y=up("low y"), y2=alt.Y2("high y:Q"), x=across("x")),
        base.mark_circle(size=110, opacity=1).encode(x=across("x"), y=up("y")),
        base.mark_text(align="left", dx=9, dy=-9, fontSize=11).encode(
            x=across("x"), y=up("y"), text=alt.Text("target:N"), color=alt.value(INK)
        ),
    ]
    return style_chart(layers, HEIGHT)


def _text(estimate: Facts) -> str:
    ends = interval_text(estimate["lower"], estimate["upper"], estimate["std_error"])
    return f"{with_error(estimate['value'], estimate['std_error'])} {ends}"


def _steps(
    corners: Sequence[tuple[float, float]], x: Direction, y: Direction
) -> list[dict[str, object]]:
    """Return the corners of the frontier: what a target reaches, all worse pairs do."""
    path = list(corners[:1])
    for before, after in pairwise(corners):
        worse = (
            (min if x.sign > 0 else max)(before[0], after[0]),
            (min if y.sign > 0 else max)(before[1], after[1]),
        )
        path += [worse, after]
    return [{"x": a, "y": b, "order": k} for k, (a, b) in enumerate(path)]
