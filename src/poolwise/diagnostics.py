"""Diagnostics: whether the weights can bear the answer.

Everything here comes from the same pass as the estimates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.estimators.ips import pooled_divergences
from poolwise.moments import Moments, MomentsByLogger, pooled
from poolwise.result import Overlap
from poolwise.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    Term,
    second_moment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def shown(loggers: Sequence[str], *, crossed: bool) -> Needs:
    """What the table of loggers shows, whoever estimates."""
    own = Needs((REWARD,), ((WEIGHT,), (WEIGHTED_REWARD,)), (REWARD, WEIGHT))
    if not crossed:
        return own
    groups = ((BALANCED_WEIGHT,), (BALANCED_REWARD,))
    return own | Needs(tuple(map(second_moment, loggers)), groups, (BALANCED_WEIGHT,))


def own_overlap(view: MomentsByLogger, *, crossed: bool) -> dict[str, Overlap]:
    """How each logger's own weights cover the target."""
    known = pooled_divergences(view) if crossed else {}
    return {
        i: _overlap(m, WEIGHT, known[i] if crossed else m.var(WEIGHTED_REWARD))
        for i, m in view.items()
    }


def mixed_overlap(view: MomentsByLogger) -> Overlap:
    """How the balanced weights do; the divergence is the mean of those within loggers."""
    together = pooled(view.values())
    rows = sum(m.count * m.var(BALANCED_REWARD) for m in view.values() if m.count > 1)
    return _overlap(together, BALANCED_WEIGHT, rows / together.count)


def _overlap(moments: Moments, weight: Term, divergence: float) -> Overlap:
    return Overlap(
        divergence=divergence,
        effective_rows=effective_rows(moments, weight),
        mean_weight=moments.mean(weight),
        largest_weight=moments.max(weight),
    )


def effective_rows(moments: Moments, weight: Term) -> float:
    r"""Rows of equal weight that would be worth as much, $(\sum w)^2 / \sum w^2$."""
    square = moments.mean_square(weight)
    return moments.count * moments.mean(weight) ** 2 / square if square > 0 else 0.0
