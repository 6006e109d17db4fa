"""The table and the chart of speed and memory, from the stored measurements.

Run: python -m benchmarks.speed_chart; writes docs/figures/speed.svg and a part of
docs/scale.md from docs/figures/speed.csv
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchmarks.kept import DOCS, SPEED, markdown, read_speed, write_part
from poolwise.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.kept import Key, Measurement

PAGE = DOCS / "scale.md"
MARKER = "speed"
WORDS = {
    "decode": "decoding only",
    "evaluate": "`evaluate`",
    "command": "`poolwise evaluate`",
    "duckdb": "DuckDB, balanced only",
    "numpy-three": "NumPy and pandas, three estimates",
    "numpy": "NumPy and pandas, all five",
    "obp": "OBP's formulas, bootstrap",
}
MODELS = {
    "predict": "`predict_proba` calls alone, in batches and threads",
    "predict-plain": "`predict_proba` calls alone, one per model",
    "score": "`score`",
    "policies": "`evaluate`, from the file",
    "policies-memory": "`evaluate`, rows in memory",
}
BEFORE = """\
## Measured

Seconds and, in parentheses, peak megabytes on two cores; the best of three to fifteen runs,
each kind in a process of its own, and each line in one run of `make bench`. Logs are zstd
Parquet files of incompressible doubles. *Decoding only* reads these columns with pyarrow
and discards them: it is the lower limit. `poolwise evaluate` is the command, including its
start. The rivals do less than `evaluate`, which also checks every row and diagnoses the
weights and the logs: one hand-written query for the balanced estimate alone; the paper's
three estimates, and all five of `evaluate`, with standard errors, in plain NumPy and pandas;
and Open Bandit Pipeline's three formulas with 100 bootstrap rounds each. A rival that would
need more than 8 GB or two minutes is left out (-)."""
AFTER = """\
![Time and memory against rows, targets and loggers](figures/speed.svg)"""


def table(kept: Mapping[Key, Measurement]) -> str:
    """Return one line per log, with a column for each measured program."""
    cells = [key for key in kept if key.what == "decode"]
    lines = []
    for cell in cells:
        columns = [kept.get(cell._replace(what=what)) for what in WORDS]
        sizes = [f"{cell.rows:,}", str(cell.targets), str(cell.loggers)]
        lines.append([*sizes, *map(_shown, columns)])
    return markdown(["rows", "targets", "loggers", *WORDS.values()], lines, words=0)


def _shown(found: Measurement | None) -> str:
    if found is None:
        return "-"
    if math.isinf(found.seconds):
        return "given up"
    return f"{_short(found.seconds)} ({found.megabytes:,.0f})"


def _short(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"


def models_table(kept: Mapping[Key, Measurement]) -> str:
    """Return the same for policies that are scikit-learn models; empty if not measured."""
    cells = [key for key in kept if key.what == "predict"]
    lines = [
        [f"{cell.rows:,}", *(_shown(kept.get(cell._replace(what=what))) for what in MODELS)]
        for cell in cells
    ]
    if not lines:
        return ""
    heading = (
        "Four logistic regressions of scikit-learn (three loggers and the target; 20 features, "
        "10 actions),\ncompared with the calls of `predict_proba` alone on the same two cores:"
    )
    return f"{heading}\n\n{markdown(['rows', *MODELS.values()], lines, words=0)}"


def text(kept: Mapping[Key, Measurement]) -> str:
    """Return the generated part of the page."""
    parts = [BEFORE, table(kept), models_table(kept), AFTER]
    return "\n\n".join(part for part in parts if part)


def write_table(kept: Mapping[Key, Measurement]) -> None:
    """Rewrite the table of the documentation's page."""
    write_part(PAGE, MARKER, text(kept))


def write_chart(kept: Mapping[Key, Measurement]) -> None:
    """Draw time above and memory below, by rows, targets and loggers from left to right."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg(spec(kept))
    write_whole(SPEED.with_suffix(".svg"), svg.encode())


def spec(kept: Mapping[Key, Measurement]) -> dict[str, Any]:
    """Return the chart as a Vega-Lite specification."""
    import altair as alt

    quantities = {"seconds": "seconds", "megabytes": "peak megabytes"}
    panels = [
        alt.hconcat(*(_panel(kept, by, name, title) for by in ("rows", "targets", "loggers")))
        for name, title in quantities.items()
    ]
    chart: dict[str, Any] = alt.vconcat(*panels, background="white").to_dict()
    return chart


def _panel(kept: Mapping[Key, Measurement], by: str, quantity: str, title: str) -> Any:  # noqa: ANN401 - altair's own
    import altair as alt

    names = {what: name.replace("`", "") for what, name in WORDS.items()}
    plain = {"rows": 10**6, "targets": 1, "loggers": 5}
    values = [
        {by: getattr(key, by), quantity: getattr(found, quantity), "what": names[key.what]}
        for key, found in kept.items()
        if key.what in names
        and math.isfinite(found.seconds)
        and all(getattr(key, name) == size for name, size in plain.items() if name != by)
    ]
    axis = alt.Axis(values=sorted({int(v[by]) for v in values}), format="~s")
    return (
        alt.Chart(alt.InlineData(values=values))
        .mark_line(point=True)
        .encode(
            x=alt.X(f"{by}:Q", axis=axis).scale(type="log").title(by),
            y=alt.Y(f"{quantity}:Q").scale(type="log").title(title),
            color=alt.Color(
                "what:N", sort=list(names.values()), legend=alt.Legend(labelLimit=300)
            ).title(None),
        )
        .properties(width=200, height=180)
    )


if __name__ == "__main__":
    write_table(read_speed())
    write_chart(read_speed())
