"""The audit blames wrong propensities, and only these."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import binom

import poolwise as pw
from benchmarks import audit as benchmark
from poolwise.diagnosis.audit import (
    AUDIT_LEVEL,
    FrequencyTest,
    audit_findings,
    compare_frequency,
    find_wrong_actions,
    rounding_cost,
)
from poolwise.rows.actions import ActionSums, AuditSums, array_sums
from poolwise.rows.distributions import FrequencySums
from tests.support.messages import check_findings

HALF, THIRD = Fraction(1, 2), Fraction(1, 3)
# Probability of each context, and of each action in it: "c" can be played in the first only.
CONTEXTS = [(Fraction(1, 4), {"a": HALF, "b": THIRD, "c": 1 - HALF - THIRD})]
CONTEXTS += [(Fraction(3, 4), {"a": Fraction(1, 10), "b": Fraction(9, 10)})]


def enumerate_mean(
    action: str, power: int, logged: dict[str, Fraction] | None = None
) -> Fraction:
    """Return the mean of (1{a = k} / p)**power over contexts and actions."""
    return sum(
        (
            share * prob / (logged or probs)[action] ** power
            for share, probs in CONTEXTS
            for played, prob in probs.items()
            if played == action
        ),
        Fraction(0),
    )


def exact_sums(action: str, rows: int, **more: Any) -> ActionSums:  # noqa: ANN401 - fields
    """Return the expected sums of a number of rows: no chance is in them."""
    w, w2, w3, w4 = (rows * enumerate_mean(action, power) for power in (1, 2, 3, 4))
    played = sum(share * probs.get(action, 0) for share, probs in CONTEXTS)
    spreads = float(w4 - 2 * w3 + w2)
    return ActionSums("v1", action, int(rows * played), float(w), float(w2), spreads, 0, **more)


def test_the_mean_is_the_share_of_rows_in_which_the_action_can_be_played() -> None:
    means = {action: enumerate_mean(action, 1) for action in "abc"}
    assert means == {"a": 1, "b": 1, "c": Fraction(1, 4)}


def test_the_variance_given_the_context_is_estimated_without_bias() -> None:
    for action in "abc":
        conditional = sum(
            share * (1 / probs[action] - 1) for share, probs in CONTEXTS if action in probs
        )
        assert enumerate_mean(action, 2) - enumerate_mean(action, 1) == conditional


def test_right_propensities_have_factor_one_exactly() -> None:
    for action in "ab":
        test = compare_frequency(exact_sums(action, 1_200), 1_200)
        assert test.factor == pytest.approx(1, abs=1e-15)
        assert test.z == pytest.approx(0, abs=1e-12)
    rare = compare_frequency(exact_sums("c", 1_200), 1_200)
    assert rare.factor == pytest.approx(0.25)
    listed = compare_frequency(exact_sums("c", 1_200, eligible=300), 1_200)
    assert listed.factor == pytest.approx(1, abs=1e-15)


def test_a_binomial_count_has_its_own_z() -> None:
    """With one propensity p, z = (c - np) / sqrt(c (1 - p)) above 1."""
    for count, prob in ((700, 1 / 3), (340, 1 / 3), (60, 0.01)):
        w = 1 / prob
        one = ActionSums("v1", "a", count, count * w, count * w**2, count * (w**2 - w) ** 2, 0)
        test = compare_frequency(one, 1_000)
        assert test.z == pytest.approx((count - 1_000 * prob) / math.sqrt(count * (1 - prob)))
        assert test.resting == pytest.approx(count)


def test_actions_that_are_always_played_are_right() -> None:
    certain = ActionSums("v1", "a", 1_000, 1_000.0, 1_000.0, 0.0, 1_000)
    assert compare_frequency(certain, 1_000).z == 0
    prob = 1 - 1e-6  # no row happened to play another action
    w = 1 / prob
    nearly = ActionSums("v1", "a", 1_000, 1e3 * w, 1e3 * w**2, 1e3 * (w**2 - w) ** 2, 0)
    assert abs(compare_frequency(nearly, 1_000).z) < 0.1
    half = ActionSums("v1", "a", 1_000, 2_000.0, 4_000.0, 4_000.0, 1_000)
    assert compare_frequency(half, 1_000).z > 20


@pytest.mark.parametrize(("rows", "epsilon"), [(5_000, 1e-3), (20_000, 1e-3)])
def test_an_action_that_others_leave_no_room_for_is_not_played_too_seldom(
    rows: int, epsilon: float
) -> None:
    """Of 40 listed actions one is preferred, so that the others wait for thousands of rows."""
    alarms = 0
    for seed in range(10):
        rng = np.random.default_rng([seed, rows])
        best, explores = rng.integers(40, size=rows), rng.random(rows) < epsilon
        action = np.where(explores, rng.integers(40, size=rows), best)
        prob = epsilon / 40 + (1 - epsilon) * (action == best)
        lists = pa.chunked_array([pa.array([list(range(40))] * rows)])
        wrote, played = np.zeros(rows, dtype=np.int64), pa.chunked_array([action])
        alarms += bool(audit_findings(array_sums(["v1"], wrote, prob, played, lists)))
    assert alarms == 0


def test_the_level_is_shared_by_loggers_and_actions() -> None:
    def of(count: int, actions: int) -> AuditSums:
        one = ActionSums("v1", "a", count, 2.0 * count, 4.0 * count, 4.0 * count, count)
        others = [exact_sums("a", 1_200)._replace(action=str(k)) for k in range(actions)]
        counts = {"v1": 1_000}
        calm = [o._replace(inverse=1_000.0, squares=1e6, spreads=1e10) for o in others]
        return AuditSums(counts, (one, *calm))

    (alone,) = find_wrong_actions(of(560, 0))
    assert alone.p_value < AUDIT_LEVEL
    assert find_wrong_actions(of(560, 99)) == []
    assert len(find_wrong_actions(of(600, 99))) == 1


def log_of(logged: str, **more: Any) -> pw.Log:  # noqa: ANN401 - arguments of a log
    """20,000 rows of one logger that plays three actions with .7, .2 and .1."""
    rng = np.random.default_rng(0)
    action = rng.choice(3, 20_000, p=[0.7, 0.2, 0.1])
    right = np.array([0.7, 0.2, 0.1])[action]
    table = {
        "a": np.array(["x", "y", "z"])[action],
        "r": (rng.random(20_000) < np.array([0.5, 0.2, 0.1])[action]).astype(float),
        "third": np.full(20_000, 1 / 3),
        "best": np.full(20_000, 0.7),
        "right": right,
        "id": np.arange(20_000),
        "lists": pa.array([["x", "y", "z"]] * 20_000),
    }
    return pw.Log(pa.table(table), reward="r", propensity=logged, action="a", **more)


def audited(findings: tuple[Any, ...]) -> list[Any]:
    return [f for f in findings if f.code.startswith("action-") or "rounded" in f.code]


def test_one_over_the_number_of_actions_is_an_alarm_of_every_verb() -> None:
    log = log_of("third")
    check_findings(audited(pw.check(log).findings), "action-too-often")
    found = pw.evaluate(log, {"t": "third"})
    assert [f.severity for f in audited(found.findings)] == ["alarm"]
    pair = pw.compare(log, {"t": "third", "u": "right"})
    assert pair.evaluation is not None
    assert [f.code for f in audited(pair.evaluation.findings)] == ["action-too-often"]


def test_right_propensities_are_not_blamed() -> None:
    for more in ({}, {"eligible": "lists"}, {"cluster": "id"}):
        assert audited(pw.check(log_of("right", **more)).findings) == []


def test_the_best_actions_probability_is_an_alarm_if_lists_say_what_could_be_played() -> None:
    check_findings(audited(pw.check(log_of("best")).findings), "action-seldom")
    listed = audited(pw.check(log_of("best", eligible="lists")).findings)
    check_findings(listed, "action-too-seldom")


def test_the_bound_of_a_frequency_holds_for_every_count() -> None:
    """It is at least the exact probability, of draws with two probabilities."""
    first, second = (np.asarray(binom.pmf(range(21), 20, prob)) for prob in (0.05, 0.4))
    chances = np.convolve(first, second)
    expected, variance = 20 * 0.05 + 20 * 0.4, 20 * 0.05 * 0.95 + 20 * 0.4 * 0.6
    gaps = abs(np.arange(41) - expected)
    tests = [
        FrequencyTest(FrequencySums("v1", "a", played, expected, variance))
        for played in range(41)
    ]
    for test, gap in zip(tests, gaps, strict=True):
        assert test.p_value >= chances[gaps >= gap - 1e-9].sum() - 1e-12
    assert tests[40].p_value < 1e-12
    ratio = 10 / variance
    exact = math.exp(-variance * ((1 + ratio) * math.log1p(ratio) - ratio))
    assert tests[19].p_value == pytest.approx(2 * exact)


def test_certain_and_impossible_actions() -> None:
    def p_value(played: int, expected: float) -> float:
        return FrequencyTest(FrequencySums("v1", "a", played, expected, 0.0)).p_value

    assert p_value(10, 10.0 + 1e-12) == 1.0
    assert p_value(1, 0.0) == p_value(9, 10.0) == 0.0
    sums = AuditSums({"v1": 9}, (), frequencies=(FrequencySums("v1", "a", 1, 0.0, 0.0),))
    (finding,) = audit_findings(sums)
    assert (finding.code, finding.severity) == ("action-too-often", "alarm")


def flattened(power: float) -> pw.Log:
    """20,000 rows of one logger, whose log has a distribution that is sharper or flatter."""
    rng = np.random.default_rng(8)
    probs = benchmark.softmax(rng.normal(size=(20_000, 4)))
    action = (probs.cumsum(axis=1) < rng.random(20_000)[:, None]).sum(axis=1).clip(max=3)
    known = probs**power / (probs**power).sum(axis=1, keepdims=True)
    columns = {f"p_{k}": known[:, k] for k in range(4)}
    columns["logged"] = known[np.arange(20_000), action]
    return pw.Log(
        pa.table({"a": action, "r": rng.random(20_000), **columns}),
        reward="r",
        propensity="CASE a WHEN 0 THEN p_0 WHEN 1 THEN p_1 WHEN 2 THEN p_2 ELSE p_3 END",
        action="a",
    )


def test_distributions_show_what_propensities_alone_do_not() -> None:
    """Means of 1/p are below 1 for a policy that is sharper than its log says."""
    assert audited(pw.check(flattened(1.0)).findings) == []
    sharper = audited(pw.check(flattened(1 / 1.2)).findings)
    check_findings(sharper, "action-too-often", "action-too-seldom")
    flatter = audited(pw.check(flattened(1.2)).findings)
    check_findings(flatter, "action-too-often", "action-too-seldom")
    assert {f.severity for f in (*sharper, *flatter)} == {"alarm"}
    column = replace(flattened(1 / 1.2), propensity="logged")
    assert {f.severity for f in audited(pw.check(column).findings)} <= {"note"}


def test_rows_of_clusters_may_repeat_an_action() -> None:
    (finding,) = audited(pw.check(log_of("third", cluster="id")).findings)
    assert finding.severity == "warning"


def test_why_a_log_is_not_audited() -> None:
    table = pa.table({"x": [1.0, 2.0], "r": [0.0, 1.0], "p": [0.5, 0.7]})
    none = pw.check(pw.Log(table, reward="r", propensity="p"))
    dense = pw.check(pw.Log(table, reward="r", propensity="p", action="x", densities=True))
    check_findings([*none.findings, *dense.findings], "no-audit", "no-audit")


@pytest.mark.parametrize("kind", benchmark.KINDS)
def test_right_logs_have_no_alarm(kind: str) -> None:
    found = benchmark.replicate(kind, None, 5_000, 15, first=10_000)
    assert found["action-too-often"] == found["action-too-seldom"] == 0
    assert found["propensities-rounded"] == 0


FOUND = {
    "1/K for a softmax": "action-too-often",
    "the best action's probability": "action-seldom",
    "another version's probabilities": "action-too-often",
    "rows shifted by one": "action-too-often",
    "rounded to two decimals": "propensities-rounded",
    "shares of 100 draws": "propensities-rounded",
}


@pytest.mark.parametrize("kind", benchmark.KINDS)
def test_right_distributions_have_no_alarm(kind: str) -> None:
    assert not benchmark.replicate(kind, None, 5_000, 15, first=10_000, whole=True)


@pytest.mark.parametrize("mistake", benchmark.SPOILT_DISTRIBUTIONS)
def test_wrong_distributions_are_found(mistake: str) -> None:
    found = benchmark.replicate("softmax", mistake, 20_000, 5, first=10_000, whole=True)
    assert max(found.values()) == 5


@pytest.mark.parametrize("mistake", benchmark.MISTAKES)
def test_wrong_logs_are_found(mistake: str) -> None:
    found = benchmark.replicate("softmax", mistake, 20_000, 5, first=10_000)
    assert found[FOUND[mistake]] == 5


def rounded(decimals: int) -> AuditSums:
    rng = np.random.default_rng(1)
    prob = np.round(rng.uniform(0.05, 0.6, 2_000), decimals)
    action = pa.chunked_array([np.where(rng.random(2_000) < 0.5, "x", "y")])
    return array_sums(["v1"], np.zeros(2_000, dtype=np.int64), prob, action)


def test_rounded_propensities_get_a_note_with_what_it_costs() -> None:
    sums = rounded(2)
    found = [f for f in audit_findings(sums) if f.code == "propensities-rounded"]
    check_findings(found, "propensities-rounded")
    w, w2 = (sum(getattr(s, n) for s in sums.actions) for n in ("inverse", "squares"))
    assert rounding_cost(sums, "v1", 100) == pytest.approx(0.005 * w2 / w)


def test_fine_or_designed_grids_get_none() -> None:
    assert rounded(6).grids == {}
    few = rounded(1)  # at most ten values
    assert few.grids
    codes = {f.code for sums in (rounded(6), few) for f in audit_findings(sums)}
    assert "propensities-rounded" not in codes


def test_the_benchmark_writes_one_line_for_each_kind_and_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, "SIZES", (500,))
    lines = benchmark.table(1).splitlines()
    assert len(lines) == 2 + len(benchmark.KINDS) + len(benchmark.MISTAKES)
    lines = benchmark.table(1, whole=True).splitlines()
    assert len(lines) == 2 + len(benchmark.KINDS) + len(benchmark.SPOILT_DISTRIBUTIONS)
