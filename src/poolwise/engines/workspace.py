"""Workspace: which terms and products the kernel computes for given `Needs`.

Single terms are centred, and products of pairs of them are summed.  Other terms only need a
mean, and their last factor is a logger's column or they are cubes: their sums are products
of two lines, such as a stem and the column of a logger, which many terms share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.terms import Factor, Needs, Term

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from poolwise.types import IntArray

DOUBLES = 8_000_000  # of one thread: 64 MB
MOST_ROWS, FEWEST_ROWS = 131_072, 4_096  # of a batch; the first is a multiple of the second
FEW_TAILS = 16  # as many as leave room for other arrays


@dataclass(frozen=True, eq=False)
class Workspace:
    """Terms and products of a batch.

    Attributes:
        needs: Moments to compute.
        most_rows: Largest number of rows of a batch.
    """

    needs: Needs
    most_rows: int = MOST_ROWS

    @cached_property
    def plain(self) -> dict[Term, tuple[Term, Term]]:
        """Terms that only need a mean, as products of two others: stem and logger, or cube."""
        needs = self.needs
        tallied = (needs.tails, needs.histograms, needs.slices, needs.powers)
        more = {t for terms in (needs.scattered, needs.extremes, *tallied) for t in terms}
        parts = {t: p for t in needs.terms if t not in more and (p := _split(t))}
        return dict(sorted(parts.items(), key=lambda item: _sort_key(item[0])))

    @cached_property
    def singles(self) -> tuple[Term, ...]:
        """Terms that are centred: all others, in the order in which terms are alike."""
        return tuple(
            sorted((t for t in self.needs.terms if t not in self.plain), key=_sort_key)
        )

    @cached_property
    def pairs(self) -> IntArray:
        """Wanted pairs of singles, in the order of `Sums.products`, shape (2, p)."""
        place = {term: k for k, term in enumerate(self.singles)}
        return np.array(np.nonzero(np.tril(wanted_pairs(place, self.needs))))

    @cached_property
    def sliced_terms(self) -> int:
        """Number of terms with slices, where those of several measures count once.

        The number of slices follows from it: other measures change no bit of a result.
        """
        terms = {tuple(map(_any_measure, t.factors)) for t in self.needs.slices}
        return len(terms)

    @cached_property
    def batch_rows(self) -> int:
        """Rows of a batch that memory has room for, a multiple of those ordered at once."""
        wide = len(self.needs.tails) + FEW_TAILS
        room = DOUBLES // wide // FEWEST_ROWS * FEWEST_ROWS
        return min(max(room, FEWEST_ROWS), self.most_rows)


def _any_measure(factor: Factor) -> Factor:
    """Return the factor of the log's own reward, without a threshold."""
    if factor.name == "reward":
        return Factor("reward")
    return replace(factor, measure="")


def wanted_pairs(place: Mapping[Term, int], needs: Needs) -> NDArray[np.bool]:
    """Return a matrix that is True for each pair of terms whose product is needed."""
    wanted = np.zeros((len(place), len(place)), dtype=bool)
    for group in needs.groups:
        mine = [place[t] for t in group]
        wanted[np.ix_(mine, mine)] = True
    return wanted


def _split(term: Term) -> tuple[Term, Term] | None:
    """Return a cube as column and square, a term with one factor of a logger without it."""
    if term.is_cube:
        return Term(term.factors[:1]), Term(term.factors[1:])
    mine = [f for f in term.factors if f.logger]
    if len(mine) != 1 or len(term.factors) == 1 or not mine[0].definition.at_zero:
        return None
    return Term(tuple(f for f in term.factors if f != mine[0])), Term((mine[0],))


def _sort_key(term: Term) -> tuple[object, ...]:
    """Key that sorts terms of one form next to each other, those without a target last."""
    targeted = any(f.target for f in term.factors)
    return (not targeted, len(term.factors), [(f.name, f.rule) for f in term.factors], term.key)
