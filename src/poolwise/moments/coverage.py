"""Coverage: which probabilities of a log's rows are known, and where the mixture comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from poolwise.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolwise.log.log import Log
    from poolwise.moments.pool import Cell, Stratum

# of the probability under the mixture of all loggers: cross-propensities, the propensity of an
# only logger, a column of the log, a classifier of the loggers, or none
Origin = Literal["propensities", "own", "column", "estimate", ""]


@dataclass(frozen=True)
class Coverage:
    """Which probabilities of the logged actions are known, in which rows.

    The probability under the logger that wrote a row is always known.

    Attributes:
        loggers: Loggers that wrote rows, in the order in which they are shown.
        cells: Loggers in each period, in the order of the periods; empty without periods.
        known: Loggers whose probability is known in every row.
        live: Loggers whose probability is known in the periods in which they wrote rows, and
            missing in others.
        mixture: Origin of the probability under the mixture of all loggers; empty if it is
            not known.

    Examples:
        >>> Coverage.complete(["a", "b"]).crossed, Coverage(("a", "b")).missing
        (True, ('a', 'b'))
    """

    loggers: tuple[str, ...]
    cells: tuple[Cell, ...] = ()
    known: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    mixture: Origin = ""

    @classmethod
    def complete(cls, loggers: Iterable[str], cells: Iterable[Cell] = ()) -> Self:
        """Return the coverage of rows with a probability under every logger."""
        known = tuple(loggers)
        return cls(known, tuple(cells), known, mixture="propensities")

    @classmethod
    def declared(
        cls,
        log: Log,
        loggers: Iterable[str],
        cells: Iterable[Cell] = (),
        live: tuple[str, ...] = (),
    ) -> Self:
        """Return what a log declares, with the loggers and cells of its rows."""
        known = tuple(k for k, v in log.by_label.items() if v is not None and k not in live)
        origin: Origin = ""
        if log.crossed:
            origin = "" if live else "propensities"
        elif log.mixture is not None:
            origin = "column"
        elif log.needs_classifier:
            origin = "estimate"
        return cls(tuple(loggers), tuple(cells), known, live, origin)

    @property
    def crossed(self) -> bool:
        """True if the probability of every row under every logger is known."""
        return self.mixture in {"propensities", "own"}

    @property
    def period_mixed(self) -> bool:
        """True if the mixture of the loggers that are live in a row's period is known."""
        return self.crossed or bool(self.live)

    @property
    def missing(self) -> tuple[str, ...]:
        """Loggers whose probability is not known in every row."""
        return tuple(i for i in self.loggers if i not in self.known)

    def strata(self, *, by_cell: bool) -> tuple[Stratum, ...]:
        """Return the keys of moments: cells or loggers."""
        return self.cells if by_cell else self.loggers

    def without(self, logger: str) -> Self:
        """Return the coverage of the rows of the other loggers."""
        others = tuple(i for i in self.loggers if i != logger)
        cells = tuple(c for c in self.cells if c.logger != logger)
        known = tuple(i for i in self.known if i != logger)
        return replace(self, loggers=others, cells=cells, known=known)


def refuse_uncrossed(name: str, coverage: Coverage) -> None:
    """Raise RefusedError: an estimator needs cross-propensities that the log lacks."""
    raise RefusedError(
        f"{name}-refused",
        f"{name} requires the probability of each row's action under every logger, not "
        f"only under its own. Give `propensities` (--propensities) for "
        f"{', '.join(map(repr, coverage.missing))}: a column, an expression or a policy for "
        "each; or estimate the mixture from `context` with Log(estimate_mixture=True).",
    )
