"""Split: one wide question becomes several narrow ones, and their answers one again.

Spark compiles a query into Java code. Beyond some dozens of aggregates that code is too
long to be compiled further, and Spark falls back to something much slower.  So what
is asked of the rows is dealt out to several queries; each term has its sum wherever one of
its products is, since a scatter is centred by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines.answer import Group
from poolwise.moments.moments import Moments
from poolwise.moments.terms import Needs, Term

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from poolwise.moments.moments import FloatArray, IntArray

Pair = tuple[Term, Term]
TILE = 6  # terms whose products with as many others are asked for together


@dataclass(frozen=True)
class Portion(Needs):
    """Needs of one query: not every pair of a group, but these.

    Attributes:
        chosen: Pairs of terms whose scatter is wanted.
    """

    chosen: tuple[Pair, ...] = ()

    @cached_property
    def pairs(self) -> list[Pair]:
        """The chosen ones, in sorted order."""
        return sorted(self.chosen)


@dataclass
class _Query:
    """A query in the making."""

    terms: set[Term] = field(default_factory=set)
    pairs: list[Pair] = field(default_factory=list)
    extremes: list[Term] = field(default_factory=list)

    @property
    def width(self) -> int:
        return len(self.terms) + len(self.pairs) + 2 * len(self.extremes)

    def needs(self) -> Portion:
        spread = tuple(sorted({t for pair in self.pairs for t in pair}))
        return Portion(
            means=tuple(sorted(self.terms - set(spread))),
            groups=(spread,) if spread else (),
            extremes=tuple(self.extremes),
            chosen=tuple(self.pairs),
        )


def split(needs: Needs, most: int) -> list[Needs]:
    """Needs of as many queries as it takes, each of at most `most` aggregates.

    >>> from poolwise.terms import REWARD, WEIGHT, WEIGHTED_REWARD
    >>> needs = Needs(groups=((REWARD, WEIGHT, WEIGHTED_REWARD),))
    >>> [(len(n.terms), len(n.pairs)) for n in split(needs, most=5)]
    [(2, 2), (3, 2), (2, 2)]
    >>> split(needs, most=9) == [needs]
    True
    """
    if len(needs.terms) + len(needs.pairs) + 2 * len(needs.extremes) <= most:
        return [needs]
    queries = [_Query()]
    for pair in _tiled(needs):
        new = len(set(pair) - queries[-1].terms) + 1
        if queries[-1].width + new > most:
            queries.append(_Query())
        queries[-1].terms |= set(pair)
        queries[-1].pairs.append(pair)
    for term in needs.extremes:
        query = _with_room(queries, term, most - 2)
        query.terms.add(term)
        query.extremes.append(term)
    dealt = set().union(*(query.terms for query in queries))
    for term in needs.terms:
        if term not in dealt:
            _with_room(queries, term, most).terms.add(term)
    return [query.needs() for query in queries if query.terms]


def _with_room(queries: list[_Query], term: Term, most: int) -> _Query:
    """A query that takes one more term: one that has it already, if there is room in it."""
    for query in sorted(queries, key=lambda q: term not in q.terms):
        if query.width + (term not in query.terms) <= most:
            return query
    queries.append(_Query())
    return queries[-1]


def _tiled(needs: Needs) -> Iterator[Pair]:
    """Every pair once; those that share terms come together."""
    done: set[Pair] = set()
    for group in needs.groups:
        terms = sorted(group)
        tiles = [terms[k : k + TILE] for k in range(0, len(terms), TILE)]
        for place, left in enumerate(tiles):
            for right in tiles[place:]:
                fresh = [(i, j) for i in left for j in right if i <= j and (i, j) not in done]
                done.update(fresh)
                yield from fresh


def joined(needs: Needs, parts: Sequence[Group]) -> Group:
    """One group of rows as all the queries saw it."""
    first, size = parts[0], len(needs.scattered)
    means, scatter = np.full(len(needs.terms), np.nan), np.full((size, size), np.nan)
    lowest, largest = means.copy(), means.copy()
    place = {term: k for k, term in enumerate(needs.terms)}
    for part in parts:
        found = part.moments
        here = np.array([place[t] for t in found.terms])
        means[here] = found.means
        _fill(lowest, here, found.lowest)
        _fill(largest, here, found.largest)
        spread = here[: len(found.scatter)]
        block = scatter[np.ix_(spread, spread)]
        scatter[np.ix_(spread, spread)] = np.where(
            np.isnan(found.scatter), block, found.scatter
        )
    moments = Moments(needs.terms, first.moments.count, means, scatter, lowest, largest)
    return Group(first.logger, first.bucket, first.bad, moments)


def _fill(values: FloatArray, here: IntArray, found: FloatArray) -> None:
    """What one query knows, beside what others knew."""
    values[here] = np.where(np.isnan(found), values[here], found)
