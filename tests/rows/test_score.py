from __future__ import annotations

import datetime as dt
import decimal
import math
import pickle
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_info, threadpool_limits

from poolwise.errors import MissingColumnError, PolicyError, PoolwiseError
from poolwise.log.adapters import Classifier, EpsilonGreedy, Softmax, Table
from poolwise.log.policy import Batch, Column, Function, Policy, Uniform
from poolwise.rows.append import score
from poolwise.rows.score import Scorer, check_values, checked_distribution, to_batch
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


def one_batch(**columns: object) -> pa.RecordBatch:
    return pa.record_batch(columns)


def scored(batches: Sequence[pa.RecordBatch], policy: Policy, **options: Any) -> list[Any]:  # noqa: ANN401 - passed on
    columns = {"action": "item", "context": (), **options}
    workers = columns.pop("workers", None)
    stream = score(batches, Scorer({"p": policy}, **columns), workers=workers)
    return [v for batch in stream for v in batch["p"].to_pylist()]


# -- scoring -------------------------------------------------------------------------------


def test_each_policy_becomes_a_column_beside_the_others() -> None:
    rows = one_batch(item=["a", "b", "z"], top=["a", "a", "a"])
    policies: dict[str, Policy] = {
        "even": Uniform(["a", "b"]),
        "greedy": EpsilonGreedy("top", ["a", "b"], 0.5),
    }
    (result,) = score([rows], Scorer(policies, "item", ("top",)))
    assert result.to_pydict() == {
        "item": ["a", "b", "z"],
        "top": ["a", "a", "a"],
        "even": [0.5, 0.5, 0.0],
        "greedy": [0.75, 0.25, 0.0],
    }
    assert result.schema.field("even").type == pa.float64()


def test_logarithms_come_from_the_policy_that_has_them() -> None:
    rows = one_batch(item=["a", "z"], a=[-2000.0] * 2, b=[0.0] * 2)
    policies: dict[str, Policy] = {
        "deep": Softmax(["a", "b"], ["a", "b"]),
        "listed": Table({"a": 0.25, "b": 0.75}),
    }
    (result,) = score([rows], Scorer(policies, "item", ("a", "b"), log_probabilities=True))
    assert result["deep"].to_pylist() == [-2000.0, -math.inf]
    assert result["listed"].to_pylist() == [math.log(0.25), -math.inf]


def test_no_rows_need_no_model() -> None:
    model = LogisticRegression().fit([[0.0], [1.0]], ["a", "b"])
    empty = one_batch(item=pa.array([], pa.string()), x=pa.array([], pa.float64()))
    full = one_batch(item=["a"], x=[0.0])
    assert scored([], Classifier(model), context=["x"]) == []
    expected = model.predict_proba([[0.0]])[0, 0]
    assert scored([empty, full, empty], Classifier(model), context=["x"]) == [expected]


def test_a_log_without_actions_serves_policies_that_need_none() -> None:
    rows = one_batch(q=[0.25, 0.5])
    assert scored([rows], Column("q"), action=None, context=["q"]) == [0.25, 0.5]
    with refused(PolicyError):
        scored([rows], Table({"a": 1.0}), action=None)


@given(
    values=st.lists(st.integers(0, 4), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    workers=st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)  # threads start at their own pace
def test_order_and_values_do_not_depend_on_batches_or_threads(
    values: list[int], cuts: list[int], workers: int
) -> None:
    table = pa.table({"item": pa.array(values, pa.int64()), "row": np.arange(len(values))})
    edges = sorted({0, len(values), *(min(cut, len(values)) for cut in cuts)})
    batches = [
        batch
        for start, stop in pairwise(edges)
        for batch in table.slice(start, stop - start).to_batches()
    ]
    policy = Softmax(lambda batch: np.outer(np.sin(batch["row"]), np.arange(4.0)), range(4))
    whole = Batch(np.array(values, dtype=np.int64), {"row": np.arange(len(values))})
    options = {"context": ["row"], "workers": workers}
    # a batch's last values may take another branch of a vectorised sine
    np.testing.assert_allclose(
        scored(batches, policy, **options), policy.prob(whole), rtol=1e-14
    )


def test_slow_batches_are_waited_for() -> None:
    second_done = threading.Event()

    def slow_first(batch: Batch) -> NDArray[np.float64]:
        if batch.action[0] == 0:
            assert second_done.wait(timeout=30)
        else:
            second_done.set()
        return batch.action / 10

    batches = [one_batch(item=[k]) for k in range(4)]
    assert scored(batches, Function(slow_first), workers=2) == [0.0, 0.1, 0.2, 0.3]


def test_only_a_few_batches_are_read_ahead() -> None:
    read = 0

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for k in range(100):
            read += 1
            yield one_batch(item=[k])

    stream = score(source(), Scorer({"p": Uniform(2)}, "item", ()), workers=3)
    assert read == 0
    for taken, _ in enumerate(stream, start=1):
        assert read <= taken - 1 + 2 * 3
    assert read == 100


def blas_threads(*others: str) -> list[int]:
    found = threadpool_info()
    return [pool["num_threads"] for pool in found if pool["user_api"] in {"blas", *others}]


def test_blas_has_one_thread_while_scoring_and_its_own_afterwards() -> None:
    inside: list[list[int]] = []

    def spy(batch: Batch) -> NDArray[np.float64]:
        inside.append(blas_threads("openmp"))
        return np.ones(len(batch))

    batches = [one_batch(item=[k]) for k in range(50)]
    with threadpool_limits(limits=2):
        before = blas_threads()
        assert set(before) == {2}
        scored(batches, Function(spy))
        assert blas_threads() == before
        stream = score(batches, Scorer({"p": Function(spy)}, "item", ()))
        next(stream)
        assert set(blas_threads()) == {1}
        stream.close()  # type: ignore[attr-defined]
        assert blas_threads() == before
        with pytest.raises(PolicyError):
            scored(batches, Column("gone"))
        assert blas_threads() == before
    assert {count for counts in inside for count in counts} == {1}


def test_closing_early_leaves_no_thread_behind() -> None:
    threads = threading.active_count()
    stream = score(
        (one_batch(item=[k]) for k in range(1000)), Scorer({"p": Uniform(2)}, "item", ())
    )
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert threading.active_count() == threads


def test_a_scorer_travels() -> None:
    scorer = pickle.loads(pickle.dumps(Scorer({"p": Uniform(["a"])}, "item", ())))  # noqa: S301
    assert scorer(one_batch(item=["a", "b"]))["p"].to_pylist() == [1.0, 0.0]


def test_a_name_that_is_taken_is_refused() -> None:
    with refused(PoolwiseError):
        list(score([one_batch(item=[1])], Scorer({"item": Uniform(2)}, "item", ())))


# -- what policies may do wrong ------------------------------------------------------------


def failing(batch: Batch) -> NDArray[np.float64]:
    if batch.action[0] == 2:
        raise ValueError("no such user")
    return np.ones(len(batch))


def test_an_exception_names_the_policy_and_its_rows() -> None:
    batches = [one_batch(item=[k] * 10) for k in range(5)]
    with refused(PolicyError) as caught:
        scored(batches, Function(failing))
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.policy == "p"


def test_the_rows_of_our_own_errors_are_counted_from_the_start() -> None:
    batches = [one_batch(item=["a"] * 3, top=["a", "a", "a"]) for _ in range(2)]
    batches.append(one_batch(item=["a"] * 3, top=["a", "q", "a"]))
    with refused(PolicyError) as e:
        scored(batches, EpsilonGreedy("top", ["a", "b"], 0.1), context=["top"])
    assert e.value.rows == (7,)


def test_a_column_that_a_policy_misses_is_named() -> None:
    with refused(PolicyError):
        scored([one_batch(item=[1], q1=[0.5])], Column("q"), context=["q1"])
    with refused(MissingColumnError):
        scored([one_batch(item=[1])], Uniform(2), action="itm")


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        (
            [0.5, 0.5],
            (),
        ),
        (0.5, ()),
        ([[0.5], [0.5], [0.5]], ()),
        (["a", "b", "c"], ()),
        ([0.5, None, 0.5], ()),
        (
            [0.5, math.nan, 0.5],
            (101,),
        ),
        (
            [1.5, 0.5, -0.25],
            (100, 102),
        ),
        ([0.5, math.inf, 0.5], (101,)),
        ([0.5, 1 + 2e-9, 0.5], (101,)),
    ],
)
def test_what_is_no_probability_is_refused_by_row(
    values: object, rows: tuple[int, ...]
) -> None:
    with refused(PolicyError) as caught:
        check_values("v1", values, length=3, first_row=100)
    assert caught.value.rows == rows
    assert str(caught.value).startswith("policy 'v1' ")


def test_no_more_than_five_rows_are_listed() -> None:
    with refused(PolicyError) as e:
        check_values("v1", np.full(8, 2.0), length=8)
    assert e.value.rows == (0, 1, 2, 3, 4)


def test_rounding_is_forgiven_and_clipped() -> None:
    exact = check_values("v1", [1 + 5e-10, -5e-10, 0.5], length=3)
    assert exact.tolist() == [1.0, 0.0, 0.5]
    assert check_values("v1", [5e-10, -3.0, -math.inf], 3, logs=True).tolist() == [
        0,
        -3,
        -math.inf,
    ]
    with refused(PolicyError):
        check_values("v1", [0.5], 1, logs=True)


def test_whole_numbers_and_booleans_are_numbers() -> None:
    assert check_values("v1", np.array([True, False]), 2).tolist() == [1.0, 0.0]
    assert check_values("v1", np.array([1, 0], dtype=np.int8), 2).dtype == np.float64
    assert check_values("v1", np.array([0.5], dtype=np.float32), 1).dtype == np.float64


@pytest.mark.parametrize(
    "values",
    [
        [[0.5, 0.5]],
        [[0.5, 0.5], [math.nan, 1.0]],
        [[0.5, 0.5], [1.5, -0.5]],
        [[0.5, 0.4], [0.5, 0.5]],
    ],
)
def test_what_is_no_distribution_is_refused_by_row(values: object) -> None:
    with refused(PolicyError):
        checked_distribution("v1", values, (2, 2), first_row=10)


def test_a_distribution_may_be_rounded() -> None:
    values = [[0.3333333, 0.3333333, 0.3333333]]
    assert checked_distribution("v1", values, (1, 3)).tolist() == values


# -- from Arrow to NumPy -------------------------------------------------------------------


def column_of(values: pa.Array) -> NDArray[Any]:
    return to_batch(pa.record_batch({"c": values}), None, ["c"])["c"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([1.5, None]), [1.5, math.nan]),
        (pa.array([1, None]), [1.0, math.nan]),
        (pa.array([True, None]), [1.0, math.nan]),
        (pa.nulls(2), [math.nan, math.nan]),
        (pa.array([decimal.Decimal("0.25"), None]), [0.25, math.nan]),
        (pa.array([[1.0, 2.0], [3.0, None]]), [[1.0, 2.0], [3.0, math.nan]]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], [3, 4]]),
        (pa.array([[1], [2]], pa.large_list(pa.float32())), [[1], [2]]),
        (pa.array([[0.0], [1.0, 2.0], [3.0, 4.0]]).slice(1), [[1.0, 2.0], [3.0, 4.0]]),
        (pa.array([True, False]), [True, False]),
    ],
)
def test_numbers_of_every_kind_become_arrays(values: pa.Array, expected: list[Any]) -> None:
    array = column_of(values)
    assert array.dtype.kind in "bif"
    np.testing.assert_array_equal(array, expected)


def test_text_is_decoded() -> None:
    for values in (pa.array(["a", "b", None]), pa.array(["a", "b", None]).dictionary_encode()):
        assert column_of(values).tolist() == ["a", "b", None]


def test_dates_stay_dates() -> None:
    days = column_of(pa.array([dt.date(2017, 8, 13)]))
    assert days.tolist() == [dt.date(2017, 8, 13)]


@pytest.mark.parametrize(
    "lists",
    [
        pa.array([[1.0], [1.0, 2.0]]),
        pa.array([[1.0, 2.0], None]),
        pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2)),
        pa.array([None, None], pa.list_(pa.float64())),
    ],
)
def test_lists_that_make_no_matrix_stay_lists(lists: pa.Array) -> None:
    batch = to_batch(pa.record_batch({"x": lists}), None, ["x"])
    assert batch["x"].shape == (2,)
    with refused(PoolwiseError):
        _ = batch.context


def test_floats_are_not_copied() -> None:
    values = np.array([0.25, 0.5])
    assert np.shares_memory(column_of(pa.array(values)), values)


def test_long_identifiers_keep_their_digits_beside_a_null() -> None:
    rows = one_batch(item=[2**53 + 1, None])
    assert to_batch(rows, "item", []).action.tolist() == [2**53 + 1, None]
    assert scored([rows], Table({2**53: 0.75, 2**53 + 1: 0.25})) == [0.25, 0.0]


def test_an_action_may_be_a_list() -> None:
    rows = one_batch(item=[[1, 0], [0, 1]])
    assert scored([rows], Function(lambda batch: batch.action[:, 0] / 2)) == [0.5, 0.0]
    assert to_batch(one_batch(item=[[1, 0], None]), "item", []).action.tolist() == [
        [1, 0],
        None,
    ]


def test_all_missing_columns_are_named_together() -> None:
    with pytest.raises(MissingColumnError) as caught:
        to_batch(one_batch(item=[1]), "itm", ["age"])
    assert caught.value.missing == {"age": "context", "itm": "action"}
