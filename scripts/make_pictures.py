"""Draw the pictures of the README from what the program really prints.

Run: .venv/bin/python scripts/make_pictures.py
"""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from poolwise.bundled import TARGETS, digits_log, digits_truth
from poolwise.pipeline import evaluate
from poolwise.report.text import lesson
from poolwise.tables import show

IMAGES = Path(__file__).parent.parent / "docs" / "images"
FONT = re.compile(r"\s*@font-face\s*{[^}]*}")  # the terminal's font will do: no network


def main() -> None:
    """Write docs/images/demo.svg."""
    evaluation = evaluate(digits_log(), TARGETS, truth=digits_truth())
    console = Console(record=True, width=80, file=StringIO(), highlight=False)
    console.print(Text("$ make demo", style="bold"))
    show(evaluation.grids(), evaluation.warnings, console)
    console.print(lesson(evaluation))
    picture = console.export_svg(title="poolwise demo", unique_id="poolwise-demo")
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / "demo.svg").write_text(FONT.sub("", picture), encoding="utf-8")


if __name__ == "__main__":
    main()
