"""Tail index and tests of agreement: reference numbers, hand calculations, laws, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from poolwise.diagnosis.statistics import (
    cochran,
    pareto_shape,
    random_effects,
    tail_index,
    tail_size,
    welch,
)
from poolwise.errors import UsageError
from tests.support.messages import refused

FloatArray = NDArray[np.float64]


def largest(weights: FloatArray) -> FloatArray:
    return np.sort(weights)[-(tail_size(len(weights)) + 1) :]


def pareto(count: int, index: float) -> FloatArray:
    """Quantiles of the Pareto distribution with the given tail index."""
    return (1 - (np.arange(count) + 0.5) / count) ** -index


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, 5),
        (25, 5),
        (26, 6),  # ⌈5.2⌉
        (225, 45),  # 225/5 = 3 √225: the two rules meet
        (226, 46),  # ⌈45.0999⌉ by the root, 45.2 by the share
        (1000, 95),  # ⌈94.87⌉
        (1_000_000, 3000),
    ],
)
def test_the_tail_shrinks_as_a_share(count: int, expected: int) -> None:
    assert tail_size(count) == expected


def test_the_tail_index_of_pareto_quantiles() -> None:
    found = tail_index(largest(pareto(1000, 0.5)), 1000)
    assert found.value == pytest.approx(0.49709, abs=5e-6)
    assert found.threshold == pytest.approx(2 / 3)
    assert not found.discrete
    assert not found.heavy


@pytest.mark.parametrize(
    ("count", "threshold"),
    [(1, 0.0), (10, 0.0), (100, 0.5), (1000, 2 / 3), (10_000, 0.7), (10**9, 0.7)],
)
def test_the_threshold_rises_with_the_rows(count: int, threshold: float) -> None:
    weights = np.ones(min(count, tail_size(count) + 1))
    assert tail_index(weights, count).threshold == pytest.approx(threshold)


@pytest.mark.parametrize(("index", "mean"), [(0.5, 0.506), (2 / 3, 0.643)])
def test_sampled_weights_give_their_index_on_average(index: float, mean: float) -> None:
    rng = np.random.default_rng(12)
    found = [tail_index(largest((1 - rng.random(1000)) ** -index), 1000) for _ in range(200)]
    values = np.array([f.value for f in found])
    # the reference means are simulated as well: four errors of a difference of such means
    assert values.mean() == pytest.approx(mean, abs=4 * math.sqrt(2 / 200) * values.std(ddof=1))


def test_a_tail_beyond_the_threshold_is_heavy() -> None:
    assert tail_index(largest(pareto(10_000, 1.0)), 10_000).heavy
    assert not tail_index(largest(np.linspace(0, 3, 10_000)), 10_000).heavy


def test_an_exponential_tail_has_index_zero_before_the_prior() -> None:
    # k = 0 pulled towards 1/2 by ten rows in 400: 5/410 = 0.0122, and the grid's own error
    quantiles = -np.log(1 - (np.arange(400) + 0.5) / 400)
    assert pareto_shape(quantiles) == pytest.approx(0.0122, abs=0.02)


def plain_shape(excesses: list[float]) -> float:
    """Zhang & Stephens (2009) as printed, with 30 + √n points and a prior of ten rows."""
    count = len(excesses)
    points = 30 + int(math.sqrt(count))
    quartile = excesses[int(count / 4 + 0.5) - 1]
    thetas = [
        1 / excesses[-1] + (1 - math.sqrt(points / (j - 0.5))) / (3 * quartile)
        for j in range(1, points + 1)
    ]

    def shape(theta: float) -> float:
        return math.fsum(math.log(1 - theta * x) for x in excesses) / count

    def profile(theta: float) -> float:
        return count * (math.log(-theta / shape(theta)) - shape(theta) - 1)

    likelihoods = [profile(theta) for theta in thetas]
    parts = [1 / math.fsum(math.exp(b - a) for b in likelihoods) for a in likelihoods]
    fitted = shape(math.fsum(p * t for p, t in zip(parts, thetas, strict=True)))
    return (count * fitted + 5) / (count + 10)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_short_tail_is_fitted_as_printed(seed: int) -> None:
    excesses = np.sort(np.random.default_rng(seed).exponential(size=12) ** 2)
    assert pareto_shape(excesses) == pytest.approx(plain_shape(excesses.tolist()), rel=1e-9)


@given(st.floats(0.05, 2.0), st.integers(60, 3000))
def test_the_index_of_long_tails_is_found(index: float, count: int) -> None:
    found = tail_index(largest(pareto(count, index)), count)
    tail = tail_size(count)
    pulled = (tail * index + 5) / (tail + 10)
    assert found.value == pytest.approx(pulled, abs=0.25 / math.sqrt(tail) * (1 + index))


@given(
    st.lists(st.floats(0.01, 1e4), min_size=50, max_size=120),
    st.integers(-20, 20),
    st.integers(0, 1000),
)
def test_order_and_scale_do_not_matter(values: list[float], power: int, seed: int) -> None:
    weights = np.array(values)
    top = largest(weights)
    mixed = np.random.default_rng(seed).permutation(top) * 2.0**power
    plain, moved = tail_index(top, len(weights)), tail_index(mixed, len(weights))
    assert plain.discrete == moved.discrete
    assert math.isfinite(plain.value)
    assert moved.value == pytest.approx(plain.value, abs=1e-9)


def mostly_one(count: int, top: FloatArray) -> FloatArray:
    """Weights that are nearly 1, but for the largest."""
    rng = np.random.default_rng(1)
    ones = 1 + 1e-9 * rng.random(count - len(top))
    return np.concatenate([ones, top])


@pytest.mark.parametrize(
    "weights",
    [
        mostly_one(1_000, np.array([1.5, 1.6])),
        mostly_one(1_000, np.linspace(1.01, 1.2, 30)),
        mostly_one(1_000, np.linspace(9.9, 10.0, 20)),
        mostly_one(1_000, np.minimum(pareto(1_000, 1.0), 20.0)[-60:]),
        1 + 1e-6 * pareto(1_000, 1.5),  # a heavy tail of differences that do not matter
    ],
    ids=["equal", "nearly equal", "bounded", "clipped", "small"],
)
def test_a_tail_whose_largest_weights_hardly_differ_is_not_heavy(weights: FloatArray) -> None:
    found = tail_index(largest(weights), len(weights))
    assert not found.heavy
    assert found.value < 0.5 * found.threshold


@pytest.mark.parametrize("index", [0.8, 1.0, 1.5])
@pytest.mark.parametrize("count", [100, 1_000, 30_000])
def test_a_heavy_tail_keeps_its_index(count: int, index: float) -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        weights = largest((1 - rng.random(count)) ** -index)
        excesses = (weights[1:] - weights[0]) / (weights[-1] - weights[0])
        assert tail_index(weights, count).value == pareto_shape(excesses)


def test_bounded_weights_have_an_index_of_at_most_zero() -> None:
    assert tail_index(largest(pareto(1000, 1.0)), 1000, bounded=True).value == 0
    even = largest(np.linspace(0, 3, 1000))
    assert tail_index(even, 1000, bounded=True) == tail_index(even, 1000)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0]), min_size=1, max_size=200))
def test_few_distinct_weights_have_no_tail(values: list[float]) -> None:
    found = tail_index(largest(np.array(values)), len(values))
    assert found.discrete
    assert not found.heavy
    assert found.value == 0


def test_ten_distinct_weights_are_enough_and_nine_are_not() -> None:
    nine = np.concatenate([np.zeros(86), np.repeat(np.arange(1.0, 10.0), 2)[:14]])
    assert tail_index(
        largest(np.concatenate([np.ones(80), np.arange(20) % 9 + 2.0])), 100
    ).discrete
    assert not tail_index(
        largest(np.concatenate([np.ones(80), np.arange(20) % 10 + 2.0])), 100
    ).discrete
    assert tail_index(largest(nine), 100).discrete


def test_ties_with_the_next_weight_are_no_excess() -> None:
    # Ten of the twenty in the tail equal the next one: only the other ten are fitted.
    tail = 1.0 + np.arange(1, 11) ** 2
    weights = np.concatenate([np.full(90, 1.0), tail])
    found = tail_index(largest(weights), 100)
    assert found.value == pytest.approx(pareto_shape((tail - 1) / 100))


@given(st.floats(1e-300, 1e-250), st.floats(1e250, 1e300))
def test_extreme_weights_give_a_finite_index(small: float, large: float) -> None:
    assume(small < large)
    weights = np.geomspace(small, large, 100)
    assert math.isfinite(tail_index(largest(weights), 100).value)


def test_what_is_no_tail_is_refused() -> None:
    with refused(UsageError):
        tail_index(np.ones(50), 1000)
    with refused(UsageError):
        tail_index([1.0, math.inf], 2)
    with refused(UsageError):
        tail_index([1.0, 2.0, 3.0], 2)


VALUES = [1.0, 1.5, 0.8]

LOGS = st.lists(
    st.tuples(st.floats(-10, 10), st.floats(0.01, 10), st.integers(2, 500)),
    min_size=2,
    max_size=8,
)


def test_cochran_of_three_logs() -> None:
    # W = (100, 25, 400/9), centre 1.021311; Q = 100·0.0213² + 25·0.4787² + 44.4·0.2213²
    statistic, p_value = cochran(VALUES, [0.1**2, 0.2**2, 0.15**2])
    assert statistic == pytest.approx(7.95081967, abs=1e-8)
    assert p_value == pytest.approx(0.01877161, abs=1e-8)
    assert p_value == pytest.approx(math.exp(-statistic / 2))  # two degrees of freedom


def test_welch_of_three_logs() -> None:
    statistic, p_value = welch(VALUES, [1.0 / 100, 2.0 / 50, 1.5 / 60], [100, 50, 60])
    assert statistic == pytest.approx(3.838697, abs=1e-6)
    assert p_value == pytest.approx(0.0246771, abs=1e-7)
    assert p_value == pytest.approx(stats.f.sf(statistic, 2, 102.6138), rel=1e-6)


def test_welch_of_two_logs_is_the_square_of_welchs_t() -> None:
    rng = np.random.default_rng(8)
    left, right = rng.normal(0, 1, 12), rng.normal(1, 3, 30)
    means, variances = (
        [left.mean(), right.mean()],
        [left.var(ddof=1) / 12, right.var(ddof=1) / 30],
    )
    statistic, p_value = welch(means, variances, [12, 30])
    reference = stats.ttest_ind(left, right, equal_var=False)
    assert statistic == pytest.approx(float(reference.statistic) ** 2)
    assert p_value == pytest.approx(float(reference.pvalue))


def test_random_effects_of_three_logs() -> None:
    # ΣW = 1525/9, ΣW²/ΣW = 74.36249, so τ² = (7.95081967 - 2) / (169.4444 - 74.3625)
    # = 0.0625862; W* = (13.7767, 9.7479, 11.7528) gives 37.8008/35.2774 = 1.071530 and the
    # variance 1/35.2774; Student's quantile with two degrees is 4.302653.
    interval = random_effects(VALUES, [0.1**2, 0.2**2, 0.15**2], 0.95)
    half = 4.302653 / math.sqrt(35.2774)
    assert interval.upper - 1.071530 == pytest.approx(half, abs=1e-5)
    assert 1.071530 - interval.lower == pytest.approx(half, abs=1e-5)


def test_agreeing_logs_have_no_variance_between() -> None:
    interval = random_effects([1.0, 1.1], [0.04, 0.04], 0.9)
    # the variance is that of the pooled mean; one degree of freedom: tan(0.45 π)
    half = math.sqrt(0.02) * math.tan(0.45 * math.pi)
    assert (interval.lower, interval.upper) == pytest.approx((1.05 - half, 1.05 + half))


@given(LOGS, st.floats(0.1, 10), st.floats(-5, 5))
def test_tests_do_not_depend_on_order_scale_or_offset(
    rows: list[tuple[float, float, int]], factor: float, offset: float
) -> None:
    values, variances, counts = (np.array(column) for column in zip(*rows, strict=True))
    moved = (offset + factor * values)[::-1], (factor**2 * variances)[::-1]
    (before, p_value), (after, _) = cochran(values, variances), cochran(*moved)
    assert after == pytest.approx(before, rel=1e-6, abs=1e-9)
    assert 0 <= p_value <= 1
    before, p_value = welch(values, variances, counts.tolist())
    after, p_after = welch(*moved, counts[::-1].tolist())
    assert after == pytest.approx(before, rel=1e-6, abs=1e-9)
    assert p_after == pytest.approx(p_value, rel=1e-4, abs=1e-9)
    assert 0 <= p_value <= 1
    plain, shifted = random_effects(values, variances, 0.9), random_effects(*moved, 0.9)
    assert shifted.lower == pytest.approx(offset + factor * plain.lower, abs=1e-5)
    assert shifted.upper == pytest.approx(offset + factor * plain.upper, abs=1e-5)


@given(LOGS)
def test_welch_tends_to_cochran_as_rows_grow(rows: list[tuple[float, float, int]]) -> None:
    values, variances, _ = (np.array(column) for column in zip(*rows, strict=True))
    f, p_welch = welch(values, variances, [10**9] * len(values))
    q, p_cochran = cochran(values, variances)
    assert f * (len(values) - 1) == pytest.approx(q, rel=1e-5, abs=1e-9)
    assert p_welch == pytest.approx(p_cochran, abs=1e-4)


def test_cochran_rejects_as_often_as_it_says() -> None:
    rng = np.random.default_rng(6)
    spread = np.array([0.1, 0.5, 1.0, 2.0])
    rejected = sum(
        cochran(rng.normal(3, np.sqrt(spread)), spread)[1] < 0.05 for _ in range(4000)
    )
    # 4000 · 0.05 = 200, four standard errors of sqrt(190)
    assert rejected == pytest.approx(200, abs=4 * math.sqrt(190))


def test_random_effects_cover_the_mean_of_drifting_logs() -> None:
    rng = np.random.default_rng(7)
    spread = np.full(5, 0.04)
    missed = 0
    for _ in range(2000):
        drawn = rng.normal(rng.normal(1.0, 0.5, size=5), np.sqrt(spread))
        missed += 1.0 not in random_effects(drawn, spread, 0.95)
    assert missed <= 100 + 4 * math.sqrt(95)


def test_logs_that_no_test_can_use_are_counted() -> None:
    with refused(UsageError):
        cochran(VALUES, [1.0, 0.0, 1.0])
    with refused(UsageError):
        random_effects([1.0, math.nan, 2.0], [1.0, 1.0, math.inf], 0.95)
    with refused(UsageError):
        cochran([1.0], [1.0])
    with refused(UsageError):
        welch([1.0, 2.0], [1.0, 1.0], [10, 1])
    with refused(UsageError):
        random_effects(VALUES, [1.0, 1.0, 1.0], 95)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "least"), [(450, 0.75), (3_000, 0.8), (20_000, 0.9)])
def test_a_tail_index_of_nine_tenths_is_found(rows: int, least: float) -> None:
    rng = np.random.default_rng([9, rows])
    found = [tail_index(rng.random(rows) ** -0.9, rows).heavy for _ in range(200)]
    assert np.mean(found) > least


@pytest.mark.slow
@pytest.mark.parametrize("rows", [180, 450, 1_200, 3_000])
def test_ties_and_bounded_weights_are_no_tail(rows: int) -> None:
    rng, heavy = np.random.default_rng([7, rows]), 0
    for _ in range(200):
        table = np.exp(0.4 * rng.normal(size=(20, 5)))  # weights of contexts and actions
        chosen = table[rng.integers(20, size=rows), rng.integers(5, size=rows)]
        heavy += tail_index(chosen, rows).heavy
    assert heavy <= 4
