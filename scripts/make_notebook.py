"""Write docs/examples/digits.ipynb: the cells below, executed.

usage: python scripts/make_notebook.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

PATH = Path(__file__).parents[1] / "docs" / "examples" / "digits.ipynb"
RAISES = "raises-exception"
CELLS: tuple[tuple[str, str], ...] = (
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
    ("code", 'evaluation.charts()["targets"]'),
    ("code", 'evaluation.charts()["logs"]'),
    ("markdown", "Which of them is better, in pairs on the same rows?"),
    ("code", 'pw.compare(log, targets, baseline="large")'),
    ("markdown", "A mistake is one message:"),
    (RAISES, 'pw.evaluate(log, {"new": "p_candidat"})'),
)


def cells() -> list[Any]:
    """Return the cells, not yet executed; their identifiers are numbers."""
    made = []
    for number, (kind, text) in enumerate(CELLS):
        if kind == "markdown":
            cell = nbformat.v4.new_markdown_cell(text)
        else:
            tags = {"tags": [kind]} if kind == RAISES else {}
            cell = nbformat.v4.new_code_cell(text, metadata=tags)
        made.append({**cell, "id": f"cell-{number:02d}"})
    return made


def executed() -> Any:  # noqa: ANN401 - nbformat's node
    """Return the notebook with its outputs, without the times of execution."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.from_dict(
        {
            "cells": cells(),
            "metadata": {"kernelspec": kernel},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )
    NotebookClient(notebook, timeout=280, record_timing=False).execute()
    notebook["metadata"] = {"kernelspec": kernel}  # without the version of Python
    return notebook


def main() -> None:
    """Write the executed notebook."""
    nbformat.write(executed(), PATH)
    print(f"wrote {PATH.name}")


if __name__ == "__main__":
    main()
