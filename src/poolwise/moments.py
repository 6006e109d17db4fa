"""Moments: what a log becomes before any estimator sees it.

A log of n rows from m loggers is reduced, in one pass, to one `Moments` per
logger: a count, a mean and a scatter for each term.  Everything after this
module works on m small objects and never touches a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from poolwise.terms import Term

FloatArray = NDArray[np.float64]
LONGEST_TAIL = 2_001  # largest values that are kept: a tail index known to 0.03


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, means and scatter of k terms over one group of rows.

    A scatter or an extreme that nobody asked for is nan; reading it is an error.

    Attributes:
        terms: The k terms, in the order of the arrays.
        count: Number of rows.
        means: Mean of each term, shape (k,).
        scatter: Sums of products of centred terms, shape (k, k).
        lowest: Smallest value of each term, shape (k,).
        largest: Largest value of each term, shape (k,).
        ddof: 1 for rows of a log; 0 where the moments are exact expectations.
        tails: The largest values of some terms, in falling order.
    """

    terms: tuple[Term, ...]
    count: int
    means: FloatArray
    scatter: FloatArray
    lowest: FloatArray
    largest: FloatArray
    ddof: int = 1
    tails: Mapping[Term, FloatArray] = field(default_factory=dict)

    @cached_property
    def _place(self) -> dict[Term, int]:
        return {term: place for place, term in enumerate(self.terms)}

    def has(self, term: Term) -> bool:
        return term in self._place

    def mean(self, term: Term) -> float:
        return float(self.means[self._place[term]])

    def cov(self, left: Term, right: Term) -> float:
        """Covariance of two terms within one row; infinite from too few rows."""
        value = float(self.scatter[self._place[left], self._place[right]])
        if math.isnan(value):
            raise KeyError((left, right))
        return value / (self.count - self.ddof) if self.count > self.ddof else math.inf

    def covariance(self, terms: Sequence[Term]) -> FloatArray:
        """Covariance matrix of some terms, shape (len(terms), len(terms))."""
        return self.scatter_of(terms) / (self.count - self.ddof)

    def scatter_of(self, terms: Sequence[Term]) -> FloatArray:
        """Scatter of some terms, shape (len(terms), len(terms))."""
        keep = [self._place[t] for t in terms]
        matrix = self.scatter[np.ix_(keep, keep)]
        if np.isnan(matrix).any():
            raise KeyError(tuple(terms))
        return matrix

    def var(self, term: Term) -> float:
        return self.cov(term, term)

    def mean_square(self, term: Term) -> float:
        """Mean of the squared term, from its mean and scatter."""
        return float(self.scatter_of([term])[0, 0]) / self.count + self.mean(term) ** 2

    def max(self, term: Term) -> float:
        return _asked(self.largest[self._place[term]], term)

    def min(self, term: Term) -> float:
        return _asked(self.lowest[self._place[term]], term)

    def select(self, terms: Mapping[Term, Term]) -> Moments:
        """Some terms under other names: new name to the term that is here."""
        keep = [self._place[old] for old in terms.values()]
        return Moments(
            terms=tuple(terms),
            count=self.count,
            means=self.means[keep],
            scatter=self.scatter[np.ix_(keep, keep)],
            lowest=self.lowest[keep],
            largest=self.largest[keep],
            ddof=self.ddof,
            tails={new: self.tails[old] for new, old in terms.items() if old in self.tails},
        )

    def recounted(self, count: int) -> Moments:
        """The same distribution, as if seen in another number of rows."""
        return replace(self, count=count, scatter=self.scatter * (count / self.count))

    def __add__(self, other: Moments) -> Moments:
        """Moments of both groups of rows together."""
        return merge(self, other)


def _asked(value: float, term: Term) -> float:
    if math.isnan(value):
        raise KeyError(term)
    return float(value)


MomentsByLogger = Mapping[str, Moments]


def merge(left: Moments, right: Moments) -> Moments:
    """Combine two groups of rows (Chan, Golub & LeVeque, 1983).

    The scatter of the union is the sum of the scatters plus that of the two
    means around their common mean.
    """
    if left.terms != right.terms:
        raise ValueError("cannot merge moments of different terms")
    count = left.count + right.count
    if not (left.count and right.count):
        return left if left.count else right
    gap = right.means - left.means
    with np.errstate(over="ignore"):  # pairs with UNSUPPORTED, which nobody asks for
        between = np.outer(gap, gap) * (left.count * right.count / count)
    return Moments(
        terms=left.terms,
        count=count,
        means=left.means + gap * (right.count / count),
        scatter=left.scatter + right.scatter + between,
        lowest=np.minimum(left.lowest, right.lowest),
        largest=np.maximum(left.largest, right.largest),
        ddof=left.ddof,
        tails={t: _both_tails(left, right, t) for t in left.tails},
    )


def _both_tails(left: Moments, right: Moments, term: Term) -> FloatArray:
    """The largest values of both groups, as far down as both are known.

    A list that is shorter than its group was cut off: below its last value the other
    group's values are no longer the next ones.
    """
    values = np.concatenate([left.tails[term], right.tails[term]])
    known = max(
        (float(m.tails[term][-1]) for m in (left, right) if len(m.tails[term]) < m.count),
        default=-math.inf,
    )
    return np.sort(values[values >= known])[::-1][:LONGEST_TAIL]


def pooled(groups: Iterable[Moments]) -> Moments:
    """Moments of all groups together."""
    return reduce(add, groups)
