"""The paper's toy: two inputs, two outputs, two loggers, one row from each.

Every number that the paper prints about its Table 1 is compared with the number that the
estimators of this package compute, and with the exact fraction.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines.exact import FiniteProblem
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.report.tables import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.types import FloatArray
    from reproduction.figures import CsvRow

REWARD = ((10, 1), (1, 10))
TARGET = ((Fraction(4, 5), Fraction(1, 5)), (Fraction(1, 5), Fraction(4, 5)))
FIRST = ((Fraction(1, 5), Fraction(4, 5)), (Fraction(4, 5), Fraction(1, 5)))
SECOND = ((Fraction(9, 10), Fraction(1, 10)), (Fraction(1, 10), Fraction(9, 10)))
UNPRINTED = "In the source of the paper, in a comment."
ExactPolicy = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Printed:
    """One number of the paper, printed and recomputed.

    Attributes:
        what: Description.
        paper: As printed.
        ours: As our estimators compute it.
        exact: As a fraction.
        note: Explanation of a difference.
    """

    what: str
    paper: str
    ours: float
    exact: Fraction
    note: str = ""

    @property
    def agrees(self) -> bool:
        """True if ours, rounded to the digits that the paper prints, equals the paper's."""
        places = len(self.paper.partition(".")[2])
        return f"{self.ours:.{places}f}" == self.paper


@cache
def problem() -> FiniteProblem:
    """Return Table 1 of the paper, with one row in each log."""

    def floats(policy: ExactPolicy) -> FloatArray:
        return np.array([[float(p) for p in row] for row in policy])

    return FiniteProblem(
        context_prob=np.array([0.5, 0.5]),
        reward=np.array(REWARD, dtype=np.float64),
        target=floats(TARGET),
        loggers={"first": floats(FIRST), "second": floats(SECOND)},
        counts={"first": 1, "second": 1},
    )


def numbers() -> list[Printed]:
    """Return every number of the paper's discussion of Table 1, in its order."""
    toy, divergence = problem(), problem().divergence
    first, second = exact_divergence(FIRST), exact_divergence(SECOND)
    single = FiniteProblem(
        toy.context_prob,
        toy.reward,
        toy.target,
        {"second": toy.loggers["second"]},
        {"second": 1},
    )
    weighted = Weighted(divergence="known", known=divergence)
    best = toy.exact(weighted)
    share = second / (first + second)
    return [
        Printed("value of the target", "8.2", toy.value, exact_value(), UNPRINTED),
        Printed("naive, both logs", "64.27", toy.exact(Naive()).variance, (first + second) / 4),
        Printed("naive, log 2 alone", "4.27", single.exact(Naive()).variance, second),
        Printed(
            "balanced, both logs", "12.43", toy.exact(Balanced()).variance, exact_balanced()
        ),
        Printed("balanced, log 2 alone", "4.27", single.exact(Balanced()).variance, second),
        Printed("divergence from logger 1", "252.81", divergence["first"], first),
        Printed("divergence from logger 2", "4.27", divergence["second"], second),
        Printed("share of logger 1", "0.02", best.shares["first"], share),
        Printed("share of logger 2", "0.98", best.shares["second"], 1 - share),
        Printed(
            "weighted, both logs", "4.19", best.variance, 1 / (1 / first + 1 / second), _slip()
        ),
    ]


def _slip() -> str:
    rounded = 1 / (1 / 252.81 + 1 / 4.27)
    return (
        "The second decimal is a slip: the variance is 4.20. From the divergence as printed, "
        f"4.27, it would be {rounded:.4f}, and 4.19 if cut off instead of rounded. The paper's "
        "conclusion, that it is below 4.27, remains true."
    )


def exact_value() -> Fraction:
    """Return the mean reward of the target."""
    return sum((t * r for x in (0, 1) for t, r in _cells(TARGET, x)), Fraction()) / 2


def exact_divergence(logger: ExactPolicy) -> Fraction:
    """Return the variance of one weighted reward under a logger."""
    square = Fraction()
    for x in (0, 1):
        for (t, r), p in zip(_cells(TARGET, x), logger[x], strict=True):
            square += t * t * r * r / p
    return square / 2 - exact_value() ** 2


def exact_balanced() -> Fraction:
    """Return the variance of balanced IPS with one row from each logger."""
    total = Fraction()
    for logger in (FIRST, SECOND):
        mean = square = Fraction()
        for x in (0, 1):
            for (t, r), p, a, b in zip(
                _cells(TARGET, x), logger[x], FIRST[x], SECOND[x], strict=True
            ):
                row = t * r / ((a + b) / 2)
                mean, square = mean + p * row / 2, square + p * row * row / 2
        total += square - mean**2
    return total / 4


def _cells(policy: ExactPolicy, x: int) -> list[tuple[Fraction, int]]:
    return list(zip(policy[x], REWARD[x], strict=True))


def rows() -> list[CsvRow]:
    """Return the numbers as rows of a CSV file."""
    return [
        {**asdict(n), "exact": str(n.exact), "agrees": str(n.agrees).lower()} for n in numbers()
    ]


def grid(shown: Sequence[Printed]) -> Grid:
    """Return the numbers as a table."""
    lines = [
        [n.what, n.paper, f"{n.ours:.6f}", str(n.exact), "yes" if n.agrees else "NO"]
        for n in shown
    ]
    header = ["number", "paper", "ours", "exactly", "agrees"]
    return Grid("The paper's toy (Table 1), one row from each logger", header, lines)


def notes() -> list[dict[str, object]]:
    """Return the notes on the numbers, as findings."""
    return [
        {"code": n.what, "severity": "note", "message": n.note} for n in numbers() if n.note
    ]
