"""Parity with Open Bandit Pipeline: its data and formulas, compared with `evaluate`.

Its synthetic data of several loggers: contexts are normal, expected rewards logistic in
the context, and logger k plays softmax(beta_k times the expected reward).  Where a
formula gives a number, ours must be equal; where it does not, ours must be right.

Run: python -m benchmarks.parity; writes docs/figures/parity.csv and a part of
docs/from-obp.md
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from scipy.special import expit, softmax

import poolwise as pw
from benchmarks.kept import DOCS, markdown, write_csv, write_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

CSV, PAGE, MARKER = DOCS / "figures" / "parity.csv", DOCS / "from-obp.md", "parity"
FEATURES, ACTIONS = 5, 10
TOLERANCE = 1e-10
SIGMAS = 3  # standard errors within which an estimate agrees with the truth
ESTIMATORS = ("naive", "balanced", "weighted")


@dataclass(frozen=True)
class Rounds:
    """A log in the shapes of Open Bandit Pipeline.

    Attributes:
        stratum: Number of each row's logger, shape (n,).
        action: Played actions, shape (n,).
        reward: Their rewards, 0 or 1, shape (n,).
        policies: Probabilities of all actions under each logger, shape (m, n, actions).
        target: The same under the target, shape (n, actions).
        value: Mean expected reward of the target over these contexts.
    """

    stratum: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: FloatArray
    policies: FloatArray
    target: FloatArray
    value: float

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.bincount(self.stratum, minlength=len(self.policies))

    @property
    def propensities(self) -> FloatArray:
        """Probability of each played action under each logger, shape (m, n)."""
        return self.policies[:, np.arange(len(self.action)), self.action]

    @property
    def target_prob(self) -> FloatArray:
        return self.target[np.arange(len(self.action)), self.action]


def synthetic(
    counts: Sequence[int], betas: Sequence[float], *, seed: int, offset: float = 0.0
) -> Rounds:
    """Draw rows of loggers of different inverse temperature; the target is the greediest.

    `offset` shifts the logit of every expected reward: below 0, rewards are rare.
    """
    rng = np.random.default_rng(seed)
    stratum = np.repeat(np.arange(len(counts)), counts)
    context = rng.normal(size=(len(stratum), FEATURES))
    slopes, levels = rng.normal(size=(FEATURES, ACTIONS)), rng.normal(size=ACTIONS)
    expected = expit(context @ slopes + levels + offset)
    policies = np.stack([softmax(beta * expected, axis=1) for beta in betas])
    below = policies[stratum, np.arange(len(stratum))].cumsum(axis=1)
    action = (below <= rng.random(len(stratum))[:, None] * below[:, -1:]).sum(axis=1)
    reward = rng.random(len(stratum)) < expected[np.arange(len(stratum)), action]
    target = softmax((max(betas) + 2) * expected, axis=1)
    value = float((target * expected).sum(axis=1).mean())
    return Rounds(stratum, action, reward.astype(np.float64), policies, target, value)


def formulas(
    rounds: Rounds, *, ddof: int = 0, labels: NDArray[np.int64] | None = None
) -> dict[str, float]:
    """Return Open Bandit Pipeline's naive, balanced and weighted value.

    A logger's label is also its index in the list of variances; `ddof` 0 is the default
    of `np.var`.
    """
    label = rounds.stratum if labels is None else labels
    pscore = rounds.propensities[rounds.stratum, np.arange(len(label))]
    pscore_avg = (rounds.counts / len(label)) @ rounds.propensities
    weighted = rounds.reward * rounds.target_prob / pscore
    names, count = np.unique(label, return_counts=True)
    with np.errstate(all="ignore"):
        var_k = np.array([np.var(weighted[label == k], ddof=ddof) for k in names])
        weight_k = len(label) / (var_k * (count / var_k).sum())
        return {
            "naive": float(weighted.mean()),
            "balanced": float((rounds.reward * rounds.target_prob / pscore_avg).mean()),
            "weighted": float((weighted * weight_k[label]).mean()),
        }


def table_of(rounds: Rounds, labels: NDArray[np.int64] | None = None) -> pa.Table:
    """Return the same rows as a `Log`."""
    label = rounds.stratum if labels is None else labels
    own = rounds.propensities[rounds.stratum, np.arange(len(label))]
    crossed = {f"p_{k}": p for k, p in zip(np.unique(label), rounds.propensities, strict=True)}
    columns = {"reward": rounds.reward, "p": own, "target_prob": rounds.target_prob}
    return pa.table({"logger": label.astype(str), **columns, **crossed})


def ours(table: pa.Table, divergence: str = "own") -> dict[str, pw.Estimate]:
    """Return the three estimates of `evaluate`; by default with each log's own variance."""
    crossed = {name[2:]: name for name in table.column_names if name.startswith("p_")}
    log = pw.Log(table, logger="logger", reward="reward", propensity="p", propensities=crossed)
    weighted = pw.Weighted("own") if divergence == "own" else pw.Weighted()
    found = pw.evaluate(log, "target_prob", ["naive", "balanced", weighted])["target"]
    return dict(found.estimates)


class Line(NamedTuple):
    """One estimate on one data set, by the formula and by `evaluate`."""

    data: str
    estimator: str
    formula: float
    ours: float
    formula_over_n: float

    @property
    def agrees(self) -> bool:
        return abs(self.formula - self.ours) <= TOLERANCE * max(1.0, abs(self.formula))


# name: rows of each logger, inverse temperatures, seed
DATA = {
    "2 loggers, 1,000 rows": ((300, 700), (-1.0, 2.0), 1),
    "3 loggers, 10,000 rows": ((1000, 4000, 5000), (-2.0, 0.0, 2.0), 2),
    "5 loggers, 3,000 rows": ((100, 200, 400, 800, 1500), (-4.0, -2.0, 0.0, 2.0, 4.0), 3),
    "2 loggers far apart, 2,000 rows": ((1000, 1000), (-8.0, 8.0), 4),
}


@cache
def compared() -> tuple[Line, ...]:
    """Compare every data set and estimator; weighted uses variances over n - 1, as ours do."""
    lines = []
    for name, (counts, betas, seed) in DATA.items():
        rounds = synthetic(counts, betas, seed=seed)
        found, over_n = ours(table_of(rounds)), formulas(rounds)
        by_formula = formulas(rounds, ddof=1)
        lines += [Line(name, e, by_formula[e], found[e].value, over_n[e]) for e in ESTIMATORS]
    return tuple(lines)


class Case(NamedTuple):
    """A log on which the formula fails; our result, and the true value."""

    name: str
    formula: str
    estimate: str
    truth: float
    right: bool


@cache
def broken() -> tuple[Case, ...]:
    """Evaluate logs on which the weighted formula gives no number."""
    rare = synthetic((20, 2000), (-2.0, 2.0), seed=5, offset=-4.0)
    alone = synthetic((1, 500), (0.0, 2.0), seed=1)
    plain = synthetic((300, 700), (-1.0, 2.0), seed=1)
    labels = plain.stratum + 1
    return (
        _case("a log of 20 rows without a reward", rare),
        _case("a log of one row", alone),
        _case("loggers labelled 1 and 2, not 0 and 1", plain, labels),
        _refused("a propensity of 0", plain, "p", 0.0),
        _refused("a reward that is NaN", plain, "reward", np.nan),
    )


def _case(name: str, rounds: Rounds, labels: NDArray[np.int64] | None = None) -> Case:
    found = ours(table_of(rounds, labels), divergence="pooled")["weighted"]
    right = abs(found.value - rounds.value) <= SIGMAS * found.std_error
    said = _told(lambda: formulas(rounds, labels=labels)["weighted"])
    return Case(name, said, str(found), rounds.value, right)


def _refused(name: str, rounds: Rounds, column: str, value: float) -> Case:
    """Evaluate logs with one bad number: the formula returns NaN, `evaluate` raises."""
    table = table_of(rounds)
    values = table[column].to_numpy().copy()
    values[0] = value
    place = table.column_names.index(column)
    spoilt = table.set_column(place, column, pa.array(values))
    with np.errstate(all="ignore"):
        rows = spoilt["reward"].to_numpy() * rounds.target_prob / spoilt["p"].to_numpy()
    try:
        ours(spoilt)
    except pw.LogError as error:
        told = f"refused: {error.faults[0].rows} bad row"
        return Case(name, f"{rows.mean()}", told, rounds.value, right=True)
    return Case(name, f"{rows.mean()}", "accepted", rounds.value, right=False)


def _told(formula: Callable[[], float]) -> str:
    try:
        return f"{formula():.4g}"
    except IndexError as error:
        return type(error).__name__


def text() -> str:
    """Return the generated part of the page."""
    same = markdown(
        ["data", "estimator", "formula", "ours", "within 1e-10", "with np.var's own n"],
        [
            [
                line.data,
                line.estimator,
                f"{line.formula:.6f}",
                f"{line.ours:.6f}",
                "yes" if line.agrees else "NO",
                _gap(line),
            ]
            for line in compared()
        ],
        words=2,
    )
    lost = markdown(
        ["log", "formula", "ours", "truth", "right"],
        [
            [c.name, c.formula, c.estimate, f"{c.truth:.4f}", "yes" if c.right else "NO"]
            for c in broken()
        ],
    )
    return TEXT.format(same=same, lost=lost, sigmas=SIGMAS)


def _gap(line: Line) -> str:
    gap = abs(line.formula_over_n - line.formula)
    return f"{gap:.1e} off" if gap > TOLERANCE else "same"


TEXT = """\
## Side by side

OBP's synthetic data of several loggers (normal contexts, logistic expected rewards, logger k
plays the softmax of beta_k times the expected reward; five features, ten actions), restated
and evaluated with its formulas and with `evaluate`. For weighted, the formula's variances
divide by n - 1 here, as ours do; the last column shows how much OBP's division by n changes the
estimate (not at all for logs of equal size).

{same}

Where the formula of naive or weighted fails:

{lost}

The first three are weighted: ours takes divergences from all rows, and is right if it lies
within {sigmas} standard errors of the truth. The last two are naive: a bad number spreads to
the mean, while `evaluate` raises an error with the number of rows that break each rule."""


def write() -> None:
    """Write the table of numbers and the part of the page."""
    lines = [
        (*line[:2], *(f"{number:.9f}" for number in line[2:]), line.agrees)
        for line in compared()
    ]
    write_csv(CSV, (*Line._fields, "agrees"), lines)
    write_part(PAGE, MARKER, text())


if __name__ == "__main__":
    write()
