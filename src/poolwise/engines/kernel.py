"""Kernel: a batch of rows becomes sums of products, by matrix products.

Rows are ordered by logger, so that each logger's rows lie together; every factor and
term of the `Program` is computed once, into its row of a workspace that stays near the
processor; and one matrix product per logger gives all scatters at once.  A batch is
centred by its own means before its products are taken, so no digits are lost.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines.sums import ROUNDED, Sums
from poolwise.moments.histogram import BINS, bins
from poolwise.moments.moments import LONGEST_TAIL, FloatArray, IntArray
from poolwise.moments.terms import UNSUPPORTED, Factor, Term
from poolwise.rows.reader import BadRowsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from poolwise.engines.program import Cross, Program
    from poolwise.log.policy import AnyArray
    from poolwise.rows.reader import Layout

LARGEST_DOUBLE = sys.float_info.max
ROWS_OF_GROUP, MOST_ROWS = 64, 65_536  # of a batch, where rows are split into many groups
ALIKE = 1e-13  # relative: rounding puts no mean of equal values further from them


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows ordered by logger.

    Attributes:
        ends: First row of each logger, and the number of rows, shape (g + 1,).
        columns: The columns of the layout, in that order.
    """

    ends: IntArray
    columns: Mapping[str, FloatArray]

    def __len__(self) -> int:
        return int(self.ends[-1])


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of each row of a batch.

    Attributes:
        batch: The rows.
        probs: Probability under each of the crossed loggers, shape (loggers, n).
        own: Probability under the row's own logger, shape (n,).
        mixture: Probability under the mixture, shape (n,).
        targets: Probability under each target.
        zeros: Whether some logger cannot play what some row played.
    """

    batch: Batch
    probs: FloatArray
    own: FloatArray
    mixture: FloatArray
    targets: Mapping[str, FloatArray]
    zeros: bool


class Kernel:
    """Turns batches of rows into sums; one for each thread.

    Args:
        layout: The columns that batches have.
        program: What is computed of them.
        floors: Values below them are known not to be among the largest of all, by tail
            and logger; shared by the kernels of one process.
    """

    def __init__(
        self, layout: Layout, program: Program, floors: FloatArray | None = None
    ) -> None:
        self.layout, self.program = layout, program
        self.floors = fresh_floors(layout, program) if floors is None else floors
        self._place = {label: k for k, label in enumerate(layout.crossed)}
        rows = program.rows
        self._factors = [(t.factors[0], row) for t, row in rows.items() if len(t.factors) == 1]
        self._products = [product(t, rows) for t in rows if len(t.factors) > 1]
        self._stems = [_slice([rows[s] for s in c.stems]) for c in program.crosses]
        self._tails = [rows[t] for t in program.needs.tails]
        self._blocks = [_slice(block.tolist()) for block in program.blocks]
        size = self.rows
        self._work = np.empty((len(program.rows), size))
        self._probs = np.empty((len(layout.crossed), size))
        self._spare = np.empty((2, size))
        self._crossed = [np.empty((len(c.factors), size)) for c in program.crosses]

    @property
    def rows(self) -> int:
        """Rows that a batch has at most: some for each group, of which each costs time."""
        wanted = min(ROWS_OF_GROUP * len(self.layout.groups), MOST_ROWS)
        return max(self.program.batch_rows, wanted)

    def __call__(self, codes: AnyArray, columns: Mapping[str, AnyArray]) -> Sums:
        """Sums of one batch; `codes` are places of loggers, shape (n,)."""
        batch = self._by_logger(codes, columns)
        with np.errstate(all="ignore"):  # infinite sums are refused where they end
            known = self._known(batch)
            self._fill(known)
            return self._sums(known)

    def _by_logger(self, codes: AnyArray, columns: Mapping[str, AnyArray]) -> Batch:
        """Rows in the order of their loggers; probabilities go to their place at once."""
        groups, n = len(self.layout.groups), len(codes)
        ends = np.concatenate([[0], np.bincount(codes, minlength=groups).cumsum()])
        ordered = bool((codes[1:] >= codes[:-1]).all())
        order = None if ordered else np.argsort(codes, kind="stable")
        probs = {f"p_{k}": self._probs[k, :n] for k in range(len(self._probs))}
        found = {}
        for name, values in columns.items():
            doubles = np.asarray(values, dtype=np.float64)
            if order is not None:
                doubles = doubles.take(order, mode="clip", out=probs.get(name))
            elif name in probs:
                np.copyto(probs[name], doubles)
            found[name] = doubles
        return Batch(ends, found)

    def _known(self, batch: Batch) -> Known:
        """The probabilities of a batch; logarithms relative to the row's largest."""
        layout, n = self.layout, len(batch)
        probs = self._probs[:, :n]
        own = self._own(batch, probs)
        _refuse_bad(batch, layout, probs, own)
        columns = dict(batch.columns)
        if layout.logs:
            top = np.max([own, *probs], axis=0)
            own = np.exp(own - top)
            np.exp(np.subtract(probs, top, out=probs), out=probs)
            for name, values in batch.columns.items():
                if name.startswith("t_") or name == "estimated_mixture":
                    columns[name] = np.exp(values - top)
        zeros = bool(probs.size) and not probs.min() > 0.0
        targets = {t: columns[f"t_{k}"] for k, t in enumerate(layout.targets)}
        if layout.mixture:
            mixture = columns["estimated_mixture"]
        else:
            mixture = np.matmul(np.array(layout.shares), probs, out=self._spare[0, :n])
        return Known(batch, probs, own, mixture, targets, zeros)

    def _own(self, batch: Batch, probs: FloatArray) -> FloatArray:
        """Probability under the row's own logger."""
        if self.layout.propensity:
            return batch.columns["propensity"]
        own = self._spare[1, : len(batch)]
        for place, rows in _of_loggers(self.layout, batch):
            own[rows] = probs[place, rows]
        return own

    def _fill(self, known: Known) -> None:
        """Every factor and every product, into its row of the workspace."""
        n, work = len(known.batch), self._work
        for factor, row in self._factors:
            self._factor(factor, known, work[row, :n])
        for row, first, second, rest in self._products:
            out = np.multiply(work[first, :n], work[second, :n], out=work[row, :n])
            for more in rest:
                np.multiply(out, work[more, :n], out=out)

    def _factor(self, factor: Factor, known: Known, out: FloatArray) -> None:
        columns, name = known.batch.columns, factor.name
        if name in {"reward", "predicted_reward"}:
            np.copyto(out, columns[name])
        elif name == "weight":
            np.divide(known.targets[factor.target], known.own, out=out)
        elif name == "balanced_weight":
            np.divide(known.targets[factor.target], known.mixture, out=out)
            _hold_back(factor, out)
        elif name == "ratio":
            np.divide(known.probs[self._place[factor.logger]], known.mixture, out=out)
        elif name == "overlap":
            np.divide(np.min(known.probs, axis=0), known.own, out=out)
        elif name == "predicted_value":
            np.copyto(out, columns[f"v_{self.layout.valued.index(factor.target)}"])
        elif name == "residual":
            np.subtract(columns["reward"], columns["predicted_reward"], out=out)
        else:
            self._of_logger(factor, known, out)

    def _of_logger(self, factor: Factor, known: Known, out: FloatArray) -> None:
        """Mixture over logger, or where the logger is zero."""
        prob = known.probs[self._place[factor.logger]]
        if factor.name == "unsupported":
            np.equal(prob, 0.0, out=out, casting="unsafe")
            return
        np.divide(known.mixture, prob, out=out)
        if known.zeros:
            out[prob == 0.0] = UNSUPPORTED

    def _sums(self, known: Known) -> Sums:
        batch, program, groups = known.batch, self.program, len(self.layout.groups)
        singles, extremes = len(program.singles), len(program.extremes)
        found = Sums(
            count=np.diff(batch.ends),
            means=np.zeros((groups, singles)),
            rest=np.zeros((groups, singles)),
            lowest=np.full((groups, extremes), np.inf),
            largest=np.full((groups, extremes), -np.inf),
            blocks=[np.zeros((groups, len(b), len(b))) for b in program.blocks],
            crossed=[np.zeros((groups, len(c.stems), len(c.factors))) for c in program.crosses],
            tails=[[np.empty(0)] * groups for _ in program.needs.tails],
            histograms=self._histograms(batch),
        )
        crossed = [
            self._columns(cross, known, out)
            for cross, out in zip(program.crosses, self._crossed, strict=True)
        ]
        for group in range(groups):
            first, last = batch.ends[group : group + 2]
            if first < last:
                self._add(found, group, slice(first, last), crossed)
        return found

    def _columns(self, cross: Cross, known: Known, out: FloatArray) -> FloatArray | None:
        """The loggers' columns of a cross; None where all of them are 0."""
        if cross.kind == "unsupported" and not known.zeros:
            return None
        out = out[:, : len(known.batch)]
        for row, factor in zip(out, cross.factors, strict=True):
            self._of_logger(factor, known, row)
        return out

    def _add(
        self, found: Sums, group: int, rows: slice, crossed: list[FloatArray | None]
    ) -> None:
        """What the rows of one logger add; their terms are centred on the way."""
        program = self.program
        singles = self._work[: len(program.singles), rows]
        head = singles[: len(program.extremes)]
        if len(head):
            found.lowest[group], found.largest[group] = head.min(axis=1), head.max(axis=1)
        for k, row in enumerate(self._tails):
            found.tails[k][group] = self._tail(k, group, self._work[row, rows])
        for stems, columns, sums in zip(self._stems, crossed, found.crossed, strict=True):
            if columns is not None:
                sums[group] = self._work[stems, rows] @ columns[:, rows].T
        means = singles.mean(axis=1)
        if program.blocks:
            singles -= means[:, None]
            _settle(singles, means)
            found.rest[group] = singles.mean(axis=1)
        found.means[group] = means
        for block, mine in zip(self._blocks, found.blocks, strict=True):
            values = singles[block]
            np.matmul(values, values.T, out=mine[group])

    def _tail(self, place: int, group: int, values: FloatArray) -> FloatArray:
        """Values that may be among the largest of this logger."""
        floor = self.floors[place, group]
        kept = values[values >= floor] if floor > -np.inf else values.copy()
        if len(kept) > LONGEST_TAIL:
            kept = np.partition(kept, -LONGEST_TAIL)[-LONGEST_TAIL:]
        return kept

    def together(self, batches: Iterable[tuple[AnyArray, Mapping[str, AnyArray]]]) -> Sums:
        """Sums of several batches, one at least."""
        total: Sums | None = None
        for codes, columns in batches:
            found = self(codes, columns)
            total = found if total is None else total.add(found, self.program)
            raise_floors(self.floors, total)
        if total is None:
            raise ValueError("there is no batch")
        return total

    def _histograms(self, batch: Batch) -> IntArray:
        """Rows of each logger in each bin."""
        groups, terms = len(self.layout.groups), self.program.needs.histograms
        found = np.zeros((len(terms), groups, BINS), dtype=np.int64)
        if not terms:
            return found
        starts = np.repeat(np.arange(groups) * BINS, np.diff(batch.ends))
        for k, term in enumerate(terms):
            places = bins(self._work[self.program.rows[term], : len(batch)])
            places += starts
            found[k] = np.bincount(places, minlength=groups * BINS).reshape(groups, BINS)
        return found


def _settle(centred: FloatArray, means: FloatArray) -> None:
    """Rows that are all alike have their value as mean, and no scatter from rounding."""
    for k in np.flatnonzero(np.abs(centred[:, 0]) <= ALIKE * np.abs(means)):
        if np.ptp(centred[k]) <= ROUNDED * abs(means[k]):
            means[k] += centred[k, 0]
            centred[k] = 0.0


def product(term: Term, rows: Mapping[Term, int]) -> tuple[int, int, int, tuple[int, ...]]:
    """Row of a product, and those that are multiplied: a square of what is there, if it is."""
    half = Term(term.factors[::2])
    if half.factors == term.factors[1::2] and half in rows:
        return rows[term], rows[half], rows[half], ()
    first, second, *rest = (rows[Term((f,))] for f in term.factors)
    return rows[term], first, second, tuple(rest)


def _slice(places: list[int]) -> slice | list[int]:
    """Rows that lie together as a slice: no copy is made of them."""
    first, last = places[0], places[-1] + 1
    return slice(first, last) if places == list(range(first, last)) else places


def fresh_floors(layout: Layout, program: Program) -> FloatArray:
    """Nothing is known yet of the largest values."""
    return np.full((len(program.needs.tails), len(layout.groups)), -np.inf)


def raise_floors(floors: FloatArray, found: Sums) -> None:
    """What is below the least of the largest values so far will not be among them."""
    for place, groups in enumerate(found.tails):
        for group, kept in enumerate(groups):
            if len(kept) == LONGEST_TAIL:
                floors[place, group] = max(floors[place, group], kept.min())


def _of_loggers(layout: Layout, batch: Batch) -> list[tuple[int, slice]]:
    """Place among the crossed loggers, and rows, of each logger that has both."""
    place = {label: k for k, label in enumerate(layout.crossed)}
    return [
        (place[label], slice(batch.ends[g], batch.ends[g + 1]))
        for g, label in enumerate(layout.groups)
        if label in place and batch.ends[g] < batch.ends[g + 1]
    ]


def _refuse_bad(batch: Batch, layout: Layout, probs: FloatArray, own: FloatArray) -> None:
    """The rules of `rows.rules.good`, for all rows at once; a NaN breaks each of them."""
    top, bottom = (0.0, -LARGEST_DOUBLE) if layout.logs else (1.0, 0.0)
    low = -np.inf if layout.logs else 0.0
    fine = [
        own.max() <= top,
        own.min() >= bottom if layout.logs else own.min() > bottom,
        *(_within(batch.columns[f"t_{k}"], low, top) for k in range(len(layout.targets))),
        *(_within(row, low, top) for row in probs),
    ]
    if layout.mixture:
        mixed = batch.columns["estimated_mixture"]
        fine += [mixed.min() > bottom, mixed.max() <= top]
    finite = ["reward", *(f"v_{k}" for k in range(len(layout.valued)))]
    finite += ["predicted_reward"] if layout.predicted else []
    fine += [_within(batch.columns[name], -LARGEST_DOUBLE, LARGEST_DOUBLE) for name in finite]
    if layout.propensity:
        fine += [
            _within(probs[k, rows] - own[rows], -layout.tolerance, layout.tolerance)
            for k, rows in _of_loggers(layout, batch)
        ]
    if not all(fine):
        raise BadRowsError


def _within(values: FloatArray, low: float, top: float) -> bool:
    return bool(values.min() >= low and values.max() <= top)


def _hold_back(factor: Factor, weight: FloatArray) -> None:
    """The weight as the rule of a factor leaves it."""
    bound = factor.bound
    if factor.rule == "clip":
        np.minimum(weight, bound, out=weight)
    elif factor.rule == "switch":
        weight[weight > bound] = 0.0
    elif factor.rule == "optimistic":
        weight *= bound / (weight * weight + bound)
