"""Draw the pictures of the README from the output of the program.

Run: .venv/bin/python scripts/make_pictures.py
"""

from __future__ import annotations

import re
import shutil
import tempfile
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from poolwise.evaluation.evaluate import evaluate
from poolwise.formats.labelled import TARGETS, digits_log, digits_truth
from poolwise.report.sentence import lesson
from poolwise.report.tables import show

if TYPE_CHECKING:
    from poolwise.evaluation.results import Evaluation

IMAGES = Path(__file__).parent.parent / "docs" / "images"
FONT = re.compile(r"\s*@font-face\s*{[^}]*}")  # the terminal's font: no network access


def main() -> None:
    """Write docs/images/demo.svg and, if Chromium is installed, docs/images/report.png."""
    evaluation = evaluate(digits_log(), TARGETS, truth=digits_truth())
    IMAGES.mkdir(parents=True, exist_ok=True)
    terminal(evaluation)
    browser(evaluation)


def terminal(evaluation: Evaluation) -> None:
    """Draw the output of `make demo`."""
    console = Console(record=True, width=80, file=StringIO(), highlight=False)
    console.print(Text("$ make demo", style="bold"))
    console.print(Text(f"\n{evaluation.headline}\n"))
    show(evaluation.brief(), evaluation.warnings, console)
    console.print(lesson(evaluation.to_dict()))
    picture = console.export_svg(title="poolwise demo", unique_id="poolwise-demo")
    (IMAGES / "demo.svg").write_text(FONT.sub("", picture), encoding="utf-8")


def browser(evaluation: Evaluation) -> None:
    """Draw the upper part of the report of the same evaluation."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium: docs/images/report.png stays as it is")
        return
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        evaluation.save(page)
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        window = playwright.chromium.launch(executable_path=chromium, args=flags)
        tab = window.new_page(viewport={"width": 900, "height": 1150})
        tab.goto(page.as_uri())
        tab.wait_for_selector("svg")
        tab.screenshot(path=IMAGES / "report.png")
        window.close()


if __name__ == "__main__":
    main()
