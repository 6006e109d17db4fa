"""Sums: the moments of all loggers while rows are read, as arrays that add up quickly.

Each batch of rows gives one `Sums`; `Sums.add` merges those of batches, files and workers.
At the end they are turned into one `Moments` per logger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from poolwise.engines.workspace import wanted_pairs
from poolwise.moments.moments import LONGEST_TAIL, Moments, Terms, refuse_infinite
from poolwise.moments.tallies import BINS, POWERS, add_powers, add_slices, slices_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engines.workspace import Workspace
    from poolwise.moments.terms import Needs, Term
    from poolwise.rows.layout import Layout
    from poolwise.types import AnyArray, FloatArray, IntArray

Key = TypeVar("Key")  # a logger or a cell
NO_ROW = np.iinfo(np.int64).max  # first row of a group without rows
UNDERFLOW = 1e-130  # squares of smaller values, or of their rounding, underflow
ROUNDED = 4 * np.finfo(np.float64).eps  # relative difference of equal rows after arithmetic


@dataclass(eq=False)
class Sums:
    """Moments of g loggers; groups without rows count 0.

    Attributes:
        count: Rows, shape (g,).
        means: Mean of each single term of the workspace, shape (g, singles).
        rest: Rounding error of each mean, to be added to it, of the same shape. Means of
            1e8 may differ by less than their rounding where rows do not vary much.
        products: Sum of the centred products of each pair of terms of the workspace,
            shape (g, pairs).
        lowest: Smallest value of the terms whose extremes are wanted, shape (g, extremes).
        largest: Largest value of these.
        plain: Sum of each plain term of the workspace, shape (g, plain).
        tails: The largest values of a term in each stratum: groups without their buckets.
        histograms: Rows in each bin, shape (terms, strata, bins).
        slices: Sum of each term over each slice of the rows, shape (g, terms, slices).
        powers: Powers of each term, shape (g, terms, 6); see `moments.tallies`.
        spans: Number of the first and of the last row, shape (2, g).
    """

    count: IntArray
    means: FloatArray
    rest: FloatArray
    products: FloatArray
    lowest: FloatArray
    largest: FloatArray
    plain: FloatArray
    tails: list[list[FloatArray]]
    histograms: IntArray
    slices: FloatArray
    powers: FloatArray
    spans: IntArray

    @property
    def arrays(self) -> dict[str, FloatArray | IntArray]:
        """All arrays, by name; tails are lists."""
        return {name: value for name, value in vars(self).items() if name != "tails"}

    def add(self, other: Sums, workspace: Workspace) -> Sums:
        """Add other sums; changes and returns this one (Chan, Golub & LeVeque, 1983)."""
        total = self.count + other.count
        part = other.count / np.maximum(total, 1)
        left, right = workspace.pairs
        with np.errstate(over="ignore", invalid="ignore"):
            gap = (other.means - self.means) + (other.rest - self.rest)
            moved = gap * np.sqrt(self.count * part)[:, None]
            self.products += other.products
            self.products += moved[:, left] * moved[:, right]
            self.plain += other.plain
            step = gap * part[:, None]
            moved_to = self.means + step
            self.rest += (self.means - moved_to) + step
            self.means = moved_to
        np.minimum(self.lowest, other.lowest, out=self.lowest)
        np.maximum(self.largest, other.largest, out=self.largest)
        for ours, theirs in zip(self.tails, other.tails, strict=True):
            ours[:] = [longest(a, b) for a, b in zip(ours, theirs, strict=True)]
        self.histograms += other.histograms
        for sums, more, rows in zip(self.slices, other.slices, self.count, strict=True):
            add_slices(sums, more, rows)
        self.powers = add_powers(self.powers, other.powers)
        first, last = other.spans + self.count.sum()
        has_rows = other.count > 0
        np.minimum(self.spans[0], first, out=self.spans[0], where=has_rows)
        np.maximum(self.spans[1], last, out=self.spans[1], where=has_rows)
        self.count = total
        return self


def no_sums(layout: Layout, workspace: Workspace) -> Sums:
    """Return sums of no rows."""
    g, strata, needs = len(layout.groups), len(layout.strata), workspace.needs
    singles, extremes = len(workspace.singles), len(needs.extremes)
    return Sums(
        count=np.zeros(g, dtype=np.int64),
        means=np.zeros((g, singles)),
        rest=np.zeros((g, singles)),
        products=np.zeros((g, len(workspace.pairs.T))),
        lowest=np.full((g, extremes), np.inf),
        largest=np.full((g, extremes), -np.inf),
        plain=np.zeros((g, len(workspace.plain))),
        tails=[[np.empty(0)] * strata for _ in needs.tails],
        histograms=np.zeros((len(needs.histograms), strata, BINS), dtype=np.int64),
        slices=np.zeros((g, len(needs.slices), slices_for(g * workspace.sliced_terms))),
        powers=np.zeros((g, len(needs.powers), POWERS)),
        spans=np.array([np.full(g, NO_ROW), np.full(g, -1)]),
    )


def longest(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the largest values of both, unsorted; only what is too long is cut."""
    if not len(right):
        return left
    both = np.concatenate([left, right])
    if len(both) <= 2 * LONGEST_TAIL:
        return both
    return np.partition(both, -LONGEST_TAIL)[-LONGEST_TAIL:]


def add_tail(tails: list[FloatArray], strata: AnyArray, values: FloatArray) -> None:
    """Add values that may be among the largest of their strata."""
    if not len(values):
        return
    number = np.bincount(strata, minlength=len(tails))
    order = np.argsort(strata.astype(np.min_scalar_type(len(tails))), kind="stable")
    parts = np.split(values.take(order), number.cumsum()[:-1])
    tails[:] = map(longest, tails, parts)


def fresh_floors(layout: Layout, workspace: Workspace) -> FloatArray:
    """Return floors below all values."""
    return np.full((len(workspace.needs.tails), len(layout.strata)), -np.inf)


def raise_floors(floors: FloatArray, sums: Sums) -> None:
    """Raise the floors to the least of the largest values so far."""
    for tail, groups in enumerate(sums.tails):
        for group, values in enumerate(groups):
            if len(values) == LONGEST_TAIL:
                floors[tail, group] = max(floors[tail, group], values.min())


def total_moments(
    sums: Sums | None, workspace: Workspace, counts: Mapping[Key, int]
) -> dict[Key, Moments] | None:
    """Return the moments of each logger; None if the rows are not those that were counted."""
    moments = to_moments(sums, workspace, tuple(counts)) if sums else {}
    if {i: m.count for i, m in moments.items()} != dict(counts):
        return None
    refuse_infinite(moments)
    return moments


def bucketed_moments(
    sums: Sums | None, workspace: Workspace, needs: Sequence[Needs], counts: Mapping[Key, int]
) -> list[list[dict[Key, Moments]]] | None:
    """Return the moments of each bucket and logger, for each of the needs.

    Skips empty buckets. None if the sums are not of the rows that were counted.
    """
    loggers = list(counts)
    if sums is None or sums.count.reshape(-1, len(loggers)).sum(0).tolist() != [
        *counts.values()
    ]:
        return None
    apart = [replace(part, tails=(), histograms=()) for part in needs]
    return [_by_bucket(group_moments(sums, workspace, part), loggers) for part in apart]


def total_tallies(
    sums: Sums | None, workspace: Workspace, counts: Mapping[Key, int]
) -> dict[Key, Moments]:
    """Return the tails and histograms of each logger over all buckets, without terms."""
    needs, nothing = workspace.needs, np.empty(0)
    if sums is None or not (needs.tails or needs.histograms):
        return {}
    return {
        logger: Moments(
            (),
            count,
            nothing,
            np.empty((0, 0)),
            nothing,
            nothing,
            tails={
                t: _sort_tail(tail[g]) for t, tail in zip(needs.tails, sums.tails, strict=True)
            },
            histograms={t: sums.histograms[k, g] for k, t in enumerate(needs.histograms)},
        )
        for g, (logger, count) in enumerate(counts.items())
    }


def _sort_tail(tail: FloatArray) -> FloatArray:
    return np.sort(tail)[::-1][:LONGEST_TAIL]


def _by_bucket(
    groups: Sequence[Moments | None], loggers: Sequence[Key]
) -> list[dict[Key, Moments]]:
    buckets = []
    for first in range(0, len(groups), len(loggers)):
        rows = zip(loggers, groups[first : first + len(loggers)], strict=True)
        buckets.append({logger: m for logger, m in rows if m is not None})
        refuse_infinite(buckets[-1])
    return [bucket for bucket in buckets if bucket]


def to_moments(sums: Sums, workspace: Workspace, loggers: Sequence[Key]) -> dict[Key, Moments]:
    """Return one `Moments` for each logger that has rows."""
    pairs = zip(loggers, group_moments(sums, workspace, workspace.needs), strict=True)
    return {logger: moments for logger, moments in pairs if moments is not None}


def group_moments(sums: Sums, workspace: Workspace, needs: Needs) -> list[Moments | None]:
    """Return the moments of each group for a part of the needs; None without rows."""
    means = _means(sums, workspace, needs)
    lowest, largest = (
        _place_values(values, workspace.needs.extremes, needs)
        for values in (sums.lowest, sums.largest)
    )
    scatter = _place_scatter(sums, workspace, needs, means)
    every = workspace.needs
    tails = [(t, sums.tails[k]) for k, t in enumerate(every.tails) if t in needs.tails]
    bins = [(k, t) for k, t in enumerate(every.histograms) if t in needs.histograms]
    sliced = [(k, t) for k, t in enumerate(every.slices) if t in needs.slices]
    powered = [(k, t) for k, t in enumerate(every.powers) if t in needs.powers]
    terms = Terms(needs.terms)
    return [
        Moments(
            terms=terms,
            count=int(sums.count[g]),
            means=means[g],
            scatter=scatter[g],
            lowest=lowest[g],
            largest=largest[g],
            tails={t: _sort_tail(values[g]) for t, values in tails},
            histograms={t: sums.histograms[k, g] for k, t in bins},
            slices={t: sums.slices[g, k] for k, t in sliced},
            powers={t: sums.powers[g, k] for k, t in powered},
            span=(int(sums.spans[0, g]), int(sums.spans[1, g])),
        )
        if sums.count[g]
        else None
        for g in range(len(sums.count))
    ]


def _place_values(values: FloatArray, terms: Sequence[Term], needs: Needs) -> FloatArray:
    """Return the values of terms in the order of the needs, nan where there is none."""
    place = {term: k for k, term in enumerate(needs.terms)}
    pairs = [(place[t], k) for k, t in enumerate(terms) if t in place]
    into, of = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    placed = np.full((len(values), len(place)), np.nan)
    placed[:, into] = values[:, of]
    return placed


def _means(sums: Sums, workspace: Workspace, needs: Needs) -> FloatArray:
    """Return the mean of each term."""
    place = {term: k for k, term in enumerate(needs.terms)}
    with np.errstate(invalid="ignore"):  # callers reject infinite means
        means = _place_values(sums.means + sums.rest, workspace.singles, needs)
    count = np.maximum(sums.count, 1)
    for k, term in enumerate(workspace.plain):
        if term in place:
            means[:, place[term]] = sums.plain[:, k] / count
    return means


def _place_scatter(
    sums: Sums, workspace: Workspace, needs: Needs, means: FloatArray
) -> FloatArray:
    """Return the scatter of the scattered terms, nan for pairs that are not wanted."""
    place = {term: k for k, term in enumerate(needs.scattered)}
    size = len(place)
    row = np.array([place.get(t, -1) for t in workspace.singles], dtype=np.int64)
    left, right = (row[side] for side in workspace.pairs)
    mine = np.flatnonzero((left >= 0) & (right >= 0))
    scatter = np.full((len(means), size, size), np.nan)
    for i, j in ((left, right), (right, left)):
        scatter[:, i[mine], j[mine]] = sums.products[:, mine]
    with np.errstate(all="ignore"):  # callers reject infinite sums
        spread = np.sqrt(np.diagonal(scatter, axis1=1, axis2=2) / sums.count[:, None])
        sizes = np.abs(means[:, :size])
        alike = (spread <= ROUNDED * sizes) & (sizes > UNDERFLOW)
    scatter[alike[:, :, None] | alike[:, None, :]] = 0.0  # the spread is rounding error
    scatter[:, ~wanted_pairs(place, needs)] = np.nan
    return scatter
