"""Resampling by bucket, compared with resampled rows."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, cast

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from poolwise import evaluate
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import LogError, RefusedError
from poolwise.estimators import BY_NAME
from poolwise.estimators.ips import Balanced
from poolwise.intervals.student import student
from poolwise.moments.buckets import (
    jackknife,
    jackknife_freedom,
)
from poolwise.moments.coverage import Coverage
from poolwise.moments.estimate import average_term, compute_value
from poolwise.moments.moments import Moments, pool_moments
from poolwise.moments.pool import Pool
from poolwise.moments.tallies import hash_buckets
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    second_moment,
    unite,
)
from tests.support.messages import refused
from tests.support.reference import Reference, assert_moments_agree, log_of, random_table
from tests.support.small import group

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.types import FloatArray, IntArray

TERMS = (WEIGHTED_REWARD, WEIGHT, REWARD)
SIZES = (5, 1, 9, 3)  # of the buckets; one bucket has a single row


def moments(values: FloatArray) -> Moments:
    """Two terms with a scatter, and a third one of which only the mean is known."""
    centred = values[:, :2] - values[:, :2].mean(axis=0)
    nothing = np.array([np.nan])
    return Moments(
        TERMS,
        len(values),
        values.mean(axis=0),
        centred.T @ centred,
        np.concatenate([values[:, :2].min(axis=0), nothing]),
        np.concatenate([values[:, :2].max(axis=0), nothing]),
    )


def drawn(seed: int, offset: float = 0.0) -> list[FloatArray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(offset, 1.0, (size, 3)) for size in SIZES]


def assert_close(found: Moments, expected: Moments, digits: float = 1e-12) -> None:
    assert found.count == expected.count
    np.testing.assert_allclose(found.means, expected.means, rtol=digits)
    np.testing.assert_allclose(found.scatter, expected.scatter, rtol=digits, atol=1e-12)
    np.testing.assert_array_equal(found.lowest, expected.lowest)
    np.testing.assert_array_equal(found.largest, expected.largest)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_many_groups_merge_at_once_as_they_do_one_by_one(offset: float) -> None:
    parts = drawn(1, offset)
    found = pool_moments(map(moments, parts))
    assert_close(found, moments(np.concatenate(parts)), 1e-9 if offset else 1e-12)
    assert_close(found, reduce(add, map(moments, parts)), 1e-9 if offset else 1e-12)


def test_empty_groups_change_nothing_among_many() -> None:
    nothing = np.full(3, np.nan)
    empty = Moments(TERMS, 0, nothing, np.full((2, 2), np.nan), nothing, nothing)
    parts = [moments(values) for values in drawn(2)]
    assert_close(pool_moments([empty, *parts, empty]), pool_moments(parts))


def test_groups_of_different_terms_do_not_merge_among_many() -> None:
    parts = [moments(values) for values in drawn(3)]
    other = parts[0].select({WEIGHT: WEIGHT, WEIGHTED_REWARD: WEIGHTED_REWARD})
    with pytest.raises(ValueError, match="different terms"):
        pool_moments([*parts, other])


def test_a_sample_has_the_moments_of_the_rows_that_are_left() -> None:
    parts = {"a": drawn(4), "b": drawn(5, 3.0)}
    buckets = [{i: moments(p[g]) for i, p in parts.items()} for g in range(len(SIZES))]
    for g, found in enumerate(Pool(None, buckets).without_each):
        for logger, values in parts.items():
            left = np.concatenate([v for k, v in enumerate(values) if k != g])
            assert_close(found[logger], moments(left).recounted(sum(SIZES)))


def test_a_logger_none_of_whose_rows_are_left_stays_as_it_is() -> None:
    buckets = [{"a": moments(values)} for values in drawn(6)]
    buckets[2]["b"] = moments(drawn(7)[0])
    found = Pool(None, buckets).without_each[2]
    assert_close(found["b"], buckets[2]["b"])


def test_shifts_of_means_are_those_of_the_samples() -> None:
    buckets = [{"a": moments(values)} for values in drawn(8)]
    buckets[0]["b"], buckets[2]["b"], buckets[1]["c"] = (moments(v) for v in drawn(9)[:3])
    split = Pool(None, buckets)
    terms = [REWARD, WEIGHTED_REWARD]
    whole = np.concatenate([m.select_means(terms) for m in split.values()])
    expected = [
        np.concatenate([m.select_means(terms) for m in sample.values()]) - whole
        for sample in split.without_each
    ]
    np.testing.assert_allclose(split.shifts(terms), expected, rtol=1e-12, atol=1e-14)


def test_a_value_alone_is_that_of_the_estimate() -> None:
    table = random_table(np.random.default_rng(62), {"a": 250, "b": 150})
    estimators = [make() for make in BY_NAME.values()]
    needs = unite([e.needs(Coverage.complete(["a", "b"])) for e in estimators])
    with DuckDB().open(log_of(table), {"": "t"}) as rows:
        (pool,) = rows.bucketed([needs], BUCKETS)
    for estimator in estimators:
        for sample in pool.without_each:
            assert compute_value(estimator, sample) == estimator.estimate(sample).value


def test_rows_that_are_all_alike_have_no_spread_in_any_sample() -> None:
    values = np.full((3, 3), 0.75)
    buckets = [{"a": moments(values)} for _ in range(7)]
    for sample in Pool(None, buckets).without_each:
        np.testing.assert_array_equal(sample["a"].means, [0.75, 0.75, 0.75])
        np.testing.assert_array_equal(sample["a"].scatter, np.zeros((2, 2)))


def balanced(found: Moments) -> Moments:
    """The same numbers as terms that the balanced estimator reads."""
    return found.select({BALANCED_REWARD: WEIGHTED_REWARD, BALANCED_WEIGHT: WEIGHT})


def test_jackknife_of_the_mean_is_the_familiar_variance() -> None:
    values = drawn(9)[2]
    rows = [{"a": balanced(moments(values[k : k + 1]))} for k in range(len(values))]
    found = jackknife(Balanced(), Pool(None, rows))
    expected = values[:, 0].var(ddof=1) / len(values)
    assert found.variance == pytest.approx(expected, rel=1e-12)
    assert found.freedom == len(values) - 1


# Buckets by the kernel.

BUCKETS = 8

NEEDS = Needs(
    means=(REWARD, second_moment("a")),
    groups=((BALANCED_REWARD, BALANCED_WEIGHT), (WEIGHTED_REWARD, WEIGHT)),
    extremes=(REWARD, WEIGHT),
    tails=(WEIGHT,),
    histograms=(WEIGHT,),
).bind("target")


def dealt(table: pa.Table, *, clustered: bool) -> IntArray:
    """The bucket of each row, as DuckDB deals them."""
    if not clustered:
        return hash_buckets(np.arange(len(table)) + 1) % BUCKETS
    with duckdb.connect() as connection:
        connection.register("log", table)
        query = f'SELECT hash(CAST("user" AS VARCHAR)) % {BUCKETS} FROM log'
        return np.array([b for (b,) in connection.execute(query).fetchall()])


@pytest.mark.parametrize("clustered", [False, True])
def test_each_bucket_has_the_moments_of_its_rows(*, clustered: bool) -> None:
    table = random_table(np.random.default_rng(60), {"a": 250, "b": 150})
    users = np.random.default_rng(61).integers(0, 40, 400)
    table = table.append_column("user", pa.array(users))
    log = log_of(table, cluster="user" if clustered else None)
    targets = {"target": "t"}
    with DuckDB().open(log, targets) as rows:
        whole, means = rows.bucketed([NEEDS, Needs(means=NEEDS.means)], BUCKETS)
    of = dealt(table, clustered=clustered)
    numbers = sorted(set(of.tolist()))
    assert len(numbers) > BUCKETS / 2
    with Reference().open(log, targets) as judge:
        expected = [judge.of_rows(np.flatnonzero(of == b), NEEDS) for b in numbers]
    assert len(whole.buckets) == len(means.buckets) == len(numbers)
    for found, only, exact in zip(whole.buckets, means.buckets, expected, strict=True):
        assert_moments_agree(found, exact)
        for logger, m in only.items():
            assert set(m.terms) == set(NEEDS.means)
            np.testing.assert_array_equal(m.means, [found[logger].mean(t) for t in m.terms])
            assert m.scatter.shape == (0, 0)


@pytest.mark.parametrize("unit", ["user", "user // 3"], ids=["frame", "query"])
def test_one_pass_gives_buckets_and_other_moments_of_all_rows(unit: str) -> None:
    table = random_table(np.random.default_rng(60), {"a": 250, "b": 150})
    table = table.append_column("user", pa.array(np.arange(400) // 3))
    with DuckDB().open(log_of(table, cluster=unit), {"target": "t"}) as rows:
        (pool,), whole = rows.bucketed_and_tallied([NEEDS], BUCKETS, NEEDS)
        assert rows.copied.contents() == {}  # rows of a cluster may be copies
        (apart,), expected = rows.bucketed([NEEDS], BUCKETS), rows.moments(NEEDS)
    for found, exact in zip(pool.buckets, apart.buckets, strict=True):
        assert_moments_agree(found, exact)
    assert_moments_agree(whole, expected)


def test_a_bad_row_is_refused_where_rows_are_split() -> None:
    table = random_table(np.random.default_rng(62), {"a": 25, "b": 15})
    bad = table["reward"].to_numpy().copy()
    bad[7] = np.nan
    log = log_of(table.set_column(1, "reward", pa.array(bad)))
    with (
        DuckDB().open(log, {"target": "t"}) as rows,
        refused(LogError),
    ):
        rows.bucketed([NEEDS], BUCKETS)


def test_weights_are_judged_the_same_whether_rows_are_split_or_not() -> None:
    table = random_table(np.random.default_rng(63), {"a": 700, "b": 500}, orders=2)
    table = table.append_column("user", pa.array(np.arange(1_200) // 3))
    targets = {"target": "t", "other": "p_a"}
    log = log_of(table, cluster="user")
    plain, split = (evaluate(log, targets, interval=i) for i in ("student", "auto"))
    for name in targets:
        for found, expected in (
            (split[name].mixture, plain[name].mixture),
            *((split[name].loggers[i], plain[name].loggers[i]) for i in ("a", "b")),
        ):
            assert found is not None
            assert expected is not None
            assert found.tail == expected.tail
            assert found.histogram == expected.histogram
        assert split[name].estimates["balanced"].value == pytest.approx(
            plain[name].estimates["balanced"].value, rel=1e-12
        )


# Degrees of freedom.


def test_equal_buckets_have_one_degree_less_than_they_are() -> None:
    gaps = np.array([1.0, -1.0] * 10)
    assert jackknife_freedom(np.full(20, 7.0), gaps) == pytest.approx(19.0)


def test_uneven_buckets_have_as_many_degrees_as_they_are_worth() -> None:
    gaps = np.array([1.0, -1.0, 1.0, -1.0])
    # ten rows squared, over the sum of their squares
    assert jackknife_freedom(np.array([4.0, 4.0, 1.0, 1.0]), gaps) == pytest.approx(
        100 / 34 - 1
    )


def test_one_bucket_that_moves_the_estimate_alone_leaves_few_degrees() -> None:
    gaps = np.array([19.0, *[-1.0] * 19])
    expected = 2 * 380**2 / (130_340 - 380**2 / 20)  # squares add up to 380, their own so
    found = jackknife_freedom(np.full(20, 3.0), gaps)
    assert found == pytest.approx(expected)
    assert found < 2.4
    assert jackknife_freedom(np.full(20, 3.0), 1e-200 * gaps) == pytest.approx(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "share"), [([50, 50] + [1] * 18, 0.95), ([30] * 3 + [1] * 30, 0.92)]
)
def test_intervals_of_uneven_clusters_cover(sizes: list[int], share: float) -> None:
    """With a degree less than there are buckets, it is fewer."""
    rng = np.random.default_rng(77)
    covered, before, samples = 0, 0, 250
    for _ in range(samples):
        buckets = []
        for size in sizes:
            values = np.repeat(rng.normal(size=(1, 3)), size, axis=0)
            values += rng.normal(0.0, 0.1, values.shape)
            buckets.append({"a": balanced(moments(values))})
        found = jackknife(Balanced(), Pool(None, buckets))
        covered += 0.0 in student(found, 0.95)
        before += 0.0 in student(replace(found, freedom=len(sizes) - 1.0), 0.95)
    assert before < covered - 0.02 * samples
    assert covered / samples > share - 3 * np.sqrt(share * (1 - share) / samples)


class Mean:
    """The mean reward of all rows."""

    def estimate(self, moments: Pool) -> Estimate:
        return average_term(moments, REWARD)


MEAN = cast("Estimator", Mean())


def rewards(*buckets: dict[str, list[float]]) -> Pool:
    return Pool(
        None, [{i: group({REWARD: r}) for i, r in bucket.items()} for bucket in buckets]
    )


def test_the_jackknife_of_three_buckets_is_worked_out_by_hand() -> None:
    # means without each bucket: 7, 11/3, 7/3; gaps 8/3, -2/3, -2: 2/3 of 104/9.  Sizes of
    # 2, 1 and 1 are worth 16/6 buckets
    split = rewards({"a": [1.0, 1.0]}, {"a": [5.0]}, {"a": [9.0]})
    estimate = jackknife(MEAN, split)
    assert (estimate.value, estimate.variance) == pytest.approx((4.0, 208 / 27), rel=1e-13)
    assert estimate.freedom == pytest.approx(5 / 3, rel=1e-13)


@pytest.mark.parametrize("value", [1e-3, 1.0, 1e3])
def test_gaps_of_rounding_are_no_variance(value: float) -> None:
    equal = [value] * 3
    same = jackknife(MEAN, rewards({"a": equal}, {"a": equal}, {"a": equal}))
    assert (same.variance, same.freedom) == (0.0, 2.0)
    # standard errors of 1e-13 of the value are rounding, and those of 1e-11 are not
    for gap, rounding in ((1e-13, True), (1e-11, False)):
        split = rewards({"a": [value]}, {"a": [value * (1 + 2 * gap)]})
        assert (jackknife(MEAN, split).variance == 0.0) is rounding


def test_a_logger_of_one_bucket_is_refused_unless_it_has_few_rows() -> None:
    single, both = {"a": [1.0, 2.0]}, {"a": [1.0, 2.0] * 24 + [1.0], "b": [3.0]}
    for split in (rewards(single), rewards(single | {"b": [1.0]}, single)):
        with refused(RefusedError) as refusal:
            jackknife(MEAN, split)
        assert refusal.value.code == "one-cluster"
    # one of 100 rows is few, and one of 99 is not
    most = rewards(both, {"a": [2.0] * 50})
    assert jackknife(MEAN, most).freedom >= 1
    with pytest.raises(RefusedError):
        jackknife(MEAN, rewards(both, {"a": [2.0] * 49}))
    twice = rewards(both, both)
    assert jackknife(MEAN, twice).variance == 0.0


def test_a_sample_keeps_the_divisor_of_its_rows() -> None:
    exact = [{"a": group({REWARD: r}, ddof=0)} for r in ([1.0, 2.0], [4.0, 7.0])]
    sample = Pool(None, exact).without_each[1]
    assert (sample["a"].ddof, sample["a"].count) == (0, 4)
    assert sample["a"].var(REWARD) == pytest.approx(0.25, rel=1e-13)


def test_overflow_in_a_sample_is_no_warning() -> None:
    split = rewards({"a": [1e200, 1e200]}, {"a": [-1e200]}, {"a": [0.0, 0.0]})
    means = [sample["a"].mean(REWARD) for sample in split.without_each]
    assert means == pytest.approx([-1e200 / 3, 5e199, 1e200 / 3], rel=1e-12)
