"""Shapes of sums: polynomials along a line agree with the units themselves."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from benchmarks.draws import deal
from poolwise.moments.moments import Moments, pooled
from poolwise.moments.shape import ShapeLine, shape_of
from poolwise.moments.terms import REWARD, WEIGHT

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
