"""Coverage where policies learn from their own logs: one new policy each period.

A bandit with five contexts and four actions is logged for 10 or 30 periods.  Each period has
a new epsilon-greedy or Thompson policy, trained on all earlier rows, with or without 20%
concurrent control traffic.  Two targets are evaluated by the package, end to end: a nearly
optimal policy, and one that is unlike all of them.  In four settings `period-dr` is measured
too, with a reward model of earlier periods.

Run: python -m benchmarks.periods [LOGS]; writes docs/figures/periods.csv and the table in
docs/periods.md.  Parts that the CSV file has are not computed again.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from sklearn.tree import DecisionTreeRegressor

from poolwise.engines.kernel import Kernel
from poolwise.engines.sums import to_moments
from poolwise.engines.workspace import Workspace
from poolwise.estimators.ips import Weighted
from poolwise.estimators.period import PeriodBalanced
from poolwise.evaluation.evaluate import evaluate
from poolwise.intervals.skew import auto_interval, interval_needs
from poolwise.intervals.student import Limits
from poolwise.log.log import Log
from poolwise.moments.coverage import Coverage
from poolwise.moments.pool import Cell, Pool
from poolwise.moments.terms import Needs, unite
from poolwise.rows.layout import Layout, period_shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from poolwise.intervals.student import Interval
    from poolwise.log.policy import Batch
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.types import AnyArray, FloatArray

    Outcomes = dict[tuple[str, str], tuple[Estimate, Interval]]

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
PAGE = FIGURES.parent / "periods.md"
START, END = "<!-- periods: begin -->", "<!-- periods: end -->"
CONTEXTS, ACTIONS = 5, 4
EPSILON = 0.1  # part of uniform exploration in every learned policy
CONTROL = 0.2  # share of the rows that the control policy writes
DRAWS = 300  # of a posterior, for the probabilities of a Thompson policy
LOGS = 1_000
FIRST = 50_000  # seed of the first log: estimator and interval were chosen on logs below
SIZES = tuple(product((10, 30), (50, 200, 500)))  # periods, rows of each
PART = 250  # logs that are measured at once
KEYS = ("algorithm", "control", "periods", "rows")
COLUMNS = (
    *(*KEYS, "target", "estimator", "first", "logs"),
    *("error", "squared_error", "coverage", "width"),
)
ESTIMATORS: dict[str, Estimator] = {
    "period-balanced": PeriodBalanced(),
    "weighted-reward-free": Weighted(divergence="reward-free"),
}
MAIN, WITH_MODEL = "period-balanced", "period-dr"
Line = dict[str, str]


@dataclass(frozen=True)
class Setting:
    """How a log is written.

    Attributes:
        algorithm: "greedy" or "thompson".
        control: Share of control traffic.
        periods: Number of periods.
        rows: Rows of each period.
    """

    algorithm: str
    control: float
    periods: int
    rows: int

    def log(self, seed: int) -> Log:
        """Return one log."""
        columns = self.columns(np.random.default_rng([seed, self.periods, self.rows]))
        return Log(
            pa.table(columns),
            logger="logger",
            reward="reward",
            propensities={label: f"p_{label}" for label in self.labels},
            period="period",
            action="action",
            context=["context"],
        )

    @property
    def labels(self) -> list[str]:
        """Labels of all loggers."""
        return [f"v{d:02}" for d in range(self.periods)] + ["control"] * bool(self.control)

    def live(self, period: int) -> dict[str, int]:
        """Return the rows of each logger of a period."""
        controlled = round(self.control * self.rows)
        rows = {f"v{period:02}": self.rows - controlled, "control": controlled}
        return {label: count for label, count in rows.items() if count}

    def columns(self, rng: np.random.Generator) -> dict[str, AnyArray]:
        """Return the columns of one log."""
        tried, earned = np.zeros((CONTEXTS, ACTIONS)), np.zeros((CONTEXTS, ACTIONS))
        uniform = np.full((CONTEXTS, ACTIONS), 1 / ACTIONS)
        controlled = np.arange(self.rows) < round(self.control * self.rows)
        policies: list[FloatArray] = []
        parts = []
        for _ in range(self.periods):
            policy = self._learned(tried, earned, rng) if policies else uniform
            context = rng.integers(0, CONTEXTS, self.rows)
            probs = np.where(controlled[:, None], 1 / ACTIONS, policy[context])
            action = (probs.cumsum(axis=1) > rng.random((self.rows, 1))).argmax(axis=1)
            reward = (rng.random(self.rows) < REWARD[context, action]).astype(float)
            np.add.at(tried, (context, action), 1.0)
            np.add.at(earned, (context, action), reward)
            policies.append(policy)
            parts.append((context, action, reward))
        context, action, reward = (np.concatenate(part) for part in zip(*parts, strict=True))
        period = np.repeat(np.arange(self.periods), self.rows)
        labels = np.array([f"v{d:02}" for d in range(self.periods)])
        known = dict(zip(labels.tolist(), policies, strict=True))
        known |= {"control": uniform} if self.control else {}
        lone = np.tile(controlled, self.periods)
        return {
            "period": period,
            "logger": np.where(lone, "control", labels[period]),
            "reward": reward,
            "context": context,
            "action": action,
            **{f"p_{label}": p[context, action] for label, p in known.items()},
            **{f"t_{name}": t[context, action] for name, t in TARGETS.items()},
        }

    def _learned(
        self, tried: FloatArray, earned: FloatArray, rng: np.random.Generator
    ) -> FloatArray:
        """Return the policy that the rows so far lead to."""
        if self.algorithm == "greedy":
            best = ((earned + 0.5) / (tried + 1)).argmax(axis=1)
            choice = np.eye(ACTIONS)[best]
        else:
            shape = (DRAWS, CONTEXTS, ACTIONS)
            drawn = rng.beta(1 + earned, 1 + tried - earned, shape).argmax(axis=2)
            choice = np.stack([(drawn == a).mean(axis=0) for a in range(ACTIONS)], axis=1)
        mixed: FloatArray = (1 - EPSILON) * choice + EPSILON / ACTIONS
        return mixed


def _targets() -> dict[str, FloatArray]:
    """Return a nearly optimal policy, and one that is unlike the logged ones."""
    best = 0.9 * np.eye(ACTIONS)[REWARD.argmax(axis=1)] + 0.1 / ACTIONS
    other = np.random.default_rng(3).dirichlet(np.ones(ACTIONS), CONTEXTS)
    return {"best": best, "other": other}


REWARD = np.random.default_rng(7).uniform(0.1, 0.6, (CONTEXTS, ACTIONS))
TARGETS = _targets()
TRUTH = {name: float((t * REWARD).sum(axis=1).mean()) for name, t in TARGETS.items()}
SETTINGS = [
    Setting(algorithm, control, periods, rows)
    for (periods, rows), algorithm, control in product(
        SIZES, ("greedy", "thompson"), (0.0, CONTROL)
    )
]


MODELLED = [s for s in SETTINGS if (s.periods, s.rows) == (10, 200)]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Parts of the pass that all logs of a setting share."""

    cells: tuple[Cell, ...]
    layout: Layout
    needs: Needs
    workspace: Workspace
    kernel: Kernel


@cache
def prepared(setting: Setting) -> Prepared:
    """Return the layout of the logs of a setting, and the kernel that sums them."""
    labels, days = tuple(setting.labels), range(setting.periods)
    counts = {Cell(str(d), i, d): n for d in days for i, n in setting.live(d).items()}
    rows = {i: sum(n for c, n in counts.items() if c.logger == i) for i in labels}
    layout = Layout(
        loggers=labels,
        crossed=labels,
        shares=tuple(rows[i] / sum(rows.values()) for i in labels),
        targets=tuple(TARGETS),
        propensity=False,
        cells=tuple(counts),
        period_shares=period_shares(counts, labels),
    )
    own = [e.needs(Coverage.complete(labels, counts)) for e in ESTIMATORS.values()]
    needs = unite(n | interval_needs(n, labels) for n in own)
    workspace = Workspace(unite(needs.bind(name) for name in TARGETS))
    return Prepared(tuple(counts), layout, needs, workspace, Kernel(layout, workspace))


def intervals_of(setting: Setting, seed: int) -> Outcomes:
    """Return estimate and interval of each target and estimator, from one log in memory.

    It takes the path of an evaluation without the query that counts rows, the diagnosis and
    the comparison; `checked` compares it with an evaluation.
    """
    shared = prepared(setting)
    columns = setting.columns(np.random.default_rng([seed, setting.periods, setting.rows]))
    names = {f"p_{k}": f"p_{label}" for k, label in enumerate(setting.labels)}
    names |= {f"t_{k}": f"t_{name}" for k, name in enumerate(TARGETS)} | {"reward": "reward"}
    number = {(c.period, c.logger): k for k, c in enumerate(shared.cells)}
    pairs = zip(columns["period"].tolist(), columns["logger"].tolist(), strict=True)
    codes = np.array([number[str(d), i] for d, i in pairs])
    sums = shared.kernel.together([(codes, {k: columns[v] for k, v in names.items()})])
    moments = to_moments(sums, shared.workspace, shared.cells)
    pool = Pool(moments, loggers=setting.labels)
    limits = Limits(rows=len(codes), reward_range=None, largest_weight=1.0)
    results = {}
    for target in TARGETS:
        view = pool.select({term: term.bind(target) for term in shared.needs.terms})
        views = {True: view, False: view.by_logger}
        for name, estimator in ESTIMATORS.items():
            mine = views[name.startswith("period")]
            estimate = estimator.estimate(mine)
            interval, _ = auto_interval(estimate, mine, 0.95, limits)
            results[target, name] = estimate, interval
    return results


def checked(setting: Setting, seed: int) -> None:
    """Raise ValueError unless an evaluation of the log gives the same numbers."""
    named = {name: f"t_{name}" for name in TARGETS}
    evaluation = evaluate(setting.log(seed), named, list(ESTIMATORS.values()))
    for (target, name), (estimate, interval) in intervals_of(setting, seed).items():
        result = evaluation[target]
        ours = estimate.value, estimate.variance, interval.lower, interval.upper
        other = result.estimates[name], result.intervals[name]
        theirs = other[0].value, other[0].variance, other[1].lower, other[1].upper
        if not np.allclose(ours, theirs, rtol=1e-9):
            raise ValueError(f"{name} of {target}: {ours} in memory, {theirs} evaluated")


@dataclass(frozen=True, eq=False)
class Choices:
    """A target as a policy in Python, whose probabilities of all actions a model needs."""

    probs: FloatArray
    actions: tuple[int, ...] = tuple(range(ACTIONS))

    def prob(self, batch: Batch) -> FloatArray:
        """Return the probability of each row's action."""
        chosen: FloatArray = self.probs[batch.columns["context"], batch.action]
        return chosen

    def distribution(self, batch: Batch) -> FloatArray:
        """Return the probability of every action."""
        every: FloatArray = self.probs[batch.columns["context"]]
        return every


def with_model(setting: Setting, seed: int) -> Outcomes:
    """Evaluate one log with a reward model that is fitted to earlier periods."""
    policies = {name: Choices(probs) for name, probs in TARGETS.items()}
    model = DecisionTreeRegressor(min_samples_leaf=10, random_state=0)
    evaluation = evaluate(setting.log(seed), policies, WITH_MODEL, model=model)
    return {
        (name, WITH_MODEL): (result.estimates[WITH_MODEL], result.intervals[WITH_MODEL])
        for name, result in evaluation.targets.items()
    }


def measured(
    setting: Setting, first: int, logs: int, *, modelled: bool = False
) -> Iterator[Line]:
    """Evaluate some logs of a setting; yield one line for each target and estimator."""
    if not modelled:
        checked(setting, first)
    evaluated = with_model if modelled else intervals_of
    errors: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for seed in range(first, first + logs):
        for (target, name), (estimate, interval) in evaluated(setting, seed).items():
            truth = TRUTH[target]
            covered = float(interval.lower <= truth <= interval.upper)
            outcome = (estimate.value - truth, covered, interval.upper - interval.lower)
            errors.setdefault((target, name), []).append(outcome)
    for (target, name), outcomes in errors.items():
        error, covers, width = np.array(outcomes).T
        numbers = {
            "error": error.mean(),
            "squared_error": np.mean(error**2),
            "coverage": covers.mean(),
            "width": width.mean(),
        }
        keys = {**vars(setting), "target": target, "estimator": name}
        keys |= {"first": first, "logs": logs}
        yield {k: str(v) for k, v in keys.items()} | {k: f"{v:.8g}" for k, v in numbers.items()}


def replicated(path: Path, logs: int, settings: Sequence[Setting]) -> list[Line]:
    """Measure the parts that the file lacks, and append them to it."""
    lines: list[Line] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    done = {tuple(line[k] for k in (*KEYS, "first", "estimator")) for line in lines}
    parts = [(s, first, MAIN) for first in range(FIRST, FIRST + logs, PART) for s in settings]
    parts += [(s, first, WITH_MODEL) for s, first, _ in parts if s in MODELLED]
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not lines:
            writer.writeheader()
        for setting, first, name in parts:
            if (*map(str, vars(setting).values()), str(first), name) not in done:
                fresh = list(measured(setting, first, PART, modelled=name == WITH_MODEL))
                writer.writerows(fresh)
                file.flush()
                lines += fresh
    return lines


@dataclass(frozen=True)
class Summary:
    """Results of one estimator in one problem, over all parts.

    Attributes:
        logs: Number of logs.
        coverage: Share of intervals that contain the true value.
        relative: Root mean squared error over that of reward-free weighted.
        bias: Mean error, in standard deviations of the estimate.
    """

    logs: int
    coverage: float
    relative: float
    bias: float


def summaries(lines: Iterable[Line], name: str) -> dict[tuple[str, ...], Summary]:
    """Return the results of an estimator by setting and target."""
    parts: dict[tuple[str, ...], dict[str, Line]] = {}
    for line in lines:
        key = tuple(line[k] for k in (*KEYS, "target", "estimator"))
        parts.setdefault(key, {})[line["first"]] = line
    results = {}
    for key, own in parts.items():
        if key[-1] != name:
            continue
        rival = parts[(*key[:-1], "weighted-reward-free")]
        theirs = _mean([rival[first] for first in own], "squared_error")
        error, square = (_mean(own.values(), k) for k in ("error", "squared_error"))
        results[key[:-1]] = Summary(
            logs=sum(int(line["logs"]) for line in own.values()),
            coverage=_mean(own.values(), "coverage"),
            relative=(square / theirs) ** 0.5,
            bias=error / (square - error**2) ** 0.5,
        )
    return results


def _mean(lines: Iterable[Line], column: str) -> float:
    pairs = [(float(line[column]), int(line["logs"])) for line in lines]
    return sum(value * logs for value, logs in pairs) / sum(logs for _, logs in pairs)


def table(lines: Iterable[Line]) -> str:
    """Return the table of the guide: one line for each number of periods and of rows."""
    listed = list(lines)
    texts = [
        "| estimator | periods | rows | logs | covers | relative error | at most 1 | bias |",
        "|---|---:|---:|---:|---|---|---|---|",
    ]
    for name in (MAIN, WITH_MODEL):
        of_name = summaries(listed, name)
        for periods, rows in SIZES:
            mine = [s for key, s in of_name.items() if key[2:4] == (str(periods), str(rows))]
            if not mine:
                continue
            below = sum(s.relative <= 1 for s in mine)
            spans = [
                f"{min(values):{form}} to {max(values):{form}}"
                for values, form in (
                    ([s.coverage for s in mine], ".3f"),
                    ([s.relative for s in mine], ".2f"),
                    ([s.bias for s in mine], ".2f"),
                )
            ]
            cells = [name, periods, rows, f"{min(s.logs for s in mine):,}", *spans[:2]]
            cells += [f"{below} of {len(mine)}", spans[2]]
            texts.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(texts)


def write_table(page: Path, text: str) -> None:
    """Replace the table of the guide."""
    before, _, rest = page.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{START}\n{text}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    every = replicated(FIGURES / "periods.csv", int([*sys.argv, str(LOGS)][1]), SETTINGS)
    write_table(PAGE, table(every))
