"""Resampling by bucket: errors that hold when rows belong together.

Rows are split into buckets by a hash of their unit (a user, a session; by default
the row itself), and the moments of each bucket come from the same pass.  Leaving out
one bucket after the other, or drawing buckets anew, then costs no further reading.
The loggers' sizes are part of the design and stay as they are.
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
from poolwise.moments.moments import FloatArray, Moments, MomentsByLogger, pooled

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimate, Estimator

BUCKETS = 200  # the error of a jackknife's error is then about 1 in 20
FEW_ROWS = 0.01  # a share of all rows: what their clusters do is small beside the others
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
        flat = squares.reshape(len(some), size * size)
        spread = (weights @ flat).reshape(len(times), size, size)
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

    $$V = \frac{G-1}{G} \sum_g (\hat U_{(-g)} - \bar U)^2$$

    Buckets of equal size and influence give it $\nu = G - 1$ degrees of freedom, others
    fewer; see `freedom_of`.
    """
    found = estimator.estimate(split.whole)
    refuse_lone(split)
    size = len(split.buckets)
    values = np.array([estimator.estimate(rest).value for rest in split.without_each])
    gaps = values - values.mean()
    variance = (size - 1) / size * float(np.sum(gaps**2))
    if variance <= ROUNDING * found.value**2:  # equal rows: what is left is no spread
        return replace(found, variance=0.0, freedom=float(size - 1))
    return replace(found, variance=variance, freedom=freedom_of(rows_of(split.buckets), gaps))


def rows_of(buckets: Buckets) -> FloatArray:
    """Rows of each bucket, of all loggers, shape (buckets,)."""
    return np.array([sum(m.count for m in b.values()) for b in buckets], dtype=np.float64)


def effective_buckets(rows: FloatArray) -> float:
    """Buckets of equal size that buckets of so many rows are worth."""
    return float(rows.sum() ** 2 / (rows**2).sum())


def freedom_of(rows: FloatArray, gaps: FloatArray) -> float:
    r"""Degrees of freedom of a jackknife whose buckets differ.

    $$\nu = \min\left(\frac{(\sum_g m_g)^2}{\sum_g m_g^2} - 1,
    \frac{2 (\sum_g d_g^2)^2}{\sum_g d_g^4 - (\sum_g d_g^2)^2 / G}\right)$$

    The first is the effective number of buckets less one: where one holds most of the
    rows, its error rests on few others. The second is that of a chi-square with the
    variance that the squares of the gaps show. It is at least 1.

    Args:
        rows: Rows m of each bucket.
        gaps: How far the estimate moves without each, less the mean of that.

    >>> freedom_of(np.full(5, 20.0), np.array([1.0, -1.0, 1.0, -1.0, 0.0]))
    4.0
    >>> freedom_of(np.array([100.0, 1, 1, 1, 1]), np.array([1.0, -1.0, 1.0, -1.0, 0.0]))
    1.0
    """
    squares = (gaps / np.abs(gaps).max()) ** 2
    total = float(squares.sum())
    rest = float((squares**2).sum()) - total**2 / len(squares)
    spread = 2 * total**2 / rest if rest > ROUNDING else math.inf
    return max(1.0, min(effective_buckets(rows) - 1, spread))


def refuse_lone(split: Split) -> None:
    """Refuse an error that would leave out how much the clusters of a logger differ.

    A logger with rows of one bucket stays as it is in every sample; only where it has few
    rows is what this hides small beside what the others show.
    """
    if len(split.buckets) < 2:
        raise RefusedError(
            "one-cluster",
            "all rows belong to one cluster: the spread between clusters cannot be known. Name "
            "a finer unit.",
        )
    seen = Counter(i for bucket in split.buckets for i in bucket)
    lone = [i for i in split.whole if seen[i] < 2]
    rows = sum(m.count for m in split.whole.values())
    if sum(split.whole[i].count for i in lone) > FEW_ROWS * rows:
        raise RefusedError(
            "one-cluster",
            f"all rows of logger {', '.join(map(repr, lone))} belong to one cluster: how much "
            "its clusters differ cannot be known. Name a finer unit, or leave the logger out.",
        )


def bootstrap(
    estimator: Estimator, split: Split, rng: np.random.Generator, *, replicates: int = 400
) -> FloatArray:
    """Estimates from buckets drawn anew, with replacement, shape (replicates,)."""
    return np.array([estimator.estimate(s).value for s in split.drawn(rng, replicates)])
