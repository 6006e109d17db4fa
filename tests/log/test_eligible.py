"""Eligible actions: policies and reward models play only what the row's list allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeRegressor
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import MissingColumnError, PolicyError, UsageError
from poolwise.log.adapters import Classifier, Mixture, Table
from poolwise.log.eligible import Eligible, restrict_policy
from poolwise.log.policy import Batch, Column
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

ACTIONS = ("a", "b", "c")
REWARD = {"a": 0.2, "b": 0.5, "c": 0.8}


def batch_of(lists: list[Any], logged: list[str], **columns: Any) -> Batch:  # noqa: ANN401
    ragged = np.empty(len(lists), dtype=object)
    ragged[:] = lists
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    return Batch(np.array(logged), {"list": ragged, **arrays})


def test_the_probabilities_of_eligible_actions_sum_to_1() -> None:
    batch = batch_of([["a", "b"], ["c"], ["c", "b", "a"]], ["b", "c", "a"])
    uniform = Eligible(pw.Uniform(ACTIONS), "list")
    assert uniform.prob(batch).tolist() == [1 / 2, 1, 1 / 3]
    table = Eligible(Table({"a": 0.5, "b": 0.3, "c": 0.2}), "list")
    assert table.prob(batch) == pytest.approx([0.3 / 0.8, 1, 0.5])
    assert table.distribution(batch).sum(axis=1) == pytest.approx([1, 1, 1])
    assert table.distribution(batch)[0, 2] == 0


def test_a_softmax_is_taken_among_eligible_actions() -> None:
    scores = {"a": [0.0, 0.0], "b": [1.0, 0.0], "c": [900.0, 900.0]}
    batch = batch_of([["a", "b"], ["a", "c"]], ["b", "a"], **scores)
    softmax = Eligible(pw.Softmax(ACTIONS, ACTIONS), "list")
    expected = np.exp(1) / (1 + np.exp(1))  # without the score of 900, which is not eligible
    assert softmax.prob(batch) == pytest.approx([expected, 0.0])


def test_exploration_is_spread_over_eligible_actions() -> None:
    batch = batch_of([["a", "b"], ["a", "b", "c"]], ["a", "b"], best=["b", "b"])
    greedy = Eligible(pw.EpsilonGreedy("best", ACTIONS, 0.3), "list")
    assert greedy.prob(batch) == pytest.approx([0.15, 0.7 + 0.1])
    barred = batch_of([["a", "c"]], ["a"], best=["b"])
    with refused(PolicyError) as caught:
        greedy.prob(barred)
    assert caught.value.rows == (0,)


def test_a_classifier_does_not_see_the_list() -> None:
    x = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]])
    model = LogisticRegression().fit(x, list("aabbcc"))
    batch = batch_of([["a", "b"], ["c", "a"]], ["a", "c"], x=[0.0, 5.0])
    whole = model.predict_proba([[0.0], [5.0]])
    expected = [whole[0, 0] / whole[0, :2].sum(), whole[1, 2] / whole[1, [0, 2]].sum()]
    assert Eligible(Classifier(model), "list").prob(batch) == pytest.approx(expected)


def test_parts_of_a_mixture_are_restricted_and_columns_are_not() -> None:
    assert restrict_policy(Column("p"), "list") == Column("p")
    assert restrict_policy(pw.Uniform(3), None) == pw.Uniform(3)
    mixed = restrict_policy(
        Mixture([pw.Uniform(ACTIONS), Table({"a": 1.0})], [0.5, 0.5]), "list"
    )
    batch = batch_of([["a", "b"]], ["a"])
    assert mixed.prob(batch).tolist() == [0.75]


@pytest.mark.parametrize("numbers", [[1, 2], ["1", "2"]], ids=["numbers", "texts"])
def test_labels_are_matched_as_those_of_actions_are(numbers: list[Any]) -> None:
    batch = Batch(np.array([1]), {"list": np.array([numbers], dtype=object)})
    assert Eligible(pw.Uniform([1, 2, 3]), "list").prob(batch).tolist() == [0.5]


def log_table(rows: int = 4000, seed: int = 4) -> pa.Table:
    """Rows with lists of one to three actions, played uniformly among these."""
    rng = np.random.default_rng(seed)
    lists = [list(rng.permutation(ACTIONS)[: rng.integers(1, 4)]) for _ in range(rows)]
    action = [str(rng.choice(each)) for each in lists]
    reward = rng.random(rows) < np.array([REWARD[a] for a in action])
    return pa.table(
        {
            "item": action,
            "r": reward.astype(float),
            "x": rng.normal(size=rows),
            "list": [[str(label) for label in each] for each in lists],
        }
    )


def log_of(rows: pa.Table, **roles: Any) -> pw.Log:  # noqa: ANN401 - any role
    named = {"propensities": {"v1": pw.Uniform(ACTIONS)}, "eligible": "list"}
    return pw.Log(rows, reward="r", action="item", **named | roles)


def value_of(rows: pa.Table, weights: dict[str, float]) -> float:
    """Mean reward of a policy with these weights among the eligible actions."""
    lists = rows["list"].to_pylist()
    return float(
        np.mean(
            [
                sum(weights[a] * REWARD[a] for a in each) / sum(weights[a] for a in each)
                for each in lists
            ]
        )
    )


@pytest.mark.parametrize("model", [None, DecisionTreeRegressor(max_depth=3)], ids=["no", "dr"])
@pytest.mark.parametrize("context", [(), ("x",)], ids=["all", "named"])
def test_an_evaluation_respects_the_lists(model: Any, context: tuple[str, ...]) -> None:  # noqa: ANN401
    rows, weights = log_table(), {"a": 0.1, "b": 0.2, "c": 0.7}
    log = log_of(rows, context=context)
    evaluation = pw.evaluate(log, {"new": Table(weights)}, model=model)
    assert model is None or "doubly-robust" in evaluation["new"].estimates
    for estimate in evaluation["new"].estimates.values():
        gap = estimate.value - value_of(rows, weights)
        assert abs(gap) < 4 * max(estimate.std_error, 0.01)
    weights_mean = evaluation["new"].loggers["v1"].mean_weight
    assert weights_mean == pytest.approx(1, abs=0.05)
    assert not [f for f in evaluation["new"].findings if f.severity == "alarm"]


def test_a_list_without_the_logged_action_is_one_message() -> None:
    rows = log_table(50)
    lists = rows["list"].to_pylist()
    lists[3] = [label for label in ACTIONS if label != rows["item"][3].as_py()]
    lists[7] = None
    broken = rows.set_column(3, "list", pa.array(lists))
    with refused(PolicyError) as caught:
        pw.evaluate(log_of(broken), {"new": Table({"a": 0.5, "b": 0.3, "c": 0.2})})
    assert caught.value.rows == (3, 7)


def test_a_policy_without_an_eligible_action_is_one_message() -> None:
    with refused(PolicyError):
        pw.evaluate(log_of(log_table(50)), {"new": Table({"c": 1.0})})
    with refused(MissingColumnError) as caught:
        pw.evaluate(log_of(log_table(50), eligible="lists"), {"new": pw.Uniform(ACTIONS)})
    assert caught.value.missing == {"lists": "eligible"}


def test_ragged_lists_of_the_context_are_a_message_of_the_model() -> None:
    log = log_of(log_table(200), eligible=None, propensities={"v1": pw.Uniform(3)})
    with refused(UsageError):
        pw.evaluate(
            log, {"new": pw.Uniform(ACTIONS)}, "doubly-robust", model=DecisionTreeRegressor()
        )


def test_the_command_line_names_the_column(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(log_table(300), path)
    policies = tmp_path / "policies_of_lists.py"
    policies.write_text(
        "import poolwise as pw\nold = pw.Uniform(['a', 'b', 'c'])\n"
        "new = pw.Table({'a': 0.1, 'b': 0.2, 'c': 0.7})\n"
    )
    roles = ["--reward", "r", "--action", "item", "--eligible", "list"]
    names = [
        "--propensities",
        "v1=policies_of_lists:old",
        "--target",
        "new=policies_of_lists:new",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        run = CliRunner().invoke(app, ["evaluate", str(path), *roles, *names])
    assert run.exit_code == 0, run.output
    assert "calibrated" in run.output


def test_logs_that_cannot_have_lists() -> None:
    with refused(UsageError):
        log_of(log_table(50), densities=True)
    with refused(UsageError):
        pw.learn(log_of(log_table(50)))


@pytest.mark.parametrize("column", [["a", "b", "a"], [1.0, 2.0, 1.0]], ids=["text", "numbers"])
def test_a_column_without_lists_is_refused(column: list[object]) -> None:
    """The letters of a text are not actions."""
    table = pa.table({"r": [0.0, 1.0, 1.0], "p": [0.5] * 3, "a": ["a", "b", "a"], "e": column})
    log = pw.Log(table, reward="r", propensity="p", action="a", eligible="e")
    with refused(PolicyError):
        pw.evaluate(log, {"new": pw.Uniform(["a", "b"])})
