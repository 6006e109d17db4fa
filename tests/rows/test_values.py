"""Arrays and Series with one probability per row of a frame are policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.errors import LogError, PolicyError, UsageError
from poolwise.log.log import Log
from tests.support.messages import refused
from tests.support.reference import assert_same

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(4)
ROWS = 200
COLUMNS = {
    "logger": RNG.choice(["v1", "v2"], ROWS),
    "click": RNG.integers(0, 2, ROWS),
    "item": RNG.integers(0, 3, ROWS),
    **{name: RNG.uniform(0.2, 0.8, ROWS) for name in ("p_v1", "p_v2", "t")},
}
FLAT = pa.table(COLUMNS)
BARE = FLAT.drop_columns(["p_v2", "t"])
ROLES: dict[str, Any] = {"reward": "click", "logger": "logger", "action": "item"}
CROSSED = {"v1": "p_v1", "v2": "p_v2"}
EXPECTED = pw.evaluate(Log(FLAT, **ROLES, propensities=CROSSED), {"new": "t"})
FRAMES = {"arrow": BARE, "pandas": BARE.to_pandas(), "polars": pl.from_arrow(BARE)}
MAKERS = {
    "numpy": np.asarray,
    "pandas": pd.Series,
    "polars": pl.Series,
    "arrow": pa.array,
    "list": lambda values: values.tolist(),
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("make", MAKERS)
def test_arrays_are_columns(frame: str, make: str) -> None:
    values = {name: MAKERS[make](COLUMNS[name]) for name in ("p_v2", "t")}
    log = Log(FRAMES[frame], **ROLES, propensities={"v1": "p_v1", "v2": values["p_v2"]})
    assert_same(pw.evaluate(log, {"new": values["t"]}), EXPECTED, rel=1e-12)


def test_other_verbs_take_arrays(tmp_path: Path) -> None:
    log = Log(FLAT, **ROLES, propensities=CROSSED)
    new, table = COLUMNS["t"], {"table": {0: 0.5, 1: 0.25, 2: 0.25}}
    assert str(pw.compare(log, {"new": new, "one": "p_v1"})) == str(
        pw.compare(log, {"new": "t", "one": "p_v1"})
    )
    assert pw.check(log, {"new": new}).faults == ()
    summaries = [pw.summarise(log, {"new": policy}) for policy in (new, "t")]
    assert str(summaries[0].moments) == str(summaries[1].moments)
    scored = pw.score_log(log, {"new": new, **table}, tmp_path / "scored.parquet")
    assert_same(pw.evaluate(*scored), pw.evaluate(log, {"new": "t", **table}), rel=1e-12)
    given = Log(BARE, **ROLES, propensities={"v1": "p_v1", "v2": COLUMNS["p_v2"]})
    learned = [
        pw.learn(each, features=["p_v1"], folds=2, strengths=[0.1]).estimate.value
        for each in (given, log)
    ]
    assert learned[0] == pytest.approx(learned[1], rel=1e-9)


def test_bad_arrays_are_one_message(tmp_path: Path) -> None:
    log, rows = Log(FLAT, **ROLES, propensities=CROSSED), FLAT.to_pandas()
    with refused(UsageError):
        pw.evaluate(log, {"new": COLUMNS["t"][:-1]})
    with refused(UsageError):
        pw.evaluate(log, {"new": np.ones((ROWS, 3)) / 3})
    with refused(UsageError):
        pw.evaluate(log, {"new": ["a"] * ROWS})
    with refused(UsageError):
        shuffled = pd.Series(COLUMNS["t"]).sample(frac=1, random_state=1)
        pw.evaluate(Log(rows, **ROLES, propensities=CROSSED), {"new": shuffled})
    with refused(LogError):
        pw.evaluate(log, {"new": 2 * COLUMNS["t"]})
    rows.to_parquet(tmp_path / "log.parquet")
    with refused(UsageError):
        files = Log(tmp_path / "log.parquet", **ROLES, propensities=CROSSED)
        pw.evaluate(files, {"new": COLUMNS["t"]})
    mixed: Any = [COLUMNS["t"], "p_v1"]
    with refused(PolicyError):
        pw.evaluate(log, {"new": pw.Mixture(mixed, [0.5, 0.5])})
