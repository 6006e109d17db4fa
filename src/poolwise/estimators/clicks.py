"""Estimators of click logs: IPS with examinations in place of probabilities.

The examination of positions does not sum to 1 over the items of a request, so no mean weight
is known: an interval must not be corrected by it, and calibrated has no columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from poolwise.estimators.ips import OWN_SHARES, Balanced, Naive, Weighted
from poolwise.log.clicks import lacks_probabilities
from poolwise.moments.estimate import Estimate, Estimator, compute_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from poolwise.moments.coverage import Coverage
    from poolwise.moments.pool import Pool
    from poolwise.moments.terms import Needs


@dataclass(frozen=True)
class OfClicks(Estimator):
    """Balanced, naive or weighted of clicks.

    Attributes:
        plain: The same estimator of probabilities.
    """

    plain: Estimator

    @property
    def name(self) -> str:
        return self.plain.name

    @property
    def pools(self) -> bool:
        return self.plain.pools

    @property
    def rank(self) -> int:
        return self.plain.rank + isinstance(self.plain, Balanced)

    def needs(self, coverage: Coverage) -> Needs:
        return self.plain.needs(coverage)

    def estimate(self, pool: Pool) -> Estimate:
        found = self.plain.estimate(pool)
        findings = tuple(f for f in found.findings if f != OWN_SHARES)  # support says more
        linear = replace(found.linear, unknown_means=True)
        return replace(found, linear=linear, findings=findings)

    def value(self, pool: Pool) -> float:
        return compute_value(self.plain, pool)


# the recommended one first
OF_CLICKS: Mapping[str, Callable[[], Estimator]] = {
    "balanced": partial(OfClicks, Balanced()),
    "naive": partial(OfClicks, Naive()),
    "weighted": partial(OfClicks, Weighted(divergence="own")),
}


def of_clicks(estimator: Estimator) -> Estimator:
    """Return an estimator for clicks; raise UsageError if it has no meaning for them."""
    plain = isinstance(estimator, Naive)
    plain |= isinstance(estimator, Balanced) and estimator.shrink is None
    plain |= isinstance(estimator, Weighted) and estimator.divergence in {"own", "known"}
    if isinstance(estimator, OfClicks):
        return estimator
    if not plain:
        raise lacks_probabilities(estimator.name)
    return OfClicks(estimator)
