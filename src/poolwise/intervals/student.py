"""Intervals: how sure we are, and an honest answer where rows cannot say.

The default is Student's with the stratified variance and Satterthwaite's degrees
of freedom.  Where the rows show no spread, or are too few to show any, a normal
interval would have no width; then only a bound on the rewards can help.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from poolwise.errors import Finding, UsageError

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimate


Sides = Literal["two", "lower", "upper"]
SIDES = ("two", "lower", "upper")


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    >>> 8.2 in Interval(lower=8.0, upper=8.4, level=0.95)
    True
    """

    lower: float
    upper: float
    level: float

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper


@dataclass(frozen=True)
class Limits:
    """What bounds the rows, for intervals that do not rest on their spread.

    Attributes:
        rows: Number of rows.
        reward_range: Smallest and largest possible reward, or None if nobody said.
        largest_weight: Largest weight that was seen.
    """

    rows: int
    reward_range: tuple[float, float] | None = None
    largest_weight: float = 1.0


def check_level(level: float) -> float:
    """Refuse a level that is not a probability, such as 95."""
    if not isinstance(level, numbers.Real):
        raise UsageError(f"the level is a number between 0 and 1, not {level!r}")
    if not 0 < level < 1:
        hint = f"; did you mean {level / 100:g}?" if 1 < level < 100 else ""
        raise UsageError(f"the level must lie between 0 and 1, not {level:g}{hint}")
    return level


def student(estimate: Estimate, level: float, sides: Sides = "two") -> Interval:
    r"""Interval $\hat U \pm t_\nu \sqrt V$, on both sides or on one.

    >>> from poolwise.moments.estimate import Estimate
    >>> found = student(Estimate(1.0, 0.1171875, {}, freedom=5.084746), 0.95)
    >>> round(found.lower, 6), round(found.upper, 6)
    (0.124415, 1.875585)
    """
    from scipy.special import ndtri, stdtrit

    tail = 1 - (1 - level) / 2 if sides == "two" else level
    finite = math.isfinite(estimate.freedom)
    quantile = float(stdtrit(estimate.freedom, tail) if finite else ndtri(tail))
    half = quantile * estimate.std_error
    both = Interval(estimate.value - half, estimate.value + half, level)
    return one_sided(both, sides)


def one_sided(interval: Interval, sides: Sides) -> Interval:
    """Open the side that nobody asked for."""
    lower = -math.inf if sides == "upper" else interval.lower
    upper = math.inf if sides == "lower" else interval.upper
    return Interval(lower, upper, interval.level)


def bernstein_half_width(variance: float, width: float, rows: int, level: float) -> float:
    r"""Half-width of the two-sided empirical Bernstein interval (Maurer & Pontil, 2009).

    $$\sqrt{2 V \ln(4/\alpha) / n} + \frac{7 (b - a) \ln(4/\alpha)}{3 (n - 1)}$$

    >>> round(bernstein_half_width(0.25252525, 1.0, 100, 0.95), 6)
    0.252047
    """
    if rows < 2:
        return math.inf
    logarithm = math.log(4 / (1 - level))
    return math.sqrt(2 * variance * logarithm / rows) + 7 * width * logarithm / (3 * (rows - 1))


def default_interval(
    estimate: Estimate, level: float, limits: Limits, sides: Sides = "two"
) -> tuple[Interval, tuple[Finding, ...]]:
    """Student's interval, or what can be said where the rows show no spread."""
    if 0 < estimate.variance < math.inf:
        return student(estimate, level, sides), ()
    if limits.reward_range is None:
        return Interval(-math.inf, math.inf, level), (_no_width(limits.rows),)
    lower, upper = limits.reward_range
    reach = limits.largest_weight * max(abs(lower), abs(upper), upper - lower)
    half = bernstein_half_width(0.0, reach, limits.rows, level)
    low, high = max(lower, estimate.value - half), min(upper, estimate.value + half)
    if low > high:  # the estimate lies outside what is possible: it excludes nothing
        low, high = lower, upper
    return one_sided(Interval(low, high, level), sides), (BOUNDED,)


BOUNDED = Finding(
    "bounded-interval",
    "The rows show no spread, so the interval rests on `reward_range` and the largest weight "
    "that was seen alone.",
    "Collect more rows before relying on it.",
)


def _no_width(rows: int) -> Finding:
    return Finding(
        "no-spread",
        f"The {rows:,} row(s) show no spread, so they cannot say how sure the estimate is; the "
        "interval is unbounded.",
        "Collect more rows, or give `reward_range` (--reward-range) if rewards are bounded.",
    )
