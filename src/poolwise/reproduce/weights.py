"""Figure 5: how many rows it takes to estimate the weights of the weighted estimator.

Two logs of equal size, from 10 to 10,000 rows each.  The paper plugs in each log's
own sample variance; the pooled rule lets every row speak for every logger.  The
paper's figure shows the variance that an estimator with *these shares, held fixed*,
would have; but the shares come from the same rows as the estimate, so the spread
and the bias of the estimate itself are shown as well.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import numpy as np

from poolwise.estimators.ips import Weighted
from poolwise.reproduce.enumeration import Mix
from poolwise.reproduce.problem import FIRST, SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.moments import FloatArray
    from poolwise.reproduce.draws import Draws
    from poolwise.reproduce.panels import Row

SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)  # rows of each log
RULES = {"own": Weighted(divergence="own"), "pooled": Weighted(divergence="pooled")}
MOST_ROWS = 2_000_000  # of each log over all replications
MOST_REPLICATIONS = 2000
FEWEST_REPLICATIONS = 400


def replications_for(size: int) -> int:
    """Many for small logs, fewer for large ones.

    >>> replications_for(10), replications_for(10_000)
    (2000, 400)
    """
    return max(FEWEST_REPLICATIONS, min(MOST_REPLICATIONS, MOST_ROWS // size))


def estimated_weights(
    draws: Draws,
    known: Mapping[str, float],
    value: float,
    size: int,
    rng: np.random.Generator,
    *,
    replications: int = 0,
) -> list[Row]:
    """One row per rule, for logs of one size.

    Args:
        draws: Where logs come from.
        known: Exact divergences.
        value: True value of the target.
        size: Rows of each log.
        rng: Source of all randomness.
        replications: How many; 0 for as many as the size deserves.
    """
    mix = Mix({FIRST: size, SECOND: size})
    optimal = Weighted(divergence="known", known=known)
    rules = {"optimal": optimal, **RULES}
    needs = reduce(or_, (rule.needs((FIRST, SECOND), crossed=True) for rule in rules.values()))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in rules}
    count = replications or replications_for(size)
    for moments in draws.moments(mix, needs.terms, count, rng):
        for name, rule in rules.items():
            estimate = rule.estimate(moments)
            found[name].append((estimate.shares[FIRST], estimate.value))
    best = np.array(found.pop("optimal"))[:, 1] - value
    return [
        {"n": size, "rule": name, **_summary(np.array(pairs), best, value, known)}
        for name, pairs in found.items()
    ]


def _summary(
    pairs: FloatArray, best: FloatArray, value: float, known: Mapping[str, float]
) -> Row:
    """Shares and estimates of one rule beside the errors of the optimal shares.

    Both come from the same rows, so that ratios and differences carry little noise.
    """
    share, errors = pairs[:, 0], pairs[:, 1] - value
    optimum = 1 / sum(1 / divergence for divergence in known.values())
    fixed = (share**2 * known[FIRST] + (1 - share) ** 2 * known[SECOND]) / optimum
    gap = errors - best
    spread = float(best.std(ddof=1))
    return {
        "replications": len(share),
        "fixed_ratio": float(fixed.mean()),
        "fixed_ratio_90": float(np.quantile(fixed, 0.9)),
        "variance_ratio": float(errors.var(ddof=1)) / spread**2,
        "mse_ratio": float((errors**2).mean() / (best**2).mean()),
        "bias": float(gap.mean()),
        "bias_error": float(gap.std(ddof=1)) / float(np.sqrt(len(gap))),
        "bias_sd": float(gap.mean()) / spread,
    }
