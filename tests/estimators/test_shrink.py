from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from poolwise.errors import UsageError
from poolwise.estimators.ips import Balanced
from poolwise.estimators.model import DoublyRobust
from poolwise.estimators.shrink import (
    Shrink,
    ShrinkRule,
    shrink_findings,
    shrink_means,
    shrunk_weight,
)
from poolwise.evaluation.evaluate import evaluate
from poolwise.evaluation.summarise import query_text
from poolwise.moments.estimate import Estimate
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_WEIGHT
from tests.support.messages import check_findings, refused
from tests.support.small import group
from tests.support.toys import toy


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


def test_rules_and_bounds_are_checked() -> None:
    with refused(UsageError):
        Shrink("cut", 2)  # type: ignore[arg-type]
    for bound in (0.0, -1.0, float("inf"), float("nan")):
        with refused(UsageError):
            Shrink("clip", bound)


def test_names_tell_bounds_apart() -> None:
    names = [DoublyRobust(shrink=Shrink("clip", bound)).name for bound in (1.5, 10, 1e6)]
    assert names == [
        "doubly-robust-clip-1.5",
        "doubly-robust-clip-10",
        "doubly-robust-clip-1e+06",
    ]
    log = toy("T2").draw(np.random.default_rng(3))
    assert "clip" not in query_text(log, "log", {"t": "target_prob"}, "postgres")


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
    moments = Pool(
        {
            i: group({BALANCED_WEIGHT: w, shrunk_weight(clip): [min(x, 2.0) for x in w]})
            for i, w in {"a": [1.0, 4.0], "b": [3.0]}.items()
        }
    )
    check_findings(shrink_findings(moments, clip), "shrunk-weights")  # 3 of 8
    assert shrink_findings(moments, None) == ()
    light = Pool({"a": group({BALANCED_WEIGHT: [1.0, 2.0], shrunk_weight(clip): [1.0, 2.0]})})
    assert shrink_findings(light, clip) == ()
