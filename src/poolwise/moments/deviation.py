r"""Deviation: test of a combination of means whose expectation is known.

Weights are skewed to the right, so a mean that misses its rare large weights is low *and* has
a small standard error.  The test is therefore a score test where it can be: on the side of
the skew the variance grows with the distance, as in the skew-score interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolwise.moments.linear import NORMAL, ROUNDING
from poolwise.moments.shape import kurtosis_freedom, measure_shape
from poolwise.moments.units import centre_units

if TYPE_CHECKING:
    from poolwise.moments.linear import Linear
    from poolwise.moments.pool import Pool


@dataclass(frozen=True)
class Deviation:
    """Test of a combination whose expectation is known.

    Attributes:
        value: Value of the combination.
        z: Distance from the expectation in standard errors; 0 if these are unknown.
        p_value: Probability of a larger distance if the expectation is right.
    """

    value: float
    z: float
    p_value: float


def deviation(
    linear: Linear,
    pool: Pool,
    *,
    expected: float = 1.0,
    at_least: float = 0.0,
) -> Deviation:
    r"""Test a combination against its expectation, by a score that allows for skewness.

    $$s = d \big/ \sqrt{1 + \gamma d}, \qquad d = |\text{value} - \text{expected}| / \sqrt V$$

    with $\gamma$ the skewness away from the value, towards the expectation; 0 if the
    combination is skewed to the other side, or without slices and clusters.  The p-value is
    of Student's distribution, with the degrees of freedom that the kurtosis leaves.

    Args:
        linear: Combination to test.
        pool: Moments of the rows.
        expected: Known expectation.
        at_least: Lower bound on the variance.
    """
    from scipy.special import stdtr

    value = linear.value(pool)
    own, freedom = linear.deviation_variance(pool)
    variance = max(own, at_least)
    gap = 0.0 if math.isclose(value, expected, rel_tol=ROUNDING) else value - expected
    if variance > 0:
        z = gap / math.sqrt(variance)
    else:  # without variance any gap is infinitely significant
        z = math.copysign(math.inf, gap) if gap else 0.0
    score = abs(z)
    strata = centre_units(linear, pool) if 0 < own < math.inf else None
    if strata is not None:
        shape = measure_shape(strata)
        freedom = float(kurtosis_freedom(shape.skewness, shape.noise, freedom))
        score = abs(skewed_score(z, shape.skewness * (own / variance) ** 1.5))
    return Deviation(value, z, 2 * float(stdtr(min(freedom, NORMAL), -score)))


def skewed_score(z: float, skewness: float) -> float:
    r"""Return a distance in standard errors at the expectation, instead of at the value.

    >>> skewed_score(-4.0, 0.75), skewed_score(4.0, 0.75), skewed_score(-4.0, 0.0)
    (-2.0, 4.0, -4.0)
    """
    return z / math.sqrt(1 + max(0.0, -z * skewness))
