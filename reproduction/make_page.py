"""Copy the results of a reproduction into the documentation.

Run: make reproduce
     .venv/bin/python -m reproduction.make_page build/reproduce
It copies five figures to docs/figures and rewrites the table of claims in docs/paper.md.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from reproduction.claims import TOY
from reproduction.figures import FIGURES, read_csv
from reproduction.run import claims_table

DOCS = Path(__file__).parent.parent / "docs"
SHOWN = (1, 2, 3, 4, 7)  # numbers of the figures in docs/paper.md
START, END = "<!-- claims: begin -->", "<!-- claims: end -->"


def main() -> None:
    """Copy the figures and rewrite the table."""
    source = Path(sys.argv[1])
    (DOCS / "figures").mkdir(exist_ok=True)
    for name in (f"{figure.stem}.svg" for figure in FIGURES if figure.number in SHOWN):
        shutil.copyfile(source / name, DOCS / "figures" / name)
    verdicts = [row for row in read_csv(source / "claims.csv") if row["figure"] != TOY]
    page = DOCS / "paper.md"
    before, _, rest = page.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    table = claims_table(verdicts)
    page.write_text(f"{before}{START}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
