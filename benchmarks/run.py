"""Measure speed and memory of poolwise and its rivals; write tables and a chart.

Run: make bench
or:  python benchmarks/run.py [--large] [--most ROWS]   the grid; writes into docs/
     python benchmarks/run.py --limits [--most ROWS]    all limits, those of shapes included;
                                                        exit status 1 if one fails
     python benchmarks/run.py ROWS [TARGETS [LOGGERS]]  one log; prints only
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import learners, limits, shapes
from benchmarks.arithmetic import write_arithmetic
from benchmarks.data import log_file
from benchmarks.kept import Key, Measurement, add_speed
from benchmarks.policies import LOGGERS, policy_file
from benchmarks.speed import WARM, measured
from benchmarks.speed_chart import write_chart, write_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST, LARGE = 10**7, limits.LARGE
# rows, targets, loggers: one of the three grows at a time, then rows and targets together
CELLS = (
    (10**5, 1, 5),
    (10**6, 1, 5),
    (10**7, 1, 5),
    (LARGE, 1, 5),
    (10**6, 10, 5),
    (10**6, 100, 5),
    (10**6, 1, 2),
    (10**6, 1, 20),
    (10**6, 1, 64),
    (10**7, 10, 5),
)
# on a log of their own
MODELS = ("predict", "predict-plain", "score", "policies", "policies-memory")
RIVALS = (
    "decode",
    "evaluate",
    "command",
    "duckdb",
    "numpy-three",
    "numpy",
    "obp",
)
LEARN = limits.LEARN  # on a log of its own
IN_MEMORY = ("memory", "obp-memory")
MOST_MEMORY, MOST_SECONDS = 8e9, 120  # a rival that would need more is left out
COPIES = 3  # copies of the columns that pandas and NumPy hold at once
DRAWS = 4e-6  # seconds of a row and target in 3 times 100 bootstrap rounds


def fits(key: Key) -> bool:
    """Test if a rival can do this within its limits of memory and time."""
    if key.what not in {"numpy", "numpy-three", "obp"}:
        return True
    memory = COPIES * 8 * key.rows * (3 + key.targets + key.loggers)
    seconds = DRAWS * key.rows * key.targets if key.what == "obp" else 0
    return memory <= MOST_MEMORY and seconds <= MOST_SECONDS


def grid(most: int) -> list[Key]:
    """Return all keys to measure, on logs of at most `most` rows."""
    keys = [Key(what, *cell) for cell in CELLS for what in RIVALS]
    keys += [Key(what, 10**6) for what in IN_MEMORY]
    keys += [*(Key(what, 10**6, 1, LOGGERS) for what in MODELS), LEARN, limits.LEARN_MORE]
    return [key for key in keys if key.rows <= most and fits(key)]


def measure(keys: Iterable[Key]) -> dict[Key, Measurement]:
    """Measure one key after the other, and record the size of each file."""
    found = {}
    for key in keys:
        _, rows, targets, loggers = key
        if key.what in MODELS:
            path, warm = policy_file(rows), policy_file(WARM)
        elif key.what == LEARN.what:
            path, warm = learners.learning_file(rows), learners.learning_file(WARM // 10)
        else:
            path = log_file(rows, targets=targets, loggers=loggers)
            warm = log_file(WARM)
            size = path.stat().st_size / 1e6
            found[key._replace(what="file")] = Measurement(0.0, size)
        found[key] = measured(key.what, path, warm)
        told = f"{found[key].seconds:9.3f} s {found[key].megabytes:8.0f} MB"
        print(f"{key.what:<10}{rows:>12,} rows {targets:>4} targets {loggers:>3} loggers{told}")
    return found


def print_limits(found: dict[Key, Measurement]) -> bool:
    """Print each limit and its verdict; return True if all hold."""
    lines, well = limits.report(found)
    print("\n" + "\n".join(lines))
    return well


def print_one(cell: Sequence[int]) -> None:
    """Measure one log: each rival, and the time of an evaluation relative to decoding."""
    keys = [key for key in (Key(what, *cell) for what in RIVALS) if fits(key)]
    found = measure(keys)
    limit, ours = found[keys[0]].seconds, found[keys[1]].seconds
    print(f"evaluate / decode: {ours / limit:.2f}")


def main() -> int:
    """Run the program; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cell", nargs="*", type=float, help="ROWS [TARGETS [LOGGERS]]")
    parser.add_argument("--large", action="store_true", help="also 1e8 rows (a file of 7.6 GB)")
    parser.add_argument("--most", type=float, help="leave larger logs out")
    parser.add_argument("--limits", action="store_true", help="judge only what must hold")
    asked = parser.parse_args()
    most = int(asked.most or (LARGE if asked.large or asked.limits else MOST))
    if asked.cell:
        print_one([int(number) for number in asked.cell])
        return 0
    if asked.limits:
        fast = shapes.measure_all() if most >= shapes.ROWS else True
        return 0 if print_limits(measure(limits.needed(most))) and fast else 1
    found = measure(grid(most))
    kept = add_speed(found)
    write_table(kept)
    write_chart(kept)
    write_arithmetic(kept)
    print_limits(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
