"""Figure: any chart drawn by matplotlib, for papers.

Vega computes the places of all marks, axes and labels; matplotlib draws them, in its own
fonts.  So no chart is written twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from poolwise.errors import UsageError, optional_module
from poolwise.report.charts import picture

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from poolwise.report.charts import Chart

    Item = Mapping[str, Any]

PIXELS, POINTS = 96, 72  # per inch
TEXT_WIDTH = 6.3  # inches of a line of text on a sheet of A4
FONT = 0.9  # matplotlib's font is wider than the font that Vega leaves room for
BASELINES = {"middle": "center", "top": "top", "bottom": "bottom"}


def draw_figure(chart: Chart, *, width: float = TEXT_WIDTH) -> Figure:
    """Draw a chart with matplotlib, such as `evaluation.chart("estimates")`.

    Text has the fonts of `matplotlib.rcParams` and the same size at every width.  Save the
    figure with `savefig("estimates.pdf", bbox_inches="tight")`.

    Args:
        chart: A chart of a result.
        width: Width in inches.

    Examples:
        >>> import poolwise as pw
        >>> rows = {"p": [0.5] * 4, "click": [1, 0, 0, 1], "p_new": [0.4, 0.6, 0.6, 0.4]}
        >>> evaluation = pw.evaluate(pw.Log(rows, reward="click", propensity="p"), "p_new")
        >>> figure = pw.draw_figure(evaluation.chart("estimates"), width=3.25)
        >>> float(figure.get_figwidth())
        3.25
    """
    if not (math.isfinite(width) and width > 0):
        raise UsageError(f"width must be positive, in inches, got {width!r}")
    module = optional_module("matplotlib.figure", "matplotlib", "papers")
    import vl_convert

    fitted = {"type": "fit-x", "contains": "padding"}
    spec = {**picture(chart), "width": width * PIXELS, "autosize": fitted}
    scene = vl_convert.vegalite_to_scenegraph(spec)
    size = scene["width"], scene["height"]
    figure: Figure = module.Figure(figsize=(width, width * size[1] / size[0]))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0))
    axes.set_axis_off()
    pen = Pen(axes, width * POINTS / size[0], count())
    pen.draw(scene["scenegraph"], *scene["origin"])
    return figure


@dataclass(frozen=True)
class Pen:
    """Draws the marks of a scene, each on top of those before.

    Attributes:
        axes: Where to draw; one unit is one pixel of the scene.
        scale: Points per pixel.
        order: Numbers of the marks.
    """

    axes: Axes
    scale: float
    order: Iterator[int]

    def draw(self, mark: Item, left: float, top: float, box: Any = None) -> None:  # noqa: ANN401 - a patch that clips
        """Draw a mark whose coordinates begin at a place."""
        kind = mark["marktype"]
        items = mark.get("items", ())
        if kind in {"line", "area"}:
            items = [{**items[0], "points": items}] if items else []
        for item in items:
            x, y = left + item.get("x", 0), top + item.get("y", 0)
            if kind == "group":
                inner = self._rectangle(x, y, item)
                for child in item.get("items", ()):
                    self.draw(child, x, y, inner)
                continue
            for drawn in getattr(self, f"_draw_{kind}")(item, left, top):
                drawn.set_zorder(next(self.order))
                if mark.get("clip") and box is not None:
                    drawn.set_clip_path(box)
                else:
                    drawn.set_clip_on(b=False)

    def _rectangle(self, x: float, y: float, item: Item) -> Any:  # noqa: ANN401 - a patch
        from matplotlib.patches import Rectangle

        size = item.get("width", 0), item.get("height", 0)
        return Rectangle((x, y), *size, transform=self.axes.transData)

    def _stroke(self, item: Item) -> dict[str, Any]:
        dash = item.get("strokeDash")
        width = item.get("strokeWidth", 1) * self.scale
        lines = (0, [part * self.scale / width for part in dash]) if dash else "-"
        return {"linewidth": width, "linestyle": lines, "alpha": item.get("opacity", 1)}

    def _fill(self, item: Item) -> dict[str, Any]:
        ends = {"facecolor": item.get("fill", "none"), "edgecolor": item.get("stroke", "none")}
        return {**ends, "linewidth": item.get("strokeWidth", 1) * self.scale}

    def _draw_rule(self, item: Item, left: float, top: float) -> list[Any]:
        if "stroke" not in item:
            return []
        x, y = item.get("x", 0), item.get("y", 0)
        ends = [left + x, left + item.get("x2", x)], [top + y, top + item.get("y2", y)]
        return self.axes.plot(*ends, color=item["stroke"], **self._stroke(item))

    def _draw_line(self, item: Item, left: float, top: float) -> list[Any]:
        ends = zip(*((left + p["x"], top + p["y"]) for p in item["points"]), strict=True)
        return self.axes.plot(*ends, color=item["stroke"], **self._stroke(item))

    def _draw_area(self, item: Item, left: float, top: float) -> list[Any]:
        points = item["points"]
        x = [left + p["x"] for p in points]
        low, high = ([top + p.get(k, p["y"]) for p in points] for k in ("y", "y2"))
        alpha = item.get("opacity", 1) * item.get("fillOpacity", 1)
        return [self.axes.fill_between(x, low, high, color=item["fill"], alpha=alpha, lw=0)]

    def _draw_rect(self, item: Item, left: float, top: float) -> list[Any]:
        patch = self._rectangle(left + item.get("x", 0), top + item.get("y", 0), item)
        patch.set(**self._fill(item), alpha=item.get("opacity", 1))
        return [self.axes.add_patch(patch)]

    def _draw_symbol(self, item: Item, left: float, top: float) -> list[Any]:
        from matplotlib.patches import Circle

        place = left + item.get("x", 0), top + item.get("y", 0)
        circle = Circle(place, math.sqrt(item.get("size", 64) / math.pi))
        circle.set(**self._fill(item), alpha=item.get("opacity", 1))
        return [self.axes.add_patch(circle)]

    def _draw_text(self, item: Item, left: float, top: float) -> list[Any]:
        text = item.get("text", "")
        if not text:
            return []
        label = self.axes.text(
            left + item.get("x", 0) + item.get("dx", 0),
            top + item.get("y", 0) + item.get("dy", 0),
            ("\n".join(text) if isinstance(text, list) else str(text)).replace("$", r"\$"),
            color=item.get("fill", "black"),
            alpha=item.get("opacity", 1),
            fontsize=FONT * item.get("fontSize", 11) * self.scale,
            fontweight=item.get("fontWeight", "normal"),
            horizontalalignment=item.get("align", "left"),
            verticalalignment=BASELINES.get(item.get("baseline", ""), "baseline"),
            rotation=-item.get("angle", 0),
            rotation_mode="anchor",
        )
        return [label]
