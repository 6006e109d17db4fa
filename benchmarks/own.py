"""Logs with own propensities only: naive against the default, and against the best single log.

Each kind of log has its own loggers, rewards and target; a tenth of the logs share one problem.
Each log is evaluated as a user would evaluate it, with the propensity of its own logger in
each row and nothing else.

Run: python -m benchmarks.own [logs of each kind, 1000] [KIND ...]
Prints a line for each kind, and writes docs/figures/own.csv and the table of
docs/which-estimator.md; with kinds, it only prints.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

import poolwise as pw
from benchmarks.families import softmax
from benchmarks.kept import DOCS, markdown, write_csv, write_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LOGS, PER_PROBLEM = 1_000, 10
PAID = 0.1  # share of the rows with an amount, ten times as large as a click's chance
CONTEXTS, ACTIONS = 20, 8
UNIFORM = np.full((CONTEXTS, ACTIONS), 1 / ACTIONS)
FIELDS = (
    "kind",
    "logs",
    "rows",
    "naive_error",
    "default_error",
    "naive_covers",
    "default_covers",
    "naive_width",
    "default_width",
    "false_claims",
)


@dataclass(frozen=True)
class Kind:
    """One kind of log.

    Attributes:
        name: Name in the table.
        rows: Rows of each logger.
        distance: Standard deviation between the scores of each logger and the target.
        sharpness: Factor on the scores of each logger; 0 for a uniform one.
        epsilon: Share of exploration of nearly deterministic policies; 0 for softmax.
        uniform: Whether the target is uniform.
        rewards: Distribution of the rewards.
        rate: Factor on the probability of a click.
    """

    name: str
    rows: tuple[int, ...]
    distance: tuple[float, ...]
    sharpness: tuple[float, ...] = ()
    epsilon: float = 0.0
    uniform: bool = False
    rewards: Literal["clicks", "amounts", "costs"] = "clicks"
    rate: float = 1.0


KINDS = (
    Kind("similar loggers", (1000, 1000, 1000), (0.3, 0.3, 0.3)),
    Kind("one near, one far", (500, 2500), (0.3, 2.5), (1.5, 2.0)),
    Kind("nearly deterministic", (5000, 5000), (0.5, 0.5), epsilon=0.05),
    Kind("four and a tiny one", (1000, 1000, 1000, 1000, 25), (0.8,) * 5),
    Kind("rare clicks", (4000, 8000), (0.3, 1.5), rate=0.02),
    Kind("amounts", (2000, 4000), (0.3, 1.5), rewards="amounts"),
    Kind("costs below 0", (1000, 3000), (0.3, 1.5), rewards="costs"),
    Kind("random and learned", (2000, 20000), (0.0, 1.0), (0.0, 3.0), uniform=True, rate=0.05),
    Kind("60 rows each", (60, 60, 60), (0.5, 1.0, 1.0)),
)


@dataclass(frozen=True)
class Problem:
    """Policies and rewards behind some logs.

    Attributes:
        target: Probability of each action in each context.
        loggers: The same, of each logger.
        chance: Probability of a click, or of an amount, in each context and action.
        kind: Kind of the logs.
    """

    target: Array
    loggers: Sequence[Array]
    chance: Array
    kind: Kind

    @property
    def value(self) -> float:
        """Value of the target."""
        earned = -self.chance - 0.2 if self.kind.rewards == "costs" else self.chance
        return float((self.target * earned).sum(axis=1).mean())

    def draw(self, rng: np.random.Generator) -> tuple[pa.Table, list[float]]:
        """Return a log, and the IPS estimate of each single log."""
        parts, single = [], []
        for k, (logger, rows) in enumerate(zip(self.loggers, self.kind.rows, strict=True)):
            context = rng.integers(CONTEXTS, size=rows)
            cut = rng.random(rows)[:, None]
            action = (logger[context].cumsum(axis=1) < cut).sum(axis=1).clip(max=ACTIONS - 1)
            reward = self._rewards(self.chance[context, action], rng)
            own, target = logger[context, action], self.target[context, action]
            single.append(float((target / own * reward).mean()))
            columns = {"propensity": own, "target": target, "reward": reward}
            parts.append(pa.table({"logger": [f"v{k}"] * rows, **columns}))
        return pa.concat_tables(parts), single

    def _rewards(self, chance: Array, rng: np.random.Generator) -> Array:
        hit = rng.random(len(chance)) < chance
        if self.kind.rewards == "costs":
            return np.where(hit, -1.2, -0.2)
        if self.kind.rewards == "amounts":
            paid = rng.random(len(chance)) < PAID
            amount: Array = chance / PAID * rng.lognormal(-0.5, 1.0, len(chance))
            return np.where(paid, amount, 0.0)
        return np.where(hit, 1.0, 0.0)


def draw_problem(kind: Kind, seed: int) -> Problem:
    """Draw a problem of a kind."""
    rng = np.random.default_rng([seed, len(kind.name)])
    scores = rng.normal(size=(CONTEXTS, ACTIONS))

    def policy(noise: float, sharpness: float) -> Array:
        own = scores + noise * rng.normal(size=scores.shape)
        if kind.epsilon:
            greedy = np.eye(ACTIONS)[own.argmax(axis=1)]
            return np.asarray((1 - kind.epsilon) * greedy + kind.epsilon * UNIFORM)
        return np.asarray(softmax(sharpness * own))

    sharpness = kind.sharpness or (1.5,) * len(kind.rows)
    loggers = [policy(*pair) for pair in zip(kind.distance, sharpness, strict=True)]
    target = UNIFORM if kind.uniform else policy(0.0, 1.5)
    chance = kind.rate * (0.1 + 0.8 * rng.random(scores.shape))
    return Problem(target, loggers, chance, kind)


def measure(job: tuple[Kind, int]) -> dict[str, object]:
    """Return error, coverage and width for the logs of a kind, relative to the best log."""
    kind, logs = job
    errors, covered, widths, singles, claims = [], [], [], [], 0
    for seed in range(logs):
        problem = draw_problem(kind, seed // PER_PROBLEM)
        table, single = problem.draw(np.random.default_rng([seed, 11]))
        log = pw.Log(table, logger="logger", reward="reward", propensity="propensity")
        found = pw.evaluate(log, {"target": "target"})
        result = found["target"]
        names = ("naive", result.recommended)
        errors.append([result.estimates[n].value - problem.value for n in names])
        covered.append([problem.value in result.intervals[n] for n in names])
        ends = [result.intervals[n] for n in names]
        widths.append([(end.upper - end.lower) / 2 for end in ends])
        singles.append(np.array(single) - problem.value)
        truth = problem.value - _own_value(problem, found.baseline)
        claims += truth not in found.differences["target"].interval
    best = np.sqrt((np.array(singles) ** 2).mean(axis=0)).min()
    of_error = np.sqrt((np.array(errors) ** 2).mean(axis=0)) / best
    of_width = np.median(np.array(widths), axis=0) / (1.96 * best)
    shares = np.array(covered).mean(axis=0)
    numbers = [f"{x:.3f}" for x in (*of_error, *shares, *of_width, claims / logs)]
    return dict(zip(FIELDS, (kind.name, logs, sum(kind.rows), *numbers), strict=True))


def _own_value(problem: Problem, label: str) -> float:
    """Return the value of the logger with this label."""
    policy = problem.loggers[int(label[1:])]
    earned = -problem.chance - 0.2 if problem.kind.rewards == "costs" else problem.chance
    return float((policy * earned).sum(axis=1).mean())


def main() -> None:
    """Measure the kinds, print and write them."""
    logs = int(sys.argv[1]) if len(sys.argv) > 1 else LOGS
    kinds = [kind for kind in KINDS if kind.name in (sys.argv[2:] or [kind.name])]
    lines = []
    with ProcessPoolExecutor(2) as pool:
        for line in pool.map(measure, [(kind, logs) for kind in kinds]):
            print("  ".join(f"{value!s:>9}" for value in line.values()), flush=True)
            lines.append(line)
    if not sys.argv[2:]:
        write(lines)


def write(lines: Sequence[dict[str, object]]) -> None:
    """Write the CSV and the table of the documentation."""
    write_csv(DOCS / "figures" / "own.csv", FIELDS, [tuple(line.values()) for line in lines])
    head = (
        "logs",
        "error of naive",
        "of the default",
        "naive covers",
        "the default covers",
        "width of naive",
        "of the default",
        "differences missed",
    )
    rows = [[str(line[name]) for name in ("kind", *FIELDS[3:])] for line in lines]
    write_part(DOCS / "which-estimator.md", "own", markdown(head, rows))


if __name__ == "__main__":
    main()
