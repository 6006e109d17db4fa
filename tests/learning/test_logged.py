"""Loggers whose whole distribution a column holds: learning starts from them, exactly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.errors import MissingColumnError, PolicyError
from poolwise.learning.logged import LoggedDistribution
from poolwise.log.policy import Batch
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ACTIONS = ("a", "b", "c")
FORMS = ("map", "struct", "json", "list")
FEW: dict[str, Any] = {"folds": 2, "strengths": [1], "smoothing": [0.8]}
# The old logger is uniform.  The new one prefers an action that no feature predicts.
NEW = {"p": (0.6, 0.3, 0.1), "q": (0.1, 0.6, 0.3), "r": (0.3, 0.1, 0.6)}
OLD = (1 / 3, 1 / 3, 1 / 3)


def values_of(form: str, rows: Sequence[tuple[float, ...]]) -> pa.Array:
    """Return distributions over three actions as a column; "z" is never played."""
    dicts = [dict(zip(ACTIONS, row, strict=True)) for row in rows]
    if form == "map":
        pairs = [[*row.items(), ("z", 0.0)] for row in dicts]
        return pa.array(pairs, pa.map_(pa.string(), pa.float64()))
    if form == "list":
        return pa.array([[*row] for row in rows])
    return pa.array(dicts if form == "struct" else [json.dumps(row) for row in dicts])


def table_of(form: str, copies: int = 40, *, gain: float = 0.5) -> pa.Table:
    """Return a log with every context, action and reward exactly as often as it is probable.

    Each logger plays 30 rows of each of the contexts p, q and r, times `copies`.  The
    favourite of the new one earns 0.2 + `gain`, each other action 0.2.
    """
    lines: list[dict[str, Any]] = []
    for context, new in NEW.items():
        best = int(np.argmax(new))
        for name, prob in (("old", OLD), ("new", new)):
            for k, share in enumerate(prob):
                count = round(30 * copies * share)
                wins = round(count * (0.2 + gain * (k == best)))
                line = {"logger": name, "action": ACTIONS[k], "hidden": context}
                lines += [line | {"reward": float(i < wins)} for i in range(count)]
    rng = np.random.default_rng(0)
    table = pa.Table.from_pylist([lines[k] for k in rng.permutation(len(lines))])
    table = table.append_column("x", pa.array(rng.normal(size=len(table))))
    contexts = table["hidden"].to_pylist()
    table = table.append_column("d_new", values_of(form, [NEW[c] for c in contexts]))
    table = table.append_column("d_old", values_of(form, [OLD] * len(table)))
    return table.append_column("can", pa.array([[*ACTIONS]] * len(table)))


def log_of(source: Any, form: str, **options: Any) -> pw.Log:  # noqa: ANN401
    roles: dict[str, Any] = {
        "reward": "reward",
        "logger": "logger",
        "action": "action",
        "context": ["x"],
        "propensities": {"old": "d_old", "new": "d_new"},
        "eligible": "can" if form == "list" else None,
    }
    return pw.Log(source, **(roles | options))


def played(policy: pw.Policy, table: pa.Table) -> list[str]:
    return policy.decide(table, seed=0).action.tolist()  # type: ignore[attr-defined,no-any-return]


# -- the class ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_matrix(form: str) -> None:
    rows = [(0.2, 0.3, 0.5), (1.0, 0.0, 0.0)]
    column = values_of(form, rows).to_numpy(zero_copy_only=False)
    lists = np.array([["a", "b", "c"]] * 2)
    batch = Batch(np.array(["c", "b"]), {"d": column, "can": lists})
    policy = LoggedDistribution("d", ("c", "a", "y"), "can" if form == "list" else None)
    assert policy.distribution(batch).tolist() == [[0.5, 0.2, 0.0], [0.0, 1.0, 0.0]]
    assert policy.prob(batch).tolist() == [0.5, 0.0]


def test_logarithms_and_keys_of_other_types() -> None:
    logs = np.array([json.dumps({"7": float(np.log(0.25)), "true": float(np.log(0.75))})])
    batch = Batch(np.array([7]), {"d": logs})
    policy = LoggedDistribution("d", (7, True), logs=True)
    assert policy.distribution(batch) == pytest.approx(np.array([[0.25, 0.75]]))


WRONG: dict[str, Any] = {
    "negative": {"a": -0.1, "b": 1.1},
    "above-1": {"a": 0.9, "b": 0.9},
    "zero": {"a": 0.0},
    "empty": {},
    "nan": {"a": 1.0, "b": float("nan")},
    "none": None,
    "number": 0.3,
    "text": "0.3",
    "broken": '{"a": ',
    "words": {"a": "much"},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_distribution_is_refused(name: str) -> None:
    column = np.array([{"a": 1.0}, WRONG[name]], dtype=object)
    batch = Batch(np.array(["a", "a"]), {"d": column})
    with refused(PolicyError) as error:
        LoggedDistribution("d", ("a",)).distribution(batch)
    assert error.value.rows == (1,)


# -- learning ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned() -> pw.Learned:
    return pw.learn(log_of(table_of("map"), "map"), **FEW)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_best_actions_of_the_logger_are_played_exactly(form: str) -> None:
    """No feature predicts them: a clone cannot play them, the logger itself does.

    They earn 0.7 in every context, where the new logger earns 0.6 * 0.7 + 0.4 * 0.2 = 0.5.
    """
    table = table_of(form)
    result = pw.learn(log_of(table, form), **FEW)
    favourite = [ACTIONS[int(np.argmax(NEW[c]))] for c in table["hidden"].to_pylist()]
    assert played(result.policy, table) == favourite
    assert {(c.anchor, c.chosen.method) for c in result.choices} == {("new", "anchor")}
    assert result.estimate.value == pytest.approx(0.7, abs=1e-3)
    assert {g.logger: g.value for g in result.gains} == pytest.approx(
        {"new": 0.2, "old": 0.7 - 1.1 / 3}, abs=1e-3
    )
    assert result.better


@pytest.mark.slow
def test_a_clone_is_all_that_columns_of_numbers_allow() -> None:
    """Without the distributions, nothing predicts what the new logger prefers."""
    table = table_of("map")
    for name in ("new", "old"):
        pairs = zip(table[f"d_{name}"].to_pylist(), table["action"].to_pylist(), strict=True)
        numbers = pa.array([dict(entries)[action] for entries, action in pairs])
        table = table.append_column(f"p_{name}", numbers)
    result = pw.learn(
        log_of(table, "map", propensities={"old": "p_old", "new": "p_new"}), **FEW
    )
    assert result.estimate.value < 0.45


@pytest.mark.slow
def test_one_logger_with_its_own_distribution(learned: pw.Learned) -> None:
    table = table_of("map").filter(pa.compute.field("logger") == "new")
    log = log_of(table, "map", logger=None, propensities=None, propensity="d_new")
    result = pw.learn(log, **FEW)
    assert {c.anchor for c in result.choices} == {"log"}
    assert played(result.policy, table) == played(learned.policy, table)


@pytest.mark.slow
def test_a_saved_policy_reads_the_column_when_it_decides(
    learned: pw.Learned, tmp_path: Path
) -> None:
    learned.save(tmp_path / "policy.json")
    loaded = pw.load_policy(tmp_path / "policy.json")
    table = table_of("map", copies=1)
    assert played(loaded, table) == played(learned.policy, table)
    row = {"x": 0.0, "d_new": {"b": 0.9, "a": 0.1}}
    assert loaded.decide([row]).action.tolist() == ["b"]
    with refused(MissingColumnError):
        loaded.decide([{"x": 0.0}])
    log = log_of(table_of("map", copies=10), "map", context=["x", "d_new"])
    estimates = pw.evaluate(log, {"new policy": loaded})["new policy"].estimates
    assert estimates["balanced"].value == pytest.approx(0.7, abs=1e-9)


@pytest.mark.slow
def test_fields_of_structs_and_files(learned: pw.Learned, tmp_path: Path) -> None:
    table = table_of("struct")
    both = pa.StructArray.from_arrays(
        [table["d_new"].combine_chunks(), table["d_old"].combine_chunks()], ["new", "old"]
    )
    pq.write_table(
        table.drop(["d_new", "d_old"]).append_column("d", both), tmp_path / "l.parquet"
    )
    log = log_of(
        str(tmp_path / "l.parquet"), "struct", propensities={"old": "d.old", "new": "d.new"}
    )
    result = pw.learn(log, **FEW)
    assert {c.chosen.method for c in result.choices} == {"anchor"}
    assert result.estimate.value == pytest.approx(learned.estimate.value, abs=2e-3)


@pytest.mark.slow
def test_actions_without_an_entry_may_be_0_by_the_expression(learned: pw.Learned) -> None:
    """Rows may list the likeliest actions only, as in coalesce(probs, 0)."""
    table = table_of("map")
    names = {"old": "d_old", "new": "coalesce(d_new, 0)"}
    result = pw.learn(log_of(table, "map", propensities=names), **FEW)
    assert played(result.policy, table) == played(learned.policy, table)


@pytest.mark.slow
def test_text_of_numbers_is_no_distribution() -> None:
    """A column of text may hold the probability of the logged action alone."""
    table = table_of("map")
    for name in ("new", "old"):
        pairs = zip(table[f"d_{name}"].to_pylist(), table["action"].to_pylist(), strict=True)
        texts = pa.array([str(dict(entries)[action]) for entries, action in pairs])
        table = table.drop([f"d_{name}"]).append_column(f"d_{name}", texts)
    result = pw.learn(log_of(table, "map"), **FEW)
    assert result.estimate.value < 0.45
    # the policy is a clone, which needs no column
    assert result.policy.decide([{"x": 0.0}]).action.tolist()[0] in ACTIONS


@pytest.mark.slow
def test_faulty_rows_can_be_dropped() -> None:
    table = table_of("map")
    broken = [[("a", float("nan"))], *table["d_new"].to_pylist()[1:]]
    column = pa.array(broken, pa.map_(pa.string(), pa.float64()))
    table = table.drop(["d_new"]).append_column("d_new", column)
    result = pw.learn(log_of(table, "map", on_fault="drop"), **FEW)
    assert sum(result.evaluation.rows.values()) == len(table) - 1
    assert {c.chosen.method for c in result.choices} == {"anchor"}
