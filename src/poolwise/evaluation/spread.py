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
from poolwise.estimators.decisive import set_apart
from poolwise.evaluation.relation import ContrastLine, relate_apart
from poolwise.intervals.simultaneous import (
    SYMMETRIC,
    DifferenceShape,
    MaxT,
    factor_correlation,
    least_reaches,
    least_scores,
    max_t,
    score_at_zero,
    skew_multiples,
    skew_scores,
    tail_above,
)
from poolwise.intervals.skew import Reach
from poolwise.intervals.student import Interval
from poolwise.moments.buckets import effective_buckets, refuse_lone
from poolwise.moments.linear import CANCELLED, Fit, Score
from poolwise.moments.pool import Pool
from poolwise.moments.shape import find_weight, measure_shape, measure_shapes, replace_rewards
from poolwise.moments.terms import BALANCED_WEIGHT, WEIGHT, Needs, Term
from poolwise.moments.units import centre_units, centred_buckets, centred_slices, find_pull

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scipy.sparse import csr_array

    from poolwise.estimators.decisive import Decisive, SetApart
    from poolwise.evaluation.relation import Relative
    from poolwise.intervals.skew import Reaching
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.heavy import HeavyRows
    from poolwise.moments.linear import Linear
    from poolwise.moments.pool import Stratum
    from poolwise.types import FloatArray

MOST_STRETCHED = 500  # contrasts whose limits are stretched, in half a second
SAME = 1e-12  # of the scatter of two weights: less remains between equal ones
MANY = 200  # contrasts from which the covariance of all of them is not written out
DIRECTIONS = 50_000  # for few contrasts: a standard error of 0.006 at most
DRAWS = 20_000  # for many contrasts: a standard error of 0.02 at most


def unite_targets(needs: Needs, targets: Sequence[str], coverage: Coverage) -> Needs:
    """Return the needs of one target for several, with the scatter between all their terms."""
    weight = BALANCED_WEIGHT if coverage.crossed else WEIGHT  # distinguishes targets
    own = dict.fromkeys([*(t for group in needs.groups for t in group), weight])
    own |= dict.fromkeys(w for t in own if (w := find_weight(t)) is not None)
    bound = dict.fromkeys(t.bind(name) for name in targets for t in own)
    return Needs(
        groups=(tuple(sorted(bound)),), extremes=tuple(weight.bind(name) for name in targets)
    )


def find_equals(pool: Pool, targets: Sequence[str], weight: Term) -> dict[str, str]:
    """Return the first target that equals each one on every logged row: mostly itself."""
    whole = pool.together

    def same(left: str, right: str) -> bool:
        pair = [weight.bind(left), weight.bind(right)]
        scatter = whole.select_scatter(pair)  # weights may differ between loggers only
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
        heavy: Returns the heavy rows that decide the difference of two targets, if few do.
    """

    estimates: Mapping[str, Estimate]
    pool: Pool
    reaches: Mapping[str, Reaching] = field(default_factory=dict)
    heavy: Callable[[str, str], HeavyRows | None] = lambda _left, _right: None

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
        apart = [self._set_apart(left, right) for left, right in pairs]
        linears = [
            self._difference(*pair) if own is None else own.linear
            for pair, own in zip(pairs, apart, strict=True)
        ]
        values = [linear.value(self.pool) for linear in linears]
        sides = [(self.reaches[a], self.reaches[b]) for a, b in pairs] if self.reaches else ()
        spread = self._spread(values, linears, pairs)
        decisive = tuple(None if own is None else own.decisive for own in apart)
        shape = self._shape(linears, pairs)
        spread = replace(spread, shape=shape, sides=sides, decisive=decisive)
        if len(pairs) > MOST_STRETCHED:
            return spread
        return replace(spread, stretch=np.array([self._stretch(c) for c in linears]))

    def bucket_sums(self, pair: tuple[str, str]) -> FloatArray | None:
        """Return what each bucket of clusters adds to a difference; None without clusters."""
        pool = self.pool
        return self._difference(*pair).bucket_sums(pool) if pool.clustered else None

    def _set_apart(self, left: str, right: str) -> SetApart | None:
        """Return the difference with its heavy rows set apart, if few rows decide it."""
        heavy = self.heavy(left, right)
        return None if heavy is None else set_apart(self.pool, heavy)

    def _difference(self, left: str, right: str) -> Linear:
        """Return the difference of two estimates.

        Where both were regressed on columns of known mean, the difference is regressed on
        the columns of *both*: the errors of similar targets are then correlated, and cancel.
        """
        first, second = self._bound[left].fit, self._bound[right].fit
        if first is None or second is None:
            return self._bound[left] - self._bound[right]
        return self._regress(first.score - second.score, first, second)

    def _sides(self, left: str, right: str) -> tuple[Linear, Linear]:
        """Return two estimates whose difference is `_difference`."""
        first, second = self._bound[left].fit, self._bound[right].fit
        if first is None or second is None:
            return self._bound[left], self._bound[right]
        one, two = (self._regress(fit.score, first, second) for fit in (first, second))
        return one, two

    def _regress(self, score: Score, first: Fit, second: Fit) -> Linear:
        """Return the mean of a score, regressed on the columns of two estimates."""
        mine, theirs = first.columns, second.columns
        common = [column for column in mine if column in theirs]
        columns = [*common, *(c for c in (*mine, *theirs) if c not in common and _is_bound(c))]
        within = sum(not _is_bound(c) for c in columns) < len(self.pool)
        rows = self._together
        if within:
            terms = {t: t for t in (*score.parts, *(t for c in columns for t in c.parts))}
            rows = self.pool.whole.select(terms)
        slopes, rank = least_squares(rows, score, columns, within=within)
        effective = min(first.effective, second.effective)
        fit = Fit(score.less(slopes, columns), tuple(columns), effective, within)
        return fit.linear(self.pool, rank)

    def relate(self, left: str, right: str, critical: float, level: float) -> Relative | None:
        r"""Return one value over the other, less 1, with its limits; None if it has none.

        Limits are those at this normal critical value; None if the second value is not
        significantly away from 0.  Where heavy rows were set apart, both values divide by
        their own limits.
        """
        pair = (left, right)
        values = [self.estimates[name].value for name in pair]
        ends = [
            Interval(value - reach.below, value + reach.above, level)
            for value, reach in zip(
                values, (self.reaches[n](tail_above(critical)) for n in pair), strict=True
            )
        ]
        if 0.0 in ends[1] or not values[1]:
            return None
        decided = any(self.estimates[name].decisive is not None for name in pair)
        if decided or self._set_apart(left, right) is not None:
            return relate_apart(values[0], ends[0], values[1], ends[1])
        return self.line(left, right).relate(critical, level)

    def line(self, left: str, right: str) -> ContrastLine:
        """Return the combinations of two estimates, at any multiple of the second."""
        sides, pool, pair = self._sides(left, right), self.pool, (left, right)
        first, second = sides
        inflation = max(*(c.inflation for c in sides), *(self._excess[n] for n in pair))
        free = [self.estimates[n].freedom for n in pair] if pool.clustered else []
        sources = self._sources(*self._coefficients([c * math.sqrt(inflation) for c in sides]))
        weights = [replace_rewards(c) * self._sign(pair) for c in sides]
        return ContrastLine(
            first.value(pool),
            second.value(pool),
            np.array([source.products for source in sources]),
            np.array([source.sizes for source in sources]),
            np.array([source.free for source in sources]),
            min([*(c.most_free for c in sides), *free]),
            _pair_units(sides, pool),
            _pair_units(weights, pool),
            self._pull(*sides),
            (self.reaches[left], self.reaches[right]),
        )

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

    def _shape(
        self, linears: Sequence[Linear], pairs: Sequence[tuple[str, str]]
    ) -> DifferenceShape:
        """Return the shape of differences."""
        of_weights, _ = self._shapes([replace_rewards(linear) for linear in linears])
        signs = np.array([self._sign(pair) for pair in pairs])
        return DifferenceShape(*self._shapes(linears), signs * of_weights)

    def _sign(self, pair: tuple[str, str]) -> float:
        """Return -1 if rewards are mostly below 0, as costs are, and 1 otherwise."""
        return math.copysign(1.0, sum(self.estimates[name].value for name in pair))

    def _shapes(self, linears: Sequence[Linear]) -> tuple[FloatArray, FloatArray]:
        """Return skewness and noise of combinations; 0 without slices or clusters."""
        rows, terms = self._coefficients(linears)
        pool = self.pool
        if pool.clustered:
            shifts = [rows[i] @ centred_buckets(terms, i, pool)[1] for i in pool]
            return measure_shapes([np.sum(shifts, axis=0)])
        if not (terms and all(t in m.slices for m in pool.values() for t in terms)):
            return np.zeros(len(linears)), np.zeros(len(linears))
        return measure_shapes([rows[i] @ centred_slices(terms, m) for i, m in pool.items()])

    def _stretch(self, linear: Linear) -> float:
        """Factor on the limits, for rows that are missing and the errors of fitted slopes."""
        strata = centre_units(linear, self.pool) or []
        return math.sqrt(measure_shape(strata, self._pull(linear)).rise)

    def _pull(self, *linears: Linear) -> FloatArray | float:
        """Return what known columns add to the variance of a combination, or of several."""
        fit = linears[0].fit
        weights = {
            w for c in linears for part in replace_rewards(c).parts.values() for w in part
        }
        weights = set() if any(c.unknown_means for c in linears) else weights
        columns = fit.columns if fit else tuple(Score({w: 1.0}, -1.0) for w in sorted(weights))
        within, fitted = fit is None or fit.within, fit is not None
        return find_pull(columns, self.pool, within=within, fitted=fitted)

    def _coefficients(
        self, linears: Sequence[Linear]
    ) -> tuple[dict[Stratum, csr_array], list[Term]]:
        """Return one row of coefficients per combination, by logger, and their terms."""
        terms = list(dict.fromkeys(t for c in linears for p in c.parts.values() for t in p))
        column = {term: k for k, term in enumerate(terms)}
        parts = {i: [linear.parts.get(i, {}) for linear in linears] for i in self.pool}
        return {i: _stack_coefficients(part, column) for i, part in parts.items()}, terms

    def _sources(
        self, rows: Mapping[Stratum, csr_array], terms: Sequence[Term]
    ) -> list[ErrorSource]:
        """Return the sources of error of combinations: loggers, or clusters."""
        if self.pool.clustered:
            return [_find_cluster_errors(rows, terms, self.pool)]
        return _find_logger_errors(rows, terms, self.pool)


def _pair_units(
    linears: Sequence[Linear], pool: Pool
) -> tuple[list[FloatArray] | None, list[FloatArray] | None]:
    """Return what each unit adds to two combinations, by stratum."""
    first, second = (centre_units(linear, pool) for linear in linears)
    return first, second


def _is_bound(column: Score) -> bool:
    return any(f.target for term in column.parts for f in term.factors)


def _stack_coefficients(
    parts: Sequence[Mapping[Term, float]], column: Mapping[Term, int]
) -> csr_array:
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
        left = _square_rows(self.rows, self.covariance)
        size = _square_rows(abs(self.rows), abs(self.covariance))
        return np.where(left > CANCELLED * size, left, 0.0)

    @property
    def products(self) -> FloatArray:
        """Covariance of the combinations, shape (c, c)."""
        return np.asarray((self.rows @ self.covariance) @ self.rows.T)

    @property
    def sizes(self) -> FloatArray:
        """Sums of the absolute summands of `products`."""
        rows = abs(self.rows)
        return np.asarray((rows @ abs(self.covariance)) @ rows.T)

    def factor(self) -> FloatArray:
        """Return a matrix F with F F' the covariance of the combinations."""
        values, vectors = np.linalg.eigh(self.covariance)
        return np.asarray(self.rows @ (vectors * np.sqrt(np.maximum(values, 0.0))))


def _square_rows(rows: csr_array, form: FloatArray) -> FloatArray:
    """Return the quadratic form of each row."""
    return np.asarray(rows.multiply(rows @ form).sum(axis=1)).ravel()


def _find_logger_errors(
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


def _find_cluster_errors(
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
        decisive: Heavy rows that decide each, which then have its limits; None for others.
    """

    values: FloatArray
    sources: Sequence[ErrorSource]
    most_free: FloatArray
    shape: DifferenceShape = SYMMETRIC
    stretch: FloatArray = field(default_factory=lambda: np.ones(()))
    sides: Sequence[tuple[Reaching, Reaching]] = ()
    decisive: Sequence[Decisive | None] = ()

    @classmethod
    def of_errors(cls, values: FloatArray, errors: FloatArray) -> Spread:
        """Return values with normal errors that are independent of each other."""
        from scipy.sparse import csr_array

        number = len(values)
        source = ErrorSource(csr_array(np.eye(number)), np.diag(errors**2), math.inf)
        return cls(values, [source], np.full(number, math.inf))

    def widen(self, factor: float) -> Spread:
        """Return the same values with errors that are larger by a factor."""
        if factor == 1:
            return self
        sources = [replace(s, rows=s.rows * factor) for s in self.sources]
        sides = [(_widen(value, factor), _widen(other, factor)) for value, other in self.sides]
        decisive = [own and own.widen(factor) for own in self.decisive]
        return replace(self, sources=sources, sides=sides, decisive=decisive)

    @cached_property
    def _variances(self) -> FloatArray:
        """Part of each source in the variance of each contrast, shape (sources, c)."""
        return np.array([source.variances() for source in self.sources])

    @cached_property
    def _errors(self) -> FloatArray:
        """Standard error of each contrast by all sources, shape (c,)."""
        return np.asarray(np.sqrt(self._variances.sum(axis=0)))

    @property
    def _apart(self) -> list[tuple[int, Decisive]]:
        """Contrasts with heavy rows set apart, and their places."""
        return [(k, own) for k, own in enumerate(self.decisive) if own is not None]

    @cached_property
    def errors(self) -> FloatArray:
        """Standard error of each contrast, shape (c,)."""
        errors = self._errors.copy()
        for k, own in self._apart:
            errors[k] = math.sqrt(own.variance)
        return errors

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
        covariance: FloatArray = np.sum([source.products for source in self.sources], axis=0)
        np.fill_diagonal(covariance, self._errors**2)
        return covariance

    def together(self, rng: np.random.Generator, directions: int = DIRECTIONS) -> MaxT:
        """Return the distribution of the largest of all contrasts, in standard errors."""
        varies = self._errors > 0
        if varies.sum() <= MANY:
            return max_t(factor_correlation(self.covariance), rng, directions)
        factor = np.hstack([source.factor()[varies] for source in self.sources])
        return max_t(factor / self._errors[varies, None], rng, DRAWS)

    def limits(self, critical: float) -> tuple[FloatArray, FloatArray]:
        """Return the limits of each contrast at a normal critical value."""
        multiples = np.array(skew_multiples(self.shape, self.freedom, critical))
        reach = multiples * self.stretch * self._errors
        reach = np.maximum(reach, least_reaches(self.sides, critical))
        for k, own in self._apart:
            reach[:, k] = own.distances(tail_above(critical))
        return self.values - reach[0], self.values + reach[1]

    def scores(self) -> FloatArray:
        """Return the critical value at which each interval ends at 0; 0 without spread."""
        ratios = np.zeros_like(self.values)
        np.divide(self.values, self.stretch * self._errors, out=ratios, where=self._errors > 0)
        scores = skew_scores(ratios, self.shape, self.freedom)
        scores = least_scores(self.sides, self.values, np.where(ratios == 0, 0.0, scores))
        for k, own in self._apart:
            scores[k] = score_at_zero(own.distances, float(self.values[k]))
        return scores


def _widen(reaching: Reaching, factor: float) -> Reaching:
    """Return distances to limits that are larger by a factor."""

    def reach(alpha: float) -> Reach:
        own = reaching(alpha)
        return Reach(factor * own.below, factor * own.above)

    return reach
