"""Estimator: from one `Moments` per logger to one `Estimate`.

The estimators differ in two things only: which term they average, and which
share each logger has.  What they have in common is here: a stratified mean, its
variance, and the degrees of freedom of that variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from poolwise.moments.moments import MomentsByLogger, pooled
from poolwise.text import with_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolwise.errors import Finding
    from poolwise.moments.terms import Needs, Term


@dataclass(frozen=True)
class Estimate:
    """An estimated value and the variance of that estimate.

    Attributes:
        value: Estimated mean reward of the target.
        variance: Variance of `value` (not of one row); infinite where rows are too few.
        shares: Part of each logger in `value`; sums to 1.
        freedom: Degrees of freedom of `variance` (Satterthwaite); infinite where exact.
        findings: What a reader must know before trusting the value.
    """

    value: float
    variance: float
    shares: Mapping[str, float]
    freedom: float = math.inf
    findings: tuple[Finding, ...] = ()

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
        """What it asks of the rows; `crossed` says whether every logger scores every row."""
        ...

    def estimate(self, moments: MomentsByLogger) -> Estimate: ...


def shares(mass: Mapping[str, float]) -> dict[str, float]:
    """Scale one non-negative mass per logger to sum to 1."""
    total = sum(mass.values())
    return {logger: m / total for logger, m in mass.items()}


def by_count(moments: MomentsByLogger) -> dict[str, float]:
    """Shares in proportion to rows."""
    return shares({logger: m.count for logger, m in moments.items()})


def row_variances(moments: MomentsByLogger, term: Term) -> dict[str, float]:
    """Variance of one row of each logger.

    One row alone has no variance: it takes that of all rows together, which is
    larger by the spread between loggers.
    """
    alone = {logger for logger, m in moments.items() if m.count <= m.ddof}
    overall = pooled(moments.values()).var(term) if alone else math.nan
    return {i: overall if i in alone else m.var(term) for i, m in moments.items()}


def stratified(moments: MomentsByLogger, term: Term, share: Mapping[str, float]) -> Estimate:
    """Add up one mean per logger, in the given shares."""
    value = sum(share[i] * m.mean(term) for i, m in moments.items())
    spread = row_variances(moments, term)
    parts = {i: share[i] ** 2 * spread[i] / m.count for i, m in moments.items() if share[i]}
    return Estimate(value, sum(parts.values()), share, satterthwaite_freedom(moments, parts))


def satterthwaite_freedom(moments: MomentsByLogger, parts: Mapping[str, float]) -> float:
    r"""Degrees of freedom of a sum of variances, each known from its own rows.

    $$\nu = V^2 \Big/ \sum_i V_i^2 / (n_i - 1), \qquad V = \sum_i V_i$$

    Loggers of one row all borrow the one variance of all rows: what they borrow errs
    together, and so is one part with $n - 1$ degrees of freedom.
    """
    if any(m.ddof == 0 for m in moments.values()):
        return math.inf
    alone = {i for i in parts if moments[i].count == 1}
    rows = sum(m.count for m in moments.values())
    own = [(part, moments[i].count - 1.0) for i, part in parts.items() if i not in alone]
    return added_freedom([*own, (sum(parts[i] for i in alone), rows - 1.0)])


def added_freedom(parts: Iterable[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of independent variances, each given with its own."""
    some = [(part, free) for part, free in parts if part > 0]
    total = sum(part for part, _ in some)
    if not 0 < total < math.inf:
        return math.inf
    below = sum((part / total) ** 2 / free for part, free in some)
    return 1 / below if below > 0 else math.inf
