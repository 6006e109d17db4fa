"""Shown items: the rows of a click log, by SQL, with what every request must keep.

`formats.clicks` opens a source here, fits the position bias to the sums of its clicks, and
turns it into a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from poolwise.engines import with_loggers
from poolwise.engines.base import FAULT_ADVICE
from poolwise.engines.clicks import lookup
from poolwise.errors import (
    NO_ROWS,
    Fault,
    LogError,
    MissingColumnError,
    UsageError,
)
from poolwise.log.clicks import Clicks, Curve, places
from poolwise.log.log import PART_LOGGER, PATTERN, Log, Source
from poolwise.log.requests import Requests
from poolwise.moments.buckets import BUCKETS
from poolwise.rows.guard import read_table
from poolwise.text import quote_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb
    import pyarrow as pa

    from poolwise.types import FloatArray, IntArray

WHOLE = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"}
MOST_MASKED = 63  # positions that a mask of bits finds twice
ADVICE = (
    "Correct these rows at their source, or leave their whole requests out, with a SELECT as "
    "the source."
)

# roles that the buckets of the position bias and the examinations rest on
FIXED = (
    *("reward", "logger", "propensity", "propensities", "cluster", "period", "trained_on"),
    *("estimate_mixture", "mixture", "log_probabilities", "densities", "on_fault"),
)


class ClickLog(NamedTuple):
    """A log of shown items and its targets, as `evaluate` and `compare` take them.

    Attributes:
        log: One row per shown item; shorter lists are padded.
        targets: The column of `log` that holds each target's examination of the item.
    """

    log: Log
    targets: dict[str, str]


class Units(NamedTuple):
    """Names of columns that are not roles of a `Log`."""

    request: str
    position: str | None
    click: str
    cluster: str | None


@contextmanager
def open_shown(
    source: Source,
    logger: str | None,
    ranks: Mapping[str, str] | str,
    targets: Mapping[str, str],
    units: Units,
    reader_options: Mapping[str, object] | None,
) -> Iterator[Shown]:
    """Open a source, look up its columns, and reject rows that break a rule."""
    from poolwise.engines.duckdb import DuckDB

    pattern = isinstance(ranks, str) and PATTERN in ranks
    if not pattern and not isinstance(ranks, Mapping):
        raise UsageError(
            "ranks must map rankers to columns, as in {'a': 'rank_a'}, or be a pattern such "
            f"as 'rank_{PATTERN}'; got {ranks!r}"
        )
    if isinstance(ranks, Mapping) and not all(isinstance(r, str) for r in ranks.values()):
        raise UsageError(
            "ranks must be columns or SQL expressions of the rank of the row's item"
        )
    bare = Log(
        source,
        reward="0",
        logger=logger,
        propensity="1",
        propensities=ranks if pattern else None,
        reader_options=reader_options or {},
    )
    if pattern:
        try:
            bare = with_loggers(bare)
        except LogError as error:
            faults = [
                replace(f, advice=f.advice.replace(FAULT_ADVICE, ADVICE)) for f in error.faults
            ]
            raise LogError(faults) from None
    by_label: Mapping[Any, Any] = ranks if isinstance(ranks, Mapping) else bare.by_label
    bare = replace(bare, propensities=None)
    with DuckDB().open(bare, {}) as rows:
        names = {str(i): text for i, text in by_label.items()}
        label = rows.table.logger.sql(dialect="duckdb")
        shown = Shown(rows.connection, bare, label, names, dict(targets), units)
        shown.check()
        yield shown


@dataclass(frozen=True, eq=False)
class Shown:
    """The shown items of a log, by SQL.

    Attributes:
        connection: The connection with the view `log` of the source.
        log: The source, with the role of the logger.
        label: SQL of the label of the ranker that made a list.
        ranks: Column or expression of the rank under each ranker of the rows.
        targets: The same under each target.
        units: Columns of the request, the position, the click and the cluster.
    """

    connection: duckdb.DuckDBPyConnection
    log: Log
    label: str
    ranks: Mapping[str, str]
    targets: Mapping[str, str]
    units: Units

    def run(self, text: str) -> pa.Table:
        """Run a query and return an Arrow table."""
        return read_table(self.connection, text)

    def lines(self, text: str) -> list[dict[str, Any]]:
        """Run a query and return its lines."""
        lines: list[dict[str, Any]] = self.run(text).to_pylist()
        return lines

    # --- columns --------------------------------------------------------------------------

    @cached_property
    def columns(self) -> list[str]:
        """Columns of the source."""
        names: list[str] = self.run("DESCRIBE log")["column_name"].to_pylist()
        return names

    @cached_property
    def texts(self) -> dict[str, str]:
        """SQL of each given column or expression, by its role; missing ones are reported."""
        from sqlglot import exp

        from poolwise.log.adapters import as_policy
        from poolwise.log.policy import find_expression

        units = {k: v for k, v in self.units._asdict().items() if v is not None}
        given = {**units, **self._policies}
        spelled = {name.lower() for name in self.columns}
        texts, missing = {}, dict[str, str]()
        for role, text in given.items():
            said = self._said.get(role, role)
            expression = find_expression(as_policy(text, self.columns, said))
            if expression is None:
                raise UsageError(f"{said} must be a column or an SQL expression, got {text!r}")
            for node in expression.find_all(exp.Column):
                if node.name.lower() not in spelled:
                    missing.setdefault(node.name, said)
            texts[role] = expression.sql(dialect="duckdb")
        if missing:
            raise MissingColumnError(missing, self.columns)
        return texts

    @cached_property
    def _policies(self) -> dict[str, str]:
        """Columns of ranks, by their names in `rows`."""
        own = {f"rank_{k}": text for k, text in enumerate(self.ranks.values())}
        return own | {f"target_rank_{k}": text for k, text in enumerate(self.targets.values())}

    @property
    def _said(self) -> dict[str, str]:
        """Words for the roles of ranks in messages."""
        own = {f"rank_{k}": f"ranks of {name!r}" for k, name in enumerate(self.ranks)}
        return own | {f"target_rank_{k}": f"target {n!r}" for k, n in enumerate(self.targets)}

    @cached_property
    def types(self) -> dict[str, str]:
        """DuckDB's type of each role."""
        roles = [*self._policies, "click", *(["position"] if self.units.position else [])]
        fields = ", ".join(f"({self.texts[role]}) AS {role}" for role in roles)
        lines = self.run(f"DESCRIBE SELECT {fields} FROM log").to_pylist()
        return {line["column_name"]: str(line["column_type"]) for line in lines}

    @cached_property
    def listed(self) -> bool:
        """True if a row is a request, with lists of items."""
        roles = [*self._policies, "click"]
        kinds = {role: self.types[role].endswith("]") for role in roles}
        if len(set(kinds.values())) > 1:
            odd = [role for role, kind in kinds.items() if kind != kinds["click"]]
            raise UsageError(
                "clicks and ranks must all be lists, one row for each request, or all be "
                f"numbers, one row for each shown item: {self.texts['click']!r} and "
                f"{self.texts[odd[0]]!r} are not alike"
            )
        if kinds["click"] and self.units.position is not None:
            raise UsageError("position must be left out if a row is a request with lists")
        if not kinds["click"] and self.units.position is None:
            raise UsageError("position is required if a row is a shown item")
        return kinds["click"]

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Other columns of the source, which stay in the log for `by`."""
        from sqlglot import exp, parse_one

        roles = ["click", *self._policies]
        read = {
            node.name.lower()
            for role in roles
            for node in parse_one(self.texts[role], dialect="duckdb").find_all(exp.Column)
        }
        return tuple(c for c in self.columns if c.lower() not in {*read, PART_LOGGER.lower()})

    @property
    def cluster(self) -> str:
        """SQL of the cluster."""
        return self.texts.get("cluster", self.texts["request"])

    def rows(self, *, checked: bool = True, kept: bool = False) -> str:
        """Select the shown items: request, cluster, code of the ranker, slot, click and ranks.

        Args:
            checked: Whether ranks are known to be whole numbers; doubles before that.
            kept: Whether to select the other columns of the source, too.
        """
        code = " ".join(f"WHEN {_text(i)} THEN {k}" for k, i in enumerate(self.ranks))
        code = f"CASE CAST({self.label} AS VARCHAR) {code} ELSE -1 END"
        others = "".join(f", {_quoted(c)} AS kept_{k}" for k, c in enumerate(self.kept) if kept)
        head = f"({self.texts['request']}) AS request, ({self.cluster}) AS unit, {code} AS code"
        if self.listed:
            return self._from_lists(head, others)
        slot, click = (self._number(r, checked=checked) for r in ("position", "click"))
        ranks = "".join(f", {self._rank(r, checked=checked)} AS {r}" for r in self._policies)
        return f"SELECT {head}, {slot} AS slot, {click} AS click{ranks}{others} FROM log"

    def _number(self, role: str, *, checked: bool) -> str:
        """Return SQL of a role as a number; whole numbers need no cast."""
        if self.types[role] in WHOLE:
            return f"({self.texts[role]})"
        return f"TRY_CAST(({self.texts[role]}) AS {'INTEGER' if checked else 'DOUBLE'})"

    def _rank(self, role: str, *, checked: bool) -> str:
        """Return SQL of a rank, 0 for NULL, and -1 for other texts."""
        number = self._number(role, checked=checked)
        if checked or self.types[role] in WHOLE:
            return f"coalesce({number}, 0)"
        return f"CASE WHEN ({self.texts[role]}) IS NULL THEN 0 ELSE coalesce({number}, -1) END"

    def _from_lists(self, head: str, others: str) -> str:
        """Select the shown items of requests with lists."""
        lists = "".join(f", ({self.texts[role]}) AS {role}" for role in self._policies)
        own = " ".join(f"WHEN {k} THEN rank_{k}" for k in range(len(self.ranks)))
        kept = "".join(f", kept_{k}" for k in range(len(self.kept)) if others)
        ranks = "".join(
            f", coalesce(list_position({role}, shown[slot]), 0) AS {role}"
            for role in self._policies
        )
        repeats = " OR ".join(
            f"len({role}) > len(list_distinct({role}))" for role in self._policies
        )
        return f"""
SELECT request, unit, code, slot, TRY_CAST(clicks[slot] AS DOUBLE) AS click,
    repeats OR coalesce(len(shown), 0) = 0 OR len(clicks) IS DISTINCT FROM len(shown) AS odd
    {ranks}{kept}
FROM (
    SELECT *, unnest(range(1, greatest(len(shown), 1) + 1)) AS slot, {repeats} AS repeats
    FROM (
        SELECT *, CASE code {own} END AS shown
        FROM (SELECT {head}, ({self.texts["click"]}) AS clicks{lists}{others} FROM log)
    )
)"""

    # --- rules ----------------------------------------------------------------------------

    def check(self) -> None:
        """Reject rankers without rows, and requests that break a rule."""
        self._check_rankers()
        faults = [
            Fault(rule, "", line["in_rows"], self._example(line), ADVICE)
            for line in self._judged
            if line["rule"] is not None
            for rule in [self._rule(line)]
        ]
        if faults:
            raise LogError(faults)

    def _check_rankers(self) -> None:
        counts = self.run(
            f"SELECT CAST({self.label} AS VARCHAR) AS label, count(*) AS n FROM log GROUP BY 1"
        ).to_pylist()
        labels = {line["label"] for line in counts}
        if not labels:
            raise LogError([NO_ROWS])
        if None in labels:
            rows = sum(line["n"] for line in counts if line["label"] is None)
            raise LogError([Fault("the logger is null", "", rows, {}, ADVICE)])
        unranked = sorted(i for i in labels if i not in self.ranks)
        if unranked:
            raise UsageError(
                "ranks must name every ranker of the rows, and "
                f"{quote_names(unranked, 'rankers')} {'is' if len(unranked) == 1 else 'are'} "
                "missing"
            )
        never = [i for i in self.ranks if i not in labels]
        if never:
            raise UsageError(
                f"ranks name {quote_names(never, 'rankers')}, which made no list of the log: "
                "leave rankers out that were never logged, or give them as targets"
            )

    @cached_property
    def _judged(self) -> list[dict[str, Any]]:
        """Number of requests that break each rule, with an example; None for those of none.

        Most logs break none, which two light queries show.
        """
        (line,) = self.lines(SCANNED.format(rows=self.rows(checked=False), **self._rules))
        last = int(line["last"] or 0) if line["clean"] else 0
        if 0 < last <= MOST_MASKED and line["deepest"] <= last:
            (sizes,) = self.lines(self._light(last))
            if not sizes["broken"]:
                return [{"rule": None, "last": last, **sizes}]
        masked = last <= MOST_MASKED
        return self.lines(
            CHECKED.format(
                rows=self.rows(checked=False),
                slots=_distinct("slot", masked=masked),
                **self._rules,
                twice=" OR ".join(
                    f"{_distinct(r, masked=masked)} <> count_if({r} > 0)"
                    for r in self._policies
                ),
            )
        )

    @property
    def _rules(self) -> dict[str, str]:
        """SQL of what a row or a request must not do."""
        split = "min(unit) IS DISTINCT FROM max(unit) OR count(unit) NOT IN (0, count(*))"
        return {
            "own": " ".join(f"WHEN {k} THEN rank_{k}" for k in range(len(self.ranks))),
            "unranked": " OR ".join(f"{r} < 0 OR {r} <> floor({r})" for r in self._policies),
            "deepest": f"greatest({', '.join(self._policies)}, 0)",
            "unplaced": "coalesce(slot <> floor(slot) OR abs(slot) > 1e9, true)",
            "unclear": "coalesce(click NOT IN (0, 1), true)",
            "odd": "odd" if self.listed else "false",
            "split": split if self.units.cluster is not None else "false",
        }

    def _light(self, last: int) -> str:
        """Count requests that break a rule, where every row keeps its own rules.

        Ranks are bits of as few numbers as hold them: a list without an item twice has as many
        bits as ranks. The position of a row is its rank under its own ranker.
        """
        each, fields = MOST_MASKED // last, list(self._policies)
        bits = [  # a rank of 0 has none
            f"(((1::UBIGINT << {r}::UBIGINT) >> 1::UBIGINT) << {k % each * last}::UBIGINT)"
            for k, r in enumerate(fields)
        ]
        words = [" | ".join(bits[k : k + each]) for k in range(0, len(bits), each)]
        distinct = " + ".join(f"bit_count(bit_or({word}))::INTEGER" for word in words)
        shown = " + ".join(f"({r} > 0)::INTEGER" for r in fields)
        return f"""
SELECT count_if(mixed OR last_slot <> size OR bits <> ranks) AS broken,
    min(size) AS shortest, max(size) AS longest
FROM (
    SELECT count(*) AS size, max(slot) AS last_slot, {distinct} AS bits,
        sum({shown}) AS ranks, min(code) <> max(code) OR ({self._rules["split"]}) AS mixed
    FROM ({self.rows()}) GROUP BY request
)"""

    def _example(self, line: Mapping[str, Any]) -> dict[str, object]:
        return {} if line["example"] is None else {self.units.request: line["example"]}

    def _rule(self, line: Mapping[str, Any]) -> str:
        requests = f"{line['requests']:,} request{'' if line['requests'] == 1 else 's'}"
        return RULES[line["rule"]].format_map({**line, "requests": requests})

    @property
    def _sizes(self) -> dict[str, Any]:
        """Numbers of the requests that break no rule."""
        return next(line for line in self._judged if line["rule"] is None)

    @property
    def last(self) -> int:
        """Last position of all lists."""
        return int(self._sizes["last"])

    # --- the position bias ----------------------------------------------------------------

    @cached_property
    def _by_bucket(self) -> tuple[IntArray, dict[str, int]]:
        """Buckets with requests, and the requests of each ranker."""
        found = self.run(
            f"SELECT {self._bucket} AS bucket, code, count(*) AS n FROM ({self.rows()}) "
            "WHERE slot = 1 GROUP BY ALL"
        )
        code, count = (found[c].to_numpy().astype(np.int64) for c in ("code", "n"))
        requests = np.bincount(code, count, len(self.ranks)).astype(int).tolist()
        buckets = np.unique(found["bucket"].to_numpy().astype(np.int64))
        return buckets, dict(zip(self.ranks, requests, strict=True))

    @property
    def _bucket(self) -> str:
        return f"hash(CAST(unit AS VARCHAR)) % {BUCKETS}"

    @property
    def requests(self) -> dict[str, int]:
        """Requests of each ranker."""
        return self._by_bucket[1]

    @cached_property
    def sums(self) -> FloatArray:
        """Clicks at each position on items that some ranker shows at another, by bucket."""
        ranks = [f"rank_{k}" for k in range(len(self.ranks))]
        requests = " + ".join(
            f"CASE WHEN {r} = slot THEN {n}e0 ELSE 0e0 END"
            for r, n in zip(ranks, self.requests.values(), strict=True)
        )
        found = self.run(f"""
SELECT bucket, slot, other, sum(1 / requests) AS clicks
FROM (
    SELECT {self._bucket} AS bucket, slot, {requests} AS requests,
        unnest(list_distinct([{", ".join(ranks)}])) AS other
    FROM ({self.rows()}) WHERE click = 1
)
WHERE other > 0 AND other <> slot GROUP BY ALL ORDER BY ALL""")
        buckets = self._by_bucket[0]
        sums = np.zeros((len(buckets), self.last, self.last))
        columns = (found[c].to_numpy().astype(np.int64) for c in ("bucket", "slot", "other"))
        bucket, slot, other = columns
        sums[np.searchsorted(buckets, bucket), slot - 1, other - 1] = found["clicks"].to_numpy()
        return sums

    def fit(self) -> Curve:
        """Return the position bias; raise if positions are not connected."""
        curve = Curve.fit(self.sums)
        if curve.unconnected:
            raise UsageError(
                f"the position bias of {places(curve.unconnected)} cannot be estimated: no "
                "chain of items that rankers show at different positions, with clicks at both "
                "in several requests, connects "
                f"{'it' if len(curve.unconnected) == 1 else 'them'} to position 1. Cut the "
                "lists above, collect more requests, or give the position bias (bias={1: 1.0, "
                "2: ...})."
            )
        return curve

    # --- the log --------------------------------------------------------------------------

    def as_log(self, curve: Curve, worth: tuple[float, ...], *, estimated: bool) -> ClickLog:
        """Return the log of shown items."""
        ranked = {name: f"target_rank_{k}" for k, name in enumerate(self.targets)}
        twice = [name for name in self.targets if worth and name in self.ranks]
        if twice:
            raise UsageError(
                f"the target {twice[0]!r} must not have the name of a ranker: where clicks "
                "count by `worth`, the rankers are among the targets"
            )
        if worth:
            ranked = {i: f"rank_{k}" for k, i in enumerate(self.ranks)} | ranked
        values = np.array(worth) if worth else np.ones(self.last)
        scale = max(float((curve.examination * v).max()) for v in (values, np.ones(self.last)))
        target_columns = {name: f"target_{k}" for k, name in enumerate(ranked)}
        examined = {
            f"examination_{k}": lookup(f"rank_{k}", curve.examination / scale)
            for k in range(len(self.ranks))
        }
        examined |= {
            target_columns[name]: lookup(role, curve.examination * values / scale)
            for name, role in ranked.items()
        }
        names = self._own_names([*examined, *self._policies])
        source = self._source(names, examined)
        ranks = {
            names[f"examination_{k}"]: names[f"rank_{k}"] for k in range(len(self.ranks))
        } | {names[target_columns[name]]: names[role] for name, role in ranked.items()}
        log = Log(
            source,
            logger=names["logger"],
            reward=names["reward"],
            propensities={i: names[f"examination_{k}"] for k, i in enumerate(self.ranks)},
            cluster=names["cluster"],
            requests=Requests(names["request"], int(self._sizes["longest"])),
        )
        clicks = Clicks(
            curve=curve,
            ranks=ranks,
            position=names["position"],
            buckets=BUCKETS,
            numbers=self._by_bucket[0],
            sums=self.sums if estimated else None,
            values=worth,
            roles={role: getattr(log, role) for role in FIXED},
        )
        columns = {name: names[c] for name, c in target_columns.items()}
        return ClickLog(replace(log, clicks=clicks), columns)

    def _own_names(self, others: Sequence[str]) -> dict[str, str]:
        """Return the name of each column of a role, which no other column has."""
        given = {"request": self.units.request, "cluster": self.units.cluster or ""}
        given |= {"position": self.units.position or "", "logger": self.log.logger or ""}
        names = {}
        for role in ("request", "logger", "cluster", "position", "reward", *others):
            taken = {c.lower() for c in self.kept if c.lower() != given.get(role, "").lower()}
            names[role] = role
            while names[role].lower() in taken:
                names[role] += "_"
        return names

    def _source(self, names: Mapping[str, str], examined: Mapping[str, str]) -> object:
        """Return the rows: a query, or an Arrow table."""
        longest, shortest = int(self._sizes["longest"]), int(self._sizes["shortest"])
        labels = " ".join(f"WHEN {k} THEN {_text(i)}" for k, i in enumerate(self.ranks))
        selected = {
            "request": "request",
            "logger": f"CASE code {labels} END",
            "cluster": "unit",
            "position": "slot",
            "reward": f"click * {longest}e0",
            **examined,
            **{role: role for role in self._policies},
        }
        taken = {name.lower() for name in names.values()}
        kept = {k: c for k, c in enumerate(self.kept) if c.lower() not in taken}
        padding = {role: "1e0" if role in examined else text for role, text in selected.items()}
        padding |= {"position": "CAST(NULL AS INTEGER)", "reward": "0e0"}
        padding |= dict.fromkeys(self._policies, "0")

        def fields(columns: Mapping[str, str]) -> str:
            own = [f"{text} AS {_quoted(names[role])}" for role, text in columns.items()]
            return ", ".join([*own, *(f"kept_{k} AS {_quoted(c)}" for k, c in kept.items())])

        query = f"SELECT {fields(selected)} FROM ({self.rows(kept=True)})"
        if shortest < longest:
            firsts = ["unit", "code", *(f"kept_{k}" for k in kept)]
            once = ", ".join(f"first({name}) AS {name}" for name in firsts)
            query += f"""
UNION ALL SELECT {fields(padding)} FROM (
    SELECT *, unnest(range({longest} - size)) FROM (
        SELECT request, {once}, count(*) AS size
        FROM ({self.rows(kept=True)}) GROUP BY request HAVING count(*) < {longest}
    )
)"""
        definition = "SELECT sql FROM duckdb_views() WHERE view_name = 'log'"
        view = str(self.run(definition)["sql"][0])
        body = view.partition(" AS ")[2].rstrip(";\n ")
        text = f"WITH log AS (\n{body}\n)\nFROM (\n{query}\n)"
        lasting = all(part.kind in {"parquet", "select"} for part in self.log.parts)
        return text if lasting else self.run(text)


def _distinct(name: str, *, masked: bool) -> str:
    """Return SQL of the number of distinct positive values."""
    if not masked:
        return f"count(DISTINCT {name}) FILTER ({name} > 0)"
    bit = f"1::UBIGINT << (CAST({name} AS INTEGER) - 1)::UBIGINT"
    listed = f"{name} BETWEEN 1 AND {MOST_MASKED}"
    return f"bit_count(bit_or(CASE WHEN {listed} THEN {bit} ELSE 0::UBIGINT END))"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


SCANNED = """
SELECT max(slot) AS last, max({deepest}) AS deepest, coalesce(bool_and(NOT (
    request IS NULL OR {unplaced} OR slot < 1 OR {odd} OR {unclear} OR {unranked}
    OR CASE code {own} END <> slot
)), false) AS clean
FROM ({rows})
"""
# Each request counts once, for the first rule that it breaks.
CHECKED = """
WITH requests AS (
    SELECT
        request, count(*) AS size, min(slot) AS first_slot, max(slot) AS last_slot,
        count_if({unplaced}) AS unplaced,
        min(code) <> max(code) AS shared, {slots} AS slots, bool_or({odd}) AS odd,
        count_if({unclear}) AS unclear,
        bool_or({unranked}) AS unranked,
        bool_or(CASE code {own} END <> slot) AS replayed,
        {twice} AS twice, max({deepest}) AS deepest, {split} AS split
    FROM ({rows}) GROUP BY request
), lists AS (
    SELECT *, max(last_slot) OVER () AS last FROM requests
), judged AS (
    SELECT *, CASE
        WHEN request IS NULL THEN 0
        WHEN unplaced > 0 THEN 1
        WHEN shared THEN 2
        WHEN odd THEN 3
        WHEN slots < size AND first_slot > 0 THEN 4
        WHEN first_slot <> 1 OR last_slot <> size THEN 5
        WHEN unclear > 0 THEN 6
        WHEN unranked THEN 7
        WHEN replayed THEN 8
        WHEN twice THEN 9
        WHEN deepest > last THEN 10
        WHEN split THEN 11
    END AS rule FROM lists
)
SELECT rule, count(*) AS requests, sum(size)::BIGINT AS in_rows, min(request) AS example,
    min(size) AS shortest, max(size) AS longest, max(last)::BIGINT AS last,
    max(deepest)::BIGINT AS deepest
FROM judged GROUP BY rule ORDER BY rule
"""
RULES = (
    "the request is null",
    "{requests} with a position that is null or not a whole number",
    "{requests} with rows of several rankers",
    (
        "{requests} with no item in the list, an item twice in a list, or another number of "
        "clicks than items"
    ),
    "{requests} with a position more than once",
    "{requests} whose positions do not run from 1 without a gap",
    "{requests} with a click that is neither 0 nor 1",
    "{requests} with a rank that is not a whole number from 0",
    "{requests} with a rank under the ranker of the list that is not the position of the row",
    "{requests} with two items at the same rank, or an item twice in a list",
    (
        "{requests} with a rank down to {deepest}, where no position below {last} was logged: "
        "give such items rank 0"
    ),
    "{requests} with rows in several clusters",
)
