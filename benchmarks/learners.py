"""Learning at scale: a log of 60 features and 10 actions, and `learn` with all defaults."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from benchmarks.data import CHUNK, FOLDER, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FEATURES, ACTIONS, LOGGERS = 60, 10, 2
NAMES = [f"x_{k}" for k in range(FEATURES)]
SEED = 20170813


def learning_file(rows: int) -> Path:
    """Return a log of a uniform and a decent logger, with click-like rewards."""
    rng = np.random.default_rng(SEED)
    theta = 0.3 * rng.normal(size=(FEATURES, ACTIONS))
    sizes = (min(CHUNK, rows - start) for start in range(0, rows, CHUNK))
    return written(FOLDER / f"learning_{rows}.parquet", (_chunk(n, theta, rng) for n in sizes))


def _chunk(rows: int, theta: np.ndarray, rng: np.random.Generator) -> pa.Table:
    x = rng.normal(size=(rows, FEATURES))
    scores = x @ theta
    decent = np.exp(0.7 * scores)
    decent /= decent.sum(axis=1, keepdims=True)
    wrote = rng.random(rows) < 1 / 3
    played = np.where(wrote[:, None], decent, 1 / ACTIONS)
    action = (played.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(max=ACTIONS - 1)
    chance = np.where(action == scores.argmax(axis=1), 0.15, 0.05)
    return pa.table(
        {
            "logger": np.where(wrote, "v1", "v0"),
            "action": action,
            "reward": (rng.random(rows) < chance).astype(np.float64),
            "p_v0": np.full(rows, 1 / ACTIONS),
            "p_v1": decent[np.arange(rows), action],
            **{name: x[:, k] for k, name in enumerate(NAMES)},
        }
    )


def learn(path: Path) -> Callable[[], object]:
    """Return the work: learn a policy from a file."""
    import poolwise as pw

    log = pw.Log(
        path,
        logger="logger",
        reward="reward",
        action="action",
        propensities={"v0": "p_v0", "v1": "p_v1"},
    )
    return partial(pw.learn, log, features=NAMES)
