"""Deviation: a score test of a mean whose expectation is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from poolwise.moments.deviation import deviation, skewed_score
from poolwise.moments.linear import Score
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_WEIGHT, Needs
from tests.support.reference import exact_moments
from tests.support.small import group

MEAN = Score({BALANCED_WEIGHT: 1.0})


def weights(mean: float) -> list[float]:
    return [mean + gap for gap in (-0.5, -0.5, -0.5, 1.5)] * 20  # skewed to the right


def test_the_score_is_the_distance_at_the_expectation() -> None:
    # d = 4 and skewness 3/4 towards the expectation: 4 / sqrt(1 + 3)
    assert skewed_score(-4.0, 0.75) == -2.0
    assert skewed_score(4.0, -0.75) == 2.0
    assert skewed_score(-4.0, -0.75) == -4.0  # away from it
    assert skewed_score(0.0, 0.75) == 0.0


@pytest.mark.parametrize("mean", [0.5, 1.5])
def test_without_slices_the_test_is_students(mean: float) -> None:
    pool = Pool({"a": group({BALANCED_WEIGHT: weights(mean)})})
    found = deviation(MEAN.over(pool), pool)
    error = float(np.std(weights(mean), ddof=1)) / math.sqrt(80)
    assert found.value == pytest.approx(mean, rel=1e-12)
    assert found.z == pytest.approx((mean - 1) / error, rel=1e-12)


def test_a_bound_on_the_variance_lowers_the_distance() -> None:
    pool = Pool({"a": group({BALANCED_WEIGHT: weights(0.5)})})
    assert deviation(MEAN.over(pool), pool, at_least=0.25).z == pytest.approx(-1.0, rel=1e-12)


def sliced(values: Any) -> Pool:  # noqa: ANN401 - an array
    """One slice for each row."""
    needs = Needs(groups=((BALANCED_WEIGHT,),), slices=(BALANCED_WEIGHT,))
    return Pool({"a": exact_moments({BALANCED_WEIGHT: values}, needs)})


@pytest.mark.parametrize("at_least", [0.0, 0.05])
@pytest.mark.parametrize(("mean", "expected"), [(0.5, 1.0), (1.5, 1.0), (0.5, 0.25)])
def test_with_slices_it_is_a_score_test_on_the_side_of_the_skew(
    mean: float, expected: float, at_least: float
) -> None:
    values = -np.log(1 - (np.arange(80) + 0.5) / 80)  # quantiles of an exponential
    values += mean - values.mean()
    pool = sliced(values)
    found = deviation(MEAN.over(pool), pool, expected=expected, at_least=at_least)
    units = (values - mean) / 80
    own = 80 / 79 * float(np.sum(units**2))
    variance = max(own, at_least)
    z = (mean - expected) / math.sqrt(variance)
    third = 80**2 / (79 * 78) * float(np.sum(units**3))
    skewness = third / own**1.5
    spread = float(np.mean(units**4)) - 77 / 79 * float(np.mean(units**2)) ** 2
    excess = 80 * spread / own**2 - skewness**2
    freedom = 2 / excess
    assert 1 < freedom < 79
    towards = max(0.0, -z * third / variance**1.5)
    score = abs(z) / math.sqrt(1 + towards)
    assert (towards > 0) == (mean < expected)
    assert found.z == pytest.approx(z, rel=1e-9)
    assert found.p_value == pytest.approx(2 * stats.t.sf(score, freedom), rel=1e-9)


@pytest.mark.parametrize("expected", [0.75, 1.0, 1.0 + 1e-13, 1.25])
def test_without_variance_any_gap_is_certain(expected: float) -> None:
    pool = Pool({"a": group({BALANCED_WEIGHT: [1.0] * 8})})
    found = deviation(MEAN.over(pool), pool, expected=expected)
    equal = abs(expected - 1) < 1e-12
    assert found.value == 1.0
    assert found.z == (0.0 if equal else math.copysign(math.inf, 1 - expected))
    assert found.p_value == (1.0 if equal else 0.0)


def test_one_row_shows_nothing() -> None:
    pool = Pool({"a": group({BALANCED_WEIGHT: [3.0]})})
    found = deviation(MEAN.over(pool), pool)
    assert (found.value, found.z, found.p_value) == (3.0, 0.0, 1.0)
