"""Plan: a program in numbers, for loops that are compiled.

Compiled code knows arrays and numbers, no terms and no dictionaries; so every row of the
workspace, every column and every step of a `Program` is written down as a number here.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from poolwise.engines.kernel import LARGEST_DOUBLE, product
from poolwise.moments.terms import OVERLAP, Factor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolwise.engines.program import Cross, Program
    from poolwise.moments.moments import FloatArray, IntArray
    from poolwise.rows.reader import Layout

LEAST = float(np.nextafter(0.0, 1.0))  # the smallest positive double
(
    COPY,
    DIVIDE,
    MULTIPLY,
    SUBTRACT,
    CLIP,
    SWITCH,
    OPTIMISTIC,
    INVERSE,
    IS_ZERO,
) = range(9)
KINDS = {"inverse_ratio": INVERSE, "unsupported": IS_ZERO}
RULES = {"clip": CLIP, "switch": SWITCH, "optimistic": OPTIMISTIC}
SPARE = 4  # rows beside those of the program: own, mixture, overlap, a logger's column


class Plan(NamedTuple):
    """What is done with each chunk; rows are those of the workspace.

    Attributes:
        lows: Least value of each column.
        tops: Largest value of each.
        powers: Columns that are logarithms.
        own: Row of the probability under the row's own logger.
        mixture: Row of the probability under the mixture.
        overlap: Row of the smallest probability, over that of the own logger.
        propensity: Column of the own probability, or -1.
        given: Column of the mixture, or -1.
        places: Column of each logger's probability, or -1.
        shares: Share of each crossed logger; their columns are those from 1 on.
        least: The own probability must not be less.
        tolerance: How far the own probability may be from that of the logger's column.
        steps: Kind, and rows of the result and of two operands, shape (steps, 4).
        bounds: Number that a step takes, shape (steps,).
        fours: A row, how many others it is multiplied with, the products of one logger,
            up to four others, and the places of their products, shape (fours, 11).
        stems: Rows of the stems of all crosses.
        columns: Columns of the loggers of all crosses.
        kinds: Kind of step that makes the columns of each cross.
        crosses: First stem, first column and first sum, of each cross.
        tails: Rows whose largest values are kept.
        histograms: Rows whose values are counted by bin.
    """

    lows: FloatArray
    tops: FloatArray
    powers: IntArray
    own: int
    mixture: int
    overlap: int
    propensity: int
    given: int
    places: IntArray
    shares: FloatArray
    least: float
    tolerance: float
    steps: IntArray
    bounds: FloatArray
    fours: IntArray
    stems: IntArray
    columns: IntArray
    kinds: IntArray
    crosses: IntArray
    tails: IntArray
    histograms: IntArray


def plan_of(layout: Layout, program: Program) -> Plan:
    """A program in numbers."""
    column = {name: k for k, name in enumerate(layout.columns)}
    place = {label: 1 + k for k, label in enumerate(layout.crossed)}
    rows, groups, crosses = program.rows, len(layout.groups), program.crosses
    lows, tops = _ranges(layout)
    steps = _steps(layout, program)
    return Plan(
        lows=lows,
        tops=tops,
        powers=_ints(k for name, k in column.items() if layout.logs and _probability(name)),
        own=len(rows),
        mixture=len(rows) + 1,
        overlap=rows.get(OVERLAP, len(rows) + 2),
        propensity=column.get("propensity", -1),
        given=column.get("estimated_mixture", -1),
        places=_ints(place.get(label, -1) for label in layout.groups),
        shares=np.array(layout.shares, dtype=np.float64),
        least=-LARGEST_DOUBLE if layout.logs else LEAST,
        tolerance=layout.tolerance,
        steps=np.array([step[:4] for step in steps], dtype=np.int64).reshape(-1, 4),
        bounds=np.array([step[4] for step in steps], dtype=np.float64),
        fours=_fours(program, groups),
        stems=_ints(rows[stem] for cross in crosses for stem in cross.stems),
        columns=_ints(place[f.logger] for cross in crosses for f in cross.factors),
        kinds=_ints(KINDS[cross.kind] for cross in crosses),
        crosses=_starts((len(c.stems), len(c.factors), groups * size_of(c)) for c in crosses),
        tails=_ints(rows[t] for t in program.needs.tails),
        histograms=_ints(rows[t] for t in program.needs.histograms),
    )


def block_starts(program: Program, groups: int) -> list[int]:
    """Where the products of each block begin, and where they end."""
    return list(accumulate((groups * len(b) ** 2 for b in program.blocks), initial=0))


def _fours(program: Program, groups: int) -> IntArray:
    """The pairs of each block that are wanted, see `Plan`."""
    found, where = [], program.scatter_places
    for start, block in zip(block_starts(program, groups), program.blocks, strict=False):
        wide = len(block)
        wanted = program.asked[np.ix_(where[block], where[block])]
        for i, row in enumerate(block.tolist()):
            others = np.flatnonzero(wanted[i, : i + 1]).tolist()
            for first in range(0, len(others), 4):
                some = others[first : first + 4]
                four = [*some, *[some[0]] * (4 - len(some))]
                rows, places = block[four].tolist(), [start + i * wide + j for j in four]
                found.append([row, len(some), wide * wide, *rows, *places])
    return np.array(found, dtype=np.int64).reshape(-1, 11)


def _steps(layout: Layout, program: Program) -> list[tuple[int, int, int, int, float]]:
    """Kind, row of the result, two operands and a bound; first factors, then products."""
    rows, found = program.rows, []
    for term, row in rows.items():
        if len(term.factors) == 1 and term != OVERLAP:
            found += _factor(term.factors[0], row, layout, len(rows))
    for term in rows:
        if len(term.factors) > 1:
            row, first, second, rest = product(term, rows)
            found.append((MULTIPLY, row, first, second, 0.0))
            found += [(MULTIPLY, row, row, more, 0.0) for more in rest]
    return found


def _factor(
    factor: Factor, row: int, layout: Layout, own: int
) -> list[tuple[int, int, int, int, float]]:
    """Steps to one factor; a column is named by a negative number."""
    column = {name: -1 - k for k, name in enumerate(layout.columns)}
    name, mixture = factor.name, own + 1
    if name in {"weight", "balanced_weight"}:
        target = column[f"t_{layout.targets.index(factor.target)}"]
        steps = [(DIVIDE, row, target, own if name == "weight" else mixture, 0.0)]
        if factor.rule:
            steps.append((RULES[factor.rule], row, row, row, factor.bound))
        return steps
    if name == "residual":
        return [(SUBTRACT, row, column["reward"], column["predicted_reward"], 0.0)]
    if factor.logger:
        prob = column[f"p_{layout.crossed.index(factor.logger)}"]
        if name == "ratio":
            return [(DIVIDE, row, prob, mixture, 0.0)]
        return [(KINDS[name], row, mixture, prob, 0.0)]
    if name == "predicted_value":
        name = f"v_{layout.valued.index(factor.target)}"
    return [(COPY, row, column[name], column[name], 0.0)]


def _ranges(layout: Layout) -> tuple[FloatArray, FloatArray]:
    """Least and largest value that each column may have: the rules of `rows.rules.good`."""
    lows, tops = [], []
    for name in layout.columns:
        low, top = -LARGEST_DOUBLE, LARGEST_DOUBLE
        if _probability(name) or name == "propensity":
            strict = name in {"propensity", "estimated_mixture"}
            low = -np.inf if layout.logs else 0.0
            top = 0.0 if layout.logs else 1.0
            if strict:
                low = -LARGEST_DOUBLE if layout.logs else LEAST
        lows.append(low)
        tops.append(top)
    return np.array(lows), np.array(tops)


def _probability(name: str) -> bool:
    """Whether a column, other than the propensity, is a probability."""
    return name[:2] in {"p_", "t_"} or name == "estimated_mixture"


def size_of(cross: Cross) -> int:
    """Sums of one logger."""
    return len(cross.stems) * len(cross.factors)


def _ints(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)


def _starts(sizes: Iterable[tuple[int, int, int]]) -> IntArray:
    """Where each begins that has these sizes, and where the last one ends."""
    return np.cumsum([(0, 0, 0), *sizes], axis=0, dtype=np.int64)
