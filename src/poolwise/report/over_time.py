"""Value over time: the table and the chart of a target's value in each period."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from poolwise.report.charts import (
    ACCENT,
    MUTED,
    SECOND,
    VALUE,
    domain_of,
    ends_of,
    inline,
    styled,
)
from poolwise.report.tables import Grid
from poolwise.text import count_text, interval_text, short, with_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.report.charts import Chart, Point
    from poolwise.report.sentence import Facts

MOST_LINES = 60  # of a table; the first ones are left out
HEIGHT = 260
UNKNOWN = "–"


def period_tables(evaluation: Facts) -> list[Grid]:
    """Return the table of the periods of each target."""
    return [grid for target in evaluation["targets"] for grid in periods_table(target)]


def periods_table(target: Facts) -> list[Grid]:
    """Return the table of the periods, if the log has any: the last ones of many."""
    if "periods" not in target:
        return []
    values: Sequence[Facts] = target["periods"]
    header = ["period", "rows", "estimate", "interval", "running\nestimate", "interval"]
    rows = [
        [
            str(v["period"]),
            count_text(v["rows"]),
            _estimate(v),
            _interval(v["lower"], v["upper"]),
            short(v["running"]),
            _interval(v["running_lower"], v["running_upper"]),
        ]
        for v in values[-MOST_LINES:]
    ]
    drift = target["period_drift"]
    left_out = f", the last {MOST_LINES} of {len(values)}" if len(values) > MOST_LINES else ""
    test = f"; no change from early to late: p = {drift['p_value']:.2g}"
    test = test if math.isfinite(drift["p_value"]) else ""
    title = f"{target['target']}: {drift['estimator']} in each period{left_out}{test}"
    return [Grid(title, header, rows)]


def _estimate(value: Facts) -> str:
    finite = math.isfinite(value["std_error"])
    return with_error(value["value"], value["std_error"]) if finite else short(value["value"])


def _interval(lower: float, upper: float) -> str:
    if not math.isfinite(lower + upper):
        return UNKNOWN
    return interval_text(lower, upper, (upper - lower) / 4)


def periods_chart(target: Facts) -> Chart:
    """Draw the estimate of each period with its interval, and the running estimate."""
    import altair as alt

    values: Sequence[Facts] = target["periods"]
    order = [str(v["period"]) for v in values]
    points = [_point(v) for v in values]
    running = [{**v, "lower": v["running_lower"], "upper": v["running_upper"]} for v in values]
    running = [{**v, "value": v["running"]} for v in running]
    axis = alt.Axis(labelAngle=-45 if len(order) > 8 else 0, labelOverlap=True, labelLimit=110)
    x = alt.X("period:O", sort=order, title="period", axis=axis)
    base = alt.Chart(inline(points)).encode(x=x, tooltip=[alt.Tooltip(f"{k}:N") for k in TIPS])
    domain = domain_of(points, ends_of(running))
    scale = alt.Scale(domain=domain, nice=False, zero=False, clamp=True)

    def y(name: str) -> Any:  # noqa: ANN401 - a channel of altair
        return alt.Y(f"{name}:Q", title=VALUE, scale=scale, axis=alt.Axis(tickCount=5))

    band = base.mark_area(color=ACCENT, opacity=0.18, clip=True)
    layers = [
        band.encode(y=y("running_low"), y2=alt.Y2("running_high:Q")),
        base.mark_rule(color=MUTED, strokeWidth=2, clip=True).encode(
            y=y("low"), y2=alt.Y2("high:Q")
        ),
        base.mark_circle(color=MUTED, size=55, opacity=1, clip=True).encode(y=y("x")),
        base.mark_line(color=ACCENT, strokeWidth=2.5, clip=True).encode(y=y("running")),
    ]
    if "truth" in target:
        rule = alt.Chart(inline([{"x": target["truth"]}]))
        layers.append(rule.mark_rule(color=SECOND, strokeDash=[5, 4]).encode(y=y("x")))
    return styled(layers, HEIGHT)


TIPS = ("period", "rows", "estimate", "interval", "running estimate")


def _point(value: Facts) -> Point:
    """Build the point of one period; limits that are not finite are not drawn."""

    def drawn(name: str, otherwise: str) -> float:
        return float(value[name] if math.isfinite(value[name]) else value[otherwise])

    return {
        "period": str(value["period"]),
        "rows": count_text(value["rows"]),
        "x": value["value"],
        "low": drawn("lower", "value"),
        "high": drawn("upper", "value"),
        "running": value["running"],
        "running_low": drawn("running_lower", "running"),
        "running_high": drawn("running_upper", "running"),
        "estimate": _estimate(value),
        "interval": _interval(value["lower"], value["upper"]),
        "running estimate": short(value["running"]),
    }
