from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from poolwise.errors import UsageError
from poolwise.estimators.ips import Balanced
from poolwise.estimators.model import DoublyRobust
from poolwise.estimators.shrink import Rule, Shrink, Tuned, tuned
from poolwise.evaluation.check import query_text
from poolwise.evaluation.evaluate import evaluate
from poolwise.moments.estimate import Estimate
from poolwise.moments.terms import Needs
from tests.support.messages import check_findings, refused
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.moments.moments import MomentsByLogger


@dataclass(frozen=True)
class Fixed:
    """An estimator that says the same of every log."""

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
def test_rows_give_the_formula(rule: Rule, bound: float) -> None:
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
