r"""Linear: a combination of term means, with its value, variance and degrees of freedom.

Every estimate is such a combination, $\hat U = c_0 + \sum_i c_i' \bar x_i$ with coefficients
$c_i$ of the term means of logger $i$.  The difference of two estimates is one, the mean of a
column that theory fixes is one, and so is what is left of an outcome after a regression.
Variances, tests and comparisons therefore need one formula.

A `Score` is the same within one row: coefficients of terms, before any averaging.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments.moments import Moments, MomentsByLogger, pooled
from poolwise.moments.terms import Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from poolwise.moments.moments import FloatArray

Coefficients = Mapping[Term, float]
CANCELLED = 1e-12  # a variance below this share of its summands is rounding
BETWEEN_NOISE = (
    1e-24  # of the squared summands: a variance between buckets below it is rounding
)
ROUNDING = 1e-9  # relative: a smaller gap counts as none
ENDLESS = 1e9  # degrees of freedom from which Student's distribution is the normal one


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
        """Return the same score for one target among several."""
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


def _added(left: Coefficients, right: Coefficients) -> dict[Term, float]:
    return {t: left.get(t, 0.0) + right.get(t, 0.0) for t in (*left, *right)}


@dataclass(frozen=True)
class Fit:
    """A score that was regressed on columns of known mean.

    Attributes:
        score: The score less the columns times their slopes.
        columns: The columns, each with mean 0.
        effective: Rows of equal weight that the slopes rest on.
    """

    score: Score
    columns: tuple[Score, ...]
    effective: float = math.inf

    def linear(self, moments: MomentsByLogger, rank: int) -> Linear:
        """Return the mean of the score, with the cost of `rank` fitted slopes."""
        mean = replace(self.score.over(moments), fit=self)
        if math.isinf(self.effective):
            return mean
        return replace(
            mean,
            inflation=self.effective / max(1.0, self.effective - rank),
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
        fit: The regression that gave the coefficients, if one did.
    """

    parts: Mapping[str, Coefficients]
    constant: float = 0.0
    inflation: float = 1.0
    most_free: float = math.inf
    fit: Fit | None = None

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
        return replace(self, parts=parts, constant=factor * self.constant, fit=None)

    @property
    def plain(self) -> Linear:
        """The combination with its coefficients taken as fixed."""
        return Linear(self.parts, self.constant)

    def value(self, moments: MomentsByLogger) -> float:
        """Return the combination of these means."""
        return self.constant + sum(
            c * moments[i].mean(t) for i, parts in self.parts.items() for t, c in parts.items()
        )

    def bind(self, target: str) -> Linear:
        """Return the same combination for one target among several."""
        parts = {i: {t.bind(target): c for t, c in p.items()} for i, p in self.parts.items()}
        return replace(self, parts=parts)

    def variance(self, moments: MomentsByLogger) -> tuple[float, float]:
        r"""Return the variance stratified by logger, and its degrees of freedom.

        $$V = \sum_i \frac{c_i' \Sigma_i c_i}{n_i}$$

        A logger of one row has no variance: it takes that of all rows together.
        """
        parts = self._by_logger(moments, borrowed=True)
        freedom = min(satterthwaite_freedom(moments, parts), self.most_free)
        return self.inflation * sum(parts.values()), freedom

    def deviation_variance(
        self, moments: MomentsByLogger, buckets: Sequence[MomentsByLogger]
    ) -> tuple[float, float]:
        r"""Return the variance that a test uses, and its degrees of freedom.

        Stratified by logger, infinite where a logger has one row; or between buckets, where
        there are several: with $z_g$ the sum that bucket $g$ adds to the combination,
        $V = \frac{G}{G - 1} \sum_g (z_g - \bar z)^2$.
        """
        if len(buckets) > 1:
            sums = [self._bucket_sum(bucket, moments) for bucket in buckets]
            between = len(sums) * float(np.var(sums, ddof=1))
            noise = BETWEEN_NOISE * self._size(moments) ** 2
            return between if between > noise else 0.0, len(sums) - 1.0
        parts = self._by_logger(moments, borrowed=False)
        return sum(parts.values()), satterthwaite_freedom(moments, parts)

    def _by_logger(self, moments: MomentsByLogger, *, borrowed: bool) -> dict[str, float]:
        """Return the variance that each logger's rows add."""
        alone = borrowed and any(m.count <= m.ddof for m in moments.values())
        overall = pooled(moments.values()) if alone else None
        spreads = {}
        for i, parts in self.parts.items():
            rows = moments[i]
            source = overall if overall is not None and rows.count <= rows.ddof else rows
            if any(parts.values()):
                spreads[i] = row_variance(source, parts) / rows.count
        return spreads

    def _size(self, moments: MomentsByLogger) -> float:
        """Return the size of the numbers that the combination adds and subtracts."""
        return sum(
            abs(c * moments[i].mean(t))
            for i, parts in self.parts.items()
            for t, c in parts.items()
        )

    def _bucket_sum(self, bucket: MomentsByLogger, whole: MomentsByLogger) -> float:
        """Return what the rows of one bucket add to the combination, around its value."""
        return sum(
            bucket[i].count / whole[i].count * c * (bucket[i].mean(t) - whole[i].mean(t))
            for i, parts in self.parts.items()
            if i in bucket
            for t, c in parts.items()
        )


def row_variance(moments: Moments, parts: Coefficients) -> float:
    """Return the variance of a combination of terms in one row; infinite from one row."""
    if moments.count <= moments.ddof:
        return math.inf
    weights: FloatArray = np.array(list(parts.values()))
    covariance = moments.covariance(list(parts))
    left = float(weights @ covariance @ weights)
    cancelled = float(abs(weights) @ abs(covariance) @ abs(weights))
    return left if left > CANCELLED * cancelled else 0.0


def row_variances(moments: MomentsByLogger, parts: Coefficients) -> dict[str, float]:
    """Return the variance in one row of each logger; of all rows, where it has one row."""
    alone = {i for i, m in moments.items() if m.count <= m.ddof}
    overall = row_variance(pooled(moments.values()), parts) if alone else math.nan
    return {i: overall if i in alone else row_variance(m, parts) for i, m in moments.items()}


def shares(mass: Mapping[str, float]) -> dict[str, float]:
    """Scale one non-negative mass per logger to sum to 1."""
    total = sum(mass.values())
    return {logger: m / total for logger, m in mass.items()}


def by_count(moments: MomentsByLogger) -> dict[str, float]:
    """Return shares in proportion to rows."""
    return shares({logger: m.count for logger, m in moments.items()})


def satterthwaite_freedom(moments: MomentsByLogger, parts: Mapping[str, float]) -> float:
    r"""Return the degrees of freedom of a sum of variances, each known from its own rows.

    $$\nu = V^2 \Big/ \sum_i V_i^2 / (n_i - 1), \qquad V = \sum_i V_i$$

    Loggers of one row share the one variance of all rows: their part errs once, with
    $n - 1$ degrees of freedom.
    """
    if any(m.ddof == 0 for m in moments.values()):
        return math.inf
    alone = {i for i in parts if moments[i].count == 1}
    rows = sum(m.count for m in moments.values())
    own = [(part, moments[i].count - 1.0) for i, part in parts.items() if i not in alone]
    return added_freedom([*own, (sum(parts[i] for i in alone), rows - 1.0)])


def added_freedom(parts: Iterable[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of independent variances, each with its own."""
    positive = [(part, free) for part, free in parts if part > 0]
    total = sum(part for part, _ in positive)
    if not 0 < total < math.inf:
        return math.inf
    below = sum((part / total) ** 2 / free for part, free in positive)
    return 1 / below if below > 0 else math.inf


@dataclass(frozen=True)
class Deviation:
    """The distance of a combination from the value that theory fixes.

    Attributes:
        value: Value of the combination in these rows.
        z: Distance from the expected value in standard errors; 0 where they are unknown.
        p_value: Probability of a larger distance if the expectation holds.
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
    """Test a combination against its expected value, by Student's distribution.

    Args:
        linear: The combination.
        moments: Moments of each logger.
        buckets: Moments by bucket, where rows of a cluster share one.
        expected: Value that theory fixes.
        at_least: Lower bound on the variance, where theory knows more than few rows.
    """
    from scipy.special import stdtr

    value = linear.value(moments)
    variance, freedom = linear.deviation_variance(moments, buckets)
    variance = max(variance, at_least)
    gap = 0.0 if math.isclose(value, expected, rel_tol=ROUNDING) else value - expected
    if variance > 0:
        z = gap / math.sqrt(variance)
    else:  # rows that do not vary are infinitely sure of any gap
        z = math.copysign(math.inf, gap) if gap else 0.0
    return Deviation(value, z, 2 * float(stdtr(min(freedom, ENDLESS), -abs(z))))
