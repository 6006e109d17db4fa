"""Write the notebooks of docs/examples: the cells below, executed.

usage: python scripts/make_notebook.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "examples"
RAISES = "raises-exception"
Cells = tuple[tuple[str, str], ...]
DIGITS: Cells = (
    (
        "markdown",
        """# poolwise in a notebook

Three policies guessed digits, and their logs say how often they were right. How often would a
new policy have been right? Nothing here needs the network.""",
    ),
    (
        "code",
        """import poolwise as pw
from poolwise.formats.labelled import digits_log

log = digits_log()""",
    ),
    ("markdown", "Count the rows that break a rule:"),
    ("code", 'targets = {"new": "p_candidate", "old": "p_medium"}\npw.check(log, targets)'),
    ("markdown", "Evaluate two targets. The answer comes first:"),
    ("code", 'evaluation = pw.evaluate(log, targets, baseline="large")\nevaluation'),
    ("markdown", "One target has its own table:"),
    ("code", 'evaluation["new"]'),
    ("markdown", "Charts are pictures in the notebook, and Altair objects in Python:"),
    ("code", 'evaluation.chart("targets")'),
    ("code", 'evaluation.chart("logs")'),
    ("markdown", "Which of them is better, in pairs on the same rows?"),
    ("code", 'pw.compare(log, targets, baseline="large")'),
    ("markdown", "A mistake is one message:"),
    (RAISES, 'pw.evaluate(log, {"new": "p_candidat"})'),
)
CLICKS: Cells = (
    (
        "markdown",
        """# Clicks of deterministic rankers

Three rankers answered search requests. They show the same items at different positions, which
reveals how often users look at each position, and with it the clicks of a ranker that was never
live.""",
    ),
    (
        "code",
        """import poolwise as pw
from poolwise.formats.clicks import search_log, search_truth

roles = {"request": "request", "position": "position", "click": "click"}
roles |= {"logger": "ranker", "ranks": "rank_{logger}"}
bias = pw.position_bias(search_log(), **roles)
bias""",
    ),
    ("code", 'bias.chart("position-bias")'),
    ("markdown", "What would the candidate be clicked? A value is the clicks of a request:"),
    (
        "code",
        """log, targets = pw.click_log(search_log(), {"candidate": "rank_candidate"}, **roles)
evaluation = pw.evaluate(log, targets)
evaluation""",
    ),
    ("markdown", "This log was simulated, so the true value is known:"),
    ("code", 'round(search_truth()["candidate"], 3)'),
)
DECISION: Cells = (
    (
        "markdown",
        """# Ship it?

A launch is decided by several numbers. The candidate must be shown to be right more often, and
not to guess 7 much more often than the classifier in use.""",
    ),
    (
        "code",
        """import poolwise as pw
from poolwise.formats.labelled import digits_log

log, targets = digits_log(), {"candidate": "p_candidate", "old": "p_medium"}
metrics = {
    "right": pw.Metric("correct", primary=True),
    "sevens": pw.Metric("(digit = 7)::INT", better="lower", guard="25%"),
}
decision = pw.decide(log, targets, baseline="large", metrics=metrics)
decision""",
    ),
    ("markdown", "How many more rows would make the interval half as wide?"),
    ("code", 'pw.plan(log, "p_candidate", half_width=0.004)'),
    ("markdown", "What each logger earned, predicted from the other logs:"),
    ("code", 'pw.backtest(log).chart("backtest")'),
)
NOTEBOOKS = {"digits": DIGITS, "clicks": CLICKS, "decision": DECISION}


def cells(texts: Cells) -> list[Any]:
    """Return the cells, not yet executed; their identifiers are numbers."""
    made = []
    for number, (kind, text) in enumerate(texts):
        if kind == "markdown":
            cell = nbformat.v4.new_markdown_cell(text)
        else:
            tags = {"tags": [kind]} if kind == RAISES else {}
            cell = nbformat.v4.new_code_cell(text, metadata=tags)
        made.append({**cell, "id": f"cell-{number:02d}"})
    return made


def executed(name: str) -> Any:  # noqa: ANN401 - nbformat's node
    """Return a notebook with its outputs, without the times of execution."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.from_dict(
        {
            "cells": cells(NOTEBOOKS[name]),
            "metadata": {"kernelspec": kernel},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )
    NotebookClient(notebook, timeout=280, record_timing=False).execute()
    notebook["metadata"] = {"kernelspec": kernel}  # without the version of Python
    return notebook


def main() -> None:
    """Write the executed notebooks."""
    for name in NOTEBOOKS:
        nbformat.write(executed(name), FOLDER / f"{name}.ipynb")
        print(f"wrote {name}.ipynb")


if __name__ == "__main__":
    main()
