"""Combinations of means: fractions worked out by hand, laws, and those of every estimator."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolwise.estimators import WITH_MODEL
from poolwise.estimators.calibrated import SelfNormalised
from poolwise.estimators.ips import Balanced, Weighted
from poolwise.estimators.model import DoublyRobust
from poolwise.estimators.shrink import Shrink
from poolwise.moments.coverage import Coverage
from poolwise.moments.deviation import Deviation, deviation
from poolwise.moments.estimate import compute_value
from poolwise.moments.linear import Fit, Linear, Score, added_freedom
from poolwise.moments.moments import Moments
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_REWARD, BALANCED_WEIGHT, REWARD, WEIGHT, ratio
from tests.support.small import group, mean, scatter, var
from tests.support.toys import TOYS, toy

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimator

A = {REWARD: [1, 4, 7, 0], WEIGHT: [2, 1, 0, 5]}
B = {REWARD: [3, 5, 10], WEIGHT: [1, 0, 2]}
TWO = Pool({"a": group(A), "b": group(B)})
FIRST = Linear({"a": {REWARD: 0.5, WEIGHT: -2.0}, "b": {REWARD: 0.25}}, constant=3.0)
SECOND = Linear({"b": {REWARD: 1.25, WEIGHT: 1.0}}, constant=-1.0)


def test_the_value_is_the_constant_and_the_coefficients_times_the_means() -> None:
    expected = 3 + Fraction(1, 2) * mean(A[REWARD]) - 2 * mean(A[WEIGHT])
    expected += Fraction(1, 4) * mean(B[REWARD])
    assert FIRST.value(TWO) == pytest.approx(float(expected), rel=1e-15)


def test_the_variance_of_a_difference_is_the_sum_over_loggers_with_covariances() -> None:
    # a: reward / 2 - 2 weight; b: -reward - weight, where both combinations have a part
    a = Fraction(1, 4) * var(A[REWARD]) + 4 * var(A[WEIGHT])
    a -= 2 * scatter(A[REWARD], A[WEIGHT]) / 3
    b = var(B[REWARD]) + var(B[WEIGHT]) + 2 * scatter(B[REWARD], B[WEIGHT]) / 2
    a, b = a / 4, b / 3
    variance, freedom = (FIRST - SECOND).variance(TWO)
    assert variance == pytest.approx(float(a + b), rel=1e-13)
    # Satterthwaite, with 3 and 2 degrees of freedom
    assert freedom == pytest.approx(float((a + b) ** 2 / (a**2 / 3 + b**2 / 2)), rel=1e-13)
    assert (FIRST - SECOND).constant == 4.0


def test_a_sum_has_the_loggers_of_both() -> None:
    both = SECOND + FIRST
    assert both.parts == {
        "b": {REWARD: 1.5, WEIGHT: 1.0},
        "a": {REWARD: 0.5, WEIGHT: -2.0},
    }


def test_a_logger_with_one_row_borrows_the_variance_of_all_rows() -> None:
    rows = {"a": [1, 4, 7, 0], "b": [8]}
    moments = Pool({i: group({REWARD: values}) for i, values in rows.items()})
    a = Fraction(1, 4) * var(rows["a"]) / 4
    b = Fraction(9, 4) * var(rows["a"] + rows["b"])
    linear = Linear({"a": {REWARD: 0.5}, "b": {REWARD: 1.5}})
    variance, freedom = linear.variance(moments)
    assert variance == pytest.approx(float(a + b), rel=1e-13)
    # the borrowed variance has the degrees of freedom of all five rows
    assert freedom == pytest.approx(float((a + b) ** 2 / (a**2 / 3 + b**2 / 4)), rel=1e-13)
    assert linear.deviation_variance(moments)[0] == math.inf  # a test does not borrow


def test_a_logger_without_coefficients_needs_no_scatter() -> None:
    linear = Linear({"a": {REWARD: 1.0}, "b": {ratio("a"): 0.0}})
    variance, freedom = linear.variance(TWO)
    assert variance == pytest.approx(float(var(A[REWARD]) / 4), rel=1e-13)
    assert freedom == pytest.approx(3.0)


def test_fitted_slopes_inflate_the_variance_and_limit_the_freedom() -> None:
    score = Score({REWARD: 1.0})
    plain = score.over(TWO).variance(TWO)[0]
    variance, freedom = Fit(score, (), effective=5.0).linear(TWO, rank=2).variance(TWO)
    assert variance == pytest.approx(plain * 5 / 3, rel=1e-14)
    assert freedom == 2.0  # 5 - 2 - 1
    few = Fit(score, (), effective=2.5).linear(TWO, rank=2)
    assert (few.inflation, few.most_free) == (2.5, 1.0)  # at least one row is left
    exact = Fit(score, ()).linear(TWO, rank=2)
    assert (exact.inflation, exact.most_free) == (1.0, math.inf)
    fitted = Linear({}, inflation=3.0, most_free=4.0) - Linear({}, inflation=2.0, most_free=9.0)
    assert (fitted.inflation, fitted.most_free) == (3.0, 4.0)
    assert fitted.plain.inflation == 1.0


def test_binding_names_the_terms_of_one_target() -> None:
    linear = Linear({"a": {BALANCED_REWARD: 2.0, ratio("b"): 1.0}}, 1.0, 1.5, 7.0).bind("t")
    assert linear.parts == {"a": {BALANCED_REWARD.bind("t"): 2.0, ratio("b"): 1.0}}
    assert (linear.constant, linear.inflation, linear.most_free) == (1.0, 1.5, 7.0)
    assert linear.fit is None
    score = Score({BALANCED_WEIGHT: 1.0}, -1.0)
    fitted = Linear({}, fit=Fit(score, (score,), 9.0, within=True)).bind("t").fit
    assert fitted == Fit(score.bind("t"), (score.bind("t"),), 9.0, within=True)
    scaled = Linear({}, fit=fitted, ratio=(REWARD, WEIGHT)) * 2.0
    assert (scaled.fit, scaled.ratio) == (None, None)
    assert score.bind("t") == Score({BALANCED_WEIGHT.bind("t"): 1.0}, -1.0)


def test_a_score_is_averaged_over_all_rows_or_over_those_of_one_logger() -> None:
    score = Score({REWARD: 2.0, WEIGHT: -1.0}, 5.0)
    everything = [2 * r - w + 5 for c in (A, B) for r, w in zip(*c.values(), strict=True)]
    assert score.over(TWO).value(TWO) == pytest.approx(float(mean(everything)), rel=1e-14)
    assert score.of("b").value(TWO) == pytest.approx(2 * 6 - 1 + 5)
    rest = score.less([3.0, 0.5], [Score({WEIGHT: 1.0}, 1.0), Score({REWARD: 4.0})])
    assert rest.parts == {REWARD: 0.0, WEIGHT: -4.0}
    assert rest.constant == 2.0


def test_a_deviation_is_a_distance_in_standard_errors() -> None:
    linear = Score({REWARD: 1.0}).of("b")  # mean 6, variance 13 of 3 rows
    test = deviation(linear, TWO, expected=1.0)
    assert test.value == pytest.approx(6.0)
    assert test.z == pytest.approx(5 / math.sqrt(13 / 3), rel=1e-13)
    # two degrees of freedom: P(|t| > z) = 1 - z / sqrt(2 + z²)
    assert test.p_value == pytest.approx(1 - test.z / math.sqrt(2 + test.z**2), rel=1e-9)
    assert deviation(linear, TWO, expected=6.0).z == 0.0
    floor = deviation(linear, TWO, expected=1.0, at_least=25.0)
    assert floor.z == pytest.approx(1.0)


def test_a_deviation_is_from_1_without_a_lower_bound_on_the_variance() -> None:
    tenth = deviation(Score({REWARD: 0.1}).of("b"), TWO)  # 0.6, variance 0.13 of 3 rows
    assert tenth.z == pytest.approx(-0.4 / math.sqrt(0.13 / 3), rel=1e-13)


@pytest.mark.parametrize(
    ("value", "z", "p_value"),
    [(1.0, 0.0, 1.0), (1 + 5e-10, 0.0, 1.0), (1.01, math.inf, 0.0), (0.99, -math.inf, 0.0)],
)
def test_without_variance_any_gap_but_rounding_is_significant(
    value: float, z: float, p_value: float
) -> None:
    assert deviation(Linear({}, value), TWO) == Deviation(value, z, p_value)


def test_an_exact_variance_has_infinite_degrees_of_freedom() -> None:
    assert added_freedom([(2.0, math.inf), (0.0, 3.0)]) == math.inf
    assert added_freedom([(2.0, math.inf), (2.0, 3.0)]) == 12.0  # 4² / (2² / 3)


def test_the_variance_between_buckets_is_that_of_their_sums() -> None:
    rows = {"a": [[1, 4], [7, 0], [9]], "b": [[3], [5], [10, 6]]}
    coefficients = {"a": Fraction(1, 2), "b": Fraction(-2)}
    linear = Linear({i: {REWARD: float(c)} for i, c in coefficients.items()})
    for size in (2, 3):
        buckets = [{i: group({REWARD: rows[i][k]}) for i in rows} for k in range(size)]
        whole = Pool({i: group({REWARD: sum(rows[i][:size], [])}) for i in rows})  # noqa: RUF017
        sums = [Fraction(0)] * size
        for i, factor in coefficients.items():
            everything = [r for part in rows[i][:size] for r in part]
            for k in range(size):
                gaps = [r - mean(everything) for r in rows[i][k]]
                sums[k] += factor * sum(gaps, Fraction(0)) / len(everything)
        pool = Pool(whole, buckets)
        assert linear.bucket_sums(pool) == pytest.approx(list(map(float, sums)))
        variance, freedom = linear.deviation_variance(pool)
        assert variance == pytest.approx(float(size * var(sums)), rel=1e-13)
        assert freedom == size - 1


def test_a_variance_between_buckets_that_is_rounding_counts_as_0() -> None:
    linear = Score({REWARD: 1.0}).of("a")
    # squared, a gap of 1e-8 is below 1e-24 of the squared sum, and one of 1e-4 is not
    for gap, rounding in ((1e-8, True), (1e-4, False)):
        rows = (1e6, 1e6 + gap)
        whole, *buckets = ({"a": group({REWARD: r})} for r in (rows, rows[:1], rows[1:]))
        variance, freedom = linear.deviation_variance(Pool(whole, buckets))
        assert (variance == 0.0, freedom) == (rounding, 1.0)


numbers = st.floats(-100, 100)
combinations = st.builds(
    lambda a, b, constant: Linear(
        {"a": dict(zip((REWARD, WEIGHT), a, strict=True)), "b": {REWARD: b}}, constant
    ),
    st.tuples(numbers, numbers),
    numbers,
    numbers,
)


@given(combinations, combinations)
def test_values_add(left: Linear, right: Linear) -> None:
    expected = left.value(TWO) + right.value(TWO)
    assert (left + right).value(TWO) == pytest.approx(expected, rel=1e-12, abs=1e-9)


@given(combinations, numbers)
def test_a_factor_is_squared_in_the_variance(linear: Linear, factor: float) -> None:
    scaled = linear * factor
    assert scaled.value(TWO) == pytest.approx(factor * linear.value(TWO), rel=1e-9, abs=1e-7)
    expected = factor**2 * linear.variance(TWO)[0]
    assert scaled.variance(TWO)[0] == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(combinations)
def test_a_combination_less_itself_is_zero_without_variance(linear: Linear) -> None:
    nothing = linear - linear
    assert nothing.value(TWO) == 0.0
    assert nothing.variance(TWO) == (0.0, math.inf)


SIMPLE: dict[str, Estimator] = {
    **{name: make() for name, make in WITH_MODEL.items() if "weighted" not in name},
    "self-normalised-own": SelfNormalised("own"),
    "balanced-clip": Balanced(Shrink("clip", 2.0)),
    "doubly-robust-switch": DoublyRobust(shrink=Shrink("switch", 2.0)),
}
WEIGHTED: dict[str, Estimator] = {
    "weighted": Weighted(),
    "weighted-reward-free": Weighted("reward-free"),
    "doubly-robust-weighted": DoublyRobust("weighted"),
}
ESTIMATORS = {**SIMPLE, **WEIGHTED, "weighted-own": Weighted("own")}
# no logger of T3 covers the target, which weighted requires
CASES = [(p, name) for p in TOYS for name in ESTIMATORS if p != "T3" or name not in WEIGHTED]


def moments_of(problem: str, estimator: Estimator, ddof: int) -> Pool:
    """Return the expected moments of a toy problem with a wrong model, exact or as of rows."""
    plain = toy(problem)
    errors = np.linspace(-1, 1, plain.reward.size).reshape(plain.reward.shape)
    modelled = replace(plain, predicted_reward=plain.reward + errors)
    exact = modelled.moments(estimator.needs(Coverage.complete(tuple(plain.loggers))))
    return exact.change(lambda _, m: replace(m, ddof=ddof))


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize(("problem", "name"), CASES)
def test_the_combination_of_an_estimator_has_its_value(
    problem: str, name: str, ddof: int
) -> None:
    moments = moments_of(problem, ESTIMATORS[name], ddof)
    estimate = ESTIMATORS[name].estimate(Pool(moments))
    assert estimate.linear.parts
    assert estimate.linear.value(Pool(moments)) == pytest.approx(
        estimate.value, rel=1e-12, abs=1e-12
    )
    alone = compute_value(ESTIMATORS[name], Pool(moments))  # without the variance
    assert alone == pytest.approx(estimate.value, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("problem", TOYS)
def test_the_combination_of_a_simple_estimator_has_its_variance(
    problem: str, name: str, ddof: int
) -> None:
    moments = moments_of(problem, ESTIMATORS[name], ddof)
    estimate = ESTIMATORS[name].estimate(Pool(moments))
    expected = (estimate.variance, estimate.freedom)
    assert estimate.linear.variance(Pool(moments)) == pytest.approx(expected, rel=1e-12)


def test_a_logger_without_terms_adds_nothing_to_a_bucket() -> None:
    whole = Pool({"a": Moments((), 4, np.empty(0), np.empty((0, 0)), np.empty(0), np.empty(0))})
    assert Linear({"a": {}}).bucket_sums(Pool(whole, [whole, whole])).tolist() == [0.0, 0.0]
