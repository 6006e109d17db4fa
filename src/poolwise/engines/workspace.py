"""Workspace: which rows and matrix products the kernel computes for given `Needs`.

Each factor, product and term gets one row of a matrix; the rows of one logger lie next to
each other in its columns.  Terms are ordered so that the wanted products of pairs of terms
are a few matrix products of adjacent rows.  A row of ones takes part: the product of a
term with it is the term's sum.  Means of a target's product with a column of each logger
are not computed term by term but as one matrix product of all stems with all such columns.
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

    from poolwise.moments.moments import FloatArray, IntArray

ONE = Term(())  # the empty product: 1 in each row
ALL_AT_ONCE = 12  # so few terms are multiplied with each other, wanted or not
HALF = 40  # from this size on, computing half of a symmetric product is faster
DOUBLES = 8_000_000  # of one thread: 64 MB
MOST_ROWS, FEWEST_ROWS = 131_072, 1_024  # of a batch
OF_LOGGER = (
    "inverse_ratio",
    "inverse_period",
    "unsupported",
)  # factors that a mean has at most once


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
class Product:
    """One product of adjacent rows with adjacent rows.

    Attributes:
        rows: Rows on the left.
        columns: Rows on the right.
        each: Whether the first is multiplied with the first, the second with the second and
            so on; otherwise each row on the left with each on the right.
        entries: Wanted entries of the result, as places in the flat array.
        pairs: Their places among the pairs of the workspace.
    """

    rows: slice
    columns: slice
    each: bool
    entries: IntArray
    pairs: slice


@dataclass(frozen=True, eq=False)
class Workspace:
    """Rows and products of a batch.

    Attributes:
        needs: Moments to compute.
        most_rows: Largest number of rows of a batch.
    """

    needs: Needs
    most_rows: int = MOST_ROWS

    @cached_property
    def crosses(self) -> tuple[Cross, ...]:
        """Terms that only need a mean and have one factor of a logger, by its kind."""
        crosses = []
        for kind in OF_LOGGER:
            factors = {t: f for t in self.needs.terms if (f := self._split(t, kind))}
            stems = sorted({_without(t, f) for t, f in factors.items()}, key=_order)
            rows = {stem: k for k, stem in enumerate(stems)}
            columns = {f: k for k, f in enumerate(dict.fromkeys(factors.values()))}
            places = {t: (rows[_without(t, f)], columns[f]) for t, f in factors.items()}
            if factors:
                crosses.append(Cross(kind, tuple(rows), tuple(columns), places))
        return tuple(crosses)

    def _split(self, term: Term, kind: str) -> Factor | None:
        """The factor of a logger, if a term is a mean of one such factor and a stem."""
        mine = [f for f in term.factors if f.logger]
        if len(mine) != 1 or len(term.factors) == 1 or mine[0].name != kind:
            return None
        return mine[0] if self._only_mean(term) else None

    def _only_mean(self, term: Term) -> bool:
        needs = self.needs
        more = (
            needs.scattered,
            needs.extremes,
            needs.tails,
            needs.histograms,
            needs.slices,
            needs.powers,
        )
        return not any(term in terms for terms in more)

    @cached_property
    def cubes(self) -> tuple[Term, ...]:
        """Third powers that only need a mean: sums of a column times its square."""
        cubes = (t for t in self.needs.terms if t.is_cube and self._only_mean(t))
        return tuple(sorted(cubes, key=_order))

    @cached_property
    def _dense(self) -> set[Term]:
        """Terms whose pairs are all computed: those of the largest group, or all if few."""
        scattered = self.needs.scattered
        if len(scattered) <= ALL_AT_ONCE:
            return set(scattered)
        groups: list[set[Term]] = [set(group) for group in self.needs.groups]
        return max(groups, key=len)

    @cached_property
    def singles(self) -> tuple[Term, ...]:
        """Terms with a row of their own, in the order of the rows; `ONE` is among them."""
        crossed = {t for cross in self.crosses for t in cross.terms}
        dense, sliced = self._dense, frozenset(self.needs.slices)
        rest = {t for t in self.needs.terms if t not in crossed} - dense - set(self.cubes)
        adjacent_slices = sorted(dense, key=lambda t: (t not in sliced, _order(t)))
        return (*adjacent_slices, ONE, *sorted(rest, key=_order))

    @cached_property
    def rows(self) -> dict[Term, int]:
        """Row of each single term, factor and stem; the square of a cube is a stem."""
        stems = [stem for cross in self.crosses for stem in cross.stems]
        stems += [Term(cube.factors[1:]) for cube in self.cubes]
        factors = {Term((f,)) for t in (*self.singles, *stems) for f in t.factors}
        terms = [*self.singles, *stems, *sorted(factors, key=_order)]
        return {term: row for row, term in enumerate(dict.fromkeys(terms))}

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """Matrix products that cover the wanted pairs."""
        place = {t: k for k, t in enumerate(self.singles)}
        wanted = wanted_pairs(place, self.needs)
        ones, size = place[ONE], len(self._dense)
        wanted[ones, :ones] = wanted[ones + 1 :, ones] = True
        return tuple(_cover(np.tril(wanted), size + (size >= HALF), size + 1))

    @cached_property
    def pairs(self) -> IntArray:
        """Rows of each wanted pair of terms, in the order of `Sums.products`; shape (2, p)."""
        parts = [np.empty((2, 0), dtype=np.int64)]
        for product in self.products:
            rows = np.arange(product.rows.start, product.rows.stop)
            columns = np.arange(product.columns.start, product.columns.stop)
            if not product.each:
                rows, columns = np.repeat(rows, len(columns)), np.tile(columns, len(rows))
            parts.append(np.stack([rows, columns])[:, product.entries])
        return np.concatenate(parts, axis=1)

    @cached_property
    def sums(self) -> tuple[IntArray, IntArray]:
        """Places of the pairs with `ONE`, and row of the other term of each."""
        ones = self.singles.index(ONE)
        left, right = self.pairs
        places = np.flatnonzero((left == ones) | (right == ones))
        return places, (left + right)[places] - ones

    @cached_property
    def batch_rows(self) -> int:
        """Rows of a batch that memory has room for."""
        wide = len(self.rows) + sum(len(c.factors) for c in self.crosses) + 16
        return min(max(DOUBLES // wide, FEWEST_ROWS), self.most_rows)


def wanted_pairs(place: Mapping[Term, int], needs: Needs) -> NDArray[np.bool]:
    """Return a matrix that is True for each pair of terms whose product is needed."""
    wanted = np.zeros((len(place), len(place)), dtype=bool)
    for group in needs.groups:
        mine = [place[t] for t in group]
        wanted[np.ix_(mine, mine)] = True
    return wanted


def _cover(wanted: NDArray[np.bool], wide: int, high: int) -> list[Product]:
    """Cover the wanted pairs by products; the first is that of the dense terms."""
    products: list[Product] = []
    pairs = 0

    def take(rows: slice, columns: slice, *, each: bool) -> None:
        nonlocal pairs
        block = wanted[rows, columns]
        entries = np.flatnonzero(np.diagonal(block) if each else block)
        products.append(
            Product(rows, columns, each, entries, slice(pairs, pairs + len(entries)))
        )
        pairs += len(entries)
        if each:
            np.fill_diagonal(block, val=False)
        else:
            block[:] = False

    if wide:
        take(slice(0, high), slice(0, wide), each=False)
    for row, column in np.argwhere(wanted).tolist():
        if wanted[row, column]:
            across = _length(wanted[row, column:])
            down = _length(np.all(wanted[row:, column : column + across], axis=1))
            along = _length(np.diagonal(wanted[row:, column:]))
            each = along > across * down
            down, across = (along, along) if each else (down, across)
            take(slice(row, row + down), slice(column, column + across), each=each)
    return products


def _length(wanted: NDArray[np.bool]) -> int:
    """Number of True values before the first False."""
    return int(np.argmin(wanted)) if not wanted.all() else len(wanted)


def _order(term: Term) -> tuple[object, ...]:
    """Key that sorts terms of one form next to each other, those without a target last."""
    targeted = any(f.target for f in term.factors)
    return (not targeted, len(term.factors), [(f.name, f.rule) for f in term.factors], term.key)


def _without(term: Term, factor: Factor) -> Term:
    return Term(tuple(f for f in term.factors if f != factor))


def factors_of(term: Term, rows: Mapping[Term, int]) -> tuple[int, int, int, tuple[int, ...]]:
    """Return the row of a product, and those to multiply: a square of one row, if possible."""
    half = Term(term.factors[::2])
    if half.factors == term.factors[1::2] and half in rows:
        return rows[term], rows[half], rows[half], ()
    first, second, *rest = (rows[Term((f,))] for f in term.factors)
    return rows[term], first, second, tuple(rest)


def shrink(factor: Factor, weight: FloatArray) -> None:
    """Apply the rule of a factor to the weight, in place."""
    bound = factor.bound
    if factor.rule == "clip":
        np.minimum(weight, bound, out=weight)
    elif factor.rule == "switch":
        weight[weight > bound] = 0.0
    elif factor.rule == "optimistic":
        weight *= bound / (weight * weight + bound)


def smooth(factor: Factor, weight: FloatArray, reward: FloatArray) -> None:
    """Replace the weight by the logarithm of 1 plus its gain over the bound, in place."""
    gain = reward - factor.zero if factor.rule == "gain" else factor.zero - reward
    weight *= np.maximum(gain, 0.0, out=gain)
    weight /= factor.bound
    np.log1p(weight, out=weight)


def runs_of(rows: list[int]) -> list[tuple[slice, slice]]:
    """Split a list of rows where the next is not adjacent: places in the list, and rows."""
    starts = [k for k, row in enumerate(rows) if not k or row != rows[k - 1] + 1]
    ends = zip(starts, [*starts[1:], len(rows)], strict=False)
    return [(slice(a, b), slice(rows[a], rows[a] + b - a)) for a, b in ends]


def adjacent(rows: list[int]) -> slice | list[int]:
    """Return adjacent rows as a slice, which makes no copy of them."""
    first, last = rows[0], rows[-1] + 1
    return slice(first, last) if rows == list(range(first, last)) else rows
