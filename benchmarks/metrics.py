"""Metrics: do ratios and relative differences hold their level, and what do metrics cost?

Logs are drawn from a small problem whose ratios are finite sums. Ratios divide by clicks, of
which the target has fewer and fewer; relative differences divide by the value of the largest
logger. In logs without a difference (A/A), all targets earn the same: five metrics of four
targets show how often a metric calls any target better or worse.

Run: python -m benchmarks.metrics [logs of each size, 400] [logs without a difference, 500]
     [million rows, 10]
Writes docs/figures/metrics.csv and the tables of docs/metrics.md. Without rows, only the first
two tables are computed.
"""

from __future__ import annotations

import csv
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import poolwise as pw
from benchmarks.kept import DOCS, markdown, write_csv, write_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.types import FloatArray

LOGS, SAME, MILLIONS = 400, 500, 10
CLICKS = (5, 10, 20, 50, 200)  # expected clicks of the log
ROWS = 2_000  # of a log without a difference
PAGE, MARKER, RESULTS = DOCS / "metrics.md", "metrics", DOCS / "figures" / "metrics.csv"
HEADERS: Mapping[str, Mapping[str, str]] = {
    "coverage": {
        "clicks": "expected clicks",
        "logs": "logs",
        "ratio": "ratio covered, %",
        "below": "interval below, %",
        "above": "interval above, %",
        "refused": "refused, %",
        "relative": "relative difference covered, %",
        "unrelated": "refused, %",
    },
    "same": {"metric": "metric", "logs": "logs", "shown": "better or worse shown, %"},
    "speed": {
        "metrics": "metrics",
        "million rows": "million rows",
        "seconds": "seconds",
        "times one": "times one metric",
        "MB": "MB",
    },
}
POLICIES = {"v1": [0.7, 0.2, 0.1], "v2": [0.3, 0.5, 0.2]}
TARGET = np.array([[0.2, 0.3, 0.5], [0.3, 0.4, 0.3]])
RATES = np.array([[0.5, 1.0, 1.5], [1.0, 0.5, 2.0]])  # of clicks, relative to the mean
PAID = np.array([[4.0, 5.0, 6.0], [5.0, 7.0, 4.0]])  # mean amount of a click
METRICS = {
    "revenue": "amount",
    "rpc": "amount per click",
    "latency": pw.Metric("ms", better="lower"),
    "long": pw.Metric("late", per="click", better="lower"),
}
TARGETS = ("t", "u", "w", "z")
Row = dict[str, Any]


def draw(rng: np.random.Generator, rows: int, rate: FloatArray, paid: FloatArray) -> pa.Table:
    """Draw the rows of two loggers: clicks at a rate by context and action, and amounts."""
    logger = rng.choice([*POLICIES], rows, p=[0.6, 0.4])
    own = np.array([POLICIES[label] for label in logger])
    x = rng.integers(0, 2, rows)
    action = (rng.random(rows)[:, None] > own.cumsum(axis=1)).sum(axis=1)
    click = (rng.random(rows) < rate[x, action]).astype(float)
    ms = rng.exponential(100.0, rows)
    mixes = {"t": TARGET, "u": TARGET[::-1], "w": TARGET[:, ::-1], "z": np.full((2, 3), 1 / 3)}
    return pa.table(
        {
            "logger": logger,
            **{f"p_{name}": np.array(policy)[action] for name, policy in POLICIES.items()},
            **{name: policy[x, action] for name, policy in mixes.items()},
            "click": click,
            "amount": click * rng.gamma(2.0, paid[x, action] / 2),
            "ms": ms,
            "late": (ms > 200).astype(float),
        }
    )


def evaluate(
    table: pa.Table,
    targets: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - those of `evaluate`
) -> pw.Evaluation:
    """Evaluate targets by calibrated, against the larger logger."""
    log = pw.Log(table, logger="logger", reward="click", propensities="p_{logger}")
    named = {name: name for name in targets}
    return pw.evaluate(log, named, "calibrated", backtest=False, baseline="v1", **options)


def truths(rate: FloatArray) -> tuple[float, float]:
    """Return the true revenue per click of the target, and the true relative clicks."""
    clicks, amounts = (TARGET * rate).sum(), (TARGET * rate * PAID).sum()
    return float(amounts / clicks), float(clicks / (np.array(POLICIES["v1"]) * rate).sum() - 1)


def measure_coverage(clicks: int, logs: int) -> Row:
    """Return how often the intervals of one size of logs cover the truth."""
    rows = 1_000
    rate = RATES * (clicks / rows / (RATES / 6).sum())
    ratio, relative = truths(rate)
    counts = dict.fromkeys(("ratio", "below", "above", "refused", "relative", "unrelated"), 0)
    for seed in range(logs):
        table = draw(np.random.default_rng([clicks, seed]), rows, rate, PAID)
        found = evaluate(table, ("t",), metrics={"rpc": METRICS["rpc"]})
        result = found.metrics["rpc"]["t"]
        if result.estimates:
            interval = result.intervals["calibrated"]
            counts["ratio"] += ratio in interval
            counts["below"] += interval.upper < ratio
            counts["above"] += interval.lower > ratio
        else:
            counts["refused"] += 1
        known = found.differences["t"].relative if "t" in found.differences else None
        counts["relative"] += known is not None and relative in known.interval
        counts["unrelated"] += known is None
    given, related = logs - counts["refused"], logs - counts["unrelated"]
    return {
        "kind": "coverage",
        "clicks": clicks,
        "logs": logs,
        **{k: counts[k] / given for k in ("ratio", "below", "above") if given},
        "refused": counts["refused"] / logs,
        "relative": counts["relative"] / max(related, 1),
        "unrelated": counts["unrelated"] / logs,
    }


def measure_same(logs: int) -> list[Row]:
    """Return how often a metric shows a difference of any of four targets, where all are equal.

    The last line shows any primary as better, adjusted for targets and metrics (Bonferroni).
    """
    rate, paid = np.full((2, 3), 0.1), np.full((2, 3), 5.0)
    shown: dict[str, int] = {}
    any_better = 0
    for seed in range(logs):
        table = draw(np.random.default_rng([7, seed]), ROWS, rate, paid)
        found = evaluate(table, TARGETS, metrics=METRICS)
        for name, own in found.metrics.items():
            verdicts = {d.verdict for d in own.differences.values()}
            shown[name] = shown.get(name, 0) + bool(verdicts & {"better", "worse"})
        differences = (d for e in found.metrics.values() for d in e.differences.values())
        adjusted = [d.adjusted for d in differences if d.verdict == "better"]
        any_better += min(adjusted, default=1.0) < 0.05 / len(found.metrics)
    shown["any better, adjusted for metrics"] = any_better
    named = {"kind": "same", "logs": logs}
    return [{**named, "metric": name, "shown": n / logs} for name, n in shown.items()]


def write_rows(path: Path, millions: int) -> None:
    """Write a file of so many million rows, with five metrics."""
    writer, rng = None, np.random.default_rng(1)
    for _ in range(millions):
        table = draw(rng, 1_000_000, np.full((2, 3), 0.1), PAID)
        table = table.append_column("extra", [rng.random(1_000_000)])
        writer = pq.ParquetWriter(path, table.schema) if writer is None else writer
        writer.write_table(table, row_group_size=500_000)
    if writer is not None:
        writer.close()


FOUR = {"revenue": "amount", "latency": "ms", "late": "late", "extra": "extra"}
EVERY = "click + 0 * (amount + ms + late + extra)"  # one reward that reads all columns
SPEED: Mapping[str, tuple[str, Mapping[str, str]]] = {  # reward of the log, and more metrics
    "one": ("click", {}),
    "one that reads as much as five": (EVERY, {}),
    "five": ("click", FOUR),
    "five and a ratio": ("click", {**FOUR, "rpc": "amount per click"}),
}


def run_once(path: str, kind: str) -> None:
    """Print the seconds and the peak of memory of one evaluation, in MB."""
    reward, metrics = SPEED[kind]
    log = pw.Log(path, logger="logger", reward=reward, propensities="p_{logger}")
    evaluate(draw(np.random.default_rng(0), 100, np.full((2, 3), 0.5), PAID), ("t",))  # imports
    start = time.perf_counter()
    pw.evaluate(log, {"t": "t"}, backtest=False, metrics=metrics)
    seconds = time.perf_counter() - start
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure_speed(millions: int, rounds: int = 5) -> list[Row]:
    """Return time and memory of one metric and of five, in turns."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write_rows(path, millions)
        found: Mapping[str, list[tuple[float, float]]] = {kind: [] for kind in SPEED}
        for _ in range(rounds):
            for kind, runs in found.items():
                command = [sys.executable, "-m", "benchmarks.metrics", "once", str(path), kind]
                run = subprocess.run(  # noqa: S603 - this script
                    command, capture_output=True, check=True, text=True
                )
                seconds, memory = map(float, run.stdout.split())
                runs.append((seconds, memory))
    one = found["one"]
    return [
        {
            "kind": "speed",
            "metrics": kind,
            "million rows": millions,
            "seconds": min(s for s, _ in runs),
            "times one": float(
                np.median([s / t for (s, _), (t, _) in zip(runs, one, strict=True)])
            ),
            "MB": max(m for _, m in runs),
        }
        for kind, runs in found.items()
    ]


def add_results(rows: list[Row]) -> list[Row]:
    """Add measurements to the file; new ones replace old ones of the same kind."""
    kept = read_results()
    kinds = {row["kind"] for row in rows}
    every = [*(row for row in kept if row["kind"] not in kinds), *rows]
    names = list(dict.fromkeys(name for row in every for name in row))
    lines = [[_text(row.get(name, "")) for name in names] for row in every]
    write_csv(RESULTS, names, lines)
    return read_results()


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_results(path: Path = RESULTS) -> list[Row]:
    """Read the stored measurements."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: v for k, v in row.items() if v != ""} for row in csv.DictReader(file)]


def tables(rows: list[Row]) -> str:
    """Return the tables of the page."""
    parts = []
    for kind, header in HEADERS.items():
        own = [row for row in rows if row["kind"] == kind]
        lines = [[_cell(name, row.get(name, "")) for name in header] for row in own]
        if lines:
            parts.append(markdown(list(header.values()), lines))
    return "\n\n".join(parts)


def _cell(name: str, value: str) -> str:
    if value == "":  # no log has such a number
        return "–"
    shares = {"ratio", "below", "above", "refused", "relative", "unrelated", "shown"}
    return f"{100 * float(value):.1f}" if name in shares else value


def main(logs: int = LOGS, same: int = SAME, millions: int = MILLIONS) -> None:
    """Measure what has a size, and write the tables."""
    if logs:
        rows = [measure_coverage(clicks, logs) for clicks in CLICKS]
        write_part(PAGE, MARKER, tables(add_results(rows)))
    if same:
        write_part(PAGE, MARKER, tables(add_results(measure_same(same))))
    if millions:
        write_part(PAGE, MARKER, tables(add_results(measure_speed(millions))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["once"]:
        run_once(*sys.argv[2:4])
    else:
        main(*map(int, sys.argv[1:]))
