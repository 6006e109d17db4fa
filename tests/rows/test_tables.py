"""Parquet files of a Delta, Iceberg or Hudi table are refused: some rows were deleted."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from poolwise import check, evaluate, score_log
from poolwise.cli.commands import app
from poolwise.errors import SourceError
from poolwise.log.policy import Uniform
from poolwise.rows.guard import refuse_tables
from tests.support.messages import refused
from tests.support.reference import assert_same, log_of, random_table

if TYPE_CHECKING:
    from pathlib import Path

TABLE: pa.Table = random_table(np.random.default_rng(7), {"a": 30, "b": 20})
TARGETS = {"target": "t"}
LOGS = {
    "delta": "_delta_log/00000000000000000000.json",
    "hudi": ".hoodie/hoodie.properties",
    "iceberg": "metadata/00000-6f1c.metadata.json",
    "hadoop": "metadata/v1.metadata.json",
}


def table(folder: Path, kind: str) -> Path:
    """Write two versions of the rows, of which the log of the table would name the second."""
    for number, part in enumerate(["data/day=1/old", "data/day=1/new", "data/day=2/new"]):
        file = folder / f"{part}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(TABLE.slice(10 * number, 20), file)
    (folder / LOGS[kind]).parent.mkdir()
    (folder / LOGS[kind]).write_text("{}", "utf-8")
    return folder


@pytest.mark.parametrize("kind", LOGS)
def test_a_table_is_not_a_folder_of_files(kind: str, tmp_path: Path) -> None:
    folder = table(tmp_path / "table", kind)
    with refused(SourceError):
        evaluate(log_of(str(folder)), TARGETS)


@pytest.mark.parametrize(
    "path",
    [
        ".",
        "table",
        "table/",
        "**/*.parquet",
        "table/data/*/new.parquet",
        "table/data/day=2",
        "table/data/day=2/new.parquet",
        "link",
    ],
)
def test_nor_is_any_part_of_it(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = table(tmp_path / "table", "delta")
    (tmp_path / "link").symlink_to(folder / "data")
    monkeypatch.chdir(tmp_path)
    for ask in (evaluate, check):
        with pytest.raises(SourceError, match=r"a Delta table.* FROM delta_scan\('.*table'\)"):
            ask(log_of(path), TARGETS)


def test_other_verbs_and_the_command_line_refuse_it_as_well(tmp_path: Path) -> None:
    folder = table(tmp_path / "table", "delta")
    log = log_of([folder / "data/day=1/new.parquet", folder / "data/day=2/new.parquet"])
    with pytest.raises(SourceError, match="Delta"):
        evaluate(log, TARGETS)
    with pytest.raises(SourceError, match="Delta"):
        score_log(log_of(folder, action="logger"), {"new": Uniform(2)}, tmp_path / "x.parquet")
    roles = ["--reward", "reward", "--propensity", "p", "--logger", "logger"]
    for command in (["check", *roles], ["evaluate", *roles, "--target", "t=t"], ["init"]):
        out = ["--out", str(tmp_path / "q.toml")] if command == ["init"] else []
        ended = CliRunner().invoke(app, [command[0], str(folder), *command[1:], *out])
        assert isinstance(ended.exception, SourceError)


def test_a_select_reads_what_it_says(tmp_path: Path) -> None:
    folder = table(tmp_path / "table", "delta")
    select = f"SELECT * FROM '{folder}/data/day=2/new.parquet'"
    found = evaluate(log_of(select), TARGETS)
    assert_same(found, evaluate(log_of(TABLE.slice(20, 20)), TARGETS), rel=1e-12)


def test_folders_of_other_metadata_are_no_tables(tmp_path: Path) -> None:
    folder = table(tmp_path / "table", "iceberg")
    shutil.move(folder / LOGS["iceberg"], folder / "metadata/columns.json")
    (folder / "_delta_log").mkdir()  # empty
    evaluate(log_of(f"{folder}/data/*/new.parquet"), TARGETS)


def test_each_folder_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr("poolwise.rows.guard._table_kind", looked.append)
    refuse_tables(f"{tmp_path}/day={k % 20}/{k}.parquet" for k in range(10_000))
    assert len(looked) == len(set(looked)) == 20 + len((tmp_path / "x").parents)
