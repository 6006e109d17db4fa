"""Scoring once: the file gives the same numbers as the policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.errors import PolicyError, PoolwiseError, UsageError
from poolwise.rows import append
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

ACTIONS = [0, 1, 2]
OLD = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
NEW = np.array([[0.1, 0.1, 0.8], [0.4, 0.4, 0.2]])


def chooses(table: np.ndarray[Any, Any]) -> pw.Function:
    """A policy in Python: a line of the table for each context."""
    return pw.Function(lambda batch: table[batch["x"].astype(int), batch.action.astype(int)])


@pytest.fixture
def rows() -> pa.Table:
    rng = np.random.default_rng(5)
    x, wrote = rng.integers(0, 2, 400), rng.integers(0, 2, 400)
    probs = np.stack([OLD, NEW])[wrote, x]
    action = (probs.cumsum(axis=1) < rng.random((400, 1))).sum(axis=1)
    return pa.table(
        {
            "who": np.array(["old", "new"])[wrote],
            "x": x,
            "a": action,
            "r": rng.normal(action, 1.0),
        }
    )


def log_of(source: Any, **more: Any) -> pw.Log:  # noqa: ANN401 - any source of a log
    named: dict[str, Any] = {
        "logger": "who",
        "reward": "r",
        "action": "a",
        "context": ["x"],
        "propensities": {"old": chooses(OLD), "new": chooses(NEW)},
    }
    return pw.Log(source, **(named | more))


def values(found: pw.Evaluation) -> dict[str, float]:
    return {name: e.value for name, e in found["mix"].estimates.items()}


def test_the_file_gives_the_numbers_of_the_policies(rows: pa.Table, tmp_path: Path) -> None:
    targets = {"mix": pw.Mixture([chooses(OLD), chooses(NEW)], [0.5, 0.5])}
    scored = pw.score_log(log_of(rows), targets, tmp_path / "deep" / "scored.parquet")
    written = pq.read_table(tmp_path / "deep" / "scored.parquet")
    assert written.column_names == ["who", "x", "a", "r", "p_old", "p_new", "t_mix"]
    expected = OLD[rows["x"].to_numpy(), rows["a"].to_numpy()]
    np.testing.assert_array_equal(np.sort(written["p_old"]), np.sort(expected))
    assert scored.log.propensities == {"old": "p_old", "new": "p_new"}
    assert scored.targets == {"mix": "t_mix"}
    direct = values(pw.evaluate(log_of(rows), targets))
    assert values(pw.evaluate(*scored)) == pytest.approx(direct, rel=1e-12)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["scored.parquet"]


@pytest.mark.slow
@pytest.mark.parametrize("held", [0, 5_000, 10**9])  # written, after some batches; kept
@pytest.mark.parametrize("kind", ["file", "table", "frame", "query"])
def test_scored_rows_in_memory_and_in_a_file_give_the_same_numbers(
    rows: pa.Table, tmp_path: Path, kind: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "SCORING_ROWS", 64)
    targets = {"mix": pw.Mixture([chooses(OLD), chooses(NEW)], [0.5, 0.5])}
    x, a = rows["x"].to_numpy(), rows["a"].to_numpy()
    columns = {"p_old": OLD[x, a], "p_new": NEW[x, a], "t": (OLD[x, a] + NEW[x, a]) / 2}
    wide = rows
    for name, found in columns.items():
        wide = wide.append_column(name, pa.array(found))
    named = {"old": "p_old", "new": "p_new"}
    expected = values(pw.evaluate(log_of(wide, propensities=named), {"mix": "t"}))
    path = tmp_path / "log.parquet"
    pq.write_table(rows, path)
    sources = {"file": path, "table": rows, "frame": rows.to_pandas()}
    source = sources.get(kind, f"SELECT * FROM '{path}'")
    monkeypatch.setattr(append, "MOST_HELD", held)
    found = values(pw.evaluate(log_of(source), targets))
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_mapping_of_loggers_keeps_its_labels(rows: pa.Table, tmp_path: Path) -> None:
    who = rows["who"].to_numpy(zero_copy_only=False)
    parts = {name: rows.filter(pa.array(who == name)).drop(["who"]) for name in ("old", "new")}
    targets = {"mix": chooses(NEW)}
    log = log_of(parts, logger=None)
    scored = pw.score_log(log, targets, tmp_path / "s.parquet")
    assert values(pw.evaluate(*scored)) == pytest.approx(
        values(pw.evaluate(log, targets)), rel=1e-12
    )


def test_columns_need_no_scoring(rows: pa.Table, tmp_path: Path) -> None:
    log = log_of(rows, propensities=None, propensity="0.5")
    with refused(UsageError):
        pw.score_log(log, {"mix": "0.5"}, tmp_path / "s.parquet")
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_taken_is_refused(rows: pa.Table, tmp_path: Path) -> None:
    taken = rows.append_column("P_OLD", rows["r"])
    with refused(UsageError):
        pw.score_log(log_of(taken), {"mix": "0.5"}, tmp_path / "s.parquet")


def test_a_policy_that_fails_leaves_nothing_behind(rows: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    path.write_text("what was there")
    wrong = pw.Function(lambda batch: np.full(len(batch), 1.5))
    with refused(PolicyError):
        pw.score_log(log_of(rows), {"mix": wrong}, path)
    assert path.read_text() == "what was there"
    assert [p.name for p in tmp_path.iterdir()] == ["s.parquet"]


def test_a_broken_file_is_told_as_one_that_cannot_be_read(
    rows: pa.Table, tmp_path: Path
) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(rows, path, compression="none", use_dictionary=False, row_group_size=100)
    content = bytearray(path.read_bytes())
    content[400:2_000] = bytes(1_600)  # the footer is intact
    path.write_bytes(content)
    with pytest.raises(PoolwiseError) as found:
        pw.evaluate(log_of(path), {"mix": chooses(NEW)})
    assert "cannot write" not in str(found.value)
    assert "log.parquet" in str(found.value)
