"""Tests of homogeneity: reference numbers, hand calculations, laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from poolwise.diagnosis.agreement import cochran, column_means, random_effects, welch
from poolwise.errors import UsageError
from poolwise.moments.terms import ratio
from tests.support.messages import refused
from tests.support.small import group

VALUES = [1.0, 1.5, 0.8]

logs = st.lists(
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
    statistic, p_value = welch(VALUES, [1.0, 2.0, 1.5], [100, 50, 60])
    assert statistic == pytest.approx(3.838697, abs=1e-6)
    assert p_value == pytest.approx(0.0246771, abs=1e-7)
    assert p_value == pytest.approx(stats.f.sf(statistic, 2, 102.6138), rel=1e-6)


def test_welch_of_two_logs_is_the_square_of_welchs_t() -> None:
    rng = np.random.default_rng(8)
    left, right = rng.normal(0, 1, 12), rng.normal(1, 3, 30)
    means, variances = [left.mean(), right.mean()], [left.var(ddof=1), right.var(ddof=1)]
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


@given(logs, st.floats(0.1, 10), st.floats(-5, 5))
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


@given(logs)
def test_welch_tends_to_cochran_as_rows_grow(rows: list[tuple[float, float, int]]) -> None:
    values, variances, _ = (np.array(column) for column in zip(*rows, strict=True))
    f, p_welch = welch(values, variances * 1e9, [10**9] * len(values))
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


def test_each_logger_has_its_own_column_in_any_order() -> None:
    # the logger without a ratio comes first: n = 2, 2, 4 rows; a averages 2 and b 1/2
    a, b = ratio("a"), ratio("b")
    two = {a: [1.0, 3.0], b: [0.0, 1.0]}
    four = {a: [1.0, 3.0, 1.0, 3.0], b: [0.0, 1.0, 0.0, 1.0]}
    means = column_means({"c": group(four), "a": group(two), "b": group(two)}, ())
    values = {logger: mean.value for logger, mean in means.items()}
    # c / mixture = (1 - a / 4 - b / 4) / (1 / 2)
    assert values == pytest.approx({"c": 0.75, "a": 2.0, "b": 0.5})
