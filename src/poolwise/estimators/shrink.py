"""Shrink: weights that are held back, at the price of a bias.

One row with a huge weight can make the whole variance.  Cutting such weights, or
leaving such rows to a reward model, trades that variance for a bias which the rows
cannot show.  Everything here acts on balanced weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from poolwise.errors import UsageError
from poolwise.findings import Finding
from poolwise.moments import MomentsByLogger, pooled
from poolwise.terms import BALANCED_WEIGHT, Factor, Term

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
