"""Adaptive logging on a toy problem: every history with its probability, as fractions.

Two contexts, two actions, rewards 0 or 1, two periods.  In the first period a fixed policy
and a control policy are live; in the second the control policy and one that was chosen by
the rewards of the first period.  A history is the list of all rows; their number is finite,
so expectations over adaptive logs are sums of fractions.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Policy = tuple[
    tuple[Fraction, Fraction], tuple[Fraction, Fraction]
]  # probability of each action in each context
CONTEXT = (Fraction(1, 3), Fraction(2, 3))
REWARD = (
    (Fraction(1, 2), Fraction(1, 5)),
    (Fraction(1, 4), Fraction(3, 4)),
)  # probability of a reward
CONTROL: Policy = ((Fraction(1, 2), Fraction(1, 2)), (Fraction(1, 2), Fraction(1, 2)))
FIRST: Policy = ((Fraction(3, 4), Fraction(1, 4)), (Fraction(2, 5), Fraction(3, 5)))
TARGET: Policy = ((Fraction(4, 5), Fraction(1, 5)), (Fraction(1, 10), Fraction(9, 10)))
LIVE = (("control", "first"), ("control", "learned"))  # the rows of each period, one each


@dataclass(frozen=True)
class Row:
    """One row of a log."""

    period: int
    logger: str
    context: int
    action: int
    reward: int


History = tuple[Row, ...]


def learned(past: Sequence[Row]) -> Policy:
    """Return a policy that favours actions with rewards in the rows so far."""

    def favoured(context: int, action: int) -> Fraction:
        rows = [r for r in past if (r.context, r.action) == (context, action)]
        return Fraction(1 + 4 * sum(r.reward for r in rows), 1 + len(rows))

    masses = [[favoured(x, a) for a in (0, 1)] for x in (0, 1)]
    one, two = ((m[0] / sum(m), m[1] / sum(m)) for m in masses)
    return one, two


def policies(past: Sequence[Row]) -> dict[str, Policy]:
    """Return every policy, with the learned one as the first period left it."""
    first = [r for r in past if r.period == 0]
    return {"control": CONTROL, "first": FIRST, "learned": learned(first)}


def _rows(period: int, logger: str, policy: Policy) -> Iterator[tuple[Row, Fraction]]:
    for x, a, r in product((0, 1), repeat=3):
        chance = REWARD[x][a] if r else 1 - REWARD[x][a]
        yield Row(period, logger, x, a, r), CONTEXT[x] * policy[x][a] * chance


def continued(past: History, period: int) -> Iterator[tuple[History, Fraction]]:
    """Yield the rows of one more period after some rows, with their probability."""
    known = policies(past)
    for rows in product(*(list(_rows(period, i, known[i])) for i in LIVE[period])):
        chance = Fraction(1)
        for _, part in rows:
            chance *= part
        yield tuple(row for row, _ in rows), chance


def histories() -> Iterator[tuple[History, Fraction]]:
    """Yield every log of two periods, with its probability."""
    for first, one in continued((), 0):
        for second, two in continued(first, 1):
            yield (*first, *second), one * two


def value() -> Fraction:
    """Return the true value of the target."""
    return sum(
        (CONTEXT[x] * TARGET[x][a] * REWARD[x][a] for x in (0, 1) for a in (0, 1)), Fraction(0)
    )


def mixture(live: Sequence[str], known: dict[str, Policy], row: Row) -> Fraction:
    """Return the mean probability of a row's action over rows of these loggers."""
    return sum((known[i][row.context][row.action] for i in live), Fraction(0)) / len(live)


def weight(row: Row, live: Sequence[str], known: dict[str, Policy]) -> Fraction:
    """Return the target's probability of a row's action over that of the mixture."""
    return TARGET[row.context][row.action] / mixture(live, known, row)


def period_mean(
    rows: Sequence[Row], known: dict[str, Policy], centre: Fraction = Fraction(0)
) -> Fraction:
    """Return the balanced estimate from the rows of one period, centred at a number."""
    live = [row.logger for row in rows]
    weighted = (centre + weight(r, live, known) * (r.reward - centre) for r in rows)
    return sum(weighted, Fraction(0)) / len(rows)


def centre_of(rows: Sequence[Row], known: dict[str, Policy]) -> Fraction:
    """Return the self-normalised mean reward of one period; 0 without rows."""
    live = [row.logger for row in rows]
    weights = [weight(r, live, known) for r in rows]
    above = sum((w * r.reward for w, r in zip(weights, rows, strict=True)), Fraction(0))
    return above / sum(weights) if rows else Fraction(0)
