"""Sums by logger and action are the same on every engine, and those of a plain loop."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import UsageError
from poolwise.rows.actions import (
    FEWEST_AUDITED,
    SAMPLED_ROWS,
    STEP_COUNT,
    STEP_TOLERANCE,
    ActionSums,
    AuditSums,
    array_sums,
    eligible_query,
    spread,
)
from poolwise.rows.reader import RowGroup
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from poolwise.engines.base import Engine

ROWS = 400
TARGETS = {"new": "t"}
OWN: dict[str, Any] = {"propensity": "p", "logger": "v", "reward": "r", "action": "a"}
CROSSED = {k: v for k, v in OWN.items() if k != "propensity"} | {
    "propensities": {"one": "p_one", "two": "p_two"}
}


def rows() -> pa.Table:
    """Two loggers, three actions; one of them is rare, and some rows have none."""
    rng = np.random.default_rng(5)
    wrote = rng.integers(0, 2, ROWS)
    probs = rng.dirichlet([4, 4, 0.3], size=(ROWS, 2))
    action = np.array([rng.choice(3, p=probs[k, wrote[k]]) for k in range(ROWS)])
    chosen = probs[np.arange(ROWS), :, action]
    chosen[wrote == 1, 1] = np.round(chosen[wrote == 1, 1], 2).clip(0.01)
    names = [None if k % 50 == 0 else "xyz"[one] for k, one in enumerate(action)]
    lists = [[*"xyz"] if k % 2 else ["xyz"[one]] for k, one in enumerate(action)]
    return pa.table(
        {
            "v": np.array(["one", "two"])[wrote],
            "r": rng.random(ROWS),
            "p": chosen[np.arange(ROWS), wrote],
            "p_one": chosen[:, 0],
            "p_two": chosen[:, 1],
            "log_p": np.log(chosen[np.arange(ROWS), wrote]),
            "t": rng.random(ROWS),
            "a": pa.array(names),
            "e": pa.array(lists),
        }
    )


def expected(table: pa.Table, *, lists: bool = False) -> AuditSums:
    """Compute the sums by a loop over the rows."""
    counts: dict[str, int] = defaultdict(int)
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * 5)
    listed: dict[tuple[str, str], int] = defaultdict(int)
    elsewhere: dict[tuple[str, str], float] = defaultdict(float)
    steps: dict[str, set[int]] = defaultdict(set)
    for row in table.to_pylist():
        logger, prob, w = row["v"], row["p"], 1 / row["p"]
        counts[logger] += 1
        on_grid = abs(prob * STEP_COUNT - round(prob * STEP_COUNT)) < STEP_TOLERANCE
        if on_grid:
            steps[logger].add(round(prob * STEP_COUNT))
        for action in row["e"]:
            listed[logger, action] += 1
            if row["a"] not in (None, action):
                elsewhere[logger, action] += (len(row["e"]) - 1) / (1 - prob) - 1
        if row["a"] is not None:
            terms = (1, w, w**2, (w**2 - w) ** 2, on_grid)
            own = sums[logger, row["a"]]
            own[:] = [x + y for x, y in zip(own, terms, strict=True)]
    kept = {key: values for key, values in sums.items() if values[0] >= FEWEST_AUDITED}
    order = sorted(kept, key=lambda key: (-kept[key][0], *key))
    rounded = {i for i in counts if all(v[4] == v[0] for (j, _), v in kept.items() if i == j)}
    actions = tuple(
        ActionSums(
            *key,
            int(n),
            *(w, w2, v),
            int(on_grid),
            listed[key] if lists else None,
            elsewhere[key] if lists else 0.0,
        )
        for key in order
        for n, w, w2, v, on_grid in [kept[key]]
    )
    return AuditSums(counts, actions, {i: tuple(sorted(steps[i])) for i in rounded})


def assert_same(found: AuditSums | None, wanted: AuditSums) -> None:
    assert found is not None
    assert found.counts == wanted.counts
    assert found.grids == wanted.grids
    mine = {(s.logger, s.action): s for s in found.actions}
    theirs = {(s.logger, s.action): s for s in wanted.actions}
    assert mine.keys() == theirs.keys()
    for key, sums in mine.items():
        assert sums[2:-2] == pytest.approx(theirs[key][2:-2], rel=1e-12)
        assert sums.elsewhere == pytest.approx(theirs[key].elsewhere, rel=1e-9)
        assert sums.eligible == theirs[key].eligible


def sums_in(engine: Engine, log: pw.Log) -> AuditSums | None:
    with engine.open(log, TARGETS) as opened:
        return opened.action_sums()


def test_the_rows_have_what_the_test_needs() -> None:
    wanted = expected(rows())
    assert {s.logger for s in wanted.actions} == {"one", "two"}
    assert list(wanted.grids) == ["two"]
    assert len(wanted.actions) == 4  # the rare action is left out


@pytest.mark.parametrize("roles", [OWN, CROSSED], ids=["own", "crossed"])
def test_engines_agree_with_a_loop(engine: Engine, roles: dict[str, Any]) -> None:
    table = rows()
    stored = table.drop_columns(["e"])
    assert_same(sums_in(engine, pw.Log(stored, **roles)), expected(table))


def test_logarithms_are_exponentiated(engine: Engine) -> None:
    log = pw.Log(
        rows().drop_columns(["e"]), **OWN | {"propensity": "log_p"}, log_probabilities=True
    )
    assert_same(sums_in(engine, replace(log)), expected(rows()))


def test_dropped_rows_are_left_out(engine: Engine) -> None:
    table = rows()
    bad = table.set_column(1, "r", pa.array([None, *table["r"].to_pylist()[1:]]))
    log = pw.Log(bad.drop_columns(["e"]), **OWN, on_fault="drop")
    assert_same(sums_in(engine, log), expected(table.slice(1)))


SOURCES: dict[str, Callable[[pa.Table, Path], Any]] = {
    "frame": lambda table, _: table,
    "pandas": lambda table, _: table.to_pandas(),
    "parquet": lambda table, path: str(written(table, path)),
    "select": lambda table, path: f"SELECT * FROM '{written(table, path)}'",
}


def written(table: pa.Table, path: Path) -> str:
    pq.write_table(table, path / "log.parquet", row_group_size=90)
    return str(path / "log.parquet")


@pytest.mark.parametrize("steps", [64, 100, 1_000, 1_024, 10_000])
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_shares_of_draws_are_on_the_grid(steps: int, kind: str) -> None:
    rng = np.random.default_rng(steps)
    prob = (rng.integers(1, steps, size=500) / steps).astype(kind).astype(float)
    for probs, found in ((prob, True), (rng.random(500), False)):
        action = pa.chunked_array([["a"] * 500])
        (sums,) = array_sums(["v1"], np.zeros(500, np.int64), probs, action).actions
        assert (sums.on_grid == 500) is found


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("more", [{}, {"eligible": "e"}, {"eligible": "e", "on_fault": "drop"}])
def test_sources_agree_with_a_loop(source: str, more: dict[str, Any], tmp_path: Path) -> None:
    table = rows()
    log = pw.Log(SOURCES[source](table, tmp_path), **OWN, **more)
    wanted = expected(table, lists="eligible" in more)
    assert_same(sums_in(DuckDB(), log), wanted)


def test_the_query_of_lists_agrees_with_a_loop() -> None:
    """Spark asks it; DuckDB takes the same sums of rows in memory."""
    with DuckDB().open(pw.Log(rows(), **OWN, eligible="e"), TARGETS) as opened:
        query = eligible_query(opened.table).sql(dialect="duckdb")
        lines = opened.connection.sql(query).to_arrow_table().to_pylist()
    found = {(line["logger"], line["action"]): line for line in lines}
    for sums in expected(rows(), lists=True).actions:
        line = found[sums.logger, sums.action]
        assert line["rows"] == sums.eligible
        assert line["elsewhere"] == pytest.approx(sums.elsewhere, rel=1e-9)


def test_csv_agrees_with_a_loop(tmp_path: Path) -> None:
    pa.csv.write_csv(rows().drop_columns(["e"]), tmp_path / "log.csv")
    log = pw.Log(str(tmp_path / "log.csv"), **OWN | {"propensity": "p * 1"})
    found = sums_in(DuckDB(), log)
    assert_same(found, expected(rows()))


def test_policies_in_python_are_audited() -> None:
    table = rows()

    def policy(batch: pw.Batch) -> Any:  # noqa: ANN401 - an array
        return batch["p"]

    log = pw.Log(table, **OWN | {"propensity": policy}, context=["p"])
    assert_same(sums_in(DuckDB(), log), expected(table))


def test_the_action_may_be_of_any_type() -> None:
    table = rows()
    numbers = pa.array([None if a is None else ord(a) for a in table["a"].to_pylist()])
    lists = pa.array([None if a is None else [a, a] for a in table["a"].to_pylist()])
    for column in (numbers, lists, table["a"].dictionary_encode(), numbers.cast(pa.float64())):
        log = pw.Log(table.append_column("other", column), **OWN | {"action": "other"})
        found = sums_in(DuckDB(), log)
        assert found is not None
        wanted = expected(table)
        assert [s.rows for s in found.actions] == [s.rows for s in wanted.actions]


def test_a_log_without_actions_has_no_frequencies(engine: Engine) -> None:
    roles = {k: v for k, v in OWN.items() if k != "action"}
    found = sums_in(engine, pw.Log(rows().drop_columns(["e"]), **roles))
    assert found is None or not found.named  # only the grid of propensities counts


def test_eligible_must_be_lists() -> None:
    log = pw.Log(rows(), **OWN, eligible="a")
    with refused(UsageError):
        sums_in(DuckDB(), log)


def test_many_actions_take_no_more_memory() -> None:
    """Each row of many loggers has an action of its own: none is frequent enough."""
    size = 20_000
    table = pa.table(
        {
            "v": [f"v{k % 100}" for k in range(size)],
            "r": np.ones(size),
            "p": np.full(size, 0.5),
            "t": np.full(size, 0.5),
            "a": np.arange(size),
        }
    )
    found = sums_in(DuckDB(), pw.Log(table, **OWN))
    assert found is not None
    assert found.actions == ()
    assert sum(found.counts.values()) == size


@pytest.mark.parametrize("kind", ["frame", "parquet", "select"])
def test_large_logs_are_sampled_from_all_places(kind: str, tmp_path: Path) -> None:
    """Loggers that follow each other are all in the sample."""
    size = 4 * SAMPLED_ROWS
    table = pa.table(
        {
            "v": np.repeat(["one", "two", "three", "four"], SAMPLED_ROWS),
            "r": np.ones(size),
            "p": np.full(size, 0.5),
            "t": np.full(size, 0.5),
            "a": np.arange(size) % 2,
        }
    )
    path = tmp_path / "log.parquet"
    pq.write_table(table, path, row_group_size=100_000)
    sources = {"frame": table, "parquet": str(path), "select": f"SELECT * FROM '{path}'"}
    log = pw.Log(sources[kind], **OWN)
    found = sums_in(DuckDB(), log)
    assert found is not None
    assert set(found.counts) == {"one", "two", "three", "four"}
    total = sum(found.counts.values())
    assert 0.8 * SAMPLED_ROWS <= total <= 1.2 * SAMPLED_ROWS
    assert all(0.15 < n / total < 0.35 for n in found.counts.values())
    for sums in found.actions:
        assert sums.inverse == 2 * sums.rows
    assert found == sums_in(DuckDB(), log)


def test_small_pieces_are_skipped_and_large_ones_cut() -> None:
    small = spread([RowGroup("a", k, 10) for k in range(1_000)], most=100, least=10)
    assert len(small) == 10
    large = spread([RowGroup("a", k, 10**6) for k in range(4)], most=1_000, least=100)
    assert [(g.group, g.head) for g in large] == [(k, 250) for k in range(4)]
    assert math.fsum(g.head for g in large) == 1_000
