"""Guarantees: intervals of the target's value, which do not depend on the estimator.

Student's interval uses the sample variance.  Betting and smoothing do not: they are valid for
any number of rows, and require the range of the rewards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.errors import UsageError
from poolwise.intervals.base import KINDS, known_range
from poolwise.intervals.betting import Bets, bound_value, split_error
from poolwise.intervals.student import check_level
from poolwise.moments.blocks import Payoff
from poolwise.moments.terms import REWARD

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from poolwise.engines.base import Rows
    from poolwise.intervals.base import IntervalKind
    from poolwise.intervals.student import Interval, Sides
    from poolwise.log.log import Log
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.pool import Pool


def refuse_adaptive(
    kind: IntervalKind, log: Log, coverage: Coverage, trained: Collection[str]
) -> None:
    """Raise UsageError if a bound for fixed policies is requested of policies that learned.

    Args:
        kind: Kind of interval.
        log: The log.
        coverage: Which probabilities are known.
        trained: Loggers that were trained on rows of this log.
    """
    if not kind.guaranteed or kind.learning:
        return
    if not (log.period or (trained and coverage.crossed)):
        return
    cause = "`period` says that policies learned from earlier rows"
    if not log.period:
        cause = f"{next(iter(trained))!r} was trained on a log of these"
    others = [repr(other.name) for other in KINDS.values() if other.learning]
    raise UsageError(
        f"interval={kind.name!r} pools the rows of all loggers, and {cause}: use "
        f"interval={', '.join(others)} or 'auto', which remain valid in that case"
    )


def refuse_outside(log: Log, pool: Pool) -> None:
    """Raise UsageError if rewards lie outside the log's `reward_range`."""
    if log.reward_range is None:
        return
    lower, upper = log.reward_range
    ranges = {i: (m.min(REWARD), m.max(REWARD)) for i, m in pool.items()}
    outside = ", ".join(
        f"those of {str(i)!r} range from {a:g} to {b:g}"
        for i, (a, b) in ranges.items()
        if a < lower or b > upper
    )
    if outside:
        raise UsageError(
            f"rewards must lie within reward_range ({lower:g}, {upper:g}), but {outside}. Give "
            "the smallest and largest possible reward, or correct the rows."
        )


def by_betting(
    rows: Rows,
    targets: Sequence[str],
    log: Log,
    level: float,
    sides: Sides,
    *,
    pooled: bool,
    trained: bool = False,
) -> dict[str, Interval]:
    """Return the betting interval of each target, valid for any number of rows and weights.

    Rows are `pooled` if the mixture of each period is known.

    With `trained` loggers, which saw rows of others, weights and bets are those of each
    logger alone: the capital is then a product over loggers, each a fair bet given the rows
    that it was trained on, but only after the last row.
    """
    limits = known_range(log, "betting")
    if trained and log.cluster is not None:
        raise UsageError(
            "interval='betting' allows for `trained_on` or for a `cluster`, not for both: give "
            "`period` in place of `trained_on`, or use interval='auto'"
        )
    errors = split_error(check_level(level), sides)
    payoffs = {name: list_payoffs(name, limits) for name in targets}
    every = [p for both in payoffs.values() for p in both]
    settled = rows.settle(every, pooled=pooled and not trained)
    bets = [
        Bets(
            histogram,
            error,
            len(settled.sums.counts),
            settled.strata,
            anytime=not trained,
            cluster_rows=settled.cluster_rows,
        )
        if error
        else None
        for histogram, error in zip(settled.sums.histograms, errors * len(payoffs), strict=True)
    ]
    return {
        name: bound_value(bets[2 * k], bets[2 * k + 1], limits, level)
        for k, name in enumerate(payoffs)
    }


def list_payoffs(target: str, limits: tuple[float, float]) -> tuple[Payoff, Payoff]:
    """Return gains over the smallest reward, or 0, and losses from the largest one."""
    base, largest = min(limits[0], 0.0), limits[1]  # weighted negative rewards are unbounded
    scale = largest - base
    return Payoff(target, base, 1.0, scale), Payoff(target, largest, -1.0, scale)
