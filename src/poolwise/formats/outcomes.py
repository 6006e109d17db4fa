"""Outcomes: decisions and what came of them later, joined by a key within a window of time.

A service writes a row when it decides, and the click or the purchase arrives later in another
table.  An outcome belongs to the latest decision of its key that is not after it, and counts
if it comes within the window.  A decision whose window had not ended when the outcomes were
recorded is left out: its reward is not known yet, and that depends on the time alone.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

from poolwise.errors import Fault, Finding, LogError, UsageError
from poolwise.formats.derived import open_source
from poolwise.formats.lists import quoted
from poolwise.log.log import PART_LOGGER, Log, Source
from poolwise.rows.values import attach_values
from poolwise.text import count_text, percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb
    import pyarrow as pa

Aggregate = Literal["sum", "mean", "max", "min", "first", "last"]
AGGREGATES: Mapping[str, str] = {
    "sum": "sum(reward)",
    "mean": "avg(reward)",
    "max": "max(reward)",
    "min": "min(reward)",
    "first": "arg_min(reward, (moment, number))",
    "last": "arg_max(reward, (moment, number))",
}
SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
WINDOW = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(SECONDS)})s?\s*", re.IGNORECASE)
EPOCH = datetime.fromtimestamp(0, UTC)
STRAY = 0.1  # share of outcomes without a decision that is worth a warning
KEY, AT, REWARD = "poolwise_key", "poolwise_at", "poolwise_reward"  # columns of a query
ADVICE = "Correct these rows at their source, or leave them out, with a SELECT as the source."


class JoinedLog(NamedTuple):
    """A log whose decisions have their outcomes as rewards, and what was counted.

    Attributes:
        log: The decisions; its reward is a column of its own.
        decisions: Decisions of the log.
        matched: Those among them with an outcome that counts.
        repeated: Those with several, which the aggregate makes one reward.
        unfinished: Decisions that were left out, since their window had not ended.
        late: Outcomes after the window.
        early: Outcomes before the first decision of their key.
        orphans: Outcomes whose key no decision has.
    """

    log: Log
    decisions: int
    matched: int
    repeated: int
    unfinished: int
    late: int
    early: int
    orphans: int


def join_outcomes(  # noqa: PLR0913 - all but two are keyword-only, most with a default
    log: Log,
    outcomes: Source,
    *,
    key: str,
    time: str | None = None,
    window: str | timedelta | None = None,
    outcome_key: str | None = None,
    outcome_time: str | None = None,
    aggregate: Aggregate = "sum",
    missing: float = 0.0,
    until: str | datetime | None = None,
) -> JoinedLog:
    """Join the decisions of a log with later outcomes.

    The `reward` of the log is a column or SQL expression of the *outcomes*. An outcome belongs
    to the latest decision with its key that is not after it, and counts if it comes at most a
    `window` later. Times without a zone are in the `timezone` of the log; a day has 24 hours.

    Decisions whose window ends after `until` are left out and counted, since their reward is
    not complete. The result is in memory.

    Args:
        log: The decisions.
        outcomes: Rows of outcomes, as for `Log`.
        key: Column of the decisions that outcomes refer to, such as the ID of the decision.
            If several decisions share it (a user), name it as the `cluster` of the log, too.
        time: Column of the time of a decision; None if outcomes have no time.
        window: Longest time from a decision to an outcome that counts, such as "7 days";
            None if every later outcome counts.
        outcome_key: The same key in the outcomes; by default of the same name.
        outcome_time: Time of an outcome; by default of the same name.
        aggregate: What makes one reward of several outcomes: "sum", "mean", "max", "min",
            "first" or "last".
        missing: Reward of a decision without an outcome.
        until: Time up to which outcomes are recorded; by default the latest time in both
            sources.

    Raises:
        LogError: Rows lack a key or a time, several decisions have the same key and time, or no
            outcome belongs to any decision.

    Examples:
        >>> rows = {"id": [1, 2, 3], "p": [0.5, 0.5, 0.5]}
        >>> clicks = {"id": [1, 1, 7], "n": [1, 1, 1]}
        >>> joined = join_outcomes(Log(rows, reward="n", propensity="p"), clicks, key="id")
        >>> joined.log.source["reward"].to_pylist(), joined.orphans
        ([2.0, 0.0, 0.0], 1)
    """
    width = _window(window)
    _refuse_arguments(log, aggregate, missing, time, width, until)
    log, _ = attach_values(log, {})
    decided = _read_decisions(log, key, time)
    later = _read_outcomes(log, outcomes, outcome_key or key, outcome_time or time)
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("decided", decided.select([KEY, AT]))
        connection.register("later", later)
        _prepare_tables(connection)
        faults = _faults(connection, key, timed=time is not None)
        if faults:
            raise LogError(faults)
        end = _end(connection, until, log.timezone)
        joined = _join(connection, decided, width, end, aggregate, missing)
    return _as_joined(log, joined, window, missing, end)


def _window(window: str | timedelta | None) -> timedelta | None:
    """Return a window as a length of time; raise for anything else.

    >>> _window("36 hours"), _window(None)
    (datetime.timedelta(days=1, seconds=43200), None)
    """
    width = window
    if isinstance(window, str):
        match = WINDOW.fullmatch(window)
        width = match and timedelta(seconds=float(match[1]) * SECONDS[match[2].lower()])
    if window is None or (isinstance(width, timedelta) and width > timedelta()):
        return width if isinstance(width, timedelta) else None
    raise UsageError(
        "window must be a number of seconds, minutes, hours, days or weeks, such as '7 days', "
        f"got {window!r}"
    )


def _refuse_arguments(
    log: Log,
    aggregate: object,
    missing: object,
    time: str | None,
    width: timedelta | None,
    until: object,
) -> None:
    if aggregate not in AGGREGATES:
        kinds = ", ".join(map(repr, get_args(Aggregate)))
        raise UsageError(f"aggregate must be one of {kinds}, got {aggregate!r}")
    if not isinstance(missing, int | float) or not isfinite(missing):
        raise UsageError(f"missing must be a finite number, got {missing!r}")
    if time is None and (width is not None or until is not None):
        raise UsageError("`window` and `until` require `time`, the column of the time")
    if width is None and until is not None:
        raise UsageError("`until` requires `window`: without one, no decision is left out")
    if log.table is not None or log.requests is not None or log.clicks is not None:
        raise UsageError(
            "join_outcomes takes a log with one decision per row: files, frames or a SELECT"
        )


def _read_decisions(log: Log, key: str, time: str | None) -> pa.Table:
    """Return all columns of the decisions, in their order, with key and time."""
    with open_source(log) as source:
        at = _instant(source.find(time, "time")) if time else "NULL::TIMESTAMPTZ"
        name = quoted(source.find(key, "key"))
        return source.run(f"SELECT *, {name}::VARCHAR AS {KEY}, {at} AS {AT} FROM log")


def _read_outcomes(log: Log, outcomes: Source, key: str, time: str | None) -> pa.Table:
    """Return key, time and reward of each outcome."""
    rewarded = Log(outcomes, reward=log.reward, propensity="1", timezone=log.timezone)
    with open_source(rewarded, log.reward) as source:
        at = _instant(source.find(time, "outcome_time")) if time else "NULL::TIMESTAMPTZ"
        name = quoted(source.find(key, "outcome_key"))
        return source.run(
            f"SELECT {name}::VARCHAR AS {KEY}, {at} AS {AT}, {source.reward} AS {REWARD} "
            "FROM log"
        )


def _instant(name: str) -> str:
    """Return a column as a time with a zone; without one, it is in that of the connection."""
    return f"TRY_CAST({quoted(name)} AS TIMESTAMPTZ)"


def _prepare_tables(connection: duckdb.DuckDBPyConnection) -> None:
    numbered = "SELECT *, row_number() OVER () AS number FROM {}"
    columns = f"(number, {KEY} AS key, {AT} AS moment"
    for table, source, more in (("d", "decided", ""), ("o", "later", f", {REWARD} AS reward")):
        selected = f"SELECT {columns[1:]}{more} FROM ({numbered.format(source)})"
        connection.execute(f"CREATE TEMP TABLE {table} AS {selected}")


def _faults(connection: duckdb.DuckDBPyConnection, key: str, *, timed: bool) -> list[Fault]:
    """Count the rows that cannot be joined."""
    rules = {
        "a decision whose key is null": "SELECT count(*), NULL FROM d WHERE key IS NULL",
        f"decisions with the same key{' and time' * timed}": (
            "SELECT coalesce(sum(n), 0), min(key) FROM (SELECT key, count(*) AS n FROM d "
            "WHERE key IS NOT NULL GROUP BY key, moment HAVING count(*) > 1)"
        ),
        "an outcome whose reward is missing or not a finite number": (
            "SELECT count(*), min(key) FROM o WHERE reward IS NULL OR NOT isfinite(reward)"
        ),
    }
    if timed:
        rules |= {
            f"{what} whose time is missing or not a time": (
                f"SELECT count(*), min(key) FROM {table} "
                "WHERE moment IS NULL OR NOT isfinite(moment)"
            )
            for table, what in (("d", "a decision"), ("o", "an outcome"))
        }
    faults = []
    for rule, query in rules.items():
        count, example = connection.execute(query).fetchall()[0]
        shown = {} if example is None else {key: example}
        faults += [Fault(rule, "", int(count), shown, ADVICE)] if count else []
    return faults


def _end(
    connection: duckdb.DuckDBPyConnection, until: str | datetime | None, zone: str
) -> datetime | None:
    """Return the time up to which outcomes are recorded; None if there are no times."""
    if isinstance(until, str):
        try:
            until = datetime.fromisoformat(until)
        except ValueError:
            raise UsageError(
                f"until must be a time such as '2026-01-31 12:00', got {until!r}"
            ) from None
    if isinstance(until, datetime):
        aware = until if until.tzinfo else until.replace(tzinfo=ZoneInfo(zone))
        return aware.astimezone(UTC)
    both = "SELECT moment FROM d UNION ALL SELECT moment FROM o"
    latest = connection.execute(f"SELECT epoch_us(max(moment)) FROM ({both})").fetchall()[0][0]
    return None if latest is None else EPOCH + timedelta(microseconds=latest)


class _Counts(NamedTuple):
    """Decisions with their rewards, and the counts of `JoinedLog`."""

    rows: pa.Table
    counts: dict[str, int]


def _join(
    connection: duckdb.DuckDBPyConnection,
    decided: pa.Table,
    width: timedelta | None,
    end: datetime | None,
    aggregate: str,
    missing: float,
) -> _Counts:
    """Return the finished decisions with their rewards, in their order."""
    match = "LEFT JOIN d ON o.key = d.key"
    if end is not None:
        match = f"ASOF {match} AND o.moment >= d.moment"
    connection.execute(
        f"""
        CREATE TEMP TABLE placed AS
        SELECT o.number, o.moment, o.reward, d.number AS decision, CASE
            WHEN d.number IS NULL AND o.key IN (SELECT key FROM d) THEN 'early'
            WHEN d.number IS NULL THEN 'orphans'
            WHEN o.moment > d.moment + to_microseconds($1::BIGINT) THEN 'late'
            ELSE 'counted' END AS place
        FROM o {match}""",
        [_micros(width)],
    )
    finished = "true" if width is None or end is None else "moment + to_microseconds($1) <= $2"
    given = [] if width is None or end is None else [_micros(width), end]
    query = f"""
        WITH own AS (
            SELECT decision, count(*) AS outcomes, {AGGREGATES[aggregate]} AS reward
            FROM placed WHERE place = 'counted' GROUP BY decision
        )
        SELECT {finished} AS finished, coalesce(outcomes, 0) AS outcomes,
            coalesce(reward, {float(missing)!r}::DOUBLE) AS reward
        FROM d LEFT JOIN own ON d.number = own.decision ORDER BY d.number"""
    rewards = connection.sql(query, params=given).to_arrow_table()
    places = dict(
        connection.execute("SELECT place, count(*) FROM placed GROUP BY place").fetchall()
    )
    return _select_finished(decided, rewards, places)


def _micros(width: timedelta | None) -> int | None:
    return None if width is None else round(width / timedelta(microseconds=1))


def _select_finished(
    decided: pa.Table, rewards: pa.Table, places: Mapping[str, int]
) -> _Counts:
    import pyarrow.compute as pc

    finished = rewards["finished"]
    rows = decided.drop_columns([KEY, AT])
    name = "reward"
    taken = {column.lower() for column in rows.column_names}
    while name in taken:
        name += "_"
    outcomes = rewards["outcomes"].filter(finished)
    counts = {
        "decisions": len(outcomes),
        "matched": int(pc.sum(pc.greater(outcomes, 0)).as_py() or 0),
        "repeated": int(pc.sum(pc.greater(outcomes, 1)).as_py() or 0),
        "unfinished": len(rows) - len(outcomes),
    }
    counts |= {place: int(places.get(place, 0)) for place in ("late", "early", "orphans")}
    kept = rows.append_column(name, rewards["reward"]).filter(finished)
    return _Counts(kept, counts | {"outcomes": sum(places.values())})


def _as_joined(
    log: Log,
    joined: _Counts,
    window: str | timedelta | None,
    missing: float,
    end: datetime | None,
) -> JoinedLog:
    """Return the log of decisions with rewards; refuse one in which nothing was joined."""
    counts = dict(joined.counts)
    outcomes = counts.pop("outcomes")
    if not counts["decisions"]:
        raise LogError(
            [
                Fault(
                    f"no decision is followed by {window} before {end:%Y-%m-%d %H:%M} UTC, the "
                    "latest time in the decisions and outcomes",
                    "",
                    counts["unfinished"],
                    {},
                    "Choose a shorter window, or say up to when outcomes are recorded: "
                    "until='2026-01-31'.",
                )
            ]
        )
    if not counts["matched"]:
        rule = f"none of {outcomes:,} outcomes belongs to a decision and counts"
        keys = "Compare the keys of both sources, their times and the window."
        raise LogError([Fault(f"{rule}: {_others(counts)}", "", 0, {}, keys)])
    mapped = any(part.logger is not None for part in log.parts)
    changed = replace(
        log,
        source=joined.rows,
        reward=joined.rows.column_names[-1],
        logger=PART_LOGGER if mapped else log.logger,
        reader_options={},
        notes=(*log.notes, *_findings(counts, outcomes, window, missing)),
    )
    return JoinedLog(changed, **counts)


def _others(counts: Mapping[str, int]) -> str:
    """Say what happened to the outcomes that do not count."""
    return (
        f"{count_text(counts['late'])} came after the window, {count_text(counts['early'])} "
        f"before their decision, and {count_text(counts['orphans'])} have no decision"
    )


def _findings(
    counts: Mapping[str, int],
    outcomes: int,
    window: str | timedelta | None,
    missing: float,
) -> list[Finding]:
    within = "" if window is None else f" within {window}"
    empty = counts["decisions"] - counts["matched"]
    text = (
        f"Of {counts['decisions']:,} decisions {counts['matched']:,} have an outcome{within} "
        f"({counts['repeated']:,} have several), and {empty:,} have the reward {missing:g}. Of "
        f"{outcomes:,} outcomes {_others(counts)}."
    )
    findings = [Finding("outcomes-joined", text, severity="note")]
    if counts["unfinished"]:
        text = (
            f"{counts['unfinished']:,} decisions were left out: outcomes were not recorded to "
            "the end of their window."
        )
        findings.append(Finding("unfinished-windows", text, severity="note"))
    stray = counts["orphans"] / outcomes
    if stray > STRAY:
        text = f"{percent(stray)} of the outcomes have no decision."
        advice = "Rewards are missing if their decisions are in the log under another key."
        findings.append(Finding("stray-outcomes", text, advice))
    return findings
