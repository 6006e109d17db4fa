"""Calibrated and self-normalised: exact numbers, laws, and fallbacks."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.draws import cells_of, draw
from benchmarks.families import FAMILIES, draw_problem, softmax
from poolwise.engines.exact import FiniteProblem
from poolwise.errors import RefusedError, UsageError
from poolwise.estimators.calibrated import (
    BALANCED_PREDICTION,
    Calibrated,
    SelfNormalised,
    contrast_controls,
    few_rows,
    is_uncovered,
    least_squares,
    list_controls,
    logger_columns,
    regress_outcome,
    supported_columns,
)
from poolwise.estimators.divergences import FLOOR
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.estimators.model import BALANCED_RESIDUAL, OWN_SCORE, DirectMethod, DoublyRobust
from poolwise.estimators.shrink import Shrink, shrunk_weight
from poolwise.evaluation.evaluate import evaluate
from poolwise.intervals.student import student
from poolwise.log.log import Log
from poolwise.moments.coverage import Coverage
from poolwise.moments.estimate import average_term
from poolwise.moments.linear import Score, by_count, satterthwaite_freedom
from poolwise.moments.moments import Moments
from poolwise.moments.pool import Pool
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    OVERLAP,
    PREDICTED_VALUE,
    RESIDUAL,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Factor,
    Needs,
    Term,
    ratio,
    residual_moment,
    second_moment,
    weight_moment,
)
from tests.support.messages import check_findings, refused
from tests.support.small import group, mean, scatter, var
from tests.support.toys import GOLDEN, TOYS, toy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.estimators.calibrated import Columns
    from poolwise.evaluation.results import TargetResult
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
        propensities=dict(reversed(list(log.by_label.items()))),
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


# ---------------------------------------- columns: the known means that are used


LOGGERS = ("a", "b", "c")
CROWD = tuple(map(str, range(65)))
CLIP = Shrink("clip", 3)
CLIPPED = Term((Factor("balanced_weight", rule="clip", bound=3.0),))
OWN = Needs(groups=((WEIGHTED_REWARD,),))
BOTH = (BALANCED_REWARD, BALANCED_WEIGHT)
DIVERGENCES = Needs(
    tuple(map(second_moment, LOGGERS)), ((BALANCED_REWARD,), (WEIGHTED_REWARD,))
)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (Naive(), OWN),
        (Balanced(), Needs((), ((BALANCED_REWARD,),))),
        (Balanced(CLIP), Needs((BALANCED_WEIGHT, CLIPPED), ((REWARD * CLIPPED,),))),
        (Weighted(), DIVERGENCES),
        (Weighted("own"), DIVERGENCES),
        (Weighted("pooled"), DIVERGENCES),
        (Weighted("known", dict.fromkeys(LOGGERS, 1.0)), OWN),
        (
            Weighted("reward-free"),
            DIVERGENCES | Needs(tuple(map(weight_moment, LOGGERS)), ((BALANCED_WEIGHT,),)),
        ),
        (SelfNormalised(), Needs(groups=((BALANCED_REWARD, BALANCED_WEIGHT),))),
        (SelfNormalised("own"), Needs(groups=((WEIGHTED_REWARD, WEIGHT),))),
        (Calibrated(), Needs(groups=((*BOTH, ratio("a"), ratio("b")),))),
        (Calibrated(known=("c",)), Needs(groups=((*BOTH, ratio("c")),))),
        (
            Calibrated(columns=("target", "dr")),
            Needs(
                groups=((*BOTH, ratio("a"), ratio("b"), BALANCED_PREDICTION, PREDICTED_VALUE),)
            ),
        ),
        (DirectMethod(), Needs(groups=((PREDICTED_VALUE,),))),
        (DoublyRobust("naive"), Needs(groups=(OWN_SCORE,))),
        (
            DoublyRobust("weighted"),
            Needs(groups=(OWN_SCORE,))
            | Needs(
                tuple(map(residual_moment, LOGGERS)), ((PREDICTED_VALUE, BALANCED_RESIDUAL),)
            ),
        ),
        (
            DoublyRobust(),
            Needs((), ((PREDICTED_VALUE, BALANCED_WEIGHT * RESIDUAL), (BALANCED_WEIGHT,))),
        ),
        (
            DoublyRobust(shrink=CLIP),
            Needs(
                (BALANCED_WEIGHT, CLIPPED),
                ((PREDICTED_VALUE, CLIPPED * RESIDUAL), (BALANCED_WEIGHT,)),
            ),
        ),
    ],
    ids=repr,
)
def test_an_estimator_asks_for_these_terms(estimator: Estimator, expected: Needs) -> None:
    assert estimator.needs(Coverage.complete(LOGGERS)) == expected


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (Naive(), OWN),
        (Weighted("own"), OWN),
        (SelfNormalised("own"), Needs(groups=((WEIGHTED_REWARD, WEIGHT),))),
        (DirectMethod(), Needs(groups=((PREDICTED_VALUE,),))),
        (DoublyRobust("naive"), Needs(groups=(OWN_SCORE,))),
    ],
    ids=repr,
)
def test_without_cross_propensities_it_asks_for_these(
    estimator: Estimator, expected: Needs
) -> None:
    assert estimator.needs(Coverage(LOGGERS)) == expected


def test_a_crowd_of_loggers_has_columns_only_where_nobody_guards() -> None:
    assert Calibrated().needs(Coverage.complete(CROWD)) == Needs(groups=(BOTH,))
    free = Calibrated(guard=False).needs(Coverage.complete(CROWD))
    assert free == Needs(groups=((*BOTH, *map(ratio, CROWD[:-1])),))
    fewer = Calibrated().needs(Coverage.complete(CROWD[:64]))
    assert fewer == Needs(groups=((*BOTH, *map(ratio, CROWD[:63])),))


def test_a_weight_is_held_back_only_where_that_was_asked_for() -> None:
    assert shrunk_weight(None) == BALANCED_WEIGHT
    assert shrunk_weight(CLIP) == CLIPPED
    assert type(shrunk_weight(CLIP).factors[0].bound) is float


def rows(count: int, *ratios: str) -> Moments:
    """Rows of weight 1."""
    terms = (BALANCED_WEIGHT, *map(ratio, ratios))
    return group({term: [1.0] * count for term in terms})


def test_the_last_logger_has_what_the_others_leave_of_the_mixture() -> None:
    moments = Pool({"c": rows(5, "a", "b"), "a": rows(1, "a", "b"), "b": rows(2, "a", "b")})
    found = list(logger_columns(moments).values())
    assert found[:2] == [Score({ratio("a"): 1.0}, -1.0), Score({ratio("b"): 1.0}, -1.0)]
    (last,) = found[2:]
    assert last.parts == pytest.approx({ratio("a"): -1 / 5, ratio("b"): -2 / 5})
    assert last.constant == pytest.approx(8 / 5 - 1)


def test_where_every_logger_has_a_column_the_last_in_order_goes_without() -> None:
    found = list(
        logger_columns(Pool({"b": rows(3, "a", "b"), "a": rows(1, "a", "b")})).values()
    )
    assert found[0] == Score({ratio("b"): 1.0}, -1.0)
    assert found[1].parts == pytest.approx({ratio("b"): -3.0})
    assert found[1].constant == pytest.approx(3.0)
    assert len(found) == 2


def test_columns_stand_for_these_known_means() -> None:
    moments = Pool({"a": rows(1, "a"), "b": rows(3, "a")})
    target = Score({BALANCED_WEIGHT: 1.0}, -1.0)
    model = Score({BALANCED_PREDICTION: 1.0, PREDICTED_VALUE: -1.0}, 0.0)
    assert list_controls(moments, ("dr", "target")) == [model, target]
    assert list_controls(moments, ("loggers", "target")) == [
        *logger_columns(moments).values(),
        target,
    ]
    assert list_controls(moments, ("loggers",), known=("b",)) == [
        Score({ratio("b"): 1.0}, -1.0)
    ]
    assert list_controls(moments, ("loggers", "target"), known=()) == [target]
    assert list_controls(moments, ()) == []


def test_effective_rows_are_the_squared_sum_over_the_sum_of_squares() -> None:
    three = group({BALANCED_WEIGHT: [1.0, 2.0, 3.0]})
    assert three.effective(BALANCED_WEIGHT) == pytest.approx(36 / 14)
    assert group({BALANCED_WEIGHT: [0.0, 0.0]}).effective(BALANCED_WEIGHT) == 0.0
    tiny = group({BALANCED_WEIGHT: [0.5, 0.5]})
    assert tiny.effective(BALANCED_WEIGHT) == pytest.approx(2.0)


CUBE = BALANCED_WEIGHT * BALANCED_WEIGHT * BALANCED_WEIGHT


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.5, 1.0] * 8, True),  # (1 - 3/4) / error = √15, above 3.72
        ([0.5, 1.0] * 6, False),  # √11, below it
        ([1.5, 1.0] * 6, False),
        ([0.75] * 4, True),
        ([1 - 2e-6] * 4, True),
        ([1 - 5e-7] * 4, False),
        ([1 - 1e-6] * 4, False),
        ([1.0] * 4, False),
        ([0.0], False),  # one row has no variance
    ],
)
def test_a_mean_weight_far_below_one_is_no_accident(
    weights: list[float], *, expected: bool
) -> None:
    assert is_uncovered(Pool({"a": group({BALANCED_WEIGHT: weights})})) is expected


def test_a_low_mean_of_skewed_weights_may_be_an_accident() -> None:
    weights = [0.5] * 400 + [2.5] * 20  # mean 0.595, 19.1 errors of its own below 1
    terms = {BALANCED_WEIGHT: weights, CUBE: [w**3 for w in weights]}
    pool = Pool({"a": group(terms)})
    mean, n = sum(weights) / 420, 420
    square = sum((w - mean) ** 2 for w in weights) / n
    third = sum((w - mean) ** 3 for w in weights) / n
    z = (mean - 1) / math.sqrt(square / (n - 1))
    score = z / math.sqrt(1 - z * third / n**2 / (square / (n - 1)) ** 1.5)
    assert z < score < -3.72
    assert is_uncovered(pool)
    # a tenth of the rows: without the cubes they seem significant
    few = {t: v[:40] + v[-2:] for t, v in terms.items()}
    assert is_uncovered(Pool({"a": group({BALANCED_WEIGHT: few[BALANCED_WEIGHT]})})) is True
    assert is_uncovered(Pool({"a": group(few)})) is False


def test_the_mean_weight_is_that_of_all_rows() -> None:
    # 4 rows of 1 and 12 of 1/3: their mean is 1/2, that of the loggers 2/3
    moments = Pool(
        {
            "a": group({BALANCED_WEIGHT: [1.0] * 4}),
            "b": group({BALANCED_WEIGHT: [1 / 3] * 12}),
        }
    )
    check_findings(supported_columns(moments, ("target",))[1], "target-uncovered")


BEARABLE: list[tuple[tuple[str, ...], int, tuple[str, ...]]] = [
    (("loggers", "target"), 30, ("loggers", "target")),
    (("loggers", "target"), 29, ("target",)),
    (("loggers", "target", "dr"), 40, ("loggers", "target", "dr")),
    (("loggers", "target", "dr"), 39, ("target",)),
    (("loggers",), 30, ("loggers",)),
    (("loggers",), 29, ()),
    (("target", "dr"), 20, ("target", "dr")),
    (("target", "dr"), 19, ("target",)),
    (("dr",), 20, ("dr",)),
    (("dr",), 19, ()),
    (("target",), 10, ("target",)),
    (("target",), 9, ()),
    ((), 3, ()),
]


@pytest.mark.parametrize(("columns", "count", "expected"), BEARABLE)
def test_each_column_needs_ten_effective_rows(
    columns: Any,  # noqa: ANN401 - a literal, as the table has it
    count: int,
    expected: tuple[str, ...],
) -> None:
    moments = Pool({"a": rows(count // 2), "b": rows(count - count // 2)})
    found, findings = supported_columns(moments, columns)
    assert found == expected
    codes = [] if found == columns else ["few-effective-rows"]
    assert [f.code for f in findings] == codes


def test_exact_expectations_bear_every_column() -> None:
    moments = Pool({"a": group({BALANCED_WEIGHT: [0.5]}, ddof=0)})
    assert supported_columns(moments, ("loggers", "target")) == (("loggers", "target"), ())


def test_the_columns_of_the_loggers_do_not_care_whether_the_target_is_covered() -> None:
    moments = Pool({"a": group({BALANCED_WEIGHT: [0.75] * 40})})
    assert supported_columns(moments, ("loggers",)) == (("loggers",), ())
    found, (finding,) = supported_columns(moments, ("target", "dr"))
    assert found == ()
    assert finding.code == "target-uncovered"


def test_a_crowd_that_is_not_covered_has_both_findings() -> None:
    crowd = Pool({i: group({BALANCED_WEIGHT: [0.75] * 40}) for i in CROWD})
    found, findings = supported_columns(crowd, ("loggers", "target"))
    assert found == ()
    assert [f.code for f in findings] == ["many-loggers", "target-uncovered"]
    assert supported_columns(crowd, ("loggers",))[0] == ()


# ---------------------------------------- slopes: least squares on a few rows


Y, X, W = BALANCED_REWARD, ratio("a"), BALANCED_WEIGHT
ROWS: dict[str, dict[Term, Sequence[float]]] = {
    "a": {Y: [1, 2, 4, 6], X: [1, 2, 1, 0.5], W: [1, 0.5, 2, 1]},
    "b": {Y: [3, 5, 0.5], X: [0, 1, 0.25], W: [1, 0.75, 0.25]},
}
MOMENTS = Pool({i: group(columns) for i, columns in ROWS.items()})
EXACT = Pool({i: replace(m, ddof=0) for i, m in MOMENTS.items()})
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
    flat = Pool(
        {i: group(rows | {OVERLAP: [3.0] * MOMENTS[i].count}) for i, rows in ROWS.items()}
    )
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
    near = Pool({"a": group({Y: [1.0, 2.0], WEIGHT: [1 - step, 1 + step]})})
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
    moments = Pool({"a": group({Y: [1.0, 2.0, 4.0, 3.0], X: x, W: near})})
    _, found = least_squares(
        moments, Score({Y: 1.0}), [LUCK, Score({W: 1.0}, -1.0)], within=False
    )
    assert found == rank


@pytest.mark.parametrize("within", [False, True])
def test_a_corrected_mean_takes_back_the_luck_of_the_rows(*, within: bool) -> None:
    slope = WITHIN if within else POOLED
    value, variance = expected(Fraction(slope))
    exact = regress_outcome(EXACT, Score({Y: 1.0}), [LUCK], within=within)
    assert exact.value == pytest.approx(float(value), rel=1e-12)
    assert exact.freedom == math.inf
    found = regress_outcome(MOMENTS, Score({Y: 1.0}), [LUCK], within=within)
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
    plain = regress_outcome(MOMENTS, Score({Y: 1.0}), [LUCK], within=False)
    double = regress_outcome(MOMENTS, Score({Y: 2.0}), [LUCK], within=False)
    assert double.value == pytest.approx(2 * plain.value, rel=1e-12)
    assert double.variance == pytest.approx(4 * plain.variance, rel=1e-12)
    # a column of the outcome that the control takes out again leaves the control's mean
    known = regress_outcome(MOMENTS, Score({X: 3.0}), [LUCK], within=False)
    assert known.value == pytest.approx(3.0, rel=1e-12)
    assert known.variance == pytest.approx(0.0, abs=1e-25)


def test_few_effective_rows_leave_one_degree_of_freedom_at_least() -> None:
    heavy = {Y: [1.0, 2.0, 4.0], X: [1.0, 2.0, 1.0], W: [0.0, 0.0, 1.0]}
    found = regress_outcome(Pool({"a": group(heavy)}), Score({Y: 1.0}), [LUCK], within=False)
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
    moments = Pool({"a": group({Y: [5.0]}), "b": group({Y: [1.0, 3.0]})})
    variance, freedom = Score({Y: 1.0}).over(moments).variance(moments)
    first, second = Fraction(4, 9), Fraction(4, 9)  # (1/9)·4/1 and (4/9)·2/2
    assert variance == pytest.approx(float(first + second))
    assert freedom == pytest.approx(float((first + second) ** 2 / (first**2 / 2 + second**2)))
    assert Score({Y: 1.0}).over(Pool({"a": moments["a"]})).variance(
        Pool({"a": moments["a"]})
    ) == (
        math.inf,
        math.inf,
    )


def test_what_rounding_leaves_of_a_difference_is_nothing() -> None:
    rows = [0.1, 0.7, 1.3]
    moments = Pool({"a": group({Y: [3 * r for r in rows], X: rows})})
    assert Score({Y: 1.0, X: -3.0}).over(moments).variance(moments) == (0.0, math.inf)


@pytest.mark.parametrize("weights", ["balanced", "own"])
def test_self_normalised_is_a_ratio_of_sums(weights: str) -> None:
    terms = (
        (Y, W)
        if weights == "balanced"
        else SelfNormalised("own").needs(Coverage.complete(())).terms
    )
    rewards, mass = sorted(terms, key=lambda t: len(t.factors), reverse=True)
    moments = Pool({i: group({rewards: r[Y], mass: r[W]}) for i, r in ROWS.items()})
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
    controls = list_controls(MOMENTS, estimator.columns, estimator.known)
    assert estimator.estimate(MOMENTS) == regress_outcome(
        MOMENTS, Score({Y: 1.0}), controls, within=within
    )
    assert regress_outcome(
        MOMENTS, Score({Y: 1.0}), controls, within=within
    ) != regress_outcome(MOMENTS, Score({Y: 1.0}), controls, within=not within)


def test_calibrated_uses_the_columns_of_known_loggers_alone() -> None:
    other = {"a": [0.0, 1.0, 2.0, 0.5], "b": [2.0, 1.5, 1.0]}
    moments = Pool({i: group(ROWS[i] | {ratio("b"): other[i]}) for i in ROWS})
    found = Calibrated(columns=("loggers",), guard=False, known=("a",)).estimate(moments)
    assert found == regress_outcome(moments, Score({Y: 1.0}), [LUCK], within=True)
    assert found.value == pytest.approx(float(expected(Fraction(WITHIN))[0]), rel=1e-12)
    crossed = Calibrated(columns=("loggers",), guard=False, known=("b",)).estimate(moments)
    assert crossed == regress_outcome(
        moments, Score({Y: 1.0}), [Score({ratio("b"): 1.0}, -1.0)], within=True
    )
    assert crossed.value != found.value


def test_calibrated_falls_back_as_its_guard_says() -> None:
    found = Calibrated().estimate(MOMENTS)  # 5.8 effective rows
    assert [f.code for f in found.findings] == ["few-effective-rows"]
    assert found.value == pytest.approx(float(mean(every(Y))), rel=1e-13)


# ---------------------------------------- small logs


# ---------------------------------------- weighted


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
    coins is p (1 - p) / 4; logs without spread give 0, as the sample variance does.
    """
    p = Fraction(1, 4)
    expected = Fraction(0)
    for log in range(16):
        rewards = [float(log >> k & 1) for k in range(4)]
        moments = Pool(
            {
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
        )
        ones = int(sum(rewards))
        chance = p**ones * (1 - p) ** (4 - ones)
        expected += chance * Fraction(Weighted().estimate(moments).variance)
    assert float(expected) == pytest.approx(float(p * (1 - p) / 4), rel=1e-12)


def crossed(*, floor: bool) -> Pool:
    """Two loggers of which the first has next to no divergence; the value is 3."""
    second = {"a": 9.0 if floor else 16.0, "b": 11.0}
    rows = {"a": [1.0, 3.0, 8.0], "b": [2.0, 8.0]}
    balanced = {"a": [1.0, 2.0, 3.0], "b": [2.0, 7.0]}
    return Pool(
        {
            i: group(
                {WEIGHTED_REWARD: rows[i], BALANCED_REWARD: balanced[i]}
                | {second_moment(k): [v] * len(rows[i]) for k, v in second.items()}
            )
            for i in "ab"
        }
    )


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
    assert DoublyRobust("weighted").estimate(Pool({"a": group(columns)})).variance == 0.0
    varied = columns | {PREDICTED_VALUE: [0.0, 1.0, 2.0]}
    found = DoublyRobust("weighted").estimate(Pool({"a": group(varied)}))
    assert found.variance == pytest.approx(1 / 3)  # sample variance 1 over 3 rows


# ---------------------------------------- loggers of one row


def test_loggers_of_one_row_share_the_freedom_of_one_variance() -> None:
    alone = Pool({i: group({WEIGHT: [float(k)]}) for k, i in enumerate("abcd")})
    assert satterthwaite_freedom(alone, dict.fromkeys("abcd", 1.0)) == pytest.approx(3.0)
    beside = {**alone, "e": group({WEIGHT: [1.0, 2.0, 4.0]})}
    # 1 + 1 of all seven rows and 3 of three rows: 25 / (4/6 + 9/2)
    found = satterthwaite_freedom(Pool(beside), {"a": 1.0, "b": 1.0, "e": 3.0})
    assert found == pytest.approx(25 / (4 / 6 + 9 / 2))


@pytest.mark.slow
@pytest.mark.parametrize("loggers", [2, 3, 6, 10])
def test_normal_rewards_of_one_row_loggers_are_covered(loggers: int) -> None:
    """The interval is Student's own: 2,000 logs have a standard error of 0.0049."""
    rng, logs, covered = np.random.default_rng(loggers), 2_000, 0
    for rewards in rng.normal(size=(logs, loggers)):
        moments = Pool(
            {
                str(k): Moments(
                    (WEIGHT,), 1, np.array([r]), np.zeros((1, 1)), np.array([r]), np.array([r])
                )
                for k, r in enumerate(rewards)
            }
        )
        covered += 0.0 in student(average_term(moments, WEIGHT, by_count(moments)), 0.95)
    assert abs(covered / logs - 0.95) < 4 * 0.0049


# ---------------------------------------- columns of small loggers


def rated(**count: int) -> Pool:
    """Rows of weight 1 with the ratios of all loggers but "d"."""
    terms = (BALANCED_WEIGHT, BALANCED_REWARD, *map(ratio, "abc"))
    return Pool({i: group({t: [1.0] * n for t in terms}) for i, n in count.items()})


def test_a_logger_has_few_rows_below_ten() -> None:
    assert few_rows(rated(a=9, b=10, c=1, d=80)) == ("a", "c")
    exact = Pool({"a": group({BALANCED_WEIGHT: [1.0]}, ddof=0)})
    assert few_rows(exact) == ()


def test_large_loggers_are_set_against_each_other() -> None:
    first, second = contrast_controls(rated(a=10, b=30, c=2), ("c",))
    assert first == Score({ratio("a"): 0.75, ratio("b"): -0.75}, 0.0)
    assert second == Score({ratio("a"): -0.25, ratio("b"): 0.25}, 0.0)


def test_the_last_logger_is_written_in_the_ratios_of_the_others() -> None:
    # a 2, b 20, d 20: d's ratio is 42/20 - a/10 - b, and b less the mean of both is (b - d)/2
    moments = Pool(
        {
            i: group({BALANCED_WEIGHT: [1.0] * n, ratio("a"): [1.0] * n, ratio("b"): [1.0] * n})
            for i, n in (("a", 2), ("b", 20), ("d", 20))
        }
    )
    first, last = contrast_controls(moments, ("a",))
    assert first.parts == pytest.approx({ratio("a"): 0.05, ratio("b"): 1.0})
    assert first.constant == pytest.approx(-1.05)
    assert last.parts == pytest.approx({ratio("a"): -0.05, ratio("b"): -1.0})
    assert last.constant == pytest.approx(1.05)


def test_small_loggers_have_no_column() -> None:
    target = Score({BALANCED_WEIGHT: 1.0}, -1.0)
    moments = rated(a=2, b=3, c=150)
    assert list_controls(Pool(moments), ("loggers", "target"), None, ("a", "b")) == [target]
    known = list_controls(Pool(moments), ("loggers",), ("a", "c"), ("a", "b"))
    assert known == [Score({ratio("c"): 1.0}, -1.0)]
    assert contrast_controls(Pool(moments), ("a", "b")) == []


def test_calibrated_says_which_loggers_have_no_column() -> None:
    controls, within, findings = Calibrated().controls(rated(a=2, b=9, c=150))
    assert (controls, within) == ([Score({BALANCED_WEIGHT: 1.0}, -1.0)], True)
    check_findings(findings, "few-rows-of-logger")
    controls, within, findings = Calibrated().controls(rated(a=10, b=10, c=150))
    assert (len(controls), within, findings) == (4, False, ())
    controls, within, findings = Calibrated(guard=False).controls(rated(a=2, b=9, c=150))
    assert (len(controls), within, findings) == (4, False, ())


def small_loggers(seed: int) -> FiniteProblem:
    """Draw five loggers of two rows and one of 150."""
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
        needs = reduce(or_, (e.needs(Coverage.complete(loggers)) for e in estimators))
        cells = cells_of(problem, needs)
        for _ in range(200):
            moments = draw(cells, rng)
            before, after = (
                problem.value in student(e.estimate(Pool(moments)), 0.95) for e in estimators
            )
            gained.append(int(after) - int(before))
    assert np.mean(gained) > 3 * np.std(gained) / math.sqrt(len(gained))


@pytest.mark.parametrize(("columns", "within"), [(("target",), True), (("loggers",), False)])
def test_a_fit_says_where_its_slopes_come_from(
    columns: tuple[Columns, ...], *, within: bool
) -> None:
    estimator = Calibrated(columns=columns, guard=False)
    moments = toy("T1").moments(estimator.needs(Coverage.complete(tuple(toy("T1").loggers))))
    fit = estimator.estimate(moments).linear.fit
    assert fit is not None
    assert fit.within is within


def test_a_mean_weight_that_cannot_divide_is_refused() -> None:
    tiny = Pool({"a": group({BALANCED_WEIGHT: [1e-310, 0.0], BALANCED_REWARD: [1e-310, 0.0]})})
    with pytest.raises(RefusedError) as refusal:
        SelfNormalised().estimate(tiny)
    assert refusal.value.code == "no-weight"


def test_a_ratio_within_each_log_pools_nothing() -> None:
    """Without a mixture, neither weights nor shares depend on the rewards of other logs."""
    alone, mixed = Coverage(("a", "b")), Coverage(("a", "b"), mixture="column")
    assert SelfNormalised().adapt(mixed).pools
    assert not SelfNormalised().adapt(alone).pools
    assert SelfNormalised("balanced").adapt(alone).pools
    assert SelfNormalised().adapt(alone).needs(mixed) == SelfNormalised().needs(alone)
