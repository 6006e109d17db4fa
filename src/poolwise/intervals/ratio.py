r"""Ratio: two values from the same rows, divided, with the interval of their ratio.

The error of $\hat R = \hat U_a / \hat U_b$ is that of the mean of $(a - \hat R b) w$ over
$\hat U_b$.  A value R is in the interval if the interval of $U_a - R \, U_b$ contains 0
(Fieller), so that a noisy denominator counts at the limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from poolwise.intervals.skew import Reach, reach_ratio
from poolwise.intervals.student import Interval, one_sided, tail_probability
from poolwise.moments.linear import Fit, Linear
from poolwise.moments.shape import find_weight
from poolwise.moments.units import find_pull

if TYPE_CHECKING:
    from poolwise.intervals.student import Sides
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.pool import Pool
    from poolwise.types import FloatArray


@dataclass(frozen=True, eq=False)
class Ratio:
    """The ratio of two values from the same rows.

    Attributes:
        above: Estimate that is divided; its terms name their measure.
        below: Estimate that divides it, significantly away from 0.
        pool: Moments of the terms of both.
    """

    above: Estimate
    below: Estimate
    pool: Pool

    @property
    def value(self) -> float:
        """The ratio."""
        return self.above.value / self.below.value

    @property
    def decided_by_few(self) -> bool:
        """True if heavy rows were set apart in either value, which moments do not combine."""
        return any(e.decisive is not None for e in (self.above, self.below))

    @cached_property
    def linear(self) -> Linear:
        """The ratio, linearised.

        Its error is that of the rows behind the denominator, however many rows have none.
        """
        top, bottom = self.above.linear, self.below.linear
        part = (top - bottom * self.value) * (1 / self.below.value)
        linear = replace(part, constant=part.constant + self.value, fit=self._fit)
        rows = self.effective_rows
        if math.isinf(rows):
            return linear
        return replace(
            linear,
            inflation=max(linear.inflation, rows / max(rows - 1, 0.1)),
            most_free=min(linear.most_free, max(1.0, rows - 1)),
            adapted=True,
        )

    @cached_property
    def effective_rows(self) -> float:
        r"""Effective rows behind the denominator, $(\sum w b)^2 / \sum (w b)^2$.

        Clicks of equal weight count as they are; infinite for exact moments.
        """
        terms = {t for part in self.below.linear.parts.values() for t in part}
        weighted = [term for term in terms if find_weight(term) is not None]
        if self.pool.exact or len(weighted) != 1:
            return math.inf
        return self.pool.together.effective(weighted[0])

    @property
    def _fit(self) -> Fit | None:
        """The regression behind the ratio; None if either value has none."""
        top, bottom = self.above.linear.fit, self.below.linear.fit
        if top is None or bottom is None:
            return None
        score = (top.score - bottom.score * self.value) * (1 / self.below.value)
        more = (column for column in bottom.columns if column not in top.columns)
        return Fit(
            replace(score, constant=score.constant + self.value),
            (*top.columns, *more),
            min(top.effective, bottom.effective, self.effective_rows),
            top.within,
        )

    @property
    def constant(self) -> bool:
        """True if one value is the other times a factor, so that no row adds an error."""
        if not any(c for part in self.linear.parts.values() for c in part.values()):
            return True
        varies = all(e.variance > 0 for e in (self.above, self.below))
        return varies and self._variance(self.linear)[0] == 0

    @cached_property
    def estimate(self) -> Estimate:
        """The ratio as an estimate, no more precise than its parts by their own variances."""
        if self.constant:
            return replace(self.above, value=self.value, variance=0.0, linear=self.linear)
        sides = (self.above, self.below)
        variance, freedom = self._variance(self.linear)
        if self.pool.clustered:
            freedom = min(freedom, *(e.freedom for e in sides))
        shown = [(e.variance, self._variance(e.linear)[0]) for e in sides]
        larger = [own / plain for own, plain in shown if 0 < plain < own < math.inf]
        excess = max([1.0, *larger])
        findings = tuple(dict.fromkeys((*self.above.findings, *self.below.findings)))
        return replace(
            self.above,
            value=self.value,
            variance=excess * variance,
            freedom=freedom,
            findings=findings,
            linear=self.linear,
            decisive=None,
        )

    def _variance(self, linear: Linear) -> tuple[float, float]:
        """Return the variance of a combination, between clusters if there are any."""
        return (linear.deviation_variance if self.pool.clustered else linear.variance)(
            self.pool
        )

    def interval(self, level: float, sides: Sides) -> Interval:
        """Return the interval of the ratio."""
        if self.constant:
            return Interval(self.value, self.value, level)
        reach = self.reach(tail_probability(level, sides))
        ends = Interval(self.value - reach.below, self.value + reach.above, level)
        return one_sided(ends, sides)

    def bounded(self, alpha: float) -> bool:
        """Test if there are limits, each of which errs with probability alpha.

        There are none if the denominator is not significantly away from 0.
        """
        if self.constant:
            return True
        reach = self.reach(alpha)
        return math.isfinite(reach.below + reach.above)

    def reach(self, alpha: float) -> Reach:
        """Return the distances to the limits, each of which errs with probability alpha."""
        if not 0 < self.estimate.variance < math.inf:
            return Reach(math.inf, math.inf)
        sign = math.copysign(1.0, self.below.value)
        top, bottom = (e.linear.plain * sign for e in (self.above, self.below))
        reach = reach_ratio(self.estimate, top, bottom, self.pool, self._pull, alpha)
        return reach or Reach(math.inf, math.inf)

    @cached_property
    def _pull(self) -> FloatArray | float:
        """Factors that correct the variance by known columns."""
        fit = self.linear.fit
        if fit is None:
            return 0.0
        return find_pull(fit.columns, self.pool, within=fit.within, fitted=True)


def divide_intervals(above: Interval, below: Interval) -> Interval:
    """Return the ratios of all pairs of values in two intervals; unbounded where 0 divides.

    >>> divide_intervals(Interval(2.0, 6.0, 0.95), Interval(2.0, 4.0, 0.95))
    Interval(lower=0.5, upper=3.0, level=0.95)
    """
    if below.lower <= 0 <= below.upper:
        return Interval(-math.inf, math.inf, above.level)
    corners = [
        top / bottom
        for top in (above.lower, above.upper)
        for bottom in (below.lower, below.upper)
    ]
    return Interval(min(corners), max(corners), above.level)
