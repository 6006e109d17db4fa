"""Clicks: exact variances against an enumeration of all clicks, and against draws."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console

from reproduction import clicks
from reproduction.clicks import SETTINGS, ClickProblem, cell, click_claims, panel
from reproduction.figures import read_csv
from reproduction.panels import FIRST, SECOND
from reproduction.run import FULL, run

if TYPE_CHECKING:
    from pathlib import Path


def small() -> ClickProblem:
    """Return a problem with two kinds of requests and three items."""
    ranks = {
        FIRST: np.array([[1, 2, 3], [3, 1, 2]]),
        SECOND: np.array([[2, 1, 3], [1, 2, 3]]),
        "target": np.array([[3, 1, 2], [1, 3, 2]]),
    }
    relevance = np.array([[0.5, 0.25, 0.75], [0.125, 0.5, 1.0]])
    return ClickProblem(relevance, ranks, np.array([1.0, 0.5, 0.25]))


@pytest.mark.parametrize("logger", [FIRST, SECOND])
def test_moments_are_those_of_all_clicks(logger: str) -> None:
    problem = small()
    below = problem.mixture({FIRST: 0.25, SECOND: 0.75})
    weight, chance = problem.examined("target") / below, problem.examined(logger)
    chance = chance * problem.relevance
    first = second = 0.0
    for kind in range(2):
        for clicked in product([0, 1], repeat=3):
            p = np.prod(np.where(clicked, chance[kind], 1 - chance[kind])) / 2
            total = float(weight[kind] @ np.array(clicked))
            first, second = first + p * total, second + p * total**2
    mean, variance = problem.moments(logger, below)
    assert mean == pytest.approx(first, rel=1e-12)
    assert variance == pytest.approx(second - first**2, rel=1e-12)


def test_estimators_are_unbiased_and_gamma_is_exact() -> None:
    problem = small()
    for ratio in (0.25, 1.0, 4.0):
        row = cell(problem, ratio)
        assert row["value_balanced"] == pytest.approx(problem.value, rel=1e-12)
        assert row["weighted_naive"] == pytest.approx(row["gamma"], rel=1e-12)


def test_divergences_are_those_of_draws() -> None:
    problem = ClickProblem.draw(SETTINGS["curve 1/k"], 1.0)
    rng = np.random.default_rng(4)
    for logger, variance in problem.divergence.items():
        drawn = problem.draws(logger, 100_000, rng)
        error = float(((drawn - drawn.mean()) ** 2).std()) / np.sqrt(len(drawn))
        assert abs(drawn.var() - variance) < 4 * error
        assert abs(drawn.mean() - problem.value) < 4 * drawn.std() / np.sqrt(len(drawn))


def test_claims_follow_from_the_numbers() -> None:
    rows = [r for place, s in SETTINGS.items() for n in (0.3, 8.0) for r in panel(place, s, n)]
    ours = {"data": "x", "fraction": 1, "rule": "own", "n": 300, "fixed_ratio": 1.0}
    weights = [{**ours, "bias_sd": 0.0}]
    found = click_claims({"panels": rows, "weights": weights})
    verdicts = {row["claim"]: row["verdict"] for row in found}
    assert verdicts["Balanced is never worse than naive."] == "holds"
    worse = [{**row, "balanced_naive": 1.1} for row in rows]
    spoilt = {
        r["claim"]: r["verdict"] for r in click_claims({"panels": worse, "weights": weights})
    }
    assert spoilt["Balanced is never worse than naive."] == "does not hold"


@pytest.mark.slow
def test_the_command_writes_tables_figures_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "NOISES", (0.5, 4.0))
    console = Console(file=StringIO(), width=100)
    run("clicks", None, tmp_path, console=console, effort=replace(FULL, click_replications=20))
    assert len(read_csv(tmp_path / "clicks_panels.csv")) == 3 * 2 * 8
    assert "Figure 9" in (tmp_path / "clicks.md").read_text("utf-8")
    for figure in clicks.FIGURES:
        assert (tmp_path / f"{figure.stem}.svg").stat().st_size > 1_000
