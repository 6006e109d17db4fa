"""Learning where the actions that can be played vary from row to row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.errors import MissingColumnError, PolicyError, UsageError
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # all of them together take seconds
ACTIONS = ("a", "b", "c")
FEW: dict[str, Any] = {"smoothing": [0.8], "strengths": [0.01], "holdout": 0.4}
CHANCES = {"a": 0.3, "b": 0.5, "c": 0.8}  # of a reward: "c" is the best where it is listed


def varying(rows: int = 3_000, seed: int = 0) -> pa.Table:
    """Draw a log of a uniform logger; each row lists two or three of three actions."""
    rng = np.random.default_rng(seed)
    left_out = rng.integers(0, 4, rows)  # 3 leaves out none
    lists = [[a for k, a in enumerate(ACTIONS) if k != out] for out in left_out]
    action = [str(rng.choice(names)) for names in lists]
    reward = (rng.random(rows) < [CHANCES[a] for a in action]).astype(float)
    return pa.table(
        {
            "x": rng.normal(size=rows),
            "actions": lists,
            "action": action,
            "reward": reward,
            "p": [1 / len(names) for names in lists],
        }
    )


def varying_log(table: pa.Table) -> pw.Log:
    roles: Any = {"reward": "reward", "propensity": "p", "action": "action"}
    return pw.Log(table, **roles, context=["x"], eligible="actions")


@pytest.fixture(scope="module")
def learned() -> pw.Learned:
    return pw.learn(varying_log(varying()), features=["x"], **FEW)


def test_the_best_listed_action_is_played(learned: pw.Learned) -> None:
    rows = [
        {"x": 0.0, "actions": ["a", "b", "c"]},
        {"x": 0.0, "actions": ["b", "a"]},
        {"x": 0.0, "actions": ["a", "unknown"]},
    ]
    decided = learned.policy.decide(rows, seed=1)
    assert decided.action.tolist() == ["c", "b", "a"]
    assert decided.probability.tolist() == [1.0, 1.0, 1.0]


def test_its_value_is_covered(learned: pw.Learned) -> None:
    """Three of four rows list "c", worth 0.8; the others leave "b", worth 0.5."""
    truth = 0.75 * 0.8 + 0.25 * 0.5
    assert learned.better
    assert abs(learned.estimate.value - truth) < 3 * learned.estimate.std_error


def test_exploration_is_spread_over_the_listed_actions() -> None:
    log = varying_log(varying(1_200))
    policy = pw.learn(log, features=["x"], epsilon=0.3, **FEW).policy
    lists = np.empty(2, dtype=object)
    lists[:] = [["a", "b", "c"], ["a", "b"]]
    batch = pw.Batch(np.array(["a", "a"]), {"x": np.zeros(2), "actions": lists})
    assert policy.distribution(batch).round(12).tolist() == [[0.1, 0.1, 0.8], [0.15, 0.85, 0.0]]


def test_trees_respect_the_lists(learned: pw.Learned) -> None:
    log = varying_log(varying())
    trees = pw.learn(log, features=["x"], trees=True, smoothing=[0.8], holdout=0.4).policy
    decided = trees.decide([{"x": 0.0, "actions": ["a", "b"]}], seed=1)
    assert decided.action.tolist() == ["b"]
    assert learned.policy.eligible == "actions"  # type: ignore[union-attr]


def test_a_saved_policy_knows_its_column(learned: pw.Learned, tmp_path: Path) -> None:
    learned.save(tmp_path / "policy.json")
    assert json.loads((tmp_path / "policy.json").read_text())["eligible"] == "actions"
    loaded = pw.load_policy(tmp_path / "policy.json")
    rows = varying(40, seed=3)
    first, second = (p.decide(rows, seed=1) for p in (learned.policy, loaded))
    assert first.action.tolist() == second.action.tolist()
    log = varying_log(varying(seed=4))
    values = [
        pw.evaluate(log, {"new": p})["new"].estimates["calibrated"].value
        for p in (learned.policy, loaded)
    ]
    assert values[0] == values[1] == pytest.approx(0.725, abs=0.05)


def test_a_policy_in_python_is_restricted_too() -> None:
    """The anchor plays "a" most, among the listed actions."""
    anchor = pw.Table({"a": 0.8, "b": 0.1, "c": 0.1})
    result = pw.learn(varying_log(varying()), features=["x"], anchor=anchor, **FEW)
    assert result.policy.decide([{"x": 0.0, "actions": ["b", "c"]}]).action.tolist() == ["c"]


def test_a_list_without_the_logged_action_is_refused() -> None:
    table = varying(400)
    wrong = table.set_column(
        1, "actions", pa.array([["z"]] * 3 + table["actions"].to_pylist()[3:])
    )
    with refused(UsageError):
        pw.learn(varying_log(wrong), features=["x"], **FEW)


@pytest.mark.parametrize("row", [{"x": 0.0}, {"x": 0.0, "actions": []}], ids=["none", "empty"])
def test_rows_without_a_list_are_refused(learned: pw.Learned, row: dict[str, Any]) -> None:
    with refused(PolicyError if "actions" in row else MissingColumnError):
        learned.policy.decide([row])
