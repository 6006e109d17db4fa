"""Densities: known integrals, exact weights, and one message for each mistake."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from scipy.integrate import quad
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import LogError, PolicyError, UsageError
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 4_000
LOGGERS = {"a": (1.0, 0.5), "b": (2.0, 0.25)}  # mean and deviation of the logged action
TARGET = pw.Gaussian(1.5, 0.25)


def batch(*actions: float) -> pw.Batch:
    return pw.Batch(np.array(actions), {"best": np.full(len(actions), 1.0)})


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Prices of two policies; the reward is the price, so a target earns its own mean."""
    rng = np.random.default_rng(5)
    labels = np.repeat(list(LOGGERS), ROWS)
    price = np.concatenate([rng.normal(*LOGGERS[i], ROWS) for i in LOGGERS])
    densities = {f"p_{i}": stats.norm(*LOGGERS[i]).pdf(price) for i in LOGGERS}
    target = stats.norm(1.5, 0.25).pdf(price)
    return pa.table({"policy": labels, "price": price, **densities, "t": target})


def log_of(table: pa.Table, **roles: Any) -> pw.Log:  # noqa: ANN401 - any role of a log
    named: dict[str, Any] = {"logger": "policy", "reward": "price", "action": "price"}
    named |= {"propensities": "p_{logger}", "densities": True}
    return pw.Log(table, **named | roles)


@pytest.mark.parametrize(
    ("policy", "first", "exact"),
    [
        (pw.Gaussian(1.0, 0.1), 1.0, lambda a: stats.norm(1, 0.1).pdf(a)),
        (
            pw.Gaussian("best", lambda b: b["best"] / 5),
            1.2,
            lambda a: stats.norm(1, 0.2).pdf(a),
        ),
        (pw.LogNormal(0.5, 0.3), 1.5, lambda a: stats.lognorm(0.3, scale=math.exp(0.5)).pdf(a)),
        (pw.Density(stats.gamma(2.0)), 1.0, lambda a: a * math.exp(-a)),
        (pw.Density(lambda b: 2 * b.action), 0.5, lambda a: 2 * a),
        (pw.Range(0.0, 4.0), 1.0, lambda _: 0.25),
        (
            pw.Mixture([pw.Gaussian(1.0, 0.1), pw.Range(0.0, 4.0)], [0.9, 0.1]),
            1.0,
            lambda a: 0.9 * stats.norm(1, 0.1).pdf(a) + 0.025,
        ),
    ],
)
def test_densities_are_exact(
    policy: pw.Policy, first: float, exact: Callable[[float], float]
) -> None:
    for action in (first, first * 0.7):
        assert policy.prob(batch(action))[0] == pytest.approx(exact(action), rel=1e-12)


@pytest.mark.parametrize(
    ("policy", "mean"),
    [
        (pw.Gaussian(1.5, 0.25), 1.5),
        (pw.LogNormal(0.2, 0.3), math.exp(0.2 + 0.3**2 / 2)),
        (pw.Range(1.0, 4.0), 2.5),
    ],
)
def test_a_density_integrates_to_1_and_has_its_mean(policy: pw.Policy, mean: float) -> None:
    def density(action: float) -> float:
        return float(policy.prob(batch(action))[0])

    parts = [(-1.0, 1.0), (1.0, 1.5), (1.5, 4.0), (4.0, 9.0)]
    total = sum(quad(density, *part)[0] for part in parts)
    first = sum(quad(lambda a: a * density(a), *part)[0] for part in parts)
    assert total == pytest.approx(1, abs=1e-7)
    assert first == pytest.approx(mean, abs=1e-6)


def test_prices_are_evaluated_with_exact_weights(table: pa.Table) -> None:
    evaluation = pw.evaluate(log_of(table), {"new": TARGET, "column": "t"})
    columns = {name: np.asarray(table[name]) for name in ("price", "p_a", "p_b", "t")}
    weights = columns["t"] / (0.5 * columns["p_a"] + 0.5 * columns["p_b"])
    for name in ("new", "column"):
        estimates = evaluation[name].estimates
        value = float(np.mean(columns["price"] * weights))
        assert estimates["balanced"].value == pytest.approx(value, rel=1e-10)
        estimate = estimates["calibrated"]
        assert abs(estimate.value - 1.5) < 4 * estimate.std_error < 0.1
    assert not [f for f in evaluation["new"].findings if f.severity == "alarm"]


def test_logarithms_of_densities_give_the_same(table: pa.Table) -> None:
    logs = pa.table(
        {
            name: np.log(table[name]) if name.startswith(("p_", "t")) else table[name]
            for name in table.column_names
        }
    )
    plain = pw.evaluate(log_of(table), {"new": TARGET, "column": "t"})
    log = log_of(logs, log_probabilities=True)
    for left, right in zip(
        pw.evaluate(log, {"new": TARGET, "column": "t"}).to_dicts(),
        plain.to_dicts(),
        strict=True,
    ):
        assert left["value"] == pytest.approx(right["value"], rel=1e-9)


def test_the_command_line_reads_densities(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(table, path)
    words = ["evaluate", str(path), "--logger", "policy", "--reward", "price"]
    words += ["--propensities", "p_{logger}", "--target", "new=t", "--json"]
    outcome = CliRunner().invoke(app, [*words, "--densities"])
    estimate = json.loads(outcome.stdout)["targets"][0]["estimates"][0]
    same = pw.evaluate(log_of(table), {"new": "t"})
    assert estimate["value"] == same["new"].estimates[estimate["estimator"]].value
    with refused(LogError):
        raise CliRunner().invoke(app, words).exception or AssertionError


@pytest.mark.parametrize("wrong", [0.0, math.inf, -1.0, math.nan])
def test_a_density_of_zero_or_infinity_is_one_message(table: pa.Table, wrong: float) -> None:
    own = np.where(
        table["policy"].to_numpy(zero_copy_only=False) == "a", table["p_a"], table["p_b"]
    )
    own[7] = wrong
    log = log_of(table.append_column("own", pa.array(own)), propensities=None, propensity="own")
    with refused(LogError) as caught:
        pw.evaluate(log, "t")
    assert sum(fault.rows for fault in caught.value.faults) == 1
    assert pw.evaluate(replace(log, on_fault="drop"), "t").rows == {"a": ROWS - 1, "b": ROWS}


def test_a_target_with_an_infinite_density_is_refused(table: pa.Table) -> None:
    target = pw.Density(lambda b: np.where(np.arange(len(b)) == 3, np.inf, 1.0))
    with refused(PolicyError):
        pw.evaluate(log_of(table), target)


@pytest.mark.parametrize(
    "target",
    [
        pw.EpsilonGreedy(lambda b: [1.0] * len(b), [1.0, 2.0], epsilon=0.1),
        {1.5: 1.0},
        pw.Mixture([pw.Uniform([1.0, 2.0]), pw.Range(0, 4)], [0.5, 0.5]),
    ],
    ids=["greedy", "table", "mixture"],
)
def test_a_deterministic_target_is_refused(table: pa.Table, target: Any) -> None:  # noqa: ANN401
    with refused(UsageError):
        pw.evaluate(log_of(table), {"fixed": target})


def test_a_scale_of_zero_and_bad_bounds_are_refused() -> None:
    for policy in (pw.Gaussian(1.0, 0.0), pw.LogNormal(0.0, math.inf)):
        with refused(PolicyError):
            policy.prob(batch(1.0))
    with refused(PolicyError):
        pw.Range(2.0, 1.0)
    with refused(PolicyError):
        pw.Density(3.0)
    with refused(PolicyError):
        pw.Range(1.0, 2.0).prob(pw.Batch(np.array(["a"]), {}))
    assert pw.LogNormal(0.0, 1.0).prob(batch(0.0, -1.0)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("scale", "advice"),
    [
        (lambda p: 100 * p, "percentages"),
        (np.log, "logarithms"),
        (lambda p: 300 * p, "densities"),
    ],
)
def test_wrong_scales_are_asked_about(
    scale: Callable[[np.ndarray], np.ndarray], advice: str
) -> None:
    p = np.linspace(0.02, 0.98, 50)
    log = pw.Log({"r": np.ones(50), "p": scale(p)}, reward="r", propensity="p")
    with refused(LogError) as caught:
        pw.evaluate(log, "0.5")
    for fault in caught.value.faults:
        assert advice in fault.advice
        assert "drop" not in fault.advice


def test_dropping_is_advised_for_few_rows_only() -> None:
    for bad, dropped in ((1, True), (2, True), (3, False)):
        p = np.full(50, 0.5)
        p[:bad] = -1.0
        with pytest.raises(LogError) as caught:
            pw.evaluate(pw.Log({"r": np.ones(50), "p": p}, reward="r", propensity="p"), "0.5")
        assert ("on_fault='drop'" in caught.value.faults[0].advice) is dropped
