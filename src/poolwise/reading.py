"""Reading: what an evaluation asks of the rows, in as few passes as it can.

One pass gives everything.  Only where rows are split into buckets, for clusters or for
resampling, is there a second and shorter one: for what does not need the buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poolwise.resample import BUCKETS
from poolwise.terms import BALANCED_WEIGHT, WEIGHT, Needs

if TYPE_CHECKING:
    from poolwise.engine.base import Rows
    from poolwise.moments import IntArray, Moments, MomentsByLogger
    from poolwise.resample import Buckets
    from poolwise.terms import Term


@dataclass(frozen=True, eq=False)
class Read:
    """What the rows answered.

    Attributes:
        buckets: Moments of each bucket; of all rows, where they were not split.
        whole: Moments of all rows, with histograms and with the pairs of targets; empty
            where the engine has neither.
    """

    buckets: Buckets
    whole: MomentsByLogger

    def counted(self, view: MomentsByLogger, target: str) -> dict[str, Moments]:
        """The moments of one target, with the histograms of its weights."""
        return {i: replace(m, histograms=self._histograms(i, target)) for i, m in view.items()}

    def _histograms(self, logger: str, target: str) -> dict[Term, IntArray]:
        found = self.whole[logger].histograms if logger in self.whole else {}
        bound = {t: t.bind(target) for t in (WEIGHT, BALANCED_WEIGHT)}
        return {t: found[b] for t, b in bound.items() if b in found}


def read(rows: Rows, needs: Needs, pairs: Needs, *, split: bool) -> Read:
    """Ask the rows.

    Args:
        rows: The rows.
        needs: What every bucket must tell.
        pairs: What is to be known of all rows together.
        split: Whether there are to be buckets.
    """
    if not split:
        found = rows.moments(needs | pairs)
        return Read([found], found)
    buckets = rows.bucketed(needs, BUCKETS)
    if not rows.by_kernel:  # a database has no histograms, and no short pass
        return Read(buckets, {})
    return Read(buckets, rows.moments(pairs | Needs(histograms=needs.histograms)))
