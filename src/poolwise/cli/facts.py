"""Facts: what the columns of a log hold, measured on a sample of its rows.

Names are fields of structs as well, with dots.  Whatever a guess needs to know about several
columns together, such as whether the values of one are keys of another, is one query here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import duckdb

Kind = Literal["number", "boolean", "text", "time", "distribution", "list", "other"]
SAMPLE_ROWS = 100_000  # evenly spaced in the log
MOST_LABELS = 200  # distinct values that are listed
MOST_KEYS = 500  # of distributions that are listed
ENOUGH = 0.999  # share of the rows for which something must hold
SUM_ERROR = 0.01  # of the probabilities of a distribution
NUMERIC = re.compile(
    r"(U?(TINY|SMALL|BIG|HUGE)?INT|INTEGER|FLOAT|DOUBLE|DECIMAL.*)", re.IGNORECASE
)
TIME = re.compile(r"(DATE|TIMESTAMP.*)", re.IGNORECASE)
WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
TRUTHS = {("false", "true"), ("f", "t"), ("no", "yes"), ("n", "y")}


@dataclass(frozen=True)
class Column:
    """A column or a field, and what its values are.

    Attributes:
        name: Name, with dots if it is a field of a struct.
        sql: The same in DuckDB's SQL.
        type: Type in DuckDB's words.
        kind: What its values are; the text of a number is a number.
        rows: Rows of the sample.
        nulls: Rows in which it is NULL.
        distinct: Number of distinct values.
        low: Smallest number, or number in a list.
        high: Largest number.
        whole: All numbers are whole.
        values: Distinct values as text, in order, if they are few; of a distribution its keys.
        truths: The two texts that mean false and true.
        logs: A distribution holds logarithms.
        form: Of a distribution: map, struct, json or list.
        size: Length of all lists, if they have the same length.
    """

    name: str
    sql: str
    type: str
    kind: Kind
    rows: int
    nulls: int = 0
    distinct: int = 0
    low: float | None = None
    high: float | None = None
    whole: bool = False
    values: tuple[str, ...] = ()
    truths: tuple[str, ...] = ()
    logs: bool = False
    form: str = ""
    size: int | None = None

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words of the last part of the name, in small letters."""
        return split_words(self.name.rpartition(".")[2])

    @property
    def binary(self) -> bool:
        """True if all values are 0 or 1, or false or true."""
        numbers = self.kind == "number" and self.whole and self.low == 0 and self.high == 1
        return self.kind == "boolean" or numbers or bool(self.truths)

    @property
    def is_number(self) -> bool:
        return self.kind == "number" and self.low is not None

    @property
    def is_label(self) -> bool:
        """True for few texts, whole numbers or truth values without NULL."""
        labels = self.kind in {"text", "boolean"} or (self.is_number and self.whole)
        return labels and not self.nulls and bool(self.values)

    @property
    def within_one(self) -> bool:
        """True for numbers from 0 to 1 that are not all 0 or 1."""
        if not self.is_number or self.low is None or self.high is None:
            return False
        return self.low >= 0 and self.high <= 1 and not (self.binary or self.whole)

    @property
    def below_zero(self) -> bool:
        """True for numbers that may be logarithms of probabilities."""
        return self.is_number and not self.whole and self.high is not None and self.high <= 0


def split_words(name: str) -> tuple[str, ...]:
    """Return the words of a name.

    >>> split_words("modelVersion"), split_words("p_v10"), split_words("RewardUSD")
    (('model', 'version'), ('p', 'v', '10'), ('reward', 'usd'))
    """
    return tuple(word.lower() for word in WORDS.findall(name))


@dataclass(frozen=True)
class Facts:
    """The columns of a log, and a connection that answers questions about them.

    Attributes:
        connection: DuckDB, with the views `log` and `sample`.
        rows: Rows of the log.
        columns: Columns by their names, fields of structs among them.
        types: Types of the columns of the source.
    """

    connection: duckdb.DuckDBPyConnection
    rows: int
    types: Mapping[str, str]
    columns: Mapping[str, Column] = field(default_factory=dict)

    @cached_property
    def sampled(self) -> int:
        """Rows of the sample."""
        return int(self.number("SELECT count(*) FROM sample"))

    def number(self, query: str) -> float:
        """Return the only number of a query; 0 for NULL."""
        found = self.connection.execute(query).fetchall()[0][0]
        return 0.0 if found is None else float(found)

    def share(self, condition: str) -> float:
        """Return the share of the sample's rows for which a condition holds."""
        return self.number(f"SELECT avg(coalesce(({condition})::INT, 0)) FROM sample")

    def holds(self, condition: str) -> bool:
        """Test if a condition holds for practically all rows of the sample."""
        return self.share(condition) >= ENOUGH

    def count(self, name: str) -> int:
        """Return the number of distinct values in the whole log."""
        return int(self.number(f"SELECT count(DISTINCT {self.columns[name].sql}) FROM log"))

    def labels(self, name: str, most: int = MOST_LABELS) -> tuple[str, ...]:
        """Return the distinct values in the whole log, as text."""
        lines = self.connection.execute(
            f"SELECT DISTINCT ({self.columns[name].sql})::VARCHAR AS label FROM log "
            f"WHERE label IS NOT NULL ORDER BY label LIMIT {most}"
        ).fetchall()
        return tuple(str(label) for (label,) in lines)


def read_facts(
    connection: duckdb.DuckDBPyConnection, types: Mapping[str, str], sampled: int = SAMPLE_ROWS
) -> Facts:
    """Measure the columns of the view `log`.

    Args:
        connection: DuckDB, with that view.
        types: Types of its columns.
        sampled: Rows of the sample, at most.
    """
    rows = int(connection.execute("SELECT count(*) FROM log").fetchall()[0][0])
    step = -(-rows // sampled) if rows else 1
    spaced = f"QUALIFY (row_number() OVER () - 1) % {step} = 0" if step > 1 else ""
    connection.execute(f"CREATE TEMP TABLE sample AS SELECT * FROM log {spaced}")
    facts = Facts(connection, rows, types)
    relation = connection.table("sample")
    found: dict[str, Column] = {}
    for name, kind in zip(relation.columns, relation.types, strict=True):
        for column in _leaves(facts, name, quote(name), kind):
            found[column.name] = column
    return Facts(connection, rows, types, found)


def quote(name: str) -> str:
    """Return a name as DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def _leaves(facts: Facts, name: str, sql: str, kind: Any) -> Iterator[Column]:  # noqa: ANN401 - a type of DuckDB
    """Yield a column; of a struct that does not hold a distribution, its fields."""
    if kind.id == "struct":
        found = _distribution(facts, name, sql, kind)
        if found is not None:
            yield found
            return
        for child, part in kind.children:
            yield from _leaves(facts, f"{name}.{child}", f"({sql}).{quote(child)}", part)
        return
    measured = _measure(facts, name, sql, kind)
    if measured is not None:
        yield measured


def _measure(facts: Facts, name: str, sql: str, kind: Any) -> Column | None:  # noqa: ANN401 - a type of DuckDB
    """Return what a column holds; None if it is empty."""
    text = str(kind)
    if kind.id in {"list", "array"}:
        return _distribution(facts, name, sql, kind) or _list(facts, name, sql, kind)
    if kind.id == "map":
        found = _distribution(facts, name, sql, kind)
        return found or Column(name, sql, text, "other", facts.sampled)
    if NUMERIC.fullmatch(text) or text == "BOOLEAN" or TIME.fullmatch(text):
        return _scalar(facts, name, sql, text)
    if text in {"VARCHAR", "JSON", "UUID"} or text.startswith("ENUM"):
        return _distribution(facts, name, sql, kind) or _scalar(facts, name, sql, text)
    return Column(name, sql, text, "other", facts.sampled)


def _scalar(facts: Facts, name: str, sql: str, text: str) -> Column | None:
    """Return numbers, truth values, times or texts; None if there are none."""
    plain = f"({sql})::VARCHAR"
    number = f"TRY_CAST({plain} AS DOUBLE)"
    dated = (
        f"TRY_CAST({plain} AS TIMESTAMP) IS NOT NULL AND regexp_matches({plain}, '^\\d{{4}}-')"
    )
    line = facts.connection.execute(
        f"SELECT count(*), count({sql}), count(DISTINCT {sql}), "
        f"count(*) FILTER (isfinite({number})), min({number}), max({number}), "
        f"bool_and({number} = floor({number})), count(*) FILTER ({dated}) FROM sample"
    ).fetchall()[0]
    rows, known, distinct, numbers, low, high, whole, times = line
    if not known:
        return None
    values: tuple[str, ...] = ()
    if distinct <= MOST_LABELS:
        listed = facts.connection.execute(
            f"SELECT DISTINCT {plain} AS value FROM sample WHERE {sql} IS NOT NULL "
            "ORDER BY value"
        ).fetchall()
        values = tuple(str(value) for (value,) in listed)
    shared = (rows, rows - known, distinct)
    if text == "BOOLEAN":
        return Column(name, sql, text, "boolean", *shared, values=values)
    if TIME.fullmatch(text) or times >= ENOUGH * known:
        return Column(name, sql, text, "time", *shared, values=values)
    if numbers >= ENOUGH * known:
        return Column(name, sql, text, "number", *shared, low, high, bool(whole), values)
    pair = tuple(sorted(value.lower() for value in values))
    truths = tuple(sorted(values, key=str.lower)) if pair in TRUTHS else ()
    return Column(name, sql, text, "text", *shared, values=values, truths=truths)


def _list(facts: Facts, name: str, sql: str, kind: Any) -> Column:  # noqa: ANN401 - a type of DuckDB
    """Return a list, with the range of its numbers."""
    entries = f"(SELECT unnest({sql}) AS x FROM sample)"
    number = "TRY_CAST(x::VARCHAR AS DOUBLE)"
    count, numbers, low, high, whole = facts.connection.execute(
        f"SELECT count(x), count({number}), min({number}), max({number}), "
        f"bool_and({number} = floor({number})) FROM {entries}"
    ).fetchall()[0]
    lengths = facts.connection.execute(
        f"SELECT min(len({sql})), max(len({sql})), count(*), count({sql}) FROM sample"
    ).fetchall()[0]
    size = lengths[0] if lengths[0] == lengths[1] else None
    shared: dict[str, Any] = {
        "rows": lengths[2],
        "nulls": lengths[2] - lengths[3],
        "size": size,
    }
    if count and numbers >= ENOUGH * count:
        shared |= {"low": low, "high": high, "whole": bool(whole)}
    return Column(name, sql, str(kind), "list", **shared)


def _forms(sql: str, kind: Any) -> tuple[str, str, str]:  # noqa: ANN401 - a type of DuckDB
    """Return the form of a distribution, the list of its numbers and that of its keys."""
    if kind.id == "map":
        return "map", f"TRY_CAST(map_values({sql}) AS DOUBLE[])", f"map_keys({sql})::VARCHAR[]"
    if kind.id == "struct":
        names = [child for child, _ in kind.children]
        parts = ", ".join(f"TRY_CAST(({sql}).{quote(n)} AS DOUBLE)" for n in names)
        keys = ", ".join("'" + n.replace("'", "''") + "'" for n in names)
        return "struct", f"[{parts}]", f"[{keys}]"
    if kind.id in {"list", "array"}:
        return "list", f"TRY_CAST({sql} AS DOUBLE[])", "NULL::VARCHAR[]"
    table = f"TRY_CAST(TRY_CAST({sql} AS JSON) AS MAP(VARCHAR, DOUBLE))"
    return "json", f"map_values({table})", f"map_keys({table})"


def _distribution(facts: Facts, name: str, sql: str, kind: Any) -> Column | None:  # noqa: ANN401 - a type of DuckDB
    """Return a distribution: numbers that sum to 1, or whose exponentials do, in each row."""
    form, numbers, keys = _forms(sql, kind)
    parts = [str(part) for _, part in kind.children] if form == "struct" else []
    if any(not NUMERIC.fullmatch(part) for part in parts):
        return None
    if form == "json" and not facts.number(
        f"SELECT count(*) FROM sample WHERE starts_with(ltrim(({sql})::VARCHAR), '{{')"
    ):
        return None
    total = f"abs(list_sum({{}}) - 1) <= {SUM_ERROR}"
    plain = total.format(numbers) + f" AND list_min({numbers}) >= 0"
    exponential = f"list_transform({numbers}, lambda x: exp(x))"
    logs = total.format(exponential) + f" AND list_max({numbers}) <= 0"
    known = f"{sql} IS NULL OR "
    holds = {log: facts.holds(known + rule) for log, rule in ((False, plain), (True, logs))}
    found = [log for log, held in holds.items() if held]
    if not found or facts.share(f"{sql} IS NOT NULL AND len({numbers}) > 1") < 1 - ENOUGH:
        return None
    listed: Sequence[tuple[Any, ...]] = facts.connection.execute(
        f"SELECT DISTINCT unnest({keys}) AS key FROM sample ORDER BY key LIMIT {MOST_KEYS}"
    ).fetchall()
    rows, nulls = facts.connection.execute(
        f"SELECT count(*), count(*) - count({sql}) FROM sample"
    ).fetchall()[0]
    names = tuple(str(key) for (key,) in listed if key is not None)
    return Column(
        name,
        sql,
        str(kind),
        "distribution",
        rows,
        nulls,
        values=names,
        logs=found[0],
        form=form,
    )
