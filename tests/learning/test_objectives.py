from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import poolwise as pw
from benchmarks.objectives import (
    Calibrated,
    Clipped,
    Direct,
    Ips,
    LogSmoothed,
    PenalisedDoublyRobust,
    Poem,
    SelfNormalised,
    Smoothed,
)
from poolwise.learning.fit import SoftmaxProblem, softmax
from poolwise.learning.objectives import (
    DoublyRobustMean,
    LogLikelihood,
    Objective,
    Plays,
    Regression,
    Sample,
    fit_rewards,
)
from tests.support.learning import (
    CROSS,
    GOLDEN,
    THETA,
    golden_log,
    golden_problem,
    golden_sample,
)

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimator

OBJECTIVES: dict[str, Objective] = {
    "ips_naive": Ips(),
    "ips": Ips(),
    "baseline_b0.3": Ips(0.3),
    "snips": SelfNormalised(),
    "clip_M1.2": Clipped(1.2),
    "ix_g0.05": Smoothed(added=0.05),
    "es_a0.7": Smoothed(0.7),
    "ls_l0.5": LogSmoothed(0.5),
    "poem_pooled_l0.5": Poem(0.5, stratified=False),
    "poem_stratified_l0.5": Poem(0.5),
    "poem_stratified_b0.3_l0.5": Poem(0.5, 0.3),
    "dm": Direct(),
    "dr": DoublyRobustMean(),
    "dr_smoothed_c0.7": DoublyRobustMean(0.7),
    "dr_naive": DoublyRobustMean(),
    "dr_stratified_penalty_l0.5": PenalisedDoublyRobust(0.5),
    "calibrated": Calibrated(),
    "calibrated_dr": Calibrated(model=True),
    "log_likelihood_ips": LogLikelihood(),
    "log_likelihood_clone_of_two": LogLikelihood(),
}


def test_every_golden_objective_is_tested() -> None:
    assert set(OBJECTIVES) == set(GOLDEN["objectives"])


def problem_of(name: str) -> SoftmaxProblem:
    problem = golden_problem(naive=name.endswith("naive"))
    if name == "log_likelihood_clone_of_two":
        return replace(problem, sample=replace(problem.sample, reward=CROSS[:, 1]))
    return problem


@pytest.mark.parametrize("name", OBJECTIVES)
def test_values_and_gradients_are_golden(name: str) -> None:
    value, gradient = problem_of(name).evaluate(OBJECTIVES[name], THETA)
    golden = GOLDEN["objectives"][name]
    assert value == pytest.approx(golden["value"], abs=1e-10)
    np.testing.assert_allclose(gradient, golden["gradient"], atol=1e-8)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_finite_differences(name: str) -> None:
    problem, objective, step = problem_of(name), OBJECTIVES[name], 1e-5
    _, gradient = problem.evaluate(objective, THETA)
    for index in np.ndindex(THETA.shape):
        moved = np.zeros_like(THETA)
        moved[index] = step
        ends = [problem.evaluate(objective, THETA + sign * moved)[0] for sign in (1, -1)]
        assert gradient[index] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)


@pytest.mark.parametrize("name", [n for n, o in OBJECTIVES.items() if o.additive])
def test_chunks_of_additive_objectives_add_up(name: str) -> None:
    objective, problem = OBJECTIVES[name], problem_of(name)
    prob, sample = problem.prob(THETA), problem.sample
    whole, slopes = objective(sample, prob)
    parts = [
        objective(replace(sample.take(rows), total=len(sample)), prob[rows])
        for rows in (slice(0, 13), slice(13, 40))
    ]
    assert sum(value for value, _ in parts) == pytest.approx(whole, abs=1e-15)
    np.testing.assert_allclose(np.vstack([m for _, m in parts]), slopes, atol=1e-15)


def test_the_validation_score_is_golden() -> None:
    sample = golden_sample()
    fit = Regression.of(sample, Plays.of(sample, golden_problem().prob(THETA)))
    golden = GOLDEN["validation_score"]
    assert fit.value == pytest.approx(golden["value"], abs=1e-10)
    np.testing.assert_allclose(fit.slopes[1:], golden["coefficients"], atol=1e-10)
    assert fit.std_error(sample.logger) == pytest.approx(golden["se"], abs=1e-10)
    lower = fit.value - fit.std_error(sample.logger)
    assert lower == pytest.approx(golden["minus_one_se"], abs=1e-10)


def test_the_paired_difference_is_golden() -> None:
    sample = golden_sample()
    fit = Regression.of(sample, Plays.of(sample, golden_problem().prob(THETA)))
    weight = fit.columns[:, 2] + 1
    paired = Regression.fit(fit.columns, (weight - sample.ratios[:, 1]) * sample.reward)
    golden = GOLDEN["paired_difference_to_two"]
    assert paired.value == pytest.approx(golden["value"], abs=1e-10)
    assert paired.std_error(sample.logger) == pytest.approx(golden["se"], abs=1e-10)


@pytest.mark.slow
@given(st.lists(st.floats(-3, 3), min_size=9, max_size=9))
def test_balanced_objectives_are_the_estimates_of_evaluate(entries: list[float]) -> None:
    coefficients = np.array(entries).reshape(3, 3)
    problem = golden_problem()
    prob = problem.prob(coefficients)
    estimators: list[str | Estimator] = ["balanced", "self-normalised"]
    estimators.append(pw.Calibrated(guard=False))
    estimates = pw.evaluate(golden_log(prob), {"t": "t"}, estimators)["t"].estimates
    objectives: dict[str, Objective] = {
        "balanced": Ips(),
        "self-normalised": SelfNormalised(),
        "calibrated": Calibrated(),
    }
    for name, objective in objectives.items():
        value, _ = problem.evaluate(objective, coefficients)
        assert value == pytest.approx(estimates[name].value, abs=1e-9)


def test_naive_weights_are_the_naive_estimate() -> None:
    problem = golden_problem(naive=True)
    prob = problem.prob(THETA)
    estimates = pw.evaluate(golden_log(prob), {"t": "t"}, "naive")["t"].estimates
    value, _ = problem.evaluate(Ips(), THETA)
    assert value == pytest.approx(estimates["naive"].value, abs=1e-12)


def test_an_action_that_is_not_listed_has_weight_0() -> None:
    sample = Sample(np.array([-1, 0]), np.array([5.0, 1.0]), np.ones(2), np.zeros(2, int))
    value, slopes = Ips()(sample, softmax(np.zeros((2, 2))))
    assert value == 0.25  # row 2 alone: 0.5 * 1 / 2
    assert slopes.tolist() == [[0.0, 0.0], [0.5, 0.0]]


def features_of(rows: int) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(rows, 2))
    return np.column_stack([x, np.ones(rows)])


def test_one_penalty_gives_the_ridge_of_each_action() -> None:
    features = features_of(60)
    action, fold = np.arange(60) % 2, np.arange(60) // 2 % 3
    reward = np.random.default_rng(1).normal(size=60)
    model, _ = fit_rewards(features, action, reward, fold, 2, penalties=[0.5])
    for k in (0, 1):
        block, own = features[action == k], reward[action == k] - reward.mean()
        expected = np.linalg.solve(block.T @ block + np.diag([1.5, 1.5, 1.0]), block.T @ own)
        np.testing.assert_allclose(model.coefficients[:, k], expected)


def test_rows_are_predicted_from_the_other_folds() -> None:
    features, action = features_of(60), np.zeros(60, int)
    fold, reward = np.arange(60) % 3, np.arange(60.0)
    _, before = fit_rewards(features, action, reward, fold, 1, penalties=[0.5])
    changed = np.where(fold == 0, reward[::-1], reward)
    changed[0] += reward[fold == 0].sum() - changed[fold == 0].sum()  # the same mean
    _, after = fit_rewards(features, action, changed, fold, 1, penalties=[0.5])
    np.testing.assert_allclose(before[fold == 0].clip(1, 58), after[fold == 0].clip(1, 58))
    assert not np.allclose(before[fold == 1], after[fold == 1])


def test_predictions_stay_within_the_rewards_and_unplayed_actions_get_the_mean() -> None:
    features, reward = features_of(90), np.tile([0.0, 1.0], 45)
    action = np.where(np.arange(90) < 30, -1, 0)
    model, predicted = fit_rewards(features, action, reward, np.arange(90) % 3, 2)
    assert 0 <= predicted.min() <= predicted.max() <= 1
    np.testing.assert_allclose(model.predict(features)[:, 1], 0.5)
    assert model.predict(100 * features).max() == 1
