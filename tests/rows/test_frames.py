"""Frames of pandas and Polars: read as they are, with the numbers of an Arrow table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from poolwise.engines.duckdb import DuckDB
from poolwise.errors import LogError
from poolwise.evaluation.evaluate import evaluate
from poolwise.log.log import Log
from poolwise.rows.frames import OddLabelsError, coded_objects
from poolwise.rows.streams import plain_stream

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 600
ROLES: dict[str, Any] = {
    "reward": "reward",
    "logger": "logger",
    "propensities": {"a": "p_a", "bb": "p_b"},
    "cluster": "user",
}
Frame = Any  # of pandas or Polars


def table() -> pa.Table:
    rng = np.random.default_rng(3)
    probs = {name: rng.uniform(0.2, 0.8, ROWS) for name in ("p_a", "p_b", "t")}
    logger = np.where(rng.random(ROWS) < 0.4, "a", "bb")
    users = [f"user number {k // 3}" for k in range(ROWS)]
    return pa.table({"logger": logger, "reward": rng.random(ROWS), "user": users, **probs})


def numbers(source: Frame, *, plain: bool = True) -> dict[str, tuple[float, ...]]:
    """Values and limits of a frame; `plain` says if it is read without DuckDB."""
    log = Log(source, **ROLES)
    with DuckDB().open(log, {"t": "t"}) as rows:
        assert (plain_stream(rows.table, rows.source) is not None) == plain
    result = evaluate(log, {"t": "t"}, "balanced")["t"]
    intervals = result.intervals
    return {
        name: (e.value, e.std_error, intervals[name].lower, intervals[name].upper)
        for name, e in result.estimates.items()
    }


def of_pandas() -> Frame:
    pytest.importorskip("pandas")
    return table().to_pandas()


def _new_objects(frame: Frame) -> Frame:
    texts = np.array(["".join(list(text)) for text in frame["user"]], dtype=object)
    return frame.assign(user=texts)


def _as_block(frame: Frame) -> Frame:
    """Return numbers of one matrix, whose columns are not contiguous."""
    import pandas as pd

    names = ["reward", "p_a", "p_b", "t"]
    return pd.concat(
        [frame[["logger", "user"]], pd.DataFrame(frame[names].to_numpy(), columns=names)],
        axis=1,
    )


PANDAS: dict[str, tuple[Callable[[Frame], Frame], bool]] = {
    "objects": (lambda f: f, True),
    "objects of each row": (_new_objects, True),
    "category": (lambda f: f.astype({"logger": "category", "user": "category"}), True),
    "texts of Arrow": (lambda f: f.astype({"logger": "string[pyarrow]"}), True),
    "texts of Python": (lambda f: f.astype({"logger": "string[python]"}), False),
    "index": (lambda f: f.set_index(f.index[::-1]), True),
    "every other row twice": (lambda f: f.iloc[np.arange(2 * ROWS) // 2].iloc[::2], True),
    "matrix": (_as_block, True),
    "times": (lambda f: f.assign(x=np.array(["2024-01-01"] * ROWS, dtype="M8[ns]")), True),
    "masked": (lambda f: f.astype({"t": "Float64"}), False),
    "unused": (lambda f: f.assign(x=[{} for _ in range(ROWS)]), True),
}


@pytest.mark.parametrize("name", PANDAS)
def test_pandas(name: str) -> None:
    change, plain = PANDAS[name]
    frame = change(of_pandas())
    expected = numbers(table())
    for estimator, values in numbers(frame, plain=plain).items():
        assert values == pytest.approx(expected[estimator], rel=1e-12), estimator


def test_pandas_labels_that_are_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    arrow = table()
    codes = np.where(np.array(arrow["logger"].to_pylist()) == "a", 1, 2)
    roles = ROLES | {"propensities": {1: "p_a", "2": "p_b"}}
    frame = arrow.to_pandas().assign(logger=codes)
    objects = frame.assign(logger=pandas.Series(codes.tolist(), dtype=object))
    logs = [Log(arrow, **ROLES), Log(frame, **roles), Log(objects, **roles)]
    values = [
        evaluate(log, {"t": "t"}, "balanced")["t"].estimates["balanced"].value for log in logs
    ]
    assert values[1:] == pytest.approx(values[:1] * 2, rel=1e-12)


@pytest.mark.parametrize(
    ("column", "value"), [("logger", None), ("logger", float("nan")), ("reward", np.nan)]
)
def test_rows_of_pandas_that_break_a_rule(column: str, value: object) -> None:
    frame = of_pandas()
    frame.loc[7, column] = value
    arrow = pa.Table.from_pandas(frame)
    faults = []
    for source in (frame, arrow):
        with pytest.raises(LogError) as caught:
            evaluate(Log(source, **ROLES), {"t": "t"})
        faults.append([(f.rule, f.logger, f.rows) for f in caught.value.faults])
    assert faults[0] == faults[1]


@pytest.mark.parametrize("kind", ["String", "Categorical", "Enum"])
def test_polars(kind: str) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(table())
    dtype = polars.Enum(["bb", "a"]) if kind == "Enum" else getattr(polars, kind)
    frame = frame.with_columns(polars.col("logger").cast(dtype))
    parts = polars.concat([frame[:200], frame[200:]], rechunk=False)
    expected = numbers(table())
    for source in (frame, parts, parts.with_columns(x=polars.lit([1]))):
        for estimator, values in numbers(source).items():
            assert values == pytest.approx(expected[estimator], rel=1e-12), estimator


def test_texts_become_codes() -> None:
    few = np.array(["b", "a", "b", None], dtype=object)[np.arange(1_000) % 4]
    codes = coded_objects(few)
    assert codes.to_pylist() == few.tolist()
    assert len(codes.dictionary) == 2
    each = np.array([f"{k}x" for k in range(500)], dtype=object)
    assert coded_objects(each[::2]).to_pylist() == each[::2].tolist()


@pytest.mark.parametrize("odd", [1, 1.5, b"a", float("nan"), "\ud800"])
@pytest.mark.parametrize("rows", [2, 1_000])
def test_odd_labels_are_left_to_duckdb(odd: object, rows: int) -> None:
    labels = np.array(["a", odd], dtype=object)[np.arange(rows) % 2]
    with pytest.raises(OddLabelsError):
        coded_objects(labels)
