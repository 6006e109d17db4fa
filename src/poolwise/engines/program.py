"""Program: steps and products of the compiled kernel for a layout and a workspace.

The kernel works on a matrix of some hundred rows of the log.  Its lines are the columns of the
layout, the probability of the row's own logger, the mixtures, and one line for each factor
and term of the workspace; lines of terms that are columns are those columns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines.compiled import LEFT, OPS, RIGHT, STEP, TILE_TYPE, Program
from poolwise.moments.pool import list_periods
from poolwise.moments.tallies import BINS, FIRST, SHIFT, slices_for
from poolwise.moments.terms import AT_MOST, Factor, Term
from poolwise.rows.rules import GAP, OWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolwise.engines.workspace import Workspace
    from poolwise.rows.layout import Layout
    from poolwise.types import AnyArray, FloatArray

BLOCK = 256  # rows of the matrix; if it depended on the number of lines, so would the last bits
PADDING = 8  # doubles between lines, which would compete for the cache a power of two apart
PART, PART_OF_GROUP = 2_048, 128  # rows that are ordered at once, at least and of each group
MOST_ORDERED = 4_000_000  # doubles of ordered columns: 32 MB


class Writer:
    """Writes the steps of a program.

    Args:
        layout: Columns of the rows.
        workspace: Terms to compute.
    """

    def __init__(self, layout: Layout, workspace: Workspace) -> None:
        self.layout, self.workspace = layout, workspace
        self.columns = {name: k for k, name in enumerate(layout.columns)}
        size = len(self.columns)
        self.own = self.columns["propensity"] if layout.propensity else size
        self.mixture = self.columns["estimated_mixture"] if layout.mixture else size + 1
        self.period_mixture = size + 2
        self.size = size + 3
        self.given = self.columns | {  # lines that no step computes
            "own": self.own,
            "mixture": self.mixture,
            "period_mixture": self.period_mixture,
        }
        self.steps: list[tuple[object, ...]] = []
        self.lines: dict[Term, int] = {}
        self.inverses: dict[int, int] = {}
        self.periods = {period: k for k, period in enumerate(list_periods(layout.cells))}
        self.mixes = [*layout.period_shares]  # shares of the loggers in each mixture of a step

    def line(self, term: Term) -> int:
        """Return the line of a term; write the steps that compute it at first."""
        if term not in self.lines:
            self.lines[term] = self._written(term)
        return self.lines[term]

    def _written(self, term: Term) -> int:
        if len(term.factors) == 1:
            return self._factor(term.factors[0])
        half = Term(term.factors[::2])
        square = half.factors == term.factors[1::2] and half in self.lines
        parts = [half, half] if square else [Term((f,)) for f in term.factors]
        first, second, *rest = [self.line(part) for part in parts]
        out = self._step("multiply", first, second)
        for more in rest:
            self._step("multiply", out, more, out)
        return out

    def _step(
        self,
        op: str,
        left: int,
        right: int,
        out: int | None = None,
        bound: float = 0.0,
        zero: float = 0.0,
        *,
        inverse: int = 0,
    ) -> int:
        if out is None:
            out, self.size = self.size, self.size + 1
        self.steps.append((OPS.index(op), out, left, right, inverse, bound, zero))
        return out

    def _divide(self, above: int, below: int, out: int | None) -> int:
        """Divide by a mixture or a probability; quotients of one mixture share its inverse."""
        if below == self.own:
            return self._step("divide", above, below, out)
        if below not in self.inverses:
            self.inverses[below] = self._step("invert", below, below)
        return self._step("quotient", above, below, inverse=self.inverses[below])

    def _factor(self, factor: Factor) -> int:
        """Write the steps of a factor's definition."""
        made = factor.definition
        if not made.above:
            below = self._quantity(made.below, factor)
            return self._step("is_zero", below, below)
        above = self._quantity(made.above, factor)
        if made.minus:
            return self._step("subtract", above, self._quantity(made.minus, factor))
        if not made.below:
            return self._at_most(above, factor.bound) if factor.rule == AT_MOST else above
        below = self._quantity(made.below, factor)
        last = max(above, below)  # a step that computed a quantity wrote it for this factor
        out = None if last in self.given.values() else last
        if made.at_zero:
            return self._step("inverse", above, below, out, made.at_zero)
        if made.below == "others":  # which may be 0
            out = self._step("inverse", above, below, out)
        else:
            out = self._divide(above, below, out)
        if factor.rule == "within":
            small = self._step("switch", out, out, bound=factor.bound)
            return self._step("inverse", small, out, small)
        if factor.rule:
            right = self._quantity("reward", factor) if made.logarithmic else out
            self._step(factor.rule, out, right, out, factor.bound, factor.zero)
        return out

    def _at_most(self, line: int, bound: float) -> int:
        """Write the steps of an indicator: 1 where nothing of a line is above a bound."""
        out = self._step("clip", line, line, bound=bound)
        self._step("subtract", line, out, out)
        return self._step("is_zero", out, out, out)

    def _quantity(self, name: str, factor: Factor) -> int:
        """Return the line of a quantity; write the step that computes it."""
        layout = self.layout
        if name == "least":
            return self._step("least", 0, 0)
        if name == "period":
            return self._step("mix", self.periods[factor.logger], 0)
        if name == "others":
            self.mixes.append(_other_shares(layout, factor.logger))
            return self._step("mix", len(self.mixes) - 1, 0)
        if name == "target":
            name = f"t_{layout.targets.index(factor.target)}"
        elif name == "reward" and factor.measure:
            name = f"m_{layout.measures.index(factor.measure)}"
        elif name == "predicted_reward" and factor.measure:
            name = f"r_{layout.measures.index(factor.measure)}"
        elif name == "predicted_value":
            place = layout.measures.index(factor.measure) + 1 if factor.measure else 0
            first = place * len(layout.valued)
            name = f"v_{first + layout.valued.index(factor.target)}"
        elif name == "logger":
            name = f"p_{layout.crossed.index(factor.logger)}"
        return self.given[name]


def _other_shares(layout: Layout, logger: str) -> tuple[float, ...]:
    """Return the share of each logger in the mixture of all loggers except one."""
    left = [
        0.0 if i == logger else s for i, s in zip(layout.crossed, layout.shares, strict=True)
    ]
    total = sum(left) or 1.0  # there are no others
    return tuple(share / total for share in left)


def write_program(layout: Layout, workspace: Workspace, floors: FloatArray) -> Program:
    """Return the program of a layout and a workspace, without room to work."""
    program, writer = Program(), Writer(layout, workspace)
    _set_products(program, writer)
    _set_tallies(program, writer, floors)
    _set_layout(program, writer)
    return program


def _set_products(program: Program, writer: Writer) -> None:
    """Set the steps, and the products of lines before and after they are centred."""
    workspace = writer.workspace
    for term in sorted(workspace.singles, key=lambda term: len(term.factors)):
        writer.line(term)  # first what others are made of
    plain = workspace.plain.items()
    rare = {t for t, (_, last) in plain if not last.factors[0].definition.above}
    for term, (first, last) in plain:
        writer.line(first)
        if term not in rare:
            writer.line(last)
    always = len(writer.steps)
    lines = {t: (writer.line(a), writer.line(b), k) for k, (t, (a, b)) in enumerate(plain)}
    usual = tiles(line for term, line in lines.items() if term not in rare)
    seldom = tiles(line for term, line in lines.items() if term in rare)
    singles = [writer.line(term) for term in workspace.singles]
    pairs = enumerate(workspace.pairs.T.tolist())
    centred = tiles((singles[a], singles[b], k) for k, (a, b) in pairs)
    left, right = workspace.pairs.copy()
    program.set(
        steps=always,
        all_steps=len(writer.steps),
        step=np.array(writer.steps, dtype=STEP),
        singles=singles,
        tiles=len(centred),
        plain_tiles=len(usual),
        all_plain_tiles=len(usual) + len(seldom),
        tile=centred,
        plain_tile=np.concatenate([usual, seldom]),
        pairs=len(left),
        plain=len(lines),
        left=left,
        right=right,
    )


def _set_tallies(program: Program, writer: Writer, floors: FloatArray) -> None:
    """Set what is added up besides products."""
    needs = writer.workspace.needs
    wanted = {
        "extremes": needs.extremes,
        "tails": needs.tails,
        "histograms": needs.histograms,
        "sliced": needs.slices,
        "powered": needs.powers,
    }
    program.set(
        **{name: [writer.line(term) for term in terms] for name, terms in wanted.items()},
        floors=floors,
        slices=slices_for(len(writer.layout.groups) * writer.workspace.sliced_terms),
        bins=BINS,
        first_bin=FIRST,
        bin_shift=SHIFT,
    )


def _set_layout(program: Program, writer: Writer) -> None:
    """Set the rules of the columns, and the shares of the loggers in mixtures."""
    layout, columns = writer.layout, writer.columns
    limits = layout.limits
    lows, tops = np.array([limits[name] for name in columns]).T.copy()
    none = -np.inf, np.inf  # of a value that follows from no column
    crossed = {label: k for k, label in enumerate(layout.crossed)}
    strata = layout.groups[: len(layout.strata)]
    mixes = np.array(writer.mixes, dtype=np.float64)
    own_period = mixes[[writer.periods[cell.period] for cell in layout.cells]]
    shares = np.tile(np.array(layout.shares, dtype=np.float64), (len(strata), 1))
    logged = [k for name, k in columns.items() if name.startswith(("p_", "t_"))]
    program.measures = len(layout.measures)
    program.set(
        columns=len(columns),
        crossed=len(crossed),
        lines=writer.size,
        lows=lows,
        tops=tops,
        own=writer.own,
        mixture=-1 if layout.mixture else writer.mixture,
        period_mixture=writer.period_mixture if layout.cells else -1,
        propensity=layout.propensity,
        logs=layout.scale.logs,
        logged=[*logged, writer.own, *([writer.mixture] if layout.mixture else [])],
        tolerance=limits.get(GAP, none)[1],
        least=limits.get(OWN, none)[0],
        groups=len(layout.groups),
        strata=len(strata),
        place=np.array([crossed.get(label, -1) for label in strata], dtype=np.int64),
        shares=own_period if layout.cells and layout.period == "segment" else shares,
        own_period=own_period,
        periods=mixes,
    )


def with_room(shared: Program) -> Program:
    """Return a copy of a program with room to work, which each thread needs for itself."""
    program = Program.from_buffer_copy(shared)
    program.arrays = [*shared.arrays]
    columns, lines, groups = program.columns, program.lines, program.groups
    most = max(MOST_ORDERED // (columns - shared.measures), PART)  # not of their number
    part = min(max(PART, PART_OF_GROUP * groups), most)
    room = part + 8 * min(groups, part) + PADDING
    matrix = np.empty((lines + 1 - columns, BLOCK + PADDING))
    line = np.zeros(lines + 1, dtype=np.uintp)  # those of columns move from block to block
    line[columns:] = matrix.ctypes.data + matrix.strides[0] * np.arange(len(matrix))
    program.arrays.append(matrix)
    program.set(
        block=BLOCK,
        part=part,
        room=room,
        line=line,
        ordered=np.empty(columns * room + BLOCK),  # tails read up to the end of a block
        moved=np.empty(2 * max(program.singles.size, 1)),
        order=np.empty(room, dtype=np.int32),
        starts=np.empty(groups, dtype=np.int64),
        ends=np.empty(groups, dtype=np.int64),
    )
    return program


def tiles(products: Iterable[tuple[int, int, int]]) -> AnyArray:
    """Cover wanted products of lines by tiles.

    Args:
        products: The two lines of each product, and its place among the sums.
    """
    wanted = list(products)
    partners = Counter(line for left, right, _ in wanted for line in {left, right})
    by_partners = sorted(partners, key=lambda line: (partners[line], line))
    rank = {line: k for k, line in enumerate(by_partners)}  # neighbours share most lines
    ranked = [(a, b, k) if rank[a] >= rank[b] else (b, a, k) for a, b, k in wanted]
    ways = (ranked, [(right, left, place) for left, right, place in ranked])
    return min((_cover(way, rank) for way in ways), key=len)


def _cover(products: Sequence[tuple[int, int, int]], rank: Mapping[int, int]) -> AnyArray:
    """Cover products by tiles of lines that follow each other in rank on the left."""
    by_left: dict[int, dict[int, int]] = defaultdict(dict)
    for left, right, place in products:
        by_left[left][right] = place
    lefts, cover = sorted(by_left, key=rank.__getitem__), []
    for start in range(0, len(lefts), LEFT):
        four = lefts[start : start + LEFT]
        rights = sorted({right for left in four for right in by_left[left]})
        pairs = [rights[k : k + RIGHT] for k in range(0, len(rights), RIGHT)]
        cover += [_tile(four, pair, by_left) for pair in pairs]
    return np.array(cover, dtype=TILE_TYPE)


def _tile(
    lefts: list[int], rights: list[int], by_left: Mapping[int, Mapping[int, int]]
) -> tuple[list[int], list[int], list[int]]:
    """Return a tile; its last lines are repeated where there are too few."""
    left = [*lefts, *lefts[-1:] * (LEFT - len(lefts))]
    right = [*rights, *rights[-1:] * (RIGHT - len(rights))]
    place = [
        by_left[a].get(b, -1) if i < len(lefts) and j < len(rights) else -1
        for i, a in enumerate(left)
        for j, b in enumerate(right)
    ]
    return left, right, place
