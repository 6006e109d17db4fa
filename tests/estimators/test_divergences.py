"""Divergences and the shares that follow from them: moments written out, results exact."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from poolwise.errors import RefusedError
from poolwise.estimators.divergences import (
    FLOOR,
    pooled_divergences,
    weight_moments,
    with_variance,
)
from poolwise.estimators.ips import OWN_SHARES, Weighted, with_divergences
from poolwise.estimators.model import (
    BALANCED_RESIDUAL,
    OWN_SCORE,
    DirectMethod,
    DoublyRobust,
    score_divergences,
)
from poolwise.moments.estimate import average_term
from poolwise.moments.linear import by_count
from poolwise.moments.pool import Pool
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    PREDICTED_VALUE,
    UNSUPPORTED,
    WEIGHTED_REWARD,
    residual_moment,
    second_moment,
    weight_moment,
)
from tests.support.messages import refused
from tests.support.small import group, mean, scatter, var

if TYPE_CHECKING:
    from poolwise.moments.terms import Term

A, B = [1.0, 3.0, 8.0], [2.0, 8.0]  # weighted rewards: means 4 and 5, variances 13 and 18
OWN = Pool({"a": group({WEIGHTED_REWARD: A}), "b": group({WEIGHTED_REWARD: B})})
BALANCED = {"a": [1.0, 2.0, 3.0], "b": [2.0, 7.0]}  # mean 3, mean square 67/5
ERROR = 28 / 25  # variance of their mean: 3/25 times 1 and 2/25 times 25/2
DIVERGENCE = {"a": 6.0, "b": 1.0}  # precisions 3/6 and 2/1: shares 1/5 and 4/5


def crossed(**second: float) -> Pool:
    """Five rows whose second moment under each logger is the same in every row."""
    return Pool(
        {
            i: group(
                {WEIGHTED_REWARD: rows, BALANCED_REWARD: BALANCED[i]}
                | {second_moment(k): [v] * len(rows) for k, v in second.items()}
            )
            for i, rows in (("a", A), ("b", B))
        }
    )


def exact(moments: Pool) -> Pool:
    return moments.change(lambda _, m: replace(m, ddof=0))


def test_known_divergences_give_shares_value_variance_and_freedom() -> None:
    found = with_divergences(OWN, DIVERGENCE)
    assert found.shares == pytest.approx({"a": 0.2, "b": 0.8})
    assert found.value == pytest.approx(0.2 * 4 + 0.8 * 5)
    assert found.variance == pytest.approx(0.04 * 6 / 3 + 0.64 * 1 / 2)
    assert (found.freedom, type(found.freedom)) == (3.0, float)
    assert found.findings == ()
    assert Weighted("known", DIVERGENCE).estimate(OWN) == found
    assert with_divergences(exact(OWN), DIVERGENCE).freedom == math.inf
    assert with_divergences(Pool({**exact(OWN), "b": OWN["b"]}), DIVERGENCE).freedom == math.inf


@pytest.mark.parametrize(
    ("variance", "scale", "inflation"),
    [
        (10.0, 1.0, 3.0),  # rows: (13/3 + 18/2) / 4 = 10/3
        (2.0, 1.0, 1.0),  # a smaller variance does not deflate
        (0.1, 0.1, 3.0),
        (5.0, 0.0, 1.0),  # rows without spread
    ],
)
def test_another_variance_inflates_the_combination(
    variance: float, scale: float, inflation: float
) -> None:
    rows = {"a": A, "b": B}
    moments = Pool({i: group({WEIGHTED_REWARD: [scale * r for r in rows[i]]}) for i in rows})
    plain = average_term(moments, WEIGHTED_REWARD, {"a": 0.5, "b": 0.5})
    other = with_variance(plain, moments, variance, 7.0)
    assert (other.value, other.variance, other.freedom) == (plain.value, variance, 7.0)
    assert other.linear.inflation == pytest.approx(inflation, rel=1e-12)
    assert (other.linear.most_free, other.linear.adapted) == (7.0, True)


def test_one_row_of_each_logger_leaves_one_degree_of_freedom() -> None:
    single = Pool({i: group({WEIGHTED_REWARD: [1.0]}) for i in "ab"})
    assert with_divergences(single, DIVERGENCE).freedom == 1.0
    three = Pool({i: group({WEIGHTED_REWARD: [1.0] * 2}) for i in "ab"})
    assert with_divergences(three, DIVERGENCE).freedom == 2.0


def test_given_shares_are_kept_and_terms_are_added() -> None:
    moments = Pool(
        {
            i: group({PREDICTED_VALUE: rows, WEIGHTED_REWARD: [1.0, *rows[1:]]})
            for i, rows in (("a", A), ("b", B))
        }
    )
    share = {"a": 0.5, "b": 0.5}
    found = with_divergences(moments, DIVERGENCE, share, (PREDICTED_VALUE, WEIGHTED_REWARD))
    assert found.value == pytest.approx(0.5 * (4 + 4) + 0.5 * (5 + 4.5))
    assert found.variance == pytest.approx(0.25 * 6 / 3 + 0.25 * 1 / 2)
    assert found.shares == share


def test_a_logger_without_error_has_the_whole_estimate() -> None:
    three = {**OWN, "c": group({WEIGHTED_REWARD: [7.0] * 6})}
    found = with_divergences(Pool(three), {"a": 0.0, "b": 1.0, "c": 0.0})
    assert found.shares == pytest.approx({"a": 3 / 9, "b": 0.0, "c": 6 / 9})
    assert found.value == pytest.approx(6.0)
    assert found.variance == 0.0
    # an infinite divergence without a share adds nothing, not even a nan
    left_out = with_divergences(OWN, {"a": math.inf, "b": 1.0})
    assert (left_out.value, left_out.variance) == (5.0, 0.5)


def test_pooled_divergences_are_second_moments_less_the_squared_value() -> None:
    found = pooled_divergences(crossed(a=16.0, b=11.0))
    assert found == pytest.approx({"a": 7.0, "b": 2.0}, rel=1e-12)
    assert pooled_divergences(crossed(a=0.0, b=11.0)) == pytest.approx({"a": 0.0, "b": 2.0})


def test_a_divergence_of_rows_has_a_floor_and_an_exact_one_has_none() -> None:
    moments = crossed(a=9.0 + 1e-6, b=11.0)
    assert pooled_divergences(Pool(moments))["a"] == pytest.approx(FLOOR * (9 + 1e-6))
    assert pooled_divergences(exact(moments))["a"] == pytest.approx(1e-6, rel=1e-6)
    assert pooled_divergences(exact(crossed(a=8.0, b=11.0)))["a"] == 0.0


@pytest.mark.parametrize(("factor", "beyond"), [(0.99, False), (1.01, True)])
def test_a_logger_that_cannot_play_a_rewarded_action_is_infinitely_far(
    factor: float, *, beyond: bool
) -> None:
    edge = math.sqrt(UNSUPPORTED) * 67 / 5 * factor
    found = pooled_divergences(crossed(a=edge, b=11.0))["a"]
    assert found == (math.inf if beyond else pytest.approx(edge))


def weights(**second: float) -> Pool:
    """The rows of `crossed`, with balanced weights and their second moments."""
    return Pool(
        {
            i: group(
                {
                    WEIGHTED_REWARD: rows,
                    BALANCED_REWARD: BALANCED[i],
                    BALANCED_WEIGHT: [2.0] * len(rows),
                }
                | {second_moment(k): [v] * len(rows) for k, v in {"a": 16.0, "b": 11.0}.items()}
                | {weight_moment(k): [v] * len(rows) for k, v in second.items()}
            )
            for i, rows in (("a", A), ("b", B))
        }
    )


def test_weight_moments_are_means_and_infinite_beyond_support() -> None:
    edge = math.sqrt(UNSUPPORTED) * 4
    assert weight_moments(weights(a=6.0, b=0.0)) == {"a": 6.0, "b": 0.0}
    found = weight_moments(weights(a=edge * 0.99, b=edge * 1.01))
    assert found == {"a": pytest.approx(edge * 0.99), "b": math.inf}


def test_a_target_that_is_never_played_is_at_no_distance() -> None:
    nothing: dict[Term, list[float]] = {
        BALANCED_WEIGHT: [0.0, 0.0],
        BALANCED_REWARD: [0.0, 0.0],
        PREDICTED_VALUE: [1.0, 1.0],
        BALANCED_RESIDUAL: [0.0, 0.0],
        weight_moment("a"): [0.0, 0.0],
        second_moment("a"): [0.0, 0.0],
        residual_moment("a"): [0.0, 0.0],
    }
    moments = Pool({"a": group(nothing)})
    assert weight_moments(moments) == {"a": 0.0}
    assert pooled_divergences(moments) == {"a": 0.0}
    assert score_divergences(moments) == {"a": FLOOR}  # of a second moment of 1


def test_reward_free_shares_look_at_weights_and_its_variance_at_divergences() -> None:
    # n / v = 3/6 and 2/1: shares 1/5 and 4/5; divergences 7 and 2, each too small by ERROR
    found = Weighted("reward-free").estimate(weights(a=6.0, b=1.0))
    assert found.shares == pytest.approx({"a": 0.2, "b": 0.8})
    assert found.value == pytest.approx(4.8)
    variance = 0.04 * (7 + ERROR) / 3 + 0.64 * (2 + ERROR) / 2
    assert found.variance == pytest.approx(variance, rel=1e-12)
    assert found.freedom == 3.0
    one = Weighted("reward-free").estimate(weights(a=1e60, b=1.0))
    assert one.shares == {"a": 0.0, "b": 1.0}


def test_reward_free_refuses_where_no_logger_supports_the_target() -> None:
    for second in ({"a": 1e60, "b": 1e60}, {"a": 0.0, "b": 1e60}):
        with refused(RefusedError):
            Weighted("reward-free").estimate(weights(**second))


def test_weighted_takes_pooled_divergences() -> None:
    moments = crossed(a=15.0, b=10.0)  # divergences 6 and 1
    for choice in (Weighted(), Weighted("pooled")):
        found = choice.estimate(Pool(moments))
        assert found.shares == pytest.approx({"a": 0.2, "b": 0.8}, rel=1e-9)
        assert found.findings == ()


SHARES = {"a": Fraction(27, 40), "b": Fraction(13, 40)}  # precisions 3/13 and 2/18


def test_own_divergences_take_their_variance_from_the_pooled_ones() -> None:
    found = Weighted("own").estimate(crossed(a=16.0, b=11.0))
    assert found.shares == pytest.approx({i: float(s) for i, s in SHARES.items()})
    assert found.value == pytest.approx(float(SHARES["a"] * 4 + SHARES["b"] * 5))
    share = {i: float(s) for i, s in SHARES.items()}
    variance = share["a"] ** 2 * (7 + ERROR) / 3 + share["b"] ** 2 * (2 + ERROR) / 2
    assert found.variance == pytest.approx(variance, rel=1e-12)
    assert found.findings == (OWN_SHARES,)


@pytest.mark.parametrize("far", [False, True])
def test_own_divergences_alone_are_inflated_by_meiers_factor(*, far: bool) -> None:
    found = Weighted("own").estimate(Pool(crossed(a=1e60, b=11.0) if far else OWN))
    plain = SHARES["a"] ** 2 * Fraction(13, 3) + SHARES["b"] ** 2 * Fraction(18, 2)
    product = SHARES["a"] * SHARES["b"]
    inflation = 1 + 4 * (product / 2 + product / 1)
    assert found.variance == pytest.approx(float(plain * inflation), rel=1e-12)
    assert found.findings == (OWN_SHARES,)
    assert found.shares == pytest.approx({i: float(s) for i, s in SHARES.items()})


def test_own_divergences_of_exact_moments_are_final() -> None:
    found = Weighted("own").estimate(exact(OWN))
    assert found.findings == ()
    assert found == average_term(exact(OWN), WEIGHTED_REWARD, found.shares)
    # 26/3 and 9 by row: precisions 9/26 and 2/9
    assert found.shares["a"] == pytest.approx(float(Fraction(81, 81 + 52)))


@pytest.mark.parametrize("rows", [[5.0], [5.0, 5.0], [5.0, 5.0 + 1e-15 * 4]])
def test_own_divergences_of_a_log_without_spread_are_those_of_naive(rows: list[float]) -> None:
    found = Weighted("own").estimate(Pool({**OWN, "b": group({WEIGHTED_REWARD: rows})}))
    assert [f.code for f in found.findings] == ["no-spread"]
    assert found.shares == by_count({**OWN, "b": group({WEIGHTED_REWARD: rows})})


@pytest.mark.parametrize(("gap", "flat"), [(1e-7, True), (1.5e-5, False)])
def test_rounding_grows_with_the_square_of_the_mean(gap: float, *, flat: bool) -> None:
    # variances gap²/2, compared with 1e-24 of the squared mean, which is 1e-12
    large = Pool({i: group({WEIGHTED_REWARD: [1e6, 1e6 + gap]}) for i in "ab"})
    codes = [f.code for f in Weighted("own").estimate(large).findings]
    assert codes == ["no-spread" if flat else "own-divergence"]


SCORED: dict[str, dict[Term, list[float]]] = {
    "a": {PREDICTED_VALUE: [1.0, 2.0, 2.0], BALANCED_RESIDUAL: [1.0, -1.0, 3.0]},
    "b": {PREDICTED_VALUE: [4.0, 1.0], BALANCED_RESIDUAL: [0.0, 2.0]},
}
OWN_ROWS = {"a": [1.0, 3.0, 2.0], "b": [0.0, 4.0]}


def scored(**second: float) -> Pool:
    return Pool(
        {
            i: group(
                columns
                | {OWN_SCORE[1]: OWN_ROWS[i]}
                | {residual_moment(k): [v] * len(OWN_ROWS[i]) for k, v in second.items()}
            )
            for i, columns in SCORED.items()
        }
    )


def every(term: Term) -> list[float]:
    return [*SCORED["a"][term], *SCORED["b"][term]]


def score_parts() -> tuple[Fraction, Fraction]:
    """E[v²] + 2 E[v w e], and the squared value."""
    v, e = every(PREDICTED_VALUE), every(BALANCED_RESIDUAL)
    square = scatter(v, v) / 5 + mean(v) ** 2
    cross = scatter(v, e) / 5 + mean(v) * mean(e)
    return square + 2 * cross, (mean(v) + mean(e)) ** 2


def test_score_divergences_are_the_formula() -> None:
    common, square = score_parts()
    found = score_divergences(scored(a=5.0, b=9.0))
    assert found == pytest.approx(
        {"a": float(5 + common - square), "b": float(9 + common - square)}, rel=1e-12
    )


def test_score_divergences_have_a_floor_and_an_edge() -> None:
    common, square = score_parts()
    low = float(square - common) + 1e-7
    found = score_divergences(scored(a=low, b=0.0))
    assert found["a"] == pytest.approx(FLOOR * (low + float(common)), rel=1e-9)
    assert score_divergences(exact(scored(a=low, b=0.0)))["a"] == pytest.approx(1e-7, rel=1e-5)
    assert math.isfinite(found["b"])
    residuals = every(BALANCED_RESIDUAL)
    edge = math.sqrt(UNSUPPORTED) * float(
        scatter(residuals, residuals) / 5 + mean(residuals) ** 2
    )
    far = score_divergences(scored(a=edge * 0.99, b=edge * 1.01))
    assert math.isfinite(far["a"])
    assert far["b"] == math.inf


def test_weighted_scores_are_combined_by_their_divergences() -> None:
    moments = scored(a=5.0, b=9.0)
    found = DoublyRobust("weighted").estimate(Pool(moments))
    known = score_divergences(Pool(moments))
    plain = with_divergences(Pool(moments), known, terms=OWN_SCORE)
    # scores against the mixture: 2, 1, 5 and 4, 3, with variances 13/3 and 1/2
    error = float(Fraction(3, 25) * Fraction(13, 3) + Fraction(2, 25) * Fraction(1, 2))
    added = sum(s**2 * error / moments[i].count for i, s in plain.shares.items())
    assert found.variance == pytest.approx(plain.variance + added, rel=1e-12)
    assert found == replace(plain, variance=found.variance)
    a, b = mean([1, 2, 2]) + mean([1, 3, 2]), mean([4, 1]) + mean([0, 4])
    assert found.value == pytest.approx(float(found.shares["a"] * a + found.shares["b"] * b))
    assert found.findings == ()


def test_scores_are_added_row_by_row() -> None:
    naive = DoublyRobust("naive").estimate(scored())
    rows = {"a": [2.0, 5.0, 4.0], "b": [4.0, 5.0]}
    pieces = {i: Fraction(len(r), 5) ** 2 * var(r) / len(r) for i, r in rows.items()}
    total = sum(pieces.values(), Fraction(0))
    freedom = total**2 / (pieces["a"] ** 2 / 2 + pieces["b"] ** 2)
    assert naive.value == pytest.approx(4.0)
    assert naive.variance == pytest.approx(float(total))
    assert naive.shares == {"a": 0.6, "b": 0.4}
    assert naive.freedom == pytest.approx(float(freedom))
    assert naive.findings == ()


def test_the_direct_method_is_the_mean_of_what_the_model_says() -> None:
    found = DirectMethod().estimate(scored())
    assert found.value == pytest.approx(2.0)
    assert found.variance == pytest.approx(0.36 * float(Fraction(1, 3)) / 3 + 0.16 * 4.5 / 2)
    assert [f.code for f in found.findings] == ["model-only"]
