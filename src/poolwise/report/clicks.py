"""Clicks: the tables and the chart of a position bias."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from poolwise.report.charts import ACCENT, inline, style_chart
from poolwise.report.tables import UNKNOWN, Grid
from poolwise.text import interval_text, places_for, short, with_error

if TYPE_CHECKING:
    from poolwise.report.charts import Chart
    from poolwise.report.sentence import Facts

HEIGHT = 220  # of the chart


def position_table(facts: Facts) -> Grid:
    """Return how often each position is examined."""
    requests = sum(i["requests"] for i in facts["loggers"])
    title = f"Position bias: {requests:,} requests of {len(facts['loggers'])} rankers"
    header = ["position", "examined", f"{100 * facts['level']:g}% interval"]
    rows = []
    for entry in facts["positions"]:
        error = entry["examination"] * entry["log_error"]
        if not error:
            rows.append([str(entry["position"]), short(entry["examination"]), UNKNOWN])
            continue
        limits = interval_text(entry["lower"], entry["upper"], error)
        value = f"{entry['examination']:.{places_for(error)}f}"
        rows.append([str(entry["position"]), value, limits])
    return Grid(title, header, rows)


def pair_table(facts: Facts) -> Grid:
    """Return the pairs of positions behind the curve."""
    rows = []
    for pair in facts["pairs"]:
        error = pair["ratio"] * pair["log_error"]
        text = with_error(pair["ratio"], error) if pair["used"] else short(pair["ratio"])
        used = "yes" if pair["used"] else "too few clicks"
        rows.append([str(pair["upper"]), str(pair["lower"]), text, used])
    header = ["position", "and", "examined for\neach of the other", "used"]
    return Grid("Pairs of positions with the same items", header, rows)


def position_chart(facts: Facts) -> Chart:
    """Draw the examination of each position with its interval."""
    import altair as alt

    points = [
        {
            "position": p["position"],
            "examined": p["examination"],
            "low": p["lower"],
            "high": p["upper"],
            "text": with_error(p["examination"], p["examination"] * p["log_error"]),
        }
        for p in facts["positions"]
        if math.isfinite(p["upper"])
    ]
    last = len(facts["positions"])
    axis = alt.Axis(grid=False, tickMinStep=1, format="d")
    domain = alt.Scale(domain=[0.5, last + 0.5], nice=False)
    x = alt.X("position:Q", title="position", axis=axis, scale=domain)
    title = "examined, relative to position 1"
    y, low = (alt.Y(f"{k}:Q", title=title) for k in ("examined", "low"))
    base = alt.Chart(inline(points))
    bars = base.mark_rule(color=ACCENT, strokeWidth=2.5).encode(x=x, y=low, y2=alt.Y2("high:Q"))
    line = base.mark_line(color=ACCENT, strokeWidth=1).encode(x=x, y=y)
    tips = [alt.Tooltip("position:Q"), alt.Tooltip("text:N", title="examined")]
    dots = base.mark_circle(color=ACCENT, size=90, opacity=1).encode(x=x, y=y, tooltip=tips)
    return style_chart([bars, line, dots], HEIGHT)
