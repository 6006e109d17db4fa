"""Ratios and relative differences on problems where every expectation is a finite sum."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from poolwise import (
    Balanced,
    Calibrated,
    FiniteProblem,
    Naive,
    SelfNormalised,
    Weighted,
    evaluate,
)
from poolwise.evaluation.read import join_measures
from poolwise.evaluation.relation import Relative
from poolwise.evaluation.spread import Candidates
from poolwise.intervals.ratio import Ratio, divide_intervals
from poolwise.intervals.skew import Reach
from poolwise.intervals.student import Interval
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, Factor, Needs, Term, ratio

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimator

LOGGERS = {
    "a": [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]],
    "b": [[0.2, 0.2, 0.6], [0.4, 0.4, 0.2]],
}
CLICK = np.array([[0.2, 0.5, 0.1], [0.4, 0.3, 0.6]])
AMOUNT = np.array([[[1.0, 2.0, 0.0], [0.5, 1.5, 2.5]], [[3.0, 5.0, 4.0], [2.5, 6.0, 3.0]]])


def problem(n: int = 50) -> FiniteProblem:
    return FiniteProblem(
        context_prob=np.array([0.4, 0.6]),
        reward=CLICK,
        target=np.array([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4]]),
        loggers={name: np.array(policy) for name, policy in LOGGERS.items()},
        counts={"a": 3 * n, "b": 2 * n},
        reward_variance=np.array([[0.04, 0.09, 0.01], [0.02, 0.05, 0.0]]),
        measures={"amount": AMOUNT, "twice": 2 * AMOUNT},
    )


def divide(estimator: Estimator, above: str, below: str, n: int = 50) -> Ratio:
    """Return the ratio of two measures of a problem, with exact moments."""
    exact = problem(n)
    needs = join_measures(estimator.needs(exact.coverage), (above, below))
    pool = exact.moments(needs)
    own = estimator.needs(exact.coverage).terms
    sides = []
    for measure in (above, below):
        found = estimator.estimate(pool.select({t: t.bind(measure=measure) for t in own}))
        sides.append(replace(found, linear=found.linear.bind(measure=measure)))
    return Ratio(sides[0], sides[1], pool)


def enumerate_rows(weights: str) -> list[tuple[float, float, float, float, float]]:
    """Return probability, weight, click and amount of every possible row of each logger.

    The first number says how many rows the logger writes.
    """
    exact = problem()
    total = sum(exact.counts.values())
    rows = []
    for name, policy in exact.loggers.items():
        below = policy if weights == "own" else exact.mixture
        for x in range(2):
            for y in range(3):
                for k, sign in enumerate((-1.0, 1.0)):
                    chance = exact.context_prob[x] * policy[x, y] / 2
                    weight = exact.target[x, y] / below[x, y]
                    spread = math.sqrt(exact.reward_variance[x, y])
                    click = CLICK[x, y] + sign * spread
                    share = exact.counts[name] / total
                    rows.append((share, chance, weight, click, AMOUNT[k, x, y]))
    return rows


def variance_of(weights: str, value: float) -> float:
    """Return the variance of the mean of weight (amount - value click), summed by hand."""
    rows, variance = enumerate_rows(weights), 0.0
    for name, count in problem().counts.items():
        share = count / sum(problem().counts.values())
        own = [r for r in rows if r[0] == share]
        scores = [(p, w * (amount - value * click)) for _, p, w, click, amount in own]
        mean = sum(p * s for p, s in scores)
        variance += share**2 * sum(p * (s - mean) ** 2 for p, s in scores) / count
        del name
    return variance


@pytest.mark.parametrize(("estimator", "weights"), [(Naive(), "own"), (Balanced(), "mixture")])
def test_value_and_variance_of_a_ratio_are_finite_sums(
    estimator: Estimator, weights: str
) -> None:
    exact = problem()
    joint = exact.context_prob[:, None] * exact.target
    amount, click = float((joint * AMOUNT.mean(axis=0)).sum()), exact.value
    found = divide(estimator, "amount", "")
    assert found.value == pytest.approx(amount / click, rel=1e-12)
    expected = variance_of(weights, amount / click) / click**2
    assert found.estimate.variance == pytest.approx(expected, rel=1e-10)
    assert found.linear.value(found.pool) == pytest.approx(amount / click, rel=1e-12)


@pytest.mark.parametrize("estimator", [Calibrated(), SelfNormalised(), Weighted()])
def test_the_linearised_ratio_has_the_value_of_the_ratio(estimator: Estimator) -> None:
    found = divide(estimator, "amount", "")
    assert found.linear.value(found.pool) == pytest.approx(found.value, rel=1e-12)
    fit = found.linear.fit
    if fit is not None:
        assert fit.score.over(found.pool).value(found.pool) == pytest.approx(found.value)


@pytest.mark.parametrize("estimator", [Naive(), Balanced(), SelfNormalised()])
def test_a_ratio_scales_with_its_numerator(estimator: Estimator) -> None:
    one, two = (divide(estimator, name, "") for name in ("amount", "twice"))
    assert two.value == pytest.approx(2 * one.value, rel=1e-14)
    assert two.estimate.variance == pytest.approx(4 * one.estimate.variance, rel=1e-12)
    constant = divide(estimator, "twice", "amount")
    assert constant.value == pytest.approx(2.0, rel=1e-15)
    assert constant.constant
    assert constant.interval(0.95, "two") == Interval(constant.value, constant.value, 0.95)


def test_the_interval_of_a_ratio_is_that_of_fieller() -> None:
    """Without skewness, the limits are the roots of a quadratic equation."""
    found = divide(Naive(), "amount", "")
    top, bottom = found.above.value, found.below.value
    needs = {m: Term((Factor("reward", measure=m), Factor("weight"))) for m in ("amount", "")}
    covariance = np.zeros((2, 2))
    for m in found.pool.values():
        share = m.count / found.pool.rows
        covariance += share**2 * m.covariance(list(needs.values())) / m.count
    z = 1.959963984540054
    # (top - u bottom)^2 = z^2 (aa - 2 u ab + u^2 bb)
    coefficients = [
        bottom**2 - z**2 * covariance[1, 1],
        -2 * (top * bottom - z**2 * covariance[0, 1]),
        top**2 - z**2 * covariance[0, 0],
    ]
    lower, upper = sorted(np.roots(coefficients).tolist())
    interval = found.interval(0.95, "two")
    assert (interval.lower, interval.upper) == pytest.approx((lower, upper), rel=1e-9)


def relate(n: int = 50) -> Candidates:
    """Return the target and the policy of logger "a", estimated by balanced."""
    exact, logger = problem(n), "a"
    own = REWARD * BALANCED_WEIGHT
    other = REWARD * ratio(logger)
    terms = (own, other, BALANCED_WEIGHT, ratio(logger))
    pool = exact.moments(Needs(groups=(terms,)))
    names = {own.bind("t"): own, own.bind("b"): other}
    names |= {BALANCED_WEIGHT.bind("t"): BALANCED_WEIGHT, BALANCED_WEIGHT.bind("b"): terms[3]}
    sides = {
        "t": Balanced().estimate(pool.select({own: own})),
        "b": Balanced().estimate(pool.select({own: other})),
    }
    none = dict.fromkeys(sides, lambda _alpha: Reach(0.0, 0.0))
    return Candidates(sides, pool.select(names), none)


def test_value_and_variance_of_a_relative_difference_are_finite_sums() -> None:
    exact = problem()
    joint = exact.context_prob[:, None] * CLICK
    base = float((joint * exact.loggers["a"]).sum())
    value = exact.value / base
    line = relate().line("t", "b")
    assert line.multiple == pytest.approx(value, rel=1e-12)
    variance = 0.0
    for name, policy in exact.loggers.items():
        spread = np.sqrt(exact.reward_variance)
        rewards = np.stack([CLICK - spread, CLICK + spread])
        scores = (exact.target - value * exact.loggers["a"]) / exact.mixture * rewards
        chances = exact.context_prob[:, None] * policy / 2
        mean = float((chances * scores).sum())
        share = exact.counts[name] / sum(exact.counts.values())
        own = float((chances * (scores - mean) ** 2).sum())
        variance += share**2 * own / exact.counts[name]
    assert line.std_error == pytest.approx(math.sqrt(variance) / base, rel=1e-10)


def test_the_inverse_of_a_relation_is_that_of_the_other_target() -> None:
    relative = Relative(0.25, Interval(0.1, 0.6, 0.95))
    inverse = relative.inverse
    assert inverse is not None
    assert inverse.value == pytest.approx(1 / 1.25 - 1)
    assert (inverse.interval.lower, inverse.interval.upper) == pytest.approx(
        (1 / 1.6 - 1, 1 / 1.1 - 1)
    )
    assert Relative(0.0, Interval(-1.2, 0.3, 0.95)).inverse is None


@pytest.mark.parametrize(
    ("above", "below", "expected"),
    [
        ((2.0, 6.0), (2.0, 4.0), (0.5, 3.0)),
        ((-2.0, 6.0), (2.0, 4.0), (-1.0, 3.0)),
        ((2.0, 6.0), (-4.0, -2.0), (-3.0, -0.5)),
        ((2.0, 6.0), (-1.0, 2.0), (-math.inf, math.inf)),
    ],
)
def test_intervals_are_divided_corner_by_corner(
    above: tuple[float, float], below: tuple[float, float], expected: tuple[float, float]
) -> None:
    found = divide_intervals(Interval(*above, 0.95), Interval(*below, 0.95))
    assert (found.lower, found.upper) == expected


def test_a_drawn_log_has_the_measures_of_its_problem() -> None:
    exact, rng = problem(20_000), np.random.default_rng(3)
    log = exact.draw(rng)
    found = evaluate(
        log, {"new": "target_prob"}, backtest=False, metrics={"rpc": "amount per reward"}
    ).metrics["rpc"]["new"]
    estimate = found.estimates["calibrated"]
    gap = (estimate.value - divide(Naive(), "amount", "").value) / estimate.std_error
    assert abs(gap) < 4
