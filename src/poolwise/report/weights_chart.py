"""Chart of the weights against each logger: their distribution, mean and maximum.

Each logger has a histogram, all on one logarithmic axis.  Engines that count no weights
leave the histograms empty; the chart then shows the mean and the largest weight only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from poolwise.report.charts import (
    ACCENT,
    GRID,
    INK,
    MANY,
    MUTED,
    SECOND,
    inline,
    measure_height,
    rows_axis,
    style_chart,
    to_number,
)
from poolwise.report.tables import covers
from poolwise.text import percent, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import altair as alt

    from poolwise.report.charts import Chart, Point
    from poolwise.report.sentence import Facts

WEIGHT_KINDS = {"mean weight": "mean_weight", "largest weight": "largest_weight"}
BAR = 0.75  # a bar goes from 3/4 of a power of two to 3/2 of it, so that 1 is inside a bar
SMALL = BAR * 2.0**-13  # about 0.0001: smaller weights are counted in the panel's note
TALL = 0.6  # of a panel: the rest is for the name of the logger
FEW_PANELS = 6  # panels that may be taller


def weights(target: Facts) -> Chart:
    """Draw the weights against each logger and their mixture on a logarithmic scale."""
    entries = covers(target)
    return _panels(entries) if has_panels(target) else _ranges(entries)


def has_panels(target: Facts) -> bool:
    """Test if the weights are drawn as histograms: all are counted, and they are not many."""
    entries = covers(target)
    return len(entries) <= MANY and all(entry.get("histogram") for _, entry in entries)


def _panels(entries: Sequence[tuple[str, Facts]]) -> Chart:
    """Draw one histogram below the other."""
    import altair as alt

    count = len(entries)
    panels = list(zip(map(float, reversed(range(count))), entries, strict=True))
    shares = [octaves(entry["histogram"]) for _, entry in entries]
    peak = max((share for bars in shares for share in bars.values()), default=1.0)
    bars = [
        _place_bar(label, left, share, base, peak)
        for (base, (label, _)), octave in zip(panels, shares, strict=True)
        for left, share in octave.items()
    ]
    dots = [{**dot, "base": base} for base, entry in panels for dot in _dots(*entry)]
    x = _weight_axis([p[k] for p in bars for k in ("left", "right")] + [p["x"] for p in dots])
    y = alt.Y(
        "base:Q",
        title="share of rows",
        scale=alt.Scale(domain=[0, count], nice=False),
        axis=_shares_axis(count, peak),
    )
    tips = [alt.Tooltip("row:N", title="logger"), *map(alt.Tooltip, ("weight:N", "share:N"))]
    wide = alt.Chart(inline(bars)).encode(x=x("left"), x2=alt.X2("right:Q"), y=y)
    drawn = wide.mark_rect(color=MUTED, opacity=0.6, stroke=MUTED)
    hovered = wide.mark_rect(opacity=0)  # as tall as the panel, so low bars have a tooltip too
    layers = [
        drawn.encode(y2=alt.Y2("top:Q")),
        _draw_unit_rule([base for base, _ in panels]).encode(y=y, y2=alt.Y2("top:Q")),
        hovered.encode(y2=alt.Y2("full:Q"), tooltip=tips),
        _dot_marks(dots).encode(x=x("x"), y=y),
        *_draw_names(panels),
    ]
    return style_chart(layers, count * (90 if count <= FEW_PANELS else 64))


def octaves(bins: Sequence[Facts]) -> dict[float, float]:
    """Return the share of the rows in each bar by its left end, without small weights.

    >>> octaves([{"lower": low, "rows": 1} for low in (0.0, 0.5, 0.75, 1.0, 1.5)])
    {0.375: 0.2, 0.75: 0.4, 1.5: 0.2}
    """
    total = sum(b["rows"] for b in bins)
    shares: dict[float, float] = {}
    for b in bins:
        if b["lower"] >= SMALL:
            left = BAR * 2.0 ** math.floor(math.log2(b["lower"] / BAR))
            shares[left] = shares.get(left, 0.0) + b["rows"] / total
    return shares


def _place_bar(label: str, left: float, share: float, base: float, peak: float) -> Point:
    return {
        "row": label,
        "left": left,
        "right": 2 * left,
        "base": base,
        "top": base + TALL * share / peak,
        "full": base + TALL,
        "weight": f"{short(left)} to {short(2 * left)}",
        "share": f"{percent(share)} of the rows",
    }


def _dots(label: str, entry: Facts) -> list[Point]:
    return [
        {"row": label, "x": entry[key], "kind": kind, "size": short(entry[key])}
        for kind, key in WEIGHT_KINDS.items()
        if 0 < entry[key] < math.inf
    ]


def _dot_marks(dots: Sequence[Point]) -> Any:  # noqa: ANN401 - altair's layers have no narrower type
    import altair as alt

    colour = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=list(WEIGHT_KINDS), range=[ACCENT, SECOND]),
        legend=alt.Legend(title=None, orient="top"),
    )
    tips = [alt.Tooltip("row:N", title="logger"), alt.Tooltip("kind:N")]
    tips.append(alt.Tooltip("size:N", title="is"))
    marks = alt.Chart(inline(dots)).mark_circle(size=110, opacity=1)
    return marks.encode(color=colour, tooltip=tips)


def _draw_names(panels: Sequence[tuple[float, tuple[str, Facts]]]) -> list[Any]:
    """Write the logger of each panel, and the share of weights too small for a bar."""
    import altair as alt

    words: list[Point] = [
        {"row": label, "y": base + 1, "note": smallest(entry["histogram"])}
        for base, (label, entry) in panels
    ]
    text = alt.Chart(inline(words)).encode(y=alt.Y("y:Q"))
    shape: dict[str, Any] = {"baseline": "top", "dy": 13, "fontSize": 12}
    name = text.mark_text(
        align="left", fontWeight="bold", limit=alt.ExprRef("width * 0.62"), **shape
    )
    note = text.mark_text(align="right", limit=alt.ExprRef("width * 0.36"), **shape)
    plain = alt.value(INK)
    return [
        name.encode(x=alt.value(0), text=alt.Text("row:N"), color=plain),
        note.encode(x=alt.value("width"), text=alt.Text("note:N"), color=plain),
    ]


def smallest(bins: Sequence[Facts]) -> str:
    """Write the share of weights that are zero, or too small for a bar.

    >>> smallest([{"lower": 0.0, "upper": 0.0, "rows": 1}, {"lower": 1.0, "rows": 3}])
    '25.0% are 0'
    """
    small = [b for b in bins if b["lower"] < SMALL]
    if not small:
        return ""
    share = sum(b["rows"] for b in small) / sum(b["rows"] for b in bins)
    return f"{percent(share)} are {'below 0.0001' if any(b['upper'] for b in small) else '0'}"


def _shares_axis(count: int, peak: float) -> alt.Axis:
    """Return an axis that labels zero and the largest share in each panel."""
    import altair as alt

    return alt.Axis(
        values=[base + part for base in range(count) for part in (0, TALL)],
        labelExpr=f"format((datum.value % 1) * {peak / TALL!r}, '.2~p')",
        labelOverlap=False,
        ticks=False,
        domain=False,
    )


def _weight_axis(numbers: Iterable[object]) -> Any:  # noqa: ANN401 - a function that makes axes
    """Return a function that makes the common logarithmic axis for a field."""
    import altair as alt

    scale = alt.Scale(type="log", nice=False, padding=12)
    axis = alt.Axis(format="~g", values=decades(map(to_number, numbers)), grid=False)
    return lambda name: alt.X(
        f"{name}:Q", title="weight, logarithmic scale", scale=scale, axis=axis
    )


def decades(numbers: Iterable[float]) -> list[float]:
    """Return a few round numbers within the range of a logarithmic axis that includes 1.

    >>> decades([0.9, 350.0]), decades([0.8, 4.0])
    ([1.0, 10.0, 100.0], [1.0, 2.0])
    """
    inside = [1.0, *numbers]
    low, high = min(inside), max(inside)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0,) if high / low > 50 else (1.0, 2.0, 5.0)
    stride = 1 + len(powers) // 8
    ticks = [float(f"{step}e{k}") for k in powers[::stride] for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def _draw_unit_rule(base: Iterable[float] = (0.0,)) -> Any:  # noqa: ANN401 - altair's layers have no narrower type
    """Draw a dashed rule at weight 1, the expected mean, in each panel."""
    import altair as alt

    rules: list[Point] = [{"x": 1, "base": at, "top": at + TALL} for at in base]
    rule = alt.Chart(inline(rules)).mark_rule(color=INK, strokeDash=[4, 4])
    return rule.encode(x=alt.X("x:Q"))


def _ranges(entries: Sequence[tuple[str, Facts]]) -> Chart:
    """Draw the mean and the largest weight of each logger."""
    import altair as alt

    dots = [dot for entry in entries for dot in _dots(*entry)]
    rows = [label for label, _ in entries]
    x, y = _weight_axis([p["x"] for p in dots])("x"), rows_axis(rows)
    line = alt.Chart(inline(dots)).mark_line(color=GRID, strokeWidth=4)
    spans = line.encode(x=x, y=y, detail=alt.Detail("row:N"))
    layers = [_draw_unit_rule(), spans, _dot_marks(dots).encode(x=x, y=y)]
    return style_chart(layers, measure_height(rows, 34))
