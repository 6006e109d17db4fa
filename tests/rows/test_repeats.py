"""Repeats: sources that are named twice are refused, and files with equal content found.

Coarse files that are equal by coincidence raise no alarm.
"""

from __future__ import annotations

import gzip
import os
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import UsageError
from poolwise.rows.repeats import equal_files, find_chance, row_codes
from tests.support.messages import check_findings, refused

if TYPE_CHECKING:
    from collections.abc import Callable

ROLES: dict[str, Any] = {"reward": "r", "propensity": "p"}
OURS = {"doubled-rows", "equal-files", "copies-unknown"}


def coarse(rows: int = 300, seed: int = 0) -> pa.Table:
    """Three actions with fixed probabilities, and rewards of 0 and 1."""
    rng = np.random.default_rng(seed)
    action = rng.integers(3, size=rows)
    probs = np.array([0.2, 0.3, 0.5])
    return pa.table(
        {
            "a": action,
            "r": rng.integers(2, size=rows),
            "p": probs[action],
            "t": probs[::-1][action],
        }
    )


def write(table: pa.Table, path: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    text = "".join(f"{line}\n" for line in table.to_pylist()).replace("'", '"')
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        write_csv(table, path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    elif path.suffix == ".json":
        path.write_text(f"[{text.strip().replace(chr(10), ', ')}]")
    else:
        path.write_text(text)
    return str(path)


def codes(log: pw.Log) -> list[str]:
    return [f.code for f in pw.evaluate(log, {"new": "t"}).findings if f.code in OURS]


# ------------------------------------------------------------------ named twice


def linked(path: Path, link: Callable[[str, str], None]) -> str:
    other = path.parent / "other" / path.name
    other.parent.mkdir()
    link(str(path), str(other))
    return str(other)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "list": lambda path: [str(path), str(path)],
    "spelling": lambda path: [str(path), f"{path.parent}/./{path.name}"],
    "glob": lambda path: [str(path), f"{path.parent}/*{path.suffix}"],
    "globs": lambda path: [f"{path.parent}/*{path.suffix}", f"{path.parent}/l*{path.suffix}"],
    "symlink": lambda path: [str(path), linked(path, os.symlink)],
    "hard link": lambda path: [str(path), linked(path, os.link)],
    "one glob": lambda path: f"{Path(linked(path, os.link)).parents[1]}/**/*{path.suffix}",
    "mapping": lambda path: {"a": str(path), "b": linked(path, os.link)},
}


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_file_that_is_named_twice_is_refused(source: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"log.{kind}"
    write(coarse(), path)
    with refused(UsageError):
        pw.evaluate(pw.Log(SOURCES[source](path), **ROLES), {"new": "t"})


def test_other_sources_that_are_named_twice_are_refused(tmp_path: Path) -> None:
    table, path = coarse(), write(coarse(), tmp_path / "log.parquet")
    with duckdb.connect(str(tmp_path / "logs.duckdb")) as connection:
        connection.execute(f"CREATE TABLE t AS FROM '{path}'")
    database = f"{tmp_path}/logs.duckdb::t"
    for source in ([table, table], [database, database], [path, f"FROM '{path}'"]):
        with refused(UsageError):
            pw.evaluate(pw.Log(source, **ROLES), {"new": "t"})
    assert codes(pw.Log([table, table.slice(0)], **ROLES)) == ["copies-unknown"]


# ------------------------------------------------------------------ equal content


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "jsonl.gz", "json"])
@pytest.mark.parametrize("mapped", [False, True])
def test_files_with_equal_content_are_found(ending: str, mapped: bool, tmp_path: Path) -> None:  # noqa: FBT001
    paths = [
        write(coarse(seed=k % 2), tmp_path / f"day{k}" / f"log.{ending}") for k in range(3)
    ]
    once = pw.Log(dict(enumerate(paths[:2])) if mapped else paths[:2], **ROLES)
    twice = pw.Log(dict(enumerate(paths)) if mapped else paths, **ROLES)
    assert codes(once) == ["copies-unknown"]
    result = pw.evaluate(twice, {"new": "t"})
    (finding,) = [f for f in result.findings if f.code in OURS]
    assert finding.severity == "alarm"
    check_findings([finding], "equal-files")
    assert [f.code for f in pw.check(twice).findings] == ["equal-files", "no-audit"]
    assert codes(pw.Log(paths, **ROLES, cluster="a")) == []  # copies share a cluster


def test_a_folder_that_was_copied_is_an_alarm_of_the_command_line(tmp_path: Path) -> None:
    for k in range(12):
        write(coarse(seed=k % 6), tmp_path / f"{k:02}.parquet")
    words = ["evaluate", f"{tmp_path}/*.parquet", "--reward", "r", "--propensity", "p"]
    run = CliRunner().invoke(app, [*words, "--target", "new=t"])
    assert (run.exit_code, "equal-files" in run.output) == (0, True)
    groups = equal_files([*map(str, sorted(tmp_path.iterdir()))])
    assert [[path[-10:-8] for path in group] for group in groups] == [
        [f"{k:02}", f"{k + 6:02}"] for k in range(6)
    ]


def test_files_of_one_size_differ_in_a_byte(tmp_path: Path) -> None:
    text = "".join(f"{k},{k / 1000}\n" for k in range(5_000))
    for name, last in (("a", "1"), ("b", "2"), ("c", "1")):
        (tmp_path / f"{name}.csv").write_text(text + last)
    found = equal_files([str(tmp_path / f"{name}.csv") for name in "abc"])
    assert [[path[-5] for path in group] for group in found] == [["a", "c"]]


# ------------------------------------------------------------------ coincidences


def test_the_chance_of_equal_coins_is_that_of_their_sums() -> None:
    for rows in (20, 100, 400):
        exact = sum(comb(rows, k) ** 2 for k in range(rows + 1)) / 4**rows
        found = np.exp(find_chance(np.repeat([0, 1], rows // 2)))
        assert exact <= found * 1.02 <= 1.2 * exact
    assert find_chance(np.array([], dtype=np.int64)) == 0
    assert find_chance(np.zeros(7, dtype=np.int64)) == 0


def test_the_order_of_rows_tells_more_unless_it_is_regular() -> None:
    sides, rng = np.repeat([0, 1], 500), np.random.default_rng(0)
    assert find_chance(rng.permutation(sides)) < -400
    assert find_chance(np.tile([0, 1], 500)) == pytest.approx(find_chance(sides))
    assert find_chance(np.tile([0, 0, 0, 1], 250)) > -400  # two lengths in turn


def test_equal_sequences_of_few_coins_are_as_rare_as_said() -> None:
    rng = np.random.default_rng(1)
    draws = (rng.random((100_000, 12)) < 0.5).astype(int)
    equal = (draws[0::2] == draws[1::2]).all(axis=1)
    expected = np.mean([np.exp(find_chance(row)) for row in draws[:2_000]])
    error = np.sqrt(0.5**12 / len(equal))
    assert equal.mean() < expected + 4 * error


def test_rows_are_numbered_by_their_content(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 1, 2, 1], "b": ["x", "x", "y", "z"], "c": [[1]] * 4})
    for path in ("a.parquet", "a.csv"):
        rows = table if path == "a.parquet" else table.drop("c")
        assert row_codes(write(rows, tmp_path / path)).tolist() == [0, 0, 1, 2]
    assert len(row_codes(write(table.slice(0, 0), tmp_path / "b.parquet"))) == 0


SHAPES: dict[str, Callable[[int], pa.Table]] = {
    "one row": lambda seed: coarse(1, seed),
    "five rows": lambda seed: coarse(5, seed),
    "twenty rows": lambda seed: coarse(20, seed),
    "sorted": lambda seed: coarse(200, seed).sort_by([("a", "ascending"), ("r", "ascending")]),
    "coins": lambda seed: coarse(1_000, seed).select(["r"]).sort_by("r"),
    "constant": lambda _: pa.table({"r": np.zeros(500)}),
    "rare rewards": lambda seed: pa.table(
        {"r": (np.random.default_rng(seed).random(300) < 0.003) * 1.0}
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_files_that_are_equal_by_coincidence_are_silent(
    shape: str, ending: str, tmp_path: Path
) -> None:
    tables = [SHAPES[shape](seed) for seed in range(150)]
    paths = [write(table, tmp_path / f"{k}.{ending}") for k, table in enumerate(tables)]
    if shape not in {"twenty rows", "sorted"}:
        assert len({str(table.to_pylist()) for table in tables}) < 150  # some are equal
    assert equal_files(paths) == []


@pytest.mark.parametrize("rows", [1, 4, 40, 1_000])
@pytest.mark.parametrize("files", [2, 30])
def test_clean_coarse_logs_raise_no_more_than_a_note(
    rows: int, files: int, tmp_path: Path
) -> None:
    paths = [write(coarse(rows, k), tmp_path / f"{k}.parquet") for k in range(files)]
    expected = ["copies-unknown"] if rows * files >= 100 else []
    assert codes(pw.Log(paths, **ROLES)) == expected


def test_fine_rows_raise_no_note(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = coarse(2_000).set_column(2, "p", pa.array(rng.uniform(0.1, 0.9, 2_000)))
    paths = [write(table.slice(k, 1_000), tmp_path / f"{k}.parquet") for k in (0, 1_000)]
    assert codes(pw.Log(paths, **ROLES)) == []
    once = coarse(2_000).append_column("id", pa.array(np.arange(2_000)))
    assert [f.code for f in pw.check(pw.Log(once, **ROLES)).findings] == ["no-audit"]
    assert [f.code for f in pw.check(pw.Log(coarse(2_000), **ROLES)).findings] == [
        "copies-unknown",
        "no-audit",
    ]
