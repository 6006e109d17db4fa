"""Cross-fitted slopes: unbiased to the last digit, by enumeration of every log."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from poolwise.engines.exact import FiniteProblem
from poolwise.errors import RefusedError, UsageError
from poolwise.estimators.calibrated import Calibrated
from poolwise.estimators.crossfit import CrossFitted
from poolwise.evaluation.evaluate import evaluate
from poolwise.moments.linear import Score
from poolwise.moments.moments import Moments
from poolwise.moments.terms import BALANCED_REWARD, BALANCED_WEIGHT, ratio
from tests.support.messages import refused
from tests.support.small import group, mean, scatter, var
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from poolwise.moments.terms import Term

    Columns = Mapping[Term, list[Fraction]]
    Fold = Mapping[str, Columns]


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


# ---------------------------------------- a few rows in two folds


Y, X, W = BALANCED_REWARD, ratio("a"), BALANCED_WEIGHT


def rows(*lines: tuple[float, float, float]) -> Columns:
    return {
        t: list(map(Fraction, c))
        for t, c in zip((Y, X, W), zip(*lines, strict=True), strict=True)
    }


FIRST = {"a": rows((1, 1, 1), (2, 2, 0.5)), "b": rows((3, 0, 1), (5, 1, 0.75))}
SECOND = {"a": rows((4, 1, 2), (6, 0.5, 1)), "b": rows((0.5, 0.25, 0.25))}
TARGET = CrossFitted(Calibrated(columns=("target",), guard=False), folds=2)


def moments_of(fold: Fold) -> dict[str, Moments]:
    return {i: group(columns) for i, columns in fold.items()}


def slope_pooled(fold: Fold) -> Fraction:
    x, y = ([v for r in fold.values() for v in r[term]] for term in (X, Y))
    return scatter(x, y) / scatter(x, x)


def slope_within(fold: Fold, term: Term = W) -> Fraction:
    above = sum((scatter(r[term], r[Y]) for r in fold.values()), Fraction(0))
    return above / sum((scatter(r[term], r[term]) for r in fold.values()), Fraction(0))


def left_over(fold: Fold, slope: Fraction, term: Term = W) -> dict[str, list[Fraction]]:
    return {
        i: [y - slope * x for y, x in zip(r[Y], r[term], strict=True)] for i, r in fold.items()
    }


def spread(left: Mapping[str, list[Fraction]]) -> Fraction:
    """Stratified variance of one fold; a row alone takes the variance of all."""
    together = [y for values in left.values() for y in values]
    parts = [
        Fraction(len(r), len(together)) ** 2 / len(r) * var(r if len(r) > 1 else together)
        for r in left.values()
    ]
    return sum(parts, Fraction(0))


def test_each_fold_is_corrected_with_the_slopes_of_the_other() -> None:
    found = TARGET.estimate_folds([moments_of(FIRST), moments_of(SECOND)])
    value, variance = Fraction(0), Fraction(0)
    for mine, other in ((FIRST, SECOND), (SECOND, FIRST)):
        slope = slope_within(other)
        left = left_over(mine, slope)
        size = Fraction(sum(map(len, left.values())), 7)
        inner = Fraction(4, 7) * mean(left["a"]) + Fraction(3, 7) * mean(left["b"])
        value += size * (inner + slope)
        variance += size**2 * spread(left)
    assert found.value == pytest.approx(float(value), rel=1e-12)
    assert found.variance == pytest.approx(float(variance), rel=1e-12)
    assert found.shares == pytest.approx({"a": 4 / 7, "b": 3 / 7})
    assert found.findings == ()
    # the combination has the mean slope of the folds, by their rows
    slope = (4 * slope_within(SECOND) + 3 * slope_within(FIRST)) / 7
    for i, share in found.shares.items():
        assert found.linear.parts[i] == pytest.approx({Y: share, W: -share * float(slope)})
    # the freedom is that of all rows, corrected as the first fold is
    whole = {i: moments_of(FIRST)[i] + moments_of(SECOND)[i] for i in "ab"}
    parts = {Y: 1.0, W: -float(slope_within(SECOND))}
    assert found.freedom == pytest.approx(
        Score(parts).over(whole).variance(whole)[1], rel=1e-12
    )


def test_with_the_columns_of_the_loggers_slopes_are_pooled() -> None:
    estimator = CrossFitted(Calibrated(columns=("loggers",), guard=False), folds=2)
    found = estimator.estimate_folds([moments_of(FIRST), moments_of(SECOND)])
    value = Fraction(0)
    for mine, other in ((FIRST, SECOND), (SECOND, FIRST)):
        slope = slope_pooled(other)
        left = left_over(mine, slope, X)
        size = Fraction(sum(map(len, left.values())), 7)
        inner = Fraction(4, 7) * mean(left["a"]) + Fraction(3, 7) * mean(left["b"])
        value += size * (inner + slope)
    assert found.value == pytest.approx(float(value), rel=1e-12)


def test_buckets_go_to_the_folds_in_turn() -> None:
    lines = [(1, 1, 1), (2, 2, 0.5), (4, 1, 2), (6, 0.5, 1)]
    buckets = [moments_of({"a": rows(line), "b": rows(line[::-1])}) for line in lines]
    estimator = CrossFitted(Calibrated(guard=False), folds=2)
    merged = [{i: buckets[k][i] + buckets[k + 2][i] for i in "ab"} for k in (0, 1)]
    found, whole = estimator.estimate_folds(buckets), estimator.estimate_folds(merged)
    assert found.value == pytest.approx(whole.value, rel=1e-12)
    assert found.variance == pytest.approx(whole.variance, rel=1e-12)
    assert found.freedom == pytest.approx(whole.freedom, rel=1e-9)


def test_cross_fitting_obeys_the_guard_of_calibrated() -> None:
    buckets = [moments_of(FIRST), moments_of(SECOND)]
    found = CrossFitted(folds=2).estimate_folds(buckets)
    assert [f.code for f in found.findings] == ["few-effective-rows"]
    # without columns: the mean of each logger in each fold, folds by their rows
    a = Fraction(4, 7) * mean([1, 2]) + Fraction(3, 7) * mean([4, 6])
    b = Fraction(4, 7) * mean([3, 5]) + Fraction(3, 7) * mean([0.5])
    assert found.value == pytest.approx(float(Fraction(4, 7) * a + Fraction(3, 7) * b))
    whole = {i: buckets[0][i] + buckets[1][i] for i in "ab"}
    assert CrossFitted(folds=2).estimate(whole) == Calibrated().estimate(whole)


def test_known_loggers_alone_have_columns() -> None:
    buckets = [moments_of(FIRST), moments_of(SECOND)]
    nobody = Calibrated(columns=("loggers",), guard=False, known=())
    bare = CrossFitted(nobody, folds=2).estimate_folds(buckets)
    none = CrossFitted(Calibrated(columns=(), guard=False), folds=2).estimate_folds(buckets)
    assert (bare.value, bare.variance) == (none.value, none.variance)
    one = CrossFitted(Calibrated(columns=("loggers",), guard=False, known=("a",)), folds=2)
    value = Fraction(0)
    for mine, other in ((FIRST, SECOND), (SECOND, FIRST)):
        slope = slope_within(other, X)  # not pooled, since the mixture was estimated
        left = left_over(mine, slope, X)
        size = Fraction(sum(map(len, left.values())), 7)
        inner = Fraction(4, 7) * mean(left["a"]) + Fraction(3, 7) * mean(left["b"])
        value += size * (inner + slope)
    assert one.estimate_folds(buckets).value == pytest.approx(float(value), rel=1e-12)
