r"""Betting: bounds on a value by bets against candidates, block by block.

The rows are cut into blocks.  Before each block a bet $\lambda_b(m)$ is placed against each
candidate $m$, from earlier blocks only; the rows of the block settle it:

$$K_B(m) = \prod_{b \le B} \prod_{j \in b} \big(1 + \lambda_b(m) (z_j - m)\big), \qquad
  \lambda_b(m) = \min\Big(\sqrt{\tfrac{2 \ln(1/\alpha)}{n s_b^2}}, \frac{c}{m}\Big)$$

with $s_b^2$ the variance of earlier rows.  Weights are those against the block's own mixture,
so that the rows of a block have the mean $U$ *on average over loggers*.  Given the past, with
logger means $\mu_i$ and $n_{bi}$ rows,

$$E \prod_{j \in b} \big(1 + \lambda_b (z_j - m)\big)
  = \prod_i \big(1 + \lambda_b (\mu_i - m)\big)^{n_{bi}}
  \le \big(1 + \lambda_b (U - m)\big)^{n_b}$$

since the logarithm is concave, and this is 1 at $m = U$.  So $K_B(U)$ is a non-negative
supermartingale over block ends: it reaches $1/\alpha$ at any of them with probability at most
$\alpha$ (Ville).  The lower bound is the largest $m$ with $K_b(m) \ge 1/\alpha$ at any block
end so far.  Rows of a cluster depend on each other, so a cluster is one bet, in a block that
holds it whole.  With at most $k$ rows each, its factor
$1 + \tfrac{\lambda_b}{k} \sum_{j \in c} (z_j - m)$ is at least the geometric mean
$\prod_{j \in c} (1 + \lambda_b (z_j - m))^{1/k}$: the logarithm of the capital is divided by
$k$.

A watch does not know how many rows will follow, nor how much their policies will overlap with
the target.  So its capital is the average of bets of $H$ sizes, and a quarter of it waits for
later blocks, part $u_s$ for block $s$.  With $G_{hb}$ the product over the rows of block $b$
for bets of size $h$,

$$K_B(m) = \frac1H \sum_h \sum_{s \le B} u_s \prod_{b=s}^{B} G_{hb}(m) + \sum_{s > B} u_s$$

where $u_1 = 3/4$ and $u_s = 1 / (4 s (s - 1))$.  Given the past, no $G_{hb}(U)$ has a mean
above 1, the parts sum to 1, and what waits does not change, so $K_B(U)$ remains a
supermartingale.  Blocks before block $s$ cost later bets no more than the factor $u_s$, even if
they ruin all bets.

Policies may learn from earlier blocks.  Where the mixture of a block lacks support its rows
have a smaller mean, so the bound remains valid but conservative.

References:
    Waudby-Smith & Ramdas (JRSS B, 2024); Waudby-Smith et al. (arXiv:2210.10768).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.intervals.student import Interval

if TYPE_CHECKING:
    from poolwise.intervals.student import Sides
    from poolwise.moments.blocks import Atoms, Blocks
    from poolwise.types import FloatArray

MOST_AT_STAKE = 0.5  # share of the capital per row: a row of value 0 loses at most half
PRIOR = 0.25  # variance of a row that precedes the first one
RESERVE = 0.25  # share of the capital of a watch that waits for later blocks
BET_STEPS = 40  # halvings: the bound is rounded down by less than 1e-12 of the range


@dataclass(frozen=True, eq=False)
class Bets:
    """Bets on the rows of blocks, whose values are in units of the range of the rewards.

    Attributes:
        blocks: Values of the rows, by block and stratum, each raised by the block's shift.
        error: Probability of a wrong bound.
        number: Number of blocks.
        strata: Strata of a block; bets on a stratum follow its own earlier rows.
        shifts: Added to the values of each block, which are not negative then; infinite for a
            block without a bet, None for 0 in all blocks.
        horizons: Numbers of rows for which the bets of a watch are sized: its capital is the
            average of all sizes, and a part of it waits for later blocks. Empty means that the
            bets are sized for these rows, and nothing waits.
        anytime: Whether the best block end counts, which requires that the rows of a block
            do not depend on later blocks; otherwise the last one does.
        at_stake: Largest share of the capital at stake in one row.
        cluster_rows: Largest number of rows of a cluster, which count as one; one number, or
            that of each block.
    """

    blocks: Blocks
    error: float
    number: int
    strata: int = 1
    shifts: FloatArray | None = None
    horizons: tuple[float, ...] = ()
    anytime: bool = True
    at_stake: float = MOST_AT_STAKE
    cluster_rows: int | tuple[int, ...] = 1

    @cached_property
    def _atoms(self) -> Atoms:
        return self.blocks.atoms()

    @cached_property
    def _shifts(self) -> FloatArray:
        """Shift of each group."""
        shifts = np.zeros(self.number) if self.shifts is None else self.shifts
        return np.repeat(np.where(np.isfinite(shifts), shifts, 0.0), self.strata)

    @cached_property
    def _sizes(self) -> FloatArray:
        """Rows of a cluster, of each group."""
        sizes = np.broadcast_to(np.asarray(self.cluster_rows, dtype=np.float64), self.number)
        return np.repeat(sizes, self.strata)

    @cached_property
    def _moments(self) -> FloatArray:
        """Count, sum and sum of squares of each group, without shifts."""
        count, first, second = self.blocks.moments(self.number * self.strata)
        shifts = self._shifts
        return np.stack(
            [count, first - count * shifts, second - 2 * shifts * first + count * shifts**2]
        )

    @cached_property
    def _aims(self) -> FloatArray:
        """Bets on each group before they are cut, shape (sizes, groups).

        Those of a watch are sized by earlier rows, and by the variance `PRIOR`: after blocks
        with heavy weights, the next one may have light ones.
        """
        moments = self._moments / self._sizes
        by_block = moments.reshape(3, self.number, self.strata)
        count, first, second = np.cumsum(by_block, axis=1) - by_block
        below = np.where(count > 0, count, 1.0)
        scatter = np.maximum(second - first**2 / below, 0.0)
        variance = ((PRIOR + scatter) / (count + 1)).ravel()
        rows = np.array(self.horizons or [max(moments[0].sum(), 1.0)])
        spans = np.outer(rows, variance)
        if self.horizons:
            spans = np.concatenate([spans, np.outer(rows, np.full_like(variance, PRIOR))])
        return np.asarray(np.sqrt(2 * math.log(1 / self.error) / spans))

    @cached_property
    def _parts(self) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the part of the capital that begins at each block, and of the rest.

        The rest waits for blocks after it.
        """
        block = np.arange(1.0, self.number + 1)
        reserve = RESERVE if self.horizons else 0.0
        begins = reserve / np.maximum(block * (block - 1), 1)
        begins[:1] = 1 - reserve
        with np.errstate(divide="ignore"):  # without a reserve
            return np.log(begins), np.log(reserve / block)

    def log_capital(self, candidate: float) -> FloatArray:
        """Return the logarithm of the capital at each block end, from 1 at the start."""
        atoms, points = self._atoms, candidate + self._shifts
        with np.errstate(divide="ignore"):  # nothing is lost against a candidate of 0
            bets = np.minimum(self._aims, self.at_stake / points)
        gaps = atoms.value - points[atoms.group]
        gains = atoms.rows * np.log1p(bets[:, atoms.group] * gaps) / self._sizes[atoms.group]
        block = atoms.group // self.strata
        settled = np.stack([np.bincount(block, g, minlength=self.number) for g in gains])
        begins, waits = self._parts
        won = np.cumsum(settled, axis=1)
        bet = won + np.logaddexp.accumulate(begins - (won - settled), axis=1)
        mean = np.logaddexp.reduce(bet, axis=0) - math.log(len(bet))
        return np.asarray(np.logaddexp(mean, waits))

    def _rejects(self, candidate: float) -> bool:
        """Test if enough was won; capital falls with the candidate, at every block end."""
        capital = self.log_capital(candidate)
        best = capital.max(initial=-math.inf) if self.anytime else capital[-1]
        return bool(best >= math.log(1 / self.error))

    def lower(self, least: float = 0.0, most: float = 1.0) -> float:
        """Return the lower bound: every smaller candidate is rejected.

        Args:
            least: Smallest possible value, returned if no candidate is rejected.
            most: Largest possible value.
        """
        count, first, _ = self._moments
        means = first[count > 0] / count[count > 0]
        # against a candidate above the means of all groups nothing can be won
        low, high = least, min(most, float(means.max(initial=least)))
        if not high > low:
            return least
        if self._rejects(high):
            return high
        for _ in range(BET_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._rejects(middle) else (low, middle)
        return low


def bound_value(
    lower: Bets | None, upper: Bets | None, limits: tuple[float, float], level: float
) -> Interval:
    r"""Return the interval for a reward range.

    Args:
        lower: Bets on $w (\delta - \delta_{min})$ over the range; None for no lower bound.
        upper: Bets on $w (\delta_{max} - \delta)$ over the range; None for no upper bound.
        limits: The range; a positive $\delta_{min}$ counts as 0.
        level: Level of the interval.
    """
    smallest, largest = limits
    base = min(smallest, 0.0)
    width = largest - base
    low = smallest if lower is None else max(smallest, base + width * lower.lower())
    high = largest if upper is None else min(largest, largest - width * upper.lower())
    return Interval(min(low, high), max(low, high), level)


def split_error(level: float, sides: Sides) -> tuple[float, float]:
    """Return the probabilities of a wrong lower and of a wrong upper bound; 0 for none.

    >>> split_error(0.9, "lower"), split_error(0.5, "two")
    ((0.09999999999999998, 0.0), (0.25, 0.25))
    """
    error = (1 - level) / (2 if sides == "two" else 1)
    return (0.0 if sides == "upper" else error), (0.0 if sides == "lower" else error)
