"""How often a decision ships a candidate that is not better, and one that is.

Five metrics of logs of two loggers: clicks, revenue, revenue per click, latency and costs below
0.  In A/A logs no metric depends on the action, so that all candidates are worth as much as the
baseline; in the others, the candidates play better actions more often.

Run: python -m benchmarks.decide [LOGS]
"""

from __future__ import annotations

import csv
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa

import poolwise as pw

OUT = Path(__file__).parent.parent / "docs" / "figures" / "decide.csv"
LOGS, ROWS, ACTIONS = 500, 4_000, 5
AA, BETTER = "A/A", "candidates are better"
LIFTS = {AA: 0.0, BETTER: 0.6}  # of the best action
ROLES = {
    "one primary": {
        "clicks": pw.Metric("click", primary=True),
        "revenue": pw.Metric("amount"),
        "rpc": pw.Metric("amount", per="click"),
        "latency": pw.Metric("ms", better="lower"),
        "cost": pw.Metric("cost"),
    },
    "one primary, four guardrails": {
        "clicks": pw.Metric("click", primary=True),
        "revenue": pw.Metric("amount", guard="20%"),
        "rpc": pw.Metric("amount", per="click", guard="20%"),
        "latency": pw.Metric("ms", better="lower", guard="5%"),
        "cost": pw.Metric("cost", guard="20%"),
    },
    "five primaries": {
        "clicks": pw.Metric("click", primary=True),
        "revenue": pw.Metric("amount", primary=True),
        "rpc": pw.Metric("amount", per="click", primary=True),
        "latency": pw.Metric("ms", better="lower", primary=True),
        "cost": pw.Metric("cost", primary=True),
    },
}


def policies(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw two loggers and four candidates, which play later actions more often."""
    tilt = np.arange(ACTIONS) / ACTIONS
    drawn = {name: rng.dirichlet(np.full(ACTIONS, 3.0)) for name in ("v1", "v2")}
    for k in range(4):
        own = np.exp(np.log(drawn["v1"]) + (0.5 + k / 2) * tilt + rng.normal(0, 0.2, ACTIONS))
        drawn[f"c{k}"] = own / own.sum()
    return drawn


def draw(rng: np.random.Generator, lift: float) -> tuple[pw.Log, dict[str, str]]:
    """Draw a log and its candidates."""
    known = policies(rng)
    logger = rng.choice(["v1", "v2"], ROWS, p=[0.7, 0.3])
    action = np.empty(ROWS, dtype=np.int64)
    for name in ("v1", "v2"):
        rows = logger == name
        action[rows] = rng.choice(ACTIONS, rows.sum(), p=known[name])
    gain = 1 + lift * action / ACTIONS
    click = rng.binomial(1, np.minimum(0.15 * gain, 1.0))
    table = pa.table(
        {
            "logger": logger,
            "action": action,
            "click": click,
            "amount": click * rng.lognormal(1.0, 0.7, ROWS) * gain,
            "ms": rng.normal(100.0, 15.0, ROWS) / gain**0.2,
            "cost": -rng.exponential(1.0, ROWS) / gain,
            **{f"p_{name}": p[action] for name, p in known.items()},
        }
    )
    log = pw.Log(
        table,
        logger="logger",
        action="action",
        reward="click",
        propensities={"v1": "p_v1", "v2": "p_v2"},
    )
    return log, {name: f"p_{name}" for name in known if name.startswith("c")}


def count_verdicts(kind: str, roles: str, number: int) -> dict[str, object]:
    """Count the verdicts about logs of one kind, with metrics in these roles."""
    found = {"ship": 0, "don't": 0, "can't tell": 0}
    for seed in range(number):
        log, targets = draw(np.random.default_rng([30, seed]), LIFTS[kind])
        found[pw.decide(log, targets, baseline="v1", metrics=ROLES[roles]).verdict] += 1
    shares = {name: f"{100 * count / number:.1f}" for name, count in found.items()}
    share = min(max(found["ship"], 1), number - 1) / number
    error = 100 * math.sqrt(share * (1 - share) / number)
    line = {"logs": kind, "number": number, "metrics": roles, **shares}
    return line | {"error of ship": f"{error:.1f}"}


def main(logs: int = LOGS) -> None:
    """Write the table."""
    numbers = {AA: logs, BETTER: max(logs // 5, 1)}
    asked = [(kind, roles, numbers[kind]) for kind in LIFTS for roles in ROLES]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        running = [pool.submit(count_verdicts, *each) for each in asked]
        lines = []
        for done in running:
            lines.append(done.result())
            print(lines[-1], flush=True)
    if logs >= LOGS:
        with OUT.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
