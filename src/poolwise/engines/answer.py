"""Answer: lines of the aggregate query become moments; the base class of databases.

Decoding adds the subtracted centres back, and detects a centre so far from the mean that
the scatter lost digits.
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

from poolwise.engines.sql import Request, moments_query
from poolwise.errors import Fault, LogError, UsageError, nearest
from poolwise.moments.moments import Moments, pooled, refuse_infinite
from poolwise.moments.terms import Needs, unite
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

    from poolwise.moments.moments import FloatArray
    from poolwise.moments.terms import Term

Line = Mapping[str, Any]  # one line of a database's answer


@dataclass(frozen=True)
class Group:
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


def decode(request: Request, line: Line) -> Group:
    """Turn one line of the answer into moments, adding the centres back."""
    terms, index, count = request.needs.terms, request.index, int(line["rows"] or 0)
    centres = _centres(request, line)
    offsets = _numbers(line, "sum", range(len(terms))) / count
    lowest, largest = np.full((2, len(terms)), np.nan)
    extremes = [index[term] for term in request.needs.extremes]
    lowest[extremes] = _numbers(line, "lowest", extremes) + centres[extremes]
    largest[extremes] = _numbers(line, "largest", extremes) + centres[extremes]
    logger = line["logger"]
    return Group(
        None if logger is None else str(logger),
        int(line.get("bucket") or 0),
        int(line["bad"] or 0),
        Moments(
            terms,
            count,
            centres + offsets,
            _scatter(request, line, count, offsets),
            lowest,
            largest,
        ),
    )


def _numbers(line: Line, name: str, columns: Iterable[int]) -> FloatArray:
    return np.array([_float(line[f"{name}_{k}"]) for k in columns], dtype=np.float64)


def _float(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _centres(request: Request, line: Line) -> FloatArray:
    """The number that was subtracted from each term."""
    if not request.self_centred:
        return np.array([(request.centres or {}).get(t, 0.0) for t in request.needs.terms])
    centres = np.zeros(len(request.needs.terms))
    scattered = range(len(request.needs.scattered))  # they come first
    centres[list(scattered)] = _numbers(line, "centre", scattered)
    return centres


def _scatter(request: Request, line: Line, count: int, offsets: FloatArray) -> FloatArray:
    """Scatter around the means; infinite where a sum is not a finite double."""
    size, index = len(request.needs.scattered), request.index
    scatter = np.full((size, size), np.nan)  # NaN marks a pair that was not requested
    with np.errstate(all="ignore"):
        for left, right in request.needs.pairs:
            i, j = index[left], index[right]
            value = _float(line[f"scatter_{i}_{j}"]) - count * offsets[i] * offsets[j]
            scatter[i, j] = scatter[j, i] = math.inf if np.isnan(value) else value
    diagonal = np.einsum("ii->i", scatter)
    np.maximum(diagonal, 0.0, out=diagonal)  # rounding may leave -1e-20; keeps NaN
    return scatter


WELL_CENTRED = 100.0  # squared distance of centre and mean, in variances of a row


def off_centre(request: Request, moments: Moments) -> bool:
    """Whether a scatter lost digits because its centre was far from the mean.

    The loss is the ratio of the squared distance to the variance: at 100 about two of
    sixteen digits, and a sum of 1e8 rows loses another four.
    """
    size = len(request.needs.scattered)
    distance = (moments.means - _centres(request, {}))[:size]
    gap = moments.count * distance**2
    return bool(((gap > WELL_CENTRED * np.diag(moments.scatter)) & (gap > 0)).any())


def whole(groups: Iterable[Group]) -> list[Moments]:
    """Moments of each logger, all its buckets together."""
    by_logger: dict[str | None, list[Moments]] = {}
    for group in groups:
        by_logger.setdefault(group.logger, []).append(group.moments)
    return [pooled(buckets) for buckets in by_logger.values()]


def by_bucket(groups: Iterable[Group], loggers: Iterable[str]) -> list[dict[str, Moments]]:
    """Moments of each logger, bucket by bucket, in the order of buckets and loggers."""
    buckets: dict[int, dict[str, Moments]] = {}
    for group in groups:
        buckets.setdefault(group.bucket, {})[str(group.logger)] = group.moments
    order = list(loggers)
    return [{i: b[i] for i in order if i in b} for _, b in sorted(buckets.items())]


PILOT_ROWS = 20_000  # enough to centre a term within a small part of its spread
MOST_LOGGERS = 2_000  # more distinct labels suggest an ID or timestamp column
CHANGED = Fault(
    "the log changed while it was read: its rows are no longer those that were counted",
    "",
    0,
    advice="Evaluate rows that no longer change, such as those before today.",
)
NO_ROWS = Fault("the log has no rows", "", 0)
LONGEST_EXAMPLE = 60  # characters of a value that is not numeric
ADVICE = "Correct the rows at their source, or drop them: on_fault='drop' (--on-fault drop)."
COMMAS = (
    "For a CSV file with decimal commas, pass reader_options={'decimal_separator': ','} "
    "(--reader-option decimal_separator=,)."
)


@dataclass(frozen=True, eq=False)
class QueryRows(ABC):
    """An open log whose rows are counted and checked by queries."""

    table: RoleColumns

    @abstractmethod
    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        """Run a query and return each line of the answer as a mapping by column."""

    @property
    def by_kernel(self) -> bool:
        return False

    @property
    def rereadable(self) -> bool:
        return True

    def _count(self, table: RoleColumns) -> dict[str | None, int]:
        lines = sorted(self._lines(counts_query(table)), key=lambda line: str(line["logger"]))
        return {line["logger"]: int(line["rows"]) for line in lines}

    @property
    def found(self) -> dict[str, int]:
        counts = self._count(replace(self.table, drop=False))
        return {str(label): rows for label, rows in counts.items()}

    @cached_property
    def counts(self) -> dict[str, int]:
        counts = self._count(self.table)
        labels = self.table.labels or sorted(label for label in counts if label is not None)
        if len(labels) > MOST_LOGGERS:
            raise UsageError(
                f"the logger column {role_text(self.table, 'logger')!r} must have at most "
                f"{MOST_LOGGERS:,} labels, got {len(labels):,} in {sum(counts.values()):,} "
                "rows: name the column of the policy that chose the action"
            )
        absent = [label for label in labels if label not in counts]
        if set(counts) - set(labels) or (absent and not self.table.drop) or not counts:
            raise LogError(self.check() or (Fault("the log has no usable rows", "", 0),))
        return {label: counts[label] for label in labels if label in counts}

    def check(self) -> tuple[Fault, ...]:
        """Count the rows that break each rule, by logger, with one example each."""
        lines = sorted(
            self._lines(check_query(self.table)), key=lambda line: str(line["logger"])
        )
        if not lines:
            return (NO_ROWS,)
        faults = [
            self._fault(k, line)
            for k in range(len(rules(self.table)))
            for line in lines
            if line[f"rule_{k}"]
        ]
        present = {line["logger"] for line in lines}
        unknown = sorted(str(label) for label in present - set(self.table.labels))
        faults += [
            Fault("the logger has no rows", label, 0, advice=_similar(label, unknown))
            for label in self.table.labels
            if label not in present
        ]
        return tuple(faults)

    def _fault(self, number: int, line: Line) -> Fault:
        rule = rules(self.table)[number]
        logger = line["logger"]
        example = self._lines(example_query(self.table, rule, logger))[0]
        values = {role_text(self.table, role): _example(example, role) for role in rule.role}
        commas = any(re.fullmatch(r"[+-]?\d+,\d+", str(value)) for value in values.values())
        advice = COMMAS if commas else ADVICE
        return Fault(rule.text, logger or "", int(line[f"rule_{number}"]), values, advice)

    def without(self, logger: str) -> Self:
        """Exclude one logger from the rows and from the mixture."""
        return replace(self, table=without(self.table, logger))


@dataclass(frozen=True, eq=False)
class AggregateRows(QueryRows):
    """An open log whose moments come from SQL: no code of ours runs next to the rows."""

    @abstractmethod
    def _bucket(self, buckets: int) -> Expression:
        """Return a number below `buckets`, equal for all rows of a cluster."""

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Return the moments of each logger, centred well enough to keep their digits."""
        return self._answer(self.table, needs)[0]

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[list[dict[str, Moments]]]:
        """Return moments of each bucket and logger, for each of several needs."""
        table = replace(self.table, bucket=self._bucket(buckets))
        answer = self._answer(table, unite(needs))
        names = [{term: term for term in one.terms} for one in needs]
        return [[{i: m.select(n) for i, m in b.items()} for b in answer] for n in names]

    def _answer(self, table: RoleColumns, needs: Needs) -> list[dict[str, Moments]]:
        """Query around the pilot's centres, and again if they are too far off."""
        request = Request(table, needs, self.counts, self._pilot(needs))
        groups = self._ask(request)
        if any(group.bad for group in groups):
            raise LogError(self.check())
        for group in groups:
            refuse_infinite({str(group.logger): group.moments})
        if any(off_centre(request, moments) for moments in whole(groups)):
            groups = self._ask(replace(request, centres=None))
        return by_bucket(groups, self.counts)

    def _pilot(self, needs: Needs) -> dict[Term, float]:
        """Mean of each term with a scatter in the first rows, as its centre."""
        usable = replace(self.table, drop=True)
        request = Request(usable, Needs(means=needs.scattered), self.counts, {})
        groups = [group.moments for group in self._ask(request, PILOT_ROWS)]
        if not groups:
            return {}
        first = pooled(groups)
        return {t: first.mean(t) for t in first.terms if math.isfinite(first.mean(t))}

    def _ask(self, request: Request, limit: int | None = None) -> list[Group]:
        """Run the query and decode its answer."""
        lines = self._lines(moments_query(request, limit=limit))
        return [decode(request, line) for line in lines]


def _similar(label: str, unknown: Sequence[str]) -> str:
    """Suggest a label of the rows that may be a misspelling of this one."""
    close = nearest(label, unknown)
    return f"Did you mean {close!r} where `propensities` say {label!r}?" if close else ""


def _example(line: Line, role: str) -> object:
    """Return the numeric value, or the raw text if it is not numeric."""
    value, text = line.get(role), line.get(f"raw_{role}")
    if value is not None or text is None:
        return value
    return text if len(text) <= LONGEST_EXAMPLE else f"{text[:LONGEST_EXAMPLE]}..."
