"""Base: engines open logs, and open logs answer questions about their rows.

`evaluation` only knows these protocols.  An engine holds no statistics.  `QueryRows` counts
and checks rows by queries, for every engine that has rows.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from poolwise.errors import NO_ROWS, EngineError, Fault, LogError, UsageError, nearest
from poolwise.rows.actions import (
    ActionSums,
    AuditSums,
    eligible_query,
    grid_query,
    rounded_loggers,
    sums_query,
)
from poolwise.rows.layout import cells_of, cells_query, counts_query
from poolwise.rows.rules import (
    RoleColumns,
    breaches,
    check_query,
    example_query,
    range_query,
    role_text,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from sqlglot import exp

    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.blocks import Payoff, Settled
    from poolwise.moments.moments import FloatArray
    from poolwise.moments.pool import Cell, Pool
    from poolwise.moments.terms import Needs, Term

    Bucketed = tuple[list[Pool], Pool]  # by bucket, for each of several needs; of all rows

# An engine, its name, or a SparkSession, whose type is not ours to import.
EngineLike = Any
Line = Mapping[str, Any]  # one line of a database's answer
MOST_LOGGERS = 2_000  # more distinct labels suggest an ID or timestamp column
CHANGED = Fault(
    "the log changed while it was read: its rows are no longer those that were counted",
    "",
    0,
    advice="Evaluate rows that no longer change, such as those before today.",
)
LONGEST_EXAMPLE = 60  # characters of a value that is not numeric
ADVICE = (
    "Correct the rows at their source, or drop them: pw.Log(..., on_fault='drop') "
    "(--on-fault drop)."
)
AT_SOURCE = "Correct the rows at their source: too many break this rule to drop them."
NOT_NAMED = (
    "Name every logger of the rows in `propensities` (--propensities), None for one without a "
    "column, or drop the rows of others: pw.Log(..., on_fault='drop') (--on-fault drop)."
)
ROUNDED = 1.01  # a probability below this was rounded
MOST_DROPPED = 0.05  # share of a logger's rows that may be dropped without another look
LOGARITHMS = "Are they logarithms? Pass log_probabilities=True to pw.Log (--log-probabilities)."
PERCENTAGES = "Are they percentages? Divide them by 100. "
DENSITIES = (
    "Are they densities of a continuous action, such as a price? Pass densities=True to "
    "pw.Log (--densities)."
)
FORMS = {  # of texts that are not numbers
    r"[+-]?\d+,\d+": "For a CSV file with decimal commas, pass reader_options="
    "{'decimal_separator': ','} to pw.Log (--reader-option decimal_separator=,).",
    r"[+-]?\d+([.,]\d+)?\s*%": "Percentages must be numbers: in place of the column, write "
    "replace(replace(column, '%', ''), ',', '.')::DOUBLE / 100.",
}


class Rows(Protocol):
    """The rows of one log with the probabilities of its policies."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Usable rows of each logger, in the order in which loggers are shown."""
        ...

    @property
    def all_counts(self) -> Mapping[str, int]:
        """Rows of each logger, unusable ones included."""
        ...

    @property
    def by_kernel(self) -> bool:
        """True if rows go through the kernel, which is fast for many terms."""
        ...

    @property
    def saved(self) -> bool:
        """True if only saved moments are left, without rows."""
        ...

    @property
    def shaped(self) -> bool:
        """True if the moments have slices and powers, for skewed intervals."""
        ...

    def check(self) -> tuple[Fault, ...]:
        """Count the rows that break each rule, by logger."""
        ...

    def moments(self, needs: Needs) -> Pool:
        """Return the moments of each logger; raise LogError if rows break a rule."""
        ...

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[Pool]:
        """Return moments of each bucket and logger, for each of several needs.

        Rows of a cluster share a bucket. Tails and histograms may be missing.
        """
        ...

    def without(self, logger: str) -> Rows:
        """Exclude one logger from the rows and from the mixture."""
        ...

    def action_sums(self) -> AuditSums | None:
        """Return sums of inverse propensities by logger and action; None if not audited."""
        ...


@runtime_checkable
class BlockRows(Protocol):
    """Rows whose payoffs can be sorted into histograms: those that go through the kernel."""

    def settle(
        self, payoffs: Sequence[Payoff], *, pooled: bool, watched: bool = False
    ) -> Settled:
        """Return the histograms of payoffs, by block.

        Blocks are random, and lie within the periods of the log.

        Args:
            payoffs: Values of each row.
            pooled: Whether rows are weighed against the mixture of their block, which requires
                all cross-propensities; otherwise against their own logger.
            watched: Whether other blocks will follow: a period, or all rows without periods,
                is one block then, and its rows are hashed.
        """
        ...


@runtime_checkable
class TalliedRows(Protocol):
    """Rows that one pass sums by bucket and as a whole: those that go through the kernel."""

    def bucketed_and_tallied(
        self, needs: Sequence[Needs], buckets: int, also: Needs = ...
    ) -> Bucketed:
        """Return moments of each bucket and logger, and other moments of each logger.

        Args:
            needs: Moments of each bucket, and tails and histograms of each logger.
            buckets: Number of buckets.
            also: Other moments of each logger, from the same pass.
        """
        ...


@runtime_checkable
class SingleRows(Protocol):
    """Rows that can be read one by one: those of the default engine."""

    def sample(self, terms: tuple[Term, ...], most: int) -> tuple[FloatArray, FloatArray]:
        """Values of terms in at most about `most` rows, and the share of each row.

        Each logger keeps its share of the log, however few of its rows are taken, and a
        small log is taken whole. The same log gives the same rows.

        Returns:
            Values, shape (terms, rows), and shares, shape (rows,), which sum to 1.
        """
        ...


class Engine(Protocol):
    """Opens logs."""

    def open(
        self, log: Log, targets: Mapping[str, PolicyLike]
    ) -> AbstractContextManager[Rows]: ...


@dataclass(frozen=True, eq=False)
class QueryRows(ABC):
    """An open log; counts and checks its rows by queries.

    Attributes:
        table: The expressions of the roles.
        excluded: Loggers that are left out.
        counted: Rows of each logger, where an earlier count gives them.
    """

    by_kernel = False
    saved = False
    shaped = False
    table: RoleColumns
    excluded: tuple[str, ...] = field(default=(), kw_only=True)
    counted: Mapping[str, int] | None = field(default=None, kw_only=True)

    @abstractmethod
    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        """Run a query and return each line of the answer as a mapping by column."""

    def _count(self, table: RoleColumns) -> dict[str | None, int]:
        lines = sorted(self._lines(counts_query(table)), key=lambda line: str(line["logger"]))
        return {line["logger"]: int(line["rows"]) for line in lines}

    @property
    def all_counts(self) -> dict[str, int]:
        counts = self._count(replace(self.table, drop=False))
        return {str(label): rows for label, rows in counts.items()}

    @cached_property
    def counts(self) -> dict[str, int]:
        if self.counted is not None:
            return dict(self.counted)
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

    @cached_property
    def cells(self) -> dict[Cell, int]:
        """Usable rows of each logger in each period, in the order of the periods."""
        cells = cells_of(self._lines(cells_query(self.table)), list(self.counts), self.table)
        by_logger = Counter[str]()
        for cell, count in cells.items():
            by_logger[cell.logger] += count
        if by_logger != self.counts:
            raise LogError(self.check() or (CHANGED,))
        return cells

    def check(self) -> tuple[Fault, ...]:
        """Count the rows that break each rule, by logger, with one example each."""
        lines = sorted(
            self._lines(check_query(self.table)), key=lambda line: str(line["logger"])
        )
        if not lines:
            return (NO_ROWS,)
        faults = [
            self._fault(k, line)
            for k in range(len(breaches(self.table)))
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
        breach = breaches(self.table)[number]
        logger = line["logger"]
        example = self._lines(example_query(self.table, breach, logger))[0]
        values = {role_text(self.table, role): _example(example, role) for role in breach.shown}
        advice = next((a for form, a in FORMS.items() if _any_match(form, values)), "")
        broken = int(line[f"rule_{number}"])
        many = broken > max(1, MOST_DROPPED * int(line["rows"]))
        if not advice and many and breach.scaled is not None:
            advice = self._scale(breach.scaled)
        elif breach.shown == ("logger",) and logger is not None:
            advice = NOT_NAMED
        return Fault(breach.text, logger or "", broken, values, advice or ADVICE)

    def _scale(self, value: exp.Expr) -> str:
        """Ask about the scale of probabilities, by what the numbers look like."""
        (line,) = self._lines(range_query(self.table, value))
        least, most = line["min"], line["max"]
        if self.table.scale.logs or self.table.scale.densities:
            return AT_SOURCE
        if least < 0 and most <= 0:
            return LOGARITHMS
        if least < 0 or not ROUNDED < most < math.inf:
            return AT_SOURCE
        return PERCENTAGES + DENSITIES if most <= 100 else DENSITIES

    def action_sums(self) -> AuditSums | None:
        """Return sums of inverse propensities by logger and action; None if not audited."""
        table = self.table
        if table.action is None:
            return None
        lists = {} if table.eligible is None else self._eligible_rows()
        actions = tuple(
            ActionSums(
                str(line["logger"]),
                str(line["action"]),
                int(line["rows"]),
                float(line["inverse"]),
                float(line["squares"]),
                float(line["spreads"]),
                int(line["on_grid"]),
                lists.get((line["logger"], line["action"]), 0) if table.eligible else None,
            )
            for line in self._lines(sums_query(table))
            if line["action"] is not None and line["logger"] in self.counts
        )
        grids: dict[str, set[int]] = {logger: set() for logger in rounded_loggers(actions)}
        for line in self._lines(grid_query(table, grids)) if grids else ():
            grids[line["logger"]].add(int(line["step"]))
        steps = {logger: tuple(sorted(values)) for logger, values in grids.items()}
        actions = tuple(sorted(actions, key=lambda s: (-s.rows, s.logger, s.action)))
        return AuditSums(self.counts, actions, steps)

    def _eligible_rows(self) -> dict[tuple[str, str], int]:
        """Return the rows of each logger that list each action as eligible."""
        try:
            lines = self._lines(eligible_query(self.table))
        except EngineError as reason:
            raise UsageError(
                f"`eligible` must name a column of lists of actions: {reason}"
            ) from reason
        return {(line["logger"], line["action"]): int(line["rows"]) for line in lines}

    def without(self, logger: str) -> Self:
        """Exclude one logger from the rows and from the mixture."""
        rest = {label: rows for label, rows in self.counts.items() if label != logger}
        return replace(
            self,
            table=without(self.table, logger),
            excluded=(*self.excluded, logger),
            # with `drop`, rows that are bad because of this logger become usable
            counted=None if self.table.drop else rest,
        )


def _similar(label: str, unknown: Sequence[str]) -> str:
    """Suggest a label of the rows that may be a misspelling of this one."""
    close = nearest(label, unknown)
    return f"Did you mean {close!r} where `propensities` say {label!r}?" if close else ""


def _any_match(form: str, values: Line) -> bool:
    return any(re.fullmatch(form, str(value)) for value in values.values())


def _example(line: Line, role: str) -> object:
    """Return the numeric value, or the raw text if it is not numeric."""
    value, text = line.get(role), line.get(f"raw_{role}")
    if value is not None or text is None:
        return value
    return text if len(text) <= LONGEST_EXAMPLE else f"{text[:LONGEST_EXAMPLE]}..."


def only_crossed(rows: Rows, log: Log) -> tuple[Rows, Log]:
    """Use the own propensity of an only logger as its cross-propensity: it is the mixture."""
    if log.crossed or log.mixture is not None or log.estimate_mixture is not False:
        return rows, log
    if not isinstance(rows, QueryRows) or len(rows.counts) > 1 or rows.table.propensity is None:
        return rows, log
    (label,) = rows.counts
    table = replace(rows.table, propensities={label: rows.table.propensity}, labels=(label,))
    crossed = replace(log, propensities={label: log.propensity})
    return replace(rows, table=table, counted=rows.counts), crossed
