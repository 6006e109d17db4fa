"""Saved: an evaluation that starts from moments, where the rows are out of reach.

Sums that were saved, or that a warehouse returned, answer what an evaluation asks of
rows as far as sums can.  What needs the rows themselves is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from poolwise.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.errors import Fault
    from poolwise.findings import Finding
    from poolwise.moments import Moments
    from poolwise.terms import Needs, Term


@dataclass(frozen=True, eq=False)
class SavedRows:
    """Moments in the place of rows; answers what `engine.base.Rows` promises, or refuses.

    Attributes:
        known: Moments of each logger, in the order in which loggers are shown.
        dropped: Whether rows that break a rule were left out, uncounted.
        notes: What a reader must know of how these moments came about.
    """

    known: Mapping[str, Moments]
    dropped: bool = False
    notes: tuple[Finding, ...] = ()

    @property
    def by_kernel(self) -> bool:
        return False

    @property
    def rereadable(self) -> bool:
        return False

    @property
    def counts(self) -> dict[str, int]:
        return {logger: m.count for logger, m in self.known.items()}

    @property
    def found(self) -> dict[str, int]:
        return self.counts

    def check(self) -> tuple[Fault, ...]:
        """Rules were kept when the moments were made; what was left out is not known."""
        if not self.dropped:
            _needs_rows("checking rows")
        return ()

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """The moments that are asked for, if they were saved."""
        names = {term: term for term in needs.terms}
        for m in self.known.values():
            if not all(map(m.has, names)) or not _serves(m, needs):
                raise RefusedError(
                    "not-saved",
                    "these estimators need averages that the saved moments do not hold: make "
                    "them with the same estimators, and for the same targets",
                )
        return {logger: m.select(names) for logger, m in self.known.items()}

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> NoReturn:
        """Refused: buckets are made from rows."""
        del needs, buckets
        _needs_rows("resampling (intervals by jackknife or bootstrap, clusters, cross-fitting)")

    def without(self, logger: str) -> NoReturn:
        """Refused: without a logger every row has another weight."""
        _needs_rows(f"leaving out logger {logger!r} (which_logs)")


def _serves(m: Moments, needs: Needs) -> bool:
    """Whether every pair and extreme that is asked for is there."""
    try:
        for left, right in needs.pairs:
            m.scatter_of([left, right])
        for term in needs.extremes:
            m.max(term)
    except KeyError:
        return False
    return True


def _needs_rows(what: str) -> NoReturn:
    raise RefusedError(
        "needs-rows",
        f"{what} needs the rows, and there are only moments of them: evaluate the log itself, "
        "or do without (interval='student', no `cluster`)",
    )


MIXED = frozenset({"balanced_weight", "ratio", "inverse_ratio"})


def of_mixture(term: Term) -> bool:
    """Whether a term changes with the mixture, and so with every logger's rows."""
    return any(factor.name in MIXED for factor in term.factors)
