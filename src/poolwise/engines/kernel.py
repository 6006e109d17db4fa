"""Kernel: turns a batch of rows into sums of products, by matrix products.

Rows are ordered by logger, so that the rows of each logger are adjacent.  Each factor and
term of the `Workspace` is computed once, into its row of a matrix; then a few matrix
products per logger give all sums and products.  Each batch is centred by its own means
before its products are taken, which keeps the digits of means that are large compared with
the standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines.groups import Groups, order_of, runs
from poolwise.engines.sums import (
    ROUNDED,
    Sums,
    fresh_floors,
    longest,
    no_sums,
    raise_floors,
    set_spans,
)
from poolwise.engines.workspace import ONE, adjacent, factors_of, runs_of, shrink, smooth
from poolwise.moments.tallies import BINS, bins, deal
from poolwise.moments.terms import LOG_GAINS, REWARD, UNSUPPORTED, Factor, Term
from poolwise.rows.periods import PeriodMixtures
from poolwise.rows.reader import BadRowsError
from poolwise.rows.roles import LARGEST, SMALLEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from poolwise.engines.workspace import Cross, Workspace
    from poolwise.log.policy import AnyArray
    from poolwise.moments.moments import FloatArray, IntArray
    from poolwise.rows.roles import Layout

ROWS_OF_GROUP, MOST_ROWS = 64, 65_536  # of a batch, where rows are split into many groups
PADDING = 24  # doubles between the rows of a matrix
SPARSE = 4  # rewarded rows are picked out if at most one in so many is
ALIKE = 1e-13  # relative distance of equal values from their mean, at most


@dataclass(frozen=True, eq=False)
class OrderedRows:
    """Rows of some loggers, ordered by logger.

    Attributes:
        ends: First row of each logger, and the number of rows, shape (g + 1,).
        groups: The loggers that have rows.
        columns: Columns of the layout, with the probabilities ``own`` (of the logger that
            wrote the row) and ``mixture``, each of shape (n,).
        probs: Probabilities under the crossed loggers, shape (loggers, n).
        zeros: Whether one of `probs` is 0.
    """

    ends: IntArray
    groups: Groups
    columns: Mapping[str, FloatArray]
    probs: FloatArray
    zeros: bool

    def __len__(self) -> int:
        return int(self.ends[-1])


class Kernel:
    """Turns batches of rows into sums; each thread has its own.

    Args:
        layout: Columns of the batches.
        workspace: Rows and products to compute.
        floors: Least value that may be among the largest, by tail and logger; the kernels
            of one process share it.
    """

    def __init__(
        self, layout: Layout, workspace: Workspace, floors: FloatArray | None = None
    ) -> None:
        self.layout, self.workspace = layout, workspace
        self.floors = fresh_floors(layout, workspace) if floors is None else floors
        self._crossed = {label: k for k, label in enumerate(layout.crossed)}
        self._places = np.array([self._crossed.get(label, -1) for label in layout.groups])
        self._names = (*layout.columns, "own", "mixture", "period_mixture")
        self._periods = PeriodMixtures(layout.cells, layout.period_shares)
        self._limits = np.array(list(layout.limits.values())).T
        rows = workspace.rows
        self._factors = [(t.factors[0], row) for t, row in rows.items() if len(t.factors) == 1]
        self._terms = [factors_of(t, rows) for t in rows if len(t.factors) > 1]
        self._stems = [adjacent([rows[s] for s in c.stems]) for c in workspace.crosses]
        self._extremes = runs_of([rows[t] for t in workspace.needs.extremes])
        self._tails = [rows[t] for t in workspace.needs.tails]
        self._histograms = [rows[t] for t in workspace.needs.histograms]
        self._slices = runs_of([rows[t] for t in workspace.needs.slices])
        self._powers = runs_of([rows[t] for t in workspace.needs.powers])
        sides = [[rows[Term(t.factors[:n])] for t in workspace.cubes] for n in (1, 2)]
        self._cubes = [(slice(a, a + 1), slice(b, b + 1)) for a, b in zip(*sides, strict=True)]
        sliced = {rows[t] for t in workspace.needs.slices}
        self._unsliced = runs_of([k for k in range(len(workspace.singles)) if k not in sliced])
        self._columns = _matrix(len(self._names), self.rows)
        self._work = _matrix(len(rows), self.rows)
        self._work[rows[ONE]] = 1.0
        self._of_loggers = [_matrix(len(c.factors), self.rows) for c in workspace.crosses]

    @property
    def rows(self) -> int:
        """Largest number of rows of a batch; more where each group would have few."""
        many = min(ROWS_OF_GROUP * len(self.layout.groups), MOST_ROWS)
        return max(self.workspace.batch_rows, many)

    def __call__(self, codes: AnyArray, columns: Mapping[str, AnyArray]) -> Sums:
        """Return the sums of one batch; `codes` are the groups of the rows, shape (n,)."""
        with np.errstate(all="ignore"):  # callers reject infinite sums
            ends, order = self._gather(codes, columns)
            sums = no_sums(np.diff(ends), self.workspace, len(self.layout.strata))
            set_spans(sums, ends, order)
            for groups in runs(ends):
                self._add(sums, groups, ends)
            return sums

    def values(
        self, codes: AnyArray, columns: Mapping[str, AnyArray]
    ) -> tuple[IntArray, FloatArray]:
        """Return where the groups of a batch end, and its rows of the workspace by group."""
        with np.errstate(all="ignore"):
            ends, _ = self._gather(codes, columns)
            rows = self._checked(slice(0, len(self.layout.groups)), ends)
            self._fill(rows)
        return ends, self._work[:, : len(rows)]

    def together(self, batches: Iterable[tuple[AnyArray, Mapping[str, AnyArray]]]) -> Sums:
        """Return the sums of several batches, at least one."""
        total: Sums | None = None
        for codes, columns in batches:
            sums = self(codes, columns)
            total = sums if total is None else total.add(sums, self.workspace)
            raise_floors(self.floors, total)
        if total is None:
            raise ValueError("there is no batch")
        return total

    def _gather(
        self, codes: AnyArray, columns: Mapping[str, AnyArray]
    ) -> tuple[IntArray, IntArray | None]:
        """Copy the columns with rows ordered by group; return the ends and the order."""
        order, ends = order_of(codes, len(self.layout.groups))
        for name, row in zip(self.layout.columns, self._columns, strict=False):
            out = row[: len(codes)]
            if order is None:
                out[:] = columns[name]
            else:
                doubles = np.asarray(columns[name], dtype=np.float64)
                doubles.take(order, mode="clip", out=out)
        return ends, order

    def _checked(self, groups: slice, ends: IntArray) -> OrderedRows:
        """Check the rows of adjacent groups, and compute own probability and mixture."""
        layout = self.layout
        matrix = self._columns[:, ends[groups.start] : ends[groups.stop]]
        values, (lows, tops) = matrix[: len(layout.columns)], self._limits
        if not ((values.min(axis=1) >= lows) & (values.max(axis=1) <= tops)).all():
            raise BadRowsError
        columns = dict(zip(self._names, matrix, strict=True))
        probs = matrix[1 : 1 + len(layout.crossed)]
        ends = ends[groups.start : groups.stop + 1] - ends[groups.start]
        present = Groups.between(groups.start, ends)
        self._set_own(present, columns, probs)
        if layout.logs:
            _take_exp(columns, np.maximum(columns["own"], probs.max(axis=0, initial=-np.inf)))
        if layout.mixture:
            np.copyto(columns["mixture"], columns["estimated_mixture"])
        elif layout.segmented:
            self._periods.fill(columns["mixture"], groups, ends, probs, columns["own"])
        else:
            np.matmul(np.array(layout.shares), probs, out=columns["mixture"])
        if layout.cells:
            self._periods.fill(columns["period_mixture"], groups, ends, probs, columns["own"])
        return OrderedRows(
            ends, present, columns, probs, zeros=not probs.min(initial=1.0) > 0.0
        )

    def _set_own(
        self, groups: Groups, columns: dict[str, FloatArray], probs: FloatArray
    ) -> None:
        """Set the probability under the logger that wrote the row, and check it."""
        layout = self.layout
        if layout.propensity:
            columns["own"] = columns["propensity"]
        own = columns["own"]
        places = self._places[groups.numbers]
        prob = groups.chosen(probs, places) if len(probs) else own
        if (places < 0).any():  # rows of other loggers have only their own propensity
            prob = np.where(groups.spread(places) >= 0, prob, own)
        if not layout.propensity:
            np.copyto(own, prob)
        elif not np.abs(prob - own).max() <= layout.tolerance:
            raise BadRowsError
        if not own.min() >= (-LARGEST if layout.logs else SMALLEST):
            raise BadRowsError

    def _fill(self, rows: OrderedRows) -> None:
        """Compute each factor and each product, into its row of the workspace."""
        work = self._work[:, : len(rows)]
        for factor, row in self._factors:
            self._factor(factor, rows, work[row])
        for row, first, second, rest in self._terms:
            out = np.multiply(work[first], work[second], out=work[row])
            for more in rest:
                np.multiply(out, work[more], out=out)

    def _factor(self, factor: Factor, rows: OrderedRows, out: FloatArray) -> None:
        columns, name = rows.columns, factor.name
        if name in {"reward", "predicted_reward"}:
            np.copyto(out, columns[name])
        elif name == "weight":
            np.divide(columns[self._target(factor)], columns["own"], out=out)
        elif name == "balanced_weight":
            np.divide(columns[self._target(factor)], columns["mixture"], out=out)
            shrink(factor, out)
        elif name in LOG_GAINS:
            below = columns["own" if name == "log_gain" else "mixture"]
            smooth(
                factor,
                np.divide(columns[self._target(factor)], below, out=out),
                columns["reward"],
            )
        elif name == "period_weight":
            np.divide(columns[self._target(factor)], columns["period_mixture"], out=out)
        elif name in {"ratio", "period_ratio"}:
            mixture = columns[name.replace("ratio", "mixture")]
            np.divide(rows.probs[self._crossed[factor.logger]], mixture, out=out)
        elif name == "overlap":
            np.divide(rows.probs.min(axis=0, out=out), columns["own"], out=out)
        elif name == "predicted_value":
            np.copyto(out, columns[f"v_{self.layout.valued.index(factor.target)}"])
        elif name == "residual":
            np.subtract(columns["reward"], columns["predicted_reward"], out=out)
        else:
            self._of_logger(factor, rows, out)

    def _target(self, factor: Factor) -> str:
        return f"t_{self.layout.targets.index(factor.target)}"

    def _of_logger(self, factor: Factor, rows: OrderedRows, out: FloatArray) -> None:
        """Compute mixture over logger or period, or the indicator of a logger's zeros."""
        if factor.name == "inverse_period":
            prob = self._periods.mixture(factor.logger, rows.probs)
        else:
            prob = rows.probs[self._crossed[factor.logger]]
        if factor.name == "unsupported":
            np.equal(prob, 0.0, out=out, casting="unsafe")
            return
        np.divide(rows.columns["mixture"], prob, out=out)
        if rows.zeros:
            out[prob == 0.0] = UNSUPPORTED

    def _add(self, sums: Sums, groups: slice, ends: IntArray) -> None:
        """Add the rows of adjacent groups."""
        rows = self._checked(groups, ends)
        self._fill(rows)
        self._count_bins(sums, groups, rows)
        of_loggers = [
            self._logger_columns(cross, rows, out)
            for cross, out in zip(self.workspace.crosses, self._of_loggers, strict=True)
        ]
        present, work = rows.groups, self._work[:, : len(rows)]
        self._add_raw(sums, present, work)
        for stems, columns, crossed in zip(self._stems, of_loggers, sums.crossed, strict=True):
            if columns is not None:
                crossed[present.numbers] = present.products(work[stems], columns)
        self._add_centred(sums, present, work[: sums.means.shape[1]])

    def _logger_columns(
        self, cross: Cross, rows: OrderedRows, out: FloatArray
    ) -> FloatArray | None:
        """Compute the loggers' columns of a cross; None if all of them are 0."""
        if cross.kind == "unsupported" and not rows.zeros:
            return None
        out = out[:, : len(rows)]
        for factor, column in zip(cross.factors, out, strict=True):
            self._of_logger(factor, rows, column)
        return out

    def _add_raw(self, sums: Sums, groups: Groups, work: FloatArray) -> None:
        """Add the extremes, tails, cubes, slices and powers of each group."""
        numbers = groups.numbers
        for places, rows in self._extremes:
            sums.lowest[numbers, places] = groups.lowest(work[rows]).T
            sums.largest[numbers, places] = groups.largest(work[rows]).T
        for k, (column, square) in enumerate(self._cubes):
            sums.cubes[numbers, k] = groups.dots(work[column], work[square])[0]
        for k, row in enumerate(self._tails):
            self._add_tail(sums.tails[k], self.floors[k], groups, work[row])
        for places, rows in self._slices:
            for number, span in zip(numbers.tolist(), groups.spans, strict=True):
                deal(work[rows, span], sums.slices[number, places])
        if self._powers:
            self._add_powers(sums, groups, work)

    def _add_powers(self, sums: Sums, groups: Groups, work: FloatArray) -> None:
        """Add the powers of the rewards and their products, which are 0 without a reward."""
        seen = work[self.workspace.rows[REWARD]] != 0.0
        few = SPARSE * np.count_nonzero(seen) < len(seen)
        rewarded = np.flatnonzero(seen) if few else None
        rewarding = groups if rewarded is None else groups.among(rewarded)
        for places, rows in self._powers:
            values = work[rows] if rewarded is None else work[rows].take(rewarded, axis=1)
            sums.powers[rewarding.numbers, places] = rewarding.powers(values)

    def _count_bins(self, sums: Sums, groups: slice, rows: OrderedRows) -> None:
        """Add the histograms of adjacent groups: one call for all of them."""
        sizes, strata = np.diff(rows.ends), len(self.layout.strata)
        into = groups if self.layout.buckets == 1 else slice(0, strata)
        places = np.arange(groups.start, groups.stop) % strata - into.start
        starts = np.repeat(places * BINS, sizes)
        for k, row in enumerate(self._histograms):
            numbers = bins(self._work[row, : len(rows)])
            if len(sizes) > 1:
                numbers += starts
            counts = np.bincount(numbers, minlength=(into.stop - into.start) * BINS)
            sums.histograms[k, into] += counts.reshape(-1, BINS)

    def _add_tail(
        self, tails: list[FloatArray], floors: FloatArray, groups: Groups, values: FloatArray
    ) -> None:
        """Add the values that may be among the largest of their stratum."""
        strata = groups.numbers % len(self.layout.strata)
        large = values >= groups.spread(floors[strata])
        if len(strata) == 1:
            tails[strata[0]] = longest(tails[strata[0]], values[large])
            return
        of_rows = groups.spread(strata)[large]
        for stratum in {*strata.tolist()}:
            tails[stratum] = longest(tails[stratum], values[large][of_rows == stratum])

    def _add_centred(self, sums: Sums, groups: Groups, singles: FloatArray) -> None:
        """Add the means and products of the rows of each group; centres them in place."""
        workspace, numbers = self.workspace, groups.numbers
        ones = workspace.rows[ONE]
        means = np.empty((len(singles), len(numbers)))
        for places, rows in self._slices:
            means[rows] = sums.slices[numbers, places].sum(axis=-1).T
        for _, rows in self._unsliced:
            means[rows] = groups.sums(singles[rows], singles[ones : ones + 1])
        means /= groups.counts
        means[ones] = 0.0
        singles -= groups.spread(means)
        _settle(singles, means, groups)
        for product in workspace.products:
            left, right = singles[product.rows], singles[product.columns]
            if product.each:
                result = groups.dots(left, right).T
            else:
                result = groups.products(left, right).reshape(len(numbers), -1)
            sums.products[numbers, product.pairs] = result[:, product.entries]
        pairs, others = workspace.sums
        sums.means[numbers] = means.T
        rest = sums.products[numbers][:, pairs] / groups.counts[:, None]
        sums.rest[numbers[:, None], others] = rest


def _matrix(rows: int, columns: int) -> FloatArray:
    """Return room for a matrix; rows a power of two apart would compete for the cache."""
    return np.empty((rows, columns + PADDING))[:, :columns]


def _settle(centred: FloatArray, means: FloatArray, groups: Groups) -> None:
    """Give rows that are all alike their value as mean, and no scatter from rounding."""
    alike = np.abs(centred[:, groups.starts]) <= ALIKE * np.abs(means)
    for k, group in np.argwhere(alike & (means != 0.0)).tolist():
        rows = centred[k, groups.spans[group]]
        if np.ptp(rows) <= ROUNDED * abs(means[k, group]):
            means[k, group] += rows[0]
            rows[:] = 0.0


def _take_exp(columns: Mapping[str, FloatArray], top: FloatArray) -> None:
    """Turn logarithms into probabilities, relative to the largest of each row."""
    for name, values in columns.items():
        if name in {"own", "estimated_mixture"} or name.startswith(("p_", "t_")):
            np.exp(np.subtract(values, top, out=values), out=values)
