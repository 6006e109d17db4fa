"""A log is read in its own time zone, not in that of the machine or of a session."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from poolwise.cli.question import Question, record
from poolwise.engines.saved_files import question
from poolwise.errors import EngineError, UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.evaluation.summarise import query_text
from poolwise.evaluation.watch import watch
from poolwise.log.log import Log
from tests.support.messages import refused
from tests.support.postgres import server

if TYPE_CHECKING:
    from pathlib import Path

TARGETS = {"new": "t"}
DAY = "date_trunc('day', at)"
MORNING = "CASE WHEN date_part('hour', at) < 12 THEN reward ELSE 0.5 END"
WEST = "America/Los_Angeles"  # 8 hours behind in winter
MACHINE = """
import sys
import poolwise as pw

roles = dict(reward="reward", logger="logger", propensities="p_{logger}")
log = pw.Log(sys.argv[1], **roles, period="date_trunc('day', at)")
evaluation = pw.evaluate(log, {"new": "t"})
print(evaluation["new"].estimates["period-balanced"].value)
"""


def rows(seed: int = 8, size: int = 1_200) -> pa.Table:
    """Rows every 6 minutes from midnight UTC, with day and hour here and in the west."""
    rng = np.random.default_rng(seed)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    minutes = 6 * np.arange(size)
    at = pa.array([start + timedelta(minutes=int(m)) for m in minutes], pa.timestamp("us", UTC))
    west = minutes - 8 * 60
    columns = {
        "logger": np.where(rng.random(size) < 0.5, "a", "b"),
        "reward": rng.random(size) + 0.4 * (minutes // 60 % 24 < 12),
        **{name: rng.uniform(0.2, 0.8, size) for name in ("p_a", "p_b", "t")},
        "at": at,
        "day": minutes // 1440,
        "day_west": west // 1440,
        "hour": minutes // 60 % 24,
        "hour_west": west // 60 % 24,
    }
    return pa.table(columns)


def log_of(source: Any = None, **roles: Any) -> Log:  # noqa: ANN401 - any source and role
    roles = {"reward": "reward", "propensities": {"a": "p_a", "b": "p_b"}} | roles
    return Log(source, logger="logger", **roles)


def value(log: Log, estimator: str) -> float:
    return evaluate(log, TARGETS, estimator)["new"].estimates[estimator].value


@pytest.mark.parametrize("kind", ["frame", "parquet", "csv", "select"])
def test_days_are_those_of_the_logs_time_zone(kind: str, tmp_path: Path) -> None:
    table = rows()
    sources = {
        "frame": table,
        "parquet": str(tmp_path / "log.parquet"),
        "csv": str(tmp_path / "log.csv"),
        "select": f"SELECT * FROM '{tmp_path}/log.parquet' WHERE t > 0",
    }
    pq.write_table(table, sources["parquet"])
    csv.write_csv(table, sources["csv"])
    source = sources[kind]
    days = [value(log_of(table, period=d), "period-balanced") for d in ("day", "day_west")]
    assert days[0] != pytest.approx(days[1])
    here = value(log_of(source, period=DAY), "period-balanced")
    west = value(log_of(source, period=DAY, timezone=WEST), "period-balanced")
    assert [here, west] == pytest.approx(days, rel=1e-12)


@pytest.mark.slow
def test_the_time_zone_of_the_machine_changes_nothing(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "log.parquet")
    command = [sys.executable, "-c", MACHINE, str(tmp_path / "log.parquet")]
    values = [
        subprocess.run(
            command, env=os.environ | {"TZ": zone}, check=True, capture_output=True, text=True
        ).stdout
        for zone in ("UTC", WEST)
    ]
    expected = value(log_of(rows(), period="day"), "period-balanced")
    assert list(map(float, values)) == pytest.approx([expected] * 2, rel=1e-12)


def test_a_connection_of_duckdb_keeps_its_time_zone() -> None:
    table = rows()
    hours = {name: f"CASE WHEN {name} < 12 THEN reward ELSE 0.5 END" for name in HOURS}
    expected = [value(log_of(table, reward=text), "balanced") for text in hours.values()]
    with duckdb.connect() as connection:
        connection.register("log", table)
        connection.execute("SET TimeZone = 'Asia/Tokyo'")
        log = log_of(table="log", connection=connection, reward=MORNING)
        found = [value(replace(log, timezone=zone), "balanced") for zone in ("UTC", WEST)]
        with pytest.raises(EngineError):
            evaluate(replace(log, reward="CAST(reward AS INTEGER[])"), TARGETS)
        (own,) = connection.execute("SELECT current_setting('TimeZone')").fetchall()
    assert found == pytest.approx(expected, rel=1e-9)
    assert own == ("Asia/Tokyo",)


HOURS = ("hour", "hour_west")


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_connection_of_postgres_keeps_its_time_zone(autocommit: bool) -> None:  # noqa: FBT001
    table = rows(size=200)
    hours = {name: f"CASE WHEN {name} < 12 THEN reward ELSE 0.5 END" for name in HOURS}
    expected = [value(log_of(table, reward=text), "balanced") for text in hours.values()]
    names = [name for name in table.column_names if name not in {"logger", "at"}]
    kinds = ", ".join(f"{name} double precision" for name in names)
    with server().connect(autocommit=autocommit) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE TEMP TABLE times (logger text, at timestamptz, {kinds})")
            listed = ", ".join(["logger", "at", *names])
            with cursor.copy(f"COPY times ({listed}) FROM STDIN") as copy:
                for row in table.to_pylist():
                    copy.write_row([row["logger"], row["at"], *(row[n] for n in names)])
            cursor.execute("SET TimeZone = 'Asia/Tokyo'")
        connection.commit()
        log = log_of(table="times", connection=connection, reward=MORNING)
        found = [value(replace(log, timezone=zone), "balanced") for zone in ("UTC", WEST)]
        connection.execute("SELECT 1")  # a transaction of the caller, without autocommit
        found.append(value(log, "balanced"))
        own = connection.execute("SHOW TimeZone").fetchone()
    assert found == pytest.approx([*expected, expected[0]], rel=1e-9)
    assert own == ("Asia/Tokyo",)


def test_a_database_without_sessions_has_no_other_time_zone() -> None:
    class Connection:
        """Would fail with any statement."""

        def cursor(self) -> object:
            raise AssertionError

    from poolwise.engines.warehouse import Warehouse

    log = log_of(table="log", connection=Connection(), timezone=WEST)
    with refused(UsageError):
        evaluate(log, TARGETS, engine=Warehouse("bigquery"))


@pytest.mark.parametrize("zone", ["America/Los_Angles", "+02:00", "PST'; DROP TABLE log"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with refused(UsageError):
        log_of("x.parquet", timezone=zone)


def test_the_time_zone_is_part_of_every_record(tmp_path: Path) -> None:
    table = rows()
    here, west = log_of(table), log_of(table, timezone=WEST)
    assert record(here, TARGETS)["log"]["timezone"] == "UTC"  # type: ignore[index]
    assert record(west, TARGETS)["log"]["timezone"] == WEST  # type: ignore[index]
    prints = [evaluate(log, TARGETS).fingerprint for log in (here, west)]
    assert prints[0] != prints[1]
    assert question(here, TARGETS).roles != question(west, TARGETS).roles
    first = {"reward_range": (0, 2), "period": DAY}
    watch(tmp_path / "state.npz", log_of(table.slice(0, 240), **first), TARGETS)
    with refused(UsageError):
        later = log_of(table.slice(240), timezone=WEST, **first)
        watch(tmp_path / "state.npz", later, TARGETS)


def test_a_question_file_names_the_time_zone(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "log.parquet")
    text = f"""
        log = "log.parquet"
        reward = "reward"
        logger = "logger"
        propensities = "p_{{logger}}"
        period = "{DAY}"
        timezone = "{WEST}"
        targets = {{new = "t"}}
    """
    (tmp_path / "question.toml").write_text(text, "utf-8")
    found = Question.read(tmp_path / "question.toml").evaluate(estimators="period-balanced")
    expected = value(log_of(rows(), period="day_west"), "period-balanced")
    estimate = found["new"].estimates["period-balanced"]
    assert estimate.value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dialect", ["duckdb", "postgres"])
def test_a_printed_query_names_the_time_zone_that_it_may_depend_on(dialect: str) -> None:
    log = replace(log_of("x"), source=None, table="log")
    first = [
        query_text(each, "log", TARGETS, dialect).splitlines()[0]
        for each in (log, replace(log, reward=MORNING), replace(log, timezone=WEST))
    ]
    zones = [line.removeprefix("-- For a session with the time zone ") for line in first]
    assert zones == [first[0], "UTC.", f"{WEST}."]
    assert not first[0].startswith("--")
