"""Distributions of the reward under a target: thresholds and quantiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.stats import binomtest

from poolwise import Balanced, FiniteProblem, Log, evaluate
from poolwise.errors import UsageError
from poolwise.evaluation.distribution import MOST_STEPS
from poolwise.moments.terms import BALANCED_REWARD, Needs
from tests.evaluation.test_metrics import TARGETS, log, table
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Mapping

LEVELS = np.array([[1.0, 3.0, 2.0], [5.0, 1.0, 4.0]])  # reward of each context and action
STEPS = (0.5, 1.0, 2.0, 3.0, 4.5, 5.0)


def problem() -> FiniteProblem:
    return FiniteProblem(
        context_prob=np.array([0.4, 0.6]),
        reward=LEVELS,
        target=np.array([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4]]),
        loggers={
            "a": np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]]),
            "b": np.array([[0.2, 0.2, 0.6], [0.4, 0.4, 0.2]]),
        },
        counts={"a": 600, "b": 400},
    )


@pytest.mark.parametrize("step", STEPS)
def test_a_probability_and_its_variance_are_finite_sums(step: float) -> None:
    exact = problem()
    term = BALANCED_REWARD.bind(most=step)
    pool = exact.moments(Needs(groups=((term,),)))
    found = Balanced().estimate(pool.select({BALANCED_REWARD: term}))
    below = step >= LEVELS
    true = float((exact.context_prob[:, None] * exact.target * below).sum())
    assert found.value == pytest.approx(true, rel=1e-12, abs=1e-15)
    variance = 0.0
    for name, policy in exact.loggers.items():
        chances = exact.context_prob[:, None] * policy
        scores = exact.target / exact.mixture * below
        mean = float((chances * scores).sum())
        share = exact.counts[name] / 1000
        own = float((chances * (scores - mean) ** 2).sum())
        variance += share**2 * own / exact.counts[name]
    assert found.variance == pytest.approx(variance, rel=1e-10, abs=1e-18)


def drawn(seed: int = 0) -> Log:
    return problem().draw(np.random.default_rng(seed))


def test_probabilities_and_quantiles_of_rewards_with_few_values() -> None:
    found = evaluate(drawn(), {"t": "target_prob"}, backtest=False, quantiles=[0.2, 0.5, 0.9])
    assert found.distribution is not None
    own = found.distribution["t"]
    assert [p.threshold for p in own] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert own[-1].value == pytest.approx(1.0)
    exact = problem()
    chances = exact.context_prob[:, None] * exact.target
    for p in own:
        assert float((chances * (p.threshold >= LEVELS)).sum()) in p.interval
    shares = {p.threshold: float((chances * (p.threshold >= LEVELS)).sum()) for p in own}
    for quantile in found.distribution.quantiles["t"]:
        true = min(step for step, share in shares.items() if share >= quantile.share)
        assert true in quantile.interval
        assert quantile.interval.lower in shares  # every value of the reward is a threshold


@pytest.mark.slow
def test_intervals_hold_together() -> None:
    exact = problem()
    chances = exact.context_prob[:, None] * exact.target
    hit = 0
    for seed in range(60):
        found = evaluate(
            drawn(seed), {"t": "target_prob"}, "calibrated", backtest=False, thresholds=STEPS
        ).distribution
        assert found is not None
        hit += all(
            float((chances * (p.threshold >= LEVELS)).sum()) in p.interval for p in found["t"]
        )
    assert binomtest(hit, 60, 0.95, alternative="less").pvalue > 0.001


KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "clusters": {"cluster": "user"},
    "periods": {"period": "day"},
    "own propensities": {"propensities": None, "propensity": "p"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_threshold_is_an_indicator_reward(kind: str) -> None:
    """Its bits are those of a reward of 0 or 1, and other numbers keep theirs."""
    roles = KINDS[kind]
    found = evaluate(
        log(reward="amount", **roles), TARGETS, backtest=False, thresholds=[4.0], level=0.9
    )
    plain = evaluate(log(reward="amount", **roles), TARGETS, backtest=False, level=0.9)
    assert found.to_dicts() == plain.to_dicts()
    indicator = "CASE WHEN amount <= 4 THEN 1 ELSE 0 END"
    alone = evaluate(
        log(reward=indicator, reward_range=(0, 1), **roles), TARGETS, backtest=False, level=0.9
    )
    assert found.distribution is not None
    for target, result in alone.targets.items():
        (own,) = found.distribution[target]
        estimate = result.estimates[result.recommended]
        if estimate.decisive is None:
            assert own.value == estimate.value
            interval = result.intervals[result.recommended]
            assert (own.interval.lower, own.interval.upper) == (interval.lower, interval.upper)


def test_a_band_is_monotone() -> None:
    steps = np.linspace(0, 30, 25).tolist()
    found = evaluate(log(reward="amount"), TARGETS, backtest=False, thresholds=steps)
    assert found.distribution is not None
    for own in found.distribution.probabilities.values():
        for name in ("lower", "upper"):
            ends = [getattr(p.interval, name) for p in own]
            assert ends == sorted(ends)
        values = [p.value for p in own]
        assert values == sorted(values)
        assert all(p.value in p.interval for p in own)


def test_quantiles_of_rewards_with_many_values() -> None:
    rows = table(rows=4000)
    found = evaluate(log(rows, "ms"), {"t": "t"}, backtest=False, quantiles=[0.1, 0.5, 0.99])
    assert found.distribution is not None
    own = found.distribution["t"]
    assert len(own) <= MOST_STEPS
    low, middle, high = found.distribution.quantiles["t"]
    assert low.value < middle.value < high.value
    for quantile in (low, middle):
        assert quantile.interval.lower < quantile.value <= quantile.interval.upper
    assert found.to_dict()["distribution"]
    assert "Quantiles of the reward" in str(found)


@pytest.mark.parametrize(
    "options",
    [
        {"quantiles": [0.0]},
        {"quantiles": [1.5]},
        {"thresholds": ["a lot"]},
        {"thresholds": [float("inf")]},
        {"thresholds": list(range(MOST_STEPS + 1))},
        {"thresholds": [1.0], "interval": "smoothed"},
    ],
)
def test_wrong_thresholds_are_refused(options: Mapping[str, Any]) -> None:
    with refused(UsageError):
        evaluate(log(reward_range=(0, 1)), TARGETS, **options)
