"""Backtest: the table and the chart of predictions from the other logs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from poolwise.report.charts import forest, forest_point, value_title
from poolwise.report.tables import UNKNOWN, Grid
from poolwise.text import p_text, percent, places_for, with_error

if TYPE_CHECKING:
    from poolwise.report.charts import Chart
    from poolwise.report.sentence import Facts


def backtest_table(facts: Facts) -> Grid:
    """Return the predictions and what was earned, a line for each logger."""
    several = any(p["p_without"] is not None for p in facts["loggers"])
    header = ["logger", "rows\nused", "predicted", "earned", "z", "adjusted\np", "fits"]
    header += ["p without\nit"] if several else []
    return Grid("Predicted from the other logs", header, [_line(p) for p in facts["loggers"]])


def _line(entry: Facts) -> list[str]:
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
