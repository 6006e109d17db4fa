"""Loops: the arithmetic of the kernel, row by row, compiled by Numba.

What NumPy does in a hundred calls for each batch is one call here: a chunk of rows of one
logger passes through every step while it lies in the processor's nearest memory, and no
other thread of Python waits for it.  Numba keeps what it compiled beside this file or in
the user's cache, so that only the first use takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from poolwise.engines.kernel import ALIKE
from poolwise.engines.opcodes import (
    CLIP,
    COPY,
    DIVIDE,
    INVERSE,
    IS_ZERO,
    MULTIPLY,
    OPTIMISTIC,
    SUBTRACT,
    SWITCH,
    Plan,
)
from poolwise.engines.sums import ROUNDED
from poolwise.engines.workspace import ENOUGH, Chunk, Ordered, State, Tails
from poolwise.moments.histogram import BINS, FIRST, SHIFT
from poolwise.moments.terms import UNSUPPORTED

if TYPE_CHECKING:
    from poolwise.log.policy import AnyArray
    from poolwise.moments.moments import FloatArray, IntArray

LOOSE = {"reassoc", "contract"}  # sums may be taken in any order
NO_NAN = {*LOOSE, "nnan", "nsz"}  # only where a NaN makes some mean NaN, which is refused
as_written = njit(error_model="numpy")  # each rounding counts
compiled = njit(error_model="numpy", fastmath=LOOSE)
without_nan = njit(error_model="numpy", fastmath=NO_NAN)
# What is called from outside, and kept with all that it calls.  Its arguments have no
# classes of ours: Numba could not read what it kept once such a class has moved.
kept = njit(nogil=True, cache=True, error_model="numpy", fastmath=LOOSE)


def _pointer(_: Any, address: Any) -> Any:  # noqa: ANN401 - types and code of Numba
    """A pointer to doubles: a list of addresses has one type, however many columns it has."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ANN401
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    kind: Any = types.CPointer
    return kind(types.float64)(address), generate


_doubles_at: Any = intrinsic(_pointer)


@kept
def add_batch(  # noqa: PLR0917 - what compiled code works on
    listed_plan: tuple[Any, ...],
    listed_state: tuple[Any, ...],
    listed_tails: tuple[Any, ...],
    room: tuple[Any, ...],
    codes: AnyArray,
    addresses: IntArray,
    first: int,
) -> int:
    """Add the rows of a batch from `first` on, whose columns are doubles at `addresses`.

    Returns where it stopped: at the end, or earlier where the tails are full and their
    floors should be raised; -1 if a row is bad.
    """
    plan, state = Plan(*listed_plan), State(*listed_state)
    tails, ordered = Tails(*listed_tails), Ordered(*room)
    at_once = len(ordered.places)
    while first < len(codes):
        some = codes[first : first + at_once]
        _order(some, ordered.ends, ordered.places)
        for c in range(len(addresses)):
            values = carray(_doubles_at(addresses[c]), len(codes))
            _move(values[first : first + at_once], ordered.places, ordered.columns[c])
        if not _add_ordered(plan, state, tails, ordered):
            return -1
        first += len(some)
        for count in tails.counts:
            if count > ENOUGH:
                return first
    return first


@compiled
def _order(codes: AnyArray, ends: IntArray, places: AnyArray) -> None:
    """Where each row goes when rows are ordered by logger; fills `ends` too."""
    following = np.zeros(len(ends), np.int64)
    for i in range(len(codes)):
        following[codes[i]] += 1
    total = 0
    for g in range(len(ends)):
        ends[g], following[g], total = total, total, total + following[g]
    for i in range(len(codes)):
        g = codes[i]
        places[i] = following[g]
        following[g] += 1


@compiled
def _move(values: FloatArray, places: AnyArray, out: FloatArray) -> None:
    """Values at their places."""
    for i in range(len(values)):
        out[places[i]] = values[i]


@compiled
def _add_ordered(plan: Plan, state: State, tails: Tails, ordered: Ordered) -> bool:
    """Add rows that are ordered by logger; False if one of them is bad."""
    columns, _, ends, work = ordered
    most = work.shape[1]
    for g in range(len(ends) - 1):
        for first in range(ends[g], ends[g + 1], most):
            size = min(most, ends[g + 1] - first)
            chunk = Chunk(g, first, size, columns, work)
            if not _known(plan, chunk):
                return False
            _fill(plan, chunk)
            _keep_tails(plan, tails, chunk)
            _count_bins(plan, state, chunk)
            _cross(plan, state, chunk)
            _scatter(plan, state, chunk)
    return True


@compiled
def _column(chunk: Chunk, place: int) -> FloatArray:
    return chunk.columns[place, chunk.first : chunk.first + chunk.size]


@compiled
def _known(plan: Plan, chunk: Chunk) -> bool:
    """Check the columns of a chunk; own probability and mixture go to their rows."""
    bad, size = 0, chunk.size
    for c in range(len(chunk.columns)):
        values, low, top = _column(chunk, c), plan.lows[c], plan.tops[c]
        for i in range(size):
            bad += not (low <= values[i] <= top)
    place, own = plan.places[chunk.group], chunk.work[plan.own]
    values = _column(chunk, plan.propensity if plan.propensity >= 0 else place)
    for i in range(size):
        own[i] = values[i]
        bad += not (values[i] >= plan.least)
    if place >= 0 and plan.propensity >= 0:
        probs = _column(chunk, place)
        for i in range(size):
            bad += not (abs(probs[i] - own[i]) <= plan.tolerance)
    if bad:
        return False
    if len(plan.powers):
        _raise(plan, chunk)
    _mix(plan, chunk)
    return True


@compiled
def _raise(plan: Plan, chunk: Chunk) -> None:
    """Logarithms become probabilities, relative to the largest of each row."""
    own, columns, first = chunk.work[plan.own], chunk.columns, chunk.first
    for i in range(chunk.size):
        top = own[i]
        for k in range(len(plan.shares)):
            top = max(top, columns[1 + k, first + i])
        own[i] = np.exp(own[i] - top)
        for c in plan.powers:
            columns[c, first + i] = np.exp(columns[c, first + i] - top)


@compiled
def _mix(plan: Plan, chunk: Chunk) -> None:
    """The mixture, and the smallest probability over that of the own logger."""
    size, own = chunk.size, chunk.work[plan.own]
    mixture, least = chunk.work[plan.mixture], chunk.work[plan.overlap]
    for i in range(size):
        mixture[i], least[i] = 0.0, np.inf
    for k in range(len(plan.shares)):
        probs, share = _column(chunk, 1 + k), plan.shares[k]
        for i in range(size):
            mixture[i] += share * probs[i]
            least[i] = min(least[i], probs[i])
    for i in range(size):
        least[i] /= own[i]
    if plan.given >= 0:
        values = _column(chunk, plan.given)
        for i in range(size):
            mixture[i] = values[i]


@compiled
def _operand(chunk: Chunk, place: int) -> FloatArray:
    """A row of the workspace, or a column where the place is negative."""
    return chunk.work[place, : chunk.size] if place >= 0 else _column(chunk, -1 - place)


@compiled
def _fill(plan: Plan, chunk: Chunk) -> None:
    """Every factor and every product."""
    for s in range(len(plan.steps)):
        kind, into, left, right = plan.steps[s]
        a, b = _operand(chunk, left), _operand(chunk, right)
        _step(kind, a, b, plan.bounds[s], chunk.work[into])


@compiled
def _step(  # noqa: C901, PLR0912 - a table of loops
    kind: int, a: FloatArray, b: FloatArray, bound: float, out: FloatArray
) -> None:
    """One step; the same operand stands twice where a step takes one."""
    if kind == COPY:
        for i in range(len(a)):
            out[i] = a[i]
    elif kind == DIVIDE:
        for i in range(len(a)):
            out[i] = a[i] / b[i]
    elif kind == MULTIPLY:
        for i in range(len(a)):
            out[i] = a[i] * b[i]
    elif kind == SUBTRACT:
        for i in range(len(a)):
            out[i] = a[i] - b[i]
    elif kind == CLIP:
        for i in range(len(a)):
            out[i] = min(a[i], bound)
    elif kind == SWITCH:
        for i in range(len(a)):
            out[i] = 0.0 if a[i] > bound else a[i]
    elif kind == OPTIMISTIC:
        for i in range(len(a)):
            out[i] = a[i] * (bound / (a[i] * a[i] + bound))
    elif kind == INVERSE:
        for i in range(len(a)):
            out[i] = UNSUPPORTED if b[i] == 0.0 else a[i] / b[i]
    else:
        for i in range(len(a)):
            out[i] = 1.0 if b[i] == 0.0 else 0.0


@compiled
def _keep_tails(plan: Plan, tails: Tails, chunk: Chunk) -> None:
    """Values that may be among the largest of this logger."""
    g, size = chunk.group, chunk.size
    for t in range(len(plan.tails)):
        values, floor = chunk.work[plan.tails[t]], tails.floors[t, g]
        if _reaches(values, size, floor):
            for i in range(size):
                if values[i] >= floor:
                    tails.kept[t, tails.counts[t]] = values[i]
                    tails.groups[t, tails.counts[t]] = g
                    tails.counts[t] += 1


@compiled
def _reaches(values: FloatArray, size: int, floor: float) -> bool:
    found = 0
    for i in range(size):
        found += values[i] >= floor
    return found > 0


@compiled
def _count_bins(plan: Plan, state: State, chunk: Chunk) -> None:
    """As `moments.histogram.bins` says."""
    for h in range(len(plan.histograms)):
        values = chunk.work[plan.histograms[h]]
        bits, counts = values.view(np.int64), state.histograms[h, chunk.group]
        for i in range(chunk.size):
            place = min(max((bits[i] >> SHIFT) - (FIRST - 1), 1), BINS - 1)
            counts[0 if values[i] == 0.0 else place] += 1


@compiled
def _dot(a: FloatArray, b: FloatArray, size: int) -> float:
    total = 0.0
    for i in range(size):
        total += a[i] * b[i]
    return total


@compiled
def _cross(plan: Plan, state: State, chunk: Chunk) -> None:
    """Sums of stems times the loggers' columns, which are made in the last row."""
    size, out, mixture = chunk.size, chunk.work[-1], chunk.work[plan.mixture]
    for c in range(len(plan.kinds)):
        kind = plan.kinds[c]
        stem, column, start = plan.crosses[c]
        stems, wide = plan.crosses[c + 1, 0] - stem, plan.crosses[c + 1, 1] - column
        place = start + chunk.group * stems * wide
        for k in range(wide):
            probs = _column(chunk, plan.columns[column + k])
            if kind == IS_ZERO and _positive(probs):
                continue
            _step(kind, mixture[:size], probs, 0.0, out)
            for s in range(stems):
                total = _dot(chunk.work[plan.stems[stem + s]], out, size)
                state.crossed[place + s * wide + k] += total


@compiled
def _positive(values: FloatArray) -> bool:
    zeros = 0
    for i in range(len(values)):
        zeros += values[i] == 0.0
    return zeros == 0


@as_written
def _scatter(plan: Plan, state: State, chunk: Chunk) -> None:
    """Merge the means and products of a chunk (Chan, Golub & LeVeque, 1983)."""
    g, size, singles = chunk.group, chunk.size, state.means.shape[1]
    before = state.rows[g]
    part = size / (before + size)
    root = np.sqrt(before * part)
    shifts = np.empty(singles)
    for t in range(singles):
        values = chunk.work[t]
        if t < state.lowest.shape[1]:
            _stretch(values, size, state.lowest[g], state.largest[g], t)
        mean, rest = _centre(values, size)
        if before == 0:
            state.means[g, t], state.rest[g, t], shifts[t] = mean, rest, 0.0
            continue
        old = state.means[g, t]
        gap = (mean - old) + (rest - state.rest[g, t])
        shifts[t] = gap * root
        step = gap * part
        state.means[g, t] = old + step
        state.rest[g, t] += (old - state.means[g, t]) + step
    state.rows[g] = before + size
    _products(plan, state, chunk, shifts)


@without_nan
def _stretch(
    values: FloatArray, size: int, lowest: FloatArray, largest: FloatArray, t: int
) -> None:
    low, top = lowest[t], largest[t]
    for i in range(size):
        low = min(low, values[i])
        top = max(top, values[i])
    lowest[t], largest[t] = low, top


@compiled
def _mean(values: FloatArray, size: int) -> float:
    total = 0.0
    for i in range(size):
        total += values[i]
    return total / size


@as_written
def _centre(values: FloatArray, size: int) -> tuple[float, float]:
    """Take the mean off; returns it and what its rounding left over."""
    mean = _mean(values, size)
    if abs(mean) < np.inf and abs(values[0] - mean) <= ALIKE * abs(mean):
        low, top = values[0], values[0]
        for i in range(size):
            low, top = min(low, values[i]), max(top, values[i])
        if top - low <= ROUNDED * abs(mean):  # all alike: no scatter from rounding
            mean = low
            for i in range(size):
                values[i] = 0.0
            return mean, 0.0
    for i in range(size):
        values[i] -= mean
    return mean, _mean(values, size)


@compiled
def _products(plan: Plan, state: State, chunk: Chunk, shifts: FloatArray) -> None:
    """Add the products of the pairs that are wanted, four at a time."""
    work = chunk.work
    for n in range(len(plan.fours)):
        row, wide, stride = plan.fours[n, 0], plan.fours[n, 1], plan.fours[n, 2]
        others, places = plan.fours[n, 3:7], plan.fours[n, 7:11]
        a, b, c = work[row], work[others[0]], work[others[1]]
        d, e = work[others[2]], work[others[3]]
        p, q, r, s = 0.0, 0.0, 0.0, 0.0
        for i in range(chunk.size):
            p += a[i] * b[i]
            q += a[i] * c[i]
            r += a[i] * d[i]
            s += a[i] * e[i]
        totals = (p, q, r, s)
        for k in range(wide):
            total = totals[k] + shifts[row] * shifts[others[k]]
            state.products[places[k] + chunk.group * stride] += total
