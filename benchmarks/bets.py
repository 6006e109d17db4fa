"""Bets on blocks: width against bets on rows, and coverage at every block end.

Fixed logs are those of the families; their rows are cut into random blocks, and go through
the package's own weights, histograms and bets.  Rivals on the same rows: bets on single rows
with own weights (`benchmarks.row_bets`), and the smoothed bound.  Adaptive logs have a new
policy in each period, trained on all earlier ones.  Early logs have little overlap in the first
period and much in later ones.  Coverage means that no block end rejects the true value, in
either direction, at an error of 5% together.

Run: python -m benchmarks.bets [logs per problem, 50] [adaptive or early logs, 1000]
Prints the tables and writes docs/figures/bets.csv and the tables of docs/watch.md.
"""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks.families import FAMILIES, draw_problem, softmax
from benchmarks.row_bets import betting
from poolwise.engines.blocks import BlockKernel, cut_blocks
from poolwise.evaluation.state import HORIZONS
from poolwise.intervals.betting import Bets
from poolwise.intervals.guarantees import list_payoffs
from poolwise.intervals.smoothed import SCALES, smoothed_bound
from poolwise.moments.blocks import BLOCK_BINS, Blocks, Payoff, Settled
from poolwise.moments.tallies import MOST_BUCKETS, hash_buckets
from poolwise.rows.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from poolwise.engines.exact import FiniteProblem

Array = NDArray[np.float64]
Line = dict[str, object]
DOCS = Path(__file__).parent.parent / "docs"
START, END = "<!-- bets: begin -->", "<!-- bets: end -->"
LEVEL, ERROR, LIMITS = 0.95, 0.025, (0.0, 1.0)
PROBLEMS = 12
SIZES = (300, 2_000)
CONTEXTS, ACTIONS = 5, 4
PERIODS, PERIOD_ROWS = 20, 60
EARLY, LATER = 9_000, (10_000,) * 3  # rows of the first period and of later ones
FARS = (0.5, 2.0)  # distance of the first policy from the target; later ones 0.5


@dataclass(frozen=True, eq=False)
class Drawn:
    """Rows of one log: codes of loggers, rewards, and probabilities of target and loggers."""

    logger: NDArray[np.int64]
    reward: Array
    target: Array
    probs: Array  # shape (loggers, rows)


def drawn(problem: FiniteProblem, rng: np.random.Generator) -> Drawn:
    """Draw a log, in random order."""
    labels = list(problem.loggers)
    logger = np.repeat(np.arange(len(labels)), [problem.counts[i] for i in labels])
    logger = rng.permutation(logger)
    context = rng.choice(len(problem.context_prob), size=len(logger), p=problem.context_prob)
    policies = np.stack([problem.loggers[i] for i in labels])
    below = np.cumsum(policies[logger, context], axis=1)
    action = np.minimum(
        (rng.random(len(logger))[:, None] > below).sum(axis=1), below.shape[1] - 1
    )
    reward = (rng.random(len(logger)) < problem.reward[context, action]).astype(np.float64)
    return Drawn(logger, reward, problem.target[context, action], policies[:, context, action])


def settled(log: Drawn, payoffs: Sequence[Payoff], against: int = 0) -> Settled:
    """Histograms of random blocks, by the code of the engines; "old" is one of the loggers."""
    labels = tuple(map(str, range(len(log.probs))))
    layout = Layout(labels, labels, (), ("new", "old"), propensity=False, buckets=MOST_BUCKETS)
    groups = hash_buckets(np.arange(1, len(log.logger) + 1)) * len(labels) + log.logger
    size = MOST_BUCKETS * len(labels)
    buckets = np.bincount(groups, minlength=size).reshape(MOST_BUCKETS, -1)
    kernel = BlockKernel(layout, cut_blocks(buckets), tuple(payoffs), pooled=True)
    columns = {"reward": log.reward, "t_0": log.target, "t_1": log.probs[against]}
    columns |= {f"p_{k}": prob for k, prob in enumerate(log.probs)}
    return kernel.settled(kernel(groups, columns))


def block_bets(log: Drawn) -> tuple[Bets, Bets]:
    """Bets on gains and on losses."""
    sums = settled(log, list_payoffs("new", LIMITS)).sums
    gains, losses = (Bets(h, ERROR, len(sums.counts)) for h in sums.histograms)
    return gains, losses


def covers(bets: tuple[Bets, Bets], value: float) -> bool:
    """Test that no block end rejects the value."""
    limit = math.log(1 / ERROR)
    return all(
        bool(b.log_capital(v).max() < limit)
        for b, v in zip(bets, (value, 1 - value), strict=True)
    )


def row_width(log: Drawn) -> float:
    """Width of the interval by bets on rows, with own weights."""
    own = log.target / log.probs[log.logger, np.arange(len(log.logger))]
    gains, losses = own * log.reward, own * (1 - log.reward)
    mirrored = [(log.logger, losses)]
    interval = betting([(log.logger, gains)], LEVEL, mirrored=mirrored, upper_bound=1.0)
    return interval.upper - interval.lower


def smoothed_width(log: Drawn) -> float:
    """Width of the smoothed interval, from balanced weights."""
    shares = np.bincount(log.logger, minlength=len(log.probs)) / len(log.logger)
    weight = log.target / (shares @ log.probs)
    ends = []
    for values in (weight * log.reward, weight * (1 - log.reward)):
        sums = np.array([np.log1p(values / s).sum() for s in SCALES])
        ends.append(smoothed_bound(sums, len(values), ERROR))
    return 1 - sum(ends)


def fixed(family: str, rows: int, logs: int) -> Line:
    """Median widths relative to bets on rows, over problems, and coverage."""
    block, smooth, covered = [], [], 0
    for seed in range(PROBLEMS):
        problem = draw_problem(FAMILIES[family], rows, np.random.default_rng(500 + seed))
        value = float((problem.context_prob[:, None] * problem.target * problem.reward).sum())
        rng = np.random.default_rng([20170813, seed, rows])
        widths = []
        for _ in range(logs):
            log = drawn(problem, rng)
            bets = block_bets(log)
            covered += covers(bets, value)
            width = 1 - bets[0].lower() - bets[1].lower()
            widths.append((row_width(log), width, smoothed_width(log)))
        old, new, other = np.median(widths, axis=0)
        block.append(new / old)
        smooth.append(other / old)
    return {
        "kind": "fixed",
        "name": family,
        "rows": rows,
        "logs": PROBLEMS * logs,
        "width": float(np.median(block)),
        "widest": float(np.max(block)),
        "smoothed": float(np.median(smooth)),
        "coverage": covered / (PROBLEMS * logs),
    }


def learned(
    kind: str, count: Array, reward: Array, rng: np.random.Generator
) -> NDArray[np.float64]:
    """A policy learned from numbers and sums of rewards of each context and action."""
    if kind == "greedy":
        mean = (reward + 0.5) / (count + 1)
        best = np.eye(ACTIONS)[mean.argmax(axis=1)]
        return np.asarray(0.9 * best + 0.1 / ACTIONS)
    draws = rng.beta(1 + reward, 1 + count - reward, size=(200, CONTEXTS, ACTIONS))
    best = np.eye(ACTIONS)[draws.argmax(axis=2)].mean(axis=0)
    return np.asarray(0.95 * best + 0.05 / ACTIONS)


def adaptive_log(
    kind: str, control: float, target: Array, chance: Array, rng: np.random.Generator
) -> list[Blocks]:
    """Gains and losses of the target, of the control policy and of their difference, by period.

    A new policy is live in each period, and the uniform one on a share of the rows; differences
    are raised by one over this share.
    """
    count, total = np.zeros((2, CONTEXTS, ACTIONS))
    policy = np.full((CONTEXTS, ACTIONS), 1 / ACTIONS)
    uniform = policy.copy()
    share = round(control * PERIOD_ROWS) / PERIOD_ROWS
    of_control = np.arange(PERIOD_ROWS)[:, None] < share * PERIOD_ROWS
    periods = []
    for _ in range(PERIODS):
        context = rng.integers(0, CONTEXTS, PERIOD_ROWS)
        live = np.where(of_control, uniform[context], policy[context])
        action = (rng.random(PERIOD_ROWS)[:, None] > live.cumsum(axis=1)).sum(axis=1)
        action = np.minimum(action, ACTIONS - 1)
        reward = (rng.random(PERIOD_ROWS) < chance[context, action]).astype(np.float64)
        mixture = (share * uniform + (1 - share) * policy)[context, action]
        ratios = target[context, action] / mixture, uniform[context, action] / mixture
        weights = [*ratios, ratios[0] - ratios[1]]
        shifts = (0.0, 0.0, 1 / share if share else math.inf)
        sides = (reward, 1 - reward)
        periods.append([w * r + x for w, x in zip(weights, shifts, strict=True) for r in sides])
        np.add.at(count, (context, action), 1.0)
        np.add.at(total, (context, action), reward)
        policy = learned(kind, count, total, rng)
    block = np.repeat(np.arange(PERIODS), PERIOD_ROWS)
    return [Blocks.of(block, np.concatenate(parts)) for parts in zip(*periods, strict=True)]


def adaptive(kind: str, control: float, logs: int) -> Line:
    """Share of adaptive logs in which no block end rejects the value, or the difference.

    Bets are those of `watch`, which does not know the number of rows.
    """
    rng = np.random.default_rng([14, len(kind), round(100 * control)])
    horizons = tuple(PERIOD_ROWS * h for h in HORIZONS)
    ends = np.zeros((logs, 3))
    for k in range(logs):
        scores = rng.normal(size=(CONTEXTS, ACTIONS))
        chance = 1 / (1 + np.exp(1 - scores))
        target = softmax(scores)
        value, other = float((target * chance).sum() / CONTEXTS), float(chance.mean())
        blocks = adaptive_log(kind, control, target, chance, rng)
        bets = [Bets(h, ERROR, PERIODS, horizons=horizons) for h in blocks[:2]]
        ends[k, :2] = covers((bets[0], bets[1]), value), 1 - sum(b.lower() for b in bets)
        if control:
            shifts = np.full(PERIODS, 1 / control)
            apart = [Bets(h, ERROR, PERIODS, 1, shifts, horizons) for h in blocks[4:]]
            wins = [
                b.log_capital(m).max()
                for b, m in zip(apart, (value - other, other - value), strict=True)
            ]
            ends[k, 2] = max(wins) < math.log(1 / ERROR)
    covered, width = ends[:, 0].mean(), np.median(ends[:, 1])
    line: Line = {"kind": "adaptive", "name": f"{kind}, {control:.0%} control"}
    line |= {"rows": PERIODS * PERIOD_ROWS, "logs": logs, "width": float(width)}
    line |= {"coverage": float(covered)}
    return line | ({"difference": float(ends[:, 2].mean())} if control else {})


def apart(
    scores: Array, chance: Array, far: Sequence[float], rng: np.random.Generator
) -> list[Blocks]:
    """Gains and losses by period, with a logger at each of these distances from the target.

    At distance 0 the logger is the target, at 1 uniform, and above it avoids what the target
    plays.
    """
    target, parts = softmax(scores), []
    for rows, distance in zip((EARLY, *LATER), far, strict=True):
        logger = softmax(scores * (1 - distance))
        context = rng.integers(0, CONTEXTS, rows)
        action = (rng.random(rows)[:, None] > logger[context].cumsum(axis=1)).sum(axis=1)
        action = np.minimum(action, ACTIONS - 1)
        reward = (rng.random(rows) < chance[context, action]).astype(np.float64)
        weight = target[context, action] / logger[context, action]
        parts.append((weight * reward, weight * (1 - reward)))
    block = np.repeat(np.arange(len(parts)), (EARLY, *LATER))
    return [Blocks.of(block, np.concatenate(side)) for side in zip(*parts, strict=True)]


def later(blocks: Blocks) -> Blocks:
    """The periods after the first one."""
    kept = blocks.keys >= BLOCK_BINS
    return Blocks(blocks.keys[kept] - BLOCK_BINS, blocks.sums[:, kept])


def early(far: float, logs: int) -> Line:
    """Width and coverage of a watch whose first period has little overlap.

    Its width is compared with that of a watch that begins after this period.
    """
    rng = np.random.default_rng([15, round(10 * far)])
    ends = np.zeros((logs, 3))
    for k in range(logs):
        scores = 1.5 * rng.normal(size=(CONTEXTS, ACTIONS))
        chance = 1 / (1 + np.exp(0.6 - 0.3 * scores))
        value = float((softmax(scores) * chance).sum() / CONTEXTS)
        blocks = apart(scores, chance, (far, *[0.5] * len(LATER)), rng)
        horizons = [tuple(n * h for h in HORIZONS) for n in (EARLY, LATER[0])]
        gains, losses = (Bets(b, ERROR, 4, horizons=horizons[0]) for b in blocks)
        rest = [later(b) for b in blocks]
        fresh = [Bets(b, ERROR, 3, horizons=horizons[1]) for b in rest]
        widths = [1 - sum(b.lower() for b in each) for each in ((gains, losses), fresh)]
        ends[k] = covers((gains, losses), value), *widths
    return {
        "kind": "early",
        "name": f"{far:g}",
        "rows": EARLY + sum(LATER),
        "logs": logs,
        "width": float(np.median(ends[:, 1])),
        "fresh": float(np.median(ends[:, 2])),
        "coverage": float(ends[:, 0].mean()),
    }


def difference(logs: int) -> Line:
    """Width of bets on a difference to the largest logger, of that of two bounds."""
    ratios = []
    for seed in range(PROBLEMS):
        problem = draw_problem(FAMILIES["F floor"], 2_000, np.random.default_rng(500 + seed))
        rng = np.random.default_rng([14, seed])
        for _ in range(logs):
            log = drawn(problem, rng)
            against = int(np.bincount(log.logger).argmax())
            new, old = list_payoffs("new", LIMITS), list_payoffs("old", LIMITS)
            direct = [replace(payoff, against=str(against)) for payoff in new]
            rows = settled(log, [*new, *old, *direct], against)
            number, histograms = len(rows.sums.counts), rows.sums.histograms
            two = 2 - sum(Bets(h, ERROR / 2, number).lower() for h in histograms[:4])
            ends = (
                Bets(h, ERROR, number, shifts=shifts).lower(-1.0)
                for h, shifts in zip(histograms[4:], rows.shifts[4:], strict=True)
            )
            ratios.append(-sum(ends) / two)
    width = float(np.median(ratios))
    return {"kind": "difference", "name": "of two bounds", "rows": 2_000, "width": width}


def measured(logs: int, adaptive_logs: int) -> Iterator[Line]:
    """All lines of the table."""
    for rows in SIZES:
        for family in FAMILIES:
            if FAMILIES[family].noisy:
                yield fixed(family, rows, logs)
    for kind in ("greedy", "thompson"):
        for control in (0.0, 0.2):
            yield adaptive(kind, control, adaptive_logs)
    for far in FARS:
        yield early(far, adaptive_logs)
    yield difference(max(logs // 5, 1))


def tables(lines: list[Line]) -> str:
    """The lines as two tables in Markdown."""
    text = [
        "| family | rows | width, of bets on rows | widest problem | smoothed | covered |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    text += [
        f"| {x['name']} | {x['rows']:,} | {x['width']:.2f} | {x['widest']:.2f} | "
        f"{x['smoothed']:.2f} | {x['coverage']:.3f} |"
        for x in lines
        if x["kind"] == "fixed"
    ]
    text += ["", "| policies that learn | logs | width | value covered | difference covered |"]
    text += ["|---|--:|--:|--:|--:|"]
    text += [
        f"| {x['name']} | {x['logs']:,} | {x['width']:.2f} | {x['coverage']:.3f} | "
        + (f"{x['difference']:.3f} |" if "difference" in x else "- |")
        for x in lines
        if x["kind"] == "adaptive"
    ]
    text += ["", "| distance of the first period | width | without this period | covered |"]
    text += ["|---|--:|--:|--:|"]
    text += [
        f"| {x['name']} | {x['width']:.3f} | {x['fresh']:.3f} | {x['coverage']:.3f} |"
        for x in lines
        if x["kind"] == "early"
    ]
    (ratio,) = (x["width"] for x in lines if x["kind"] == "difference")
    text += [
        "",
        "Bounds of a difference to a logger (family F, 2,000 rows) have a median width of",
    ]
    text += [f"{ratio:.2f} of that of two bounds at half the error each."]
    return "\n".join(text)


def main() -> None:
    """Measure, print and write."""
    logs, adaptive_logs = [*map(int, sys.argv[1:]), *(50, 1_000)[len(sys.argv) - 1 :]]
    lines = []
    for line in measured(logs, adaptive_logs):
        print(line, flush=True)
        lines.append(line)
    names = list(dict.fromkeys(name for line in lines for name in line))
    with (DOCS / "figures" / "bets.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    page = DOCS / "watch.md"
    head, rest = page.read_text(encoding="utf-8").split(START)
    _, tail = rest.split(END)
    page.write_text(f"{head}{START}\n{tables(lines)}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
