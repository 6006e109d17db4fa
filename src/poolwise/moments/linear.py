"""Deviations: how far the rows are from what theory fixes.

The mean weight is 1, a logger over the mixture has mean 1, two estimators of one value
differ by nothing.  Each of these is a fixed combination of the loggers' means, so that
its error needs no formula of its own; rows that belong together are respected where the
moments come in buckets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.estimate import by_count, satterthwaite_freedom
from poolwise.moments.terms import Term

if TYPE_CHECKING:
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.moments import Moments, MomentsByLogger

Parts = Mapping[str, Mapping[Term, float]]
CANCELLED = 1e-12  # of what was added and subtracted: less is left by rounding only
MANY = 1e9  # degrees of freedom that are as good as infinite
NOISE = 1e-24  # of the squared size of what is added up: a variance below it is rounding
ROUNDING = 1e-9  # relative: a gap below it is no gap where rows do not vary


@dataclass(frozen=True)
class Combination:
    """A combination of means, and what it should be.

    Attributes:
        parts: Coefficient of the mean of each term, by logger.
        value: What the rows say.
        expected: What it should be.
    """

    parts: Parts
    value: float
    expected: float = 1.0


@dataclass(frozen=True)
class Deviation:
    """How far a combination is from what it should be.

    Attributes:
        value: What the rows say.
        z: Distance from what it should be, in standard errors; 0 where they are unknown.
        p_value: Chance of a larger distance if nothing is wrong.
    """

    value: float
    z: float
    p_value: float


def mean_over(moments: MomentsByLogger, parts: Mapping[Term, float]) -> Combination:
    """The mean of a combination of terms over all rows."""
    share = by_count(moments)
    spread = {i: {t: share[i] * part for t, part in parts.items()} for i in moments}
    value = sum(p * m.mean(t) for i, m in moments.items() for t, p in spread[i].items())
    return Combination(spread, value)


def mean_of(moments: MomentsByLogger, logger: str, parts: Mapping[Term, float]) -> Combination:
    """The mean of a combination of terms over the rows of one logger."""
    value = sum(part * moments[logger].mean(t) for t, part in parts.items())
    return Combination({logger: parts}, value)


def deviation(
    combination: Combination,
    moments: MomentsByLogger,
    buckets: Buckets,
    *,
    at_least: float = 0.0,
) -> Deviation:
    """Test a combination against what it should be, by Student's distribution.

    Its variance is taken to be `at_least` this, where theory knows better than few rows.
    """
    from scipy.special import stdtr

    value, expected = combination.value, combination.expected
    spread, freedom = variance(combination, moments, buckets)
    spread = max(spread, at_least)
    gap = 0.0 if math.isclose(value, expected, rel_tol=ROUNDING) else value - expected
    z = gap / math.sqrt(spread) if spread > 0 else _endless(gap)
    return Deviation(value, z, 2 * float(stdtr(min(freedom, MANY), -abs(z))))


def _endless(gap: float) -> float:
    """Rows that do not vary are infinitely sure of any gap."""
    return math.copysign(math.inf, gap) if gap else 0.0


def variance(
    combination: Combination, moments: MomentsByLogger, buckets: Buckets
) -> tuple[float, float]:
    r"""Variance of a combination, and its degrees of freedom.

    Stratified by logger, or between buckets where there are several: with coefficients
    $c_i$ and $z_g$ what bucket $g$ adds to the combination,

    $$V = \sum_i \frac{c_i' \Sigma_i c_i}{n_i}
      \qquad\text{or}\qquad V = \frac{G}{G - 1} \sum_g (z_g - \bar z)^2$$

    Infinite where some logger has one row only.
    """
    if len(buckets) > 1:
        added = [_added(combination.parts, bucket, moments) for bucket in buckets]
        between = len(added) * float(np.var(added, ddof=1))
        noise = NOISE * _size(combination.parts, moments) ** 2
        return between if between > noise else 0.0, len(added) - 1.0
    found = {i: _part(moments[i], parts) for i, parts in combination.parts.items()}
    return sum(found.values()), satterthwaite_freedom(moments, found)


def _part(moments: Moments, parts: Mapping[Term, float]) -> float:
    if moments.count <= moments.ddof:
        return math.inf
    weights = np.array(list(parts.values()))
    covariance = moments.covariance(list(parts))
    rows = float(weights @ covariance @ weights)
    cancelled = float(abs(weights) @ abs(covariance) @ abs(weights))
    return rows / moments.count if rows > CANCELLED * cancelled else 0.0


def _size(parts: Parts, moments: MomentsByLogger) -> float:
    """How large the numbers are that a combination adds and subtracts."""
    return sum(
        abs(p * moments[i].mean(t)) for i, terms in parts.items() for t, p in terms.items()
    )


def _added(parts: Parts, bucket: MomentsByLogger, whole: MomentsByLogger) -> float:
    """What the rows of one bucket add to a combination, around its value."""
    return sum(
        bucket[i].count / whole[i].count * part * (bucket[i].mean(t) - whole[i].mean(t))
        for i, terms in parts.items()
        if i in bucket
        for t, part in terms.items()
    )
