"""Breakdown of an evaluation by segment, period and logger: sentence, tables and charts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from poolwise.report.charts import (
    ACCENT,
    MUTED,
    SECOND,
    draw_forest,
    find_domain,
    forest,
    forest_point,
    inline,
    list_ends,
    style_chart,
    value_title,
)
from poolwise.report.tables import UNKNOWN, VERDICTS, Grid, simultaneous, with_interval
from poolwise.text import (
    all_text,
    count_text,
    in_units,
    interval_text,
    p_text,
    percent,
    places_for,
    quote_names,
    short,
    unit_text,
    with_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.report.charts import Chart, Point
    from poolwise.report.sentence import Facts

UNRELIABLE = {"verdict": "unreliable"}
SHOWN = frozenset({"better", "worse"})
VERBS = {
    "better": "is shown to be better than",
    "worse": "is shown to be worse than",
    "undecided": "is not distinguishable from",
    "identical": "is the same policy as",
    "unreliable": "cannot be compared with",
}
MOST_LINES = 60  # of a table; the first ones are left out
HEIGHT = 260
TIPS = ("period", "rows", "estimate", "interval", "running estimate")


def segments_sentence(segments: Facts) -> str:
    """Say in which segments targets differ from the baseline, and which segments differ."""
    results = segments["results"]
    sentences = []
    for target in dict.fromkeys(r["target"] for r in results):
        own = [r for r in results if r["target"] == target]
        clauses = []
        for verdict, verb in VERBS.items():
            names = _with_verdict(own, "difference", verdict)
            if names:
                alike = len(names) == len(own) > 1
                where = (
                    all_text(len(own), "segments") if alike else quote_names(names, "segments")
                )
                clauses.append(f"{verb} {segments['baseline']!r} in {where}")
        if clauses:
            sentences.append(f"{target!r} {'; it '.join(clauses)}.")
        sentences += _differing(target, own)
    if not sentences:
        return "No segment has an estimate of a difference."
    return " ".join([f"By {segments['by']}:", *sentences])


def _with_verdict(results: Sequence[Facts], kind: str, verdict: str) -> list[str]:
    """Return the segments whose difference or contrast has this verdict."""
    return [r["segment"] for r in results if kind in r and r[kind]["verdict"] == verdict]


def _differing(target: str, results: Sequence[Facts]) -> list[str]:
    """Return which segments have another difference than the rest."""
    reliable = [r for r in results if r.get("contrast", UNRELIABLE)["verdict"] != "unreliable"]
    if not reliable:
        return []
    parts = []
    shown = [r for r in reliable if r.get("contrast", UNRELIABLE)["verdict"] in SHOWN]
    for sign, word in ((1, "above"), (-1, "below")):
        if names := [r["segment"] for r in shown if sign * r["contrast"]["difference"] > 0]:
            where = quote_names(names, "segments")
            parts.append(f"in {where} it is {word} that of the other segments")
    if not parts:
        return ["No segment is shown to differ from the others in this difference."]
    return [f"The difference of {target!r} depends on the segment: {'; '.join(parts)}."]


def _label_segments(segments: Facts) -> list[tuple[str, Facts]]:
    """Return the results with labels, which name the target where there are several."""
    results = segments["results"]
    several = len({r["target"] for r in results}) > 1
    return [(f"{r['segment']}: {r['target']}" if several else r["segment"], r) for r in results]


def segment_tables(segments: Facts) -> list[Grid]:
    """Return the estimate of each segment, then its difference from the baseline."""
    results, interval = _label_segments(segments), simultaneous(segments)
    values = [
        [
            label,
            count_text(in_units(r["rows"], r.get("rows_per_request"))),
            *([UNKNOWN] * 2 if r["value"] is None else with_interval(r["value"], r)),
        ]
        for label, r in results
    ]
    header = ["segment", f"{unit_text(_per_request(segments))}s", "estimate", interval]
    if any(r["warnings"] for _, r in results):
        header.append("findings")
        for row, (_, result) in zip(values, results, strict=True):
            row.append("\n".join(_marks(result)) or UNKNOWN)
    differences = [[label, *_difference_cells(r)] for label, r in results]
    differs = "differs from others\n(adjusted p)"
    return [
        Grid(f"By {segments['by']} ({segments['estimator']})", header, values),
        Grid(
            f"Difference from {segments['baseline']} by {segments['by']}",
            ["segment", "difference", interval, "verdict", differs],
            differences,
        ),
    ]


def _marks(result: Facts) -> list[str]:
    """Return the codes of the findings of a segment, with an exclamation mark for alarms."""
    marks = [f"{w['code']}{'!' * (w['severity'] == 'alarm')}" for w in result["warnings"]]
    return list(dict.fromkeys(marks))


def _difference_cells(result: Facts) -> list[str]:
    if "difference" not in result:
        return [UNKNOWN] * 4
    pair, contrast = result["difference"], result.get("contrast", UNRELIABLE)
    differs = UNKNOWN
    if contrast["verdict"] != "unreliable":
        shown = contrast["verdict"] in {"better", "worse"}
        differs = f"{'yes' if shown else 'no'} ({p_text(contrast['adjusted'])})"
    return [*with_interval(pair["difference"], pair), VERDICTS[pair["verdict"]], differs]


def segments_chart(segments: Facts) -> Chart:
    """Draw the difference of each segment from the baseline; shown ones are coloured."""
    entries = [
        (label, r["difference"]) for label, r in _label_segments(segments) if "difference" in r
    ]
    return draw_forest(entries, segments["estimator"], _per_request(segments))


def _per_request(segments: Facts) -> int | None:
    """Return the rows of a request in the first segment; None if values are those of rows."""
    return next((r.get("rows_per_request") for r in segments["results"]), None)


def period_tables(evaluation: Facts) -> list[Grid]:
    """Return the table of the periods of each target."""
    per_request = evaluation.get("rows_per_request")
    return [grid for target in evaluation["targets"] for grid in periods(target, per_request)]


def periods(target: Facts, per_request: int | None = None) -> list[Grid]:
    """Return the table of the periods, if the log has any: the last ones of many."""
    if "periods" not in target:
        return []
    values: Sequence[Facts] = target["periods"]
    header = ["period", f"{unit_text(per_request)}s", "estimate", "interval"]
    header += ["running\nestimate", "interval"]
    rows = [
        [
            str(v["period"]),
            count_text(in_units(v["rows"], per_request)),
            _estimate_text(v),
            plain_interval(v["lower"], v["upper"]),
            short(v["running"]),
            plain_interval(v["running_lower"], v["running_upper"]),
        ]
        for v in values[-MOST_LINES:]
    ]
    drift = target["period_drift"]
    left_out = f", the last {MOST_LINES} of {len(values)}" if len(values) > MOST_LINES else ""
    test = f"; no change from early to late: p = {drift['p_value']:.2g}"
    test = test if math.isfinite(drift["p_value"]) else ""
    title = f"{target['target']}: {drift['estimator']} in each period{left_out}{test}"
    return [Grid(title, header, rows)]


def _estimate_text(value: Facts) -> str:
    finite = math.isfinite(value["std_error"])
    return with_error(value["value"], value["std_error"]) if finite else short(value["value"])


def plain_interval(lower: float, upper: float) -> str:
    """Write an interval without a standard error, which is about a quarter of its width."""
    if not math.isfinite(lower + upper):
        return UNKNOWN
    return interval_text(lower, upper, (upper - lower) / 4)


def periods_chart(target: Facts, per_request: int | None = None) -> Chart:
    """Draw the estimate of each period with its interval, and the running estimate."""
    import altair as alt

    values: Sequence[Facts] = target["periods"]
    order = [str(v["period"]) for v in values]
    points = [_point(v) for v in values]
    running = [
        {"value": v["running"], "lower": v["running_lower"], "upper": v["running_upper"]}
        for v in values
    ]
    axis = alt.Axis(labelAngle=-45 if len(order) > 8 else 0, labelOverlap=True, labelLimit=110)
    x = alt.X("period:O", sort=order, title="period", axis=axis)
    base = alt.Chart(inline(points)).encode(x=x, tooltip=[alt.Tooltip(f"{k}:N") for k in TIPS])
    domain = find_domain(points, list_ends(running))
    scale = alt.Scale(domain=domain, nice=False, zero=False, clamp=True)

    title = value_title(per_request)

    def y(name: str) -> Any:  # noqa: ANN401 - a channel of altair
        return alt.Y(f"{name}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5))

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
    return style_chart(layers, HEIGHT)


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
        "estimate": _estimate_text(value),
        "interval": plain_interval(value["lower"], value["upper"]),
        "running estimate": short(value["running"]),
    }


# Predictions of each logger from the others.


def backtest_table(facts: Facts) -> Grid:
    """Return the predictions and what was earned, a line for each logger."""
    several = any(p["p_without"] is not None for p in facts["loggers"])
    header = ["logger", "rows\nused", "predicted", "earned", "z", "adjusted\np", "fits"]
    header += ["p without\nit"] if several else []
    return Grid(
        "Predicted from the other logs", header, [_backtest_line(p) for p in facts["loggers"]]
    )


def _backtest_line(entry: Facts) -> list[str]:
    compared = math.isfinite(entry["upper"] - entry["lower"])
    line = [
        entry["logger"],
        percent(entry["supported"]),
        with_error(entry["predicted"], entry["predicted_error"]),
        f"{entry['earned']:.{places_for(entry['predicted_error'])}f}",
        f"{entry['z']:.2f}" if compared else UNKNOWN,
        p_text(entry["adjusted"]) if compared else UNKNOWN,
        ("yes" if entry["fits"] else "no") if compared else UNKNOWN,
    ]
    return [*line, *([] if entry["p_without"] is None else [p_text(entry["p_without"])])]


def backtest_chart(facts: Facts) -> Chart:
    """Draw the prediction of each logger with its interval, and what the logger earned."""
    entries = facts["loggers"]
    points = [
        forest_point(
            p["logger"],
            "from the other logs",
            p["predicted"],
            {**p, "std_error": p["predicted_error"]},
            strong=not p["fits"],
        )
        for p in entries
    ]
    earned = [
        {
            "row": p["logger"],
            "x": p["earned"],
            "earned": with_error(p["earned"], p["earned_error"]),
        }
        for p in entries
    ]
    core = [p[k] for p in entries for k in ("lower", "predicted", "earned", "upper")]
    return forest(
        points,
        list(filter(math.isfinite, core)),
        title=value_title(facts.get("rows_per_request")),
        height=30 * max(len(points), 2),
        truths=earned,
    )
