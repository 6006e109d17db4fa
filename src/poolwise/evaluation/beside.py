"""Beside: a comparison of the targets from the pass that evaluates them.

An evaluation of several targets reads all that a comparison needs, except how the terms
of one target vary with those of another.  The kernel takes these pairs along in the same
matrix product; a database would have to sum each of them by name, so there a comparison
has to be asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poolwise.diagnosis.trained import trained_notes
from poolwise.errors import RefusedError
from poolwise.estimators.calibrated import Calibrated
from poolwise.evaluation.compare import Compared
from poolwise.evaluation.contrasts import Candidates, Comparable, united

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.engines.base import Rows
    from poolwise.errors import Finding
    from poolwise.evaluation.ranking import Comparison
    from poolwise.log.log import Log
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import Moments, MomentsByLogger
    from poolwise.moments.terms import Needs, Term

MOST = 30  # targets that are compared without being asked to: 435 pairs


@dataclass(frozen=True, eq=False)
class Beside:
    """What a comparison asks of the rows that an evaluation reads.

    Attributes:
        log: The log.
        estimator: The recommended estimator, in which the targets are compared.
        own: What it asks of one target.
        targets: Names of the targets.
    """

    log: Log
    estimator: Comparable
    own: Needs
    targets: tuple[str, ...]

    @property
    def needs(self) -> Needs:
        """The terms of all targets, with the scatter between all of them."""
        return united(self.own, self.targets, crossed=self.log.crossed)

    def pairs(self, moments: MomentsByLogger, buckets: Buckets, level: float) -> Pairs:
        """What is kept of the rows until somebody wants to see the comparison.

        Args:
            moments: Moments of each logger, which have all that is in `needs`.
            buckets: Means of each bucket, where rows of a cluster share one.
            level: Level of each family of intervals.

        Rows that were not split are asked to be taken as independent.
        """
        log, terms = self.log, {t: t for t in self.needs.terms}
        whole = {i: _narrow(m, terms) for i, m in moments.items()}
        clusters: Buckets = ()
        if log.cluster is not None:
            clusters = [{i: _narrow(m, terms) for i, m in b.items()} for b in buckets]
        candidates = Candidates(self.estimator, self.own, whole, self.targets, log.crossed)
        found = Compared(candidates, clusters, level, log.reward_range)
        return Pairs(found, tuple(trained_notes(log, tuple(whole))))


def _narrow(moments: Moments, terms: Mapping[Term, Term]) -> Moments:
    return replace(moments.select(terms), tails={}, histograms={})


@dataclass(frozen=True, eq=False)
class Pairs:
    """A comparison that is computed when it is asked for.

    Attributes:
        found: The candidates, and how their errors are to be read.
        noted: What to know beside what the estimates tell.
    """

    found: Compared
    noted: tuple[Finding, ...]

    def comparison(self) -> Comparison | None:
        """Rank the targets; none where the estimator refuses one of them."""
        try:
            return self.found.comparison("", self.noted)
        except RefusedError:
            return None


def beside(
    log: Log, estimators: Mapping[str, Estimator], rows: Rows, targets: tuple[str, ...]
) -> Beside | None:
    """What to ask for a comparison beside an evaluation; None where it is not for free."""
    recommended = estimators.get(Calibrated().name, next(iter(estimators.values()), None))
    estimated = log.estimate_mixture and not log.crossed
    if not isinstance(recommended, Comparable) or not rows.by_kernel:
        return None
    if not 2 <= len(targets) <= MOST or estimated:
        return None
    own = recommended.needs(tuple(rows.counts), crossed=log.crossed)
    return Beside(log, recommended, own, targets)
