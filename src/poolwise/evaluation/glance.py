"""Glance: a log as a notebook shows it, before anything is estimated.

Columns with their roles, the rows of each logger, and the first faults.  Showing must
never fail: what cannot be read is told in words.
"""

from __future__ import annotations

import html
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from poolwise.engines.duckdb import DuckDB
from poolwise.errors import PoolwiseError
from poolwise.log.policies import as_policy
from poolwise.log.policy import expression_of
from poolwise.report.tables import Grid
from poolwise.rows.roles import PART_LOGGER
from poolwise.rows.sources import create_view
from poolwise.text import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from poolwise.log.log import Log

COLUMNS, LOGGERS, FAULTS = 40, 20, 5  # lines of each table; more are counted
LONGEST = 60  # letters of an expression
Schema = dict[str, str]  # type of each column


def glance(log: Log) -> str:
    """A log as HTML; everything that comes from it is escaped."""
    body: list[str] = []
    try:
        body += _elsewhere(log) if _is_elsewhere(log) else _read(log)
    except PoolwiseError as reason:
        body.append(_text(f"This log cannot be read: {reason}"))
    except Exception as reason:  # noqa: BLE001 - a notebook shows something in any case
        body.append(_text(f"This log cannot be shown: {type(reason).__name__}: {reason}"))
    return f"<div>{''.join(body)}</div>"


def _is_elsewhere(log: Log) -> bool:
    """Whether looking would ask a database or a cluster, which may cost time and money."""
    return log.table is not None or type(log.source).__module__.startswith("pyspark.")


def _elsewhere(log: Log) -> Iterator[str]:
    yield _columns(log, {name: "" for names in roles(log).values() for name in names}).html()
    yield _text("The rows are in a database: poolwise.check(log) looks at them.")


def _read(log: Log) -> Iterator[str]:
    """The tables one by one: what can be read is shown, even if the next one fails."""
    with (
        tempfile.TemporaryDirectory(prefix="poolwise-") as folder,
        duckdb.connect(config={"temp_directory": folder}) as connection,
    ):
        create_view(connection, log, Path(folder))
        lines = connection.execute("DESCRIBE log").fetchall()
    schema = {str(line[0]): str(line[1]) for line in lines if line[0] != PART_LOGGER}
    yield _columns(log, schema).html()
    if _in_python(log, schema):
        yield _text("Policies in Python are scored by poolwise.check(log), not here.")
        return
    with DuckDB().open(log, {}) as rows:
        found, faults = rows.found, rows.check()
    yield _loggers(found).html()
    yield _faults(list(map(str, faults)))


def roles(log: Log) -> dict[str, list[str]]:
    """What columns and expressions are used for, by role.

    >>> from poolwise.log import Log
    >>> roles(Log("a.csv", reward="click", propensity="p", cluster="user"))
    {'reward': ['click'], 'propensity': ['p'], 'cluster': ['user']}
    """
    given: Mapping[str, object] = {
        "reward": log.reward,
        "logger": log.logger,
        "propensity": log.propensity,
        **{f"propensity of {k}": v for k, v in (log.propensities or {}).items()},
        "mixture": log.mixture,
        "action": log.action,
        "cluster": log.cluster,
    }
    found = {role: [str(value)] for role, value in given.items() if value is not None}
    return found | ({"context": [str(name) for name in log.context]} if log.context else {})


def _columns(log: Log, schema: Schema) -> Grid:
    """Every column with its type and role; then roles that are no column but a rule."""
    used: dict[str, list[str]] = {}
    spelled = {name.lower(): name for name in schema}
    for role, names in roles(log).items():
        for name in names:
            used.setdefault(spelled.get(name.lower(), name), []).append(role)
    rows = [
        [_cut(name), schema.get(name, "(not a column)"), ", ".join(used.get(name, ()))]
        for name in dict.fromkeys([*used, *schema])
    ]
    return Grid("Columns", ["column", "type", "role"], _first(rows, COLUMNS))


def _in_python(log: Log, schema: Schema) -> bool:
    given = [log.propensity, *(log.propensities or {}).values()]
    policies = [as_policy(value, tuple(schema)) for value in given if value is not None]
    return any(expression_of(policy) is None for policy in policies)


def _loggers(found: Mapping[str, int]) -> Grid:
    rows = [[label, count_text(count)] for label, count in found.items()]
    total = ["(all)", count_text(sum(found.values()))]
    return Grid("Loggers", ["logger", "rows"], [*_first(rows, LOGGERS), total])


def _faults(faults: Sequence[str]) -> str:
    if not faults:
        return _text("No faults.")
    more = len(faults) - FAULTS
    shown = [*faults[:FAULTS], *([f"… and {more} more"] if more > 0 else [])]
    return f"<ul>{''.join(f'<li>{html.escape(text)}</li>' for text in shown)}</ul>"


def _first(rows: Iterable[list[str]], most: int) -> list[list[str]]:
    every = list(rows)
    left = len(every) - most
    if left <= 0:
        return every
    return [*every[:most], [f"… and {left} more", *[""] * (len(every[0]) - 1)]]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _text(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"
