"""Copy the results of a reproduction into the documentation.

Run: make reproduce
     .venv/bin/python -m reproduction.make_page build/reproduce
It copies figures to docs/figures and rewrites the tables of claims in docs/paper.md, of all and
of clicks, as far as the folder has them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reproduction.claims import TOY
from reproduction.clicks import FIGURES as CLICK_FIGURES
from reproduction.figures import FIGURES, read_csv
from reproduction.run import claims_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reproduction.figures import CsvRow, Figure

DOCS = Path(__file__).parent.parent / "docs"
SHOWN = (1, 2, 3, 4, 7)  # numbers of the figures in docs/paper.md
START, END = "<!-- claims: begin -->", "<!-- claims: end -->"
CLICK_START, CLICK_END = "<!-- clicks: begin -->", "<!-- clicks: end -->"


def main() -> None:
    """Copy the figures and rewrite the table."""
    source = Path(sys.argv[1])
    (DOCS / "figures").mkdir(exist_ok=True)
    if (source / "claims.csv").exists():
        _copy(source, [figure for figure in FIGURES if figure.number in SHOWN])
        verdicts = [row for row in read_csv(source / "claims.csv") if row["figure"] != TOY]
        _rewrite(verdicts, START, END)
    if (source / "clicks_claims.csv").exists():
        _copy(source, CLICK_FIGURES)
        _rewrite(read_csv(source / "clicks_claims.csv"), CLICK_START, CLICK_END)


def _copy(source: Path, figures: Sequence[Figure]) -> None:
    """Copy figures into the documentation."""
    for name in (f"{figure.stem}.svg" for figure in figures):
        shutil.copyfile(source / name, DOCS / "figures" / name)


def _rewrite(verdicts: Sequence[CsvRow], start: str, end: str) -> None:
    """Replace the table between two comments of the page."""
    page = DOCS / "paper.md"
    before, _, rest = page.read_text("utf-8").partition(start)
    _, _, after = rest.partition(end)
    table = claims_table(verdicts)
    page.write_text(f"{before}{start}\n{table}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
