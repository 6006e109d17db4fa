"""Learning: value of learned policies on four data sets, with and without an anchor.

Values are normalised: 0 is the best logger, 1 a linear policy that knows the reward of every
action.  Rivals: the same recipe without an anchor, with the own propensities, and from the
log of the best logger alone; trees in place of the linear policy; the weighted classification
of Open Bandit Pipeline, restated; and two reductions of Vowpal Wabbit.

Run: python -m benchmarks.learning [--quick]; writes docs/figures/learning.{csv,svg} and
the table in docs/learning.md.  What the CSV file has is not computed again.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.bandits import SETS, Bandit, draw
from poolwise.learning.data import LearningRows, number_bits, row_hashes
from poolwise.learning.fit import ROUNDS, greedy
from poolwise.learning.learn import learn
from poolwise.learning.recipe import UNIFORM, Settings, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from poolwise.learning.recipe import Outcome
    from poolwise.log.policy import FloatArray

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
PAGE = FIGURES.parent / "learning.md"
START, END = "<!-- learning: begin -->", "<!-- learning: end -->"
SIZES, SEEDS = (1_000, 10_000), 10
COLUMNS = ("set", "seed", "rows", "rewards", "method", "value", "normalised")
Cell = tuple[str, int, int, str]
Line = dict[str, str]


def rows_of(bandit: Bandit, *, own: bool = False) -> LearningRows:
    """Return the rows of a log without reading it; `own` hides the other propensities."""
    rows = np.arange(len(bandit.action))
    cross = bandit.probs[:, rows, bandit.action].T
    hashes = row_hashes([number_bits(column) for column in bandit.x.T[:5]], len(rows), 0)
    return LearningRows(
        columns={"x": bandit.x.astype(np.float32)},
        actions=tuple(range(bandit.expected.shape[1])),
        loggers=tuple(f"v{k}" for k in range(len(bandit.probs))),
        action=bandit.action,
        logger=bandit.logger,
        reward=bandit.reward,
        own=cross[rows, bandit.logger],
        cross=cross[:, :0] if own else cross,
        base={},
        hashes=hashes,
    )


def recipe(
    bandit: Bandit, *, anchor: str = "best", own: bool = False, rounds: tuple[int, ...] = ()
) -> Outcome:
    """Run the recipe once, on all rows."""
    data = rows_of(bandit, own=own)
    settings = Settings(anchor=anchor, workers=1, rounds=rounds)
    return run(data, np.arange(len(data)), settings, lambda _: None)


def best_log(bandit: Bandit) -> Bandit:
    """Return the rows of the logger with the largest mean reward, alone."""
    means = [bandit.reward[bandit.logger == k].mean() for k in range(len(bandit.probs))]
    k = int(np.argmax(means))
    rows = np.flatnonzero(bandit.logger == k)
    return replace(
        bandit,
        x=bandit.x[rows],
        expected=bandit.expected[rows],
        probs=bandit.probs[k : k + 1, rows],
        logger=np.zeros(len(rows), np.int64),
        action=bandit.action[rows],
        reward=bandit.reward[rows],
    )


def weighted_classifier(bandit: Bandit) -> float:
    """Return the value of Open Bandit Pipeline's IPW learner: a weighted classification."""
    from sklearn.linear_model import LogisticRegression

    rows = np.flatnonzero(bandit.reward > 0)
    weights = (
        bandit.reward / bandit.probs[bandit.logger, np.arange(len(bandit.x)), bandit.action]
    )
    model = LogisticRegression(max_iter=300)
    model.fit(bandit.x[rows], bandit.action[rows], sample_weight=weights[rows])
    best = model.predict(bandit.test_x)
    return bandit.value((best[:, None] == np.arange(bandit.expected.shape[1])) * 1.0)


def vowpal(bandit: Bandit, kind: str) -> float:
    """Return the value of Vowpal Wabbit's greedy policy after one pass."""
    from vowpalwabbit import Workspace

    actions = bandit.expected.shape[1]
    learner = Workspace(f"--cb_adf --cb_type {kind} -q sa --quiet -b 18 --random_seed 1")
    own = bandit.probs[bandit.logger, np.arange(len(bandit.x)), bandit.action]
    for x, a, r, p in zip(bandit.x, bandit.action, bandit.reward, own, strict=True):
        learner.learn(_lines(x, actions, (int(a), -float(r), float(p))))
    scores = np.array([learner.predict(_lines(x, actions)) for x in bandit.test_x])
    learner.finish()
    return bandit.value(greedy(-scores))


def _lines(
    x: FloatArray, actions: int, label: tuple[int, float, float] | None = None
) -> list[str]:
    """Return an example of Vowpal Wabbit with one line per action."""
    shared = "shared |s " + " ".join(f"{k}:{v:.4g}" for k, v in enumerate(x))
    lines = [f"|a {k}" for k in range(actions)]
    if label is not None:
        a, cost, p = label
        lines[a] = f"0:{cost}:{p:.6g} {lines[a]}"
    return [shared, *lines]


METHODS: dict[str, Callable[[Bandit], float]] = {
    "poolwise (5 folds)": lambda b: b.value_of(learn(b.log()).policy),
    "poolwise, one policy": lambda b: b.value_of(recipe(b).policy),
    "own propensities": lambda b: b.value_of(recipe(b, own=True).policy),
    "best log alone": lambda b: b.value_of(recipe(best_log(b)).policy),
    "without anchor": lambda b: b.value_of(recipe(b, anchor=UNIFORM).policy),
    "greedy clone": lambda b: b.value_of(recipe(b).anchor),
    "with trees": lambda b: b.value_of(recipe(b, rounds=ROUNDS).policy),
    "OBP's IPW learner": weighted_classifier,
    "Vowpal Wabbit mtr": lambda b: vowpal(b, "mtr"),
    "Vowpal Wabbit dr": lambda b: vowpal(b, "dr"),
}


def cells(sizes: Sequence[int], seeds: int) -> Iterator[Cell]:
    """Yield all cells, seeds first, so that an early stop leaves a balanced table."""
    for seed in range(seeds):
        for rows in sizes:
            for name in SETS:
                for rewards in ("clean", "noisy"):
                    yield name, seed, rows, rewards


def measure(cell: Cell, methods: Sequence[str]) -> Iterator[Line]:
    """Run some methods on one cell."""
    name, seed, rows, rewards = cell
    bandit = draw(name, seed, rows, noisy=rewards == "noisy")
    head = {"set": name, "seed": str(seed), "rows": str(rows), "rewards": rewards}
    for method in methods:
        value = METHODS[method](bandit)
        scaled = bandit.normalised(value)
        yield {**head, "method": method, "value": f"{value:.5f}", "normalised": f"{scaled:.4f}"}


def measured(path: Path, wanted: Sequence[Cell]) -> list[Line]:
    """Measure what the file lacks, and append it."""
    lines: list[Line] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    done = {
        ((line["set"], int(line["seed"]), int(line["rows"]), line["rewards"]), line["method"])
        for line in lines
    }
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not lines:
            writer.writeheader()
        for cell in wanted:
            methods = [method for method in METHODS if (cell, method) not in done]
            if not methods:
                continue
            new = list(measure(cell, methods))
            writer.writerows(new)
            file.flush()
            lines += new
            print(*cell, *(f"{line['method']} {line['normalised']}" for line in new), sep="; ")
    return lines


def table(lines: Sequence[Line], rows: int) -> str:
    """Return mean (standard error), share below the best logger and worst, as Markdown."""
    text = [
        "| method | clean | below the best logger | worst | noisy | below | worst |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for method in METHODS:
        words = [_summary(_values(lines, method, rows, kind)) for kind in ("clean", "noisy")]
        text.append(f"| {method} | {' | '.join(words)} |")
    return "\n".join(text)


def _values(lines: Sequence[Line], method: str, rows: int, rewards: str) -> FloatArray:
    chosen = [
        float(line["normalised"])
        for line in lines
        if (line["method"], line["rows"], line["rewards"]) == (method, str(rows), rewards)
    ]
    return np.array(chosen)


def _summary(values: FloatArray) -> str:
    if len(values) < 2:
        return "– | – | –"
    error = values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.3f} ({error:.3f}) | {(values < 0).mean():.0%} | {values.min():.2f}"


def page(lines: Sequence[Line]) -> None:
    """Rewrite the tables of the documentation's page."""
    before, _, rest = PAGE.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    parts = [f"{rows:,} rows:\n\n{table(lines, rows)}" for rows in reversed(SIZES)]
    text = "\n\n".join(parts)
    PAGE.write_text(f"{before}{START}\n{text}\n{END}{after}", encoding="utf-8")


def chart(lines: Sequence[Line]) -> None:
    """Draw the normalised value of every cell, one panel per kind of reward."""
    import altair as alt
    import vl_convert as vlc

    shown = [
        {**line, "normalised": max(float(line["normalised"]), -2.0)}
        for line in lines
        if line["rows"] == str(SIZES[-1])
    ]
    picture = (
        alt.Chart(alt.InlineData(values=shown))
        .mark_tick(thickness=1.5)
        .encode(
            x=alt.X("normalised:Q").title("0 = best logger, 1 = full information"),
            y=alt.Y("method:N").title(None).sort(list(METHODS)),
            column=alt.Column("rewards:N").title(None),
        )
        .properties(width=260, height=240)
    )
    svg = vlc.vegalite_to_svg(picture.to_json())
    (FIGURES / "learning.svg").write_text(svg, encoding="utf-8")


def main() -> None:
    """Measure, and write the CSV file, the chart and the tables."""
    quick = "--quick" in sys.argv[1:]
    wanted = list(cells(SIZES[:1] if quick else SIZES, 1 if quick else SEEDS))
    lines = measured(FIGURES / "learning.csv", wanted)
    if not quick:
        chart(lines)
        page(lines)


if __name__ == "__main__":
    main()
