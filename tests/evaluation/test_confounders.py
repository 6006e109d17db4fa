"""Estimated propensities: verdicts are withheld, and every verb answers or refuses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import poolwise as pw
from poolwise.diagnosis.sensitivity import odds_to_reverse
from poolwise.errors import UsageError
from poolwise.evaluation.sensitivity import Sensitivity
from tests.support.messages import check_findings, check_text, refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 2_000
TARGETS = {"new": "CASE item WHEN 'b' THEN 0.9 ELSE 0.1 END", "same": "0.5"}
ROLES: dict[str, Any] = {
    "reward": "reward",
    "action": "item",
    "context": ["page", "day"],
    "propensities": "estimate",
}


def make_table() -> pa.Table:
    """Return rows in which item b earns more, and is played on page y more often."""
    rng = np.random.default_rng(4)
    page, day = rng.integers(2, size=ROWS), rng.integers(3, size=ROWS)
    item = (rng.random(ROWS) < 0.3 + 0.3 * page).astype(int)
    reward = (rng.random(ROWS) < 0.2 + 0.2 * item + 0.2 * page).astype(float)
    names = {"page": np.array(["x", "y"])[page], "item": np.array(["a", "b"])[item]}
    return pa.table({**names, "day": day, "reward": reward})


@pytest.fixture(scope="module")
def log() -> pw.Log:
    return pw.Log(make_table(), **ROLES)


def test_no_verdict_is_given_until_confounders_are_in_the_context(log: pw.Log) -> None:
    found = pw.evaluate(log, TARGETS)
    differences = found.differences
    assert {d.verdict for d in differences.values()} == {"unreliable"}
    assert differences["new"].interval.lower > 0
    check_findings(found["new"].findings, "propensities-estimated")
    assert found["new"].findings[0].severity == "alarm"
    check_text(found.headline)
    with refused(pw.NotShownError):
        found.require("better", "new")
    known = pw.evaluate(replace(log, confounders="in-context"), TARGETS)
    assert known.differences["new"].verdict == "better"
    assert known.differences["new"].value == differences["new"].value
    check_findings(known["new"].findings, "propensities-estimated")
    assert known["new"].findings[0].severity == "warning"
    known.require("better", "new")
    check_text(known.headline)


@pytest.mark.parametrize(
    ("classifier", "verdict"),
    [
        (True, "better"),
        (make_pipeline(StandardScaler(), LogisticRegression()), "better"),
        (DecisionTreeClassifier(min_samples_leaf=50), "unreliable"),
    ],
)
def test_only_logistic_regressions_and_frequencies_have_verdicts(
    classifier: object, verdict: str, log: pw.Log
) -> None:
    sure = replace(log, confounders="in-context", estimate_mixture=classifier)
    found = pw.evaluate(sure, TARGETS)
    assert found.differences["new"].verdict == verdict
    check_findings(found["new"].findings, "propensities-estimated")
    if verdict == "unreliable":
        assert found["new"].findings[0].severity == "alarm"
        assert not pw.learn(sure, features=["page", "day"]).better


def test_a_classifier_that_misses_the_rule_of_the_loggers_has_no_verdict() -> None:
    """Items earn alike, but one is played where all earn more: a band, which no line shows."""
    rng = np.random.default_rng(7)
    age = rng.normal(size=4_000)
    middle = abs(age) < 0.7
    b = rng.random(4_000) < np.where(middle, 0.8, 0.2)
    reward = (rng.random(4_000) < 0.2 + 0.3 * middle).astype(float)
    item = np.where(b, "b", "a")
    table = pa.table({"age": age, "square": age**2, "band": middle, "item": item})
    table = table.append_column("reward", pa.array(reward))
    roles = ROLES | {"context": ["age"], "confounders": "in-context"}
    log = pw.Log(table, estimate_mixture=True, **roles)
    found = pw.evaluate(log, TARGETS)
    assert found.differences["new"].interval.lower > 0  # and the truth is 0
    assert found.differences["new"].verdict == "unreliable"
    check_findings(found.findings[:2], "propensities-classified", "propensities-misfit")
    with refused(pw.NotShownError):
        found.require("better", "new")
    assert not pw.learn(log, features=["age"]).better
    for told in (
        replace(log, context=["age", "square", "band"]),
        replace(log, context=["band"], estimate_mixture=False),
    ):
        known = pw.evaluate(told, TARGETS)
        assert known.differences["new"].verdict == "undecided"
        assert "propensities-misfit" not in [f.code for f in known.findings]


def test_comparisons_withhold_their_verdicts_too(log: pw.Log) -> None:
    found = pw.compare(log, TARGETS, baseline="same")
    assert [pair.verdict for pair in found.pairs] == ["unreliable"]
    assert found["new"].better_than == ()
    check_text(found.sentence)
    with refused(pw.NotShownError):
        found.require("better")
    known = pw.compare(replace(log, confounders="in-context"), TARGETS, baseline="same")
    known.require("better")
    assert known.pairs[0].odds_to_reverse == found.pairs[0].odds_to_reverse


def test_the_odds_are_those_of_the_rows(log: pw.Log) -> None:
    frame = make_table().to_pandas()
    sizes = frame.groupby(["page", "day"])["item"].transform("size")
    propensity = (
        frame.groupby(["page", "day", "item"])["reward"].transform("size") / sizes
    ).to_numpy()
    reward = frame["reward"].to_numpy()
    new = np.where(frame["item"] == "b", 0.9, 0.1) / propensity
    same = 0.5 / propensity
    found = pw.evaluate(log, TARGETS)
    assert found.differences["new"].odds_to_reverse == pytest.approx(
        odds_to_reverse(new, propensity, reward, reward.mean())
    )
    assert found.comparison is not None
    assert found.comparison.difference("new", "same").odds_to_reverse == pytest.approx(
        odds_to_reverse(new / new.sum() - same / same.sum(), propensity, reward)
    )
    facts: Any = found.to_dict()
    row = facts["targets"][0]["difference"]
    assert row["odds_to_reverse"] == found.differences["new"].odds_to_reverse


def test_an_unseen_cause_of_that_strength_reverses_the_difference() -> None:
    """Two propensities, each off by the same odds, of a log whose policies are equal."""
    strength = 1.5
    reward = np.array([1.0, 0.0, 1.0, 0.0])
    odds = np.array([strength, 1 / strength, 1 / strength, strength])
    truth = odds / (1 + odds)  # of the logged action, given the unseen cause
    rows = np.round(truth * 1_000).astype(int)  # a and b on good days, then on bad ones
    item = np.repeat(["a", "a", "b", "b"], rows)
    table = pa.table(
        {"item": item, "all": ["1"] * len(item), "reward": np.repeat(reward, rows)}
    )
    log = pw.Log(
        table, reward="reward", action="item", context=["all"], propensities="estimate"
    )
    found = pw.evaluate(log, {"a": "CASE item WHEN 'a' THEN 1 ELSE 0 END"}).differences["a"]
    assert found.value > 0.05
    assert found.odds_to_reverse is not None
    assert 1 < found.odds_to_reverse < strength * 1.01  # the cause is strong enough


def test_a_target_of_the_loggers_name_is_no_logger() -> None:
    rng = np.random.default_rng(1)
    weights = {"log": rng.random(50), "new": rng.random(50)}
    rows = Sensitivity(rng.random(50), np.full(50, 0.5), weights, "log")
    gap = pw.evaluate(pw.Log(make_table(), **ROLES), TARGETS).differences["new"]
    value = float(
        weights["new"] @ rows.reward / weights["new"].sum()
        - weights["log"] @ rows.reward / weights["log"].sum()
    )
    marked = rows.mark(replace(gap, target="new", other="log", value=value))
    contrast = weights["new"] / weights["new"].sum() - weights["log"] / weights["log"].sum()
    expected = odds_to_reverse(contrast, rows.propensity, rows.reward)
    assert marked.odds_to_reverse == pytest.approx(expected)
    assert rows.mark(replace(gap, target="other")).odds_to_reverse == gap.odds_to_reverse


def test_learning_shows_no_gain_until_confounders_are_in_the_context(log: pw.Log) -> None:
    learned = pw.learn(log, features=["page", "day"])
    assert not learned.better
    assert learned.gains[0].lower > 0
    assert "propensities-estimated" in {f.code for f in learned.findings}
    check_text(learned.sentence)
    known = pw.learn(replace(log, confounders="in-context"), features=["page", "day"])
    assert known.better
    assert known.gains[0].value == learned.gains[0].value


def test_plans_and_checks_read_estimated_propensities(log: pw.Log) -> None:
    report = pw.check(log, TARGETS)
    assert (report.faults, dict(report.rows)) == ((), {"log": ROWS})
    planned = pw.plan(log, {"new": TARGETS["new"]}, half_width=0.01)
    assert "propensities-estimated" in {f.code for f in planned.findings}
    wide = pw.evaluate(log, {"new": TARGETS["new"]})["new"].estimates["calibrated"].std_error
    rows = planned.option("calibrated", "(as now)").rows
    assert rows == pytest.approx(ROWS * (1.96 * wide / 0.01) ** 2 - ROWS, rel=0.15)


def test_a_reward_model_makes_it_doubly_robust(log: pw.Log) -> None:
    target = {"new": pw.Table({"a": 0.1, "b": 0.9})}
    found = pw.evaluate(log, target, "doubly-robust", model=LogisticRegression())["new"]
    plain = pw.evaluate(log, target, "balanced")["new"].estimates["balanced"]
    robust = found.estimates["doubly-robust"]
    assert robust.value == pytest.approx(plain.value, abs=0.2 * plain.std_error)
    assert robust.std_error < plain.std_error


@pytest.mark.parametrize(
    "ask",
    [
        lambda log, path: pw.watch(path / "state.npz", log, TARGETS),
        lambda log, _: pw.summarise(log, TARGETS),
        lambda log, _: pw.backtest(log),
        lambda log, _: pw.evaluate(log, TARGETS, interval="betting"),
        lambda log, _: pw.evaluate(log, TARGETS, by="day"),
        lambda log, _: pw.evaluate(log, TARGETS, engine=pw.Warehouse()),
    ],
)
def test_other_questions_are_refused(
    ask: Callable[[pw.Log, Path], object], log: pw.Log, tmp_path: Path
) -> None:
    narrow = replace(log, context=["page"], reward_range=(0.0, 1.0))
    with refused(UsageError):
        partial(ask, narrow, tmp_path)()
