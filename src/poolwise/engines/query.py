"""Query: rows that are counted and checked by queries, in any database."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from poolwise.errors import NO_ROWS, Fault, LogError, UsageError, nearest
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
    from collections.abc import Sequence

    from sqlglot import exp

Line = Mapping[str, Any]  # one line of a database's answer
MOST_LOGGERS = 2_000  # more distinct labels suggest an ID or timestamp column
CHANGED = Fault(
    "the log changed while it was read: its rows are no longer those that were counted",
    "",
    0,
    advice="Evaluate rows that no longer change, such as those before today.",
)
LONGEST_EXAMPLE = 60  # characters of a value that is not numeric
ADVICE = "Correct the rows at their source, or drop them: on_fault='drop' (--on-fault drop)."
COMMAS = (
    "For a CSV file with decimal commas, pass reader_options={'decimal_separator': ','} "
    "(--reader-option decimal_separator=,)."
)


@dataclass(frozen=True, eq=False)
class QueryRows(ABC):
    """An open log; counts and checks its rows by queries."""

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
