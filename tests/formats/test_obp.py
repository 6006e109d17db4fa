"""Dictionaries of Open Bandit Pipeline: the log gives the numbers of its formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from poolwise import Weighted, evaluate
from poolwise.errors import LogError, RefusedError, UsageError
from poolwise.formats.open_bandit import from_obp, other_of_two
from tests.support.messages import refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poolwise.log.log import Log

ACTIONS, ROWS = 3, (30, 50, 20)


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    powers: NDArray[np.float64] = np.exp(scores)
    total: NDArray[np.float64] = powers.sum(axis=1, keepdims=True)
    return powers / total


def several(loggers: int = 2, positions: int = 1) -> dict[str, Any]:
    """Return the output of OBP's generator of several loggers, and every logger's `pi_b`."""
    rng = np.random.default_rng(loggers)
    counts = ROWS[:loggers]
    stratum = np.repeat(np.arange(loggers), counts)
    rows = np.arange(len(stratum))
    context = rng.normal(size=(len(rows), 2))
    scores = context @ rng.normal(size=(2, ACTIONS))
    every = [softmax(slope * scores) for slope in (-1.0, 0.5, 2.0)[:loggers]]
    own = np.stack(every)[stratum, rows]
    action = np.array([rng.choice(ACTIONS, p=p) for p in own])
    average = np.average(np.stack(every), axis=0, weights=counts)
    return {
        "n_rounds": len(rows),
        "n_actions": ACTIONS,
        "n_strata": loggers,
        "context": context,
        "action_context": np.eye(ACTIONS),
        "action": action,
        "position": None if positions == 1 else rng.integers(0, positions, len(rows)),
        "reward": rng.binomial(1, 0.2 + 0.2 * action).astype(float),
        "stratum_idx": stratum,
        "pi_b": own[:, :, None],
        "pi_b_avg": average[:, :, None],
        "pscore": own[rows, action],
        "pscore_avg": average[rows, action],
        "every": {k: p[:, :, None] for k, p in enumerate(every)},
        "target": softmax(3 * scores)[:, :, None],
    }


def values(log: Log, *estimators: Any, target: str = "target_prob") -> dict[str, float]:  # noqa: ANN401
    found = evaluate(log, target, list(estimators))["target"]
    return {name: estimate.value for name, estimate in found.estimates.items()}


def picked(feedback: dict[str, Any]) -> NDArray[np.float64]:
    """Target's probability of the logged action: OBP's first step."""
    rows = np.arange(feedback["n_rounds"])
    target: NDArray[np.float64] = feedback["target"][rows, feedback["action"], 0]
    return target


def test_one_logger_gives_ips() -> None:
    feedback = several(1)
    for key in ("stratum_idx", "pscore_avg", "pi_b_avg", "every"):
        del feedback[key]
    log = from_obp(feedback, action_dist=feedback["target"])
    expected = (feedback["reward"] * picked(feedback) / feedback["pscore"]).mean()
    assert values(log, "naive") == {"naive": pytest.approx(expected, rel=1e-12)}
    assert evaluate(log, "target_prob", "naive").rows == {"log": 30}


@pytest.mark.parametrize("given", ["behavior", "pscore_avg", "pscore_star"])
def test_two_loggers_give_the_three_estimates_of_obp(given: str) -> None:
    feedback = several(2)
    behavior = feedback.pop("every") if given == "behavior" else None
    average = feedback.pop("pscore_avg")
    if given != "behavior":
        feedback[given] = average
    if given == "pscore_star":  # the older name, and the older name of stratum_idx
        feedback["strata"] = feedback.pop("stratum_idx").astype(float)
    log = from_obp(feedback, action_dist=feedback["target"], behavior=behavior)
    own = feedback["reward"] * picked(feedback) / feedback["pscore"]
    parts = own[:30], own[30:]
    mass = np.array([len(p) / p.var(ddof=1) for p in parts])
    assert values(log, "naive", "balanced", Weighted(divergence="own")) == {
        "naive": pytest.approx(own.mean(), rel=1e-12),
        "balanced": pytest.approx(
            (feedback["reward"] * picked(feedback) / average).mean(), rel=1e-12
        ),
        "weighted": pytest.approx(mass @ [p.mean() for p in parts] / mass.sum(), rel=1e-9),
    }


def test_the_other_of_two_loggers_follows_from_the_mixture() -> None:
    feedback = several(2)
    log = from_obp(feedback)
    assert isinstance(log.source, pa.Table)
    rows = np.arange(80)
    for k in (0, 1):
        exact = feedback["every"][k][rows, feedback["action"], 0]
        found = log.source[f"propensity_{k}"].to_numpy()
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    labels = np.array(["0"] * 3 + ["1"])
    both = other_of_two(labels, np.array([0.5, 0.5, 0.5, 1.0]), np.array([0.5] * 3 + [0.25]))
    # 1/4 of the rows are of "1": (0.5 - 0.75 · 0.5) / 0.25, and (0.25 - 0.25 · 1) / 0.75
    assert both["1"].tolist() == [0.5, 0.5, 0.5, 1.0]
    assert both["0"].tolist() == [0.5, 0.5, 0.5, 0.0]


def test_three_loggers_need_their_probabilities_for_balanced() -> None:
    feedback = several(3)
    crossed = from_obp(feedback, action_dist=feedback["target"], behavior=feedback["every"])
    expected = (feedback["reward"] * picked(feedback) / feedback["pscore_avg"]).mean()
    assert values(crossed, "balanced") == {"balanced": pytest.approx(expected, rel=1e-12)}
    own = from_obp({**feedback, "pscore_avg": None}, action_dist=feedback["target"])
    with refused(RefusedError):
        values(own, "balanced")
    naive = (feedback["reward"] * picked(feedback) / feedback["pscore"]).mean()
    assert values(own, "naive") == {"naive": pytest.approx(naive, rel=1e-12)}


def test_three_loggers_are_balanced_by_a_given_mixture() -> None:
    feedback = several(3)
    log = from_obp(feedback, action_dist=feedback["target"])
    expected = (feedback["reward"] * picked(feedback) / feedback["pscore_avg"]).mean()
    assert values(log, "balanced") == {"balanced": pytest.approx(expected, rel=1e-12)}


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_a_mixture_that_is_no_probability_is_refused(value: float) -> None:
    feedback = several(3)
    feedback["pscore_avg"] = np.array(feedback["pscore_avg"])
    feedback["pscore_avg"][4] = value
    log = from_obp(feedback, action_dist=feedback["target"])
    with refused(LogError):
        values(log, "balanced")


def test_the_position_chooses_the_layer() -> None:
    feedback = several(1, positions=3)
    rows = np.arange(30)
    dense = softmax(np.random.default_rng(5).normal(size=(90, ACTIONS)))
    action_dist = dense.reshape(30, 3, ACTIONS).transpose(0, 2, 1)
    log = from_obp({**feedback, "stratum_idx": None}, action_dist=action_dist)
    assert isinstance(log.source, pa.Table)
    exact = action_dist[rows, feedback["action"], feedback["position"]]
    assert log.source["target_prob"].to_pylist() == exact.tolist()
    assert log.context == ("context", "position")


def test_targets_may_be_several_and_flat() -> None:
    feedback = several(2)
    flat = {"sharp": feedback["target"][:, :, 0], "logged": picked(feedback)}
    log = from_obp(feedback, action_dist=flat)
    assert values(log, "naive", target="sharp") == values(log, "naive", target="logged")


def test_lists_will_do_and_pi_b_replaces_pscore() -> None:
    feedback = several(1)
    lists = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in feedback.items()}
    exact = from_obp(feedback, action_dist=feedback["target"])
    same = from_obp({**lists, "pscore": None}, action_dist=lists["target"])
    assert values(same, "naive") == values(exact, "naive")


def test_the_context_serves_policies_in_python() -> None:
    feedback = several(2)
    log = from_obp(feedback, action_dist=feedback["target"])
    found = evaluate(log, {"target": lambda batch: (batch.context[:, 0] > 0) * 0.5}, "naive")
    weight = (feedback["context"][:, 0] > 0) * 0.5 / feedback["pscore"]
    expected = (feedback["reward"] * weight).mean()
    assert found["target"].estimates["naive"].value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"action": None},
        {"n_actions": None, "reward": None},
        {"n_rounds": 7},
        {"reward": [1.0]},
        {"reward": ["x"] * 80},
        {"reward": [np.nan] * 80},
        {"n_actions": 2},
        {"action": [0.5] * 80},
        {"pscore": None, "pi_b": None},
        {"context": np.zeros(80)},
        {"pscore_avg": np.ones(80)},
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any]) -> None:
    with refused(UsageError):
        from_obp(several(2) | changes)


@pytest.mark.parametrize(
    "options",
    [
        {"action_dist": np.zeros((80, 4))},
        {"action_dist": np.full((80, 3), 0.5)},
        {"action_dist": np.full((80, 3, 2), 1 / 3)},
        {"action_dist": {"reward": np.full(80, 0.5)}},
        {"behavior": {0: np.full((80, 3), 1 / 3)}},
    ],
)
def test_arrays_that_do_not_fit_are_refused(options: dict[str, Any]) -> None:
    with refused(UsageError):
        from_obp(several(2), **options)
    with refused(UsageError):
        from_obp([])  # type: ignore[arg-type]
