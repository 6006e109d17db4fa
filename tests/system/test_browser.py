"""The report in a real browser: it renders, responds, fits, and makes no requests.

Screenshots are left in the folder named by POOLWISE_SCREENSHOTS, else in pytest's own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from tests.support import samples
from tests.support.samples import SCRIPT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import BrowserContext, Locator, Page

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTHS = (390, 768, 1440)
REPORTS = {"demo": samples.demo, "twenty": samples.twenty, "grave": samples.grave}
DRAWN = """() => [...document.querySelectorAll('.chart')]
    .filter((place) => !place.closest('details:not([open])'))
    .every((place) => place.dataset.drawn === 'done')"""
UNFOLD = "() => document.querySelectorAll('details.part').forEach((d) => { d.open = true; })"
OVERFLOWING = """() => {
    const widest = document.documentElement.clientWidth;
    return [...document.body.querySelectorAll('*')]
        .filter((e) => !e.closest('.scroll table') && !e.closest('svg'))
        .filter((e) => e.getBoundingClientRect().right > widest + 0.5)
        .map((e) => e.outerHTML.slice(0, 80));
}"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")


class Opened:
    """A report in a tab, with the tab's errors and requests."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri())
        page.evaluate(UNFOLD)
        page.wait_for_function(DRAWN)
        self.requests.remove(path.as_uri())

    def assert_quiet(self) -> None:
        assert self.complaints == []
        assert self.requests == []


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    profile = tmp_path_factory.mktemp("profile")
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=list(FLAGS)
        )
        yield context
        context.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wanted = os.environ.get("POOLWISE_SCREENSHOTS")
    folder = Path(wanted).absolute() if wanted else tmp_path_factory.mktemp("reports")
    for name, make in REPORTS.items():
        make().save(folder / f"{name}.html")
    return folder


@pytest.fixture
def page(browser: BrowserContext) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", list(REPORTS))
def test_a_report_is_drawn_and_fits(page: Page, folder: Path, name: str, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    opened = Opened(page, folder / f"{name}.html")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(  # charts follow the window
            "() => { const place = document.querySelector('.chart');"
            " return place.querySelector('svg').getBoundingClientRect().width"
            " > 0.9 * place.clientWidth; }"
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOWING) == []
        picture = folder / f"{name}-{scheme}-{width}.png"
        page.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 20_000
    for chart in page.locator(".chart[data-drawn]").all():
        assert chart.locator("svg .mark-symbol.role-mark path").count() > 0
    opened.assert_quiet()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_decision_fits_and_axe_finds_no_serious_fault(
    page: Page, folder: Path, scheme: str
) -> None:
    samples.decision().save(folder / "decision.html")
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    opened = Opened(page, folder / "decision.html")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOWING) == []
        page.screenshot(path=folder / f"decision-{scheme}-{width}.png", full_page=True)
    verdicts = page.locator(".card .verdict strong").all_inner_texts()
    assert [v.lower() for v in verdicts] == ["ship", "don't"]
    bars = page.locator(".bar .range").all()
    assert len(bars) == 4
    assert all((b.bounding_box() or {"width": 0})["width"] >= 2 for b in bars)
    assert serious_faults(page) == []
    opened.assert_quiet()


def test_dark_is_dark(page: Page, folder: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('.chart .role-axis-label text')).fill"
    found = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        Opened(page, folder / "demo.html").assert_quiet()
        found[scheme] = (page.evaluate(paper), page.evaluate(text))
    page.emulate_media(media="print")
    assert page.evaluate(paper) == found["light"][0] == "rgb(255, 255, 255)"
    assert found["dark"][0] != found["light"][0]
    assert found["dark"][1] != found["light"][1]


@pytest.mark.parametrize("name", ["demo", "grave"])
def test_a_sheet_of_paper_is_wide_enough(page: Page, folder: Path, name: str) -> None:
    page.set_viewport_size({"width": 680, "height": 900})  # A4 within its margins
    Opened(page, folder / f"{name}.html").assert_quiet()
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 680


def serious_faults(page: Page) -> list[object]:
    faults = Axe().run(page).response["violations"]
    serious = [f for f in faults if f["impact"] in {"serious", "critical"}]
    return [(f["id"], [n["html"][:120] for n in f["nodes"]][:3]) for f in serious]


def symbols(page: Page, chart: str) -> Locator:
    return page.locator(f'[data-spec="chart-{chart}"] svg .mark-symbol.role-mark path')


@pytest.mark.parametrize(
    ("name", "chart", "words"),
    [
        ("demo", "estimates", ["calibrated", "0.6771 ± 0.0040", "[0.6690, 0.6849]"]),
        ("demo", "logs", ["small", "57.1%"]),
        ("demo", "weights", ["small", "1.05"]),
        ("demo", "agreement", ["0.679 ± 0.060"]),
        ("grave", "logs", [SCRIPT]),
    ],
)
def test_a_mark_answers(
    page: Page, folder: Path, name: str, chart: str, words: list[str]
) -> None:
    opened = Opened(page, folder / f"{name}.html")
    places = symbols(page, chart)
    told = []
    for mark in places.all():
        mark.hover()
        told.append(page.locator("#vg-tooltip-element.visible").inner_text())
    assert any(all(word in text for word in words) for text in told), told
    opened.assert_quiet()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("demo", ["large", "0.75 to 1.5", "74.8% of the rows"]),
        ("grave", [SCRIPT, "96 to 192", "5.7% of the rows"]),
    ],
)
def test_a_bar_answers(page: Page, folder: Path, name: str, words: list[str]) -> None:
    opened = Opened(page, folder / f"{name}.html")
    told = []
    places = page.locator('[data-spec="chart-weights"] svg .mark-rect.role-mark').last
    for bar in places.locator("path").all():
        bar.hover()
        told.append(page.locator("#vg-tooltip-element.visible").inner_text())
    assert any(all(word in text for word in words) for text in told), told
    opened.assert_quiet()


def test_differences_answer_and_have_their_place(page: Page, folder: Path) -> None:
    opened = Opened(page, folder / "twenty.html")
    places = symbols(page, "differences")
    assert places.count() == 19
    places.first.hover()
    told = page.locator("#vg-tooltip-element.visible").inner_text()
    comparison = samples.twenty().comparison
    assert comparison is not None
    assert comparison.ranking[1].target in told
    assert "calibrated, paired" in told
    opened.assert_quiet()


def test_a_folder_draws_its_chart_when_it_is_opened(page: Page, folder: Path) -> None:
    opened = Opened(page, folder / "twenty.html")
    assert page.locator(".chart svg").count() == 7
    closed = page.locator("details:not([open])", has=page.locator(".chart")).first
    closed.locator("summary").click()
    page.wait_for_function(DRAWN)
    assert page.locator(".chart svg").count() == 8
    opened.assert_quiet()


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("demo", "light"), ("demo", "dark"), ("grave", "dark"), ("twenty", "light")],
)
def test_axe_finds_no_serious_fault(page: Page, folder: Path, name: str, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    Opened(page, folder / f"{name}.html").assert_quiet()
    assert serious_faults(page) == []
