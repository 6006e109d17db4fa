"""Comparisons must not be surer than the evaluations beside them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from poolwise import Log, compare, evaluate
from poolwise.errors import RefusedError
from tests.support.messages import refused

TARGETS = {"t": "t", "u": "u"}


def halves() -> Log:
    """Deterministic loggers: weights differ between the loggers and nowhere else."""
    rng = np.random.default_rng(3)
    rewards = np.concatenate([rng.normal(1, 0.1, 50), rng.normal(3, 0.1, 50)])
    first = np.repeat([1.0, 0.0], 50)
    table = pa.table(
        {
            "l": np.repeat(["left", "right"], 50),
            "r": rewards,
            "p_left": first,
            "p_right": 1 - first,
            "t": np.where(first > 0, 0.4, 0.6),
            "u": np.where(first > 0, 0.6, 0.4),
        }
    )
    policies = {"left": "p_left", "right": "p_right"}
    return Log(table, logger="l", reward="r", propensities=policies)


@pytest.mark.parametrize("estimator", ["naive", "balanced", "self-normalised", "calibrated"])
def test_targets_that_differ_between_loggers_only_are_two(estimator: str) -> None:
    log = halves()
    found = compare(log, TARGETS, estimator=estimator, baseline="u").pairs[0]
    assert found.verdict == "better"
    # 0.4 x 1 + 0.6 x 3 against 0.6 x 1 + 0.4 x 3
    half = estimator == "naive"  # each row speaks for its own logger only
    assert found.value == pytest.approx(0.2 if half else 0.4, abs=0.02)


def by_cluster(sizes: list[int], seed: int = 3) -> pa.Table:
    """Both targets are worth 0.5; what a cluster pays for each action is its own."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[float]] = {"c": [], "r": [], "t": [], "u": []}
    for number, size in enumerate(sizes):
        paid, action = rng.normal(0.5, 0.3, 2), rng.integers(0, 2, size)
        columns["c"] += [number] * size
        columns["r"] += (paid[action] + rng.normal(0, 0.1, size)).tolist()
        columns["t"] += np.where(action, 0.9, 0.1).tolist()
        columns["u"] += np.where(action, 0.1, 0.9).tolist()
    return pa.table({**columns, "l": ["a"] * sum(sizes)})


def log_of(table: pa.Table, cluster: str | None = "c") -> Log:
    return Log(table, logger="l", reward="r", propensities={"a": "0.5"}, cluster=cluster)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["naive", "balanced"])
@pytest.mark.parametrize("sizes", [[2000] + [20] * 9, [30] * 12, [100, 50, 5, 5, 5]])
def test_errors_of_clusters_are_those_of_the_evaluation(
    sizes: list[int], estimator: str
) -> None:
    log = log_of(by_cluster(sizes))
    found = evaluate(log, TARGETS, estimator)
    ranked = {r.target: r.estimate for r in compare(log, TARGETS, estimator=estimator).ranking}
    for name in TARGETS:
        expected = found[name].estimates[estimator].std_error
        assert ranked[name].std_error == pytest.approx(expected, rel=1e-9)


def test_one_large_cluster_shows_nothing() -> None:
    """The sandwich formula gave p = 2e-6 here."""
    found = compare(log_of(by_cluster([2000] + [20] * 9)), TARGETS).pairs[0]
    assert found.verdict == "undecided"
    assert found.p_value > 0.05


def test_one_cluster_leaves_nothing_to_compare() -> None:
    log = log_of(by_cluster([300]))
    assert evaluate(log, TARGETS).comparison is None
    with refused(RefusedError):
        compare(log, TARGETS)


def test_one_row_leaves_nothing_to_compare() -> None:
    log = log_of(by_cluster([1]), None)
    assert evaluate(log, TARGETS).comparison is None
    with refused(RefusedError):
        compare(log, TARGETS)
