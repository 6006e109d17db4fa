"""Spark gives DuckDB's numbers from files, tables and frames, and when it loses a machine."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from sqlglot import exp, parse_one

from poolwise.engines.answer import decode
from poolwise.engines.base import Engine
from poolwise.engines.duckdb import DuckDB
from poolwise.engines.saved_files import standalone_query, standalone_request
from poolwise.engines.spark import Spark, SparkRows
from poolwise.engines.spark_sources import ANSI, ZONE, spark_text
from poolwise.errors import (
    EngineError,
    ExpressionError,
    LogError,
    MissingColumnError,
    PolicyError,
    SourceError,
    UsageError,
)
from poolwise.evaluation.check import check
from poolwise.evaluation.evaluate import evaluate
from poolwise.learning.learn import learn
from poolwise.log.log import Log
from poolwise.moments.terms import REWARD, WEIGHT, Needs
from poolwise.rows.learners import NO_EXTRA
from poolwise.rows.reader import RowGroup
from poolwise.rows.reward_model import GivenModel
from tests.engines import test_moments_numbers as numbers
from tests.support import queries
from tests.support.conformance import find_lacking, table_of_rows, with_periods
from tests.support.learning import segments, segments_log
from tests.support.messages import refused
from tests.support.periods import daily, daily_log, with_holes
from tests.support.reference import (
    Reference,
    assert_moments_agree,
    assert_same,
    log_of,
    random_table,
)
from tests.system.spark.conftest import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from poolwise.engines.base import Rows
    from poolwise.log.policy import Batch, PolicyLike
    from poolwise.moments.pool import Pool
    from poolwise.rows.learners import Extra
    from tests.system.spark.conftest import Cluster

TARGETS = {"target": "t"}
NEEDS = numbers.all_needs(["a", "b"])


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(1)
    found = random_table(rng, {"a": 3_000, "b": 2_000})
    found = found.append_column("user", pa.array(rng.integers(0, 400, 5_000)))
    return found.append_column("item", pa.array(rng.integers(0, 2, 5_000)))


@pytest.fixture(scope="module")
def folder(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("logs")
    for k in range(4):
        part = table.slice(k * 1_250, 1_250)
        pq.write_table(part, found / f"{k}.parquet", row_group_size=250)
    return found


@dataclass(frozen=True)
class OnFiles(Engine):
    """Spark, with the frame of a log written to files first."""

    spark: Spark
    folder: Path

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NO_EXTRA
    ) -> Iterator[Rows]:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.parquet"
        pq.write_table(log.source, path, row_group_size=700)
        with self.spark.open(replace(log, source=str(path)), targets, extra) as rows:
            assert isinstance(rows, SparkRows)
            assert rows.files
            yield rows


@pytest.fixture(params=["tables", "files"])
def engine(request: pytest.FixtureRequest, session: SparkSession, tmp_path: Path) -> Engine:
    spark = Spark(session, task_rows=1_000)
    return OnFiles(spark, tmp_path) if request.param == "files" else spark


@pytest.mark.parametrize(
    "law",
    [
        numbers.test_a_hand_sized_log_has_the_moments_of_its_rows,
        numbers.test_a_log_probability_of_minus_infinity_is_a_probability_of_zero,
        numbers.test_a_logger_that_cannot_play_an_action_has_an_unsupported_row,
        numbers.test_the_own_propensity_may_stand_in_the_cross_propensities,
    ],
)
def test_numbers_that_every_engine_gives(law: Callable[[Engine], None], engine: Engine) -> None:
    law(engine)


def test_each_logger_is_centred_on_its_own(engine: Engine) -> None:
    numbers.test_each_logger_is_centred_on_its_own(engine, offset=1e8)


def test_files_tables_and_frames_have_the_moments_of_the_judge(
    session: SparkSession, spark: Spark, table: pa.Table, folder: Path
) -> None:
    judge = numbers.moments(Reference(), log_of(table), NEEDS)
    session.createDataFrame(table).createOrReplaceTempView("logs")
    roles = log_of(table)
    sources = [
        replace(roles, source=str(folder)),
        replace(roles, source=[str(folder / "[01].parquet"), str(folder / "[23].parquet")]),
        replace(roles, source=None, table="logs"),
        replace(roles, source="SELECT * FROM logs -- all of them"),
        replace(roles, source=session.table("logs")),
    ]
    for log in sources:
        assert_moments_agree(numbers.moments(spark, log, NEEDS), judge)


def test_evaluations_are_those_of_duckdb(
    session: SparkSession, spark: Spark, table: pa.Table, folder: Path, tmp_path: Path
) -> None:
    csv.write_csv(table, tmp_path / "log.csv")
    by_logger = {k: table.filter(pc.equal(table["logger"], k)).drop(["logger"]) for k in "ab"}
    for label, rows in by_logger.items():
        pq.write_table(rows, tmp_path / f"{label}.parquet")
    session.createDataFrame(table).write.mode("overwrite").saveAsTable("logged")
    roles = log_of(table)
    expected = evaluate(roles, TARGETS, engine=DuckDB())
    labelled = {k: str(tmp_path / f"{k}.parquet") for k in by_logger}
    for log in (
        replace(roles, source=str(folder / "*.parquet")),
        replace(roles, source=None, table="logged"),
        replace(roles, source=str(tmp_path / "log.csv")),
        replace(roles, source=labelled, logger=None),
    ):
        assert_same(evaluate(log, TARGETS, engine=spark), expected)


def test_a_policy_is_learned_from_a_copy_of_the_rows(session: SparkSession) -> None:
    table = segments(600)
    rows = session.createDataFrame(table).repartition(3)
    few: dict[str, Any] = {"strengths": [1.0], "smoothing": [0.8], "folds": 2}
    expected = learn(segments_log(table), **few)
    learned = learn(segments_log(rows), **few)  # in another order
    assert learned.estimate.value == pytest.approx(expected.estimate.value, abs=1e-12)


def test_bets_are_those_of_duckdb(
    session: SparkSession, spark: Spark, table: pa.Table, folder: Path
) -> None:
    table = table.append_column(
        "day", pa.array(np.arange(table.num_rows) * 90 // table.num_rows)
    )
    log = replace(log_of(table), reward_range=(-50.0, 50.0))

    def limits(log: Log, engine: Engine, interval: Any = "betting") -> list[float]:  # noqa: ANN401 - a literal
        result = evaluate(log, TARGETS, "balanced", engine=engine, interval=interval)
        interval = next(iter(result.targets.values())).intervals["balanced"]
        return [interval.lower, interval.upper]

    files = replace(log, source=str(folder))  # rows of files have numbers, and so random blocks
    expected = limits(files, DuckDB())
    assert limits(files, spark) == pytest.approx(expected, rel=1e-10)
    expected = limits(files, DuckDB(), "smoothed")
    assert limits(files, spark, "smoothed") == pytest.approx(expected, abs=1e-12 * 100)
    # rows of a table have none, but many periods are blocks as they are
    by_day = replace(log, source=session.createDataFrame(table), period="day")
    expected = limits(replace(log, source=table, period="day"), DuckDB())
    assert limits(by_day, spark) == pytest.approx(expected, rel=1e-10)
    assert -50 < expected[0] < expected[1] < 50


def test_periods_are_those_of_duckdb(
    session: SparkSession, spark: Spark, tmp_path: Path
) -> None:
    columns = daily(2_000)
    table, log = pa.table(columns), daily_log(columns)
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=300)
    holes = with_holes(columns)  # without probabilities of policies that are not live
    pq.write_table(holes, tmp_path / "holes.parquet", row_group_size=300)

    def numbers(source: object, engine: Engine) -> list[float]:
        # slices follow the order of the rows, which Spark changes
        asked = replace(log, source=source)
        result = evaluate(
            asked, {"t": "t"}, "period-balanced", engine=engine, interval="student"
        )
        estimate, course = result["t"].estimates["period-balanced"], result["t"].over_time
        assert course is not None
        of_periods = [(v.value, v.std_error, v.running) for v in course.values]
        return [estimate.value, estimate.std_error, *(x for line in of_periods for x in line)]

    expected = numbers(table, DuckDB())
    for source in (str(tmp_path / "log.parquet"), session.createDataFrame(table)):
        assert numbers(source, spark) == pytest.approx(expected, rel=1e-12)
    expected = numbers(holes, DuckDB())
    holed = numbers(str(tmp_path / "holes.parquet"), spark)
    assert holed == pytest.approx(expected, rel=1e-12)


def test_segments_are_those_of_duckdb(
    session: SparkSession, spark: Spark, table: pa.Table, folder: Path
) -> None:
    def answers(source: object, engine: Engine) -> list[float]:
        log = replace(log_of(table), source=source)
        segments = evaluate(log, TARGETS, "balanced", engine=engine, by="user % 3").segments
        assert segments is not None
        numbers = [
            (r.segment, r.rows, r.estimate.value, r.estimate.std_error)
            for r in segments.results
            if r.estimate is not None
        ]
        return [float(value) for line in numbers for value in line]

    expected = answers(table, DuckDB())
    assert [*map(int, expected[::4])] == [0, 1, 2]
    assert sum(expected[1::4]) == table.num_rows
    for source in (str(folder), session.createDataFrame(table)):
        assert answers(source, spark) == pytest.approx(expected, rel=1e-9)


def test_expressions_mean_what_they_mean_to_duckdb(
    spark: Spark, table: pa.Table, folder: Path
) -> None:
    log = replace(
        log_of(table), source=str(folder), reward="reward / 4 + item", on_fault="drop"
    )
    targets = {"half": "t / 2", "some": "CASE WHEN user % 3 = 0 THEN t ELSE p END"}
    # slices follow the order of the rows, which Spark changes
    expected = evaluate(log, targets, "calibrated", engine=DuckDB(), interval="student")
    found = evaluate(log, targets, "calibrated", engine=spark, interval="student")
    assert_same(found, expected)


VALUES = (
    "log(abs(x) + 1)",  # to base 10
    "log(2, abs(x) + 1)",
    "ln(abs(x) + 1)",
    "CAST(x AS INT)",  # rounded, half to even
    "CAST(m AS INT)",  # rounded, half away from zero
    "TRY_CAST(x * 10 AS BIGINT)",
    "CAST(i / 4 AS BIGINT)",
    "i::BIGINT",
    "i / 4 / (i - 3)",
    "CASE WHEN x / (i - i) > 2 THEN 1 ELSE 0 END",  # infinite
    "i // 4",
    "i % 4",
    "dayofweek(d)",  # from Sunday, 0
    "isodow(d)",
    "extract(hour FROM CAST(d AS TIMESTAMP))",
    "TRY_CAST(s AS DOUBLE)",
)


def test_expressions_have_the_values_of_duckdb(session: SparkSession) -> None:
    table = pa.table(
        {
            "i": [-7, -1, 0, 3, 10, 2**60 + 1],
            "x": [-2.5, -0.4, 0.5, 1.5, 2.5, 100.25],
            "m": pa.array(map(Decimal, ("-2.5", "0.5", "1.5", "2.5", "2.7", "0"))),
            "s": ["1.5", " 2 ", "30d", "2.5F", "1e3", "word"],
            "d": [date(2024, 1, day) for day in (1, 6, 7, 8, 30, 31)],
        }
    )
    session.createDataFrame(table).coalesce(1).createOrReplaceTempView("expressed")
    listed = [parse_one(text, dialect="duckdb").as_(f"v{k}") for k, text in enumerate(VALUES)]
    query = exp.select(*listed).from_("expressed")
    (*lines,) = session.sql(spark_text(query)).collect()
    with duckdb.connect() as connection:
        connection.register("expressed", table)
        expected = connection.sql(query.sql(dialect="duckdb")).fetchall()
    for k, text in enumerate(VALUES):
        values, same = (
            [np.nan if line[k] is None else float(line[k]) for line in both]
            for both in (lines, expected)
        )
        assert values == pytest.approx(same, rel=1e-15, nan_ok=True), text


def test_functions_that_are_others_in_spark_are_refused(spark: Spark, table: pa.Table) -> None:
    for text in ("hash(user) % 2", "weekday(DATE '2024-01-01')", "extract(dow FROM day)"):
        log = log_of(table.append_column("day", table["user"]), reward=text)
        with refused(UsageError):
            evaluate(log, TARGETS, engine=spark)


def test_labels_may_hold_anything(spark: Spark) -> None:
    labels = ("it's", "b\\c `d`")
    table = random_table(np.random.default_rng(2), dict.fromkeys(labels, 50))
    log, needs = log_of(table, labels), numbers.all_needs(labels)
    judge = numbers.moments(Reference(), log, needs)
    assert_moments_agree(numbers.moments(spark, log, needs), judge)


@pytest.mark.parametrize("source", ["file", "frame"])
def test_columns_of_a_mixture_and_of_a_model_are_read(
    spark: Spark, table: pa.Table, tmp_path: Path, source: str
) -> None:
    shares = [3_000 / 5_000, 2_000 / 5_000]
    mixture = shares[0] * table["p_a"].to_numpy() + shares[1] * table["p_b"].to_numpy()
    rows = table.append_column("mix", pa.array(mixture))
    rows = rows.append_column("guess", pa.array(np.sin(np.arange(5_000))))
    pq.write_table(rows, tmp_path / "log.parquet", row_group_size=700)
    path = str(tmp_path / "log.parquet")
    log = log_of(path if source == "file" else rows, propensities=None)
    model: Any = GivenModel("guess", "guess / 2")
    for asked, options in (
        (replace(log, mixture="mix"), {}),
        (log_of(rows), {"model": model}),
    ):
        options |= {"interval": "student"}  # slices follow the order of the rows
        expected = evaluate(asked, TARGETS, engine=DuckDB(), **options)
        found = evaluate(asked, TARGETS, engine=spark, **options)
        assert_same(found, expected)
        assert {*found["target"].estimates} == {*expected["target"].estimates}
    with refused(UsageError):
        evaluate(replace(log, estimate_mixture=True, action="item"), TARGETS, engine=spark)
    assert check(replace(log, mixture="mix + 1"), TARGETS, engine=spark).faults


def test_segments_of_clusters_need_nothing_but_counts(spark: Spark, table: pa.Table) -> None:
    """Some needs of a segment are empty: its rows are counted even so."""
    targets = {"target": "t", "half": "t / 2"}
    log = log_of(table, cluster="user")
    expected = evaluate(log, targets, engine=DuckDB(), by="item")
    assert_same(evaluate(log, targets, engine=spark, by="item"), expected)


def test_leaving_loggers_out_hides_no_fault(spark: Spark, table: pa.Table) -> None:
    chances = table["p_a"].to_numpy().copy()
    chances[[3, 7, 11, 20]] = 1.5
    bad = table.set_column(table.column_names.index("p_a"), "p_a", pa.array(chances))

    def faults(engine: Engine) -> list[tuple[str, str, int]]:
        with pytest.raises(LogError) as caught:
            evaluate(log_of(bad, propensity=None), TARGETS, engine=engine, which_logs=True)
        return [(f.rule, f.logger, f.rows) for f in caught.value.faults]

    assert faults(spark) == faults(DuckDB())
    assert {logger for _, logger, _ in faults(spark)} == {"a", "b"}


def test_a_logger_is_left_out(engine: Engine, table: pa.Table) -> None:
    needs = numbers.all_needs(["b"])
    with engine.open(log_of(table), TARGETS) as rows:
        found = rows.without("a").moments(needs)
    with Reference().open(log_of(table), TARGETS) as judge:
        assert_moments_agree(found, judge.without("a").moments(needs))


@pytest.mark.parametrize("unit", [None, "user"])
def test_files_have_the_buckets_of_duckdb(
    spark: Spark, table: pa.Table, folder: Path, unit: str | None
) -> None:
    log = replace(log_of(table), source=str(folder), cluster=unit)
    with spark.open(log, TARGETS) as rows:
        (pool,) = rows.bucketed([NEEDS], 7)
    with DuckDB().open(log, TARGETS) as local:
        (expected,) = local.bucketed([NEEDS], 7)
    assert len(pool.buckets) == len(expected.buckets) == 7
    for bucket, same in zip(pool.buckets, expected.buckets, strict=True):
        assert_moments_agree(bucket, same)


def test_buckets_of_rows_add_up_to_a_table(session: SparkSession, table: pa.Table) -> None:
    log = replace(log_of(table), source=session.createDataFrame(table).repartition(3))
    with Spark(session).open(log, TARGETS) as rows:
        (pool,) = rows.bucketed([NEEDS], 7)
    judge = numbers.moments(Reference(), log_of(table), NEEDS)
    assert len(pool.buckets) == 7
    assert_moments_agree({k: replace(pool[k], tails={}) for k in judge}, judge)


def test_clusters_of_a_table_have_the_errors_of_duckdb(spark: Spark, table: pa.Table) -> None:
    log = replace(log_of(table), cluster="CASE WHEN user < 300 THEN user ELSE item END")
    expected = evaluate(log, TARGETS, engine=DuckDB())
    assert_same(evaluate(log, TARGETS, engine=spark), expected)


def test_a_row_without_a_cluster_is_a_fault(spark: Spark, table: pa.Table) -> None:
    log = replace(log_of(table), cluster="CASE WHEN user < 300 THEN user END")
    missing = sum(user >= 300 for user in table["user"].to_pylist())
    with pytest.raises(LogError) as caught:
        evaluate(log, TARGETS, engine=spark)
    assert sum(fault.rows for fault in caught.value.faults) == missing


@pytest.mark.parametrize("source", ["file", "frame"])
def test_what_is_shown_does_not_depend_on_the_engine(
    spark: Spark, table: pa.Table, folder: Path, source: str
) -> None:
    log = replace(log_of(table), source=str(folder) if source == "file" else table)
    targets = {"target": "t", "half": "t / 2 + 0.25", "own": "p"}
    expected = evaluate(log, targets, engine=DuckDB(), interval="student")
    shown = evaluate(log, targets, engine=spark, interval="student")
    assert_same(shown, expected)
    assert str(shown) == str(expected)
    assert shown.comparison is not None
    assert str(shown.comparison) == str(expected.comparison)


def test_policies_in_python_are_scored_by_the_workers_once(
    session: SparkSession, spark: Spark, table: pa.Table, cluster: Cluster
) -> None:
    called = cluster.folder / "called"
    called.mkdir()

    def by_user(batch: Batch) -> Any:  # noqa: ANN401 - an array
        (called / str(uuid.uuid4())).touch()
        return np.where(batch["user"] % 2 == batch.action, 0.75, 0.25)

    log = replace(log_of(table), action="item", context=["user"])
    expected = evaluate(log, {"target": by_user}, engine=DuckDB(), interval="student")
    for path in called.iterdir():
        path.unlink()
    parted = replace(log, source=session.createDataFrame(table).repartition(3))
    found = evaluate(parted, {"target": by_user}, engine=spark, interval="student")
    assert_same(found, expected)
    assert len(list(called.iterdir())) == 3


def test_a_policy_that_fails_on_a_worker_says_what_it_says_here(
    spark: Spark, table: pa.Table
) -> None:
    log = replace(log_of(table), action="item", context=["user"])
    too_large: Any = lambda batch: np.full(len(batch), 1.5)  # noqa: E731 - sent to workers
    with refused(PolicyError) as caught:
        evaluate(log, {"target": too_large}, engine=spark)
    assert caught.value.rows[0] == 0
    lock: Any = threading.Lock()
    with refused(UsageError):
        evaluate(log, {"target": lambda _: lock}, engine=spark)


def test_bad_rows_are_counted_by_logger(engine: Engine, table: pa.Table) -> None:
    rewards = table["reward"].to_numpy().copy()
    rewards[[3, 7]] = np.nan
    bad = table.set_column(table.column_names.index("reward"), "reward", pa.array(rewards))
    with pytest.raises(LogError) as expected:
        evaluate(log_of(bad), TARGETS, engine=DuckDB())
    with pytest.raises(LogError) as found:
        evaluate(log_of(bad), TARGETS, engine=engine)
    told = [(f.rule, f.logger, f.rows) for f in found.value.faults]
    assert told == [(f.rule, f.logger, f.rows) for f in expected.value.faults]
    assert sum(f.rows for f in found.value.faults) == 2
    log = log_of(bad, on_fault="drop")
    student: Any = {"interval": "student"}  # slices follow the order of the rows
    dropped = evaluate(log, TARGETS, engine=engine, **student)
    assert sum(dropped.rows.values()) == 4_998
    assert_same(dropped, evaluate(log, TARGETS, engine=DuckDB(), **student))


def test_text_and_division_by_zero_are_faults_not_crashes(spark: Spark) -> None:
    table = random_table(np.random.default_rng(3), {"a": 5, "b": 5})
    table = table.append_column("text", pa.array(["1.5"] * 9 + ["much"]))
    log = log_of(table, reward="text")
    with refused(LogError):
        evaluate(log, TARGETS, engine=spark)
    with refused(LogError):
        evaluate(log_of(table), {"target": "t / (p - p)"}, engine=spark)


def test_letters_after_a_number_are_a_fault(spark: Spark) -> None:
    """Java reads "30d" and "2.5f" as numbers."""
    table = random_table(np.random.default_rng(3), {"a": 5, "b": 5})
    texts = ["1.5", " 2 ", "3e0", "-4", ".5", "6.", "7", "8", "30d", "2.5F "]
    log = log_of(table.append_column("text", pa.array(texts)), reward="text")
    assert sum(f.rows for f in check(log, engine=spark).faults) == 2
    assert sum(f.rows for f in check(log, engine=DuckDB()).faults) == 2


def test_a_chain_of_divisions_by_zero_is_a_fault(spark: Spark, table: pa.Table) -> None:
    log = log_of(table, reward="reward / (item - item) / 2", on_fault="drop")
    with pytest.raises(LogError) as caught:
        evaluate(log, TARGETS, engine=spark)
    assert sum(fault.rows for fault in caught.value.faults) == 5_000


def test_labels_of_csv_are_text(spark: Spark, tmp_path: Path) -> None:
    """As numbers, 1.1 and 1.10 would be one logger, and so would 7 and 007."""
    table = random_table(np.random.default_rng(4), dict.fromkeys(("1.1", "1.10", "007"), 20))
    csv.write_csv(table, tmp_path / "log.csv")
    log = log_of(str(tmp_path / "log.csv"), propensities=None)
    expected = evaluate(log, TARGETS, engine=DuckDB(), interval="student")
    found = evaluate(log, TARGETS, engine=spark, interval="student")
    assert_same(found, expected)
    assert dict(found.rows) == {"007": 20, "1.1": 20, "1.10": 20}


def test_csv_files_with_columns_in_another_order_are_refused(
    spark: Spark, table: pa.Table, tmp_path: Path
) -> None:
    """Read by position, the propensity would be the probability of the target."""
    names = ["logger", "reward", "p", "t"]
    csv.write_csv(table.select(names), tmp_path / "0.csv")
    csv.write_csv(table.select([*names[:2], "t", "p"]), tmp_path / "1.csv")
    log = log_of(str(tmp_path / "*.csv"), propensities=None)
    assert sum(evaluate(log, TARGETS, "naive", engine=DuckDB()).rows.values()) == 10_000
    with pytest.raises(SourceError, match="do not have the same columns"):
        evaluate(log, TARGETS, "naive", engine=spark)


def test_frames_with_types_that_spark_lacks_are_read(spark: Spark, table: pa.Table) -> None:
    kinds = {"u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64()}
    items = table["item"]
    for name, kind in kinds.items():
        table = table.append_column(name, items.cast(kind))
    table = table.append_column("half", items.cast(pa.float32()).cast(pa.float16()))
    log = log_of(table, reward="u8 + u16 + u32 + u64 + half", cluster="user")
    plain = log_of(table.drop([*kinds, "half"]), reward="5 * item", cluster="user")
    found = evaluate(log, TARGETS, "naive", engine=spark)
    assert_same(found, evaluate(plain, TARGETS, "naive", engine=DuckDB()))


def test_what_is_not_there_is_named(spark: Spark, table: pa.Table, tmp_path: Path) -> None:
    roles = log_of(table)
    with refused(MissingColumnError):
        evaluate(roles, {"target": "tt"}, engine=spark)
    with refused(SourceError):
        evaluate(replace(roles, source=None, table="no.such"), TARGETS, engine=spark)
    with refused(SourceError):
        evaluate(replace(roles, source=str(tmp_path / "none.parquet")), TARGETS, engine=spark)
    elsewhere = replace(roles, source=None, table="logs", connection=object())
    with refused(UsageError):
        evaluate(elsewhere, TARGETS, engine=spark)
    with refused(EngineError):
        evaluate(roles, {"target": "isfinite(t)"}, engine=spark)


def test_a_file_that_workers_do_not_see_is_named(
    spark: Spark, table: pa.Table, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = [(0, [RowGroup("/nowhere/0.parquet", 0, 250)])]
    monkeypatch.setattr("poolwise.engines.spark.split_tasks", lambda *_: hidden)
    with refused(SourceError):
        evaluate(replace(log_of(table), source=str(folder)), TARGETS, engine=spark)


def bits(found: Pool) -> bytes:
    return pickle.dumps([(m.count, m.means, m.scatter, m.tails) for m in found.values()])


def while_a_worker_dies(cluster: Cluster, work: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Return the result of work during which a worker is killed after three reads."""
    with cluster.slowly(), ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            wait_until(lambda: len(cluster.reads) >= 3 or future.done(), "the first reads")
            assert not future.done()
            cluster.kill_worker()
            found = future.result()
        finally:
            cluster.start_workers()
    assert len({name.split("-")[0] for name in cluster.reads}) >= 2  # one alone did not do it
    return found


def test_a_lost_worker_changes_no_bit_of_what_files_give(
    session: SparkSession, cluster: Cluster, table: pa.Table, folder: Path
) -> None:
    log, needs = replace(log_of(table), source=str(folder)), NEEDS
    with Spark(session, task_rows=1).open(log, TARGETS) as rows:
        before = rows.moments(needs)
        after = while_a_worker_dies(cluster, lambda: rows.moments(needs))
    assert bits(after) == bits(before)
    assert_moments_agree(after, numbers.moments(Reference(), log_of(table), needs))


def test_a_lost_worker_changes_no_bit_of_what_tables_give(
    session: SparkSession, cluster: Cluster
) -> None:
    frame = session.range(0, 5_000, 1, 12).selectExpr(
        "CASE WHEN id % 3 = 0 THEN 'a' ELSE 'b' END AS logger",
        "sin(id) AS reward",
        "0.6 + 0.3 * cos(id) AS p",
        "0.5 + 0.4 * sin(3 * id) AS t",
    )
    log = Log(frame, logger="logger", reward="reward", propensity="p")
    needs = Needs(groups=((REWARD, WEIGHT.bind("target")),), tails=(WEIGHT.bind("target"),))
    with Spark(session).open(log, TARGETS) as rows:
        before = rows.moments(needs)
        after = while_a_worker_dies(cluster, lambda: rows.moments(needs))
    assert bits(after) == bits(before)


def test_a_lost_worker_changes_nothing_of_what_policies_give(
    session: SparkSession, cluster: Cluster, table: pa.Table, spark: Spark
) -> None:
    folder = cluster.folder

    def slow(batch: Batch) -> Any:  # noqa: ANN401 - an array
        if (folder / "slow").exists():
            (folder / "read" / f"{os.getppid()}-{uuid.uuid4()}").touch()
            time.sleep(0.3)
        return np.where(batch["user"] % 2 == batch.action, 0.75, 0.25)

    frame = session.createDataFrame(table).repartition(8)
    log = replace(log_of(table), source=frame, action="item", context=["user"])
    student: Any = {"interval": "student"}  # slices follow the order of the rows
    here = replace(log, source=table)
    before = evaluate(here, {"target": slow}, "naive", engine=DuckDB(), **student)
    after = while_a_worker_dies(
        cluster,
        lambda: evaluate(log, {"target": slow}, "naive", engine=spark, **student),
    )
    assert_same(after, before)


def test_fields_of_structs_and_odd_folders_are_read(
    session: SparkSession, spark: Spark, table: pa.Table, tmp_path: Path
) -> None:
    nested = pa.table(
        {
            "logger": table.column("logger"),
            "item": table.column("item"),
            **{
                name: pa.StructArray.from_arrays(
                    [table.column(n).combine_chunks() for n in names.values()], list(names)
                )
                for name, names in {
                    "r": {"reward": "reward", "user": "user"},
                    "p": {"own": "p", "a": "p_a", "b": "p_b", "t": "t"},
                }.items()
            },
        }
    )
    folder = tmp_path / "br[1] {x}" / "day=1"
    folder.mkdir(parents=True)
    pq.write_table(nested, folder / "x.parquet")
    roles: dict[str, Any] = {"propensity": "p.own", "propensities": "p.{logger}"}
    there = Log(
        folder.parent, logger="logger", reward="1 - r.reward", cluster="r.user", **roles
    )
    here = replace(log_of(table), reward="1 - reward", cluster="user")
    expected = evaluate(here, TARGETS)
    for source in (folder.parent, folder / "*.parquet", session.createDataFrame(nested)):
        found = evaluate(replace(there, source=source), {"target": "p.t"}, engine=spark)
        assert_same(found, expected, rel=1e-9)
    assert_same(evaluate(there, {"target": "p.t"}), expected, rel=1e-9)
    read: dict[str, Any] = {"action": "item", "context": ["r.user"]}
    policies = [{"new": Users("r.user")}, {"new": Users("user")}]
    found = evaluate(replace(there, **read), policies[0], engine=spark)
    here = replace(here, action="item", context=["user"])
    assert_same(found, evaluate(here, policies[1]), rel=1e-9)


@dataclass(frozen=True)
class Users:
    """A policy in Python that reads the number of the user."""

    column: str

    def prob(self, batch: Batch) -> Any:  # noqa: ANN401 - an array
        return 0.3 + 0.4 * ((batch[self.column] + batch.action) % 2)


def test_files_of_a_delta_table_are_refused(
    spark: Spark, table: pa.Table, tmp_path: Path
) -> None:
    (tmp_path / "table/day=1").mkdir(parents=True)
    (tmp_path / "table/_delta_log").mkdir()
    (tmp_path / "table/_delta_log/0.json").write_text("{}", "utf-8")
    pq.write_table(table, tmp_path / "table/day=1/x.parquet")
    for source in ("table", "table/day=1/*.parquet"):
        with refused(SourceError):
            evaluate(replace(log_of(table), source=tmp_path / source), TARGETS, engine=spark)


def test_settings_of_the_session_do_not_change_results_and_are_left(
    session: SparkSession, table: pa.Table
) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    times = [start + timedelta(minutes=2 * k) for k in range(len(table))]
    timed = table.append_column("at", pa.array(times, pa.timestamp("us", "UTC")))
    frame = session.createDataFrame(timed)
    log = replace(log_of(timed), period="date_trunc('day', at)")
    zones = ("UTC", "America/Los_Angeles")
    found = {}
    try:
        for ansi in ("true", "false"):
            session.conf.set(ANSI, ansi)
            session.conf.set(ZONE, "Asia/Tokyo")
            for zone in zones:
                there = replace(log, source=frame, timezone=zone)
                found[ansi, zone] = evaluate(there, TARGETS)["target"].estimates
            whole = replace(log, source=frame, reward="9223372036854775807 + user")
            with pytest.raises(EngineError, match="OVERFLOW"):
                evaluate(whole, TARGETS)
            assert (session.conf.get(ZONE), session.conf.get(ANSI)) == ("Asia/Tokyo", ansi)
    finally:
        for name in (ZONE, ANSI):
            session.conf.unset(name)
    evaluate(replace(log, source=frame), TARGETS)
    assert session.conf.get(ZONE, None) is None
    expected = {zone: evaluate(replace(log, timezone=zone), TARGETS) for zone in zones}
    for (_, zone), estimates in found.items():
        known = expected[zone]["target"].estimates["period-balanced"].value
        assert estimates["period-balanced"].value == pytest.approx(known, rel=1e-9)


def test_the_session_that_runs_is_used_and_left_running(
    session: SparkSession, table: pa.Table
) -> None:
    with Spark().open(log_of(table), TARGETS) as rows:
        assert rows.counts == {"a": 3_000, "b": 2_000}
    assert session.range(3).count() == 3
    with (
        refused(UsageError),
        Spark(master="spark://elsewhere:7077").open(log_of(table), TARGETS),
    ):
        pass


def test_what_spark_needs_is_named_where_it_is_missing(
    table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark.sql")
    monkeypatch.setattr("poolwise.engines.spark_session._running", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with refused(UsageError), Spark().open(log_of(table), TARGETS):
        pass
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ImportError, match=r"poolwise\[spark\]"):
        evaluate(log_of(table), TARGETS, engine=Spark())


RUNNING = [  # Java methods that Spark finds by name
    "reflect('java.lang.System', 'exit', 7)",
    "java_method('java.lang.System', 'getenv', 'HOME')",
    "length(try_reflect('java.lang.System', 'getenv', 'HOME'))",
    "system.builtin.reflect('java.lang.System', 'exit', 7)",
    "IDENTIFIER('ref' || 'lect')('java.lang.System', 'exit', 7)",
]


@pytest.mark.parametrize(
    ("role", "attack"),
    [
        *(("reward", attack) for attack in RUNNING),
        *((role, RUNNING[0]) for role in ("logger", "cluster", "period", "target")),
    ],
)
def test_no_role_runs_a_method_of_java(
    role: str, attack: str, spark: Spark, table: pa.Table, folder: Path
) -> None:
    roles: dict[str, Any] = {} if role == "target" else {role: attack}
    for source in (str(folder), table):
        log = replace(log_of(table), source=source, **roles)
        with pytest.raises(ExpressionError):
            evaluate(log, {"new": attack if role == "target" else "t"}, engine=spark)


@pytest.mark.parametrize("attack", RUNNING)
def test_a_select_runs_no_method_of_java(
    attack: str, session: SparkSession, spark: Spark, table: pa.Table
) -> None:
    session.createDataFrame(table).createOrReplaceTempView("logs")
    for select in (
        f"SELECT *, {attack} AS x FROM logs",
        f"WITH a AS (SELECT {attack} AS x) SELECT logs.* FROM logs WHERE p > (SELECT x FROM a)",
    ):
        for source in ({"source": select}, {"source": None, "table": select}):
            with pytest.raises(UsageError):
                evaluate(replace(log_of(table), **source), TARGETS, engine=spark)


def test_a_select_runs_no_script(
    session: SparkSession, spark: Spark, table: pa.Table, tmp_path: Path
) -> None:
    session.createDataFrame(table).createOrReplaceTempView("logs")
    columns = ", ".join(table.column_names)
    script = f"touch {tmp_path}/here; cat"
    select = f"SELECT TRANSFORM({columns}) USING '{script}' AS ({columns}) FROM logs"
    with refused(UsageError):
        evaluate(replace(log_of(table), source=select), TARGETS, engine=spark)
    assert list(tmp_path.iterdir()) == []
    named = 'SELECT *, \'reflect(1) "class":"a.CallMethodViaReflection"\' AS x FROM logs'
    found = evaluate(replace(log_of(table), source=named), TARGETS, engine=spark)
    assert sum(found.rows.values()) == table.num_rows


@pytest.mark.usefixtures("cluster")  # which skips where there is no Java
def test_a_session_that_was_started_is_stopped(folder: Path) -> None:
    """In a process of its own, as the command line does it."""
    code = f"""
from poolwise.engines.spark import Spark
from poolwise import Log
from pyspark import SparkContext
log = Log({str(folder)!r}, logger="logger", reward="reward", propensity="p")
with Spark(master="local[1]").open(log, {{"target": "t"}}) as rows:
    print(rows.session.sparkContext.master)
print(SparkContext._active_spark_context)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["local[1]", "None"]


def test_spark_runs_the_printed_query(
    session: SparkSession, folder: Path, table: pa.Table
) -> None:
    log, needs = log_of(table), queries.NEEDS
    session.read.parquet(str(folder)).createOrReplaceTempView("printed_log")
    text = standalone_query(log, "printed_log", TARGETS, needs, "spark")
    request = standalone_request(log, "printed_log", TARGETS, needs)
    groups = [decode(request, line.asDict()) for line in session.sql(text).collect()]
    with Reference().open(log, TARGETS) as rows:
        expected = rows.moments(needs)
    assert_moments_agree({str(group.logger): group.moments for group in groups}, expected)


def test_files_that_are_read_twice_are_refused_and_equal_ones_found(
    spark: Spark, table: pa.Table, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "c.parquet").hardlink_to(tmp_path / "a.parquet")
    for other in ("a.parquet", "*.parquet", "linked/c.parquet"):
        with refused(UsageError):
            paths = [f"{tmp_path}/a.parquet", f"{tmp_path}/{other}"]
            evaluate(log_of(paths), TARGETS, engine=spark)
    found = evaluate(log_of(f"{tmp_path}/*.parquet"), TARGETS, engine=spark)
    assert "equal-files" in {f.code for f in found.findings}


def test_spark_lacks_single_rows_alone(spark: Spark, tmp_path: Path) -> None:
    pq.write_table(table_of_rows(), tmp_path / "log.parquet")
    log = with_periods(str(tmp_path / "log.parquet"))
    with spark.open(log, {"t": "t"}) as rows:
        assert find_lacking(rows, log) == {"sample"}
