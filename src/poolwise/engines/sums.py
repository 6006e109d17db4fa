"""Sums: moments of all loggers in the making, as arrays that add up quickly.

A batch of rows gives one of these; batches, files and workers are merged by `add`, and
what is left at the end is turned into one `Moments` per logger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines.program import asked_pairs
from poolwise.moments.moments import (
    LONGEST_TAIL,
    FloatArray,
    IntArray,
    Moments,
    refuse_infinite,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engines.program import Program
    from poolwise.moments.terms import Needs

UNDERFLOW = 1e-130  # the square of less, or of its rounding, is no double
ROUNDED = 4 * np.finfo(np.float64).eps  # what equal rows may differ by, after arithmetic


@dataclass(eq=False)
class Sums:
    """Moments of g loggers; groups without rows count 0.

    Attributes:
        count: Rows, shape (g,).
        means: Mean of each single term, shape (g, singles).
        rest: What the rounding of a mean left over, of the same shape. Two means of 1e8
            differ by less than their own rounding where rows do not vary much.
        lowest: Smallest value of the first few of them, shape (g, extremes).
        largest: Largest value of these.
        blocks: Scatter of some single terms, each of shape (g, terms, terms).
        crossed: Sums of products of stems and loggers' columns, each of shape
            (g, stems, loggers).
        tails: The largest values of a term in each group.
        histograms: Rows in each bin, shape (terms, g, bins).
    """

    count: IntArray
    means: FloatArray
    rest: FloatArray
    lowest: FloatArray
    largest: FloatArray
    blocks: list[FloatArray]
    crossed: list[FloatArray]
    tails: list[list[FloatArray]]
    histograms: IntArray

    def add(self, other: Sums, program: Program) -> Sums:
        """Both together; changes and returns this one (Chan, Golub & LeVeque, 1983)."""
        total = self.count + other.count
        part = other.count / np.maximum(total, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            gap = (other.means - self.means) + (other.rest - self.rest)
            moved = gap * np.sqrt(self.count * part)[:, None]
            for k, rows in enumerate(program.blocks):
                shift = moved[:, rows]
                self.blocks[k] += other.blocks[k]
                self.blocks[k] += shift[:, :, None] * shift[:, None, :]
            for k, its in enumerate(other.crossed):
                self.crossed[k] += its
            step = gap * part[:, None]
            moved_to = self.means + step
            self.rest += (self.means - moved_to) + step
            self.means = moved_to
        np.minimum(self.lowest, other.lowest, out=self.lowest)
        np.maximum(self.largest, other.largest, out=self.largest)
        for ours, theirs in zip(self.tails, other.tails, strict=True):
            ours[:] = [longest(a, b) for a, b in zip(ours, theirs, strict=True)]
        self.histograms += other.histograms
        self.count = total
        return self


def longest(left: FloatArray, right: FloatArray) -> FloatArray:
    """The largest values of both, in no order; only what is too long is cut."""
    if not len(right):
        return left
    both = np.concatenate([left, right])
    if len(both) <= 2 * LONGEST_TAIL:
        return both
    return np.partition(both, -LONGEST_TAIL)[-LONGEST_TAIL:]


def moments_of(
    sums: Sums | None, program: Program, counts: Mapping[str, int]
) -> dict[str, Moments] | None:
    """Moments of every logger, if they are of the rows that were counted; else None."""
    found = {} if sums is None else to_moments(sums, program, tuple(counts))
    if {i: m.count for i, m in found.items()} != dict(counts):
        return None
    refuse_infinite(found)
    return found


def bucketed_moments(
    sums: Sums | None, program: Program, needs: Sequence[Needs], counts: Mapping[str, int]
) -> list[list[dict[str, Moments]]] | None:
    """Moments of each bucket and logger, for each of the needs; empty buckets are skipped.

    None if the sums are not of the rows that were counted.
    """
    loggers = list(counts)
    if sums is None or sums.count.reshape(-1, len(loggers)).sum(0).tolist() != [
        *counts.values()
    ]:
        return None
    return [_by_bucket(grouped(sums, program, part), loggers) for part in needs]


def _by_bucket(
    groups: Sequence[Moments | None], loggers: Sequence[str]
) -> list[dict[str, Moments]]:
    buckets = []
    for first in range(0, len(groups), len(loggers)):
        rows = zip(loggers, groups[first : first + len(loggers)], strict=True)
        buckets.append({logger: m for logger, m in rows if m is not None})
        refuse_infinite(buckets[-1])
    return [bucket for bucket in buckets if bucket]


def to_moments(sums: Sums, program: Program, loggers: Sequence[str]) -> dict[str, Moments]:
    """One `Moments` for each logger that has rows."""
    found = zip(loggers, grouped(sums, program, program.needs), strict=True)
    return {logger: moments for logger, moments in found if moments is not None}


def grouped(sums: Sums, program: Program, needs: Needs) -> list[Moments | None]:
    """Moments of each group, with what some of the needs ask for; None without rows."""
    place = {term: k for k, term in enumerate(needs.terms)}
    means = np.full((len(sums.count), len(place)), np.nan)
    lowest, largest = means.copy(), means.copy()
    rows = [(place[t], row) for row, t in enumerate(program.singles) if t in place]
    at, of = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    with np.errstate(invalid="ignore"):  # what is infinite is refused by who asked
        means[:, at] = sums.means[:, of] + sums.rest[:, of]
    count = np.maximum(sums.count, 1)
    for table, found in zip(program.crosses, sums.crossed, strict=True):
        for term, (stem, column) in table.terms.items():
            if term in place:
                means[:, place[term]] = found[:, stem, column] / count
    for row, term in enumerate(program.extremes):
        if term in place:
            lowest[:, place[term]] = sums.lowest[:, row]
            largest[:, place[term]] = sums.largest[:, row]
    scatter = _scatter(sums, program, needs, means)
    tails = [(t, sums.tails[k]) for k, t in enumerate(program.needs.tails) if t in needs.tails]
    bins = [(k, t) for k, t in enumerate(program.needs.histograms) if t in needs.histograms]
    return [
        Moments(
            terms=needs.terms,
            count=int(sums.count[g]),
            means=means[g],
            scatter=scatter[g],
            lowest=lowest[g],
            largest=largest[g],
            tails={t: np.sort(kept[g])[::-1][:LONGEST_TAIL] for t, kept in tails},
            histograms={t: sums.histograms[k, g] for k, t in bins},
        )
        if sums.count[g]
        else None
        for g in range(len(sums.count))
    ]


def _scatter(sums: Sums, program: Program, needs: Needs, means: FloatArray) -> FloatArray:
    """Scatter of the terms that asked for one, nan where a pair did not."""
    place = {term: k for k, term in enumerate(needs.scattered)}
    size = len(place)
    scatter = np.full((len(means), size, size), np.nan)
    for rows, found in zip(program.blocks, sums.blocks, strict=True):
        terms = [program.singles[row] for row in rows]
        mine = [k for k, term in enumerate(terms) if term in place]
        where = [place[terms[k]] for k in mine]
        scatter[np.ix_(range(len(means)), where, where)] = found[
            np.ix_(range(len(means)), mine, mine)
        ]
    with np.errstate(all="ignore"):  # infinite sums are refused where they end
        spread = np.sqrt(np.diagonal(scatter, axis1=1, axis2=2) / sums.count[:, None])
        sizes = np.abs(means[:, :size])
        alike = (spread <= ROUNDED * sizes) & (sizes > UNDERFLOW)
    scatter[alike[:, :, None] | alike[:, None, :]] = 0.0  # rounding is no spread
    scatter[:, ~asked_pairs(needs)] = np.nan
    return scatter
