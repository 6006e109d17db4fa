r"""Relation: a difference relative to the baseline, with limits.

The relative difference $L = U_a / U_b - 1$ has the limits of an inversion: a value L is within
them if those of $U_a - (1 + L) \, U_b$, a difference of two targets on the same rows, contain
0.  At L = 0 that is the difference itself, so both say the same about its sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from poolwise.intervals.ratio import divide_intervals
from poolwise.intervals.simultaneous import DifferenceShape, skew_multiples, tail_above
from poolwise.intervals.skew import root
from poolwise.intervals.student import Interval
from poolwise.moments.linear import CANCELLED
from poolwise.moments.shape import Shape, ShapeLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.intervals.skew import Reaching
    from poolwise.types import FloatArray

    Units = list[FloatArray] | None


@dataclass(frozen=True)
class Relative:
    """A difference relative to the value that is subtracted.

    Attributes:
        value: One value over the other, less 1.
        interval: Its interval; the one of the difference excludes 0 wherever this one does.
    """

    value: float
    interval: Interval

    @property
    def inverse(self) -> Relative | None:
        """The other value over this one, less 1; None where it has no limits."""
        low, high = 1 + self.interval.lower, 1 + self.interval.upper
        if not (low > 0 or high < 0):
            return None
        ends = Interval(1 / high - 1, 1 / low - 1, self.interval.level)
        return Relative(1 / (1 + self.value) - 1, ends)

    @property
    def with_zero(self) -> Relative:
        """The same with limits that contain 0, as those of the difference do."""
        low, high = min(self.interval.lower, 0.0), max(self.interval.upper, 0.0)
        return replace(self, interval=Interval(low, high, self.interval.level))


def relate_apart(value: float, own: Interval, base: float, of_base: Interval) -> Relative:
    """Return the relation of two values from their own intervals, however they depend."""
    ends = divide_intervals(own, of_base)
    return Relative(value / base - 1, Interval(ends.lower - 1, ends.upper - 1, own.level))


@dataclass(frozen=True, eq=False)
class ContrastLine:
    """The combinations "value - multiple * base" of two estimates from the same rows.

    Attributes:
        value: Value of the first.
        base: Value of the second.
        covariances: Covariance of both, from each source of errors, shape (sources, 2, 2).
        sizes: Sums of the absolute summands of these, of the same shape.
        free: Degrees of freedom of each source.
        most_free: Upper bound on the degrees of freedom.
        units: What each unit adds to the two, centred, by stratum; None if it is not known.
        weights: The same if every reward were 1, or -1 where rewards are costs.
        pull: What each unit's square adds to the variance.
        reaches: Distances of the own limits of both.
    """

    value: float
    base: float
    covariances: FloatArray
    sizes: FloatArray
    free: FloatArray
    most_free: float
    units: tuple[Units, Units]
    weights: tuple[Units, Units]
    pull: FloatArray | float
    reaches: tuple[Reaching, Reaching]

    @cached_property
    def multiple(self) -> float:
        """The multiple at which the combination is 0."""
        return self.value / self.base

    @property
    def std_error(self) -> float:
        """Standard error of the linearised relative difference."""
        return self._error(self.multiple)[0] / abs(self.base)

    @cached_property
    def _shapes(self) -> tuple[ShapeLine | None, ShapeLine | None]:
        of_units = _draw_line(self.units, self.multiple, self.pull)
        return of_units, _draw_line(self.weights, self.multiple)

    def relate(self, critical: float, level: float) -> Relative | None:
        """Return the relation with its limits at a normal critical value; None without error.

        Args:
            critical: The critical value.
            level: Level of the interval.
        """
        error, _ = self._error(self.multiple)
        if not 0 < error < math.inf:
            return None
        start = 2 * error / abs(self.base)
        below, above = (
            root(partial(self._excess, side, critical), start) for side in (-1.0, 1.0)
        )
        least = self.multiple - 1
        return Relative(least, Interval(least - below, least + above, level))

    def _excess(self, side: float, critical: float, distance: float) -> float:
        """Return the distance of 0 from the limit of the combination at a multiple."""
        value = -side * distance * self.base
        reach = self._reach(self.multiple + side * distance, critical)
        return abs(value) - reach[value < 0]

    def _reach(self, multiple: float, critical: float) -> tuple[float, float]:
        """Return the distances from a combination to its limits, below and above."""
        error, freedom = self._error(multiple)
        own, weighted = (
            Shape() if line is None else line.shape(multiple - self.multiple)
            for line in self._shapes
        )
        shape = DifferenceShape(
            np.array(own.skewness), np.array(own.noise), np.array(weighted.skewness)
        )
        multiples = skew_multiples(shape, np.array(freedom), critical)
        wide = math.sqrt(own.rise) * error
        below, above = (float(each) * wide for each in multiples)
        if multiple <= 0:
            return below, above
        value, base = (reach(tail_above(critical)) for reach in self.reaches)
        if math.inf in {base.below, base.above}:
            return below, above
        low, high = multiple * base.below, multiple * base.above
        return (
            max(below, value.below - low, high - value.above),
            max(above, value.above - high, low - value.below),
        )

    def _error(self, multiple: float) -> tuple[float, float]:
        """Return the standard error of a combination, and its degrees of freedom."""
        point = np.array([1.0, -multiple])
        parts = np.einsum("i,sij,j->s", point, self.covariances, point)
        sizes = np.einsum("i,sij,j->s", abs(point), self.sizes, abs(point))
        parts = np.where(parts > CANCELLED * sizes, parts, 0.0)
        total = float(parts.sum())
        if not 0 < total < math.inf:
            return math.sqrt(max(total, 0.0)), self.most_free
        below = float(((parts / total) ** 2 / self.free).sum())
        free = 1 / below if below > 0 else math.inf
        return math.sqrt(total), min(free, self.most_free)


def _draw_line(
    units: Sequence[Units], multiple: float, pull: FloatArray | float = 0.0
) -> ShapeLine | None:
    """Return the shapes of combinations at distances from a multiple; None without units."""
    first, second = units
    if not first or not second:
        return None
    at = [a - multiple * b for a, b in zip(first, second, strict=True)]
    return ShapeLine(at, second, pull)
