r"""Clicks: position bias, and what an evaluation of clicks on ranked lists must know of it.

Deterministic rankers have no probabilities.  With position-based clicks,
$P(click) = \theta_k r(x, d)$ for item $d$ at position $k$, the examination $\theta$ of the
position at which a ranker shows an item takes the place of its probability.  Several rankers
show the same item at different positions, which is what $\theta$ is fitted to.

Agarwal, Zaitsev, Wang, Li, Najork & Joachims (WSDM 2019); Oosterhuis & de Rijke (WSDM 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from poolwise.errors import RefusedError, UsageError
from poolwise.text import join_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from poolwise.log.log import Log
    from poolwise.types import AnyArray, FloatArray, IntArray

CANCELLED_CLICKS = 1e-12  # part of a sum of clicks that is left: a smaller one is rounding


class Pair(NamedTuple):
    """Two positions at which rankers show the same items.

    Attributes:
        upper: The position further up.
        lower: The other position.
        ratio: Examination of the upper over that of the lower, by their clicks alone.
        log_error: Standard error of the logarithm of `ratio`.
        used: False where too few clicks distinguish the two, so that the pair has no weight.
    """

    upper: int
    lower: int
    ratio: float
    log_error: float
    used: bool


@dataclass(frozen=True, eq=False)
class Curve:
    r"""Examination of each position, with its value without each bucket of requests.

    For positions $k \ne l$, $S_{kl}$ sums $1 / W_k$ over the clicks at $k$ on items that some
    ranker shows at $l$, where $W_k$ counts the requests of the rankers that show the item at
    $k$; then $E S_{kl} / E S_{lk} = \theta_k / \theta_l$.  $\log \theta$ is fitted to the
    logarithms of all ratios by least squares, weighted by the inverse of their jackknife
    variances, which are kept fixed without each bucket.

    Attributes:
        logs: Logarithm of the examination of each position, 0 at the first.
        shifts: Change of `logs` without each bucket, shape (buckets, positions).
        pairs: The pairs behind the fit; empty if the curve was given.
        misfit: Weighted sum of squared residuals of the fit.
        unconnected: Positions that no chain of pairs connects to the first.
    """

    logs: FloatArray
    shifts: FloatArray
    pairs: tuple[Pair, ...] = ()
    misfit: float = 0.0
    unconnected: tuple[int, ...] = ()

    @classmethod
    def given(cls, examination: FloatArray) -> Curve:
        """Return a curve that is known, without error."""
        return cls(np.log(examination), np.zeros((1, len(examination))))

    @classmethod
    def fit(cls, sums: FloatArray) -> Curve:
        """Fit the curve to sums of each bucket that has requests, shape (buckets, K, K)."""
        size, last = sums.shape[:2]
        whole = sums.sum(axis=0)
        rest = whole - sums
        upper, lower = np.triu_indices(last, 1)
        above, below = rest[:, upper, lower], rest[:, lower, upper]
        shown = (whole[upper, lower] > 0) & (whole[lower, upper] > 0)
        used = shown & (above > CANCELLED_CLICKS * whole[upper, lower]).all(axis=0)
        used &= (below > CANCELLED_CLICKS * whole[lower, upper]).all(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(whole[upper, lower]) - np.log(whole[lower, upper])
            without = np.log(above) - np.log(below)
            variances = jackknife_variance(without)
        used &= variances > 0
        pairs = tuple(
            Pair(int(k) + 1, int(j) + 1, math.exp(y), math.sqrt(v) if u else math.inf, bool(u))
            for k, j, y, v, u, s in zip(
                upper, lower, ratios, variances, used, shown, strict=True
            )
            if s
        )
        unconnected = _unconnected(last, upper[used], lower[used])
        logs, shifts = np.zeros(last), np.zeros((size, last))
        if unconnected or last == 1:
            return cls(logs, shifts, pairs, 0.0, unconnected)
        design = np.zeros((int(used.sum()), last))
        design[np.arange(len(design)), upper[used]] = 1.0
        design[np.arange(len(design)), lower[used]] = -1.0
        design, weights = design[:, 1:], 1 / variances[used]
        solve = np.linalg.solve(design.T @ (weights[:, None] * design), design.T * weights)
        logs[1:] = solve @ ratios[used]
        shifts[:, 1:] = without[:, used] @ solve.T - logs[1:]
        misfit = float(weights @ (ratios[used] - design @ logs[1:]) ** 2)
        return cls(logs, shifts, pairs, misfit)

    @property
    def size(self) -> int:
        """Number of positions."""
        return len(self.logs)

    @property
    def examination(self) -> FloatArray:
        """Examination of each position, 1 at the first."""
        return np.exp(self.logs)

    @cached_property
    def log_errors(self) -> FloatArray:
        """Standard error of the logarithm of each examination."""
        return np.sqrt(jackknife_variance(self.logs + self.shifts))

    @property
    def freedom(self) -> int:
        """Number of pairs that the fit could choose to miss."""
        return sum(p.used for p in self.pairs) - len(self.logs) + 1


@dataclass(frozen=True)
class Support:
    """Part of a target's examinations that is on items which rankers show.

    It needs no click.  Without the rest the estimated value is too low by at most that part.

    Attributes:
        together: On items that some ranker shows.
        by_logger: On items that each ranker shows.
    """

    together: float
    by_logger: Mapping[str, float]

    def alone(self, shares: Mapping[str, float]) -> float:
        """Return the part on items that a row's own ranker shows.

        Args:
            shares: Share of each ranker in an estimate.
        """
        return sum(share * self.by_logger[i] for i, share in shares.items())


class Predicted(NamedTuple):
    """Clicks of one ranker on items that others show, and what the others predict.

    Attributes:
        predicted: Predicted clicks per request.
        earned: Its own clicks per request.
        without: Both without each bucket of requests, shape (buckets, 2).
        rows: Rows of each bucket.
        supported: Share of its items that others show.
        effective: Effective clicks of the others behind the prediction.
    """

    predicted: float
    earned: float
    without: FloatArray
    rows: FloatArray
    supported: float
    effective: float


def places(positions: Sequence[int]) -> str:
    """Name positions.

    >>> places([3]), places([3, 5])
    ('position 3', 'positions 3 and 5')
    """
    return f"position{'s' * (len(positions) > 1)} {join_names(list(map(str, positions)))}"


def jackknife_variance(values: FloatArray) -> FloatArray:
    """Return the jackknife variance of values without each bucket, shape (buckets, ...)."""
    size = len(values)
    gaps = values - values.mean(axis=0)
    return np.asarray((size - 1) / size * (gaps**2).sum(axis=0))


def _unconnected(last: int, upper: IntArray, lower: IntArray) -> tuple[int, ...]:
    """Return the positions that no chain of pairs connects to the first, from 1."""
    reached = {0}
    edges = list(zip(upper.tolist(), lower.tolist(), strict=True))
    while more := {i for e in edges if reached & {*e} for i in e} - reached:
        reached |= more
    return tuple(k + 1 for k in range(last) if k not in reached)


def lacks_probabilities(what: str) -> UsageError:
    """Return the error of a question that a click log cannot answer.

    >>> print(lacks_probabilities("learn"))
    learn requires probabilities, which a click log lacks: it serves evaluate, compare and \
backtest, with balanced, naive or weighted and interval='auto'
    """
    return UsageError(
        f"{what} requires probabilities, which a click log lacks: it serves evaluate, compare "
        "and backtest, with balanced, naive or weighted and interval='auto'"
    )


@dataclass(frozen=True, eq=False)
class Clicks:
    """Position bias of a click log; `click_log` sets it.

    Attributes:
        curve: Examination of each position.
        ranks: Column of the rank that a policy gives an item, by the column of its
            examination there.
        position: Column of the position at which an item was shown.
        buckets: Number of buckets that requests are split into, by a hash of their cluster.
        numbers: Buckets that have requests, ascending.
        sums: Sums of each of these buckets that the curve was fitted to; None if it was given.
        values: What a click at each position counts; empty if each counts 1.
        roles: Roles of the log, which must stay as `click_log` gave them.
    """

    curve: Curve
    ranks: Mapping[str, str]
    position: str
    buckets: int
    numbers: IntArray
    sums: FloatArray | None
    values: tuple[float, ...] = ()
    roles: Mapping[str, object] = field(default_factory=dict)
    _curves: dict[int, tuple[AnyArray, FloatArray]] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ", given" if self.sums is None else ""
        return f"position bias of {self.curve.size} positions{given}"

    def problems(self, log: Log) -> Iterator[str]:
        """Yield what must not change in a log with these clicks."""
        changed = [r for r, value in self.roles.items() if getattr(log, r) != value]
        if changed:
            yield (
                f"`{changed[0]}` of a click log must stay as click_log gave it: call click_log "
                "again"
            )

    def divisor(self, buckets: int) -> int:
        """Return the largest number of buckets, at most a number, that joins whole buckets."""
        return max(k for k in range(1, buckets + 1) if self.buckets % k == 0)

    def shifts(self, buckets: int) -> tuple[AnyArray, FloatArray]:
        """Return the buckets with requests, and how the curve shifts without each of them.

        Args:
            buckets: Number of buckets, a divisor of the number of all.
        """
        if buckets not in self._curves:
            numbers, place = np.unique(self.numbers % buckets, return_inverse=True)
            shifts = np.zeros((len(numbers), self.curve.size))
            if self.sums is not None:
                joined = np.zeros((len(numbers), *self.sums.shape[1:]))
                np.add.at(joined, place, self.sums)
                curve = Curve.fit(joined)
                if curve.unconnected:
                    raise RefusedError(
                        "position-bias",
                        f"with {buckets} buckets of requests, too few clicks connect "
                        f"{places(curve.unconnected)} to the first: join segments.",
                    )
                shifts = curve.shifts
            self._curves[buckets] = numbers, shifts
        return self._curves[buckets]
