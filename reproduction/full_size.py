"""The size of LYRL in the paper: 781,265 inputs x 16 outputs, all 56 cells, exactly.

The documents are synthetic.  Prints the seconds and the peak memory of the enumeration.

    python -m reproduction.full_size --out DIR
"""

from __future__ import annotations

import resource
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from reproduction.datasets import lyrl_shaped
from reproduction.figures import write_csv
from reproduction.panels import FRACTIONS, build_problem, panel
from reproduction.run import OUT


def main() -> None:
    """Enumerate every cell and write the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    start = time.perf_counter()
    data = lyrl_shaped()
    build_problem(data, FRACTIONS[0])  # trains the policies that all cells share
    trained = time.perf_counter()
    rows = [row for f in FRACTIONS for row in panel(build_problem(data, f), f)]
    done = time.perf_counter()
    write_csv(out / "full_size.csv", rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gigabytes = peak / (1e9 if sys.platform == "darwin" else 1e6)  # bytes there, KiB elsewhere
    print(f"{len(rows)} cells of {data.test.contexts.shape[0]:,} x 16")
    print(f"{trained - start:.1f} s to make and train, {done - trained:.1f} s to enumerate")
    print(f"{gigabytes:.2f} GB at most")


if __name__ == "__main__":
    main()
