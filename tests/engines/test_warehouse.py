"""A table is evaluated in the database, over a connection that stays unchanged."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from poolwise.engines.answer import cut
from poolwise.engines.sql import write_sql
from poolwise.engines.warehouse import (
    HASHES,
    TITLES,
    ZONES,
    Warehouse,
    find_dialect,
    hash_bucket,
    parse_relation,
)
from poolwise.errors import (
    EngineError,
    ExpressionError,
    LogError,
    MissingColumnError,
    UsageError,
)
from poolwise.evaluation.check import check
from poolwise.evaluation.evaluate import evaluate
from poolwise.evaluation.summarise import list_needs, query_text
from poolwise.rows.layout import counts_query
from poolwise.rows.rules import column
from tests.support.messages import refused
from tests.support.postgres import DuckDBConnection, PostgresEngine, load, server
from tests.support.reference import assert_same, log_of, random_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from poolwise.log.log import Log

TARGETS = {"target": "t"}
COUNTS = {"a": 300, "b": 200}


def table(seed: int = 40) -> pa.Table:
    return random_table(np.random.default_rng(seed), COUNTS)


def stored(connection: Any, name: str = "log", **roles: Any) -> Log:  # noqa: ANN401 - drivers and roles
    return replace(log_of("x", **roles), source=None, table=name, connection=connection)


@pytest.fixture
def postgres() -> Iterator[Any]:
    """A connection to a server with a table ``log``."""
    with server().connect() as connection:
        load(connection, table(), "log")
        yield connection
        connection.rollback()


def idle(connection: Any) -> bool:  # noqa: ANN401 - an optional package
    return int(connection.info.transaction_status) == 0


def answers(connection: Any) -> bool:  # noqa: ANN401 - likewise
    found = connection.execute("SELECT 41 + 1").fetchone()
    connection.rollback()
    return bool(found == (42,))


# --- the same numbers -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PostgresEngine, DuckDBConnection])
@pytest.mark.parametrize("roles", [{}, {"propensities": None}, {"cluster": "logger"}])
def test_a_database_gives_the_numbers_of_the_embedded_engine(
    kind: type[Any], roles: dict[str, Any]
) -> None:
    log = log_of(table(), **roles)
    interval: Any = "student"  # engines may assign clusters to different buckets
    found = evaluate(log, TARGETS, engine=kind(), interval=interval)
    assert_same(found, evaluate(log, TARGETS, interval=interval), rel=1e-9)


def test_a_log_with_a_connection_needs_no_engine(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    found = evaluate(stored(postgres), TARGETS)
    assert_same(found, evaluate(log_of(table()), TARGETS, interval="student"), rel=1e-9)
    report = check(stored(postgres), TARGETS)
    assert (report.rows, report.faults) == (COUNTS, ())


@pytest.mark.system
def test_adbc_speaks_the_same_face() -> None:
    dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")
    with dbapi.connect(server().uri) as connection:
        with connection.cursor() as cursor:
            cursor.adbc_ingest("adbc_log", table(), temporary=True)
        log = stored(connection, "adbc_log")
        assert find_dialect(connection) == "postgres"
        found = evaluate(log, TARGETS, which_logs=False)
        assert_same(found, evaluate(log_of(table()), TARGETS, interval="student"), rel=1e-9)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM adbc_log")  # uncommitted, and still there
            assert cursor.fetchall() == [(500,)]
        connection.rollback()


def test_a_select_in_the_databases_own_words_may_stand_for_a_table(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    log = stored(postgres, "SELECT * FROM log WHERE t::float8 > 0.5 AND logger ~ '^[ab]$'")
    kept = table().filter(pa.compute.field("t") > 0.5)
    expected = evaluate(log_of(kept), TARGETS, interval="student")
    assert_same(evaluate(log, TARGETS), expected, rel=1e-9)


@pytest.mark.parametrize("widest", [14, 40])
@pytest.mark.parametrize("kind", [PostgresEngine, DuckDBConnection])
def test_a_wide_question_becomes_several_queries(kind: type[Any], widest: int) -> None:
    log, targets = log_of(table()), {"one": "t", "two": "t / 2"}
    found = evaluate(log, targets, engine=kind(widest), which_logs=False)
    assert_same(found, evaluate(log, targets, interval="student"), rel=1e-9)


@pytest.mark.parametrize("widest", [4, 14, 40])
def test_needs_are_cut_into_parts_that_hold_every_aggregate(widest: int) -> None:
    needs = list_needs(log_of("x"), ["one", "two", "three"])
    parts = cut(needs, widest)
    assert len(parts) > 1
    for part in parts:
        assert len(part.terms) + len(part.pairs) + 2 * len(part.extremes) <= widest
    assert sorted(pair for part in parts for pair in part.pairs) == needs.pairs
    assert sorted(term for part in parts for term in part.extremes) == list(needs.extremes)
    assert {term for part in parts for term in part.terms} == set(needs.terms)


@pytest.mark.system
def test_clusters_stay_together_however_wide_the_question() -> None:
    units = pa.array(np.arange(500) % 100)
    log = log_of(table().append_column("user", units), cluster="user")
    whole = evaluate(log, TARGETS, engine=PostgresEngine())
    narrow = PostgresEngine(widest=20)
    assert_same(evaluate(log, TARGETS, engine=narrow), whole, rel=1e-9)


def test_buckets_of_a_database_require_a_cluster() -> None:
    with DuckDBConnection().open(log_of(table()), TARGETS) as rows, refused(UsageError):
        rows.bucketed([list_needs(log_of("x"), ["target"])], 7)


@pytest.mark.parametrize("kind", [PostgresEngine, DuckDBConnection])
def test_a_jackknife_by_cluster_has_the_error_of_the_clusters(kind: type[Any]) -> None:
    """100 users in 200 buckets: the embedded engine's hash is another, the error is alike."""
    units = pa.array(np.arange(500) % 100)
    log = log_of(table().append_column("user", units), cluster="user")
    ours = evaluate(log, TARGETS, engine=kind())["target"].estimates
    theirs = evaluate(log, TARGETS)["target"].estimates
    for name, estimate in theirs.items():
        assert ours[name].value == pytest.approx(estimate.value, rel=1e-9)
        assert ours[name].std_error == pytest.approx(estimate.std_error, rel=0.2)


@pytest.mark.system
def test_probabilities_too_small_for_doubles_are_zero_and_no_error() -> None:
    """PostgreSQL raises where exp(-800) or a product of such numbers vanishes."""
    logs = table()
    for name in logs.column_names[2:]:
        values = np.log(logs[name].to_numpy())
        if name == "t":
            values[:3] = (-250.0, -400.0, -900.0)
        logs = logs.set_column(logs.column_names.index(name), name, pa.array(values))
    log = log_of(logs, log_probabilities=True)
    found = evaluate(log, TARGETS, engine=PostgresEngine())
    assert_same(found, evaluate(log, TARGETS, interval="student"), rel=1e-9)


# --- types and names --------------------------------------------------------------------


def test_flags_decimals_and_words_are_read_as_numbers(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    log = stored(
        postgres,
        "SELECT logger, reward > 1 AS paid, p::numeric AS p, p_a::text AS p_a, p_b, t FROM log",
        reward="paid",
        replay_tolerance=1e-6,
    )
    source = table()
    paid = pa.array((source["reward"].to_numpy() > 1).astype(float))
    plain = log_of(source.set_column(1, "reward", paid))
    expected = evaluate(plain, TARGETS, interval="student")
    assert_same(evaluate(log, TARGETS), expected, rel=1e-9)


def test_names_are_found_whatever_their_case(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    query = 'SELECT logger AS "Policy", reward AS "CLICK", p, p_a, p_b, t AS "T" FROM log'
    log = stored(postgres, query, logger="policy", reward="Click")
    expected = evaluate(log_of(table()), TARGETS, interval="student")
    assert_same(evaluate(log, TARGETS), expected, rel=1e-9)


def test_missing_columns_are_told_together(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    log = stored(postgres, reward="rewrd", propensity="q")
    with refused(MissingColumnError) as caught:
        evaluate(log, TARGETS)
    assert set(caught.value.missing) == {"rewrd", "q"}
    assert idle(postgres)


def test_bad_rows_are_named_with_an_example(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    postgres.execute("UPDATE log SET reward = 'NaN' WHERE t = (SELECT min(t) FROM log)")
    postgres.commit()
    with refused(LogError):
        evaluate(stored(postgres), TARGETS)
    assert idle(postgres)
    found = evaluate(stored(postgres, on_fault="drop"), TARGETS)
    assert sum(found.rows.values()) == 499


def test_policies_in_python_are_refused_with_advice(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    log = stored(postgres, action="t")
    with refused(UsageError):
        evaluate(log, {"target": lambda batch: np.full(len(batch), 0.5)})


# --- the caller's connection ------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("autocommit", [False, True])
def test_the_connection_comes_back_open_and_idle(*, autocommit: bool) -> None:
    with server().connect(autocommit=autocommit) as connection:
        load(connection, table(), "log")
        evaluate(stored(connection), TARGETS)
        assert not connection.closed
        assert idle(connection)
        with pytest.raises(EngineError):
            evaluate(stored(connection, "no_such_table"), TARGETS)
        assert idle(connection)
        assert answers(connection)
        assert connection.autocommit is autocommit


def test_a_transaction_that_was_open_stays_open_with_its_work(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    postgres.execute("CREATE TEMP TABLE mine AS SELECT * FROM log WHERE logger = 'a'")
    log = stored(postgres, "mine", propensities=None)
    assert evaluate(log, TARGETS).rows == {"a": 300}
    with pytest.raises(EngineError):
        evaluate(stored(postgres, "no_such_table"), TARGETS)
    assert postgres.execute("SELECT count(*) FROM mine").fetchone() == (300,)
    postgres.rollback()
    assert postgres.execute("SELECT to_regclass('mine')").fetchone() == (None,)


@pytest.mark.system
def test_rows_that_arrive_meanwhile_are_not_seen_by_half() -> None:
    """All queries see one snapshot, or the change is refused: never a mixture of both."""
    with server().connect() as writer, server().connect() as reader:
        writer.execute("DROP TABLE IF EXISTS growing")
        writer.execute("CREATE TABLE growing (logger text, reward float8, p float8, t float8)")
        writer.execute("INSERT INTO growing SELECT 'a', 1, .5, .5 FROM generate_series(1, 9)")
        writer.commit()
        log = stored(reader, "growing", propensities=None)
        with Warehouse().open(log, TARGETS) as rows:
            assert rows.counts == {"a": 9}
            writer.execute("INSERT INTO growing VALUES ('a', 1, .5, .5)")
            writer.commit()
            assert rows.all_counts == {"a": 9}
        with Warehouse().open(replace(log, connection=reader), TARGETS) as rows:
            assert rows.counts == {"a": 10}
        writer.execute("DROP TABLE growing")
        writer.commit()


def test_a_table_that_changes_where_there_is_no_snapshot_is_refused() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE log AS SELECT 'a' AS logger, 1.0 AS reward, 0.5 AS p")
        log = stored(connection, propensities=None)
        with Warehouse().open(log, {"target": "p"}) as rows:
            assert rows.counts == {"a": 1}
            connection.execute("INSERT INTO log VALUES ('a', 2.0, 0.5)")
            from poolwise.moments.terms import WEIGHT, Needs

            with refused(LogError):
                rows.moments(Needs(means=(WEIGHT,)).bind("target"))


@pytest.mark.system
def test_a_connection_cut_in_the_middle_is_one_error_and_leaves_nothing_behind() -> None:
    with server().connect(autocommit=True) as other, server().connect() as connection:
        load(connection, table(), "log")
        process = connection.info.backend_pid
        slow = "SELECT *, pg_sleep(0.05) FROM log"
        cut = threading.Timer(
            0.5, other.execute, ["SELECT pg_terminate_backend(%s)", [process]]
        )
        cut.start()
        with pytest.raises(EngineError) as caught:
            evaluate(stored(connection, slow), TARGETS)
        cut.join()
        message = str(caught.value)
        assert message.startswith("PostgreSQL refused the query: ")
        assert "\n" not in message
        assert "terminating connection" in message or "closed the connection" in message
        left = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        for _ in range(100):
            if other.execute(left, [process]).fetchone() == (0,):
                break
            threading.Event().wait(0.05)
        assert other.execute(left, [process]).fetchone() == (0,)
    with server().connect() as again:  # the server is as it was
        assert answers(again)


def test_an_error_says_the_first_line_and_nothing_else(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    with pytest.raises(EngineError) as caught:
        evaluate(stored(postgres, "no_such_table"), TARGETS)
    assert str(caught.value) == (
        'PostgreSQL refused the query: relation "no_such_table" does not exist'
    )


@pytest.mark.parametrize(
    "text",
    [
        "WITH gone AS (DELETE FROM log RETURNING *) SELECT * FROM gone",
        "SELECT * INTO other FROM log",
        "SELECT 1; DROP TABLE log",
    ],
)
def test_a_source_that_writes_is_refused_before_it_runs(text: str, postgres: Any) -> None:  # noqa: ANN401 - a fixture
    with pytest.raises(UsageError):
        evaluate(stored(postgres, text), TARGETS)
    assert postgres.execute("SELECT count(*) FROM log").fetchone() == (500,)


WIPE = """
CREATE TABLE victim AS SELECT generate_series(1, 5) AS n;
CREATE FUNCTION wipe() RETURNS float8 LANGUAGE plpgsql
    AS $$ BEGIN DELETE FROM victim; RETURN 0.5; END $$;
"""
DROP = (
    "DROP FUNCTION IF EXISTS wipe(); DROP TABLE IF EXISTS victim; DROP TABLE IF EXISTS shared"
)
WIPING = "SELECT logger, reward, p, p_a, p_b, wipe() AS t FROM shared"


@pytest.fixture
def victims() -> Iterator[Callable[[], int]]:
    """A table that a function deletes; returns the number of its rows."""
    with server().connect(autocommit=True) as connection:
        connection.execute(DROP + ";" + WIPE)
        load_shared(connection)
        yield lambda: connection.execute("SELECT count(*) FROM victim").fetchone()[0]
        connection.execute(DROP)


def load_shared(connection: Any) -> None:  # noqa: ANN401 - an optional package
    load(connection, table(), "log")
    connection.execute("CREATE TABLE shared AS SELECT * FROM log")


@contextmanager
def driven(kind: str) -> Iterator[Any]:
    """A connection of a driver: idle, in autocommit, or in a transaction."""
    driver, _, state = kind.partition(" ")
    if driver == "psycopg":
        with server().connect(autocommit=state == "autocommit") as connection:
            if state == "open":
                connection.execute("INSERT INTO victim VALUES (6)")
            yield connection
            connection.rollback()
    else:
        dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")
        with dbapi.connect(server().uri, autocommit=state == "autocommit") as connection:
            yield connection


DRIVEN = ["psycopg idle", "psycopg autocommit", "psycopg open", "adbc open", "adbc autocommit"]


@pytest.mark.system
@pytest.mark.parametrize("kind", DRIVEN)
def test_a_function_that_deletes_rows_fails_with_every_driver(
    kind: str, victims: Callable[[], int]
) -> None:
    with driven(kind) as connection:
        assert evaluate(stored(connection, "shared"), TARGETS).rows == COUNTS
        with pytest.raises(EngineError) as caught:
            evaluate(stored(connection, WIPING), TARGETS)
        assert "cannot execute DELETE in a read-only transaction" in str(caught.value)
        assert "\n" not in str(caught.value)
        if kind == "adbc open":  # ADBC has no way back to a savepoint after an error
            connection.rollback()
        with connection.cursor() as cursor:  # which writes again
            cursor.execute("INSERT INTO victim VALUES (7)")
        if not kind.endswith("autocommit"):
            connection.commit()
    assert victims() == (7 if kind == "psycopg open" else 6)


@pytest.mark.system
@pytest.mark.parametrize("kind", DRIVEN)
def test_a_connection_may_write_after_it_was_read(
    kind: str, victims: Callable[[], int]
) -> None:
    with driven(kind) as connection:
        evaluate(stored(connection, "shared"), TARGETS, which_logs=False)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO victim VALUES (7)")
        if not kind.endswith("autocommit"):
            connection.commit()
    assert victims() == (7 if kind == "psycopg open" else 6)


ATTACKS = {
    "pg_read_file('PG_VERSION')::float8": "pg_read_file()",
    "wipe()": "wipe()",
    "query_to_xml('SELECT wipe()', true, true, '') IS NULL": "query_to_xml()",
    "lo_import('/etc/hostname')": "lo_import()",
    "CAST('victim' AS regclass)": "regclass",
}


@pytest.mark.system
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("role", ["reward", "logger", "propensity", "cluster", "target"])
def test_no_role_runs_a_function_of_the_database(
    role: str, attack: str, victims: Callable[[], int]
) -> None:
    with server().connect() as connection:
        roles = {} if role == "target" else {role: attack}
        targets = {"target": attack} if role == "target" else TARGETS
        with pytest.raises(ExpressionError) as caught:
            evaluate(stored(connection, "shared", **roles), targets)
        assert (caught.value.part, idle(connection)) == (ATTACKS[attack], True)
    assert victims() == 5


def test_a_database_without_read_only_transactions_is_read() -> None:
    """A relative of PostgreSQL whose driver does not say whether a transaction is open."""

    class Relative(Recorded):
        def execute(self, text: str) -> None:
            super().execute(text)
            if "READ ONLY" in text:
                raise RuntimeError("unknown statement")

    driver = Relative()
    with refused(LogError):
        evaluate(stored(driver), TARGETS, engine=Warehouse(dialect="postgres"))
    assert driver.texts[:3] == [
        "SAVEPOINT poolwise",
        "SET TRANSACTION READ ONLY",
        "ROLLBACK TO SAVEPOINT poolwise",
    ]
    assert driver.texts[3].startswith("SELECT")


def test_what_is_no_connection_is_told() -> None:
    with refused(UsageError):
        evaluate(stored(object()), TARGETS)
    with refused(UsageError):
        evaluate(stored(object()), TARGETS, engine=Warehouse(dialect="postgres"))
    with refused(UsageError):
        evaluate(stored(object()), TARGETS, engine=Warehouse(dialect="klingon"))
    with refused(UsageError):
        evaluate(log_of(table()), TARGETS, engine=Warehouse())
    with sqlite3.connect(":memory:") as connection, refused(UsageError):
        evaluate(stored(connection), TARGETS)
    connection.close()


class Recorded:
    """A driver that records the text of queries and returns nothing but a time zone."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.description: Sequence[tuple[Any, ...]] = ()

    def cursor(self) -> Recorded:
        return self

    def execute(self, text: str) -> None:
        self.texts.append(text)
        self.description = [(n, None) for n in ("LOGGER", "REWARD", "P", "P_A", "P_B", "T")]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [("Asia/Tokyo",)] if "timezone" in self.texts[-1].lower() else []

    def close(self) -> None:
        pass

    def rollback(self) -> None:
        self.texts.append("rollback")


@pytest.mark.parametrize("dialect", [d for d in TITLES if d != "duckdb"])
def test_every_dialect_is_sent_reading_statements_that_it_can_parse(dialect: str) -> None:
    driver = Recorded()
    with refused(LogError):
        evaluate(stored(driver), TARGETS, engine=Warehouse(dialect=dialect))
    zones = [t for t in driver.texts if re.search(r"\bSET\b.*'(UTC|Asia/Tokyo)'$", t)]
    assert [t.split("'")[1] for t in zones] == ["UTC", "Asia/Tokyo"] * (dialect in ZONES)
    queries = [t for t in driver.texts if t.startswith(("SELECT", "WITH"))]
    queries = [text for text in queries if "timezone" not in text.lower()]
    assert len(queries) >= 2
    for text in queries:
        (tree,) = sqlglot.parse(text, dialect=dialect)
        assert isinstance(tree, exp.Select)
    assert driver.texts[-1] == "rollback" or driver.texts[-1].startswith("RELEASE")
    assert "LOGGER" in queries[1]  # as that database spells it


# --- dialects ---------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", HASHES)
def test_every_dialect_has_a_hash_that_it_can_parse(dialect: str) -> None:
    bucket = hash_bucket(column("user"), 200, dialect)
    text = exp.select(bucket).from_("log").sql(dialect=dialect)
    assert sqlglot.parse_one(text, dialect=dialect).sql(dialect=dialect) == text
    assert "200" in text


def test_the_hash_of_postgres_spreads_units_evenly(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    bucket = hash_bucket(column("n"), 10, "postgres").sql(dialect="postgres")
    query = f'SELECT {bucket}, count(*) FROM generate_series(1, 10000) AS g("n") GROUP BY 1'
    found = dict(postgres.execute(query).fetchall())
    assert sorted(found) == list(range(10))
    assert all(abs(count - 1_000) < 4 * 30 for count in found.values())  # 4 sd of 30


def test_a_dialect_without_a_known_hash_says_so() -> None:
    with refused(UsageError):
        hash_bucket(column("user"), 200, "oracle")


@pytest.mark.parametrize("dialect", [d for d in TITLES if d not in {"duckdb", "spark"}])
def test_names_of_steps_are_quoted_and_the_users_table_is_not(dialect: str) -> None:
    """ROWS is reserved in Snowflake and BigQuery; a quoted table may be another one."""
    text = query_text(log_of("x"), "Terms", TARGETS, dialect)
    (tree,) = sqlglot.parse(text, dialect=dialect)
    assert isinstance(tree, exp.Select)
    for cte in tree.ctes:
        assert cte.args["alias"].this.quoted
    names = {cte.alias for cte in tree.ctes}
    used = [t for t in tree.find_all(exp.Table) if t.name in names]
    assert used
    assert all(t.this.quoted for t in used)
    (theirs,) = [t for t in tree.find_all(exp.Table) if t.name == "Terms"]
    assert not theirs.this.quoted


def test_every_column_of_a_count_is_quoted() -> None:
    from poolwise.rows.roles import assign

    log = log_of("x", on_fault="drop")
    text = write_sql(
        counts_query(assign(log, TARGETS, None, parse_relation("log")).table), "snowflake"
    )
    (tree,) = sqlglot.parse(text, dialect="snowflake")
    assert tree is not None
    assert all(c.this.quoted for c in tree.find_all(exp.Column) if not c.is_star)


def test_the_printed_query_runs_in_postgres(postgres: Any) -> None:  # noqa: ANN401 - a fixture
    text = query_text(log_of("x"), "log", TARGETS, "postgres")
    lines = postgres.execute(text).fetchall()
    assert [line[:3] for line in lines] == [("a", 300, 0), ("b", 200, 0)]
