"""Program: from the terms that are wanted to the rows of a workspace.

Every factor, product and term gets one row of a matrix, arranged so that what is needed
together lies together: terms whose extremes are wanted first, then those with a scatter,
then the rest.  Sums of a target's product with some logger's column are not computed term
by term but as one matrix product of all stems with all such columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.terms import Factor, Needs, Term

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from poolwise.moments.moments import IntArray

BLOCK = 24  # terms of one matrix product; more would compute pairs that nobody wants
WORKSPACE = 6_000_000  # doubles of one thread: 48 MB, and fewer calls for each row
MOST_ROWS, FEWEST_ROWS = 32_768, 1_024
FOR_LOGGER = ("inverse_ratio", "unsupported")  # factors that only occur once in a mean


@dataclass(frozen=True, eq=False)
class Cross:
    """Sums of stems times the columns of the loggers.

    Attributes:
        kind: Name of the loggers' factor.
        stems: Products without it, one row of the workspace each.
        factors: The loggers' columns.
        terms: Row and column of each term in the matrix of sums.
    """

    kind: str
    stems: tuple[Term, ...]
    factors: tuple[Factor, ...]
    terms: Mapping[Term, tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Program:
    """What is computed of every batch of rows, and where it stands."""

    needs: Needs

    @cached_property
    def crosses(self) -> tuple[Cross, ...]:
        """Terms that only need a mean and have one factor of a logger, by its kind."""
        found = []
        for kind in FOR_LOGGER:
            mine = {t: f for t in self.needs.terms if (f := self._split(t, kind)) is not None}
            stems = dict.fromkeys(_without(t, f) for t, f in mine.items())
            rows = {stem: k for k, stem in enumerate(stems)}
            columns = {f: k for k, f in enumerate(dict.fromkeys(mine.values()))}
            places = {t: (rows[_without(t, f)], columns[f]) for t, f in mine.items()}
            if mine:
                found.append(Cross(kind, tuple(rows), tuple(columns), places))
        return tuple(found)

    def _split(self, term: Term, kind: str) -> Factor | None:
        """The factor of a logger, if a term is a mean of one such factor and a stem."""
        mine = [f for f in term.factors if f.logger]
        usable = len(mine) == 1 and len(term.factors) > 1 and mine[0].name == kind
        return mine[0] if usable and term not in self._more_than_means else None

    @cached_property
    def _more_than_means(self) -> set[Term]:
        needs = self.needs
        return {*needs.scattered, *needs.extremes, *needs.tails, *needs.histograms}

    @cached_property
    def extremes(self) -> tuple[Term, ...]:
        """Terms whose extremes are wanted: the first rows."""
        scattered = set(self.needs.scattered)
        return tuple(sorted(self.needs.extremes, key=lambda t: (t in scattered, t.key)))

    @cached_property
    def singles(self) -> tuple[Term, ...]:
        """Terms that have a row of their own, in the order of the rows."""
        crossed = {t for cross in self.crosses for t in cross.terms}
        rest = [t for t in self.needs.terms if t not in crossed]
        return tuple(dict.fromkeys([*self.extremes, *self.needs.scattered, *rest]))

    @cached_property
    def blocks(self) -> tuple[IntArray, ...]:
        """Rows whose products are taken together.

        Few terms make one block. Of many, as with a hundred targets, most pairs are not
        wanted: groups that overlap are packed until a block is full.
        """
        place = {t: k for k, t in enumerate(self.singles)}
        groups = dict.fromkeys(frozenset(g) for g in self.needs.groups)
        packed: list[set[Term]] = []
        for group in sorted(groups, key=len, reverse=True):
            if any(group <= block for block in packed):
                continue
            if packed and len(packed[-1] | group) <= BLOCK:
                packed[-1] |= group
            else:
                packed.append(set(group))
        return tuple(np.array(sorted(place[t] for t in block)) for block in packed)

    @cached_property
    def asked(self) -> NDArray[np.bool]:
        """Which pairs of scattered terms were asked for."""
        return asked_pairs(self.needs)

    @cached_property
    def scatter_places(self) -> IntArray:
        """Where each row of the workspace stands in the scatter; -1 for none."""
        place = {t: k for k, t in enumerate(self.needs.scattered)}
        return np.array([place.get(t, -1) for t in self.singles], dtype=np.int64)

    @cached_property
    def rows(self) -> dict[Term, int]:
        """Row of every single term, factor and stem."""
        every = [*self.singles]
        factors = dict.fromkeys(f for t in self.singles for f in t.factors)
        factors |= dict.fromkeys(f for c in self.crosses for s in c.stems for f in s.factors)
        every += [Term((f,)) for f in factors]
        every += [stem for cross in self.crosses for stem in cross.stems]
        return {term: row for row, term in enumerate(dict.fromkeys(every))}

    @cached_property
    def batch_rows(self) -> int:
        """Rows of a batch whose workspace stays near the processor."""
        wide = len(self.rows) + sum(len(c.factors) for c in self.crosses) + 16
        return int(np.clip(WORKSPACE // wide, FEWEST_ROWS, MOST_ROWS))


def asked_pairs(needs: Needs) -> NDArray[np.bool]:
    """Which pairs of scattered terms are asked for."""
    scattered = needs.scattered
    place = {t: k for k, t in enumerate(scattered)}
    asked = np.zeros((len(scattered), len(scattered)), dtype=bool)
    for group in needs.groups:
        mine = [place[t] for t in group]
        asked[np.ix_(mine, mine)] = True
    return asked


def _without(term: Term, factor: Factor) -> Term:
    return Term(tuple(f for f in term.factors if f != factor))
