"""Accuracy: squared error, bias and coverage of every estimator on a fixed battery.

The battery: ten random problems of each of the six families at three sizes, the toys
T2 and T4, and supervised-to-bandit conversions of three data sets, if they are
available.  It includes the three multi-logger estimators of Open Bandit Pipeline,
restated as formulas: its naive and balanced estimates are the paper's, its weighted one
uses each log's own variance, and its interval is the bootstrap of fixed contributions
over pooled rows, computed here as its limit, a normal interval with the pooled variance.
The reward model of the doubly robust estimators predicts the mean reward of each action
and ignores the context.

Run: python -m benchmarks.accuracy [--quick]; writes docs/figures/accuracy.{csv,svg}
"""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.draws import cells_of, draw
from benchmarks.families import FAMILIES, draw_problem
from poolwise.engines.exact import FiniteProblem
from poolwise.estimators.calibrated import Calibrated, SelfNormalised
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.estimators.model import DirectMethod, DoublyRobust
from poolwise.intervals.student import student
from poolwise.moments.coverage import Coverage
from poolwise.moments.estimate import Estimate, Estimator
from poolwise.moments.linear import by_count
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_REWARD, WEIGHTED_REWARD, Needs, Term

if TYPE_CHECKING:
    from collections.abc import Iterator

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
DATA = Path(os.environ.get("POOLWISE_DATA", "../shared/data"))
SIZES = (200, 1000, 5000)
PROBLEMS, LOGS = 10, 400
LEVEL = 0.95
START, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"


@dataclass(frozen=True)
class PooledBootstrap(Estimator):
    """Interval of Open Bandit Pipeline around one of the paper's estimates, in the limit."""

    inner: Naive | Balanced | Weighted
    term: Term

    @property
    def name(self) -> str:
        return f"OBP {self.inner.name}"

    def needs(self, coverage: Coverage) -> Needs:
        return self.inner.needs(coverage) | Needs(groups=((self.term,),))

    def estimate(self, moments: Pool) -> Estimate:
        """Return the same estimate, with the variance of rows resampled across loggers."""
        found = self.inner.estimate(moments)
        rows = moments.rows
        share = by_count(moments)
        scale = {
            i: found.shares[i] / share[i] for i in moments.loggers
        }  # of a row's contribution
        square = sum(
            share[i] * scale[i] ** 2 * moments[i].mean_square(self.term)
            for i in moments.loggers
        )
        return Estimate(found.value, max(0.0, square - found.value**2) / rows, found.shares)


ESTIMATORS: dict[str, Estimator] = {
    "naive": Naive(),
    "weighted, own divergences": Weighted(divergence="own"),
    "weighted": Weighted(divergence="pooled"),
    "balanced": Balanced(),
    "self-normalised": SelfNormalised(),
    "calibrated": Calibrated(),
    "direct method": DirectMethod(),
    "doubly robust": DoublyRobust(),
    "calibrated with the model": Calibrated(columns=("loggers", "target", "dr")),
    "OBP naive": PooledBootstrap(Naive(), WEIGHTED_REWARD),
    "OBP balanced": PooledBootstrap(Balanced(), BALANCED_REWARD),
    "OBP weighted": PooledBootstrap(Weighted(divergence="own"), WEIGHTED_REWARD),
}


def _toy(
    chance: list[list[float]],
    target: list[list[float]],
    loggers: list[list[list[float]]],
    counts: tuple[int, int],
    context_prob: list[float],
) -> FiniteProblem:
    mean = np.array(chance)
    return FiniteProblem(
        np.array(context_prob),
        mean,
        np.array(target),
        {"1": np.array(loggers[0]), "2": np.array(loggers[1])},
        {"1": counts[0], "2": counts[1]},
        mean * (1 - mean),
    )


T2 = _toy(
    [[0.8, 0.3, 0.1], [0.2, 0.5, 0.6]],
    [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]],
    [[[0.2, 0.3, 0.5], [0.5, 0.3, 0.2]], [[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]]],
    (40, 60),
    [0.4, 0.6],
)
T4 = _toy(
    [[0.02, 0.01, 0.03], [0.01, 0.04, 0.02]],
    [[0.5, 0.1, 0.4], [0.1, 0.6, 0.3]],
    [[[0.4, 0.3, 0.3], [0.3, 0.4, 0.3]], [[0.2, 0.6, 0.2], [0.6, 0.2, 0.2]]],
    (30, 3000),
    [0.5, 0.5],
)


def battery(problems: int) -> Iterator[tuple[str, int, int, FiniteProblem]]:
    """Setting, rows, number and problem."""
    for place, (name, family) in enumerate(FAMILIES.items()):
        for rows in SIZES:
            for k in range(problems):
                rng = np.random.default_rng([2017, place, k])
                yield f"family {name}", rows, k, draw_problem(family, rows, rng)
    yield "toy T2", 100, 0, T2
    yield "toy T4", 3030, 0, T4
    for name in ("optdigits", "pendigits", "satimage"):
        path = DATA / f"multiclass_{name}.npz"
        if path.exists():
            yield from ((name, rows, 0, classified(path, rows)) for rows in SIZES)
        else:
            print(f"{name} left out: {path.name} is not in the data folder")


def classified(path: Path, rows: int) -> FiniteProblem:
    """A data set as a bandit: classifiers log labels, the reward is 1 if they are right."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    arrays = np.load(path)
    split = int(arrays["n_train"])
    x = StandardScaler().fit_transform(arrays["X"])
    y = arrays["y"]
    order = np.random.default_rng(2017).permutation(split)
    test = slice(split, split + 1500)

    def policy(fraction: float) -> np.typing.NDArray[np.float64]:
        taken = order[: int(fraction * split)]
        model = LogisticRegression(max_iter=500).fit(x[taken], y[taken])
        prob = np.zeros((len(x[test]), int(y.max()) + 1))
        prob[:, model.classes_] = np.sqrt(model.predict_proba(x[test]))
        prob /= prob.sum(axis=1, keepdims=True)
        return 0.95 * prob + 0.05 / prob.shape[1]

    right = np.eye(int(y.max()) + 1)[y[test]]
    return FiniteProblem(
        np.full(len(right), 1 / len(right)),
        right,
        policy(0.5),
        {"small": policy(0.02), "medium": policy(0.06), "large": policy(0.3)},
        {"small": rows // 2, "medium": rows // 3, "large": rows - rows // 2 - rows // 3},
    )


def judged(problem: FiniteProblem, logs: int, seed: int) -> dict[str, dict[str, float]]:
    """Mean squared error, bias and coverage of each estimator over simulated logs."""
    loggers = tuple(problem.loggers)
    by_action = problem.context_prob @ problem.reward  # a model of the actions only
    problem = replace(problem, predicted_reward=np.tile(by_action, (len(problem.reward), 1)))
    needs = reduce(or_, (e.needs(Coverage.complete(loggers)) for e in ESTIMATORS.values()))
    cells, rng = cells_of(problem, needs), np.random.default_rng(seed)
    gaps: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    covered = dict.fromkeys(ESTIMATORS, 0)
    for _ in range(logs):
        moments = draw(cells, rng)
        for name, estimator in ESTIMATORS.items():
            found = estimator.estimate(Pool(moments))
            gaps[name].append(found.value - problem.value)
            covered[name] += problem.value in student(found, LEVEL)
    return {
        name: {
            "mse": float(np.mean(np.square(gap))),
            "bias": float(np.mean(gap)),
            "sd": float(np.std(gap)),
            "coverage": covered[name] / logs,
        }
        for name, gap in gaps.items()
    }


def summarised(
    found: dict[tuple[str, int], list[dict[str, dict[str, float]]]],
) -> list[dict[str, object]]:
    """One line per setting, size and estimator; medians over problems."""
    lines: list[dict[str, object]] = []
    for (setting, rows), cases in found.items():
        for name in ESTIMATORS:
            relative = [c[name]["mse"] / c["balanced"]["mse"] for c in cases]
            bias = [c[name]["bias"] / c[name]["sd"] for c in cases]
            coverage = [c[name]["coverage"] for c in cases]
            lines.append(
                {
                    "setting": setting,
                    "rows": rows,
                    "estimator": name,
                    "relative_mse": round(float(np.median(relative)), 4),
                    "worst_relative_mse": round(float(np.max(relative)), 4),
                    "bias_in_sd": round(float(np.median(bias)), 4),
                    "coverage": round(float(np.median(coverage)), 4),
                    "lowest_coverage": round(float(np.min(coverage)), 4),
                    "problems": len(cases),
                }
            )
    return lines


def main() -> None:
    """Run the battery; write the table and the chart."""
    quick = "--quick" in sys.argv
    problems, logs = (2, 50) if quick else (PROBLEMS, LOGS)
    found: dict[tuple[str, int], list[dict[str, dict[str, float]]]] = {}
    for setting, rows, k, problem in battery(problems):
        found.setdefault((setting, rows), []).append(judged(problem, logs, seed=k))
        print(f"\r{setting:<24}{rows:>6} rows, problem {k + 1}", end="", file=sys.stderr)
    lines = summarised(found)
    FIGURES.mkdir(parents=True, exist_ok=True)
    with (FIGURES / "accuracy.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    chart(lines)
    page(lines)
    print(f"\n{len(lines)} lines in {FIGURES / 'accuracy.csv'}")


def page(lines: list[dict[str, object]]) -> None:
    """Rewrite the tables of the documentation's page, at a thousand rows."""
    path = FIGURES.parent / "which-estimator.md"
    before, _, rest = path.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    error, interval = (
        _table(lines, "relative_mse"),
        _table(lines, "coverage", "lowest_coverage"),
    )
    text = (
        f"Mean squared error relative to balanced, 1,000 rows, median over problems:\n\n{error}"
        "\n\nCoverage of Student's nominal 95% intervals, median over problems (lowest):"
        f"\n\n{interval}"
    )
    path.write_text(f"{before}{START}\n{text}\n{END}{after}", encoding="utf-8")


def _table(lines: list[dict[str, object]], value: str, beside: str = "") -> str:
    chosen = [line for line in lines if line["rows"] == SIZES[1]]
    settings = list(dict.fromkeys(str(line["setting"]) for line in chosen))
    rows = [f"| | {' | '.join(settings)} |", "|---|" + "---:|" * len(settings)]
    for name in ESTIMATORS:
        mine = [line for line in chosen if line["estimator"] == name]
        cells = [
            f"{line[value]:.2f}" + (f" ({line[beside]:.2f})" if beside else "") for line in mine
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def chart(lines: list[dict[str, object]]) -> None:
    """Squared error against balanced, one panel per size."""
    import altair as alt
    import vl_convert as vlc

    shown = [
        line
        for line in lines
        if line["rows"] in SIZES and not str(line["estimator"]).startswith("OBP")
    ]
    picture = (
        alt.Chart(alt.InlineData(values=shown))
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("relative_mse:Q").scale(type="log").title("squared error / balanced's"),
            y=alt.Y("setting:N").title(None),
            color=alt.Color("estimator:N").title(None).legend(orient="bottom"),
            shape="estimator:N",
            column=alt.Column("rows:O").title("rows"),
        )
        .properties(width=220, height=200)
    )
    svg = vlc.vegalite_to_svg(picture.to_json())
    (FIGURES / "accuracy.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
