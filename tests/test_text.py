from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolwise.text import count_text, interval_text, percent, places_for, short, with_error

errors = st.floats(1e-12, 1e12)
values = st.floats(-1e12, 1e12)


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (8.19342, 0.0648, "8.193 ± 0.065"),
        (0.0031415, 0.00027, "0.00314 ± 0.00027"),
        (12345.6, 78.9, "12346 ± 79"),
        (1.0, 0.0996, "1.00 ± 0.10"),  # the error rounds up to another power of ten
        (1.0, 0.994, "1.00 ± 0.99"),
        (1.0, 9.96, "1 ± 10"),
        (1.0, 1.0, "1.0 ± 1.0"),
        (-0.5, 0.01, "-0.500 ± 0.010"),
        (8.2, 0.0, "8.2 ± 0"),
        (0.5, math.inf, "0.5 ± unknown"),
    ],
)
def test_an_estimate_has_the_digits_that_its_error_supports(
    value: float, error: float, expected: str
) -> None:
    assert with_error(value, error) == expected


@given(values, errors)
def test_an_error_is_shown_with_two_digits(value: float, error: float) -> None:
    shown_value, shown_error = with_error(value, error).split(" ± ")
    places = places_for(error)
    assert abs(float(shown_value) - value) <= 0.5 * 10.0**-places * (1 + 1e-9) + 1e-3 * error
    assert float(shown_error) == pytest.approx(error, rel=0.06)
    if places:
        assert len(shown_error.lstrip("0.").replace(".", "")) == 2


@given(values, errors)
def test_an_interval_has_the_digits_of_the_estimate(value: float, error: float) -> None:
    lower, upper = value - 2 * error, value + 2 * error
    shown = interval_text(lower, upper, error)
    places = [len(part.partition(".")[2]) for part in shown[1:-1].split(", ")]
    assert places == [places_for(error)] * 2


def test_an_interval_may_be_open() -> None:
    assert interval_text(-math.inf, math.inf, math.inf) == "(unbounded)"
    assert interval_text(-math.inf, 1.5, 0.1) == "[-inf, 1.50]"
    assert interval_text(8.0641, 8.3227, 0.0648) == "[8.064, 8.323]"


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0"), (1, "1"), (0.5, "0.5"), (9.94, "9.9"), (12.34, "12"), (1234567, "1,234,567")],
)
def test_a_number_of_rows_is_a_whole_number_where_it_can_be(
    count: float, expected: str
) -> None:
    assert count_text(count) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0.0, "0"),
        (2.0, "2"),
        (0.0012345, "0.00123"),
        (999.6, "1,000"),
        (1234.5, "1,230"),
        (-1234.5, "-1,230"),
        (1e9, "1e+09"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
    ],
)
def test_a_number_without_an_error_has_three_digits(number: float, expected: str) -> None:
    assert short(number) == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "0%"), (1.0, "100%"), (0.98338, "98.3%"), (0.0004, "0.04%"), (0.001, "0.1%")],
)
def test_a_small_share_is_not_shown_as_nothing(share: float, expected: str) -> None:
    assert percent(share) == expected
