"""Progress: viewers receive rows, and a bar appears only for long work."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import poolwise as pw
from poolwise import progress
from tests.support.reference import log_of, random_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = {"a": 600, "b": 400}


class Seen:
    """A viewer that records its events."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.rows: list[int] = []
        self.open = 0

    @contextmanager
    def __call__(self, what: str, total: int) -> Iterator[progress.Advance]:
        self.stages.append((what, total))
        self.rows.append(0)
        self.open += 1
        try:
            yield self.advance
        finally:
            self.open -= 1

    def advance(self, rows: int) -> None:
        self.rows[-1] += rows


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "log.parquet"
    table = random_table(np.random.default_rng(1), ROWS)
    pq.write_table(
        table.append_column("x", pa.array(np.arange(1_000))), file, row_group_size=90
    )
    return file


def evaluated(path: Path, seen: Seen, target: object = "t") -> None:
    token = progress._viewer.set(seen)  # noqa: SLF001 - in the place of a bar
    try:
        log = log_of(path, action="x", context=["x"])
        pw.evaluate(log, {"t": target}, which_logs=False)
    finally:
        progress._viewer.reset(token)  # noqa: SLF001


def test_every_row_that_is_read_is_told(path: Path, seen: Seen) -> None:
    evaluated(path, seen)
    assert seen.stages == [("reading", 1_000)]
    assert (seen.rows, seen.open) == ([1_000], 0)


def test_rows_that_are_scored_are_told_first(path: Path, seen: Seen) -> None:
    evaluated(path, seen, pw.Function(lambda batch: np.full(len(batch), 0.5)))
    assert [what for what, _ in seen.stages] == ["scoring", "reading"]
    assert seen.rows == [1_000, 1_000]


def test_a_stage_ends_when_its_work_fails(path: Path, seen: Seen) -> None:
    wrong = pw.Function(lambda batch: np.full(len(batch), 2.0))
    with pytest.raises(pw.PoolwiseError):
        evaluated(path, seen, wrong)
    assert seen.open == 0


def test_without_a_viewer_nothing_is_shown(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pw.evaluate(log_of(path), {"t": "t"})
    assert capsys.readouterr() == ("", "")


def shown(long: float) -> str:
    """Return the terminal output of two stages."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80)
    with progress.show_progress(console, long):
        for what in ("scoring", "reading"):
            with progress.stage(what, 10) as advance:
                advance(5)
                advance(5)
    return text.getvalue()


def test_a_bar_with_the_time_left_appears_where_work_is_long() -> None:
    text = shown(long=-1.0)
    assert "scoring" in text
    assert "reading" in text
    assert "100%" in text
    assert "0:00:00" in text  # of the time that is left


class Line:
    """The display of a notebook: the texts of one line, in order."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def display(self, data: dict[str, str], **_: object) -> Line:
        self.update(data)
        return self

    def update(self, data: dict[str, str], **_: object) -> None:
        self.texts.append(data["text/plain"])


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    """A notebook in which every stage is long."""
    found = Line()
    shell = SimpleNamespace(kernel=None)
    notebook = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", found)
    monkeypatch.setattr(progress, "LONG", -1.0)
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    return found


def test_a_notebook_shows_a_line_that_ends_empty(path: Path, line: Line) -> None:
    pw.evaluate(log_of(path), {"t": "t"}, which_logs=False)
    assert line.texts[0].startswith("reading: ")
    assert line.texts[-2].startswith("reading: 100%, 0 seconds left")
    assert line.texts[-1] == ""


def test_short_work_shows_nothing_in_a_notebook(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LONG", 3600.0)
    with progress.stage("reading", 2) as advance:
        advance(2)
    assert line.texts == []


def test_short_work_shows_no_bar() -> None:
    assert shown(long=3600.0) == ""
