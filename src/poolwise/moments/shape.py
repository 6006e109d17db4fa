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

from poolwise.moments.linear import Linear
from poolwise.moments.tallies import add_powers
from poolwise.moments.terms import BALANCED_REWARD, BALANCED_WEIGHT, Term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.moments.pool import Pool
    from poolwise.types import FloatArray, IntArray

EXPONENTS = np.array([0, 1, 2, 3, 4, 1])  # of a scale in each of the six numbers of powers


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
            add_powers(self.reward, other.reward),
            self.weight + other.weight,
            add_powers(self.weighted, other.weighted),
            self.own and other.own,
        )


def cumulants(units: FloatArray) -> FloatArray:
    """Return variance, third cumulant and variance of the variance of a sum of units.

    Args:
        units: What each unit of one stratum adds, centred, units on the last axis.
    """
    return _add_cumulants([units])


def _add_cumulants(strata: Sequence[FloatArray]) -> FloatArray:
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


def measure_shapes(strata: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return skewness and noise of several sums; units are on the last axis."""
    variance, third, noise = _add_cumulants(in_range(strata))
    positive = np.where(variance > 0, variance, np.inf)
    return third / positive**1.5, noise / positive**2


def measure_shape(strata: Sequence[FloatArray], pull: FloatArray | float = 0.0) -> Shape:
    """Return the shape of a sum of independent units.

    Args:
        strata: What each unit adds to the sum, centred, for each stratum.
        pull: What each unit's square adds to the corrected variance, from
            `moments.units.find_pull`.
    """
    if not strata:
        return Shape()
    strata = in_range(strata)
    squares = [u**2 * (len(u) / max(1, len(u) - 1)) for u in strata]
    rise = float(np.sum(pull * np.concatenate(squares)))
    return shape_from(_add_cumulants(strata), rise)


def shape_from(total: FloatArray, rise: float = 0.0) -> Shape:
    """Return the shape of a sum with these cumulants, which the pull raises by `rise`."""
    variance, third, noise = total.tolist()
    if not 0 < variance < math.inf:
        return Shape()
    more = max(0.0, rise / variance)
    return Shape(third / variance**1.5, noise / variance**2, 1.0 + more)


def kurtosis_freedom(
    skewness: FloatArray | float,
    noise: FloatArray | float,
    freedom: FloatArray | float,
    heavy: float = 0.0,
) -> FloatArray:
    """Return the degrees of freedom that the kurtosis of the units leaves, at least 1."""
    excess = noise - (1 - heavy / 2) * np.square(skewness)
    with np.errstate(divide="ignore"):
        most = np.where(excess > 0, 2 / np.maximum(excess, 0.0), np.inf)
    return np.maximum(1.0, np.minimum(freedom, most))


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
        sizes = [max(map(_largest_unit, parts)) or 1.0 for parts in (strata, slopes)]
        self._scale = sizes[1] / sizes[0]
        pairs = [(a / sizes[0], b / sizes[1]) for a, b in zip(strata, slopes, strict=True)]
        self._sizes = np.array([units.size for units in strata])
        sums = [_powers(a, 4) @ _powers(b, 4).T for a, b in pairs]
        self._squares, self._cubes, self._fourths = (
            np.array([_expand_power(of_stratum, power) for of_stratum in sums])
            for power in (2, 3, 4)
        )
        free = np.concatenate([np.full(n, n / max(1, n - 1)) for n in self._sizes])
        units, along = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        self._rise = _expand_power((_powers(units, 2) * (pull * free)) @ _powers(along, 2).T, 2)

    def shape(self, distance: float) -> Shape:
        """Return the shape at a distance."""
        powers = (-distance * self._scale) ** np.arange(5)
        sums = self._squares @ powers[:3], self._cubes @ powers[:4], self._fourths @ powers
        total = _cumulants(self._sizes, *sums).sum(axis=-1)
        return shape_from(total, float(self._rise @ powers[:3]))


def _largest_unit(units: FloatArray) -> float:
    return float(np.abs(units).max(initial=0.0))


def _powers(units: FloatArray, most: int) -> FloatArray:
    """Return the powers of units from 0 to `most`, shape (most + 1, units)."""
    powers = np.ones((most + 1, units.size))
    for k in range(most):
        np.multiply(powers[k], units, out=powers[k + 1])
    return powers


def _expand_power(sums: FloatArray, power: int) -> list[float]:
    """Return the coefficients of the sum of `(units + x slopes)` to a power of x.

    Args:
        sums: Sums of the products of each power of the units and each of the slopes.
        power: The power.
    """
    return [math.comb(power, k) * float(sums[power - k, k]) for k in range(power + 1)]


def estimate_powers(linear: Linear, pool: Pool) -> Powers | None:
    """Return the powers behind an estimate with one weighted reward; None for others.

    A logger's weights are multiplied by its share of the estimate over its share of the
    rows.  Weights against the row's own logger take the powers of balanced ones if the
    pass has only these.
    """
    used = {t for parts in linear.parts.values() for t in parts}
    weighted_terms = {t: w for t in used if (w := find_weight(t)) is not None}
    if len(weighted_terms) != 1:
        return None
    ((own, weight),) = weighted_terms.items()
    term, reward_term = own, find_reward(own)
    if not _has_powers(own, weight, pool):
        measure = reward_term.factors[0].measure
        term, weight = BALANCED_REWARD.bind(measure=measure), BALANCED_WEIGHT
    if not _has_powers(term, weight, pool):
        return None
    groups = list(pool.values())
    counts = np.array([m.count for m in groups])
    parts = [abs(linear.parts.get(i, {}).get(own, 0.0)) for i in pool]
    scales = (np.array(parts) * counts.sum() / counts)[:, None]
    weights = np.array(
        [[1.0, m.mean(weight), m.mean_square(weight), m.mean(cube(weight))] for m in groups]
    )
    with np.errstate(all="ignore"):  # the guards skip powers that are out of range
        products = np.array([m.powers[term] for m in groups]) * scales**EXPONENTS
        weights *= counts[:, None] * scales ** np.arange(4)
    reward = reduce(add_powers, (m.powers[reward_term] for m in groups))
    weighted = reduce(add_powers, products)
    return Powers(int(counts.sum()), reward, weights.sum(axis=0), weighted, own == term)


def _has_powers(term: Term, weight: Term, pool: Pool) -> bool:
    """Test if all loggers have the powers of a weighted reward and the cubes of its weight."""
    return all(term in m.powers and m.has(cube(weight)) for m in pool.values())


def find_weight(term: Term) -> Term | None:
    """Return the weight of a weighted reward, None for other terms."""
    rest = tuple(f for f in term.factors if f.name != "reward")
    return Term(rest) if len(rest) == 1 and len(term.factors) == 2 else None


def find_reward(weighted: Term) -> Term:
    """Return the reward of a weighted reward."""
    return Term(tuple(f for f in weighted.factors if f.name == "reward"))


def cube(weight: Term) -> Term:
    """Return the third power of a weight."""
    return weight * weight * weight


def replace_rewards(linear: Linear) -> Linear:
    """Return a combination with its weights alone, as if every reward were 1."""
    weights = {
        i: {w: c for t, c in part.items() if (w := find_weight(t)) is not None}
        for i, part in linear.parts.items()
    }
    return Linear(weights)
