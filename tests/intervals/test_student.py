"""Intervals: every end in closed form, and every error and finding.

Student's quantile with one degree of freedom is a tangent, and a level of 1 - 4/e³ makes
Bernstein's logarithm 3, so that each number below can be worked out by hand.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import pytest

from poolwise.errors import UsageError
from poolwise.intervals.student import (
    BOUNDED,
    Interval,
    Limits,
    bernstein_half_width,
    check_level,
    clip_interval,
    one_sided,
    student,
    student_interval,
)
from poolwise.moments.estimate import Estimate
from tests.support.messages import check_findings, refused

LEVEL = 1 - 4 * math.exp(-3)  # ln(4 / (1 - level)) = 3
FLAT = Estimate(0.5, 0.0, {})
Sides = Literal["two", "lower", "upper"]


def test_an_interval_holds_its_ends_and_nothing_beyond() -> None:
    interval = Interval(1.0, 2.0, 0.95)
    assert 1.0 in interval
    assert 2.0 in interval
    assert math.nextafter(1.0, 0.0) not in interval
    assert math.nextafter(2.0, 3.0) not in interval


@pytest.mark.parametrize("level", [95, 1.5, 1, 100, 0, -3, math.nan])
def test_a_level_outside_0_and_1_is_refused_with_a_hint_for_percents(level: float) -> None:
    with refused(UsageError):
        check_level(level)


def test_a_level_between_0_and_1_is_handed_back() -> None:
    assert check_level(0.95) == 0.95
    assert check_level(1e-9) == 1e-9


def test_student_with_one_degree_of_freedom_is_a_tangent() -> None:
    estimate = Estimate(10.0, 4.0, {}, freedom=1.0)
    both = student(estimate, 0.5)  # the quantile of 3/4 is tan(π/4) = 1; SciPy 1.14: 10 digits
    assert (both.lower, both.upper) == pytest.approx((8.0, 12.0), rel=1e-9)
    assert both.level == 0.5
    half = 2 * math.tan(0.4 * math.pi)  # of 0.9, on one side
    lower, upper = student(estimate, 0.9, "lower"), student(estimate, 0.9, "upper")
    assert (lower.lower, lower.upper) == pytest.approx((10 - half, math.inf), rel=1e-9)
    assert (upper.lower, upper.upper) == pytest.approx((-math.inf, 10 + half), rel=1e-9)
    assert lower.level == upper.level == 0.9


def test_exact_variances_have_a_normal_interval() -> None:
    found = student(Estimate(1.0, 0.25, {}), 0.95)
    half = 0.5 * NormalDist().inv_cdf(0.975)
    assert (found.lower, found.upper) == pytest.approx((1 - half, 1 + half), rel=1e-9)


def test_only_the_side_that_was_asked_for_is_closed() -> None:
    both = Interval(1.0, 2.0, 0.9)
    assert one_sided(both, "two") == both
    assert one_sided(both, "lower") == Interval(1.0, math.inf, 0.9)
    assert one_sided(both, "upper") == Interval(-math.inf, 2.0, 0.9)


@pytest.mark.parametrize(
    ("variance", "width", "rows", "expected"),
    [
        (2.0, 5.0, 6, math.sqrt(2) + 7),  # √(2·2·3/6) + 7·5·3/(3·5)
        (0.0, 1.0, 2, 7.0),  # the fewest rows with a finite width
        (0.0, 1.0, 1, math.inf),
    ],
)
def test_bernstein_half_widths_are_the_formula(
    variance: float, width: float, rows: int, expected: float
) -> None:
    assert bernstein_half_width(variance, width, rows, LEVEL) == pytest.approx(expected)


def test_rows_with_a_spread_get_students_interval_and_no_finding() -> None:
    estimate = Estimate(10.0, 4.0, {}, freedom=1.0)
    limits = Limits(rows=9, reward_range=(0.0, 1.0))
    for sides in ("two", "lower", "upper"):
        found = student_interval(estimate, 0.9, limits, sides)
        assert found == (student(estimate, 0.9, sides), ())
    assert student_interval(estimate, 0.9, limits)[0] == student(estimate, 0.9)


@pytest.mark.parametrize("variance", [0.0, math.inf])
def test_without_spread_or_range_the_interval_is_unbounded_and_says_why(
    variance: float,
) -> None:
    found, findings = student_interval(Estimate(0.5, variance, {}), 0.9, Limits(rows=1234))
    assert found == Interval(-math.inf, math.inf, 0.9)
    check_findings(findings, "no-spread")


@pytest.mark.parametrize(
    ("reward_range", "reach"),
    [((-1.0, 3.0), 4.0), ((-5.0, -4.0), 5.0), ((2.0, 3.0), 3.0)],
    ids=["its width", "its lower end", "its upper end"],
)
@pytest.mark.parametrize("sides", ["two", "lower", "upper"])
def test_a_range_reaches_as_far_as_the_largest_of(
    reward_range: tuple[float, float], reach: float, sides: Sides
) -> None:
    middle = sum(reward_range) / 2
    limits = Limits(rows=701, reward_range=reward_range, largest_weight=2.0)
    found, findings = student_interval(Estimate(middle, 0.0, {}), LEVEL, limits, sides)
    half = 2 * reach * 7 / 700
    expected = one_sided(Interval(middle - half, middle + half, LEVEL), sides)
    assert (found.lower, found.upper) == pytest.approx((expected.lower, expected.upper))
    assert found.level == LEVEL
    assert findings == (BOUNDED,)


def test_a_weight_that_nobody_told_is_one() -> None:
    found, _ = student_interval(FLAT, LEVEL, Limits(rows=701, reward_range=(0.0, 1.0)))
    assert (found.lower, found.upper) == pytest.approx((0.49, 0.51))


def test_an_interval_stays_within_the_possible_rewards() -> None:
    found, _ = student_interval(FLAT, 0.9, Limits(rows=2, reward_range=(-0.25, 1.0)))
    assert found == Interval(-0.25, 1.0, 0.9)
    one_row, _ = student_interval(FLAT, 0.9, Limits(rows=1, reward_range=(-0.25, 1.0)))
    assert one_row == Interval(-0.25, 1.0, 0.9)


def test_an_impossible_estimate_excludes_nothing_but_one_that_touches_the_range_does() -> None:
    limits = Limits(rows=701, reward_range=(0.0, 1.0))
    outside, _ = student_interval(Estimate(9.0, 0.0, {}), 0.9, limits)
    assert outside == Interval(0.0, 1.0, 0.9)
    half = bernstein_half_width(0.0, 1.0, 701, 0.9)
    touching, _ = student_interval(Estimate(-half, 0.0, {}), 0.9, limits)
    assert touching == Interval(0.0, 0.0, 0.9)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((-1.0, 2.0), (0.0, 1.0)),
        ((0.25, 0.5), (0.25, 0.5)),
        ((2.0, 3.0), (0.0, 1.0)),  # nothing of it is in the range
        ((-3.0, -2.0), (0.0, 1.0)),
        ((1.0, 2.0), (1.0, 1.0)),  # it touches the range
        ((-1.0, 0.0), (0.0, 0.0)),
        ((-math.inf, 2.0), (-math.inf, 1.0)),  # a side that was not asked for
        ((-1.0, math.inf), (0.0, math.inf)),
    ],
)
def test_limits_are_cut_to_the_range(
    limits: tuple[float, float], expected: tuple[float, float]
) -> None:
    assert clip_interval(Interval(*limits, 0.9), (0.0, 1.0)) == Interval(*expected, 0.9)
    assert clip_interval(Interval(*limits, 0.9), None) == Interval(*limits, 0.9)
