"""Decisions: a log format of our own, in JSON lines, for services that have none yet.

Each line is a decision, or an outcome that came of one later.  docs/schema has the JSON schema
`poolwise-decisions-1`; this module checks the same rules with one query of DuckDB, and counts
the lines that break each of them.  Later versions will have another number, and this reader
will go on reading version 1.
"""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING, NamedTuple

from poolwise.errors import Fault, LogError, SourceError
from poolwise.formats.lists import quoted
from poolwise.formats.outcomes import Aggregate, join_outcomes
from poolwise.formats.vw import Paths, list_files
from poolwise.log.log import Log
from poolwise.log.problems import UTC
from poolwise.rows.sources import literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    import duckdb
    import pyarrow as pa

SCHEMA = "poolwise-decisions-1"
ENDINGS = ("*.jsonl", "*.ndjson", "*.json", "*.jsonl.gz", "*.ndjson.gz", "*.json.gz")
OF_DECISIONS = (
    *("schema", "id", "time", "logger", "action", "propensity", "propensities", "targets"),
    *("reward", "unit", "eligible", "context"),
)
OF_OUTCOMES = ("schema", "decision", "time", "reward")
FIELDS = tuple(dict.fromkeys([*OF_DECISIONS, *OF_OUTCOMES]))
OBJECTS = ("propensities", "targets", "context")
ADVICE = f"The file must follow {SCHEMA}, which docs/schema/{SCHEMA}.json describes."
MACROS = """
    CREATE TEMP MACRO kind(x) AS json_type(x);
    CREATE TEMP MACRO is_text(x) AS coalesce(kind(x) = 'VARCHAR', false);
    CREATE TEMP MACRO is_number(x) AS coalesce(kind(x) IN ('DOUBLE', 'BIGINT', 'UBIGINT')
        AND isfinite(TRY_CAST(x AS DOUBLE)), false);
    CREATE TEMP MACRO is_name(x) AS coalesce(kind(x) IN ('VARCHAR', 'BIGINT', 'UBIGINT'), false)
        AND x->>'$' <> '';
    CREATE TEMP MACRO is_chance(x) AS is_number(x)
        AND TRY_CAST(x AS DOUBLE) BETWEEN 0 AND 1;
    CREATE TEMP MACRO parts(x) AS list_transform(json_keys(x),
        lambda k: json_extract(x, '$."' || replace(k, '"', '\\"') || '"'));
    CREATE TEMP MACRO is_chances(x) AS is_chance(x) OR coalesce(kind(x) = 'OBJECT'
        AND len(parts(x)) > 0 AND len(list_filter(parts(x), lambda v: NOT is_chance(v))) = 0,
        false);
    CREATE TEMP MACRO is_time(x) AS is_text(x)
        AND TRY_CAST(x->>'$' AS TIMESTAMPTZ) IS NOT NULL;
    CREATE TEMP MACRO entry(x, k) AS json_extract(x, '$."' || replace(k, '"', '\\"') || '"');
"""
UNKNOWN = "the line has a field that the schema does not have"
# Reasons why a line is refused, with the condition in SQL; the first that holds counts.
REASONS: Mapping[str, str] = {
    "the line is not JSON": "line IS NULL",
    "the line is not a JSON object": "kind(line) <> 'OBJECT'",
    f"`schema` must be {SCHEMA!r}": f"NOT is_text(schema) OR schema->>'$' <> {literal(SCHEMA)}",
    "a line must have either `action` (a decision) or `decision` (an outcome)": (
        "(action IS NULL) = (decision IS NULL)"
    ),
    UNKNOWN: "unknown IS NOT NULL",
    "`time` must be a text such as '2026-01-31T12:00:00Z'": (
        "time IS NOT NULL AND NOT is_time(time)"
    ),
    "`reward` must be a finite number": "reward IS NOT NULL AND NOT is_number(reward)",
    "`decision` must be a text or a whole number": (
        "decision IS NOT NULL AND NOT is_name(decision)"
    ),
    "an outcome must have a `reward`": "decision IS NOT NULL AND reward IS NULL",
    "`action` must be a text or a whole number": "action IS NOT NULL AND NOT is_name(action)",
    "a decision must have a `logger`, a text or a whole number": (
        "action IS NOT NULL AND (logger IS NULL OR NOT is_name(logger))"
    ),
    "`id` must be a text or a whole number": "id IS NOT NULL AND NOT is_name(id)",
    "`unit` must be a text or a whole number": "unit IS NOT NULL AND NOT is_name(unit)",
    **{
        f"`{name}` must be an object": f"{name} IS NOT NULL AND kind({name}) <> 'OBJECT'"
        for name in OBJECTS
    },
    "`eligible` must be a list of actions": (
        "eligible IS NOT NULL AND (kind(eligible) <> 'ARRAY' OR len(list_filter("
        "json_extract(eligible, '$[*]'), lambda v: NOT is_name(v))) > 0)"
    ),
    "a decision must have a `propensity`, or `propensities` with its logger": (
        "action IS NOT NULL AND propensity IS NULL "
        "AND coalesce(entry(propensities, logger->>'$'), 'null') = 'null'"
    ),
    "`propensity` must be a number from 0 to 1, or an object of such numbers": (
        "propensity IS NOT NULL AND NOT is_chances(propensity)"
    ),
    **{
        f"`{name}` must map names to numbers from 0 to 1, or to objects of such numbers": (
            f"{name} IS NOT NULL AND len(list_filter(parts({name}), "
            "lambda v: NOT is_chances(v))) > 0"
        )
        for name in ("propensities", "targets")
    },
}


class LoggedDecisions(NamedTuple):
    """A log of decisions and the targets that its lines have, as the verbs take them.

    Attributes:
        log: The decisions, with their rewards.
        targets: Column of each target.
    """

    log: Log
    targets: dict[str, str]


def from_decisions(
    paths: Paths,
    *,
    window: str | timedelta | None = None,
    aggregate: Aggregate = "sum",
    missing: float = 0.0,
    until: str | datetime | None = None,
    timezone: str = UTC,
) -> LoggedDecisions:
    """Read decisions, and outcomes that came later, from JSON lines of our own schema.

    The rows have the columns id, time, logger, action, propensity, reward, unit and eligible,
    as far as the lines have these fields, and one column for each entry of `context`,
    `propensities` and `targets`, such as ``context.country``. If there are lines of outcomes,
    `join_outcomes` adds them up by decision.

    Args:
        paths: A file, a folder or a list of them, with decisions and outcomes in any order.
        window: Longest time from a decision to an outcome that counts, as for `join_outcomes`.
        aggregate: What makes one reward of several outcomes.
        missing: Reward of a decision without an outcome.
        until: Time up to which outcomes are recorded.
        timezone: Zone of times without one.

    Raises:
        LogError: Lines break the schema; all rules together, with an example of each.
    """
    import duckdb

    files = list_files(paths, ENDINGS)
    names = ", ".join(map(str, files))
    with duckdb.connect() as connection:
        connection.execute(f"SET TimeZone = {literal(timezone)}")
        connection.execute(MACROS)
        lines = literal([glob.escape(str(path)) for path in files])
        try:
            connection.execute(_table(lines))
        except duckdb.Error as error:
            raise SourceError(names, str(error)) from error
        _refuse_lines(connection)
        decisions = connection.sql(_decisions(connection)).to_arrow_table()
        outcomes = connection.sql("""
            SELECT decision->>'$' AS decision, TRY_CAST(time->>'$' AS TIMESTAMPTZ) AS time,
                TRY_CAST(reward AS DOUBLE) AS reward
            FROM lines WHERE decision IS NOT NULL""").to_arrow_table()
    log = _log(decisions, timezone)
    targets = {
        name.removeprefix("targets."): name
        for name in decisions.column_names
        if name.startswith("targets.")
    }
    if len(outcomes):
        _refuse_rewards(decisions)
        times = outcomes["time"].null_count < len(outcomes) and "time" in decisions.column_names
        log = join_outcomes(
            log,
            outcomes,
            key="id",
            outcome_key="decision",
            time="time" if times else None,
            window=window,
            aggregate=aggregate,
            missing=missing,
            until=until,
        ).log
    return LoggedDecisions(log, targets)


def _table(files: str) -> str:
    """Return the statement that reads all lines, with the reason to refuse each."""
    fields = [f"$.{name}" for name in FIELDS]
    values = ", ".join(f"nullif(v[{k}], 'null') AS {name}" for k, name in enumerate(FIELDS, 1))
    rules = "".join(f" WHEN {rule} THEN {literal(why)}" for why, rule in REASONS.items())
    known = f"if(action IS NULL, {literal(OF_OUTCOMES)}, {literal(OF_DECISIONS)})"
    other = f"list_filter(json_keys(line), lambda k: NOT list_contains({known}, k))[1]"
    return f"""
        CREATE TEMP TABLE lines AS
        WITH split AS (
            SELECT json AS line, filename, json_extract(json, {literal(fields)}) AS v
            FROM read_json_objects({files}, format = 'newline_delimited',
                ignore_errors = true, filename = true)
        ), named AS (SELECT line, parse_filename(filename) AS file, {values} FROM split),
        checked AS (SELECT *, {other} AS unknown FROM named)
        SELECT *, CASE{rules} END AS reason FROM checked"""


def _refuse_lines(connection: duckdb.DuckDBPyConnection) -> None:
    """Raise if lines break a rule, if two decisions have one ID, or if there is none."""
    counts = connection.execute("""
        SELECT reason, count(*), first(file ORDER BY rowid),
            coalesce(first(unknown ORDER BY rowid),
                left(first(line ORDER BY rowid)::VARCHAR, 200))
        FROM lines WHERE reason IS NOT NULL GROUP BY reason ORDER BY min(rowid)
    """).fetchall()
    faults = [
        Fault(why, "", count, _example(why, file, text), ADVICE)
        for why, count, file, text in counts
    ]
    twice = connection.execute("""
        SELECT coalesce(sum(n), 0), min(name) FROM (
            SELECT id->>'$' AS name, count(*) AS n FROM lines
            WHERE id IS NOT NULL AND action IS NOT NULL GROUP BY name HAVING n > 1)
    """).fetchall()[0]
    if twice[0]:
        rule = "decisions with the same `id`"
        faults.append(Fault(rule, "", int(twice[0]), {"id": twice[1]}, ADVICE))
    known = connection.execute("SELECT count(action), count(decision), count(id) FROM lines")
    decisions, outcomes, ids = known.fetchall()[0]
    if not faults and not decisions:
        faults.append(Fault("there is no decision in these files", "", 0))
    if not faults and outcomes and ids < decisions:
        rule = "decisions without an `id`, in files with outcomes"
        faults.append(Fault(rule, "", decisions - ids, {}, ADVICE))
    if faults:
        raise LogError(faults)


def _example(why: str, file: str, text: str | None) -> dict[str, object]:
    """Return an example of a broken rule: the line, or the field that no line has."""
    name = "field" if why == UNKNOWN else "line"
    return {"file": file, name: text} if text else {"file": file}


def _refuse_rewards(decisions: pa.Table) -> None:
    """Refuse decisions with rewards, if there are outcomes with rewards as well."""
    if "reward" in decisions.column_names:
        rule = "decisions with a `reward`, in files with outcomes: it must be in one of them"
        count = len(decisions) - decisions["reward"].null_count
        raise LogError([Fault(rule, "", count, {}, ADVICE)])


def _decisions(connection: duckdb.DuckDBPyConnection) -> str:
    """Return the query of the decisions, with a column for each field that a line has."""
    present = connection.execute(
        f"SELECT {', '.join(f'count({name})' for name in OF_DECISIONS)} "
        "FROM lines WHERE action IS NOT NULL"
    ).fetchall()[0]
    used = [name for name, count in zip(OF_DECISIONS, present, strict=True) if count]
    columns = {name: f"{name}->>'$'" for name in ("id", "logger", "action", "unit")}
    columns["time"] = "TRY_CAST(time->>'$' AS TIMESTAMPTZ)"
    columns["reward"] = "TRY_CAST(reward AS DOUBLE)"
    columns["eligible"] = "list_transform(json_extract(eligible, '$[*]'), lambda v: v->>'$')"
    columns["propensity"] = _typed(connection, "propensity")
    selected = {name: columns[name] for name in used if name in columns}
    for name in OBJECTS:
        keys = connection.execute(
            f"SELECT DISTINCT unnest(json_keys({name})) AS key FROM lines "
            f"WHERE action IS NOT NULL AND {name} IS NOT NULL ORDER BY key"
        ).fetchall()
        for (key,) in keys if name in used else ():
            value = f"nullif(entry({name}, {literal(key)}), 'null')"
            selected[f"{name}.{key}"] = _typed(connection, value)
    listed = ", ".join(f"{value} AS {quoted(name)}" for name, value in selected.items())
    return f"SELECT {listed} FROM lines WHERE action IS NOT NULL ORDER BY rowid"


def _typed(connection: duckdb.DuckDBPyConnection, value: str) -> str:
    """Return a JSON value as a number, if it is one in all lines; otherwise as text."""
    query = f"SELECT coalesce(bool_and(is_number({value})) FILTER ({value} IS NOT NULL), false)"
    numbers = connection.execute(f"{query} FROM lines WHERE action IS NOT NULL").fetchall()
    return f"TRY_CAST({value} AS DOUBLE)" if numbers[0][0] else f"{value}->>'$'"


def _log(decisions: pa.Table, timezone: str) -> Log:
    """Return the log of decisions with all roles that their columns have."""
    names = decisions.column_names
    labels = sorted(set(decisions["logger"].to_pylist()))
    by_label = {label: f"propensities.{label}" for label in labels}
    crossed = all(
        name in names and not decisions[name].null_count for name in by_label.values()
    )
    partly = any(name.startswith("propensities.") for name in names)
    own = "propensity" if "propensity" in names else None
    if own is None and not crossed:
        cases = " ".join(
            f"WHEN {literal(label)} THEN {quoted(name)}"
            for label, name in by_label.items()
            if name in names
        )
        own = f"CASE logger {cases} END"
    return Log(
        decisions,
        reward="reward",
        logger="logger",
        action="action",
        propensity=own,
        propensities=by_label if crossed and partly else None,
        context=[name for name in names if name.startswith("context.")],
        eligible="eligible" if "eligible" in names else None,
        cluster="unit" if "unit" in names else None,
        timezone=timezone,
    )
