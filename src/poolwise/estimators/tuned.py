"""Tuned: how far to hold weights back, chosen by SLOPE.

All candidates are estimated from the same pass.  The one that is chosen is the
narrowest that still agrees with all wider ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from poolwise.errors import Finding, UsageError
from poolwise.estimators.shrink import Rule, Shrink, slope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.estimators.ips import Balanced
    from poolwise.estimators.model import DoublyRobust
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.moments import MomentsByLogger
    from poolwise.moments.terms import Needs

BOUNDS = (100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0)
LEVEL = 0.95  # of the half-widths that SLOPE compares


@dataclass(frozen=True)
class Tuned:
    """The candidate that SLOPE chooses.

    Assumes that the bias grows as the half-width falls. The interval is that of the chosen
    candidate, which knows neither of the choice nor of the bias; a finding says so.

    Attributes:
        candidates: Estimators of the same value, the least biased one among them.
    """

    candidates: tuple[Estimator, ...]

    def __post_init__(self) -> None:
        if not self.candidates:
            raise UsageError("there is nothing to choose from: name one candidate at least")

    @property
    def name(self) -> str:
        return f"{self.candidates[0].name}-tuned"

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        return reduce(or_, (c.needs(loggers, crossed=crossed) for c in self.candidates))

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        found = [c.estimate(moments) for c in self.candidates]
        place = slope([e.value for e in found], [half_width(e) for e in found])
        note = _selected(self.candidates[place].name, len(found))
        return replace(found[place], findings=(note, *found[place].findings))


def half_width(estimate: Estimate) -> float:
    """Half-width of Student's interval."""
    from scipy.special import ndtri, stdtrit

    tail = (1 + LEVEL) / 2
    finite = math.isfinite(estimate.freedom)
    quantile = stdtrit(estimate.freedom, tail) if finite else ndtri(tail)
    return float(quantile) * estimate.std_error


def tuned(
    estimator: Balanced | DoublyRobust,
    rule: Rule = "clip",
    bounds: Sequence[float] = BOUNDS,
) -> Tuned:
    """An estimator with its weights held back as far as the rows can bear.

    Args:
        estimator: Balanced or doubly robust; as it is, it is the first candidate.
        rule: How the weights are held back.
        bounds: Bounds to try.

    Examples:
        >>> from poolwise.estimators.ips import Balanced
        >>> tuned(Balanced(), "clip", [10, 5]).name
        'balanced-tuned'
    """
    held = (replace(estimator, shrink=Shrink(rule, bound)) for bound in bounds)
    return Tuned((replace(estimator, shrink=None), *held))


def _selected(name: str, count: int) -> Finding:
    return Finding(
        "selected-estimator",
        f"{name} was chosen among {count} candidates by these same rows; its interval knows "
        "neither of the choice nor of the bias that holding weights back brings.",
        "Decide by an estimate that was not chosen, such as calibrated.",
    )
