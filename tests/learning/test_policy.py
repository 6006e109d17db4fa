from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.errors import MissingColumnError, UsageError
from poolwise.learning.features import Encoding, Feature
from poolwise.learning.policy import LearnedMixture, LinearPolicy
from poolwise.log.eligible import restrict_policy
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = {"x": np.array([0.0, 2.0]), "s": np.array(["u", "v"], dtype=object)}
ROWS = pw.Batch(np.array(["a", "b"]), COLUMNS)


def linear(**options: Any) -> LinearPolicy:  # noqa: ANN401 - of a LinearPolicy
    features = (Feature("x"), Feature("s", 0, labels=("u",)))
    encoding = Encoding(features, np.array([0, 1]), np.zeros(2), np.ones(2))
    coefficients = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    return LinearPolicy(("a", "b"), encoding, coefficients, **options)


def test_a_greedy_policy_plays_the_best_action() -> None:
    # scores: row 1 has x = 0 and s = u, so (0, 1); row 2 has x = 2, so (2, 0)
    assert linear().distribution(ROWS).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert linear().prob(ROWS).tolist() == [0.0, 0.0]


def test_a_soft_policy_is_a_softmax() -> None:
    prob = linear(greedy=False).distribution(ROWS)
    np.testing.assert_allclose(prob[:, 1], [np.e / (1 + np.e), 1 / (1 + np.e**2)])


def test_ties_are_split_and_exploration_is_uniform() -> None:
    tied = linear(epsilon=0.2)
    batch = pw.Batch(np.array(["a"]), {"x": np.array([1.0]), "s": np.array(["u"])})
    assert tied.distribution(batch).tolist() == [[0.5, 0.5]]
    np.testing.assert_allclose(tied.distribution(ROWS), [[0.1, 0.9], [0.9, 0.1]])


def test_an_unknown_action_has_probability_0() -> None:
    batch = pw.Batch(np.array(["z", "b"]), COLUMNS)
    assert linear(greedy=False).prob(batch)[0] == 0


def test_the_base_adds_its_scores() -> None:
    base = pw.Table({"b": 0.75, "a": 0.25})
    policy = linear(greedy=False, base=base)
    prob = policy.distribution(ROWS)
    np.testing.assert_allclose(prob[0, 1], 0.75 * np.e / (0.25 + 0.75 * np.e))


def test_a_base_sees_columns_that_are_no_features() -> None:
    base = pw.Table({"p": {"a": 1.0}, "q": {"b": 1.0}}, context="t")
    policy = linear(greedy=False, base=base)
    rows = pa.table({"x": [0.0, 0.0], "s": ["u", "u"], "t": ["p", "q"]})
    assert policy.decide(rows, seed=0).action.tolist() == ["a", "b"]


def frames() -> dict[str, Any]:
    columns = {name: values.tolist() for name, values in COLUMNS.items()}
    lists = [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    return {
        "batch": ROWS,
        "arrow": pa.table(columns),
        "pandas": pd.DataFrame(columns),
        "polars": pl.DataFrame(columns),
        "dictionaries": lists,
    }


@pytest.mark.parametrize("kind", frames())
def test_decisions_come_with_their_probability(kind: str) -> None:
    actions, prob = linear(epsilon=0.2).decide(frames()[kind], seed=0)
    expected = np.where(actions == np.array(["b", "a"]), 0.9, 0.1)
    np.testing.assert_allclose(prob, expected)


def test_decisions_follow_the_probabilities() -> None:
    many = {"x": np.zeros(20_000), "s": np.full(20_000, "u")}
    policy = LearnedMixture([linear(), linear(greedy=False)], [0.5, 0.5])
    drawn = policy.decide(pa.table(many), seed=1)
    share = 0.5 + 0.5 * np.e / (1 + np.e)
    assert np.mean(drawn.action == "b") == pytest.approx(share, abs=0.01)
    np.testing.assert_allclose(drawn.probability[drawn.action == "b"], share)


def test_no_rows_give_no_decisions() -> None:
    empty = pa.table({"x": pa.array([], pa.float64()), "s": []})
    assert len(linear().decide(empty).action) == 0


@pytest.mark.parametrize("rows", [pa.table({"x": [1.0]}), [{"x": 1.0}]], ids=["arrow", "list"])
def test_a_missing_feature_is_named(rows: object) -> None:
    with refused(MissingColumnError) as error:
        linear().decide(rows)
    assert list(error.value.missing) == ["s"]


@pytest.mark.parametrize("mixed", [False, True])
def test_a_saved_policy_is_the_same_to_the_last_bit(tmp_path: Path, *, mixed: bool) -> None:
    policy: LinearPolicy | LearnedMixture = linear(greedy=False, epsilon=0.1)
    if mixed:
        policy = LearnedMixture([linear(epsilon=0.1), policy], [0.25, 0.75])
    policy.save(tmp_path / "policy.json")
    loaded = pw.load_policy(tmp_path / "policy.json")
    assert type(loaded) is type(policy)
    assert loaded.distribution(ROWS).tolist() == policy.distribution(ROWS).tolist()
    assert tuple(loaded.actions) == ("a", "b")


def test_a_policy_with_a_base_in_python_is_loaded_with_it(tmp_path: Path) -> None:
    base = pw.Softmax(lambda batch: np.column_stack([batch["x"], 1 - batch["x"]]), ["a", "b"])
    policy = linear(base=base, anchor="v2")
    policy.save(tmp_path / "policy.json")
    with refused(UsageError):
        pw.load_policy(tmp_path / "policy.json")
    loaded = pw.load_policy(tmp_path / "policy.json", loggers={"v2": base})
    assert loaded.distribution(ROWS).tolist() == policy.distribution(ROWS).tolist()


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    "table",
    [
        pw.Table({"b": 0.75, "a": 0.25}),
        pw.Table({"u": {"a": 0.1, "b": 0.9}, "v": {"b": 1.0}}, context="s"),
        pw.Table(
            {("u", 0.0): {"a": 0.3, "b": 0.7}, ("v", 2.0): {"a": 0.6, "b": 0.4}},
            context=["s", "x"],
        ),
    ],
    ids=["actions", "column", "columns"],
)
def test_a_table_is_saved_with_the_policy(
    tmp_path: Path, table: pw.Table, *, listed: bool
) -> None:
    lists = np.array([["b", "a"], ["b", "c"]], dtype=object)
    rows = pw.Batch(np.array(["b", "b"]), {**COLUMNS, "can": lists})
    eligible = "can" if listed else None
    base = restrict_policy(table, eligible)
    policy = linear(greedy=False, base=base, anchor="v2", eligible=eligible)
    policy.save(tmp_path / "policy.json")
    loaded = pw.load_policy(tmp_path / "policy.json")
    assert loaded.distribution(rows).tolist() == policy.distribution(rows).tolist()


WRONG: dict[str, Any] = {
    "kind": {"kind": "other"},
    "version": {"version": 2},
    "epsilon": {"epsilon": 2},
    "actions": {"actions": ["a", "a"]},
    "few-actions": {"actions": ["a"]},
    "parts": {"parts": []},
    "list": {"parts": 3},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "policy.json"
    linear().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | WRONG[name]))
    with refused(UsageError):
        pw.load_policy(path)


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"kind": "poolwise.linear", "version": 1}'])
def test_a_file_that_is_no_policy_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)
    with refused(UsageError):
        pw.load_policy(path)


def test_wrong_coefficients_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    linear().save(path)
    for wrong in ([[1.0]], [[1.0, "nan"]] * 3, [[1e999, 0.0]] * 3):
        data = json.loads(path.read_text())
        data["parts"][0]["coefficients"] = wrong
        (tmp_path / "wrong.json").write_text(json.dumps(data))
        with refused(UsageError):
            pw.load_policy(tmp_path / "wrong.json")


def test_a_missing_file_and_a_wrong_ending_are_refused(tmp_path: Path) -> None:
    with refused(UsageError):
        pw.load_policy(tmp_path / "none.json")
    with refused(UsageError):
        linear().save(tmp_path / "policy.pkl")
    assert list(tmp_path.iterdir()) == []
