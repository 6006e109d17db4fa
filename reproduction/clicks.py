r"""Clicks: the paper's experiments where deterministic rankers take the place of policies.

The paper ends: "it is plausible that similar estimators and advantages also exist for other
partial-information data settings".  Here a logger is a ranker, and the examination
$\theta_{rank_i(d)}$ of the position at which it shows item d takes the place of its
probability.  Clicks are independent given the lists, so that the variance of an estimate is a
finite sum over requests and items.  The target and the second ranker are the same in all cells;
the first sorts by scores with more and more noise, so that it is further and further away.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from reproduction.claims import (
    CLAIMS,
    either_wins,
    equals_gamma,
    never_above,
    reaches_optimum,
    verdicts_of,
)
from reproduction.figures import (
    CELL,
    WEIGHT_COLUMNS,
    Figure,
    draw_gamma,
    draw_ratio,
    draw_weights,
)
from reproduction.panels import FIRST, RATIOS, SECOND, SECOND_ROWS, gamma
from reproduction.simulation import SIZES, summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.types import FloatArray, IntArray
    from reproduction.claims import Judge
    from reproduction.figures import CsvRow, TableName

SEED = 2019
REQUESTS, ITEMS = (
    500,
    8,
)  # kinds of requests, all equally frequent; every ranker shows all items
NOISES = (0.3, 0.6, 1.0, 1.5, 2.5, 4.0, 8.0)  # of the scores of the first ranker
SECOND_NOISE, TARGET_NOISE = 0.4, 0.2
REPLICATIONS = 1_000  # of the shares that are estimated from rows
MOST_DRAWS = 1_000_000  # requests that are drawn for one size


@dataclass(frozen=True)
class Setting:
    """Curve and clicks of a problem.

    Attributes:
        fall: Examination of position k is k to the power of minus this number.
        rate: Typical probability of a click on an examined item.
    """

    fall: float
    rate: float


SETTINGS: Mapping[str, Setting] = {
    "curve 1/k": Setting(1.0, 0.3),
    "flatter curve": Setting(0.5, 0.3),
    "rare clicks": Setting(1.0, 0.02),
}


@dataclass(frozen=True, eq=False)
class ClickProblem:
    """Kinds of requests, with the lists of two rankers and of a target.

    Attributes:
        relevance: Probability of a click on an examined item, shape (requests, items).
        ranks: Position of each item, by policy, same shape.
        examination: Examination of each position.
    """

    relevance: FloatArray
    ranks: Mapping[str, IntArray]
    examination: FloatArray

    @classmethod
    def draw(cls, setting: Setting, noise: float) -> ClickProblem:
        """Return the problem whose first ranker has this noise."""
        rng = np.random.default_rng(SEED)
        worth, *errors = rng.normal(size=(4, REQUESTS, ITEMS))
        noises = {FIRST: noise, SECOND: SECOND_NOISE, "target": TARGET_NOISE}
        ranks = {
            name: 1 + np.argsort(np.argsort(-(worth + n * error), axis=1), axis=1)
            for (name, n), error in zip(noises.items(), errors, strict=True)
        }
        relevance = np.minimum(setting.rate * np.exp(0.8 * worth - 0.32), 1.0)
        examination = np.arange(1.0, ITEMS + 1) ** -setting.fall
        return cls(relevance, ranks, np.asarray(examination, np.float64))

    def examined(self, policy: str) -> FloatArray:
        """Return how often a policy lets users examine each item."""
        return np.asarray(self.examination[self.ranks[policy] - 1])

    @cached_property
    def value(self) -> float:
        """Clicks per request of the target."""
        return float((self.examined("target") * self.relevance).sum(axis=1).mean())

    def moments(self, logger: str, below: FloatArray) -> tuple[float, float]:
        """Return mean and variance of the weighted clicks of one request of a ranker.

        Args:
            logger: The ranker.
            below: Denominator of the weights.
        """
        weight, chance = self.examined("target") / below, self.examined(logger) * self.relevance
        mean = (weight * chance).sum(axis=1)
        within = (weight**2 * chance * (1 - chance)).sum(axis=1)
        return float(mean.mean()), float(within.mean() + mean.var())

    def mixture(self, shares: Mapping[str, float]) -> FloatArray:
        """Return the examination under the mixture of the rankers."""
        return np.asarray(sum(share * self.examined(i) for i, share in shares.items()))

    @cached_property
    def divergence(self) -> dict[str, float]:
        """Variance of one request's clicks, weighted against its own ranker."""
        return {i: self.moments(i, self.examined(i))[1] for i in (FIRST, SECOND)}

    def draws(self, logger: str, number: int, rng: np.random.Generator) -> FloatArray:
        """Draw weighted clicks of requests of a ranker."""
        kind = rng.integers(REQUESTS, size=number)
        chance = (self.examined(logger) * self.relevance)[kind]
        weight = (self.examined("target") / self.examined(logger))[kind]
        return np.asarray((weight * (rng.random(chance.shape) < chance)).sum(axis=1))


def panel(place: str, setting: Setting, noise: float) -> list[CsvRow]:
    """Return the cells of one first ranker, one for each ratio of the requests."""
    problem = ClickProblem.draw(setting, noise)
    named = {"data": place, "structure": "unary", "fraction": noise}
    return [{**named, "r": ratio, **cell(problem, ratio)} for ratio in RATIOS]


def cell(problem: ClickProblem, ratio: float) -> CsvRow:
    """Return the exact variances of one cell, and the ratios that the figures show."""
    counts = {FIRST: round(ratio * SECOND_ROWS), SECOND: SECOND_ROWS}
    total, divergence = sum(counts.values()), problem.divergence
    shares = {i: n / total for i, n in counts.items()}
    mixed = {i: problem.moments(i, problem.mixture(shares)) for i in counts}
    var = {
        "naive": sum(n * divergence[i] for i, n in counts.items()) / total**2,
        "balanced": sum(n * mixed[i][1] for i, n in counts.items()) / total**2,
        "weighted": 1 / sum(n / divergence[i] for i, n in counts.items()),
        "log2": divergence[SECOND] / counts[SECOND],
    }
    v = divergence[FIRST] / divergence[SECOND]
    return {
        "v": v,
        "value": problem.value,
        "value_balanced": sum(shares[i] * mean for i, (mean, _) in mixed.items()),
        **{f"var_{name}": variance for name, variance in var.items()},
        "drop_naive": var["log2"] / var["naive"],
        "drop_balanced": var["log2"] / var["balanced"],
        "balanced_naive": var["balanced"] / var["naive"],
        "weighted_naive": var["weighted"] / var["naive"],
        "gamma": gamma(ratio, v),
        "weighted_balanced": var["weighted"] / var["balanced"],
    }


def weights(place: str, setting: Setting, noise: float, replications: int) -> list[CsvRow]:
    """Return the weighted estimate with shares from each log's own requests, by size."""
    problem, rows = ClickProblem.draw(setting, noise), []
    exact = problem.divergence
    best = {i: 1 / d for i, d in exact.items()}
    for size in SIZES:
        rng = np.random.default_rng([SEED, size, round(100 * noise)])
        number = min(replications, MOST_DRAWS // size)
        drawn = [problem.draws(i, number * size, rng).reshape(number, size) for i in best]
        means, spreads = (np.array([f(d) for d in drawn]) for f in (_means, _variances))
        usable = (spreads > 0).all(axis=0)  # without a click, a log has no variance
        inverse = 1 / np.where(usable, spreads, 1.0)
        share = np.where(usable, inverse[0] / inverse.sum(axis=0), 0.5)
        known = best[FIRST] / sum(best.values())
        pairs = np.column_stack([share, share * means[0] + (1 - share) * means[1]])
        optimal = known * means[0] + (1 - known) * means[1] - problem.value
        found = summary(pairs, optimal, problem.value, exact)
        named = {"data": place, "fraction": noise, "v": exact[FIRST] / exact[SECOND]}
        rows.append({**named, "n": size, "rule": "own", **found})
    return rows


def _means(draws: FloatArray) -> FloatArray:
    return np.asarray(draws.mean(axis=1))


def _variances(draws: FloatArray) -> FloatArray:
    return np.asarray(draws.var(axis=1, ddof=1))


def tables(replications: int = REPLICATIONS) -> dict[TableName, list[CsvRow]]:
    """Return the rows of all settings: exact variances, and estimated shares."""
    cells = [(place, s, noise) for place, s in SETTINGS.items() for noise in NOISES]
    return {
        "panels": [row for each in cells for row in panel(*each)],
        "weights": [row for each in cells for row in weights(*each, replications)],
    }


def click_claims(found: Mapping[TableName, Sequence[CsvRow]]) -> list[CsvRow]:
    """Judge the claims of the paper that have a meaning for clicks, as `claims` does."""
    named: dict[TableName, dict[str, Judge]] = {
        "panels": {
            text: judge
            for text, (_, figure, judge) in CLAIMS["panels"].items()
            if figure <= LAST_OF_PAPER and judge not in {either_wins, equals_gamma}
        },
        "weights": {text: judge for text, (*_, judge) in OWN.items()},
    }
    named["panels"] |= {
        "Weighted gains on naive by exactly gamma.": equals_gamma,
        "Weighted wins for distant rankers, balanced for close ones.": either_wins,
        "Balanced is never worse than log 2 alone.": never_above("balanced_alone"),
    }
    alone = [{**row, "balanced_alone": 1 / row["drop_balanced"]} for row in found["panels"]]
    rows = {**found, "panels": alone}
    return [
        row
        for table, judges in named.items()
        for text, judge in judges.items()
        for row in verdicts_of(text, "the paper, for clicks", judge, rows[table])
    ]


LAST_OF_PAPER = 5  # figure of the paper
OWN = {
    "Weights estimated from each log's own requests are optimal in a few hundred requests.": (
        *("the paper, section 7.6", 5),
        reaches_optimum("own"),
    )
}
LEGEND = ("noise of", "ranker 1")
FIGURES = (
    Figure(
        9,
        "clicks_dropping",
        "Var naive on log 2 alone / on both logs",
        "panels",
        (*CELL, "drop_balanced", "drop_naive"),
        draw_ratio(LEGEND),
        "Figure 1 for clicks. Below 1, dropping log 1 lowers the variance of naive.",
    ),
    Figure(
        10,
        "clicks_balanced",
        "Var balanced / Var naive",
        "panels",
        (*CELL, "balanced_naive"),
        draw_ratio(LEGEND),
        "Figure 2 for clicks.",
    ),
    Figure(
        11,
        "clicks_weighted",
        "Var weighted / Var naive",
        "panels",
        (*CELL, "weighted_naive", "gamma"),
        draw_gamma(LEGEND),
        "Figure 3 for clicks. Lines: by enumeration. Black circles: the formula for gamma.",
    ),
    Figure(
        12,
        "clicks_weighted_balanced",
        "Var weighted / Var balanced",
        "panels",
        (*CELL, "weighted_balanced"),
        draw_ratio(LEGEND),
        "Figure 4 for clicks. Below 1 weighted wins, above 1 balanced.",
    ),
    Figure(
        13,
        "clicks_estimated_weights",
        "Weighted with estimated weights",
        "weights",
        WEIGHT_COLUMNS,
        draw_weights,
        "Figure 5 for clicks, with shares from each log's own requests.",
    ),
)
