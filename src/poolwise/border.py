"""The border: look at a log, or at its query, without estimating anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from poolwise.engine.duckdb import DuckDB
from poolwise.errors import LogError, UsageError
from poolwise.estimators import BY_NAME
from poolwise.pipeline import declare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.engine.base import Engine
    from poolwise.errors import Fault
    from poolwise.log import Log
    from poolwise.policy import PolicyLike


@dataclass(frozen=True)
class CheckReport:
    """What `check` found.

    Attributes:
        faults: Every rule that rows break, by logger.
        rows: Rows of each logger, bad ones included.
    """

    faults: tuple[Fault, ...]
    rows: Mapping[str, int]

    def to_json(self) -> str:
        """The faults and the rows, for programs."""
        faults = [
            {**vars(f), "example": {k: str(v) for k, v in f.example.items()}}
            for f in self.faults
        ]
        return json.dumps({"faults": faults, "rows": dict(self.rows)}, indent=2)

    def __str__(self) -> str:
        if self.faults:
            return str(LogError(self.faults))
        found = ", ".join(f"{i!r} {n:,}" for i, n in self.rows.items())
        return f"no faults in {sum(self.rows.values()):,} rows ({found})"


def check(
    log: Log, targets: Mapping[str, PolicyLike] | None = None, *, engine: Engine | None = None
) -> CheckReport:
    """Count the rows that break each rule, by logger, without estimating anything."""
    with (engine or DuckDB()).open(log, targets or {}) as rows:
        return CheckReport(rows.check(), rows.found)


def query_text(log: Log, table: str, targets: Mapping[str, PolicyLike], dialect: str) -> str:
    """The one query whose result is all that an evaluation of a table needs."""
    from poolwise.engine.standalone import standalone_query

    if not targets:
        raise UsageError("name one target at least: --target candidate=p_candidate")
    loggers = tuple(map(str, log.propensities or ()))
    plan = declare(
        [make() for make in BY_NAME.values()], loggers, crossed=log.crossed, strict=False
    )
    needs = reduce(or_, (plan.needs.bind(name) for name in targets))
    return standalone_query(log, table, targets, needs, dialect)
