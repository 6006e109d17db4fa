"""Logs to measure on: high-entropy doubles in zstd Parquet, made once and kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = Path(__file__).parent.parent / "build" / "bench"
CHUNK = 1_000_000  # rows drawn at a time, or fewer if there are many columns
MANY = 20  # loggers and targets
ROW_GROUP = 122_880  # DuckDB's own size


def log_file(rows: int, *, targets: int = 1, loggers: int = 5) -> Path:
    """Return the path of a log in build/bench; write it on first use.

    Some 8 bytes for each row and column: 7.6 GB at 1e8 rows, 5 loggers and 1 target.
    """
    path = FOLDER / f"log_{rows}_{targets}_{loggers}.parquet"
    rng = np.random.default_rng(20170813)
    step = CHUNK if targets + loggers <= MANY else ROW_GROUP
    sizes = (min(step, rows - start) for start in range(0, rows, step))
    return written(path, (_chunk(size, targets, loggers, rng) for size in sizes))


def written(path: Path, tables: Iterable[pa.Table]) -> Path:
    """Write these tables to a file unless it exists; a partial file has another name."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    writer = None
    for table in tables:
        writer = writer or pq.ParquetWriter(partial, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=ROW_GROUP)
    if writer is not None:
        writer.close()
    partial.rename(path)
    return path


def _chunk(rows: int, targets: int, loggers: int, rng: np.random.Generator) -> pa.Table:
    """Draw rows of two actions; each logger has its own probability of the first."""
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


def loggers_of(path: Path) -> dict[str, str]:
    """Return the column of each logger's probability in a log file, by logger."""
    return {f"v{n[2:]}": n for n in pq.read_schema(path).names if n.startswith("p_")}


def targets_of(path: Path) -> list[str]:
    """Return the columns of the targets of a log file."""
    return [n for n in pq.read_schema(path).names if n.startswith("t_")]
