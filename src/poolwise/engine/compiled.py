"""Compiled: the kernel with its loops compiled, for who has installed ``poolwise[fast]``.

It gives the sums that `engine.kernel` gives, up to their last digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolwise.engine import loops
from poolwise.engine.kernel import BadRowsError, fresh_floors
from poolwise.engine.plan import SPARE, block_starts, plan_of, size_of
from poolwise.engine.sums import Sums, longest
from poolwise.moments import LONGEST_TAIL
from poolwise.statistics.histogram import BINS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from poolwise.engine.layout import Layout
    from poolwise.engine.program import Program
    from poolwise.moments import FloatArray
    from poolwise.policy import AnyArray

ROWS = 16_384  # of one batch: its columns stay near the processor while they are ordered
WORKSPACE = 16_384  # doubles of a chunk in all its rows: 128 kB, near the processor
FEWEST_ROWS, MOST_ROWS = 256, 1024  # of a chunk


class CompiledKernel:
    """What `engine.kernel.Kernel` is, made with the same arguments; one for each thread."""

    def __init__(
        self, layout: Layout, program: Program, floors: FloatArray | None = None
    ) -> None:
        self.layout, self.program = layout, program
        floors = fresh_floors(layout, program) if floors is None else floors
        groups, tails = len(layout.loggers), len(program.needs.tails)
        kept, counts = np.empty((tails, ROWS)), np.zeros((tails, groups), dtype=np.int64)
        self._tails = loops.Tails(floors, kept, counts)
        self._plan = plan_of(layout, program)
        self._columns = np.empty((len(layout.columns), ROWS))
        rows = len(program.rows) + SPARE
        self._work = np.empty((rows, int(np.clip(WORKSPACE // rows, FEWEST_ROWS, MOST_ROWS))))
        self._places = np.empty(ROWS, dtype=np.int32)
        self._ends = np.empty(groups + 1, dtype=np.int64)

    @property
    def rows(self) -> int:
        """Rows that a batch has at most."""
        return ROWS

    def together(self, batches: Iterable[tuple[AnyArray, Mapping[str, AnyArray]]]) -> Sums:
        """Sums of several batches, one at least."""
        state, tails = self._fresh(), self._no_tails()
        for codes, columns in batches:
            loops.places_of(codes, self._ends, self._places)
            for row, name in enumerate(self.layout.columns):
                values = np.asarray(columns[name], dtype=np.float64)
                loops.move(values, self._places, self._columns[row])
            plan, found = self._plan, self._tails
            if not loops.add_rows(plan, state, found, self._columns, self._ends, self._work):
                raise BadRowsError
            self._take_tails(tails)
        return self._sums(state, self._trimmed(tails))

    def _fresh(self) -> loops.State:
        program, groups = self.program, len(self.layout.loggers)
        singles, extremes = len(program.singles), len(program.extremes)
        return loops.State(
            rows=np.zeros(groups, dtype=np.int64),
            means=np.zeros((groups, singles)),
            rest=np.zeros((groups, singles)),
            lowest=np.full((groups, extremes), np.inf),
            largest=np.full((groups, extremes), -np.inf),
            products=np.zeros(groups * sum(len(b) ** 2 for b in program.blocks)),
            crossed=np.zeros(groups * sum(size_of(c) for c in program.crosses)),
            histograms=np.zeros((len(program.needs.histograms), groups, BINS), np.int64),
        )

    def _no_tails(self) -> list[list[FloatArray]]:
        groups = len(self.layout.loggers)
        return [[np.empty(0)] * groups for _ in self.program.needs.tails]

    def _take_tails(self, tails: list[list[FloatArray]]) -> None:
        """Keep what may be among the largest, and raise the floors by it."""
        floors, kept, counts = self._tails
        for t, ends in enumerate(counts.cumsum(axis=1).tolist()):
            for g in np.flatnonzero(counts[t]).tolist():
                mine = kept[t, ends[g] - counts[t, g] : ends[g]]
                tails[t][g] = longest(tails[t][g], mine.copy())
                if len(tails[t][g]) == LONGEST_TAIL:
                    floors[t, g] = max(floors[t, g], tails[t][g].min())

    def _trimmed(self, tails: list[list[FloatArray]]) -> list[list[FloatArray]]:
        """Without what other threads have found not to be among the largest."""
        floors = self._tails.floors
        return [
            [kept[kept >= floors[t, g]] for g, kept in enumerate(groups)]
            for t, groups in enumerate(tails)
        ]

    def _sums(self, state: loops.State, tails: list[list[FloatArray]]) -> Sums:
        groups = len(self.layout.loggers)
        blocks, crossed = [], []
        starts = block_starts(self.program, groups)
        for start, block in zip(starts, self.program.blocks, strict=False):
            shape = (groups, len(block), len(block))
            lower = state.products[start : start + np.prod(shape)].reshape(shape)
            upper = np.triu(np.ones(shape[1:], dtype=bool), 1)
            lower[:, upper] = lower.transpose(0, 2, 1)[:, upper]
            blocks.append(lower)
        for (*_, start), cross in zip(self._plan.crosses, self.program.crosses, strict=False):
            shape = (groups, len(cross.stems), len(cross.factors))
            crossed.append(state.crossed[start : start + np.prod(shape)].reshape(shape))
        return Sums(
            count=state.rows,
            means=state.means,
            rest=state.rest,
            lowest=state.lowest,
            largest=state.largest,
            blocks=blocks,
            crossed=crossed,
            tails=tails,
            histograms=state.histograms,
        )
