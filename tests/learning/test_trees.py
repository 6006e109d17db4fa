"""Policies with trees: they start at the anchor, learn what lines cannot, and are saved."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.errors import MissingExtraError, UsageError
from poolwise.learning.fit import SoftmaxProblem, Trees, boost
from poolwise.learning.learn import learn
from poolwise.learning.objectives import Sample
from poolwise.learning.policy import LinearPolicy
from tests.support.learning import segments_log
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # all of them together take seconds
FEW: dict[str, Any] = {"smoothing": [0.8], "holdout": 0.4}


def corners(rows: int = 4_000, seed: int = 0) -> pa.Table:
    """Draw a log in which the better of two actions is 1 if x and y have the same sign.

    No line separates these contexts.  The reward is 1 with probability 0.8 or 0.2.
    """
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(-1, 1, (2, rows))
    best = ((x > 0) == (y > 0)).astype(int)
    action = rng.integers(0, 2, rows)
    reward = (rng.random(rows) < np.where(action == best, 0.8, 0.2)).astype(float)
    columns = {"x": x, "y": y, "action": action, "reward": reward, "best": best}
    return pa.table(columns | {"p": np.full(rows, 0.5)})


def corners_log(table: pa.Table) -> pw.Log:
    roles: Any = {"reward": "reward", "propensity": "p", "action": "action"}
    return pw.Log(table, **roles, context=["x", "y"])


@pytest.fixture(scope="module")
def learned() -> pw.Learned:
    return pw.learn(corners_log(corners()), trees=True, **FEW)


def value(policy: pw.Policy) -> float:
    """Return the exact value over other contexts: 0.5 for chance, 0.8 at best."""
    table = corners(20_000, seed=1)
    columns = {name: table[name].to_numpy() for name in ("x", "y")}
    right = policy.prob(pw.Batch(table["best"].to_numpy(), columns)).mean()
    return float(0.2 + 0.6 * right)


def test_trees_learn_what_lines_cannot(learned: pw.Learned) -> None:
    linear = pw.learn(corners_log(corners()), strengths=[0.01], **FEW)
    assert value(linear.policy) < 0.65  # a line is right in two thirds at most
    assert value(learned.policy) > 0.77
    assert learned.better
    assert learned.choices[0].chosen.rounds > 0
    error = learned.estimate.std_error
    assert abs(learned.estimate.value - value(learned.policy)) < 3 * error


def test_the_anchor_competes_with_no_round(learned: pw.Learned) -> None:
    rounds = {c.rounds for c in learned.candidates[0]}
    assert rounds == {0, 3, 10, 30, 100}
    assert sum(c.is_anchor for c in learned.candidates[0]) == 2  # soft and greedy


def test_constant_rewards_leave_the_anchor() -> None:
    table = corners(600)
    flat = table.set_column(3, "reward", pa.array(np.ones(len(table))))
    result = pw.learn(corners_log(flat), trees=True, **FEW)
    assert isinstance(result.policy, LinearPolicy)
    assert result.policy.trees is None
    assert not result.better


def test_the_same_rows_in_another_order_give_the_same_trees(learned: pw.Learned) -> None:
    table = corners()
    order = np.random.default_rng(1).permutation(len(table))
    again = pw.learn(corners_log(table.take(order)), trees=True, **FEW)
    contexts = pw.Batch(np.zeros(50), {n: table[n].to_numpy()[:50] for n in ("x", "y")})
    first, second = (p.distribution(contexts) for p in (learned.policy, again.policy))
    assert first.tolist() == second.tolist()


def boosted_by_one_feature() -> Trees:
    ones = np.ones(400)
    features = np.column_stack([np.linspace(-1, 1, 400), ones])
    action = (features[:, 0] > 0).astype(int)
    predicted = np.eye(2)[action]
    sample = Sample(action, ones, ones, np.zeros(400, dtype=int), predicted)
    problem = SoftmaxProblem(features, sample, 2)
    return boost(problem, problem.zeros(), 1.0, 3)


def saved(learned: pw.Learned, path: Path) -> Any:  # noqa: ANN401 - JSON
    learned.save(path)
    return json.loads(path.read_text())


def test_a_saved_policy_is_the_same_to_the_last_bit(
    learned: pw.Learned, tmp_path: Path
) -> None:
    assert saved(learned, tmp_path / "policy.json")["kind"] == "poolwise.trees"
    loaded = pw.load_policy(tmp_path / "policy.json", trust=True)
    rows = corners(50, seed=2).select(["x", "y"])
    contexts = pw.Batch(np.zeros(50), {n: rows[n].to_numpy() for n in ("x", "y")})
    first, second = (p.distribution(contexts) for p in (learned.policy, loaded))
    assert first.tolist() == second.tolist()
    decided, again = learned.policy.decide(rows, seed=1), loaded.decide(rows, seed=1)
    assert decided.action.tolist() == again.action.tolist()
    assert len(loaded.decide(rows.slice(0, 0)).action) == 0


CHANGES: dict[str, dict[str, Any]] = {
    "cut": {"model": "tree"},
    "rounds": {"rounds": 10**6},
    "none": {"rounds": 0},
}


@pytest.mark.parametrize("name", CHANGES)
def test_damaged_trees_are_refused(learned: pw.Learned, tmp_path: Path, name: str) -> None:
    data = saved(learned, tmp_path / "policy.json")
    data["parts"][0]["trees"] |= CHANGES[name]
    (tmp_path / "policy.json").write_text(json.dumps(data))
    with refused(UsageError):
        pw.load_policy(tmp_path / "policy.json", trust=True)


def test_a_model_that_lightgbm_refuses(learned: pw.Learned, tmp_path: Path) -> None:
    policy = learned.policy
    assert isinstance(policy, LinearPolicy)
    assert isinstance(policy.trees, Trees)
    data = saved(learned, tmp_path / "policy.json")
    model = policy.trees.model.replace("max_feature_idx=1", "max_feature_idx=2")
    data["parts"][0]["trees"] = Trees(model, policy.trees.rounds).to_dict()
    (tmp_path / "policy.json").write_text(json.dumps(data))
    with refused(UsageError):
        pw.load_policy(tmp_path / "policy.json", trust=True)


def test_trees_of_other_features_are_refused(learned: pw.Learned, tmp_path: Path) -> None:
    data = saved(learned, tmp_path / "policy.json")
    data["parts"][0]["trees"] = boosted_by_one_feature().to_dict()
    (tmp_path / "policy.json").write_text(json.dumps(data))
    with refused(UsageError):
        pw.load_policy(tmp_path / "policy.json", trust=True)


def test_trees_need_trust(learned: pw.Learned, tmp_path: Path) -> None:
    saved(learned, tmp_path / "policy.json")
    with refused(UsageError):
        pw.load_policy(tmp_path / "policy.json")


def test_a_file_that_hides_its_trees_is_refused(learned: pw.Learned, tmp_path: Path) -> None:
    data = saved(learned, tmp_path / "policy.json") | {"kind": "poolwise.linear"}
    (tmp_path / "policy.json").write_text(json.dumps(data))
    with refused(UsageError):
        pw.load_policy(tmp_path / "policy.json")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with refused(MissingExtraError):
        learn(segments_log(corners(10)), trees=True)


def test_a_policy_in_python_is_the_anchor_of_trees() -> None:
    """Boosting starts at its scores: where it is right already, no round is better."""
    base = pw.Table({0: 0.5, 1: 0.5})
    log = replace(corners_log(corners()), context=("x", "y"))
    result = pw.learn(log, anchor=base, trees=True, **FEW)
    assert value(result.policy) > 0.77
