"""Moments: count, means and scatter of the terms over the rows of one logger.

One pass reduces a log of n rows from m loggers to m `Moments`.  Estimators, intervals
and diagnosis work on these and never read a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.errors import RefusedError
from poolwise.moments.tallies import add_powers, add_slices
from poolwise.moments.terms import Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from poolwise.types import FloatArray, IntArray

LONGEST_TAIL = 2_001  # values per tail: enough for a tail index with standard error 0.03


class Terms(tuple[Term, ...]):  # noqa: SLOT001 - it caches its index
    """Terms of moments with the place of each; all groups of a pass share them."""

    @cached_property
    def places(self) -> dict[Term, int]:
        """Place of each term."""
        return {term: place for place, term in enumerate(self)}

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash  # cached: that of a tuple is computed anew each time

    def __reduce__(self) -> tuple[type[Terms], tuple[tuple[Term, ...]]]:
        return Terms, (tuple(self),)  # without the hash, which differs between processes


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, means and scatter of k terms over one group of rows.

    A scatter or an extreme that was not requested is NaN, and reading it raises KeyError.
    Terms with a scatter come first, so that the matrix covers only these.

    Attributes:
        terms: The k terms, in the order of the arrays.
        count: Number of rows.
        means: Mean of each term, shape (k,).
        scatter: Sums of products of the first s terms, centred, shape (s, s).
        lowest: Smallest value of each term, shape (k,).
        largest: Largest value of each term, shape (k,).
        ddof: 1 for rows of a log; 0 where the moments are exact expectations.
        tails: Largest values of the terms with a tail, in descending order.
        histograms: Rows per bin of `moments.tallies`, for the terms with a histogram.
        slices: Sum over each slice of the rows, for the terms with slices.
        powers: Sums of absolute powers, for the terms with powers.
        span: Numbers of the first and the last row, where a pass over rows counted them.
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
    slices: Mapping[Term, FloatArray] = field(default_factory=dict)
    powers: Mapping[Term, FloatArray] = field(default_factory=dict)
    span: tuple[int, int] | None = None

    @cached_property
    def _index(self) -> Mapping[Term, int]:
        terms = self.terms if isinstance(self.terms, Terms) else Terms(self.terms)
        return terms.places

    @property
    def tallies(self) -> tuple[Mapping[Term, Any], ...]:
        """Tails, histograms, slices and powers."""
        return self.tails, self.histograms, self.slices, self.powers

    def has(self, term: Term) -> bool:
        return term in self._index

    def mean(self, term: Term) -> float:
        return float(self.means[self._index[term]])

    def select_means(self, terms: Sequence[Term]) -> FloatArray:
        """Return the means of these terms, shape (len(terms),)."""
        return self.means[[self._index[t] for t in terms]]

    def cov(self, left: Term, right: Term) -> float:
        """Return the covariance of two terms within one row; infinite if rows are too few."""
        value = self._product(left, right)
        return value / (self.count - self.ddof) if self.count > self.ddof else math.inf

    def _product(self, left: Term, right: Term) -> float:
        """Return one number of the scatter."""
        row, column, size = self._index[left], self._index[right], len(self.scatter)
        value = math.nan if max(row, column) >= size else float(self.scatter[row, column])
        if math.isnan(value):
            raise KeyError((left, right))
        return value

    def covariance(self, terms: Sequence[Term]) -> FloatArray:
        """Return the covariance matrix of these terms, shape (len(terms), len(terms))."""
        return self.select_scatter(terms) / (self.count - self.ddof)

    def select_scatter(self, terms: Sequence[Term]) -> FloatArray:
        """Return the scatter of these terms, shape (len(terms), len(terms))."""
        indices = [self._index[t] for t in terms]
        if max(indices, default=-1) >= len(self.scatter):
            raise KeyError(tuple(terms))
        matrix = self.scatter[indices][:, indices]
        if np.isnan(matrix).any():
            raise KeyError(tuple(terms))
        return matrix

    def var(self, term: Term) -> float:
        return self.cov(term, term)

    def mean_square(self, term: Term) -> float:
        """Return the mean of the squared term."""
        return self._product(term, term) / self.count + self.mean(term) ** 2

    def effective(self, term: Term) -> float:
        r"""Return the effective sample size $(\sum w)^2 / \sum w^2$ of a term $w$."""
        square = self.mean_square(term)
        return self.count * self.mean(term) ** 2 / square if square > 0 else 0.0

    @property
    def bounded(self) -> bool:
        """True if means, squared means and scatters are in the range of doubles."""
        with_scatter = ~np.isnan(np.diag(self.scatter))
        with np.errstate(over="ignore"):  # rows may be equal, with a square out of range
            squares = self.means[: len(self.scatter)][with_scatter] ** 2
        used = [not term.is_cube for term in self.terms]  # guards do without cubes
        means = np.concatenate([self.means[used], squares])
        return bool(np.isfinite(means).all() and not np.isinf(self.scatter).any())

    def max(self, term: Term) -> float:
        return self._extreme(self.largest, term)

    def min(self, term: Term) -> float:
        return self._extreme(self.lowest, term)

    def _extreme(self, values: FloatArray, term: Term) -> float:
        value = float(values[self._index[term]])
        if math.isnan(value):
            raise KeyError(term)
        return value

    def select(self, terms: Mapping[Term, Term]) -> Moments:
        """Return the moments of a mapping's values, renamed to its keys."""
        return _Selection(self, terms)(self)

    def recounted(self, count: int) -> Moments:
        """Return the moments of another number of rows with the same distribution."""
        return replace(self, count=count, scatter=self.scatter * (count / self.count))

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both groups of rows together."""
        return pool_moments((self, other))


class _Selection:
    """Selects and renames terms, of any moments with the terms and tallies of the first."""

    def __init__(self, first: Moments, terms: Mapping[Term, Term]) -> None:
        index, size = first._index, len(first.scatter)  # noqa: SLF001 - of this module
        self.names = Terms(sorted(terms, key=lambda new: index[terms[new]] >= size))
        self.places = np.array([index[terms[new]] for new in self.names], dtype=np.int64)
        self.whole = self.names == first.terms and all(terms[t] == t for t in self.names)
        with_scatter = self.places[self.places < size]
        self.block = np.ix_(with_scatter, with_scatter)
        self.tallies = [
            [(new, terms[new]) for new in self.names if terms[new] in tally]
            for tally in first.tallies
        ]

    def __call__(self, moments: Moments) -> Moments:
        if self.whole:
            return moments
        tails, histograms, slices, powers = [
            {new: tally[old] for new, old in pairs} if pairs else {}
            for tally, pairs in zip(moments.tallies, self.tallies, strict=True)
        ]
        return Moments(
            self.names,
            moments.count,
            moments.means[self.places],
            moments.scatter[self.block],
            moments.lowest[self.places],
            moments.largest[self.places],
            moments.ddof,
            tails,
            histograms,
            slices,
            powers,
            moments.span,
        )


class Selections:
    """Selects and renames terms; moments with the same terms and tallies share the work."""

    def __init__(self, terms: Mapping[Term, Term]) -> None:
        self.terms = terms
        self._kinds: dict[tuple[object, ...], _Selection] = {}

    def __call__(self, moments: Moments) -> Moments:
        kind = (moments.terms, len(moments.scatter), *map(len, moments.tallies))
        if kind not in self._kinds:
            self._kinds[kind] = _Selection(moments, self.terms)
        return self._kinds[kind](moments)


def stack_means(groups: Sequence[Moments], terms: Sequence[Term]) -> FloatArray:
    """Return the means of terms in groups that have the same terms, shape (groups, terms)."""
    if not groups:
        return np.empty((0, len(terms)))
    index = groups[0]._index  # noqa: SLF001 - of this module
    places = [index[t] for t in terms]
    return np.array([m.means for m in groups])[:, places]


def refuse_infinite(moments: Mapping[Any, Moments]) -> None:
    """Raise RefusedError where means or scatters exceed the range of doubles.

    Args:
        moments: Moments of each logger or cell.
    """
    for stratum, of_stratum in moments.items():
        if not of_stratum.bounded:
            raise RefusedError(
                "overflow",
                f"weights times rewards of logger {str(stratum)!r} exceed the range of "
                "doubles: check for tiny propensities and huge rewards, and rescale the "
                "rewards if both columns are right",
            )


def pool_moments(groups: Iterable[Moments]) -> Moments:
    """Return the moments of all groups together (Chan, Golub & LeVeque, 1983).

    The scatter of the union is the sum of the scatters, plus that of the groups' means
    around their common mean.
    """
    listed = list(groups)
    parts = [m for m in listed if m.count] or listed[:1]
    first = parts[0]
    if any(m.terms != first.terms for m in parts):
        raise ValueError("cannot merge moments of different terms")
    if len(parts) == 1:
        return first
    total, size = sum(m.count for m in parts), len(first.scatter)
    counts = np.array([m.count for m in parts], dtype=np.float64)
    means = np.array([m.means for m in parts])
    with np.errstate(over="ignore", invalid="ignore"):  # cubes, pairs with UNSUPPORTED
        centre = first.means + counts / total @ (means - first.means)
        gaps = means[:, :size] - centre[:size]
        between = (gaps.T * counts) @ gaps
    return Moments(
        terms=first.terms,
        count=total,
        means=centre,
        scatter=sum(m.scatter for m in parts) + between,
        lowest=reduce(np.minimum, (m.lowest for m in parts)),
        largest=reduce(np.maximum, (m.largest for m in parts)),
        ddof=first.ddof,
        tails=_Merged([(m.tails, m.count) for m in parts], _merged_tails),
        histograms={
            t: np.sum(h, axis=0) for t, h in _find_shared([m.histograms for m in parts])
        },
        slices=_merged_slices(parts),
        powers={t: reduce(add_powers, p) for t, p in _find_shared([m.powers for m in parts])},
        span=_merged_span([m.span for m in parts]),
    )


def _merged_span(spans: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the rows from the first to the last of all groups, if they are of one pass."""
    known = [span for span in spans if span is not None]
    if len(known) < len(spans):
        return None
    return min(first for first, _ in known), max(last for _, last in known)


Tallied = tuple[Mapping["Term", "FloatArray"], int]  # tails or slices of a group, and its rows
Merge = Callable[[Sequence[tuple["FloatArray", int]]], "FloatArray"]


class _Merged(Mapping["Term", "FloatArray"]):
    """Tails or slices of several groups, merged on first access: few of them are read."""

    def __init__(self, parts: Iterable[Tallied], merge: Merge) -> None:
        self.parts: list[Tallied] = []
        for part in parts:
            self.parts += part[0].parts if isinstance(part[0], _Merged) else [part]
        self._merge = merge
        self._cache: dict[Term, FloatArray] = {}

    def __getitem__(self, term: Term) -> FloatArray:
        if term not in self._cache:
            self._cache[term] = self._merge([(values[term], n) for values, n in self.parts])
        return self._cache[term]

    def __iter__(self) -> Iterator[Term]:
        (first, _), *rest = self.parts
        return (t for t in first if all(t in values for values, _ in rest))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _merged_tails(groups: Sequence[tuple[FloatArray, int]]) -> FloatArray:
    """Return the largest values of all groups, down to where every group is complete.

    A tail shorter than its group was cut off, so below its last value the union would lack
    values of that group.
    """
    values = np.concatenate([tail for tail, _ in groups])
    cut = max((float(tail[-1]) for tail, n in groups if len(tail) < n), default=-math.inf)
    return np.sort(values[values >= cut])[::-1][:LONGEST_TAIL]


def _find_shared(values: Sequence[Mapping[Term, Any]]) -> list[tuple[Term, list[Any]]]:
    """Return the values of all groups for each term that every group has."""
    terms = [t for t in values[0] if all(t in of_group for of_group in values)]
    return [(t, [of_group[t] for of_group in values]) for t in terms]


def _merged_slices(groups: Sequence[Moments]) -> Mapping[Term, FloatArray]:
    """Return the sums of the slices; groups with different numbers of them share none."""
    merged = _Merged([(m.slices, m.count) for m in groups], _added_slices)
    sizes = {len(sums) for slices, _ in merged.parts for sums in slices.values()}
    return merged if len(sizes) <= 1 else {}


def _added_slices(groups: Sequence[tuple[FloatArray, int]]) -> FloatArray:
    """Return the sums of the slices, each group continuing where the last one ended."""
    total, rows = np.zeros_like(groups[0][0]), 0
    for sums, count in groups:
        add_slices(total, sums, rows)
        rows += count
    return total
