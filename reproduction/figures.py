"""The figures, each as CSV file and as chart.

Figures 1 to 5 are the paper's, 6 is the simulation that it describes in words, and 7
shows the estimator that the paper proposes as future work.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from poolwise.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import altair as alt

    Draw = Callable[[Sequence["CsvRow"], "Figure"], "Chart"]
else:
    import lazy_loader

    alt = lazy_loader.load("altair")  # takes half a second; the toy has no chart

Chart: TypeAlias = Any  # altair's charts share no useful base class
CsvRow: TypeAlias = dict[str, Any]  # of a CSV file: numbers and texts
TableName: TypeAlias = Literal["panels", "weights", "simulation", "learning"]

CELL = ("data", "structure", "fraction", "r", "v")
WEIGHT_COLUMNS = (
    *("data", "fraction", "v", "n", "rule", "replications", "fixed_ratio", "fixed_ratio_90"),
    *("variance_ratio", "mse_ratio", "bias", "bias_error", "bias_sd"),
)
SIMULATION_COLUMNS = (
    *("data", "fraction", "r", "v", "n1", "n2", "estimator", "replications", "value", "mean"),
    *("var_exact", "variance", "z_mean", "z_variance"),
)
LEARNING_COLUMNS = (
    *("data", "fraction", "r", "v", "rule", "logs", "value", "std_error", "best_logger"),
    "gain",
)
DATA_TITLES = {
    "scene": "Scene",
    "yeast": "Yeast",
    "lyrl": "LYRL",
    "lyrl-subset": "LYRL (subset)",
}
GREY = "#666"
TRAINED = ("trained on", "(log 1)")  # title of the legend of first loggers


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        number: From 1.
        name: Last part of the names of its files.
        title: Title, also of the axis of ratios.
        source: Table that its rows come from.
        columns: Columns of its CSV file.
        draw: Draws the chart of its rows.
        caption: Explains how to read it.
    """

    number: int
    name: str
    title: str
    source: TableName
    columns: tuple[str, ...]
    draw: Draw
    caption: str

    @property
    def stem(self) -> str:
        """Name of its files, without the ending."""
        return f"figure{self.number}_{self.name}"


def write_figure(figure: Figure, rows: Sequence[CsvRow], folder: Path) -> None:
    """Write CSV, SVG and PNG of one figure."""
    import vl_convert

    path = folder / figure.stem
    shown = [{column: row[column] for column in figure.columns} for row in rows]
    write_csv(path.with_suffix(".csv"), shown)
    titled = [{**row, "panel": DATA_TITLES.get(str(row["data"]), row["data"])} for row in shown]
    spec = _styled(figure.draw(titled, figure)).to_json()
    write_whole(path.with_suffix(".svg"), vl_convert.vegalite_to_svg(spec).encode())
    write_whole(path.with_suffix(".png"), vl_convert.vegalite_to_png(spec, scale=2))


def write_csv(path: Path, rows: Sequence[CsvRow]) -> None:
    """Write rows with the same keys as CSV; numbers keep all their digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def read_csv(path: Path) -> list[CsvRow]:
    """Read rows that `write_csv` wrote; numeric text becomes a number."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _styled(chart: Chart) -> Chart:
    return (
        chart.configure_view(stroke="#ccc")
        .configure_axis(
            gridColor="#eee", labelColor="#333", titleColor="#333", titleFontWeight="normal"
        )
        .configure_header(titleFontSize=0, labelFontSize=13, labelFontWeight="bold")
        .configure_legend(titleFontWeight="normal", symbolStrokeWidth=3)
    )


def _faceted(
    rows: Sequence[CsvRow], *layers: Chart, width: int = 250, height: int = 230
) -> Chart:
    """Draw layers side by side, one panel per data set."""
    panels = list(dict.fromkeys(str(row["panel"]) for row in rows))
    layered = alt.layer(*layers, data=alt.InlineData(values=list(rows)))
    layered = layered.properties(width=width, height=height)
    return layered.facet(column=alt.Column("panel:N", sort=panels, title=None))


def _ratio_axis(field: str, title: str) -> alt.Y:
    return alt.Y(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=alt.Axis(format="~g", tickCount=6),
    )


def _size_axis() -> alt.X:
    return alt.X(
        "r:Q",
        title="r = rows of log 1 / rows of log 2",
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=alt.Axis(values=[0.1, 0.25, 0.5, 1, 3, 5, 9], format="~g"),
    )


def _baseline(at: float = 1.0) -> Chart:
    rule = alt.Chart().mark_rule(color=GREY, strokeDash=[5, 4])
    return rule.encode(y=alt.datum(at))


def _lines(
    rows: Sequence[CsvRow],
    field: str,
    title: str,
    extra: Sequence[Chart] = (),
    legend: Sequence[str] = TRAINED,
) -> Chart:
    """Draw one ratio of unary CRFs over the sizes of the logs."""
    unary = [row for row in rows if row["structure"] == "unary"]
    fraction = alt.Color(
        "fraction:O",
        title=list(legend),
        scale=alt.Scale(scheme="viridis", reverse=True),
    )
    base = alt.Chart().encode(x=_size_axis(), y=_ratio_axis(field, title), color=fraction)
    lines = base.mark_line(point=alt.OverlayMarkDef(size=28))
    return _faceted(unary, _baseline(), lines, *extra)


def draw_ratio(legend: Sequence[str]) -> Draw:
    """Return what draws one ratio of variances."""

    def draw(rows: Sequence[CsvRow], figure: Figure) -> Chart:
        return _lines(rows, figure.columns[-1], figure.title, legend=legend)

    return draw


def draw_gamma(legend: Sequence[str]) -> Draw:
    """Return what draws the gain of weighted, with the formula for it."""

    def draw(rows: Sequence[CsvRow], figure: Figure) -> Chart:
        formula = (
            alt.Chart()
            .mark_point(size=70, filled=False, strokeWidth=1, color="black")
            .encode(x=_size_axis(), y=_ratio_axis("gamma", ""), detail="fraction:O")
        )
        return _lines(rows, "weighted_naive", figure.title, [formula], legend)

    return draw


def _draw_controls(rows: Sequence[CsvRow], figure: Figure) -> Chart:
    del figure
    fields = {
        "cv_loggers_best": "columns: loggers",
        "cv_target_best": "columns: loggers + target",
    }
    charts = [
        _lines(rows, field, f"variance / best of the others ({title})")
        for field, title in fields.items()
    ]
    return alt.vconcat(*charts)


def draw_weights(rows: Sequence[CsvRow], figure: Figure) -> Chart:
    """Draw variance, error and bias of weighted with estimated shares."""
    del figure
    size = alt.X(
        "n:Q",
        title="rows of each log",
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=alt.Axis(values=[10, 100, 1000, 10_000], format="~s"),
    )
    rule = alt.Color(
        "rule:N",
        title="divergences from",
        scale=alt.Scale(domain=["own", "pooled"], range=["#d95f02", "#1b6ca8"]),
        legend=alt.Legend(labelExpr="datum.label == 'own' ? 'own log (paper)' : 'all logs'"),
    )

    def chart(field: str, title: str, *, log: bool, at: float) -> Chart:
        kind = _ratio_axis(field, title) if log else alt.Y(f"{field}:Q", title=title)
        lines = alt.Chart().mark_line(opacity=0.8, point=alt.OverlayMarkDef(size=18))
        lines = lines.encode(x=size, y=kind, color=rule, detail="fraction:O")
        return _faceted(rows, _baseline(at), lines, height=170)

    return alt.vconcat(
        chart("fixed_ratio", "variance / optimum, shares fixed", log=True, at=1),
        chart("mse_ratio", "mean squared error / optimum", log=True, at=1),
        chart("bias_sd", "bias / standard error", log=False, at=0),
    )


def _draw_simulation(rows: Sequence[CsvRow], figure: Figure) -> Chart:
    del figure
    ratios = list(dict.fromkeys(row["r"] for row in rows))
    long = [
        {**row, "z": row[field], "of": kind, "jitter": ratios.index(row["r"]) + shift}
        for row in rows
        for field, kind, shift in (("z_mean", "mean", 0), ("z_variance", "variance", 9))
        if row[field] == row[field]  # NaN: estimated slopes have no exact value
    ]
    names = list(dict.fromkeys(str(row["estimator"]) for row in long))
    points = (
        alt.Chart()
        .mark_point(filled=True, size=16, opacity=0.5)
        .encode(
            x=alt.X("estimator:N", sort=names, title=None, axis=alt.Axis(labelAngle=-30)),
            xOffset=alt.XOffset("jitter:Q"),
            y=alt.Y("z:Q", title="z-score", scale=alt.Scale(domain=[-5, 5])),
            color=alt.Color(
                "of:N", title="of the", scale=alt.Scale(range=["#1b6ca8", "#d95f02"])
            ),
        )
    )
    return _faceted(long, _baseline(4), _baseline(-4), points, width=280)


def _draw_learning(rows: Sequence[CsvRow], figure: Figure) -> Chart:
    colour = alt.Color("rule:N", title=None)
    points = alt.Chart().mark_point(size=20, opacity=0.4)
    points = points.encode(x=_size_axis(), y=alt.Y("gain:Q", title=figure.title), color=colour)
    lines = alt.Chart().mark_line().encode(x=_size_axis(), y="mean(gain):Q", color=colour)
    return _faceted(rows, _baseline(0), points, lines).resolve_scale(y="independent")


FIGURES = (
    Figure(
        1,
        "dropping",
        "Var naive on log 2 alone / on both logs",
        "panels",
        (*CELL, "drop_balanced", "drop_naive"),
        draw_ratio(TRAINED),
        "Below 1, dropping log 1 lowers the variance of the naive estimator.",
    ),
    Figure(
        2,
        "balanced",
        "Var balanced / Var naive",
        "panels",
        (*CELL, "balanced_naive"),
        draw_ratio(TRAINED),
        "Never above 1.",
    ),
    Figure(
        3,
        "weighted",
        "Var weighted / Var naive",
        "panels",
        (*CELL, "weighted_naive", "gamma"),
        draw_gamma(TRAINED),
        "Lines: by enumeration. Black circles: the paper's formula for gamma.",
    ),
    Figure(
        4,
        "weighted_balanced",
        "Var weighted / Var balanced",
        "panels",
        (*CELL, "weighted_balanced"),
        draw_ratio(TRAINED),
        "Below 1 weighted wins, above 1 balanced.",
    ),
    Figure(
        5,
        "estimated_weights",
        "Weighted with estimated weights",
        "weights",
        WEIGHT_COLUMNS,
        draw_weights,
        "One line per first logger. Top: the paper's measure, the variance that the estimated "
        "shares would have if they were fixed. Below: error and bias of the estimate itself.",
    ),
    Figure(
        6,
        "simulation",
        "Simulated means and variances against the exact ones",
        "simulation",
        SIMULATION_COLUMNS,
        _draw_simulation,
        "One point per cell; within an estimator cells are ordered by r.",
    ),
    Figure(
        7,
        "control_variates",
        "Control variates / best of naive, balanced, weighted and single logs",
        "panels",
        (*CELL, "var_best", "cv_loggers_best", "cv_target_best"),
        _draw_controls,
        "An estimator of this package: the gain from the known means of the weights.",
    ),
)
LEARNING = Figure(
    8,
    "learning",
    "value of the learned CRF less that of the best logger",
    "learning",
    LEARNING_COLUMNS,
    _draw_learning,
    "Points: one first logger each. Lines: their mean.",
)
