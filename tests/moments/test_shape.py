"""Shapes of sums: polynomials along a line agree with the units themselves."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.draws import deal
from poolwise.moments.moments import Moments, pooled
from poolwise.moments.shape import (
    Powers,
    ShapeLine,
    cumulants,
    in_range,
    shape_of,
    shapes_of,
)
from poolwise.moments.terms import REWARD, WEIGHT

FloatArray = NDArray[np.float64]

rng = np.random.default_rng(7)
SIZES = (1, 2, 3, 40)


def strata(scale: float) -> list[np.ndarray]:
    return [scale * (rng.exponential(size=n) - 1.0) for n in SIZES]


@pytest.mark.parametrize("scale", [1.0, 1e150, 1e-150])
@pytest.mark.parametrize("distance", [0.0, 0.3, -2.0])
def test_shapes_along_a_line_are_those_of_the_units(scale: float, distance: float) -> None:
    units, slopes, pull = strata(scale), strata(1.0), rng.normal(size=sum(SIZES))
    moved = [a - distance * scale * b for a, b in zip(units, slopes, strict=True)]
    line = ShapeLine(units, slopes, pull)
    expected = astuple(shape_of(moved, pull))
    assert astuple(line.shape(distance * scale)) == pytest.approx(expected, rel=1e-12)


def test_units_that_do_not_vary_have_no_shape() -> None:
    nothing = [np.zeros(5)]
    assert ShapeLine(nothing, nothing).shape(1.0) == shape_of(nothing)


def of_rows(values: np.ndarray, slices: int) -> Moments:
    sums = np.zeros((1, slices))
    deal(values[None], sums)
    nan, mean = np.full(1, np.nan), values.mean(keepdims=True)
    scatter = np.array([[np.sum((values - mean) ** 2)]])
    return Moments((REWARD,), len(values), mean, scatter, nan, nan, slices={REWARD: sums[0]})


def test_merged_slices_are_those_of_all_rows() -> None:
    values = np.arange(20.0)
    first, second, third = (of_rows(part, 7) for part in np.split(values, [4, 15]))
    for merged in (pooled((first, second, third)), (first + second) + third):
        assert list(merged.slices) == [REWARD]
        assert merged.slices[REWARD].tolist() == of_rows(values, 7).slices[REWARD].tolist()
        assert WEIGHT not in merged.slices


def test_groups_with_other_numbers_of_slices_share_none() -> None:
    values = np.arange(20.0)
    assert not pooled((of_rows(values, 7), of_rows(values, 5))).slices


def powers_of(weights: list[float], rewards: list[float], *, own: bool = True) -> Powers:
    """The powers of a few rows, by their definition."""

    def six(values: FloatArray) -> FloatArray:
        size = np.abs(values)
        sums = [np.count_nonzero(values), *((size**p).sum() for p in range(1, 5)), size.max()]
        return np.array(sums, dtype=np.float64)

    w, r = np.array(weights), np.array(rewards)
    weight = np.array([(w**p).sum() for p in range(4)])
    return Powers(len(w), six(r), weight, six(w * r), own)


def test_powers_are_scaled_with_the_weights_and_added_over_groups() -> None:
    left, right = ([1.0, 2.0], [3.0, -1.0]), ([0.5], [4.0])
    scaled = powers_of(*left).scaled(3.0)
    assert as_lists(scaled) == as_lists(powers_of([3.0, 6.0], left[1]))
    both = powers_of(*left) + powers_of(*right, own=False)
    expected = powers_of(left[0] + right[0], left[1] + right[1], own=False)
    assert as_lists(both) == as_lists(expected)
    with np.errstate(all="raise"):  # powers may be out of range
        assert powers_of(*left).scaled(1e200).weight[3] == np.inf


def as_lists(powers: Powers) -> list[object]:
    return [np.asarray(field).tolist() for field in astuple(powers)]


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([5.0], [0.0, 0.0, 0.0]),
        # two units: 2/1 of the squares; no third cumulant; fourths - squares² · (-1) / 2
        ([1.0, -1.0], [4.0, 0.0, 4.0]),
        # three: 3/2 of 6, 9/2 of 6, and 18 - 0
        ([2.0, -1.0, -1.0], [9.0, 27.0, 18.0]),
        # four: 4/3 of 12, 16/6 of 24, and 84 - 144 · 1 / 12
        ([3.0, -1.0, -1.0, -1.0], [16.0, 64.0, 72.0]),
    ],
)
def test_cumulants_of_a_few_units_are_unbiased(
    units: list[float], expected: list[float]
) -> None:
    assert cumulants(np.array(units)) == pytest.approx(expected, rel=1e-13)
    # several sums at once, and several strata
    assert pytest.approx(np.array([expected] * 2)) == cumulants(np.array([units, units])).T


def test_units_are_divided_by_the_largest_of_each_sum() -> None:
    strata = [np.array([[1.0, -4.0], [0.0, 0.0]]), np.array([[2.0], [0.0]]), np.empty((2, 0))]
    first, second, third = in_range(strata)
    assert first.tolist() == [[0.25, -1.0], [0.0, 0.0]]
    assert (second.tolist(), third.shape) == ([[0.5], [0.0]], (2, 0))
    skewness, noise = shapes_of([np.array([[2.0, -1.0, -1.0], [0.0, 0.0, 0.0]])])
    assert skewness == pytest.approx([1.0, 0.0], rel=1e-13)  # 27 / 9^1.5
    assert noise == pytest.approx([18 / 81, 0.0], rel=1e-13)
