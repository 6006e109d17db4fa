"""Shrink: rules that shrink large weights, and SLOPE, which selects their bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal

import numpy as np

from poolwise.errors import Finding, UsageError
from poolwise.moments.moments import MomentsByLogger, together
from poolwise.moments.terms import BALANCED_WEIGHT, Factor, Term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.estimators.ips import Balanced
    from poolwise.estimators.model import DoublyRobust
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.moments import FloatArray
    from poolwise.moments.terms import Needs

REACH = math.sqrt(6) - 1  # constant of Tucker & Lee (2021)


def slope(
    values: Sequence[float] | FloatArray,
    half_widths: Sequence[float] | FloatArray,
) -> int:
    r"""Return the index of the narrowest candidate that agrees with all wider ones.

    $$|\theta_i - \theta_j| \le c_i + (\sqrt 6 - 1) c_j \quad \text{for all } j < i$$

    in the order of decreasing half-width $c$; the result is the last candidate before the
    first that disagrees.  Assumes that the bias grows as the half-width falls.  The interval
    of the selected candidate includes neither the selection nor the bias.

    Args:
        values: Estimate of each candidate.
        half_widths: Half-width of the interval of each candidate, without bias.

    References:
        Su, Srinath & Krishnamurthy (ICML 2020); Tucker & Lee (2021).

    Examples:
        >>> slope([1.00, 0.90, 0.60], [0.30, 0.10, 0.05])  # 0.30 > 0.05 + 0.145
        1
    """
    estimates = np.asarray(values, dtype=np.float64)
    widths = np.asarray(half_widths, dtype=np.float64)
    if not len(estimates) or len(estimates) != len(widths):
        raise UsageError("SLOPE requires at least one candidate, and one half-width for each")
    if not (np.isfinite(estimates).all() and (widths >= 0).all()):
        raise UsageError("SLOPE requires finite estimates and half-widths of 0 or more")
    order = np.argsort(-widths, kind="stable")
    selected = order[0]
    for rank, candidate in enumerate(order[1:], start=1):
        wider = order[:rank]
        gaps = np.abs(estimates[candidate] - estimates[wider])
        if not (gaps <= widths[candidate] + REACH * widths[wider]).all():
            break
        selected = candidate
    return int(selected)


ShrinkRule = Literal["clip", "switch", "optimistic"]
RULES = ("clip", "switch", "optimistic")


@dataclass(frozen=True)
class Shrink:
    r"""A rule that shrinks balanced weights.

    "clip" gives $\min(w, M)$, "switch" gives $w$ up to the bound and 0 above it, and
    "optimistic" gives $M w / (w^2 + M)$, which is close to $w$ for small weights and to 0
    for large ones.  With a reward model the bias is $E[(\hat w - w)(\delta - \hat q)]$;
    without one, $\hat q = 0$.

    References:
        Wang, Agarwal & Dudik (ICML 2017), SWITCH; Su, Dimakopoulou, Krishnamurthy & Dudik
        (ICML 2020), optimistic shrinkage.

    Examples:
        >>> Shrink("clip", 10).suffix
        'clip-10'
    """

    rule: ShrinkRule
    bound: float

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UsageError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        if not 0 < self.bound < math.inf:
            raise UsageError(f"bound must be positive and finite, got {self.bound}")

    @property
    def suffix(self) -> str:
        return f"{self.rule}-{self.bound:g}"


def shrunk_weight(shrink: Shrink | None) -> Term:
    """Return the balanced weight, shrunk if there is a rule."""
    if shrink is None:
        return BALANCED_WEIGHT
    return Term((Factor("balanced_weight", rule=shrink.rule, bound=float(shrink.bound)),))


def shrink_means(shrink: Shrink | None) -> tuple[Term, ...]:
    """Return the terms that `shrink_findings` reads."""
    return () if shrink is None else (BALANCED_WEIGHT, shrunk_weight(shrink))


def shrink_findings(moments: MomentsByLogger, shrink: Shrink | None) -> tuple[Finding, ...]:
    """Return a finding if the rule removed weight."""
    if shrink is None:
        return ()
    whole = together(moments)
    before, after = whole.mean(BALANCED_WEIGHT), whole.mean(shrunk_weight(shrink))
    if not after < before:
        return ()
    finding = Finding(
        "shrunk-weights",
        f"Shrinking the weights ({shrink.rule} at {shrink.bound:g}) removes "
        f"{1 - after / before:.1%} of their sum. This biases the estimate, and its interval "
        "does not include the bias.",
        "Compare with the estimate without shrinking.",
    )
    return (finding,)


BOUNDS = (100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0)
LEVEL = 0.95  # confidence of the half-widths that SLOPE compares


@dataclass(frozen=True)
class Tuned:
    """The candidate that SLOPE selects.

    Assumes that the bias grows as the half-width falls.  The interval is that of the
    selected candidate and includes neither the selection nor the bias; a finding says so.

    Attributes:
        candidates: Estimators of the same value, including one without bias.
    """

    candidates: tuple[Estimator, ...]

    def __post_init__(self) -> None:
        if not self.candidates:
            raise UsageError("at least one candidate is required")

    @property
    def name(self) -> str:
        return f"{self.candidates[0].name}-tuned"

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        return reduce(or_, (c.needs(loggers, crossed=crossed) for c in self.candidates))

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        estimates = [c.estimate(moments) for c in self.candidates]
        widths = [e.half_width(LEVEL) for e in estimates]
        index = slope([e.value for e in estimates], widths)
        finding = _selected(self.candidates[index].name, len(estimates))
        selected = estimates[index]
        return replace(selected, findings=(finding, *selected.findings))


def tuned(
    estimator: Balanced | DoublyRobust,
    rule: ShrinkRule = "clip",
    bounds: Sequence[float] = BOUNDS,
) -> Tuned:
    """Return an estimator whose bound on the weights SLOPE selects.

    Args:
        estimator: Balanced or doubly robust; unshrunk, it is the first candidate.
        rule: Rule that shrinks the weights.
        bounds: Bounds to try.

    Examples:
        >>> from poolwise.estimators.ips import Balanced
        >>> tuned(Balanced(), "clip", [10, 5]).name
        'balanced-tuned'
    """
    shrunk = (replace(estimator, shrink=Shrink(rule, bound)) for bound in bounds)
    return Tuned((replace(estimator, shrink=None), *shrunk))


def _selected(name: str, count: int) -> Finding:
    return Finding(
        "selected-estimator",
        f"{name} was selected from {count} candidates by the same rows; its interval includes "
        "neither the selection nor the bias of shrunk weights.",
        "Decide by an estimate that was not selected, such as calibrated.",
    )
