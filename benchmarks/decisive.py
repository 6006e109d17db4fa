"""A handful of decisive rows: coverage and width, with heavy rows set apart and without.

Nearly deterministic loggers play their preferred action but for a share of exploration.  A
target moves some contexts to an action that no logger prefers, so that few rows carry what it
would earn there.  The same logs are evaluated as a user would, and as before heavy rows were
set apart.  Kinds without such rows show that nothing changes for them.

Run: python -m benchmarks.decisive [logs of each kind, 1000] [KIND ...]
Prints a line for each kind, and writes it to docs/figures/decisive.csv and to the table of
docs/which-estimator.md.
"""

from __future__ import annotations

import csv
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

import poolwise as pw
from benchmarks.families import softmax
from benchmarks.kept import DOCS, markdown, write_csv, write_part
from poolwise.engines.duckdb import DuckDB, DuckDBRows
from poolwise.engines.parallel import KernelRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

ROWS_PER_USER, ALIKE = 5, 0.5  # and by how much a user's chances differ
LOGS, PER_PROBLEM, SEED = 1_000, 10, 41
ENGINE = DuckDB(threads=1)
MEASURED = DOCS / "figures" / "decisive.csv"
CONTEXTS, ACTIONS = 50, 10
PAID = 0.3  # share of the rows with an amount
FIELDS = (
    "kind",
    "logs",
    "apart",
    "alarms",
    "covers",
    "calibrated_covers",
    "balanced_covers",
    "width",
    "calibrated_width",
    "balanced_width",
    "difference_covers",
    "calibrated_difference_covers",
    "false_claims",
    "calibrated_false_claims",
)


@dataclass(frozen=True)
class Kind:
    """One kind of log.

    Attributes:
        name: Name in the table.
        rows: Rows of each logger.
        moved: Share of the contexts that the target moves.
        epsilon: Share of exploration of the loggers; 0 for softmax policies.
        rewards: Distribution of the rewards.
        better: Reward that a moved context gains, if the incumbent is compared.
        users: Whether rows are of users with five each, who earn alike.
    """

    name: str
    rows: tuple[int, ...]
    moved: float = 0.1
    epsilon: float = 0.02
    rewards: Literal["clicks", "costs", "amounts"] = "clicks"
    better: float | None = None
    users: bool = False


KINDS = (
    Kind("10% moved, 2% exploration, 2 x 10,000", (10_000, 10_000)),
    Kind("5% moved, 2% exploration, 2 x 10,000", (10_000, 10_000), 0.05),
    Kind("5% moved, 5% exploration, 2 x 5,000", (5_000, 5_000), 0.05, 0.05),
    Kind("the same, 2 x 10,000, costs below 0", (10_000, 10_000), rewards="costs"),
    Kind("the same, 2 x 10,000, amounts", (10_000, 10_000), rewards="amounts"),
    Kind("better by 0.006, 0.5% exploration, 2 x 500", (500, 500), 0.1, 0.005, better=0.06),
    Kind("the same, 2 x 2,000", (2_000, 2_000), 0.1, 0.005, better=0.06),
    Kind("10% moved, 20% exploration, 2 x 10,000", (10_000, 10_000), 0.1, 0.2),
    Kind("softmax, 2 x 1,000", (1_000, 1_000), epsilon=0.0),
    Kind("softmax, 3 x 200", (200, 200, 200), epsilon=0.0),
)
MORE = (  # measured where they are named
    Kind("10% moved, 2% exploration, 2 x 10,000, users", (10_000, 10_000), users=True),
    Kind("5% moved, 5% exploration, 2 x 5,000, users", (5_000, 5_000), 0.05, 0.05, users=True),
    Kind("better by 0.006, 2 x 200", (200, 200), 0.1, 0.005, better=0.06),
)


@dataclass(frozen=True)
class Problem:
    """Policies and rewards behind some logs.

    Attributes:
        loggers: Probability of each action in each context, of each logger.
        target: The same, of the target.
        chance: Probability of a click, or of an amount, in each context and action.
        kind: Kind of the logs.
    """

    loggers: Sequence[Array]
    target: Array
    chance: Array
    kind: Kind

    def value(self, policy: Array) -> float:
        """Return the value of a policy."""
        earned = -self.chance if self.kind.rewards == "costs" else self.chance
        return float((policy * earned).sum(axis=1).mean())

    def draw(self, rng: np.random.Generator) -> pa.Table:
        """Return a log."""
        parts = []
        users = sum(self.kind.rows) // ROWS_PER_USER if self.kind.users else 0
        better = ALIKE * rng.choice([-1.0, 1.0], size=users)  # mean 0: values remain
        for k, (logger, rows) in enumerate(zip(self.loggers, self.kind.rows, strict=True)):
            context = rng.integers(CONTEXTS, size=rows)
            cut = rng.random(rows)[:, None]
            action = (logger[context].cumsum(axis=1) < cut).sum(axis=1).clip(max=ACTIONS - 1)
            known = {f"p_{i}": p[context, action] for i, p in enumerate(self.loggers)}
            chance, of_user = self.chance[context, action], {}
            if users:
                user = rng.integers(users, size=rows)
                chance = chance + better[user] * np.minimum(chance, 1 - chance)
                of_user = {"user": user}
            reward = self._rewards(chance, rng)
            played = {"target": self.target[context, action], "reward": reward, **of_user}
            parts.append(pa.table({"logger": [f"v{k}"] * rows, **known, **played}))
        return pa.concat_tables(parts)

    def _rewards(self, chance: Array, rng: np.random.Generator) -> Array:
        hit = rng.random(len(chance)) < chance
        if self.kind.rewards == "amounts":
            paid = rng.random(len(chance)) < PAID
            amount: Array = chance / PAID * rng.lognormal(-0.125, 0.5, len(chance))
            return np.where(paid, amount, 0.0)
        return np.where(hit, -1.0 if self.kind.rewards == "costs" else 1.0, 0.0)


def explore(preferred: NDArray[np.int64], epsilon: float) -> Array:
    """Return a policy that plays its preferred actions, and others now and then."""
    policy = np.full((CONTEXTS, ACTIONS), epsilon / ACTIONS)
    policy[np.arange(CONTEXTS), preferred] += 1 - epsilon
    return policy


def draw_problem(kind: Kind, seed: int) -> Problem:
    """Draw a problem of a kind."""
    rng = np.random.default_rng([SEED, seed, *map(ord, kind.name)])
    chance = rng.uniform(0.2, 0.8, (CONTEXTS, ACTIONS))
    if not kind.epsilon:
        scores = rng.normal(size=(CONTEXTS, ACTIONS))
        loggers = [softmax(scores + rng.normal(size=scores.shape)) for _ in kind.rows]
        return Problem(loggers, softmax(2 * scores), chance, kind)
    order = rng.permuted(np.tile(np.arange(ACTIONS), (CONTEXTS, 1)), axis=1)
    first, second, new = order[:, 0], order[:, 1].copy(), order[:, 2]
    same = rng.integers(2, size=CONTEXTS) == 1
    second[same] = first[same]
    moved = np.arange(CONTEXTS) < round(kind.moved * CONTEXTS)
    if kind.better is not None:  # over the incumbent, from whom nobody else differs
        second = first
        here = np.arange(CONTEXTS)
        chance[here, first] = np.minimum(chance[here, first], 0.7)
        chance[here, new] = chance[here, first] + kind.better
    loggers = [explore(prefers, kind.epsilon) for prefers in (first, second)]
    target = explore(np.where(moved, new, second), kind.epsilon)
    return Problem(loggers, target, chance, kind)


@dataclass(frozen=True)
class Outcome:
    """What one log gave, with heavy rows set apart or not.

    Attributes:
        apart: Whether rows were set apart.
        alarm: Whether there was an alarm.
        interval: Interval of calibrated, and of balanced.
        difference: Interval of the difference from the second logger.
    """

    apart: bool
    alarm: bool
    intervals: tuple[tuple[float, float], tuple[float, float]]
    difference: tuple[float, float]


def ask(log: pw.Log) -> Outcome:
    """Return the answer to the question of a user."""
    result = pw.evaluate(
        log, "target", ["calibrated", "balanced"], baseline="v1", engine=ENGINE
    )
    target, pair = result["target"], result.differences["target"]
    ends = [(target.intervals[n].lower, target.intervals[n].upper) for n in target.estimates]
    return Outcome(
        target.estimates["calibrated"].decisive is not None,
        any(f.severity == "alarm" for f in target.findings),
        (ends[0], ends[1]),
        (pair.interval.lower, pair.interval.upper),
    )


def ask_together(log: pw.Log) -> Outcome:
    """Return the answer without setting rows apart."""
    kept = KernelRows.heaviest, DuckDBRows.heaviest_clusters
    KernelRows.heaviest = lambda *_: None  # type: ignore[method-assign,assignment]
    DuckDBRows.heaviest_clusters = lambda *_: None  # type: ignore[method-assign]
    try:
        return ask(log)
    finally:
        KernelRows.heaviest, DuckDBRows.heaviest_clusters = kept  # type: ignore[method-assign]


def logs_of(kind: Kind, seed: int) -> list[tuple[Outcome, Outcome, float, float]]:
    """Evaluate the logs of one problem."""
    problem = draw_problem(kind, seed)
    truth, lift = problem.value(problem.target), 0.0
    lift = truth - problem.value(problem.loggers[1])
    known = {f"v{k}": f"p_{k}" for k in range(len(problem.loggers))}
    answers = []
    for k in range(PER_PROBLEM):
        rows = problem.draw(np.random.default_rng([seed, k, SEED]))
        log = pw.Log(rows, logger="logger", reward="reward", propensities=known)
        log = replace(log, cluster="user") if kind.users else log
        answers.append((ask(log), ask_together(log), truth, lift))
    return answers


def measure(kind: Kind, logs: int) -> dict[str, object]:
    """Return the line of a kind."""
    with ProcessPoolExecutor(2) as pool:
        problems = range(max(logs // PER_PROBLEM, 1))
        parts = list(pool.map(partial(logs_of, kind), problems))
    answers = [answer for part in parts for answer in part]
    now, before = [a[0] for a in answers], [a[1] for a in answers]
    truth, lift = np.array([a[2] for a in answers]), np.array([a[3] for a in answers])
    ours = np.array([o.intervals[0] for o in now])
    old = np.array([o.intervals for o in before])
    pairs = np.array([o.difference for o in now])
    old_pairs = np.array([o.difference for o in before])
    return {
        "kind": kind.name,
        "logs": len(answers),
        "apart": round(float(np.mean([o.apart for o in now])), 3),
        "alarms": round(float(np.mean([o.alarm for o in now])), 3),
        "covers": covers(ours, truth),
        "calibrated_covers": covers(old[:, 0], truth),
        "balanced_covers": covers(old[:, 1], truth),
        "width": width(ours),
        "calibrated_width": width(old[:, 0]),
        "balanced_width": width(old[:, 1]),
        "difference_covers": covers(pairs, lift),
        "calibrated_difference_covers": covers(old_pairs, lift),
        "false_claims": wrong(pairs, lift),
        "calibrated_false_claims": wrong(old_pairs, lift),
    }


def covers(ends: Array, truth: Array) -> float:
    """Return the share of intervals that contain the truth."""
    return round(float(np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))), 3)


def width(ends: Array) -> float:
    """Return the median half-width."""
    return float(f"{np.median(ends[:, 1] - ends[:, 0]) / 2:.3g}")


def wrong(ends: Array, lift: Array) -> float:
    """Return the share of intervals that show a difference of the wrong sign."""
    return round(float(np.mean(np.where(lift > 0, ends[:, 1] < 0, ends[:, 0] > 0))), 3)


def main() -> None:
    """Measure all kinds, or the named ones, and write the table of all that were measured."""
    logs = int(sys.argv[1]) if len(sys.argv) > 1 else LOGS
    named = sys.argv[2:]
    every = (*KINDS, *MORE)
    chosen = [k for k in every if any(name in k.name for name in named)] or KINDS
    for kind in chosen:
        line = measure(kind, logs)
        print(*(f"{name}={value}" for name, value in line.items()), flush=True)
        lines = {**read_lines(), kind.name: {name: str(line[name]) for name in FIELDS}}
        kept = [[*lines[k.name].values()] for k in every if k.name in lines]
        write_csv(MEASURED, FIELDS, kept)
    write_part(DOCS / "which-estimator.md", "decisive", table())


def read_lines() -> dict[str, dict[str, str]]:
    """Return the line of each kind that was measured."""
    if not MEASURED.exists():
        return {}
    with MEASURED.open(newline="", encoding="utf-8") as file:
        return {line["kind"]: line for line in csv.DictReader(file)}


def table() -> str:
    """Return the table of the documentation."""
    header = ["log", "set apart", "covers", "before", "balanced", "half-width", "before"]
    header += ["balanced", "difference covers", "before", "wrong sign", "before"]
    names = ("kind", "apart", *FIELDS[4:])
    return markdown(header, [[line[name] for name in names] for line in read_lines().values()])


if __name__ == "__main__":
    main()
