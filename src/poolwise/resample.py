"""Resampling by bucket: errors that hold when rows belong together.

Rows are split into buckets by a hash of their unit (a user, a session; by default
the row itself), and the moments of each bucket come from the same pass.  Leaving out
one bucket after the other, or drawing buckets anew, then costs no further reading.
The loggers' sizes are part of the design and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import RefusedError
from poolwise.moments import FloatArray, Moments, MomentsByLogger, pooled

if TYPE_CHECKING:
    from poolwise.estimators.base import Estimate, Estimator

BUCKETS = 200  # the error of a jackknife's error is then about 1 in 20
ROUNDING = 1e-24  # of the squared value: a variance below it is the noise of sums
Buckets = Sequence[MomentsByLogger]


def together(buckets: Buckets) -> dict[str, Moments]:
    """Moments of each logger over all buckets."""
    loggers = dict.fromkeys(i for bucket in buckets for i in bucket)
    return {i: pooled(b[i] for b in buckets if i in b) for i in loggers}


def resampled(buckets: Buckets, times: FloatArray) -> Iterator[dict[str, Moments]]:
    """Moments of buckets taken so many times each, at the size of the whole.

    A logger none of whose rows is taken stays as it is.

    Args:
        buckets: Moments of each bucket.
        times: How often each is taken, for each sample, shape (samples, buckets).
    """
    whole = together(buckets)
    columns = [_samples([b.get(i) for b in buckets], m, times) for i, m in whole.items()]
    for sample in zip(*columns, strict=True):
        yield dict(zip(whole, sample, strict=True))


def _samples(
    parts: Sequence[Moments | None], whole: Moments, times: FloatArray
) -> list[Moments]:
    """One logger's moments in each sample.

    Around the mean of the whole, sums of a sample are sums of buckets, and its scatter is
    that around this mean less the square of how far its own mean is from there.
    """
    there = [g for g, part in enumerate(parts) if part is not None]
    some = [part for part in parts if part is not None]
    shares = np.array([m.count / whole.count for m in some])
    taken = times[:, there]
    drawn = taken @ shares
    weights = taken * shares / np.where(drawn, drawn, 1.0)[:, None]
    size = len(whole.scatter)
    with np.errstate(over="ignore", invalid="ignore"):  # as in `moments.merge`
        gaps = np.array([m.means for m in some]) - whole.means
        near = gaps[:, :size, None] * gaps[:, None, :size]
        squares = near + np.array([m.scatter / m.count for m in some])
        shifts = weights @ gaps
        spread = (weights @ squares.reshape(len(some), -1)).reshape(-1, size, size)
        spread -= shifts[:, :size, None] * shifts[:, None, :size]
    diagonal = np.arange(size)
    spread[:, diagonal, diagonal] = np.maximum(spread[:, diagonal, diagonal], 0.0)
    means, scatter = whole.means + shifts, spread * whole.count
    lowest = _lowest(np.array([m.lowest for m in some]), taken)
    largest = -_lowest(np.array([-m.largest for m in some]), taken)
    found = zip(means, scatter, lowest, largest, strict=True)
    return [
        Moments(whole.terms, whole.count, *arrays, whole.ddof) if seen else whole
        for arrays, seen in zip(found, drawn, strict=True)
    ]


def _lowest(values: FloatArray, taken: FloatArray) -> FloatArray:
    """Smallest value among the buckets of each sample; nan where nobody asked."""
    found = np.full((len(taken), values.shape[1]), np.nan)
    asked = np.flatnonzero(~np.isnan(values).any(axis=0))
    present = np.where(taken[:, :, None] > 0, values[:, asked], np.inf)
    found[:, asked] = present.min(axis=1)
    return found


@dataclass(frozen=True, eq=False)
class Split:
    """The buckets of one target, and what every estimator takes from them.

    Attributes:
        buckets: Moments of each logger, bucket by bucket.
    """

    buckets: Buckets

    @cached_property
    def whole(self) -> dict[str, Moments]:
        """Moments of each logger over all buckets."""
        return together(self.buckets)

    @cached_property
    def without_each(self) -> list[dict[str, Moments]]:
        """Without one bucket after the other."""
        return list(resampled(self.buckets, 1.0 - np.eye(len(self.buckets))))

    def drawn(self, rng: np.random.Generator, samples: int) -> Iterator[dict[str, Moments]]:
        """Buckets drawn anew, with replacement."""
        size = len(self.buckets)
        times = rng.multinomial(size, np.full(size, 1 / size), size=samples)
        return resampled(self.buckets, times.astype(np.float64))


def jackknife(estimator: Estimator, split: Split) -> Estimate:
    r"""The estimate, with the variance that leaving out buckets shows.

    $$V = \frac{G-1}{G} \sum_g (\hat U_{(-g)} - \bar U)^2, \qquad \nu = G - 1$$
    """
    found = estimator.estimate(split.whole)
    size = len(split.buckets)
    if size < 2:
        raise RefusedError(
            "one-cluster",
            "all rows belong to one cluster: the spread between clusters cannot be known",
        )
    values = np.array([estimator.estimate(rest).value for rest in split.without_each])
    variance = (size - 1) / size * float(np.sum((values - values.mean()) ** 2))
    if variance <= ROUNDING * found.value**2:  # equal rows: what is left is no spread
        variance = 0.0
    return replace(found, variance=variance, freedom=float(size - 1))


def bootstrap(
    estimator: Estimator, split: Split, rng: np.random.Generator, *, replicates: int = 400
) -> FloatArray:
    """Estimates from buckets drawn anew, with replacement, shape (replicates,)."""
    return np.array([estimator.estimate(s).value for s in split.drawn(rng, replicates)])
