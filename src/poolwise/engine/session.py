"""Session: somebody else's connection, lent for a few questions.

Queries go through the face that all drivers share (PEP 249; ADBC has it too).  Only
SELECTs are sent.  The connection is given back as it came: open, usable after an
error, without a transaction that was not there before, and with the one that was.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poolwise.engine.dialects import DRIVERS, name_of
from poolwise.errors import EngineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
