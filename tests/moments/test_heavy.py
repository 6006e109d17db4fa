"""Heavy rows: which rows are set apart, against a slow choice row by row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from poolwise.errors import RefusedError
from poolwise.moments.heavy import (
    Contrast,
    Found,
    Heaviest,
    HeavyChoice,
    HeavyRows,
    behind_variance,
    count_behind,
    lighten,
    mean_over,
)
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, Needs, ratio
from tests.support.messages import refused
from tests.support.reference import exact_moments
from tests.support.small import group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.types import FloatArray, IntArray

WEIGHT, OTHER = BALANCED_WEIGHT.bind("t"), BALANCED_WEIGHT.bind("u")
FOURTH = BALANCED_WEIGHT * BALANCED_WEIGHT * BALANCED_WEIGHT * BALANCED_WEIGHT
VALUE = Contrast(WEIGHT)


def rows(size: int, seed: int = 0) -> tuple[IntArray, FloatArray, FloatArray]:
    """Loggers, values (reward, weight) and sizes of rows whose weights have a heavy tail."""
    rng = np.random.default_rng(seed)
    weights = rng.pareto(1.0, size) + 0.1
    return rng.integers(0, 2, size), np.stack([rng.normal(2.0, 1.0, size), weights]), weights


def sums(sizes: FloatArray, rewards: FloatArray, centre: float) -> list[float]:
    """The sums of `Heaviest`, row by row."""
    pairs = [(s, r - centre) for s, r in zip(sizes, rewards, strict=True)]
    return [
        math.fsum(s for s, _ in pairs),
        math.fsum(s**2 for s, _ in pairs),
        math.fsum(s**4 for s, _ in pairs),
        math.fsum(s * g for s, g in pairs),
        math.fsum(s * g**2 for s, g in pairs),
    ]


# --- the heaviest rows ---------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 1_000, 1_001, 1_500])
def test_a_thousand_rows_are_kept_and_the_others_are_sums(size: int) -> None:
    strata, values, sizes = rows(size)
    found = Heaviest.of(strata, values, sizes, 0.5)
    order = np.argsort(-sizes)
    kept, rest = order[:1_000], order[1_000:]
    places = {size: k for k, size in enumerate(sizes)}
    assert sorted(found.sizes) == sorted(sizes[kept])
    assert found.count == len(rest)
    assert found.sums == pytest.approx(sums(sizes[rest], values[0, rest], 0.5), rel=1e-12)
    assert found.largest == max(sizes[rest], default=0.0)
    own = [places[size] for size in found.sizes]
    assert found.strata.tolist() == strata[own].tolist()
    assert found.values.tolist() == values[:, own].tolist()


def test_batches_add_up_to_all_rows() -> None:
    strata, values, sizes = rows(4_000)
    whole, centre = Heaviest.of(strata, values, sizes, 0.5), 0.5
    parts = [
        Heaviest.of(strata[k], values[:, k], sizes[k], centre)
        for k in np.array_split(np.arange(4_000), [1_700, 2_100])
    ]
    found = parts[0].add(parts[1], centre).add(parts[2], centre)
    back = parts[2].add(parts[1], centre).add(parts[0], centre)
    for each in (found, back):
        assert each.count == whole.count == 3_000
        assert each.sums == pytest.approx(whole.sums, rel=1e-12)
        assert each.largest == whole.largest
        assert sorted(each.sizes) == sorted(whole.sizes)
        pairs = sorted(zip(each.sizes, each.strata, each.values[0], strict=True))
        assert pairs == sorted(zip(whole.sizes, whole.strata, whole.values[0], strict=True))


def test_no_more_rows_change_nothing() -> None:
    strata, values, sizes = rows(1_500)
    whole = Heaviest.of(strata, values, sizes, 0.5)
    none = Heaviest.of(strata[:0], values[:, :0], sizes[:0], 0.5)
    for found in (whole.add(none, 0.5), none.add(whole, 0.5)):
        assert (
            (found.count, found.largest) == (whole.count, whole.largest) == (500, found.largest)
        )
        assert found.largest > 0
        assert found.sums.tolist() == whole.sums.tolist()


# --- the choice ----------------------------------------------------------------------------


def choose_slowly(
    weights: Sequence[float], others: Sequence[float], kept: int
) -> tuple[int | None, float]:
    """How many of `kept` rows, the heaviest first, are set apart; and rows behind now."""

    def behind(left: Sequence[float]) -> float:
        squares = math.fsum(w**2 for w in left)
        return squares**2 / math.fsum(w**4 for w in left) if squares else math.inf

    ordered = [*sorted(weights, reverse=True), *others]
    now = behind(ordered)
    if now >= 50:
        return None, now
    last = None
    for k in range(1, kept + 1):
        left = ordered[k:]
        if len(left) < 100:
            break
        if max(left) >= ordered[k - 1] * (1 - 1e-9):  # of equal size
            continue
        last = k
        if behind(left) >= 100:
            return k, now
    return (last if others else None), now


def found_in(weights: Sequence[float], rewards: Sequence[float], **more: Any) -> Found:  # noqa: ANN401
    size = np.array(weights, dtype=np.float64)
    values = np.stack([np.array(rewards, dtype=np.float64), size])
    strata = np.arange(len(size)) % 2
    options: dict[str, Any] = {
        "loggers": ("a", "b"),
        "terms": (REWARD, WEIGHT),
        "binary": False,
    } | more
    return Found(Heaviest.of(strata, values, size, 0.5), **options)


CASES = {
    "small": [0.03, 0.02] + [0.001, 0.0009] * 150,
    "a few": [30.0, 20.0, 25.0, 9.0, 8.0, 7.0] + [1.0, 0.9] * 150,
    "ties": [30.0, 20.0, 20.0, 20.0, 9.0] + [1.0, 0.9] * 150,
    "none": [1.0, 0.5] * 200,
    "too few left": [30.0, 20.0] + [1.0] * 97,
    "just enough left": [30.0, 20.0] + [1.0] * 100,
    "equal rows that are left": [30.0] + [10.0] * 120,
    "rows without a weight": [30.0, 20.0, 2.0] + [1.0] * 150 + [0.0] * 9,
    "a slow decline": [*(100.0 * 0.8**k for k in range(400))],
    "nearly equal": [30.0, *(20.0 * (1 - k * 1e-11) for k in range(9))] + [1.0, 0.9] * 150,
    "a decline of more than a thousand": [*(0.97**k for k in range(1_500))],
    "equal to the thousandth": [
        *(0.97 ** (990 if 990 <= k <= 1_010 else k) for k in range(1_500))
    ],
    "many": [*(np.random.default_rng(0).pareto(0.7, 3_000) + 0.1)],
}


@pytest.mark.parametrize("name", CASES)
def test_as_few_rows_are_set_apart_as_leave_a_hundred_behind(name: str) -> None:
    weights = CASES[name]
    rng = np.random.default_rng(1)
    rewards = [float(r) for r in rng.normal(0.3, 1.0, len(weights))]
    ordered = sorted(weights, reverse=True)
    number, now = choose_slowly(ordered[:1_000], ordered[1_000:], 1_000)
    heavy = found_in(weights, rewards).choose(HeavyChoice(VALUE, 0.5, (0.0, 1.0)))
    assert (None if heavy is None else len(heavy)) == number
    if heavy is None or number is None:
        return
    assert heavy.behind == pytest.approx(now, rel=1e-9)
    assert sorted(heavy.values[WEIGHT]) == pytest.approx(sorted(ordered[:number]))
    pairs = sorted(zip(weights, rewards, strict=True), reverse=True)
    light = [(w, r) for w, r in pairs if w < ordered[number - 1] * (1 - 1e-9)]
    total = math.fsum(w for w, _ in light)
    mean = math.fsum(w * r for w, r in light) / total
    square = math.fsum(w * (r - mean) ** 2 for w, r in light) / total
    assert heavy.light_mean == pytest.approx(mean, rel=1e-9)
    assert heavy.light_variance == pytest.approx(square, rel=1e-9)
    assert (heavy.contrast, heavy.reward_range) == (VALUE, (0.0, 1.0))
    assert len(heavy.loggers) == number


def test_each_heavy_row_has_its_own_reward_and_logger() -> None:
    weights = [1.0, 30.0, 0.9, 20.0] + [1.0, 0.9] * 150
    rewards = [0.0, 0.7, 0.0, 0.2] + [0.0] * 300
    heavy = found_in(weights, rewards).choose(HeavyChoice(VALUE, 0.5, None))
    assert heavy is not None
    assert heavy.rewards.tolist() == [0.7, 0.2]
    assert heavy.values[WEIGHT].tolist() == [30.0, 20.0]
    assert heavy.loggers == ["b", "b"]
    assert heavy.reward_range is None


def test_rewards_of_0_and_1_have_that_range_unless_another_is_given() -> None:
    weights = [30.0, 20.0] + [1.0, 0.9] * 150
    found = found_in(weights, [0.0] * len(weights), binary=True)
    for given, expected in ((None, (0.0, 1.0)), ((-1.0, 3.0), (-1.0, 3.0))):
        heavy = found.choose(HeavyChoice(VALUE, 0.5, given))
        assert heavy is not None
        assert heavy.reward_range == expected


def test_missing_rows_have_a_range_or_are_not_set_apart() -> None:
    found = found_in([1.0] * 150, [0.5, 1.5] * 75)
    assert found.choose(HeavyChoice(VALUE, 0.5, None, missing=True)) is None
    assert found.choose(HeavyChoice(VALUE, 0.5, (0.0, 2.0))) is None
    heavy = found.choose(HeavyChoice(VALUE, 0.5, (0.0, 2.0), missing=True))
    assert heavy is not None
    assert (len(heavy), heavy.behind) == (0, 150.0)
    assert (heavy.light_mean, heavy.light_variance) == (1.0, 0.25)


def test_rows_without_any_weight_leave_the_centre() -> None:
    found = found_in([0.0] * 150, [0.7] * 150)
    heavy = found.choose(HeavyChoice(VALUE, 0.5, (0.0, 1.0), missing=True))
    assert heavy is not None
    assert (heavy.light_mean, heavy.light_variance, heavy.behind) == (0.5, 0.0, math.inf)


# --- rows behind a variance ----------------------------------------------------------------


def test_rows_behind_a_variance_are_their_number_if_weights_are_equal() -> None:
    assert behind_variance(5 * 4.0, 5 * 16.0) == 5.0
    assert behind_variance(5 * 0.25, 5 * 0.0625) == 5.0
    assert behind_variance(0.0, 0.0) == math.inf


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e20])
@pytest.mark.parametrize("tail", [None, 2, 3, 5])
def test_rows_behind_a_variance_from_fourth_powers_tails_or_the_largest(
    tail: int | None,
    scale: float,
) -> None:
    weights = scale * np.array([5.0, 3.0, 2.0, 1.0, 1.0])
    squares, fourths = float(weights @ weights), float((weights**2) @ (weights**2))
    exact = group({BALANCED_WEIGHT: weights.tolist(), FOURTH: (weights**4).tolist()})
    assert count_behind(exact) == pytest.approx((squares**2 / fourths,) * 2, rel=1e-12)
    needs = Needs(
        groups=((BALANCED_WEIGHT,),),
        extremes=(BALANCED_WEIGHT,) if tail is None else (),
        tails=() if tail is None else (BALANCED_WEIGHT,),
    )
    moments = exact_moments({BALANCED_WEIGHT: weights}, needs)
    if tail is None:
        largest = weights[0]
        fewest, most = squares / largest**2, squares**2 / largest**4
    else:
        kept = weights[:tail]
        moments = replace(moments, tails={BALANCED_WEIGHT: kept})
        inside, rest = float((kept**2) @ (kept**2)), squares - float(kept @ kept)
        fewest = squares**2 / (inside + rest * (kept[-1] ** 2 if tail < 5 else 0.0))
        most = squares**2 / inside
    assert count_behind(moments) == pytest.approx((fewest, most), rel=1e-12)


def moments_of(weights: Sequence[float], *tails: Any) -> Any:  # noqa: ANN401
    needs = Needs(groups=((BALANCED_WEIGHT,),), extremes=(BALANCED_WEIGHT,), tails=tails)
    return exact_moments({BALANCED_WEIGHT: np.array(weights)}, needs)


def test_weights_of_0_have_no_variance() -> None:
    assert count_behind(moments_of([0.0] * 3)) == (math.inf, math.inf)


@pytest.mark.parametrize("tails", [(), (BALANCED_WEIGHT,)])
def test_weights_whose_fourth_powers_overflow_are_refused(tails: Any) -> None:  # noqa: ANN401
    assert count_behind(moments_of([1e70, 1.0], *tails)) == pytest.approx((1.0, 1.0))
    with refused(RefusedError) as caught:
        count_behind(moments_of([1.001e70, 1.0], *tails))
    assert caught.value.code == "overflow"


# --- moments without them ------------------------------------------------------------------


def heavy_rows(contrast: Contrast = VALUE) -> tuple[dict[str, dict[Any, list[float]]], Any]:
    """Values of the rows of two loggers, of which one row each is heavy, and these rows."""
    columns: dict[str, dict[Any, list[float]]] = {
        "a": {REWARD: [1.0, 0.0, 3.0], WEIGHT: [9.0, 1.0, 0.5], OTHER: [2.0, 1.0, 1.0]},
        "b": {REWARD: [2.0, 5.0], WEIGHT: [7.0, 0.25], OTHER: [0.5, 1.0]},
    }
    for values in columns.values():
        values[ratio("a")] = [0.5 + 0.25 * k for k in range(len(values[REWARD]))]
    terms = (REWARD, WEIGHT, OTHER, ratio("a"))
    heavy = {t: np.array([columns[i][t][0] for i in ("a", "b")]) for t in terms}
    return columns, HeavyRows(contrast, 3.0, ["a", "b"], heavy, 0.5, 0.25, None)


@pytest.mark.parametrize("contrast", [VALUE, Contrast(WEIGHT, OTHER)])
def test_light_moments_are_those_of_rows_whose_weight_is_0(contrast: Contrast) -> None:
    columns, heavy = heavy_rows(contrast)
    terms = (ratio("a"), *contrast.terms, *(REWARD * w for w in contrast.terms))

    def moments(*, light: bool) -> dict[str, Any]:
        found = {}
        for i, values in columns.items():
            own = {t: np.array(v) for t, v in values.items()}
            for w in contrast.terms if light else ():
                own[w][0] = 0.0
            own |= {REWARD * w: own[REWARD] * own[w] for w in contrast.terms}
            needs = Needs(groups=(tuple(terms),), slices=terms[:1], powers=terms[:1])
            found[i] = exact_moments({t: own[t] for t in terms}, needs)
        return found

    pool, expected = lighten(Pool(moments(light=False)), heavy, terms), moments(light=True)
    assert [*pool] == ["a", "b"]
    assert expected["a"].slices
    assert expected["a"].powers
    for i, own in zip(expected, pool.values(), strict=True):
        assert own.count == expected[i].count
        found, wanted = own.select_means(terms), expected[i].select_means(terms)
        assert found == pytest.approx(wanted, rel=1e-12)
        scatter = expected[i].select_scatter(terms)
        assert own.select_scatter(terms) == pytest.approx(scatter, rel=1e-12, abs=1e-12)
        assert (own.slices, own.powers) == ({}, {})


def test_a_mean_over_loggers_counts_rows() -> None:
    pool = Pool({"a": group({WEIGHT: [1.0, 2.0, 6.0]}), "b": group({WEIGHT: [4.0]})})
    assert mean_over(pool, WEIGHT) == pytest.approx(13 / 4, rel=1e-15)


def test_the_opposite_difference_has_the_same_rows() -> None:
    _, heavy = heavy_rows(Contrast(WEIGHT, OTHER))
    flipped = heavy.flipped
    assert flipped.contrast == Contrast(OTHER, WEIGHT)
    assert flipped.values is heavy.values
    with pytest.raises(ValueError, match="a value has no opposite"):
        _ = heavy_rows()[1].flipped


@pytest.mark.parametrize("less", [None, OTHER])
def test_rows_can_be_read_under_other_terms(less: Any) -> None:  # noqa: ANN401
    names = {BALANCED_WEIGHT: WEIGHT, BALANCED_WEIGHT.bind("v"): OTHER}
    _, heavy = heavy_rows(Contrast(WEIGHT, less))
    found = heavy.renamed(names)
    other = None if less is None else BALANCED_WEIGHT.bind("v")
    assert found.contrast == Contrast(BALANCED_WEIGHT, other)
    assert found.values[BALANCED_WEIGHT] is heavy.values[WEIGHT]
    assert found.values[BALANCED_WEIGHT.bind("v")] is heavy.values[OTHER]
    assert found.rewards is heavy.rewards
