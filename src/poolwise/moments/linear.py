r"""Linear: a combination of term means, with its value, variance and degrees of freedom.

Every estimate is such a combination, $\hat U = c_0 + \sum_i c_i' \bar x_i$ with coefficients
$c_i$ of the term means of logger $i$.  So are the difference of two estimates, the mean of a
column, and the mean residual of a regression.  One formula therefore gives the variance of
estimates, tests and comparisons.

A `Score` is a combination of terms within one row, before averaging.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from poolwise.moments.terms import Term

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import ByStratum, Pool, Stratum
    from poolwise.types import FloatArray

Key = TypeVar("Key")
Coefficients = Mapping[Term, float]
CANCELLED = 1e-12  # relative to its summands: a smaller variance is rounding
BETWEEN_NOISE = 1e-24  # the same between buckets, relative to the squared summands
NULL_COLUMN = 1e-10  # variance relative to the mean square: smaller ones have no slope
ROUNDING = 1e-9  # relative: a smaller gap counts as 0
NORMAL = 1e9  # degrees of freedom from which Student's distribution equals the normal


@dataclass(frozen=True)
class Score:
    """A combination of terms within one row, plus a constant.

    Attributes:
        parts: Coefficient of each term.
        constant: Number added to the combination.
    """

    parts: Coefficients
    constant: float = 0.0

    def __add__(self, other: Score) -> Score:
        return Score(_add_coefficients(self.parts, other.parts), self.constant + other.constant)

    def __sub__(self, other: Score) -> Score:
        return self + other * -1.0

    def __mul__(self, factor: float) -> Score:
        return Score({t: factor * c for t, c in self.parts.items()}, factor * self.constant)

    def bind(self, target: str | None = None, measure: str = "") -> Score:
        """Return the score of one target among several, and of one measure."""
        parts = {t.bind(target, measure): c for t, c in self.parts.items()}
        return Score(parts, self.constant)

    def less(self, slopes: Iterable[float], columns: Iterable[Score]) -> Score:
        """Return the score less each column times its slope."""
        parts, constant = dict(self.parts), self.constant
        for slope, column in zip(slopes, columns, strict=True):
            for term, coefficient in column.parts.items():
                parts[term] = parts.get(term, 0.0) - slope * coefficient
            constant -= slope * column.constant
        return Score(parts, constant)

    def over(self, pool: Pool) -> Linear:
        """Return the mean of the score over the rows of all loggers."""
        share = by_count(pool)
        parts = {i: {t: share[i] * c for t, c in self.parts.items()} for i in pool}
        return Linear(parts, self.constant)

    def of(self, stratum: Stratum) -> Linear:
        """Return the mean of the score over the rows of one stratum."""
        return Linear({stratum: self.parts}, self.constant)


def ratio_score(moments: Moments, above: Term, below: Term) -> Score:
    """Return the linearised ratio of two means; its mean is the ratio at these moments."""
    mean = moments.mean(below)
    value = moments.mean(above) / mean
    return Score({above: 1 / mean, below: -value / mean}, value)


def _add_coefficients(left: Coefficients, right: Coefficients) -> dict[Term, float]:
    return {t: left.get(t, 0.0) + right.get(t, 0.0) for t in (*left, *right)}


@dataclass(frozen=True)
class Fit:
    """A regression of a score on columns whose expectation is known.

    Attributes:
        score: Residual: the score less the columns times their slopes.
        columns: Columns, each with expectation 0.
        effective: Effective sample size of the slopes.
        within: Whether the slopes come from the scatter within loggers only.
    """

    score: Score
    columns: tuple[Score, ...]
    effective: float = math.inf
    within: bool = False

    def bind(self, target: str | None = None, measure: str = "") -> Fit:
        """Return the regression of one target among several, and of one measure."""
        columns = tuple(column.bind(target, measure) for column in self.columns)
        return replace(self, score=self.score.bind(target, measure), columns=columns)

    def linear(self, pool: Pool, rank: int) -> Linear:
        """Return the mean residual, with the variance that `rank` fitted slopes add."""
        mean = replace(self.score.over(pool), fit=self)
        if math.isinf(self.effective):
            return mean
        return replace(
            mean,
            inflation=max(1.0, self.effective / max(1.0, self.effective - rank)),
            most_free=max(1.0, self.effective - rank - 1),
        )


@dataclass(frozen=True, eq=False)
class Linear:
    """A combination of term means by stratum, plus a constant.

    Attributes:
        parts: Coefficient of the mean of each term, by stratum.
        constant: Number added to the combination.
        inflation: Factor by which fitted coefficients raise the variance.
        most_free: Upper bound on the degrees of freedom that fitted coefficients leave.
        fit: Regression that gave the coefficients, if any.
        ratio: Terms above and below, if the combination is a linearised ratio of means.
        adapted: True if loggers with large rewards in their rows got smaller coefficients.
        unknown_means: True if no mean weight is known, as in a click log.
    """

    parts: ByStratum[Coefficients]
    constant: float = 0.0
    inflation: float = 1.0
    most_free: float = math.inf
    fit: Fit | None = None
    ratio: tuple[Term, Term] | None = None
    adapted: bool = False
    unknown_means: bool = False

    def __add__(self, other: Linear) -> Linear:
        strata = dict.fromkeys((*self.parts, *other.parts))
        return Linear(
            {
                i: _add_coefficients(self.parts.get(i, {}), other.parts.get(i, {}))
                for i in strata
            },
            self.constant + other.constant,
            max(self.inflation, other.inflation),
            min(self.most_free, other.most_free),
            unknown_means=self.unknown_means or other.unknown_means,
        )

    def __sub__(self, other: Linear) -> Linear:
        return self + other * -1.0

    def __mul__(self, factor: float) -> Linear:
        parts = {i: {t: factor * c for t, c in p.items()} for i, p in self.parts.items()}
        return replace(self, parts=parts, constant=factor * self.constant, fit=None, ratio=None)

    @property
    def plain(self) -> Linear:
        """The combination with its coefficients treated as fixed."""
        return Linear(self.parts, self.constant)

    def value(self, pool: Pool) -> float:
        """Return the value of the combination at these means."""
        return self.constant + sum(
            c * pool[i].mean(t) for i, parts in self.parts.items() for t, c in parts.items()
        )

    def bind(self, target: str | None = None, measure: str = "") -> Linear:
        """Return the combination of one target among several, and of one measure."""
        parts = {
            i: {t.bind(target, measure): c for t, c in p.items()} for i, p in self.parts.items()
        }
        return replace(self, parts=parts, fit=self.fit and self.fit.bind(target, measure))

    def variance(self, pool: Pool) -> tuple[float, float]:
        r"""Return the variance of independent strata, and its degrees of freedom.

        $$V = \sum_i \frac{c_i' \Sigma_i c_i}{n_i}$$

        A stratum with one row takes the variance of all rows together.
        """
        parts = self.variances(pool)
        freedom = min(satterthwaite_freedom(pool, parts), self.most_free)
        return self.inflation * sum(parts.values()), freedom

    def variances(self, pool: Pool) -> dict[Stratum, float]:
        """Return the variance that each stratum adds."""
        return self._variances(pool, _lent(pool))

    def deviation_variance(self, pool: Pool) -> tuple[float, float]:
        r"""Return the variance that a test uses, and its degrees of freedom.

        With several buckets it is the variance between them,
        $V = \frac{G}{G - 1} \sum_g (z_g - \bar z)^2$ with $z_g$ the sum that bucket $g$ adds
        to the combination.  Otherwise strata are independent, and it is infinite if one of
        them has one row.
        """
        if pool.clustered:
            sums = self.bucket_sums(pool)
            between = len(sums) * float(np.var(sums, ddof=1))
            noise = BETWEEN_NOISE * self._size(pool) ** 2
            return between if between > noise else 0.0, len(sums) - 1.0
        parts = self._variances(pool, pool)
        return sum(parts.values()), satterthwaite_freedom(pool, parts)

    def _variances(self, pool: Pool, sources: ByStratum[Moments]) -> dict[Stratum, float]:
        """Return the variance that each stratum adds, with row variances from `sources`."""
        return {
            i: row_variance(sources[i], parts) / pool[i].count
            for i, parts in self.parts.items()
            if any(parts.values())
        }

    def _size(self, pool: Pool) -> float:
        """Return the sum of the absolute values of the summands."""
        return sum(
            abs(c * pool[i].mean(t))
            for i, parts in self.parts.items()
            for t, c in parts.items()
        )

    def bucket_sums(self, pool: Pool) -> FloatArray:
        """Return the sum that each bucket adds to the combination, centred."""
        sums = np.zeros(len(pool.buckets))
        for i, parts in self.parts.items():
            terms = list(parts)
            present, counts, means = pool.bucket_means(i, terms)
            gaps = (means - pool[i].select_means(terms)) @ np.array(list(parts.values()))
            sums[present] += counts / pool[i].count * gaps
        return sums


def row_variance(moments: Moments, parts: Coefficients) -> float:
    """Return the variance of a combination within one row; infinite if rows are too few."""
    if moments.count <= moments.ddof:
        return math.inf
    if len(parts) == 1:  # most calls
        ((term, weight),) = parts.items()
        return weight * moments.var(term) * weight
    weights: FloatArray = np.array(list(parts.values()))
    covariance = moments.covariance(list(parts))
    left = float(weights @ covariance @ weights)
    cancelled = float(abs(weights) @ abs(covariance) @ abs(weights))
    return left if left > CANCELLED * cancelled else 0.0


def row_variances(pool: Pool, parts: Coefficients) -> dict[Stratum, float]:
    """Return the row variance of each stratum; that of all rows for strata with one row."""
    return {i: row_variance(m, parts) for i, m in _lent(pool).items()}


def _lent(pool: Pool) -> ByStratum[Moments]:
    """Replace the moments of strata with one row by those of all rows."""
    alone = {i for i, m in pool.items() if m.count <= m.ddof}
    if not alone:
        return pool
    overall = pool.together
    return {i: overall if i in alone else m for i, m in pool.items()}


def shares(mass: Mapping[Key, float]) -> dict[Key, float]:
    """Scale non-negative masses to sum to 1."""
    total = sum(mass.values())
    return {key: m / total for key, m in mass.items()}


def by_count(moments: Mapping[Key, Moments]) -> dict[Key, float]:
    """Return shares in proportion to row counts."""
    return shares({key: m.count for key, m in moments.items()})


def satterthwaite_freedom(pool: Pool, parts: ByStratum[float]) -> float:
    r"""Return the degrees of freedom of a sum of variances, one per stratum.

    $$\nu = V^2 \Big/ \sum_i V_i^2 / (n_i - 1), \qquad V = \sum_i V_i$$

    Strata with one row share the variance of all rows, so their sum is one summand with
    $n - 1$ degrees of freedom.
    """
    if pool.exact:
        return math.inf
    alone = {i for i in parts if pool[i].count == 1}
    own = [(part, pool[i].count - 1.0) for i, part in parts.items() if i not in alone]
    return added_freedom([*own, (sum(parts[i] for i in alone), pool.rows - 1.0)])


def added_freedom(parts: Iterable[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum, from pairs of variance and its freedom."""
    positive = [(part, free) for part, free in parts if part > 0]
    total = sum(part for part, _ in positive)
    if not 0 < total < math.inf:
        return math.inf
    below = sum((part / total) ** 2 / free for part, free in positive)
    return 1 / below if below > 0 else math.inf
