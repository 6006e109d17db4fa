"""Fields of structs play every role, under names with dots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise import Batch, check, evaluate, learn, score_log
from poolwise.errors import LogError, MissingColumnError, UsageError
from poolwise.log.log import Log
from tests.support.messages import refused
from tests.support.reference import assert_same

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ROWS = 300


def flat(seed: int = 3) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = {
        "policy": np.where(rng.random(ROWS) < 0.5, "a", "b"),
        "click": (rng.random(ROWS) < 0.4).astype(float),
        **{name: rng.uniform(0.2, 0.8, ROWS) for name in ("p_a", "p_b", "t")},
        "item": rng.integers(0, 3, ROWS),
        "age": rng.normal(size=ROWS),
        "user": rng.integers(0, 40, ROWS),
        "day": np.sort(rng.integers(0, 4, ROWS)),
        "land": rng.choice(["x", "y"], ROWS),
    }
    return pa.table(columns)


def struct(table: pa.Table, **fields: str) -> pa.Array:
    parts = [table.column(source).combine_chunks() for source in fields.values()]
    return pa.StructArray.from_arrays(parts, list(fields))


def nested(table: pa.Table) -> pa.Table:
    """The same rows, in structs."""
    inner = struct(table, age="age", land="land")
    return pa.table(
        {
            "policy": struct(table, name="policy"),
            "r": struct(table, click="click", Item="item", day="day"),
            "p": struct(table, a="p_a", b="p_b", t="t"),
            "user": pa.StructArray.from_arrays(
                [table.column("user").combine_chunks(), inner], ["id", "about"]
            ),
        }
    )


FLAT: dict[str, Any] = {
    "reward": "click",
    "logger": "policy",
    "propensities": {"a": "p_a", "b": "p_b"},
    "action": "item",
    "context": ["age", "land"],
}
NESTED: dict[str, Any] = {
    "reward": "r.click",
    "logger": "policy.name",
    "propensities": "p.{logger}",
    "action": "r.item",
    "context": ["user.about.age", "user.about.land"],
}


@pytest.fixture(params=["frame", "parquet", "select"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:  # noqa: ANN401 - any source
    table = nested(flat())
    pq.write_table(table, tmp_path / "log.parquet")
    path = str(tmp_path / "log.parquet")
    select = f"SELECT * FROM '{path}' WHERE p.t > 0"
    return {"frame": table, "parquet": path, "select": select}[request.param]


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ({}, {}),
        ({"reward": "1 - r.click"}, {"reward": "1 - click"}),
        ({"reward": "P.T * r['click']"}, {"reward": "t * click"}),
        ({"cluster": "user.id"}, {"cluster": "user"}),
        ({"period": "r.day"}, {"period": "day"}),
        (
            {"on_fault": "drop", "reward": "nullif(r.day, 2)"},
            {"on_fault": "drop", "reward": "nullif(day, 2)"},
        ),
    ],
    ids=["plain", "arithmetic", "brackets", "cluster", "period", "drop"],
)
def test_a_field_plays_the_role_of_a_column(
    source: Any,  # noqa: ANN401 - any source
    there: dict[str, Any],
    here: dict[str, Any],
) -> None:
    found = evaluate(Log(source, **(NESTED | there)), {"t": "p.t", "half": "p.t / 2"})
    expected = evaluate(Log(flat(), **(FLAT | here)), {"t": "t", "half": "t / 2"})
    assert_same(found, expected, rel=1e-12)


def test_segments_are_fields_that_the_reward_is_not_among(source: Any) -> None:  # noqa: ANN401 - any source
    found = evaluate(Log(source, **NESTED), {"t": "p.t"}, by="user.about.land")
    expected = evaluate(Log(flat(), **FLAT), {"t": "t"}, by="land")
    assert [s["value"] for s in found.to_dicts()] == pytest.approx(
        [s["value"] for s in expected.to_dicts()], rel=1e-12
    )
    for by in ("r.click", "r", "r.item"):
        with pytest.raises(UsageError, match="known before the action"):
            evaluate(Log(source, **(NESTED | {"action": "r.item"})), {"t": "p.t"}, by=by)


class Young:
    """A policy in Python that reads the age, whatever its column is called."""

    def __init__(self, age: str) -> None:
        self.age = age

    def prob(self, batch: Batch) -> NDArray[np.float64]:
        probs = np.where(batch.action == 0, 0.6, 0.2) / (1 + np.exp(-batch[self.age]))
        return np.asarray(probs, dtype=np.float64)


def test_policies_in_python_read_fields(source: Any, tmp_path: Path) -> None:  # noqa: ANN401 - any source
    log = Log(source, **NESTED)
    expected = evaluate(Log(flat(), **FLAT), {"new": Young("age")})
    assert_same(evaluate(log, {"new": Young("user.about.age")}), expected, rel=1e-12)
    scored = score_log(log, {"new": Young("user.about.age")}, tmp_path / "scored.parquet")
    assert_same(evaluate(*scored), expected, rel=1e-12)


@pytest.mark.slow
def test_models_and_learners_read_fields() -> None:
    source = nested(flat())
    own = {"propensities": None, "estimate_mixture": True}
    found = evaluate(Log(source, **(NESTED | own | {"propensity": "p.a"})), {"t": "p.t"})
    expected = evaluate(Log(flat(), **(FLAT | own | {"propensity": "p_a"})), {"t": "t"})
    assert_same(found, expected, rel=1e-9)
    learned = [learn(Log(source, **NESTED), folds=2), learn(Log(flat(), **FLAT), folds=2)]
    assert learned[0].estimate.value == pytest.approx(learned[1].estimate.value, rel=1e-9)


def test_a_column_whose_name_has_a_dot_is_a_column() -> None:
    table = flat().append_column("r.click", flat().column("click"))
    table = table.append_column("r", struct(table, click="t"))
    for text in ("r.click", "r.click * 1"):
        found = evaluate(Log(table, **(FLAT | {"reward": text})), {"t": "t"})
        assert_same(found, evaluate(Log(flat(), **FLAT), {"t": "t"}), rel=1e-12)


def test_a_field_that_is_missing_is_named(source: Any) -> None:  # noqa: ANN401 - any source
    with refused(MissingColumnError):
        evaluate(Log(source, **(NESTED | {"reward": "s.click"})), {"t": "q.t + p.t"})
    mistyped = {"reward": "r.clik", "context": ["user.about.agee"]}
    with refused(MissingColumnError) as found:
        evaluate(Log(source, **(NESTED | mistyped)), {"new": Young("user.about.age")})
    assert found.value.missing == {"r.clik": "reward", "user.about.agee": "context"}
    assert "r.click" in found.value.available
    with refused(MissingColumnError):
        evaluate(Log(source, **NESTED), {"t": "p.t"}, by="user.about.landd")


def test_faults_name_the_field(source: Any) -> None:  # noqa: ANN401 - any source
    with refused(LogError):
        evaluate(
            Log(source, **(NESTED | {"propensities": {"a": "r.day", "b": "p.b"}})), {"t": "p.t"}
        )
    assert len(check(Log(source, **NESTED), {"t": "r.day"}).faults) == 2


def test_a_struct_is_no_feature() -> None:
    own = {"propensities": None, "propensity": "p.a", "estimate_mixture": True}
    log = Log(nested(flat()), **(NESTED | own | {"context": ["user"]}))
    with refused(UsageError):
        evaluate(log, {"t": "p.t"})
