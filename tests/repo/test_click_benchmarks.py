"""The benchmark of click logs computes what the package computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import poolwise as pw
from benchmarks import click_speed, clicks, data
from benchmarks.clicks import WORLDS, Drawn, World, keep, line, predictions
from poolwise.evaluation.clicks import judge_predictions

if TYPE_CHECKING:
    from pathlib import Path


def test_the_arrays_give_the_numbers_of_the_package() -> None:
    world = World((400, 300, 200), positions=5, items=6, users=2, rate=0.4)
    table = world.table(3)
    drawn = Drawn.of(world, table)
    curve = drawn.curve()
    log, targets = pw.click_log(
        table,
        {"new": "rank_new"},
        request="request",
        position="position",
        click="click",
        logger="ranker",
        ranks="rank_{logger}",
        cluster="user",
    )
    found = pw.evaluate(log, targets)
    for name, own in (("balanced", False), ("naive", True)):
        estimate, interval = drawn.value(curve, -1, own=own)
        ours = found["new"].estimates[name]
        assert ours.value == pytest.approx(estimate.value, rel=1e-9)
        assert ours.std_error == pytest.approx(estimate.std_error, rel=1e-9)
        assert found["new"].intervals[name].lower == pytest.approx(interval.lower, rel=1e-3)
    rows = dict.fromkeys(world.names, 1)
    tested = judge_predictions(predictions(drawn, curve), rows, 0.95)
    assert found.backtest is not None
    for i in world.names:
        assert found.backtest[i].z == pytest.approx(tested[i].z, abs=1e-9)


def test_truths_are_those_of_logs() -> None:
    """The clicks that a ranker's own lists get, on average, are its value."""
    for name in ("2 similar rankers, 2,000 requests", "users with 5 requests"):
        world = WORLDS[name]
        truth = World(**{**vars(world), "noise": (*world.noise[:-1], world.noise[0])}).truth()
        tables = [world.table(seed) for seed in range(6)]
        rows = [t.filter(np.array(t["ranker"].to_pylist()) == "r0") for t in tables]
        means = [r["click"].to_numpy().sum() / world.requests[0] for r in rows]
        assert abs(np.mean(means) - truth) < 5 * np.std(means, ddof=1) / np.sqrt(6)


def test_a_line_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clicks, "OUTPUT", tmp_path / "clicks.csv")
    monkeypatch.setattr(clicks, "TRUTH_REQUESTS", 20_000)
    name = "1,000 requests, 5 positions"
    for _ in range(2):
        keep([line(name, WORLDS[name], 2, first=1)])
    assert (tmp_path / "clicks.csv").read_text("utf-8").count("\n") == 2


@pytest.mark.slow
def test_the_value_of_a_ranker_is_its_own_mean_clicks() -> None:
    """In standard errors of the difference, which contain the error of the position bias."""
    for name in ("3 rankers, 5,000 requests", "1,000 requests, 5 positions"):
        world = WORLDS[name]
        found = []
        for seed in range(60):
            drawn = Drawn.of(world, world.table(seed))
            found.append([drawn.own_distance(drawn.curve(), k) for k in range(3)])
        z = np.array(found)
        assert np.all(np.abs(z.mean(axis=0)) < 4 / np.sqrt(60))
        assert np.all(np.abs(z.std(axis=0, ddof=1) - 1) < 4 / np.sqrt(120))


@pytest.mark.slow
def test_speed_is_measured_on_a_log_of_three_rankers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    monkeypatch.setattr(click_speed, "REPEATS", 1)
    found = click_speed.measure_here(20_000)
    assert found["evaluate"] > found["decode"] > 0
    assert found["megabytes"] > 0
