"""Input that would give a plausible but wrong number is refused, with the reason."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise import Log, Warehouse, evaluate
from poolwise.engines.base import MOST_LOGGERS
from poolwise.errors import SHOWN_FAULTS, Fault, LogError, UsageError
from tests.support.messages import check_findings, refused
from tests.support.reference import log_of, random_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from poolwise.intervals.base import IntervalName

TABLE: pa.Table = random_table(np.random.default_rng(70), {"a": 60, "b": 40})


def with_users(users: Sequence[str | None]) -> Log:
    return log_of(TABLE.append_column("user", pa.array(users)), cluster="user")


def test_a_row_without_a_cluster_is_told() -> None:
    users = [None if k % 10 == 3 else f"u{k % 13}" for k in range(100)]
    labels = TABLE["logger"].to_pylist()
    with pytest.raises(LogError) as refused:
        evaluate(with_users(users), {"target": "t"})
    expected = {
        label: sum(u is None and of == label for u, of in zip(users, labels, strict=True))
        for label in ("a", "b")
    }
    assert {f.logger: f.rows for f in refused.value.faults} == expected
    assert {f.rule for f in refused.value.faults} == {"the cluster is null"}


def test_rows_without_a_cluster_are_left_out_where_bad_rows_are() -> None:
    users = [None if k % 10 == 3 else f"u{k % 13}" for k in range(100)]
    log = log_of(TABLE.append_column("user", pa.array(users)), cluster="user", on_fault="drop")
    kept = TABLE.append_column("user", pa.array(users)).filter(
        pa.array([u is not None for u in users])
    )
    found = evaluate(log, {"target": "t"})
    expected = evaluate(log_of(kept, cluster="user"), {"target": "t"})
    for name, estimate in expected["target"].estimates.items():
        assert found["target"].estimates[name].value == pytest.approx(estimate.value, rel=1e-12)
        assert found["target"].estimates[name].std_error == pytest.approx(
            estimate.std_error, rel=1e-9
        )
    assert sum(found.rows.values()) == 90


def test_a_logger_whose_rows_are_one_cluster_has_no_error() -> None:
    labels = TABLE["logger"].to_pylist()
    users = ["one" if label == "b" else f"u{k % 13}" for k, label in enumerate(labels)]
    found = evaluate(with_users(users), {"target": "t"})
    assert not found["target"].estimates
    (told,) = [f for f in found["target"].findings if f.code == "one-cluster"]
    check_findings([told], "one-cluster")
    finer = [f"u{k % 13}" for k in range(100)]
    assert evaluate(with_users(finer), {"target": "t"})["target"].estimates


@pytest.mark.parametrize("interval", ["student", "smoothed", "betting"])
@pytest.mark.parametrize("known", [(0.0, 1.0), (-10.0, 1.0), (0.0, 10.0)])
def test_rewards_beyond_their_range_are_refused(
    known: tuple[float, float], interval: str
) -> None:
    log = log_of(TABLE, reward_range=known)
    rewards = TABLE["reward"].to_numpy()
    assert rewards.min() < 0
    assert rewards.max() > 1
    with refused(UsageError):
        evaluate(log, {"target": "t"}, interval=interval)  # type: ignore[arg-type]
    fine = log_of(TABLE, reward_range=(float(rewards.min()), float(rewards.max())))
    assert evaluate(fine, {"target": "t"}).targets


@pytest.mark.parametrize("dialect", ["sqlite", "mysql", "SQLite"])
def test_a_database_that_reads_words_as_zero_is_refused(dialect: str) -> None:
    with sqlite3.connect(":memory:") as connection:
        log = Log(table="log", connection=connection, logger="l", reward="r", propensity="p")
        with refused(UsageError):
            evaluate(log, {"target": "t"}, engine=Warehouse(dialect=dialect))


def test_a_column_of_identifiers_is_no_logger() -> None:
    rows = MOST_LOGGERS + 1
    table = pa.table(
        {"id": [f"x{k}" for k in range(rows)], "r": [1.0] * rows, "p": [0.5] * rows}
    )
    log = Log(table, logger="id", reward="r", propensity="p")
    with refused(UsageError):
        evaluate(log, {"target": "p"})


def test_a_message_lists_some_faults_and_counts_the_rest() -> None:
    faults = [
        Fault("it is bad", f"l{k}", 1, advice="Mend it.") for k in range(SHOWN_FAULTS + 7)
    ]
    lines = str(LogError(faults)).splitlines()
    assert len(lines) == SHOWN_FAULTS + 3
    assert lines[-2:] == ["- and 7 more", "Mend it."]
    assert len(LogError(faults).faults) == SHOWN_FAULTS + 7
    assert "more" not in str(LogError(faults[:SHOWN_FAULTS]))


# Intervals that would be too narrow.


def test_a_guarantee_for_independent_rows_is_refused_for_clusters() -> None:
    log = log_of(
        TABLE.append_column("user", pa.array(range(100))),
        cluster="user",
        reward_range=(-10.0, 10.0),
    )
    with refused(UsageError):
        evaluate(log, {"target": "t"}, interval="smoothed")


def test_a_guarantee_from_pooled_rows_is_refused_where_a_logger_was_trained_on_them() -> None:
    log = log_of(TABLE, trained_on={"b": ["a"]}, reward_range=(-10.0, 10.0))
    with refused(UsageError):
        evaluate(log, {"target": "t"}, interval="smoothed")
    evaluate(log, {"target": "t"}, interval="betting")


def test_unknown_sides_are_refused() -> None:
    with refused(UsageError):
        evaluate(log_of(TABLE), {"target": "t"}, sides="both")  # type: ignore[arg-type]


def test_an_interval_that_ignores_clusters_says_so() -> None:
    users = [f"u{k % 25}" for k in range(100)]
    by_row, by_user = (
        evaluate(with_users(users), {"target": "t"}, interval=i) for i in ("student", "auto")
    )
    assert "clusters-ignored" in {f.code for f in by_row.findings}
    assert not {f.code for f in by_user.findings} & {"clusters-ignored", "few-clusters"}
    few = evaluate(with_users([f"u{k % 5}" for k in range(100)]), {"target": "t"})
    assert "few-clusters" in {f.code for f in few.findings}


def test_equal_rows_of_few_clusters_leave_everything_open() -> None:
    rows = 3000
    table = pa.table(
        {
            "logger": ["a"] * rows,
            "reward": [0.0] * rows,
            "p": [0.5] * rows,
            "user": [k // 1000 for k in range(rows)],
        }
    )
    log = Log(
        table,
        logger="logger",
        reward="reward",
        propensities={"a": "p"},
        cluster="user",
        reward_range=(0.0, 1.0),
    )
    found = evaluate(log, {"target": "p"})["target"]
    assert found.intervals["balanced"].upper == 1.0


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_bets_do_not_hang_on_the_order_of_the_rows(order: str) -> None:
    """Half of 1,000 rows are rewarded; sorted, they used to give [0.50, 0.94]."""
    rewards = np.sort(np.arange(1000) % 2.0)
    table = pa.table(
        {"l": ["a"] * 1000, "r": rewards if order == "ascending" else rewards[::-1].copy()}
    )
    log = Log(table, logger="l", reward="r", propensity="0.5", reward_range=(0.0, 1.0))
    interval = evaluate(log, {"target": "0.5"}, "naive", interval="betting")["target"].intervals
    assert 0.44 < interval["naive"].lower < 0.47
    assert 0.53 < interval["naive"].upper < 0.56


@pytest.mark.parametrize(("rewarded", "told"), [(4, True), (19, True), (25, False)])
@pytest.mark.parametrize(("interval", "severity"), [("skew", "note"), ("student", "warning")])
def test_few_rewarded_rows_are_told(
    rewarded: int, interval: IntervalName, severity: str, *, told: bool
) -> None:
    """The skew-score interval guards against rare rewards; Student's does not."""
    rewards = np.zeros(5000)
    rewards[:rewarded] = 1.0
    table = pa.table({"l": ["a"] * 5000, "r": rewards})
    log = Log(table, logger="l", reward="r", propensities={"a": "0.5"})
    findings = evaluate(log, {"target": "0.5"}, interval=interval)["target"].findings
    severities = [f.severity for f in findings if f.code == "few-rewarded-rows"]
    assert severities == ([severity] if told else [])


# The same rows twice, and names that are one.


@pytest.mark.parametrize(
    "sources",
    [
        ["{}/1.parquet", "{}/1.parquet"],
        ["{}/*.parquet", "{}/2.parquet"],
        ["{}", "{}/sub/../1.parquet"],
        {"a": "{}/1.parquet", "b": "{}/*.parquet"},
    ],
)
def test_a_file_that_would_be_read_twice_is_refused(
    sources: list[str] | dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("1", "2"):
        pq.write_table(TABLE, tmp_path / f"{name}.parquet")
    if isinstance(sources, dict):
        named = {k: v.format(tmp_path) for k, v in sources.items()}
        log = Log(named, reward="reward", propensities={"a": "p_a", "b": "p_b"})
    else:
        log = log_of([v.format(tmp_path) for v in sources])
    with refused(UsageError):
        evaluate(log, {"target": "t"})


def test_files_that_are_copies_are_read_both(tmp_path: Path) -> None:
    for name in ("1", "2"):
        pq.write_table(TABLE, tmp_path / f"{name}.parquet")
    found = evaluate(log_of([str(tmp_path / "1.parquet"), str(tmp_path / "2.parquet")]), "t")
    assert sum(found.rows.values()) == 200


def test_a_target_that_differs_from_another_column_in_capitals_is_refused() -> None:
    table = TABLE.append_column("T", TABLE["p"])
    assert evaluate(log_of(table), {"target": "t"}).targets
    with refused(UsageError):
        evaluate(log_of(table), {"target": "T"})


def test_decimal_commas_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = [f"a;{k % 2};0,5" for k in range(20)]
    path.write_text("\n".join(["l;r;p", *lines]), "utf-8")
    log = Log(path, logger="l", reward="r", propensity="p")
    with refused(LogError):
        evaluate(log, {"target": "p"}, "naive")
    read = Log(
        path, logger="l", reward="r", propensity="p", reader_options={"decimal_separator": ","}
    )
    assert evaluate(read, {"target": "p"}, "naive")["target"].estimates["naive"].value == 0.5


@pytest.mark.parametrize("propensities", [["p_a", "p_b"], "p_a"])
def test_propensities_are_a_mapping(propensities: object) -> None:
    with refused(UsageError):
        log_of(TABLE, propensities=propensities)


def test_a_level_is_a_number() -> None:
    with refused(UsageError):
        evaluate(log_of(TABLE), {"target": "t"}, level="0.95")  # type: ignore[arg-type]
