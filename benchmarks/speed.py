"""Speed and memory of `evaluate`, as ratios to decoding the same columns in the same run.

Each measurement is a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq

import poolwise as pw
from benchmarks.data import log_file

REPEATS = 3  # the best of three: other programs only ever make it slower


def decode(path: Path) -> None:
    """Read every column with pyarrow, row groups in two threads: the limit."""
    groups = pq.ParquetFile(path).num_row_groups

    def read(first: int) -> None:
        file = pq.ParquetFile(path)
        for group in range(first, groups, 2):
            file.read_row_group(group, use_threads=False)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, range(2)))


def evaluate(path: Path) -> None:
    """Evaluate every target with all defaults."""
    names = pq.read_schema(path).names
    log = pw.Log(
        path,
        logger="logger",
        reward="reward",
        propensity="p",
        propensities={f"v{n[2:]}": n for n in names if n.startswith("p_")},
    )
    pw.evaluate(log, {n: n for n in names if n.startswith("t_")})


WORK = {"decode": decode, "evaluate": evaluate}


def measured(what: str, path: Path) -> dict[str, float]:
    """Seconds and peak megabytes of one kind of work, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed", what, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """The child: warm up on a little, then time the work."""
    what, path = sys.argv[1], Path(sys.argv[2])
    WORK[what](log_file(10_000))  # imports and first-use costs are not the subject
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        WORK[what](path)
        best = min(best, time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": best, "megabytes": peak}))


if __name__ == "__main__":
    main()
