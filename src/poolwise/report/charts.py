"""Charts of an evaluation: one function per chart, and the look that all charts share.

They read the nested dictionary that `Evaluation.to_dict` returns.  Text from the user's
data enters a chart as the value of a fixed column, never as a name or an expression.
Colours come from one palette, which the page replaces by variables of its style sheet.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from poolwise.report.sentence import Facts, find_recommended, single_log_error
from poolwise.text import interval_text, percent, short, unit_text, with_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import altair as alt

    Chart = alt.LayerChart

Point = dict[str, object]
ACCENT, MUTED, INK, GRID, SECOND = "#1b6ca8", "#8a94a0", "#3c4650", "#e3e7eb", "#b4540a"
PALETTE = {"accent": ACCENT, "muted": MUTED, "ink": INK, "grid": GRID, "second": SECOND}
REACH = 6  # an axis extends at most this many widths past the recommended intervals
PICTURE_WIDTH = 640
LINES = r"split(trim(replace(datum.label, regexp('(.{1,24})(\\s+|$)', 'g'), '$1\n')), '\n')"
MANY, LOW = 12, 16  # rows from which on a line is low, and its height


def value_title(per_request: int | None) -> str:
    """Return the title of an axis of values."""
    return f"mean reward per {unit_text(per_request)}"


def estimates(evaluation: Facts) -> Chart:
    """Draw every estimate with its interval; the recommended one is coloured."""
    targets: Sequence[Facts] = evaluation["targets"]
    several = len(targets) > 1
    points = [_place_estimate(t, e, several=several) for t in targets for e in t["estimates"]]
    names = list(dict.fromkeys(str(p["estimator"]) for p in points))
    rows = list(dict.fromkeys(str(p["row"]) for p in points))
    best = [e for e in map(find_recommended, targets) if e is not None]
    truths: list[Point] = [
        {"row": row, "x": t["truth"], "true value": short(t["truth"])}
        for t in targets
        if "truth" in t
        for row in ([t["target"]] if several else rows)
    ]
    height = (13 * len(names) + 8) * len(rows) if several else 30 * len(rows)
    return forest(
        points,
        list_ends(best) + [to_number(t["x"]) for t in truths],
        title=value_title(evaluation.get("rows_per_request")),
        height=max(height, 60),
        offsets=names if several else [],
        truths=truths,
    )


def side_by_side(evaluation: Facts) -> Chart:
    """Draw one estimate per target, the highest first.

    They are the recommended ones or, where the targets were compared, those of the
    comparison with simultaneous intervals.
    """
    if "comparison" in evaluation:
        ends: list[Facts] = evaluation["comparison"]["targets"]
        name = _name_pairing(evaluation)
        points = [forest_point(r["target"], name, r["value"], r) for r in ends]
    else:
        best = [(t, e) for t in evaluation["targets"] if (e := find_recommended(t)) is not None]
        best.sort(key=lambda pair: -pair[1]["value"])
        ends = [e for _, e in best]
        points = [_place_estimate(t, e, several=True) for t, e in best]
    title = value_title(evaluation.get("rows_per_request"))
    return forest(points, list_ends(ends), title=title, height=24 * max(len(points), 2))


def differences(evaluation: Facts) -> Chart:
    """Draw each target's difference from the best; significant ones are coloured."""
    pairs = evaluation["comparison"]["differences"]
    per_request = evaluation.get("rows_per_request")
    return draw_forest(
        [(d["target"], d) for d in pairs], _name_pairing(evaluation), per_request
    )


def draw_forest(
    entries: Sequence[tuple[str, Facts]], name: str, per_request: int | None
) -> Chart:
    """Draw differences, each with its label; significant ones are coloured."""
    points = [
        forest_point(row, name, d["difference"], d, strong=d["verdict"] in {"better", "worse"})
        for row, d in entries
    ]
    return forest(
        points,
        [*list_ends({**d, "value": d["difference"]} for _, d in entries), 0.0],
        height=24 * max(len(points), 2),
        title=f"difference of mean rewards per {unit_text(per_request)}",
        zero=True,
    )


def _name_pairing(evaluation: Facts) -> str:
    return f"{evaluation['comparison']['estimator']}, paired"


def logs(evaluation: Facts, target: Facts) -> Chart:
    """Draw the share of each log in the rows and in the weighting of least variance."""
    import altair as alt

    sizes = {i["logger"]: i["rows"] for i in evaluation["loggers"]}
    total = sum(sizes.values())
    kinds = ["of the rows", "of the evidence"]
    points: list[Point] = []
    for entry in target["loggers"]:
        shares = (sizes[entry["logger"]] / total, entry.get("best_share", math.nan))
        points += [
            {"row": entry["logger"], "x": x, "share": kind, "percent": percent(x)}
            for kind, x in zip(kinds, shares, strict=True)
            if math.isfinite(x)
        ]
    rows = [str(i["logger"]) for i in target["loggers"]]
    base = alt.Chart(inline(points)).encode(y=rows_axis(rows))
    axis = alt.Axis(format="%", tickCount=5)
    largest = max((to_number(p["x"]) for p in points), default=1.0)
    scale = alt.Scale(domain=[0, min(1.0, 1.1 * largest)])
    x = alt.X("x:Q", title="share", axis=axis, scale=scale)
    colour = alt.Color(
        "share:N",
        scale=alt.Scale(domain=kinds, range=[MUTED, ACCENT]),
        legend=alt.Legend(title=None, orient="top"),
    )
    line = base.mark_line(color=GRID, strokeWidth=4).encode(x=x, detail=alt.Detail("row:N"))
    tips = [alt.Tooltip("row:N", title="logger"), *map(alt.Tooltip, ("share:N", "percent:N"))]
    dots = base.mark_circle(size=130, opacity=1).encode(x=x, color=colour, tooltip=tips)
    return style_chart([line, dots], measure_height(rows, 34))


def agreement(target: Facts, per_request: int | None = None) -> Chart:
    """Draw the estimate of each single log, and the recommended estimate of all logs."""
    points = [_single_log(i) for i in target["loggers"] if "value" in i]
    best = find_recommended(target)
    if best is not None:
        points.append({**_place_estimate(target, best, several=False), "row": "(all logs)"})
    core = [to_number(p["x"]) for p in points if p["x"] is not None]
    core += list_ends([best]) if best is not None else []
    title = value_title(per_request)
    return forest(points, core, title=title, height=measure_height(points, 32))


def measure_height(rows: Sequence[object], tall: int) -> int:
    """Return the height of a chart with one line per row; lines of many rows are low."""
    return (tall if len(rows) <= MANY else LOW) * max(len(rows), 2)


def _single_log(entry: Facts) -> Point:
    """Build the point of one log; its bar is two standard errors to each side."""
    value, error = entry["value"], single_log_error(entry)
    bounds = {"lower": value - 2 * error, "upper": value + 2 * error, "std_error": error}
    return forest_point(entry["logger"], "this log alone", value, bounds, strong=False)


def _place_estimate(target: Facts, estimate: Facts, *, several: bool) -> Point:
    name = estimate["estimator"]
    strong = estimate is find_recommended(target)
    label = f"{name} ★" if strong and len(target["estimates"]) > 1 else name
    row = target["target"] if several else label
    point = forest_point(row, name, estimate["value"], estimate, strong=strong)
    return {**point, "label": label}


def forest_point(
    row: object, estimator: str, value: float, bounds: Facts, *, strong: bool = True
) -> Point:
    """Build one dot of a forest with its bar, which ends at the dot where it is unbounded."""
    lower, upper, error = bounds["lower"], bounds["upper"], bounds["std_error"]
    bounded = math.isfinite(lower) or math.isfinite(upper)
    return {
        "row": row,
        "estimator": estimator,
        "kind": "recommended" if strong else "other",
        "estimate": with_error(value, error),
        "interval": interval_text(lower, upper, error),
        "x": _replace_infinite(value),
        "low": _replace_infinite(lower, value) if bounded else None,
        "high": _replace_infinite(upper, value) if bounded else None,
    }


def _replace_infinite(number: float, otherwise: float | None = None) -> float | None:
    return number if math.isfinite(number) else otherwise


def forest(
    points: Sequence[Point],
    core: Sequence[float],
    *,
    height: int,
    title: str,
    offsets: Sequence[str] = (),
    truths: Sequence[Point] = (),
    zero: bool = False,
) -> Chart:
    """Draw estimates as dots on their intervals, one line each; `core` is always drawn."""
    import altair as alt

    rows = list(dict.fromkeys(str(p["row"]) for p in points))
    domain = find_domain(points, core)
    shown = [p for p in points if p["x"] is not None]
    if offsets:  # room for names to the right of the intervals
        shown = [_end_bar(p, max(domain)) for p in shown]
        domain = [min(domain), max(domain) + 0.22 * (max(domain) - min(domain))]
    base = alt.Chart(inline(shown)).encode(
        y=rows_axis(rows),
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=["recommended", "other"], range=[ACCENT, MUTED]),
            legend=None,
        ),
        tooltip=[alt.Tooltip(f"{k}:N") for k in ("row", "estimator", "estimate", "interval")],
    )
    if offsets:
        base = base.encode(yOffset=alt.YOffset("estimator:N", sort=list(offsets)))
    scale = alt.Scale(domain=list(domain), nice=False, zero=False, padding=6)
    axis = alt.Axis(tickCount=5)
    low, middle = (alt.X(f"{k}:Q", title=title, scale=scale, axis=axis) for k in ("low", "x"))
    bars = base.mark_rule(strokeWidth=2.5, clip=True).encode(x=low, x2=alt.X2("high:Q"))
    dots = base.mark_circle(size=60 if offsets else 110, opacity=1, clip=True)
    layers = [bars, dots.encode(x=middle)]
    layers += [_outside(base, shown, domain, left=left) for left in (True, False)]
    if offsets:
        names = base.mark_text(align="left", dx=6, fontSize=10)
        layers.append(
            names.encode(x=alt.X("end:Q"), text=alt.Text("label:N"), color=alt.value(INK))
        )
    if zero:
        rule = alt.Chart(inline([{"x": 0}])).mark_rule(color=INK, strokeDash=[4, 4])
        layers.insert(0, rule.encode(x=alt.X("x:Q")))
    if truths:
        layers.insert(0, _truth(truths, rows, height))
    return style_chart(layers, height)


def _end_bar(point: Point, edge: float) -> Point:
    """Return a point whose interval ends at the edge of the chart, where its name follows."""
    end = to_number(point["x"] if point["high"] is None else point["high"])
    if end <= edge:
        return {**point, "end": end}
    return {**point, "high": edge, "end": edge, "label": f"→ {point['label']}"}


def _truth(truths: Sequence[Point], rows: Sequence[str], height: int) -> Any:  # noqa: ANN401 - altair's layers have no narrower type
    """Draw true values, or what was earned, as ticks."""
    import altair as alt

    size = max(height / len(rows), 12)
    ticks = alt.Chart(inline(truths)).mark_tick(color=SECOND, thickness=2, size=size, clip=True)
    tips = [alt.Tooltip(f"{name}:N") for name in truths[0] if name != "x"]
    return ticks.encode(x=alt.X("x:Q"), y=rows_axis(rows), tooltip=tips)


def _outside(base: Any, points: Sequence[Point], domain: Sequence[float], *, left: bool) -> Any:  # noqa: ANN401 - altair's layers have no narrower type
    """Write estimates that lie outside the axis as text at its edge; mark cut intervals."""
    import altair as alt

    edge, end = (min(domain), "low") if left else (max(domain), "high")

    def is_out(value: object) -> bool:
        number = edge if value is None else to_number(value)
        return number < edge if left else number > edge

    words = []
    for point in points:
        if is_out(point["x"]) or is_out(point[end]):
            bound = "" if point[end] is None else short(to_number(point[end]))
            number = point["estimate"] if is_out(point["x"]) else bound
            text = f"← {number}" if left else f"{number} →"
            words.append({**point, "edge": edge, "text": text})
    mark = base.mark_text(
        align="left" if left else "right", dx=4 if left else -4, dy=-9, fontSize=10
    ).encode(x=alt.X("edge:Q"), text=alt.Text("text:N"), color=alt.value(INK))
    return mark.properties(data=inline(words))


def list_ends(estimates: Iterable[Facts]) -> list[float]:
    """Return all finite values and bounds of estimates."""
    ends = [float(e[k]) for e in estimates for k in ("lower", "value", "upper")]
    return list(filter(math.isfinite, ends))


def find_domain(points: Sequence[Point], core: Sequence[float]) -> list[float]:
    """Return the ends of an axis: all points, but at most `REACH` widths of the core away."""
    drawn = [to_number(p[k]) for p in points for k in ("low", "x", "high") if p[k] is not None]
    drawn += core
    if not drawn:
        return [0.0, 1.0]
    inner = core or drawn
    span = (max(inner) - min(inner)) or abs(max(inner)) or 1.0
    left = max(min(drawn), min(inner) - REACH * span)
    right = min(max(drawn), max(inner) + REACH * span)
    margin = 0.04 * (right - left) or 0.1 * span
    return [left - margin, right + margin]


def to_number(value: object) -> float:
    """Return a value of a chart's data as a number."""
    return float(str(value))


def rows_axis(rows: Sequence[str]) -> alt.Y:
    """Return an axis with one line for each label, in this order."""
    import altair as alt

    axis = alt.Axis(
        labelLimit=alt.ExprRef("max(160, width * 0.4)"),
        labelExpr=LINES if len(rows) <= MANY else alt.Undefined,
        labelLineHeight=13,
        ticks=False,
        domain=False,
        grid=False,
    )
    return alt.Y("row:N", sort=list(rows), title=None, axis=axis)


def inline(points: Iterable[Point]) -> alt.InlineData:
    """Return points as data that the chart contains."""
    import altair as alt

    return alt.InlineData(values=list(points))


def style_chart(layers: Sequence[Any], height: int) -> Chart:
    """Layer marks in one chart with the common size, fonts and colours.

    Charts are built from channel objects and in one call: shorthands and the methods of a
    finished chart cost several copies of it.
    """
    import altair as alt

    axis = alt.AxisConfig(
        gridColor=GRID,
        labelColor=INK,
        titleColor=INK,
        domainColor=GRID,
        tickColor=GRID,
        labelFontSize=12,
        titleFontSize=12,
        titleFontWeight="normal",
    )
    config = alt.Config(
        view=alt.ViewConfig(stroke=None, continuousWidth=300, continuousHeight=300),
        axis=axis,
        legend=alt.LegendConfig(labelColor=INK, labelFontSize=12, symbolOpacity=1),
    )
    return _chart_class()(layer=layers, width="container", height=height, config=config)


@cache
def _chart_class() -> type[alt.LayerChart]:
    """Return the class of charts, which notebooks show as pictures.

    Altair's own display loads scripts from the network.
    """
    import altair as alt

    class OfflineChart(alt.LayerChart):
        def _repr_mimebundle_(self, *_args: object, **_options: object) -> dict[str, str]:
            return {"image/svg+xml": draw_svg(self)}

    return OfflineChart


def draw_svg(chart: Chart) -> str:
    """Return the picture of a chart."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(picture(chart)))


def draw_inline(chart: Chart) -> str:
    """Return the picture of a chart as an address that holds all of it, for HTML."""
    return f"data:image/svg+xml,{quote(draw_svg(chart))}"


def picture(chart: Chart) -> dict[str, object]:
    """Return the specification of a chart with a width of its own, on white.

    The browser's font may be wider than the font that labels are measured in.
    """
    room = {"left": 24, "right": 12, "top": 5, "bottom": 5}
    return {
        **chart.to_dict(),
        "background": "white",
        "padding": room,
        "width": PICTURE_WIDTH,
    }
