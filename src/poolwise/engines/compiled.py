"""Compiled: the kernel with its loops compiled, for who has installed ``poolwise[fast]``.

It gives the sums that `engines.kernel` gives, up to their last digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines import loops
from poolwise.engines.kernel import fresh_floors
from poolwise.engines.opcodes import block_starts, plan_of
from poolwise.engines.sums import Sums, longest
from poolwise.engines.workspace import no_sums, no_tails, room
from poolwise.moments.moments import LONGEST_TAIL
from poolwise.rows.reader import BadRowsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from poolwise.engines.program import Program
    from poolwise.engines.workspace import State
    from poolwise.log.policy import AnyArray
    from poolwise.moments.moments import FloatArray
    from poolwise.rows.reader import Layout

ROWS = 131_072  # of one batch: between batches threads wait for each other


class CompiledKernel:
    """What `engines.kernel.Kernel` is, made with the same arguments; one for each thread."""

    def __init__(
        self, layout: Layout, program: Program, floors: FloatArray | None = None
    ) -> None:
        self.layout, self.program = layout, program
        floors = fresh_floors(layout, program) if floors is None else floors
        self._plan = plan_of(layout, program)
        self._tails = no_tails(layout, program, floors)
        self._own = (tuple(self._plan), tuple(self._tails), tuple(room(layout, program)))

    @property
    def rows(self) -> int:
        """Rows that a batch has at most."""
        return ROWS

    def together(self, batches: Iterable[tuple[AnyArray, Mapping[str, AnyArray]]]) -> Sums:
        """Sums of several batches, one at least."""
        state, tails = no_sums(self.layout, self.program), self._no_tails()
        self._tails.counts[:] = 0  # a bad row may have left some
        for codes, columns in batches:
            arrays = [
                np.ascontiguousarray(columns[name], dtype=np.float64)
                for name in self.layout.columns
            ]
            at = np.array([a.__array_interface__["data"][0] for a in arrays], dtype=np.int64)
            plan, found, ordered = self._own
            places, done = codes.astype(np.uint32), 0  # one type: compiled once
            while done < len(codes):
                done = loops.add_batch(plan, tuple(state), found, ordered, places, at, done)
                if done < 0:
                    raise BadRowsError
                self._take_tails(tails)
        return self._sums(state, self._trimmed(tails))

    def _no_tails(self) -> list[list[FloatArray]]:
        groups = len(self.layout.groups)
        return [[np.empty(0)] * groups for _ in self.program.needs.tails]

    def _take_tails(self, tails: list[list[FloatArray]]) -> None:
        """Keep what may be among the largest, and raise the floors by it."""
        floors, kept, groups, counts = self._tails
        for t in np.flatnonzero(counts).tolist():
            of = groups[t, : counts[t]]
            values = kept[t, np.argsort(of, kind="stable")]
            sizes = np.bincount(of)
            ends = np.cumsum(sizes)
            for g in np.flatnonzero(sizes).tolist():
                mine = values[ends[g] - sizes[g] : ends[g]]
                tails[t][g] = longest(tails[t][g], mine)
                if len(tails[t][g]) == LONGEST_TAIL:
                    floors[t, g] = max(floors[t, g], tails[t][g].min())
        counts[:] = 0

    def _trimmed(self, tails: list[list[FloatArray]]) -> list[list[FloatArray]]:
        """Without what other threads have found not to be among the largest."""
        floors = self._tails.floors
        return [
            [kept[kept >= floors[t, g]] for g, kept in enumerate(groups)]
            for t, groups in enumerate(tails)
        ]

    def _sums(self, state: State, tails: list[list[FloatArray]]) -> Sums:
        groups = len(self.layout.groups)
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
