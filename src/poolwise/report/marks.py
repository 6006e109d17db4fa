"""Marks: what all charts share: colours, axes and the look.

Colours come from one palette, which a page may replace by its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

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


def decades(numbers: Iterable[float]) -> list[float]:
    """Round numbers for a logarithmic axis: few, and some of them always within it.

    >>> decades([0.9, 350.0]), decades([0.8, 4.0])
    ([1.0, 10.0, 100.0], [1.0, 2.0])
    """
    inside = [1.0, *numbers]
    low, high = min(inside), max(inside)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0,) if high / low > 50 else (1.0, 2.0, 5.0)
    every = 1 + len(powers) // 8
    ticks = [float(f"{step}e{k}") for k in powers[::every] for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def number_of(value: object) -> float:
    """A number that stands among the values of a chart."""
    return float(str(value))


def rows_axis(rows: Sequence[str]) -> alt.Y:
    """One line for each label, in this order."""
    import altair as alt

    axis = alt.Axis(labelLimit=130, ticks=False, domain=False, grid=False)
    return alt.Y("row:N", sort=list(rows), title=None, axis=axis)


def inline(points: Iterable[Point]) -> alt.InlineData:
    """Values that a chart carries with it."""
    import altair as alt

    return alt.InlineData(values=list(points))


def styled(chart: Any, height: int) -> Chart:  # noqa: ANN401 - altair's layers have no narrower type
    """The look of all charts."""
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
