"""Answers: lines of the query's result become moments.

The centres that were subtracted come back out here, and a line whose centre was too
far from its mean to keep the digits is recognised.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from poolwise.engines.sql import Request, moments_query, places
from poolwise.errors import Fault, LogError, RefusedError, UsageError, nearest
from poolwise.moments.moments import Moments, pooled
from poolwise.moments.terms import Needs, Term, unite
from poolwise.rows.rules import (
    RoleColumns,
    check_query,
    counts_query,
    example_query,
    role_text,
    rules,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlglot import exp
    from sqlglot.expressions import Expr as Expression

    from poolwise.moments.terms import Term

Line = Mapping[str, Any]  # what a database returns


@dataclass(frozen=True)
class Group:
    """What one line of the answer says.

    Attributes:
        logger: Label; None where the rows have none.
        bucket: Number of the bucket; 0 where rows were not split.
        bad: Rows that break a rule.
        moments: Their moments.
    """

    logger: str | None
    bucket: int
    bad: int
    moments: Moments


def decode(request: Request, line: Line) -> Group:
    """Turn one line of the answer into moments, taking the centres back out."""
    terms, place = request.needs.terms, places(request)
    count = int(line["rows"] or 0)
    logger = line["logger"]
    centres = np.array([_centre(request, line, t) for t in terms])
    sums = np.array([_float(line[f"sum_{k}"]) for k in range(len(terms))])
    offsets = sums / count
    size = len(request.needs.scattered)
    scatter = np.full((size, size), np.nan)
    with np.errstate(all="ignore"):  # a log with infinite rewards is refused afterwards
        for left, right in request.needs.pairs:
            i, j = place[left], place[right]
            raw = _float(line[f"scatter_{i}_{j}"])
            scatter[i, j] = scatter[j, i] = raw - count * offsets[i] * offsets[j]
    diagonal = np.einsum("ii->i", scatter)
    np.maximum(diagonal, 0.0, out=diagonal)  # rounding may leave -1e-20; keeps nan
    lowest, largest = np.full(len(terms), np.nan), np.full(len(terms), np.nan)
    for term in request.needs.extremes:
        k = place[term]
        lowest[k] = _float(line[f"lowest_{k}"]) + centres[k]
        largest[k] = _float(line[f"largest_{k}"]) + centres[k]
    tails = {
        t: np.sort(np.array(line[f"tail_{place[t]}"], dtype=np.float64))[::-1]
        + centres[place[t]]
        for t in request.needs.tails
        if f"tail_{place[t]}" in line
    }
    return Group(
        None if logger is None else str(logger),
        int(line.get("bucket") or 0),
        int(line["bad"] or 0),
        Moments(terms, count, centres + offsets, scatter, lowest, largest, tails=tails),
    )


def _float(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _centre(request: Request, line: Line, term: Term) -> float:
    """What was subtracted from a term before it was averaged."""
    column = f"centre_{places(request)[term]}"
    if column in line:
        return _float(line[column])
    return (request.common or {}).get(term, 0.0)


WELL_CENTRED = 100.0  # squared distance of centre and mean, in variances of a row


def off_centre(request: Request, group: Group) -> bool:
    """Whether some scatter lost digits because its centre was far from the mean.

    The loss is the ratio of the distance squared to the variance: at 100 some two of
    sixteen digits, and a sum of 1e8 rows loses another four.
    """
    moments, place = group.moments, places(request)
    for term in request.shifted:
        k = place[term]
        centre = _centre(request, {}, term)
        gap = moments.count * (moments.means[k] - centre) ** 2
        if gap > WELL_CENTRED * moments.scatter[k, k] and gap > 0:
            return True
    return False


def own_centres(request: Request, groups: Iterable[Group]) -> dict[str, dict[Term, float]]:
    """The means that a pass found, as centres for the next."""
    return {str(g.logger): {t: g.moments.mean(t) for t in request.shifted} for g in groups}


def refuse_overflow(request: Request, groups: Iterable[Group]) -> None:
    """Refuse sums that left the range of doubles: they would end as NaN."""
    place = places(request)
    for group in groups:
        m = group.moments
        pairs = [(place[i], place[j]) for i, j in request.needs.pairs]
        with np.errstate(over="ignore"):  # equal rows: no scatter, yet a square out of range
            squares = [m.means[i] * m.means[j] for i, j in pairs]
        if not np.isfinite([*m.means, *squares, *(m.scatter[i, j] for i, j in pairs)]).all():
            raise _overflow(group.logger)


def refuse_infinite(found: Mapping[str, Moments]) -> None:
    """Refuse moments that left the range of doubles; a scatter nobody asked for is nan."""
    for logger, m in found.items():
        if not m.bounded:
            raise _overflow(logger)


def _overflow(logger: str | None) -> RefusedError:
    return RefusedError(
        "overflow",
        f"weights times rewards of logger {logger!r} are too large for doubles: some "
        "propensity is absurdly small, or some reward absurdly large. Check both columns, and "
        "rescale the rewards if they are right.",
    )


def by_bucket(groups: Iterable[Group]) -> list[dict[str, Moments]]:
    """Moments of each logger, bucket by bucket, in the order of the buckets."""
    found: dict[int, dict[str, Moments]] = {}
    for group in groups:
        found.setdefault(group.bucket, {})[str(group.logger)] = group.moments
    return [found[bucket] for bucket in sorted(found)]


def merged_groups(groups: Iterable[Group]) -> list[Group]:
    """One group per logger: all its buckets together."""
    found: dict[str | None, list[Group]] = {}
    for group in groups:
        found.setdefault(group.logger, []).append(group)
    return [
        Group(logger, 0, sum(g.bad for g in parts), pooled(g.moments for g in parts))
        for logger, parts in found.items()
    ]


PILOT_ROWS = 20_000  # enough to centre a term within a small part of its spread
MOST_LOGGERS = 2_000  # a column with more labels is an identifier or a time
CHANGED = Fault(
    "the log changed while it was read: its rows are no longer those that were counted",
    "",
    0,
    advice="Evaluate rows that nobody writes to any more, such as those before today.",
)
NO_ROWS = Fault("the log has no rows", "", 0)
LONGEST_EXAMPLE = 60  # letters of a value that is no number
ADVICE = (
    "Correct these rows where they are written, or leave them out with on_fault='drop' "
    "(--on-fault drop)."
)
COMMAS = (
    "Decimal commas of a CSV file are read with --reader-option decimal_separator=, "
    "(reader_options={'decimal_separator': ','})."
)


@dataclass(frozen=True, eq=False)
class QueryRows(ABC):
    """An open log; answers what `engines.base.Rows` promises."""

    table: RoleColumns

    @abstractmethod
    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        """Run a query: one mapping of names to values for each line of the answer."""

    @abstractmethod
    def _bucket(self, buckets: int) -> Expression:
        """A number below `buckets`: the same for all rows of a cluster, else row by row."""

    @property
    def by_kernel(self) -> bool:
        return False

    @property
    def rereadable(self) -> bool:
        return True

    @property
    def _tail(self) -> int:
        """How many of the largest values this database can return; 0 for none."""
        return 0

    def _count(self, table: RoleColumns) -> dict[str | None, int]:
        lines = sorted(self._lines(counts_query(table)), key=lambda line: str(line["logger"]))
        return {line["logger"]: int(line["rows"]) for line in lines}

    @property
    def found(self) -> dict[str, int]:
        counts = self._count(replace(self.table, drop=False))
        return {str(label): rows for label, rows in counts.items()}

    @cached_property
    def counts(self) -> dict[str, int]:
        found = self._count(self.table)
        labels = self.table.labels or sorted(label for label in found if label is not None)
        if len(labels) > MOST_LOGGERS:
            what = role_text(self.table, "logger")
            raise UsageError(
                f"{what!r} has {len(labels):,} different labels, for {sum(found.values()):,} "
                f"rows: is it the logger, the policy that chose the action of a row? At most "
                f"{MOST_LOGGERS:,} loggers are evaluated together."
            )
        strange = set(found) - set(labels)
        empty = [label for label in labels if label not in found]
        if strange or (empty and not self.table.drop) or not found:
            raise LogError(self.check() or (Fault("the log has no usable rows", "", 0),))
        return {label: found[label] for label in labels if label in found}

    def check(self) -> tuple[Fault, ...]:
        """Count the rows that break each rule, by logger, with one example each."""
        lines = sorted(
            self._lines(check_query(self.table)), key=lambda line: str(line["logger"])
        )
        if not lines:
            return (NO_ROWS,)
        faults = [
            self._fault(place, line)
            for place in range(len(rules(self.table)))
            for line in lines
            if line[f"rule_{place}"]
        ]
        present = {line["logger"] for line in lines}
        strange = sorted(str(label) for label in present - set(self.table.labels))
        faults += [
            Fault("the logger has no rows", label, 0, advice=_meant(label, strange))
            for label in self.table.labels
            if label not in present
        ]
        return tuple(faults)

    def _fault(self, place: int, line: Mapping[str, Any]) -> Fault:
        rule = rules(self.table)[place]
        logger = line["logger"]
        example = self._lines(example_query(self.table, rule, logger))[0]
        shown = {role_text(self.table, role): _shown(example, role) for role in rule.role}
        commas = any(re.fullmatch(r"[+-]?\d+,\d+", str(value)) for value in shown.values())
        advice = COMMAS if commas else ADVICE
        return Fault(rule.text, logger or "", int(line[f"rule_{place}"]), shown, advice)

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Moments of each logger, centred well enough to keep their digits."""
        return self._answer(self.table, needs)[0]

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[list[dict[str, Moments]]]:
        """Moments of each bucket and logger, for each of several needs, from one query."""
        table = replace(self.table, bucket=self._bucket(buckets))
        found = self._answer(table, unite(needs))
        names = [{term: term for term in asked.terms} for asked in needs]
        return [[{i: m.select(n) for i, m in b.items()} for b in found] for n in names]

    def without(self, logger: str) -> Self:
        """The same rows without those of one logger, and without it in the mixture."""
        return replace(self, table=without(self.table, logger))

    def _answer(self, table: RoleColumns, needs: Needs) -> list[dict[str, Moments]]:
        request = Request(table, needs, self.counts, self._pilot(needs), tail=self._tail)
        groups = self._ask(request)
        if any(g.bad for g in groups):
            raise LogError(self.check())
        refuse_overflow(request, groups)
        merged = merged_groups(groups)
        if any(off_centre(request, g) for g in merged):
            centres = own_centres(request, merged)
            request = replace(request, common=None, by_logger=centres)
            groups = self._ask(request)
        return [
            {i: by_logger[i] for i in self.counts if i in by_logger}
            for by_logger in by_bucket(groups)
        ]

    def _pilot(self, needs: Needs) -> dict[Term, float]:
        """A centre for each term, from the first rows."""
        terms = Needs(groups=needs.groups).terms
        usable = replace(self.table, drop=True)
        request = Request(usable, Needs(means=terms), self.counts, {})
        found = [g.moments for g in self._ask(request, PILOT_ROWS)]
        means = pooled(found).means.tolist() if found else []
        return {
            t: float(c) for t, c in zip(terms, means, strict=False) if math.isfinite(float(c))
        }

    def _ask(self, request: Request, limit: int | None = None) -> list[Group]:
        """Run the query of the moments and read its answer."""
        lines = self._lines(moments_query(request, limit=limit))
        return [decode(request, line) for line in lines]


def _meant(label: str, strange: Sequence[str]) -> str:
    """A label that the rows have and nobody named may be this one, mistyped."""
    close = nearest(label, strange)
    return f"Did you mean {close!r} where `propensities` say {label!r}?" if close else ""


def _shown(example: Mapping[str, Any], role: str) -> object:
    """A value as a number; as it stands in the source where it is none."""
    value = example.get(role)
    text = example.get(f"raw_{role}")
    if value is not None or text is None:
        return value
    return text if len(text) <= LONGEST_EXAMPLE else f"{text[:LONGEST_EXAMPLE]}..."
