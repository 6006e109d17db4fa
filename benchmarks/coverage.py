"""Coverage of nominal 95% intervals: Student's and the skew-score interval.

Each cell draws logs of one problem and counts how often an interval covers the true value.
Rows are drawn as arrays (`benchmarks.draws`) and go through the package's own estimators,
intervals and comparisons.

Run: python -m benchmarks.coverage [logs per cell, 4000] [GROUP ...]
Prints the cells, writes docs/figures/coverage.csv, coverage.svg and the table of
docs/which-estimator.md; with groups, such as "paired", it replaces the lines of these only.
Easy problems have four times as many logs, for a standard error below 0.002; logs with twenty
targets are a quarter.
"""

from __future__ import annotations

import csv
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.draws import Array, Drawing, draw, draw_clustered
from benchmarks.families import FAMILIES, draw_problem
from poolwise.estimators.calibrated import Calibrated, SelfNormalised
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.evaluation.spread import Candidates, unite_targets
from poolwise.intervals.simultaneous import SYMMETRIC
from poolwise.intervals.skew import auto_interval, interval_needs, reaching
from poolwise.intervals.student import Limits, student
from poolwise.moments.buckets import jackknife
from poolwise.moments.coverage import Coverage
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_WEIGHT, unite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from poolwise.engines.exact import FiniteProblem
    from poolwise.intervals.student import Interval
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.terms import Needs

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
LOGS, LEVEL = 4_000, 0.95
START, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
ESTIMATORS: tuple[Estimator, ...] = (
    Balanced(),
    Calibrated(),
    SelfNormalised(),
    Weighted(),
    Naive(),
)
ALL = {"hard"}  # groups of cells with every estimator, not two
FREE = Limits(rows=1)
DIRECTIONS = 5_000  # of the max-T distribution in each log


@dataclass(frozen=True)
class Cell:
    """One kind of log.

    Attributes:
        group: Line of the table that the cell belongs to.
        family: Family of the problem.
        seed: Seed of the problem.
        rows: Rows of each log.
        rewarded: Expected number of rewarded rows; 0 leaves the problem as it is.
        tail: Standard deviation of the logarithm of a factor on each reward.
        users: Users with an effect on the rewards of their rows; 0 for independent rows.
        targets: Targets that are compared; 0 for the value of one.
    """

    group: str
    family: str
    seed: int
    rows: int
    rewarded: float = 0.0
    tail: float = 0.0
    users: int = 0
    targets: int = 0


CELLS = [
    *(Cell("hard", "B mixed", seed, 300) for seed in (2, 3, 6)),
    Cell("hard", "C far", 10, 300),
    Cell("heavy tail", "C far", 4, 300),
    Cell("not claimed", "B mixed", 9, 300),
    Cell("not claimed", "C far", 1, 300),
    *(Cell("easy", "B mixed", seed, 300) for seed in (1, 4)),
    *(Cell("easy", "F floor", seed, 300) for seed in (1, 5)),
    *(Cell("1,000 rows", "F floor", seed, 1000) for seed in (1, 5)),
    Cell("1,000 rows", "B mixed", 1, 1000),
    *(Cell("families", family, 7, 300) for family in FAMILIES),
    *(Cell(f"{k} rewarded", "F floor", 1, 1000, rewarded=k) for k in (3, 10, 30)),
    *(Cell("lognormal", "B mixed", 1, 300, tail=tail) for tail in (0.5, 1.0, 1.5)),
    *(Cell(f"{u} users", "F floor", 1, 20 * u, users=u) for u in (40, 100, 1000)),
    *(Cell("paired", family, 1, 300, targets=2) for family in ("A near", "D many", "F floor")),
    Cell("paired", "B mixed", 1, 300, targets=2),
    *(Cell(f"{k} targets", "F floor", 1, 1000, targets=k) for k in (5, 20)),
]


def problem_of(cell: Cell) -> FiniteProblem:
    """The problem of a cell, with rarer rewards where these are wanted."""
    problem = draw_problem(FAMILIES[cell.family], cell.rows, np.random.default_rng(cell.seed))
    if not cell.rewarded:
        return problem
    rows = sum(problem.counts.values())
    joint = problem.context_prob[:, None] * problem.mixture
    reward = problem.reward * cell.rewarded / (rows * float((joint * problem.reward).sum()))
    return replace(problem, reward=reward, reward_variance=reward * (1 - reward))


def needs_for(problem: FiniteProblem, estimators: Sequence[Estimator] = ESTIMATORS) -> Needs:
    """Moments that the estimators and their intervals need."""
    loggers = tuple(problem.loggers)
    own = unite(e.needs(Coverage.complete(loggers)) for e in estimators)
    return own | interval_needs(own, loggers)


def measured(cell: Cell, logs: int) -> Iterator[dict[str, object]]:
    """Coverage of one cell, a line for each estimator."""
    if cell.targets:
        yield compared(cell, logs)
        return
    problem = problem_of(cell)
    estimators = ESTIMATORS if cell.group in ALL else ESTIMATORS[:2]
    writers = Drawing(problem, needs_for(problem, estimators), tail=cell.tail).writers()
    rng = np.random.default_rng([20170813, cell.seed, cell.rows, cell.users])
    totals = {e.name: np.zeros((2, 4)) for e in estimators}
    effective, used = 0.0, 0
    while used < logs:
        if cell.users:
            pool = Pool(None, draw_clustered(writers, rng, cell.users, effect=0.3))
        else:
            pool = Pool(draw(writers, rng))
        used += 1
        effective += pool.together.effective(BALANCED_WEIGHT)
        for estimator in estimators:
            estimate = jackknife(estimator, pool) if cell.users else estimator.estimate(pool)
            if not estimate.variance > 0:  # no reward was drawn: nothing can be said
                used -= 1
                break
            skewed, _ = auto_interval(estimate, pool, LEVEL, FREE)
            for k, interval in enumerate((student(estimate, LEVEL), skewed)):
                totals[estimator.name][k] += outcome(interval, problem.value)
    for name, (by_student, by_skew) in totals.items():
        yield line(cell, name, used, effective / used, by_student / used, by_skew / used)


def outcome(interval: Interval, value: float) -> Array:
    """Covered, value below the interval, value above it, and width."""
    width = interval.upper - interval.lower
    below, above = value < interval.lower, value > interval.upper
    return np.array([not (below or above), below, above, width], dtype=np.float64)


def line(
    cell: Cell,
    estimator: str,
    logs: int,
    effective: float,
    by_student: Array,
    by_skew: Array,
) -> dict[str, object]:
    """One line of the table."""
    return {
        "group": cell.group,
        "family": cell.family,
        "seed": cell.seed,
        "rows": cell.rows,
        "estimator": estimator,
        "logs": logs,
        "effective": round(effective),
        "student": round(float(by_student[0]), 4),
        "skew": round(float(by_skew[0]), 4),
        "below": round(float(by_skew[1]), 4),
        "above": round(float(by_skew[2]), 4),
        "width": round(float(by_skew[3] / by_student[3]), 3) if by_student[3] else "",
    }


def compared(cell: Cell, logs: int) -> dict[str, object]:
    """Coverage of the differences of all pairs of targets together, calibrated."""
    problem = problem_of(cell)
    targets = {f"t{k}": policy for k, policy in enumerate(policies(problem, cell.targets))}
    joint = problem.context_prob[:, None] * problem.reward
    values = {name: float((joint * policy).sum()) for name, policy in targets.items()}
    pairs = list(combinations(targets, 2))
    gaps = np.array([values[one] - values[two] for one, two in pairs])
    estimator, loggers = Calibrated(), tuple(problem.loggers)
    own = estimator.needs(Coverage.complete(loggers))
    own |= interval_needs(own, loggers)
    needs = unite(
        [
            unite_targets(own, list(targets), Coverage.complete(loggers)),
            *(own.bind(t) for t in targets),
        ]
    )
    writers = Drawing(problem, needs, targets).writers()
    rng = np.random.default_rng([20170813, cell.seed, cell.rows, cell.targets])
    totals, effective = np.zeros((2, 4)), 0.0
    for _ in range(logs):
        moments = Pool(draw(writers, rng))
        estimates, reaches = {}, {}
        for name in targets:
            terms = {t: t.bind(name) for t in own.terms}
            view = moments.select(terms)
            estimates[name] = estimator.estimate(view)
            reaches[name] = reaching(estimates[name], view, FREE)
        effective += moments.together.effective(BALANCED_WEIGHT.bind("t0")) / logs
        spread = Candidates(estimates, moments, reaches=reaches).differences(pairs)
        critical = spread.together(rng, DIRECTIONS).critical(LEVEL)
        plain = replace(spread, shape=SYMMETRIC, stretch=np.ones(()), sides=())
        for k, each in enumerate((plain, spread)):
            lower, upper = each.limits(critical)
            below, above = (gaps < lower).any(), (gaps > upper).any()
            width = float((upper - lower).mean())
            totals[k] += [not (below or above), below, above, width]
    return line(cell, "calibrated", logs, effective, *(totals / logs))


def policies(problem: FiniteProblem, number: int) -> list[Array]:
    """The target, and mixtures of it with the loggers, each in another proportion."""
    loggers = list(problem.loggers.values())
    shares = [0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875]
    mixed = [(1 - a) * problem.target + a * logger for a in shares for logger in loggers]
    return [problem.target, *mixed][:number]


def chart(lines: list[dict[str, object]], path: Path) -> None:
    """Coverage against effective rows, Student's beside the skew-score interval."""
    import altair as alt

    pooling = {"balanced", "calibrated"}  # whose rows are worth that many
    single = [row for row in lines if row["group"] in SHOWN and row["estimator"] in pooling]
    data = [
        {"effective": row["effective"], "coverage": row[kind], "interval": label}
        for row in single
        for kind, label in (("student", "Student"), ("skew", "skew-score"))
    ]
    points = (
        alt.Chart(alt.InlineData(values=data))
        .mark_point(filled=True, size=60, opacity=0.8)
        .encode(
            x=alt.X(
                "effective:Q",
                scale=alt.Scale(type="log", nice=False),
                title="effective sample size (rows)",
            ),
            y=alt.Y(
                "coverage:Q",
                scale=alt.Scale(domain=[0.78, 1.0]),
                title="coverage of nominal 95% intervals",
            ),
            color=alt.Color("interval:N", title=None),
            shape=alt.Shape("interval:N", title=None),
        )
    )
    rule = alt.Chart(alt.InlineData(values=[{"level": LEVEL}])).mark_rule(strokeDash=[4, 4])
    (points + rule.encode(y="level:Q")).properties(width=520, height=300).save(path)


SHOWN = {"hard", "heavy tail", "not claimed", "easy", "1,000 rows", "families", "lognormal"}


def table(lines: list[dict[str, object]]) -> str:
    """The table of the documentation: a line for each group of cells and estimator."""
    text = [
        (
            "| cells | estimator | logs | Student, mean (lowest) | skew-score, mean (lowest) "
            "| below / above | width |"
        ),
        "|---|---|--:|---|---|---|--:|",
    ]
    kinds = dict.fromkeys((row["group"], row["estimator"]) for row in lines)
    for group, estimator in kinds:
        cells = [r for r in lines if (r["group"], r["estimator"]) == (group, estimator)]

        def numbers(name: str, cells: list[dict[str, object]] = cells) -> Array:
            return np.array([float(str(row[name])) for row in cells])

        shown = [
            f"{numbers(kind).mean():.3f} ({numbers(kind).min():.3f})"
            for kind in ("student", "skew")
        ]
        missed = " / ".join(f"{numbers(side).mean():.3f}" for side in ("below", "above"))
        logs, width = int(numbers("logs").min()), numbers("width").mean()
        columns = [str(group), str(estimator), f"{logs:,}", *shown, missed, f"{width:.2f}"]
        text.append(f"| {' | '.join(columns)} |")
    return "\n".join(text)


def write(lines: list[dict[str, object]]) -> None:
    """Write the CSV, the chart, and the table of the documentation."""
    with (FIGURES / "coverage.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    chart(lines, FIGURES / "coverage.svg")
    page = FIGURES.parent / "which-estimator.md"
    head, rest = page.read_text(encoding="utf-8").split(START)
    tail = rest.split(END)[1]
    page.write_text(f"{head}{START}\n{table(lines)}\n{END}{tail}", encoding="utf-8")


def logs_of(cell: Cell, logs: int) -> int:
    """Logs of a cell: more where limits are near, fewer of twenty targets, which take long."""
    if cell.group == "easy":
        return logs * 4
    return logs // 4 if cell.targets == 20 else logs


def _work(job: tuple[Cell, int]) -> list[dict[str, object]]:
    return list(measured(*job))


def main() -> None:
    """Measure the cells, print and write them."""
    logs = int(sys.argv[1]) if len(sys.argv) > 1 else LOGS
    groups = sys.argv[2:] or [cell.group for cell in CELLS]
    cells = [cell for cell in CELLS if cell.group in groups]
    lines = [row for row in kept() if row["group"] not in groups]
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(_work, [(cell, logs_of(cell, logs)) for cell in cells]):
            for row in found:
                print("  ".join(f"{value!s:>10}" for value in row.values()), flush=True)
            lines += found
    order = [cell.group for cell in CELLS]
    write(sorted(lines, key=lambda row: order.index(str(row["group"]))))


def kept() -> list[dict[str, object]]:
    """Read the lines of an earlier run."""
    with (FIGURES / "coverage.csv").open(newline="", encoding="utf-8") as file:
        return [dict(row) for row in csv.DictReader(file)]


if __name__ == "__main__":
    main()
