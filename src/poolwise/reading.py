"""Reading: what an evaluation asks of the rows, in as few passes as it can.

One pass gives everything.  Only where rows are split into buckets, for clusters or for
resampling, is there a second and shorter one: for what does not need the buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poolwise.resample import BUCKETS
from poolwise.terms import BALANCED_WEIGHT, WEIGHT, Needs, unite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engine.base import Rows
    from poolwise.moments import Moments, MomentsByLogger
    from poolwise.resample import Buckets


@dataclass(frozen=True, eq=False)
class Read:
    """What the rows answered.

    Attributes:
        buckets: Moments of each bucket, by target; of all rows, where they were not split.
        whole: Moments of all rows, with tails, histograms and the pairs of targets; empty
            where the engine has none of them beside the buckets.
        means: Means of each bucket, of the terms that pairs of targets have.
    """

    buckets: Mapping[str, Buckets]
    whole: MomentsByLogger
    means: Buckets

    def counted(self, view: MomentsByLogger, target: str) -> dict[str, Moments]:
        """The moments of one target, with the tails and histograms of its weights."""
        return {i: self._counted(i, m, target) for i, m in view.items()}

    def _counted(self, logger: str, moments: Moments, target: str) -> Moments:
        if logger not in self.whole:
            return moments
        whole = self.whole[logger]
        bound = {t: t.bind(target) for t in (WEIGHT, BALANCED_WEIGHT)}
        bins = {t: whole.histograms[b] for t, b in bound.items() if b in whole.histograms}
        tails = {t: whole.tails[b] for t, b in bound.items() if b in whole.tails}
        return replace(moments, histograms=bins, tails=tails or moments.tails)


def read(
    rows: Rows, needs: Needs, targets: Sequence[str], pairs: Needs, *, split: bool
) -> Read:
    """Ask the rows.

    Args:
        rows: The rows.
        needs: What every bucket must tell of each target.
        targets: Names of the targets.
        pairs: What is to be known of all rows together.
        split: Whether there are to be buckets.
    """
    bound = [needs.bind(name) for name in targets]
    if not split:
        found = rows.moments(unite([*bound, pairs]))
        views = {name: [_view(found, needs, name)] for name in targets}
        return Read(views, found, ())
    *parts, means = rows.bucketed([*bound, Needs(means=pairs.terms)], BUCKETS)
    views = {
        name: [_view(bucket, needs, name) for bucket in mine]
        for name, mine in zip(targets, parts, strict=True)
    }
    if not rows.by_kernel:  # a database has no histograms, and no short pass
        return Read(views, {}, means)
    apart = [Needs(tails=b.tails, histograms=b.histograms) for b in bound]
    return Read(views, rows.moments(unite([*apart, pairs])), means)


def _view(moments: MomentsByLogger, needs: Needs, target: str) -> dict[str, Moments]:
    """The moments of one target, under the names that estimators use."""
    names = {term: term.bind(target) for term in needs.terms}
    return {logger: m.select(names) for logger, m in moments.items()}
