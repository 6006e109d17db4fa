"""Plans: what half-widths the planned rows really give, on many kinds of logs.

Each log is planned for half of its present half-width, with the loggers mixed as they are.
Then the planned rows are drawn and added to it, and the half-width is that of Student's
interval of all rows together.  From that half-width follows how many new rows would have
been right; the range of the plan should contain this number.

Run: python -m benchmarks.plans [logs of each kind, 100] [first seed, 1000] [KIND ...]
Prints a line for each kind and estimator, and writes docs/figures/plans.csv and the table of
docs/compare-and-plan.md; with kinds, it replaces the lines of these only.  The rule of the
ranges was chosen on seeds below 1000.
"""

from __future__ import annotations

import csv
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

import poolwise as pw
from benchmarks.families import softmax
from benchmarks.kept import DOCS, markdown, write_csv, write_part
from poolwise.intervals.student import student

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FIGURES = DOCS / "figures" / "plans.csv"
LOGS, FIRST, PER_PROBLEM, LEVEL = 100, 1_000, 10, 0.95
CONTEXTS, ACTIONS, POSITIONS = 20, 8, 2
PAID = 0.05  # share of the rows with an amount
USER_ROWS, USER_EFFECT = 8, 0.15  # of clustered logs
ESTIMATORS = ("calibrated", "balanced", "weighted", "naive", "self-normalised")
FIELDS = (
    "kind",
    "rows",
    "estimator",
    "plans",
    "open",
    "inside",
    "too_few",
    "too_many",
    "ratio",
    "low",
    "high",
)
Rewards = Literal["clicks", "normal", "lognormal", "pareto"]


@dataclass(frozen=True)
class Kind:
    """One kind of log.

    Attributes:
        name: Name in the table.
        rows: Rows of each logger; requests of a ranking log.
        sharpness: Factor on the scores of each softmax logger.
        rewards: Distribution of the rewards.
        tail: Standard deviation of the logarithm of an amount, or the index of its tail.
        rate: Factor on the probability of a click.
        epsilon: Share of exploration of nearly deterministic policies; 0 for softmax.
        structure: What the log holds in addition to rows with all propensities.
    """

    name: str
    rows: tuple[int, ...] = (3_000, 2_000, 1_000)
    sharpness: tuple[float, ...] = (1.0, 0.5, 0.0)
    rewards: Rewards = "clicks"
    tail: float = 0.0
    rate: float = 1.0
    epsilon: float = 0.0
    structure: Literal["plain", "users", "own", "rankings"] = "plain"


KINDS = (
    Kind("clicks"),
    Kind("rare clicks", rate=0.02),
    Kind("costs below 0", rewards="normal"),
    Kind("amounts, lognormal 1", rewards="lognormal", tail=1.0),
    Kind("amounts, lognormal 1.5", rewards="lognormal", tail=1.5),
    Kind("amounts, lognormal 2", rewards="lognormal", tail=2.0),
    Kind(
        "amounts, lognormal 1.5, 24,000 rows",
        rows=(12_000, 8_000, 4_000),
        rewards="lognormal",
        tail=1.5,
    ),
    Kind("amounts, Pareto 3", rewards="pareto", tail=3.0),
    Kind("nearly deterministic", (3_000, 3_000), epsilon=0.05),
    Kind("far and near loggers", (500, 5_000), (1.5, -1.0)),
    Kind("large and small loggers", (12_000, 300, 60), (0.5, 1.5, 1.0)),
    Kind("clusters of 8 rows", structure="users"),
    Kind("clusters, lognormal 1.5", rewards="lognormal", tail=1.5, structure="users"),
    Kind("own propensities", structure="own"),
    Kind("own, nearly deterministic", (3_000, 3_000), epsilon=0.05, structure="own"),
    Kind("own, far and near loggers", (500, 5_000), (1.5, -1.0), structure="own"),
    Kind("own propensities, lognormal 1.5", rewards="lognormal", tail=1.5, structure="own"),
    Kind("rankings", (1_500, 1_000, 500), structure="rankings"),
    Kind("160 rows", (100, 60), (1.0, 0.3)),
)


@dataclass(frozen=True, eq=False)
class Problem:
    """Policies and rewards behind some logs.

    Attributes:
        kind: Kind of the logs.
        target: Probability of each action in each context.
        loggers: The same, of each logger.
        chance: Probability of a click in each context and action.
    """

    kind: Kind
    target: Array
    loggers: Mapping[str, Array]
    chance: Array

    def draw(self, counts: Mapping[str, int], rng: np.random.Generator) -> pa.Table:
        """Return rows of each logger; in a ranking log, requests."""
        return pa.concat_tables([self._written(i, n, rng) for i, n in counts.items() if n])

    def _written(self, label: str, count: int, rng: np.random.Generator) -> pa.Table:
        slots = POSITIONS if self.kind.structure == "rankings" else 1
        request = np.repeat(rng.integers(2**62, size=count), slots)
        context = np.repeat(rng.integers(CONTEXTS, size=count), slots)
        user, effect = request, np.zeros(len(request))
        if self.kind.structure == "users":
            users = -(-count // USER_ROWS)
            owner = np.arange(count) // USER_ROWS
            user = rng.integers(2**62, size=users)[owner]
            context = rng.integers(CONTEXTS, size=users)[owner]
            effect = rng.uniform(-USER_EFFECT, USER_EFFECT, users)[owner]
        cut = rng.random(len(context))[:, None]
        action = (self.loggers[label][context].cumsum(axis=1) < cut).sum(axis=1)
        action = action.clip(max=ACTIONS - 1)
        chance = (self.chance[context, action] + effect).clip(0, 1)
        columns = {
            "reward": self._rewards(chance, rng),
            "request": request,
            "position": np.arange(len(context)) % slots + 1,
            "user": user,
            "own": self.loggers[label][context, action],
            "p_new": self.target[context, action],
            **{f"p_{i}": policy[context, action] for i, policy in self.loggers.items()},
        }
        return pa.table({"logger": [label] * len(context), **columns})

    def _rewards(self, chance: Array, rng: np.random.Generator) -> Array:
        kind, size = self.kind, len(chance)
        if kind.rewards == "normal":
            return np.asarray(-1 - chance + 0.3 * rng.normal(size=size))
        if kind.rewards == "clicks":
            return np.where(rng.random(size) < chance, 1.0, 0.0)
        lognormal = kind.rewards == "lognormal"
        raised = rng.lognormal(0, kind.tail, size) if lognormal else rng.pareto(kind.tail, size)
        return np.where(rng.random(size) < PAID, chance * raised, 0.0)

    def log(self, table: pa.Table) -> tuple[pw.Log, dict[str, str]]:
        """Return the log that a user would declare, and its target."""
        roles: dict[str, Any] = {"logger": "logger", "reward": "reward"}
        crossed = {i: f"p_{i}" for i in self.loggers}
        if self.kind.structure == "rankings":
            return pw.ranking_log(
                table,
                {"new": "p_new"},
                request="request",
                position="position",
                model="independent",
                propensities=crossed,
                **roles,
            )
        if self.kind.structure == "own":
            return pw.Log(table, propensity="own", **roles), {"new": "p_new"}
        cluster = "user" if self.kind.structure == "users" else None
        return pw.Log(table, propensities=crossed, cluster=cluster, **roles), {"new": "p_new"}


def draw_problem(kind: Kind, seed: int) -> Problem:
    """Draw a problem of a kind."""
    rng = np.random.default_rng([seed, sum(map(ord, kind.name))])
    scores = rng.normal(size=(CONTEXTS, ACTIONS))

    def policy(noise: float, sharpness: float) -> Array:
        own = scores + noise * rng.normal(size=scores.shape)
        if kind.epsilon:
            greedy = np.eye(ACTIONS)[own.argmax(axis=1)]
            return np.asarray((1 - kind.epsilon) * greedy + kind.epsilon / ACTIONS)
        return np.asarray(softmax(sharpness * own))

    sharpness = kind.sharpness[: len(kind.rows)]
    loggers = {f"v{k}": policy(0.5, each) for k, each in enumerate(sharpness)}
    chance = kind.rate * (0.15 + 0.7 * rng.random(scores.shape))
    return Problem(kind, policy(0.0, 1.5), loggers, chance)


@dataclass(frozen=True)
class Trial:
    """A planned estimator, and the half-width that the planned rows gave.

    Attributes:
        estimator: Name of the estimator.
        ratio: Realised half-width over the promised one.
        total: Rows of the log, over the rows with the planned ones.
        lower: Lower limit of the new rows, over the planned ones.
        upper: Upper limit of the new rows, over the planned ones.
        behind: Rows that determine the variance.
    """

    estimator: str
    ratio: float
    total: float
    lower: float
    upper: float
    behind: float

    @property
    def right(self) -> float:
        """New rows that would have been right, over the planned ones."""
        return max(0.0, self.ratio**2 - self.total) / (1 - self.total)


def trials(kind: Kind, seed: int) -> Iterator[Trial]:
    """Plan one log, draw the planned rows, and yield what each estimator's rows gave."""
    problem = draw_problem(kind, seed // PER_PROBLEM)
    rng = np.random.default_rng([seed, 13])
    counts = dict(zip(problem.loggers, kind.rows, strict=True))
    table = problem.draw(counts, rng)
    log, target = problem.log(table)
    now = pw.plan(log, target, lift=1.0)
    names = [n for n in now.estimates if 0 < now.half_width_now(n) < math.inf]
    wanted = {name: now.half_width_now(name) / 2 for name in names}
    options = {
        name: pw.plan(log, target, half_width=half, estimators=[name]).option(name, "(as now)")
        for name, half in wanted.items()
    }
    growth = {n: o.rows / sum(now.rows.values()) for n, o in options.items()}
    planned = {n: g for n, g in growth.items() if 0 < g < math.inf}
    if not planned:
        return
    # the plans of a log differ by few rows: one draw serves them all, and widths are scaled
    most = max(planned.values())
    later = problem.draw({i: round(n * most) for i, n in counts.items()}, rng)
    both, _ = problem.log(pa.concat_tables([table, later]))
    result = pw.evaluate(both, target, list(planned))["new"]
    for name, grown in planned.items():
        interval = student(result.estimates[name], LEVEL)
        width = (interval.upper - interval.lower) / 2 * math.sqrt((1 + most) / (1 + grown))
        option = options[name]
        yield Trial(
            name,
            width / wanted[name],
            1 / (1 + grown),
            option.lower / option.rows,
            option.upper / option.rows,
            option.behind,
        )


def measure(job: tuple[Kind, int]) -> list[Trial]:
    """Return the trials of one log."""
    return list(trials(*job))


def summary(kind: Kind, name: str, found: Sequence[Trial]) -> dict[str, object]:
    """Return how often ranges were right, and by how much half-widths missed the promise.

    Ranges without an upper limit are counted apart; the others are right, or they promise
    too few rows or too many.
    """
    bounded = [t for t in found if t.upper < math.inf]
    ratios = np.array([t.ratio for t in found])
    parts: list[float] = [1 - len(bounded) / len(found)]
    inside = [t.lower <= t.right <= t.upper for t in bounded]
    few, many = [t.right > t.upper for t in bounded], [t.right < t.lower for t in bounded]
    parts += [float(np.mean(x)) if bounded else math.nan for x in (inside, few, many)]
    parts += [float(x) for x in np.quantile(ratios, (0.5, 0.05, 0.95))]
    numbers = ["" if math.isnan(x) else f"{x:.2f}" for x in parts]
    first = (kind.name, f"{sum(kind.rows)}", name, f"{len(found)}")
    return dict(zip(FIELDS, (*first, *numbers), strict=True))


def main() -> None:
    """Measure the kinds, print and write them."""
    given = [int(word) for word in sys.argv[1:3]]
    logs, first = *given, *(LOGS, FIRST)[len(given) :]
    kinds = [kind for kind in KINDS if kind.name in (sys.argv[3:] or [kind.name])]
    lines = []
    with ProcessPoolExecutor(2) as pool:
        for kind in kinds:
            jobs = [(kind, first + seed) for seed in range(logs)]
            found = [t for each in pool.map(measure, jobs, chunksize=5) for t in each]
            for name in ESTIMATORS:
                if any(t.estimator == name for t in found):
                    line = summary(kind, name, [t for t in found if t.estimator == name])
                    print("  ".join(f"{value!s:>7}" for value in line.values()), flush=True)
                    lines.append(line)
    write([*(x for x in read() if x["kind"] not in {k.name for k in kinds}), *lines])


def read() -> list[dict[str, str]]:
    """Return the lines of the last runs."""
    if not FIGURES.exists():
        return []
    with FIGURES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(lines: Sequence[Mapping[str, object]]) -> None:
    """Write the CSV and the table of the documentation."""
    place = {kind.name: k for k, kind in enumerate(KINDS)}
    lines = sorted(lines, key=lambda x: place[str(x["kind"])])
    write_csv(FIGURES, FIELDS, [tuple(x.values()) for x in lines])
    head = (
        "logs",
        "rows",
        "estimator",
        "no upper limit",
        "inside the range",
        "too few rows",
        "too many rows",
        "half-width over the promised one",
    )
    rows = [
        [
            *(str(line[name]) for name in ("kind", "rows", "estimator")),
            *(str(line[name]) for name in ("open", "inside", "too_few", "too_many")),
            f"{line['ratio']} ({line['low']} to {line['high']})",
        ]
        for line in lines
    ]
    write_part(DOCS / "compare-and-plan.md", "plans", markdown(head, rows))


if __name__ == "__main__":
    main()
