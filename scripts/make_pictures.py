"""Draw the pictures of the README and of the documentation from the output of the program.

Run: .venv/bin/python scripts/make_pictures.py
"""

from __future__ import annotations

import re
import shutil
import struct
import tempfile
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.text import Text

from poolwise.evaluation.evaluate import evaluate
from poolwise.formats.labelled import TARGETS, digits_log, digits_truth
from poolwise.log.log import Log
from poolwise.report.charts import draw_svg
from poolwise.report.sentence import lesson
from poolwise.report.tables import show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.evaluation.results import Evaluation

IMAGES = Path(__file__).parent.parent / "docs" / "images"
FONT = re.compile(r"\s*@font-face\s*{[^}]*}")  # the terminal's font: no network access
REPORT = IMAGES / "report.png"
MARK = b"tEXtpoolwise\0"  # before the digest of the report, in the picture


def main() -> None:
    """Write the pictures of docs/images; report.png only where it differs."""
    evaluation = evaluate(digits_log(), TARGETS, truth=digits_truth())
    for name, text in draw_pictures(evaluation).items():
        (IMAGES / name).parent.mkdir(parents=True, exist_ok=True)
        (IMAGES / name).write_text(text, encoding="utf-8")
    if not REPORT.exists() or digest(evaluation) not in REPORT.read_bytes():
        browser(evaluation)


def draw_pictures(evaluation: Evaluation) -> dict[str, str]:
    """Return the text of each picture by its name below docs/images."""
    charts = {name: draw_svg(chart) for name, chart in gallery(evaluation).items()}
    return {
        "demo.svg": terminal(evaluation),
        **{f"gallery/{n}.svg": t for n, t in charts.items()},
    }


def gallery(evaluation: Evaluation) -> Mapping[str, object]:
    """Return the charts of docs/gallery.md; its examples evaluate the same logs."""
    several = evaluate(digits_log(), {**TARGETS, "old": "p_medium"}, baseline="large")
    segments = evaluate(days_log(), "p_new", by="country", baseline="v1")
    course = evaluate(days_log(period="day"), "p_new")
    one = ("estimates", "logs", "weights", "agreement", "backtest")
    return {
        **{name: evaluation.chart(name) for name in one},
        **{name: several.chart(name) for name in ("targets", "differences")},
        "segments": segments.chart("segments"),
        "course": course.chart("course"),
    }


def days_log(**roles: str) -> Log:
    """Return a log of six days, in three countries: in one of them, other offers sell."""
    rng = np.random.default_rng(1)
    day, country = np.arange(12_000) // 2_000, rng.integers(3, size=12_000)
    shares = {"v1": 0.3, "v2": 0.6, "new": 0.8}  # of the second offer
    logger = rng.choice(["v1", "v2"], 12_000)
    second = rng.random(12_000) < np.where(logger == "v1", shares["v1"], shares["v2"])
    sells = np.where(country == 2, 0.2 - 0.1 * second, 0.1 + 0.1 * second)
    columns = {
        "day": day,
        "country": np.array(["de", "fr", "it"])[country],
        "policy": logger,
        "sold": (rng.random(12_000) < sells).astype(int),
        **{f"p_{name}": np.where(second, p, 1 - p) for name, p in shares.items()},
    }
    return Log(
        pa.table(columns), logger="policy", reward="sold", propensities="p_{logger}", **roles
    )


def terminal(evaluation: Evaluation) -> str:
    """Draw the output of `make demo`."""
    console = Console(record=True, width=80, file=StringIO(), highlight=False)
    console.print(Text("$ make demo", style="bold"))
    console.print(Text(f"\n{evaluation.headline}\n"))
    show(evaluation.brief(), evaluation.warnings, console)
    console.print(lesson(evaluation.to_dict()))
    picture = console.export_svg(title="poolwise demo", unique_id="poolwise-demo")
    return FONT.sub("", picture)


def digest(evaluation: Evaluation) -> bytes:
    """Return a digest of all that the picture of the report may show."""
    text = evaluation.page_text().partition("<h2>Method")[0]
    return sha256(text.encode()).hexdigest().encode()


def browser(evaluation: Evaluation) -> None:
    """Draw the upper part of the report of the same evaluation."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("no chromium or playwright: docs/images/report.png stays as it is, and is stale")
        return
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        evaluation.save(page)
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        window = playwright.chromium.launch(executable_path=chromium, args=flags)
        tab = window.new_page(viewport={"width": 900, "height": 1150})
        tab.goto(page.as_uri())
        tab.wait_for_selector("svg")
        picture = tab.screenshot()
        window.close()
    note = MARK + digest(evaluation)
    size = struct.pack(">I", len(note) - 4)
    end = picture.rindex(b"IEND") - 4  # the note comes before the last chunk
    note = size + note + struct.pack(">I", crc32(note))
    REPORT.write_bytes(picture[:end] + note + picture[end:])


if __name__ == "__main__":
    main()
