"""Logs without propensities: coverage of estimated propensities, against the known mixture.

Each kind of log has its own loggers, whose rows are pooled, and a target that differs from
them.  Every log is evaluated with the propensity of the mixture, which a real log of this kind
does not have, and with each way to estimate it.  The value and the difference from what was
played are compared with the truth, an average over many contexts.

Run: python -m benchmarks.estimated [logs of each kind, 90] [KIND ...]
Prints a line for each kind and way, and writes docs/figures/estimated.csv and the table of
docs/without-propensities.md; with kinds, the lines of others stay as they are.
"""

from __future__ import annotations

import csv
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import poolwise as pw
from benchmarks.kept import DOCS, markdown, write_csv, write_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LOGS = 90
SLOW = 3  # trees are fitted to so many times fewer logs
CONTEXTS = 400_000  # behind the truth
MOST_ROWS = 10_000  # of a log that every way is measured on
KNOWN, FREQUENCIES, LOGISTIC = "known", "frequencies", "logistic regression"
OTHER_FOLDS = "frequencies of other folds"
TREES, LIGHTGBM, ROBUST = "boosted trees", "LightGBM", "boosted trees, doubly robust"
RESULTS = DOCS / "figures" / "estimated.csv"
FIELDS = ("kind", "propensities", "logs", "rows", "error", "width", "value", "difference")


@dataclass(frozen=True)
class Kind:
    """One kind of log.

    Attributes:
        name: Name in the table.
        rows: Rows of all loggers.
        loggers: Number of loggers.
        actions: Number of actions.
        discrete: Whether the context has 12 values; otherwise it has three numbers.
        rare: Factor on the odds of the first action under every logger.
    """

    name: str
    rows: int
    loggers: int = 2
    actions: int = 3
    discrete: bool = False
    rare: float = 1.0

    @property
    def ways(self) -> tuple[str, ...]:
        """Ways to know or to estimate propensities."""
        if self.discrete:
            return (KNOWN, FREQUENCIES, OTHER_FOLDS, LOGISTIC, TREES)
        if self.rows > MOST_ROWS:
            return (KNOWN, LOGISTIC, TREES)
        return (KNOWN, LOGISTIC, TREES, LIGHTGBM, ROBUST)


KINDS = (
    Kind("discrete, 2 loggers", 2_000, discrete=True),
    Kind("discrete, 5 loggers", 2_000, 5, 4, discrete=True),
    Kind("discrete, rare action", 2_000, discrete=True, rare=0.06),
    Kind("discrete, small", 300, discrete=True),
    Kind("numbers, 2 loggers", 2_000),
    Kind("numbers, 5 loggers", 2_000, 5, 4),
    Kind("numbers, rare action", 2_000, rare=0.06),
    Kind("numbers, small", 300),
    Kind("numbers, large", 20_000),
)


@dataclass(frozen=True)
class Problem:
    """Policies and rewards that are functions of the context.

    Attributes:
        kind: The kind of log.
        loggers: Slopes of the scores of each logger, shape (J, D, K).
        target: Slopes of the scores of the target, shape (D, K).
        effects: Slopes of the rewards, shape (D, K).
    """

    kind: Kind
    loggers: Array
    target: Array
    effects: Array

    def contexts(self, rng: np.random.Generator, rows: int) -> Array:
        """Return contexts, the first column a constant."""
        x = rng.normal(size=(rows, 3))
        if self.kind.discrete:
            first, second = rng.integers(4, size=rows), rng.integers(3, size=rows)
            x = np.column_stack([first / 1.5 - 1, second - 1.0, (first == second) * 1.0])
        return np.column_stack([np.ones(rows), x])

    def mixture(self, x: Array) -> Array:
        """Return the probability of each action under the mixture of the loggers."""
        lift = np.zeros(self.kind.actions)
        lift[0] = np.log(self.kind.rare)
        return np.asarray(
            np.mean([softmax(x @ slopes + lift) for slopes in self.loggers], axis=0)
        )

    def chance(self, x: Array) -> Array:
        """Return the mean reward of each action, shape (n, K)."""
        return np.asarray(1 / (1 + np.exp(0.5 - x @ self.effects)))

    def truth(self) -> tuple[float, float]:
        """Return the value of the target, and the value of what was played."""
        x = self.contexts(np.random.default_rng(1), CONTEXTS)
        chance = self.chance(x)
        policies = softmax(x @ self.target), self.mixture(x)
        target, played = (float((p * chance).sum(axis=1).mean()) for p in policies)
        return target, played

    def draw(self, rng: np.random.Generator) -> pa.Table:
        """Return a log, with the propensity of the mixture in a column of its own."""
        x = self.contexts(rng, self.kind.rows)
        mixture = self.mixture(x)
        action = (rng.random((len(x), 1)) > mixture.cumsum(axis=1)).sum(axis=1)
        rows = np.arange(len(x))
        reward = rng.random(len(x)) < self.chance(x)[rows, action]
        names = np.array([f"item{k}" for k in range(self.kind.actions)])
        columns: dict[str, Any] = {f"x{k}": x[:, k] for k in (1, 2, 3)}
        if self.kind.discrete:
            columns = {name: values.astype("U6") for name, values in columns.items()}
        columns |= {
            "item": names[action],
            "reward": reward * 1.0,
            "known": mixture[rows, action],
        }
        return pa.table(columns)


@dataclass(frozen=True)
class Target:
    """The target of a problem, as a policy.

    Attributes:
        problem: The problem.
    """

    problem: Problem

    @property
    def actions(self) -> list[str]:
        """Names of the actions."""
        return [f"item{k}" for k in range(self.problem.kind.actions)]

    def distribution(self, batch: pw.Batch) -> Array:
        """Return the probability of every action."""
        x = np.column_stack([batch[f"x{k}"].astype(np.float64) for k in (1, 2, 3)])
        return softmax(np.column_stack([np.ones(len(x)), x]) @ self.problem.target)

    def prob(self, batch: pw.Batch) -> Array:
        """Return the probability of the logged action."""
        place = {name: k for k, name in enumerate(self.actions)}
        played = np.array([place[name] for name in batch.action.tolist()])
        return np.asarray(self.distribution(batch)[np.arange(len(played)), played])


def softmax(scores: Array) -> Array:
    """Return probabilities that are proportional to exp(scores)."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def make_problem(kind: Kind) -> Problem:
    """Return the problem of a kind: contexts drive actions and rewards alike."""
    rng = np.random.default_rng([KINDS.index(kind), 29])
    shape = (4, kind.actions)
    effects = rng.normal(size=shape) * 0.5 + rng.normal(size=(4, 1)) * 0.5
    loggers = effects + rng.normal(size=(kind.loggers, *shape)) * 0.5
    return Problem(kind, loggers * 0.8, rng.normal(size=shape) * 0.6, effects)


def other_folds() -> object:
    """Return a classifier that gives the frequencies of the rows that it was fitted to."""
    from sklearn.calibration import CalibratedClassifierCV

    class Frequencies(CalibratedClassifierCV):  # type: ignore[misc]
        """Frequencies, of a type that poolwise takes as calibrated."""

        def fit(self, matrix: Array, code: NDArray[np.int64]) -> object:
            self.classes_, index = np.unique(code, return_inverse=True)
            self.counts: dict[bytes, Array] = {}
            for line, k in zip(matrix, index, strict=True):
                none = np.zeros(len(self.classes_))
                self.counts.setdefault(line.tobytes(), none)[k] += 1
            return self

        def predict_proba(self, matrix: Array) -> Array:
            none = np.ones(len(self.classes_))
            found = np.array([self.counts.get(line.tobytes(), none) for line in matrix])
            return np.asarray(found / found.sum(axis=1, keepdims=True))

    return Frequencies()


def make_log(table: pa.Table, way: str) -> tuple[pw.Log, object]:
    """Return the log as a user declares it, and a reward model."""
    roles: dict[str, Any] = {
        "reward": "reward",
        "action": "item",
        "context": ["x1", "x2", "x3"],
    }
    if way == KNOWN:
        return pw.Log(table, propensity="known", **roles), None
    roles |= {"propensities": "estimate", "confounders": "in-context"}
    if way == OTHER_FOLDS:
        roles["estimate_mixture"] = other_folds()
    if way == LOGISTIC:
        from sklearn.linear_model import LogisticRegression

        roles["estimate_mixture"] = LogisticRegression(max_iter=500)
    if way in {TREES, ROBUST}:
        from sklearn.ensemble import HistGradientBoostingClassifier

        roles["estimate_mixture"] = HistGradientBoostingClassifier(
            max_iter=50, max_leaf_nodes=15, early_stopping=False
        )
    if way == LIGHTGBM:
        from lightgbm import LGBMClassifier

        roles["estimate_mixture"] = LGBMClassifier(
            n_estimators=50, num_leaves=15, n_jobs=1, verbose=-1
        )
    model = None
    if way == ROBUST:
        from sklearn.ensemble import HistGradientBoostingRegressor

        model = HistGradientBoostingRegressor(max_iter=50, max_leaf_nodes=15)
    return pw.Log(table, **roles), model


def measure(kind: Kind, logs: int) -> Iterator[dict[str, object]]:
    """Yield error, width and coverage of each way, relative to the known mixture."""
    problem = make_problem(kind)
    value, played = problem.truth()
    target = Target(problem)
    best = 1.0
    for way in kind.ways:
        number = max(1, logs // SLOW) if way in {TREES, LIGHTGBM, ROBUST} else logs
        lines = []
        for seed in range(number):
            table = problem.draw(np.random.default_rng([KINDS.index(kind), seed, 31]))
            log, model = make_log(table, way)
            name = "calibrated" if model is None else "doubly-robust"
            found = pw.evaluate(log, {"new": target}, name, model=model, backtest=False)
            estimate, interval = found["new"].estimates[name], found["new"].intervals[name]
            gap = found.differences["new"]
            covers = (value in interval, value - played in gap.interval)
            lines.append((estimate.value - value, estimate.std_error, *covers))
        errors, widths, *covered = np.array(lines, dtype=np.float64).T
        error = float(np.sqrt((errors**2).mean()))
        best = error if way == KNOWN else best
        shares = [f"{part.mean():.3f}" for part in covered]
        numbers = (f"{error / best:.2f}", f"{widths.mean() / best:.2f}", *shares)
        yield dict(zip(FIELDS, (kind.name, way, number, kind.rows, *numbers), strict=True))


def main() -> None:
    """Measure the kinds, print and write them."""
    warnings.filterwarnings("ignore", message="X does not have valid feature names")
    logs = int(sys.argv[1]) if len(sys.argv) > 1 else LOGS
    lines = []
    for kind in KINDS:
        if kind.name in (sys.argv[2:] or [kind.name]):
            for line in measure(kind, logs):
                print("  ".join(f"{value!s:>12}" for value in line.values()), flush=True)
                lines.append(line)
    write(lines)


def read_lines() -> list[dict[str, str]]:
    """Return the stored lines."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(found: Sequence[Mapping[str, object]]) -> None:
    """Write the CSV and the table of the documentation; new lines replace old ones."""
    known: list[Mapping[str, object]] = [*read_lines(), *found]
    by_name = {(line["kind"], line["propensities"]): line for line in known}
    pairs = [(kind.name, way) for kind in KINDS for way in kind.ways]
    lines = [by_name[pair] for pair in pairs if pair in by_name]
    write_csv(RESULTS, FIELDS, [tuple(line.values()) for line in lines])
    head = (
        "log",
        "propensities",
        "logs",
        "error",
        "width",
        "covers the value",
        "the difference",
    )
    names = ("kind", "propensities", "logs", *FIELDS[4:])
    rows = [[str(line[name]) for name in names] for line in lines]
    write_part(DOCS / "without-propensities.md", "estimated", markdown(head, rows, 2))


if __name__ == "__main__":
    main()
