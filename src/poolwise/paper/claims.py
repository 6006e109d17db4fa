"""The paper's claims, each with a verdict computed from the CSV files.

A claim is checked in every data set apart.  It holds if it holds in all of them, and
where it holds only in part, the verdict says where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, get_args

from poolwise.paper.checks import (
    Checker,
    Verdict,
    all_bounds,
    dropping,
    dropping_balanced,
    either_wins,
    equal_sizes,
    equals_gamma,
    monotone,
    never_above,
    reaches_optimum,
    simulated,
)
from poolwise.paper.figures import Source
from poolwise.paper.panels import Row

if TYPE_CHECKING:
    from poolwise.paper.toy import Number

Tables: TypeAlias = Mapping[Source, Sequence[Row]]
TARGET_BOUND = 0.6
TOY, FULL_SIZE = 0, -1  # in the place of a figure's number


@dataclass(frozen=True)
class Check:
    """A claim in one data set.

    Attributes:
        where: The data set, or the part of the paper.
        verdict: Whether it holds there.
        found: What was found, in a sentence.
    """

    where: str
    verdict: Verdict
    found: str


@dataclass(frozen=True)
class Claim:
    """A claim with its checks.

    Attributes:
        text: What is claimed.
        source: Who claims it, and where.
        figure: The figure that shows it, or `TOY` or `FULL_SIZE`.
        checks: One per data set.
    """

    text: str
    source: str
    figure: int
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """What the checks say together."""
        found = {check.verdict for check in self.checks}
        return found.pop() if len(found) == 1 else "holds in part"


def claims(tables: Tables, toy: Sequence[Number], full_size: Sequence[Row] = ()) -> list[Claim]:
    """Every claim that the tables at hand can speak to."""
    panels, weights, simulation = (by_place(tables.get(name, ())) for name in get_args(Source))
    found = [_toy(toy)]
    for text, source, figure, check in PANEL_CLAIMS:
        found.append(Claim(text, source, figure, _checked(panels, check)))
    found += [
        Claim(
            "Weights estimated from each log's own rows are optimal within a few hundred rows.",
            "the paper, section 7.6",
            5,
            _checked(weights, reaches_optimum("own")),
        ),
        Claim(
            "With divergences from the rows of all logs they do so, without bias to speak of.",
            "ours",
            5,
            _checked(weights, reaches_optimum("pooled")),
        ),
        Claim(
            "In simulations all estimators are unbiased, with the variances of the formulas.",
            "the paper, section 7.1",
            6,
            _checked(simulation, simulated),
        ),
    ]
    text = "The exact computation runs at LYRL's full size, and every bound holds there."
    checks = _checked(by_place(full_size), all_bounds)
    found.append(Claim(text, "ours, synthetic documents", FULL_SIZE, checks))
    return [claim for claim in found if claim.checks]


def by_place(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each data set and structure of the CRFs."""
    places: dict[str, list[Row]] = {}
    for row in rows:
        extra = ", pairwise CRFs" if row.get("structure") == "pairwise" else ""
        places.setdefault(f"{row['data']}{extra}", []).append(row)
    return places


def _checked(places: Mapping[str, Sequence[Row]], check: Checker) -> tuple[Check, ...]:
    return tuple(Check(where, *check(rows)) for where, rows in places.items())


def _toy(numbers: Sequence[Number]) -> Claim:
    checks = [
        Check(
            n.what,
            "holds" if n.agrees else "does not hold",
            f"{n.paper} in the paper; exactly {n.exact} = {n.ours:.6f}. {n.note}".strip(),
        )
        for n in numbers
    ]
    return Claim("The numbers of the toy example.", "the paper, Table 1", TOY, tuple(checks))


PANEL_CLAIMS: tuple[tuple[str, str, int, Checker], ...] = (
    (
        "Dropping log 1 lowers the variance of naive for high v and small r.",
        "the paper, section 7.2",
        1,
        dropping,
    ),
    (
        "Dropping becomes less beneficial as v decreases.",
        "the paper, section 7.2",
        1,
        monotone("drop_naive", "v", -1),
    ),
    (
        "Dropping becomes less beneficial as r increases.",
        "the paper, section 7.2",
        1,
        monotone("drop_naive", "r", 1),
    ),
    (
        "Even balanced can improve by dropping log 1 (seen in the toy).",
        "the paper, section 5",
        1,
        dropping_balanced,
    ),
    (
        "Balanced is never worse than naive.",
        "the paper, section 7.3",
        2,
        never_above("balanced_naive"),
    ),
    (
        "Balanced gains more on naive as v grows.",
        "the paper, section 7.3",
        2,
        monotone("balanced_naive", "v", -1),
    ),
    (
        "Balanced gains less on naive as r grows.",
        "the paper, section 7.3",
        2,
        monotone("balanced_naive", "r", 1),
    ),
    (
        "Weighted is never worse than naive.",
        "the paper, section 7.4",
        3,
        never_above("weighted_naive"),
    ),
    ("Weighted gains on naive by exactly gamma.", "the paper, section 6.1", 3, equals_gamma),
    (
        "Weighted gains more on naive as v grows.",
        "the paper, section 7.4",
        3,
        monotone("weighted_naive", "v", -1),
    ),
    (
        "Weighted gains most on naive where the logs are of equal size.",
        "the paper, section 6.1",
        3,
        equal_sizes,
    ),
    (
        "Weighted beats balanced when the loggers differ much, balanced when they are close.",
        "the paper, section 7.5",
        4,
        either_wins,
    ),
    (
        "Control variates on the loggers' columns are never worse than the best of the rest.",
        "ours",
        7,
        never_above("cv_loggers_best"),
    ),
    (
        "With the target's column as well they have at most 0.6 of that variance.",
        "ours",
        7,
        never_above("cv_target_best", TARGET_BOUND),
    ),
)
