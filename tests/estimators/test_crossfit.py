"""Cross-fitted slopes: unbiased to the last digit, by enumeration of every log."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from poolwise.engines.exact import FiniteProblem
from poolwise.errors import RefusedError, UsageError
from poolwise.estimators.calibrated import Calibrated
from poolwise.estimators.crossfit import CrossFitted
from poolwise.evaluation.evaluate import evaluate
from poolwise.moments.moments import Moments
from poolwise.moments.terms import BALANCED_REWARD, BALANCED_WEIGHT, ratio
from tests.support.messages import refused
from tests.support.toys import toy

if TYPE_CHECKING:
    from numpy.typing import NDArray

TERMS = tuple(sorted((BALANCED_REWARD, BALANCED_WEIGHT, ratio("1"))))


def rows_of(problem: FiniteProblem) -> dict[str, NDArray[np.float64]]:
    """Terms of every cell, and its probability under each logger."""
    weight = problem.target / problem.mixture
    columns = {
        BALANCED_REWARD: weight * problem.reward,
        BALANCED_WEIGHT: weight,
        ratio("1"): problem.loggers["1"] / problem.mixture,
    }
    values = np.stack([columns[t].ravel() for t in TERMS], axis=-1)
    prob = {i: (problem.context_prob[:, None] * p).ravel() for i, p in problem.loggers.items()}
    return {"values": values, **prob}


def one_row(values: NDArray[np.float64]) -> Moments:
    zero = np.zeros((len(TERMS), len(TERMS)))
    return Moments(TERMS, 1, values, zero, values, values)


def test_every_possible_log_averages_to_the_truth() -> None:
    """T1 with two rows of each logger in two folds: 4^4 logs, each with its chance."""
    t1 = toy("T1")
    problem = FiniteProblem(t1.context_prob, t1.reward, t1.target, t1.loggers, {"1": 2, "2": 2})
    cells = rows_of(problem)
    estimator = CrossFitted(Calibrated(columns=("loggers", "target"), guard=False), folds=2)
    mean, plain = 0.0, 0.0
    for a, b, c, d in product(range(4), repeat=4):
        chance = cells["1"][a] * cells["1"][b] * cells["2"][c] * cells["2"][d]
        rows = [one_row(cells["values"][k]) for k in (a, b, c, d)]
        buckets = [{"1": rows[0], "2": rows[2]}, {"1": rows[1], "2": rows[3]}]
        mean += chance * estimator.estimate_folds(buckets).value
        whole = {"1": rows[0] + rows[1], "2": rows[2] + rows[3]}
        plain += chance * estimator.estimate(whole).value
    assert mean == pytest.approx(8.2, rel=1e-12)
    assert abs(plain - 8.2) > 0.01  # the slopes of the same rows are not


def test_evaluate_splits_the_rows_into_folds() -> None:
    log = toy("T2").draw(np.random.default_rng(1))
    found = evaluate(log, "target_prob", [Calibrated(), CrossFitted()])["target"].estimates
    plain, crossed = found["calibrated"], found["cross-fitted"]
    assert crossed.value != plain.value
    assert abs(crossed.value - plain.value) < plain.std_error
    assert crossed.std_error == pytest.approx(plain.std_error, rel=0.2)


def test_a_log_smaller_than_its_folds_is_refused() -> None:
    t2 = toy("T2")
    few = FiniteProblem(
        t2.context_prob, t2.reward, t2.target, t2.loggers, {"1": 2, "2": 60}, t2.reward_variance
    )
    with refused(RefusedError):
        evaluate(few.draw(np.random.default_rng(2)), "target_prob", [CrossFitted()])


def test_one_fold_is_no_fold() -> None:
    with refused(UsageError):
        CrossFitted(folds=1)
