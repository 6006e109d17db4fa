"""Print how long an evaluation takes beside the time of reading the file.

Run: make bench (or: python benchmarks/run.py [rows] [targets])
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.data import log_file
from benchmarks.speed import measured


def main() -> None:
    """Measure decoding and evaluation in one run and print both with their ratio."""
    rows = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000
    targets = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    path = log_file(rows, targets=targets)
    limit, ours = measured("decode", path), measured("evaluate", path)
    print(f"{rows:,} rows, 5 loggers, {targets} target(s), zstd Parquet, two threads")
    print(f"{'decoding alone (pyarrow)':<28}{limit['seconds']:8.2f} s")
    print(f"{'evaluate, all defaults':<28}{ours['seconds']:8.2f} s")
    print(f"{'ratio':<28}{ours['seconds'] / limit['seconds']:8.2f}")
    print(f"{'peak memory of evaluate':<28}{ours['megabytes']:8.0f} MB")


if __name__ == "__main__":
    main()
