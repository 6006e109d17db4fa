"""A notebook, executed: short outputs, pictures that load nothing, mistakes as messages."""

from __future__ import annotations

import json
import re
import runpy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

import poolwise as pw
from poolwise.errors import PoolwiseError, UsageError
from poolwise.formats.labelled import TARGETS, digits_log
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
PICTURE = re.compile(r"data:image/svg[^\"]*")  # the last digits of its numbers may differ
LONGEST = 3_000  # characters of a table as text


NOTEBOOKS = ("digits", "clicks", "decision")


@pytest.fixture(scope="module")
def executed() -> Callable[[str], Any]:
    script = runpy.run_path(str(ROOT / "scripts" / "make_notebook.py"))
    assert tuple(script["NOTEBOOKS"]) == NOTEBOOKS
    return cache(script["executed"])


@pytest.fixture(params=NOTEBOOKS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def notebook(executed: Callable[[str], Any], name: str) -> Any:  # noqa: ANN401 - nbformat's node
    return executed(name)


def outputs(notebook: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    """Each output with the code of its cell."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [(cell["source"], output) for cell in code for output in cell["outputs"]]


def test_the_notebook_of_the_documentation_is_current(notebook: Any, name: str) -> None:  # noqa: ANN401
    path = ROOT / "docs" / "examples" / f"{name}.ipynb"
    stored = json.loads(path.read_text("utf-8"))
    for (_, here), (_, there) in zip(outputs(notebook), outputs(stored), strict=True):
        left, right = (
            {
                k: PICTURE.sub("", "".join(v))
                for k, v in o.get("data", {}).items()
                if "image" not in k
            }
            for o in (here, there)
        )
        assert left == right, "run: python scripts/make_notebook.py"


def test_every_output_is_one_short_table_or_picture(notebook: Any) -> None:  # noqa: ANN401
    for source, output in outputs(notebook):
        if output["output_type"] == "error":
            continue
        assert output["output_type"] == "execute_result", source
        assert len(output["data"]["text/plain"]) < LONGEST, source


def test_charts_are_pictures_that_load_nothing(notebook: Any) -> None:  # noqa: ANN401
    pictures = [o["data"] for source, o in outputs(notebook) if "chart(" in source]
    assert pictures
    for data in pictures:
        assert set(data) == {"image/svg+xml", "text/plain"}
        text = re.sub(r'xmlns(:xlink)?="[^"]*"', "", data["image/svg+xml"])
        assert "http" not in text
        assert "<script" not in text


def test_headers_are_not_broken(notebook: Any) -> None:  # noqa: ANN401
    pages = [
        o["data"]["text/html"] for _, o in outputs(notebook) if "text/html" in o.get("data", {})
    ]
    tables = [unquote(text).replace('="http://www.w3.org/', "") for text in pages]
    styled = [text for text in tables if "poolwise" in text]
    assert styled
    assert all("hyphens: none" in text and "white-space: pre" in text for text in styled)
    assert all("http" not in text for text in tables)


def test_a_result_begins_with_its_chart() -> None:
    page = pw.evaluate(digits_log(), {**TARGETS, "old": "p_medium"})._repr_html_()
    sentence, picture, table = (page.index(part) for part in ("highest", "<img", "<table"))
    assert sentence < picture < table
    assert ">old</text>" in unquote(page)


def test_a_mistake_is_one_message_without_frames(executed: Callable[[str], Any]) -> None:
    (error,) = [o for _, o in outputs(executed("digits")) if o["output_type"] == "error"]
    (message,) = error["traceback"]
    assert message.startswith("MissingColumnError: target 'new'")
    assert "File " not in message


def test_every_error_of_ours_renders_itself() -> None:
    assert PoolwiseError("no")._render_traceback_() == ["PoolwiseError: no"]
    assert UsageError("a\nb")._render_traceback_() == ["UsageError: a\nb"]


def test_a_result_is_its_table_in_a_console() -> None:
    evaluation = pw.evaluate(digits_log(), TARGETS)
    assert repr(evaluation) == str(evaluation)
    shown = repr(evaluation["candidate"])
    assert len(shown) < 600
    assert "calibrated" in shown
    assert "findings: none" in shown
    naive = pw.evaluate(digits_log(), TARGETS, "naive")  # pools with the weights of each logger
    assert "findings: heavy-logger" in repr(naive["candidate"])


def test_names_of_charts_do_not_depend_on_the_number_of_targets() -> None:
    one = pw.evaluate(digits_log(), TARGETS, "calibrated").charts()
    two = pw.evaluate(digits_log(), {**TARGETS, "old": "p_medium"}, "calibrated").charts()
    for name in ("logs", "weights", "agreement"):
        assert one[f"{name}-01"] is one[name]
        assert two[f"{name}-01"] is two[name]
    with refused(UsageError):
        one["log"]


def test_a_check_is_a_table() -> None:
    rows = {"r": [1.0, 0.0, 1.0], "p": [0.5, 2.0, 0.5], "t": [0.5, 0.5, 0.5]}
    bad = pw.check(pw.Log(rows, reward="r", propensity="p"), {"new": "t"})
    faults, counts = bad.grids()
    assert len(faults.rows) == len(bad.faults) == 1
    assert counts.rows == [["log", "3"]]
    assert "broken rule" in bad._repr_html_()
    good = pw.check(digits_log(), TARGETS)
    assert "No faults." in good._repr_html_()
