"""Calibrated and self-normalised: exact numbers, laws, and fallbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.families import FAMILIES, draw_problem
from poolwise.engines.exact import FiniteProblem
from poolwise.errors import UsageError
from poolwise.estimators.calibrated import Calibrated, SelfNormalised
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.evaluation.evaluate import evaluate
from tests.support.messages import refused
from tests.support.toys import GOLDEN, TOYS, toy

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimator

NAMES: dict[str, Estimator] = {
    "balanced + CV loggers": Calibrated(columns=("loggers",)),
    "balanced + CV target": Calibrated(columns=("target",)),
    "balanced + CV loggers,target": Calibrated(),
    "(asympt.) SNIPS balanced": SelfNormalised(),
    "(asympt.) SNIPS naive": SelfNormalised(weights="own"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", TOYS)
def test_exact_mean_and_variance_are_golden(which: str, name: str) -> None:
    expected = GOLDEN[which]["estimators"][name]
    found = toy(which).exact(NAMES[name])
    assert found.value == pytest.approx(expected["mean"], rel=1e-12)
    assert found.variance == pytest.approx(expected["variance"], rel=1e-10, abs=1e-14)


def random_problem(seed: int) -> FiniteProblem:
    rng = np.random.default_rng(seed)
    family = list(FAMILIES.values())[seed % len(FAMILIES)]
    return draw_problem(family, 1000, rng)


def without(problem: FiniteProblem, logger: str) -> FiniteProblem:
    kept = [i for i in problem.loggers if i != logger]
    return FiniteProblem(
        problem.context_prob,
        problem.reward,
        problem.target,
        {i: problem.loggers[i] for i in kept},
        {i: problem.counts[i] for i in kept},
        problem.reward_variance,
    )


def single(problem: FiniteProblem, logger: str) -> float:
    return problem.divergence[logger] / problem.counts[logger]


@pytest.mark.slow
@given(st.integers(0, 10**6))
@settings(max_examples=150)
def test_calibrated_is_never_worse_than_any_weighting_of_the_logs(seed: int) -> None:
    problem = random_problem(seed)
    rivals = [problem.exact(e).variance for e in (Naive(), Balanced(), Weighted())]
    rivals += [single(problem, i) for i in problem.loggers]
    for columns in (("loggers",), ("loggers", "target")):
        ours = problem.exact(Calibrated(columns=columns))
        assert ours.value == pytest.approx(problem.value, rel=1e-9)
        assert ours.variance <= min(rivals) * (1 + 1e-8)


@pytest.mark.slow
@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_adding_a_log_never_hurts_calibrated(seed: int) -> None:
    problem = random_problem(seed)
    with_all = problem.exact(Calibrated()).variance
    for logger in problem.loggers:
        assert with_all <= without(problem, logger).exact(Calibrated()).variance * (1 + 1e-8)


def test_splitting_a_log_leaves_optimal_weighting_alone() -> None:
    """Law 4: two halves of one log are that log."""
    t2 = toy("T2")
    halves = FiniteProblem(
        t2.context_prob,
        t2.reward,
        t2.target,
        {"1": t2.loggers["1"], "1b": t2.loggers["1"], "2": t2.loggers["2"]},
        {"1": 15, "1b": 25, "2": 60},
        t2.reward_variance,
    )
    found = halves.exact(Calibrated(columns=("loggers",))).variance
    assert found == pytest.approx(0.0031752621778221774, rel=1e-9)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.floats(-100, 100), st.floats(-1e3, 1e3))
@settings(max_examples=25)
def test_scaled_and_shifted_rewards_scale_and_shift_the_estimate(
    seed: int, scale: float, shift: float
) -> None:
    """Law 6: r -> a r + b maps the estimate to a U + b."""
    log = toy("T2").draw(np.random.default_rng(seed))
    estimators: list[Estimator] = [Calibrated(), SelfNormalised()]
    plain = evaluate(log, "target_prob", estimators)["target"]
    moved_log = type(log)(
        log.source,
        logger="logger",
        reward=f"{scale!r} * reward + {shift!r}",
        propensity="propensity",
        propensities=log.propensities,
    )
    moved = evaluate(moved_log, "target_prob", estimators)["target"]
    for name, estimate in plain.estimates.items():
        expected = scale * estimate.value + shift
        assert moved.estimates[name].value == pytest.approx(expected, rel=1e-9, abs=1e-8)


def test_regression_without_intercept_gives_the_same_answer() -> None:
    """Law 7: the coefficients of w r on pi_k / pi_avg sum to the estimate."""
    log = toy("T2").draw(np.random.default_rng(5))
    table: Any = log.source
    p = np.column_stack([table["propensity_0"], table["propensity_1"]])
    mixture = p @ [0.4, 0.6]
    outcome = np.array(table["target_prob"]) / mixture * np.array(table["reward"])
    slopes = np.linalg.lstsq(p / mixture[:, None], outcome)[0]
    found = evaluate(log, "target_prob", [Calibrated(columns=("loggers",))])["target"]
    assert found.estimates["calibrated"].value == pytest.approx(slopes.sum(), rel=1e-10)


def test_the_order_of_loggers_does_not_matter() -> None:
    log = toy("T2").draw(np.random.default_rng(6))
    turned = type(log)(
        log.source,
        logger="logger",
        reward="reward",
        propensity="propensity",
        propensities=dict(reversed(list((log.propensities or {}).items()))),
    )
    first = evaluate(log, "target_prob", [Calibrated()])["target"].estimates["calibrated"]
    second = evaluate(turned, "target_prob", [Calibrated()])["target"].estimates["calibrated"]
    assert first.value == pytest.approx(second.value, rel=1e-12)
    assert first.variance == pytest.approx(second.variance, rel=1e-9)


def test_a_target_that_nobody_covers_loses_its_column_and_says_so() -> None:
    log = toy("T5").draw(np.random.default_rng(7))
    found = evaluate(log, "target_prob", [Calibrated()])["target"]
    assert [f.code for f in found.estimates["calibrated"].findings] == ["target-uncovered"]
    assert found.estimates["calibrated"].value == pytest.approx(1.1, abs=1e-9)


def test_too_few_rows_get_fewer_columns() -> None:
    problem = toy("T2")
    small = FiniteProblem(
        problem.context_prob,
        problem.reward,
        problem.target,
        problem.loggers,
        {"1": 10, "2": 15},
        problem.reward_variance,
    )
    found = evaluate(small.draw(np.random.default_rng(8)), "target_prob", [Calibrated()])
    codes = [f.code for f in found["target"].estimates["calibrated"].findings]
    assert codes == ["few-effective-rows"]


def test_unknown_columns_are_refused() -> None:
    with refused(UsageError):
        Calibrated(columns=("contexts",))  # type: ignore[arg-type]
