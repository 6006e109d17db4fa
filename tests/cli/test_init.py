"""`poolwise init`: roles guessed from columns, and a file that can be asked at once."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.cli.init import guess
from poolwise.errors import UsageError
from tests.support.messages import refused
from tests.support.reference import random_table

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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


def test_what_no_name_says_is_left_to_the_reader() -> None:
    types = {"x\ny": "VARCHAR", "Clicked": "BOOLEAN", "target_prob": "DOUBLE", "vip": "DOUBLE"}
    roles = guess(types, [])
    assert roles.roles == {"reward": "Clicked"}
    assert roles.pattern == ""
    assert roles.targets == {"target_prob": "target_prob"}
