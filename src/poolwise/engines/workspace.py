"""Workspace: the arrays that compiled loops read and fill; one set for each thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from poolwise.engines.opcodes import SPARE, size_of
from poolwise.moments.histogram import BINS

if TYPE_CHECKING:
    from poolwise.engines.program import Program
    from poolwise.log.policy import AnyArray
    from poolwise.moments.moments import FloatArray, IntArray
    from poolwise.rows.reader import Layout

ROWS, MANY_ROWS = 16_384, 65_536  # that are ordered at once: they stay near the processor
MANY_GROUPS = 64  # of which each should find some rows among those
ENOUGH = 8192  # values of a tail after which its floor is raised before more are kept
WORK = 16_384  # doubles of a chunk in all its rows: 128 kB, near the processor
FEWEST_ROWS, MOST_ROWS = 256, 1024  # of a chunk


class Chunk(NamedTuple):
    """Rows of one logger that go through all steps together.

    Attributes:
        group: Place of the logger.
        first: First of them among the ordered rows.
        size: How many.
        columns: Columns of all ordered rows, shape (columns, rows).
        work: Rows of the workspace, see `Plan`.
    """

    group: int
    first: int
    size: int
    columns: FloatArray
    work: FloatArray


class State(NamedTuple):
    """What has been summed so far; see `engines.sums.Sums`."""

    rows: IntArray
    means: FloatArray
    rest: FloatArray
    lowest: FloatArray
    largest: FloatArray
    products: FloatArray
    crossed: FloatArray
    histograms: IntArray


class Tails(NamedTuple):
    """Values that may be among the largest.

    Attributes:
        floors: Values below them are not, shape (tails, loggers).
        kept: Those that may be, shape (tails, ENOUGH + rows).
        groups: Place of the logger of each, of the same shape.
        counts: How many there are of each, shape (tails,).
    """

    floors: FloatArray
    kept: FloatArray
    groups: AnyArray
    counts: IntArray


class Ordered(NamedTuple):
    """Rows ordered by logger, and room to work on them.

    Attributes:
        columns: Their columns, shape (columns, rows).
        places: Where each row went, shape (rows,).
        ends: Where each logger's rows begin, and where the last one's end.
        work: Rows of the workspace, see `Plan`.
    """

    columns: FloatArray
    places: AnyArray
    ends: IntArray
    work: FloatArray


def no_sums(layout: Layout, program: Program) -> State:
    """The state before the first row."""
    groups, singles, extremes = (
        len(layout.groups),
        len(program.singles),
        len(program.extremes),
    )
    return State(
        rows=np.zeros(groups, dtype=np.int64),
        means=np.zeros((groups, singles)),
        rest=np.zeros((groups, singles)),
        lowest=np.full((groups, extremes), np.inf),
        largest=np.full((groups, extremes), -np.inf),
        products=np.zeros(groups * sum(len(b) ** 2 for b in program.blocks)),
        crossed=np.zeros(groups * sum(size_of(c) for c in program.crosses)),
        histograms=np.zeros((len(program.needs.histograms), groups, BINS), np.int64),
    )


def no_tails(layout: Layout, program: Program, floors: FloatArray) -> Tails:
    """Room for what may be among the largest."""
    tails = len(program.needs.tails)
    shape = (tails, ENOUGH + _at_once(layout))
    groups = np.empty(shape, dtype=np.int32)
    return Tails(floors, np.empty(shape), groups, np.zeros(tails, dtype=np.int64))


def room(layout: Layout, program: Program) -> Ordered:
    """Room for rows and for the work on them."""
    rows, at_once = len(program.rows) + SPARE, _at_once(layout)
    return Ordered(
        columns=np.empty((len(layout.columns), at_once)),
        places=np.empty(at_once, dtype=np.int32),
        ends=np.empty(len(layout.groups) + 1, dtype=np.int64),
        work=np.empty((rows, int(np.clip(WORK // rows, FEWEST_ROWS, MOST_ROWS)))),
    )


def _at_once(layout: Layout) -> int:
    """Rows that are ordered at once."""
    return ROWS if len(layout.groups) <= MANY_GROUPS else MANY_ROWS
