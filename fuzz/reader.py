"""Fuzz the reader of logs: any bytes as a file, any values in its columns."""

from __future__ import annotations

import math
import struct
import tempfile
from pathlib import Path

import harness

harness.instrument(
    "poolwise.engines.kernel",
    "poolwise.engines.sums",
    "poolwise.engines.workspace",
    "poolwise.rows.reader",
    "poolwise.engines.duckdb",
    "poolwise.rows.sources",
    "poolwise.estimators.calibrated",
    "poolwise.estimators.ips",
    "poolwise.diagnosis.agreement",
    "poolwise.evaluation.evaluate",
    "poolwise.evaluation.target",
)

import atheris
import pyarrow as pa
import pyarrow.parquet as pq

import poolwise as pw
from poolwise.engines.duckdb import DuckDB

FOLDER = Path(tempfile.mkdtemp(prefix="poolwise-fuzz-"))
ENGINE = DuckDB(threads=1)
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    0.5,
    1e-300,
    1e300,
    5e-324,
    -1.0,
    100.0,
    math.nan,
    math.inf,
    -math.inf,
    1 + 1e-15,
    1e-12,
    0.1,
    1 / 3,
)
NAMES = ("reward", "p", "p_a", "p_b", "t")


def _value(data: atheris.FuzzedDataProvider) -> float | None:
    kind = data.ConsumeIntInRange(0, 9)
    if kind == 0:
        return None
    if kind < 5:
        return SPECIAL[data.ConsumeIntInRange(0, len(SPECIAL) - 1)]
    if kind < 9:
        return float(data.ConsumeProbability())
    return float(struct.unpack("<d", data.ConsumeBytes(8).ljust(8, b"\0"))[0])


def _table(data: atheris.FuzzedDataProvider) -> pa.Table:
    rows = data.ConsumeIntInRange(1, 12)
    columns: dict[str, list[object]] = {
        "logger": ["ab"[data.ConsumeIntInRange(0, 1)] for _ in range(rows)]
    }
    bad = data.ConsumeIntInRange(0, 3) == 0
    for name in NAMES:
        columns[name] = [
            _value(data) if bad or name == "reward" else max(data.ConsumeProbability(), 1e-9)
            for _ in range(rows)
        ]
    if data.ConsumeBool():
        columns["p"] = [columns[f"p_{label}"][k] for k, label in enumerate(columns["logger"])]
    numbers = {n: pa.array(columns[n], type=pa.float64()) for n in NAMES}
    return pa.table({"logger": columns["logger"], **numbers})


def _source(data: atheris.FuzzedDataProvider) -> object:
    kind = data.ConsumeIntInRange(0, 5)
    if kind <= 1:
        return _table(data)
    if kind <= 3:
        path = FOLDER / "log.parquet"
        table = _table(data)
        pq.write_table(table, path, row_group_size=data.ConsumeIntInRange(1, 8))
        if kind == 3:  # a few bytes are replaced
            content = bytearray(path.read_bytes())
            for _ in range(data.ConsumeIntInRange(1, 4)):
                content[data.ConsumeIntInRange(0, len(content) - 1)] = data.ConsumeIntInRange(
                    0, 255
                )
            path.write_bytes(content)
        return str(path)
    path = FOLDER / ("log.csv" if kind == 4 else "log.json")
    head = b"logger,reward,p,p_a,p_b,t\n" if kind == 4 and data.ConsumeBool() else b""
    path.write_bytes(head + data.ConsumeBytes(2000))
    return str(path)


def one_input(content: bytes) -> None:
    """Evaluate one log."""
    data = atheris.FuzzedDataProvider(content)
    crossed = {"a": "p_a", "b": "p_b"} if data.ConsumeBool() else None
    try:
        log = pw.Log(
            _source(data),
            reward="reward",
            logger="logger",
            propensity="p" if crossed is None or data.ConsumeBool() else None,
            propensities=crossed,
            log_probabilities=data.ConsumeIntInRange(0, 5) == 0,
            on_fault="drop" if data.ConsumeIntInRange(0, 2) == 0 else "raise",
            reward_range=(0.0, 1.0) if data.ConsumeBool() else None,
        )
        found = pw.evaluate(log, {"new": "t"}, engine=ENGINE)
    except pw.PoolwiseError:
        return
    harness.check_answer(found)


if __name__ == "__main__":
    harness.run(one_input)
