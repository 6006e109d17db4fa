"""Put the outcome of a reproduction into the documentation.

Run: poolwise reproduce all --out build/reproduce
     .venv/bin/python scripts/make_paper_page.py build/reproduce
It copies five figures to docs/figures and rewrites the table of claims in docs/paper.md.
"""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
FIGURES = ("figure1_dropping", "figure2_balanced", "figure3_weighted")
FIGURES += ("figure4_weighted_balanced", "figure7_control_variates")
START, END = "<!-- claims: begin -->", "<!-- claims: end -->"


def main() -> None:
    """Copy the figures and rewrite the table."""
    source = Path(sys.argv[1])
    (DOCS / "figures").mkdir(exist_ok=True)
    for name in FIGURES:
        shutil.copyfile(source / f"{name}.svg", DOCS / "figures" / f"{name}.svg")
    with (source / "claims.csv").open(newline="", encoding="utf-8") as file:
        lines = table(list(csv.DictReader(file)))
    page = DOCS / "paper.md"
    before, _, rest = page.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{START}\n{lines}\n{END}{after}", encoding="utf-8")


def table(rows: list[dict[str, str]]) -> str:
    """One line per claim and place where it was tried."""
    lines = ["| claim | where | verdict | found |", "|---|---|---|---|"]
    said = ""
    for row in rows:
        if row["figure"] == "0":  # the toy has a table of its own above
            continue
        claim = "" if row["claim"] == said else f"{row['claim']} ({row['by']})"
        said = row["claim"]
        cells = [claim, row["where"], row["verdict_there"], row["found"]]
        lines.append("| " + " | ".join(c.replace("|", "/") for c in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
