"""Rows of segments: one pass over a log sums its rows by segment and logger.

The column of the segments takes the role of the period, which splits the rows of each logger
into cells; the mixture of a row is then that of the loggers in its own segment.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from sqlglot import exp

from poolwise.engines.parallel import KernelRows
from poolwise.errors import MissingColumnError, UsageError
from poolwise.evaluation.read import open_rows, opened, settled
from poolwise.log.adapters import as_policy
from poolwise.log.policy import expression_of
from poolwise.moments.cells import Cell, periods_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from poolwise.engines.base import EngineLike
    from poolwise.errors import Fault
    from poolwise.evaluation.read import OpenLog, Request
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.moments import Moments
    from poolwise.moments.terms import Needs

MOST_SLICES = 10_000  # sums over slices of each cell: 40 MB; without them Student's intervals
MOST_GROUPS, FEWEST_BUCKETS = 6_000, 20  # of clusters, over all cells
NEEDS_ROWS = "`by` sums rows by segment, which requires rows and the DuckDB or Spark engine"


@contextmanager
def opened_by(asked: Request, engine: EngineLike, by: str | None) -> Iterator[OpenLog]:
    """Open the log of a request, with segments where `by` names them."""
    if by is None:
        with opened(asked, engine) as rows:
            yield rows
        return
    _refuse(asked, by)
    split = replace(asked, log=replace(asked.log, period=by))
    try:
        with open_rows(split, engine) as rows:
            if not isinstance(rows, KernelRows):
                raise UsageError(NEEDS_ROWS)
            yield settled(asked, replace(rows, table=replace(rows.table, segmented=True)))
    except MissingColumnError as error:
        roles = {n: "by" if role == "period" else role for n, role in error.missing.items()}
        raise MissingColumnError(roles, error.available) from None


def _refuse(asked: Request, by: str) -> None:
    """Refuse questions that segments cannot answer."""
    log = asked.log
    decided = _columns(log.reward) | ({log.action} if log.action else set())
    if _columns(by) & decided:
        raise UsageError(
            f"`by` must be known before the action, as a country or a device is, got {by!r}, "
            "which the action or its reward decides"
        )
    if log.period is not None:
        raise UsageError("`by` must be left out if the log has a `period`")
    if asked.method == "betting":
        raise UsageError("interval='betting' has no segments: use interval='auto' with `by`")
    if log.mixture is not None or (log.estimate_mixture is not False and not log.crossed):
        raise UsageError(
            "`by` requires the mixture of each segment, which `propensities` of every logger "
            "give, but not one `mixture` of all rows"
        )


def _columns(text: PolicyLike) -> set[str]:
    """Return the columns that a name or an SQL expression reads."""
    try:
        tree = expression_of(as_policy(text))
    except UsageError:  # a name that is no expression
        return {str(text)}
    return set() if tree is None else {node.name for node in tree.find_all(exp.Column)}


@dataclass(frozen=True, eq=False)
class Parts:
    """Moments of all segments, which one pass gives.

    Attributes:
        rows: The rows, summed by segment and logger.
        cells: Rows of each segment and logger.
    """

    rows: KernelRows
    cells: Mapping[Cell, int]
    _moments: dict[Needs, dict[str, Moments]] = field(default_factory=dict)
    _buckets: dict[tuple[Needs, ...], list[list[dict[str, Moments]]]] = field(
        default_factory=dict
    )

    @classmethod
    def of(cls, rows: object) -> Parts:
        """Return the parts of rows that were opened with segments."""
        if not isinstance(rows, KernelRows):
            raise UsageError(NEEDS_ROWS)
        return cls(rows.by_period, rows.cells)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Rows of each segment."""
        sizes = Counter[str]()
        for cell, count in self.cells.items():
            sizes[cell.period] += count
        return {segment: sizes[segment] for segment in periods_of(self.cells)}

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Return the moments of each cell; the same needs are read once."""
        if needs not in self._moments:
            fits = len(self.cells) * len(needs.slices) <= MOST_SLICES
            slices = needs.slices if fits else ()
            lean = replace(needs, tails=(), histograms=(), slices=slices)
            self._moments[needs] = self.rows.moments(lean)
        return self._moments[needs]

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[list[dict[str, Moments]]]:
        """Return the moments of each cell by bucket; the same needs are read once."""
        if tuple(needs) not in self._buckets:
            fewer = max(FEWEST_BUCKETS, min(buckets, MOST_GROUPS // len(self.cells)))
            self._buckets[tuple(needs)] = self.rows.bucketed(needs, fewer)
        return self._buckets[tuple(needs)]


@dataclass(frozen=True, eq=False)
class SegmentRows:
    """The rows of one segment; implements `engines.base.Rows`."""

    parts: Parts
    segment: str
    by_kernel = True
    saved = False

    @property
    def shaped(self) -> bool:
        return self.parts.rows.shaped

    @property
    def counts(self) -> dict[str, int]:
        cells = self.parts.cells
        return {cell.logger: n for cell, n in cells.items() if cell.period == self.segment}

    all_counts = counts

    def check(self) -> tuple[Fault, ...]:
        """Return no fault: those of all rows are counted together."""
        return ()

    def moments(self, needs: Needs) -> dict[str, Moments]:
        return self._own(self.parts.moments(needs))

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[list[dict[str, Moments]]]:
        parts = self.parts.bucketed(needs, buckets)
        own = [[self._own(bucket) for bucket in buckets_of] for buckets_of in parts]
        return [[bucket for bucket in buckets_of if bucket] for buckets_of in own]

    def without(self, logger: str) -> SegmentRows:
        """Reject the call: leaving a logger out reads all rows."""
        raise NotImplementedError(logger)

    def _own(self, moments: Mapping[str, Moments]) -> dict[str, Moments]:
        return {
            cell.logger: m
            for cell, m in moments.items()
            if isinstance(cell, Cell) and cell.period == self.segment
        }
