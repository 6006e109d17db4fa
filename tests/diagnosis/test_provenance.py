"""Provenance: copies beyond chance, training on the log, and loggers that follow each other."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.diagnosis.provenance import (
    conflicts,
    doubled_rows,
    most_pairs,
    text_order,
)
from poolwise.engines.exact import TARGET_COLUMN
from poolwise.errors import UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.log.log import Log
from tests.support.messages import check_findings, refused
from tests.support.periods import daily, daily_log
from tests.support.toys import toy

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.errors import Finding
    from poolwise.evaluation.results import Evaluation

CODE = "loggers-in-succession"
TARGETS = {"t": "t"}
CANDIDATE = {"target": TARGET_COLUMN}


def drawn(seed: int) -> Log:
    problem = replace(toy("T2"), counts={"1": 400, "2": 600})
    return problem.draw(np.random.default_rng(seed))


def codes(found: Evaluation, *severities: str) -> set[str]:
    chosen = severities or ("alarm", "warning", "note")
    return {str(w["code"]) for w in found.warnings if w["severity"] in chosen}


# ------------------------------------------------------------------ loaded twice


def contents(values: object) -> Counter[int]:
    """Number of contents that occur 1, 2, 3, ... times."""
    return Counter(np.unique(np.asarray(values), return_counts=True)[1].tolist())


@pytest.mark.parametrize("labels", [2, 50, 1_000, 20_000, 10**6])
@pytest.mark.parametrize("even", [True, False], ids=["even", "skewed"])
def test_rows_that_repeat_by_chance_are_silent(labels: int, even: bool) -> None:  # noqa: FBT001
    found = 0
    for seed in range(40):
        draws = np.random.default_rng(seed).random(5_000)
        found += bool(doubled_rows(contents((draws if even else draws**4) * labels // 1)))
    assert found == 0


@pytest.mark.parametrize("labels", [20_000, 10**9])
@pytest.mark.parametrize("share", [0.1, 1.0], ids=["part", "whole"])
def test_rows_that_were_loaded_twice_are_found(labels: int, share: float) -> None:
    rows = np.random.default_rng(1).integers(labels, size=20_000)
    rows = np.concatenate([rows, rows[: round(share * len(rows))]])
    whole_of_few = labels < 10**6 and share < 1  # chance has more pairs than the copies add
    assert bool(doubled_rows(contents(rows))) != whole_of_few


def test_the_bound_is_that_of_poisson_counts() -> None:
    for mean in (0.01, 0.5, 1.0, 3.0):  # equal means attain the inequality
        singles, pairs, triples = (
            10**6 * np.exp(-mean) * mean**k / f for k, f in ((1, 1), (2, 2), (3, 6))
        )
        assert pairs**2 == pytest.approx(1.5 * singles * triples)
        assert most_pairs(round(singles), round(triples)) > pairs


def table(rows: int) -> pa.Table:
    rng = np.random.default_rng(2)
    half = np.full(rows, 0.5)
    action = np.arange(rows) % 2
    columns = {"r": rng.integers(2, size=rows), "x": rng.random(rows), "p": half, "t": half}
    return pa.table(columns | {"a": action})


def test_check_reports_a_log_that_was_loaded_twice(tmp_path: Path) -> None:
    once = table(200)
    twice = pa.concat_tables([once, once])
    roles: dict[str, Any] = {"reward": "r", "propensity": "p", "action": "a"}
    assert pw.check(pw.Log(once, **roles), {"new": "t"}).findings == ()
    report = pw.check(pw.Log(twice, **roles), {"new": "t"})
    check_findings(report.findings, "doubled-rows")
    assert report.faults == ()
    shared = pw.Log(twice, **roles, cluster="x")
    assert pw.check(shared, {"new": "t"}).findings == ()
    for name, rows in (("one", once), ("two", once.slice(0, 199)), ("three", once.slice(199))):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    command = ["check", f"{tmp_path}/*.parquet", "--reward", "r", "--propensity", "p"]
    run = CliRunner().invoke(app, command)
    assert (run.exit_code, "doubled-rows" in run.output) == (0, True)


# ------------------------------------------------------------------ trained on these logs


def test_conflicts_are_within_the_set() -> None:
    assert conflicts({"b": ["a"]}, ["a", "b"]) == {"b": ["a"]}
    assert conflicts({"b": ["older"]}, ["a", "b"]) == {}
    assert conflicts({"b": ["b"]}, ["a", "b"]) == {"b": ["b"]}  # it learned as it went


def test_the_interval_of_a_trained_logger_is_reward_free() -> None:
    log = replace(drawn(13), trained_on={"2": ["1"]})
    found = evaluate(log, CANDIDATE)
    result = found["target"]
    assert "trained-on-own-log" in codes(found, "alarm")
    honest = result.intervals["weighted-reward-free"]
    for name in ("calibrated", "balanced", "self-normalised", "weighted"):
        assert result.intervals[name] == honest
    assert result.intervals["naive"] != honest
    plain = evaluate(drawn(13), CANDIDATE)["target"]
    assert result.estimates["calibrated"] == plain.estimates["calibrated"]
    assert plain.intervals["calibrated"] != honest
    asked = evaluate(log, CANDIDATE, "balanced")["target"]
    assert asked.intervals["balanced"] == honest
    check_findings([f for f in asked.findings if f.severity == "alarm"], "trained-on-own-log")


def test_training_on_other_logs_is_no_conflict() -> None:
    found = evaluate(replace(drawn(13), trained_on={"2": ["older"]}), CANDIDATE)
    assert "trained-on-own-log" not in codes(found)
    assert "weighted-reward-free" not in found["target"].estimates


def test_a_target_trained_on_these_rows_is_named() -> None:
    found = evaluate(replace(drawn(13), trained_on={"target": ["1"]}), CANDIDATE)
    assert "target-trained-on-log" in codes(found, "alarm")
    assert "trained-on-own-log" not in codes(found)


def test_without_an_honest_interval_the_finding_says_so() -> None:
    log = replace(toy("T3").draw(np.random.default_rng(1)), trained_on={"2": ["1"]})
    found = evaluate(log, CANDIDATE)
    check_findings(
        [f for f in found["target"].findings if f.code == "trained-on-own-log"],
        "trained-on-own-log",
    )


@pytest.mark.parametrize("given", [{"2": "1"}, ["2", "1"], {"2": 1}])
def test_trained_on_is_a_mapping_to_lists(given: Any) -> None:  # noqa: ANN401 - wrong on purpose
    with pytest.raises(UsageError, match="trained_on"):
        replace(drawn(13), trained_on=given)


def test_trained_on_names_loggers_that_exist() -> None:
    with refused(UsageError):
        evaluate(replace(drawn(13), trained_on={"12": ["1"]}), CANDIDATE)


def test_a_trained_logger_biases_pooling_and_not_own_propensities() -> None:
    # a greedy second logger, trained on the first one's log
    rng = np.random.default_rng(17)
    gaps: dict[str, list[float]] = {"balanced": [], "own": []}
    for _ in range(1_500):
        pooled_value, own_value, truth = _trained_round(rng)
        gaps["balanced"].append(pooled_value - truth)
        gaps["own"].append(own_value - truth)
    for name, low in (("balanced", True), ("own", False)):
        mean = float(np.mean(gaps[name]))
        error = float(np.std(gaps[name]) / math.sqrt(len(gaps[name])))
        assert (mean < -4 * error) if low else (abs(mean) < 4 * error), (name, mean, error)


def _trained_round(rng: np.random.Generator) -> tuple[float, float, float]:
    """Balanced and naive estimates of one round, and the value of a fixed target."""
    contexts, actions, rows = 5, 4, 50
    worth = MEANS
    first = np.full((contexts, actions), 1 / actions)
    x = rng.integers(contexts, size=2 * rows)
    y = rng.integers(actions, size=2 * rows)
    sums, seen = np.zeros((contexts, actions)), np.full((contexts, actions), 1e-9)
    reward = (rng.random(2 * rows) < worth[x, y]).astype(float)
    np.add.at(sums, (x[:rows], y[:rows]), reward[:rows])
    np.add.at(seen, (x[:rows], y[:rows]), 1.0)
    best = (sums / seen).argmax(axis=1)
    second = np.full((contexts, actions), 0.05 / actions)
    second[np.arange(contexts), best] += 0.95
    cumulative = second[x[rows:]].cumsum(axis=1)
    y[rows:] = (rng.random(rows)[:, None] > cumulative).sum(axis=1)
    reward[rows:] = rng.random(rows) < worth[x[rows:], y[rows:]]
    target = 0.7 * (worth == worth.max(axis=1, keepdims=True)) + 0.3 / actions
    t, one, two = target[x, y], first[x, y], second[x, y]
    balanced = float((t / ((one + two) / 2) * reward).mean())
    own = float((t[:rows] / one[:rows] * reward[:rows]).mean())
    return balanced, own, float((target * worth).sum(axis=1).mean())


MEANS = np.random.default_rng(5).uniform(0.1, 0.6, size=(5, 4))


# ------------------------------------------------------------------ in succession


def findings(log: Log) -> list[Finding]:
    return [f for f in evaluate(log, TARGETS, "balanced").findings if f.code == CODE]


def sorted_by(columns: dict[str, Any], key: Any) -> dict[str, Any]:  # noqa: ANN401 - an array
    order = np.argsort(key, kind="stable")
    return {name: values[order] for name, values in columns.items()}


def with_times(columns: dict[str, Any], day: Any, *, dates: bool = True) -> Log:  # noqa: ANN401
    first = dt.date(2024, 1, 1) if dates else dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    times = pa.array([first + dt.timedelta(days=int(d)) for d in day])
    log = daily_log(columns, period=None)
    return Log(
        pa.table(columns).append_column("logged at", times),
        logger="logger",
        reward="reward",
        propensities=log.propensities,
    )


@pytest.mark.parametrize("declared", [{"period": "day"}, {"trained_on": {"v1": ["v0"]}}])
def test_a_declaration_is_enough(declared: dict[str, Any]) -> None:
    columns = daily()
    log = with_times(columns, columns["day"])
    check_findings(findings(log), CODE)
    assert not findings(replace(log, **declared))


def test_the_order_of_rows_is_not_noticed() -> None:
    assert not findings(daily_log(daily(control=0.0), period=None))


@pytest.mark.parametrize("dates", [False, True])
@pytest.mark.slow
def test_times_decide_whatever_the_order_of_rows(*, dates: bool) -> None:
    columns = daily(control=0.3)
    rng = np.random.default_rng(1)
    shuffled = sorted_by(columns, rng.random(len(columns["day"])))
    assert findings(with_times(shuffled, shuffled["day"], dates=dates))
    assert not findings(with_times(columns, rng.integers(0, 9, 900), dates=dates))


@pytest.mark.slow
def test_loggers_side_by_side_are_not_noticed() -> None:
    rng = np.random.default_rng(0)
    noticed = 0
    for seed in range(60):
        columns = daily(int(rng.integers(30, 300)), control=0.0, seed=seed)
        shuffled = sorted_by(columns, rng.random(len(columns["day"])))
        day = rng.integers(0, 30, len(columns["day"]))
        noticed += bool(findings(with_times(shuffled, day)))
    assert noticed == 0


# ------------------------------------------------------------------ sorted as text

NAMES = {
    "weekdays": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"],
    "long weekdays": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"],
    "months": ["jan", "feb", "mar", "apr"],
    "long months": ["January", "February", "March", "September"],
    "months and years": ["Dec 2023", "Jan 2024", "Feb 2024"],
    "days and months": ["6 Feb 2024", "5 Mar 2024"],
    "quarters": ["Q4 2022", "Q2 2023", "Q1 2024"],
    "dates": ["2024-1-9", "2024-1-10", "2024-2-1"],
    "American dates": ["12/31/2023", "01/05/2024"],
    "British dates": ["05/01/2023", "31/01/2023", "04/02/2023"],
    "weeks": ["2024-W9", "2024-W10"],
    "hours": ["9:00", "10:00"],
    "versions": ["v1", "v2", "v10"],
    "versions and another": ["base", "v1", "v2", "v10"],
    "numbers as text": ["9", "10"],
}
IN_ORDER = [
    ["2024-01-09", "2024-01-10", "2025-01-01"],
    ["20240109", "20240110"],
    ["2024-01", "2024-02"],
    ["2023-Q4", "2024-Q1"],
    ["2024-W09", "2024-W10"],
    ["2024-01-01 10:00:00.25", "2024-01-01 10:00:00.5", "2024-01-01 10:00:01"],
    ["2024-10-27 02:00:00+02", "2024-10-27 02:00:00+01"],  # by time, in Berlin
    ["10:00:00.25", "10:00:00.5"],
    ["-10", "-9", "0", "9", "10"],
    ["-1", "0", "1"],
    ["0.25", "0.5", "10.0"],
    ["1e-05", "0.1"],
    ["1 day", "2 days", "10 days"],
    ["v01", "v02", "v10"],
    ["2023/24", "2024/25"],
    ["Beta", "alpha"],
    ["may be", "may not"],
    ["sunny", "windy"],
    ["Mon", "Tue"],
    ["false", "true"],
    ["only"],
]


@pytest.mark.parametrize("kind", NAMES)
def test_periods_that_sort_against_their_meaning_are_found(kind: str) -> None:
    meant = NAMES[kind]
    assert text_order(meant) == ()  # as real dates or numbers come
    assert sorted(meant) != meant
    check_findings(text_order(sorted(meant)), "periods-as-text")


@pytest.mark.parametrize("names", IN_ORDER, ids=", ".join)
def test_periods_that_sort_as_they_are_meant_are_silent(names: list[str]) -> None:
    assert text_order(names) == ()


def test_many_periods_are_compared_in_no_time() -> None:
    names = sorted(f"v{k}" for k in range(1_000))
    (finding,) = text_order(names)
    assert finding.message.count("...") == 2


@pytest.mark.parametrize("kind", ["text", "number", "date"])
def test_the_order_of_text_is_a_finding_of_every_verb(kind: str) -> None:
    columns = daily(600, 3)
    names = {
        "text": np.array(["v9", "v10", "v11"])[columns["day"]],
        "number": np.array([9, 10, 11])[columns["day"]],
        "date": np.array(["2024-01-09", "2024-01-10", "2024-02-01"])[columns["day"]],
    }
    log = daily_log(columns | {"day": names[kind]})
    found = [
        pw.evaluate(log, {"t": "t"}),
        pw.compare(log, {"t": "t", "u": "t / 2"}),
        pw.plan(log, {"t": "t"}, half_width=0.1),
    ]
    known = [[w["code"] for w in each.warnings].count("periods-as-text") for each in found]
    assert known == [int(kind == "text")] * 3
