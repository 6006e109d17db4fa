"""Tuned: which candidates there are, and the half-widths by which one is chosen."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.estimators.model import DoublyRobust
from poolwise.estimators.shrink import Shrink, Tuned, tuned
from poolwise.moments.estimate import Estimate


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
    # SciPy 1.14 knows ten digits of it
    assert few.half_width(0.95) == pytest.approx(2 * math.tan(0.475 * math.pi), rel=1e-9)
    exact = Estimate(1.0, 4.0, {})
    assert exact.half_width(0.95) == pytest.approx(2 * NormalDist().inv_cdf(0.975), rel=1e-9)
