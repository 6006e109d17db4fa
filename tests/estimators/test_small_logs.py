"""Small logs: standard errors that few rows, equal rewards and tiny loggers really bear."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.draws import cells_of, draw
from benchmarks.families import softmax
from poolwise.engines.exact import FiniteProblem
from poolwise.estimators.calibrated import (
    Calibrated,
    contrast_controls,
    controls_of,
    few_rows,
)
from poolwise.estimators.ips import FLOOR, Weighted
from poolwise.estimators.model import BALANCED_RESIDUAL, OWN_SCORE, DoublyRobust
from poolwise.evaluation.evaluate import evaluate
from poolwise.intervals.student import student
from poolwise.log.log import Log
from poolwise.moments.estimate import stratified
from poolwise.moments.linear import Score, by_count, satterthwaite_freedom
from poolwise.moments.moments import Moments
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    PREDICTED_VALUE,
    WEIGHT,
    WEIGHTED_REWARD,
    ratio,
    residual_moment,
    second_moment,
)
from tests.support.messages import check_findings
from tests.support.small import group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.evaluation.results import TargetResult
    from poolwise.moments.estimate import Estimator

# ------------------------------------------------------------------ weighted


def on_target(
    rewards: Sequence[float], reward_range: tuple[float, float] | None = None
) -> TargetResult:
    """A log whose one logger is the target: every weight is 1."""
    same = [0.5] * len(rewards)
    table = pa.table({"lg": ["a"] * len(rewards), "r": rewards, "t": same, "p_a": same})
    log = Log(
        table, logger="lg", reward="r", propensities={"a": "p_a"}, reward_range=reward_range
    )
    return evaluate(log, "t")["target"]


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("reward", [1.0, 0.1, 0.0])
def test_equal_rewards_say_nothing_about_the_error_of_weighted(
    rows: int, reward: float
) -> None:
    found = on_target([reward] * rows)
    interval = found.intervals["weighted"]
    assert (interval.lower, interval.upper) == (-math.inf, math.inf)
    assert found.estimates["weighted"].variance == found.estimates["naive"].variance


def test_equal_rewards_of_weighted_rest_on_the_range_of_rewards() -> None:
    found = on_target([1.0] * 5, (0.0, 1.0))
    interval = found.intervals["weighted"]
    assert (interval.lower, interval.upper) == (0.0, 1.0)


def test_on_one_logger_weighted_is_naive_in_error_too() -> None:
    found = on_target([0.0, 1.0, 0.0, 1.0]).estimates
    assert found["weighted"].variance == pytest.approx(1 / 12, rel=1e-12)  # 1/3 over 4 rows
    assert found["weighted"].std_error == pytest.approx(found["naive"].std_error, rel=1e-12)
    assert found["weighted"].freedom == pytest.approx(3.0, rel=1e-12)


def test_the_variance_of_weighted_is_unbiased_over_all_logs() -> None:
    """Every log of two rows of each of two loggers that play as the target does.

    The shares are 1/2 each where rewards vary, so that the variance of the mean of four
    coins is p (1 - p) / 4; logs without spread say 0, as the sample variance does.
    """
    p = Fraction(1, 4)
    expected = Fraction(0)
    for log in range(16):
        rewards = [float(log >> k & 1) for k in range(4)]
        moments = {
            i: group(
                {
                    WEIGHTED_REWARD: rows,
                    BALANCED_REWARD: rows,
                    second_moment("a"): rows,
                    second_moment("b"): rows,
                }
            )
            for i, rows in (("a", rewards[:2]), ("b", rewards[2:]))
        }
        ones = int(sum(rewards))
        chance = p**ones * (1 - p) ** (4 - ones)
        expected += chance * Fraction(Weighted().estimate(moments).variance)
    assert float(expected) == pytest.approx(float(p * (1 - p) / 4), rel=1e-12)


def crossed(*, floor: bool) -> dict[str, Moments]:
    """Two loggers of which the first has next to no divergence; the value is 3."""
    second = {"a": 9.0 if floor else 16.0, "b": 11.0}
    rows = {"a": [1.0, 3.0, 8.0], "b": [2.0, 8.0]}
    balanced = {"a": [1.0, 2.0, 3.0], "b": [2.0, 7.0]}
    return {
        i: group(
            {WEIGHTED_REWARD: rows[i], BALANCED_REWARD: balanced[i]}
            | {second_moment(k): [v] * len(rows[i]) for k, v in second.items()}
        )
        for i in "ab"
    }


ERROR = Fraction(3, 25) * 1 + Fraction(2, 25) * Fraction(25, 2)  # of balanced: 28/25


def test_a_divergence_is_too_small_by_the_variance_of_the_value() -> None:
    found = Weighted().estimate(crossed(floor=False))
    share = {"a": Fraction(3, 10), "b": Fraction(7, 10)}  # 3/7 and 2/2
    variance = share["a"] ** 2 * (7 + ERROR) / 3 + share["b"] ** 2 * (2 + ERROR) / 2
    assert found.shares == pytest.approx({i: float(s) for i, s in share.items()})
    assert found.variance == pytest.approx(float(variance), rel=1e-12)
    assert found.freedom == 3.0


def test_below_the_floor_a_logger_has_the_variance_of_its_own_rows() -> None:
    found = Weighted().estimate(crossed(floor=True))
    precision = {"a": 3 / (FLOOR * 9), "b": 2 / 2}
    share = {i: p / sum(precision.values()) for i, p in precision.items()}
    own, rest = share["a"] ** 2 * 13 / 3, share["b"] ** 2 * float(2 + ERROR) / 2
    assert found.shares == pytest.approx(share)
    assert found.variance == pytest.approx(own + rest, rel=1e-12)
    assert found.freedom == pytest.approx((own + rest) ** 2 / (own**2 / 2 + rest**2 / 3))


def test_equal_scores_say_nothing_about_the_error_of_weighted_doubly_robust() -> None:
    columns = {
        PREDICTED_VALUE: [1.0] * 3,
        OWN_SCORE[1]: [0.0] * 3,
        BALANCED_RESIDUAL: [0.0] * 3,
        residual_moment("a"): [0.0] * 3,
    }
    assert DoublyRobust("weighted").estimate({"a": group(columns)}).variance == 0.0
    varied = columns | {PREDICTED_VALUE: [0.0, 1.0, 2.0]}
    found = DoublyRobust("weighted").estimate({"a": group(varied)})
    assert found.variance == pytest.approx(1 / 3)  # sample variance 1 over 3 rows


# ------------------------------------------------------------------ loggers of one row


def test_loggers_of_one_row_share_the_freedom_of_one_variance() -> None:
    alone = {i: group({WEIGHT: [float(k)]}) for k, i in enumerate("abcd")}
    assert satterthwaite_freedom(alone, dict.fromkeys("abcd", 1.0)) == pytest.approx(3.0)
    beside = alone | {"e": group({WEIGHT: [1.0, 2.0, 4.0]})}
    # 1 + 1 of all seven rows and 3 of three rows: 25 / (4/6 + 9/2)
    found = satterthwaite_freedom(beside, {"a": 1.0, "b": 1.0, "e": 3.0})
    assert found == pytest.approx(25 / (4 / 6 + 9 / 2))


@pytest.mark.parametrize("loggers", [2, 3, 6, 10])
def test_normal_rewards_of_one_row_loggers_are_covered(loggers: int) -> None:
    """The interval is Student's own: 2,000 logs have a standard error of 0.0049."""
    rng, logs, covered = np.random.default_rng(loggers), 2_000, 0
    for rewards in rng.normal(size=(logs, loggers)):
        moments = {
            str(k): Moments(
                (WEIGHT,), 1, np.array([r]), np.zeros((1, 1)), np.array([r]), np.array([r])
            )
            for k, r in enumerate(rewards)
        }
        covered += 0.0 in student(stratified(moments, WEIGHT, by_count(moments)), 0.95)
    assert abs(covered / logs - 0.95) < 4 * 0.0049


# ------------------------------------------------------------------ columns of small loggers


def rated(**count: int) -> dict[str, Moments]:
    """Rows of weight 1 with the ratios of all loggers but "d"."""
    terms = (BALANCED_WEIGHT, BALANCED_REWARD, *map(ratio, "abc"))
    return {i: group({t: [1.0] * n for t in terms}) for i, n in count.items()}


def test_a_logger_has_few_rows_below_ten() -> None:
    assert few_rows(rated(a=9, b=10, c=1, d=80)) == ("a", "c")
    exact = {"a": group({BALANCED_WEIGHT: [1.0]}, ddof=0)}
    assert few_rows(exact) == ()


def test_large_loggers_are_set_against_each_other() -> None:
    first, second = contrast_controls(rated(a=10, b=30, c=2), ("c",))
    assert first == Score({ratio("a"): 0.75, ratio("b"): -0.75}, 0.0)
    assert second == Score({ratio("a"): -0.25, ratio("b"): 0.25}, 0.0)


def test_the_last_logger_is_written_in_the_ratios_of_the_others() -> None:
    # a 2, b 20, d 20: d's ratio is 42/20 - a/10 - b, and b less the mean of both is (b - d)/2
    moments = {
        i: group({BALANCED_WEIGHT: [1.0] * n, ratio("a"): [1.0] * n, ratio("b"): [1.0] * n})
        for i, n in (("a", 2), ("b", 20), ("d", 20))
    }
    first, last = contrast_controls(moments, ("a",))
    assert first.parts == pytest.approx({ratio("a"): 0.05, ratio("b"): 1.0})
    assert first.constant == pytest.approx(-1.05)
    assert last.parts == pytest.approx({ratio("a"): -0.05, ratio("b"): -1.0})
    assert last.constant == pytest.approx(1.05)


def test_small_loggers_have_no_column() -> None:
    target = Score({BALANCED_WEIGHT: 1.0}, -1.0)
    moments = rated(a=2, b=3, c=150)
    assert controls_of(moments, ("loggers", "target"), None, ("a", "b")) == [target]
    known = controls_of(moments, ("loggers",), ("a", "c"), ("a", "b"))
    assert known == [Score({ratio("c"): 1.0}, -1.0)]
    assert contrast_controls(moments, ("a", "b")) == []


def test_calibrated_says_which_loggers_have_no_column() -> None:
    controls, within, findings = Calibrated().controls(rated(a=2, b=9, c=150))
    assert (controls, within) == ([Score({BALANCED_WEIGHT: 1.0}, -1.0)], True)
    check_findings(findings, "few-rows-of-logger")
    controls, within, findings = Calibrated().controls(rated(a=10, b=10, c=150))
    assert (len(controls), within, findings) == (4, False, ())
    controls, within, findings = Calibrated(guard=False).controls(rated(a=2, b=9, c=150))
    assert (len(controls), within, findings) == (4, False, ())


def small_loggers(seed: int) -> FiniteProblem:
    """Five loggers of two rows beside one of 150, all at random."""
    rng = np.random.default_rng(seed)
    chance = rng.uniform(0.1, 0.9, (3, 4))
    counts = {f"l{k}": 2 for k in range(5)} | {"large": 150}
    return FiniteProblem(
        context_prob=rng.dirichlet(np.full(3, 3.0)),
        reward=chance,
        target=softmax(rng.normal(size=(3, 4))),
        loggers={i: softmax(rng.normal(size=(3, 4))) for i in counts},
        counts=counts,
        reward_variance=chance * (1 - chance),
    )


@pytest.mark.slow
def test_intervals_cover_more_often_without_the_columns_of_small_loggers() -> None:
    """The same 1,600 logs of 8 problems, with those columns and without them."""
    estimators: tuple[Estimator, ...] = (Calibrated(guard=False), Calibrated())
    gained = []
    for seed in range(8):
        problem, rng = small_loggers(seed), np.random.default_rng(1000 + seed)
        loggers = tuple(problem.loggers)
        needs = reduce(or_, (e.needs(loggers, crossed=True) for e in estimators))
        cells = cells_of(problem, needs)
        for _ in range(200):
            moments = draw(cells, rng)
            before, after = (
                problem.value in student(e.estimate(moments), 0.95) for e in estimators
            )
            gained.append(int(after) - int(before))
    assert np.mean(gained) > 3 * np.std(gained) / math.sqrt(len(gained))
