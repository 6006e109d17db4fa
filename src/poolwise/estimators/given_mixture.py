"""Given mixture: estimators whose balanced weights use a mixture column.

If cross-propensities are missing, the mixture is a column of the log or the prediction of
a classifier of the loggers.  An estimator then runs as if every logger scored every row; an
estimated mixture adds a suffix to its name and a finding.
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
    """An estimator whose mixture is a column of the log.

    Attributes:
        estimator: Estimator with balanced weights.
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
    """An estimator whose mixture is estimated."""

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
    "The probability of each row under the mixture of the loggers was estimated by a "
    "classifier that predicts the logger of the row. The intervals of estimates marked "
    "'estimated' do not include the classifier's errors.",
    "Log the probability of every action under every logger.",
)
