"""Learning: value of learned policies on four data sets, and of the best logger's best actions.

Values are normalised: 0 is the best logger, 1 a linear policy that knows the reward of every
action.  Rivals: the best actions of the best logger; a logistic regression of the action,
weighted by reward over the mixture; the rule by which poolwise chose before (a clone of the
logger, one quarter of the rows, the value less one standard error); the weighted
classification of Open Bandit Pipeline, restated; and two reductions of Vowpal Wabbit.

Run: python -m benchmarks.learning [--quick] [--show] [METHOD ...]; writes
docs/figures/learning.csv, the chart, and the tables in docs/learning.md.  What the CSV file has
is not computed again; with --show, nothing is.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.bandits import SETS, Bandit, draw
from poolwise.learning.data import LearningRows, assign_folds, mix, number_bits, row_hashes
from poolwise.learning.fit import ROUNDS, greedy, softmax
from poolwise.learning.policy import as_scores
from poolwise.learning.recipe import (
    AS_ANCHOR,
    BEST,
    CLASSIFICATION,
    QUARTERS,
    VALIDATION,
    Fits,
    Scores,
    Settings,
    Trial,
    choose_anchor,
    learn_part,
    value_plays,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from poolwise.learning.recipe import Outcome
    from poolwise.types import FloatArray, IntArray

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
PAGE = FIGURES.parent / "learning.md"
START, END = "<!-- learning: begin -->", "<!-- learning: end -->"
SIZES, SEEDS, FOLDS = (1_000, 4_000), 15, 5
FEWER = {"poolwise, with trees": 5, "OBP's IPW learner": 10}  # draws of methods that take long
FEWER |= {"Vowpal Wabbit mtr": 10, "Vowpal Wabbit dr": 10}
OURS, TO_BEAT, IN_FOLDS = "poolwise", "greedy best logger", "greedy best logger, 5 folds"
COLUMNS = ("set", "seed", "rows", "rewards", "method", "value", "normalised")
Cell = tuple[str, int, int, str]
Line = dict[str, str]


def rows_of(bandit: Bandit, *, known: bool = False) -> LearningRows:
    """Return the rows of a log without reading it; if `known`, with every distribution."""
    rows = np.arange(len(bandit.action))
    cross = bandit.probs[:, rows, bandit.action].T
    hashes = row_hashes([number_bits(column) for column in bandit.x.T[:5]], len(rows), 0)
    loggers = tuple(f"v{k}" for k in range(len(bandit.probs)))
    scores = as_scores(bandit.probs).astype(np.float32)
    return LearningRows(
        columns={"x": bandit.x.astype(np.float32)},
        actions=tuple(range(bandit.expected.shape[1])),
        loggers=loggers,
        action=bandit.action,
        logger=bandit.logger,
        reward=bandit.reward,
        own=cross[rows, bandit.logger],
        cross=cross,
        base=dict(zip(loggers, scores, strict=True)) if known else {},
        hashes=hashes,
    )


def exact_value(bandit: Bandit, outcome: Outcome, *, known: bool) -> float:
    """Return the exact value of a policy that was learned from `rows_of` a log."""
    policy = outcome.policy
    columns = {"x": bandit.test_x.astype(np.float32)}
    features = policy.encoding.matrix(columns, len(bandit.test_x))
    base = as_scores(bandit.test_probs[int(policy.anchor[1:])])
    anchored = known and outcome.chosen.method != CLASSIFICATION.method
    return bandit.value(policy.play(features, base if anchored else None))


def average_folds(bandit: Bandit, learn: Callable[[IntArray], float]) -> float:
    """Return the value of what `learn` returns: the mean over policies without one fold."""
    data = rows_of(bandit)
    fold = assign_folds(data.hashes, data.groups, FOLDS)
    return float(np.mean([learn(np.flatnonzero(fold != k)) for k in range(FOLDS)]))


def poolwise(bandit: Bandit, *, known: bool, rounds: tuple[int, ...] = ()) -> float:
    """Return the value of the policy that `learn` returns."""
    data, settings = rows_of(bandit, known=known), Settings(workers=1, rounds=rounds)

    def one(rows: IntArray) -> float:
        return exact_value(
            bandit, learn_part(data, rows, settings, lambda _: None), known=known
        )

    return one(np.arange(len(data))) if rounds else average_folds(bandit, one)


def earlier(bandit: Bandit) -> float:
    """Return the value of the earlier rule: a clone of the logger, and one quarter chooses."""
    data, settings = rows_of(bandit), Settings(workers=1)

    def one(rows: IntArray) -> float:
        quarter = assign_folds(
            mix(data.hashes[rows], np.full(len(rows), VALIDATION)), data.groups[rows], QUARTERS
        )
        training = rows[quarter > 0]
        anchor = choose_anchor(data, training, BEST)
        part = Fits(data, training, anchor, settings)
        fits = {trial: part.fit(trial) for trial in settings.tried if trial.method == "linear"}
        fits[AS_ANCHOR] = Scores(part.start)
        tested = rows[quarter == 0]
        sample = data.sample(tested, np.empty((0, 0)))
        found = value_plays(sample, [part.plays(fits, tested)])
        chosen = max(found, key=lambda c: c.value - c.std_error)
        trial, best = Trial(*(getattr(chosen, f.name) for f in fields(Trial))), chosen.greedy
        whole = Fits(data, rows, anchor, settings)
        fitted = whole.start if trial == AS_ANCHOR else whole.fit(trial).coefficients
        columns = {"x": bandit.test_x.astype(np.float32)}
        features = whole.encoding.matrix(columns, len(bandit.test_x))
        scores = features @ fitted
        return bandit.value(greedy(scores) if best else softmax(scores))

    return average_folds(bandit, one)


def greedy_logger(bandit: Bandit, *, folds: bool = False) -> float:
    """Return the value of the best actions of the logger with the largest estimated value.

    With folds, it is the mean over those that are chosen without one fold: what `learn`
    returns if nothing beats the logger.
    """
    data = rows_of(bandit)

    def one(rows: IntArray) -> float:
        best = choose_anchor(data, rows, BEST)
        return bandit.value(greedy(bandit.test_probs[int(best[1:])]))

    return average_folds(bandit, one) if folds else one(np.arange(len(data)))


def weighted_classifier(bandit: Bandit, *, balanced: bool = False) -> float:
    """Return the value of a classification of the action, weighted by reward over propensity.

    With own propensities it is Open Bandit Pipeline's IPW learner; balanced weights divide by
    the mixture of all loggers.
    """
    from sklearn.linear_model import LogisticRegression

    played = bandit.probs[:, np.arange(len(bandit.x)), bandit.action]
    shares = np.bincount(bandit.logger, minlength=len(played)) / len(bandit.x)
    own = played[bandit.logger, np.arange(len(bandit.x))]
    weights = bandit.reward / (shares @ played if balanced else own)
    rows = np.flatnonzero(weights > 0)
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
    OURS: lambda b: poolwise(b, known=True),
    "poolwise, columns": lambda b: poolwise(b, known=False),
    "poolwise, with trees": lambda b: poolwise(b, known=True, rounds=ROUNDS),
    "earlier rule": earlier,
    TO_BEAT: greedy_logger,
    IN_FOLDS: lambda b: greedy_logger(b, folds=True),
    "IPW, balanced": lambda b: weighted_classifier(b, balanced=True),
    "OBP's IPW learner": weighted_classifier,
    "Vowpal Wabbit mtr": lambda b: vowpal(b, "mtr"),
    "Vowpal Wabbit dr": lambda b: vowpal(b, "dr"),
}


def cells(sizes: Sequence[int], seeds: int) -> Iterator[Cell]:
    """Yield all cells, seeds first, so that an early stop leaves balanced tables."""
    for rows in sizes:
        for seed in range(seeds):
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


def measured(path: Path, wanted: Sequence[Cell], chosen: Sequence[str]) -> list[Line]:
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
            methods = [
                method
                for method in chosen
                if (cell, method) not in done and cell[1] < FEWER.get(method, SEEDS)
            ]
            if not methods:
                continue
            new = list(measure(cell, methods))
            writer.writerows(new)
            file.flush()
            lines += new
            print(*cell, *(f"{line['method']} {line['normalised']}" for line in new), sep="; ")
    return lines


def table(lines: Sequence[Line], rows: int) -> str:
    """Return means with errors, shares below the policy to beat, and worst draws."""
    text = [
        "| method | draws | clean | below | worst | noisy | below | worst |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for method in METHODS:
        parts = [_values(lines, method, rows, rewards) for rewards in ("clean", "noisy")]
        draws = {len({seed for _, seed in part}) for part in parts}
        if min(draws) > 1:
            words = [
                _summary(part, _values(lines, TO_BEAT, rows, r))
                for part, r in zip(parts, ("clean", "noisy"), strict=True)
            ]
            text.append(f"| {method} | {max(draws)} | {' | '.join(words)} |")
    return "\n".join(text)


def _values(
    lines: Sequence[Line], method: str, rows: int, rewards: str
) -> dict[tuple[str, str], float]:
    """Return the normalised values of a method, by set and draw."""
    return {
        (line["set"], line["seed"]): float(line["normalised"])
        for line in lines
        if (line["method"], line["rows"], line["rewards"]) == (method, str(rows), rewards)
    }


def _summary(found: dict[tuple[str, str], float], beaten: dict[tuple[str, str], float]) -> str:
    values = np.array([*found.values()])
    below = np.mean([value < beaten[cell] - 1e-9 for cell, value in found.items()])
    return f"{_mean(values)} | {below:.0%} | {values.min():.2f}"


def _mean(values: FloatArray) -> str:
    return f"{values.mean():.3f} ({values.std(ddof=1) / np.sqrt(len(values)):.3f})"


def gains(lines: Sequence[Line]) -> str:
    """Return how much more the learned policy earns than the policy to beat, in each cell."""
    kinds = [(rows, rewards) for rows in SIZES for rewards in ("clean", "noisy")]
    heads = " | ".join(f"{rows:,} {rewards}" for rows, rewards in kinds)
    text = [f"| {OURS} minus | set | {heads} |", "|---|---|---:|---:|---:|---:|"]
    for other in (TO_BEAT, IN_FOLDS):
        for name in SETS:
            words = []
            for kind in kinds:
                own, beaten = (_values(lines, method, *kind) for method in (OURS, other))
                words.append(
                    _mean(np.array([v - beaten[c] for c, v in own.items() if c[0] == name]))
                )
            text.append(f"| {other} | {name} | {' | '.join(words)} |")
    return "\n".join(text)


def page(lines: Sequence[Line]) -> None:
    """Rewrite the tables of the documentation's page."""
    before, _, rest = PAGE.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    parts = [f"{rows:,} rows:\n\n{table(lines, rows)}" for rows in reversed(SIZES)]
    text = "\n\n".join([*parts, f"Gain by cell:\n\n{gains(lines)}"])
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
    quick, shown = ("--quick" in sys.argv[1:]), ("--show" in sys.argv[1:])
    chosen = [name for name in sys.argv[1:] if name in METHODS] or list(METHODS)
    wanted = list(cells(SIZES[:1] if quick else SIZES, 1 if quick else SEEDS))
    lines = measured(FIGURES / "learning.csv", [] if shown else wanted, chosen)
    if not quick:
        chart(lines)
        page(lines)


if __name__ == "__main__":
    main()
