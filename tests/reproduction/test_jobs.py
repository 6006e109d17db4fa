from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from poolwise.errors import UsageError
from poolwise.files import write_whole
from reproduction.figures import read_csv, write_csv
from reproduction.run import Job
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

    from reproduction.figures import CsvRow

ROWS: list[CsvRow] = [{"data": "scene", "r": 0.1, "n": 10, "v": 1 / 3}]


def job(key: str, seed: int, calls: list[int]) -> Job:
    def compute() -> list[CsvRow]:
        calls.append(seed)
        return ROWS

    return Job(key, {"seed": seed}, compute)


def test_rows_are_stored_with_their_key_and_settings(tmp_path: Path) -> None:
    calls: list[int] = []
    for key, seed in (("s/one", 1), ("s/one", 1), ("s/two", 1), ("s/one", 2), ("s/one", 2)):
        assert job(key, seed, calls).rows(tmp_path) == ROWS
    assert calls == [1, 1, 2]


def test_a_damaged_job_is_computed_again(tmp_path: Path) -> None:
    calls: list[int] = []
    (tmp_path / "one.json").write_text('{"settings": {"se')
    assert job("one", 1, calls).rows(tmp_path) == ROWS
    assert calls == [1]


def test_csv_keeps_every_digit(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", ROWS)
    assert read_csv(tmp_path / "rows.csv") == ROWS


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(UsageError):
        write_whole(tmp_path / "file" / "below", b"")
