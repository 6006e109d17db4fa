"""Speed and memory of one kind of work on one file.

Each measurement runs in its own process, so that peak memory is measured separately.
"""

from __future__ import annotations

import json
import math
import re
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import learners, policies, rivals
from benchmarks.data import loggers_of, targets_of
from benchmarks.kept import ROOT, Measurement

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS, MOST_REPEATS = 3, 15  # the best of them: other programs can only make it slower
LITTLE = 5  # seconds that short work is repeated for
PATIENCE = 30  # seconds after which a measurement is not repeated
BLOCK = 2**24  # bytes of a file that are read at once
LONGEST = 300  # seconds: timeout of a measurement; those of the grid take a tenth of it
WARM = 10_000  # rows of a first run, which excludes imports and first-use costs


def decode(path: Path) -> None:
    """Read every column with pyarrow, row groups in two threads: the limit."""
    import pyarrow.parquet as pq

    groups = pq.ParquetFile(path).num_row_groups

    def read(first: int) -> None:
        file = pq.ParquetFile(path)
        for group in range(first, groups, 2):
            file.read_row_group(group, use_threads=False)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, range(2)))


def evaluate(path: Path, rows: object = None) -> None:
    """Evaluate every target with all defaults."""
    import poolwise as pw

    log = pw.Log(
        path if rows is None else rows,
        logger="logger",
        reward="reward",
        propensity="p",
        propensities=loggers_of(path),
    )
    pw.evaluate(log, {name: name for name in targets_of(path)})


def in_memory(path: Path) -> Callable[[], None]:
    """Evaluate the same rows in memory, as an Arrow table."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return partial(evaluate, path, table)


def obp_in_memory(path: Path) -> Callable[[], object]:
    """Compute Open Bandit Pipeline's formulas on rows in memory, as it requires."""
    import pandas as pd

    return partial(rivals.obp_in_memory, path, pd.read_parquet(path))


def command(path: Path) -> None:
    """Evaluate by the command line, including its start."""
    listed = ",".join(f"{name}={column}" for name, column in loggers_of(path).items())
    targets = [word for t in targets_of(path) for word in ("--target", f"{t}={t}")]
    roles = ["--logger", "logger", "--reward", "reward", "--propensity", "p"]
    program = Path(sys.executable).with_name("poolwise")
    words = [str(program), "evaluate", str(path), *roles, "--propensities", listed, *targets]
    quiet = subprocess.DEVNULL
    subprocess.run(words, check=True, stdout=quiet, timeout=LONGEST)  # noqa: S603 - our own


# kinds of work: each function prepares and returns the work to be timed
WORK: dict[str, Callable[[Path], Callable[[], object]]] = {
    "decode": lambda path: partial(decode, path),
    "evaluate": lambda path: partial(evaluate, path),
    "command": lambda path: partial(command, path),
    "duckdb": lambda path: partial(rivals.duckdb_balanced, path),
    "numpy": lambda path: partial(rivals.numpy_five, path),
    "numpy-three": lambda path: partial(rivals.numpy_pandas, path),
    "obp": lambda path: partial(rivals.obp_bootstrap, path),
    "memory": in_memory,
    "obp-memory": obp_in_memory,
    "predict": policies.predict,
    "predict-plain": policies.predict_plain,
    "score": policies.score,
    "policies": policies.evaluate,
    "policies-memory": policies.evaluate_table,
    "learn": learners.learn,
}


def measured(what: str, path: Path, warm: Path) -> Measurement:
    """Measure seconds and peak megabytes of one kind of work, in its own process.

    Both are infinite after a timeout.
    """
    _keep_in_memory(path)
    words = [sys.executable, "-m", "benchmarks.speed", what, str(path), str(warm)]
    try:
        done = subprocess.run(  # noqa: S603 - our own
            words, check=True, cwd=ROOT, stdout=subprocess.PIPE, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return Measurement(math.inf, math.inf)
    return Measurement(**json.loads(done.stdout))


def _keep_in_memory(path: Path) -> None:
    """Read a file once, so that the first measurement does not wait for the disk."""
    with path.open("rb", buffering=0) as file:
        while file.read(BLOCK):
            pass


def peak_megabytes(what: str) -> float:
    """Return the peak memory of this process, or of the program that it started."""
    if what == "command":
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    try:  # unlike ru_maxrss, this excludes the parent's memory at the fork
        status = Path("/proc/self/status").read_text("utf-8")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found.group(1)) / 1024 if found else 0.0


def _again(times: list[float]) -> bool:
    """Test if the work should be measured once more."""
    if len(times) < REPEATS:
        return sum(times) < PATIENCE
    return len(times) < MOST_REPEATS and sum(times) < LITTLE


def main() -> None:
    """Run in the child process: warm up on a few rows, then time the work."""
    what, path, warm = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    WORK[what](warm)()
    work = WORK[what](path)
    times: list[float] = []
    while _again(times):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    print(json.dumps({"seconds": min(times), "megabytes": peak_megabytes(what)}))


if __name__ == "__main__":
    main()
