"""Finite-sample intervals: the same numbers from rows, from moments and by hand."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from poolwise.engines.base import Rows
from poolwise.errors import UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.intervals.base import KINDS, REMOVED
from poolwise.intervals.betting import Bets
from poolwise.intervals.guarantees import (
    by_betting,
    list_payoffs,
    refuse_adaptive,
    refuse_outside,
)
from poolwise.intervals.smoothed import smoothed_needs
from poolwise.moments.blocks import Blocks, BlockSums, Payoff, Settled
from poolwise.moments.coverage import Coverage
from poolwise.moments.pool import Pool
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
)
from tests.support.messages import refused
from tests.support.small import group
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.intervals.student import Interval, Sides
    from poolwise.log.log import Log

LEVEL = 0.9
OWN, POOLED = (WEIGHTED_REWARD, WEIGHT), (BALANCED_REWARD, BALANCED_WEIGHT)


def drawn(seed: int = 1) -> Log:
    return replace(toy("T2").draw(np.random.default_rng(seed)), reward_range=(0.0, 1.0))


def interval(log: Log, method: str, sides: str = "two") -> Interval:
    found = evaluate(
        log,
        "target_prob",
        ["naive", "balanced"],
        level=LEVEL,
        interval=method,  # type: ignore[arg-type]
        sides=sides,  # type: ignore[arg-type]
    )["target"]
    assert found.intervals["naive"] == found.intervals["balanced"]
    return found.intervals["naive"]


@pytest.mark.parametrize("sides", ["lower", "upper"])
def test_one_sided_bets_spend_their_error_on_one_side(sides: str) -> None:
    log = drawn()
    both = interval(log, "betting")
    one = evaluate(log, "target_prob", level=0.95, interval="betting", sides=sides)["target"]  # type: ignore[arg-type]
    end = one.intervals["balanced"]
    assert (end.lower, end.upper) == pytest.approx(
        (both.lower, 1.0) if sides == "lower" else (0.0, both.upper), abs=1e-11
    )


def test_betting_on_shifted_rewards_shifts_where_all_weights_have_mean_one() -> None:
    """Rewards in (-1, 0): the mirror image of rewards in (0, 1)."""
    log = drawn()
    turned = replace(log, reward="-reward", reward_range=(-1.0, 0.0))
    plain, other = interval(log, "betting"), interval(turned, "betting")
    assert other.lower <= -0.576 <= other.upper  # the value of T2 is 0.576
    assert -1.0 <= other.lower < other.upper <= 0.0
    assert 0.0 <= plain.lower < plain.upper <= 1.0


@pytest.mark.parametrize("method", ["betting", "smoothed"])
def test_without_a_range_of_rewards_nothing_can_be_guaranteed(method: str) -> None:
    with refused(UsageError):
        interval(replace(drawn(), reward_range=None), method)


@pytest.mark.slow
def test_betting_holds_the_truth_as_often_as_it_promises() -> None:
    """60 logs at 90%: fewer than 47 hits would be three standard errors too few."""
    hits = sum(0.576 in interval(drawn(seed), "betting") for seed in range(60))
    assert hits >= 47


# ---------------------------------------- from moments of a few rows


def known(*, crossed: bool) -> Coverage:
    return Coverage.complete("ab") if crossed else Coverage(("a", "b"))


def plain_log(**fields: object) -> Log:
    usual = {"reward_range": (-1.0, 4.0), "crossed": True, "period": None}
    return cast("Log", SimpleNamespace(**(usual | fields)))


@pytest.mark.parametrize(
    ("method", "period", "trained", "crossed", "forbidden"),
    [
        ("smoothed", None, (), True, False),
        ("smoothed", "day", (), False, True),
        ("smoothed", None, ("b",), True, True),
        ("smoothed", None, ("b",), False, False),  # own weights do not pool loggers
        ("betting", "day", ("b",), True, False),
    ],
)
def test_bounds_for_fixed_policies_are_refused_where_they_learned(
    method: str, period: str | None, trained: tuple[str, ...], *, crossed: bool, forbidden: bool
) -> None:
    log, coverage = plain_log(period=period), known(crossed=crossed)
    with refused(UsageError) if forbidden else nullcontext():
        refuse_adaptive(KINDS[method], log, coverage, trained)


@pytest.mark.parametrize(
    ("limits", "forbidden"),
    [(None, False), ((1.0, 5.0), False), ((1.5, 5.0), True), ((1.0, 4.5), True)],
)
def test_rewards_outside_their_range_are_refused(
    limits: tuple[float, float] | None, *, forbidden: bool
) -> None:
    both = group({REWARD: [1.0, 5.0]})
    both = replace(both, lowest=np.array([1.0]), largest=np.array([5.0]))
    moments = Pool({"a": both, "b": replace(both, lowest=np.array([1.25]))})
    with refused(UsageError) if forbidden else nullcontext():
        refuse_outside(plain_log(reward_range=limits), moments)


# ---------------------------------------- bets on known histograms


class KnownRows(Rows):
    """Rows of four payoffs, in four blocks of two strata: most is gained before the end."""

    def __init__(self) -> None:
        groups = np.repeat(np.arange(8), [20, 20, 20, 20, 20, 10, 5, 5])
        before = np.where(groups < 4, 1.0, 0.0)
        values = [0.5 * before, 0.375 * before, 0.4 * before, 0.25 * before]
        histograms = tuple(Blocks.of(groups, value) for value in values)
        sums = BlockSums(histograms, np.zeros((4, 2), np.int64), np.zeros(4, np.uint64))
        self.settled = Settled(sums, (), strata=2, cluster_rows=2)
        self.requests: list[tuple[list[Payoff], bool]] = []

    def settle(
        self, payoffs: Sequence[Payoff], *, pooled: bool, watched: bool = False
    ) -> Settled:
        assert not watched
        self.requests.append((list(payoffs), pooled))
        return self.settled


@pytest.mark.parametrize("sides", ["two", "lower", "upper"])
@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("trained", [None, False, True])
def test_each_target_has_bets_on_its_own_gains_and_losses(
    sides: Sides, *, mixed: bool, trained: bool | None
) -> None:
    rows, limits = KnownRows(), (-1.0, 4.0)
    log = plain_log(cluster=None, reward_range=limits)
    options = {} if trained is None else {"trained": trained}
    intervals = by_betting(rows, ["t", "u"], log, 0.5, sides, pooled=mixed, **options)
    payoffs = [*list_payoffs("t", limits), *list_payoffs("u", limits)]
    assert rows.requests == [(payoffs, mixed and not trained)]
    error = 0.25 if sides == "two" else 0.5
    bets = [
        Bets(histogram, error, 4, 2, anytime=not trained, cluster_rows=2)
        for histogram in rows.settled.sums.histograms
    ]
    assert list(intervals) == ["t", "u"]
    for interval, gains, losses in zip(intervals.values(), bets[::2], bets[1::2], strict=True):
        lower, upper = 5 * gains.lower() - 1, 4 - 5 * losses.lower()
        assert -1.0 < lower < upper < 4.0
        assert interval.lower == pytest.approx(-1.0 if sides == "upper" else lower, rel=1e-13)
        assert interval.upper == pytest.approx(4.0 if sides == "lower" else upper, rel=1e-13)
        assert interval.level == 0.5


def test_bets_on_trained_loggers_have_no_clusters() -> None:
    log = plain_log(cluster="user")
    with refused(UsageError):
        by_betting(KnownRows(), ["t", "u"], log, 0.9, "two", pooled=True, trained=True)
    assert set(by_betting(KnownRows(), ["t", "u"], log, 0.9, "two", pooled=True)) == {"t", "u"}


def test_payoffs_start_at_the_smallest_reward_or_at_0() -> None:
    negative, positive = list_payoffs("t", (-1.0, 4.0)), list_payoffs("t", (2.0, 5.0))
    assert negative == (Payoff("t", -1.0, 1.0, 5.0), Payoff("t", 4.0, -1.0, 5.0))
    assert positive == (Payoff("t", 0.0, 1.0, 5.0), Payoff("t", 5.0, -1.0, 5.0))


def test_guarantees_need_the_range() -> None:
    log, without = plain_log(), plain_log(reward_range=None)
    for crossed, pair in ((False, OWN), (True, POOLED)):
        betting = KINDS["betting"].needs(log, known(crossed=crossed))
        assert betting.groups == (pair,)
        smoothed = KINDS["smoothed"].needs(log, known(crossed=crossed))
        assert smoothed == betting | smoothed_needs((-1.0, 4.0), crossed=crossed)
        assert len(smoothed.means) == 20  # gains and losses, of ten scales
    with refused(UsageError):
        KINDS["smoothed"].needs(without, known(crossed=True))
    with refused(UsageError):
        by_betting(KnownRows(), ["t", "u"], without, 0.9, "two", pooled=True)


@pytest.mark.parametrize("method", [*REMOVED, "normal"])
def test_other_intervals_are_refused_with_those_that_exist(method: str) -> None:
    with refused(UsageError):
        interval(drawn(), method)
