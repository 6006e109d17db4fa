"""Estimate: an estimated value, its variance, and the combination of means behind it.

An `Estimator` declares the moments that it needs and turns a `Pool` of them into an
`Estimate`.  It never reads a row, so it runs on every engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from poolwise.moments.linear import Linear, by_count
from poolwise.moments.pool import find_logger
from poolwise.text import with_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.errors import Finding
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.pool import ByStratum, Pool
    from poolwise.moments.terms import Needs, Term


class SetsLimits(Protocol):
    """Heavy rows that decide a value; its limits do not follow from its variance.

    `estimators.decisive` says what the properties mean.
    """

    @property
    def number(self) -> int:
        """Number of heavy rows."""

    @property
    def rows(self) -> float:
        """Effective heavy rows."""

    @property
    def units(self) -> str:
        """Number of heavy rows or clusters, in words."""

    @property
    def lacks_rows(self) -> bool:
        """True if they rule the interval and are few."""

    def more_rows(self, rows: int) -> float:
        """Return how many more rows bring them to ten, from the rows of the log."""

    @property
    def mass(self) -> float:
        """Share of the decisions that rest on them."""

    @property
    def ranged(self) -> bool:
        """True if the range of the rewards is known."""

    def distances(self, alpha: float) -> tuple[float, float]:
        """Return the distances to the limits, each of which errs with probability alpha."""


@dataclass(frozen=True)
class Estimate:
    """An estimated value and the variance of that estimate.

    Attributes:
        value: Estimated mean reward of the target.
        variance: Variance of `value` (not of one row); infinite if rows are too few.
        shares: Share of each logger in `value`; the shares sum to 1.
        freedom: Degrees of freedom of `variance` (Satterthwaite); infinite if exact.
        findings: Findings that limit the value.
        linear: Combination of term means that gives `value`, for differences of estimates.
        decisive: Heavy rows that were set apart, from which limits follow; None without them.
    """

    value: float
    variance: float
    shares: Mapping[str, float]
    freedom: float = math.inf
    findings: tuple[Finding, ...] = ()
    linear: Linear = field(default_factory=lambda: Linear({}), repr=False, compare=False)
    decisive: SetsLimits | None = field(default=None, repr=False)

    @property
    def std_error(self) -> float:
        return math.sqrt(self.variance)

    def half_width(self, level: float) -> float:
        """Return the half-width of Student's two-sided interval."""
        return student_quantile((1 + level) / 2, self.freedom) * self.std_error

    def __str__(self) -> str:
        return with_error(self.value, self.std_error)


def student_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's distribution, of the normal one if freedom is infinite."""
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(freedom, probability) if freedom < math.inf else ndtri(probability))


class Estimator:
    """Turns the moments of a log into an `Estimate`.

    Its properties say what the rest of the package must know about it; its name is for people
    only.
    """

    @property
    def name(self) -> str:
        """Name in tables."""
        raise NotImplementedError

    @property
    def pools(self) -> bool:
        """True if its interval is valid only for policies that were fixed beforehand.

        This is so if it divides by the mixture of all loggers, or if the shares of loggers
        depend on the rewards of others.
        """
        return True

    @property
    def by_cell(self) -> bool:
        """True if it reads the moments of cells (period and logger), not of loggers."""
        return False

    @property
    def sets_apart(self) -> bool:
        """True if it sets apart the heavy rows that decide a value (`estimators.decisive`)."""
        return False

    @property
    def predicts(self) -> bool:
        """True if a model predicts the rewards of actions that are in no row."""
        return False

    @property
    def rank(self) -> int:
        """Place in the recommendation: the highest is recommended, the first among equals."""
        return 0

    @property
    def formula(self) -> str:
        """Formula by which `plan` predicts its variance; empty for the one of naive."""
        return ""

    def adapt(self, coverage: Coverage) -> Estimator:
        """Return the estimator for a log with this coverage: itself, for most."""
        del coverage
        return self

    def needs(self, coverage: Coverage) -> Needs:
        """Return the moments to compute for a log with this coverage.

        Raise RefusedError if the log lacks probabilities that the estimator requires.
        """
        raise NotImplementedError

    def estimate(self, pool: Pool) -> Estimate:
        """Return the estimate; strata are loggers, or cells if it is `by_cell`."""
        raise NotImplementedError


def make_estimate(
    linear: Linear,
    pool: Pool,
    shares: ByStratum[float] | None = None,
    findings: tuple[Finding, ...] = (),
) -> Estimate:
    """Return the value of a combination, with its stratified variance.

    Args:
        linear: Combination of the means.
        pool: Moments of the rows.
        shares: Share of each stratum; by default that of its row count.
        findings: Findings that limit the value.
    """
    variance, freedom = linear.variance(pool)
    share: dict[str, float] = {}
    for stratum, part in (by_count(pool) if shares is None else shares).items():
        logger = find_logger(stratum)
        share[logger] = share.get(logger, 0.0) + part
    return Estimate(linear.value(pool), variance, share, freedom, findings, linear)


def compute_value(estimator: Estimator, pool: Pool) -> float:
    """Return the value of an estimate, without its variance where the estimator can do that."""
    value = getattr(estimator, "value", None)
    return estimator.estimate(pool).value if value is None else float(value(pool))


def stratified_mean(pool: Pool, term: Term) -> float:
    """Return the value of `average_term` with the shares of the row counts."""
    return sum(m.count / pool.rows * m.mean(term) for m in pool.values())


def average_term(
    pool: Pool,
    term: Term,
    share: ByStratum[float] | None = None,
    findings: tuple[Finding, ...] = (),
) -> Estimate:
    """Return the mean of a term, with these shares or those of the row counts."""
    share = by_count(pool) if share is None else share
    linear = Linear({i: {term: share[i]} for i in pool})
    return make_estimate(linear, pool, share, findings)
