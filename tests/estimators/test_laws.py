"""Laws that every estimator obeys, numbered 1-5 and 8-11.

Law 8, the golden numbers, is `engines/test_exact`; law 10, degenerate logs, is in
`estimators/test_ips`; law 11 also in `engines/test_moments_numbers`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolwise import Balanced, DuckDB, FiniteProblem, Log, Naive, Weighted, evaluate
from poolwise.moments.moments import pool_moments
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    second_moment,
)
from tests.support.reference import PAPER, Reference, assert_same, log_of, random_table
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.moments.estimate import Estimate, Estimator

seeds = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=4)  # each one is an evaluation of real rows
MANY = settings(max_examples=200)


def estimates(log: Log, target: Any = "t", **options: Any) -> Mapping[str, Estimate]:  # noqa: ANN401
    """The paper's three, if none is named."""
    return evaluate(log, {"target": target}, **({"estimators": PAPER} | options))[
        "target"
    ].estimates


def table_of(seed: int, **options: Any) -> pa.Table:  # noqa: ANN401 - of random_table
    rng = np.random.default_rng(seed)
    counts = {"a": int(rng.integers(2, 40)), "b": int(rng.integers(2, 40))}
    return random_table(rng, counts, **options)


def same(left: Estimate, right: Estimate) -> bool:
    pair = (left.value, left.variance)
    return pair == pytest.approx((right.value, right.variance), rel=1e-9)


def set_column(table: pa.Table, name: str, values: Any) -> pa.Table:  # noqa: ANN401
    array = values if isinstance(values, pa.ChunkedArray) else pa.array(values)
    return table.set_column(table.column_names.index(name), name, array)


# 1. One logger: the three estimators are one.


@FEW
@given(seeds)
def test_with_one_logger_all_estimators_agree(seed: int) -> None:
    table = random_table(np.random.default_rng(seed), {"a": 30})
    found = estimates(log_of(table, ["a"]))
    plain = np.mean(table["t"].to_numpy() / table["p"].to_numpy() * table["reward"].to_numpy())
    for estimate in found.values():
        assert estimate.value == pytest.approx(plain, rel=1e-9)
        assert estimate.shares == {"a": 1.0}
    assert same(found["naive"], found["balanced"])


@pytest.mark.parametrize("label", ["1", "2"])
def test_with_one_exact_logger_all_estimators_agree(label: str) -> None:
    problem = toy("T2")
    alone = replace(problem, loggers={label: problem.loggers[label]}, counts={label: 40})
    naive = alone.exact(Naive())
    for estimator in (Balanced(), Weighted(), Weighted(divergence="own")):
        assert same(alone.exact(estimator), naive)


# 2. All loggers alike: balanced is naive.


@FEW
@given(seeds)
def test_with_loggers_alike_balanced_is_naive(seed: int) -> None:
    table = table_of(seed)
    for name in ("p_a", "p_b"):
        table = set_column(table, name, table["p"])
    found = estimates(log_of(table))
    assert same(found["balanced"], found["naive"])


@pytest.mark.slow
@MANY
@given(seeds)
def test_with_exact_loggers_alike_all_estimators_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = toy("T2")
    policy = rng.dirichlet(np.ones(3), size=2)
    alike = replace(problem, loggers={"1": policy, "2": policy})
    naive = alike.exact(Naive())
    assert same(alike.exact(Balanced()), naive)
    assert same(alike.exact(Weighted()), naive)


# 3. The target is the mixture: balanced is the mean reward.


@FEW
@given(seeds)
def test_when_the_target_is_the_mixture_balanced_is_the_mean_reward(seed: int) -> None:
    table = table_of(seed)
    rows = table["logger"].to_pylist()
    share = rows.count("a") / len(rows)
    mixture = share * table["p_a"].to_numpy() + (1 - share) * table["p_b"].to_numpy()
    evaluation = evaluate(log_of(set_column(table, "t", mixture)), "t", "balanced")
    found = evaluation["target"]
    assert found.estimates["balanced"].value == pytest.approx(
        float(np.mean(table["reward"].to_numpy())), rel=1e-9
    )
    assert found.mixture is not None
    assert found.mixture.mean_weight == pytest.approx(1, rel=1e-12)
    assert found.mixture.largest_weight == pytest.approx(1, rel=1e-12)
    assert found.mixture.effective_rows == pytest.approx(len(rows), rel=1e-12)


def test_when_the_exact_target_is_the_mixture_the_weights_are_one() -> None:
    problem = toy("T2")
    mixed = replace(problem, target=problem.mixture)
    moments = mixed.moments(Needs((REWARD,), ((BALANCED_WEIGHT,),)))
    mean = sum(n / 100 * moments[i].mean(REWARD) for i, n in mixed.counts.items())
    assert mixed.exact(Balanced()).value == pytest.approx(mean, rel=1e-13)
    for m in moments.values():
        assert m.mean(BALANCED_WEIGHT) == pytest.approx(1, rel=1e-13)
        assert m.var(BALANCED_WEIGHT) == pytest.approx(0, abs=1e-25)


# 4. Splitting a log in two with the same policy changes nothing.


def test_splitting_an_exact_log_changes_nothing() -> None:
    problem = toy("T2")
    split = replace(
        problem,
        loggers={**problem.loggers, "2 again": problem.loggers["2"]},
        counts={"1": 40, "2": 25, "2 again": 35},
    )
    expected = {"naive": 0.00734704, "weighted": 0.00431569, "balanced": 0.00447677}
    for estimator in (Naive(), Weighted(), Balanced()):
        before, after = problem.exact(estimator), split.exact(estimator)
        assert same(before, after)
        assert after.variance == pytest.approx(expected[estimator.name], abs=5e-9)


@FEW
@given(seeds)
def test_splitting_a_log_of_rows_keeps_the_estimates(seed: int) -> None:
    table = table_of(seed)
    known = {"a": 2.0, "b": 3.0}
    chosen: list[Estimator] = [Naive(), Balanced(), Weighted("known", known)]
    before = estimates(log_of(table), estimators=chosen)
    rng = np.random.default_rng(seed)
    labels = [
        "c" if k == "b" and rng.random() < 0.5 else k for k in table["logger"].to_pylist()
    ]
    split = set_column(table, "logger", labels).append_column("p_c", table["p_b"])
    loggers = sorted(set(labels))
    chosen[-1] = Weighted("known", {k: known.get(k, 3.0) for k in loggers})
    after = estimates(log_of(split, loggers), estimators=chosen)
    for name, estimate in before.items():
        assert after[name].value == pytest.approx(estimate.value, rel=1e-9)
    assert after["weighted"].variance == pytest.approx(before["weighted"].variance, rel=1e-9)
    assert sum(after["weighted"].shares[k] for k in loggers if k != "a") == pytest.approx(
        before["weighted"].shares["b"], rel=1e-9
    )


# 5. Order has no effect; every row twice halves the variance.


@FEW
@given(seeds)
def test_rows_may_come_in_any_order(seed: int) -> None:
    table = table_of(seed)
    order = np.random.default_rng(seed).permutation(len(table))
    before, after = (evaluate(log_of(t), "t", PAPER) for t in (table, table.take(order)))
    assert_same(before, after)


@FEW
@given(seeds)
def test_loggers_may_come_in_any_order_and_under_other_names(seed: int) -> None:
    table = table_of(seed)
    before = estimates(log_of(table, ["a", "b"]))
    labels = [{"a": "z", "b": "y"}[k] for k in table["logger"].to_pylist()]
    log = log_of(set_column(table, "logger", labels), propensities={"y": "p_b", "z": "p_a"})
    for name, estimate in estimates(log).items():
        assert same(estimate, before[name])
        assert estimate.shares["z"] == pytest.approx(before[name].shares["a"], rel=1e-9)


@pytest.mark.slow
@MANY
@given(seeds)
def test_actions_contexts_and_loggers_of_a_problem_may_be_relabelled(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = toy("T2")
    x, y = rng.permutation(2), rng.permutation(3)
    moved = FiniteProblem(
        context_prob=problem.context_prob[x],
        reward=problem.reward[np.ix_(x, y)],
        target=problem.target[np.ix_(x, y)],
        loggers={i: problem.loggers[i][np.ix_(x, y)] for i in ("2", "1")},
        counts=problem.counts,
        reward_variance=problem.reward_variance[np.ix_(x, y)],
    )
    for estimator in (Naive(), Balanced(), Weighted()):
        assert same(problem.exact(estimator), moved.exact(estimator))


@FEW
@given(seeds)
def test_every_row_twice_keeps_the_estimate_and_halves_the_variance(seed: int) -> None:
    table = table_of(seed)
    once = estimates(log_of(table))
    twice = estimates(log_of(pa.concat_tables([table, table])))
    for name, before in once.items():
        assert twice[name].value == pytest.approx(before.value, rel=1e-9)
    ratio = twice["weighted"].variance / once["weighted"].variance
    assert 0.45 < ratio < 0.5  # half, except for the degrees of freedom of the means


@FEW
@given(seeds)
def test_every_row_of_one_log_twice_halves_the_variance_but_for_one_row(seed: int) -> None:
    """S/(n-1)/n becomes 2S/(2n-1)/(2n), which is (n-1)/(2n-1) of it."""
    table = random_table(np.random.default_rng(seed), {"a": 30})
    before = estimates(log_of(table, ["a"]))["naive"]
    after = estimates(log_of(pa.concat_tables([table, table]), ["a"]))["naive"]
    assert after.variance == pytest.approx(before.variance * 29 / 59, rel=1e-9)


def test_twice_the_rows_of_an_exact_problem_halve_the_variance() -> None:
    problem = toy("T2")
    double = replace(problem, counts={i: 2 * n for i, n in problem.counts.items()})
    for estimator in (Naive(), Balanced(), Weighted()):
        before, after = problem.exact(estimator), double.exact(estimator)
        assert after.value == pytest.approx(before.value, rel=1e-13)
        assert after.variance == pytest.approx(before.variance / 2, rel=1e-13)


# 9. Shards merge to the whole.


@FEW
@given(seeds)
def test_shards_merge_to_the_moments_of_the_whole(seed: int) -> None:
    """Two shards with the same shares of loggers, so that the mixture is the same."""
    rng = np.random.default_rng(seed)
    counts, offset = {"a": 24, "b": 36}, {"a": 0.0, "b": 100.0}
    shards = [random_table(rng, counts, offset=offset) for _ in range(2)]
    needs = Needs(
        (REWARD, second_moment("a"), second_moment("b")),
        ((WEIGHT, WEIGHTED_REWARD, BALANCED_REWARD, BALANCED_WEIGHT),),
        (WEIGHT,),
    ).bind("target")

    def moments(table: pa.Table) -> Any:  # noqa: ANN401
        with DuckDB().open(log_of(table), {"target": "t"}) as rows:
            return rows.moments(needs)

    whole, left, right = map(moments, (pa.concat_tables(shards), *shards))
    for logger, expected in whole.items():
        merged = left[logger] + right[logger]
        assert merged.count == expected.count
        np.testing.assert_allclose(merged.means, expected.means, rtol=1e-10)
        scale = np.sqrt(np.outer(np.diag(expected.scatter), np.diag(expected.scatter)))
        gap = np.abs(merged.scatter - expected.scatter)
        assert not (gap > 1e-10 * scale).any()
        assert merged.max(WEIGHT.bind("target")) == pytest.approx(
            expected.max(WEIGHT.bind("target")), rel=1e-12
        )


@pytest.mark.parametrize("cluster", [None, "user"])
def test_buckets_merge_to_the_moments_of_the_whole(cluster: str | None) -> None:
    table = random_table(np.random.default_rng(50), {"a": 300, "b": 200}, offset=1e6)
    users = np.random.default_rng(51).integers(0, 60, 500)
    table = table.append_column("user", pa.array(users))
    log = log_of(table, cluster=cluster)
    needs = Needs((REWARD, second_moment("a")), ((WEIGHTED_REWARD, WEIGHT),)).bind("target")
    with DuckDB().open(log, {"target": "t"}) as rows:
        whole, buckets = rows.moments(needs), rows.bucketed([needs], 16)[0].buckets
    assert 10 < len(buckets) <= 16
    for logger, expected in whole.items():
        merged = pool_moments(bucket[logger] for bucket in buckets if logger in bucket)
        assert merged.count == expected.count
        np.testing.assert_allclose(merged.means, expected.means, rtol=1e-10)
        asked = ~np.isnan(expected.scatter)
        np.testing.assert_allclose(merged.scatter[asked], expected.scatter[asked], rtol=1e-9)


# 11. Log-probabilities give the same results as probabilities.


@FEW
@given(seeds)
def test_log_probabilities_give_the_same_evaluation(seed: int) -> None:
    table = table_of(seed)
    logs = table
    for name in ("p", "p_a", "p_b", "t"):
        logs = set_column(logs, name, np.log(table[name].to_numpy()))
    found = evaluate(log_of(logs, log_probabilities=True), {"target": "t"}, PAPER)
    assert_same(found, evaluate(log_of(table), {"target": "t"}, PAPER, engine=Reference()))


@pytest.mark.parametrize("shift", [0.0, -2000.0])
def test_log_probabilities_of_structured_actions_do_not_vanish(shift: float) -> None:
    """A factor common to all probabilities of a row leaves every weight unchanged."""
    table = table_of(52)
    logs = table
    for name in ("p", "p_a", "p_b", "t"):
        logs = set_column(logs, name, np.log(table[name].to_numpy()) + shift)
    found = evaluate(log_of(logs, log_probabilities=True), {"target": "t"}, PAPER)
    plain = evaluate(log_of(table), {"target": "t"}, PAPER, engine=Reference())
    assert_same(found, plain)
