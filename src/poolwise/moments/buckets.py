"""Buckets: jackknife variances for rows that are not independent.

Rows are split into buckets by a hash of their cluster (a user, a session), and the pass that
computes the moments also computes them per bucket.  Leaving out buckets then needs no further
pass.  The number of rows per logger is part of
the design and stays fixed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import RefusedError
from poolwise.moments.estimate import value_of
from poolwise.moments.linear import stacked
from poolwise.moments.moments import Moments, MomentsByLogger, PooledLoggers, pooled_buckets

if TYPE_CHECKING:
    from poolwise.log.policy import FloatArray
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.terms import Term

BUCKETS = 200  # gives the jackknife's standard error a relative error of about 1 in 20
FEW_ROWS = 0.01  # share of all rows below which a logger's clusters are negligible
ROUNDING = 1e-24  # relative to the squared value: a smaller variance is rounding
Buckets = Sequence[MomentsByLogger]


def resampled(
    buckets: Buckets, times: FloatArray, whole: MomentsByLogger | None = None
) -> Iterator[PooledLoggers]:
    """Yield the moments of each resample, scaled to the full number of rows.

    Loggers absent from a resample keep their full-sample moments.

    Args:
        buckets: Moments of each bucket.
        times: Number of copies of each bucket in each sample, shape (samples, buckets).
        whole: Moments of each logger over all buckets, where they are known.
    """
    whole = pooled_buckets(buckets) if whole is None else whole
    columns = [_samples([b.get(i) for b in buckets], m, times) for i, m in whole.items()]
    for sample in zip(*columns, strict=True):
        yield PooledLoggers(zip(whole, sample, strict=True))


def _samples(
    parts: Sequence[Moments | None], whole: Moments, times: FloatArray
) -> list[Moments]:
    """Return one logger's moments in each sample.

    Around the full-sample mean, sums over a sample are sums over buckets.  The scatter of a
    sample is that around the full-sample mean less the squared shift of its own mean.
    """
    present = [g for g, part in enumerate(parts) if part is not None]
    groups = [part for part in parts if part is not None]
    shares = np.array([m.count / whole.count for m in groups])
    copies = times[:, present]
    drawn = copies @ shares
    weights = copies * shares / np.where(drawn, drawn, 1.0)[:, None]
    size = len(whole.scatter)
    with np.errstate(over="ignore", invalid="ignore"):  # as in `pooled`
        gaps = np.array([m.means for m in groups]) - whole.means
        near = gaps[:, :size, None] * gaps[:, None, :size]
        squares = near + np.array([m.scatter / m.count for m in groups])
        shifts = weights @ gaps
        flat = squares.reshape(len(groups), size * size)
        spread = (weights @ flat).reshape(len(times), size, size)
        spread -= shifts[:, :size, None] * shifts[:, None, :size]
    diagonal = np.arange(size)
    spread[:, diagonal, diagonal] = np.maximum(spread[:, diagonal, diagonal], 0.0)
    means, scatter = whole.means + shifts, spread * whole.count
    lowest = _lowest(np.array([m.lowest for m in groups]), copies)
    largest = -_lowest(np.array([-m.largest for m in groups]), copies)
    arrays = zip(means, scatter, lowest, largest, strict=True)
    return [
        Moments(whole.terms, whole.count, *sample, whole.ddof) if rows else whole
        for sample, rows in zip(arrays, drawn, strict=True)
    ]


def _lowest(values: FloatArray, copies: FloatArray) -> FloatArray:
    """Return the smallest value in each sample; NaN for terms without extremes."""
    lowest = np.full((len(copies), values.shape[1]), np.nan)
    requested = np.flatnonzero(~np.isnan(values).any(axis=0))
    present = np.where(copies[:, :, None] > 0, values[:, requested], np.inf)
    lowest[:, requested] = present.min(axis=1)
    return lowest


@dataclass(frozen=True, eq=False)
class Split:
    """The buckets of one target, with the resamples that all estimators share.

    Attributes:
        buckets: Moments of each logger, per bucket.
        order: Loggers in the order of the log; the first bucket may lack some of them.
    """

    buckets: Buckets
    order: tuple[str, ...] = ()

    @cached_property
    def whole(self) -> PooledLoggers:
        """Moments of each logger over all buckets."""
        return pooled_buckets(self.buckets, self.order)

    @cached_property
    def without_each(self) -> list[PooledLoggers]:
        """Moments with one bucket left out, for each bucket."""
        return list(resampled(self.buckets, 1.0 - np.eye(len(self.buckets)), self.whole))

    def shifts(self, terms: Sequence[Term]) -> FloatArray:
        """Return how leaving out each bucket shifts means of terms, logger after logger.

        The shape is (buckets, loggers * terms).  A logger with rows in one bucket keeps them.
        """
        shifts = np.zeros((len(self.buckets), len(self.whole), len(terms)))
        for k, (i, whole) in enumerate(self.whole.items()):
            present, counts, means = stacked(self.buckets, i, terms)
            if len(present) > 1:
                share = counts / (whole.count - counts)
                shifts[present, k] = share[:, None] * (whole.means_of(terms) - means)
        return shifts.reshape(len(self.buckets), -1)


def jackknife(estimator: Estimator, split: Split) -> Estimate:
    r"""Return the estimate with its jackknife variance.

    $$V = \frac{G-1}{G} \sum_g (\hat U_{(-g)} - \bar U)^2$$

    Buckets of equal size and influence give it $\nu = G - 1$ degrees of freedom, others
    fewer; see `jackknife_freedom`.
    """
    estimate = estimator.estimate(split.whole)
    refuse_lone(split)
    size = len(split.buckets)
    values = np.array([value_of(estimator, rest) for rest in split.without_each])
    gaps = values - values.mean()
    variance = (size - 1) / size * float(np.sum(gaps**2))
    if variance <= ROUNDING * estimate.value**2:  # equal rows: the gaps are rounding
        return replace(estimate, variance=0.0, freedom=float(size - 1))
    freedom = jackknife_freedom(bucket_rows(split.buckets), gaps)
    return replace(estimate, variance=variance, freedom=freedom)


def bucket_rows(buckets: Buckets) -> FloatArray:
    """Return the rows of each bucket, over all loggers, shape (buckets,)."""
    return np.array([sum(m.count for m in b.values()) for b in buckets], dtype=np.float64)


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
    spread = 2 * total**2 / rest if rest > ROUNDING else math.inf
    return max(1.0, min(effective_buckets(rows) - 1, spread))


def refuse_lone(split: Split) -> None:
    """Raise RefusedError if the variance between clusters of a logger cannot be estimated.

    A logger with rows in one bucket is the same in every resample.  This is accepted only
    where such loggers have few rows, so that their variance is negligible.
    """
    if len(split.buckets) < 2:
        raise RefusedError(
            "one-cluster",
            "all rows belong to one cluster, so the variance between clusters cannot be "
            "estimated. Name a finer unit.",
        )
    occurrences = Counter(i for bucket in split.buckets for i in bucket)
    lone = [i for i in split.whole if occurrences[i] < 2]
    rows = sum(m.count for m in split.whole.values())
    if sum(split.whole[i].count for i in lone) > FEW_ROWS * rows:
        raise RefusedError(
            "one-cluster",
            f"all rows of logger {', '.join(map(repr, lone))} belong to one cluster, so the "
            "variance between its clusters cannot be estimated. Name a finer unit, or leave "
            "the logger out.",
        )
