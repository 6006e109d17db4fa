"""The reference problem of learning, from `golden_learning.json`, and a log to learn from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import poolwise as pw
from poolwise.learning.fit import SoftmaxProblem, softmax
from poolwise.learning.objectives import Sample

if TYPE_CHECKING:
    from poolwise.types import FloatArray

GOLDEN: dict[str, Any] = json.loads(
    Path(__file__).with_name("golden_learning.json").read_text("utf-8")
)
LOGGERS = ("one", "two")
ROWS = GOLDEN["rows"]
CONTEXT = [row["context"] for row in ROWS]
FEATURES: FloatArray = np.array(GOLDEN["features"])
CROSS: FloatArray = np.array([[row["p_one"], row["p_two"]] for row in ROWS])
THETA: FloatArray = np.array(GOLDEN["theta"])


def golden_sample(*, naive: bool = False) -> Sample:
    """Return the 40 rows; naive has the own propensities as denominators."""
    logger = np.array([LOGGERS.index(row["logger"]) for row in ROWS])
    mixture = np.array([row["p_avg"] for row in ROWS])
    return Sample(
        action=np.array([row["action"] for row in ROWS]),
        reward=np.array([row["reward"] for row in ROWS]),
        propensity=CROSS[np.arange(len(ROWS)), logger] if naive else mixture,
        logger=logger,
        predicted=np.array(GOLDEN["q"])[CONTEXT],
        ratios=CROSS / mixture[:, None],
    )


def golden_problem(*, naive: bool = False) -> SoftmaxProblem:
    return SoftmaxProblem(FEATURES[CONTEXT], golden_sample(naive=naive), THETA.shape[1])


def golden_log(prob: FloatArray) -> pw.Log:
    """Return the rows as a log, with the probability of a target in the column t."""
    sample = golden_sample()
    columns = {
        "reward": sample.reward,
        "logger": [LOGGERS[k] for k in sample.logger],
        "p_one": CROSS[:, 0],
        "p_two": CROSS[:, 1],
        "t": prob[np.arange(len(prob)), sample.action],
    }
    propensities = {name: f"p_{name}" for name in LOGGERS}
    return pw.Log(
        pa.table(columns), reward="reward", logger="logger", propensities=propensities
    )


def policy_of(coefficients: FloatArray) -> FloatArray:
    """Return the probabilities of the three contexts."""
    return softmax(FEATURES @ coefficients)


def segments(rows: int, seed: int = 0, *, gain: float = 0.5) -> pa.Table:
    """Draw a log of two loggers: the best of four actions follows from segment and x.

    The reward is 1 with probability 0.2, and more by `gain` for the best action.
    """
    rng = np.random.default_rng(seed)
    segment = rng.choice(["a", "b", "c"], rows)
    x = rng.normal(size=rows)
    best = np.searchsorted(["a", "b", "c"], segment) + (x > 0)
    old = np.full((rows, 4), 1 / 4)
    new = np.where(np.arange(4) == best[:, None], 0.4, 0.2)
    logger = rng.choice(2, rows, p=[0.7, 0.3])
    prob = np.where(logger[:, None] == 1, new, old)
    action = (prob.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(max=3)
    reward = (rng.random(rows) < 0.2 + gain * (action == best)).astype(float)
    at = np.arange(rows), action
    return pa.table(
        {
            "policy": np.where(logger == 1, "new", "old"),
            "action": action,
            "reward": reward,
            "segment": segment,
            "x": x,
            "best": best,
            "p_old": old[at],
            "p_new": new[at],
            "user": rng.integers(0, max(rows // 4, 1), rows),
        }
    )


def segments_log(table: pa.Table, **options: Any) -> pw.Log:  # noqa: ANN401 - of a Log
    names: dict[str, Any] = {
        "reward": "reward",
        "logger": "policy",
        "action": "action",
        "context": ["segment", "x"],
        "propensities": {"old": "p_old", "new": "p_new"},
    }
    return pw.Log(table, **(names | options))
