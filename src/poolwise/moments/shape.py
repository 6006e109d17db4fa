r"""Shape: the skewness of an estimate, and how far its variance can be trusted.

An estimate is a sum over units: slices of the rows of each logger (`moments.tallies`), or
buckets of clusters.  Cumulants of independent sums add up, so the cubes of the units' sums
give the third cumulant of the estimate, whatever the number of rows in a unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.linear import NULL_COLUMN, stacked
from poolwise.moments.tallies import added_powers, slice_rows
from poolwise.moments.terms import BALANCED_REWARD, BALANCED_WEIGHT, REWARD, Term

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.linear import Linear, Score
    from poolwise.moments.moments import FloatArray, IntArray, Moments, MomentsByLogger

NULL_SPREAD = 1e-13  # of a column, relative to its mean: smaller ones are rounding
EXPONENTS = np.array([0, 1, 2, 3, 4, 1])  # of a scale in each of the six numbers of powers
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

    def scaled(self, factor: float) -> Powers:
        """Return the powers with all weights multiplied by a factor."""
        with np.errstate(all="ignore"):  # the guards skip powers that are out of range
            weight = self.weight * factor ** np.arange(4)
            weighted = self.weighted * factor**EXPONENTS
        return replace(self, weight=weight, weighted=weighted)

    def __add__(self, other: Powers) -> Powers:
        """Return the powers of both groups of rows together."""
        return Powers(
            self.rows + other.rows,
            added_powers(self.reward, other.reward),
            self.weight + other.weight,
            added_powers(self.weighted, other.weighted),
            self.own and other.own,
        )


def cumulants(units: FloatArray) -> FloatArray:
    """Return variance, third cumulant and variance of the variance of a sum of units.

    Args:
        units: What each unit of one stratum adds, centred, units on the last axis.
    """
    return _total([units])


def _total(strata: Sequence[FloatArray]) -> FloatArray:
    """Return the cumulants of a sum of units in several strata."""
    sums = [
        [each.sum(axis=-1) for each in (square, square * units, square**2)]
        for units, square in ((units, units**2) for units in strata)
    ]
    powers = np.moveaxis(np.array(sums), 0, -1)  # strata on the last axis
    sizes = np.array([units.shape[-1] for units in strata])
    return np.asarray(_cumulants(sizes, *powers).sum(axis=-1))


def _cumulants(
    size: FloatArray | IntArray, squares: FloatArray, cubes: FloatArray, fourths: FloatArray
) -> FloatArray:
    """Return the cumulants of sums of so many units from the sums of their powers."""
    with np.errstate(divide="ignore", invalid="ignore"):  # of one or two units
        of_sum = [
            squares * size / (size - 1),
            np.where(size > 2, cubes * size**2 / ((size - 1) * (size - 2)), 0.0),
            fourths - squares**2 * (size - 3) / (size * (size - 1)),
        ]
    return np.where(size > 1, of_sum, 0.0)


def in_range(strata: Sequence[FloatArray]) -> list[FloatArray]:
    """Divide the units of a sum by the largest of them, so that no power is out of range."""
    sizes = np.max([np.abs(units).max(axis=-1, initial=0.0) for units in strata], axis=0)
    sizes = np.where(sizes > 0, sizes, 1.0)[..., None]
    return [units / sizes for units in strata]


def shapes_of(strata: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return skewness and noise of several sums; units are on the last axis."""
    variance, third, noise = _total(in_range(strata))
    positive = np.where(variance > 0, variance, np.inf)
    return third / positive**1.5, noise / positive**2


def shape_of(strata: Sequence[FloatArray], pull: FloatArray | float = 0.0) -> Shape:
    """Return the shape of a sum of independent units.

    Args:
        strata: What each unit adds to the sum, centred, for each stratum.
        pull: What each unit's square adds to the corrected variance, from `pull_of`.
    """
    if not strata:
        return Shape()
    strata = in_range(strata)
    squares = [u**2 * (len(u) / max(1, len(u) - 1)) for u in strata]
    rise = float(np.sum(pull * np.concatenate(squares)))
    return shape_from(_total(strata), rise)


def shape_from(total: FloatArray, rise: float = 0.0) -> Shape:
    """Return the shape of a sum with these cumulants, which the pull raises by `rise`."""
    variance, third, noise = total.tolist()
    if not 0 < variance < math.inf:
        return Shape()
    more = max(0.0, rise / variance)
    return Shape(third / variance**1.5, noise / variance**2, 1.0 + more)


class ShapeLine:
    """Shapes of the sums of `units - distance * slopes`, at any distance.

    Powers of these are polynomials of the distance, whose coefficients are summed once.
    """

    def __init__(
        self,
        strata: Sequence[FloatArray],
        slopes: Sequence[FloatArray],
        pull: FloatArray | float = 0.0,
    ) -> None:
        """Add up the products of units and slopes, both centred, by stratum."""
        sizes = [max(map(_largest, parts)) or 1.0 for parts in (strata, slopes)]
        self._scale = sizes[1] / sizes[0]
        pairs = [(a / sizes[0], b / sizes[1]) for a, b in zip(strata, slopes, strict=True)]
        self._sizes = np.array([units.size for units in strata])
        sums = [_powers(a, 4) @ _powers(b, 4).T for a, b in pairs]
        self._squares, self._cubes, self._fourths = (
            np.array([_expanded(of_stratum, power) for of_stratum in sums])
            for power in (2, 3, 4)
        )
        free = np.concatenate([np.full(n, n / max(1, n - 1)) for n in self._sizes])
        units, along = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        self._rise = _expanded((_powers(units, 2) * (pull * free)) @ _powers(along, 2).T, 2)

    def shape(self, distance: float) -> Shape:
        """Return the shape at a distance."""
        powers = (-distance * self._scale) ** np.arange(5)
        sums = self._squares @ powers[:3], self._cubes @ powers[:4], self._fourths @ powers
        total = _cumulants(self._sizes, *sums).sum(axis=-1)
        return shape_from(total, float(self._rise @ powers[:3]))


def _largest(units: FloatArray) -> float:
    return float(np.abs(units).max(initial=0.0))


def _powers(units: FloatArray, most: int) -> FloatArray:
    """Return the powers of units from 0 to `most`, shape (most + 1, units)."""
    powers = np.ones((most + 1, units.size))
    for k in range(most):
        np.multiply(powers[k], units, out=powers[k + 1])
    return powers


def _expanded(sums: FloatArray, power: int) -> list[float]:
    """Return the coefficients of the sum of `(units + x slopes)` to a power of x.

    Args:
        sums: Sums of the products of each power of the units and each of the slopes.
        power: The power.
    """
    return [math.comb(power, k) * float(sums[power - k, k]) for k in range(power + 1)]


def pull_of(
    columns: Sequence[Score],
    moments: MomentsByLogger,
    buckets: Sequence[MomentsByLogger],
    *,
    within: bool,
    fitted: bool = False,
) -> FloatArray | float:
    """Return the factors that correct a variance by columns whose expectation is 0.

    The slopes of the squares on the columns times the columns' means would be 0 in
    expectation; where rows with large squares are missing, they are below 0.  A mean that was
    regressed on the columns gives each row the weight 1 + pull, so that its variance has the
    squares of these weights; a jackknife refits the slopes and has them.

    Args:
        columns: The columns.
        moments: Moments of each logger.
        buckets: Moments per bucket, if rows are clustered.
        within: Whether columns are centred by logger instead of over all rows.
        fitted: Whether the estimate was regressed on the columns.
    """
    means = [m for c in columns if _has_units(m := c.over(moments), moments, buckets)]
    if not means:
        return 0.0
    strata = _units(means, moments, buckets, pooled=not within)
    gram = sum((units @ units.T for units in strata), np.zeros((len(means), len(means))))
    spread = np.sqrt(np.diag(gram))
    sizes = np.array([_size_of(mean, moments) for mean in means])
    known = np.array([mean.value(moments) for mean in means])
    unfit = fitted * math.sqrt(NULL_COLUMN / sum(m.count for m in moments.values()))
    varies = np.flatnonzero(spread > np.maximum(NULL_SPREAD * sizes, unfit * abs(known)))
    spread, known = spread[varies], known[varies] / spread[varies]
    values, vectors = np.linalg.eigh(gram[np.ix_(varies, varies)] / np.outer(spread, spread))
    large = values > NULL_EIGENVALUE * max(1, len(values))
    rotated = vectors[:, large]
    slopes = rotated @ ((rotated.T @ known) / values[large]) / spread
    pull = np.concatenate([-slopes @ units[varies] for units in strata])
    if not fitted or len(buckets) > 1:
        return pull
    rows = [slice_rows(m.count, _size(m)) for m in moments.values()]
    return pull * (2 + pull / np.concatenate(rows))


def _size_of(linear: Linear, moments: MomentsByLogger) -> float:
    """Return the sum of the absolute parts of a mean: a spread far below it is rounding."""
    parts = linear.parts.items()
    return sum(abs(c * moments[i].mean(t)) for i, part in parts for t, c in part.items())


def units_of(
    linear: Linear, moments: MomentsByLogger, buckets: Sequence[MomentsByLogger]
) -> list[FloatArray] | None:
    """Return what each unit adds to a combination, centred by logger, for each stratum.

    None without slices of its terms.  The strata are the loggers, or all buckets together.
    """
    if not _has_units(linear, moments, buckets):
        return None
    return [units[0] for units in _units([linear], moments, buckets)]


def _has_units(
    linear: Linear, moments: MomentsByLogger, buckets: Sequence[MomentsByLogger]
) -> bool:
    """Test if there are buckets, or slices of every term of a combination."""
    if len(buckets) > 1:
        return True
    used = {i: [t for t, c in parts.items() if c] for i, parts in linear.parts.items()}
    return all(
        m.slices and all(t in m.slices for t in used.get(i, ())) for i, m in moments.items()
    )


def _units(
    linears: Sequence[Linear],
    moments: MomentsByLogger,
    buckets: Sequence[MomentsByLogger],
    *,
    pooled: bool = False,
) -> list[FloatArray]:
    """Return what each unit adds to combinations, shape (combinations, units), by stratum.

    Sums are centred by logger, or by the mean over all rows if `pooled`.
    """
    rows = sum(m.count for m in moments.values())
    parts = {i: _coefficients([linear.parts.get(i, {}) for linear in linears]) for i in moments}
    means = {i: c @ moments[i].means_of(terms) for i, (terms, c) in parts.items()}
    overall = sum(means.values(), np.zeros(len(linears)))
    strata = []
    for i, (terms, coefficients) in parts.items():
        counts, sums = _centred(terms, i, moments[i], buckets)
        units = coefficients @ sums
        if pooled:
            gaps = means[i] * (rows / moments[i].count) - overall
            units += np.outer(gaps, counts) / rows
        strata.append(units)
    return [sum(strata[1:], strata[0])] if len(buckets) > 1 else strata


def _coefficients(parts: Sequence[Mapping[Term, float]]) -> tuple[list[Term], FloatArray]:
    """Return the terms of combinations, and the coefficients, shape (combinations, terms)."""
    used = [(k, t, c) for k, of_one in enumerate(parts) for t, c in of_one.items() if c]
    column = {t: k for k, t in enumerate(dict.fromkeys(t for _, t, _ in used))}
    matrix = np.zeros((len(parts), len(column)))
    for k, term, coefficient in used:
        matrix[k, column[term]] = coefficient
    return list(column), matrix


def _centred(
    terms: Sequence[Term], logger: str, moments: Moments, buckets: Sequence[MomentsByLogger]
) -> tuple[FloatArray, FloatArray]:
    """Return the rows of each unit, and what it adds to the mean of each term, centred."""
    if len(buckets) <= 1:
        return slice_rows(moments.count, _size(moments)), centred_slices(terms, moments)
    return centred_buckets(terms, logger, moments, buckets)


def centred_buckets(
    terms: Sequence[Term], logger: str, moments: Moments, buckets: Sequence[MomentsByLogger]
) -> tuple[FloatArray, FloatArray]:
    """Return a logger's rows in each bucket, and what they add to the mean of each term."""
    counts, sums = np.zeros(len(buckets)), np.zeros((len(terms), len(buckets)))
    present, rows, means = stacked(buckets, logger, terms)
    counts[present] = rows
    sums[:, present] = rows / moments.count * (means - moments.means_of(terms)).T
    return counts, sums


def _size(moments: Moments) -> int:
    return len(next(iter(moments.slices.values())))


def centred_slices(terms: Sequence[Term], moments: Moments) -> FloatArray:
    """Return what each slice adds to the mean of each term, centred, shape (terms, slices)."""
    rows = slice_rows(moments.count, _size(moments))
    sums = np.array([moments.slices[t][: len(rows)] for t in terms])
    means = moments.means_of(terms)
    return (sums.reshape(len(terms), len(rows)) - np.outer(means, rows)) / moments.count


def powers_of_estimate(linear: Linear, moments: MomentsByLogger) -> Powers | None:
    """Return the powers behind an estimate with one weighted reward; None for others.

    A logger's weights are multiplied by its share of the estimate over its share of the
    rows.  Weights against the row's own logger take the powers of balanced ones if the
    pass has only these.
    """
    used = {t for parts in linear.parts.values() for t in parts}
    weighted_terms = {t: w for t in used if (w := weight_of(t)) is not None}
    if len(weighted_terms) != 1:
        return None
    ((own, weight),) = weighted_terms.items()
    term = own
    if not _has_powers(own, weight, moments):
        term, weight = BALANCED_REWARD, BALANCED_WEIGHT
    if not _has_powers(term, weight, moments):
        return None
    groups = list(moments.values())
    counts = np.array([m.count for m in groups])
    parts = [abs(linear.parts.get(i, {}).get(own, 0.0)) for i in moments]
    scales = (np.array(parts) * counts.sum() / counts)[:, None]
    weights = np.array(
        [[1.0, m.mean(weight), m.mean_square(weight), m.mean(cube(weight))] for m in groups]
    )
    with np.errstate(all="ignore"):  # the guards skip powers that are out of range
        products = np.array([m.powers[term] for m in groups]) * scales**EXPONENTS
        weights *= counts[:, None] * scales ** np.arange(4)
    reward = reduce(added_powers, (m.powers[REWARD] for m in groups))
    weighted = reduce(added_powers, products)
    return Powers(int(counts.sum()), reward, weights.sum(axis=0), weighted, own == term)


def _has_powers(term: Term, weight: Term, moments: MomentsByLogger) -> bool:
    """Test if all loggers have the powers of a weighted reward and the cubes of its weight."""
    return all(term in m.powers and m.has(cube(weight)) for m in moments.values())


def weight_of(term: Term) -> Term | None:
    """Return the weight of a weighted reward, None for other terms."""
    if REWARD.factors[0] not in term.factors or len(term.factors) != 2:
        return None
    return Term(tuple(f for f in term.factors if f != REWARD.factors[0]))


def cube(weight: Term) -> Term:
    """Return the third power of a weight."""
    return weight * weight * weight
