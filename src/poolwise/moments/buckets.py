"""Buckets: jackknife variances for rows that are not independent.

Rows are split into buckets by a hash of their cluster (a user, a session), and the pass that
computes the moments also computes them per bucket.  Leaving out one bucket after the other
then needs no further pass.  The number of rows per logger is part of the design and stays
fixed.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import RefusedError
from poolwise.moments.estimate import compute_value

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.pool import Pool
    from poolwise.types import FloatArray

BUCKETS = 200  # gives the jackknife's standard error a relative error of about 1 in 20
FEW_ROWS = 0.01  # share of all rows below which a logger's clusters are negligible
BUCKET_ROUNDING = 1e-24  # relative to the squared value: a smaller variance is rounding


def jackknife(estimator: Estimator, pool: Pool) -> Estimate:
    r"""Return the estimate with its jackknife variance.

    $$V = \frac{G-1}{G} \sum_g (\hat U_{(-g)} - \bar U)^2$$

    Buckets of equal size and influence give it $\nu = G - 1$ degrees of freedom, others
    fewer; see `jackknife_freedom`.
    """
    estimate = estimator.estimate(pool)
    refuse_lone(pool)
    size = len(pool.buckets)
    values = np.array([compute_value(estimator, rest) for rest in pool.without_each])
    gaps = values - values.mean()
    variance = (size - 1) / size * float(np.sum(gaps**2))
    if variance <= BUCKET_ROUNDING * estimate.value**2:  # equal rows: the gaps are rounding
        return replace(estimate, variance=0.0, freedom=float(size - 1))
    freedom = jackknife_freedom(pool.bucket_rows, gaps)
    return replace(estimate, variance=variance, freedom=freedom)


def effective_buckets(rows: FloatArray) -> float:
    """Return the effective number of buckets with these row counts."""
    return float(rows.sum() ** 2 / (rows**2).sum())


def jackknife_freedom(rows: FloatArray, gaps: FloatArray) -> float:
    r"""Return the degrees of freedom of a jackknife over unequal buckets, at least 1.

    $$\nu = \min\left(\frac{(\sum_g m_g)^2}{\sum_g m_g^2} - 1,
    \frac{2 (\sum_g d_g^2)^2}{\sum_g d_g^4 - (\sum_g d_g^2)^2 / G}\right)$$

    The first is the effective number of buckets less one.  The second is that of a
    chi-square whose variance is the one that the squared gaps show.

    Args:
        rows: Rows m of each bucket.
        gaps: Estimate without each bucket, less the mean of these estimates.

    >>> jackknife_freedom(np.full(5, 20.0), np.array([1.0, -1.0, 1.0, -1.0, 0.0]))
    4.0
    >>> jackknife_freedom(np.array([100.0, 1, 1, 1]), np.array([1.0, -1.0, 1.0, -1.0]))
    1.0
    """
    squares = (gaps / np.abs(gaps).max()) ** 2
    total = float(squares.sum())
    rest = float((squares**2).sum()) - total**2 / len(squares)
    spread = 2 * total**2 / rest if rest > BUCKET_ROUNDING else math.inf
    return max(1.0, min(effective_buckets(rows) - 1, spread))


def refuse_lone(pool: Pool) -> None:
    """Raise RefusedError if the variance between clusters of a logger cannot be estimated.

    A logger with rows in one bucket is the same without any other.  This is accepted only
    where such loggers have few rows, so that their variance is negligible.
    """
    if not pool.clustered:
        raise RefusedError(
            "one-cluster",
            "all rows belong to one cluster, so the variance between clusters cannot be "
            "estimated. Name a finer unit.",
        )
    occurrences = Counter(i for bucket in pool.buckets for i in bucket)
    lone = [i for i in pool if occurrences[i] < 2]
    if sum(pool[i].count for i in lone) > FEW_ROWS * pool.rows:
        raise RefusedError(
            "one-cluster",
            f"all rows of logger {', '.join(repr(str(i)) for i in lone)} belong to one "
            "cluster, so the variance between its clusters cannot be estimated. Name a finer "
            "unit, or leave the logger out.",
        )
