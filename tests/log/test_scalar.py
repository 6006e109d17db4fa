"""An expression computes a value of its row; whatever could do more is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from poolwise import GivenModel, Log, evaluate, ranking_log
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import ExpressionError, MissingColumnError, UsageError
from poolwise.evaluation.summarise import query_text
from poolwise.log.scalar import (
    ALLOWED_FUNCTIONS,
    FUNCTION_NAMES,
    parse_scalar,
    refuse_different,
)
from poolwise.moments.terms import REWARD, Needs
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlglot.expressions import Expr

# Columns: p = 2.5, n = 7, m = -3, x = 'Ab,cd', z = NULL, flag = true,
# ts = 2024-03-05 13:14:15.25 (a Tuesday), d = 2024-02-28, xs = [0.5, 0.25, 2], ...
ROW = """
SELECT CAST(2.5 AS DOUBLE) AS p, 7 AS n, -3 AS m, 'Ab,cd' AS x, NULL::DOUBLE AS z, true AS flag,
    TIMESTAMP '2024-03-05 13:14:15.25' AS ts, DATE '2024-02-28' AS d,
    [0.5, 0.25, 2.0]::DOUBLE[] AS xs, '{"a": {"b": 3}, "c": [4, 5]}' AS j, {'a': 0.75} AS s,
    MAP {'k': 0.1, 'l': 0.2} AS probs
"""
NUMBERS: dict[str, float] = {
    # arithmetic, comparisons and choices
    "p + n - m * 2": 15.5,
    "n / 2": 3.5,
    "n // 2 + n % 4": 6,
    "-(p)": -2.5,
    "x || 'z' = 'Ab,cdz'": 1,
    "n <> 7 OR (n > 6 AND n >= 7 AND NOT flag)": 0,
    "m < 0 AND m <= -3 AND flag": 1,
    "z IS NULL AND z IS NOT DISTINCT FROM NULL AND z IS DISTINCT FROM p": 1,
    "n BETWEEN 1 AND 7 AND n IN (1, 7) AND (n, m) IN ((7, -3))": 1,
    "0.25 = ANY(xs)": 1,
    "x LIKE 'A%' AND x ILIKE 'ab%' AND x GLOB 'A*' AND x NOT LIKE 'A!%' ESCAPE '!'": 1,
    "x ~ 'q'": 0,
    "(n & 3) + (n | 8) + xor(n, 2) + (~n) + (n << 2) + (n >> 1)": 3 + 15 + 5 - 8 + 28 + 3,
    "CASE n WHEN 7 THEN 0.9 ELSE 0.1 END": 0.9,
    "if(x = 'a', 0.9, 0.1)": 0.1,
    "coalesce(z, nullif(n, 7), ifnull(z, 0.25))": 0.25,
    "CAST(p AS DECIMAL(5, 1)) + '1'::INT": 3.5,
    "coalesce(TRY_CAST(x AS DOUBLE), 1)": 1,
    "CAST({'a': 1} AS STRUCT(a INTEGER))['a']": 1,
    "CASE WHEN true THEN 1e-1 END": 0.1,
    "$$it's$$ = 'it''s'": 1,
    # mathematics
    "abs(m) + sign(m) + round(p, 1) + floor(p) + ceil(p) + trunc(-p)": 3 - 1 + 2.5 + 2 + 3 - 2,
    "least(p, n) + greatest(p, n)": 9.5,
    "exp(0) + ln(exp(1)) + log(100) + log2(8) + log10(10)": 8,
    "pow(p, 2) + p ** 2 + sqrt(4) + cbrt(27)": 6.25 * 2 + 5,
    "isnan(p) OR isinf(p) OR NOT isfinite(p)": 0,
    "sin(0) + cos(0) + tan(0) + asin(0) + acos(1) + atan(0) + atan2(0, 1)": 1,
    "sinh(0) + cosh(0) + tanh(0) + round(cot(pi() / 4), 9)": 2,
    "degrees(pi()) + radians(0)": 180,
    # text
    "lower(x) || upper(x) = 'ab,cdAB,CD'": 1,
    "length(x) + strlen('é') + strpos(x, 'b') + instr(x, 'q')": 9,
    "left(x, 2) || right(x, 1) || substring(x, 2, 1) || trim(' a ') = 'Abdba'": 1,
    "lpad('7', 3, '0') = '007' AND reverse(x) = 'dc,bA'": 1,
    "concat(x, NULL, 'a') = 'Ab,cda' AND concat_ws('-', x, 'a') = 'Ab,cd-a'": 1,
    "replace(x, 'b', 'c') = 'Ac,cd' AND translate(x, 'A', 'B') = 'Bb,cd'": 1,
    "split_part(x, ',', 2) = 'cd' AND string_split(x, ',')[1] = 'Ab'": 1,
    "starts_with(x, 'A') AND ends_with(x, 'd') AND contains(x, 'b')": 1,
    "prefix(x, 'A') AND suffix(x, 'd')": 1,
    "regexp_matches(x, 'b') AND regexp_full_match(x, 'A.*')": 1,
    "regexp_extract(x, '(b),(c)', 2) = 'c' AND regexp_replace(x, '[a-z]', '_') = 'A_,cd'": 1,
    "length(md5(x)) + length(sha1(x)) + length(sha256(x))": 32 + 40 + 64,
    "hash(n) = hash(7)": 1,
    # times
    "year(ts) + quarter(ts) + month(ts) + week(ts) + weekofyear(ts)": 2024 + 1 + 3 + 10 + 10,
    "day(ts) + dayofmonth(ts) + dayofyear(ts)": 5 + 5 + 65,
    "dayofweek(ts) + isodow(ts) + weekday(ts)": 2 + 2 + 2,
    "dayname(ts) = 'Tuesday' AND monthname(ts) = 'March'": 1,
    "hour(ts) + minute(ts) + second(ts)": 13 + 14 + 15,
    "millisecond(ts) + microsecond(ts)": 15_250 + 15_250_000,
    "isoyear(ts) + yearweek(ts)": 2024 + 202_410,
    "extract(hour FROM ts) + date_part('hour', ts) + datepart('dow', ts)": 13 + 13 + 2,
    "date_trunc('month', ts) = DATE '2024-03-01'": 1,
    "time_bucket(INTERVAL '1 hour', ts) = TIMESTAMP '2024-03-05 13:00:00'": 1,
    "last_day(d) = make_date(2024, 2, 29)": 1,
    "date_diff('day', d, ts::DATE) + date_sub('day', d, ts::DATE)": 12,
    "datesub('hour', ts, ts + to_hours(2)) + (ts::DATE - d)": 8,
    "date_add(d, INTERVAL 1 DAY) = d + to_days(1)": 1,
    "d + to_years(1) + to_months(1) + to_weeks(1) = DATE '2025-04-04'": 1,
    "ts + to_minutes(45) + to_seconds(45) > TIMESTAMP '2024-03-05 14:00:00'": 1,
    "epoch(ts)": 1_709_644_455.25,
    "epoch_us(ts) / 1000000 + epoch_ns(ts) / 1000000000": 2 * 1_709_644_455.25,
    "epoch_ms(1709644455250) = ts": 1,
    "epoch(to_timestamp(5))": 5,
    "strptime('5/3/24', '%d/%m/%y') = ts::DATE": 1,
    "try_strptime('soon', '%d/%m/%y') IS NULL": 1,
    "strftime(ts, '%Y-%m') = '2024-03'": 1,
    "epoch(ts AT TIME ZONE 'UTC')": 1_709_644_455.25,
    # lists, structs, maps and JSON
    "xs[1] + xs[-1] + [4, 5][1] + xs[1:2][2]": 6.75,
    "list_extract(xs, 2) + list_element(xs, 2) + array_extract(xs, 2)": 0.75,
    "list_contains(xs, 0.5) AND xs @> [0.5] AND xs && [0.5, 9]": 1,
    "list_has_all(xs, [0.25, 2])": 1,
    "array_position(xs, 0.25) + list_position(xs, 2) + list_indexof(xs, 0.5)": 6,
    "array_length(xs) + len(xs) + list_count(xs)": 9,
    "list_sum(xs) + list_avg(xs) * 12 + list_product(xs)": 2.75 + 11 + 0.25,
    "list_max(xs) + list_min(xs)": 2.25,
    "list_filter(xs, lambda v: v > 0.3)[2] + list_transform(xs, lambda v: v * 2)[2]": 2.5,
    "s['a'] + struct_extract(s, 'a') + {'b': 0.5}['b']": 2,
    "probs['k'] + map_extract(probs, 'k')[1] + element_at(probs, 'l')[1]": 0.4,
    "map_extract_value(probs, 'k') + map_values(probs)[2] + cardinality(probs)": 2.3,
    "map_contains(probs, 'k') AND map_keys(probs)[1] = 'k'": 1,
    "map(['a', 'b'], [1, 2])['b'] + MAP {'a': 3}['a']": 5,
    "CAST(j -> 'a' -> 'b' AS INT) + CAST(j ->> '$.c[1]' AS INT)": 8,
    "json_extract(j, '$.a.b')::INT + json_extract_string(j, '$.c[0]')::INT": 7,
    "json_array_length(j, '$.c') + json_value(j, '$.a.b')::INT": 5,
    "(json('{\"a\": 1}') ->> 'a')::INT": 1,
    # what SQL allows besides
    "p /* half */ * 0.5 -- done": 1.25,
    '"p" + P': 5,
}


@pytest.fixture(scope="module")
def connection() -> Any:  # noqa: ANN401 - DuckDB's type is private
    with duckdb.connect() as opened:
        opened.execute(f"CREATE TABLE log AS {ROW}")
        yield opened


@pytest.mark.parametrize("sql", NUMBERS)
def test_an_expression_of_one_row_has_its_number(sql: str, connection: Any) -> None:  # noqa: ANN401 - as above
    tree = exp.TryCast(this=parse_scalar(sql), to=exp.DataType.build("double"))
    text = exp.select(tree).from_("log").sql(dialect="duckdb")
    assert connection.execute(text).fetchall() == [(pytest.approx(NUMBERS[sql], rel=1e-12),)]


def test_every_listed_part_of_sql_is_among_these_expressions() -> None:
    nodes = [node for sql in NUMBERS for node in parse_scalar(sql).walk()]
    assert ALLOWED_FUNCTIONS - {type(node) for node in nodes} == set()
    calls = {node.name.lower() for node in nodes if isinstance(node, exp.Anonymous)}
    assert FUNCTION_NAMES - calls == set()


@pytest.mark.parametrize("sql", ["date_trunc('day', ts) = d", "probs['k'] + list_sum(xs)"])
def test_a_role_is_computed_as_written(sql: str) -> None:
    (expected,) = duckdb.execute(f"SELECT ({sql})::DOUBLE FROM ({ROW})").fetchone() or ()
    log = Log(f"{ROW}, 0.5 AS q", reward=sql, propensity="q")
    with DuckDB().open(log, {}) as rows:
        (moments,) = rows.moments(Needs(means=(REWARD,))).values()
    assert moments.mean(REWARD) == expected


# --- what is refused --------------------------------------------------------------------

PARTS = {
    # functions that reach beyond the row
    "reflect('java.lang.System', 'exit', 7)": "reflect()",
    "java_method('java.lang.System', 'getenv', 'HOME')": "java_method()",
    "try_reflect('java.lang.System', 'exit', 7)": "try_reflect()",
    "length(pg_read_file('/etc/passwd'))": "pg_read_file()",
    "\"pg_read_file\"('/etc/passwd')": '"pg_read_file"()',
    "pg_catalog.pg_read_file('/etc/passwd')": "pg_catalog.pg_read_file('/etc/passwd')",
    "pg_catalog.length('a')": "pg_catalog.length('a')",
    "x.upper()": "x.upper()",
    "(s).a": "(s).a",
    "lo_import('/etc/passwd')": "lo_import()",
    "dblink('host=other', 'SELECT 1')": "dblink()",
    "query_to_xml('DELETE FROM log', true, true, '')": "query_to_xml()",
    "delete_all_rows()": "delete_all_rows()",
    "read_text('/etc/passwd')": "read_text()",
    "length(getenv('HOME'))": "getenv()",
    "current_setting('temp_directory')": "current_setting()",
    "getvariable('x')": "getvariable()",
    "nextval('numbers')": "nextval()",
    "query('SELECT 1')": "query()",
    "pg_sleep(1000)": "pg_sleep()",
    "error('stop')": "error()",
    "x::regclass": "regclass",
    "TRY_CAST(x AS other.type)": "other.type",
    # functions that return another value each time
    "random()": "random()",
    "p + rand()": "rand()",
    "uuid()": "uuid()",
    "gen_random_uuid()": "gen_random_uuid()",
    "now() > ts": "now()",
    "current_timestamp": "current_timestamp()",
    "today()": "today()",
    "age(ts)": "age()",
    "txid_current()": "txid_current()",
    # more than one row, or no value
    "(SELECT max(p) FROM log)": "(SELECT MAX(p) FROM log)",
    "p IN (SELECT 1)": "(SELECT 1)",
    "EXISTS(FROM glob('*'))": "exists()",
    "max(p)": "max()",
    "p / sum(p) OVER ()": "SUM(p) OVER ()",
    "row_number() OVER ()": "ROW_NUMBER() OVER ()",
    "count(*)": "count()",
    "unnest(xs)": "unnest()",
    "columns(*)": "columns()",
    "COLUMNS('p.*') + 1": "COLUMNS()",
    "log.*": "*",
    "#1": "",
    "var_map(1)": "",
    "? + 1": "?",
    "$1": "$1",
    "list_transform(xs, lambda v: v + random())": "random()",
    "json_extract(j, '$[?(@.a > 1)]')": "json_extract(j, '$[?(@.a > 1)]')",
    "(" * 500 + "p" + ")" * 500: "brackets that are nested too deeply",
    # text that SQLGlot would write without quotes
    "time_bucket(d, ts, 'ts) = (SELECT 1')": "TS) = (SELECT 1",
    "last_day(d, 'd), evil(d')": "D), EVIL(D",
    "date_trunc('day), evil(ts', ts)": "DAY), EVIL(TS",
    """date_diff("day, evil()", d, ts)""": "DAY, EVIL()",
    """p::DECIMAL("9) + evil(1")""": "9) + EVIL(1",
    "extract('day FROM ts) + evil(' FROM ts)": "extract()",
    "sha2(x, '256(x), evil')": "sha2()",
    "sha2(x, '_evil')": "sha2()",
    "j -> 'a\\'": '."a\\"',
    "j ->> 'a.b'": "'$.a.b'",  # the key 'a.b' in DuckDB
    "j ->> 'c[0]'": "'$.c[0]'",
    "probs['a] + evil() + [b']": "probs['a] + evil() + [b']",
}


@pytest.mark.parametrize("sql", PARTS, ids=lambda sql: sql[:40])
def test_what_is_not_listed_is_refused_by_name(sql: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_scalar(sql)
    assert caught.value.part == PARTS[sql]
    assert caught.value.sql == sql


@pytest.mark.parametrize("dialect", ["duckdb", "spark", "postgres", "bigquery"])
def test_texts_stay_texts_in_every_dialect(dialect: str) -> None:
    r"""A backslash ends no text in DuckDB, and begins an escape in Spark."""
    sql = r"""'\' || "a`b" || ' || reflect(1) || ' /* ' */ || '*/ reflect(2)'"""
    tree = exp.select(parse_scalar(sql)).sql(dialect=dialect)
    again = sqlglot.parse_one(tree, dialect=dialect)
    texts = [node.this for node in again.find_all(exp.Literal)]
    assert sorted(texts) == sorted(["\\", " || reflect(1) || ", "*/ reflect(2)"])
    assert again.find(exp.Anonymous) is None


ODD_TEXTS = (
    "zq'`\"]) evil( \\",
    "$.zq\\",
    "zq, evil()",
)
DIALECTS = (
    *("bigquery", "clickhouse", "databricks", "duckdb", "hive", "postgres", "snowflake"),
    *("spark", "trino", "tsql"),
)


def odd_expressions(text: str) -> Iterator[Expr]:
    """Yield allowed expressions in which a text is one argument of a function, or its field."""
    names = {name.lower() for name in sqlglot.Dialect.get_or_raise("duckdb").parser().FUNCTIONS}
    quoted = exp.Literal.string(text).sql("duckdb")
    named = exp.to_identifier(text, quoted=True).sql("duckdb")
    calls = [
        f"{name}({', '.join([*'xyz'[:place], odd, *'uvw'[: size - 1 - place]])})"
        for name in sorted(names | FUNCTION_NAMES)
        for size in (1, 2, 3)
        for place in range(size)
        for odd in (quoted, named)
    ]
    fields = [
        f"extract({quoted} FROM x)", f"extract({named} FROM x)", f"x[{quoted}]",
        f"x -> {quoted}", f"x ->> {quoted}", f"x::DECIMAL({named})", f"{{{quoted}: 1}}",
        f"x AT TIME ZONE {quoted}", f"x LIKE 'a' ESCAPE {quoted}", f"trim({quoted} FROM x)",
        f"x::STRUCT({named} INT)", f"list_filter(x, lambda {named}: {named} > 1)",
    ]  # fmt: skip
    for sql in (*calls, *fields):
        with suppress(ExpressionError):
            yield parse_scalar(sql)


@pytest.mark.slow
@pytest.mark.parametrize("text", ODD_TEXTS)
def test_no_text_becomes_sql_in_any_dialect(text: str) -> None:
    """SQLGlot writes some arguments without quotes; no allowed text there is SQL."""
    found = []
    for tree in odd_expressions(text):
        for dialect in DIALECTS:
            try:
                written = tree.sql(dialect)
            except (ValueError, TypeError):  # it has no such function with these arguments
                continue
            try:
                names = [
                    token.text.lower() for token in sqlglot.tokenize(written, read=dialect)
                ]
            except sqlglot.errors.TokenError:  # a text has no end
                names = ["evil"]
            if "evil" in names:
                found.append(f"{dialect}: {written}")
    assert not found


# --- every role -------------------------------------------------------------------------

TABLE = pa.table(
    {
        "logger": ["a", "b"] * 4,
        "r": [0.0, 1.0, 0.5, 1.0] * 2,
        "q": [0.5] * 8,
        "t": [0.25, 0.75] * 4,
    }
)
ATTACKS = ["reflect('java.lang.System', 'exit', 7)", "t + random()", "columns(*)"]
ROLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # the name in the message: arguments of Log, arguments of evaluate
    "reward": ({"reward": "X"}, {}),
    "logger": ({"logger": "X"}, {}),
    "propensity": ({"propensity": "X"}, {}),
    "propensities['a']": ({"propensities": {"a": "X", "b": "q"}}, {}),
    "propensities['b']": ({"propensities": {"a": "q", "b": "X"}}, {}),
    "cluster": ({"cluster": "X"}, {}),
    "period": ({"period": "X", "propensities": {"a": "q", "b": "q"}}, {}),
    "mixture": ({"mixture": "X"}, {}),
    "target 'new'": ({}, {"targets": {"new": "X"}}),
    "by": ({"propensities": {"a": "q", "b": "q"}}, {"by": "X"}),
    "predicted_reward": ({}, {"model": ("X", {"new": "q"})}),
    "predicted_value['new']": ({}, {"model": ("q", {"new": "X"})}),
}


def filled(value: Any, attack: str) -> Any:  # noqa: ANN401 - a tree of texts
    """Put an expression in the place of X."""
    if isinstance(value, dict):
        return {key: filled(part, attack) for key, part in value.items()}
    if isinstance(value, tuple):
        return GivenModel(*(filled(part, attack) for part in value))
    return attack if value == "X" else value


def asked(role: str, attack: str, **source: Any) -> tuple[Log, dict[str, Any]]:  # noqa: ANN401 - as above
    """Return a log and the arguments of a verb, with an attack in one role."""
    roles, arguments = (filled(part, attack) for part in ROLES[role])
    plain = {"reward": "r", "logger": "logger", "propensity": "q"}
    return Log(**source | plain | roles), {"targets": {"new": "t"}} | arguments


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("role", ROLES)
def test_every_role_refuses_and_is_named(role: str, attack: str) -> None:
    log, arguments = asked(role, attack, source=TABLE)
    with pytest.raises(ExpressionError) as caught:
        evaluate(log, **arguments)
    assert caught.value.role == role


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_message_names_the_role_and_the_remedy(attack: str) -> None:
    log, arguments = asked("by", attack, source=TABLE)
    with refused(ExpressionError):
        evaluate(log, **arguments)


@pytest.mark.parametrize("dialect", ["duckdb", "spark", "postgres"])
@pytest.mark.parametrize("role", ["reward", "logger", "propensity", "cluster", "target 'new'"])
def test_a_printed_query_contains_none(role: str, dialect: str) -> None:
    for attack in ATTACKS:
        log, arguments = asked(role, attack, source="x")
        with pytest.raises(ExpressionError) as caught:
            query_text(log, "log", arguments["targets"], dialect)
        assert caught.value.role == role


@pytest.mark.parametrize("role", ["action", "eligible", "context"])
def test_roles_that_are_columns_take_no_expression(role: str) -> None:
    value: Any = ["random()"] if role == "context" else "random()"
    log = Log(TABLE, reward="r", logger="logger", propensity="q", **{role: value})
    with pytest.raises(MissingColumnError):
        evaluate(log, {"new": "t"})


@pytest.mark.parametrize("role", ["request", "position", "cluster", "reward", "target 'new'"])
def test_rankings_refuse_in_every_role(role: str) -> None:
    roles: dict[str, Any] = {"request": "id", "position": "1", "cluster": "id", "reward": "r"}
    roles |= {role: "random()"} if role in roles else {}
    targets = {"new": "t" if role in roles else "random()"}
    table = TABLE.append_column("id", pa.array(range(8)))
    with pytest.raises(ExpressionError) as caught:
        ranking_log(table, targets, propensity="q", logger="logger", **roles)
    assert caught.value.role == role


def test_a_label_of_the_rows_is_no_way_in() -> None:
    """A pattern of propensities puts labels, which are data, into an expression."""
    label = "random()"
    table = TABLE.set_column(0, "logger", pa.array([label] * 8))
    log = Log(table, reward="r", logger="logger", propensities="0 + {logger}")
    with pytest.raises(ExpressionError) as caught:
        evaluate(log, {"new": "t"})
    assert caught.value.part == "random()"


DIFFERENT = (
    *("log(p)", "dayofweek(d)", "isodow(d)", "dayname(d)", "monthname(d)", "weekday(d)"),
    *("extract(dow FROM d)", "date_part('dow', d)", "strftime(d, '%j')", "hash(p)"),
    *("xs[n]", "xs[-1]", "regexp_replace(s, 'a', 'b')", "date_diff('month', d, e)"),
)
ALIKE = ("log2(p)", "ln(p)", "xs[1]", "m['a']", "extract(year FROM d)", "date_trunc('day', d)")


@pytest.mark.parametrize("sql", DIFFERENT)
@pytest.mark.parametrize("dialect", ["spark", "postgres", "bigquery"])
def test_what_has_other_values_elsewhere_is_refused_there(sql: str, dialect: str) -> None:
    roles = {"reward": parse_scalar(sql)}
    refuse_different(roles, "duckdb", "DuckDB")
    with pytest.raises(UsageError, match="has other values in the database than in DuckDB"):
        refuse_different(roles, dialect, "the database")


@pytest.mark.parametrize("sql", ALIKE)
def test_what_has_the_same_values_elsewhere_is_not_refused(sql: str) -> None:
    refuse_different({"reward": parse_scalar(sql)}, "spark", "Spark")


def test_printed_queries_refuse_what_differs() -> None:
    log = Log("log.parquet", reward="log(p)", propensity="p")
    with pytest.raises(UsageError, match="LOG"):
        query_text(log, "log", {"t": "p"}, "spark")
