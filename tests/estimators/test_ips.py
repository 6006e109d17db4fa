"""The paper's three estimators: results worked out by hand, degenerate logs, many draws."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from poolwise import Balanced, Log, Naive, Weighted, evaluate
from poolwise.errors import RefusedError, UsageError
from poolwise.estimators.divergences import pooled_divergences
from poolwise.intervals.student import (
    Limits,
    bernstein_half_width,
    check_level,
    student,
    student_interval,
)
from poolwise.moments.estimate import Estimate
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_REWARD, WEIGHTED_REWARD, Needs, second_moment
from tests.support.messages import refused
from tests.support.reference import Reference, log_of, random_table
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.evaluation.results import Evaluation
    from poolwise.moments.estimate import Estimator


def small_log(**roles: Any) -> Log:  # noqa: ANN401 - any role of a log
    """Three rows of a and two of b; every number is a short binary fraction.

    ====== ====== ===== ===== ===== ================= ============
    logger reward p_a   p_b   t     weight            mixture
    ====== ====== ===== ===== ===== ================= ============
    a      4      1/2   1/4   1/4   1/2               2/5
    a      1      1/4   3/4   3/4   3                 9/20
    a      2      1/2   1/2   1/2   1                 1/2
    b      3      1/2   1/4   1/4   1                 2/5
    b      2      1/4   3/4   3/4   1                 9/20
    ====== ====== ===== ===== ===== ================= ============
    """
    table = pa.table(
        {
            "logger": ["a", "a", "a", "b", "b"],
            "reward": [4.0, 1.0, 2.0, 3.0, 2.0],
            "p": [0.5, 0.25, 0.5, 0.25, 0.75],
            "p_a": [0.5, 0.25, 0.5, 0.5, 0.25],
            "p_b": [0.25, 0.75, 0.5, 0.25, 0.75],
            "t": [0.25, 0.75, 0.5, 0.25, 0.75],
        }
    )
    return log_of(table, **roles)


# weighted rewards 2 3 2 | 3 2; balanced rewards 5/2 5/3 2 | 15/8 10/3
NAIVE_ROWS = ([2, 3, 2], [3, 2])
BALANCED_ROWS = (
    [Fraction(5, 2), Fraction(5, 3), Fraction(2)],
    [Fraction(15, 8), Fraction(10, 3)],
)


def mean_of(rows: Sequence[Fraction | int]) -> Fraction:
    return sum(map(Fraction, rows), Fraction(0)) / len(rows)


def var_of(rows: Sequence[Fraction | int]) -> Fraction:
    centre = mean_of(rows)
    return sum(((r - centre) ** 2 for r in rows), Fraction(0)) / (len(rows) - 1)


def stratified(
    groups: Sequence[Sequence[Fraction | int]], shares: Sequence[Fraction]
) -> tuple[Fraction, Fraction]:
    value = sum(s * mean_of(g) for s, g in zip(shares, groups, strict=True))
    variance = sum(s**2 * var_of(g) / len(g) for s, g in zip(shares, groups, strict=True))
    return Fraction(value), Fraction(variance)


def estimate_of(log: Log, estimator: str | Estimator, target: str = "t") -> Estimate:
    found = evaluate(log, {"target": target}, [estimator])["target"].estimates
    (estimate,) = found.values()
    return estimate


@pytest.mark.parametrize(
    ("estimator", "groups"), [("naive", NAIVE_ROWS), ("balanced", BALANCED_ROWS)]
)
def test_naive_and_balanced_on_five_rows(
    estimator: str, groups: Sequence[Sequence[Fraction]]
) -> None:
    value, variance = stratified(groups, [Fraction(3, 5), Fraction(2, 5)])
    found = estimate_of(small_log(), estimator)
    assert found.value == pytest.approx(float(value), rel=1e-13)
    assert found.variance == pytest.approx(float(variance), rel=1e-12)
    assert found.shares == pytest.approx({"a": 0.6, "b": 0.4}, rel=1e-14)
    first, second = (s**2 * var_of(g) / len(g) for s, g in zip((Fraction(3, 5), Fraction(2, 5)), groups, strict=True))  # fmt: skip  # noqa: E501
    freedom = variance**2 / (first**2 / 2 + second**2 / 1)
    assert found.freedom == pytest.approx(float(freedom), rel=1e-12)


def test_weighted_with_known_divergences_on_five_rows() -> None:
    # n/d = 3/6 and 2/1: shares 1/5 and 4/5; variance 1 / (1/2 + 2)
    found = estimate_of(small_log(), Weighted("known", {"a": 6.0, "b": 1.0}))
    assert found.shares == pytest.approx({"a": 0.2, "b": 0.8}, rel=1e-14)
    assert found.value == pytest.approx(
        float(Fraction(7, 15) + Fraction(4, 5) * Fraction(5, 2))
    )
    assert found.variance == pytest.approx(0.4, rel=1e-13)


def test_weighted_with_own_divergences_on_five_rows() -> None:
    # sample variances 1/3 and 1/2: precisions 9 and 4
    found = estimate_of(small_log(), Weighted("own"))
    shares = [Fraction(9, 13), Fraction(4, 13)]
    value, _ = stratified(NAIVE_ROWS, shares)
    assert list(found.shares.values()) == pytest.approx(list(map(float, shares)), rel=1e-12)
    assert found.value == pytest.approx(float(value), rel=1e-12)
    assert "own-divergence" in [f.code for f in found.findings]


def test_weighted_with_own_divergences_and_own_propensities_is_inflated() -> None:
    found = estimate_of(small_log(propensities=None), Weighted("own"))
    shares = [Fraction(9, 13), Fraction(4, 13)]
    _, variance = stratified(NAIVE_ROWS, shares)
    # Meier: 1 + 4 sum p(1-p)/(n-1), with p(1-p) = 36/169 for both
    inflation = 1 + 4 * Fraction(36, 169) * (Fraction(1, 2) + 1)
    assert found.variance == pytest.approx(float(variance * inflation), rel=1e-12)


def test_weighted_with_pooled_divergences_on_five_rows() -> None:
    balanced = [*BALANCED_ROWS[0], *BALANCED_ROWS[1]]
    mixture = [Fraction(2, 5), Fraction(9, 20), Fraction(1, 2), Fraction(2, 5), Fraction(9, 20)]
    policies = {
        "a": [Fraction(1, 2), Fraction(1, 4), Fraction(1, 2), Fraction(1, 2), Fraction(1, 4)],
        "b": [Fraction(1, 4), Fraction(3, 4), Fraction(1, 2), Fraction(1, 4), Fraction(3, 4)],
    }
    divergence = {
        k: mean_of([z**2 * m / p for z, m, p in zip(balanced, mixture, policy, strict=True)])
        - mean_of(balanced) ** 2
        for k, policy in policies.items()
    }
    assert min(divergence.values()) > Fraction(1, 100)  # far from the floor
    precision = {"a": 3 / divergence["a"], "b": 2 / divergence["b"]}
    shares = [precision[k] / sum(precision.values()) for k in ("a", "b")]
    value, _ = stratified(NAIVE_ROWS, shares)
    # a divergence is too small by the variance of the value whose square it takes away
    _, error = stratified(BALANCED_ROWS, [Fraction(3, 5), Fraction(2, 5)])
    rows = {k: (divergence[k] + error) / n for k, n in (("a", 3), ("b", 2))}
    variance = sum(s**2 * r for s, r in zip(shares, rows.values(), strict=True))
    for estimator in (Weighted(), Weighted("pooled"), "weighted"):
        found = estimate_of(small_log(), estimator)
        assert list(found.shares.values()) == pytest.approx(list(map(float, shares)), rel=1e-12)
        assert found.value == pytest.approx(float(value), rel=1e-12)
        assert found.variance == pytest.approx(float(variance), rel=1e-12)
        assert found.findings == ()
    shown = evaluate(small_log(), {"target": "t"})["target"].loggers
    assert {k: o.divergence for k, o in shown.items()} == pytest.approx(
        {k: float(d) for k, d in divergence.items()}, rel=1e-12
    )


def test_the_floor_of_a_pooled_divergence_is_no_variance() -> None:
    """All weighted rewards are equal: the shares need a floor, the error is 0."""
    table = pa.table({"logger": ["a", "a", "b", "b"], "reward": [2.0] * 4, "p": [0.5] * 4})
    log = Log(
        table, logger="logger", reward="reward", propensity="p",
        propensities={"a": "p", "b": "p"},
    )  # fmt: skip
    found = estimate_of(log, "weighted", target="p")
    assert found.value == pytest.approx(2, rel=1e-14)
    assert found.shares == {"a": 0.5, "b": 0.5}
    assert found.variance == 0


GOLDEN_ROWS = ([0, 1, 0, 2, 1, 3, 0, 1], ["0", "0", "0", "1", "1", "1", "1", "1"])


def golden_log(**roles: Any) -> Log:  # noqa: ANN401 - any role of a log
    rewards, loggers = GOLDEN_ROWS
    table = pa.table({"reward": map(float, rewards), "logger": loggers, "p": [0.5] * 8})
    return Log(table, reward="reward", logger="logger", propensity="p", **roles)


@pytest.mark.parametrize("estimator", ["naive", "balanced"])
def test_the_golden_interval_of_the_catalogue(estimator: str) -> None:
    """C1, with the target as its own logger, so that every weight is 1."""
    log = golden_log(propensities={"0": "p", "1": "p"})
    evaluation = evaluate(log, {"target": "p"}, estimator, interval="student")
    estimate = evaluation["target"].estimates[estimator]
    assert estimate.value == pytest.approx(1, rel=1e-14)
    assert estimate.variance == pytest.approx(0.1171875, rel=1e-13)
    assert estimate.freedom == pytest.approx(5.084746, abs=5e-7)
    interval = evaluation["target"].intervals[estimator]
    assert (interval.lower, interval.upper) == pytest.approx((0.124415, 1.875585), abs=5e-7)
    normal = student(Estimate(1.0, 0.1171875, {}), 0.95)
    assert (normal.lower, normal.upper) == pytest.approx((0.329052, 1.670948), abs=5e-7)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.999])
def test_an_interval_has_the_width_of_its_level(level: float) -> None:
    evaluation = evaluate(
        golden_log(), {"target": "p"}, "naive", level=level, interval="student"
    )
    result = evaluation["target"]
    interval, freedom = result.intervals["naive"], result.estimates["naive"].freedom
    half = stats.t.ppf((1 + level) / 2, freedom) * math.sqrt(0.1171875)
    assert (interval.lower, interval.upper) == pytest.approx((1 - half, 1 + half), rel=1e-9)
    assert interval.level == level


@pytest.mark.parametrize("level", [0.0, 1.0, 95, -0.5, math.nan])
def test_a_level_is_a_probability(level: float) -> None:
    with refused(UsageError):
        evaluate(golden_log(), {"target": "p"}, level=level)
    with pytest.raises(UsageError):
        check_level(level)


def test_a_level_in_percent_is_recognised() -> None:
    with refused(UsageError):
        check_level(95)


def test_the_golden_bernstein_width_of_the_catalogue() -> None:
    half = bernstein_half_width(0.25252525, width=1.0, rows=100, level=0.95)
    assert half == pytest.approx(0.252047, abs=5e-7)
    assert bernstein_half_width(0.25, width=1.0, rows=1, level=0.95) == math.inf


def test_without_spread_only_a_range_of_rewards_bounds_the_interval() -> None:
    flat = Estimate(0.25, 0.0, {})
    free, (finding,) = student_interval(flat, 0.95, Limits(rows=100))
    assert (free.lower, free.upper) == (-math.inf, math.inf)
    assert finding.code == "no-spread"
    limits = Limits(rows=100, reward_range=(0.0, 1.0), largest_weight=2.0)
    bound, (finding,) = student_interval(flat, 0.95, limits)
    half = 7 * 2 * math.log(80) / (3 * 99)
    assert (bound.lower, bound.upper) == pytest.approx((0.25 - half, 0.25 + half))
    assert finding.code == "bounded-interval"


@pytest.mark.parametrize("value", [-3.0, 0.0, 0.5, 1.0, 3.0])
def test_a_bounded_interval_is_never_upside_down(value: float) -> None:
    limits = Limits(rows=1_000, reward_range=(0.0, 1.0), largest_weight=3.0)
    found, _ = student_interval(Estimate(value, 0.0, {}), 0.95, limits)
    assert 0 <= found.lower <= found.upper <= 1


def test_without_cross_propensities_balanced_is_refused_with_what_it_needs() -> None:
    log = small_log(propensities=None)
    for estimator in (["calibrated"], ["balanced"], [Balanced()], [Weighted()]):
        with refused(RefusedError):
            evaluate(log, {"target": "t"}, estimator)
    found = evaluate(log, {"target": "t"})
    assert set(found["target"].estimates) == {"naive", "self-normalised"}
    assert found["target"].recommended == "self-normalised"
    assert "no-cross-propensities" in [w["code"] for w in found.warnings]
    partly = small_log(propensities={"a": "p_a", "b": None})
    with refused(RefusedError):
        evaluate(partly, {"target": "t"}, "balanced")


def test_naive_needs_no_cross_propensities() -> None:
    alone = estimate_of(small_log(propensities=None), "naive")
    assert alone == estimate_of(small_log(), "naive")


@pytest.mark.parametrize(
    "wrong",
    [
        {"divergence": "best"},
        {"divergence": "known"},
        {"known": {"a": 1.0}},
        {"divergence": "known", "known": {"a": -1.0, "b": 1.0}},
        {"divergence": "known", "known": {"a": math.nan, "b": 1.0}},
    ],
)
def test_settings_of_weighted_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Weighted(**wrong)


def test_a_known_divergence_must_be_known_for_every_logger() -> None:
    with refused(UsageError):
        estimate_of(small_log(), Weighted("known", {"a": 1.0}))


def test_a_logger_known_to_be_exact_takes_the_whole_estimate() -> None:
    found = estimate_of(small_log(), Weighted("known", {"a": 0.0, "b": 1.0}))
    assert found.shares == {"a": 1.0, "b": 0.0}
    assert found.variance == 0


def test_a_logger_known_to_be_useless_gets_nothing() -> None:
    found = estimate_of(small_log(), Weighted("known", {"a": math.inf, "b": 1.0}))
    assert found.shares == {"a": 0.0, "b": 1.0}
    assert found.value == pytest.approx(2.5, rel=1e-14)


def test_the_same_estimator_may_be_asked_for_twice() -> None:
    log = small_log()
    found = evaluate(log, {"target": "t"}, ["weighted", Weighted("own"), "naive"])
    assert len(found["target"].estimates) == 3
    assert next(iter(found["target"].estimates)) == "weighted"
    assert found["target"].estimates["naive"] == estimate_of(log, "naive")


def test_an_unknown_estimator_is_answered_with_the_known_ones() -> None:
    with refused(UsageError):
        evaluate(small_log(), {"target": "t"}, "balancd")
    with refused(UsageError):
        evaluate(small_log(), {"target": "t"}, "zzz")
    with pytest.raises(UsageError):
        evaluate(small_log(), {"target": "t"}, [])
    with pytest.raises(UsageError):
        evaluate(small_log(), {})


def assert_no_nan(evaluation: Evaluation) -> None:
    """Walk everything that is shown; a number may be infinite, never NaN."""
    _walk(evaluation.to_dict())
    _walk([vars(e) for r in evaluation.targets.values() for e in r.estimates.values()])
    for text in (str(evaluation), evaluation.to_json(), evaluation._repr_html_()):
        assert "nan" not in text.lower().replace("dominan", "")


def _walk(value: object) -> None:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _walk(item)
    if isinstance(value, float):
        assert not math.isnan(value)


def crossed(rows: Mapping[str, Sequence[Any]], **roles: Any) -> Log:  # noqa: ANN401
    return log_of(pa.table(dict(rows)), **roles)


def filled(logger: str, rewards: Sequence[float], **columns: float) -> Log:
    rows = len(logger)
    values = {"p": 0.5, "p_a": 0.5, "p_b": 0.5, "t": 0.5} | columns
    constant = {name: [value] * rows for name, value in values.items()}
    loggers = sorted(set(logger))
    return crossed(
        {"logger": list(logger), "reward": list(rewards), **constant},
        propensities={k: f"p_{k}" for k in loggers},
    )


ALL: list[str | Estimator] = [
    "naive",
    "balanced",
    "weighted",
    Weighted("own"),
    Weighted("pooled"),
]
DEGENERATE = {
    "no rewards": filled("aaabb", [0] * 5),
    "no rewards in one log": filled("aaabb", [0, 0, 0, 1, 2]),
    "one row": filled("a", [3.0]),
    "one row without reward": filled("a", [0.0]),
    "two rows, two logs": filled("ab", [1.0, 2.0]),
    "one row in one of two logs": filled("abbb", [1.0, 2.0, 0.0, 5.0]),
    "all rows alike": filled("aabb", [1.5] * 4),
    "alike but for rounding": filled("aaabbb", [0.1] * 6, t=0.3),
    "duplicated loggers": filled("aaabbb", [1, 0, 2, 0, 1, 1]),
    "target 0 in one log": crossed(
        {
            "logger": list("aabb"), "reward": [1.0, 2.0, 3.0, 4.0], "p": [0.5] * 4,
            "p_a": [0.5] * 4, "p_b": [0.5] * 4, "t": [0.0, 0.0, 0.5, 0.25],
        }
    ),
    "weights of every size": crossed(
        {
            "logger": list("aabb"), "reward": [1.0, 2.0, 3.0, 4.0],
            "p": [1e-30, 1.0, 0.5, 1e-9], "p_a": [1e-30, 1.0, 0.5, 0.5],
            "p_b": [0.5, 0.0, 0.5, 1e-9], "t": [1.0, 1e-30, 0.5, 1.0],
        }
    ),
    "negative rewards": filled("aabb", [-1.0, -2.0, 0.0, -5.0]),
}  # fmt: skip


@pytest.mark.parametrize("case", DEGENERATE)
def test_a_degenerate_log_never_gives_nan(case: str) -> None:
    found = evaluate(DEGENERATE[case], {"target": "t"}, ALL)
    assert_no_nan(found)
    for estimate in found["target"].estimates.values():
        assert math.isfinite(estimate.value)
        assert estimate.variance >= 0
        assert sum(estimate.shares.values()) == pytest.approx(1, rel=1e-12)
    for interval in found["target"].intervals.values():
        assert interval.lower <= interval.upper


@pytest.mark.parametrize("case", DEGENERATE)
def test_a_degenerate_log_without_cross_propensities_never_gives_nan(case: str) -> None:
    log = replace(DEGENERATE[case], propensities=None)
    assert_no_nan(evaluate(log, {"target": "t"}))
    assert_no_nan(evaluate(log, {"target": "t"}, ["naive", Weighted("own")]))


def test_without_any_reward_the_estimate_is_zero_and_its_error_unknown() -> None:
    found = evaluate(filled("aaabb", [0] * 5), {"target": "t"})
    for name, estimate in found["target"].estimates.items():
        assert estimate.value == 0
        interval = found["target"].intervals[name]
        assert (interval.lower, interval.upper) == (-math.inf, math.inf)
    assert "no-spread" in [w["code"] for w in found.warnings]
    log = replace(filled("aaabb", [0] * 5), reward_range=(0.0, 1.0))
    bounded = evaluate(log, {"target": "t"})
    interval = bounded["target"].intervals["balanced"]
    limit = stats.norm.ppf(0.975) ** 2 / 5  # all weights are 1
    assert (interval.lower, interval.upper) == pytest.approx((0, limit))
    assert "bounded-interval" in [w["code"] for w in bounded.warnings]


def test_one_row_alone_has_an_unknown_error() -> None:
    found = evaluate(filled("a", [3.0], t=0.25), {"target": "t"})
    for name in ("naive", "balanced"):
        estimate = found["target"].estimates[name]
        assert estimate.value == 1.5
        assert estimate.variance == math.inf
        assert found["target"].intervals[name].upper == math.inf


def test_one_row_of_a_log_takes_the_variance_of_all_rows() -> None:
    # rows 1 | 2 0 5, all weights 1: mean 2, variance of all 14/3, of the second 19/3
    found = estimate_of(filled("abbb", [1.0, 2.0, 0.0, 5.0]), "naive")
    expected = Fraction(1, 16) * Fraction(14, 3) + Fraction(9, 16) * Fraction(19, 3) / 3
    assert found.value == pytest.approx(2, rel=1e-14)
    assert found.variance == pytest.approx(float(expected), rel=1e-13)


def test_own_divergences_without_spread_fall_back_on_naive() -> None:
    log = filled("aaabb", [1, 1, 1, 1, 2])
    found = evaluate(log, {"target": "t"}, ["naive", Weighted("own")])
    naive, weighted = found["target"].estimates.values()
    assert (weighted.value, weighted.shares) == (naive.value, naive.shares)
    (finding,) = weighted.findings
    assert finding.code == "no-spread"
    assert "'a' (3 rows)" in str(finding)


def test_a_target_that_plays_no_logged_action_is_refused() -> None:
    with refused(RefusedError) as caught:
        evaluate(filled("aabb", [1.0, 2.0, 3.0, 4.0], t=0.0), {"target": "t"})
    assert caught.value.code == "target-unlogged"


def test_without_support_balanced_stands_and_weighted_is_refused() -> None:
    problem = toy("T3")
    log = problem.draw(np.random.default_rng(3))
    found = evaluate(log, {"target": "target_prob"})
    assert {"naive", "balanced"} <= set(found["target"].estimates)
    assert "weighted" not in found["target"].estimates
    assert "weighted-refused" in [w["code"] for w in found.warnings]
    assert_no_nan(found)
    exact = problem.exact(Balanced())
    balanced = found["target"].estimates["balanced"]
    assert abs(balanced.value - 2.2) < 4 * exact.std_error
    assert all(o.divergence == math.inf for o in found["target"].loggers.values())
    with refused(RefusedError):
        evaluate(log, {"target": "target_prob"}, "weighted")


def test_weighted_leaves_out_the_one_log_without_support() -> None:
    table = random_table(np.random.default_rng(60), {"a": 40, "b": 60})
    first = table["logger"].to_pylist().index("a")
    p_b = np.array(table["p_b"].to_numpy())
    p_b[first] = 0.0
    table = table.set_column(table.column_names.index("p_b"), "p_b", pa.array(p_b))
    found = evaluate(log_of(table), {"target": "t"})
    weighted = found["target"].estimates["weighted"]
    assert weighted.shares == {"a": 1.0, "b": 0.0}
    assert found["target"].loggers["b"].divergence == math.inf
    assert math.isfinite(found["target"].loggers["a"].divergence)
    assert "logger-unsupported" in [w["code"] for w in found.warnings]
    assert_no_nan(found)


@pytest.mark.parametrize(
    "columns",
    [
        {"p": [5e-324, 0.5], "p_a": [5e-324, 0.5]},
        {"reward": [1e308, 1e308], "p": [0.1, 0.1], "p_a": [0.1, 0.1]},
        {"reward": [1e200, -1e200]},
    ],
)
def test_numbers_beyond_doubles_are_refused_by_name(columns: Mapping[str, Any]) -> None:
    rows = {
        "logger": ["a", "a"], "reward": [1.0, 2.0], "p": [0.5] * 2, "p_a": [0.5] * 2,
        "t": [0.5] * 2,
    }  # fmt: skip
    log = log_of(pa.table({**rows, **columns}), ["a"])
    with refused(RefusedError) as caught:
        evaluate(log, {"target": "t"})
    assert caught.value.code == "overflow"


def test_log_probabilities_beyond_doubles_are_refused_by_name() -> None:
    rows = {"logger": ["a", "a"], "reward": [1.0, 2.0], "p": [-2000.0] * 2, "t": [-1.0] * 2}
    log = log_of(pa.table(rows), log_probabilities=True, propensities=None)
    with refused(RefusedError):
        evaluate(log, {"target": "t"})


def test_the_mean_reward_does_not_depend_on_how_rows_are_centred() -> None:
    """Loggers without spread of their own force a second, re-centred pass."""
    found = evaluate(filled("abb", [0.0, 1.0, 1.0]), {"target": "t"})
    assert found.mean_reward == pytest.approx({"a": 0.0, "b": 1.0}, abs=1e-15)
    divergence = found["target"].loggers["b"].divergence
    assert divergence == pytest.approx(float(Fraction(2, 3) - Fraction(4, 9)), rel=1e-12)


def test_what_is_shown_of_each_logger_is_right() -> None:
    found = evaluate(small_log(), {"target": "t"})
    assert found.rows == {"a": 3, "b": 2}
    assert found.mean_reward == pytest.approx({"a": 7 / 3, "b": 5 / 2}, rel=1e-14)
    own = found["target"].loggers["a"]  # weights 1/2, 3 and 1
    assert own.mean_weight == pytest.approx(4.5 / 3, rel=1e-14)
    assert own.effective_rows == pytest.approx(4.5**2 / 10.25, rel=1e-13)
    assert own.largest_weight == pytest.approx(3, rel=1e-14)
    mixed = found["target"].mixture  # weights 5/8, 5/3, 1, 5/8 and 5/3
    assert mixed is not None
    assert mixed.mean_weight == pytest.approx(float(Fraction(67, 12) / 5), rel=1e-13)
    assert mixed.largest_weight == pytest.approx(5 / 3, rel=1e-14)


def test_several_targets_get_their_own_answers() -> None:
    log = small_log()
    both = evaluate(log, {"new": "t", "old": "p_a"})
    for name, column in (("new", "t"), ("old", "p_a")):
        alone = evaluate(log, {name: column})
        for estimator, estimate in alone[name].estimates.items():
            found = both[name].estimates[estimator]
            assert found.value == pytest.approx(estimate.value, rel=1e-12)
            assert found.variance == pytest.approx(estimate.variance, rel=1e-12)


def test_pooled_divergences_of_an_exact_problem_are_its_divergences() -> None:
    problem = toy("T2")
    needs = Needs(tuple(map(second_moment, problem.loggers)), ((BALANCED_REWARD,),))
    found = pooled_divergences(problem.moments(needs))
    assert found == pytest.approx(problem.divergence, rel=1e-12)


def test_a_bounded_interval_of_weighted_knows_its_largest_own_weight() -> None:
    """Balanced weights are smaller; the rows of weighted carry their own."""
    rows: dict[str, Sequence[Any]] = {
        "logger": ["a", "b"] * 300, "reward": [0.0] * 600, "p": [0.05, 0.5] * 300,
        "p_a": [0.05, 0.5] * 300, "p_b": [0.95, 0.5] * 300, "t": [0.5] * 600,
    }  # fmt: skip
    log = crossed(rows, reward_range=(0.0, 1.0))
    interval = evaluate(log, {"target": "t"})["target"].intervals["weighted"]
    own_weight = 0.5 / 0.05
    assert interval.upper >= 7 * own_weight * math.log(80) / (3 * 599) * (1 - 1e-12)


REPLICATIONS = 300


def test_many_draws_are_centred_on_the_true_value() -> None:
    """The mean of 300 estimates is within 4 of its own exact standard errors."""
    problem, rng = toy("T2"), np.random.default_rng(20170813)
    estimators: dict[str, Estimator] = {
        "naive": Naive(),
        "balanced": Balanced(),
        "weighted": Weighted("known", problem.divergence),
    }
    needs = Needs(groups=((WEIGHTED_REWARD,), (BALANCED_REWARD,)))
    values: dict[str, list[float]] = {name: [] for name in estimators}
    variances: dict[str, list[float]] = {name: [] for name in estimators}
    for _ in range(REPLICATIONS):
        with Reference().open(problem.draw(rng), {"": "target_prob"}) as rows:
            moments = rows.moments(needs)
        for name, estimator in estimators.items():
            found = estimator.estimate(Pool(moments))
            values[name].append(found.value)
            variances[name].append(found.variance)
    for name, estimator in estimators.items():
        exact = problem.exact(estimator)
        error = exact.std_error / math.sqrt(REPLICATIONS)
        assert abs(np.mean(values[name]) - problem.value) < 4 * error
        # and the estimated variance is centred on the exact one
        spread = np.std(variances[name]) / math.sqrt(REPLICATIONS)
        assert abs(np.mean(variances[name]) - exact.variance) <= 4 * spread + 1e-12
