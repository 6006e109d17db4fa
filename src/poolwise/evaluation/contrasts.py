"""Contrasts: estimates of several targets, and of what lies between them.

Every estimate here is a combination of means of terms, and so is the difference of two
of them.  One pass gives the moments of all terms of all targets together; from these
come the differences, their errors, and how the errors hang together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import RefusedError
from poolwise.estimators.calibrated import (
    Calibrated,
    Control,
    SelfNormalised,
    effective_balanced,
    least_squares,
)
from poolwise.estimators.ips import Balanced, Naive
from poolwise.intervals.simultaneous import max_t_critical
from poolwise.moments.buckets import Split, effective_buckets, refuse_lone, rows_of
from poolwise.moments.estimate import by_count
from poolwise.moments.linear import CANCELLED
from poolwise.moments.moments import FloatArray, Moments, MomentsByLogger, pooled
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    Term,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.buckets import Buckets
    from poolwise.moments.estimate import Estimate

Comparable = Naive | Balanced | SelfNormalised | Calibrated
SAME = 1e-12  # of the scatter of two weights: what is left of it between equal ones
MANY = 200  # contrasts beyond which their covariance is never written out
DIRECTIONS = 50_000  # of few contrasts: a standard error of 0.006 at most
DRAWS, CHUNK = 20_000, 1_000  # of many contrasts: a standard error of 0.02 at most


@dataclass(frozen=True, eq=False)
class Contrast:
    """A combination of means of terms: an estimate, or the difference of two.

    Attributes:
        parts: Coefficient of each term, bound to its target.
        known: What is added to the combination.
        rank: Number of slopes that were estimated for it.
        effective: Rows of equal weight that the slopes rest on.
    """

    parts: Mapping[Term, float]
    known: float = 0.0
    rank: int = 0
    effective: float = math.inf

    @property
    def inflation(self) -> float:
        """What the slopes cost, as `estimators.control.regressed` has it."""
        if not self.rank or math.isinf(self.effective):
            return 1.0
        return self.effective / max(1.0, self.effective - self.rank)

    @property
    def most_free(self) -> float:
        """Degrees of freedom that the slopes leave at the most."""
        return max(1.0, self.effective - self.rank - 1)


def weight_of(*, crossed: bool) -> Term:
    """The weight that tells targets apart."""
    return BALANCED_WEIGHT if crossed else WEIGHT


def united(needs: Needs, targets: Sequence[str], *, crossed: bool) -> Needs:
    """Needs of one target, for several, with the scatter between all their terms."""
    weight = weight_of(crossed=crossed)
    own = dict.fromkeys([*(t for group in needs.groups for t in group), weight])
    bound = dict.fromkeys(t.bind(name) for name in targets for t in own)
    return Needs(
        groups=(tuple(sorted(bound)),), extremes=tuple(weight.bind(name) for name in targets)
    )


@dataclass(frozen=True, eq=False)
class Candidates:
    """What the rows say about several targets together.

    Attributes:
        estimator: How the value of a target is estimated.
        needs: What the estimator asks of one target.
        moments: Moments of the terms of all targets, by logger.
        targets: Their names.
        crossed: Whether every logger scores every row.
    """

    estimator: Comparable
    needs: Needs
    moments: MomentsByLogger
    targets: tuple[str, ...]
    crossed: bool

    @cached_property
    def views(self) -> dict[str, dict[str, Moments]]:
        """Moments of each target, under the names that estimators use."""
        terms = dict.fromkeys([*self.needs.terms, weight_of(crossed=self.crossed)])
        return {
            name: {
                i: m.select({t: t.bind(name) for t in terms}) for i, m in self.moments.items()
            }
            for name in self.targets
        }

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """The estimate of each target alone."""
        return {name: self.estimator.estimate(view) for name, view in self.views.items()}

    @cached_property
    def _pooled(self) -> Moments:
        return pooled(self.moments.values())

    @cached_property
    def _controls(self) -> dict[str, list[Control]]:
        """Columns of known mean that each target can bear, bound to it."""
        if not (isinstance(self.estimator, Calibrated) and self.crossed):
            return {name: [] for name in self.targets}
        return {
            name: [_bound(c, name) for c in self.estimator.controls(view)[0]]
            for name, view in self.views.items()
        }

    def single(self, target: str) -> Contrast:
        """The estimate of one target."""
        plain = replace(self._plain(target), effective=self._effective(target))
        return self._regressed(plain, self._controls[target])

    def _effective(self, *targets: str) -> float:
        """Rows that slopes rest on: those of the target with the heaviest weights."""
        if not (isinstance(self.estimator, Calibrated) and self.crossed and self._pooled.ddof):
            return math.inf
        return min(effective_balanced(pooled(self.views[t].values())) for t in targets)

    def paired(self, left: str, right: str) -> Contrast:
        """The left target less the right one.

        With columns of known mean, the difference is regressed on the columns of *both*
        targets: alike targets then share their luck, and it cancels.
        """
        first, second = self._plain(left), self._plain(right)
        minus = {term: -part for term, part in second.parts.items()}
        known = first.known - second.known
        plain = Contrast(
            {**first.parts, **minus}, known, effective=self._effective(left, right)
        )
        mine, theirs = self._controls[left], self._controls[right]
        common = [c for c in mine if c in theirs]
        own = [c for c in (*mine, *theirs) if c not in common and _of_target(c)]
        return self._regressed(plain, [*common, *own])

    def _plain(self, target: str) -> Contrast:
        """The estimate of one target before any regression."""
        by_own = self.estimator in {Naive(), SelfNormalised("own")}
        own = by_own or not self.crossed
        reward, weight = (
            (WEIGHTED_REWARD, WEIGHT) if own else (BALANCED_REWARD, BALANCED_WEIGHT)
        )
        reward, weight = reward.bind(target), weight.bind(target)
        if not isinstance(self.estimator, SelfNormalised):
            return Contrast({reward: 1.0})
        mean, value = self._pooled.mean(weight), self.estimates[target].value
        return Contrast({reward: 1 / mean, weight: -value / mean}, value)

    def _regressed(self, plain: Contrast, controls: Sequence[Control]) -> Contrast:
        """A contrast less what controls explain of it."""
        if not controls:
            return plain
        within = sum(not _of_target(c) for c in controls) < len(self.moments)
        terms = {t: t for t in (*plain.parts, *(t for c in controls for t in c.parts))}
        rows = self.moments if within else {"": self._pooled}
        small = {i: m.select(terms) for i, m in rows.items()}
        slopes, rank = least_squares(small, plain.parts, controls, within=within)
        parts = dict(plain.parts)
        for slope, control in zip(slopes, controls, strict=True):
            for term, part in control.parts.items():
                parts[term] = parts.get(term, 0.0) - slope * part
        known = sum(s * c.mean for s, c in zip(slopes, controls, strict=True))
        return Contrast(parts, plain.known + known, rank, plain.effective)

    def same(self, left: str, right: str) -> bool:
        """Whether two targets are the same policy on every logged row, to rounding."""
        pair = [weight_of(crossed=self.crossed).bind(name) for name in (left, right)]
        first, second = (self._pooled.mean(t) for t in pair)
        scatter = self._pooled.scatter_of(pair)  # weights may differ between loggers only
        between = scatter[0, 0] + scatter[1, 1] - 2 * scatter[0, 1]
        close = math.isclose(first, second, rel_tol=math.sqrt(SAME))
        return bool(close and between <= SAME * (scatter[0, 0] + scatter[1, 1]))

    @cached_property
    def firsts(self) -> dict[str, str]:
        """The first target that plays as each one does on every row: mostly itself."""
        found: dict[str, str] = {}
        for name in self.targets:
            alike = (first for first in dict.fromkeys(found.values()) if self.same(first, name))
            found[name] = next(alike, name)
        return found

    def spread(self, contrasts: Sequence[Contrast], clusters: Buckets = ()) -> Spread:
        """Values of contrasts, and the covariance that their errors share."""
        used = {term for contrast in contrasts for term in contrast.parts}
        kept = [k for k, t in enumerate(self._pooled.terms) if t in used]
        place = {self._pooled.terms[k]: column for column, k in enumerate(kept)}
        rows = np.zeros((len(contrasts), len(place)))
        for row, contrast in zip(rows, contrasts, strict=True):
            for term, part in contrast.parts.items():
                row[place[term]] = part
        known = np.array([c.known for c in contrasts])
        values = rows @ self._pooled.means[kept] + known
        rows = rows * np.sqrt([c.inflation for c in contrasts])[:, None]
        parts, free = _clustered(clusters) if clusters else _by_logger(self.moments)
        parts = parts[:, kept][:, :, kept]
        return Spread(values, rows, parts, free, np.array([c.most_free for c in contrasts]))


def _bound(control: Control, target: str) -> Control:
    return Control({t.bind(target): part for t, part in control.parts.items()}, control.mean)


def _of_target(control: Control) -> bool:
    return any(f.target for term in control.parts for f in term.factors)


def _by_logger(moments: MomentsByLogger) -> tuple[FloatArray, FloatArray]:
    r"""Covariance of the mean of all terms, $\sum_i n_i / n^2 \, Cov_i$, logger by logger.

    One row alone has no variance: it takes that of all rows together.
    """
    overall = pooled(moments.values())
    if overall.count <= overall.ddof:
        raise RefusedError("one-row", "one row shows no spread: collect more to compare")
    share = by_count(moments)
    parts, free = [], []
    borrowed = sum(share[i] ** 2 / m.count for i, m in moments.items() if m.count <= m.ddof)
    for logger, m in moments.items():
        if m.count > m.ddof:
            parts.append(m.covariance(m.terms) * (share[logger] ** 2 / m.count))
            free.append(float(m.count - 1) if m.ddof else math.inf)
    if borrowed:  # one variance for all of them: it errs once
        parts.append(overall.covariance(overall.terms) * borrowed)
        free.append(float(overall.count - 1))
    return np.array(parts), np.array(free)


def _clustered(clusters: Buckets) -> tuple[FloatArray, FloatArray]:
    r"""The same where rows of a bucket belong together: the jackknife of the means.

    $$S = \frac{G-1}{G} \sum_g d_g d_g', \qquad
      d_g = \sum_i \frac{n_i}{n} \bar x_{i(-g)} - \frac1G \sum_h \sum_i
      \frac{n_i}{n} \bar x_{i(-h)}$$

    What a bucket adds is measured against the others: one that holds most of the rows is
    close to a mean that is mostly its own.
    """
    split = Split(clusters)
    refuse_lone(split)
    share = by_count(split.whole)
    means = np.array(
        [sum(share[i] * m.means for i, m in rest.items()) for rest in split.without_each]
    )
    gaps = means - means.mean(axis=0)
    size = len(clusters)
    free = effective_buckets(rows_of(clusters)) - 1
    return (gaps.T @ gaps * ((size - 1) / size))[None], np.array([max(1.0, free)])


def _squared(rows: FloatArray, form: FloatArray) -> FloatArray:
    """The quadratic form of each row."""
    found: FloatArray = ((rows @ form) * rows).sum(axis=1)
    return found


@dataclass(frozen=True, eq=False)
class Spread:
    """Values of contrasts and what their errors share.

    Attributes:
        values: One per contrast, shape (c,).
        rows: Coefficients of the terms, shape (c, k).
        parts: Covariance of the means of the terms, shape (sources, k, k).
        free: Degrees of freedom of each part, shape (sources,).
        most_free: Degrees of freedom that each contrast has at the most, shape (c,).
    """

    values: FloatArray
    rows: FloatArray
    parts: FloatArray
    free: FloatArray
    most_free: FloatArray

    @cached_property
    def _variances(self) -> FloatArray:
        """What each source adds to the variance of each contrast, shape (sources, c).

        Covariances are sums over rows, right to some units of rounding.  What is left of
        a'Sa when all its summands cancel is then so much of |a|'|S||a|, and no variance: a
        contrast divided by its root would outdo every other.  The share below which
        nothing is left is that of the estimators; errors then are 1e-6 of their parts'.
        """
        size = abs(self.rows)
        left = np.array([_squared(self.rows, part) for part in self.parts])
        cancelled = np.array([_squared(size, abs(part)) for part in self.parts])
        return np.where(left > CANCELLED * cancelled, left, 0.0)

    @cached_property
    def errors(self) -> FloatArray:
        """Standard error of each contrast, shape (c,)."""
        error: FloatArray = np.sqrt(self._variances.sum(axis=0))
        return error

    @cached_property
    def freedom(self) -> FloatArray:
        r"""Satterthwaite's $\nu = V^2 / \sum V_i^2 / \nu_i$, shape (c,)."""
        below = (self._variances**2 / self.free[:, None]).sum(axis=0)
        square = self._variances.sum(axis=0) ** 2
        freedom: FloatArray = np.full_like(square, math.inf)
        np.divide(square, below, out=freedom, where=below > 0)
        return np.minimum(freedom, self.most_free)

    @property
    def covariance(self) -> FloatArray:
        """Covariance of all contrasts, shape (c, c)."""
        covariance: FloatArray = self.rows @ self.parts.sum(axis=0) @ self.rows.T
        np.fill_diagonal(covariance, self.errors**2)
        return covariance

    def critical(self, level: float, rng: np.random.Generator) -> float:
        """Number of standard errors that covers all contrasts together (max-T)."""
        kept = self.errors > 0
        if kept.sum() <= MANY:
            return max_t_critical(self.covariance, level, rng, DIRECTIONS)
        values, vectors = np.linalg.eigh(self.parts.sum(axis=0))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        factor = (self.rows[kept] @ root / self.errors[kept, None]).T
        largest = [
            np.abs(rng.standard_normal((CHUNK, len(factor))) @ factor).max(axis=1)
            for _ in range(DRAWS // CHUNK)
        ]
        return float(np.quantile(np.concatenate(largest), level))

    def half_widths(self, critical: float) -> FloatArray:
        """Student's quantiles with the tail of a normal critical value, times the errors."""
        from scipy.special import ndtr, ndtri, stdtrit

        tail = float(ndtr(critical))
        finite = np.isfinite(self.freedom)
        quantile = np.where(
            finite, stdtrit(np.where(finite, self.freedom, 1.0), tail), ndtri(tail)
        )
        widths: FloatArray = quantile * self.errors
        return widths

    def p_values(self) -> FloatArray:
        """Two-sided p-values of no difference; 1 where the rows show no spread."""
        from scipy.special import ndtr, stdtr

        some = self.errors > 0
        ratio = np.divide(self.values, self.errors, out=np.zeros_like(self.values), where=some)
        finite = np.isfinite(self.freedom)
        tails = np.where(
            finite,
            stdtr(np.where(finite, self.freedom, 1.0), -np.abs(ratio)),
            ndtr(-np.abs(ratio)),
        )
        found: FloatArray = np.minimum(1.0, 2 * tails)
        return found
