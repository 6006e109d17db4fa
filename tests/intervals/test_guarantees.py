"""Finite-sample intervals: the same numbers from rows, from moments and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from poolwise.errors import UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.intervals.bounds import WeightSums, empirical_bernstein, euclidean_likelihood
from tests.support.messages import refused
from tests.support.toys import toy

if TYPE_CHECKING:
    from poolwise.intervals.student import Interval
    from poolwise.log.log import Log

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
