"""Charts of an evaluation: one function per picture, each an Altair chart.

They read the nested dictionary that `Evaluation.to_dict` gives.  Whatever comes from the
user's data enters as a value of a fixed column, never as a name or an expression.
Colours come from one palette, which a page may replace by its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from poolwise.format import interval_text, percent, short, with_error
from poolwise.report.sentence import Found, recommended

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import altair as alt

    Chart = alt.LayerChart

Point = dict[str, object]
ACCENT, MUTED, INK, GRID, SECOND = "#1b6ca8", "#8a94a0", "#3c4650", "#e3e7eb", "#b4540a"
PALETTE = {
    "accent": ACCENT,
    "muted": MUTED,
    "ink": INK,
    "grid": GRID,
    "second": SECOND,
}
MIXTURE = "(mixture)"
REACH = 6  # an axis goes this many times the width of what matters beyond it


def all_charts(found: Found) -> dict[str, Chart]:
    """Every chart by name; those of one target carry its number if there are several."""
    charts = {"estimates": estimates(found)}
    targets: Sequence[Found] = found["targets"]
    if len(targets) > 1:
        charts["targets"] = side_by_side(found)
    for number, target in enumerate(targets, 1):
        suffix = f"-{number:02d}" if len(targets) > 1 else ""
        for name, draw in OF_TARGET.items():
            charts[f"{name}{suffix}"] = draw(found, target)
    return charts


def estimates(found: Found) -> Chart:
    """Every estimate with its interval; the recommended one stands out."""
    targets: Sequence[Found] = found["targets"]
    several = len(targets) > 1
    points = [_estimate(t, e, several=several) for t in targets for e in t["estimates"]]
    names = list(dict.fromkeys(str(p["estimator"]) for p in points))
    rows = [str(t["target"]) for t in targets] if several else names
    quoted = [e for e in map(recommended, targets) if e is not None]
    truths = [float(t["truth"]) for t in targets if "truth" in t]
    height = (10 * len(names) + 8) * len(rows) if several else 30 * len(rows)
    return _forest(
        points,
        rows,
        _domain(points, _ends(quoted) + truths),
        height=max(height, 60),
        title="mean reward per row",
        offsets=names if several else [],
        truths=[
            {"row": row, "x": t["truth"], "true value": short(t["truth"])}
            for t in targets
            if "truth" in t
            for row in ([t["target"]] if several else rows)
        ],
    )


def side_by_side(found: Found) -> Chart:
    """The recommended estimate of every target, the highest first."""
    best = [(t, recommended(t)) for t in found["targets"]]
    points = [_estimate(t, e, several=True) for t, e in best if e is not None]
    points.sort(key=lambda p: -_number(p["x"]))
    rows = [str(p["row"]) for p in points]
    domain = _domain(points, _ends([e for _, e in best if e is not None]))
    return _forest(
        points, rows, domain, height=24 * max(len(rows), 2), title="mean reward per row"
    )


def logs(found: Found, target: Found) -> Chart:
    """What each log gives in rows, and what it gives in evidence."""
    import altair as alt

    sizes = {i["logger"]: i["rows"] for i in found["loggers"]}
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
    base = alt.Chart(_values(points)).encode(y=_rows(rows))
    axis = alt.Axis(format="%", tickCount=5)
    x = alt.X("x:Q", title="share", axis=axis, scale=alt.Scale(domain=[0, 1]))
    colour = alt.Color(
        "share:N",
        scale=alt.Scale(domain=kinds, range=[MUTED, ACCENT]),
        legend=alt.Legend(title=None, orient="top"),
    )
    line = base.mark_line(color=GRID, strokeWidth=4).encode(x=x, detail="row:N")
    tips = [alt.Tooltip("row:N", title="logger"), "share:N", "percent:N"]
    dots = base.mark_circle(size=130, opacity=1).encode(x=x, color=colour, tooltip=tips)
    return _styled(alt.layer(line, dots), 34 * max(len(rows), 2))


def weights(found: Found, target: Found) -> Chart:  # noqa: ARG001 - all of OF_TARGET take both
    """Mean and largest weight against each logger, on a logarithmic scale."""
    import altair as alt

    covers = [(i["logger"], i) for i in target["loggers"]]
    covers += [(MIXTURE, target["mixture"])] if "mixture" in target else []
    kinds = {"mean weight": "mean_weight", "largest weight": "largest_weight"}
    points = [
        {"row": label, "x": entry[key], "weight": kind, "size": short(entry[key])}
        for label, entry in covers
        for kind, key in kinds.items()
        if 0 < entry[key] < math.inf
    ]
    rows = [str(label) for label, _ in covers]
    base = alt.Chart(_values(points)).encode(y=_rows(rows))
    x = alt.X(
        "x:Q",
        title="weight, logarithmic scale",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(format="~g", values=_decades(_number(p["x"]) for p in points)),
    )
    colour = alt.Color(
        "weight:N",
        scale=alt.Scale(domain=list(kinds), range=[ACCENT, SECOND]),
        legend=alt.Legend(title=None, orient="top"),
    )
    one = (
        alt.Chart(_values([{"x": 1}])).mark_rule(color=MUTED, strokeDash=[4, 4]).encode(x="x:Q")
    )
    line = base.mark_line(color=GRID, strokeWidth=4).encode(x=x, detail="row:N")
    tips = [alt.Tooltip("row:N", title="logger"), "weight:N", "size:N"]
    dots = base.mark_circle(size=130, opacity=1).encode(x=x, color=colour, tooltip=tips)
    return _styled(alt.layer(one, line, dots), 34 * max(len(rows), 2))


def agreement(found: Found, target: Found) -> Chart:  # noqa: ARG001 - all of OF_TARGET take both
    """What each log says alone, beside the recommended estimate from all of them."""
    points = [_alone(i) for i in target["loggers"] if "value" in i]
    best = recommended(target)
    if best is not None:
        together = _estimate(target, best, several=False)
        points.append({**together, "row": "(all logs)"})
    rows = [str(p["row"]) for p in points]
    core = [_number(p["x"]) for p in points if p["x"] is not None]
    domain = _domain(points, core + (_ends([best]) if best is not None else []))
    return _forest(
        points, rows, domain, height=32 * max(len(rows), 2), title="mean reward per row"
    )


OF_TARGET = {"logs": logs, "weights": weights, "agreement": agreement}


def _estimate(target: Found, estimate: Found, *, several: bool) -> Point:
    """One line of a forest."""
    value, error = estimate["value"], estimate["std_error"]
    lower, upper = estimate["lower"], estimate["upper"]
    quoted = recommended(target)
    return {
        "row": target["target"] if several else estimate["estimator"],
        "target": target["target"],
        "estimator": estimate["estimator"],
        "kind": "recommended" if estimate is quoted else "other",
        "estimate": with_error(value, error),
        "interval": interval_text(lower, upper, error),
        "x": _finite(value),
        "low": _finite(lower, value) if math.isfinite(lower) or math.isfinite(upper) else None,
        "high": _finite(upper, value) if math.isfinite(lower) or math.isfinite(upper) else None,
    }


def _alone(entry: Found) -> Point:
    """The estimate of one log; its bar is two standard errors to each side."""
    value, error = entry["value"], entry["std_error"]
    known = math.isfinite(error)
    return {
        "row": entry["logger"],
        "target": "",
        "estimator": "this log alone",
        "kind": "other",
        "estimate": with_error(value, error),
        "interval": interval_text(value - 2 * error, value + 2 * error, error),
        "x": _finite(value),
        "low": value - 2 * error if known else None,
        "high": value + 2 * error if known else None,
    }


def _forest(
    points: Sequence[Point],
    rows: Sequence[str],
    domain: Sequence[float],
    *,
    height: int,
    title: str,
    offsets: Sequence[str] = (),
    truths: Sequence[Point] = (),
) -> Chart:
    """Estimates as dots on their intervals, one line each."""
    import altair as alt

    shown = [p for p in points if p["x"] is not None]
    base = alt.Chart(_values(shown)).encode(
        y=_rows(rows),
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
    bars = base.mark_rule(strokeWidth=2.5, clip=True).encode(x=low, x2="high:Q")
    dots = base.mark_circle(size=60 if offsets else 110, opacity=1, clip=True)
    layers = [bars, dots.encode(x=middle)]
    layers += [_beyond(base, shown, domain, left=left) for left in (True, False)]
    if truths:
        truth = alt.Chart(_values(truths)).mark_tick(
            color=SECOND, thickness=2, size=max(height / len(rows), 12), clip=True
        )
        tips = [alt.Tooltip("row:N"), alt.Tooltip("true value:N")]
        layers.insert(0, truth.encode(x="x:Q", y=_rows(rows), tooltip=tips))
    return _styled(alt.layer(*layers), height)


def _beyond(base: Any, points: Sequence[Point], domain: Sequence[float], *, left: bool) -> Any:  # noqa: ANN401 - altair's layers have no narrower type
    """Estimates that lie outside the picture, in words at its edge."""
    import altair as alt

    edge = min(domain) if left else max(domain)
    out = [p for p in points if (_number(p["x"]) < edge if left else _number(p["x"]) > edge)]
    words = [
        {**p, "edge": edge, "text": f"← {p['estimate']}" if left else f"{p['estimate']} →"}
        for p in out
    ]
    mark = base.mark_text(
        align="left" if left else "right", dx=4 if left else -4, dy=-9, fontSize=10
    ).encode(x="edge:Q", text="text:N", color=alt.value(INK))
    return mark.properties(data=_values(words))


def _decades(numbers: Iterable[float]) -> list[float]:
    """Round numbers for a logarithmic axis: few, and some of them always within it.

    >>> _decades([0.9, 350.0]), _decades([0.8, 4.0])
    ([1.0, 10.0, 100.0], [1.0, 2.0])
    """
    inside = [1.0, *numbers]
    low, high = min(inside), max(inside)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0,) if high / low > 50 else (1.0, 2.0, 5.0)
    every = 1 + len(powers) // 8
    ticks = [float(f"{step}e{k}") for k in powers[::every] for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def _number(value: object) -> float:
    return float(str(value))


def _rows(rows: Sequence[str]) -> alt.Y:
    import altair as alt

    axis = alt.Axis(labelLimit=130, ticks=False, domain=False, grid=False)
    return alt.Y("row:N", sort=list(rows), title=None, axis=axis)


def _values(points: Iterable[Point]) -> alt.InlineData:
    import altair as alt

    return alt.InlineData(values=list(points))


def _finite(number: float, otherwise: float | None = None) -> float | None:
    return number if math.isfinite(number) else otherwise


def _ends(estimates: Iterable[Found]) -> list[float]:
    """All finite numbers that a few estimates name."""
    ends = [float(e[k]) for e in estimates for k in ("lower", "value", "upper")]
    return list(filter(math.isfinite, ends))


def _domain(points: Sequence[Point], core: Sequence[float]) -> list[float]:
    """Where an axis begins and ends: all that is drawn, within reach of what matters."""
    drawn = [_number(p[k]) for p in points for k in ("low", "x", "high") if p[k] is not None]
    drawn += core
    if not drawn:
        return [0.0, 1.0]
    inner = core or drawn
    span = (max(inner) - min(inner)) or abs(max(inner)) or 1.0
    left = max(min(drawn), min(inner) - REACH * span)
    right = min(max(drawn), max(inner) + REACH * span)
    margin = 0.04 * (right - left) or 0.1 * span
    return [left - margin, right + margin]


def _styled(chart: Any, height: int) -> Chart:  # noqa: ANN401 - altair's layers have no narrower type
    styled: Chart = (
        chart.properties(width="container", height=height)
        .configure_view(stroke=None)
        .configure_axis(
            gridColor=GRID,
            labelColor=INK,
            titleColor=INK,
            domainColor=GRID,
            tickColor=GRID,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
        )
        .configure_legend(labelColor=INK, labelFontSize=12, symbolOpacity=1)
    )
    return styled
