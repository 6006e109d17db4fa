"""Bets on blocks: numbers by hand, the definition, and the law by enumeration."""

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

from poolwise.intervals.betting import Bets, bound_value, split_error
from poolwise.moments.blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FloatArray = NDArray[np.float64]

# multiples of 1/64, as weighted rewards of a range of width 1
amounts = st.lists(st.integers(0, 320).map(lambda k: k / 64), min_size=2, max_size=30)


def bets_on(
    blocks: Sequence[Sequence[float]],
    error: float,
    *,
    loggers: Sequence[Sequence[int]] | None = None,
    horizons: tuple[float, ...] = (),
    anytime: bool = True,
) -> Bets:
    """Bets on the rows of blocks, with strata for loggers where these are given."""
    strata = 1 + max((i for block in loggers for i in block), default=0) if loggers else 1
    groups = [
        k * strata + (loggers[k][j] if loggers else 0)
        for k, block in enumerate(blocks)
        for j in range(len(block))
    ]
    values = np.array([z for block in blocks for z in block], dtype=np.float64)
    rows = Blocks.of(np.array(groups, dtype=np.int64), values)
    return Bets(rows, error, len(blocks), strata, horizons=horizons, anytime=anytime)


def test_bets_on_two_rows_are_worked_out_by_hand() -> None:
    # Two blocks of one row of 1/2, an error of 1/e.  The prior variance is 1/4, so the first
    # bet is sqrt(2/(2 · 1/4)) = 2; the second, from (1/4 + 0)/(1 + 1), is 2 sqrt 2.  Both
    # are cut at 1/(2m).  Capital (2 - 2m)(1 + (1/2 - m)/(2m)) is e where
    # 4m² + 2(2e - 1) m - 2 = 0, at m = 0.20622.
    bets = bets_on([[0.5], [0.5]], math.exp(-1))
    half = math.e - 0.5
    expected = (math.sqrt(half**2 + 2) - half) / 2
    assert bets.lower() == pytest.approx(expected, abs=1e-12)
    assert expected == pytest.approx(0.20622, abs=1e-5)
    first, second = np.exp(bets.log_capital(0.2))
    assert first == pytest.approx(1 + 2 * 0.3)
    assert second == pytest.approx((1 + 2 * 0.3) * (1 + 2.5 * 0.3))


def plain_capital(
    blocks: Sequence[Sequence[float]],
    loggers: Sequence[Sequence[int]],
    error: float,
    point: float,
) -> list[float]:
    """The definition, row by row: the logarithm of the capital at each block end."""
    rows = sum(map(len, blocks))
    earlier: dict[int, list[float]] = {}
    total, ends = 0.0, []
    for block, own in zip(blocks, loggers, strict=True):
        for value, logger in zip(block, own, strict=True):
            past = earlier.get(logger, [])
            mean = math.fsum(past) / len(past) if past else 0.0
            scatter = math.fsum((z - mean) ** 2 for z in past)
            aim = math.sqrt(2 * math.log(1 / error) * (len(past) + 1) / rows / (0.25 + scatter))
            total += math.log1p(min(aim, 0.5 / point) * (value - point))
        for value, logger in zip(block, own, strict=True):
            earlier.setdefault(logger, []).append(value)
        ends.append(total)
    return ends


@pytest.mark.parametrize("strata", [1, 3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bets_are_their_definition(seed: int, strata: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.exponential(size=(8, 20)) * (rng.random((8, 20)) < 0.7)
    loggers = rng.integers(0, strata, (8, 20))
    bets = bets_on(values.tolist(), 0.1, loggers=loggers.tolist())
    for point in (0.05, 0.3, 0.6):
        plain = np.array(plain_capital(values.tolist(), loggers.tolist(), 0.1, point))
        capital = bets.log_capital(point)
        assert (capital <= plain + 1e-10).all()  # atoms never win more than the rows
        np.testing.assert_allclose(capital, plain, atol=1e-5)
    lower = bets.lower()
    assert 0.2 < lower < 0.7
    assert bets.log_capital(lower).max() >= math.log(10)
    assert bets.log_capital(lower + 1e-9).max() < math.log(10)


# The law: capital against the true value has an expectation of at most 1, at every block end,
# although policies learn from earlier blocks.

REWARD = (Fraction(1, 5), Fraction(7, 10))  # chance of a reward by action
TARGET = (Fraction(1, 10), Fraction(9, 10))
VALUE = sum(t * r for t, r in zip(TARGET, REWARD, strict=True))
UNIFORM = (Fraction(1, 2), Fraction(1, 2))
FIRST = (Fraction(4, 5), Fraction(1, 5))
Row = tuple[int, int]  # action and reward
Values = list[list[Fraction]]  # of the rows of each block


def greedy(block: Sequence[Row]) -> tuple[Fraction, Fraction]:
    """A policy that learned from a block which action was rewarded."""
    score = sum((2 * action - 1) * reward for action, reward in block)
    best = Fraction(1, 2) + Fraction(max(-1, min(score, 1)), 4)
    return 1 - best, best


def histories() -> Iterator[tuple[Fraction, Values, Values, Values]]:
    """All logs of two blocks of two rows, by a new policy and by a uniform one.

    Yields their chance, and the rows' weighted rewards, losses, and differences of rewards from
    those of the uniform policy, against the mixture of their block.
    """
    rows: list[Row] = [(action, reward) for action in (0, 1) for reward in (0, 1)]
    for first, second in product(product(rows, repeat=2), repeat=2):
        chance = Fraction(1)
        gains, losses, differences = [], [], []
        for block, policy in ((first, FIRST), (second, greedy(first))):
            mixture = [(a + b) / 2 for a, b in zip(policy, UNIFORM, strict=True)]
            for (action, reward), logger in zip(block, (policy, UNIFORM), strict=True):
                chance *= logger[action] * (REWARD[action] if reward else 1 - REWARD[action])
            weights = [TARGET[action] / mixture[action] for action, _ in block]
            rewards = [reward for _, reward in block]
            gains.append([w * r for w, r in zip(weights, rewards, strict=True)])
            losses.append([w * (1 - r) for w, r in zip(weights, rewards, strict=True)])
            ratios = [(TARGET[a] - UNIFORM[a]) / mixture[a] for a, _ in block]
            differences.append([w * r for w, r in zip(ratios, rewards, strict=True)])
        yield chance, gains, losses, differences


def test_the_capital_is_a_supermartingale_in_fractions() -> None:
    # bets of 1/2 and then of 1/4 after a loss, 3/4 after a gain: predictable
    first = second = mean = Fraction(0)
    for chance, gains, *_ in histories():
        one = math.prod(1 + (z - VALUE) / 2 for z in gains[0])
        bet = Fraction(3, 4) if sum(gains[0]) > 2 * VALUE else Fraction(1, 4)
        first += chance * one
        second += chance * one * math.prod(1 + bet * (z - VALUE) for z in gains[1])
        mean += chance * sum(map(sum, gains)) / 4
    assert mean == VALUE == Fraction(13, 20)
    # The loggers' means are 5/13 and 119/130, each 69/260 from the value 13/20.
    assert first == 1 - (Fraction(1, 2) * Fraction(69, 260)) ** 2
    assert second < first


@pytest.mark.parametrize(
    "horizons", [(), (4.0,), (1.0, 8.0, 64.0)], ids=["log", "one", "watch"]
)
@pytest.mark.parametrize("error", [0.5, 0.2, 0.05])
def test_bets_are_fair_by_enumeration(error: float, horizons: tuple[float, ...]) -> None:
    capital = np.zeros((2, 2))
    missed = np.zeros(2)
    for chance, gains, losses, _ in histories():
        for k, (blocks, value) in enumerate(((gains, VALUE), (losses, 1 - VALUE))):
            rows = [[float(z) for z in block] for block in blocks]
            bets = bets_on(rows, error, horizons=horizons)
            capital[k] += float(chance) * np.exp(bets.log_capital(float(value)))
            missed[k] += float(chance) * (bets.lower() > float(value))
    assert (capital <= 1 + 1e-12).all()
    assert (capital > 0.9).all()
    assert (missed <= error).all()


def test_bets_on_a_difference_are_fair_by_enumeration() -> None:
    # to the uniform logger, which writes half of each block: its ratio is at most 2
    gap = VALUE - sum(r / 2 for r in REWARD)
    shifts = np.array([2.0, 2.0])
    capital, mean, missed = np.zeros(2), Fraction(0), 0.0
    for chance, *_, differences in histories():
        raised = [[float(z) + 2 for z in block] for block in differences]
        bets = Bets(bets_on(raised, 0.2).blocks, 0.2, 2, shifts=shifts)
        capital += float(chance) * np.exp(bets.log_capital(float(gap)))
        mean += chance * sum(map(sum, differences)) / 4
        missed += float(chance) * (bets.lower(-1.0) > float(gap))
    assert mean == gap == Fraction(1, 5)
    assert (capital > 0.9).all()
    assert (capital <= 1 + 1e-12).all()
    assert missed <= 0.2


@pytest.mark.slow
@pytest.mark.parametrize("horizons", [(), (2.0, 8.0)], ids=["log", "watch"])
def test_bounds_miss_no_more_often_than_they_say_by_enumeration(
    horizons: tuple[float, ...],
) -> None:
    # Two loggers whose rows are 2 with chance 1/2 or 0, and 5 with chance 1/5 or 0: every
    # row has mean 1.  All 2¹⁰ logs of five blocks of one row of each, with exact chances.
    missed, rare = Fraction(0), Fraction(1, 5)
    for hits in product([0, 1], repeat=10):
        blocks = [[2.0 * hits[k], 5.0 * hits[5 + k]] for k in range(5)]
        if bets_on(blocks, 0.3, horizons=horizons).lower(most=10.0) > 1:
            hit = sum(hits[5:])
            missed += Fraction(1, 32) * rare**hit * (1 - rare) ** (5 - hit)
    assert Fraction(1, 50) < missed <= Fraction(3, 10)


@given(amounts, st.integers(1, 5), st.sampled_from([(), (5.0, 50.0)]))
def test_capital_falls_with_the_candidate(
    values: list[float], number: int, horizons: tuple[float, ...]
) -> None:
    blocks = [values[k::number] for k in range(number)]
    bets = bets_on(blocks, 0.1, horizons=horizons)
    capital = np.array([bets.log_capital(m) for m in np.linspace(0.01, 2, 30)])
    assert (np.diff(capital, axis=0) <= 1e-9).all()


def watch_capital(
    blocks: Sequence[Sequence[float]], error: float, horizons: Sequence[float], point: float
) -> list[float]:
    """The definition of a watch: the average of bets of all sizes, from each block on."""
    ends = []
    for last in range(1, len(blocks) + 1):
        total = 0.25 / last  # waits for the blocks after it
        for horizon, learns in product(horizons, (True, False)):
            products = []
            for b, block in enumerate(blocks[:last]):
                past = [z for before in blocks[:b] for z in before] if learns else []
                scatter = len(past) * float(np.var(past)) if past else 0.0
                variance = (0.25 + scatter) / (len(past) + 1)
                aim = math.sqrt(2 * math.log(1 / error) / horizon / variance)
                bet = min(aim, 0.5 / point)
                products.append(math.prod(1 + bet * (z - point) for z in block))
            for begin in range(1, last + 1):
                part = 0.75 if begin == 1 else 0.25 / (begin * (begin - 1))
                total += part * math.prod(products[begin - 1 :]) / (2 * len(horizons))
        ends.append(total)
    return ends


def test_a_watch_averages_bets_of_all_sizes_from_each_block_on() -> None:
    blocks = [[0.25, 1.5, 0.0], [0.875, 0.5], [], [1.25], [0.0, 0.75]]
    for horizons in ((6.0,), (6.0, 60.0)):
        capital = np.exp(bets_on(blocks, 0.1, horizons=horizons).log_capital(0.3))
        expected = watch_capital(blocks, 0.1, horizons, 0.3)
        np.testing.assert_allclose(capital, expected, rtol=1e-12)
        plain = bets_on(blocks, 0.1).log_capital(0.3)  # of a log: nothing waits
        assert not np.allclose(plain, np.log(expected))


def test_an_early_block_with_heavy_weights_does_not_spoil_later_ones() -> None:
    rng = np.random.default_rng(3)
    heavy = (1000.0 * (rng.random(2000) < 0.0006)).tolist()  # a mean of 0.6
    light = [(2.0 * (rng.random(2000) < 0.3)).tolist() for _ in range(4)]
    horizons = (4000.0, 16000.0, 64000.0)
    after = bets_on([heavy, *light], 0.025, horizons=horizons)
    fresh = bets_on(light, 0.025, horizons=horizons)
    assert fresh.lower() < after.lower() + 0.02
    assert 0.5 < after.lower() < 0.6
    alone = bets_on([heavy, *light], 0.025)  # bets of one size, all of them from the start
    assert alone.lower() < 0.4


@given(amounts, st.integers(1, 5))
def test_the_best_block_end_bounds_at_least_as_well_as_the_last(
    values: list[float], number: int
) -> None:
    blocks = [values[k::number] for k in range(number)]
    best = bets_on(blocks, 0.1).lower()
    last = bets_on(blocks, 0.1, anytime=False).lower()
    assert 0 <= last <= best <= max(np.mean(b) if b else 0 for b in blocks) + 1e-9


def test_shifted_values_are_bet_on_as_themselves() -> None:
    # values from -1 on, raised by 1 in the first block and by 2 in the second
    blocks = [[-0.5, 1.0, 0.25], [0.5, 0.75]]
    raised = [[z + shift for z in block] for block, shift in zip(blocks, (1, 2), strict=True)]
    plain = bets_on(raised, 0.1)
    bets = Bets(plain.blocks, 0.1, 2, shifts=np.array([1.0, 2.0]))
    first, second = bets.log_capital(-0.5)
    aim = math.sqrt(2 * math.log(10) / 5 / 0.25)
    bet = min(aim, 0.5 / 0.5)
    assert first == pytest.approx(sum(math.log1p(bet * (z + 0.5)) for z in blocks[0]))
    scatter = sum((z - 0.25) ** 2 for z in blocks[0])
    bet = min(math.sqrt(2 * math.log(10) / 5 / ((0.25 + scatter) / 4)), 0.5 / 1.5)
    rest = sum(math.log1p(bet * (z + 0.5)) for z in blocks[1])
    assert second == pytest.approx(first + rest)


def test_an_interval_has_the_units_of_the_rewards() -> None:
    gains, losses = bets_on([[0.5] * 40, [0.5] * 40], 0.05), bets_on([[0.5] * 80], 0.05)
    low, high = gains.lower(), losses.lower()
    interval = bound_value(gains, losses, (-2.0, 6.0), 0.9)
    assert (interval.lower, interval.upper) == pytest.approx((-2 + 8 * low, 6 - 8 * high))
    one = bound_value(gains, None, (1.0, 5.0), 0.9)  # rewards from 1 on count from 0
    assert (one.lower, one.upper) == pytest.approx((max(1.0, 5 * low), 5.0))
    none = bound_value(None, losses, (1.0, 5.0), 0.9)
    assert (none.lower, none.upper) == pytest.approx((1.0, 5 - 5 * high))
    assert {found.level for found in (interval, one, none)} == {0.9}
    assert split_error(0.9, "upper") == pytest.approx((0.0, 0.1))
    assert split_error(0.9, "lower") == pytest.approx((0.1, 0.0))
    assert split_error(0.9, "two") == pytest.approx((0.05, 0.05))


def test_rows_of_a_cluster_share_one_bet() -> None:
    values = [0.5, 0.25, 1.0, 0.75]
    rows = Blocks.of(np.arange(4, dtype=np.int64), np.array(values))
    single, double = (Bets(rows, 0.1, 4, cluster_rows=k) for k in (1, 2))
    capital = double.log_capital(0.3)
    # half of each row's gain, with bets for half the rows: the scatter is halved, too
    total, expected = 0.0, []
    for k, value in enumerate(values):
        past = values[:k]
        scatter = sum((z - sum(past) / k) ** 2 for z in past) / 2 if past else 0.0
        variance = (0.25 + scatter) / (k / 2 + 1)
        bet = min(math.sqrt(2 * math.log(10) / (2 * variance)), 0.5 / 0.3)
        total += math.log1p(bet * (value - 0.3)) / 2
        expected.append(total)
    assert capital == pytest.approx(expected, rel=1e-12)
    assert single.log_capital(0.3)[-1] > capital[-1]


def test_later_blocks_without_rows_do_not_change_the_capital() -> None:
    short, longer = bets_on([[0.5], [0.75]], 0.1), bets_on([[0.5], [0.75], []], 0.1)
    first, second = short.log_capital(0.2), longer.log_capital(0.2)
    assert second.tolist() == [*first, first[-1]]


def test_the_last_block_end_counts_unless_the_best_may() -> None:
    blocks = [[1.0] * 40, [1.0] * 40, [0.0] * 30, [0.0] * 10]
    best, last = (bets_on(blocks, 0.05, anytime=anytime) for anytime in (True, False))
    for bets, capital in ((best, np.max), (last, lambda ends: ends[-1])):
        lower = bets.lower()
        assert 0.2 < lower < 1
        # at the bound, capital is 1 over the error
        assert capital(bets.log_capital(lower)) == pytest.approx(math.log(20), abs=1e-7)
    assert last.lower() < best.lower() - 0.1


@pytest.mark.parametrize(
    "blocks", [[[]], [[0.0], [0.0]], [[], [1e9], []], [[1e-300, 1e300]], [[1.0] * 1000]]
)
def test_bounds_are_finite_on_odd_rows(blocks: list[list[float]]) -> None:
    lower = bets_on(blocks, 0.05).lower()
    assert 0 <= lower <= 1
    assert math.isfinite(lower)


def test_ten_thousand_equal_rows_leave_no_doubt() -> None:
    assert bets_on([[1.0] * 100] * 100, 0.05).lower() > 0.98
