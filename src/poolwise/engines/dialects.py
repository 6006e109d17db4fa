"""Dialects: what the one query must be told about databases that are not DuckDB.

SQLGlot writes the query in every dialect; here is the rest: names that some database
reserves, arithmetic that raises instead of rounding to zero, optimizers that compute a
shared expression over and over, and a hash that puts the rows of one unit together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp, parse_one

from poolwise.errors import UsageError
from poolwise.rows.rules import case, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot.expressions import Expr as Expression

NAMES: Mapping[str, str] = {
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
# Module of a driver's connection, by the dialect it speaks. The first that fits counts.
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
LENIENT = {"sqlite", "mysql", "singlestore"}  # CAST('a word' AS a number) is 0 there
OURS = {"duckdb", "spark", "spark2"}  # the query is written for these as it is
FENCED = {"probs", "ratios", "shared", "terms"}  # steps whose columns are read many times
TINY = -300.0  # exp of it is 5e-131: as good as zero, and its square is still a double


def name_of(dialect: str) -> str:
    """What people call a database.

    >>> name_of("postgres"), name_of("oracle")
    ('PostgreSQL', 'oracle')
    """
    return NAMES.get(dialect, dialect)


def check_dialect(dialect: str) -> str:
    """A dialect that SQLGlot speaks, or an error that names the tested ones."""
    from sqlglot.dialects.dialect import Dialect

    known = ", ".join(NAMES)
    if not dialect or Dialect.get(dialect.lower()) is None:
        raise UsageError(f"no dialect {dialect!r}; there are {known}, and others of SQLGlot")
    if dialect.lower() in LENIENT:
        raise UsageError(
            f"dialect {dialect!r} is not supported: this database reads a word as the number 0 "
            "instead of refusing it, so that bad rows could not be told. Read the table with "
            f"DuckDB, which can attach it, or copy it; there are {known}"
        )
    return dialect.lower()


def written(query: exp.Select, dialect: str, *, pretty: bool = False) -> str:
    """The text of a query, with what its dialect needs beyond SQLGlot."""
    if dialect not in OURS:
        query = query.copy()
        _quote_steps(query)
        if dialect in {"postgres", "redshift"}:
            _fence(query)
            _without_underflow(query)
    return query.sql(dialect=dialect, pretty=pretty)


def _quote_steps(query: exp.Select) -> None:
    """Quote the names of the steps: ROWS is a reserved word of some databases.

    What the first step reads is the user's table and stays as it was written.
    """
    steps = {cte.alias: cte for cte in query.ctes}
    for cte in steps.values():
        cte.args["alias"].this.set("quoted", True)  # noqa: FBT003 - SQLGlot's signature
    theirs = {id(node) for node in steps["rows"].walk()} if "rows" in steps else set()
    for table in query.find_all(exp.Table):
        if table.name in steps and not table.db and id(table) not in theirs:
            table.this.set("quoted", True)  # noqa: FBT003 - likewise


def _fence(query: exp.Select) -> None:
    """Keep PostgreSQL from writing a step into each expression that reads it.

    It has no common subexpressions: a mixture that twenty terms share would be computed
    twenty times.  OFFSET 0 changes nothing but keeps a subquery whole.
    """
    for cte in query.ctes:
        if cte.alias in FENCED and isinstance(cte.this, exp.Select):
            cte.set("this", cte.this.offset(0))


def _without_underflow(query: exp.Select) -> None:
    """Where exp(-800) is an error rather than 0, say 0."""
    for found in list(query.find_all(exp.Exp)):
        power = exp.paren(found.this.copy())
        found.replace(case(power < number(TINY), number(0.0), found.copy()))


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


def unit_bucket(unit: Expression, buckets: int, dialect: str) -> Expression:
    """A number below `buckets`, the same for all rows of a unit and on every day."""
    if dialect not in HASHES:
        raise UsageError(
            f"clusters need a hash, and poolwise knows none of {name_of(dialect)}: give "
            "interval='student' if rows are independent, or read the log with DuckDB"
        )
    tree = parse_one(HASHES[dialect], dialect=dialect)
    values = {"unit": exp.cast(unit.copy(), "varchar"), "buckets": exp.convert(buckets)}
    for found in list(tree.find_all(exp.Column)):
        found.replace(values[found.name].copy())
    return exp.cast(tree, "int")


def row_bucket(buckets: int, dialect: str) -> Expression:
    """A number below `buckets` for each row, all about equally often."""
    order = exp.Order(expressions=[exp.null()]) if dialect == "snowflake" else None
    place = exp.Window(this=exp.RowNumber(), order=order)
    return exp.cast(exp.Mod(this=place, expression=exp.convert(buckets)), "int")
