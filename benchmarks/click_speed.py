"""Speed and memory of click logs, as multiples of decoding the same file.

Run: python -m benchmarks.click_speed [shown items, 1e7]

A child process decodes a file of lists of ten items by three rankers in two threads, and takes
`click_log` and `evaluate` of one target, in turn; it keeps the best time of each.  A second
child does the same with a tenth of the items, since its memory should be nearly as large.
Results are printed; the exit status is 1 if memory grows by more than half.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks import data
from benchmarks.clicks import World
from benchmarks.kept import ROOT
from benchmarks.shapes import decode
from benchmarks.speed import peak_megabytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

ITEMS = 10**7
REPEATS = 3
CHUNK = 50_000  # requests of one table
GROWTH = 1.5
ROLES: dict[str, Any] = {
    "request": "request",
    "position": "position",
    "click": "click",
    "logger": "ranker",
    "ranks": "rank_{logger}",
}


def tables(requests: int) -> Iterator[pa.Table]:
    """Yield rows of three rankers in random order of requests."""
    for first in range(0, requests, CHUNK):
        number = min(CHUNK, requests - first)
        world = World((number - number // 2, number // 3, number // 2 - number // 3))
        table = world.table(first)
        order = np.random.default_rng(first).permutation(number)
        request = pa.array(first + order[table["request"].to_numpy()])
        yield table.set_column(0, "request", request).drop_columns(["user"])


def log_file(items: int) -> Path:
    """Return the file of a log, written on first use."""
    return data.written(data.FOLDER / f"clicks_{items}.parquet", tables(items // 10))


def measure_here(items: int) -> dict[str, float]:
    """Measure decoding, and the whole evaluation, in turn."""
    import poolwise as pw

    path = log_file(items)
    times: dict[str, list[float]] = {"decode": [], "evaluate": []}
    for _ in range(REPEATS):
        start = time.perf_counter()
        decode([path])
        middle = time.perf_counter()
        pw.evaluate(*pw.click_log(str(path), {"new": "rank_new"}, **ROLES))
        times["decode"].append(middle - start)
        times["evaluate"].append(time.perf_counter() - middle)
    best = {name: min(each) for name, each in times.items()}
    return best | {"megabytes": peak_megabytes("evaluate")}


def measured(items: int) -> dict[str, float]:
    """Measure in a new process."""
    log_file(items)
    words = [sys.executable, "-m", "benchmarks.click_speed", str(items), "--here"]
    done = subprocess.run(words, check=True, cwd=ROOT, stdout=subprocess.PIPE)  # noqa: S603
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


def main(arguments: Sequence[str]) -> int:
    """Measure both sizes."""
    items = int(float(arguments[0])) if arguments else ITEMS
    if "--here" in arguments:
        print(json.dumps(measure_here(items)))
        return 0
    tenth, whole = measured(items // 10), measured(items)
    growth = whole["megabytes"] / tenth["megabytes"]
    for size, found in ((items // 10, tenth), (items, whole)):
        ratio = found["evaluate"] / found["decode"]
        print(
            f"{size:>12,} items  decoding {found['decode']:.2f} s  evaluate "
            f"{found['evaluate']:.2f} s ({ratio:.2f})  {found['megabytes']:,.0f} MB"
        )
    return 0 if growth <= GROWTH else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
