from __future__ import annotations

import numpy as np
import pytest

from poolwise.learning.fit import clone, greedy, maximise, softmax
from poolwise.learning.objectives import DoublyRobustMean, LogLikelihood, Objective
from tests.support.learning import FEATURES, GOLDEN, golden_problem, policy_of


@pytest.mark.parametrize(
    ("name", "objective"), [("dr", DoublyRobustMean()), ("log_likelihood_ips", LogLikelihood())]
)
def test_optima_from_zero_are_golden(name: str, objective: Objective) -> None:
    problem, golden = golden_problem(), GOLDEN["optima_from_zero"][name]
    fitted = maximise(
        problem,
        objective,
        golden["l2"],
        problem.zeros(),
        free_bias=True,
        iterations=5_000,
        tolerance=1e-15,
    )
    value, _ = problem.evaluate(objective, fitted)
    assert value == pytest.approx(golden["value_without_penalty"], abs=1e-8)
    np.testing.assert_allclose(policy_of(fitted), golden["policy"], atol=1e-7)


def test_the_anchored_recipe_is_golden() -> None:
    problem, golden = golden_problem(), GOLDEN["anchored_recipe"]
    start = clone(problem, problem.sample.ratios[:, 1], iterations=5_000, tolerance=1e-15)
    np.testing.assert_allclose(policy_of(start), golden["clone_policy"], atol=1e-7)
    objective, penalty = DoublyRobustMean(0.7), golden["strength_times_scale"]
    fitted = maximise(problem, objective, penalty, start, iterations=5_000, tolerance=1e-15)
    value, _ = problem.evaluate(objective, fitted)
    assert value == pytest.approx(golden["value_without_penalty"], abs=1e-7)
    np.testing.assert_allclose(policy_of(fitted), golden["policy"], atol=1e-7)
    best = greedy(FEATURES @ fitted).argmax(axis=1)
    assert best.tolist() == golden["greedy"]


def test_a_strong_penalty_keeps_the_anchor() -> None:
    problem = golden_problem()
    start = clone(problem, problem.sample.ratios[:, 0])
    fitted = maximise(problem, DoublyRobustMean(), 1e9, start)
    np.testing.assert_allclose(fitted, start, atol=1e-8)


def test_fixed_scores_are_added() -> None:
    problem = golden_problem()
    base = np.log(np.array([[0.5, 0.25, 0.25]] * 40))
    with_base = type(problem)(problem.features, problem.sample, 3, base)
    np.testing.assert_allclose(with_base.prob(problem.zeros()), np.exp(base), atol=1e-15)


def test_softmax_of_large_scores_does_not_overflow() -> None:
    assert softmax(np.array([[1e308, 0.0]])).tolist() == [[1.0, 0.0]]
