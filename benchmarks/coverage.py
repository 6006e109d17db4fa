"""Coverage against effective rows: where nominal 95% intervals cover 95% of the time.

Run: python -m benchmarks.coverage; prints a table and writes docs/figures/coverage.csv
"""

from __future__ import annotations

import csv
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.draws import cells_of, draw
from benchmarks.families import FAMILIES, draw_problem
from poolwise.estimators.calibrated import Calibrated
from poolwise.estimators.ips import Balanced
from poolwise.intervals.student import student
from poolwise.moments.moments import pooled
from poolwise.moments.terms import BALANCED_WEIGHT

if TYPE_CHECKING:
    from poolwise.moments.estimate import Estimator

OUT = Path(__file__).parent.parent / "docs" / "figures" / "coverage.csv"
LOGS = 1_500  # a standard error of 0.0056
SEEDS = range(1, 7)
ESTIMATORS: tuple[Estimator, ...] = (Balanced(), Calibrated())


def covered(family: str, rows: int, seed: int) -> dict[str, object]:
    """One problem: its effective rows, and the coverage of each estimator."""
    problem = draw_problem(FAMILIES[family], rows, np.random.default_rng(seed))
    loggers = tuple(problem.loggers)
    needs = reduce(or_, (e.needs(loggers, crossed=True) for e in ESTIMATORS))
    cells, rng = cells_of(problem, needs), np.random.default_rng(7)
    hits, effective = np.zeros(len(ESTIMATORS)), 0.0
    for _ in range(LOGS):
        moments = draw(cells, rng)
        effective += pooled(moments.values()).effective(BALANCED_WEIGHT) / LOGS
        hits += [problem.value in student(e.estimate(moments), 0.95) for e in ESTIMATORS]
    shares = {e.name: round(h / LOGS, 3) for e, h in zip(ESTIMATORS, hits, strict=True)}
    return {
        "family": family,
        "rows": rows,
        "seed": seed,
        "effective": round(effective),
        **shares,
    }


def main() -> None:
    """Print and write one line per problem, the fewest effective rows first."""
    found = [
        covered(family, rows, seed)
        for family in ("B mixed", "F floor")
        for rows in (300, 2000)
        for seed in SEEDS
    ]
    found.sort(key=lambda line: float(str(line["effective"])))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with OUT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    for line in found:
        print("  ".join(f"{value!s:>9}" for value in line.values()))


if __name__ == "__main__":
    main()
