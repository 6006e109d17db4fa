"""Scored: policies in Python and models append columns before the rows are read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from poolwise.rows.frames import Frame
from poolwise.rows.learn import learn
from poolwise.rows.score import keep_batches, scored_batches

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from poolwise.errors import Finding
    from poolwise.log.log import Log
    from poolwise.rows.reader import Files
    from poolwise.rows.roles import Extra, Roles
    from poolwise.rows.rules import RoleColumns


def fix_order(connection: duckdb.DuckDBPyConnection, log: Log, folder: Path) -> None:
    """Write the rows of a SELECT to a file: a second run may return other rows."""
    from poolwise.rows.sources import literal

    if any(part.kind == "select" for part in log.parts):
        copy = literal(str(folder / "log.parquet"))
        connection.execute(f"COPY (FROM log) TO {copy} (FORMAT parquet)")
        connection.execute(f"CREATE OR REPLACE TEMP VIEW log AS FROM read_parquet({copy})")


def append_scores(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    roles: Roles,
    log: Log,
    extra: Extra,
    source: Files | Frame | None,
) -> tuple[RoleColumns, Files | Frame, tuple[Finding, ...]]:
    """Append the probabilities of policies and the columns of models to the needed columns.

    Returns their roles, the rows as a table if they are few, else the file that they were
    written to, and findings about the models.
    """
    from poolwise.rows.sources import literal

    fill = None
    if extra.learners:
        fix_order(connection, log, folder)
        fill = learn(connection, roles, extra)
    names = list(dict.fromkeys([*roles.needed, *roles.context]))
    batches = scored_batches(connection, roles, names, fill, source)
    columns = [*roles.queried, *roles.scored, *extra.filled]
    path = folder / "scored.parquet"
    frame = keep_batches(batches, path, columns)
    if frame is None:
        file = f"read_parquet({literal(str(path))})"
        connection.execute(f"CREATE TEMP VIEW scored AS FROM {file}")
    else:
        connection.register("scored", frame)
    notes = tuple(note for fit in fill.fitted for note in fit.findings()) if fill else ()
    table = replace(roles.table, relation=exp.to_table("scored"))
    return table, ((str(path), None),) if frame is None else Frame(frame), notes
