"""More loggers than calibrated gives a column each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise import Log, compare, evaluate
from poolwise.estimators.calibrated import MOST_COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def _table(loggers: int, rows: int) -> tuple[pa.Table, NDArray[np.float64]]:
    """A log of many loggers, and every logger's probability of each row."""
    rng = np.random.default_rng(500)
    labels = [f"v{k}" for k in range(loggers)]
    place = np.repeat(np.arange(loggers), rows)
    probs = rng.uniform(0.2, 0.9, (len(place), loggers))
    table = pa.table(
        {
            "logger": [labels[k] for k in place],
            "reward": rng.normal(1, 1, len(place)),
            "p": probs[np.arange(len(place)), place],
            "t": rng.uniform(0.2, 0.9, len(place)),
            **{f"p_{label}": probs[:, k] for k, label in enumerate(labels)},
        }
    )
    return table, probs


def _log(source: object, loggers: int) -> Log:
    crossed = {f"v{k}": f"p_v{k}" for k in range(loggers)}
    return Log(source, reward="reward", logger="logger", propensity="p", propensities=crossed)


def test_five_hundred_loggers_have_their_answer(tmp_path: Path) -> None:
    table, probs = _table(500, rows=2)
    path = tmp_path / "log.parquet"
    pq.write_table(table, path)
    found = evaluate(_log(str(path), 500), {"new": "t"})
    estimates = found["new"].estimates
    reward, own, target = (table[name].to_numpy() for name in ("reward", "p", "t"))
    naive = math.fsum(target / own * reward) / len(reward)
    # loggers of equal size: the mixture is the plain mean of their probabilities
    mixture = np.array([math.fsum(row) / 500 for row in probs])
    balanced = math.fsum(target / mixture * reward) / len(reward)
    normalised = math.fsum(target / mixture * reward) / math.fsum(target / mixture)
    assert estimates["naive"].value == pytest.approx(naive, rel=1e-12)
    assert estimates["balanced"].value == pytest.approx(balanced, rel=1e-12)
    assert estimates["self-normalised"].value == pytest.approx(normalised, rel=1e-12)
    assert "many-loggers" in {warning["code"] for warning in found.warnings}
    assert len(found.rows) == 500


@pytest.mark.parametrize("extra", [0, 1])
def test_the_columns_go_where_they_would_cost_too_much(extra: int) -> None:
    loggers = MOST_COLUMNS + extra
    table, _ = _table(loggers, rows=20)
    found = evaluate(_log(table, loggers), {"new": "t"}, "calibrated", which_logs=False)
    codes = {warning["code"] for warning in found.warnings}
    assert ("many-loggers" in codes) == bool(extra)
    assert math.isfinite(found["new"].estimates["calibrated"].std_error)


def test_calibrated_without_the_loggers_columns_is_regressed_on_the_target() -> None:
    """Within loggers: slope and value by hand, from the rows."""
    loggers = MOST_COLUMNS + 1
    table, probs = _table(loggers, rows=20)
    found = evaluate(_log(table, loggers), {"new": "t"}, "calibrated", which_logs=False)
    weight = table["t"].to_numpy() / probs.mean(axis=1)
    outcome = weight * table["reward"].to_numpy()
    within = [
        part - part.mean(axis=1, keepdims=True)
        for part in (weight.reshape(loggers, 20), outcome.reshape(loggers, 20))
    ]
    slope = float((within[0] * within[1]).sum() / (within[0] ** 2).sum())
    value = outcome.mean() - slope * (weight.mean() - 1)
    assert found["new"].estimates["calibrated"].value == pytest.approx(value, rel=1e-9)


def test_many_loggers_can_be_compared() -> None:
    loggers = MOST_COLUMNS + 1
    table, _ = _table(loggers, rows=10)
    found = compare(_log(table, loggers), {"new": "t", "old": "p_v0"})
    assert "nan" not in found.to_json().lower()
