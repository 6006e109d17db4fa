"""Logs whose bad rows are dropped: a clean one is read once, a dirty one as before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise.engines.parallel import Pass
from poolwise.evaluation.evaluate import compare, evaluate
from poolwise.evaluation.plan import plan
from poolwise.log.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from poolwise.log.policy import Batch, FloatArray

TARGETS = {"t": "t", "u": "p_b"}
ROLES: dict[str, Any] = {
    "reward": "reward",
    "logger": "logger",
    "propensities": {"a": "p_a", "b": "p_b"},
}


def columns(rows: int = 400) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    probs = {name: rng.uniform(0.2, 0.8, rows) for name in ("p_a", "p_b", "t")}
    logger = np.where(rng.random(rows) < 0.4, "a", "b")
    return {"logger": logger, "reward": rng.random(rows), "user": np.arange(rows) // 3, **probs}


def dirty(rows: int) -> dict[str, Any]:
    """Return columns with bad rows, among them all of the logger ``a`` if `rows` is 0."""
    table = columns()
    bad = table["logger"] == "a" if rows == 0 else np.arange(400) >= 400 - rows
    table["reward"][bad] = np.nan
    return table


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Passes that were made: True for each that left bad rows out."""
    passes: list[bool] = []
    sums = Pass.sums_of

    def noted(one: Pass, *args: Any) -> Any:  # noqa: ANN401 - as `sums_of`
        passes.append(one.layout.drop)
        return sums(one, *args)

    monkeypatch.setattr(Pass, "sums_of", noted)
    return passes


def test_a_clean_log_is_read_once(passes: list[bool], tmp_path: Path) -> None:
    pq.write_table(pa.table(columns()), tmp_path / "log.parquet")
    log = Log(str(tmp_path / "log.parquet"), **ROLES, on_fault="drop")
    dropping = evaluate(log, TARGETS)
    assert passes == [False]
    raising = evaluate(Log(pa.table(columns()), **ROLES), TARGETS)
    assert dropping.to_dict() == raising.to_dict()


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("roles", [{}, {"cluster": "user"}], ids=["rows", "clusters"])
def test_a_dirty_log_is_read_without_its_bad_rows(
    rows: int, roles: dict[str, Any], passes: list[bool]
) -> None:
    table = pa.table(dirty(rows))
    result = evaluate(Log(table, **ROLES, **roles, on_fault="drop"), TARGETS)
    assert passes[-1]
    assert "dropped-rows" in [f.code for f in result.findings]
    good = table.filter(np.isfinite(table["reward"].to_numpy()))
    labels = {"b": "p_b"} if rows == 0 else ROLES["propensities"]
    alone = evaluate(Log(good, **(ROLES | roles | {"propensities": labels})), TARGETS)
    assert result.rows == alone.rows
    for name, estimate in alone["t"].estimates.items():
        same = result["t"].estimates[name]
        assert same.value == pytest.approx(estimate.value, rel=1e-12)
        if not roles:  # buckets of clusters are the same, but not those of rows
            assert same.variance == pytest.approx(estimate.variance, rel=1e-12)


@pytest.mark.parametrize(
    "verb",
    [partial(compare, targets=TARGETS), partial(plan, target="t", half_width=0.1)],
    ids=["compare", "plan"],
)
def test_other_verbs_do_likewise(verb: Callable[..., Any], passes: list[bool]) -> None:
    clean, bad = (
        verb(Log(pa.table(table), **ROLES, on_fault="drop")).to_dict()
        for table in (columns(), dirty(40))
    )
    assert not passes[0]
    assert passes[-1]
    assert clean == verb(Log(pa.table(columns()), **ROLES)).to_dict()
    assert clean != bad


def test_a_policy_in_python_is_scored_once() -> None:
    batches: list[int] = []

    class Half:
        """Plays the logged action half of the time."""

        def prob(self, batch: Batch) -> FloatArray:
            batches.append(len(batch))
            return np.full(len(batch), 0.5)

    log = Log(pa.table(columns()), **ROLES, action="user", on_fault="drop")
    evaluate(log, {"t": Half()})
    assert sum(batches) == len(columns()["t"])
