"""Check a log or print its query, without estimating anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolwise.errors import LogError, UsageError
from poolwise.estimators import BY_NAME
from poolwise.evaluation.read import Request, named_targets, open_rows, served
from poolwise.intervals.guarantees import guarantee_needs
from poolwise.moments.terms import unite

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolwise.engines.base import EngineLike
    from poolwise.errors import Fault
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.terms import Needs


@dataclass(frozen=True)
class CheckReport:
    """Result of `check`.

    Attributes:
        faults: The rules that rows break, by logger.
        rows: Rows of each logger, bad ones included.
    """

    faults: tuple[Fault, ...]
    rows: Mapping[str, int]

    def to_json(self) -> str:
        """Return the faults and the rows as JSON."""
        faults = [
            {**vars(f), "example": {k: str(v) for k, v in f.example.items()}}
            for f in self.faults
        ]
        return json.dumps({"faults": faults, "rows": dict(self.rows)}, indent=2)

    def __str__(self) -> str:
        if self.faults:
            return str(LogError(self.faults))
        rows = ", ".join(f"{i!r} {n:,}" for i, n in self.rows.items())
        return f"no faults in {sum(self.rows.values()):,} rows ({rows})"


def check(
    log: Log, targets: Mapping[str, PolicyLike] | None = None, *, engine: EngineLike = None
) -> CheckReport:
    """Count the rows that break each rule, by logger, without estimating anything."""
    named = named_targets(targets) if targets else {}
    with open_rows(Request(log, named), engine) as rows:
        return CheckReport(rows.check(), rows.all_counts)


def query_text(log: Log, table: str, targets: Mapping[str, PolicyLike], dialect: str) -> str:
    """Return the query whose result an evaluation of a table can use instead of the rows."""
    from poolwise.engines.files import standalone_query

    if not targets:
        raise UsageError(
            "at least one --target is required, e.g. --target candidate=p_candidate"
        )
    return standalone_query(log, table, targets, needs_of(log, targets), dialect)


def needs_of(log: Log, targets: Iterable[str], also: Sequence[Estimator] = ()) -> Needs:
    """Return what evaluations with the default and some other estimators need."""
    loggers = tuple(map(str, log.propensities or ()))
    estimators = (*(make() for make in BY_NAME.values()), *also)
    usable = served(Request(log, {}, estimators, strict=False), loggers)
    bounded = guarantee_needs(crossed=log.crossed) | guarantee_needs(crossed=False)
    needs = usable.needs | bounded
    return unite(needs.bind(name) for name in targets)
