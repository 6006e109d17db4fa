r"""Smoothed: a guaranteed bound from sums, by bets that are the same for all rows.

For a fixed scale $s$ and independent rows with balanced weights, whose means $\mu_i$ average
to $U$ over the rows,

$$E \prod_j (1 + z_j / s) = \prod_i (1 + \mu_i / s)^{n_i} \le (1 + U / s)^n$$

since the logarithm is concave.  By Markov's inequality, with probability at least $1 - \alpha$

$$U \ge s \Big[\exp\Big(\frac1n \sum_j \ln(1 + z_j / s)
  - \frac{\ln(1/\alpha)}{n}\Big) - 1\Big].$$

The best scale grows with $\sqrt n$ and with the spread of the rows, so ten scales share the
bet: their average is valid too.  Each needs one sum over the rows, which adds up over parts of
a log and over machines, and which a database can compute.  The bet is settled after the last
row: not for repeated looks, nor for policies that learned from earlier rows.

References:
    Sakhi et al. (NeurIPS 2024), logarithmic smoothing, for one logger.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from poolwise.intervals.betting import BET_STEPS, split_error
from poolwise.intervals.student import Interval
from poolwise.moments.terms import Factor, Needs, Term

if TYPE_CHECKING:
    from poolwise.intervals.student import Sides
    from poolwise.moments.pool import Pool
    from poolwise.types import FloatArray

SCALES = tuple(0.5 * 3.0**k for k in range(10))  # of the range: up to 10⁹ rows
CENTRE = 0.3  # of the most likely scale, over the root of the number of rows


def smoothed_terms(
    limits: tuple[float, float], *, crossed: bool
) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Return the terms of gains and of losses, one for each scale.

    Args:
        limits: Range of the rewards; a positive lower limit counts as 0.
        crossed: Whether weights are those against the mixture.
    """
    base, largest = min(limits[0], 0.0), limits[1]
    name = "balanced_log_gain" if crossed else "log_gain"
    gains, losses = (
        tuple(
            Term((Factor(name, rule=rule, bound=s * (largest - base), zero=zero),))
            for s in SCALES
        )
        for rule, zero in (("gain", base), ("loss", largest))
    )
    return gains, losses


def smoothed_needs(limits: tuple[float, float], *, crossed: bool) -> Needs:
    """Return the means of all terms."""
    gains, losses = smoothed_terms(limits, crossed=crossed)
    return Needs(means=(*gains, *losses))


def smoothed_interval(
    pool: Pool,
    limits: tuple[float, float],
    level: float,
    sides: Sides,
    *,
    crossed: bool,
) -> Interval:
    """Return the interval of one target from the means of its terms."""
    count = pool.rows
    base, largest = min(limits[0], 0.0), limits[1]
    ends = []
    for terms, error in zip(
        smoothed_terms(limits, crossed=crossed), split_error(level, sides), strict=True
    ):
        sums = np.array([sum(m.count * m.mean(t) for m in pool.values()) for t in terms])
        ends.append(smoothed_bound(sums, count, error) * (largest - base) if error else 0.0)
    low, high = max(limits[0], base + ends[0]), min(largest, largest - ends[1])
    return Interval(min(low, high), max(low, high), level)


def smoothed_bound(sums: FloatArray, count: int, error: float) -> float:
    r"""Return the largest value that is rejected, of rows in units of the range.

    Args:
        sums: $\sum \ln(1 + z / s)$ for each of `SCALES`.
        count: Number of rows.
        error: Probability of a wrong bound.

    Examples:
        >>> sums = np.array([100 * math.log1p(0.5 / s) for s in SCALES])
        >>> round(smoothed_bound(sums, 100, 0.05), 4)
        0.4504
    """
    scales = np.array(SCALES)
    prior = -0.5 * np.log(scales / (CENTRE * math.sqrt(max(count, 1)))) ** 2
    prior -= np.logaddexp.reduce(prior)

    def rejects(value: float) -> bool:
        capital = np.logaddexp.reduce(prior + sums - count * np.log1p(value / scales))
        return bool(capital >= math.log(1 / error))

    if not rejects(0.0):
        return 0.0
    low, high = 0.0, 1.0
    if rejects(high):
        return high
    for _ in range(BET_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low
