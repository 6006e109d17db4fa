"""The chart of two metrics: its frontier by definition, its marks from the estimates."""

from __future__ import annotations

import itertools
from typing import Any

import poolwise as pw
from poolwise.errors import UsageError
from poolwise.formats.labelled import digits_log
from poolwise.report.tradeoff import find_frontier
from tests.support.messages import refused

METRICS = {"sevens": pw.Metric("(digit = 7)::INT", better="lower")}
TARGETS = {
    "candidate": "p_candidate",
    "large": "p_large",
    "half": "0.5 * p_small + 0.5 * p_candidate",
}


def evaluation() -> pw.Evaluation:
    return pw.evaluate(digits_log(), TARGETS, "calibrated", metrics=METRICS)


def dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a != b and all(p >= q for p, q in zip(a, b, strict=True))


def test_the_frontier_is_what_nothing_dominates() -> None:
    for x in itertools.product([0.0, 1.0, 2.0], repeat=3):
        for y in itertools.product([0.0, 1.0, 2.0], repeat=3):
            values = dict(zip("abc", zip(x, y, strict=True), strict=True))
            found = find_frontier(values)
            kept = [
                n
                for n, v in values.items()
                if not any(dominates(w, v) for w in values.values())
            ]
            assert sorted(found) == kept
            assert [values[n] for n in found] == sorted(values[n] for n in found)


def test_the_chart_has_the_estimates_of_both_metrics() -> None:
    found = evaluation()
    spec: dict[str, Any] = found.tradeoff("sevens", "reward").to_dict()
    line, *_, dots, _ = spec["layer"]

    def rows(layer: dict[str, Any]) -> list[dict[str, Any]]:
        data: dict[str, Any] = layer["data"]
        found: list[dict[str, Any]] = data.get("values") or spec["datasets"][data["name"]]
        return found

    points = {row["target"]: row for row in rows(dots)}
    for name in TARGETS:
        for axis, metric in (("x", "sevens"), ("y", "reward")):
            estimate = found.metrics[metric][name].estimates["calibrated"]
            assert points[name][axis] == estimate.value
    kept = {n for n, row in points.items() if row["kind"] == "not dominated"}
    best = max(TARGETS, key=lambda n: points[n]["y"])
    least = min(TARGETS, key=lambda n: points[n]["x"])
    assert {best, least} <= kept
    corners = {(row["x"], row["y"]) for row in rows(line)}
    assert {(points[n]["x"], points[n]["y"]) for n in kept} <= corners


def test_an_unknown_metric_is_refused() -> None:
    with refused(UsageError):
        evaluation().tradeoff("seven", "reward")
