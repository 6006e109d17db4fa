"""Alarms: silent on clean logs, and raised by the defect that each is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw

ACTIONS, CONTEXTS = 4, 30
ROLES: dict[str, Any] = {
    "reward": "reward",
    "logger": "policy",
    "action": "action",
    "propensities": "p_{logger}",
}


def policies(rng: np.random.Generator, number: int, scale: float = 0.5) -> Any:  # noqa: ANN401
    raised = np.exp(scale * rng.normal(size=(number, CONTEXTS, ACTIONS)))
    return raised / raised.sum(axis=2, keepdims=True)


def draw(
    seed: int, counts: list[int], reward: str = "click", rate: float = 0.3
) -> dict[str, Any]:
    """Return the columns of a log of several policies, with a target t."""
    rng = np.random.default_rng([20, seed])
    tables = policies(rng, len(counts) + 1)
    logger = np.repeat(np.arange(len(counts)), counts)
    context = rng.integers(CONTEXTS, size=len(logger))
    drawn = tables[logger, context].cumsum(axis=1) < rng.random(len(logger))[:, None]
    action = drawn.sum(axis=1).clip(max=ACTIONS - 1)
    chance = rate * rng.uniform(0.7, 1.3, (CONTEXTS, ACTIONS))[context, action]
    earned = (rng.random(len(logger)) < chance).astype(float)
    if reward == "revenue":
        earned *= np.exp(1.5 * rng.normal(size=len(logger)))
    names = [f"v{k}" for k in range(len(counts))]
    columns: dict[str, Any] = {
        "policy": np.array(names)[logger],
        "action": action,
        "reward": earned,
        "x": rng.random(len(logger)),
    }
    columns |= {f"p_{i}": tables[k, context, action] for k, i in enumerate(names)}
    return columns | {"t": tables[-1, context, action]}


def codes(columns: dict[str, Any], **roles: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the gravest severity of each code."""
    found = pw.evaluate(pw.Log(pa.table(columns), **(ROLES | roles)), {"t": "t"})
    return {str(w["code"]): str(w["severity"]) for w in reversed(found.warnings)}


@pytest.mark.parametrize("by", [None, "x > 0.5"])
def test_nothing_is_concluded_about_a_target_that_no_log_covers(by: str | None) -> None:
    """Rewards below 0: the half of the target that was never logged seems to cost nothing."""
    columns = draw(1, [2_000, 2_000])
    columns |= {"t": columns["t"] / 2, "reward": columns["reward"] - 2}
    log = pw.Log(pa.table(columns), **ROLES)
    result = pw.evaluate(log, {"t": "t"}, baseline="v1", by=by)
    found = [result.differences["t"]]
    if result.segments is not None:
        found += [r.difference for r in result.segments.results if r.difference]
        assert "better" not in result.segments.sentence
    ranked = pw.compare(log, {"t": "t"}, baseline="v1")
    assert "The logs say too little about 't' (target-uncovered)" in str(ranked)
    assert {d.verdict for d in (*found, ranked.difference("t"))} == {"unreliable"}


@pytest.mark.parametrize(
    ("counts", "severity"), [([4_000, 40], "note"), ([100, 40], "warning")]
)
def test_a_tiny_log_among_large_ones_is_worth_a_note(counts: list[int], severity: str) -> None:
    columns = draw(0, counts)
    columns["p"] = np.where(columns["policy"] == "v0", columns["p_v0"], columns["p_v1"])
    found = codes(columns, propensities=None, propensity="p")
    assert found["few-effective-rows"] == severity


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "reward", "rate"),
    [([6_000, 300], "click", 0.01), ([500] * 4, "revenue", 0.2), ([150] * 3, "click", 0.3)],
    ids=["rare clicks", "revenue", "few rows"],
)
def test_clean_logs_are_silent(counts: list[int], reward: str, rate: float) -> None:
    loud = [
        seed
        for seed in range(40)
        if {"alarm", "warning"} & set(codes(draw(seed, counts, reward, rate)).values())
    ]
    assert len(loud) <= 1


@pytest.mark.slow
def test_a_drift_is_found() -> None:
    found = 0
    for seed in range(20):
        columns = draw(seed, [5_000] * 3)
        better = np.random.default_rng(seed).random(15_000) < 0.1
        own = columns["policy"] == "v1"
        columns["reward"] = np.where(
            own, np.maximum(columns["reward"], better), columns["reward"]
        )
        found += codes(columns).get("drift") == "alarm"
    assert found >= 19


@pytest.mark.parametrize("means", [(0.51, 0.61), (0.5, 0.5, 0.6)])
def test_a_target_that_no_log_covers_is_an_alarm_without_crossing(
    means: tuple[float, ...],
) -> None:
    columns = draw(1, [3_000] * len(means))
    part = dict(zip((f"v{k}" for k in range(len(means))), means, strict=True))
    own = np.array([columns[f"p_{i}"][k] for k, i in enumerate(columns["policy"])])
    columns["t"] *= np.array([part[i] for i in columns["policy"]])
    columns["p"] = own
    assert codes(columns, propensities=None, propensity="p")["target-uncovered"] == "alarm"


def dated(columns: dict[str, Any]) -> dict[str, Any]:
    minutes = 60 * np.arange(len(columns["reward"]))
    return columns | {"time": (1_700_000_000 + minutes).astype("datetime64[s]")}


def test_loggers_in_succession_that_agree_get_a_note() -> None:
    columns = dated(draw(2, [2_000] * 2))
    columns["t"] = (columns["p_v0"] + columns["p_v1"]) / 2
    assert codes(columns)["loggers-in-succession"] == "note"


def test_policies_that_learned_on_the_way_get_an_alarm_and_the_honest_estimate() -> None:
    rng = np.random.default_rng(3)
    context = rng.integers(500, size=8_000)
    first = np.full((500, ACTIONS), 1 / ACTIONS)
    action = rng.integers(ACTIONS, size=4_000)
    reward = (rng.random(4_000) < 0.3).astype(float)
    clicks, shown = np.zeros_like(first), np.full_like(first, 1.0)
    np.add.at(clicks, (context[:4_000], action), reward)
    np.add.at(shown, (context[:4_000], action), 1.0)
    raised = np.exp(6 * clicks / shown)
    second = raised / raised.sum(axis=1, keepdims=True)
    drawn = second[context[4_000:]].cumsum(axis=1) < rng.random(4_000)[:, None]
    action = np.concatenate([action, drawn.sum(axis=1).clip(max=ACTIONS - 1)])
    reward = np.concatenate([reward, (rng.random(4_000) < 0.3).astype(float)])
    columns = {
        "policy": np.repeat(["v0", "v1"], 4_000),
        "action": action,
        "reward": reward,
        "p_v0": first[context, action],
        "p_v1": second[context, action],
        "t": np.where(action == 0, 0.7, 0.1),
    }
    assert codes(columns)["hausman"] == "alarm"  # without times
    log = pw.Log(pa.table(dated(columns)), **ROLES)
    result = pw.evaluate(log, {"t": "t"})["t"]
    severities = {f.code: f.severity for f in result.findings}
    assert severities["loggers-in-succession"] == "alarm"
    assert "hausman" not in severities
    honest = result.intervals["weighted-reward-free"]
    assert honest.lower < 0.3 < honest.upper
    assert result.recommended == "calibrated"
