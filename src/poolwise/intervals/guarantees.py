"""Guarantees: intervals of the value itself, whatever estimator stands beside them.

Student's interval trusts the spread that the rows show.  These three do not: empirical
Bernstein and betting hold for any number of rows, and the likelihood allows for large
weights that were not seen.  All of them need to know the range of the rewards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from poolwise.engines.base import SingleRows
from poolwise.errors import Finding, UsageError
from poolwise.intervals.bounds import (
    WeightSums,
    betting,
    empirical_bernstein,
    euclidean_likelihood,
)
from poolwise.intervals.student import Interval
from poolwise.moments.moments import pooled
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
)

if TYPE_CHECKING:
    from poolwise.engines.base import Rows
    from poolwise.intervals.student import Sides
    from poolwise.log.log import Log
    from poolwise.moments.moments import Moments, MomentsByLogger
    from poolwise.moments.terms import Term

Guarantee = Literal["bernstein", "betting", "likelihood"]
GUARANTEES = ("bernstein", "betting", "likelihood")


def guarantee_needs(*, crossed: bool) -> Needs:
    """The pair of weight and weighted reward, against the mixture where it is known."""
    return Needs(groups=(_pair(crossed=crossed),))


def _pair(*, crossed: bool) -> tuple[Term, Term]:
    return (BALANCED_REWARD, BALANCED_WEIGHT) if crossed else (WEIGHTED_REWARD, WEIGHT)


def refuse_outside(log: Log, moments: MomentsByLogger) -> None:
    """Refuse rewards beyond the range that the log says they have: bounds rest on it."""
    if log.reward_range is None:
        return
    lower, upper = log.reward_range
    seen = {i: (m.min(REWARD), m.max(REWARD)) for i, m in moments.items()}
    outside = {i: s for i, s in seen.items() if s[0] < lower or s[1] > upper}
    if outside:
        told = ", ".join(
            f"those of {i!r} run from {a:g} to {b:g}" for i, (a, b) in outside.items()
        )
        raise UsageError(
            f"rewards lie outside of reward_range ({lower:g}, {upper:g}): {told}. Give the "
            "smallest and largest reward that is possible, or correct the rows."
        )


def known_range(log: Log, method: str) -> tuple[float, float]:
    """The range of the rewards, without which nothing can be guaranteed."""
    if log.reward_range is None:
        raise UsageError(
            f"an interval by {method} needs the smallest and largest possible reward: "
            "give reward_range=(lower, upper) (--reward-range lower,upper)"
        )
    return log.reward_range


def from_moments(
    method: Guarantee, view: MomentsByLogger, log: Log, level: float, sides: Sides
) -> tuple[Interval, tuple[Finding, ...]]:
    """Empirical Bernstein or likelihood, from the moments of one target."""
    lower, upper = known_range(log, method)
    reward, weight = _pair(crossed=log.crossed)
    together = pooled(view.values())
    if method == "likelihood":
        sums = _sums(together, reward, weight)
        found = euclidean_likelihood(sums, level, reward_range=(lower, upper), sides=sides)
        return found, ()
    heaviest = max(m.max(weight) for m in view.values())
    width = heaviest * max(upper, 0.0) - heaviest * min(lower, 0.0)
    found = empirical_bernstein(
        together.mean(reward), together.var(reward), together.count, width, level, sides
    )
    return found, (_seen_only(heaviest),)


def by_betting(rows: Rows, target: str, log: Log, level: float, sides: Sides) -> Interval:
    """Betting on own-propensity rows: valid for any number of rows and any weights."""
    lower, upper = known_range(log, "betting")
    if not isinstance(rows, SingleRows):
        raise UsageError("betting reads rows one by one, which only DuckDB's engine can")
    base = min(lower, 0.0)  # a weighted negative reward has no floor: count from the lowest
    found = betting(
        rows.weighted_rewards(target, base),
        level,
        mirrored=rows.weighted_rewards(target, upper, sign=-1.0),
        upper_bound=upper - base,
        sides=sides,
    )
    return Interval(max(lower, found.lower + base), min(upper, found.upper + base), level)


def _sums(together: Moments, reward: Term, weight: Term) -> WeightSums:
    """The six sums, from means and scatter."""
    count = together.count
    scatter = together.scatter_of([weight, reward])
    w, z = together.mean(weight), together.mean(reward)
    return WeightSums(
        count=count,
        weight=count * w,
        squared_weight=float(scatter[0, 0]) + count * w**2,
        weighted_reward=count * z,
        cross=float(scatter[0, 1]) + count * w * z,
        squared_weighted_reward=float(scatter[1, 1]) + count * z**2,
    )


def _seen_only(heaviest: float) -> Finding:
    return Finding(
        "largest-weight-seen",
        f"Bernstein's interval takes {heaviest:.3g}, the largest weight seen, for the largest "
        "possible one; it holds only if no larger one can occur.",
        "Betting needs no such assumption.",
        "note",
    )
