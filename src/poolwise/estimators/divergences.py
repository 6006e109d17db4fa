"""Divergences: the variance of a target's weighted rewards under each logger.

They give the shares of the loggers in weighted IPS, and its variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poolwise.moments.linear import added_freedom, row_variances, satterthwaite_freedom
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    UNSUPPORTED,
    WEIGHTED_REWARD,
    Term,
    second_moment,
    weight_moment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.estimate import Estimate
    from poolwise.moments.pool import Pool

FLOOR = 1e-3  # relative to the second moment: a smaller divergence is noise


@dataclass(frozen=True)
class Differences:
    """Divergences estimated from rows: second moments less a squared value.

    Attributes:
        second: Second moment of one row of each logger; infinite without support.
        value: Mean that all loggers have in common.
        floor: Share of its second moment below which a difference is noise.
    """

    second: Mapping[str, float]
    value: float
    floor: float

    def floored(self) -> dict[str, float]:
        """Return divergences for shares: noise near 0 would give a logger all of the share."""
        return {
            i: max(second - self.value**2, self.floor * second) if second < math.inf else second
            for i, second in self.second.items()
        }

    def with_errors(
        self,
        estimate: Estimate,
        pool: Pool,
        error: float,
        terms: Sequence[Term] = (WEIGHTED_REWARD,),
    ) -> Estimate:
        r"""Return an estimate with the variance of these divergences, unbiased.

        $E[\hat U^2]$ exceeds $U^2$ by the variance of $\hat U$, the `error`; added to a
        difference, it removes the bias (with one logger: $n / (n - 1)$).  A difference below
        the floor is replaced by the variance of the logger's own rows.
        """
        if not self.floor:
            return estimate
        own = row_variances(pool, dict.fromkeys(terms, 1.0))
        noise = {i for i, s in self.second.items() if s - self.value**2 <= self.floor * s}
        rows = {
            i: own[i] if i in noise else second - self.value**2 + error
            for i, second in self.second.items()
        }
        used = {i: s for i, s in estimate.shares.items() if s > 0}
        parts = {i: s**2 * rows[i] / pool[i].count for i, s in used.items()}
        noisy = {i: part for i, part in parts.items() if i in noise}
        variance, rest = sum(parts.values()), sum(parts[i] for i in parts if i not in noise)
        freedom = estimate.freedom
        if noisy:
            from_own = (sum(noisy.values()), satterthwaite_freedom(pool, noisy))
            freedom = added_freedom([from_own, (rest, estimate.freedom)])
        return with_variance(estimate, pool, variance, freedom)


def differences(pool: Pool) -> Differences:
    """Return the differences behind the divergence of the target from each logger."""
    whole = pool.together
    value, square = whole.mean(BALANCED_REWARD), whole.mean_square(BALANCED_REWARD)
    second = {i: whole.mean(second_moment(i)) for i in pool.loggers}
    return Differences(refuse_unsupported(second, square), value, FLOOR if whole.ddof else 0.0)


def refuse_unsupported(second: Mapping[str, float], square: float) -> dict[str, float]:
    """Replace second moments that contain `UNSUPPORTED` by infinity."""
    limit = math.sqrt(UNSUPPORTED) * square
    return {i: s if s < limit or s == 0 else math.inf for i, s in second.items()}


def pooled_divergences(pool: Pool) -> dict[str, float]:
    r"""Return the divergence of the target from each logger, from the rows of all loggers.

    $$D_i = \frac1n \sum_{rows} \frac{\delta^2 \bar\pi^2}{\pi_i \pi_{avg}} - \hat U_{bal}^2$$

    Infinite if the logger never plays a rewarded action of the target; from rows, at
    least `FLOOR` times the second moment.
    """
    return differences(pool).floored()


def weight_moments(pool: Pool) -> dict[str, float]:
    r"""Return the mean square of each logger's own weights, from the rows of all loggers.

    $$v_i = \frac1n \sum_{rows} \frac{\bar\pi^2}{\pi_i \pi_{avg}} \approx E_i[w_i^2]$$

    Infinite if the logger never plays an action of the target, rewarded or not.
    """
    whole = pool.together
    square = whole.mean_square(BALANCED_WEIGHT)
    return refuse_unsupported({i: whole.mean(weight_moment(i)) for i in pool.loggers}, square)


def with_variance(estimate: Estimate, pool: Pool, variance: float, freedom: float) -> Estimate:
    """Return the estimate with another variance, for shares that were adapted to the rows.

    If it exceeds that of `linear`, `linear` is inflated, so that differences use it too.
    """
    rows, _ = estimate.linear.plain.variance(pool)
    inflation = max(1.0, variance / rows) if 0 < rows < math.inf else 1.0
    linear = replace(estimate.linear, inflation=inflation, most_free=freedom, adapted=True)
    return replace(estimate, variance=variance, freedom=freedom, linear=linear)
