"""Finite-sample intervals: the same numbers from rows, from moments and by hand."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from poolwise.errors import UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.intervals.betting import Bets
from poolwise.intervals.bounds import WeightSums, empirical_bernstein, euclidean_likelihood
from poolwise.intervals.guarantees import (
    by_betting,
    from_moments,
    guarantee_needs,
    payoffs_of,
    refuse_adaptive,
    refuse_outside,
)
from poolwise.intervals.smoothed import smoothed_interval, smoothed_needs
from poolwise.moments.blocks import Blocks, BlockSums, Payoff, Settled
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
)
from tests.support.messages import check_findings, refused
from tests.support.small import group
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.intervals.student import Interval, Sides
    from poolwise.log.log import Log
    from poolwise.moments.moments import Moments

LEVEL = 0.9


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


def columns(log: Log) -> dict[str, np.typing.NDArray[np.float64]]:
    table: Any = log.source
    own = np.array(table["target_prob"]) / np.array(table["propensity"])
    p = np.column_stack([table["propensity_0"], table["propensity_1"]])
    balanced = np.array(table["target_prob"]) / (p @ [0.4, 0.6])
    logger = (np.array(table["logger"]) == "2").astype(np.int64)
    return {"own": own, "balanced": balanced, "reward": np.array(table["reward"]), "i": logger}


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


def test_bernstein_is_made_of_the_balanced_rows() -> None:
    log = drawn()
    c = columns(log)
    rows = c["balanced"] * c["reward"]
    expected = empirical_bernstein(
        rows.mean(), rows.var(ddof=1), len(rows), c["balanced"].max(), LEVEL
    )
    found = interval(log, "bernstein")
    assert found.lower == pytest.approx(expected.lower)
    assert found.upper == pytest.approx(expected.upper)


def test_likelihood_is_made_of_six_sums() -> None:
    log = drawn()
    c = columns(log)
    w, z = c["balanced"], c["balanced"] * c["reward"]
    sums = WeightSums(len(w), w.sum(), (w**2).sum(), z.sum(), float(w @ z), float(z @ z))
    expected = euclidean_likelihood(sums, LEVEL, reward_range=(0.0, 1.0))
    found = interval(log, "likelihood")
    assert found.lower == pytest.approx(expected.lower)
    assert found.upper == pytest.approx(expected.upper)


@pytest.mark.parametrize("method", ["betting", "bernstein", "likelihood"])
def test_without_a_range_of_rewards_nothing_can_be_guaranteed(method: str) -> None:
    with refused(UsageError):
        interval(replace(drawn(), reward_range=None), method)


@pytest.mark.slow
def test_betting_holds_the_truth_as_often_as_it_promises() -> None:
    """60 logs at 90%: fewer than 47 hits would be three standard errors too few."""
    hits = sum(0.576 in interval(drawn(seed), "betting") for seed in range(60))
    assert hits >= 47


# ---------------------------------------- from moments of a few rows


def plain_log(**fields: object) -> Log:
    usual = {"reward_range": (-1.0, 4.0), "crossed": True, "period": None}
    return cast("Log", SimpleNamespace(**(usual | fields)))


ROWS = {"a": ([2.0, 0.5, 1.0], [1.0, 2.0, -1.0]), "b": ([0.5, 1.5], [4.0, 0.0])}


def view_of(*, crossed: bool) -> dict[str, Moments]:
    """Moments of weights and weighted rewards, with their extremes."""
    terms = (BALANCED_WEIGHT, BALANCED_REWARD) if crossed else (WEIGHT, WEIGHTED_REWARD)
    view = {}
    for i, (weight, reward) in ROWS.items():
        columns = (np.array(weight), np.array(weight) * np.array(reward))
        moments = group(dict(zip(terms, map(np.ndarray.tolist, columns), strict=True)))
        largest = np.array([columns[terms.index(t)].max() for t in moments.terms])
        view[i] = replace(moments, largest=largest)
    return view


@pytest.mark.parametrize("sides", ["two", "lower", "upper"])
@pytest.mark.parametrize("crossed", [True, False])
def test_bernstein_and_likelihood_take_the_sums_of_the_rows(
    sides: Sides, *, crossed: bool
) -> None:
    log, view = plain_log(crossed=crossed), view_of(crossed=crossed)
    w, r = (np.concatenate([ROWS[i][k] for i in ROWS]) for k in (0, 1))
    interval, findings = from_moments("bernstein", view, log, 0.9, sides)
    # the largest weight is 2, and the rewards have a range of 5
    expected = empirical_bernstein((w * r).mean(), (w * r).var(ddof=1), 5, 10.0, 0.9, sides)
    assert (interval.lower, interval.upper) == pytest.approx((expected.lower, expected.upper))
    assert interval.level == 0.9
    check_findings(findings, "largest-weight-seen")
    six = (5, w.sum(), (w**2).sum(), (w * r).sum(), (w**2 * r).sum(), ((w * r) ** 2).sum())
    interval, findings = from_moments("likelihood", view, log, 0.9, sides)
    expected = euclidean_likelihood(WeightSums(*six), 0.9, reward_range=(-1, 4), sides=sides)
    assert (interval.lower, interval.upper) == pytest.approx((expected.lower, expected.upper))
    assert (interval.level, findings) == (0.9, ())


@pytest.mark.parametrize("crossed", [True, False])
def test_smoothing_takes_the_weights_of_the_log(*, crossed: bool) -> None:
    needs = guarantee_needs(plain_log(), "smoothed", crossed=crossed)
    assert needs.means == smoothed_needs((-1.0, 4.0), crossed=crossed).means
    view = {"a": group({t: [4 + k / 8, 4 + k / 4] * 3 for k, t in enumerate(needs.means)})}
    log = plain_log(crossed=crossed)
    interval = smoothed_interval(view, (-1.0, 4.0), 0.9, "lower", crossed=crossed)
    assert from_moments("smoothed", view, log, 0.9, "lower") == (interval, ())
    assert interval.lower > -1.0


@pytest.mark.parametrize(
    ("limits", "width"), [((1.0, 4.0), 8.0), ((-3.0, -1.0), 6.0), ((-1.0, 4.0), 10.0)]
)
def test_weighted_rewards_are_as_wide_as_the_range_with_0(
    limits: tuple[float, float], width: float
) -> None:
    view = view_of(crossed=True)
    interval, _ = from_moments("bernstein", view, plain_log(reward_range=limits), 0.9, "two")
    together = view["a"] + view["b"]
    mean, variance = together.mean(BALANCED_REWARD), together.var(BALANCED_REWARD)
    assert interval.upper == empirical_bernstein(mean, variance, 5, width, 0.9).upper


@pytest.mark.parametrize(
    ("method", "period", "trained", "crossed", "forbidden"),
    [
        ("likelihood", None, (), True, False),
        ("likelihood", "day", (), False, True),
        ("likelihood", None, ("b",), True, True),
        ("likelihood", None, ("b",), False, False),  # own weights do not pool loggers
        ("betting", "day", ("b",), True, False),
    ],
)
def test_bounds_for_fixed_policies_are_refused_where_they_learned(
    method: str, period: str | None, trained: tuple[str, ...], *, crossed: bool, forbidden: bool
) -> None:
    log = plain_log(period=period, crossed=crossed)
    with refused(UsageError) if forbidden else nullcontext():
        refuse_adaptive(method, log, trained)


@pytest.mark.parametrize(
    ("limits", "forbidden"),
    [(None, False), ((1.0, 5.0), False), ((1.5, 5.0), True), ((1.0, 4.5), True)],
)
def test_rewards_outside_their_range_are_refused(
    limits: tuple[float, float] | None, *, forbidden: bool
) -> None:
    both = group({REWARD: [1.0, 5.0]})
    both = replace(both, lowest=np.array([1.0]), largest=np.array([5.0]))
    moments = {"a": both, "b": replace(both, lowest=np.array([1.25]))}
    with refused(UsageError) if forbidden else nullcontext():
        refuse_outside(plain_log(reward_range=limits), moments)


# ---------------------------------------- bets on known histograms


class Rows:
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
    rows, limits = Rows(), (-1.0, 4.0)
    log = plain_log(mixed=mixed, cluster=None, reward_range=limits)
    options = {} if trained is None else {"trained": trained}
    intervals = by_betting(rows, ["t", "u"], log, 0.5, sides, **options)
    payoffs = [*payoffs_of("t", limits), *payoffs_of("u", limits)]
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
    log = plain_log(mixed=True, cluster="user")
    with refused(UsageError):
        by_betting(Rows(), ["t", "u"], log, 0.9, "two", trained=True)
    assert set(by_betting(Rows(), ["t", "u"], log, 0.9, "two")) == {"t", "u"}


def test_payoffs_start_at_the_smallest_reward_or_at_0() -> None:
    negative, positive = payoffs_of("t", (-1.0, 4.0)), payoffs_of("t", (2.0, 5.0))
    assert negative == (Payoff("t", -1.0, 1.0, 5.0), Payoff("t", 4.0, -1.0, 5.0))
    assert positive == (Payoff("t", 0.0, 1.0, 5.0), Payoff("t", 5.0, -1.0, 5.0))


def test_guarantees_need_the_range_and_one_pair_of_terms() -> None:
    log, without = plain_log(), plain_log(reward_range=None)
    needs = {
        crossed: guarantee_needs(log, "likelihood", crossed=crossed)
        for crossed in (False, True)
    }
    assert needs[False].groups == ((WEIGHTED_REWARD, WEIGHT),)
    assert needs[True].groups == ((BALANCED_REWARD, BALANCED_WEIGHT),)
    for crossed in (False, True):
        smoothed = guarantee_needs(log, "smoothed", crossed=crossed)
        assert smoothed.groups == needs[crossed].groups
        assert len(smoothed.means) == 20  # gains and losses, of ten scales
    with refused(UsageError):
        guarantee_needs(without, "smoothed", crossed=True)
    with refused(UsageError):
        from_moments("likelihood", view_of(crossed=True), without, 0.9, "two")
    with refused(UsageError):
        by_betting(Rows(), ["t", "u"], without, 0.9, "two")
