"""Plain Parquet files: opened from their footers, and parsed again when they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise.errors import UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.log.log import PART_LOGGER, Log
from poolwise.rows.footers import Footers, plain_parquet

ROLES: dict[str, Any] = {"reward": "r", "propensity": "p"}


def write(path: Path, rows: int = 50, **more: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(rows)
    columns = {"r": rng.random(rows), "p": np.full(rows, 0.5), "t": rng.uniform(0.2, 0.8, rows)}
    pq.write_table(pa.table(columns | more), path)
    return path


def test_a_file_is_parsed_again_when_it_changes(tmp_path: Path) -> None:
    footers, path = Footers(), str(write(tmp_path / "a.parquet"))
    first = footers(path)
    assert footers(path) is first
    write(Path(path), 60)
    assert footers(path).rows == (60,)
    assert footers(path).kind is first.kind


def test_files_of_the_same_columns_are_of_one_kind(tmp_path: Path) -> None:
    footers = Footers()
    a, b = (footers(str(write(tmp_path / f"{name}.parquet"))) for name in "ab")
    other = footers(str(write(tmp_path / "c.parquet", t=np.zeros(50, dtype=np.float32))))
    assert a.kind is b.kind is a.parsed
    assert other.kind is other.parsed


def test_plain_files_need_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / f"{k}.parquet", 50 + k) for k in range(3)]
    expected = evaluate(Log(str(tmp_path / "*.parquet"), **ROLES), {"t": "t"})
    monkeypatch.setattr(duckdb, "connect", None)
    assert evaluate(Log(paths, **ROLES), {"t": "t"}).to_dict() == expected.to_dict()


def test_names_of_plain_files(tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{name}.parquet") for name in "ab")
    one = plain_parquet(Log([a, b], **ROLES))
    mapped = plain_parquet(Log({"x": a, "y": [b]}, **ROLES))
    assert one is not None
    assert mapped is not None
    assert one.source == ((str(a), None), (str(b), None))
    assert one.names == ("r", "p", "t")
    assert mapped.source == ((str(a), "x"), (str(b), "y"))
    assert mapped.names == ("r", "p", "t", PART_LOGGER)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("SELECT * FROM '{}'", True),
        ("select *\n  from '{}' ;", True),
        ("FROM '{}'", True),
        ("SELECT * FROM '{}' WHERE t > 0", False),
        ("SELECT r, p, t FROM '{}'", False),
        ("SELECT * FROM '{}' -- all", False),
        ("SELECT * FROM '{0}' UNION ALL FROM '{0}'", False),
    ],
)
def test_a_select_of_a_whole_file_is_the_file(text: str, plain: bool, tmp_path: Path) -> None:  # noqa: FBT001 - of a case
    path = write(tmp_path / "a.parquet")
    files = plain_parquet(Log(text.format(path), **ROLES))
    assert (None if files is None else files.source) == (
        ((str(path), None),) if plain else None
    )


def test_times_are_noticed(tmp_path: Path) -> None:
    days = pa.array([0] * 50, pa.timestamp("s"))
    files = plain_parquet(Log(write(tmp_path / "a.parquet", at=days), **ROLES))
    assert files is not None
    assert files.timed


@pytest.mark.parametrize(
    "names",
    [
        ["*.parquet"],
        ["."],
        ["a.parquet", "none.parquet"],
        ["a.parquet", "./a.parquet"],
        ["a.parquet", "more.parquet"],
        ["twice.parquet"],
        ["day=1/a.parquet"],
        ["text.parquet"],
        ["a.parquet", "text.csv"],
    ],
)
def test_other_files_are_left_to_duckdb(names: list[str], tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    write(tmp_path / "more.parquet", x=[1] * 50)
    write(tmp_path / "twice.parquet", R=[1] * 50)
    write(tmp_path / "day=1" / "a.parquet")
    (tmp_path / "text.parquet").write_text("r,p\n1,0.5\n")
    assert plain_parquet(Log([str(tmp_path / name) for name in names], **ROLES)) is None


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="twice"):
        evaluate(Log([str(path), f"{path.parent}/./{path.name}"], **ROLES), {"t": "t"})


def test_statistics_show_columns_without_null(tmp_path: Path) -> None:
    footers, table = Footers(), pa.table({"a": [0.1, None, 0.3], "b": [1.0, float("nan"), 2.0]})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=2)
    pq.write_table(table, tmp_path / "silent.parquet", write_statistics=False)
    path, silent = (str(tmp_path / f"{name}.parquet") for name in ("log", "silent"))
    assert footers.lists_no_null(path, {"b"})  # NaN is a number
    assert not footers.lists_no_null(path, {"a", "b"})
    assert not footers.lists_no_null(silent, {"b"})
