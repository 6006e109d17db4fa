"""`poolwise init`: roles guessed from columns, and a file that can be asked at once."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import UsageError
from tests.support.messages import refused
from tests.support.reference import random_table
from tests.support.schemas import SCHEMAS

if TYPE_CHECKING:
    from pathlib import Path


def test_the_written_file_is_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = random_table(np.random.default_rng(80), {"a": 60, "b": 40})
    table = table.rename_columns([{"t": "p_next"}.get(c, c) for c in table.column_names])
    (tmp_path / "logs").mkdir()
    pq.write_table(table, tmp_path / "logs" / "1.parquet")
    outcome = CliRunner().invoke(app, ["init", "logs/*.parquet"])
    assert outcome.exit_code == 0
    keys = tomllib.loads((tmp_path / "question.toml").read_text("utf-8"))
    assert keys == {
        "log": "logs/*.parquet",
        "reward": "reward",
        "logger": "logger",
        "propensity": "p",
        "propensities": "p_{logger}",
        "targets": {"next": "p_next"},
        "options": {},
    }
    asked = CliRunner().invoke(app, ["evaluate", "question.toml", "--json"])
    estimate = json.loads(asked.stdout)["targets"][0]["estimates"][0]
    log = pw.Log(table, reward="reward", logger="logger", propensity="p",
                 propensities={"a": "p_a", "b": "p_b"})  # fmt: skip
    same = pw.evaluate(log, {"next": "p_next"})
    assert estimate["value"] == same["next"].estimates[estimate["estimator"]].value


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    path, log = tmp_path / "question.toml", tmp_path / "log.parquet"
    pq.write_table(random_table(np.random.default_rng(1), {"a": 5}), log)
    path.write_text("mine")
    for arguments in (["--out", str(path)], ["--out", str(tmp_path / "question.txt")]):
        outcome = CliRunner().invoke(app, ["init", str(log), *arguments])
        with refused(UsageError):
            raise outcome.exception or AssertionError
    assert path.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.parquet", "question.toml"]


def test_paths_start_at_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(random_table(np.random.default_rng(1), {"a": 5}), tmp_path / "log.parquet")
    outcome = CliRunner().invoke(app, ["init", "log.parquet", "--out", "asked/question.toml"])
    assert outcome.exit_code == 0
    assert pw.Question.read("asked/question.toml").check().rows == {"a": 5}


def init(*logs: object) -> str:
    outcome = CliRunner().invoke(app, ["init", *map(str, logs)], catch_exceptions=False)
    assert outcome.exit_code == 0
    return outcome.stdout


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"x\ny": ["a", "b"], 'it"s': [0.5, 0.25], "\x07": [1, 2], "p_é": [0.5, 0.5]}),
        pa.table(
            {"logger": ["it's", "b"], "p_it's": [0.5, 0.5], "p_b": [0.1, 0.2], "r": [0, 1]}
        ),
        pa.table({"reward": pa.array([], pa.float64()), "p": pa.array([], pa.float64())}),
        pa.table(
            {"reward": pa.nulls(3), "p": [0.5, None, 0.5], "m": pa.nulls(3, pa.float64())}
        ),
        pa.table({"a": pa.array([[], []], pa.list_(pa.int64())), "b": [b"x", b"y"]}),
        pa.table({"s": [{"x\n1": 0.5, "y": {"z": [1.0]}}], "prob_a": [0.5], "click": [True]}),
    ],
    ids=["names", "quotes", "empty", "null", "types", "structs"],
)
def test_any_table_gives_a_file_that_is_toml(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(table, "log.parquet")
    init("log.parquet")
    keys = tomllib.loads((tmp_path / "question.toml").read_text("utf-8"))
    assert keys["log"] == "log.parquet"


def test_a_large_log_is_sampled_and_its_labels_are_those_of_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = random_table(np.random.default_rng(3), {"a": 120_000, "b": 3})
    pq.write_table(table, "log.parquet")
    init("log.parquet")
    keys = tomllib.loads((tmp_path / "question.toml").read_text("utf-8"))
    assert keys["propensities"] == "p_{logger}"  # b is in none of the sampled rows, perhaps
    assert keys["targets"] == {"a": "p_a", "b": "p_b"}


def test_a_propensity_that_differs_from_that_of_its_logger_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = random_table(np.random.default_rng(4), {"a": 60, "b": 40})
    wrong = pa.array(np.full(100, 0.123))
    table = table.set_column(table.column_names.index("p"), "p", wrong)
    pq.write_table(table, "log.parquet")
    said = init("log.parquet")
    keys = tomllib.loads((tmp_path / "question.toml").read_text("utf-8"))
    assert "propensity" not in keys
    assert "not decided: p may be the probability under the row's own logger" in said


def test_incomplete_lists_are_left_to_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    SCHEMAS["rankings"](tmp_path)
    rows = pq.read_table("impressions.parquet")
    pq.write_table(rows.slice(1), "impressions.parquet")  # the first list lacks its top
    said = init("impressions.parquet")
    keys = tomllib.loads((tmp_path / "question.toml").read_text("utf-8"))
    assert not {"request", "position"} & keys.keys()
    assert "impression_id and slot look like a request and its position" in said


@pytest.mark.parametrize(
    ("columns", "missing"),
    [
        ({"probs": [{"a": 0.5, "b": 0.5}] * 4, "click": [0, 1, 0, 1]}, "`action`"),
        (
            {"action": [0, 1] * 4, "probs": [[0.5, 0.5]] * 8, "paid": [0.5, 2.0] * 4},
            "`eligible`",
        ),
        ({"action": ["x", "y"] * 2, "propensity": [0.5] * 4}, "`reward`"),
    ],
    ids=["action", "eligible", "reward"],
)
def test_a_question_that_lacks_something_asks_for_it(
    columns: dict[str, list[object]],
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table(columns), "log.parquet")
    assert f"missing: {missing}" in init("log.parquet")
    outcome = CliRunner().invoke(app, ["evaluate", "question.toml", "--target", "t=1.0"])
    assert isinstance(outcome.exception, UsageError)
