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
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.moments import Moments, MomentsByLogger, means_in, together
from poolwise.moments.terms import Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from poolwise.moments.moments import FloatArray

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
        return Score(_added(self.parts, other.parts), self.constant + other.constant)

    def __sub__(self, other: Score) -> Score:
        return self + other * -1.0

    def __mul__(self, factor: float) -> Score:
        return Score({t: factor * c for t, c in self.parts.items()}, factor * self.constant)

    def bind(self, target: str) -> Score:
        """Return the score of one target among several."""
        return Score({t.bind(target): c for t, c in self.parts.items()}, self.constant)

    def less(self, slopes: Iterable[float], columns: Iterable[Score]) -> Score:
        """Return the score less each column times its slope."""
        rest = self
        for slope, column in zip(slopes, columns, strict=True):
            rest -= column * slope
        return rest

    def over(self, moments: MomentsByLogger) -> Linear:
        """Return the mean of the score over the rows of all loggers."""
        share = by_count(moments)
        parts = {i: {t: share[i] * c for t, c in self.parts.items()} for i in moments}
        return Linear(parts, self.constant)

    def of(self, logger: str) -> Linear:
        """Return the mean of the score over the rows of one logger."""
        return Linear({logger: self.parts}, self.constant)


def ratio_score(moments: Moments, above: Term, below: Term) -> Score:
    """Return the linearised ratio of two means; its mean is the ratio at these moments."""
    mean = moments.mean(below)
    value = moments.mean(above) / mean
    return Score({above: 1 / mean, below: -value / mean}, value)


def _added(left: Coefficients, right: Coefficients) -> dict[Term, float]:
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

    def bind(self, target: str) -> Fit:
        """Return the regression of one target among several."""
        columns = tuple(column.bind(target) for column in self.columns)
        return replace(self, score=self.score.bind(target), columns=columns)

    def linear(self, moments: MomentsByLogger, rank: int) -> Linear:
        """Return the mean residual, with the variance that `rank` fitted slopes add."""
        mean = replace(self.score.over(moments), fit=self)
        if math.isinf(self.effective):
            return mean
        return replace(
            mean,
            inflation=max(1.0, self.effective / max(1.0, self.effective - rank)),
            most_free=max(1.0, self.effective - rank - 1),
        )


@dataclass(frozen=True, eq=False)
class Linear:
    """A combination of term means by logger, plus a constant.

    Attributes:
        parts: Coefficient of the mean of each term, by logger.
        constant: Number added to the combination.
        inflation: Factor by which fitted coefficients raise the variance.
        most_free: Upper bound on the degrees of freedom that fitted coefficients leave.
        fit: Regression that gave the coefficients, if any.
        ratio: Terms above and below, if the combination is a linearised ratio of means.
        adapted: True if loggers with large rewards in their rows got smaller coefficients.
    """

    parts: Mapping[str, Coefficients]
    constant: float = 0.0
    inflation: float = 1.0
    most_free: float = math.inf
    fit: Fit | None = None
    ratio: tuple[Term, Term] | None = None
    adapted: bool = False

    def __add__(self, other: Linear) -> Linear:
        loggers = dict.fromkeys((*self.parts, *other.parts))
        return Linear(
            {i: _added(self.parts.get(i, {}), other.parts.get(i, {})) for i in loggers},
            self.constant + other.constant,
            max(self.inflation, other.inflation),
            min(self.most_free, other.most_free),
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

    def value(self, moments: MomentsByLogger) -> float:
        """Return the value of the combination at these means."""
        return self.constant + sum(
            c * moments[i].mean(t) for i, parts in self.parts.items() for t, c in parts.items()
        )

    def bind(self, target: str) -> Linear:
        """Return the combination of one target among several."""
        parts = {i: {t.bind(target): c for t, c in p.items()} for i, p in self.parts.items()}
        return replace(self, parts=parts, fit=self.fit and self.fit.bind(target))

    def variance(self, moments: MomentsByLogger) -> tuple[float, float]:
        r"""Return the variance stratified by logger, and its degrees of freedom.

        $$V = \sum_i \frac{c_i' \Sigma_i c_i}{n_i}$$

        A logger with one row takes the variance of all rows together.
        """
        parts = self.variances(moments)
        freedom = min(satterthwaite_freedom(moments, parts), self.most_free)
        return self.inflation * sum(parts.values()), freedom

    def variances(self, moments: MomentsByLogger) -> dict[str, float]:
        """Return the variance that each logger adds."""
        return self._by_logger(moments, _lent(moments))

    def deviation_variance(
        self, moments: MomentsByLogger, buckets: Sequence[MomentsByLogger]
    ) -> tuple[float, float]:
        r"""Return the variance that a test uses, and its degrees of freedom.

        With several buckets it is the variance between them,
        $V = \frac{G}{G - 1} \sum_g (z_g - \bar z)^2$ with $z_g$ the sum that bucket $g$ adds
        to the combination.  Otherwise it is stratified by logger, and infinite if a logger
        has one row.
        """
        if len(buckets) > 1:
            sums = self.bucket_sums(buckets, moments)
            between = len(sums) * float(np.var(sums, ddof=1))
            noise = BETWEEN_NOISE * self._size(moments) ** 2
            return between if between > noise else 0.0, len(sums) - 1.0
        parts = self._by_logger(moments, moments)
        return sum(parts.values()), satterthwaite_freedom(moments, parts)

    def _by_logger(
        self, moments: MomentsByLogger, sources: MomentsByLogger
    ) -> dict[str, float]:
        """Return the variance that each logger adds, with row variances from `sources`."""
        return {
            i: row_variance(sources[i], parts) / moments[i].count
            for i, parts in self.parts.items()
            if any(parts.values())
        }

    def _size(self, moments: MomentsByLogger) -> float:
        """Return the sum of the absolute values of the summands."""
        return sum(
            abs(c * moments[i].mean(t))
            for i, parts in self.parts.items()
            for t, c in parts.items()
        )

    def bucket_sums(
        self, buckets: Sequence[MomentsByLogger], whole: MomentsByLogger
    ) -> FloatArray:
        """Return the sum that each bucket adds to the combination, centred."""
        sums = np.zeros(len(buckets))
        for i, parts in self.parts.items():
            terms = list(parts)
            present, counts, means = stacked(buckets, i, terms)
            gaps = (means - whole[i].means_of(terms)) @ np.array(list(parts.values()))
            sums[present] += counts / whole[i].count * gaps
        return sums


def stacked(
    buckets: Sequence[MomentsByLogger], logger: str, terms: Sequence[Term]
) -> tuple[list[int], FloatArray, FloatArray]:
    """Return the buckets with rows of a logger, their rows, and their means of terms."""
    present = [k for k, bucket in enumerate(buckets) if logger in bucket]
    groups = [buckets[k][logger] for k in present]
    counts = np.array([m.count for m in groups], dtype=np.float64)
    return present, counts, means_in(groups, terms)


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


def row_variances(moments: MomentsByLogger, parts: Coefficients) -> dict[str, float]:
    """Return the row variance of each logger; that of all rows for loggers with one row."""
    return {i: row_variance(m, parts) for i, m in _lent(moments).items()}


def _lent(moments: MomentsByLogger) -> MomentsByLogger:
    """Replace the moments of loggers with one row by those of all rows."""
    alone = {i for i, m in moments.items() if m.count <= m.ddof}
    if not alone:
        return moments
    overall = together(moments)
    return {i: overall if i in alone else m for i, m in moments.items()}


def shares(mass: Mapping[str, float]) -> dict[str, float]:
    """Scale non-negative masses to sum to 1."""
    total = sum(mass.values())
    return {logger: m / total for logger, m in mass.items()}


def by_count(moments: MomentsByLogger) -> dict[str, float]:
    """Return shares in proportion to row counts."""
    return shares({logger: m.count for logger, m in moments.items()})


def satterthwaite_freedom(moments: MomentsByLogger, parts: Mapping[str, float]) -> float:
    r"""Return the degrees of freedom of a sum of variances, one per logger.

    $$\nu = V^2 \Big/ \sum_i V_i^2 / (n_i - 1), \qquad V = \sum_i V_i$$

    Loggers with one row share the variance of all rows, so their sum is one summand with
    $n - 1$ degrees of freedom.
    """
    if any(m.ddof == 0 for m in moments.values()):
        return math.inf
    alone = {i for i in parts if moments[i].count == 1}
    rows = sum(m.count for m in moments.values())
    own = [(part, moments[i].count - 1.0) for i, part in parts.items() if i not in alone]
    return added_freedom([*own, (sum(parts[i] for i in alone), rows - 1.0)])


def added_freedom(parts: Iterable[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum, from pairs of variance and its freedom."""
    positive = [(part, free) for part, free in parts if part > 0]
    total = sum(part for part, _ in positive)
    if not 0 < total < math.inf:
        return math.inf
    below = sum((part / total) ** 2 / free for part, free in positive)
    return 1 / below if below > 0 else math.inf


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
    moments: MomentsByLogger,
    buckets: Sequence[MomentsByLogger],
    *,
    expected: float = 1.0,
    at_least: float = 0.0,
) -> Deviation:
    """Test a combination against its expectation, by Student's distribution.

    Args:
        linear: Combination to test.
        moments: Moments of each logger.
        buckets: Moments per bucket, if rows are clustered.
        expected: Known expectation.
        at_least: Lower bound on the variance.
    """
    from scipy.special import stdtr

    value = linear.value(moments)
    variance, freedom = linear.deviation_variance(moments, buckets)
    variance = max(variance, at_least)
    gap = 0.0 if math.isclose(value, expected, rel_tol=ROUNDING) else value - expected
    if variance > 0:
        z = gap / math.sqrt(variance)
    else:  # without variance any gap is infinitely significant
        z = math.copysign(math.inf, gap) if gap else 0.0
    return Deviation(value, z, 2 * float(stdtr(min(freedom, NORMAL), -abs(z))))
