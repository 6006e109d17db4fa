"""Scoring: the time of `evaluate` with scikit-learn models, and of the models alone.

Three loggers and one target are logistic regressions over 20 features and 10 actions.
They are compared with the `predict_proba` calls alone, on rows in memory: one call for
each model, as a user writes it, and the fastest variant known, batches in two threads with
one BLAS thread each.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import CHUNK, FOLDER, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import poolwise as pw

FEATURES, ACTIONS, LOGGERS = 20, 10, 3
NAMES = [f"x_{k}" for k in range(FEATURES)]
TAUGHT = 2_000  # rows that a model was fitted to
BATCH = 65_536  # rows of one call: quickest among 2**12 to 2**17, and flat from 2**14 on
THREADS = 2
SEED = 20170813


@cache
def models() -> dict[str, Any]:
    """Return the target and the loggers, each fitted to its own rows."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(SEED)
    found = {}
    for name in ("target", *(f"v{k}" for k in range(LOGGERS))):
        x = rng.normal(size=(TAUGHT, FEATURES))
        liked = x @ rng.normal(size=(FEATURES, ACTIONS)) / 4
        best = (liked + rng.gumbel(size=liked.shape)).argmax(axis=1)
        found[name] = LogisticRegression(C=0.1).fit(x, best)
    return found


def policy_file(rows: int) -> Path:
    """Return a log of contexts, actions and rewards, without probabilities."""
    rng = np.random.default_rng(SEED)
    sizes = (min(CHUNK, rows - start) for start in range(0, rows, CHUNK))
    return written(FOLDER / f"policies_{rows}.parquet", (_chunk(n, rng) for n in sizes))


def _chunk(rows: int, rng: np.random.Generator) -> pa.Table:
    x = rng.normal(size=(rows, FEATURES))
    wrote = rng.integers(0, LOGGERS, rows)
    probs = np.stack([models()[f"v{k}"].predict_proba(x) for k in range(LOGGERS)])
    below = probs[wrote, np.arange(rows)].cumsum(axis=1)
    place = (below <= rng.random(rows)[:, None] * below[:, -1:]).sum(axis=1)
    action = models()["v0"].classes_[place]
    return pa.table(
        {
            "logger": pa.array(np.array([f"v{k}" for k in range(LOGGERS)])[wrote]),
            "action": action,
            "reward": rng.normal(action / ACTIONS, 1.0),
            **{name: x[:, k] for k, name in enumerate(NAMES)},
        }
    )


def policy_log(rows: Path | pa.Table) -> pw.Log:
    """Return a file or a table as a log whose loggers are the models."""
    from poolwise import Log

    return Log(
        rows,
        logger="logger",
        action="action",
        reward="reward",
        context=NAMES,
        propensities={name: m for name, m in models().items() if name != "target"},
    )


def predict(path: Path) -> Callable[[], None]:
    """Return the calls of `predict_proba` alone, on rows read before."""
    from threadpoolctl import threadpool_limits

    table = pq.read_table(path, columns=NAMES)
    x = np.column_stack([table[name].to_numpy() for name in NAMES])
    calls = [
        (model, x[first : first + BATCH])
        for first in range(0, len(x), BATCH)
        for model in models().values()
    ]

    def call(pair: tuple[Any, object]) -> None:
        pair[0].predict_proba(pair[1])

    def work() -> None:
        limited = partial(threadpool_limits, limits=1)
        with limited(), ThreadPoolExecutor(THREADS, initializer=limited) as pool:
            for _ in pool.map(call, calls):
                pass

    return work


def predict_plain(path: Path) -> Callable[[], None]:
    """Return the same calls as a user writes them, one per model, on all rows at once."""
    table = pq.read_table(path, columns=NAMES)
    x = np.column_stack([table[name].to_numpy() for name in NAMES])

    def work() -> None:
        for model in models().values():
            model.predict_proba(x)

    return work


def score(path: Path) -> Callable[[], None]:
    """Return a run that reads the file and appends the probability of each model."""
    from poolwise.log.adapters import as_policy
    from poolwise.rows.append import score as scored
    from poolwise.rows.score import Scorer

    policies = {f"p_{name}": as_policy(model) for name, model in models().items()}
    scorer = Scorer(policies, "action", tuple(NAMES))

    def work() -> None:
        batches = pq.ParquetFile(path).iter_batches(BATCH)
        for _ in scored(batches, scorer, workers=THREADS):
            pass

    return work


def evaluate(path: Path) -> Callable[[], None]:
    """Return a run of the whole evaluation, from the file."""
    from poolwise import evaluate as evaluated

    def work() -> None:
        evaluated(policy_log(path), {"target": models()["target"]})

    return work


def evaluate_table(path: Path) -> Callable[[], None]:
    """Return the same with the rows in memory, as the calls have them."""
    from poolwise import evaluate as evaluated

    table = pq.read_table(path)

    def work() -> None:
        evaluated(policy_log(table), {"target": models()["target"]})

    return work
