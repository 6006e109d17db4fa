"""Warehouse: the aggregate query over a DB-API or ADBC connection of the caller.

The query runs in the database; only its answer, one line per logger, is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp, parse, parse_one
from sqlglot.errors import SqlglotError

from poolwise.engines.answer import WarehouseRows
from poolwise.engines.base import Engine, lacking, refuse_extra
from poolwise.engines.sql import write_sql
from poolwise.errors import EngineError, UsageError
from poolwise.log.log import SELECT
from poolwise.log.problems import UTC
from poolwise.log.scalar import refuse_different
from poolwise.rows.entries import NoEntriesError
from poolwise.rows.learners import NO_EXTRA
from poolwise.rows.mixture import learner_extra
from poolwise.rows.roles import assign
from poolwise.rows.rules import LABELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.rows.learners import Extra
    from poolwise.rows.rules import RoleColumns

DatabaseConnection = Any  # drivers share methods, but no type
TITLES: Mapping[str, str] = {
    "postgres": "PostgreSQL",
    "bigquery": "BigQuery",
    "snowflake": "Snowflake",
    "trino": "Trino",
    "clickhouse": "ClickHouse",
    "databricks": "Databricks",
    "duckdb": "DuckDB",
    "spark": "Spark",
    "redshift": "Redshift",
}
# Dialect by the module of a driver's connection; the first match counts.
DRIVERS: Mapping[str, str] = {
    "psycopg": "postgres",
    "psycopg2": "postgres",
    "psycopg_pool": "postgres",
    "pg8000": "postgres",
    "adbc_driver_postgresql": "postgres",
    "google.cloud.bigquery": "bigquery",
    "adbc_driver_bigquery": "bigquery",
    "snowflake": "snowflake",
    "adbc_driver_snowflake": "snowflake",
    "trino": "trino",
    "clickhouse_driver": "clickhouse",
    "clickhouse_connect": "clickhouse",
    "databricks": "databricks",
    "redshift_connector": "redshift",
    "duckdb": "duckdb",
    "_duckdb": "duckdb",
}
HASHES: Mapping[str, str] = {
    "duckdb": "hash(unit) % buckets",
    "postgres": "CAST(CAST('x' || LPAD(SUBSTR(MD5(unit), 1, 7), 8, '0') AS BIT(32)) AS INT)"
    " % buckets",
    "redshift": "STRTOL(SUBSTRING(MD5(unit), 1, 7), 16) % buckets",
    "bigquery": "ABS(MOD(FARM_FINGERPRINT(unit), buckets))",
    "snowflake": "ABS(MOD(HASH(unit), buckets))",
    "trino": "ABS(MOD(FROM_BIG_ENDIAN_64(XXHASH64(TO_UTF8(unit))), buckets))",
    "clickhouse": "cityHash64(unit) % buckets",
    "databricks": "PMOD(XXHASH64(unit), buckets)",
    "spark": "PMOD(XXHASH64(unit), buckets)",
}
# Statements that return and set the time zone of a session, separated by a semicolon.
SETTING = "SELECT current_setting('TimeZone'); SET TimeZone = '{}'"
CURRENT = "SELECT current_timezone(); SET TIME ZONE '{}'"
ZONES: Mapping[str, str] = {
    **dict.fromkeys(("duckdb", "postgres", "redshift"), SETTING),
    **dict.fromkeys(("databricks", "spark", "trino"), CURRENT),
    "clickhouse": "SELECT timezone(); SET session_timezone = '{}'",
    "snowflake": "SHOW PARAMETERS LIKE 'TIMEZONE'; ALTER SESSION SET TIMEZONE = '{}'",
}
# Column types that need a conversion: PostgreSQL returns type numbers, Arrow words.
DIALECTS = {
    **dict.fromkeys(("25", "1042", "1043", "string", "large_string"), "text"),
    **dict.fromkeys(("16", "bool", "boolean"), "flag"),
}
# Types that hold distributions, by PostgreSQL's numbers.
NESTED = {
    **dict.fromkeys(("25", "1042", "1043"), "TEXT"),
    "114": "JSON",
    "3802": "JSONB",
    **dict.fromkeys(("1021", "1022", "1231"), "DOUBLE[]"),
}
TEXTS = LABELS | {"relation", "action", "eligible"}  # fields of a table that are not numbers
LENIENT = {"sqlite", "mysql", "singlestore"}  # CAST('a word' AS a number) is 0 there
# Text that PostgreSQL can cast to a double.
NUMBER_PATTERN = (
    r"^\s*[-+]?((\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[iI][nN][fF](inity)?|[nN][aA][nN])\s*$"
)
WRITES = (exp.DML, exp.DDL, exp.Drop, exp.Command, exp.Into, exp.Alter)
BATCH_ROWS = 65_536  # that are fetched at once
READ_ONLY = "READ ONLY"
SNAPSHOT = f"ISOLATION LEVEL REPEATABLE READ {READ_ONLY}"
SAVEPOINT = "poolwise"
ROLLBACK = "rollback()"  # the connection's method; any other text is a statement


def check_dialect(dialect: str) -> str:
    """Return a dialect of SQLGlot in lower case; reject others and lenient databases."""
    from sqlglot.dialects.dialect import Dialect

    listed = ", ".join(TITLES)
    if not dialect or Dialect.get(dialect.lower()) is None:
        raise UsageError(f"dialect must be one of SQLGlot's ({listed}, ...), got {dialect!r}")
    if dialect.lower() in LENIENT:
        raise UsageError(
            f"dialect {dialect!r} is not supported, because it casts text to the number 0 and "
            "so hides bad rows: read the table with DuckDB, which can attach it, or copy it to "
            f"one of {listed}"
        )
    return dialect.lower()


def find_dialect(connection: DatabaseConnection) -> str:
    """Return the dialect of a driver's connection, by the name of its module."""
    wrapped = getattr(connection, "driver_connection", None)  # of a pool's wrapper
    modules = [
        kind.__module__
        for one in (connection, wrapped)
        if one is not None
        for kind in type(one).__mro__
    ]
    with suppress(Exception):  # all ADBC connections have the same type
        modules.append("adbc_driver_" + str(connection.adbc_get_info()["vendor_name"]).lower())
    for module in modules:
        for driver, dialect in DRIVERS.items():
            if module == driver or module.startswith(f"{driver}."):
                return dialect
    raise UsageError(
        f"the SQL dialect of a connection of type {_type_name(connection)} is unknown: pass "
        "it, for example engine=pw.Warehouse(dialect='postgres')"
    )


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__name__}"


def parse_relation(table: str, dialect: str = "duckdb") -> Expression:
    """Return the FROM clause for the name of a table, or for one SELECT that only reads."""
    try:
        if not SELECT.match(table):
            return exp.to_table(table, dialect=dialect)
        statements = parse(table, dialect=dialect)
    except (SqlglotError, AttributeError) as reason:
        raise UsageError(f"table must be a name or a SELECT, got {table!r}") from reason
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise UsageError("a source in SQL must be exactly one SELECT")
    if statements[0].find(*WRITES) is not None:
        raise UsageError("a source in SQL must only read, but this SELECT also writes")
    return exp.Subquery(this=statements[0], alias=exp.to_identifier("source"))


def hash_bucket(cluster: Expression, buckets: int, dialect: str) -> Expression:
    """Return a number below `buckets`, equal for all rows of a cluster and on every day."""
    if dialect not in HASHES:
        raise UsageError(
            f"clusters need a hash function, and none is defined for "
            f"{TITLES.get(dialect, dialect)}: pass interval='student' if rows are independent, "
            "or read the log with DuckDB"
        )
    tree = parse_one(HASHES[dialect], dialect=dialect)
    values = {"unit": exp.cast(cluster.copy(), "varchar"), "buckets": exp.convert(buckets)}
    for name in list(tree.find_all(exp.Column)):
        name.replace(values[name.name].copy())
    return exp.cast(tree, "int")


@dataclass(frozen=True, eq=False)
class Session:
    """A connection of the caller, and its dialect."""

    connection: DatabaseConnection
    dialect: str

    def __post_init__(self) -> None:
        if not callable(getattr(self.connection, "cursor", None)):
            raise UsageError(
                f"a connection must have cursor(), and {_type_name(self.connection)} has none: "
                "pass a DB-API or ADBC connection (of an SQLAlchemy engine, "
                "engine.raw_connection())"
            )

    @property
    def name(self) -> str:
        """The name of the database, for messages."""
        return TITLES.get(self.dialect, self.dialect)

    def lines(self, query: exp.Select) -> list[dict[str, Any]]:
        """Run a query and return each line of the answer as a mapping by column."""
        with self._running(write_sql(query, self.dialect)) as cursor:
            names = [str(column[0]) for column in cursor.description]
            return [
                dict(zip(names, row, strict=True)) for row in _read_lines(cursor.fetchall())
            ]

    def batches(self, query: exp.Select) -> Iterator[pa.RecordBatch]:
        """Run a query and yield its answer in batches, as drivers return it: Arrow or rows."""
        with self._running(write_sql(query, self.dialect), stream=True) as cursor:
            if hasattr(cursor, "fetch_record_batch"):
                yield from cursor.fetch_record_batch()
                return
            names = [str(column[0]) for column in cursor.description]
            while rows := cursor.fetchmany(BATCH_ROWS):
                lists = map(list, zip(*_read_lines(rows), strict=True))
                columns = dict(zip(names, lists, strict=True))
                yield pa.RecordBatch.from_pydict(columns)

    def columns(self, relation: Expression) -> dict[str, str]:
        """Return the columns of a relation, each with the driver's word for its type."""
        query = exp.select("*").from_(relation.copy()).limit(0)
        with self._running(query.sql(dialect=self.dialect)) as cursor:
            return {str(c[0]): str(c[1]) for c in cursor.description}

    def bucket(self, cluster: Expression, buckets: int) -> Expression:
        """Return a number below `buckets`, equal for all rows of a cluster."""
        return hash_bucket(cluster, buckets, self.dialect)

    @contextmanager
    def _running(self, text: str, *, stream: bool = False) -> Iterator[Any]:
        """Execute a statement; errors of the driver, also while fetching, become ours."""
        try:
            with self._cursor(stream=stream) as cursor:
                cursor.execute(text)
                yield cursor
        except Exception as reason:  # drivers' errors have no common type
            message = (str(reason).strip() or type(reason).__name__).splitlines()[0].strip()
            raise EngineError(self.name, text, RuntimeError(message)) from reason

    @contextmanager
    def borrowed(self, timezone: str) -> Iterator[None]:
        """Leave transaction and time zone as they were, even after an error."""
        zone: tuple[str, ...] = ()
        end = self._begin()
        try:
            zone = self._set_zone(timezone)
            yield
        except BaseException:
            end = end or (ROLLBACK,)
            raise
        finally:
            for statement in (*zone, *end):
                with suppress(Exception):  # a broken connection has nothing to undo
                    self._do(statement)

    def _begin(self) -> tuple[str, ...]:
        """Begin to read only, in one snapshot if possible; return statements that end it.

        PostgreSQL then refuses functions that write.  An open transaction reads only until
        its savepoint is rolled back.
        """
        if self.dialect != "postgres":
            return ()
        driver = getattr(self.connection, "driver_connection", None) or self.connection
        info = getattr(driver, "info", None)
        status = getattr(info, "transaction_status", None)  # psycopg and psycopg2
        if status is not None and int(status) == 0:
            autocommit = bool(getattr(driver, "autocommit", False))
            begin, end = ("BEGIN", "ROLLBACK") if autocommit else ("SET TRANSACTION", ROLLBACK)
            if not self._began(f"{begin} {SNAPSHOT}", end):  # a relative without snapshots
                self._began(f"{begin} {READ_ONLY}", end)
            return (end,)
        if self._began(f"SAVEPOINT {SAVEPOINT}"):
            back = f"ROLLBACK TO SAVEPOINT {SAVEPOINT}"
            self._began(f"SET TRANSACTION {READ_ONLY}", back)
            return (back, f"RELEASE SAVEPOINT {SAVEPOINT}")
        # neither idle nor in a transaction: a driver that reveals no status, or a failed one
        return ("ROLLBACK",) if self._began(f"BEGIN {SNAPSHOT}") else ()

    def _began(self, statement: str, undo: str = "") -> bool:
        """Execute a statement and return True; if it fails, execute `undo`."""
        try:
            self._do(statement)
        except Exception:  # noqa: BLE001 - drivers' errors have no common type
            with suppress(Exception):
                if undo:
                    self._do(undo)
            return False
        return True

    def _set_zone(self, timezone: str) -> tuple[str, ...]:
        """Set the time zone of the session; return statements that restore its own."""
        if self.dialect not in ZONES:
            if timezone == UTC:  # that of BigQuery, which has no sessions
                return ()
            raise UsageError(
                f"the time zone of a session of {self.name} cannot be set to {timezone!r}: "
                "name the zone in the expressions, and leave out `timezone`"
            )
        ask, change = ZONES[self.dialect].split("; ")
        with self._running(ask) as cursor:
            line = list(_read_lines(cursor.fetchall())[0])
        own = str(line[min(1, len(line) - 1)])  # the first of several columns is a name
        if own == timezone:
            return ()
        with self._running(change.format(timezone.replace("'", "''"))):
            return (change.format(own),)

    def _do(self, statement: str) -> None:
        if statement == ROLLBACK:
            self.connection.rollback()
            return
        with self._cursor() as cursor:
            cursor.execute(statement)

    @contextmanager
    def _cursor(self, *, stream: bool = False) -> Iterator[Any]:
        """Open a cursor, except on DuckDB, where a second one sees no temporary view.

        A named cursor of psycopg leaves the rows of a stream at the server.
        """
        if self.dialect == "duckdb":
            yield self.connection
            return
        named = stream and type(self.connection).__module__.startswith("psycopg")
        cursor = self.connection.cursor("poolwise") if named else self.connection.cursor()
        try:
            yield cursor
        finally:
            with suppress(Exception):  # of a connection that broke meanwhile
                cursor.close()


def _read_lines(rows: Sequence[Any]) -> list[Sequence[Any]]:
    """Return rows as sequences; some drivers return mappings."""
    return [row.values() if hasattr(row, "values") else row for row in rows]


@dataclass(frozen=True)
class Warehouse(Engine):
    """Evaluates a table in its database, over a DB-API or ADBC connection.

    ``Log(table="logs", connection=connection, ...)`` names both. poolwise neither closes
    the connection nor leaves it in a new transaction, and restores its time zone. It reads
    PostgreSQL in a transaction that cannot write.

    Attributes:
        dialect: The SQL dialect, such as "postgres" or "bigquery"; empty means that the
            driver's name decides.
        widest: Most aggregates of one query; wider requests are cut into several queries.
    """

    dialect: str = ""
    widest: int = 700  # with centres, fewer than the 1,664 columns of PostgreSQL

    @contextmanager
    def session(self, log: Log) -> Iterator[Session]:
        """Borrow the connection of a log."""
        if log.table is None or log.connection is None:
            raise UsageError(
                "a warehouse requires Log(table=..., connection=...): the name of a table or a "
                "SELECT, and a DB-API or ADBC connection that can read it"
            )
        dialect = check_dialect(self.dialect) if self.dialect else find_dialect(log.connection)
        session = Session(log.connection, dialect)
        with session.borrowed(log.timezone):
            yield session

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NO_EXTRA
    ) -> Iterator[WarehouseRows]:
        """Open a log with its targets and look up their names in the table."""
        refuse_extra(extra)
        with self.session(log) as session:
            dialect = session.dialect
            relation = parse_relation(str(log.table), dialect)
            columns = session.columns(relation)
            try:
                types = column_types(columns, dialect)
                roles = assign(log, targets, types, relation, dialect=dialect)
            except NoEntriesError:
                raise lacking("distributions") from None
            refuse_different(roles.table.roles, dialect, session.name)
            if roles.scored:
                raise UsageError(
                    f"policies in Python cannot run in {session.name} "
                    f"({', '.join(roles.scored)}): write their probabilities as columns of the "
                    "table first"
                )
            table = _as_numbers(roles.table, columns, dialect)
            table = replace(table, eligible=None)  # databases have no type of lists in common
            yield WarehouseRows(table, session, self.widest)

    def learner_batches(self, log: Log) -> Iterator[pa.RecordBatch]:
        """Yield the columns that a learner reads, in batches."""
        with self.session(log) as session:
            relation = parse_relation(str(log.table), session.dialect)
            columns = session.columns(relation)
            roles = assign(log, {}, list(columns), relation, learner_extra(log))
            types = column_types(columns, session.dialect)
            names = [
                exp.cast(value.copy(), "text").as_(value.name, quoted=True)
                if types.get(value.name, "").startswith("JSON")
                else value
                for value in roles.selected(roles.read)
            ]
            yield from session.batches(exp.select(*names).from_(relation.copy()))


def column_types(columns: Mapping[str, str], dialect: str) -> dict[str, str]:
    """Return the types of columns in SQL, where the driver's words for them are known."""
    if dialect == "duckdb":
        return dict(columns)
    texts = {"string": "TEXT", "large_string": "TEXT"}
    known = texts | NESTED if dialect == "postgres" else texts
    return {name: known.get(kind.lower(), "") for name, kind in columns.items()}


def _as_numbers(table: RoleColumns, kinds: Mapping[str, str], dialect: str) -> RoleColumns:
    """Convert flags to 0 and 1, and non-numeric text to NULL, as DuckDB does."""

    def as_number(value: Any) -> Any:  # noqa: ANN401 - any field of a table
        if isinstance(value, Mapping):
            return {key: as_number(part) for key, part in value.items()}
        known = isinstance(value, exp.Column)
        kind = DIALECTS.get(kinds.get(value.name, "").lower(), "") if known else ""
        if kind == "flag" and dialect != "duckdb":
            return exp.cast(value.copy(), "int")
        if kind == "text" and dialect == "postgres":  # it has no TRY_CAST
            fits = exp.RegexpLike(
                this=value.copy(), expression=exp.Literal.string(NUMBER_PATTERN)
            )
            return exp.Case().when(fits, value.copy())
        return value

    numbers = {f.name: getattr(table, f.name) for f in fields(table) if f.name not in TEXTS}
    return replace(table, **{name: as_number(value) for name, value in numbers.items()})
