"""Standalone: the one query for people who may not move their data.

It counts, centres and aggregates by itself, in any dialect that SQLGlot speaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from poolwise.engine.dialects import check_dialect, written
from poolwise.engine.question import question
from poolwise.engine.roles import assign
from poolwise.engine.rows import string
from poolwise.engine.sql import Request, moments_query
from poolwise.errors import UsageError
from poolwise.log import SELECT, Log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot.expressions import Expr as Expression

    from poolwise.policy import PolicyLike
    from poolwise.terms import Needs

MARK = "poolwise"  # column of the answer that says which question it answers
WRITES = (exp.DML, exp.DDL, exp.Drop, exp.Command, exp.Into, exp.Alter)


def standalone_query(
    log: Log, table: str, targets: Mapping[str, PolicyLike], needs: Needs, dialect: str
) -> str:
    """One query that counts, centres and aggregates by itself, in any dialect.

    Its last column says which question it answers, so that no answer is taken for another.
    """
    dialect = check_dialect(dialect)
    request = standalone_request(log, targets, needs, relation_of(table))
    mark = string(question(log, targets).mark(needs)).as_(MARK, quoted=True)
    return written(moments_query(request).select(mark), dialect, pretty=True)


def standalone_request(
    log: Log, targets: Mapping[str, PolicyLike], needs: Needs, relation: Expression
) -> Request:
    """What such a query asks: every name is taken on trust."""
    roles = assign(log, targets, None, relation)
    if roles.scored:
        raise UsageError("policies in Python cannot be written as SQL: score them first")
    return Request(roles.table, needs)


def relation_of(table: str, dialect: str = "duckdb") -> Expression:
    """What FROM reads: the name of a table, or one SELECT that only reads."""
    from sqlglot import parse
    from sqlglot.errors import SqlglotError

    try:
        if not SELECT.match(table):
            return exp.to_table(table, dialect=dialect)
        statements = parse(table, dialect=dialect)
    except (SqlglotError, AttributeError) as reason:
        raise UsageError(f"{table!r} is neither a table nor a SELECT") from reason
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise UsageError("a source in SQL must be one SELECT, and nothing else")
    if statements[0].find(*WRITES) is not None:
        raise UsageError("a source in SQL must only read: this one also writes")
    return exp.Subquery(this=statements[0], alias=exp.to_identifier("source"))
