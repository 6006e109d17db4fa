"""Checking a log: every fault is named, counted and shown with an example."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from poolwise.engines.duckdb import DuckDBRows
from poolwise.errors import Fault, LogError, MissingColumnError
from poolwise.evaluation.check import check
from poolwise.evaluation.evaluate import evaluate
from tests.support.messages import refused
from tests.support.reference import Reference, assert_same, log_of, random_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engines.base import Engine
    from poolwise.log.log import Log

pytestmark = pytest.mark.slow  # all of them together take seconds
NAN, INF = math.nan, math.inf
TARGETS = {"target": "t"}
REPLAY = "the logged propensity is not that of its logger (they differ by more than 1e-06)"
TYPES = {"logger": pa.string(), "reward": pa.float64(), "p": pa.float64()}


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    good = {"logger": "a", "reward": 1.0, "p": 0.5, "p_a": 0.5, "p_b": 0.25, "t": 0.5}
    full = [good | ({"p": 0.25} if r.get("logger") == "b" else {}) | dict(r) for r in rows]
    schema = pa.schema([(name, TYPES.get(name, pa.float64())) for name in good])
    return pa.Table.from_pylist(full, schema=schema)


def with_good(*rows: Mapping[str, Any]) -> pa.Table:
    """Return four good rows of each logger around the given rows."""
    good = [{"logger": "a", "reward": 1.0}, {"logger": "b", "reward": 2.0}] * 2
    return table_of([*good, *rows, *good])


def faults_of(engine: Engine, log: Log) -> tuple[Fault, ...]:
    with engine.open(log, TARGETS) as rows:
        return rows.check()


def counted(faults: Sequence[Fault]) -> dict[tuple[str, str], int]:
    found = {(fault.rule, fault.logger): fault.rows for fault in faults}
    assert len(found) == len(faults)  # each rule and logger once
    return found


ONE_FAULT: list[tuple[dict[str, Any], str]] = [
    ({"reward": None}, "the reward is null or not a number"),
    ({"reward": NAN}, "the reward is infinite or NaN"),
    ({"reward": INF}, "the reward is infinite or NaN"),
    ({"reward": -INF}, "the reward is infinite or NaN"),
    ({"t": None}, "the probability of target 'target' is null or not a number"),
    ({"t": NAN}, "the probability of target 'target' is outside [0, 1]"),
    ({"t": -1e-9}, "the probability of target 'target' is outside [0, 1]"),
    ({"t": 1.0001}, "the probability of target 'target' is outside [0, 1]"),
    ({"t": INF}, "the probability of target 'target' is outside [0, 1]"),
    ({"p_b": None}, "the probability under logger 'b' is null or not a number"),
    ({"p_b": 1.5}, "the probability under logger 'b' is outside [0, 1]"),
    ({"p_b": -0.5}, "the probability under logger 'b' is outside [0, 1]"),
    ({"p_b": NAN}, "the probability under logger 'b' is outside [0, 1]"),
    ({"p": 0.4}, REPLAY),
]
OWN_FAULT: list[tuple[dict[str, Any], str]] = [
    ({"p": None}, "the propensity is null or not a number"),
    ({"p": NAN}, "the propensity is infinite or NaN"),
    ({"p": INF}, "the propensity is infinite or NaN"),
    ({"p": 0.0}, "the propensity is 0 or negative"),
    ({"p": -0.1}, "the propensity is 0 or negative"),
    ({"p": -INF}, "the propensity is 0 or negative"),
    ({"p": 1.0000001}, "the propensity is above 1"),
]


@pytest.mark.parametrize(("row", "rule"), ONE_FAULT, ids=lambda v: str(v)[:30])
def test_each_fault_alone_is_named_and_counted(
    engine: Engine, row: Mapping[str, Any], rule: str
) -> None:
    log = log_of(with_good(row, row))
    faults = faults_of(engine, log)
    assert counted(faults) == {(rule, "a"): 2}
    (value,) = row.values()
    shown = list(faults[0].example.values())
    assert any(v == value or (v != v and value != value) for v in shown)  # noqa: PLR0124 - nan
    with pytest.raises(LogError) as caught:
        evaluate(log, TARGETS, engine=engine)
    assert counted(caught.value.faults) == {(rule, "a"): 2}
    assert "logger 'a': 2 rows" in str(caught.value)
    advice = "densities" if row == {"p_b": 1.5} else "drop"  # 1.0001 may be rounding
    assert advice in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "rule"), OWN_FAULT, ids=lambda v: str(v)[:30])
def test_each_fault_of_the_own_propensity_is_named(
    engine: Engine, row: Mapping[str, Any], rule: str
) -> None:
    log = log_of(with_good(row), propensities=None)
    faults = faults_of(engine, log)
    assert counted(faults) == {(rule, "a"): 1}
    with refused(LogError):
        evaluate(log, TARGETS, engine=engine)


def test_a_null_logger_is_a_fault_and_an_unknown_one_another(engine: Engine) -> None:
    table = with_good({"logger": None}, {"logger": "c"}, {"logger": "c"}, {"logger": "A"})
    expected = {
        ("the logger is null", ""): 1,
        ("the logger is unknown", "c"): 2,
        ("the logger is unknown", "A"): 1,
    }
    assert counted(faults_of(engine, log_of(table))) == expected
    assert counted(faults_of(engine, log_of(table, propensity=None))) == expected
    for log in (log_of(table), log_of(table, propensity=None)):
        with refused(LogError):
            evaluate(log, TARGETS, engine=engine)


def test_without_a_list_of_loggers_only_null_is_a_fault(engine: Engine) -> None:
    log = log_of(with_good({"logger": None}, {"logger": "c"}), propensities=None)
    assert counted(faults_of(engine, log)) == {("the logger is null", ""): 1}
    with refused(LogError):
        evaluate(log, TARGETS, engine=engine)


def test_loggers_may_be_known_without_their_propensities(engine: Engine) -> None:
    log = log_of(with_good({"logger": "c"}), propensities={"a": None, "b": None})
    assert counted(faults_of(engine, log)) == {("the logger is unknown", "c"): 1}
    with refused(LogError):
        evaluate(log, TARGETS, engine=engine)


def test_a_logger_without_rows_is_a_fault(engine: Engine) -> None:
    table = table_of([{"logger": "a"}, {"logger": "a"}])
    assert counted(faults_of(engine, log_of(table))) == {("the logger has no rows", "b"): 0}
    with refused(LogError):
        evaluate(log_of(table), TARGETS, engine=engine)


def test_all_faults_are_reported_together_by_logger(engine: Engine) -> None:
    rows: list[dict[str, Any]] = [
        *(row | {"logger": "a"} for row, _ in ONE_FAULT),
        *(row | {"logger": "a"} for row, _ in OWN_FAULT),
        {"logger": "b", "reward": None, "t": 7.0},
        {"logger": "b", "reward": None},
        {"logger": "b", "p_a": -0.5},
        {"logger": None},
        {"logger": "robert'); drop table log; --"},
    ]
    log = log_of(with_good(*rows))
    found = counted(faults_of(engine, log))
    assert found == counted(faults_of(Reference(), log))
    assert found["the reward is null or not a number", "a"] == 1
    assert found["the reward is null or not a number", "b"] == 2
    assert found["the reward is infinite or NaN", "a"] == 3
    assert found["the probability of target 'target' is outside [0, 1]", "a"] == 4
    assert found["the probability of target 'target' is outside [0, 1]", "b"] == 1
    assert found["the probability under logger 'a' is outside [0, 1]", "b"] == 1
    assert found["the propensity is 0 or negative", "a"] == 3
    assert found["the logger is null", ""] == 1
    assert found["the logger is unknown", "robert'); drop table log; --"] == 1
    with pytest.raises(LogError) as caught:
        evaluate(log, TARGETS, engine=engine)
    assert counted(caught.value.faults) == found
    assert len(str(caught.value).splitlines()) >= len(found)


def test_faults_come_in_the_same_order_every_time(engine: Engine) -> None:
    rows = [{"logger": k, "reward": None, "p_a": 0.5} for k in "zyxwvutsrq"]
    log = log_of(table_of(rows), propensities=None)
    loggers = [fault.logger for fault in faults_of(engine, log)]
    assert loggers == sorted(loggers)


@pytest.mark.parametrize(
    ("gap", "faults"), [(0.9e-6, 0), (-0.9e-6, 0), (1.1e-6, 1), (-1.1e-6, 1)]
)
def test_the_replay_check_allows_a_millionth(engine: Engine, gap: float, faults: int) -> None:
    found = faults_of(engine, log_of(with_good({"p": 0.5 + gap})))
    assert counted(found) == ({(REPLAY, "a"): 1} if faults else {})


def test_the_replay_check_compares_with_the_own_logger_only(engine: Engine) -> None:
    swapped = with_good({"logger": "b", "p": 0.5})  # the probability under logger a
    assert counted(faults_of(engine, log_of(swapped))) == {(REPLAY, "b"): 1}


def test_the_tolerance_of_the_replay_check_can_be_chosen(engine: Engine) -> None:
    table = with_good({"p": 0.45})
    assert faults_of(engine, log_of(table, replay_tolerance=0.06)) == ()
    assert len(faults_of(engine, log_of(table, replay_tolerance=0.04))) == 1


def test_the_replay_example_shows_both_probabilities(engine: Engine) -> None:
    (fault,) = faults_of(engine, log_of(with_good({"p": 0.4})))
    assert sorted(fault.example.values()) == [0.4, 0.5]  # type: ignore[type-var]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ({"p": -INF}, "the log-propensity is -infinity"),
        ({"p": 0.1}, "the log-propensity is above 0"),
        ({"p": NAN}, "the log-propensity is infinite or NaN"),
        ({"p": None}, "the log-propensity is null or not a number"),
        ({"t": 0.1}, "the log-probability of target 'target' is above 0 or NaN"),
        ({"t": NAN}, "the log-probability of target 'target' is above 0 or NaN"),
        ({"t": None}, "the log-probability of target 'target' is null or not a number"),
    ],
    ids=str,
)
def test_faults_of_log_probabilities_are_named(
    engine: Engine, row: Mapping[str, Any], rule: str
) -> None:
    good: dict[str, Any] = {"p": -1.0, "t": -0.5}
    log = log_of(
        table_of([good, good | dict(row), good]), log_probabilities=True, propensities=None
    )
    assert counted(faults_of(engine, log)) == {(rule, "a"): 1}
    with refused(LogError):
        evaluate(log, TARGETS, engine=engine)


def test_good_rows_at_the_very_edge_are_no_faults(engine: Engine) -> None:
    edge = {"p": 1.0, "p_a": 1.0, "p_b": 0.0, "t": 0.0, "reward": -1.7e300}
    other = {"p": 1e-300, "p_a": 1e-300, "p_b": 1.0, "t": 1.0, "reward": 0.0}
    assert faults_of(engine, log_of(with_good(edge, other))) == ()


def test_missing_columns_are_named_all_at_once_with_the_nearest_name(engine: Engine) -> None:
    log = log_of(
        with_good(),
        reward="rewrd",
        logger="loger",
        propensity="propensity_of_it",
        propensities={"a": "p_a", "b": "pb"},
        cluster="user",
    )
    with pytest.raises(MissingColumnError) as caught, engine.open(log, {"new": "tt"}):
        pass
    missing = {"rewrd", "loger", "propensity_of_it", "pb", "user", "tt"}
    assert set(caught.value.missing) == missing
    text = str(caught.value)
    assert "'rewrd'; did you mean 'reward'?" in text
    assert "'loger'; did you mean 'logger'?" in text
    assert "'pb'; did you mean 'p_b'?" in text
    assert "propensities['b']" in text
    assert "target 'new'" in text
    assert "logger, reward, p, p_a, p_b, t" in text


@pytest.mark.parametrize("rows", ["none", "none, without cross-propensities"])
def test_an_empty_log_is_a_named_error(engine: Engine, rows: str) -> None:
    crossed: dict[str, Any] = {} if rows == "none" else {"propensities": None}
    log = log_of(table_of([]), **crossed)
    assert [fault.rule for fault in faults_of(engine, log)] == ["the log has no rows"]
    for on_fault in ("raise", "drop"):
        again = log_of(table_of([]), on_fault=on_fault, **crossed)
        with refused(LogError):
            evaluate(again, TARGETS, engine=engine)


def test_text_where_numbers_belong_is_a_fault_not_a_crash(engine: Engine) -> None:
    table = with_good()
    place = table.column_names.index("reward")
    words = ["good", *map(str, table["reward"].to_pylist()[1:])]
    log = log_of(table.set_column(place, "reward", pa.array(words)))
    faults = faults_of(engine, log)
    assert counted(faults) == {("the reward is null or not a number", "a"): 1}


def test_dropping_bad_rows_equals_a_log_without_them(engine: Engine) -> None:
    rows = [row for row, _ in [*ONE_FAULT, *OWN_FAULT]]
    odd: list[dict[str, Any]] = [{"logger": None}, {"logger": "c"}]
    bad = [*rows, *odd, {"logger": "b", "reward": None}]
    good: list[dict[str, Any]] = [
        {"logger": "a", "reward": 3.0, "t": 0.25},
        {"logger": "b", "reward": 1.0, "t": 0.75},
        {"logger": "b", "reward": 4.0, "t": 0.5},
    ]
    dropping = evaluate(log_of(with_good(*bad, *good), on_fault="drop"), TARGETS, engine=engine)
    clean = evaluate(log_of(with_good(*good)), TARGETS, engine=engine)
    assert dropping.rows == clean.rows == {"a": 5, "b": 6}
    assert_same(dropping, clean, rel=1e-12)


def test_dropping_says_how_many_rows_per_logger_and_rule(engine: Engine) -> None:
    table = with_good({"reward": None}, {"reward": None}, {"logger": "b", "t": 2.0})
    found = evaluate(log_of(table, on_fault="drop"), TARGETS, engine=engine)
    dropped = [f for f in found.findings if f.code == "dropped-rows"]
    assert len(dropped) == 2
    text = "\n".join(map(str, dropped))
    assert "logger 'a': 2 rows: the reward is null" in text
    assert "logger 'b': 1 row: the probability of target" in text


def test_dropping_survives_a_log_that_begins_with_bad_rows(engine: Engine) -> None:
    bad = table_of([{"reward": None}] * 20_001)
    good = table_of([{"reward": 1.0}, {"reward": 3.0}])
    log = log_of(pa.concat_tables([bad, good]), ["a"], on_fault="drop")
    found = evaluate(log, TARGETS, "naive", engine=engine)
    assert found.rows == {"a": 2}
    assert found["target"].estimates["naive"].value == pytest.approx(2, rel=1e-12)


def test_dropping_every_row_is_an_error_that_says_why(engine: Engine) -> None:
    log = log_of(table_of([{"reward": None}] * 3), ["a"], on_fault="drop")
    with refused(LogError):
        evaluate(log, TARGETS, engine=engine)


def test_dropping_from_a_good_log_runs_no_query_of_the_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("the rules are counted again")

    monkeypatch.setattr(DuckDBRows, "_lines", unexpected)
    strict, dropping = (
        evaluate(log_of(with_good(), on_fault=on_fault), TARGETS)
        for on_fault in ("raise", "drop")
    )
    assert_same(dropping, strict, rel=0.0)


def test_dropping_a_good_log_says_nothing(engine: Engine) -> None:
    found = evaluate(log_of(with_good(), on_fault="drop"), TARGETS, engine=engine)
    assert found.findings == ()


def test_checking_alone_reports_rows_and_faults(engine: Engine) -> None:
    table = with_good({"reward": None})
    for on_fault in ("raise", "drop"):
        report = check(log_of(table, on_fault=on_fault), TARGETS, engine=engine)
        assert report.rows == {"a": 5, "b": 4}
        assert counted(report.faults) == {("the reward is null or not a number", "a"): 1}
        assert "1 row: the reward is null" in str(report)
    clean = check(log_of(with_good()), TARGETS, engine=engine)
    assert clean.faults == ()
    first, note = str(clean).splitlines()
    assert first == "no faults in 8 rows ('a' 4, 'b' 4)"
    assert note.startswith("note (no-audit): ")


def test_checking_needs_no_target(engine: Engine) -> None:
    assert check(log_of(with_good({"t": 7.0})), engine=engine).faults == ()


LABELS = ("a", "b", "c", None)
ODD = (None, NAN, INF, -INF, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("logs", [False, True], ids=["probabilities", "logarithms"])
@pytest.mark.parametrize("crossed", [False, True], ids=["own", "crossed"])
def test_the_rules_leave_no_gap(engine: Engine, *, crossed: bool, logs: bool) -> None:
    """Faults are those of the reference, and exactly the good rows are kept."""
    rng = np.random.default_rng(40)
    # mostly good values: rows with one fault are better tests than rows with five
    good = {"p": 0.5, "p_a": 0.5, "p_b": 0.5, "t": 0.5, "reward": 1.0}
    if logs:
        good = dict.fromkeys(good, -0.5)
    rows = [
        {
            "logger": LABELS[rng.choice(4, p=[0.45, 0.45, 0.05, 0.05])],
            **{
                k: v if rng.random() < 0.8 else ODD[rng.integers(len(ODD))]
                for k, v in good.items()
            },
        }
        for _ in range(1_500)
    ]
    roles: dict[str, Any] = {"log_probabilities": logs}
    if not crossed:
        roles["propensities"] = None
    log = log_of(table_of(rows), **roles)
    found = counted(faults_of(engine, log))
    assert found == counted(faults_of(Reference(), log))
    assert len(found) >= 18
    dropping = log_of(table_of(rows), on_fault="drop", **roles)
    with engine.open(dropping, TARGETS) as kept, Reference().open(dropping, TARGETS) as judge:
        assert kept.counts == judge.counts
        assert kept.all_counts == judge.all_counts


def test_a_mistyped_logger_is_told_with_the_one_that_was_meant() -> None:
    table = random_table(np.random.default_rng(1), {"small": 4, "large": 3})
    log = log_of(table, propensities={"smal": "p_small", "large": "p_large"})
    with refused(LogError):
        evaluate(log, "t")
