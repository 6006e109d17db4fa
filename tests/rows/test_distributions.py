"""Frequencies of actions and their expectations, where whole distributions are known."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.engines.duckdb import DuckDB
from poolwise.rows.distributions import FrequencySums, sum_frequencies

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.log.policy import PolicyLike

ROWS, ACTIONS = 300, ["a", "b", "c"]


def test_frequencies_have_the_stated_means_and_variances() -> None:
    """By enumeration of everything that three rows may play."""
    probs = np.array([[0.5, 0.375, 0.125], [0.25, 0.25, 0.5], [0.0, 1.0, 0.0]])
    found: dict[tuple[str, Any], list[float]] = {}
    chances, every = [], [*product(range(3), repeat=3)]
    for played in every:
        chances.append(float(np.prod(probs[np.arange(3), list(played)])))
        for one in sum_frequencies("v", ACTIONS, probs, np.array(played)):
            found.setdefault((one.action, one.band), []).append(one.played)
    sums = sum_frequencies("v", ACTIONS, probs, np.array(every[0]))
    assert sum(one.action == "" for one in sums) >= 3  # bands
    for one in sums:
        counts = np.array(found[one.action, one.band])
        mean = float(counts @ chances)
        assert one.expected == pytest.approx(mean, abs=1e-14)
        assert one.variance == pytest.approx((counts - mean) ** 2 @ np.array(chances))


def test_bands_hold_equal_parts_of_the_probability() -> None:
    probs = np.random.default_rng(1).dirichlet([1.0] * 5, size=2_000)
    sums = sum_frequencies("v", list("abcde"), probs, np.zeros(2_000, dtype=np.int64))
    bands = [one for one in sums if not one.action]
    assert len(bands) == 10
    assert [one.expected for one in bands] == pytest.approx([200] * 10, rel=0.01)
    assert sum(one.expected for one in bands) == pytest.approx(2_000)
    edges = [one.band for one in bands if one.band is not None]
    assert [e[0] for e in edges[1:]] == [e[1] for e in edges[:-1]]


def rows() -> tuple[pa.Table, dict[str, list[FrequencySums]]]:
    """Two loggers with a distribution each, in many forms, and the sums of both."""
    rng = np.random.default_rng(3)
    wrote = rng.integers(2, size=ROWS)
    probs = rng.dirichlet([2, 1, 1], size=(ROWS, 2)).round(6)
    probs[:, :, 2] = (1 - probs[:, :, 0] - probs[:, :, 1]).round(6)
    own = probs[np.arange(ROWS), wrote]
    played = (own.cumsum(axis=1) < rng.random(ROWS)[:, None]).sum(axis=1).clip(max=2)
    each = [[dict(zip(ACTIONS, p.tolist(), strict=True)) for p in probs[:, k]] for k in (0, 1)]
    columns: dict[str, Any] = {
        "v": np.array(["one", "two"])[wrote],
        "r": rng.random(ROWS),
        "item": np.array(ACTIONS)[played],
        "number": played,
        "listed": [ACTIONS] * ROWS,
        "flat": own[np.arange(ROWS), played],
        "t": rng.random(ROWS),
    }
    for k, name in enumerate(("one", "two")):
        kind = pa.map_(pa.string(), pa.float64())
        columns[f"map_{name}"] = pa.array([[*d.items()] for d in each[k]], kind)
        columns[f"struct_{name}"] = each[k]
        columns[f"json_{name}"] = [json.dumps(d) for d in each[k]]
        columns[f"list_{name}"] = [[*d.values()] for d in each[k]]
        columns |= {f"{a}_{name}": probs[:, k, j] for j, a in enumerate(ACTIONS)}
        columns |= {f"log_{a}_{name}": np.log(probs[:, k, j]) for j, a in enumerate(ACTIONS)}
    wanted = {
        name: sum_frequencies(name, ACTIONS, probs[wrote == k, k], played[wrote == k])
        for k, name in enumerate(("one", "two"))
    }
    return pa.table(columns), wanted


def case(name: str, action: str = "item") -> str:
    keys = ["'a'", "'b'", "'c'"] if action == "item" else ["0", "1", "2"]
    parts = [f"WHEN {key} THEN {a}_{name}" for key, a in zip(keys, ACTIONS, strict=True)]
    return f"CASE {action} {' '.join(parts)} END"


FORMS: dict[str, Callable[[str], PolicyLike]] = {
    "map": lambda name: f"map_{name}",
    "struct": lambda name: f"struct_{name}",
    "json": lambda name: f"json_{name}",
    "list": lambda name: f"list_{name}",
    "arithmetic": lambda name: f"0.5 * map_{name} + 0.5 * json_{name}",
    "columns": case,
    "policy": lambda name: pw.Softmax([f"log_{a}_{name}" for a in ACTIONS], ACTIONS),
}


def frequencies(log: pw.Log) -> tuple[FrequencySums, ...]:
    with DuckDB().open(log, {"t": "t"}) as opened:
        sums = opened.action_sums()
    assert sums is not None
    return sums.frequencies


def crossed(form: Callable[[str], PolicyLike], **more: Any) -> pw.Log:  # noqa: ANN401
    table, _ = rows()
    roles = {"logger": "v", "reward": "r", "action": "item", "eligible": "listed"} | more
    return pw.Log(table, propensities={name: form(name) for name in ("one", "two")}, **roles)


def assert_same(found: tuple[FrequencySums, ...], wanted: list[FrequencySums]) -> None:
    assert [(s.logger, s.action, s.played) for s in found] == [
        (s.logger, s.action, s.played) for s in wanted
    ]
    for one, other in zip(found, wanted, strict=True):
        assert one.expected == pytest.approx(other.expected, rel=1e-9)
        assert one.variance == pytest.approx(other.variance, rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_distribution_gives_the_same_sums(form: str) -> None:
    _, wanted = rows()
    found = frequencies(crossed(FORMS[form]))
    by_logger = {name: tuple(s for s in found if s.logger == name) for name in wanted}
    for name, sums in wanted.items():
        assert_same(by_logger[name], sums)


def test_actions_may_be_numbers() -> None:
    _, wanted = rows()
    log = crossed(lambda name: case(name, "number"), action="number", eligible=None)
    found = [s for s in frequencies(log) if s.logger == "two"]
    named = [s._replace(action=ACTIONS[int(s.action)] if s.action else "") for s in found]
    assert_same(tuple(named), wanted["two"])


def test_an_own_distribution_serves_all_loggers() -> None:
    table, wanted = rows()
    one = table.filter(pa.array([v == "one" for v in table["v"].to_pylist()]))
    log = pw.Log(one, propensity="json_one", logger="v", reward="r", action="item")
    assert_same(frequencies(log), wanted["one"])


def test_logarithms_are_exponentiated() -> None:
    _, wanted = rows()
    parts = {
        name: " ".join(f"WHEN '{a}' THEN log_{a}_{name}" for a in ACTIONS)
        for name in ("one", "two")
    }
    log = crossed(lambda name: f"CASE item {parts[name]} END", log_probabilities=True)
    assert_same(tuple(s for s in frequencies(log) if s.logger == "one"), wanted["one"])


PARTLY = "CASE item WHEN 'a' THEN a_one WHEN 'b' THEN b_one ELSE flat END"


@pytest.mark.parametrize(
    "roles",
    [
        {"propensity": "flat"},  # of the logged action only
        {"propensity": PARTLY},  # a column of the logged action among the others
        {"propensity": "CASE item WHEN 'a' THEN flat ELSE flat END"},
        {"propensity": "json_one", "on_fault": "drop"},  # what was dropped may depend on it
        {"propensity": "json_one", "action": None},
    ],
)
def test_what_is_no_distribution_is_left_out(roles: dict[str, Any]) -> None:
    table, _ = rows()
    usual: dict[str, Any] = {"logger": "v", "reward": "r", "action": "item"}
    if roles.get("action", "") is None:
        roles = {"action": None, "propensity": "flat"}
    assert frequencies(pw.Log(table, **usual | roles)) == ()


def test_rows_without_a_distribution_leave_their_logger_out() -> None:
    assert sum_frequencies("v", ["a"], np.array([[0.5], [1.0]]), np.array([0, 0])) == []
    assert sum_frequencies("v", ["a"], np.array([[np.nan], [1.0]]), np.array([0, 0])) == []
    assert sum_frequencies("v", ["a"], np.array([[1.0], [1.0]]), np.array([0, -1])) == []
    assert sum_frequencies("v", ["a"], np.empty((0, 1)), np.empty(0, dtype=np.int64)) == []


def test_many_actions_are_left_out() -> None:
    size = 1_000
    table = pa.table(
        {
            "r": np.ones(size),
            "item": np.arange(size),
            "best": np.arange(size),
            "t": np.full(size, 0.5),
        }
    )
    log = pw.Log(table, propensity="if(item = best, 1, 0)", reward="r", action="item")
    assert frequencies(log) == ()


def test_large_logs_are_sampled() -> None:
    size = 400_000
    table = pa.table(
        {
            "r": np.ones(size),
            "item": np.array(["a", "b"])[np.arange(size) % 2],
            "t": np.full(size, 0.5),
        }
    )
    log = pw.Log(table, propensity="if(item = 'a', 0.5, 0.5)", reward="r", action="item")
    found = frequencies(log)
    read = sum(s.played for s in found if s.action)
    assert 200_000 < read < 330_000
    assert found == frequencies(log)
