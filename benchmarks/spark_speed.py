"""Speed on Spark: files and a table on ``local[2]``, as multiples of Spark's own reading.

Run: python -m benchmarks.spark_speed [--rows ROWS]

Reading is a query that reads every column and writes nothing (Spark's ``noop`` format).  Both
run in turn in one session, after a warm start, and the best time of each is kept.  With the
default number of rows the results are written to docs/figures/spark.csv and to docs/scale.md.
"""

from __future__ import annotations

import argparse
import csv
import time
from typing import TYPE_CHECKING, Any

import poolwise as pw
from benchmarks.data import log_file
from benchmarks.kept import DOCS, markdown, write_csv, write_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS, WARM, REPEATS, LOGGERS = 10**7, 10**4, 3, 5
TARGETS = (1, 10)
KEPT, MARKER = DOCS / "figures" / "spark.csv", "spark"
FIELDS = ("source", "rows", "targets", "read", "evaluate")
BEFORE = """\
Seconds of `evaluate` (5 loggers, all defaults) on `local[2]`, and of Spark's own reading of
all columns, which writes nothing; the best of three, in turn, in a warm session.
`python -m benchmarks.spark_speed` measures them."""


def log_of(source: str | Path, *, table: bool) -> pw.Log:
    """Return the log in a table of the session, or in a file."""
    roles: dict[str, Any] = {
        "logger": "logger",
        "reward": "reward",
        "propensity": "p",
        "propensities": {f"v{k}": f"p_{k}" for k in range(LOGGERS)},
    }
    return pw.Log(table=str(source), **roles) if table else pw.Log(str(source), **roles)


def works(
    session: SparkSession, rows: int, targets: int, *, table: bool
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the two kinds of work: reading, and evaluating."""
    path = log_file(rows, targets=targets)
    frame = session.read.parquet(str(path))
    source = f"log_{rows}_{targets}" if table else path
    if table:
        frame.createOrReplaceTempView(str(source))
    log = log_of(source, table=table)
    wanted = {f"t_{k}": f"t_{k}" for k in range(targets)}
    return (
        lambda: frame.write.format("noop").mode("overwrite").save(),
        lambda: pw.evaluate(log, wanted, engine=session),
    )


def measured(session: SparkSession, rows: int, targets: int, *, table: bool) -> list[float]:
    """Return the best seconds of reading and of evaluating."""
    for work in works(session, WARM, targets, table=table):
        work()
    both = works(session, rows, targets, table=table)
    times: list[list[float]] = [[], []]
    for _ in range(REPEATS):
        for work, each in zip(both, times, strict=True):
            start = time.perf_counter()
            work()
            each.append(time.perf_counter() - start)
    return [min(each) for each in times]


def table_of(lines: Iterable[Mapping[str, str]]) -> str:
    """Return the measurements as Markdown."""
    cells = []
    for line in lines:
        read, evaluate = float(line["read"]), float(line["evaluate"])
        rows = f"{float(line['rows']):.0e}".replace("e+0", "e")
        cells.append(
            [
                line["source"],
                rows,
                line["targets"],
                f"{read:.1f}",
                f"{evaluate:.1f}",
                f"{evaluate / read:.1f}",
            ]
        )
    heads = ["source", "rows", "targets", "reading", "`evaluate`", "multiple"]
    return markdown(heads, cells)


def read_lines(path: Path = KEPT) -> list[dict[str, str]]:
    """Read the stored measurements."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Measure, print and, with the default number of rows, write."""
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=float, default=ROWS)
    rows = int(parser.parse_args().rows)
    builder: Any = SparkSession.builder
    session = builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    lines = []
    for name, table in (("files", False), ("table", True)):
        for targets in TARGETS:
            read, evaluate = measured(session, rows, targets, table=table)
            lines.append((name, rows, targets, f"{read:.4g}", f"{evaluate:.4g}"))
            print(f"{evaluate / read:6.2f}  {name}, {targets} targets", flush=True)
    session.stop()
    if rows == ROWS:
        write_csv(KEPT, FIELDS, lines)
        write_part(DOCS / "scale.md", MARKER, f"{BEFORE}\n\n{table_of(read_lines())}")


if __name__ == "__main__":
    main()
