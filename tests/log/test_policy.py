from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from poolwise.errors import MissingColumnError, PolicyError, PoolwiseError, UsageError
from poolwise.evaluation.check import check
from poolwise.evaluation.evaluate import compare, evaluate
from poolwise.log.adapters import Classifier, EpsilonGreedy, Mixture, Softmax, Table, as_policy
from poolwise.log.log import Log
from poolwise.log.policy import (
    Batch,
    Column,
    Distribution,
    Expression,
    Function,
    Policy,
    Uniform,
    find_expression,
    get_index,
    is_distribution,
    log_prob,
)
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def rows(action: Sequence[object], **columns: Sequence[object] | NDArray[Any]) -> Batch:
    return Batch(np.asarray(action), {name: np.asarray(v) for name, v in columns.items()})


class Fitted:
    """A model that prefers class k with the k-th of fixed probabilities."""

    def __init__(self, classes: Sequence[object], probabilities: Sequence[float]) -> None:
        self.classes_ = np.asarray(classes)
        self.probabilities = np.asarray(probabilities)

    def predict_proba(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.tile(self.probabilities, (len(features), 1))


# -- batches -------------------------------------------------------------------------------


def test_context_puts_columns_and_lists_side_by_side() -> None:
    batch = rows([0, 0], age=[31, 64], x=[[1.0, 2.0], [3.0, 4.0]], new=[True, False])
    assert batch.context.tolist() == [[31, 1, 2, 1], [64, 3, 4, 0]]
    assert batch.context.dtype == np.float64
    assert batch.select(["new", "age"]).context.tolist() == [[1, 31], [0, 64]]


def test_a_batch_without_columns_has_a_context_of_width_zero() -> None:
    assert rows([1, 2, 3]).context.shape == (3, 0)
    assert rows([1, 2, 3]).to_pandas().shape == (3, 0)


def test_context_names_the_column_that_holds_no_numbers() -> None:
    with refused(PoolwiseError):
        _ = rows([0], age=[31], country=["SE"]).context


def test_a_missing_column_is_answered_with_the_nearest() -> None:
    with refused(MissingColumnError):
        _ = rows([0], country=["SE"])["contry"]


def test_a_frame_keeps_types_and_lists() -> None:
    frame = rows(["a"], country=["SE"], x=[[1.0, 2.0]]).to_pandas()
    assert frame.columns.tolist() == ["country", "x"]
    assert frame["country"][0] == "SE"
    assert frame["x"][0].tolist() == [1.0, 2.0]


# -- labels --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "logged", "expected"),
    [
        ([30, 10, 20], [10, 20, 30, 99, -5], [1, 2, 0, -1, -1]),
        (["b", "a"], ["a", "b", "c", ""], [1, 0, -1, -1]),
        (["b", 1], ["b", 1, "c"], [0, 1, -1]),
        ([1, "b"], ["1", "b"], [0, 1]),  # a log column has one type; text is read as 1
        (["1", "2"], [2, 1, 3], [1, 0, -1]),
        ([1, 2], ["2", "1", "x", "2.0"], [1, 0, -1, 1]),
        (["01", "1"], ["1", "01"], [1, 0]),  # text with text: to the letter
        ([False, True], np.array([True, False]), [1, 0]),
        ([0, 1], np.array([True, False]), [1, 0]),
        ([1, 2], np.array([2.0, 1.5, np.nan]), [1, -1, -1]),
        ([b"a", b"b"], np.array([b"b", b"z"]), [1, -1]),
        (["a", "b"], np.array([b"b", b"z"]), [1, -1]),
        (["a", "b"], np.array(["b", None, math.nan], dtype=object), [1, -1, -1]),
        ([1, 2], np.array([2, None], dtype=object), [1, -1]),
        (["01", "1"], np.array(["01", math.nan], dtype=object), [0, -1]),  # nan is a null
        (np.array(["x", "y"]), np.array(["y"], dtype=object), [1]),
        ([2**53, 2**53 + 1], [2**53 + 1, 2**53], [1, 0]),  # equal as floats
        ([2**53, 2**53 + 1], [str(2**53 + 1)], [1]),
        ([], [1, 2], [-1, -1]),
        ([], ["a"], [-1]),
        ([1, 2], [], []),
    ],
)
def test_labels_are_found_whatever_their_type(
    actions: Any,  # noqa: ANN401 - every type of label on purpose
    logged: Any,  # noqa: ANN401
    expected: list[int],
) -> None:
    found = get_index(actions, logged)
    assert found.tolist() == expected
    assert found.dtype == np.int64


def test_a_label_must_be_one_per_row() -> None:
    with refused(PoolwiseError):
        get_index(["a"], np.empty((3, 0)))


labels = st.one_of(st.text(max_size=3), st.integers(-3, 3))


@given(st.lists(labels, unique=True), st.lists(labels))
def test_labels_of_mixed_types_are_found_as_a_list_finds_them(
    actions: list[str | int], logged: list[str | int]
) -> None:
    numbers = any(isinstance(label, int) for label in [*actions, *logged])
    if numbers and any(isinstance(label, str) and _reads_as_number(label) for label in actions):
        return  # "1" and 1 may then be the same action
    known = {label: k for k, label in enumerate(actions)}
    for label, place in zip(logged, get_index(actions, logged), strict=True):
        if not (isinstance(label, str) and _reads_as_number(label)):
            assert place == known.get(label, -1)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# -- columns and expressions ---------------------------------------------------------------


def test_a_column_is_read_in_python_and_quoted_in_sql() -> None:
    policy = Column('p "v1"')
    batch = Batch(np.array([0, 0]), {'p "v1"': np.array([0.25, 0.75], dtype=np.float32)})
    assert policy.prob(batch).tolist() == [0.25, 0.75]
    assert policy.prob(batch).dtype == np.float64
    assert policy.expression().sql("duckdb") == '"p ""v1"""'
    assert Column("select").expression().sql("spark") == "`select`"


@pytest.mark.parametrize(
    "sql", ["p", "p / 2", "case when a = 1 then 0.9 else 0.1 end", "ctx.p", "p[1]", "exp(lp)"]
)
def test_scalar_expressions_are_accepted(sql: str) -> None:
    assert Expression(sql).expression().sql("duckdb").lower() == sql


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "select 1",
        "(select max(p) from log)",
        "p in (select 1)",
        "p; q",
        "p); drop table log",
        "drop table log",
        "avg(p)",
        "p / sum(p) over ()",
        "p as q",
        "(p, q)",
        "*",
        "?",
        "$1",
        "unnest(ps)",
        "p +",
        "'p",
        "from log",
    ],
)
def test_anything_but_one_scalar_expression_is_refused_with_its_text(sql: str) -> None:
    with refused(PoolwiseError) as caught:
        Expression(sql)
    assert sql in str(caught.value)


def test_an_expression_does_not_share_its_tree() -> None:
    policy = Expression("p + 1")
    policy.expression().set("this", None)
    assert policy.expression().sql() == "p + 1"


def test_an_expression_cannot_be_scored_in_python() -> None:
    with refused(PolicyError):
        Expression("p / 2").prob(rows([0]))


# -- uniform -------------------------------------------------------------------------------


def test_uniform_over_a_number_of_actions_accepts_any_label() -> None:
    assert Uniform(4).prob(rows(["a", "z"])).tolist() == [0.25, 0.25]
    assert Uniform(4).actions == range(4)


def test_uniform_over_labels_gives_none_to_others() -> None:
    policy = Uniform(["a", "b"])
    assert policy.prob(rows(["b", "z"])).tolist() == [0.5, 0.0]
    assert policy.actions == ("a", "b")
    assert policy.expression() is None
    assert Uniform(range(2)).prob(rows([1, 7])).tolist() == [0.5, 0.0]


@pytest.mark.parametrize("actions", [0, -1, [], "abc", ["a", "a"]])
def test_uniform_needs_distinct_actions(actions: Any) -> None:  # noqa: ANN401 - wrong on purpose
    with refused(PolicyError):
        Uniform(actions)


@pytest.mark.parametrize("count", [1, 3, 7, 49, 1_000_003])
def test_uniform_is_the_same_number_in_sql(count: int) -> None:
    assert evaluated(Uniform(count)) == 1 / count


def evaluated(policy: Policy, **columns: float) -> float:
    """Value of a policy inside DuckDB, on one row."""
    expression = find_expression(policy)
    assert expression is not None
    values = (
        ", ".join(f'{value!r} as "{name}"' for name, value in columns.items()) or "1 as one"
    )
    with duckdb.connect() as connection:
        query = f"select {expression.sql('duckdb')} from (select {values})"
        ((value,),) = connection.execute(query).fetchall()
    return float(value)


# -- tables --------------------------------------------------------------------------------


def test_a_table_gives_what_it_lists_and_0_to_the_rest() -> None:
    policy = Table({"a": 0.7, "b": 0.3})
    assert policy.prob(rows(["b", "z", "a"])).tolist() == [0.3, 0.0, 0.7]
    assert policy.distribution(rows(["z"])).tolist() == [[0.7, 0.3]]
    assert policy.actions == ("a", "b")


def test_a_table_by_context_reads_its_own_line() -> None:
    policy = Table({"new": {1: 0.9, 2: 0.1}, "old": {2: 0.6, 3: 0.4}}, context="user")
    batch = rows([1, 1, 2, 3, 3], user=["new", "old", "old", "old", "none"])
    assert policy.prob(batch).tolist() == [0.9, 0.0, 0.6, 0.4, 0.0]
    assert policy.actions == (1, 2, 3)
    assert policy.distribution(batch)[[0, 1, 4]].tolist() == [
        [0.9, 0.1, 0.0],
        [0.0, 0.6, 0.4],
        [0.0, 0.0, 0.0],
    ]


def test_a_table_by_two_columns_does_not_mix_them_up() -> None:
    cells = {("SE", 1): {"a": 1.0}, ("SE", 2): {"b": 1.0}, ("NO", 2): {"a": 0.25, "b": 0.75}}
    policy = Table(cells, context=("country", "week"))
    batch = rows(
        ["a", "a", "b", "b", "a"], country=["SE", "SE", "SE", "NO", "NO"], week=[1, 2, 2, 2, 1]
    )
    assert policy.prob(batch).tolist() == [1.0, 0.0, 1.0, 0.75, 0.0]


def test_a_table_from_json_finds_numbers() -> None:
    policy = Table({"1": {"10": 0.5, "20": 0.5}, "2": {"10": 1.0}}, context="user")
    assert policy.prob(rows([20, 20, 10], user=[1, 2, 2])).tolist() == [0.5, 0.0, 1.0]


@pytest.mark.parametrize(
    ("probabilities", "context"),
    [
        ({"a": 1.2, "b": -0.2}, None),
        ({"a": math.nan, "b": 1.0}, None),
        ({"a": "0.5", "b": 0.5}, None),
        ({"a": 0.5, "b": 0.4}, None),
        ({"x": {"a": 1.0}, "y": {"a": 0.8}}, "user"),
        ({("x", 1): {"a": 0.8}}, ("user", "week")),
        ({"x": {"a": 1.0}}, None),
        ({"a": 1.0}, "user"),
        ({"xy": {"a": 1.0}}, ("user", "week")),
        ({}, None),
        ({}, "user"),
    ],
)
def test_a_table_that_is_no_distribution_is_refused(
    probabilities: dict[Any, Any], context: str | tuple[str, ...] | None
) -> None:
    with refused(PolicyError):
        Table(probabilities, context)


def test_a_table_may_be_rounded() -> None:
    assert Table({"a": 0.3333333, "b": 0.3333333, "c": 0.3333333}).prob(rows(["b"])) == [
        0.3333333
    ]


# -- softmax -------------------------------------------------------------------------------


def test_softmax_of_logarithms_is_proportional() -> None:
    # e^log(1), e^log(3) in proportion 1 to 3; at temperature 1/2 squared: 1 to 9
    batch = rows(["a", "b", "z"], low=[math.log(1)] * 3, high=[math.log(3)] * 3)
    plain = Softmax(["low", "high"], ["a", "b"])
    sharp = Softmax(lambda batch: batch.context, ["a", "b"], temperature=0.5)
    assert plain.prob(batch) == pytest.approx([0.25, 0.75, 0.0], rel=1e-15)
    assert sharp.prob(batch) == pytest.approx([0.1, 0.9, 0.0], rel=1e-15)
    assert plain.log_prob(batch)[2] == -math.inf


def test_softmax_keeps_logarithms_that_probabilities_lose() -> None:
    batch = rows(["a"], a=[-2000.0], b=[0.0])
    assert Softmax(["a", "b"], ["a", "b"]).prob(batch).tolist() == [0.0]
    assert Softmax(["a", "b"], ["a", "b"]).log_prob(batch).tolist() == [-2000.0]


def test_softmax_never_plays_a_masked_action() -> None:
    batch = rows(["a", "b"], a=[-math.inf] * 2, b=[1.0] * 2)
    assert Softmax(["a", "b"], ["a", "b"]).prob(batch).tolist() == [0.0, 1.0]


def test_softmax_at_a_tiny_temperature_is_greedy() -> None:
    batch = rows(["a", "b"], a=[1e300] * 2, b=[-1e300] * 2)
    policy = Softmax(["a", "b"], ["a", "b"], temperature=1e-300)
    assert policy.prob(batch).tolist() == [1.0, 0.0]


def test_softmax_checks_its_parameters() -> None:
    with refused(PolicyError):
        Softmax(["a"], ["a"], temperature=0)
    with refused(PolicyError):
        Softmax(["a", "b"], ["a", "a"])
    with refused(PolicyError):
        Softmax(["s"], ["a", "b"]).prob(rows(["a"], s=[1.0]))


scores = st.lists(st.floats(-50, 50), min_size=3, max_size=3)


@given(scores, st.floats(-1e3, 1e3), st.floats(0.1, 10))
def test_softmax_ignores_a_shift_of_all_scores(
    values: list[float], shift: float, temperature: float
) -> None:
    def policy(by: float) -> Softmax:
        return Softmax(lambda batch: batch.context + by, ["a", "b", "c"], temperature)

    batch = Batch(np.array(["c"]), {"s": np.array([values])})
    # a shift of 1e3 costs 2e3 * 2^-53 in a score, 1e-12 after a temperature of 0.1
    np.testing.assert_allclose(
        policy(shift).distribution(batch), policy(0).distribution(batch), atol=1e-11
    )


# -- epsilon-greedy ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "best", ["top", lambda batch: batch["top"]], ids=["column", "function"]
)
def test_epsilon_greedy_splits_epsilon_among_all_actions(best: object) -> None:
    batch = rows(["a", "b", "c", "z"], top=["a", "a", "c", "a"])
    policy = EpsilonGreedy(best, ["a", "b", "c"], epsilon=0.3)
    # 0.3 / 3 for any, 0.7 more for the best, nothing for a stranger
    assert policy.prob(batch) == pytest.approx([0.8, 0.1, 0.8, 0.0], rel=1e-15)


def test_epsilon_greedy_asks_a_model_for_the_best() -> None:
    model = LogisticRegression().fit([[0.0], [1.0], [8.0], [9.0]], ["a", "a", "b", "b"])
    policy = EpsilonGreedy(model, ["b", "a"], epsilon=0.5)
    batch = rows(["a", "b", "b"], x=[0.0, 0.0, 9.0])
    assert policy.prob(batch).tolist() == [0.75, 0.25, 0.75]


def test_epsilon_greedy_refuses_a_best_action_it_does_not_have() -> None:
    policy = EpsilonGreedy("top", ["a", "b"], epsilon=0.1)
    with refused(PolicyError) as caught:
        policy.prob(rows(["a", "a"], top=np.array(["a", "q"], dtype=object)))
    assert caught.value.rows == (1,)
    with refused(PolicyError):
        EpsilonGreedy("top", ["a", "b"], epsilon=1.5)


# -- classifiers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "logged", "expected"),
    [
        (["a", "b"], ["b", "a", "z"], [0.75, 0.25, 0.0]),
        ([1, 2], ["2", "1", "x"], [0.75, 0.25, 0.0]),
        (["1", "2"], [2, 1, 3], [0.75, 0.25, 0.0]),
        ([1.0, 2.0], [2, 1, 3], [0.75, 0.25, 0.0]),
        ([False, True], [1, 0, 3], [0.75, 0.25, 0.0]),
    ],
)
def test_a_classifier_gives_its_probability_of_the_logged_class(
    classes: list[object], logged: list[object], expected: list[float]
) -> None:
    policy = Classifier(Fitted(classes, [0.25, 0.75]))
    assert policy.prob(rows(logged, x=[0.0, 0.0, 0.0])).tolist() == expected


def test_a_classifier_fitted_to_a_matrix_takes_columns_in_the_order_given() -> None:
    features = np.array([[0.0, 5.0], [1.0, 3.0], [2.0, 4.0], [3.0, 1.0]])
    model = LogisticRegression().fit(features, ["a", "b", "a", "b"])
    batch = rows(["a"] * 4, skip=[9.0] * 4, v=features[:, 1], u=features[:, 0])
    expected = model.predict_proba(features)[:, 0]
    assert Classifier(model, ["u", "v"]).prob(batch).tolist() == expected.tolist()


def test_a_classifier_fitted_to_a_frame_finds_its_features_by_name() -> None:
    frame = pd.DataFrame({"u": [0.0, 1.0, 2.0, 3.0], "v": [5.0, 3.0, 4.0, 1.0]})
    model = LogisticRegression().fit(frame, ["a", "b", "a", "b"])
    batch = rows(["b"] * 4, skip=["x"] * 4, v=frame["v"].tolist(), u=frame["u"].tolist())
    renamed = rows(["b"] * 4, v2=frame["v"].tolist(), u2=frame["u"].tolist())
    expected = model.predict_proba(frame)[:, 1].tolist()  # warnings are errors here
    assert Classifier(model).prob(batch).tolist() == expected
    assert Classifier(model, ["u2", "v2"]).prob(renamed).tolist() == expected
    with refused(MissingColumnError):
        Classifier(model).prob(renamed)


def test_a_classifier_that_encodes_text_gets_text() -> None:
    frame = pd.DataFrame({"country": ["SE", "NO", "SE", "NO"]})
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(frame, [1, 2, 1, 2])
    expected = model.predict_proba(frame)[:, 0].tolist()
    batch = rows([1] * 4, country=["SE", "NO", "SE", "NO"])
    assert Classifier(model).prob(batch).tolist() == expected


def test_a_classifier_of_the_wrong_width_is_refused() -> None:
    with refused(PolicyError):
        Classifier(Fitted(["a", "b"], [0.2, 0.3, 0.5])).prob(rows(["a"], x=[0.0]))


# -- mixtures ------------------------------------------------------------------------------


def test_a_mixture_adds_its_parts_in_their_shares() -> None:
    policy = Mixture([Table({"a": 0.9, "b": 0.1}), Uniform(["b", "a"])], [0.25, 0.75])
    batch = rows(["a", "b", "z"])
    # 0.25 * 0.9 + 0.75 * 0.5 = 0.6
    assert policy.prob(batch) == pytest.approx([0.6, 0.4, 0.0], rel=1e-15)
    assert policy.actions == ("a", "b")
    assert policy.distribution(batch) == pytest.approx(np.array([[0.6, 0.4]] * 3), rel=1e-15)
    assert policy.log_prob(batch)[:2] == pytest.approx(np.log([0.6, 0.4]), rel=1e-14)
    assert policy.log_prob(batch)[2] == -math.inf


def test_a_mixture_keeps_logarithms_that_probabilities_lose() -> None:
    deep = Softmax(["a", "b"], ["a", "b"])
    deeper = Softmax(["a", "b"], ["a", "b"], temperature=0.5)
    batch = rows(["a"], a=[-2000.0], b=[0.0])
    # log(e^-2000 / 4 + 3/4 e^-4000) = -2000 - log 4
    expected = -2000 - math.log(4)
    assert Mixture([deep, deeper], [0.25, 0.75]).log_prob(batch) == pytest.approx([expected])


def test_a_mixture_aligns_actions_by_label_not_by_place() -> None:
    policy = Mixture([Table({"a": 1.0, "b": 0.0}), Table({"b": 1.0, "a": 0.0})], [0.3, 0.7])
    assert policy.distribution(rows(["a"])).tolist() == [[0.3, 0.7]]


@pytest.mark.parametrize(
    "parts",
    [
        [Uniform(["a", "b"]), Uniform(["a", "c"])],
        [Uniform(["a", "b"]), Uniform(["a", "b", "c"])],
        [Uniform(["a", "b", "c"]), Uniform(["a", "b"])],
        [Uniform(["a", "b"]), Column("p")],
    ],
)
def test_a_mixture_of_different_actions_has_no_distribution(parts: list[Policy]) -> None:
    policy = Mixture(parts, [0.5, 0.5])
    assert not is_distribution(policy)
    with refused(PolicyError):
        policy.distribution(rows(["a"]))


def test_a_mixture_is_sql_if_all_its_parts_are() -> None:
    policy = Mixture([Column("p v1"), Expression("q + r"), Uniform(3)], [0.25, 0.5, 0.25])
    value = evaluated(policy, **{"p v1": 0.5, "q": 0.125, "r": 0.125})
    # by parts 0.25 * 0.5, then 0.5 * (0.125 + 0.125), then 0.25 / 3
    assert value == pytest.approx(0.25 + 0.25 / 3, rel=1e-15)
    inner = Mixture([policy, Column("p")], [0.5, 0.5])
    assert find_expression(inner) is not None
    assert find_expression(Mixture([policy, Table({"a": 1.0})], [0.5, 0.5])) is None
    assert find_expression(Table({"a": 1.0})) is None


@pytest.mark.parametrize(
    "shares", [[0.5], [0.5, 0.6], [1.5, -0.5], [1.0, 0.0], [math.nan, 1.0], [1.0, math.nan]]
)
def test_a_mixture_needs_shares(shares: list[float]) -> None:
    with refused(PolicyError):
        Mixture([Uniform(2), Uniform(3)], shares)
    with refused(PolicyError):
        Mixture([], [])


def test_a_mixture_takes_what_a_log_takes() -> None:
    policy = Mixture(["p", {"a": 1.0}], [0.5, 0.5])  # type: ignore[list-item]
    assert policy.prob(rows(["a"], p=[0.5])).tolist() == [0.75]


def test_rounded_shares_are_made_to_sum_to_1() -> None:
    policy = Mixture([Uniform(2)] * 3, [0.3333333] * 3)
    assert policy.prob(rows([0])) == pytest.approx([0.5], rel=1e-15)


positive = st.floats(0.01, 1)


def simplex(size: int) -> st.SearchStrategy[list[float]]:
    return st.lists(positive, min_size=size, max_size=size).map(
        lambda mass: [m / math.fsum(mass) for m in mass]
    )


@given(st.lists(simplex(3), min_size=1, max_size=4), st.data())
def test_a_mixture_is_the_weighted_sum_of_its_parts(
    tables: list[list[float]], data: st.DataObject
) -> None:
    parts = [Table(dict(zip("abc", row, strict=True))) for row in tables]
    shares = data.draw(simplex(len(parts)))
    batch = rows(list("abcabz"))
    expected = sum(s * part.prob(batch) for s, part in zip(shares, parts, strict=True))
    mixture = Mixture(parts, shares)
    np.testing.assert_allclose(mixture.prob(batch), expected, rtol=1e-14)
    np.testing.assert_allclose(np.exp(mixture.log_prob(batch)), expected, rtol=1e-14)


# -- what holds for every distribution -----------------------------------------------------


def every_distribution(table: list[float], values: list[float], epsilon: float) -> list[Policy]:
    listed = Table(dict(zip("abc", table, strict=True)))
    by_user = Table(
        {"u": {"a": 1.0}, "v": dict(zip("abc", table, strict=True))}, context="user"
    )
    softmax = Softmax(lambda batch: np.tile(values, (len(batch), 1)), ["a", "b", "c"])
    greedy = EpsilonGreedy("top", ["c", "b", "a"], epsilon)
    classifier = Classifier(Fitted(["a", "b", "c"], table), columns=["x"])
    parts: list[Policy] = [listed, softmax, greedy, classifier]
    return [Uniform(["a", "b", "c"]), by_user, Mixture(parts, [0.25] * 4), *parts]


@given(simplex(3), scores, st.floats(0, 1))
def test_probabilities_sum_to_1_and_agree_with_the_logged_action(
    table: list[float], values: list[float], epsilon: float
) -> None:
    columns = {"top": np.array(["a", "c"]), "user": np.array(["u", "v"]), "x": np.zeros(2)}
    for policy in every_distribution(table, values, epsilon):
        assert is_distribution(policy)
        by_action = [policy.prob(Batch(np.array([a, a]), columns)) for a in policy.actions]
        matrix = policy.distribution(Batch(np.array(["a", "z"]), columns))
        np.testing.assert_allclose(np.sum(by_action, axis=0), 1, rtol=1e-12)
        np.testing.assert_allclose(np.transpose(by_action), matrix, rtol=1e-14)
        stranger = Batch(np.array(["z", "z"]), columns)
        assert policy.prob(stranger).tolist() == [0.0, 0.0]
        assert log_prob(policy, stranger).tolist() == [-math.inf, -math.inf]
        seen = log_prob(policy, Batch(np.array(["a", "c"]), columns))
        np.testing.assert_allclose(
            np.exp(seen), policy.prob(Batch(np.array(["a", "c"]), columns)), rtol=1e-13
        )


def test_policies_survive_a_journey_to_another_process() -> None:
    policies: list[Policy] = [
        Column("p"),
        Expression("p / 2"),
        Uniform(["a", "b"]),
        Table({"a": 1.0}),
        Softmax(["s", "t"], ["a", "b"]),
        EpsilonGreedy("top", ["a", "b"], 0.1),
        Mixture([Uniform(2), Column("p")], [0.5, 0.5]),
    ]
    for policy in policies:
        assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301 - our own bytes


def as_distribution(policy: Distribution) -> Sequence[object]:
    return policy.actions


def test_the_types_agree_that_these_are_distributions() -> None:
    assert as_distribution(Uniform(2)) == range(2)
    assert as_distribution(Softmax(["s"], ["a"])) == ("a",)
    assert as_distribution(EpsilonGreedy("s", ["a"], 0.1)) == ("a",)
    assert as_distribution(Classifier(Fitted(["a"], [1.0]))) == ("a",)
    assert as_distribution(Table({"a": 1.0})) == ("a",)
    assert as_distribution(Mixture([Uniform(["a"])], [1.0])) == ("a",)


# -- choosing an adapter -------------------------------------------------------------------


def half(batch: Batch) -> NDArray[np.float64]:
    return np.full(len(batch), 0.5)


MODEL = Fitted(["a"], [1.0])


@pytest.mark.parametrize(
    ("value", "columns", "expected"),
    [
        ("p_v1", [], Column("p_v1")),
        ("p v1", ["p v1"], Column("p v1")),
        ("select", ["select"], Column("select")),
        ("a + b", ["a + b"], Column("a + b")),
        ("a + b", ["a", "b"], Expression("a + b")),
        ('"p v1"', [], Column("p v1")),
        ("ctx.p", [], Expression("ctx.p")),
        (0.5, [], Expression("0.5e0")),
        (1, [], Expression("1.0e0")),
        (np.float32(0.25), [], Expression("0.25e0")),
        (1e-30, [], Expression("1e-30")),
        ({"a": 1.0}, [], Table({"a": 1.0})),
        (half, [], Function(half)),
        (MODEL, [], Classifier(MODEL)),
    ],
)
def test_a_value_becomes_the_policy_it_looks_like(
    value: Any,  # noqa: ANN401 - every kind of value on purpose
    columns: list[str],
    expected: Policy,
) -> None:
    assert as_policy(value, columns) == expected


def test_a_policy_is_itself() -> None:
    policy = Uniform(3)
    assert as_policy(policy) is policy


@pytest.mark.parametrize(
    "value",
    [None, 1.5, math.nan, True, Uniform, [[0.5], [0.5, 1]], np.ones((3, 1)), ["a"]],
)
def test_what_is_no_policy_is_told_what_would_be(value: Any) -> None:  # noqa: ANN401
    with refused(PoolwiseError):
        as_policy(value)


def test_text_that_is_nothing_is_answered_with_the_nearest_column() -> None:
    with refused(PoolwiseError):
        as_policy("p v2", columns=["p v1", "reward"])
    with refused(PoolwiseError):
        as_policy("select 1")


def test_a_constant_is_a_double_in_sql() -> None:
    assert evaluated(as_policy(1 / 7)) == 1 / 7
    assert evaluated(as_policy(0)) == 0


def test_a_function_is_called_with_the_batch() -> None:
    assert Function(half).prob(rows(["a", "b"])).tolist() == [0.5, 0.5]


def test_policies_import_only_numpy() -> None:
    heavy = "{'sqlglot', 'pyarrow', 'sklearn', 'pandas', 'scipy', 'duckdb', 'threadpoolctl'}"
    code = f"import sys, poolwise.log.adapters; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


VALUES = [0.5, 0.25]


@pytest.mark.parametrize(
    "value",
    [
        np.array(VALUES),
        pd.Series(VALUES, index=["prob", "x"]),
        pd.DataFrame({"prob": VALUES}),
        pl.Series(VALUES),
        pa.array(VALUES),
        pa.chunked_array([VALUES]),
        VALUES,
        tuple(VALUES),
    ],
    ids=lambda value: f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}",
)
def test_values_of_other_roles_belong_into_a_column(value: Any) -> None:  # noqa: ANN401 - no policy
    log = Log({"r": [1.0, 0.0], "p": VALUES}, reward="r", propensity="p")
    if isinstance(value, pd.DataFrame):
        with refused(UsageError):
            evaluate(log, cast("Any", value))
        for ask in (evaluate, check, compare):
            with pytest.raises(UsageError, match="as a column"):
                ask(log, {"new": cast("Any", value), "old": "p"})
    for role in ("reward", "cluster", "period"):
        with pytest.raises(UsageError, match="as a column"):
            evaluate(replace(log, **{role: value}), "p")


@pytest.mark.parametrize("role", ["action", "eligible", "context"])
def test_names_of_columns_are_text(role: str) -> None:
    given: dict[str, Any] = {role: np.array(VALUES)}
    with refused(UsageError):
        Log("x.parquet", reward="r", propensity="p", **given)
