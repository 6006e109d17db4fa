"""Outcomes: joined with the decision that they belong to, and counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poolwise as pw
from poolwise.errors import LogError, MissingColumnError, PoolwiseError, UsageError
from tests.support.messages import check_findings, refused
from tests.support.schemas import table_of

if TYPE_CHECKING:
    from pathlib import Path

DECISIONS: dict[str, Any] = {
    "id": ["a", "b", "c", "d", "late"],
    "at": ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "2026-01-20"],
    "p": [0.5] * 5,
}
OUTCOMES: dict[str, Any] = {
    "ref": ["a", "a", "b", "c", "nobody", "d", "late"],
    "at": [
        *("2026-01-01 10:00", "2026-01-02 00:00", "2026-01-09 00:00:01", "2026-01-02 00:00"),
        *("2026-01-01 00:00", "2026-01-11 00:00", "2026-01-21"),
    ],
    "amount": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0],
}
START = datetime(2026, 1, 1, tzinfo=UTC)
JOIN: dict[str, Any] = {"key": "id", "outcome_key": "ref", "time": "at", "window": "7 days"}


def log(**roles: Any) -> pw.Log:  # noqa: ANN401 - roles
    given_roles = {"reward": "amount", "propensity": "p"} | roles
    return pw.Log(DECISIONS, **given_roles)


def rewards(joined: Any) -> list[float]:  # noqa: ANN401 - a joined log
    found: list[float] = table_of(joined.log)[joined.log.reward].to_pylist()
    return found


def test_outcomes_count_within_the_window_of_their_decision() -> None:
    joined = pw.join_outcomes(log(), OUTCOMES, **JOIN)
    assert table_of(joined.log)["id"].to_pylist() == ["a", "b", "c", "d"]
    assert rewards(joined) == [3.0, 0.0, 0.0, 32.0]  # at the end of the window, inclusive
    assert joined[1:] == (4, 2, 1, 1, 1, 1, 1)
    assert (joined.decisions, joined.matched, joined.repeated) == (4, 2, 1)
    assert (joined.unfinished, joined.late, joined.early, joined.orphans) == (1, 1, 1, 1)
    codes = ["outcomes-joined", "unfinished-windows", "stray-outcomes"]
    assert [note.code for note in joined.log.notes] == codes
    check_findings(joined.log.notes, *codes)


@pytest.mark.parametrize(
    ("aggregate", "reward"),
    [("sum", 7.0), ("mean", 3.5), ("max", 5.0), ("min", 2.0), ("first", 5.0), ("last", 2.0)],
)
def test_several_outcomes_are_one_reward(aggregate: Any, reward: float) -> None:  # noqa: ANN401 - a literal
    times = [START + timedelta(minutes=m) for m in (30, 10, 10)]
    later = {"id": [2, 1, 2], "t": times, "x": [2.0, 9.0, 5.0]}
    rows = {"id": [1, 2], "t": [START] * 2, "p": [0.5, 0.5]}
    plain = pw.Log(rows, reward="x", propensity="p")
    joined = pw.join_outcomes(plain, later, key="id", time="t", aggregate=aggregate)
    assert rewards(joined) == [9.0, reward]


def test_an_outcome_belongs_to_the_latest_decision_before_it() -> None:
    rows = {"user": [7, 7, 7], "t": ["2026-01-01", "2026-01-05", "2026-01-09"], "p": [0.5] * 3}
    later = {"user": [7, 7, 7], "t": ["2026-01-05", "2026-01-04", "2026-01-10"], "x": [1, 2, 4]}
    plain = pw.Log(rows, reward="x", propensity="p")
    joined = pw.join_outcomes(plain, later, key="user", time="t")
    assert rewards(joined) == [2.0, 1.0, 4.0]


def test_decisions_without_an_outcome_get_the_stated_reward() -> None:
    joined = pw.join_outcomes(log(), OUTCOMES, **JOIN, missing=-1)
    assert rewards(joined) == [3.0, -1.0, -1.0, 32.0]
    assert "reward -1" in joined.log.notes[0].message


def test_until_says_which_windows_have_ended() -> None:
    joined = pw.join_outcomes(log(), OUTCOMES, **JOIN, until="2026-02-01")
    assert (joined.decisions, joined.unfinished) == (5, 0)
    joined = pw.join_outcomes(log(), OUTCOMES, **JOIN, until=START + timedelta(days=8))
    assert table_of(joined.log)["id"].to_pylist() == ["a", "b"]


def test_times_without_a_zone_are_in_that_of_the_log() -> None:
    later = {"id": ["a"], "at": ["2026-01-01T04:30:00Z"], "amount": [1.0]}
    options: dict[str, Any] = {"key": "id", "time": "at", "window": "5 hours"}
    options |= {"until": "2026-03-01"}
    utc = pw.join_outcomes(log(), later, **options)
    assert rewards(utc)[0] == 1.0
    east = log(timezone="Asia/Tokyo")  # the decision was at 15:00 UTC the day before
    with pytest.raises(LogError, match="1 came after the window"):
        pw.join_outcomes(east, later, **options)
    west = log(timezone="America/New_York")  # and here at 05:00 UTC, after the outcome
    with refused(LogError):
        pw.join_outcomes(west, later, **options)


def test_without_times_all_outcomes_of_a_key_count() -> None:
    joined = pw.join_outcomes(log(), OUTCOMES, key="id", outcome_key="ref")
    assert rewards(joined) == [3.0, 4.0, 8.0, 32.0, 64.0]
    assert joined.orphans == 1


@pytest.mark.parametrize("kind", ["parquet", "csv", "select", "mapping"])
def test_the_sources_are_those_of_logs(kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(DECISIONS), tmp_path / "d.parquet")
    pc.write_csv(pa.table(DECISIONS), tmp_path / "d.csv")
    pq.write_table(pa.table(OUTCOMES), tmp_path / "o.parquet")
    source: Any = {
        "parquet": tmp_path / "d.parquet",
        "csv": tmp_path / "d.csv",
        "select": f"SELECT * FROM '{tmp_path}/d.parquet'",
        "mapping": {"v1": tmp_path / "d.parquet"},
    }[kind]
    plain = pw.Log(source, reward="2 * amount", propensity="p")
    joined = pw.join_outcomes(plain, tmp_path / "o.parquet", **JOIN)
    assert rewards(joined) == [6.0, 0.0, 0.0, 64.0]
    assert pw.evaluate(joined.log, "p").rows == {"v1" if kind == "mapping" else "log": 4}


def test_arrays_stay_with_their_rows() -> None:
    plain = log(propensity=np.array([0.1, 0.2, 0.3, 0.4, 0.5]), action="id")
    joined = pw.join_outcomes(plain, OUTCOMES, **JOIN)
    target = pw.evaluate(joined.log, "p", "naive")["target"]
    expected = np.mean([3 * 0.5 / 0.1, 0, 0, 32 * 0.5 / 0.4])
    assert target.estimates["naive"].value == pytest.approx(expected, rel=1e-12)
    with refused(UsageError):  # an array of the decisions is no array of these rows
        pw.evaluate(joined.log, np.full(5, 0.5))


def test_a_column_that_is_called_reward_stays() -> None:
    plain = pw.Log(DECISIONS | {"Reward": [9.0] * 5}, reward="amount", propensity="p")
    joined = pw.join_outcomes(plain, OUTCOMES, **JOIN)
    assert joined.log.reward == "reward_"
    assert table_of(joined.log)["Reward"].to_pylist() == [9.0] * 4


def test_notes_are_findings_of_every_verb() -> None:
    joined = pw.join_outcomes(log(), OUTCOMES, **JOIN).log
    codes = {"outcomes-joined", "unfinished-windows", "stray-outcomes"}
    for found in (pw.evaluate(joined, "p"), pw.check(joined)):
        assert codes <= {finding.code for finding in found.findings}


@pytest.mark.parametrize(
    "change",
    [
        {"window": "7 months"},
        {"window": timedelta(0)},
        {"window": "0 days"},
        {"aggregate": "median"},
        {"missing": float("nan")},
        {"until": "tomorrow"},
        {"window": None, "until": "2026-02-01"},
        {"time": None},
        {"key": "ID of the decision"},
        {"outcome_key": "reference"},
        {"outcome_time": "when"},
        {"window": "30 days"},
    ],
)
def test_mistakes_are_one_message(change: dict[str, Any]) -> None:
    with refused(PoolwiseError):
        pw.join_outcomes(log(), OUTCOMES, **(JOIN | change))


def test_rows_that_cannot_be_joined_are_counted() -> None:
    rows = DECISIONS | {"id": ["a", "a", None, "d", "e"], "at": ["2026-01-01"] * 2 + ["x"] * 3}
    later = OUTCOMES | {"amount": [1.0, None, float("inf"), 1.0, 1.0, 1.0, 1.0]}
    later["at"] = ["soon", *OUTCOMES["at"][1:]]
    with refused(LogError) as found:
        pw.join_outcomes(pw.Log(rows, reward="amount", propensity="p"), later, **JOIN)
    assert [fault.rows for fault in found.value.faults] == [1, 2, 2, 3, 1]


def test_a_join_in_which_nothing_matches_is_refused() -> None:
    with refused(LogError):
        pw.join_outcomes(log(), OUTCOMES | {"ref": list("vwxyzzz")}, **JOIN)
    with refused(MissingColumnError):
        pw.join_outcomes(log(reward="amout"), OUTCOMES, **JOIN)


def expected_rewards(
    decisions: list[tuple[int, int]], outcomes: list[tuple[int, int, int]], window: int
) -> list[float]:
    """Return the sum of outcomes by decision, one outcome after the other."""
    sums = [0.0] * len(decisions)
    for key, time, reward in outcomes:
        before = [k for k, (other, at) in enumerate(decisions) if other == key and at <= time]
        latest = max(before, key=lambda k: decisions[k][1], default=None)
        if latest is not None and time - decisions[latest][1] <= window:
            sums[latest] += reward
    return sums


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, unique=True),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(1, 5)), min_size=1),
    st.integers(1, 6),
)
@settings(max_examples=40)
def test_the_join_is_that_of_a_loop(
    decisions: list[tuple[int, int]], outcomes: list[tuple[int, int, int]], window: int
) -> None:
    rows = {
        "key": [key for key, _ in decisions],
        "t": [START + timedelta(hours=at) for _, at in decisions],
        "p": [0.5] * len(decisions),
    }
    later = pa.table(
        {
            "key": [key for key, _, _ in outcomes],
            "t": [START + timedelta(hours=time) for _, time, _ in outcomes],
            "x": [reward for _, _, reward in outcomes],
        }
    )
    expected = expected_rewards(decisions, outcomes, window)
    plain = pw.Log(pa.table(rows), reward="x", propensity="p")
    options: dict[str, Any] = {"key": "key", "time": "t", "window": timedelta(hours=window)}
    options |= {"until": "2027-01-01"}
    if not any(expected):
        with pytest.raises(LogError, match="none of"):
            pw.join_outcomes(plain, later, **options)
        return
    joined = pw.join_outcomes(plain, later, **options)
    assert rewards(joined) == expected
    places = joined.late + joined.early + joined.orphans
    assert places <= len(outcomes)
