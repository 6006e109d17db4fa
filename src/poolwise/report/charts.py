"""Charts of an evaluation: one function per picture, each an Altair chart.

They read the nested dictionary that `Evaluation.to_dict` gives.  Whatever comes from the
user's data enters as a value of a fixed column, never as a name or an expression.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from poolwise.report.marks import (
    ACCENT,
    GRID,
    INK,
    MUTED,
    SECOND,
    inline,
    number_of,
    rows_axis,
    styled,
)
from poolwise.report.sentence import Facts, behind_best, recommended
from poolwise.report.weights_chart import weights
from poolwise.text import interval_text, percent, short, with_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from poolwise.report.marks import Chart, Point

REACH = 6  # an axis goes this many times the width of what matters beyond it


def all_charts(found: Facts) -> dict[str, Chart]:
    """Every chart by name; those of one target carry its number if there are several."""
    charts = {"estimates": estimates(found)}
    targets: Sequence[Facts] = found["targets"]
    if len(targets) > 1:
        charts["targets"] = side_by_side(found)
    if "comparison" in found:
        charts["differences"] = differences(found)
    for number, target in enumerate(targets, 1):
        suffix = f"-{number:02d}" if len(targets) > 1 else ""
        for name, draw in OF_TARGET.items():
            charts[f"{name}{suffix}"] = draw(found, target)
    return charts


def estimates(found: Facts) -> Chart:
    """Every estimate with its interval; the recommended one stands out."""
    targets: Sequence[Facts] = found["targets"]
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


def side_by_side(found: Facts) -> Chart:
    """The recommended estimate of every target, the highest first.

    Where the targets were compared, intervals hold together.
    """
    best = [(t, recommended(t)) for t in found["targets"]]
    points = [_estimate(t, e, several=True) for t, e in best if e is not None]
    points.sort(key=lambda p: -number_of(p["x"]))
    ends = _ends([e for _, e in best if e is not None])
    if "comparison" in found:
        ranked: Sequence[Facts] = found["comparison"]["targets"]
        name = found["comparison"]["estimator"]
        points = [_interval(r["target"], name, r["value"], r) for r in ranked]
        ends = _ends(ranked)
    rows = [str(p["row"]) for p in points]
    return _forest(
        points,
        rows,
        _domain(points, ends),
        height=24 * max(len(rows), 2),
        title="mean reward per row",
    )


def differences(found: Facts) -> Chart:
    """Every other target less the one in front; those that were shown to differ stand out."""
    behind = behind_best(found["comparison"])
    name = found["comparison"]["estimator"]
    points = [
        _interval(d["target"], name, d["difference"], d, known=d["verdict"] != "undecided")
        for d in behind
    ]
    rows = [str(p["row"]) for p in points]
    ends = [*_ends([{**d, "value": d["difference"]} for d in behind]), 0.0]
    return _forest(
        points,
        rows,
        _domain(points, ends),
        height=24 * max(len(rows), 2),
        title="difference of mean rewards per row",
        zero=True,
    )


def _interval(
    label: object, estimator: str, value: float, found: Facts, *, known: bool = True
) -> Point:
    """One line of a forest, from a comparison."""
    lower, upper, error = found["lower"], found["upper"], found["std_error"]
    bounded = math.isfinite(lower) or math.isfinite(upper)
    return {
        "row": label,
        "estimator": f"{estimator}, in pairs",
        "kind": "recommended" if known else "other",
        "estimate": with_error(value, error),
        "interval": interval_text(lower, upper, error),
        "x": _finite(value),
        "low": _finite(lower, value) if bounded else None,
        "high": _finite(upper, value) if bounded else None,
    }


def logs(found: Facts, target: Facts) -> Chart:
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
    base = alt.Chart(inline(points)).encode(y=rows_axis(rows))
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
    return styled(alt.layer(line, dots), 34 * max(len(rows), 2))


def agreement(found: Facts, target: Facts) -> Chart:  # noqa: ARG001 - all of OF_TARGET take both
    """What each log says alone, beside the recommended estimate from all of them."""
    points = [_alone(i) for i in target["loggers"] if "value" in i]
    best = recommended(target)
    if best is not None:
        together = _estimate(target, best, several=False)
        points.append({**together, "row": "(all logs)"})
    rows = [str(p["row"]) for p in points]
    core = [number_of(p["x"]) for p in points if p["x"] is not None]
    domain = _domain(points, core + (_ends([best]) if best is not None else []))
    return _forest(
        points, rows, domain, height=32 * max(len(rows), 2), title="mean reward per row"
    )


OF_TARGET = {"logs": logs, "weights": weights, "agreement": agreement}


def _estimate(target: Facts, estimate: Facts, *, several: bool) -> Point:
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


def _alone(entry: Facts) -> Point:
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
    zero: bool = False,
) -> Chart:
    """Estimates as dots on their intervals, one line each."""
    import altair as alt

    shown = [p for p in points if p["x"] is not None]
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
    bars = base.mark_rule(strokeWidth=2.5, clip=True).encode(x=low, x2="high:Q")
    dots = base.mark_circle(size=60 if offsets else 110, opacity=1, clip=True)
    layers = [bars, dots.encode(x=middle)]
    layers += [_beyond(base, shown, domain, left=left) for left in (True, False)]
    if zero:
        rule = alt.Chart(inline([{"x": 0}])).mark_rule(color=INK, strokeDash=[4, 4])
        layers.insert(0, rule.encode(x="x:Q"))
    if truths:
        truth = alt.Chart(inline(truths)).mark_tick(
            color=SECOND, thickness=2, size=max(height / len(rows), 12), clip=True
        )
        tips = [alt.Tooltip("row:N"), alt.Tooltip("true value:N")]
        layers.insert(0, truth.encode(x="x:Q", y=rows_axis(rows), tooltip=tips))
    return styled(alt.layer(*layers), height)


def _beyond(base: Any, points: Sequence[Point], domain: Sequence[float], *, left: bool) -> Any:  # noqa: ANN401 - altair's layers have no narrower type
    """Estimates that lie outside the picture, in words at its edge."""
    import altair as alt

    edge = min(domain) if left else max(domain)
    out = [
        p for p in points if (number_of(p["x"]) < edge if left else number_of(p["x"]) > edge)
    ]
    words = [
        {**p, "edge": edge, "text": f"← {p['estimate']}" if left else f"{p['estimate']} →"}
        for p in out
    ]
    mark = base.mark_text(
        align="left" if left else "right", dx=4 if left else -4, dy=-9, fontSize=10
    ).encode(x="edge:Q", text="text:N", color=alt.value(INK))
    return mark.properties(data=inline(words))


def _finite(number: float, otherwise: float | None = None) -> float | None:
    return number if math.isfinite(number) else otherwise


def _ends(estimates: Iterable[Facts]) -> list[float]:
    """All finite numbers that a few estimates name."""
    ends = [float(e[k]) for e in estimates for k in ("lower", "value", "upper")]
    return list(filter(math.isfinite, ends))


def _domain(points: Sequence[Point], core: Sequence[float]) -> list[float]:
    """Where an axis begins and ends: all that is drawn, within reach of what matters."""
    drawn = [number_of(p[k]) for p in points for k in ("low", "x", "high") if p[k] is not None]
    drawn += core
    if not drawn:
        return [0.0, 1.0]
    inner = core or drawn
    span = (max(inner) - min(inner)) or abs(max(inner)) or 1.0
    left = max(min(drawn), min(inner) - REACH * span)
    right = min(max(drawn), max(inner) + REACH * span)
    margin = 0.04 * (right - left) or 0.1 * span
    return [left - margin, right + margin]
