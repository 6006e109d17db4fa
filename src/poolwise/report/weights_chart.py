"""The weights of each logger as a picture: how they spread, their mean and the largest.

Where the engine counted the weights, each logger has a histogram of its own, all on one
logarithmic axis; where it did not, the mean and the largest weight must do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from poolwise.report.marks import (
    ACCENT,
    GRID,
    INK,
    MIXTURE,
    MUTED,
    SECOND,
    decades,
    inline,
    number_of,
    rows_axis,
    styled,
)
from poolwise.text import percent, short

if TYPE_CHECKING:
    from collections.abc import Sequence

    import altair as alt

    from poolwise.report.marks import Chart, Point
    from poolwise.report.sentence import Facts

KINDS = {"mean weight": "mean_weight", "largest weight": "largest_weight"}
BAR = 0.75  # a bar goes from 3/4 of a power of two to 3/2 of it: 1 is well within one
SMALL = BAR * 2.0**-13  # about 0.0001: such weights are told in words
TALL = 0.6  # of a panel: the rest is for the name of the logger
FEW = 6  # panels that may be taller


def weights(found: Facts, target: Facts) -> Chart:  # noqa: ARG001 - all of OF_TARGET take both
    """How the weights against each logger spread, on a logarithmic scale."""
    covers = [(str(i["logger"]), i) for i in target["loggers"]]
    covers += [(MIXTURE, target["mixture"])] if "mixture" in target else []
    counted = all(entry.get("histogram") for _, entry in covers)
    return _panels(covers) if counted else _ranges(covers)


def _panels(covers: Sequence[tuple[str, Facts]]) -> Chart:
    """One histogram below the other."""
    import altair as alt

    count = len(covers)
    shares = [octaves(entry["histogram"]) for _, entry in covers]
    peak = max((share for bars in shares for share in bars.values()), default=1.0)
    base = [float(count - 1 - place) for place in range(count)]
    bars = [
        _bar(covers[place][0], left, share, base[place], peak)
        for place in range(count)
        for left, share in shares[place].items()
    ]
    dots = [
        {**p, "base": base[place]} for place in range(count) for p in _dots([covers[place]])
    ]
    x = _weight_axis([p[k] for p in bars for k in ("left", "right")] + [p["x"] for p in dots])
    y = alt.Y(
        "base:Q",
        title="share of rows",
        scale=alt.Scale(domain=[0, count], nice=False),
        axis=_shares_axis(count, peak),
    )
    tips = [alt.Tooltip("row:N", title="logger"), "weight:N", "share:N"]
    wide = alt.Chart(inline(bars)).encode(x=x("left"), x2="right:Q", y=y)
    drawn = wide.mark_rect(color=MUTED, opacity=0.6, stroke=MUTED)
    felt = wide.mark_rect(opacity=0)  # as tall as the panel: a low bar answers as well
    layers = [
        drawn.encode(y2="top:Q"),
        _one(base).encode(y=y, y2="top:Q"),
        felt.encode(y2="full:Q", tooltip=tips),
        _marked(dots).encode(x=x("x"), y=y),
        *_names(covers, base),
    ]
    return styled(alt.layer(*layers), count * (90 if count <= FEW else 64))


def octaves(bins: Sequence[Facts]) -> dict[float, float]:
    """Share of the rows in each bar, by its left end; small weights are left out.

    >>> octaves([{"lower": low, "rows": 1} for low in (0.0, 0.5, 0.75, 1.0, 1.5)])
    {0.375: 0.2, 0.75: 0.4, 1.5: 0.2}
    """
    total = sum(b["rows"] for b in bins)
    found: dict[float, float] = {}
    for b in bins:
        if b["lower"] >= SMALL:
            left = BAR * 2.0 ** math.floor(math.log2(b["lower"] / BAR))
            found[left] = found.get(left, 0.0) + b["rows"] / total
    return found


def _bar(label: str, left: float, share: float, base: float, peak: float) -> Point:
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


def _dots(covers: Sequence[tuple[str, Facts]]) -> list[Point]:
    return [
        {"row": label, "x": entry[key], "kind": kind, "size": short(entry[key])}
        for label, entry in covers
        for kind, key in KINDS.items()
        if 0 < entry[key] < math.inf
    ]


def _marked(dots: Sequence[Point]) -> Any:  # noqa: ANN401 - altair's layers have no narrower type
    import altair as alt

    colour = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=list(KINDS), range=[ACCENT, SECOND]),
        legend=alt.Legend(title=None, orient="top"),
    )
    tips = [alt.Tooltip("row:N", title="logger"), "kind:N", alt.Tooltip("size:N", title="is")]
    marks = alt.Chart(inline(dots)).mark_circle(size=110, opacity=1)
    return marks.encode(color=colour, tooltip=tips)


def _names(covers: Sequence[tuple[str, Facts]], base: Sequence[float]) -> list[Any]:
    """The logger of each panel, and how many weights are too small for it."""
    import altair as alt

    words = [
        {"row": label, "y": place + 1, "note": smallest(entry["histogram"])}
        for (label, entry), place in zip(covers, base, strict=True)
    ]
    text = alt.Chart(inline(words)).encode(y=alt.Y("y:Q"))
    shape: dict[str, Any] = {"baseline": "top", "dy": 13, "fontSize": 12}
    name = text.mark_text(
        align="left", fontWeight="bold", limit=alt.ExprRef("width * 0.62"), **shape
    )
    note = text.mark_text(align="right", limit=alt.ExprRef("width * 0.36"), **shape)
    plain = alt.value(INK)
    return [
        name.encode(x=alt.value(0), text="row:N", color=plain),
        note.encode(x=alt.value("width"), text="note:N", color=plain),
    ]


def smallest(bins: Sequence[Facts]) -> str:
    """How many weights are zero, or so small that no bar shows them.

    >>> smallest([{"lower": 0.0, "upper": 0.0, "rows": 1}, {"lower": 1.0, "rows": 3}])
    '25.0% are 0'
    """
    small = [b for b in bins if b["lower"] < SMALL]
    if not small:
        return ""
    share = sum(b["rows"] for b in small) / sum(b["rows"] for b in bins)
    return f"{percent(share)} are {'below 0.0001' if any(b['upper'] for b in small) else '0'}"


def _shares_axis(count: int, peak: float) -> alt.Axis:
    """Zero and the largest share, for each panel; its labels are computed from places."""
    import altair as alt

    return alt.Axis(
        values=[base + part for base in range(count) for part in (0, TALL)],
        labelExpr=f"format((datum.value % 1) * {peak / TALL!r}, '.2~p')",
        labelOverlap=False,
        ticks=False,
        domain=False,
    )


def _weight_axis(numbers: Sequence[object]) -> Any:  # noqa: ANN401 - a function that makes axes
    """Makes the common axis for a field."""
    import altair as alt

    found = [number_of(n) for n in numbers] or [1.0]
    scale = alt.Scale(type="log", nice=False, padding=12)
    axis = alt.Axis(format="~g", values=decades(found), grid=False)
    return lambda name: alt.X(
        f"{name}:Q", title="weight, logarithmic scale", scale=scale, axis=axis
    )


def _one(base: Sequence[float] = (0.0,)) -> Any:  # noqa: ANN401 - altair's layers have no narrower type
    """Where the mean weight should be, in each panel."""
    import altair as alt

    places: list[Point] = [{"x": 1, "base": at, "top": at + TALL} for at in base]
    rule = alt.Chart(inline(places)).mark_rule(color=INK, strokeDash=[4, 4])
    return rule.encode(x="x:Q")


def _ranges(covers: Sequence[tuple[str, Facts]]) -> Chart:
    """Mean and largest weight, where nobody counted the others."""
    import altair as alt

    dots = _dots(covers)
    rows = [label for label, _ in covers]
    x, y = _weight_axis([p["x"] for p in dots])("x"), rows_axis(rows)
    line = alt.Chart(inline(dots)).mark_line(color=GRID, strokeWidth=4)
    layers = [_one(), line.encode(x=x, y=y, detail="row:N"), _marked(dots).encode(x=x, y=y)]
    return styled(alt.layer(*layers), 34 * max(len(rows), 2))
