"""Shrink: clipped, switched or shrunk weights, and SLOPE, which chooses their bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal

import numpy as np

from poolwise.errors import Finding, UsageError
from poolwise.moments.moments import MomentsByLogger, pooled
from poolwise.moments.terms import BALANCED_WEIGHT, Factor, Term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.estimators.ips import Balanced
    from poolwise.estimators.model import DoublyRobust
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.moments import FloatArray
    from poolwise.moments.terms import Needs

REACH = math.sqrt(6) - 1  # the constant of Tucker & Lee (2021)


def slope(
    values: Sequence[float] | FloatArray,
    half_widths: Sequence[float] | FloatArray,
) -> int:
    r"""Index of the narrowest candidate that agrees with all wider ones.

    $$|\theta_i - \theta_j| \le c_i + (\sqrt 6 - 1) c_j \quad \text{for all } j < i$$

    in the order of decreasing half-width $c$; the last candidate before the first one
    that disagrees is taken.  Assumes that the bias grows as the half-width falls.  The
    interval of the chosen candidate knows nothing of the choice or of the bias: do not
    report it as if there had been none.

    Args:
        values: Estimate of each candidate.
        half_widths: Half-width of the interval of each, without bias.

    References:
        Su, Srinath & Krishnamurthy (ICML 2020); Tucker & Lee (2021).

    Examples:
        >>> slope([1.00, 0.90, 0.60], [0.30, 0.10, 0.05])  # 0.30 > 0.05 + 0.145
        1
    """
    estimates = np.asarray(values, dtype=np.float64)
    widths = np.asarray(half_widths, dtype=np.float64)
    if not len(estimates) or len(estimates) != len(widths):
        raise UsageError("SLOPE takes one candidate at least, and one half-width for each")
    if not (np.isfinite(estimates).all() and (widths >= 0).all()):
        raise UsageError("SLOPE takes finite estimates and half-widths of 0 or more")
    order = np.argsort(-widths, kind="stable")
    chosen = order[0]
    for place, candidate in enumerate(order[1:], start=1):
        wider = order[:place]
        gaps = np.abs(estimates[candidate] - estimates[wider])
        if not (gaps <= widths[candidate] + REACH * widths[wider]).all():
            break
        chosen = candidate
    return int(chosen)


Rule = Literal["clip", "switch", "optimistic"]
RULES = ("clip", "switch", "optimistic")


@dataclass(frozen=True)
class Shrink:
    r"""How balanced weights are held back.

    "clip" takes $\min(w, M)$, "switch" takes $w$ up to the bound and 0 above it, and
    "optimistic" takes $M w / (w^2 + M)$, which is $w$ for small weights and fades out for
    large ones.  With a reward model the bias is $E[(\hat w - w)(\delta - \hat q)]$; without
    one $\hat q = 0$.

    References:
        Wang, Agarwal & Dudik (ICML 2017), SWITCH; Su, Dimakopoulou, Krishnamurthy & Dudik
        (ICML 2020), optimistic shrinkage.

    Examples:
        >>> Shrink("clip", 10).suffix
        'clip-10'
    """

    rule: Rule
    bound: float

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UsageError(f"a rule is one of {', '.join(RULES)}, not {self.rule!r}")
        if not 0 < self.bound < math.inf:
            raise UsageError(f"a bound of weights is positive and finite, not {self.bound}")

    @property
    def suffix(self) -> str:
        return f"{self.rule}-{self.bound:g}"


def shrunk_weight(shrink: Shrink | None) -> Term:
    """The balanced weight, held back if so wanted."""
    if shrink is None:
        return BALANCED_WEIGHT
    return Term((Factor("balanced_weight", rule=shrink.rule, bound=float(shrink.bound)),))


def shrink_means(shrink: Shrink | None) -> tuple[Term, ...]:
    """What `shrink_findings` reads."""
    return () if shrink is None else (BALANCED_WEIGHT, shrunk_weight(shrink))


def shrink_findings(moments: MomentsByLogger, shrink: Shrink | None) -> tuple[Finding, ...]:
    """How much weight was taken away, where any was."""
    if shrink is None:
        return ()
    together = pooled(moments.values())
    whole, left = together.mean(BALANCED_WEIGHT), together.mean(shrunk_weight(shrink))
    if not left < whole:
        return ()
    return (_shrunk(shrink, 1 - left / whole),)


def _shrunk(shrink: Shrink, lost: float) -> Finding:
    return Finding(
        "shrunk-weights",
        f"Holding weights back ({shrink.rule} at {shrink.bound:g}) takes {lost:.1%} of them "
        "away. That biases the estimate, and its interval does not know it.",
        "Compare with the estimate without it.",
    )


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
