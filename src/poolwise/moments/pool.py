"""Pool: the moments of one target, by stratum and by bucket, in a fixed order.

A stratum is a logger, or a cell: the rows of one logger in one period.  Policies that learn
change from period to period, so their rows are summed by cell.  Where rows share a cluster,
the pass also sums them by bucket.  Estimators, intervals and diagnosis read a `Pool`; none of
them depends on the order in which an engine returned its moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from poolwise.moments.moments import Moments, Selections, pool_moments, stack_means

if TYPE_CHECKING:
    from poolwise.moments.terms import Term
    from poolwise.types import FloatArray

T = TypeVar("T")
KNOWN = 4  # results about columns that a pool keeps: the estimates of a target share them


class Cell(NamedTuple):
    """Stratum of one logger in one period.

    Attributes:
        period: Text of the period.
        logger: Label of the logger.
        number: Position of the period in the order of the log.

    Examples:
        >>> cell = Cell("2024-05-01", "v3")
        >>> cell.logger, str(cell)
        ('v3', 'v3 in 2024-05-01')
    """

    period: str
    logger: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.logger} in {self.period}"


Stratum = str | Cell
# Loggers or cells are keys.  The type of a key is open, since a mapping of loggers is not a
# mapping of strata to a type checker.
ByStratum = Mapping[Any, T]


def find_logger(stratum: Stratum) -> str:
    """Return the logger of a stratum."""
    return stratum.logger if isinstance(stratum, Cell) else stratum


def list_periods(strata: Iterable[Stratum]) -> tuple[str, ...]:
    """Return the periods of cells in the order of the log, each once."""
    ordered = sorted((c for c in strata if isinstance(c, Cell)), key=lambda c: c.number)
    return tuple(dict.fromkeys(cell.period for cell in ordered))


class Pool(Mapping[Stratum, Moments]):
    """Moments of each stratum over all rows, and in each bucket if rows are clustered.

    As a mapping it has the moments of all rows of each stratum, in the order of the periods,
    then of the loggers.

    Attributes:
        loggers: Loggers in the order in which they are shown.
        buckets: Moments of the strata that have rows in a bucket, for each bucket; empty
            where the pass did not split the rows.
    """

    def __init__(
        self,
        moments: ByStratum[Moments] | None = None,
        buckets: Sequence[ByStratum[Moments]] = (),
        loggers: Iterable[str] = (),
    ) -> None:
        """Put moments in order.

        Args:
            moments: Moments of each stratum over all rows; by default those of the buckets.
            buckets: Moments of each bucket.
            loggers: Loggers in order; by default in the order of the moments.
        """
        whole = _merge_buckets(buckets) if moments is None else moments
        order = dict.fromkeys([*loggers, *map(find_logger, whole)])
        place = {logger: k for k, logger in enumerate(order)}
        present = {find_logger(i) for i in whole}
        self.loggers = tuple(logger for logger in order if logger in present)
        self.buckets = tuple(buckets)
        self._whole: dict[Stratum, Moments] = {
            i: whole[i] for i in sorted(whole, key=lambda i: _place(i, place))
        }
        self._known: dict[object, Any] = {}

    def __getstate__(self) -> dict[str, object]:
        """Return what a copy needs; it computes the rest again."""
        state = {"loggers": self.loggers, "buckets": self.buckets, "_whole": self._whole}
        return {**state, "_known": {}}

    def __getitem__(self, stratum: Stratum) -> Moments:
        return self._whole[stratum]

    def __iter__(self) -> Iterator[Stratum]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)

    def _with(
        self, whole: dict[Stratum, Moments], buckets: Sequence[ByStratum[Moments]]
    ) -> Self:
        """Return other moments, of these strata or some of them, in order."""
        other = object.__new__(type(self))
        other.loggers, other.buckets, other._whole = self.loggers, tuple(buckets), whole
        if len(whole) < len(self):
            present = set(map(find_logger, whole))
            other.loggers = tuple(i for i in self.loggers if i in present)
        other._known = {}
        return other

    @property
    def clustered(self) -> bool:
        """True if rows are in several buckets, by their cluster."""
        return len(self.buckets) > 1

    @cached_property
    def rows(self) -> int:
        """Number of rows."""
        return sum(m.count for m in self._whole.values())

    @property
    def whole(self) -> Pool:
        """The pool without its buckets."""
        return self._with(self._whole, ()) if self.buckets else self

    @property
    def exact(self) -> bool:
        """True if the moments are expectations, not those of rows."""
        return any(m.ddof == 0 for m in self._whole.values())

    @cached_property
    def together(self) -> Moments:
        """Moments of all rows."""
        return pool_moments(self._whole.values())

    @cached_property
    def by_logger(self) -> Pool:
        """The same rows with loggers as strata."""
        if not any(isinstance(i, Cell) for i in self):
            return self
        whole, *buckets = (_merge_cells(part) for part in (self._whole, *self.buckets))
        return Pool(whole, buckets, self.loggers)

    @cached_property
    def by_period(self) -> dict[str, Pool]:
        """The cells of each period, in the order of the log."""
        periods: dict[str, list[Cell]] = {period: [] for period in list_periods(self)}
        for cell in self:
            if isinstance(cell, Cell):
                periods[cell.period].append(cell)
        return {period: self.keep(cells) for period, cells in periods.items()}

    def keep(self, strata: Iterable[Stratum]) -> Pool:
        """Return some of the strata, in this order of them; the number of buckets remains."""
        whole = {i: self._whole[i] for i in strata}
        buckets = [{i: b[i] for i in whole if i in b} for b in self.buckets]
        return self._with(whole, buckets)

    def select(self, terms: Mapping[Term, Term]) -> Pool:
        """Return the moments of a mapping's values, renamed to its keys."""
        select = Selections(terms)
        buckets = [{i: select(m) for i, m in bucket.items()} for bucket in self.buckets]
        return self._with({i: select(m) for i, m in self._whole.items()}, buckets)

    def change(self, change: Callable[[Stratum, Moments], Moments]) -> Pool:
        """Return the pool with other moments of all rows, and the same buckets."""
        whole = {i: change(i, m) for i, m in self._whole.items()}
        return self._with(whole, self.buckets)

    # --- buckets --------------------------------------------------------------------------

    @cached_property
    def bucket_rows(self) -> FloatArray:
        """Rows of each bucket, shape (buckets,)."""
        rows = [sum(m.count for m in b.values()) for b in self.buckets]
        return np.array(rows, dtype=np.float64)

    def bucket_means(
        self, stratum: Stratum, terms: Sequence[Term]
    ) -> tuple[list[int], FloatArray, FloatArray]:
        """Return the buckets with rows of a stratum, their rows, and their means of terms."""
        present = [k for k, bucket in enumerate(self.buckets) if stratum in bucket]
        parts = [self.buckets[k][stratum] for k in present]
        counts = np.array([m.count for m in parts], dtype=np.float64)
        return present, counts, stack_means(parts, terms)

    def shifts(self, terms: Sequence[Term]) -> FloatArray:
        """Return how leaving out each bucket shifts means of terms, stratum after stratum.

        The shape is (buckets, strata * terms).  A stratum with rows in one bucket keeps them.
        """
        shifts = np.zeros((len(self.buckets), len(self), len(terms)))
        for k, (i, whole) in enumerate(self.items()):
            present, counts, means = self.bucket_means(i, terms)
            if len(present) > 1:
                share = counts / (whole.count - counts)
                shifts[present, k] = share[:, None] * (whole.select_means(terms) - means)
        return shifts.reshape(len(self.buckets), -1)

    @cached_property
    def without_each(self) -> list[Pool]:
        """Pools with one bucket left out, for each bucket, scaled to the full number of rows.

        A stratum with rows in one bucket keeps them.
        """
        strata = [
            _leave_out([b.get(i) for b in self.buckets], m) for i, m in self._whole.items()
        ]
        return [
            self._with(dict(zip(self._whole, rest, strict=True)), ())
            for rest in zip(*strata, strict=True)
        ]

    def recall(self, key: object, compute: Callable[[], T]) -> T:
        """Return what was computed under a key, or compute it; the last few are kept."""
        if key not in self._known:
            while len(self._known) >= KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = compute()
        found: T = self._known[key]
        return found


def _place(stratum: Stratum, loggers: Mapping[str, int]) -> tuple[int, int]:
    number = stratum.number if isinstance(stratum, Cell) else 0
    return number, loggers[find_logger(stratum)]


def _merge_buckets(buckets: Sequence[ByStratum[Moments]]) -> dict[Stratum, Moments]:
    """Return the moments of each stratum over all buckets."""
    present = dict.fromkeys(i for bucket in buckets for i in bucket)
    return {i: pool_moments(b[i] for b in buckets if i in b) for i in present}


def _merge_cells(moments: ByStratum[Moments]) -> dict[str, Moments]:
    """Return the moments of each logger over all periods."""
    cells: dict[str, list[Moments]] = {}
    for cell, of_cell in moments.items():
        cells.setdefault(find_logger(cell), []).append(of_cell)
    return {logger: pool_moments(parts) for logger, parts in cells.items()}


def _leave_out(parts: Sequence[Moments | None], whole: Moments) -> list[Moments]:
    """Return one stratum's moments without each bucket.

    Around the mean of all rows, sums without a bucket are sums over the other buckets.  The
    scatter without it is that around the mean of all rows less the squared shift of its mean.
    """
    copies = 1.0 - np.eye(len(parts))[:, [g for g, m in enumerate(parts) if m is not None]]
    groups = [part for part in parts if part is not None]
    shares = np.array([m.count / whole.count for m in groups])
    left = copies @ shares
    weights = copies * shares / np.where(left, left, 1.0)[:, None]
    size = len(whole.scatter)
    with np.errstate(over="ignore", invalid="ignore"):  # as in `pool_moments`
        gaps = np.array([m.means for m in groups]) - whole.means
        near = gaps[:, :size, None] * gaps[:, None, :size]
        squares = near + np.array([m.scatter / m.count for m in groups])
        shifts = weights @ gaps
        flat = squares.reshape(len(groups), size * size)
        spread = (weights @ flat).reshape(len(parts), size, size)
        spread -= shifts[:, :size, None] * shifts[:, None, :size]
    diagonal = np.arange(size)
    spread[:, diagonal, diagonal] = np.maximum(spread[:, diagonal, diagonal], 0.0)
    means, scatter = whole.means + shifts, spread * whole.count
    lowest = _lowest(np.array([m.lowest for m in groups]), copies)
    largest = -_lowest(np.array([-m.largest for m in groups]), copies)
    arrays = zip(means, scatter, lowest, largest, strict=True)
    return [
        Moments(whole.terms, whole.count, *rest, whole.ddof) if rows else whole
        for rest, rows in zip(arrays, left, strict=True)
    ]


def _lowest(values: FloatArray, copies: FloatArray) -> FloatArray:
    """Return the smallest value without each bucket; NaN for terms without extremes."""
    lowest = np.full((len(copies), values.shape[1]), np.nan)
    requested = np.flatnonzero(~np.isnan(values).any(axis=0))
    present = np.where(copies[:, :, None] > 0, values[:, requested], np.inf)
    lowest[:, requested] = present.min(axis=1)
    return lowest
