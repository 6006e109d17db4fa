"""Warehouse: the aggregate query over a connection that the caller owns.

The query runs where the rows are; only its answer, one line per logger, comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from poolwise.engines.answer import CHANGED, AggregateRows, Group, decode
from poolwise.engines.dialects import (
    DRIVERS,
    check_dialect,
    name_of,
    row_bucket,
    unit_bucket,
    written,
)
from poolwise.engines.printed import relation_of
from poolwise.engines.split import joined, split
from poolwise.engines.sql import Request, moments_query
from poolwise.errors import EngineError, LogError, UsageError
from poolwise.rows.roles import assign

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.rows.rules import RoleColumns

Connection = Any  # drivers share methods, but no type
SNAPSHOT = "ISOLATION LEVEL REPEATABLE READ READ ONLY"
SAVEPOINT = "poolwise"
# kinds of columns that are no numbers: PostgreSQL says numbers, others and Arrow words
KINDS = {
    **dict.fromkeys(("25", "1042", "1043", "string", "large_string"), "text"),
    **dict.fromkeys(("16", "bool", "boolean"), "flag"),
}


def dialect_of(connection: Connection) -> str:
    """The dialect that a driver's connection speaks."""
    wrapped = getattr(connection, "driver_connection", None)  # a pool lends a wrapper
    modules = [
        kind.__module__
        for held in (connection, wrapped)
        if held is not None
        for kind in type(held).__mro__
    ]
    with suppress(Exception):  # ADBC's connections all have the same type
        modules.append("adbc_driver_" + str(connection.adbc_get_info()["vendor_name"]).lower())
    for module in modules:
        for driver, dialect in DRIVERS.items():
            if module == driver or module.startswith(f"{driver}."):
                return dialect
    raise UsageError(
        f"cannot tell which SQL a connection of type {_type_name(connection)} speaks: say "
        "engine=pw.Warehouse(dialect='postgres'), or whichever it is"
    )


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__name__}"


@dataclass(frozen=True, eq=False)
class Session:
    """A connection and the SQL that it speaks."""

    connection: Connection
    dialect: str

    def __post_init__(self) -> None:
        if not callable(getattr(self.connection, "cursor", None)):
            raise UsageError(
                f"a connection of type {_type_name(self.connection)} has no cursor(): give a "
                "DB-API or ADBC connection (of an SQLAlchemy engine, engine.raw_connection())"
            )

    @property
    def name(self) -> str:
        return name_of(self.dialect)

    def run(self, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names and the lines of an answer."""
        try:
            with self._cursor() as cursor:
                cursor.execute(text)
                names = [str(column[0]) for column in cursor.description]
                lines = [_values(line) for line in cursor.fetchall()]
        except Exception as reason:  # drivers' errors have no common type
            raise EngineError(self.name, text, RuntimeError(_first_line(reason))) from reason
        return names, lines

    def columns(self, text: str) -> dict[str, str]:
        """The columns of an answer, and whether they are known to be "text" or a "flag"."""
        try:
            with self._cursor() as cursor:
                cursor.execute(text)
                found = cursor.description
                return {str(c[0]): KINDS.get(str(c[1]).lower(), "") for c in found}
        except Exception as reason:  # as above
            raise EngineError(self.name, text, RuntimeError(_first_line(reason))) from reason

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Leave the connection as it was, whatever happens in between."""
        undo = self._begin()
        try:
            yield
        except BaseException:
            undo = undo or ("rollback()",)
            raise
        finally:
            for statement in undo:
                with suppress(Exception):  # nothing is left to undo where it broke
                    self._say(statement)

    def _begin(self) -> tuple[str, ...]:
        """Start what must be undone; in PostgreSQL, all queries see the same rows."""
        if self.dialect != "postgres":
            return ()
        busy = _in_transaction(self.connection)
        if busy is False:
            free = bool(getattr(self.connection, "autocommit", False))
            end = "ROLLBACK" if free else "rollback()"
            try:
                self._say(f"BEGIN {SNAPSHOT}" if free else f"SET TRANSACTION {SNAPSHOT}")
            except Exception:  # noqa: BLE001 - a relative of PostgreSQL that knows no snapshots
                with suppress(Exception):
                    self._say(end)
            return (end,)
        try:
            self._say(f"SAVEPOINT {SAVEPOINT}")
        except Exception:  # noqa: BLE001 - not in a transaction, or one that has failed
            return ()
        return (f"ROLLBACK TO SAVEPOINT {SAVEPOINT}", f"RELEASE SAVEPOINT {SAVEPOINT}")

    def _say(self, statement: str) -> None:
        if statement == "rollback()":
            self.connection.rollback()
            return
        with self._cursor() as cursor:
            cursor.execute(statement)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """A cursor; a DuckDB connection is its own, and a second one sees no temporary view."""
        if self.dialect == "duckdb":
            yield self.connection
            return
        cursor = self.connection.cursor()
        try:
            yield cursor
        finally:
            with suppress(Exception):  # of a connection that broke meanwhile
                cursor.close()


def _in_transaction(connection: Connection) -> bool | None:
    """Whether a transaction is open; None where the driver does not say."""
    info = getattr(connection, "info", None)
    status = getattr(info, "transaction_status", None)  # psycopg and psycopg2
    return None if status is None else int(status) != 0


def _values(line: Any) -> tuple[Any, ...]:  # noqa: ANN401 - drivers' rows share no type
    return tuple(line.values()) if hasattr(line, "values") else tuple(line)


def _first_line(reason: Exception) -> str:
    text = str(reason).strip() or type(reason).__name__
    return text.splitlines()[0].strip()


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


def spelled(table: RoleColumns, columns: Collection[str]) -> RoleColumns:
    """Every column as the database spells it: quoted names have a case there."""
    by_lower = {name.lower(): name for name in columns}

    def name(node: Expression) -> Expression:
        if isinstance(node, exp.Column) and len(node.parts) == 1 and node.name not in columns:
            return exp.column(by_lower.get(node.name.lower(), node.name), quoted=True)
        return node

    return _changed(table, lambda value: value.copy().transform(name), {"relation", "bucket"})


def _readable(table: RoleColumns, kinds: Mapping[str, str], dialect: str) -> RoleColumns:
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
    table: RoleColumns, change: Callable[[Expression], Expression], kept: Collection[str]
) -> RoleColumns:
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
class WarehouseRows(AggregateRows):
    """An open log; answers what `engines.base.Rows` promises.

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
