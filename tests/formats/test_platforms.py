"""Platforms: exposures of GrowthBook and events of Eppo become logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.errors import LogError, MissingColumnError, PoolwiseError, UsageError
from tests.support.messages import refused
from tests.support.schemas import RATES, SCHEMAS, shoes, table_of

if TYPE_CHECKING:
    from pathlib import Path

EXPOSURES: dict[str, Any] = {
    "user_id": ["u1", "u2", "u1", "u3", "u2"],
    "timestamp": [f"2026-03-0{day} 08:00:00" for day in (1, 2, 9, 8, 1)],
    "experiment_id": ["cta"] * 5,
    "variation_id": ["0", "1", "0", "1", "1"],
    "bandit_version": [1, 1, 2, 2, 1],
    "variation_weights": [[0.5, 0.5], [0.5, 0.5], [0.2, 0.8], [0.2, 0.8], [0.5, 0.5]],
    "revenue": [1.0, 0.0, 5.0, 2.0, 7.0],
}


def rows_of(log: pw.Log) -> list[dict[str, Any]]:
    found = pw.evaluate(log, "1.0", "naive")  # it can be read
    assert found.rows
    rows: list[dict[str, Any]] = table_of(log).to_pylist()
    return rows


@pytest.mark.parametrize("style", ["warehouse", "sdk", "text"])
@pytest.mark.parametrize("kind", ["file", "frame"])
def test_the_first_exposure_of_a_user_has_the_weights_that_it_was_drawn_with(
    style: str, kind: str, tmp_path: Path
) -> None:
    table = pa.table(EXPOSURES)
    if style == "sdk":
        names = "userId timestamp experimentId variationId banditVersion variationWeights"
        table = table.rename_columns([*names.split(), "revenue"])
    if style == "text":
        texts = [str(w) for w in EXPOSURES["variation_weights"]]
        table = table.set_column(5, "variation_weights", pa.array(texts))
    pq.write_table(table, tmp_path / "exposures.parquet")
    source = tmp_path / "exposures.parquet" if kind == "file" else table
    log = pw.from_growthbook(source, reward="revenue")
    roles = [str(log.logger), str(log.action), "revenue", "period"]
    kept = [tuple(row[name] for name in roles) for row in rows_of(log)]
    assert sorted(kept) == [("1", "0", 1.0, 1), ("1", "1", 7.0, 1), ("2", "1", 2.0, 2)]
    assert log.period == "period"
    assert [note.code for note in log.notes] == ["later-exposures"]
    naive = pw.evaluate(log, {"one": {"1": 1.0}}, "naive")["one"].estimates["naive"].value
    assert naive == pytest.approx((7.0 / 0.5 + 2.0 / 0.8) / 3)


def test_weights_of_an_ordinary_experiment_are_given() -> None:
    names = ("user_id", "experiment_id", "variation_id", "revenue")
    plain = {name: EXPOSURES[name] for name in names}
    plain["variation_id"] = ["control", "blue", "control", "blue", "blue"]
    with refused(UsageError):
        pw.from_growthbook(plain, reward="revenue")
    with refused(UsageError):
        pw.from_growthbook(plain, reward="revenue", weights=[0.4, 0.6])
    log = pw.from_growthbook(
        plain, reward="revenue", weights=[0.4, 0.6], variations=["control", "blue"]
    )
    assert (log.logger, log.period) == (None, None)
    naive = pw.evaluate(log, {"blue": {"blue": 1.0}}, "naive")["blue"].estimates["naive"].value
    assert naive == pytest.approx((0.0 + 2.0) / 0.6 / 3)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"experiment_id": ["a", "b", "a", "a", "a"]}, {}),
        ({}, {"experiment": "ctaa"}),
        ({}, {"weights": [0.5, 0.6]}),
        ({}, {"variations": "01"}),
        ({}, {"unit": "user"}),
        ({"probabilities": [0.5] * 5}, {}),
    ],
)
def test_mistakes_are_one_message(change: dict[str, Any], options: dict[str, Any]) -> None:
    with refused(PoolwiseError):
        pw.from_growthbook(EXPOSURES | change, reward="revenue", **options)


def test_exposures_that_break_a_rule_are_counted() -> None:
    weights = [[0.5, 0.5], None, [1.0], [0.2, 0.8], [0.2, None]]
    change = {"user_id": ["u1", "u2", None, "u3", "u4"], "variation_weights": weights}
    change["variation_id"] = ["0", "1", "0", "2", "1"]
    with refused(LogError) as found:
        pw.from_growthbook(EXPOSURES | change, reward="revenue")
    assert [fault.rows for fault in found.value.faults] == [1, 1, 2, 1]


def test_one_experiment_of_several_is_read() -> None:
    several = EXPOSURES | {"experiment_id": ["a", "a", "b", "b", "a"]}
    log = pw.from_growthbook(several, reward="revenue", experiment="b")
    assert {row["user_id"] for row in rows_of(log)} == {"u1", "u3"}
    assert log.notes == ()


def test_versions_of_eppo_are_loggers_and_periods() -> None:
    events, purchases = shoes(600)
    lacking = events[0] | {"action": None, "actionProbability": None}
    log = pw.from_eppo([*events, lacking], reward="amount")
    assert (log.logger, log.cluster, log.period) == ("modelVersion", "subject", "period")
    assert [note.code for note in log.notes] == ["no-action"]
    versions = {(row["modelVersion"], row["period"]) for row in table_of(log).to_pylist()}
    assert versions == {("v9", 1), ("v10", 2)}  # in time, not as text
    joined = pw.join_outcomes(
        log,
        purchases,
        key="subject",
        time="timestamp",
        outcome_time="at",
        window="2 hours",
        until="2026-03-05 04:00",  # 600 decisions, one every ten minutes, end at 03:50
    )
    assert (joined.decisions, joined.unfinished) == (589, 11)
    assert joined.matched == table_of(joined.log)["reward"].to_numpy().sum()


def test_columns_of_a_warehouse_are_read() -> None:
    rows = {
        "timestamp": ["2026-01-01", "2026-01-02", "2026-01-02"],
        "key": ["shoes", "hats", "shoes"],
        "subject": ["s1", "s2", "s3"],
        "action": ["nike", "cap", "puma"],
        "action_probability": [0.25, 1.0, 0.5],
        "model_version": ["cold start"] * 3,
        "reward": [2.0, 9.0, 1.0],
    }
    log = pw.from_eppo(rows, reward="reward", bandit="shoes")
    assert log.period is None
    naive = pw.evaluate(log, "0.5", "naive")["target"].estimates["naive"].value
    assert naive == pytest.approx((2.0 * 0.5 / 0.25 + 1.0) / 2)
    with refused(UsageError):
        pw.from_eppo(rows, reward="reward")
    with refused(LogError):
        nothing = {"action_probability": [None, 1.0, 0.5], "subject": [None, "s2", "s3"]}
        pw.from_eppo(rows | nothing, reward="reward", bandit="shoes")


ASSIGNMENTS: dict[str, Any] = {
    "timestamp": ["2026-01-02", "2026-01-01", "2026-01-01", "2026-01-03"],
    "experiment": ["e"] * 4,
    "allocation": ["main"] * 4,
    "variation": ["control", "new", "new", "control"],
    "subject": ["s1", "s2", "s3", "s2"],
    "paid": [1.0, 2.0, 4.0, 8.0],
}


def test_assignments_take_the_shares_of_their_variations() -> None:
    log = pw.from_eppo(ASSIGNMENTS, reward="paid", shares={"control": 0.25, "new": 0.75})
    assert {row["subject"]: row["paid"] for row in rows_of(log)} == {"s1": 1, "s2": 2, "s3": 4}
    naive = pw.evaluate(log, {"new": {"new": 1.0}}, "naive")["new"].estimates["naive"].value
    assert naive == pytest.approx((2 + 4) / 0.75 / 3)


@pytest.mark.parametrize("shares", [None, {}, {"control": 0.5, "new": 0.6}, {"control": 1.0}])
def test_shares_must_be_those_of_all_variations(shares: Any) -> None:  # noqa: ANN401 - of a user
    with refused(PoolwiseError):
        pw.from_eppo(ASSIGNMENTS, reward="paid", shares=shares)


def test_rows_of_neither_kind_are_refused() -> None:
    with refused(MissingColumnError):
        pw.from_eppo({"subject": ["s"], "x": [1]}, reward="x")
    with refused(MissingColumnError):
        pw.from_growthbook({"subject": ["s"], "x": [1]}, reward="x")


@pytest.mark.slow
def test_a_bandit_that_learns_is_estimated_without_bias(tmp_path: Path) -> None:
    SCHEMAS["growthbook"](tmp_path)
    log = pw.from_growthbook(tmp_path / "exposures.parquet", reward="revenue")
    found = pw.evaluate(log, {f"{k}": {str(k): 1.0} for k in range(3)})
    for k, rate in enumerate(RATES):
        estimate = found[str(k)].estimates["period-balanced"]
        assert abs(estimate.value - rate) < 4 * estimate.std_error < 0.1
