"""Contrasts: differences of estimates, and the covariance of their errors.

Every estimate carries the combination of term means that it is (`Linear`).  One pass gives
the moments of all terms of all targets together; from these come the covariance of the
estimates, and with it the error of every difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import RefusedError
from poolwise.estimators.calibrated import least_squares
from poolwise.intervals.simultaneous import (
    SYMMETRIC,
    DifferenceShape,
    MaxT,
    factor_of,
    least_reaches,
    least_scores,
    max_t,
    skew_multiples,
    skew_scores,
)
from poolwise.moments.buckets import effective_buckets, refuse_lone
from poolwise.moments.linear import CANCELLED, Fit, Score
from poolwise.moments.pool import Pool
from poolwise.moments.shape import shape_of, shapes_of, weight_of, weights_of
from poolwise.moments.terms import BALANCED_WEIGHT, WEIGHT, Needs, Term
from poolwise.moments.units import centred_buckets, centred_slices, pull_of, units_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scipy.sparse import csr_array

    from poolwise.intervals.skew import Reaching
    from poolwise.log.policy import FloatArray
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.linear import Linear
    from poolwise.moments.pool import Stratum

MOST_STRETCHED = 500  # contrasts whose limits are stretched, in half a second
SAME = 1e-12  # of the scatter of two weights: less remains between equal ones
MANY = 200  # contrasts from which the covariance of all of them is not written out
DIRECTIONS = 50_000  # for few contrasts: a standard error of 0.006 at most
DRAWS = 20_000  # for many contrasts: a standard error of 0.02 at most


def united(needs: Needs, targets: Sequence[str], coverage: Coverage) -> Needs:
    """Return the needs of one target for several, with the scatter between all their terms."""
    weight = BALANCED_WEIGHT if coverage.crossed else WEIGHT  # distinguishes targets
    own = dict.fromkeys([*(t for group in needs.groups for t in group), weight])
    own |= dict.fromkeys(w for t in own if (w := weight_of(t)) is not None)
    bound = dict.fromkeys(t.bind(name) for name in targets for t in own)
    return Needs(
        groups=(tuple(sorted(bound)),), extremes=tuple(weight.bind(name) for name in targets)
    )


def firsts(pool: Pool, targets: Sequence[str], weight: Term) -> dict[str, str]:
    """Return the first target that equals each one on every logged row: mostly itself."""
    whole = pool.together

    def same(left: str, right: str) -> bool:
        pair = [weight.bind(left), weight.bind(right)]
        scatter = whole.scatter_of(pair)  # weights may differ between loggers only
        between = scatter[0, 0] + scatter[1, 1] - 2 * scatter[0, 1]
        close = math.isclose(*map(whole.mean, pair), rel_tol=math.sqrt(SAME))
        return bool(close and between <= SAME * (scatter[0, 0] + scatter[1, 1]))

    first: dict[str, str] = {}
    for name in targets:
        equal = (other for other in dict.fromkeys(first.values()) if same(other, name))
        first[name] = next(equal, name)
    return first


@dataclass(frozen=True, eq=False)
class Candidates:
    """Estimates of several targets, and the moments of all their terms together.

    Attributes:
        estimates: Estimate of each target.
        pool: Moments of the terms of all targets.
        reaches: Distances of each target's own limits, which bound those of differences.
    """

    estimates: Mapping[str, Estimate]
    pool: Pool
    reaches: Mapping[str, Reaching] = field(default_factory=dict)

    @cached_property
    def _bound(self) -> dict[str, Linear]:
        return {name: e.linear.bind(name) for name, e in self.estimates.items()}

    @cached_property
    def _together(self) -> Pool:
        """Moments of all rows as one stratum, pooled once for all pairs."""
        return Pool({"": self.pool.together})

    def singles(self, names: Sequence[str]) -> Spread:
        """Return the estimates of targets."""
        values = [self.estimates[name].value for name in names]
        own = [(name,) for name in names]
        return self._spread(values, [self._bound[name] for name in names], own)

    def differences(self, pairs: Sequence[tuple[str, str]]) -> Spread:
        """Return the first target of each pair less the second."""
        linears = [self._difference(left, right) for left, right in pairs]
        values = [linear.value(self.pool) for linear in linears]
        sides = [(self.reaches[a], self.reaches[b]) for a, b in pairs] if self.reaches else ()
        spread = self._spread(values, linears, pairs)
        spread = replace(spread, shape=self._shape(linears), sides=sides)
        if len(pairs) > MOST_STRETCHED:
            return spread
        return replace(spread, stretch=np.array([self._stretch(c) for c in linears]))

    def _difference(self, left: str, right: str) -> Linear:
        """Return the difference of two estimates.

        Where both were regressed on columns of known mean, the difference is regressed on
        the columns of *both*: the errors of similar targets are then correlated, and cancel.
        """
        first, second = self._bound[left], self._bound[right]
        if first.fit is None or second.fit is None:
            return first - second
        mine, theirs = first.fit.columns, second.fit.columns
        common = [column for column in mine if column in theirs]
        columns = [*common, *(c for c in (*mine, *theirs) if c not in common and _of_target(c))]
        score = first.fit.score - second.fit.score
        within = sum(not _of_target(c) for c in columns) < len(self.pool)
        rows = self._together
        if within:
            terms = {t: t for t in (*score.parts, *(t for c in columns for t in c.parts))}
            rows = self.pool.whole.select(terms)
        slopes, rank = least_squares(rows, score, columns, within=within)
        effective = min(first.fit.effective, second.fit.effective)
        fit = Fit(score.less(slopes, columns), tuple(columns), effective, within)
        return fit.linear(self.pool, rank)

    @cached_property
    def _excess(self) -> dict[str, float]:
        """Factor by which each jackknife variance exceeds that of fixed coefficients.

        Leaving out a cluster changes slopes as well; a comparison must not be more precise than
        the evaluation, so every difference keeps the factor.
        """
        if not self.pool.clustered:
            return dict.fromkeys(self.estimates, 1.0)
        linears = [linear.plain for linear in self._bound.values()]
        (source,) = self._sources(*self._coefficients(linears))
        shown, reported = source.variances(), [e.variance for e in self.estimates.values()]
        usable = (shown > 0) & np.isfinite(reported)
        ratio = np.divide(reported, shown, out=np.ones_like(shown), where=usable)
        ratios = np.where(ratio > 1 + SAME, ratio, 1.0).tolist()
        return dict(zip(self.estimates, ratios, strict=True))

    def _spread(
        self,
        values: Sequence[float],
        linears: Sequence[Linear],
        names: Sequence[tuple[str, ...]],
    ) -> Spread:
        inflation, most_free = [], []
        for linear, own in zip(linears, names, strict=True):
            freedom = (
                [self.estimates[name].freedom for name in own] if self.pool.clustered else []
            )
            most_free.append(min([linear.most_free, *freedom]))
            inflation.append(max(linear.inflation, *(self._excess[name] for name in own)))
        scaled = [linear * math.sqrt(f) for linear, f in zip(linears, inflation, strict=True)]
        rows, terms = self._coefficients(scaled)
        return Spread(np.array(values), self._sources(rows, terms), np.array(most_free))

    def _shape(self, linears: Sequence[Linear]) -> DifferenceShape:
        """Return the shape of differences."""
        of_weights, _ = self._shapes([weights_of(linear) for linear in linears])
        return DifferenceShape(*self._shapes(linears), of_weights)

    def _shapes(self, linears: Sequence[Linear]) -> tuple[FloatArray, FloatArray]:
        """Return skewness and noise of combinations; 0 without slices or clusters."""
        rows, terms = self._coefficients(linears)
        pool = self.pool
        if pool.clustered:
            shifts = [rows[i] @ centred_buckets(terms, i, pool)[1] for i in pool]
            return shapes_of([np.sum(shifts, axis=0)])
        if not (terms and all(t in m.slices for m in pool.values() for t in terms)):
            return np.zeros(len(linears)), np.zeros(len(linears))
        return shapes_of([rows[i] @ centred_slices(terms, m) for i, m in pool.items()])

    def _stretch(self, linear: Linear) -> float:
        """Factor on the limits, for rows that are missing and the errors of fitted slopes."""
        fit = linear.fit
        weights = {w for part in weights_of(linear).parts.values() for w in part}
        columns = fit.columns if fit else tuple(Score({w: 1.0}, -1.0) for w in sorted(weights))
        strata = units_of(linear, self.pool) or []
        within, fitted = fit is None or fit.within, fit is not None
        pull = pull_of(columns, self.pool, within=within, fitted=fitted)
        return math.sqrt(shape_of(strata, pull).rise)

    def _coefficients(
        self, linears: Sequence[Linear]
    ) -> tuple[dict[Stratum, csr_array], list[Term]]:
        """Return one row of coefficients per combination, by logger, and their terms."""
        terms = list(dict.fromkeys(t for c in linears for p in c.parts.values() for t in p))
        column = {term: k for k, term in enumerate(terms)}
        parts = {i: [linear.parts.get(i, {}) for linear in linears] for i in self.pool}
        return {i: _matrix(part, column) for i, part in parts.items()}, terms

    def _sources(
        self, rows: Mapping[Stratum, csr_array], terms: Sequence[Term]
    ) -> list[ErrorSource]:
        """Return the sources of error of combinations: loggers, or clusters."""
        if self.pool.clustered:
            return [_clustered(rows, terms, self.pool)]
        return _stratified(rows, terms, self.pool)


def _of_target(column: Score) -> bool:
    return any(f.target for term in column.parts for f in term.factors)


def _matrix(parts: Sequence[Mapping[Term, float]], column: Mapping[Term, int]) -> csr_array:
    """Return one row of coefficients per combination."""
    from scipy.sparse import csr_array

    ends = np.cumsum([0, *map(len, parts)])
    columns = [column[term] for each in parts for term in each]
    values = [value for each in parts for value in each.values()]
    return csr_array(
        (np.array(values, dtype=np.float64), np.array(columns, dtype=np.int64), ends),
        shape=(len(parts), len(column)),
    )


@dataclass(frozen=True, eq=False)
class ErrorSource:
    """One source of error of several combinations.

    Attributes:
        rows: Coefficients of the means, one row per combination, shape (c, k).
        covariance: Covariance of the means, shape (k, k).
        free: Degrees of freedom of the covariance.
    """

    rows: csr_array
    covariance: FloatArray
    free: float

    def variances(self) -> FloatArray:
        """Return what the source adds to the variance of each combination.

        A variance that is a tiny share of its summands is rounding: a contrast divided by
        its root would exceed every other.  The share is that of the estimators.
        """
        left = _squared(self.rows, self.covariance)
        size = _squared(abs(self.rows), abs(self.covariance))
        return np.where(left > CANCELLED * size, left, 0.0)

    def factor(self) -> FloatArray:
        """Return a matrix F with F F' the covariance of the combinations."""
        values, vectors = np.linalg.eigh(self.covariance)
        return np.asarray(self.rows @ (vectors * np.sqrt(np.maximum(values, 0.0))))


def _squared(rows: csr_array, form: FloatArray) -> FloatArray:
    """Return the quadratic form of each row."""
    return np.asarray(rows.multiply(rows @ form).sum(axis=1)).ravel()


def _stratified(
    rows: Mapping[Stratum, csr_array], terms: Sequence[Term], pool: Pool
) -> list[ErrorSource]:
    r"""Return one source per logger, $C_i \Sigma_i C_i' / n_i$.

    A logger of one row takes the covariance of all rows; such loggers err together.
    """
    overall = pool.together
    if overall.count <= overall.ddof:
        raise RefusedError("one-row", "one row shows no spread: collect more to compare")
    sources = [
        ErrorSource(
            rows[i], m.covariance(terms) / m.count, float(m.count - 1) if m.ddof else math.inf
        )
        for i, m in pool.items()
        if m.count > m.ddof
    ]
    alone = [rows[i] for i, m in pool.items() if m.count <= m.ddof]
    if alone:  # one covariance for all of them: their coefficients add up in squares
        total = sum(alone[1:], alone[0])
        squares = sum((c.power(2) for c in alone[1:]), alone[0].power(2))
        root = squares.sqrt().multiply(total.sign())
        sources.append(ErrorSource(root, overall.covariance(terms), float(overall.count - 1)))
    return sources


def _clustered(
    rows: Mapping[Stratum, csr_array], terms: Sequence[Term], pool: Pool
) -> ErrorSource:
    r"""Return the jackknife of the means over buckets of clusters.

    $$S = \frac{G-1}{G} \sum_g d_g d_g', \qquad d_g = \bar x_{(-g)} - \text{mean}$$

    with the means of all loggers, one after the other.
    """
    from scipy.sparse import csr_array, hstack

    refuse_lone(pool)
    shifts = pool.shifts(terms)
    gaps = shifts - shifts.mean(axis=0)
    share = (len(pool.buckets) - 1) / len(pool.buckets)
    free = max(1.0, effective_buckets(pool.bucket_rows) - 1)
    return ErrorSource(csr_array(hstack([rows[i] for i in pool])), share * gaps.T @ gaps, free)


@dataclass(frozen=True, eq=False)
class Spread:
    """Values of contrasts and the errors that they share.

    Attributes:
        values: One per contrast, shape (c,).
        sources: Sources of their errors.
        most_free: Upper bound on the degrees of freedom of each, shape (c,).
        shape: Shape of each.
        stretch: Factor on the distance of each limit, shape (c,) or ().
        sides: Distances of the own limits of both targets of each, where they are known.
    """

    values: FloatArray
    sources: Sequence[ErrorSource]
    most_free: FloatArray
    shape: DifferenceShape = SYMMETRIC
    stretch: FloatArray = field(default_factory=lambda: np.ones(()))
    sides: Sequence[tuple[Reaching, Reaching]] = ()

    @cached_property
    def _variances(self) -> FloatArray:
        """Part of each source in the variance of each contrast, shape (sources, c)."""
        return np.array([source.variances() for source in self.sources])

    @cached_property
    def errors(self) -> FloatArray:
        """Standard error of each contrast, shape (c,)."""
        return np.asarray(np.sqrt(self._variances.sum(axis=0)))

    @cached_property
    def freedom(self) -> FloatArray:
        r"""Satterthwaite's $\nu = V^2 / \sum V_i^2 / \nu_i$, shape (c,)."""
        free = np.array([source.free for source in self.sources])
        total = self._variances.sum(axis=0)
        shares = self._variances / np.where(total > 0, total, 1.0)
        below = (shares**2 / free[:, None]).sum(axis=0)
        freedom: FloatArray = np.full_like(total, math.inf)
        np.divide(1.0, below, out=freedom, where=below > 0)
        return np.minimum(freedom, self.most_free)

    @property
    def covariance(self) -> FloatArray:
        """Covariance of all contrasts, shape (c, c)."""
        parts = [(source.rows @ source.covariance) @ source.rows.T for source in self.sources]
        covariance: FloatArray = np.sum(parts, axis=0)
        np.fill_diagonal(covariance, self.errors**2)
        return covariance

    def together(self, rng: np.random.Generator, directions: int = DIRECTIONS) -> MaxT:
        """Return the distribution of the largest of all contrasts, in standard errors."""
        varies = self.errors > 0
        if varies.sum() <= MANY:
            return max_t(factor_of(self.covariance), rng, directions)
        factor = np.hstack([source.factor()[varies] for source in self.sources])
        return max_t(factor / self.errors[varies, None], rng, DRAWS)

    def limits(self, critical: float) -> tuple[FloatArray, FloatArray]:
        """Return the limits of each contrast at a normal critical value."""
        multiples = np.array(skew_multiples(self.shape, self.freedom, critical))
        reach = multiples * self.stretch * self.errors
        reach = np.maximum(reach, least_reaches(self.sides, critical))
        return self.values - reach[0], self.values + reach[1]

    def scores(self) -> FloatArray:
        """Return the critical value at which each interval ends at 0; 0 without spread."""
        ratios = np.zeros_like(self.values)
        np.divide(self.values, self.stretch * self.errors, out=ratios, where=self.errors > 0)
        scores = skew_scores(ratios, self.shape, self.freedom)
        return least_scores(self.sides, self.values, np.where(ratios == 0, 0.0, scores))
