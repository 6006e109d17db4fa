r"""Shape: the skewness of an estimate, and how far its variance can be trusted.

An estimate is a sum over units: slices of the rows of each logger (`moments.tallies`), or
buckets of clusters.  Cumulants of independent sums add up, so the cubes of the units' sums
give the third cumulant of the estimate, whatever the number of rows in a unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.tallies import added_powers, slice_rows
from poolwise.moments.terms import BALANCED_REWARD, REWARD, Term

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.linear import Linear, Score
    from poolwise.moments.moments import FloatArray, Moments, MomentsByLogger

NULL_EIGENVALUE = 1e-10  # of a correlation matrix: smaller ones are rounding


@dataclass(frozen=True)
class Shape:
    r"""Shape of an estimate's distribution.

    Attributes:
        skewness: Third cumulant of the estimate over $V^{3/2}$.
        noise: Variance of the estimated variance, over $V^2$.
        rise: Factor by which the known means of the columns raise the variance, at least 1.
    """

    skewness: float = 0.0
    noise: float = 0.0
    rise: float = 1.0


@dataclass(frozen=True, eq=False)
class Powers:
    """Sums of absolute powers over all rows, on the scale of the estimate's rows.

    Attributes:
        rows: Number of rows.
        reward: Powers of the rewards, shape (6,); see `moments.tallies`.
        weight: Sums of the weights to the power 0 to 3, shape (4,).
        weighted: Powers of weight times reward, shape (6,).
        own: True if the weights are those of the estimate.
    """

    rows: int
    reward: FloatArray
    weight: FloatArray
    weighted: FloatArray
    own: bool = True


def cumulants(units: FloatArray) -> FloatArray:
    """Return variance, third cumulant and variance of the variance of a sum of units.

    Args:
        units: What each unit of one stratum adds, centred, units on the last axis.
    """
    size = units.shape[-1]
    squares = units**2
    second, fourth = squares.mean(axis=-1), (squares**2).mean(axis=-1)
    third = (squares * units).sum(axis=-1)
    if size < 2:
        return np.zeros((3, *units.shape[:-1]))
    return np.array(
        [
            second * size**2 / (size - 1),
            third * size**2 / ((size - 1) * (size - 2)) if size > 2 else 0 * third,
            size * (fourth - second**2 * (size - 3) / (size - 1)),
        ]
    )


def in_range(strata: Sequence[FloatArray]) -> list[FloatArray]:
    """Divide the units of a sum by the largest of them, so that no power is out of range."""
    sizes = np.max([np.abs(units).max(axis=-1, initial=0.0) for units in strata], axis=0)
    sizes = np.where(sizes > 0, sizes, 1.0)[..., None]
    return [units / sizes for units in strata]


def shapes_of(strata: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return skewness and noise of several sums; units are on the last axis."""
    variance, third, noise = np.sum([cumulants(units) for units in in_range(strata)], axis=0)
    positive = np.where(variance > 0, variance, np.inf)
    return third / positive**1.5, noise / positive**2


def shape_of(strata: Sequence[FloatArray], pull: FloatArray | float = 0.0) -> Shape:
    """Return the shape of a sum of independent units.

    Args:
        strata: What each unit adds to the sum, centred, for each stratum.
        pull: What each unit's square adds to the corrected variance, from `pull_of`.
    """
    strata = in_range(strata) if strata else ()
    variance, third, noise = sum(map(cumulants, strata), np.zeros(3)).tolist()
    if not 0 < variance < math.inf:
        return Shape()
    squares = [u**2 * (len(u) / max(1, len(u) - 1)) for u in strata]
    rise = float(np.sum(pull * np.concatenate(squares))) / variance
    return Shape(third / variance**1.5, noise / variance**2, 1.0 + max(0.0, rise))


def pull_of(
    columns: Sequence[Score],
    moments: MomentsByLogger,
    buckets: Sequence[MomentsByLogger],
    *,
    within: bool,
) -> FloatArray | float:
    """Return the factors that correct a variance by columns whose expectation is 0.

    The slopes of the squares on the columns times the columns' means would be 0 in
    expectation; where rows with large squares are missing, they are below 0.

    Args:
        columns: The columns.
        moments: Moments of each logger.
        buckets: Moments per bucket, if rows are clustered.
        within: Whether columns are centred by logger instead of over all rows.
    """
    means = [c.over(moments) for c in columns]
    sums = [units_of(m, moments, buckets, pooled=not within) for m in means]
    usable = [(s, m.value(moments)) for s, m in zip(sums, means, strict=True) if s is not None]
    if not usable:
        return 0.0
    matrix = np.array([np.concatenate(units) for units, _ in usable])
    spread = np.sqrt(np.vecdot(matrix, matrix))
    varies = spread > 0
    matrix = matrix[varies] / spread[varies, None]
    known = np.array([mean for _, mean in usable])[varies] / spread[varies]
    values, vectors = np.linalg.eigh(matrix @ matrix.T)
    large = values > NULL_EIGENVALUE * max(1, len(values))
    rotated = vectors[:, large].T
    pull: FloatArray = -((rotated @ known) / values[large]) @ (rotated @ matrix)
    return pull


def units_of(
    linear: Linear,
    moments: MomentsByLogger,
    buckets: Sequence[MomentsByLogger],
    *,
    pooled: bool = False,
) -> list[FloatArray] | None:
    """Return what each unit adds to a combination, centred, for each stratum.

    None if the pass has no slices of its terms.
    The strata are the loggers, or all buckets together.  Sums are centred by logger, or by
    the mean over all rows if `pooled`.
    """
    rows = sum(m.count for m in moments.values())
    overall = linear.value(moments) - linear.constant
    means = {i: _mean(linear.parts.get(i, {}), m) for i, m in moments.items()}
    gaps = {i: m * rows / moments[i].count - overall for i, m in means.items()}
    if len(buckets) > 1:
        sums = [linear.bucket_sum(bucket, moments) for bucket in buckets]
        if pooled:
            counts = [{i: bucket[i].count for i in gaps if i in bucket} for bucket in buckets]
            sums = [
                s + sum(n * gaps[i] for i, n in c.items()) / rows
                for s, c in zip(sums, counts, strict=True)
            ]
        return [np.array(sums)]
    strata = []
    for i, of_logger in moments.items():
        units = _slice_sums(linear.parts.get(i, {}), of_logger)
        if units is None:
            return None
        if pooled:
            units += slice_rows(of_logger.count, _size(of_logger)) * gaps[i] / rows
        strata.append(units)
    return strata


def _mean(parts: Mapping[Term, float], moments: Moments) -> float:
    return sum(c * moments.mean(t) for t, c in parts.items())


def _size(moments: Moments) -> int:
    return len(next(iter(moments.slices.values())))


def _slice_sums(parts: Mapping[Term, float], moments: Moments) -> FloatArray | None:
    """Return what each slice of a logger adds to a combination, centred by logger."""
    used = {t: c for t, c in parts.items() if c}
    if not moments.slices or not all(t in moments.slices for t in used):
        return None
    if not used:
        return np.zeros(min(moments.count, _size(moments)))
    return np.array(list(used.values())) @ centred_slices(list(used), moments)


def centred_slices(terms: Sequence[Term], moments: Moments) -> FloatArray:
    """Return what each slice adds to the mean of each term, centred, shape (terms, slices)."""
    rows = slice_rows(moments.count, _size(moments))
    sums = np.array([moments.slices[t][: len(rows)] for t in terms])
    means = np.array([moments.mean(t) for t in terms])
    return (sums - np.outer(means, rows)) / moments.count


def powers_of_estimate(linear: Linear, moments: MomentsByLogger) -> Powers | None:
    """Return the powers behind an estimate with one weighted reward; None for others.

    A logger's weights are multiplied by its share of the estimate over its share of the
    rows.  Weights against the row's own logger take the powers of balanced ones if the
    pass has only these.
    """
    weighted = {t for parts in linear.parts.values() for t in parts if weight_of(t)}
    if len(weighted) != 1:
        return None
    own = weighted.pop()
    term = own if _has_powers(own, moments) else BALANCED_REWARD
    weight = weight_of(term)
    if weight is None or not _has_powers(term, moments):
        return None
    rows = sum(m.count for m in moments.values())
    reward, weights, products = np.zeros(6), np.zeros(4), np.zeros(6)
    for i, m in moments.items():
        scale = abs(linear.parts.get(i, {}).get(own, 0.0)) * rows / m.count
        reward = added_powers(reward, m.powers[REWARD])
        of_weight = [1.0, m.mean(weight), m.mean_square(weight), m.mean(cube(weight))]
        with np.errstate(all="ignore"):  # the guards skip powers that are out of range
            products = added_powers(products, m.powers[term] * scale**EXPONENTS)
            weights += m.count * np.array(of_weight) * scale ** np.arange(4)
    return Powers(rows, reward, weights, products, own == term)


def _has_powers(term: Term, moments: MomentsByLogger) -> bool:
    """Test if all loggers have the powers of a weighted reward and the cubes of its weight."""
    weight = weight_of(term)
    of_weight = () if weight is None else (cube(weight),)
    return all(term in m.powers and all(map(m.has, of_weight)) for m in moments.values())


EXPONENTS = np.array([0, 1, 2, 3, 4, 1])  # of a scale in each of the six numbers


def weight_of(term: Term) -> Term | None:
    """Return the weight of a weighted reward, None for other terms."""
    if REWARD.factors[0] not in term.factors or len(term.factors) != 2:
        return None
    return Term(tuple(f for f in term.factors if f != REWARD.factors[0]))


def cube(weight: Term) -> Term:
    """Return the third power of a weight."""
    return weight * weight * weight
