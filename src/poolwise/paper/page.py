"""The outcome of a reproduction as Markdown: figures, and a table of all verdicts.

`poolwise reproduce` writes it as ``reproduction.md``; docs/paper.md has the same table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.paper.figures import FIGURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.paper.panels import Row

INTRODUCTION = """\
# The paper, reproduced

Claims of Agarwal, Basu, Schnabel and Joachims, *Effective Evaluation Using Logged Bandit
Feedback from Multiple Loggers* (KDD 2017), each with a verdict. Variances are exact, by
enumeration over inputs and outputs; r is the size of log 1 over that of log 2, v the
divergence of logger 1 over that of logger 2. The CSV files have the numbers of every cell.
"""


def page(verdicts: Sequence[Row], notes: Sequence[str]) -> str:
    """Return the page, with links to the figures in its own folder."""
    figures = (
        f"![{figure.title}]({figure.stem}.svg)\n\n*Figure {figure.number}. {figure.caption}*\n"
        for figure in FIGURES
    )
    quoted = (f"> {note}\n" for note in notes)
    return "\n".join([INTRODUCTION, *quoted, *figures, claims_table(verdicts), ""])


def claims_table(verdicts: Sequence[Row]) -> str:
    """Return a Markdown table of the rows of ``claims.csv``, one line per verdict."""
    lines = ["| claim | where | verdict | evidence |", "|---|---|---|---|"]
    previous = None
    for row in verdicts:
        claim = "" if row["claim"] == previous else f"{row['claim']} ({row['by']})"
        previous = row["claim"]
        cells = [claim, row["where"], row["verdict_there"], row["evidence"]]
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)
