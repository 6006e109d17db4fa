"""Intervals that hold without a normal approximation: numbers, laws, exact coverage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, special

from poolwise.errors import UsageError
from poolwise.intervals.bounds import (
    WeightSums,
    empirical_bernstein,
    euclidean_likelihood,
)
from tests.support.messages import refused

if TYPE_CHECKING:
    from poolwise.intervals.student import Interval

FloatArray = NDArray[np.float64]

amounts = st.lists(st.integers(0, 3200).map(lambda k: k / 64), min_size=2, max_size=30)


def eighths(most: int) -> st.SearchStrategy[float]:
    return st.integers(0, most).map(lambda k: k / 8)


def ends(interval: Interval) -> FloatArray:
    return np.array([interval.lower, interval.upper])


# Empirical Bernstein


def test_empirical_bernstein_of_a_fair_coin() -> None:
    both = empirical_bernstein(0.5, 0.25252525, 100, 1.0, 0.95)
    assert both.upper - 0.5 == pytest.approx(0.252047, abs=1e-6)
    assert 0.5 - both.lower == pytest.approx(0.252047, abs=1e-6)
    assert both.level == 0.95
    lower = empirical_bernstein(0.5, 0.25252525, 100, 1.0, 0.975, "lower")
    upper = empirical_bernstein(0.5, 0.25252525, 100, 1.0, 0.975, "upper")
    assert ends(lower) == pytest.approx([both.lower, math.inf])
    assert ends(upper) == pytest.approx([-math.inf, both.upper])


def test_one_row_has_no_bernstein_bound() -> None:
    found = empirical_bernstein(0.5, 0.0, 1, 1.0, 0.95)
    assert (found.lower, found.upper) == (-math.inf, math.inf)


@given(amounts, st.floats(0.01, 0.98), st.floats(0.001, 0.01))
def test_a_higher_level_is_wider(values: list[float], level: float, step: float) -> None:
    small = empirical_bernstein(0.3, 0.2, len(values), 1.0, level)
    large = empirical_bernstein(0.3, 0.2, len(values), 1.0, level + step)
    assert large.lower < small.lower < 0.3 < small.upper < large.upper


# Euclidean likelihood


def sums_of(weights: FloatArray, rewards: FloatArray) -> WeightSums:
    weighted = weights * rewards
    return WeightSums(
        count=len(weights),
        weight=float(weights.sum()),
        squared_weight=float((weights**2).sum()),
        weighted_reward=float(weighted.sum()),
        cross=float((weights * weighted).sum()),
        squared_weighted_reward=float((weighted**2).sum()),
    )


def least_value(
    weights: FloatArray, rewards: FloatArray, ghost: float, worst: float, budget: float
) -> float:
    """The definition, by a numerical optimiser over the mass M g of every row.

    The least value within the budget; the least distance where the budget is nan.
    """
    every = np.append(weights, ghost)
    value = every * np.append(rewards, worst)
    both = np.stack([np.ones(len(every)), every]) / len(every)
    held: list[optimize.LinearConstraint | optimize.NonlinearConstraint] = [
        optimize.LinearConstraint(both, 1, 1)
    ]

    def distance(mass: FloatArray) -> float:
        return float(((mass - 1) ** 2).sum())

    def goal(mass: FloatArray) -> float:
        return distance(mass) if math.isnan(budget) else float((mass * value).mean())

    if not math.isnan(budget):
        held.append(optimize.NonlinearConstraint(lambda mass: [distance(mass)], 0, budget))
    start = 1 + np.linalg.pinv(both) @ (1 - both.sum(axis=1))
    found = optimize.minimize(goal, start, method="SLSQP", constraints=held, tol=1e-12)
    np.testing.assert_allclose(both @ found.x, 1, atol=1e-7)
    return float(found.fun)


def least_over_ghosts(
    weights: FloatArray, rewards: FloatArray, allowed: tuple[float, float], worst: float
) -> float:
    """The lower end at 90 % by the optimiser; ghosts that cost too much are left out."""
    distances = {
        ghost: least_value(weights, rewards, ghost, worst, math.nan)
        for ghost in (*allowed, 1.0)
    }
    helpful = allowed[1] if weights.sum() < len(weights) else allowed[0]
    budget = distances[helpful] + float(special.fdtri(1, len(weights), 0.9))
    return min(
        least_value(weights, rewards, ghost, worst, budget)
        for ghost, distance in distances.items()
        if distance <= budget
    )


@pytest.mark.parametrize("seed", range(7))
def test_euclidean_likelihood_is_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.choice([0.25, 0.5, 1.0, 2.0, 4.0], size=12, p=[0.3, 0.3, 0.2, 0.1, 0.1])
    if seed == 6:  # the mean is 1, so that no ghost is required
        weights = np.repeat([0.25, 0.5, 2.25], 4)
    rewards = rng.uniform(-1, 3, size=12)
    allowed = (0.1, 6.0)
    found = euclidean_likelihood(
        sums_of(weights, rewards), 0.9, weight_range=allowed, reward_range=(-4, 5)
    )
    lower = least_over_ghosts(weights, rewards, allowed, -4)
    upper = -least_over_ghosts(weights, -rewards, allowed, -5)
    assert ends(found) == pytest.approx([lower, upper], abs=1e-5)
    assert -4 < lower < upper < 5
    assert found.level == 0.9


def test_an_unbounded_weight_is_the_limit_of_large_ones() -> None:
    rng = np.random.default_rng(9)
    weights = rng.exponential(size=200)
    rewards = (rng.random(200) < 0.3).astype(np.float64)
    sums = sums_of(weights, rewards)
    limit = euclidean_likelihood(sums, 0.95, weight_range=(0.0, math.inf))
    large = euclidean_likelihood(sums, 0.95, weight_range=(0.0, 1e6))
    assert ends(limit) == pytest.approx([large.lower, large.upper], abs=1e-5)
    assert limit.lower < rewards.mean() < limit.upper


@pytest.mark.parametrize("sides", ["lower", "upper"])
def test_one_sided_likelihood_spends_its_error_on_one_side(sides: str) -> None:
    sums = WeightSums(100, 98.0, 150.0, 40.0, 62.0, 62.0)
    two = euclidean_likelihood(sums, 0.9, weight_range=(0.0, 10.0))
    if sides == "lower":
        one = euclidean_likelihood(sums, 0.95, weight_range=(0.0, 10.0), sides="lower")
        assert ends(one) == pytest.approx([two.lower, 1.0])
    else:
        one = euclidean_likelihood(sums, 0.95, weight_range=(0.0, 10.0), sides="upper")
        assert ends(one) == pytest.approx([0.0, two.upper])


@given(
    st.lists(st.tuples(eighths(64), eighths(8)), min_size=1, max_size=20),
    st.sampled_from([8.0, math.inf]),
    st.integers(-5, 5),
    st.sampled_from([0.125, 0.75, 8.0]),
)
def test_euclidean_likelihood_moves_with_the_rewards(
    rows: list[tuple[float, float]], largest: float, offset: int, factor: float
) -> None:
    weights, rewards = np.array(rows).T
    allowed = (0.0, largest)
    plain = euclidean_likelihood(sums_of(weights, rewards), 0.95, weight_range=allowed)
    assert 0 <= plain.lower <= plain.upper <= 1
    assert plain.lower < plain.upper
    moved = euclidean_likelihood(
        sums_of(weights, offset + factor * rewards),
        0.95,
        weight_range=allowed,
        reward_range=(offset, offset + factor),
    )
    near = 1e-4 * (factor + abs(offset))
    assert moved.lower == pytest.approx(offset + factor * plain.lower, abs=near)
    assert moved.upper == pytest.approx(offset + factor * plain.upper, abs=near)


def test_a_target_that_nobody_logged_may_be_worth_anything() -> None:
    found = euclidean_likelihood(WeightSums(50, 0.0, 0.0, 0.0, 0.0, 0.0), 0.95)
    assert (found.lower, found.upper) == (0.0, 1.0)
    empty = euclidean_likelihood(WeightSums(0, 0.0, 0.0, 0.0, 0.0, 0.0), 0.95)
    assert (empty.lower, empty.upper, empty.level) == (0.0, 1.0, 0.95)
    heavy = WeightSums(100, 1e156, math.inf, 1.0, 1.0, 1.0)  # a square out of range
    large = euclidean_likelihood(heavy, 0.95, weight_range=(0.0, 8.0))
    assert (large.lower, large.upper) == (0.0, 1.0)


@pytest.mark.parametrize("weight", [0.3, 0.7])
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7])
def test_one_row_and_its_ghost_have_one_solution(weight: float, reward: float) -> None:
    # Masses g and 1 - g of weights w and 2 average to 1 at g = 1 / (2 - w); the other ghosts
    # cost more than the 1/2 that the level leaves.
    one = sums_of(np.array([weight]), np.array([reward]))
    found = euclidean_likelihood(one, 0.5, weight_range=(0.0, 2.0))
    mass = 1 / (2 - weight)
    least = mass * weight * reward
    assert ends(found) == pytest.approx([least, least + 2 * (1 - mass)], rel=1e-12)


def test_one_row_without_a_choice_says_nothing() -> None:
    # the ghost of weight 0 has half of the mass, and one of weight 2 cannot balance 2
    one = sums_of(np.array([2.0]), np.array([0.25]))
    found = euclidean_likelihood(one, 0.5, weight_range=(0.0, 2.0), reward_range=(-1.0, 1.0))
    assert (found.lower, found.upper) == (-1.0, 1.0)


@pytest.mark.parametrize("unit", [2.0**-24, 2.0**24])
def test_likelihood_has_the_unit_of_the_rewards(unit: float) -> None:
    plain = WeightSums(100, 98.0, 150.0, 40.0, 62.0, 62.0)
    scaled = WeightSums(100, 98.0, 150.0, 40.0 * unit, 62.0 * unit, 62.0 * unit**2)
    found = euclidean_likelihood(scaled, 0.95, reward_range=(0.0, unit))
    assert ends(found) / unit == pytest.approx(ends(euclidean_likelihood(plain, 0.95)))


def test_weights_of_one_may_have_a_rounding_error() -> None:
    exact, close = (WeightSums(10, 10.0 + e, 10.0, 0.0, 0.0, 0.0) for e in (0.0, 2e-15))
    assert close.weight > exact.weight
    both = [euclidean_likelihood(s, 0.9, weight_range=(0.0, 3.0)) for s in (exact, close)]
    assert ends(both[1]) == pytest.approx(ends(both[0]), abs=1e-9)


@pytest.mark.parametrize("reward", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("weights", [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0, 3.0], [0.5]])
def test_rows_that_leave_no_choice_say_nothing(weights: list[float], reward: float) -> None:
    # e.g. three rows of weight 2: the mean weight of 1 fixes the mass of the ghost
    rows = np.array(weights)
    sums = sums_of(rows, np.full(len(rows), reward))
    found = euclidean_likelihood(sums, 0.95, weight_range=(0.0, 8.0))
    assert found.upper - found.lower > 0.1


def test_a_likelihood_needs_ranges_that_make_sense() -> None:
    sums = WeightSums(5, 5.0, 5.0, 1.0, 1.0, 1.0)
    with refused(UsageError):
        euclidean_likelihood(sums, 0.95, reward_range=(0.0, math.inf))
    with refused(UsageError):
        euclidean_likelihood(sums, 0.95, weight_range=(2.0, 3.0))
    for limits in ((-math.inf, 0.0), (1.0, 1.0)):
        with refused(UsageError):
            euclidean_likelihood(sums, 0.95, reward_range=limits)
    with refused(UsageError):
        empirical_bernstein(0.5, 0.25, 100, 1.0, 0.95, "both")  # type: ignore[arg-type]
    ones = euclidean_likelihood(sums, 0.95, weight_range=(1.0, 1.0))
    # 2/6 with one more reward; variance 2/6 - 2/6², of which the quantile over 6 is spent
    spent = math.sqrt(2 / 9 * float(special.fdtri(1, 5, 0.95)) / 6)
    assert ones.upper == pytest.approx(2 / 6 + spent)


def test_equal_rewards_at_weights_of_one_still_leave_a_width() -> None:
    # 100 rows of weight 1 and reward 0; the ghost of weight 1 and reward 1 has the mean
    # 1/101, the variance 100/101², and q/101 to spend: 1/101 + sqrt(100 q / 101³).
    found = euclidean_likelihood(WeightSums(100, 100.0, 100.0, 0.0, 0.0, 0.0), 0.95)
    quantile = float(special.fdtri(1, 100, 0.95))
    cost = 1 / 100  # of the constraints with a ghost of weight 0, which sets the budget
    spent = math.sqrt(100 / 101**2 * (cost + quantile / 101))
    assert ends(found) == pytest.approx([0.0, 1 / 101 + spent])
