"""Given mixture: estimators whose balanced weights rest on a mixture column.

Where some cross-propensities are missing, the mixture is a column of the log, or a column
that a classifier of the loggers fills.  An estimator then runs as if every logger scored
every row, and its name and findings say where the mixture came from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poolwise.errors import Finding
from poolwise.estimators.calibrated import Calibrated, SelfNormalised
from poolwise.estimators.ips import Balanced
from poolwise.estimators.model import DoublyRobust

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.log.log import Log
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.moments import MomentsByLogger
    from poolwise.moments.terms import Needs


@dataclass(frozen=True)
class GivenMixture:
    """An estimator whose balanced weights rest on a column of the log.

    Attributes:
        estimator: Estimator that uses them.
    """

    estimator: Estimator

    @property
    def name(self) -> str:
        return self.estimator.name

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        del crossed  # the column replaces the missing cross-propensities
        return self.estimator.needs(loggers, crossed=True)

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        return self.estimator.estimate(moments)


class EstimatedMixture(GivenMixture):
    """The same on an estimated column, which its name and a finding say."""

    @property
    def name(self) -> str:
        return f"{self.estimator.name}-estimated"

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        estimate = super().estimate(moments)
        return replace(estimate, findings=(ESTIMATED, *estimate.findings))


def with_mixture(estimator: Estimator, log: Log) -> Estimator:
    """Return the estimator on the mixture column of a log, if it uses balanced weights."""
    wrapped = EstimatedMixture if log.mixture is None else GivenMixture
    if isinstance(estimator, Calibrated):
        known = tuple(str(k) for k, v in (log.propensities or {}).items() if v is not None)
        return wrapped(replace(estimator, known=known))
    balanced = isinstance(estimator, Balanced) or (
        isinstance(estimator, SelfNormalised | DoublyRobust) and estimator.weights == "balanced"
    )
    return wrapped(estimator) if balanced else estimator


ESTIMATED = Finding(
    "estimated-mixture",
    "The probability of each row under the mixture of the loggers was estimated, by a "
    "classifier of which logger wrote the row: estimates marked so rest on it, and their "
    "intervals do not know its errors.",
    "Log the probability of every action under every logger.",
)
