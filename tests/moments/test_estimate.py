"""Shares, stratified means and degrees of freedom, as fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import pytest

from poolwise.moments.estimate import Estimate, average_term, compute_value
from poolwise.moments.linear import by_count, row_variances, satterthwaite_freedom, shares
from poolwise.moments.pool import Pool
from poolwise.moments.terms import WEIGHT
from tests.support.small import group

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimator

A, B = [1.0, 3.0, 8.0], [2.0, 6.0]  # means 4 and 4, variances 13 and 8
TWO = Pool({"a": group({WEIGHT: A}), "b": group({WEIGHT: B})})


def test_shares_are_masses_over_their_sum() -> None:
    assert shares({"a": 1.0, "b": 3.0, "c": 0.0}) == {"a": 0.25, "b": 0.75, "c": 0.0}
    assert by_count(TWO) == {"a": 0.6, "b": 0.4}


def test_one_row_takes_the_variance_of_all_rows() -> None:
    # 5, 1 and 3 together: mean 3, squares 4 + 4 + 0 over 2
    alone = Pool({"a": group({WEIGHT: [5.0]}), "b": group({WEIGHT: [1.0, 3.0]})})
    assert row_variances(alone, {WEIGHT: 1.0}) == {"a": 4.0, "b": 2.0}
    assert row_variances(TWO, {WEIGHT: 1.0}) == pytest.approx({"a": 13.0, "b": 8.0})


def test_one_exact_expectation_is_its_own_variance() -> None:
    exact = Pool(
        {"a": group({WEIGHT: [5.0]}, ddof=0), "b": group({WEIGHT: [1.0, 3.0]}, ddof=0)}
    )
    assert row_variances(exact, {WEIGHT: 1.0}) == {"a": 0.0, "b": 1.0}


def test_a_stratified_mean_adds_means_and_squares_shares() -> None:
    moments = Pool({"a": group({WEIGHT: A}), "b": group({WEIGHT: [5.0, 9.0]})})
    found = average_term(moments, WEIGHT, {"a": 0.25, "b": 0.75})
    first, second = Fraction(1, 16) * Fraction(13, 3), Fraction(9, 16) * Fraction(8, 2)
    total = first + second
    assert found.value == pytest.approx(0.25 * 4 + 0.75 * 7, rel=1e-14)
    assert found.variance == pytest.approx(float(total), rel=1e-13)
    assert found.shares == {"a": 0.25, "b": 0.75}
    freedom = total**2 / (first**2 / 2 + second**2)
    assert found.freedom == pytest.approx(float(freedom), rel=1e-13)
    assert found.findings == ()


def test_a_logger_without_a_share_has_no_part_in_the_variance() -> None:
    found = average_term(TWO, WEIGHT, {"a": 1.0, "b": 0.0})
    assert found.variance == pytest.approx(13 / 3, rel=1e-13)
    assert found.freedom == pytest.approx(2.0, rel=1e-13)


def test_degrees_of_freedom_are_satterthwaites() -> None:
    five = Pool({"a": group({WEIGHT: A}), "b": group({WEIGHT: [1.0, 2.0, 3.0, 4.0, 5.0]})})
    # V = 4: 16 / (1/2 + 9/4)
    assert satterthwaite_freedom(five, {"a": 1.0, "b": 3.0}) == pytest.approx(64 / 11)
    alone = Pool({"a": group({WEIGHT: [1.0]}), "b": five["b"]})
    # one row borrows the freedom of all six rows: 16 / (1/5 + 9/4)
    assert satterthwaite_freedom(alone, {"a": 1.0, "b": 3.0}) == pytest.approx(320 / 49)
    # parts of some loggers only: 4 degrees of one variance
    assert satterthwaite_freedom(five, {"b": 0.5}) == pytest.approx(4.0)


@pytest.mark.parametrize("part", [0.0, math.inf])
def test_no_spread_and_endless_spread_have_no_degrees_of_freedom(part: float) -> None:
    assert satterthwaite_freedom(TWO, {"a": part, "b": part}) == math.inf


def test_exact_moments_among_others_have_endless_freedom() -> None:
    mixed = Pool({"a": group({WEIGHT: A}, ddof=0), "b": group({WEIGHT: B})})
    assert satterthwaite_freedom(mixed, {"a": 1.0, "b": 1.0}) == math.inf


def test_an_estimate_is_shown_with_its_standard_error() -> None:
    estimate = Estimate(8.19342, 0.0648**2, {"a": 1.0})
    assert estimate.std_error == pytest.approx(0.0648, rel=1e-15)
    assert str(estimate) == "8.193 ± 0.065"
    assert (estimate.freedom, estimate.findings) == (math.inf, ())


def test_a_value_comes_from_its_own_method_or_else_from_the_estimate() -> None:
    class Plain:
        def estimate(self, moments: Pool) -> Estimate:
            return average_term(moments, WEIGHT, {"a": 0.25, "b": 0.75})

    class Quick(Plain):
        def value(self, moments: Pool) -> int:
            return sum(int(m.count) for m in moments.values())

    moments = Pool({"a": group({WEIGHT: A}), "b": group({WEIGHT: [5.0, 9.0]})})
    assert compute_value(cast("Estimator", Plain()), moments) == 6.25
    value = compute_value(cast("Estimator", Quick()), moments)
    assert (value, type(value)) == (5.0, float)
