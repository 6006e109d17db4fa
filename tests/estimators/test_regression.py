"""Slopes, and what they leave of an estimate: least squares on a few rows, as fractions."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from poolwise.estimators.calibrated import (
    AS_NAIVE,
    Calibrated,
    SelfNormalised,
    controls_of,
    least_squares,
    regressed,
)
from poolwise.moments.linear import Score
from poolwise.moments.terms import BALANCED_REWARD, BALANCED_WEIGHT, OVERLAP, WEIGHT, ratio
from tests.support.small import group, mean, scatter, var

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.moments.terms import Term

Y, X, W = BALANCED_REWARD, ratio("a"), BALANCED_WEIGHT
ROWS: dict[str, dict[Term, Sequence[float]]] = {
    "a": {Y: [1, 2, 4, 6], X: [1, 2, 1, 0.5], W: [1, 0.5, 2, 1]},
    "b": {Y: [3, 5, 0.5], X: [0, 1, 0.25], W: [1, 0.75, 0.25]},
}
MOMENTS = {i: group(columns) for i, columns in ROWS.items()}
EXACT = {i: replace(m, ddof=0) for i, m in MOMENTS.items()}
LUCK = Score({X: 1.0}, -1.0)


def every(term: Term) -> list[float]:
    return [*ROWS["a"][term], *ROWS["b"][term]]


POOLED = scatter(every(X), every(Y)) / scatter(every(X), every(X))
WITHIN = sum(scatter(r[X], r[Y]) for r in ROWS.values()) / sum(
    scatter(r[X], r[X]) for r in ROWS.values()
)


def corrected(logger: str, slope: Fraction) -> list[Fraction]:
    rows = ROWS[logger]
    return [Fraction(y) - slope * Fraction(x) for y, x in zip(rows[Y], rows[X], strict=True)]


def expected(slope: Fraction) -> tuple[Fraction, Fraction]:
    """Value of the corrected mean, and its variance before any correction."""
    left = {i: corrected(i, slope) for i in ROWS}
    value = mean([*left["a"], *left["b"]]) + slope
    variance = sum(Fraction(len(r), 7) ** 2 * var(r) / len(r) for r in left.values())
    return value, Fraction(variance)


def test_one_slope_is_a_covariance_over_a_variance() -> None:
    assert POOLED != WITHIN
    for slope, within in ((POOLED, False), (WITHIN, True)):
        found, rank = least_squares(MOMENTS, Score({Y: 1.0}), [LUCK], within=within)
        assert found == pytest.approx([float(slope)], rel=1e-12)
        assert rank == 1


def test_two_slopes_solve_the_normal_equations() -> None:
    xx, xw, ww = (scatter(every(i), every(j)) for i, j in ((X, X), (X, W), (W, W)))
    xy, wy = scatter(every(X), every(Y)), scatter(every(W), every(Y))
    whole = xx * ww - xw**2
    slopes = [(xy * ww - wy * xw) / whole, (wy * xx - xy * xw) / whole]
    controls = [LUCK, Score({W: 1.0}, -1.0)]
    found, rank = least_squares(MOMENTS, Score({Y: 1.0}), controls, within=False)
    assert found == pytest.approx(list(map(float, slopes)), rel=1e-12)
    assert rank == 2
    # a difference of terms, explained by one of them
    found, rank = least_squares(MOMENTS, Score({Y: 2.0, W: -1.0}), [LUCK], within=False)
    assert found == pytest.approx([float((2 * xy - xw) / xx)], rel=1e-12)


def test_of_collinear_columns_the_shortest_slopes_are_taken() -> None:
    # b1 + 2 b2 = slope is shortest at slope (1, 2) / 5
    double = Score({X: 2.0}, -2.0)
    found, rank = least_squares(MOMENTS, Score({Y: 1.0}), [LUCK, double], within=False)
    assert found == pytest.approx([float(POOLED) / 5, float(POOLED) * 2 / 5], rel=1e-9)
    assert rank == 1


def test_a_constant_column_has_slope_zero_and_no_rank() -> None:
    flat = {i: group(ROWS[i] | {OVERLAP: [3.0] * m.count}) for i, m in MOMENTS.items()}
    constant = Score({OVERLAP: 1.0}, -1.0)
    assert least_squares(flat, Score({Y: 1.0}), [constant], within=False) == ([0.0], 0)
    found, rank = least_squares(flat, Score({Y: 1.0}), [constant, LUCK], within=False)
    assert found == pytest.approx([0.0, float(POOLED)], rel=1e-12)
    assert rank == 1
    assert least_squares(flat, Score({Y: 1.0}), [], within=False) == ([], 0)


@pytest.mark.parametrize(("step", "rank"), [(1.1e-5, 1), (0.9e-5, 0)])
def test_a_column_is_constant_below_a_tenth_of_a_billionth_of_its_square(
    step: float, rank: int
) -> None:
    # 1 ± s varies by s² of its mean square 1 + s²
    near = {"a": group({Y: [1.0, 2.0], WEIGHT: [1 - step, 1 + step]})}
    found, seen = least_squares(
        near, Score({Y: 1.0}), [Score({WEIGHT: 1.0}, -1.0)], within=False
    )
    assert seen == rank
    assert (found[0] != 0) is bool(rank)


@pytest.mark.parametrize(("eigenvalue", "rank"), [(1.5e-9, 1), (2.5e-9, 2)])
def test_two_columns_are_collinear_below_two_billionths(eigenvalue: float, rank: int) -> None:
    # x and x + s z, with z as long as x and at a right angle: 1 - correlation is s²/2
    x, z = [1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]
    step = math.sqrt(2 * eigenvalue)
    near = [a + step * b for a, b in zip(x, z, strict=True)]
    moments = {"a": group({Y: [1.0, 2.0, 4.0, 3.0], X: x, W: near})}
    _, found = least_squares(
        moments, Score({Y: 1.0}), [LUCK, Score({W: 1.0}, -1.0)], within=False
    )
    assert found == rank


@pytest.mark.parametrize("within", [False, True])
def test_a_corrected_mean_takes_back_the_luck_of_the_rows(*, within: bool) -> None:
    slope = WITHIN if within else POOLED
    value, variance = expected(Fraction(slope))
    exact = regressed(EXACT, Score({Y: 1.0}), [LUCK], within=within)
    assert exact.value == pytest.approx(float(value), rel=1e-12)
    assert exact.freedom == math.inf
    found = regressed(MOMENTS, Score({Y: 1.0}), [LUCK], within=within)
    rows = sum(map(Fraction, every(W))) ** 2 / sum(Fraction(w) ** 2 for w in every(W))
    assert found.value == pytest.approx(float(value), rel=1e-12)
    assert found.variance == pytest.approx(float(variance * rows / (rows - 1)), rel=1e-12)
    assert found.shares == pytest.approx({"a": 4 / 7, "b": 3 / 7})
    parts = {
        i: Fraction(len(r[Y]), 7) ** 2 * var(corrected(i, Fraction(slope))) / len(r[Y])
        for i, r in ROWS.items()
    }
    freedom = variance**2 / (parts["a"] ** 2 / 3 + parts["b"] ** 2 / 2)
    assert found.freedom == pytest.approx(float(min(freedom, rows - 2)), rel=1e-12)
    assert found.findings == ()


def test_an_outcome_may_be_a_combination_of_terms() -> None:
    plain = regressed(MOMENTS, Score({Y: 1.0}), [LUCK], within=False)
    double = regressed(MOMENTS, Score({Y: 2.0}), [LUCK], within=False)
    assert double.value == pytest.approx(2 * plain.value, rel=1e-12)
    assert double.variance == pytest.approx(4 * plain.variance, rel=1e-12)
    # a column of the outcome that the control takes out again leaves the control's mean
    known = regressed(MOMENTS, Score({X: 3.0}), [LUCK], within=False)
    assert known.value == pytest.approx(3.0, rel=1e-12)
    assert known.variance == pytest.approx(0.0, abs=1e-25)


def test_few_effective_rows_leave_one_degree_of_freedom_at_least() -> None:
    heavy = {Y: [1.0, 2.0, 4.0], X: [1.0, 2.0, 1.0], W: [0.0, 0.0, 1.0]}
    found = regressed({"a": group(heavy)}, Score({Y: 1.0}), [LUCK], within=False)
    slope = scatter(heavy[X], heavy[Y]) / scatter(heavy[X], heavy[X])
    rows = [Fraction(y) - slope * Fraction(x) for y, x in zip(heavy[Y], heavy[X], strict=True)]
    assert found.freedom == 1.0
    assert found.variance == pytest.approx(float(var(rows) / 3), rel=1e-12)  # 1 / max(1, 0)


def test_the_variance_of_a_combination_is_stratified() -> None:
    parts = {Y: 1.0, X: -2.0}
    pieces = {
        i: Fraction(len(ROWS[i][Y]), 7) ** 2 * var(corrected(i, Fraction(2))) / len(ROWS[i][Y])
        for i in ROWS
    }
    total = sum(pieces.values(), Fraction(0))
    freedom = total**2 / (pieces["a"] ** 2 / 3 + pieces["b"] ** 2 / 2)
    assert Score(parts).over(MOMENTS).variance(MOMENTS) == pytest.approx(
        (float(total), float(freedom))
    )


def test_one_row_alone_takes_the_spread_of_all_rows() -> None:
    # rows 5 | 1 3: together their variance is 4, that of the pair 2
    moments = {"a": group({Y: [5.0]}), "b": group({Y: [1.0, 3.0]})}
    variance, freedom = Score({Y: 1.0}).over(moments).variance(moments)
    first, second = Fraction(4, 9), Fraction(4, 9)  # (1/9)·4/1 and (4/9)·2/2
    assert variance == pytest.approx(float(first + second))
    assert freedom == pytest.approx(float((first + second) ** 2 / (first**2 / 2 + second**2)))
    assert Score({Y: 1.0}).over({"a": moments["a"]}).variance({"a": moments["a"]}) == (
        math.inf,
        math.inf,
    )


def test_what_rounding_leaves_of_a_difference_is_nothing() -> None:
    rows = [0.1, 0.7, 1.3]
    moments = {"a": group({Y: [3 * r for r in rows], X: rows})}
    assert Score({Y: 1.0, X: -3.0}).over(moments).variance(moments) == (0.0, math.inf)


@pytest.mark.parametrize("weights", ["balanced", "own"])
def test_self_normalised_is_a_ratio_of_sums(weights: str) -> None:
    terms = (
        (Y, W) if weights == "balanced" else SelfNormalised("own").needs((), crossed=True).terms
    )
    rewards, mass = sorted(terms, key=lambda t: len(t.factors), reverse=True)
    moments = {i: group({rewards: r[Y], mass: r[W]}) for i, r in ROWS.items()}
    found = SelfNormalised(weights).estimate(moments)  # type: ignore[arg-type]
    value = mean(every(Y)) / mean(every(W))
    left = {
        i: [
            (Fraction(y) - value * Fraction(w)) / mean(every(W))
            for y, w in zip(r[Y], r[W], strict=True)
        ]
        for i, r in ROWS.items()
    }
    pieces = {i: Fraction(len(r), 7) ** 2 * var(r) / len(r) for i, r in left.items()}
    total = sum(pieces.values(), Fraction(0))
    assert found.value == pytest.approx(float(value), rel=1e-13)
    assert found.variance == pytest.approx(float(total), rel=1e-12)
    assert found.freedom == pytest.approx(
        float(total**2 / (pieces["a"] ** 2 / 3 + pieces["b"] ** 2 / 2)), rel=1e-12
    )
    assert found.shares == pytest.approx({"a": 4 / 7, "b": 3 / 7})
    assert found.findings == ()


@pytest.mark.parametrize(
    ("estimator", "within"),
    [
        (Calibrated(guard=False), False),
        (Calibrated(columns=("loggers",), guard=False), False),
        (Calibrated(columns=("target",), guard=False), True),
        (Calibrated(guard=False, known=("a",)), True),
    ],
    ids=repr,
)
def test_calibrated_is_the_regression_on_its_columns(
    estimator: Calibrated, *, within: bool
) -> None:
    controls = controls_of(MOMENTS, estimator.columns, estimator.known)
    assert estimator.estimate(MOMENTS) == regressed(
        MOMENTS, Score({Y: 1.0}), controls, within=within
    )
    assert regressed(MOMENTS, Score({Y: 1.0}), controls, within=within) != regressed(
        MOMENTS, Score({Y: 1.0}), controls, within=not within
    )


def test_calibrated_uses_the_columns_of_known_loggers_alone() -> None:
    other = {"a": [0.0, 1.0, 2.0, 0.5], "b": [2.0, 1.5, 1.0]}
    moments = {i: group(ROWS[i] | {ratio("b"): other[i]}) for i in ROWS}
    found = Calibrated(columns=("loggers",), guard=False, known=("a",)).estimate(moments)
    assert found == regressed(moments, Score({Y: 1.0}), [LUCK], within=True)
    assert found.value == pytest.approx(float(expected(Fraction(WITHIN))[0]), rel=1e-12)
    crossed = Calibrated(columns=("loggers",), guard=False, known=("b",)).estimate(moments)
    assert crossed == regressed(
        moments, Score({Y: 1.0}), [Score({ratio("b"): 1.0}, -1.0)], within=True
    )
    assert crossed.value != found.value


def test_calibrated_falls_back_as_its_guard_says() -> None:
    found = Calibrated().estimate(MOMENTS)  # 5.8 effective rows
    assert [f.code for f in found.findings] == ["few-effective-rows"]
    assert found.value == pytest.approx(float(mean(every(Y))), rel=1e-13)
    assert AS_NAIVE not in found.findings
