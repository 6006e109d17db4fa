"""Logs of policies that change from day to day, small enough to check by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from poolwise.log.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolwise.types import FloatArray

CONTROL = "control"


def daily(
    rows: int = 900, days: int = 3, *, control: float = 0.3, seed: int = 0, actions: int = 4
) -> dict[str, Any]:
    """Return columns of a log: a new policy each day, with or without control traffic."""
    rng = np.random.default_rng(seed)
    day = np.sort(rng.integers(0, days, rows))
    labels = np.array([f"v{d}" for d in range(days)])
    logger = np.where(rng.random(rows) < control, CONTROL, labels[day])
    policies = {i: rng.dirichlet(np.full(actions, 2.0)) for i in (CONTROL, *labels)}
    policies = {i: p for i, p in policies.items() if i in logger}
    action = np.array([rng.choice(actions, p=policies[i]) for i in logger])
    target = rng.dirichlet(np.full(actions, 2.0))
    reward = (rng.random(rows) < (action + 1) / (actions + 2)).astype(float)
    return {
        "day": day,
        "logger": logger,
        "reward": reward,
        "t": target[action],
        "p": np.array([policies[i][a] for i, a in zip(logger, action, strict=True)]),
        **{f"p_{i}": probs[action] for i, probs in policies.items()},
    }


def daily_log(columns: dict[str, Any], **roles: Any) -> Log:  # noqa: ANN401 - of `Log`
    """Return the log of such columns, with propensities under every logger."""
    labels = sorted({str(i) for i in columns["logger"]})
    given = {
        "logger": "logger",
        "reward": "reward",
        "propensities": {i: f"p_{i}" for i in labels},
        "period": "day",
    }
    return Log(pa.table(columns), **(given | roles))


def with_holes(columns: dict[str, Any], holes: Iterable[tuple[int, str]] = ()) -> pa.Table:
    """Return the columns without the probabilities of policies of other days, and others."""
    day, arrays = columns["day"], {}
    for name, values in columns.items():
        lone = name.startswith("p_v")
        mask = day != int(name[3:]) if lone else np.zeros(len(day), dtype=bool)
        for d, label in holes:
            mask = mask | ((day == d) & (name == f"p_{label}"))
        arrays[name] = pa.array(values, mask=mask)
    return pa.table(arrays)


def period_mixture(columns: dict[str, Any]) -> FloatArray:
    """Return the mixture of the loggers of each row's day at the logged action, shape (n,)."""
    day, logger = columns["day"], columns["logger"]
    mixture = np.zeros(len(day))
    for d in np.unique(day):
        rows = day == d
        for i in np.unique(logger[rows]):
            mixture[rows] += np.mean(logger[rows] == i) * columns[f"p_{i}"][rows]
    return mixture


def daily_unplayed() -> dict[str, Any]:
    """Return a log whose last policy never plays one of the target's actions."""
    columns = daily(control=0.0)
    action = np.unique(columns["t"], return_inverse=True)[1]
    columns["p_v2"] = np.where(action == 3, 0.0, columns["p_v2"])
    kept = ~((columns["day"] == 2) & (action == 3))
    return {name: values[kept] for name, values in columns.items()}


def daily_changed() -> dict[str, Any]:
    """Return a log whose rewards are higher in its second half."""
    columns = daily(3_000, days=6)
    return columns | {"reward": columns["reward"] + 0.3 * (columns["day"] >= 3)}
