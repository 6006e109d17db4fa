"""Kernel: turns batches of rows into sums of products, in compiled code.

`program` says what the code computes, ``native/kernel.c`` does it.  Rows are ordered by
group and go through all steps in blocks of some hundred rows.  Each block is centred
before its products are taken, which keeps the digits of means that are large
compared with the standard deviation.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines.compiled import TYPES, Input, Totals, add
from poolwise.engines.program import with_room, write_program
from poolwise.engines.sums import add_tail, fresh_floors, no_sums, raise_floors
from poolwise.rows.layout import BadRowsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolwise.engines.compiled import Program
    from poolwise.engines.sums import Sums
    from poolwise.engines.workspace import Workspace
    from poolwise.moments.terms import Term
    from poolwise.rows.layout import Layout
    from poolwise.types import AnyArray, FloatArray, IntArray

FIRST_ROWS = 32_768  # of a batch before the floors of tails are raised
MOST_LISTED = 8_192  # values of a tail that are merged together
ROWS_OF_GROUP, MOST_ROWS = 64, 65_536  # of a batch, where rows are split into many groups


class Kernel:
    """Turns batches of rows into sums; each thread has its own.

    Args:
        layout: Columns of the batches.
        workspace: Terms and products to compute.
        floors: Least value that may be among the largest, by tail and logger; the kernels
            of one process share it.
        program: That of a kernel in another thread.
    """

    def __init__(
        self,
        layout: Layout,
        workspace: Workspace,
        floors: FloatArray | None = None,
        program: Program | None = None,
    ) -> None:
        self.layout, self.workspace = layout, workspace
        self.floors = fresh_floors(layout, workspace) if floors is None else floors
        self._columns = layout.columns
        self._shared = program or write_program(layout, workspace, self.floors)
        self._listed = np.zeros(len(self.floors), dtype=np.int64)  # values of each tail
        self._room: tuple[FloatArray, AnyArray] | None = None  # for these, and their strata

    @cached_property
    def _program(self) -> Program:
        return with_room(self._shared)

    def copy(self) -> Kernel:
        """Return a kernel of the same program for another thread."""
        return Kernel(self.layout, self.workspace, self.floors, self._shared)

    @property
    def rows(self) -> int:
        """Largest number of rows of a batch; more where each group would have few."""
        many = min(ROWS_OF_GROUP * len(self.layout.groups), MOST_ROWS)
        return max(self.workspace.batch_rows, many)

    def together(self, batches: Iterable[tuple[AnyArray, Mapping[str, AnyArray]]]) -> Sums:
        """Return the sums of several batches, at least one."""
        sums: Sums | None = None
        for codes, columns in batches:
            sums = no_sums(self.layout, self.workspace) if sums is None else sums
            for rows in self._cuts(len(codes)):
                part = {name: columns[name][rows] for name in self._columns}
                self._add(sums, codes[rows], part)
                if self._listed.max(initial=0) > MOST_LISTED:
                    self._merge_tails(sums)
        if sums is None:
            raise ValueError("there is no batch")
        self._merge_tails(sums)
        return sums

    def _cuts(self, rows: int) -> list[slice]:
        """Cut the first batch early: until floors are raised, tails list each value.

        Sums do not depend on it, since a cut is where rows are ordered anew.
        """
        if not np.isneginf(self.floors).any():
            return [slice(0, rows)]
        part = self._program.part
        first = min(max(FIRST_ROWS // part, 1) * part, rows)
        return [slice(0, first), slice(first, rows)] if first < rows else [slice(0, rows)]

    def values(
        self, codes: AnyArray, columns: Mapping[str, AnyArray], terms: Sequence[Term]
    ) -> tuple[IntArray, FloatArray]:
        """Return where the groups of a batch end, and the values of single terms by group."""
        singles, groups = self.workspace.singles, len(self.layout.groups)
        values = np.empty((len(singles), len(codes)))
        ends = np.concatenate([[0], np.bincount(codes, minlength=groups).cumsum()])
        sums = no_sums(self.layout, self.workspace)
        self._add(sums, codes, columns, values=values, starts=ends)
        self._listed[:] = 0
        return ends, values[[singles.index(term) for term in terms]]

    def _add(
        self, sums: Sums, codes: AnyArray, columns: Mapping[str, AnyArray], **more: AnyArray
    ) -> None:
        """Add a batch to sums; `codes` are the groups of its rows."""
        rows = len(codes)
        arrays = [_align_column(columns[name]) for name in self._columns]
        large, strata = self._room_for_tails(sums, rows)
        batch, totals = Input(rows=rows, before=int(sums.count.sum())), Totals()
        batch.set(
            columns=np.array([array.ctypes.data for array in arrays], dtype=np.uintp),
            types=np.array([TYPES.index(array.dtype) for array in arrays], dtype=np.int64),
            codes=np.ascontiguousarray(codes, dtype=np.int32),
            tail_room=large.shape[1],
            tails=large,
            tail_strata=strata,
            tail_rows=self._listed,
            **more,
        )
        totals.set(**sums.arrays)
        if not add(self._program, batch, totals):
            raise BadRowsError

    def _room_for_tails(self, sums: Sums, rows: int) -> tuple[FloatArray, AnyArray]:
        """Return room for the values of tails, and their strata, if each row is listed."""
        if self._room is None or self._room[0].shape[1] < rows + MOST_LISTED:
            self._merge_tails(sums)
            shape = len(self._listed), rows + MOST_LISTED
            self._room = np.empty(shape), np.empty(shape, dtype=np.int32)
        return self._room

    def _merge_tails(self, sums: Sums) -> None:
        """Add the values of tails that were listed, and raise the floors."""
        if self._room is None:
            return
        values, strata = self._room
        for k, size in enumerate(self._listed.tolist()):
            add_tail(sums.tails[k], strata[k, :size], values[k, :size])
        self._listed[:] = 0
        raise_floors(self.floors, sums)


def _align_column(column: AnyArray) -> AnyArray:
    """Return a column as adjacent numbers of a type that the compiled code reads."""
    kind = column.dtype if column.dtype in TYPES else np.float64
    return np.ascontiguousarray(column, dtype=kind)
