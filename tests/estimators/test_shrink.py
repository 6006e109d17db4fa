from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolwise.errors import UsageError
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.estimators.model import DoublyRobust
from poolwise.estimators.shrink import (
    Shrink,
    ShrinkRule,
    Tuned,
    shrink_findings,
    shrink_means,
    shrunk_weight,
    slope,
    tuned,
)
from poolwise.evaluation.evaluate import evaluate
from poolwise.evaluation.summarise import query_text
from poolwise.moments.estimate import Estimate, stratified
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, Needs
from tests.support.messages import check_findings, refused
from tests.support.small import group
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.moments.moments import MomentsByLogger


@dataclass(frozen=True)
class Fixed:
    """An estimator with the same result for every log."""

    value: float
    variance: float
    name: str = "fixed"

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        del loggers, crossed
        return Needs()

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        del moments
        return Estimate(self.value, self.variance, {})


@pytest.mark.parametrize(
    ("rule", "bound"), [("clip", 1.5), ("switch", 1.5), ("optimistic", 2.0)]
)
def test_rows_give_the_formula(rule: ShrinkRule, bound: float) -> None:
    log = toy("T2").draw(np.random.default_rng(3))
    source: Any = log.source  # an Arrow table
    rows = {n: np.asarray(source[n]) for n in source.column_names}
    mixture = 0.4 * rows["propensity_0"] + 0.6 * rows["propensity_1"]
    weight = rows["target_prob"] / mixture
    held = {
        "clip": np.minimum(weight, bound),
        "switch": weight * (weight <= bound),
        "optimistic": bound * weight / (weight**2 + bound),
    }[rule]
    found = evaluate(log, "target_prob", [Balanced(Shrink(rule, bound))])["target"]
    estimate = found.estimates[f"balanced-{rule}-{bound:g}"]
    assert estimate.value == pytest.approx((held * rows["reward"]).mean(), rel=1e-12)
    (finding,) = [f for f in estimate.findings if f.code == "shrunk-weights"]
    assert f"{1 - held.mean() / weight.mean():.1%}" in finding.message


def test_a_bound_above_every_weight_changes_nothing() -> None:
    problem = toy("T2")
    assert problem.exact(Balanced(Shrink("clip", 100))).value == pytest.approx(0.576)
    log = problem.draw(np.random.default_rng(3))
    found = evaluate(log, "target_prob", [Balanced(), Balanced(Shrink("switch", 100))])[
        "target"
    ]
    plain, held = found.estimates.values()
    assert held.value == pytest.approx(plain.value)
    assert held.findings == ()


def test_slope_chooses_the_second_of_the_example() -> None:
    # half-widths 0.30, 0.10, 0.05; the third is 0.30 away, more than 0.05 + 1.449 * 0.10
    errors = [width / 1.959963984540054 for width in (0.30, 0.10, 0.05)]
    candidates = [
        Fixed(value, error**2, f"candidate-{k}")
        for k, (value, error) in enumerate(zip((1.0, 0.9, 0.6), errors, strict=True))
    ]
    found = Tuned(tuple(candidates)).estimate({})
    assert found.value == 0.9
    check_findings(found.findings, "selected-estimator")
    assert found.half_width(0.95) == pytest.approx(0.10)


def test_tuned_declares_the_needs_of_all_candidates() -> None:
    chosen = tuned(Balanced(), "clip", [5, 2])
    assert [c.name for c in chosen.candidates] == [
        "balanced",
        "balanced-clip-5",
        "balanced-clip-2",
    ]
    needs = chosen.needs(("1", "2"), crossed=True)
    for candidate in chosen.candidates:
        assert set(candidate.needs(("1", "2"), crossed=True).terms) <= set(needs.terms)


def test_tuned_keeps_to_the_unbiased_estimate_where_the_bias_shows() -> None:
    problem = replace(toy("T2"), counts={"1": 4000, "2": 6000})
    log = problem.draw(np.random.default_rng(5))
    found = evaluate(log, "target_prob", [tuned(Balanced(), "switch", [1.0])])["target"]
    estimate = found.estimates["balanced-tuned"]
    # leaving all weights above 1 out takes most of the value away, which 10,000 rows see
    assert abs(estimate.value - 0.576) < 4 * estimate.std_error
    (finding,) = [f for f in estimate.findings if f.code == "selected-estimator"]
    check_findings([finding], "selected-estimator")


def test_rules_and_bounds_are_checked() -> None:
    with refused(UsageError):
        Shrink("cut", 2)  # type: ignore[arg-type]
    for bound in (0.0, -1.0, float("inf"), float("nan")):
        with refused(UsageError):
            Shrink("clip", bound)
    with refused(UsageError):
        Tuned(())


def test_names_tell_bounds_apart() -> None:
    names = [DoublyRobust(shrink=Shrink("clip", bound)).name for bound in (1.5, 10, 1e6)]
    assert names == [
        "doubly-robust-clip-1.5",
        "doubly-robust-clip-10",
        "doubly-robust-clip-1e+06",
    ]
    log = toy("T2").draw(np.random.default_rng(3))
    assert "clip" not in query_text(log, "log", {"t": "target_prob"}, "postgres")


# ---------------------------------------- SLOPE


candidates = st.lists(
    st.tuples(st.floats(-5, 5), st.floats(0, 5)),
    min_size=1,
    max_size=8,
    unique_by=lambda candidate: candidate[1],
)


def test_the_third_candidate_disagrees_with_the_second() -> None:
    # |0.60 - 0.90| = 0.30 > 0.05 + 1.4495 · 0.10 = 0.195, while 0.40 < 0.05 + 0.435
    assert slope([1.00, 0.90, 0.60], [0.30, 0.10, 0.05]) == 1


@pytest.mark.parametrize(("gap", "chosen"), [(0.194, 1), (0.196, 0)])
def test_the_reach_is_the_root_of_six_less_one(gap: float, chosen: int) -> None:
    # 0.05 + (2.449490 - 1) · 0.10 = 0.194949
    assert slope([0.0, gap], [0.10, 0.05]) == chosen
    assert slope([0.0, -gap], [0.10, 0.05]) == chosen


def test_all_wider_candidates_have_a_say() -> None:
    # the third agrees with the second, 0.5 < 0.1 + 1.45 · 0.5, not with the first,
    # 1.0 > 0.1 + 1.45 · 0.6
    assert slope([0.0, 0.5, 1.0], [0.6, 0.5, 0.1]) == 1


def test_the_first_disagreement_is_the_last_word() -> None:
    # the second is too far from the first, 0.8 > 0.29 + 1.45 · 0.30; the third, between
    # the two, agrees with both, but comes too late
    assert slope([0.0, 0.8, 0.4], [0.30, 0.29, 0.28]) == 0


def test_agreeing_candidates_leave_the_narrowest() -> None:
    assert slope([1.0, 1.0, 1.0], [3.0, 2.0, 1.0]) == 2
    assert slope([1.0], [math.inf]) == 0
    assert slope([1.0, 100.0], [math.inf, 1.0]) == 1
    assert slope([1.0, 1.0], [0.0, 0.0]) == 1  # a gap of 0 agrees without any width


def test_equal_widths_are_compared_in_their_order() -> None:
    widths = [0.2 + 0.1 * (k % 3) for k in range(60)]
    assert slope([1.0] * 60, widths) == 57  # the last of the narrowest
    equal = slope([1.0] * 40, [2.0, 1.0] * 20)
    assert equal == 39


def test_slope_compares_numbers_of_any_type() -> None:
    values: Any = np.array([2, 1], np.uint8)  # 1 - 2 is 255 in these
    widths: Any = np.array([3, 0], np.uint8)
    assert slope(values, [3.0, 0.0]) == slope([2.0, 1.0], widths) == 1


@given(candidates, st.integers(0, 1000), st.sampled_from([0.5, 2.0, 8.0]), st.integers(-64, 64))
def test_order_scale_and_offset_do_not_matter(
    drawn: list[tuple[float, float]], seed: int, factor: float, offset: int
) -> None:
    values, widths = np.round(np.array(drawn).T * 1024) / 1024  # so that sums are exact
    if len(np.unique(widths)) < len(widths):
        return
    chosen = slope(values, widths)
    order = np.random.default_rng(seed).permutation(len(values))
    assert order[slope(values[order], widths[order])] == chosen
    assert slope(factor * values + offset, factor * widths) == chosen
    assert slope(-values, widths) == chosen


@given(candidates)
def test_wider_intervals_agree_more(drawn: list[tuple[float, float]]) -> None:
    values, widths = np.array(drawn).T
    assert widths[slope(values, 2 * widths)] <= widths[slope(values, widths)]


def test_what_slope_cannot_order_is_refused() -> None:
    with refused(UsageError):
        slope([], [])
    with refused(UsageError):
        slope([1.0], [1.0, 2.0])
    with refused(UsageError):
        slope([math.nan], [1.0])
    with refused(UsageError):
        slope([1.0], [-1.0])


# ---------------------------------------- candidates and half-widths


def test_the_plain_estimator_comes_first_and_then_each_bound() -> None:
    names = [c.name for c in tuned(Balanced()).candidates]
    bounds = ("100", "50", "20", "10", "5", "2", "1")
    assert names == ["balanced", *(f"balanced-clip-{bound}" for bound in bounds)]
    held = tuned(DoublyRobust(shrink=Shrink("switch", 3)), "optimistic", [4])
    assert held.candidates == (DoublyRobust(), DoublyRobust(shrink=Shrink("optimistic", 4)))
    assert held.name == "doubly-robust-tuned"


def test_candidates_may_ask_for_what_the_loggers_need() -> None:
    both = Tuned((Naive(), Weighted()))
    needs = both.needs(("a", "b"), crossed=True)
    assert needs == Naive().needs((), crossed=True) | Weighted().needs(("a", "b"), crossed=True)
    assert both.needs(("a", "b"), crossed=False) == Naive().needs((), crossed=False)


def test_half_widths_are_students_at_the_level_of_095() -> None:
    # one degree of freedom: the quantile of 0.975 is tan(0.475 π)
    few = Estimate(1.0, 4.0, {}, freedom=1.0)
    # SciPy 1.14 has ten correct digits
    assert few.half_width(0.95) == pytest.approx(2 * math.tan(0.475 * math.pi), rel=1e-9)
    exact = Estimate(1.0, 4.0, {})
    assert exact.half_width(0.95) == pytest.approx(2 * NormalDist().inv_cdf(0.975), rel=1e-9)


def test_a_finding_has_the_share_of_the_weights_that_was_removed() -> None:
    clip = Shrink("clip", 2)
    assert shrink_means(None) == ()
    assert shrink_means(clip) == (BALANCED_WEIGHT, shrunk_weight(clip))
    moments = {
        i: group({BALANCED_WEIGHT: w, shrunk_weight(clip): [min(x, 2.0) for x in w]})
        for i, w in {"a": [1.0, 4.0], "b": [3.0]}.items()
    }
    check_findings(shrink_findings(moments, clip), "shrunk-weights")  # 3 of 8
    assert shrink_findings(moments, None) == ()
    light = {"a": group({BALANCED_WEIGHT: [1.0, 2.0], shrunk_weight(clip): [1.0, 2.0]})}
    assert shrink_findings(light, clip) == ()


def test_candidates_read_the_moments() -> None:
    moments = {"a": group({REWARD: [1.0, 3.0]})}

    class Mean(Fixed):
        def estimate(self, moments: MomentsByLogger) -> Estimate:
            return stratified(moments, REWARD)

    assert Tuned((Mean(0.0, 0.0),)).estimate(moments).value == 2.0
