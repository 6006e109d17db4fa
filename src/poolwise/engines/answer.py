"""Answer: lines of the aggregate query become moments.

Decoding adds the subtracted centres back, and detects a centre so far from the mean that
the scatter lost digits.  A request with more aggregates than a database returns at once is
cut by target into several queries, whose answers are joined.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.engines.base import CHANGED, QueryRows
from poolwise.engines.sql import MomentsRequest, moments_query
from poolwise.errors import LogError, UsageError
from poolwise.moments.moments import Moments, pool_moments, refuse_infinite
from poolwise.moments.pool import Pool
from poolwise.moments.terms import Needs, Term, unite

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlglot import exp

    from poolwise.engines.base import Line
    from poolwise.engines.warehouse import Session
    from poolwise.rows.rules import RoleColumns
    from poolwise.types import FloatArray

PILOT_ROWS = 20_000  # enough to centre a term within a small part of its spread
WELL_CENTRED = 100.0  # squared distance of centre and mean, in variances of a row
TILE = 6  # terms of one target or two, whose scatters belong in the same query
EXTRA = {"pair": 1, "extreme": 2, "mean": 0}  # columns besides the sums of the terms
TermPair = tuple[Term, Term]
LineKey = tuple[str | None, int]  # logger and bucket
Aggregate = tuple[str, tuple[Term, ...]]  # a key of EXTRA, and one or two terms


@dataclass(frozen=True)
class AnswerLine:
    """One line of the answer.

    Attributes:
        logger: Label; None where it is NULL.
        bucket: Number of the bucket; 0 without buckets.
        bad: Rows that break a rule.
        moments: Moments of the rows.
    """

    logger: str | None
    bucket: int
    bad: int
    moments: Moments


def decode(request: MomentsRequest, line: Line) -> AnswerLine:
    """Turn one line of the answer into moments, adding the centres back."""
    terms, index, count = request.needs.terms, request.index, int(line["rows"] or 0)
    centres = _read_centres(request, line)
    offsets = _read_line(line, "sum", range(len(terms))) / count
    lowest, largest = np.full((2, len(terms)), np.nan)
    extremes = [index[term] for term in request.needs.extremes]
    lowest[extremes] = _read_line(line, "lowest", extremes) + centres[extremes]
    largest[extremes] = _read_line(line, "largest", extremes) + centres[extremes]
    scatter = _read_scatter(request, line, count, offsets)
    logger = None if line["logger"] is None else str(line["logger"])
    moments = Moments(terms, count, centres + offsets, scatter, lowest, largest)
    return AnswerLine(logger, int(line.get("bucket") or 0), int(line["bad"] or 0), moments)


def _read_line(line: Line, name: str, columns: Iterable[int | str]) -> FloatArray:
    """Numbers of the line's columns; NaN where they are NULL."""
    return np.array([line[f"{name}_{k}"] for k in columns], dtype=np.float64)


def _read_centres(request: MomentsRequest, line: Line) -> FloatArray:
    """The number that was subtracted from each term."""
    if not request.self_centred:
        return np.array([(request.centres or {}).get(t, 0.0) for t in request.needs.terms])
    centres = np.zeros(len(request.needs.terms))
    scattered = range(len(request.needs.scattered))  # they come first
    centres[list(scattered)] = _read_line(line, "centre", scattered)
    return centres


def _read_scatter(
    request: MomentsRequest, line: Line, count: int, offsets: FloatArray
) -> FloatArray:
    """Scatter around the means; infinite where a sum is not a finite double."""
    size, index = len(request.needs.scattered), request.index
    scatter = np.full((size, size), np.nan)  # NaN marks a pair that was not requested
    pairs = [(index[left], index[right]) for left, right in request.needs.pairs]
    i, j = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    with np.errstate(all="ignore"):
        sums = _read_line(line, "scatter", (f"{i}_{j}" for i, j in pairs))
        values = sums - count * offsets[i] * offsets[j]
    scatter[i, j] = scatter[j, i] = np.where(np.isnan(values), np.inf, values)
    diagonal = np.einsum("ii->i", scatter)
    np.maximum(diagonal, 0.0, out=diagonal)  # rounding may leave -1e-20; keeps NaN
    return scatter


def off_centre(request: MomentsRequest, moments: Moments) -> bool:
    """Return True if a scatter lost digits because its centre was far from the mean.

    The loss is the ratio of the squared distance to the variance: at 100 about two of
    sixteen digits, and a sum of 1e8 rows loses another four.
    """
    size = len(request.needs.scattered)
    distance = (moments.means - _read_centres(request, {}))[:size]
    gap = moments.count * distance**2
    return bool(((gap > WELL_CENTRED * np.diag(moments.scatter)) & (gap > 0)).any())


@dataclass(frozen=True)
class NeedsOfPairs(Needs):
    """Needs of one of several queries, with the scatter of some pairs only.

    Attributes:
        chosen: The pairs of the groups whose scatter this query returns.
    """

    chosen: tuple[TermPair, ...] = ()

    @cached_property
    def pairs(self) -> list[TermPair]:
        """The chosen pairs."""
        return list(self.chosen)


def cut(needs: Needs, widest: int) -> list[Needs]:
    """Cut needs by target into parts of at most `widest` aggregates.

    >>> from poolwise.moments.terms import REWARD, WEIGHT, WEIGHTED_REWARD
    >>> needs = Needs(groups=((REWARD, WEIGHT, WEIGHTED_REWARD),))
    >>> [(len(part.terms), len(part.pairs)) for part in cut(needs, widest=5)]
    [(2, 2), (3, 2), (2, 2)]
    >>> cut(needs, widest=9) == [needs]
    True
    """
    if len(needs.terms) + len(needs.pairs) + 2 * len(needs.extremes) <= widest:
        return [needs]
    parts: list[list[Aggregate]] = []
    terms: set[Term] = set()
    extra = widest  # so that the first aggregate begins a part
    for kind, needed in _list_aggregates(needs):
        if len(terms.union(needed)) + extra + EXTRA[kind] > widest:
            parts.append([])
            terms, extra = set(), 0
        parts[-1].append((kind, needed))
        terms.update(needed)
        extra += EXTRA[kind]
    return [_make_needs(part) for part in parts]


def _list_aggregates(needs: Needs) -> Iterable[Aggregate]:
    """The pairs, tile by tile of the terms sorted by target; then extremes and means."""
    by_target = sorted(needs.scattered, key=lambda t: (max(f.target for f in t.factors), t.key))
    tile = {term: k // TILE for k, term in enumerate(by_target)}
    pairs = sorted(needs.pairs, key=lambda pair: sorted(tile[term] for term in pair))
    yield from (("pair", pair) for pair in pairs)
    yield from (("extreme", (term,)) for term in needs.extremes)
    yield from (("mean", (term,)) for term in needs.terms[len(tile) :])


def _make_needs(aggregates: Sequence[Aggregate]) -> NeedsOfPairs:
    pairs = tuple((of[0], of[1]) for kind, of in aggregates if kind == "pair")
    return NeedsOfPairs(
        means=tuple(of[0] for kind, of in aggregates if kind == "mean"),
        groups=(tuple(term for pair in pairs for term in pair),),
        extremes=tuple(of[0] for kind, of in aggregates if kind == "extreme"),
        chosen=pairs,
    )


def join_moments(needs: Needs, parts: Sequence[Moments]) -> Moments:
    """Join the answers of several queries about the same rows."""
    size = len(needs.scattered)
    means, lowest, largest = np.full((3, len(needs.terms)), np.nan)
    scatter = np.full((size, size), np.nan)
    index = {term: k for k, term in enumerate(needs.terms)}
    for moments in parts:
        at = [index[term] for term in moments.terms]
        block = np.ix_(*[at[: len(moments.scatter)]] * 2)
        means[at] = moments.means
        for whole, values, where in (
            (lowest, moments.lowest, at),
            (largest, moments.largest, at),
            (scatter, moments.scatter, block),
        ):
            whole[where] = np.where(np.isnan(values), whole[where], values)
    return Moments(needs.terms, parts[0].count, means, scatter, lowest, largest)


@dataclass(frozen=True, eq=False)
class WarehouseRows(QueryRows):
    """An open log in a database: implements `engines.base.Rows`.

    Attributes:
        session: The connection and its dialect.
        widest: Most aggregates of one query.
    """

    session: Session
    widest: int

    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        return self.session.lines(query)

    def moments(self, needs: Needs) -> Pool:
        """Return the moments of each logger, centred well enough to keep their digits."""
        return Pool(self._answer(self.table, needs))

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[Pool]:
        """Return moments of each bucket and logger, for each of several needs."""
        if self.table.cluster is None:
            raise UsageError("a database has buckets of clusters only: name a `cluster`")
        bucket = self.session.bucket(self.table.cluster, buckets)
        answer = self._answer(replace(self.table, bucket=bucket), unite(needs))
        return [answer.select({term: term for term in one.terms}) for one in needs]

    def _answer(self, table: RoleColumns, needs: Needs) -> Pool:
        """Query around centres of the first rows, and again if they are too far off."""
        request = MomentsRequest(table, needs, self.counts, self._pilot(needs))
        pool = self._buckets(request)
        if any(off_centre(request, moments) for moments in pool.values()):
            pool = self._buckets(replace(request, centres=None))
        return pool

    def _pilot(self, needs: Needs) -> dict[Term, float]:
        """Mean of each term with a scatter in the first rows, as its centre."""
        usable = replace(self.table, drop=True)
        centres: dict[Term, float] = {}
        for part in cut(Needs(means=needs.scattered), self.widest):
            request = MomentsRequest(usable, part, self.counts, {})
            groups = self._groups(request, limit=PILOT_ROWS)
            if groups:
                first = pool_moments(group.moments for group in groups.values())
                centres.update(zip(first.terms, first.means.tolist(), strict=True))
        return {term: centre for term, centre in centres.items() if math.isfinite(centre)}

    def _groups(
        self, request: MomentsRequest, limit: int | None = None
    ) -> dict[LineKey, AnswerLine]:
        groups = [decode(request, line) for line in self._lines(moments_query(request, limit))]
        return {(group.logger, group.bucket): group for group in groups}

    def _buckets(self, request: MomentsRequest) -> Pool:
        """Run the query, cut where it is too wide; return moments by bucket and logger."""
        parts = cut(request.needs, self.widest)
        answers = [self._groups(replace(request, needs=part)) for part in parts]
        self._refuse_changed(answers)
        if any(group.bad for group in answers[0].values()):
            raise LogError(self.check() or (CHANGED,))
        buckets: dict[int, dict[str, Moments]] = {}
        for logger, bucket in answers[0]:
            moments = [one[logger, bucket].moments for one in answers]
            whole = moments[0] if len(parts) == 1 else join_moments(request.needs, moments)
            buckets.setdefault(bucket, {})[str(logger)] = whole
        for of_loggers in buckets.values():
            refuse_infinite(of_loggers)
        return Pool(None, [b for _, b in sorted(buckets.items())], self.counts)

    def _refuse_changed(self, answers: Sequence[Mapping[LineKey, AnswerLine]]) -> None:
        """Raise LogError where an answer is not about the rows that were counted."""
        sizes = [{key: group.moments.count for key, group in one.items()} for one in answers]
        rows: Counter[str | None] = Counter()
        for (logger, _), count in sizes[0].items():
            rows[logger] += count
        if rows != self.counts or any(one != sizes[0] for one in sizes):
            raise LogError([CHANGED])
