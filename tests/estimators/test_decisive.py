"""Decisive rows: limits from SciPy's distributions, and estimates row by row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from poolwise.estimators.calibrated import list_controls
from poolwise.estimators.decisive import Decisive, HeavyPart, SetApart, set_apart
from poolwise.moments.heavy import Contrast, HeavyRows
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, Term, ratio
from tests.support.small import group

WEIGHT, OTHER = BALANCED_WEIGHT.bind("t"), BALANCED_WEIGHT.bind("u")
ALPHA = 0.025


def part(mass: float = 0.2, mean: float = 0.3, rows: float = 8.0, **more: Any) -> HeavyPart:  # noqa: ANN401
    return HeavyPart(mass, mean, rows, **({"variance": 0.25, "reward_range": None} | more))


# --- limits of the mean ----------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1.6, 8.0, 40.0])
@pytest.mark.parametrize("alpha", [0.025, 0.2])
def test_without_a_range_limits_are_students(rows: float, alpha: float) -> None:
    wide = stats.t.isf(alpha, rows - 1) * math.sqrt(0.25 / rows)
    assert part(rows=rows).limits(alpha) == pytest.approx((0.3 - wide, 0.3 + wide), rel=1e-9)


@pytest.mark.parametrize(("rows", "variance"), [(1.5, 0.25), (1.0, 0.25), (8.0, 0.0)])
def test_without_a_range_or_a_spread_anything_is_possible(rows: float, variance: float) -> None:
    assert part(rows=rows, variance=variance).limits(ALPHA) == (-math.inf, math.inf)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-2.0, 3.0)])
@pytest.mark.parametrize("seen", [1e-9, 0.25, 0.8, 1 - 1e-9])
def test_with_a_range_limits_are_those_of_a_proportion(
    low: float, high: float, seen: float
) -> None:
    mean = low + seen * (high - low)
    found = part(mean=mean, reward_range=(low, high)).limits(ALPHA)
    beta = stats.beta(seen * 8 + 0.5, (1 - seen) * 8 + 0.5)
    below, above = beta.ppf(ALPHA), beta.isf(ALPHA)
    expected = (low + below * (high - low), low + above * (high - low))
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("rows", [1.0, 8.0])
def test_at_an_end_of_the_range_limits_are_exact(rows: float) -> None:
    """If all of 8 rows earn nothing, a share s is refuted where (1 - s)^8 is below alpha."""
    share = 1 - ALPHA ** (1 / rows)
    low = part(mean=-2.0, rows=rows, reward_range=(-2.0, 3.0)).limits(ALPHA)
    assert low == pytest.approx((-2.0, -2.0 + 5 * share), rel=1e-12)
    high = part(mean=3.0, rows=rows, reward_range=(-2.0, 3.0)).limits(ALPHA)
    assert high == pytest.approx((3.0 - 5 * share, 3.0), rel=1e-12)


@pytest.mark.parametrize("mean", [-5.0, 9.0])
def test_means_beyond_the_range_count_as_its_end(mean: float) -> None:
    end = -2.0 if mean < 0 else 3.0
    found, wanted = (part(mean=m, reward_range=(-2.0, 3.0)) for m in (mean, end))
    assert found.limits(ALPHA) == pytest.approx(wanted.limits(ALPHA), rel=1e-12)


def test_rows_that_were_not_seen_may_earn_anything_in_the_range() -> None:
    assert part(rows=0.0, reward_range=(-2.0, 3.0)).limits(ALPHA) == (-2.0, 3.0)


def test_a_range_of_one_number_leaves_that_number() -> None:
    assert part(mean=2.0, reward_range=(2.0, 2.0)).limits(ALPHA) == (2.0, 2.0)


@pytest.mark.parametrize("mass", [0.2, -0.2])
def test_distances_are_those_of_mass_times_mean(mass: float) -> None:
    low, high = part(mass=mass).limits(ALPHA)
    below, above = part(mass=mass).distances(ALPHA)
    one, two = 0.2 * (0.3 - low), 0.2 * (high - 0.3)
    assert (below, above) == pytest.approx((one, two) if mass > 0 else (two, one), rel=1e-12)
    lower, upper = part(mass=mass, mean=0.9, reward_range=(0.0, 1.0)).distances(ALPHA)
    assert (lower > upper) == (mass > 0)


def test_no_mass_has_no_distance() -> None:
    assert part(mass=0.0, rows=1.0).distances(ALPHA) == (0.0, 0.0)
    assert part(mass=1.0).distances(ALPHA) == pytest.approx(
        [5 * d for d in part(mass=0.2).distances(ALPHA)], rel=1e-12
    )


def test_a_mean_outside_its_limits_has_no_negative_distance() -> None:
    below, above = part(mean=5.0, reward_range=(-2.0, 3.0)).distances(ALPHA)
    assert above == 0.0
    assert below > 0


# --- both parts ------------------------------------------------------------------------------


def two_sided() -> Decisive:
    heavy = (
        part(mass=0.2, rows=8.0, reward_range=(0.0, 1.0)),
        part(mass=-0.1, mean=0.6, rows=5.0, reward_range=(0.0, 1.0)),
    )
    return Decisive(0.4, heavy, light_variance=0.0009, number=13, behind=20.0)


def test_distances_of_both_parts_combine_as_squares() -> None:
    found = two_sided()
    light = (stats.norm.ppf(ALPHA) * 0.03) ** 2
    parts = [side.distances(ALPHA) for side in found.heavy]
    expected = [math.sqrt(light + a**2 + b**2) for a, b in zip(*parts, strict=True)]
    assert found.distances(ALPHA) == pytest.approx(expected, rel=1e-9)
    one = stats.norm.sf(1.0)
    assert found.variance == pytest.approx((sum(found.distances(one)) / 2) ** 2, rel=1e-9)


def test_the_rows_are_those_of_the_side_that_has_fewer_and_the_mass_is_the_larger() -> None:
    assert (two_sided().rows, two_sided().mass, two_sided().ranged) == (5.0, 0.2, True)
    mixed = Decisive(0.4, (part(reward_range=(0.0, 1.0)), part()), 0.0, 13, 20.0)
    assert not mixed.ranged


def test_wider_limits_keep_the_value() -> None:
    found, wide = two_sided(), two_sided().widen(1.5)
    assert (wide.value, wide.number, wide.behind) == (0.4, 13, 20.0)
    expected = [1.5 * distance for distance in found.distances(ALPHA)]
    assert wide.distances(ALPHA) == pytest.approx(expected, rel=1e-12)
    assert wide.variance == pytest.approx(1.5**2 * found.variance, rel=1e-12)


# --- estimates -------------------------------------------------------------------------------

LIGHT = {  # by logger: reward, and weights of both targets
    "a": ([1.0, 0.0, 3.0, 2.0], [0.9, 1.1, 0.5, 0.7], [1.0, 0.8, 0.6, 1.2]),
    "b": ([2.0, 5.0, 0.5], [0.25, 0.75, 1.5], [1.1, 0.4, 0.9]),
}


def rows_of(heavy: list[tuple[str, float, float, float]]) -> dict[str, dict[Term, list[float]]]:
    """Columns of the light rows and of heavy ones: logger, reward and both weights."""
    columns: dict[str, dict[Term, list[float]]] = {}
    for i, (rewards, one, two) in LIGHT.items():
        more = [row[1:] for row in heavy if row[0] == i]
        lists = [*zip(*more, strict=True)] or [(), (), ()]
        pairs = zip((rewards, one, two), lists, strict=True)
        own = dict(zip((REWARD, WEIGHT, OTHER), ([*a, *b] for a, b in pairs), strict=True))
        for weight in (WEIGHT, OTHER):
            own[REWARD * weight] = [
                r * w for r, w in zip(own[REWARD], own[weight], strict=True)
            ]
        columns[i] = own
    return columns


def estimate(contrast: Contrast, heavy: list[tuple[str, float, float, float]]) -> SetApart:
    columns = rows_of(heavy)
    values = {
        term: np.array([row[k] for row in heavy], dtype=np.float64)
        for k, term in ((1, REWARD), (2, WEIGHT), (3, OTHER))
    }
    chosen = HeavyRows(contrast, 7.0, [row[0] for row in heavy], values, 0.4, 0.16, None)
    pool = Pool({i: group(own) for i, own in columns.items()})
    return set_apart(pool, chosen, columns=False)


# rewards and both weights of all light rows
R, W, U = (np.concatenate([np.array(own[k]) for own in LIGHT.values()]) for k in range(3))


HEAVY = [("a", 1.0, 9.0, 1.5), ("b", 0.5, 7.0, 1.0), ("b", 0.0, 8.0, 2.0)]


def test_a_value_is_the_light_rows_and_the_mass_times_the_mean_of_the_heavy_ones() -> None:
    found = estimate(Contrast(WEIGHT), HEAVY)
    mean = (9 * 1.0 + 7 * 0.5) / 24
    mass = 1 - W.sum() / 10
    assert found.decisive.value == pytest.approx((R * W).sum() / 10 + mass * mean, rel=1e-12)
    (one,) = found.decisive.heavy
    assert (one.mass, one.mean) == pytest.approx((mass, mean), rel=1e-12)
    rows = 24**2 / (81 + 49 + 64)
    spread = (9 * (1 - mean) ** 2 + 7 * (0.5 - mean) ** 2 + 8 * mean**2) / 24
    assert one.rows == pytest.approx(rows, rel=1e-12)
    assert one.variance == pytest.approx(max(0.16, spread * rows / (rows - 1)), rel=1e-12)
    assert (found.decisive.number, found.decisive.behind) == (3, 7.0)
    assert found.linear.value(found.light) == pytest.approx(found.decisive.value, rel=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("least", [6.0, 0.5, 0.0])
def test_a_difference_whose_heavy_rows_lean_one_way_has_one_side(
    sign: int, least: float
) -> None:
    contrast = Contrast(WEIGHT, OTHER) if sign > 0 else Contrast(OTHER, WEIGHT)
    found = estimate(contrast, [*HEAVY, ("a", 0.25, least + 2.0, 2.0)])
    gaps, rewards = np.array([7.5, 6.0, 6.0, least]), np.array([1.0, 0.5, 0.0, 0.25])
    mean = gaps @ rewards / gaps.sum()
    mass = -sign * (W - U).sum() / 11
    light = sign * (R * (W - U)).sum() / 11
    (one,) = found.decisive.heavy
    assert (one.mass, one.mean) == pytest.approx((mass, mean), rel=1e-12)
    assert found.decisive.value == pytest.approx(light + mass * mean, rel=1e-12)


@pytest.mark.parametrize("first", [9.0, 2.0])
def test_a_difference_whose_heavy_rows_lean_both_ways_has_two_sides(first: float) -> None:
    heavy = [("a", 1.0, first, 1.5), *((i, r, 0.5, w) for i, r, w, _ in HEAVY)]
    found = estimate(Contrast(WEIGHT, OTHER), heavy)
    one, two = found.decisive.heavy
    rewards = np.array([1.0, 1.0, 0.5, 0.0])
    weights = (np.array([first, 0.5, 0.5, 0.5]), np.array([1.5, 9.0, 7.0, 8.0]))
    means = [w @ rewards / w.sum() for w in weights]
    masses = [1 - W.sum() / 11, U.sum() / 11 - 1]
    assert (one.mean, two.mean) == pytest.approx(means, rel=1e-12)
    assert (one.mass, two.mass) == pytest.approx(masses, rel=1e-12)
    light = (R * (W - U)).sum() / 11
    expected = light + masses[0] * means[0] + masses[1] * means[1]
    assert found.decisive.value == pytest.approx(expected, rel=1e-12)


def test_without_heavy_rows_the_mean_is_that_of_the_light_ones() -> None:
    found = estimate(Contrast(WEIGHT), [])
    (one,) = found.decisive.heavy
    assert (one.mean, one.rows, one.variance) == (0.4, 0.0, 0.16)
    assert one.mass == pytest.approx(1 - W.sum() / 7, rel=1e-12)


def test_one_heavy_row_has_the_variance_of_the_light_ones() -> None:
    found = estimate(Contrast(WEIGHT), HEAVY[:1])
    (one,) = found.decisive.heavy
    assert (one.mean, one.rows, one.variance) == (1.0, 1.0, 0.16)


def test_uneven_heavy_rows_are_fewer_than_they_are() -> None:
    found = estimate(Contrast(WEIGHT), [("a", 1.0, 9.0, 1.5), ("b", 3.0, 1.5, 1.0)])
    (one,) = found.decisive.heavy
    rows, mean = 10.5**2 / (81 + 2.25), 13.5 / 10.5
    spread = (9 * (1 - mean) ** 2 + 1.5 * (3 - mean) ** 2) / 10.5
    assert (one.rows, one.mean) == pytest.approx((rows, mean), rel=1e-12)
    assert one.variance == pytest.approx(spread * rows / (rows - 1), rel=1e-12)


def test_one_of_two_ratios_explains_as_much_as_both() -> None:
    """They average to 1, so the second one follows from the first."""
    rng, size, found = np.random.default_rng(0), 300, []
    columns, places = {}, {"a": [0], "b": [0, 1]}  # of the heavy rows
    for i, own in places.items():
        first = rng.uniform(0.5, 1.5, size)
        weight = rng.uniform(0.5, 1.5, size) * first
        weight[own] = 60.0
        reward = first + rng.normal(0, 0.1, size)
        columns[i] = {REWARD: reward, WEIGHT: weight, REWARD * WEIGHT: reward * weight}
        columns[i] |= {ratio("a"): first, ratio("b"): 2.0 - first}
    values = {
        term: np.concatenate([columns[i][term][k] for i, k in places.items()])
        for term in (REWARD, WEIGHT, ratio("a"), ratio("b"))
    }
    heavy = HeavyRows(Contrast(WEIGHT), 7.0, ["a", "b", "b"], values, 0.4, 0.16, None)
    for absent, fitted in (("b", True), ("", True), ("ab", True), ("", False)):
        kept = {
            i: group({t: v.tolist() for t, v in own.items() if t not in map(ratio, absent)})
            for i, own in columns.items()
        }
        found.append(set_apart(Pool(kept), heavy, columns=fitted))
    one, both, neither, plain = found
    assert one.decisive.value == pytest.approx(both.decisive.value, rel=1e-9)
    assert one.decisive.light_variance < 0.5 * plain.decisive.light_variance
    assert neither.decisive == plain.decisive
    assert (one.linear.fit is None, plain.linear.fit is None) == (False, True)
    assert one.linear.fit is not None
    assert (one.linear.fit.effective, one.linear.fit.within) == (600.0, False)


@pytest.mark.parametrize("known", ["a", "ab"])
def test_of_three_loggers_two_must_be_known_and_small_ones_have_no_column(known: str) -> None:
    rng, columns = np.random.default_rng(1), {}
    sizes = {"a": 300, "b": 300, "c": 5}
    for i, size in sizes.items():
        weight, reward = rng.uniform(0.5, 1.5, size), rng.normal(0.5, 0.1, size)
        own = {REWARD: reward, WEIGHT: weight, REWARD * WEIGHT: reward * weight}
        own |= {ratio(k): rng.uniform(0.5, 1.5, size) for k in known}
        columns[i] = group({term: values.tolist() for term, values in own.items()})
    values = {t: np.array([1.0]) for t in (REWARD, WEIGHT, ratio("a"), ratio("b"))}
    heavy = HeavyRows(Contrast(WEIGHT), 7.0, ["a"], values, 0.4, 0.16, None)
    fit = set_apart(Pool(columns), heavy).linear.fit
    assert (fit is None) == (known == "a")
    if fit is not None:
        assert (fit.effective, fit.within) == (605.0, True)
        light = set_apart(Pool(columns), heavy).light
        assert [*fit.columns] == list_controls(light, ("loggers",), few=("c",))
