"""Shapes of sums: polynomials along a line agree with the units themselves."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.draws import deal
from poolwise.moments.linear import Linear, Score
from poolwise.moments.moments import Moments, pool_moments
from poolwise.moments.pool import Pool
from poolwise.moments.shape import (
    Powers,
    Shape,
    ShapeLine,
    cube,
    cumulants,
    estimate_powers,
    find_weight,
    in_range,
    measure_shape,
    measure_shapes,
    shape_from,
)
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    PERIOD_RESIDUAL,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Term,
    second_moment,
)
from poolwise.moments.units import centre_units, find_pull
from tests.support.small import group

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
    expected = astuple(measure_shape(moved, pull))
    assert astuple(line.shape(distance * scale)) == pytest.approx(expected, rel=1e-12)


def test_units_that_do_not_vary_have_no_shape() -> None:
    nothing = [np.zeros(5)]
    assert ShapeLine(nothing, nothing).shape(1.0) == measure_shape(nothing)


def of_rows(values: np.ndarray, slices: int) -> Moments:
    sums = np.zeros((1, slices))
    deal(values[None], sums)
    nan, mean = np.full(1, np.nan), values.mean(keepdims=True)
    scatter = np.array([[np.sum((values - mean) ** 2)]])
    return Moments((REWARD,), len(values), mean, scatter, nan, nan, slices={REWARD: sums[0]})


def test_merged_slices_are_those_of_all_rows() -> None:
    values = np.arange(20.0)
    first, second, third = (of_rows(part, 7) for part in np.split(values, [4, 15]))
    for merged in (pool_moments((first, second, third)), (first + second) + third):
        assert list(merged.slices) == [REWARD]
        assert merged.slices[REWARD].tolist() == of_rows(values, 7).slices[REWARD].tolist()
        assert WEIGHT not in merged.slices


def test_groups_with_other_numbers_of_slices_share_none() -> None:
    values = np.arange(20.0)
    assert not pool_moments((of_rows(values, 7), of_rows(values, 5))).slices


def six(values: FloatArray) -> FloatArray:
    """Number of non-zero values, sums of four powers, and the largest value."""
    size = np.abs(values)
    sums = [np.count_nonzero(values), *((size**p).sum() for p in range(1, 5)), size.max()]
    return np.array(sums, dtype=np.float64)


def powers_of(weights: list[float], rewards: list[float], *, own: bool = True) -> Powers:
    """The powers of a few rows, by their definition."""
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
    rows = [[1.0, -4.0], [0.5, 2.0], [0.0, 0.0]]
    strata = [np.array(rows), np.array([[2.0], [-1.0], [0.0]]), np.empty((3, 0))]
    first, second, third = in_range(strata)
    assert first.tolist() == [[0.25, -1.0], [0.25, 1.0], [0.0, 0.0]]
    assert (second.tolist(), third.shape) == ([[0.5], [-0.5], [0.0]], (3, 0))
    skewness, noise = measure_shapes([np.array([[2.0, -1.0, -1.0], [0.0, 0.0, 0.0]])])
    assert skewness == pytest.approx([1.0, 0.0], rel=1e-13)  # 27 / 9^1.5
    assert noise == pytest.approx([18 / 81, 0.0], rel=1e-13)
    single = [np.array([[70.0]]), np.array([[2.0, -1.0, -1.0]])]  # one unit has no variance
    assert np.ravel(measure_shapes(single)) == pytest.approx([1.0, 18 / 81], rel=1e-13)


def test_the_shape_of_a_few_units() -> None:
    # divided by the largest: 1, -1/2, -1/2, with 9/4 as variance; the pull adds 3/2 of
    # 1/2 · 1 + 0 + 1 · 1/4, which is half of it
    units = [np.array([2.0, -1.0, -1.0])]
    shape = measure_shape(units, np.array([0.5, 0.0, 1.0]))
    assert astuple(shape) == pytest.approx((1.0, 18 / 81, 1.5), rel=1e-13)
    assert measure_shape(units, np.array([-0.5, 0.0, 0.0])).rise == 1.0
    assert measure_shape(units).rise == ShapeLine(units, units).shape(0.25).rise == 1.0
    assert astuple(measure_shape([*units, np.array([7.0])], np.array([0, 0, 0, 1.0])))[:2] == (
        pytest.approx((1.0, 18 / 81), rel=1e-13)
    )
    assert measure_shape([]) == Shape() == Shape(0.0, 0.0, 1.0)
    for variance in (0.0, math.inf, math.nan):
        assert shape_from(np.array([variance, variance, 1.0]), 1.0) == Shape()
    assert shape_from(np.array([4.0, 16.0, 8.0])) == Shape(2.0, 0.5, 1.0)


# ---------------------------------------- units of a combination


def sliced(columns: dict[Term, list[float]], slices: int) -> Moments:
    """Moments of a few rows, which are dealt to slices in turn."""
    sums = {t: [sum(v[k::slices]) for k in range(slices)] for t, v in columns.items()}
    return replace(group(columns), slices={t: np.array(s, float) for t, s in sums.items()})


# centred sums over slices of (2, 1, 1) and of (1, 1) rows, over the rows of the logger:
#   a: rewards (1, -1, 0) / 4, weights (0, -1, 1) / 4; b: rewards (1, -1), weights (-1, 1) / 2
MOMENTS = Pool(
    {
        "a": sliced({REWARD: [1.0, 2.0, 3.0, 6.0], WEIGHT: [1.0, 0.0, 2.0, 1.0]}, 3),
        "b": sliced({REWARD: [4.0, 0.0], WEIGHT: [1.0, 3.0]}, 3),
    }
)
LIGHT = Score({WEIGHT: 1.0}, -1.0)  # with the mean 1/3


def test_units_are_centred_sums_over_slices() -> None:
    linear = Linear({"a": {REWARD: 2.0, WEIGHT: -1.0}, "b": {WEIGHT: 4.0}})
    units = centre_units(linear, MOMENTS) or ()
    assert [u.tolist() for u in units] == [[0.5, -0.25, -0.25], [-2.0, 2.0]]
    alone = Linear({"a": {REWARD: 1.0, BALANCED_WEIGHT: 0.0}})  # a coefficient of 0 is none
    units = centre_units(alone, MOMENTS) or ()
    assert [u.tolist() for u in units] == [[0.25, -0.25, 0.0], [0.0, 0.0]]
    assert centre_units(Linear({"a": {BALANCED_WEIGHT: 1.0}}), MOMENTS) is None
    without = {**MOMENTS, "b": replace(MOMENTS["b"], slices={})}
    assert centre_units(alone, Pool(without)) is None


BUCKETS = [
    {"a": group({REWARD: [1.0], WEIGHT: [1.0]}), "b": group({REWARD: [4.0], WEIGHT: [1.0]})},
    {"a": group({REWARD: [2.0, 3.0, 6.0], WEIGHT: [0.0, 2.0, 1.0]})},
    {"b": group({REWARD: [0.0], WEIGHT: [3.0]})},
]


def test_buckets_are_units_of_all_loggers_together() -> None:
    # rewards of a: 1 - 3, 11 - 9, 0, over 4; weights of b: 1 - 2, 0, 3 - 2, over 2
    linear = Linear({"a": {REWARD: 2.0}, "b": {WEIGHT: 4.0}})
    bare = Pool({i: replace(m, slices={}) for i, m in MOMENTS.items()})
    (units,) = centre_units(linear, Pool(bare, BUCKETS)) or [np.empty(0)]
    assert units == pytest.approx([-1.0 - 2.0, 1.0, 2.0], rel=1e-13)
    two = [BUCKETS[0] | {"b": MOMENTS["b"]}, BUCKETS[1]]
    (units,) = centre_units(linear, Pool(bare, two)) or [np.empty(0)]
    assert units == pytest.approx([-1.0, 1.0], rel=1e-13)
    assert centre_units(linear, bare) is None  # one bucket is none


def test_the_pull_is_the_slope_of_squares_on_a_column_times_its_mean() -> None:
    # weights over all six rows, centred by logger: (0, -1, 1, -1, 1) / 6, whose squares add
    # up to 1/9: the slope is (1/3) / (1/9) = 3
    pull = find_pull([LIGHT], MOMENTS, within=True)
    assert pull == pytest.approx([0.0, 0.5, -0.5, 0.5, -0.5], rel=1e-13)
    fitted = find_pull([LIGHT], MOMENTS, within=True, fitted=True)
    assert fitted == pytest.approx([0.0, 1.25, -0.75, 1.25, -0.75], rel=1e-13)
    # centred at 4/3 over all rows: (-2, -4, 2, -1, 5) / 18, squares 50 / 324
    pull = find_pull([LIGHT], MOMENTS, within=False)
    assert pull == pytest.approx([0.24, 0.48, -0.24, 0.12, -0.6], rel=1e-13)
    # 2 + pull / rows, with two rows in the first slice
    fitted = find_pull([LIGHT], MOMENTS, within=False, fitted=True)
    expected = [0.24 * 2.12, 0.48 * 2.48, -0.24 * 1.76, 0.12 * 2.12, -0.6 * 1.4]
    assert fitted == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("fitted", [False, True])
def test_the_pull_of_buckets(*, fitted: bool) -> None:
    # centred by logger (-1, 0, 1) / 6: squares 1/18; over all rows, at 4/3: (-2/3, -1, 5/3) / 6
    pull = find_pull([LIGHT], Pool(MOMENTS, BUCKETS), within=True, fitted=fitted)
    assert pull == pytest.approx([1.0, 0.0, -1.0], abs=1e-13)
    pull = find_pull([LIGHT], Pool(MOMENTS, BUCKETS), within=False, fitted=fitted)
    # squares 38 / 324: the slope is 108 / 38
    assert pull == pytest.approx([6 / 19, 9 / 19, -15 / 19], rel=1e-12)
    # two buckets, by logger: -1 + 1 and 1, over 6
    two = [BUCKETS[0], BUCKETS[1] | BUCKETS[2]]
    pull = find_pull([LIGHT], Pool(MOMENTS, two), within=True, fitted=fitted)
    assert pull == pytest.approx([1.0, -1.0], abs=1e-13)
    one = find_pull([LIGHT], MOMENTS, within=True, fitted=fitted)
    assert one == pytest.approx(find_pull([LIGHT], MOMENTS, within=True, fitted=fitted))


def test_the_pull_of_several_columns_has_the_slopes_of_all() -> None:
    rewards = Score({REWARD: 1e3}, -2e3)  # with the mean 2000/3
    pull = find_pull([LIGHT, rewards], MOMENTS, within=True)
    # rewards over all rows, centred by logger: (1, -1, 0, 2, -2) / 6; with the weights the
    # products are 4/36, 10/36 and -3/36: slopes (1/3, 2/3) have 36 / 31 · (16/3, 11/3)
    units = np.array([[0, -1, 1, -1, 1], [1, -1, 0, 2, -2]]) / 6
    assert pull == pytest.approx(-36 / 31 * np.array([16 / 3, 11 / 3]) @ units, rel=1e-12)
    same = find_pull([LIGHT, LIGHT * 3.0], MOMENTS, within=True)
    assert same == pytest.approx([0.0, 0.5, -0.5, 0.5, -0.5], rel=1e-12)
    constant = Score({REWARD: 1.0, WEIGHT: -1.0})  # rewards are the weights of these rows
    equal = Pool({"a": sliced({REWARD: [1.0, 0.0, 2.0], WEIGHT: [1.0, 0.0, 2.0]}, 3)})
    lone = find_pull([constant, LIGHT + constant], equal, within=True)
    assert np.allclose(lone, find_pull([LIGHT], equal, within=True))
    missing = Score({BALANCED_WEIGHT: 1.0}, -1.0)  # without slices
    alone = find_pull([missing, LIGHT], MOMENTS, within=True)
    assert alone == pytest.approx([0.0, 0.5, -0.5, 0.5, -0.5], rel=1e-12)
    assert find_pull([missing], MOMENTS, within=True) == 0.0
    assert find_pull([], Pool(MOMENTS, BUCKETS), within=True) == 0.0


@pytest.mark.parametrize(
    ("step", "fitted", "varies"),
    [
        (2e-13, False, False),  # a spread of half of it, below 1e-13 of the mean 1.5
        (4e-13, False, True),
        (4e-6, True, False),  # below the root of 1e-10 / 4, of the distance 0.5 to 1
        (6e-6, True, True),
        (4e-6, False, True),
    ],
)
def test_columns_that_hardly_vary_have_no_pull(
    step: float, *, fitted: bool, varies: bool
) -> None:
    moments = Pool({"a": sliced({WEIGHT: [1.5 + step, 1.5 - step, 1.5 + step, 1.5 - step]}, 4)})
    pull = np.asarray(find_pull([LIGHT], moments, within=True, fitted=fitted))
    assert pull.shape == (4,)
    assert np.any(pull) == varies


@pytest.mark.parametrize(("gap", "expected"), [(1.4e-5, 0.0), (2.9e-5, 0.5)])
def test_columns_of_correlation_near_one_are_one(gap: float, expected: float) -> None:
    # the smaller eigenvalue is half of the squared gap; 2e-10 are rounding
    first, second = np.array([1.0, -1.0, 1.0, -1.0]), np.array([1.0, 1.0, -1.0, -1.0])
    rows = {WEIGHT: first.tolist(), REWARD: (first + gap * second).tolist()}
    columns = [Score({WEIGHT: 1.0}), Score({REWARD: 1.0}, gap / 2)]
    pull = find_pull(columns, Pool({"a": sliced(rows, 4)}), within=True)
    assert pull == pytest.approx(-expected * second, abs=1e-4)


# ---------------------------------------- powers of an estimate


def powered(weights: list[float], rewards: list[float], weight: Term = WEIGHT) -> Moments:
    """Moments and powers of a few rows."""
    w, r = np.array(weights), np.array(rewards)
    columns = {weight: w, weight * REWARD: w * r, cube(weight): w**3}
    moments = group({t: v.tolist() for t, v in columns.items()})
    return replace(moments, powers={REWARD: six(r), weight * REWARD: six(w * r)})


A, B = ([1.0, 2.0], [3.0, -1.0]), ([0.5], [4.0])


def test_powers_of_an_estimate_have_the_shares_of_its_loggers() -> None:
    # shares of 1/4 and 3/4 with 2 and 1 of 3 rows: weights times 3/8 and 9/4
    moments = Pool({"a": powered(*A), "b": powered(*B)})
    linear = Linear({"a": {WEIGHTED_REWARD: -0.25, REWARD: 1.0}, "b": {WEIGHTED_REWARD: 0.75}})
    powers = estimate_powers(linear, moments)
    expected = powers_of([0.375, 0.75, 1.125], [3.0, -1.0, 4.0])
    assert powers is not None
    assert (powers.rows, powers.own) == (3, True)
    for field in ("reward", "weight", "weighted"):
        assert getattr(powers, field) == pytest.approx(getattr(expected, field), rel=1e-13)
    lone = estimate_powers(Linear({"a": {WEIGHTED_REWARD: 1.0}}), moments)
    assert lone is not None  # the weights of the other are 0
    assert lone.weight == pytest.approx([3.0, 4.5, 11.25, 30.375], rel=1e-13)


def test_balanced_powers_take_the_place_of_missing_ones() -> None:
    moments = Pool({"a": powered(*A, BALANCED_WEIGHT)})
    linear = Linear({"a": {WEIGHTED_REWARD: 1.0}})
    powers = estimate_powers(linear, moments)
    assert powers is not None
    assert as_lists(powers) == as_lists(powers_of(*A, own=False))
    own = estimate_powers(Linear({"a": {BALANCED_REWARD: 1.0}}), moments)
    assert own is not None
    assert own.own
    both = Linear({"a": {WEIGHTED_REWARD: 1.0, BALANCED_REWARD: 1.0}})
    assert estimate_powers(both, moments) is None
    assert estimate_powers(Linear({"a": {REWARD: 1.0}}), moments) is None
    assert estimate_powers(linear, Pool({"a": replace(moments["a"], powers={})})) is None
    cubes = {t: t for t in (BALANCED_WEIGHT, BALANCED_REWARD)}
    without = replace(moments["a"].select(cubes), powers=moments["a"].powers)
    assert estimate_powers(linear, Pool({"a": without})) is None


def test_powers_out_of_range_are_no_warning() -> None:
    with np.errstate(all="raise"):
        powers = estimate_powers(
            Linear({"a": {WEIGHTED_REWARD: 1e120}}), Pool({"a": powered(*A)})
        )
    assert powers is not None
    assert powers.weight[3] == math.inf


def test_weights_of_weighted_rewards() -> None:
    assert find_weight(WEIGHTED_REWARD) == WEIGHT
    assert find_weight(BALANCED_REWARD) == BALANCED_WEIGHT
    others = (REWARD, WEIGHT, WEIGHT * WEIGHT, PERIOD_RESIDUAL, second_moment("a"))
    assert [find_weight(term) for term in others] == [None] * 5
    assert cube(WEIGHT).factors == WEIGHT.factors * 3
