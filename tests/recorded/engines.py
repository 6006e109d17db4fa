"""The engines whose values are recorded: their construction, and the logs they read.

Names that may change are used only here: the options of DuckDB, and the helpers of other
tests.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import poolwise as pw
from tests.recorded.logs import EVERYWHERE, LOGS, Case
from tests.recorded.verbs import Questions, Values, answers
from tests.support.postgres import load, server

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where the values of an engine are found: batches run the kernel, as DuckDB does.
RECORDED = {"duckdb": "duckdb", "batches": "duckdb", "postgres": "postgres"}


def pairs() -> list[tuple[str, str]]:
    """Every log with every engine that reads it."""
    embedded = [(name, engine) for name in LOGS for engine in ("duckdb", "batches")]
    return [*embedded, *((name, "postgres") for name in EVERYWHERE)]


def values_of(name: str, engine: str) -> Values:
    """Ask an engine about a log."""
    case = LOGS[name]()
    if engine == "duckdb":
        return answers(Questions(case, pw.DuckDB()).all(), case.asked)
    if engine == "batches":
        return answers(Questions(case, pw.DuckDB(batch_rows=100)).main(), case.asked)
    with in_postgres(case) as questions:
        return answers(questions.few())


@contextmanager
def in_postgres(case: Case) -> Iterator[Questions]:
    """A case whose rows are in a table of PostgreSQL."""
    with server().connect() as connection:
        load(connection, case.log.source, "recorded")
        log = replace(case.log, source=None, table="recorded", connection=connection)
        yield Questions(replace(case, log=log))
