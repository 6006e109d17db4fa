"""Shrink: rules that shrink large weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from poolwise.errors import Finding, UsageError
from poolwise.moments.terms import BALANCED_WEIGHT, Factor, Term

if TYPE_CHECKING:
    from poolwise.moments.pool import Pool

ShrinkRule = Literal["clip", "switch", "optimistic"]
SHRINK_RULES = ("clip", "switch", "optimistic")


@dataclass(frozen=True)
class Shrink:
    r"""A rule that shrinks balanced weights.

    "clip" gives $\min(w, M)$, "switch" gives $w$ up to the bound and 0 above it, and
    "optimistic" gives $M w / (w^2 + M)$, which is close to $w$ for small weights and to 0
    for large ones.  With a reward model the bias is $E[(\hat w - w)(\delta - \hat q)]$;
    without one, $\hat q = 0$.  The shrunk estimate less the unshrunk one estimates this bias
    without bias, as precisely as the large weights allow.

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
        if self.rule not in SHRINK_RULES:
            raise UsageError(
                f"rule must be one of {', '.join(SHRINK_RULES)}, got {self.rule!r}"
            )
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


def shrink_findings(pool: Pool, shrink: Shrink | None) -> tuple[Finding, ...]:
    """Return a finding if the rule removed weight."""
    if shrink is None:
        return ()
    whole = pool.together
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
