"""Standalone: the one query for people who may not move their data.

It counts, centres and aggregates by itself, in any dialect that SQLGlot speaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from poolwise.engine.roles import assign
from poolwise.engine.sql import Request, moments_query
from poolwise.errors import UsageError
from poolwise.log import SELECT, Log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot.expressions import Expr as Expression

    from poolwise.policy import PolicyLike
    from poolwise.terms import Needs


def standalone_query(
    log: Log, table: str, targets: Mapping[str, PolicyLike], needs: Needs, dialect: str
) -> str:
    """One query that counts, centres and aggregates by itself, in any dialect."""
    relation = _relation(table)
    roles = assign(log, targets, None, relation)
    if roles.scored:
        raise UsageError("policies in Python cannot be written as SQL: score them first")
    try:
        query = moments_query(Request(roles.table, needs))
        return query.sql(dialect=dialect, pretty=True)
    except ValueError as reason:
        raise UsageError(f"{reason}") from reason


def _relation(table: str) -> Expression:
    from sqlglot import parse
    from sqlglot.errors import ParseError

    try:
        if not SELECT.match(table):
            return exp.to_table(table, dialect="duckdb")
        statements = parse(table, dialect="duckdb")
    except (ParseError, AttributeError) as reason:
        raise UsageError(f"{table!r} is neither a table nor a SELECT") from reason
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise UsageError("a source in SQL must be one SELECT, and nothing else")
    return exp.Subquery(this=statements[0], alias=exp.to_identifier("source"))
