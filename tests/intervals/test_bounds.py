"""Intervals that hold without a normal approximation: numbers, laws, exact coverage."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, special

from poolwise.errors import UsageError
from poolwise.intervals.bounds import (
    Batch,
    WeightSums,
    betting,
    empirical_bernstein,
    euclidean_likelihood,
)
from tests.support.messages import refused

if TYPE_CHECKING:
    from poolwise.intervals.student import Interval

FloatArray = NDArray[np.float64]
A_MILLIONTH = 1.01e-6  # of the mean of the rows: how far out a betting end is rounded

# multiples of 1/64, so that a floor is added without rounding
amounts = st.lists(st.integers(0, 3200).map(lambda k: k / 64), min_size=2, max_size=30)


def eighths(most: int) -> st.SearchStrategy[float]:
    return st.integers(0, most).map(lambda k: k / 8)


def batch(values: list[float], loggers: list[int] | None = None) -> list[Batch]:
    own = np.zeros(len(values), np.int64) if loggers is None else np.array(loggers, np.int64)
    return [(own, np.array(values, np.float64))]


def in_turn(values: list[float]) -> list[Batch]:
    return batch(values, [k % 2 for k in range(len(values))])


def ends(interval: Interval) -> FloatArray:
    return np.array([interval.lower, interval.upper])


# Betting


def test_betting_on_two_rows_is_worked_out_by_hand() -> None:
    # Rows 1 and 1, rewards up to 2, an error of 1/e.  The prior variance is (2/2)² = 1, so
    # the first bet is sqrt(2 ln(e)/(2 · 1)) = 1; the second, from (1 + 0)/(1 + 1), is
    # sqrt 2, cut at 1/(2m) where m > 0.354.  Capital (2 - m)(1 + (1 - m)/(2m)) is e where
    # m² + (2e - 1) m - 2 = 0, at m = 0.41245.
    found = betting(batch([1, 1]), 1 - math.exp(-1), upper_bound=2.0, sides="lower")
    half = math.e - 0.5
    assert found.lower == pytest.approx(math.sqrt(half**2 + 2) - half, abs=A_MILLIONTH)
    assert found.lower == pytest.approx(0.41245, abs=1e-5)
    assert found.upper == 2.0


def plain_betting(rows: list[Batch], error: float, largest_reward: float) -> float:
    """The definition, row by row, with the capital of one point at a time."""
    loggers = np.concatenate([i for i, _ in rows]).tolist()
    values = np.concatenate([z for _, z in rows]).tolist()

    def log_capital(point: float) -> float:
        earlier: dict[int, list[float]] = {}
        total = 0.0
        for logger, value in zip(loggers, values, strict=True):
            own = earlier.setdefault(logger, [])
            mean = math.fsum(own) / len(own) if own else 0.0
            first = largest_reward**2 / 4 if largest_reward < math.inf else mean**2
            variance = (first + math.fsum((z - mean) ** 2 for z in own)) / (len(own) + 1)
            aim = math.sqrt(2 * math.log(1 / error) / len(values) / variance) if variance else 0
            total += math.log1p(min(aim, 0.5 / point) * (value - point))
            own.append(value)
        return total

    low, high = 1e-12, float(np.mean(values))
    for _ in range(40):
        middle = (low + high) / 2
        won = log_capital(middle) >= math.log(1 / error)
        low, high = (middle, high) if won else (low, middle)
    return low


@pytest.mark.parametrize("largest", [1.0, math.inf])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_betting_is_its_definition(seed: int, largest: float) -> None:
    rng = np.random.default_rng(seed)
    rows: list[Batch] = [
        (rng.integers(0, 3, 40), rng.exponential(size=40) * (rng.random(40) < 0.7))
        for _ in range(2)
    ]
    known = None if math.isinf(largest) else largest
    found = betting(rows, 0.9, upper_bound=known, sides="lower").lower
    expected = min(largest, plain_betting(rows, 0.1, largest))
    assert expected > 0.2
    assert found <= expected + 1e-9
    assert found == pytest.approx(expected, abs=2 * A_MILLIONTH)


@pytest.mark.slow
def test_betting_misses_no_more_often_than_it_says_by_enumeration() -> None:
    # Two loggers whose rows are 2 with chance 1/2 or 0, and 5 with chance 1/5 or 0: every
    # row has mean 1.  All 2¹⁰ logs of five rows each, with their exact chances.
    missed = Fraction(0)
    rare = Fraction(1, 5)
    for hits in product([0, 1], repeat=10):
        rows = batch(
            [2.0 * h for h in hits[:5]] + [5.0 * h for h in hits[5:]], [0] * 5 + [1] * 5
        )
        if betting(rows, 0.7, sides="lower").lower > 1:
            hit = sum(hits[5:])
            missed += Fraction(1, 32) * rare**hit * (1 - rare) ** (5 - hit)
    assert Fraction(1, 50) < missed <= Fraction(3, 10)


@pytest.mark.slow
def test_betting_holds_on_skewed_rows_where_the_normal_interval_does_not() -> None:
    rng = np.random.default_rng(5)
    chance, missed, normal = 0.01, 0, 0
    for _ in range(600):  # weights of 100, one row in a hundred; the value is 1/2
        weights = (rng.random(120) < chance) / chance
        rewards = (rng.random(120) < 0.5).astype(np.float64)
        loggers = np.arange(120) % 2
        found = betting(
            [(loggers, weights * rewards)],
            0.9,
            mirrored=[(loggers, weights * (1 - rewards))],
            upper_bound=1.0,
        )
        missed += 0.5 not in found
        rows = weights * rewards
        normal += abs(rows.mean() - 0.5) > 1.645 * rows.std(ddof=1) / math.sqrt(120)
    assert missed <= 60
    assert normal > 180  # the tail was often not sampled


def test_betting_is_about_as_wide_as_the_normal_interval_of_naive() -> None:
    # Two contexts, three actions, 40 and 60 rows: naive's normal interval is 0.333 wide.
    rng = np.random.default_rng(2)
    context = np.array([0.4, 0.6])[:, None]
    reward = np.array([[0.8, 0.3, 0.1], [0.2, 0.5, 0.6]])
    target = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    first = np.array([[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]])
    second = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])
    widths, covered = [], 0
    for _ in range(100):
        rows: list[Batch] = []
        mirrored: list[Batch] = []
        for logger, (policy, count) in enumerate([(first, 40), (second, 60)]):
            cells = rng.choice(6, size=count, p=(context * policy).ravel())
            weights = (target / policy).ravel()[cells]
            seen = rng.random(count) < reward.ravel()[cells]
            own = np.full(count, logger)
            rows.append((own, weights * seen))
            mirrored.append((own, weights * ~seen))
        found = betting(rows, 0.95, mirrored=mirrored, upper_bound=1.0)
        widths.append(found.upper - found.lower)
        covered += 0.576 in found
    assert np.mean(widths) == pytest.approx(0.335, abs=0.02)
    assert covered >= 95


@pytest.mark.slow
@given(amounts, st.integers(0, 30))
def test_batches_and_the_turns_of_loggers_do_not_matter(values: list[float], cut: int) -> None:
    loggers = np.arange(len(values)) % 2
    rows = np.array(values)
    whole = betting([(loggers, rows)], 0.9, sides="lower").lower
    split = betting(
        [(loggers[:cut], rows[:cut]), (loggers[cut:], rows[cut:])], 0.9, sides="lower"
    )
    order = np.argsort(loggers, kind="stable")  # all rows of one logger, then the other's
    by_logger = betting([(7 - loggers[order], rows[order])], 0.9, sides="lower")
    near = pytest.approx(whole, abs=2 * A_MILLIONTH * float(rows.mean()) + 1e-12)
    assert split.lower == near
    assert by_logger.lower == near


@given(amounts, st.floats(0.01, 100), st.integers(-20, 20).map(float))
def test_betting_moves_with_scale_and_floor(
    values: list[float], factor: float, floor: float
) -> None:
    plain = betting(in_turn(values), 0.9, sides="lower").lower
    scaled = betting(in_turn([factor * z for z in values]), 0.9, sides="lower").lower
    moved = betting(
        in_turn([floor + z for z in values]), 0.9, lower_bound=floor, sides="lower"
    ).lower
    slack = 3 * A_MILLIONTH * float(np.mean(values)) + 1e-12
    assert scaled == pytest.approx(factor * plain, abs=factor * slack)
    assert moved == pytest.approx(floor + plain, abs=slack + 1e-9)


@given(amounts, st.floats(0.3, 0.98), st.floats(0.001, 0.01))
def test_a_higher_level_bets_its_way_to_a_wider_interval(
    values: list[float], level: float, step: float
) -> None:
    # Rewards up to 5,000 keep every bet below its cut, and then it is a theorem: bets grow
    # with the root of the limit, log capital is concave in them, and the limit grows more.
    narrow, wide = (
        betting(in_turn(values), at, upper_bound=5000.0, sides="lower").lower
        for at in (level, level + step)
    )
    assert wide <= narrow + 2 * A_MILLIONTH * float(np.mean(values))


def test_wider_levels_are_wider_on_skewed_rows() -> None:
    rng = np.random.default_rng(14)
    rows: list[Batch] = [(rng.integers(0, 2, 300), rng.exponential(size=300) ** 2)]
    found = [betting(rows, at, sides="lower").lower for at in (0.5, 0.8, 0.9, 0.99, 0.9999)]
    assert found == sorted(found, reverse=True)
    assert 0.2 < found[-1] < found[0] - 0.2


@given(amounts)
def test_a_lower_end_lies_below_the_mean_and_two_ends_share_the_error(
    values: list[float],
) -> None:
    rows = in_turn(values)
    mirrored = [(loggers, 50 - z) for loggers, z in rows]
    both = betting(rows, 0.9, mirrored=mirrored, upper_bound=50.0)
    lower = betting(rows, 0.95, upper_bound=50.0, sides="lower")
    upper = betting(rows, 0.95, mirrored=mirrored, upper_bound=50.0, sides="upper")
    assert ends(both) == pytest.approx([lower.lower, upper.upper])
    assert 0 <= lower.lower <= np.mean(values) + 1e-9 <= upper.upper + 2e-9
    assert (lower.upper, upper.lower) == (50.0, 0.0)


@given(st.lists(st.integers(-64, 64).map(lambda k: k / 64), min_size=1, max_size=30))
def test_losses_mirror_gains(values: list[float]) -> None:
    def within_one(z: list[float]) -> Interval:
        mirrored = in_turn([1 - v for v in z])
        return betting(in_turn(z), 0.9, mirrored=mirrored, lower_bound=-1.0, upper_bound=1.0)

    gains, losses = within_one(values), within_one([-v for v in values])
    assert ends(gains) == pytest.approx(-ends(losses)[::-1], abs=4 * A_MILLIONTH)
    assert sum(values) / len(values) in gains


def test_without_support_the_mirrored_rows_only_widen() -> None:
    # With chance 1/2 the target plays an action of reward 1 that is never logged: weights
    # have mean 1/2 and the value is 1/2 + 1/2 · 0.3.  The upper end must stay above it.
    rng = np.random.default_rng(3)
    rewards = (rng.random(2000) < 0.3).astype(np.float64)
    loggers = np.zeros(2000, np.int64)
    mirrored = [(loggers, 0.5 * (1 - rewards))]
    found = betting([(loggers, 0.5 * rewards)], 0.95, mirrored=mirrored, upper_bound=1.0)
    assert found.lower < 0.15
    assert found.upper > 0.65


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.0],
        [0.0] * 50,
        [1e-300, 1e300],
        [5e-324] * 3,
        [1e308, 1e308],
        [1.0] * 10_000,
        [0.0] * 999 + [1e9],
    ],
)
def test_betting_is_finite_on_odd_rows(values: list[float]) -> None:
    found = betting(batch(values), 0.95, sides="lower")
    mean = float(np.mean(np.array(values) / 4)) * 4 if values else 0.0
    assert 0 <= found.lower <= mean * (1 + 1e-9)
    assert found.upper == math.inf


def test_ten_thousand_equal_rows_leave_no_doubt() -> None:
    assert betting(batch([1.0] * 10_000), 0.95, sides="lower").lower > 0.99


def test_what_betting_cannot_use_is_refused() -> None:
    rows = batch([1.0, 2.0])
    with refused(UsageError):
        betting(iter(rows), 0.95, sides="lower")
    with refused(UsageError):
        betting(batch([1.0, -2.0]), 0.95, sides="lower")
    with refused(UsageError):
        betting(batch([1.0, math.nan]), 0.95, sides="lower")
    with refused(UsageError):
        betting(rows, 0.95)
    with refused(UsageError):
        betting(rows, 0.95, lower_bound=3.0, upper_bound=2.0, sides="lower")
    with refused(UsageError):
        betting(rows, 95, sides="lower")
    with refused(UsageError):
        betting(rows, 0.95, sides="left")  # type: ignore[arg-type]


# Empirical Bernstein


def test_empirical_bernstein_of_a_fair_coin() -> None:
    both = empirical_bernstein(0.5, 0.25252525, 100, 1.0, 0.95)
    assert both.upper - 0.5 == pytest.approx(0.252047, abs=1e-6)
    assert 0.5 - both.lower == pytest.approx(0.252047, abs=1e-6)
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


@pytest.mark.parametrize("seed", range(6))
def test_euclidean_likelihood_is_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.choice([0.25, 0.5, 1.0, 2.0, 4.0], size=12, p=[0.3, 0.3, 0.2, 0.1, 0.1])
    rewards = rng.uniform(-1, 3, size=12)
    allowed = (0.1, 6.0)
    found = euclidean_likelihood(
        sums_of(weights, rewards), 0.9, weight_range=allowed, reward_range=(-4, 5)
    )
    lower = least_over_ghosts(weights, rewards, allowed, -4)
    upper = -least_over_ghosts(weights, -rewards, allowed, -5)
    assert ends(found) == pytest.approx([lower, upper], abs=1e-5)
    assert -4 < lower < upper < 5


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
    assert (empty.lower, empty.upper) == (0.0, 1.0)


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


def test_equal_rewards_at_weights_of_one_still_leave_a_width() -> None:
    # 100 rows of weight 1 and reward 0; the ghost of weight 1 and reward 1 has the mean
    # 1/101, the variance 100/101², and q/101 to spend: 1/101 + sqrt(100 q / 101³).
    found = euclidean_likelihood(WeightSums(100, 100.0, 100.0, 0.0, 0.0, 0.0), 0.95)
    quantile = float(special.fdtri(1, 100, 0.95))
    cost = 1 / 100  # of the constraints with a ghost of weight 0, which sets the budget
    spent = math.sqrt(100 / 101**2 * (cost + quantile / 101))
    assert ends(found) == pytest.approx([0.0, 1 / 101 + spent])
