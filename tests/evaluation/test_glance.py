"""A log in a notebook: its columns, its rows, its faults; and never an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from poolwise import Log
from poolwise.evaluation import glance
from poolwise.formats.digits import digits_log
from poolwise.log.policy import Function

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ROWS = pa.table({"logger": ["a", "b", "b"], "click": [1.0, 0.0, 1.0], "p": [0.5, 0.25, 2.0]})


def shown(log: Log) -> str:
    return log._repr_html_()


def test_columns_with_type_and_role_rows_and_no_fault() -> None:
    page = shown(digits_log())
    for cells in (
        ("correct", "TINYINT", "reward"),
        ("policy", "VARCHAR", "logger"),
        ("p_small", "DOUBLE", "propensity of small"),
        ("pixels", "TINYINT[]", "context"),
        ("p_candidate", "DOUBLE", ""),
        ("small", "6,000"),
        ("(all)", "10,500"),
    ):
        assert f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" in page
    assert "No faults." in page


def test_the_first_faults_are_told() -> None:
    page = shown(Log(ROWS, reward="click", logger="logger", propensity="p"))
    assert "1 row: the propensity is above 1" in page
    assert "<td>b</td><td>2</td>" in page


def test_a_role_may_be_an_expression_and_a_column_any_case() -> None:
    page = shown(Log(ROWS, reward="click * 2 - 1", logger="LOGGER", propensity="p"))
    assert "<td>click * 2 - 1</td><td>(not a column)</td><td>reward</td>" in page
    assert "<td>logger</td><td>VARCHAR</td><td>logger</td>" in page


def test_a_mapping_of_sources_shows_its_loggers_and_not_our_column() -> None:
    source = {"x": ROWS.select(["click", "p"]).slice(0, 2)}
    page = shown(Log(source, reward="click", propensity="p"))
    assert "<td>x</td><td>2</td>" in page
    assert "poolwise" not in page


def test_what_cannot_be_read_is_told_beside_what_can(tmp_path: Path) -> None:
    missing = shown(Log(str(tmp_path / "no.parquet"), reward="r", propensity="p"))
    assert "This log cannot be read: " in missing
    wrong = shown(Log(ROWS, reward="clicks", propensity="p"))
    assert "there is no column &#x27;clicks&#x27;" in wrong
    assert "<td>click</td><td>DOUBLE</td>" in wrong


def test_names_are_escaped() -> None:
    table = pa.table({"<b>x</b>": ["<script>", "a"], "r": [1.0, 2.0], "p": [0.5, 0.5]})
    page = shown(Log(table, reward="r", logger="<b>x</b>", propensity="p"))
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page


def test_a_database_is_not_asked_and_python_is_not_run() -> None:
    page = shown(Log(table="events", connection=object(), reward="r", propensity="p"))
    assert "<td>r</td><td></td><td>reward</td>" in page
    assert "check(log)" in page
    policy = Function(lambda _: np.zeros(1 // 0))
    scored = Log(ROWS, reward="click", logger="logger", action="logger", propensity=policy)
    assert "check(log)" in shown(scored)


def test_a_surprise_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(glance, "create_view", fail)
    assert "ZeroDivisionError: surprise" in shown(digits_log())


def test_many_columns_loggers_and_faults_are_counted() -> None:
    wide = {f"c{k:03d}": [1.0] for k in range(100)}
    page = shown(Log(pa.table({"r": [1.0], "p": [0.5], **wide}), reward="r", propensity="p"))
    assert "… and 62 more" in page
    many = pa.table(
        {
            "l": [f"l{k:02d}" for k in range(30)],
            "r": [1.0] * 30,
            "p": [float(2 + k) for k in range(30)],
        }
    )
    page = shown(Log(many, reward="r", logger="l", propensity="p"))
    assert "… and 10 more" in page  # loggers
    assert "… and 25 more" in page  # faults
