r"""Decisive rows: an estimate whose heaviest rows are set apart.

If a target moves a tenth of the decisions to actions that loggers rarely play, a handful of
heavy rows may carry that tenth.  Their rewards are known badly, but their mass is known well:
all weights average 1, so it is 1 less the mean of the light weights.  With u the weight, z and
m the weighted reward and the weight of light rows (0 in heavy ones), h heavy rows and `total`
the expectation of u,

$$M = total - \bar m, \qquad \mu = \frac{\sum_h u \delta}{\sum_h u}, \qquad
  \hat U = \bar z + M \mu = total \cdot \mu + \overline{(z - \mu m)}.$$

The light part $z - \mu m$ is regressed on columns of the loggers, whose leverage is bounded.
The errors of both parts combine by their own distances (MOVER).  A difference of two targets is
the same with u the difference of their weights and `total` 0; if heavy rows are heavy for
either target, each side has its own mass and mean.

Zou & Donner, Statistics in Medicine (2008), intervals of sums from those of the summands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from poolwise.estimators.calibrated import few_rows, least_squares, list_controls, many
from poolwise.moments.heavy import HeavyRows, lighten, mean_over
from poolwise.moments.linear import Fit, Score
from poolwise.moments.terms import REWARD, Term, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.moments.linear import Linear
    from poolwise.moments.pool import Pool
    from poolwise.types import FloatArray

FEWEST_EFFECTIVE = 1.5  # effective rows: fewer show no spread
NEAR = 1e-12  # of the range: a mean as near to its end is at the end
ONE = (
    0.15865525393145707  # probability of more than one standard error of a normal distribution
)
TAIL = 0.025  # probability beyond each limit of a 95% interval
REACHED = 10  # effective heavy rows that are enough
RULED = 0.5  # part of the squared limits from which heavy rows rule an interval


@dataclass(frozen=True)
class HeavyPart:
    """Mass and mean reward of heavy rows.

    Attributes:
        mass: Their part in the value, or in the difference.
        mean: Their mean reward.
        rows: Effective number of them.
        variance: Variance of their rewards; the light rows' if that is larger.
        reward_range: Smallest and largest possible reward; None if it is not known.
    """

    mass: float
    mean: float
    rows: float
    variance: float
    reward_range: tuple[float, float] | None

    def limits(self, alpha: float) -> tuple[float, float]:
        """Return the limits of the mean, each of which errs with probability alpha.

        With a range they are Jeffreys' limits of a proportion, exact (Clopper-Pearson) at an
        end where nothing, or everything, was seen; else Student's.
        """
        from scipy.special import betaincinv, stdtrit

        if self.reward_range is None:
            if self.rows <= FEWEST_EFFECTIVE or not self.variance > 0:
                return -math.inf, math.inf
            wide = -float(stdtrit(self.rows - 1, alpha)) * math.sqrt(self.variance / self.rows)
            return self.mean - wide, self.mean + wide
        low, high = self.reward_range
        size = self.rows
        if not size:
            return low, high
        part = min(max((self.mean - low) / (high - low), 0.0), 1.0) if high > low else 0.0
        seen, rest = part * size, (1 - part) * size
        below = float(betaincinv(seen + 0.5, rest + 0.5, alpha))
        above = 1 - float(betaincinv(rest + 0.5, seen + 0.5, alpha))
        if part < NEAR:
            below, above = 0.0, 1 - alpha ** (1 / size)
        elif part > 1 - NEAR:
            below, above = alpha ** (1 / size), 1.0
        return low + below * (high - low), low + above * (high - low)

    def distances(self, alpha: float) -> tuple[float, float]:
        """Return the distances from mass times mean to its limits."""
        if self.mass == 0:
            return 0.0, 0.0
        low, high = sorted(self.mass * limit for limit in self.limits(alpha))
        middle = self.mass * self.mean
        return max(0.0, middle - low), max(0.0, high - middle)


@dataclass(frozen=True)
class Decisive:
    """A value or a difference that heavy rows decide, and the errors of both parts.

    Attributes:
        value: The value, or the difference.
        heavy: The heavy rows, on each side of a difference.
        light_variance: Variance of the light part.
        number: Number of heavy rows, or of their clusters.
        behind: Rows behind the variance of the weights.
        clustered: Whether the heavy rows count by cluster.
    """

    value: float
    heavy: tuple[HeavyPart, ...]
    light_variance: float
    number: int
    behind: float
    clustered: bool = False

    @property
    def units(self) -> str:
        """The number of heavy rows or clusters, in words: "1 row", "no cluster"."""
        unit = "cluster" if self.clustered else "row"
        return {0: f"no {unit}", 1: f"1 {unit}"}.get(self.number, f"{self.number} {unit}s")

    @property
    def rows(self) -> float:
        """Effective heavy rows, of the side that has fewer."""
        return min(part.rows for part in self.heavy)

    @property
    def mass(self) -> float:
        """Share of the decisions that rest on heavy rows."""
        return max(part.mass for part in self.heavy)

    @property
    def ruling(self) -> float:
        """Part of the squared 95% limits that is due to heavy rows, on the worse side."""
        sides = zip(*(part.distances(TAIL) for part in self.heavy), strict=True)
        squares = [sum(d * d for d in side) for side in sides]
        both = [d * d for d in self.distances(TAIL)]
        return max(
            1.0 if math.isinf(heavy) else heavy / every if every > 0 else 0.0
            for heavy, every in zip(squares, both, strict=True)
        )

    @property
    def lacks_rows(self) -> bool:
        """True if heavy rows rule the interval, and are fewer than ten."""
        return self.rows < REACHED and self.ruling >= RULED

    def more_rows(self, rows: int) -> float:
        """Return how many more rows, of loggers mixed as now, bring the heavy ones to ten.

        Args:
            rows: Rows of the log.
        """
        return math.inf if not self.rows else rows * max(0.0, REACHED / self.rows - 1)

    @property
    def ranged(self) -> bool:
        """True if the range of the rewards is known."""
        return all(part.reward_range is not None for part in self.heavy)

    def distances(self, alpha: float) -> tuple[float, float]:
        """Return the distances to the limits, each of which errs with probability alpha."""
        from scipy.special import ndtri

        light = float(ndtri(alpha)) ** 2 * self.light_variance
        sides = zip(*(part.distances(alpha) for part in self.heavy), strict=True)
        below, above = (math.sqrt(light + sum(d * d for d in side)) for side in sides)
        return below, above

    @property
    def variance(self) -> float:
        """Square of half the width of the interval of one standard error."""
        return (sum(self.distances(ONE)) / 2) ** 2

    def widen(self, factor: float) -> Decisive:
        """Return the same value with distances to its limits that are larger by a factor."""
        heavy = tuple(replace(part, mass=factor * part.mass) for part in self.heavy)
        return replace(self, heavy=heavy, light_variance=factor**2 * self.light_variance)


class SetApart(NamedTuple):
    """An estimate with heavy rows set apart.

    Attributes:
        decisive: The heavy rows, and the variance of the light part.
        linear: Combination of term means that gives the value.
        light: Moments with weights of 0 in heavy rows.
    """

    decisive: Decisive
    linear: Linear
    light: Pool


class _Side(NamedTuple):
    """One side: weights in heavy rows, their sign, their expectation, and the terms."""

    weights: FloatArray
    sign: float
    total: float
    terms: tuple[tuple[Term, float], ...]


def _sides(heavy: HeavyRows) -> list[_Side]:
    """Return the sides of heavy rows: one, unless they are heavy for either target."""
    weight, less = heavy.contrast
    own = heavy.values[weight]
    if less is None:
        return [_Side(own, 1.0, 1.0, ((weight, 1.0),))]
    other = heavy.values[less]
    gaps = own - other
    if not len(gaps) or (gaps >= 0).all() or (gaps <= 0).all():
        return [_Side(gaps, 1.0, 0.0, ((weight, 1.0), (less, -1.0)))]
    return [_Side(own, 1.0, 1.0, ((weight, 1.0),)), _Side(other, -1.0, 1.0, ((less, 1.0),))]


def set_apart(pool: Pool, heavy: HeavyRows, *, columns: bool = True) -> SetApart:
    """Return the estimate of a value or a difference with its heavy rows set apart.

    Args:
        pool: Moments of weights, weighted rewards and ratios, by logger.
        heavy: The heavy rows.
        columns: Whether to regress the light part on the columns of the loggers.
    """
    weights = heavy.contrast.terms
    own = [*(REWARD * w for w in weights), *weights]
    ratios = [
        t for i in pool.loggers if (t := ratio(i)) not in weights and _paired(pool, t, own)
    ]
    terms = [*own, *ratios]
    light = lighten(pool, heavy, terms)
    signs = dict(zip(weights, (1.0, -1.0), strict=False))
    score, parts = Score({REWARD * w: s for w, s in signs.items()}), []
    for side in _sides(heavy):
        mass = side.total - sum(s * mean_over(light, w) for w, s in side.terms)
        mean, rows, variance = _average_heavy(side.weights, heavy)
        parts.append(HeavyPart(side.sign * mass, mean, rows, variance, heavy.reward_range))
        column = Score(dict(side.terms), -side.total)
        score -= column * (side.sign * mean)
    linear = _fitted(light, score, columns=columns)
    variance, _ = linear.variance(light)
    if heavy.clusters is not None:
        variance = linear.inflation * _between(pool, light, linear, heavy)
    value, clustered = linear.value(light), heavy.clusters is not None
    decisive = Decisive(value, tuple(parts), variance, heavy.units, heavy.behind, clustered)
    return SetApart(decisive, linear, light)


def _average_heavy(weights: FloatArray, heavy: HeavyRows) -> tuple[float, float, float]:
    """Return the mean reward of heavy rows, their effective number and their variance.

    Where none was seen, the mean is that of the light rows.
    """
    if not len(heavy):
        return heavy.light_mean, 0.0, heavy.light_variance
    sizes = heavy.by_unit(abs(weights))
    mean = float(weights @ heavy.rewards / weights.sum())
    rows = float(sizes.sum() ** 2 / (sizes @ sizes))
    gaps = heavy.by_unit(abs(weights) * (heavy.rewards - mean))  # sizes times those of units
    known = sizes > 0
    own = float((gaps[known] ** 2 / sizes[known]).sum() / sizes.sum())
    own *= rows / (rows - 1) if rows > 1 else 1.0
    return mean, rows, max(own, heavy.light_variance)


def _between(pool: Pool, light: Pool, linear: Linear, heavy: HeavyRows) -> float:
    r"""Return the variance of the light part between buckets of clusters.

    $V = \frac{G}{G - 1} \sum_g (z_g - \bar z)^2$, where $z_g$ is the sum that bucket $g$
    adds, without the weights of its heavy rows.
    """
    if heavy.clusters is None or heavy.clusters.buckets != len(pool.buckets):
        raise ValueError("the buckets of heavy rows are not those of the moments")
    loggers = np.array(heavy.loggers, dtype=object)
    weights = {f for term in heavy.contrast.terms for f in term.factors}
    sums = np.zeros(len(pool.buckets))
    for i, parts in linear.parts.items():
        terms, factors = list(parts), np.array(list(parts.values()))
        present, counts, means = pool.bucket_means(i, terms)
        gaps = (means - light[i].select_means(terms)) * counts[:, None]
        sums[present] += gaps @ factors / pool[i].count
        zeroed = [not weights.isdisjoint(term.factors) for term in terms]
        own = loggers == i
        values = sum(
            c * heavy.product(term)[own]
            for term, c, zero in zip(terms, factors, zeroed, strict=True)
            if zero
        )
        np.subtract.at(sums, heavy.clusters.bucket[own], values / pool[i].count)
    return len(sums) * float(np.var(sums, ddof=1))


def _paired(pool: Pool, column: Term, terms: Sequence[Term]) -> bool:
    """Test if the moments have the products of a column with terms."""
    try:
        for moments in pool.values():
            moments.select_scatter([column, *terms])
    except KeyError:
        return False
    return True


def _fitted(light: Pool, score: Score, *, columns: bool) -> Linear:
    """Return the mean of the light part, regressed on the columns of the loggers."""
    known = sum(all(m.has(ratio(i)) for m in light.values()) for i in light.loggers)
    if not columns or many(light) or known < max(1, len(light) - 1):
        return score.over(light)
    few = few_rows(light)
    controls: Sequence[Score] = list_controls(light, ("loggers",), few=few)
    slopes, rank = least_squares(light, score, controls, within=bool(few))
    rest = score.less(slopes, controls)
    fit = Fit(rest, tuple(controls), float(light.rows), bool(few))
    return fit.linear(light, rank)
