"""Checks: what the audit and the search for decisive rows add to `evaluate`.

Each part is replaced by one that does nothing, and the same log is evaluated again.  The ways
take turns, and the fastest run of each counts, because other programs only make a run slower.

Run: python -m benchmarks.checks [ROWS, 10000000] [TURNS, 5]
Prints the seconds of each way, relative to an evaluation without these parts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import poolwise as pw
from poolwise.evaluation import read
from poolwise.evaluation.decisive import Heavies

ROWS, TURNS = 10_000_000, 5
LOGGERS, ACTIONS, BATCH = 3, 20, 500_000
AUDIT = (read, "audit_rows", lambda *_: ())
DECISIVE = (read, "find_heavy", lambda *_, **__: Heavies())
WAYS = {
    "without": (AUDIT, DECISIVE),
    "decisive rows": (AUDIT,),
    "and the audit": (),
}


def write_log(path: Path, rows: int) -> pw.Log:
    """Write a log of softmax policies, a batch at a time."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(LOGGERS + 1, 100, ACTIONS))
    policies = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
    ends = policies.cumsum(axis=2)
    writer = None
    for first in range(0, rows, BATCH):
        count = min(BATCH, rows - first)
        logger, context = rng.integers(LOGGERS, size=count), rng.integers(100, size=count)
        action = (ends[logger, context] < rng.random(count)[:, None]).sum(axis=1)
        action = action.clip(max=ACTIONS - 1)
        known = {f"p_v{k}": policies[k, context, action] for k in range(LOGGERS)}
        columns = {"policy": np.array([f"v{k}" for k in range(LOGGERS)])[logger]}
        columns |= {"action": action, "r": rng.integers(2, size=count).astype(float), **known}
        table = pa.table({**columns, "t": policies[-1, context, action]})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return pw.Log(
        str(path), logger="policy", reward="r", action="action", propensities="p_{logger}"
    )


def time_ways(log: pw.Log, turns: int) -> dict[str, list[float]]:
    """Return the seconds of each way in each turn."""
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(turns):
        for name, parts in WAYS.items():
            with ExitStack() as stack:
                for module, function, instead in parts:
                    stack.enter_context(patch.object(module, function, instead))
                begun = time.perf_counter()
                pw.evaluate(log, {"t": "t"}, backtest=False)
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def main() -> None:
    """Write a log, and print the times."""
    given = [int(text) for text in sys.argv[1:]]
    rows, turns = (*given, *(ROWS, TURNS)[len(given) :])
    with tempfile.TemporaryDirectory() as folder:
        seconds = time_ways(write_log(Path(folder) / "log.parquet", rows), turns)
    least = min(seconds["without"])
    print(f"{rows:,} rows; fastest of {turns}, and the range of all turns")
    for name, times in seconds.items():
        print(
            f"{name:>14}: {min(times):.3f} s, {min(times) / least:.2f} of without "
            f"({min(times):.3f} to {max(times):.3f})"
        )


if __name__ == "__main__":
    main()
