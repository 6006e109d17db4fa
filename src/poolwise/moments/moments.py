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
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.errors import RefusedError
from poolwise.log.policy import FloatArray as FloatArray  # noqa: PLC0414 - exported
from poolwise.log.policy import IntArray as IntArray  # noqa: PLC0414 - exported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from poolwise.moments.terms import Term

LONGEST_TAIL = 2_001  # largest values that are kept: a tail index known to 0.03


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, means and scatter of k terms over one group of rows.

    A scatter or an extreme that nobody asked for is nan; reading it is an error.  Terms
    with a scatter come first, so that many others cost no square of their number.

    Attributes:
        terms: The k terms, in the order of the arrays.
        count: Number of rows.
        means: Mean of each term, shape (k,).
        scatter: Sums of products of the first s terms, centred, shape (s, s).
        lowest: Smallest value of each term, shape (k,).
        largest: Largest value of each term, shape (k,).
        ddof: 1 for rows of a log; 0 where the moments are exact expectations.
        tails: The largest values of some terms, in falling order.
        histograms: Rows of some terms by power of two, as `moments.histogram` counts.
    """

    terms: tuple[Term, ...]
    count: int
    means: FloatArray
    scatter: FloatArray
    lowest: FloatArray
    largest: FloatArray
    ddof: int = 1
    tails: Mapping[Term, FloatArray] = field(default_factory=dict)
    histograms: Mapping[Term, IntArray] = field(default_factory=dict)

    @cached_property
    def _place(self) -> dict[Term, int]:
        return {term: place for place, term in enumerate(self.terms)}

    def has(self, term: Term) -> bool:
        return term in self._place

    def mean(self, term: Term) -> float:
        return float(self.means[self._place[term]])

    def cov(self, left: Term, right: Term) -> float:
        """Covariance of two terms within one row; infinite from too few rows."""
        value = float(self.scatter_of([left, right])[0, 1])
        return value / (self.count - self.ddof) if self.count > self.ddof else math.inf

    def covariance(self, terms: Sequence[Term]) -> FloatArray:
        """Covariance matrix of some terms, shape (len(terms), len(terms))."""
        return self.scatter_of(terms) / (self.count - self.ddof)

    def scatter_of(self, terms: Sequence[Term]) -> FloatArray:
        """Scatter of some terms, shape (len(terms), len(terms))."""
        keep = [self._place[t] for t in terms]
        if max(keep, default=-1) >= len(self.scatter):
            raise KeyError(tuple(terms))
        matrix = self.scatter[np.ix_(keep, keep)]
        if np.isnan(matrix).any():
            raise KeyError(tuple(terms))
        return matrix

    def var(self, term: Term) -> float:
        return self.cov(term, term)

    def mean_square(self, term: Term) -> float:
        """Mean of the squared term, from its mean and scatter."""
        return float(self.scatter_of([term])[0, 0]) / self.count + self.mean(term) ** 2

    @property
    def bounded(self) -> bool:
        """Whether means, their squares and scatters are doubles; a scatter not asked is nan."""
        asked = ~np.isnan(np.diag(self.scatter))
        with np.errstate(over="ignore"):  # equal rows: no scatter, yet a square out of range
            squares = self.means[: len(self.scatter)][asked] ** 2
        means = np.concatenate([self.means, squares])
        return bool(np.isfinite(means).all() and not np.isinf(self.scatter).any())

    def max(self, term: Term) -> float:
        return _asked(self.largest[self._place[term]], term)

    def min(self, term: Term) -> float:
        return _asked(self.lowest[self._place[term]], term)

    def select(self, terms: Mapping[Term, Term]) -> Moments:
        """Some terms under other names: new name to the term that is here."""
        size = len(self.scatter)
        names = sorted(terms, key=lambda new: self._place[terms[new]] >= size)
        keep = [self._place[terms[new]] for new in names]
        spread = [k for k in keep if k < size]
        return Moments(
            terms=tuple(names),
            count=self.count,
            means=self.means[keep],
            scatter=self.scatter[np.ix_(spread, spread)],
            lowest=self.lowest[keep],
            largest=self.largest[keep],
            ddof=self.ddof,
            tails=_renamed(self.tails, terms),
            histograms=_renamed(self.histograms, terms),
        )

    def recounted(self, count: int) -> Moments:
        """The same distribution, as if seen in another number of rows."""
        return replace(self, count=count, scatter=self.scatter * (count / self.count))

    def __add__(self, other: Moments) -> Moments:
        """Moments of both groups of rows together."""
        return merge(self, other)


def _renamed(found: Mapping[Term, Any], terms: Mapping[Term, Term]) -> dict[Term, Any]:
    return {new: found[old] for new, old in terms.items() if old in found}


def _asked(value: float, term: Term) -> float:
    if math.isnan(value):
        raise KeyError(term)
    return float(value)


MomentsByLogger = Mapping[str, Moments]


def refuse_infinite(moments: MomentsByLogger) -> None:
    """Raise RefusedError where means or scatters exceed the range of doubles."""
    for logger, of_logger in moments.items():
        if not of_logger.bounded:
            raise RefusedError(
                "overflow",
                f"weights times rewards of logger {logger!r} exceed the range of doubles: "
                "check for tiny propensities and huge rewards, and rescale the rewards if "
                "both columns are right",
            )


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
    moved = gap[: len(left.scatter)]
    with np.errstate(over="ignore"):  # pairs with UNSUPPORTED, which nobody asks for
        between = np.outer(moved, moved) * (left.count * right.count / count)
    return Moments(
        terms=left.terms,
        count=count,
        means=left.means + gap * (right.count / count),
        scatter=left.scatter + right.scatter + between,
        lowest=np.minimum(left.lowest, right.lowest),
        largest=np.maximum(left.largest, right.largest),
        ddof=left.ddof,
        tails=_Tails((*_tail_parts(left), *_tail_parts(right))),
        histograms=_merged_histograms([left, right]),
    )


TailPart = tuple[Mapping["Term", FloatArray], int]  # tails of one group, and its rows


class _Tails(Mapping["Term", FloatArray]):
    """The largest values of several groups, merged when somebody looks: few ever do."""

    def __init__(self, parts: tuple[TailPart, ...]) -> None:
        self.parts = parts
        self._found: dict[Term, FloatArray] = {}

    def __getitem__(self, term: Term) -> FloatArray:
        if term not in self._found:
            self._found[term] = _merged_tails([(t[term], n) for t, n in self.parts])
        return self._found[term]

    def __iter__(self) -> Iterator[Term]:
        (first, _), *rest = self.parts
        return (t for t in first if all(t in tails for tails, _ in rest))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _tail_parts(moments: Moments) -> tuple[TailPart, ...]:
    """What was merged into these moments: kept flat, since there may be hundreds."""
    tails = moments.tails
    return tails.parts if isinstance(tails, _Tails) else ((tails, moments.count),)


def _merged_tails(groups: Sequence[tuple[FloatArray, int]]) -> FloatArray:
    """The largest values of all groups, as far down as all of them are known.

    A list that is shorter than its group was cut off: below its last value the other
    groups' values are no longer the next ones.
    """
    values = np.concatenate([tail for tail, _ in groups])
    known = max((float(tail[-1]) for tail, n in groups if len(tail) < n), default=-math.inf)
    return np.sort(values[values >= known])[::-1][:LONGEST_TAIL]


def _merged_histograms(groups: Sequence[Moments]) -> dict[Term, IntArray]:
    """Rows in each bin, for terms that all groups have a histogram of."""
    shared = [t for t in groups[0].histograms if all(t in m.histograms for m in groups)]
    return {t: np.sum([m.histograms[t] for m in groups], axis=0) for t in shared}


def pooled(groups: Iterable[Moments]) -> Moments:
    """Moments of all groups together, merged at once: there may be hundreds."""
    every = list(groups)
    some = [m for m in every if m.count] or every[:1]
    if len(some) < 3:
        return reduce(add, some)
    first = some[0]
    if any(m.terms != first.terms for m in some):
        raise ValueError("cannot merge moments of different terms")
    counts = np.array([m.count for m in some], dtype=np.float64)
    total, size = sum(m.count for m in some), len(first.scatter)
    gaps = np.array([m.means for m in some]) - first.means
    means = first.means + counts / total @ gaps
    with np.errstate(over="ignore", invalid="ignore"):  # as in `merge`
        moved = (np.array([m.means[:size] for m in some]) - means[:size]).T
        between = (moved * counts) @ moved.T
    return replace(
        first,
        count=total,
        means=means,
        scatter=sum(m.scatter for m in some) + between,
        lowest=np.min([m.lowest for m in some], axis=0),
        largest=np.max([m.largest for m in some], axis=0),
        tails=_Tails(tuple(part for m in some for part in _tail_parts(m))),
        histograms=_merged_histograms(some),
    )
