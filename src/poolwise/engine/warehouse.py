"""Warehouse: rows that stay in their database, read over a connection that is not ours.

The same query that every engine runs goes through the user's own connection, in the SQL
that it speaks; what comes back is one line of sums per logger.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from poolwise.engine.answer import Group, decode
from poolwise.engine.dialects import check_dialect, row_bucket, unit_bucket, written
from poolwise.engine.query import CHANGED, QueryRows
from poolwise.engine.roles import assign
from poolwise.engine.session import Session, dialect_of
from poolwise.engine.split import joined, split
from poolwise.engine.sql import Request, moments_query
from poolwise.engine.standalone import relation_of
from poolwise.errors import LogError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.engine.rows import Table
    from poolwise.log import Log
    from poolwise.policy import PolicyLike

MOST_SUMS = 700  # of one query: with its centres, PostgreSQL's 1,664 columns are not reached

# what PostgreSQL reads as a double
NUMBER = r"^\s*[-+]?((\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[iI][nN][fF](inity)?|[nN][aA][nN])\s*$"


@dataclass(frozen=True)
class Warehouse:
    """Evaluates a table behind a DB-API or ADBC connection, where the table is.

    The log says both: ``Log(table="logs", connection=connection, ...)``.  The connection is
    neither closed nor left in a transaction.

    Attributes:
        dialect: The SQL that it speaks, such as "postgres" or "bigquery"; empty means that
            the driver's name tells.
    """

    dialect: str = ""

    @contextmanager
    def open(self, log: Log, targets: Mapping[str, PolicyLike]) -> Iterator[WarehouseRows]:
        """Open a log with its targets; names are looked up in the table."""
        if log.table is None or log.connection is None:
            raise UsageError(
                "a warehouse is read with Log(table=..., connection=...): the name of a table "
                "or a SELECT, and a DB-API or ADBC connection that can read it"
            )
        given = self.dialect
        dialect = check_dialect(given) if given else dialect_of(log.connection)
        session = Session(log.connection, dialect)
        relation = relation_of(log.table, dialect)
        with session.lent():
            columns = _columns(session, relation)
            roles = assign(log, targets, list(columns), relation)
            if roles.scored:
                found = ", ".join(roles.scored)
                raise UsageError(
                    f"policies in Python cannot run in {session.name} ({found}): write their "
                    "probabilities as columns of the table first"
                )
            table = _readable(spelled(roles.table, columns), columns, dialect)
            yield WarehouseRows(table, session)


def _columns(session: Session, relation: Expression) -> dict[str, str]:
    """The columns and what is known of their kind, from a query that returns no line."""
    query = exp.select("*").from_(relation.copy()).limit(0)
    return session.columns(query.sql(dialect=session.dialect))


def spelled(table: Table, columns: Collection[str]) -> Table:
    """Every column as the database spells it: quoted names have a case there."""
    by_lower = {name.lower(): name for name in columns}

    def name(node: Expression) -> Expression:
        if isinstance(node, exp.Column) and len(node.parts) == 1 and node.name not in columns:
            return exp.column(by_lower.get(node.name.lower(), node.name), quoted=True)
        return node

    return _changed(table, lambda value: value.copy().transform(name), {"relation", "bucket"})


def _readable(table: Table, kinds: Mapping[str, str], dialect: str) -> Table:
    """Flags as 0 and 1, and words as null where numbers belong, as DuckDB reads them."""

    def as_number(value: Expression) -> Expression:
        kind = kinds.get(value.name, "") if isinstance(value, exp.Column) else ""
        if kind == "flag" and dialect != "duckdb":
            return exp.cast(value.copy(), "int")
        if kind == "text" and dialect == "postgres":  # it has no TRY_CAST
            fits = exp.RegexpLike(this=value.copy(), expression=exp.Literal.string(NUMBER))
            return exp.Case().when(fits, value.copy())
        return value

    return _changed(table, as_number, {"relation", "bucket", "logger", "cluster"})


def _changed(
    table: Table, change: Callable[[Expression], Expression], kept: Collection[str]
) -> Table:
    """A table whose expressions are changed, but for some."""

    def of(value: Any) -> Any:  # noqa: ANN401 - any field of a table
        if isinstance(value, Mapping):
            return {key: of(part) for key, part in value.items()}
        return change(value) if isinstance(value, exp.Expr) else value

    return replace(
        table,
        **{f.name: of(getattr(table, f.name)) for f in fields(table) if f.name not in kept},
    )


@dataclass(frozen=True, eq=False)
class WarehouseRows(QueryRows):
    """An open log; answers what `engine.base.Rows` promises.

    Attributes:
        session: The connection.
    """

    session: Session

    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        names, lines = self.session.run(written(query, self.session.dialect))
        return [dict(zip(names, line, strict=True)) for line in lines]

    def _bucket(self, buckets: int) -> Expression:
        dialect = self.session.dialect
        if self.table.cluster is None:
            return row_bucket(buckets, dialect)
        return unit_bucket(self.table.cluster, buckets, dialect)

    def _ask(self, request: Request, limit: int | None = None) -> list[Group]:
        """Run the query of the moments, or as many as its width asks for."""
        parts = split(request.needs, MOST_SUMS)
        numbered = request.table.bucket is not None and request.table.cluster is None
        if numbered and len(parts) > 1:
            raise UsageError(
                f"{len(request.table.targets)} targets are too many at once for buckets of "
                "single rows in a database: name a `cluster` column, such as the row's own "
                "identifier, or evaluate fewer targets at a time"
            )
        found: dict[tuple[str | None, int], list[Group]] = {}
        for needs in parts:
            asked = replace(request, needs=needs)
            for line in self._lines(moments_query(asked, limit=limit)):
                group = decode(asked, line)
                found.setdefault((group.logger, group.bucket), []).append(group)
        groups = list(found.values())
        if limit is not None:  # the first rows of each query may be others: they only centre
            groups = [group for group in groups if len(group) == len(parts)]
        elif all(_same_rows(group, len(parts)) for group in groups):
            self._unchanged(groups)
        else:
            raise LogError([CHANGED])
        if len(parts) == 1:
            return [group for (group,) in groups]
        return [joined(request.needs, group) for group in groups]

    def _unchanged(self, groups: Sequence[Sequence[Group]]) -> None:
        """Refuse a table whose rows are no longer those that fixed the mixture."""
        rows: dict[str | None, int] = {}
        for first, *_ in groups:
            rows[first.logger] = rows.get(first.logger, 0) + first.moments.count
        if rows != self.counts:
            raise LogError([CHANGED])


def _same_rows(parts: Sequence[Group], queries: int) -> bool:
    return len(parts) == queries and len({p.moments.count for p in parts}) == 1
