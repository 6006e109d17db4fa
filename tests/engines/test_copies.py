"""Samples of hashes: copies stay together, chance is silent, batches do not matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.diagnosis.provenance import doubled_rows
from poolwise.engines.copies import CopySample

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.rows.reader import RowArrays

ROWS = 6_000


def contents(batches: list[RowArrays], rows: int, most: int = 1_000) -> dict[int, int]:
    sample = CopySample(most)
    assert sample.start(rows, groups=3) is sample
    assert sample.start(rows, groups=3) is None
    assert sum(len(groups) for groups, _ in sample.watch(batches)) == rows
    return sample.contents()


def logs(seed: int) -> dict[str, RowArrays]:
    """Logs of independent rows that repeat by chance."""
    rng = np.random.default_rng(seed)
    groups, reward = rng.integers(3, size=ROWS), (rng.random(ROWS) < 0.1) * 1.0
    action, user = rng.integers(10, size=ROWS), rng.integers(ROWS // 2, size=ROWS)
    rare = np.minimum(rng.zipf(1.5, size=ROWS), 10**6)
    visits = np.repeat(np.arange(ROWS), rng.geometric(0.5, size=ROWS))[:ROWS]
    probs, coarse = rng.random((3, 10**6 + 1)), np.round(rng.random((2, ROWS)), 2)
    columns: dict[str, list[Any]] = {
        "constant": [np.full(ROWS, 0.5)],
        "actions": [probs[0][action], probs[1][action], probs[2][action]],
        "rare actions": [probs[0][rare], probs[1][rare]],
        "users": [probs[0][user], probs[1][user]],
        "visits": [probs[0][visits], probs[1][visits]],
        "rounded": [*coarse],
    }
    return {
        name: (groups, {"reward": reward, **{f"p_{k}": v for k, v in enumerate(values)}})
        for name, values in columns.items()
    }


@pytest.mark.parametrize("most", [1_000, 10**6], ids=["sample", "all"])
def test_rows_that_repeat_by_chance_are_silent(most: int) -> None:
    for seed in range(20):
        for name, batch in logs(seed).items():
            assert not doubled_rows(contents([batch], ROWS, most)), name


@pytest.mark.parametrize("name", ["rare actions", "users", "visits", "rounded"])
def test_rows_that_were_loaded_twice_are_suspected(name: str) -> None:
    batch = logs(1)[name]
    assert doubled_rows(contents([batch, batch], 2 * ROWS, most=4_000))


def test_all_copies_of_a_row_are_in_the_sample_or_none() -> None:
    rng = np.random.default_rng(1)
    groups, values = rng.integers(3, size=ROWS), rng.random((3, ROWS))
    columns = {"reward": values[0], "p_0": values[1], "t_0": values[2]}
    order = rng.permutation(ROWS)
    shuffled = (groups[order], {name: v[order] for name, v in columns.items()})
    counts = contents([(groups, columns), shuffled, shuffled], 3 * ROWS)
    assert list(counts) == [3]
    assert 200 < counts[3] < 500  # a third of 1,000
    halves = [
        (groups[rows], {name: v[rows] for name, v in columns.items()})
        for rows in (slice(0, 7), slice(7, None))
    ]
    whole = contents([(groups, columns)], ROWS)
    assert contents(halves, ROWS) == whole
    other = ((groups + 1) % 3, columns)  # the same numbers under another logger
    assert set(contents([(groups, columns), other], 2 * ROWS)) == {1}


def test_a_sample_of_frequent_contents_gives_no_answer() -> None:
    batch = (np.zeros(ROWS, dtype=int), {"reward": np.ones(ROWS), "p_0": np.full(ROWS, 0.3)})
    for most in (10, 10_000):
        assert set(contents([batch] * 3, 3 * ROWS, most)) <= {3 * ROWS}


def table(rows: int = 600) -> pa.Table:
    rng = np.random.default_rng(2)
    p = 0.2 + 0.6 * rng.random(rows)
    return pa.table(
        {"r": rng.integers(2, size=rows), "p": p, "t": 1 - p, "x": rng.random(rows)}
    )


def codes(log: pw.Log) -> list[str]:
    ours = {"doubled-rows", "equal-files", "copies-unknown"}
    return [f.code for f in pw.evaluate(log, {"new": "t"}).findings if f.code in ours]


def test_evaluate_and_compare_report_a_file_that_was_loaded_twice(tmp_path: Path) -> None:
    roles: dict[str, Any] = {"reward": "r", "propensity": "p"}
    once = table()
    for name, rows in (("one", once), ("two", once.slice(0, 599)), ("three", once.slice(599))):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    assert codes(pw.Log(once, **roles)) == []
    assert codes(pw.Log(pa.concat_tables([once, once]), **roles)) == ["doubled-rows"]
    assert codes(pw.Log(f"{tmp_path}/*.parquet", **roles)) == ["doubled-rows"]
    assert codes(pw.Log(f"{tmp_path}/*.parquet", **roles, cluster="x")) == []
    both = pw.compare(pw.Log(f"{tmp_path}/*.parquet", **roles), {"a": "t", "b": "p"})
    assert "doubled-rows" in [f.code for f in both.findings]
    words = ["evaluate", f"{tmp_path}/*.parquet", "--reward", "r", "--propensity", "p"]
    run = CliRunner().invoke(app, [*words, "--target", "new=t"])
    assert (run.exit_code, "doubled-rows" in run.output) == (0, True)


def test_rows_that_differ_in_any_column_are_not_copies() -> None:
    once = table()
    again = once.set_column(3, "x", pa.array(np.arange(len(once)) + 2.0))
    log = pw.Log(pa.concat_tables([once, again]), reward="r", propensity="p")
    assert codes(log) == []


def many(fine: str, rows: int = 30_000) -> pa.Table:
    """More rows than a sample has, of which one column has many values."""
    rng = np.random.default_rng(4)
    coarse = {name: rng.choice([0.25, 0.5], rows) for name in ("r", "p", "p_b", "t")}
    coarse |= {fine: rng.uniform(0.2, 0.8, rows)} if fine else {}
    return pa.table({"logger": rng.choice(["a", "b"], rows), **coarse})


@pytest.mark.parametrize("fine", ["r", "p", "p_b", "t", ""])
def test_one_column_of_many_values_is_enough(fine: str) -> None:
    roles: dict[str, Any] = {"logger": "logger", "reward": "r"}
    roles["propensities"] = {"a": "p", "b": "p_b"}
    once = many(fine)
    unknown = [] if fine else ["copies-unknown"]
    assert codes(pw.Log(once, **roles)) == unknown
    twice = pw.Log(pa.concat_tables([once, once]), **roles)
    assert codes(twice) == (unknown or ["doubled-rows"])


@pytest.mark.parametrize("seed", range(6))
def test_clean_logs_of_every_coarseness_raise_no_warning(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for values in (2, 10, 100, 1_000, 30_000):
        for rows in (300, 3_000, 40_000):
            p = rng.uniform(0.2, 0.8, values)[rng.integers(values, size=rows)]
            table = pa.table({"r": rng.integers(2, size=rows), "p": p, "t": 1 - p})
            assert set(codes(pw.Log(table, reward="r", propensity="p"))) <= {"copies-unknown"}
