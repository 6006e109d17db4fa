"""Logs to measure on: high-entropy doubles in zstd Parquet, made once and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).parent.parent / "build" / "bench"
CHUNK = 1_000_000
ROW_GROUP = 122_880  # DuckDB's own size


def log_file(rows: int, *, targets: int = 1, loggers: int = 5) -> Path:
    """A log of so many rows, written to build/bench unless it is there already."""
    path = FOLDER / f"log_{rows}_{targets}_{loggers}.parquet"
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    rng = np.random.default_rng(20170813)
    writer = None
    for start in range(0, rows, CHUNK):
        table = _chunk(min(CHUNK, rows - start), targets, loggers, rng)
        writer = writer or pq.ParquetWriter(beside, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=ROW_GROUP)
    if writer is not None:
        writer.close()
    beside.rename(path)
    return path


def _chunk(rows: int, targets: int, loggers: int, rng: np.random.Generator) -> pa.Table:
    """Two actions; each logger plays the first with some probability of its own making."""
    wrote = rng.integers(0, loggers, rows)
    first = rng.uniform(0.05, 0.95, (rows, loggers))
    aims = rng.uniform(0.05, 0.95, (rows, targets))
    action = rng.random(rows) < first[np.arange(rows), wrote]
    prob = np.where(action[:, None], first, 1 - first)
    aim = np.where(action[:, None], aims, 1 - aims)
    columns = {
        "logger": pa.array(np.array([f"v{k}" for k in range(loggers)])[wrote]),
        "reward": rng.normal(np.where(action, 1.0, 0.5), 1.0),
        "p": prob[np.arange(rows), wrote],
        **{f"p_{k}": prob[:, k] for k in range(loggers)},
        **{f"t_{k}": aim[:, k] for k in range(targets)},
    }
    return pa.table(columns)
