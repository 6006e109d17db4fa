"""SLOPE: the worked example, each side of its inequality, laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolwise.errors import UsageError
from poolwise.estimators.shrink import slope
from tests.support.messages import refused

candidates = st.lists(
    st.tuples(st.floats(-5, 5), st.floats(0, 5)),
    min_size=1,
    max_size=8,
    unique_by=lambda candidate: candidate[1],
)


def test_the_third_candidate_disagrees_with_the_second() -> None:
    # |0.60 - 0.90| = 0.30 > 0.05 + 1.4495 · 0.10 = 0.195, while 0.40 < 0.05 + 0.435
    assert slope([1.00, 0.90, 0.60], [0.30, 0.10, 0.05]) == 1


@pytest.mark.parametrize(("gap", "chosen"), [(0.194, 1), (0.196, 0)])
def test_the_reach_is_the_root_of_six_less_one(gap: float, chosen: int) -> None:
    # 0.05 + (2.449490 - 1) · 0.10 = 0.194949
    assert slope([0.0, gap], [0.10, 0.05]) == chosen
    assert slope([0.0, -gap], [0.10, 0.05]) == chosen


def test_all_wider_candidates_have_a_say() -> None:
    # the third agrees with the second, 0.5 < 0.1 + 1.45 · 0.5, not with the first,
    # 1.0 > 0.1 + 1.45 · 0.6
    assert slope([0.0, 0.5, 1.0], [0.6, 0.5, 0.1]) == 1


def test_the_first_disagreement_is_the_last_word() -> None:
    # the second is too far from the first, 0.8 > 0.29 + 1.45 · 0.30; the third, between
    # the two, agrees with both, but comes too late
    assert slope([0.0, 0.8, 0.4], [0.30, 0.29, 0.28]) == 0


def test_agreeing_candidates_leave_the_narrowest() -> None:
    assert slope([1.0, 1.0, 1.0], [3.0, 2.0, 1.0]) == 2
    assert slope([1.0], [math.inf]) == 0
    assert slope([1.0, 100.0], [math.inf, 1.0]) == 1


@given(candidates, st.integers(0, 1000), st.sampled_from([0.5, 2.0, 8.0]), st.integers(-64, 64))
def test_order_scale_and_offset_do_not_matter(
    drawn: list[tuple[float, float]], seed: int, factor: float, offset: int
) -> None:
    values, widths = np.round(np.array(drawn).T * 1024) / 1024  # so that sums are exact
    if len(np.unique(widths)) < len(widths):
        return
    chosen = slope(values, widths)
    order = np.random.default_rng(seed).permutation(len(values))
    assert order[slope(values[order], widths[order])] == chosen
    assert slope(factor * values + offset, factor * widths) == chosen
    assert slope(-values, widths) == chosen


@given(candidates)
def test_wider_intervals_agree_more(drawn: list[tuple[float, float]]) -> None:
    values, widths = np.array(drawn).T
    assert widths[slope(values, 2 * widths)] <= widths[slope(values, widths)]


def test_what_slope_cannot_order_is_refused() -> None:
    with refused(UsageError):
        slope([], [])
    with refused(UsageError):
        slope([1.0], [1.0, 2.0])
    with refused(UsageError):
        slope([math.nan], [1.0])
    with refused(UsageError):
        slope([1.0], [-1.0])
