"""Estimate: an estimated value and the combination of means that it is.

An `Estimator` declares what it needs from the rows and turns one `Moments` per logger into
one `Estimate`.  It never reads a row, so it runs on every engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from poolwise.moments.linear import Linear, by_count
from poolwise.text import with_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.errors import Finding
    from poolwise.moments.moments import MomentsByLogger
    from poolwise.moments.terms import Needs, Term


@dataclass(frozen=True)
class Estimate:
    """An estimated value and the variance of that estimate.

    Attributes:
        value: Estimated mean reward of the target.
        variance: Variance of `value` (not of one row); infinite where rows are too few.
        shares: Part of each logger in `value`; sums to 1.
        freedom: Degrees of freedom of `variance` (Satterthwaite); infinite where exact.
        findings: Findings that limit the value.
        linear: The combination of term means that gives `value`, for differences of estimates.
    """

    value: float
    variance: float
    shares: Mapping[str, float]
    freedom: float = math.inf
    findings: tuple[Finding, ...] = ()
    linear: Linear = field(default_factory=lambda: Linear({}), repr=False, compare=False)

    @property
    def std_error(self) -> float:
        return math.sqrt(self.variance)

    def __str__(self) -> str:
        return with_error(self.value, self.std_error)


class Estimator(Protocol):
    """Anything that turns one `Moments` per logger into an `Estimate`."""

    @property
    def name(self) -> str: ...

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        """Return what it needs; `crossed` means that every logger scores every row."""
        ...

    def estimate(self, moments: MomentsByLogger) -> Estimate: ...


def estimated(
    linear: Linear,
    moments: MomentsByLogger,
    shares: Mapping[str, float] | None = None,
    findings: tuple[Finding, ...] = (),
) -> Estimate:
    """Return the estimate that a combination gives, with its stratified variance.

    The shares are those of the rows unless others are given.
    """
    variance, freedom = linear.variance(moments)
    share = by_count(moments) if shares is None else shares
    return Estimate(linear.value(moments), variance, share, freedom, findings, linear)


def stratified(moments: MomentsByLogger, term: Term, share: Mapping[str, float]) -> Estimate:
    """Return the sum of one mean per logger, in the given shares."""
    return estimated(Linear({i: {term: share[i]} for i in moments}), moments, share)
