"""Roles that are computed batch by batch: the numbers of a query over all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise.engines.duckdb import DuckDB
from poolwise.errors import LogError
from poolwise.evaluation.evaluate import evaluate
from poolwise.log.log import Log
from poolwise.rows.streams import plain_stream

if TYPE_CHECKING:
    from pathlib import Path

ROLES: dict[str, Any] = {
    "reward": "r",
    "logger": "logger",
    "propensities": {"a": "p_a", "b": "p_b"},
}
PLAIN = [
    "0.5 * t + 0.25",
    "CASE WHEN n > 3 THEN t ELSE 1 - t END",
    "least(greatest(t, 0.3), CAST(0.6 AS DOUBLE))",
    "coalesce(T / (n + 1), t)",
    'CASE WHEN flag AND n BETWEEN 1 AND 5 THEN "T 2" ELSE sqrt(t * t) END',
]
OTHER = ["t * 0.5 + 0.1 * (logger = 'a')::INT", "0.5", "t + sin(n) * 0", "round(t, 2)"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of several row groups."""
    rng = np.random.default_rng(2)
    probs = {name: rng.uniform(0.2, 0.8, 400) for name in ("p_a", "p_b", "t", "T 2")}
    columns = {
        "logger": np.where(rng.random(400) < 0.5, "a", "b"),
        "r": rng.random(400),
        "n": pa.array(rng.integers(0, 9, 400), pa.int16()),
        "flag": rng.random(400) < 0.5,
    }
    pq.write_table(pa.table(columns | probs), tmp_path / "log.parquet", row_group_size=90)
    return tmp_path / "log.parquet"


@pytest.mark.parametrize("target", PLAIN + OTHER)
def test_expressions(target: str, path: Path) -> None:
    table = pq.read_table(path)
    select = Log(f"SELECT * FROM '{path}' WHERE true", **ROLES)
    expected = evaluate(select, {"t": target}, "balanced")["t"].estimates["balanced"]
    for source in (path, table, table.to_pandas()):
        log = Log(source, **ROLES)
        with DuckDB().open(log, {"t": target}) as rows:
            stream = plain_stream(rows.table, rows.source, computing=True)
            assert (stream is not None) == (target in PLAIN)
        estimate = evaluate(log, {"t": target}, "balanced")["t"].estimates["balanced"]
        assert estimate.value == pytest.approx(expected.value, rel=1e-12)
        assert estimate.variance == pytest.approx(expected.variance, rel=1e-12)


def test_bad_values_are_found(path: Path) -> None:
    for target in ("t / (n - n)", "2 * t"):  # NULL, and above 1
        with pytest.raises(LogError):
            evaluate(Log(path, **ROLES), {"t": target})


def test_computed_rewards_and_clusters(path: Path) -> None:
    roles = ROLES | {"reward": "2 * r - 1", "cluster": "n"}
    results = [
        evaluate(Log(source, **roles), {"t": "t"}, "balanced")["t"].estimates["balanced"]
        for source in (path, f"SELECT * FROM '{path}' WHERE true")
    ]
    assert results[0].value == pytest.approx(results[1].value, rel=1e-12)
    assert results[0].variance == pytest.approx(results[1].variance, rel=1e-9)


def test_labels_of_a_select_are_those_of_the_file(path: Path) -> None:
    odd = pq.read_table(path).to_pandas().replace({"logger": {"a": "it's", "b": "b\n"}})
    roles = ROLES | {"propensities": {"it's": "p_a", "b\n": "p_b"}}
    pq.write_table(pa.Table.from_pandas(odd), path)
    select = f"SELECT * FROM '{path}' WHERE true"
    results = [evaluate(Log(s, **roles), {"t": "t"}, "naive") for s in (path, select)]
    assert results[0].rows == results[1].rows
    values = [result["t"].estimates["naive"].value for result in results]
    assert values[1] == pytest.approx(values[0], rel=1e-12)
    with pytest.raises(LogError) as caught:
        evaluate(Log(select, **ROLES), {"t": "t"})
    assert {fault.logger for fault in caught.value.faults} == {"a", "b", "it's", "b\n"}
