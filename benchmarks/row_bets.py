"""Row bets: betting on each row with the weight against its own logger.

This was the betting interval of poolwise until bets were placed on blocks of pooled weights
(decision record 0020); `benchmarks.bets` compares both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poolwise.errors import UsageError
from poolwise.intervals.betting import split_error
from poolwise.intervals.student import Interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from poolwise.intervals.student import Sides

FloatArray = NDArray[np.float64]
Batch = tuple[NDArray[np.int64], FloatArray]

MOST_AT_STAKE = 0.5  # share of the capital per row: a row of value 0 loses at most half
POINTS, PASSES = 32, 4  # precision of the bound: 32⁻⁴, a millionth, of the mean of the rows


def betting(
    rows: Iterable[Batch],
    level: float,
    *,
    mirrored: Iterable[Batch] | None = None,
    lower_bound: float = 0.0,
    upper_bound: float | None = None,
    sides: Sides = "two",
) -> Interval:
    r"""Return the interval by betting against each candidate value; valid for any n.

    $$L = \inf\Big\{m : \prod_t \big(1 + \lambda_t(m)(z_t - m)\big) < 1/\alpha\Big\},
      \qquad \lambda_t(m) = \min\Big(\sqrt{\tfrac{2 \ln(1/\alpha)}{s_{t-1}^2 n}},
      \frac{1}{2m}\Big)$$

    with $s_{t-1}^2$ the variance of the earlier rows *of the same logger*, so that bets on
    light weights are larger.  The upper end is `upper_bound` less the lower end of the
    mirrored rows.  Ends are rounded outwards, by a millionth of the mean of their rows, and
    do not pass that mean.  The rows are read five times.

    Valid for weights against the row's own logger, each row with mean $U$ given the past,
    in an order that does not depend on their values; not for balanced weights, nor for
    repeated looks.  If a logger lacks support the means are too small, so that both ends
    remain valid (the lower one if no reward is negative) but conservative.

    Args:
        rows: Batches of logger and $z = w \delta$; must be re-iterable.
        level: Confidence, of both ends together for two sides.
        mirrored: Batches of logger and $w (\delta_{max} - \delta)$, for an upper end.
        lower_bound: Lower bound on the values in `rows`; 0 if no reward is negative.
        upper_bound: $\delta_{max}$, an upper bound on the rewards.
        sides: Ends to compute; the other end is its bound.

    References:
        Waudby-Smith & Ramdas (JRSS B, 2024); Waudby-Smith et al. (arXiv:2210.10768).

    Examples:
        >>> rows = [(np.arange(200) % 2, np.arange(200) % 4 / 2.0)]
        >>> mirrored = [(loggers, 1.5 - values) for loggers, values in rows]
        >>> interval = betting(rows, 0.95, mirrored=mirrored, upper_bound=1.5)
        >>> round(interval.lower, 3), round(interval.upper, 3)
        (0.645, 0.86)
    """
    error = max(split_error(level, sides))
    largest = math.inf if upper_bound is None else upper_bound
    if not -math.inf < lower_bound < largest:
        raise UsageError(
            f"lower_bound must be finite and below {largest:g}, got {lower_bound:g}"
        )
    if sides == "lower":
        return Interval(_betting_end(rows, error, lower_bound, largest), largest, level)
    if upper_bound is None or mirrored is None:
        raise UsageError(
            "an upper end requires `upper_bound`, the largest possible reward, and `mirrored`, "
            "the rows weight * (upper_bound - reward); otherwise use sides='lower'"
        )
    mirrored_end = _betting_end(mirrored, error, 0.0, largest - lower_bound)
    upper = max(lower_bound, largest - mirrored_end)
    if sides == "upper":
        return Interval(lower_bound, upper, level)
    lower = _betting_end(rows, error, lower_bound, largest)
    return Interval(min(lower, upper), max(lower, upper), level)


def _betting_end(rows: Iterable[Batch], error: float, floor: float, ceiling: float) -> float:
    """Return the lower bound on the mean of rows above a floor, with a mean below a ceiling."""
    if iter(rows) is rows:
        raise UsageError("rows must be re-iterable: pass a list, not a generator")
    count, mean, largest = _span(rows, floor)
    if not mean > 0:
        return floor
    limit = math.log(1 / error)
    stake = 2 * limit / count
    prior = (ceiling - floor) / largest / 2 if math.isfinite(ceiling) else math.inf
    low, high = 0.0, mean / largest
    for _ in range(PASSES):
        points = np.linspace(low, high, POINTS + 1)[1:]
        batches = ((i, (values - floor) / largest) for i, values in rows)
        rejected = _log_capital(batches, points, stake, prior**2) >= limit
        passed = int(rejected.sum())  # capital falls with the point: the first are rejected
        if passed == POINTS:
            return min(ceiling, floor + high * largest)
        low, high = float(points[passed - 1]) if passed else low, float(points[passed])
    return min(ceiling, floor + low * largest)


def _span(rows: Iterable[Batch], floor: float) -> tuple[int, float, float]:
    """Return count, mean and largest value of the rows, relative to their floor."""
    count, mean, largest = 0, 0.0, 0.0
    for _, values in rows:
        below = int((~((values >= floor) & (values < math.inf))).sum())
        if below:
            raise UsageError(
                f"{below:,} rows are below {floor:g} or not finite: `lower_bound` must hold "
                "for every row, `upper_bound` for every reward"
            )
        count += len(values)
        share = len(values) / max(count, 1)
        batch_mean = float(((values - floor) / max(len(values), 1)).sum())
        mean = (1 - share) * mean + batch_mean * share
        largest = max(largest, float(values.max(initial=floor)) - floor)
    return count, mean, largest


def _log_capital(
    batches: Iterable[Batch], points: FloatArray, stake: float, prior: float
) -> FloatArray:
    """Return the logarithm of the capital after betting against each point, from 1."""
    logarithm = np.zeros(len(points))
    for bets, values in _bets(batches, stake, prior):
        for k, point in enumerate(points):
            at_stake = np.minimum(bets, MOST_AT_STAKE / point)
            logarithm[k] += np.log(1 + at_stake * (values - point)).sum()
    return logarithm


@dataclass(frozen=True)
class _Past:
    """Count, mean and scatter of the earlier rows of one logger."""

    count: int = 0
    mean: float = 0.0
    scatter: float = 0.0


def _bets(
    batches: Iterable[Batch], stake: float, prior: float
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield the bet on each row, from earlier rows of its logger only, and its value."""
    past: dict[int, _Past] = {}
    for loggers, values in batches:
        bets = np.zeros(len(values))
        for logger in np.unique(loggers).tolist():
            own = loggers == logger
            variance, past[logger] = _variance_before(
                values[own], past.get(logger, _Past()), prior
            )
            with np.errstate(divide="ignore", over="ignore"):  # infinite bets are cut
                bets[own] = np.where(variance > 0, np.sqrt(stake / variance), 0.0)
        yield bets, values


def _variance_before(values: FloatArray, past: _Past, prior: float) -> tuple[FloatArray, _Past]:
    """Return the variance of all rows before each row, and the past after the last.

    A pseudo-row of variance `prior` precedes the first, because equal rows at the start
    would have variance 0.  An infinite prior is replaced by the squared mean, so that
    the first bet follows the first row above the floor.
    """
    gaps = np.concatenate(([0.0], values - past.mean))
    counts = past.count + np.arange(len(gaps))
    sums, squares = np.cumsum(gaps), np.cumsum(gaps**2)
    means = past.mean + sums / np.maximum(counts, 1)
    scatters = np.maximum(past.scatter + squares - sums**2 / np.maximum(counts, 1), 0.0)
    first = prior if math.isfinite(prior) else means**2
    after = _Past(int(counts[-1]), float(means[-1]), float(scatters[-1]))
    return ((first + scatters) / (counts + 1))[:-1], after
