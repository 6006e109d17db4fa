"""Student's interval: symmetric, from the variance and its degrees of freedom.

It is the interval of engines that compute no slices, and of ``interval="student"``; the
default is `intervals.skew`.  Rows that do not vary would give it no width: the interval is
then derived from a bound on the rewards, or is unbounded.
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
    """Bounds on the rows, for intervals that do not use their variance.

    Attributes:
        rows: Number of rows.
        reward_range: Smallest and largest possible reward, or None if not given.
        largest_weight: Largest observed weight.
    """

    rows: int
    reward_range: tuple[float, float] | None = None
    largest_weight: float = 1.0


def check_level(level: float) -> float:
    """Reject a level that is not a probability, such as 95."""
    if not isinstance(level, numbers.Real):
        raise UsageError(f"level must be a number between 0 and 1, got {level!r}")
    if not 0 < level < 1:
        hint = f"; did you mean {level / 100:g}?" if 1 < level < 100 else ""
        raise UsageError(f"level must be between 0 and 1, got {level:g}{hint}")
    return level


def student(estimate: Estimate, level: float, sides: Sides = "two") -> Interval:
    r"""Return the interval $\hat U \pm t_\nu \sqrt V$, two-sided or one-sided.

    >>> from poolwise.moments.estimate import Estimate
    >>> interval = student(Estimate(1.0, 0.1171875, {}, freedom=5.084746), 0.95)
    >>> round(interval.lower, 6), round(interval.upper, 6)
    (0.124415, 1.875585)
    """
    half = estimate.half_width(level if sides == "two" else 2 * level - 1)
    return one_sided(Interval(estimate.value - half, estimate.value + half, level), sides)


def tail_probability(level: float, sides: Sides) -> float:
    """Return the probability that the value lies outside each limit."""
    return (1 - level) / 2 if sides == "two" else 1 - level


def one_sided(interval: Interval, sides: Sides) -> Interval:
    """Replace the end that `sides` leaves out by infinity."""
    lower = -math.inf if sides == "upper" else interval.lower
    upper = math.inf if sides == "lower" else interval.upper
    return Interval(lower, upper, interval.level)


def bernstein_half_width(variance: float, width: float, rows: int, level: float) -> float:
    r"""Return the half-width of the two-sided empirical Bernstein interval.

    $$\sqrt{2 V \ln(4/\alpha) / n} + \frac{7 (b - a) \ln(4/\alpha)}{3 (n - 1)}$$

    Maurer & Pontil (COLT 2009).

    >>> round(bernstein_half_width(0.25252525, 1.0, 100, 0.95), 6)
    0.252047
    """
    if rows < 2:
        return math.inf
    logarithm = math.log(4 / (1 - level))
    return math.sqrt(2 * variance * logarithm / rows) + 7 * width * logarithm / (3 * (rows - 1))


def student_interval(
    estimate: Estimate, level: float, limits: Limits, sides: Sides = "two"
) -> tuple[Interval, tuple[Finding, ...]]:
    """Return Student's interval, or one from `limits` if the rows have no variance.

    Limits of an estimate with heavy rows set apart are those of `estimators.decisive`.
    """
    if estimate.decisive is not None:
        below, above = estimate.decisive.distances(tail_probability(level, sides))
        ends = Interval(estimate.value - below, estimate.value + above, level)
        return one_sided(clip_interval(ends, limits.reward_range), sides), ()
    if 0 < estimate.variance < math.inf:
        return student(estimate, level, sides), ()
    if limits.reward_range is None:
        return Interval(-math.inf, math.inf, level), (_no_width(limits.rows),)
    lower, upper = limits.reward_range
    reach = limits.largest_weight * max(abs(lower), abs(upper), upper - lower)
    half = bernstein_half_width(0.0, reach, limits.rows, level)
    low, high = max(lower, estimate.value - half), min(upper, estimate.value + half)
    if low > high:  # an estimate outside the possible range excludes nothing
        low, high = lower, upper
    return one_sided(Interval(low, high, level), sides), (BOUNDED,)


BOUNDED = Finding(
    "bounded-interval",
    "The rows do not vary, so the interval is computed only from `reward_range` and the "
    "largest observed weight.",
    "Collect more rows before relying on it.",
)


def _no_width(rows: int) -> Finding:
    return Finding(
        "no-spread",
        f"The variance cannot be estimated, because the {rows:,} row(s) do not vary; the "
        "interval is unbounded.",
        "Collect more rows, or give `reward_range` (--reward-range) if rewards are bounded.",
    )


def clip_interval(interval: Interval, reward_range: tuple[float, float] | None) -> Interval:
    """Cut the limits to the range of the rewards; the range if nothing of them is in it."""
    if reward_range is None:
        return interval
    lowest, highest = reward_range
    if interval.lower > highest or interval.upper < lowest:
        lower, upper = reward_range
    else:
        lower, upper = max(interval.lower, lowest), min(interval.upper, highest)
    return Interval(
        lower if math.isfinite(interval.lower) else interval.lower,
        upper if math.isfinite(interval.upper) else interval.upper,
        interval.level,
    )


def within(difference: Interval, reward_range: tuple[float, float] | None) -> Interval:
    """Cut the limits of a difference to the largest that the range of the rewards allows.

    >>> within(Interval(-3.0, 0.5, 0.95), (0.0, 1.0))
    Interval(lower=-1.0, upper=0.5, level=0.95)
    """
    if reward_range is None:
        return difference
    most = reward_range[1] - reward_range[0]
    if difference.lower > most or difference.upper < -most:  # rewards are not in the range
        return difference
    lower, upper = max(difference.lower, -most), min(difference.upper, most)
    return Interval(lower, upper, difference.level)
