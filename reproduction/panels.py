"""The panels of the paper: exact variances over all loggers and log sizes.

The policies are CRFs.  The first logger is trained on 2% to 20% of the training rows of a
data set, the second on 30%, the target on 35%; the input distribution is that of the test
rows.  A panel has one row per fraction of the first logger and ratio of the log sizes.  The
estimators are those of the package: they run on exact moments here and on the moments of
rows elsewhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from poolwise.estimators.calibrated import Calibrated
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.moments.pool import Pool
from poolwise.moments.terms import WEIGHTED_REWARD
from reproduction.crf import PairwiseCRF, UnaryCRF
from reproduction.enumeration import LabelProblem, Mix, Scored, exact_moments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.moments.estimate import Estimator
    from reproduction.datasets import Dataset, Labelled
    from reproduction.figures import CsvRow

Structure: TypeAlias = Literal["unary", "pairwise"]
CRFS: Mapping[Structure, type[UnaryCRF | PairwiseCRF]] = {
    "unary": UnaryCRF,
    "pairwise": PairwiseCRF,
}
FIRST, SECOND = "first", "second"  # the loggers
FRACTIONS = (0.02, 0.05, 0.08, 0.11, 0.14, 0.17, 0.20)  # training rows of the first logger
SECOND_FRACTION, TARGET_FRACTION = 0.30, 0.35
RATIOS = (0.1, 0.25, 0.5, 1.0, 3.0, 5.0, 7.0, 9.0)  # rows of log 1 over rows of log 2
SECOND_ROWS = 1000  # of log 2; ratios of variances do not depend on it
ORDER_SEED = 2017  # Scene's file is sorted by label, so that rows are shuffled first


def build_mix(ratio: float, rows: int = SECOND_ROWS) -> Mix:
    """Return the rows of both logs, for a ratio of their sizes."""
    return Mix({FIRST: round(ratio * rows), SECOND: rows})


def build_problem(
    data: Dataset, fraction: float, structure: Structure = "unary"
) -> LabelProblem:
    """Return the problem whose first logger is trained on a fraction of the training rows."""
    first, second, target = (
        train(data, part, structure) for part in (fraction, SECOND_FRACTION, TARGET_FRACTION)
    )
    return LabelProblem(
        data.test.labels.astype(np.bool), {FIRST: first, SECOND: second}, target
    )


def training_rows(data: Dataset, fraction: float) -> Labelled:
    """Return a fraction of the training rows; larger fractions contain smaller ones."""
    order = np.random.default_rng(ORDER_SEED).permutation(len(data.train))
    return data.train.take(order[: round(fraction * data.fractions_of)])


@lru_cache(maxsize=3)  # all problems of a panel have the same second logger and target
def train(data: Dataset, fraction: float, structure: Structure) -> Scored:
    """Return a CRF fitted to a fraction of the training rows, at the test inputs."""
    rows = training_rows(data, fraction)
    policy = CRFS[structure].fit(rows.contexts, rows.labels)
    return Scored(policy, policy.scores(data.test.contexts))


def divergences(moments: Pool) -> dict[str, float]:
    """Return the exact divergence of the target from each logger."""
    return {logger: moments[logger].var(WEIGHTED_REWARD) for logger in moments.loggers}


def estimators(exact: Mapping[str, float]) -> dict[str, Estimator]:
    """Return all estimators of a panel, weighted with its optimal shares."""
    return {
        "naive": Naive(),
        "balanced": Balanced(),
        "weighted": Weighted(divergence="known", known=exact),
        "cv_loggers": Calibrated(columns=("loggers",)),
        "cv_target": Calibrated(columns=("loggers", "target")),
    }


def gamma(ratio: float, divergence_ratio: float) -> float:
    r"""Return the variance of weighted over that of naive, by the formula for two loggers.

    $$\gamma = \frac{(r + 1)^2 v}{(r v + 1)(r + v)}$$

    >>> round(gamma(1.0, 252.81 / 4.27111111), 8)
    0.06535138
    """
    r, v = ratio, divergence_ratio
    return (r + 1) ** 2 * v / ((r * v + 1) * (r + v))


def panel(problem: LabelProblem, fraction: float) -> list[CsvRow]:
    """Return the cells of one first logger, one for each ratio of the log sizes."""
    by_ratio = exact_moments(problem, [build_mix(ratio) for ratio in RATIOS])
    return [
        {"fraction": fraction, "r": ratio, **cell(Pool(moments), ratio)}
        for ratio, moments in zip(RATIOS, by_ratio, strict=True)
    ]


def cell(moments: Pool, ratio: float) -> CsvRow:
    """Return the variances of one cell, and the ratios that the figures show."""
    divergence = divergences(moments)
    exact = {name: e.estimate(moments) for name, e in estimators(divergence).items()}
    var = {name: estimate.variance for name, estimate in exact.items()}
    alone = {i: Naive().estimate(Pool({i: m})).variance for i, m in moments.items()}
    best = min(*(var[name] for name in ("naive", "balanced", "weighted")), *alone.values())
    v = divergence[FIRST] / divergence[SECOND]
    return {
        "n1": moments[FIRST].count,
        "n2": moments[SECOND].count,
        "v": v,
        "value": exact["naive"].value,
        "divergence_1": divergence[FIRST],
        "divergence_2": divergence[SECOND],
        **{f"var_{name}": variance for name, variance in var.items()},
        "var_log1": alone[FIRST],
        "var_log2": alone[SECOND],
        "var_best": best,
        "drop_naive": alone[SECOND] / var["naive"],
        "drop_balanced": alone[SECOND] / var["balanced"],
        "balanced_naive": var["balanced"] / var["naive"],
        "weighted_naive": var["weighted"] / var["naive"],
        "gamma": gamma(ratio, v),
        "weighted_balanced": var["weighted"] / var["balanced"],
        "cv_loggers_best": var["cv_loggers"] / best,
        "cv_target_best": var["cv_target"] / best,
    }
