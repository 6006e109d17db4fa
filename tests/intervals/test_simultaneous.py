"""Many candidates at once: exact cases, laws, simultaneous coverage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from poolwise.errors import UsageError
from poolwise.intervals.simultaneous import (
    SYMMETRIC,
    DifferenceShape,
    MaxT,
    factor_correlation,
    least_reaches,
    least_scores,
    max_t,
    skew_multiples,
    skew_scores,
    student_multiples,
)
from poolwise.intervals.skew import Reach
from poolwise.moments.shape import kurtosis_freedom
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable


def critical(covariance: object, level: float = 0.95, draws: int = 200_000) -> float:
    table = np.asarray(covariance, dtype=np.float64)
    return max_t(factor_correlation(table), np.random.default_rng(20), draws).critical(level)


def sidak(count: int, level: float) -> float:
    return float(special.ndtri((1 + level ** (1 / count)) / 2))


def test_one_candidate_needs_the_normal_quantile() -> None:
    assert critical([[4.0]]) == pytest.approx(1.959964, abs=1e-6)
    assert critical([[1e-30]], 0.9) == pytest.approx(1.644854, abs=1e-6)


@pytest.mark.parametrize("count", [2, 5, 20])
def test_independent_candidates_need_sidaks_quantile(count: int) -> None:
    assert critical(np.eye(count)) == pytest.approx(sidak(count, 0.95), abs=0.004)


def test_two_candidates_of_correlation_one_half() -> None:
    # P(|X| ≤ c, |Y| ≤ c) = ∫ φ(x) [Φ((c - x/2)/s) - Φ((-c - x/2)/s)] dx, s = sqrt(3)/2
    found = critical([[1.0, 0.5], [0.5, 1.0]])
    points, step = np.linspace(-found, found, 20_001, retstep=True)
    density = np.exp(-(points**2) / 2) / math.sqrt(2 * math.pi)
    scale = math.sqrt(0.75)
    inside = special.ndtr((found - points / 2) / scale) - special.ndtr(
        (-found - points / 2) / scale
    )
    assert float((density * inside).sum() * step) == pytest.approx(0.95, abs=5e-4)


def test_copies_of_one_candidate_cost_nothing() -> None:
    sizes = np.array([1.0, -2.0, 5.0])  # one estimate in three units, one of them flipped
    assert critical(np.outer(sizes, sizes)) == pytest.approx(1.959964, abs=1e-6)


def test_a_singular_covariance_needs_what_its_parts_need() -> None:
    apart = [[1.0, 0.0], [0.0, 4.0]]
    doubled = [[1.0, 0.0, 2.0], [0.0, 4.0, 0.0], [2.0, 0.0, 4.0]]
    assert critical(doubled) == pytest.approx(critical(apart), abs=0.005)


def test_a_candidate_without_variance_is_left_out() -> None:
    padded = np.zeros((4, 4))
    padded[np.ix_([0, 2], [0, 2])] = [[1.0, 0.5], [0.5, 1.0]]
    assert critical(padded) == critical([[1.0, 0.5], [0.5, 1.0]])
    assert critical(np.zeros((3, 3))) == pytest.approx(1.959964, abs=1e-6)
    assert critical(np.zeros((0, 0))) == pytest.approx(1.959964, abs=1e-6)


def test_the_same_seed_gives_the_same_number() -> None:
    table = np.eye(3) + 0.2
    once, again = critical(table, draws=20_000), critical(table, draws=20_000)
    assert once == again
    other = max_t(factor_correlation(table), np.random.default_rng(21), 20_000).critical(0.95)
    assert other == pytest.approx(once, abs=0.02)
    assert other != once


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1), st.floats(0.5, 0.99))
def test_the_critical_value_lies_between_one_test_and_sidaks(
    candidates: int, rank: int, seed: int, level: float
) -> None:
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(candidates, rank))
    covariance = loadings @ loadings.T
    found = critical(covariance, level, draws=500)
    assert sidak(1, level) - 1e-9 <= found <= sidak(candidates, level) + 1e-9
    scales = np.exp(rng.normal(size=candidates))
    scaled = critical(covariance * np.outer(scales, scales), level, draws=500)
    assert scaled == pytest.approx(found, abs=0.2)  # eigenvectors turn, so the draws do


@given(st.floats(0.5, 0.98), st.floats(0.001, 0.01))
def test_a_higher_level_is_wider(level: float, step: float) -> None:
    table = np.array([[1.0, 0.3], [0.3, 1.0]])
    assert critical(table, level, draws=200) < critical(table, level + step, draws=200)


def test_simultaneous_intervals_cover_together() -> None:
    rng = np.random.default_rng(30)
    loadings = rng.normal(size=(8, 3))
    covariance = loadings @ loadings.T + 0.1 * np.eye(8)
    errors = rng.multivariate_normal(np.zeros(8), covariance, size=20_000)
    furthest = np.abs(errors / np.sqrt(np.diag(covariance))).max(axis=1)
    covered = float((furthest <= critical(covariance)).mean())
    # four standard errors of 20,000 draws, 0.0062
    assert covered == pytest.approx(0.95, abs=0.0062)


def test_p_values_of_independent_candidates_are_sidaks() -> None:
    together = max_t(factor_correlation(np.eye(3)), np.random.default_rng(4))
    scores = np.array([0.0, 1.0, 2.0, 3.0])
    single = 2 * special.ndtr(-scores)
    # 200,000 directions know a probability to 0.001; Šidák bounds it from above
    assert together.p_values(scores) == pytest.approx(1 - (1 - single) ** 3, abs=0.004)
    assert (together.p_values(scores) <= 1 - (1 - single) ** 3 + 1e-15).all()
    assert together.p_values(np.array([40.0]))[0] < 1e-300


def test_what_has_no_meaning_is_refused() -> None:
    with refused(UsageError):
        critical([[1.0, 0.0]])
    with refused(UsageError):
        critical([[math.nan]])
    with refused(UsageError):
        critical([[-1.0]])
    with refused(UsageError):
        critical(np.eye(2), 95)
    with refused(UsageError):
        critical(np.eye(2), draws=0)


@given(
    ratio=st.floats(-8, 8),
    skewness=st.floats(-2, 2),
    noise=st.floats(0, 1),
    of_weights=st.floats(-2, 2),
    freedom=st.floats(2, 1e6),
)
def test_scores_invert_the_limits(
    ratio: float, skewness: float, noise: float, of_weights: float, freedom: float
) -> None:
    shape = DifferenceShape(*(np.array([x]) for x in (skewness, noise, of_weights)))
    score = skew_scores(np.array([ratio]), shape, np.array([freedom]))
    if score[0] > 36:
        return
    below, above = skew_multiples(shape, np.array([freedom]), score)
    assert (below if ratio >= 0 else above)[0] == pytest.approx(abs(ratio), abs=1e-9)


# two dimensions: P(length > c / f) = exp(-(c / f)² / 2)
@pytest.mark.parametrize(
    ("furthest", "expected"),
    [
        ([0.9], math.exp(-2 / 0.81)),
        ([0.9, 0.85], (math.exp(-2 / 0.81) + math.exp(-2 / 0.7225)) / 2),
        ([0.5], 2 * special.ndtr(-2.0)),  # at least that of one candidate
        ([1.0], 1 - (1 - 2 * special.ndtr(-2.0)) ** 2),  # at most that of independent ones
    ],
)
def test_p_values_average_over_directions(furthest: list[float], expected: float) -> None:
    distribution = MaxT(2, 2, np.array(furthest))
    assert distribution.p_values(np.array([2.0])) == pytest.approx([expected], rel=1e-12)


def test_critical_values_invert_p_values() -> None:
    inner = MaxT(2, 2, np.array([0.9])).critical(0.95)
    assert inner == pytest.approx(math.sqrt(1.62 * math.log(20)), rel=1e-9)
    single = float(special.ndtri(0.975))
    ends = [MaxT(2, 2, np.array([f])).critical(0.95) for f in (0.5, 1.0)]
    assert ends == pytest.approx([single, sidak(2, 0.95)], rel=1e-12)


@pytest.mark.parametrize(("candidates", "rank"), [(0, 0), (1, 1), (1, 2), (3, 1)])
def test_one_candidate_or_one_dimension_is_normal(candidates: int, rank: int) -> None:
    alone = max_t(np.ones((candidates, rank)), np.random.default_rng(1), draws=1)
    assert (alone.candidates, alone.rank, alone.furthest.tolist()) == (candidates, rank, [1.0])
    scores = np.array([0.5, 2.0])
    assert alone.p_values(scores).tolist() == (2 * special.ndtr(-scores)).tolist()
    assert alone.critical(0.9) == pytest.approx(special.ndtri(0.95), rel=1e-12)


def test_a_direction_is_drawn_and_its_largest_coordinate_counts() -> None:
    distribution = max_t(np.eye(2), np.random.default_rng(1), draws=1)
    drawn = np.random.default_rng(1).standard_normal(2)
    assert (distribution.candidates, distribution.rank) == (2, 2)
    assert distribution.furthest == pytest.approx(
        abs(drawn).max() / math.hypot(*drawn), rel=1e-12
    )
    with refused(UsageError):
        max_t(np.eye(2), np.random.default_rng(1), draws=0)


def test_directions_are_drawn_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = max_t(np.eye(2), np.random.default_rng(1), draws=5)
    for cells in (1, 6, 10):  # batches of 1, 3 and 5 directions
        monkeypatch.setattr("poolwise.intervals.simultaneous.DRAWN_NUMBERS", cells)
        parts = max_t(np.eye(2), np.random.default_rng(1), draws=5)
        assert parts.furthest.tolist() == whole.furthest.tolist()


def test_a_factor_gives_the_correlation_of_candidates_that_vary() -> None:
    covariance = np.array([[0.25, 0.0, 0.1], [0.0, 0.0, 0.0], [0.1, 0.0, 0.16]])
    factor = factor_correlation(covariance)
    assert factor @ factor.T == pytest.approx(np.array([[1.0, 0.5], [0.5, 1.0]]), rel=1e-12)
    assert factor_correlation(np.array([[9.0, 6.0], [6.0, 4.0]])).shape == (2, 1)
    assert factor_correlation(np.zeros((2, 2))).shape == (0, 0)
    # eigenvalues 1e-10 and 2, then 3e-10 and 2; below 1e-10 of the largest is rounding
    ranks = [
        factor_correlation(np.array([[1.0, 1 - e], [1 - e, 1.0]])).shape[1]
        for e in (1e-10, 3e-10)
    ]
    assert ranks == [1, 2]
    for bad in ([1.0], [[1.0, 0.0]], [[math.nan]], [[1.0, math.inf], [0.0, 1.0]], [[-1.0]]):
        with refused(UsageError):
            factor_correlation(np.array(bad))


def test_students_multiples_have_the_tail_of_a_normal_one() -> None:
    # one degree of freedom: the quantile is a tangent; two: (1 - 2p) / √(2p (1 - p));
    # infinitely many: the normal one
    freedom, p = np.array([1.0, 2.0, math.inf]), float(special.ndtr(-1.96))
    tangent, two = math.tan(math.pi * (0.5 - p)), (1 - 2 * p) / math.sqrt(2 * p * (1 - p))
    multiples = student_multiples(1.96, freedom)
    assert multiples == pytest.approx([tangent, two, 1.96], rel=1e-12)
    ratios = np.array([-tangent, two, 1.96])
    assert skew_scores(ratios, SYMMETRIC, freedom) == pytest.approx([1.96] * 3, rel=1e-9)


def test_the_limit_on_the_side_of_the_skew_is_further() -> None:
    # the root of d² = 4 (1 + d / 2) on the side of a skewness of 1/2; Student's on the other
    wide, skewness = 1 + math.sqrt(5), np.array([0.5, -0.5, 0.0])
    many, none = np.full(3, math.inf), np.zeros(3)
    shape = DifferenceShape(skewness, none)
    below, above = skew_multiples(shape, many, 2.0)
    assert below == pytest.approx([2.0, wide, 2.0], rel=1e-12)
    assert above == pytest.approx([wide, 2.0, 2.0], rel=1e-12)
    scores = skew_scores(np.array([2.0, 2.0, -2.0]), shape, many)
    assert scores[[0, 2]] == pytest.approx([2.0, 2.0], rel=1e-9)
    assert scores[1] < 2.0


def test_weights_lend_their_skewness_to_both_limits() -> None:
    # d² = 4 (1 + s d): s is the larger skewness towards the side, 0 if both point away
    skewness, of_weights = np.array([0.5, -0.5, -0.5]), np.array([0.75, 0.75, -0.25])
    shape = DifferenceShape(skewness, np.zeros(3), of_weights)
    below, above = skew_multiples(shape, np.full(3, math.inf), 2.0)

    def root(towards: float) -> float:
        return 2 * towards + 2 * math.sqrt(1 + towards**2)

    assert below == pytest.approx([2.0, root(0.5), root(0.5)], rel=1e-12)
    assert above == pytest.approx([root(0.75), root(0.75), 2.0], rel=1e-12)


def test_a_difference_is_as_uncertain_as_its_sides_differ() -> None:
    """Distances of 3 and 5 times the critical value, and of 1 and 2 times it."""

    def reach(below: float, above: float) -> Callable[[float], Reach]:
        def at(alpha: float) -> Reach:
            critical = -float(special.ndtri(alpha))
            return Reach(below * critical, above * critical)

        return at

    value, exact, unknown = reach(3.0, 5.0), reach(1.0, 2.0), reach(1.0, math.inf)
    sides = [(value, exact), (exact, value), (value, value), (value, unknown)]
    expected = [[4.0, 6.0, 0.0, 0.0], [6.0, 4.0, 0.0, 0.0]]
    assert least_reaches(sides, 2.0) == pytest.approx(np.array(expected), rel=1e-12)
    assert least_reaches([], 2.0).tolist() == [[0.0], [0.0]]
    values, scores = np.array([4.0, 4.0, 4.0, 4.0]), np.full(4, 2.5)
    # the lower limits of the first two are at 4 - 2c and 4 - 3c
    lowered = least_scores(sides, values, scores)
    assert lowered == pytest.approx([2.0, 4 / 3, 2.5, 2.5], rel=1e-9)
    assert least_scores(sides[:1], np.array([-9.0]), scores[:1]).tolist() == [2.5]
    assert least_scores(sides[:1], np.array([-6.0]), scores[:1]) == pytest.approx([2.0])


@pytest.mark.parametrize(
    ("skewness", "noise", "freedom", "heavy", "expected"),
    [
        (0.8, 0.9, 30.0, 0.0, 2 / 0.26),
        (-0.8, 0.9, 30.0, 0.5, 2 / 0.42),
        (0.8, 0.9, 5.0, 0.0, 5.0),
        (0.8, 0.5, 30.0, 0.0, 30.0),  # no kurtosis beyond that of the skewness
        (0.0, 8.0, 30.0, 0.0, 1.0),
        (0.0, 0.0, math.inf, 0.0, math.inf),
    ],
)
def test_degrees_of_freedom_that_the_kurtosis_leaves(
    skewness: float, noise: float, freedom: float, heavy: float, expected: float
) -> None:
    with np.errstate(all="raise"):
        found = kurtosis_freedom(skewness, noise, freedom, heavy)
    assert float(found) == pytest.approx(expected, rel=1e-12)
    if not heavy:
        assert kurtosis_freedom(skewness, noise, freedom) == found
