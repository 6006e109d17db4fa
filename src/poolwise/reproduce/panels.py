"""The panels of the paper: exact variances over all loggers and log sizes.

One row per training fraction of the first logger and ratio of the log sizes.  The
estimators are those of the package: they run on exact moments here and on the
moments of rows elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from poolwise.estimators.control import Calibrated
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.reproduce.enumeration import exact_moments
from poolwise.reproduce.problem import FIRST, RATIOS, SECOND, LabelProblem, mix_of
from poolwise.terms import WEIGHTED_REWARD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.estimators.base import Estimator
    from poolwise.moments import MomentsByLogger

Row: TypeAlias = dict[str, float | int | str]


def divergences(moments: MomentsByLogger) -> dict[str, float]:
    """Exact divergence of the target from each logger."""
    return {logger: m.var(WEIGHTED_REWARD) for logger, m in moments.items()}


def estimators(known: Mapping[str, float]) -> dict[str, Estimator]:
    """All estimators of a panel, the weighted one with its optimal shares."""
    return {
        "naive": Naive(),
        "balanced": Balanced(),
        "weighted": Weighted(divergence="known", known=known),
        "cv_loggers": Calibrated(columns=("loggers",)),
        "cv_target": Calibrated(columns=("loggers", "target")),
    }


def gamma(ratio: float, divergence_ratio: float) -> float:
    r"""Variance of weighted over that of naive, by the paper's formula for two loggers.

    $$\gamma = \frac{(r + 1)^2 v}{(r v + 1)(r + v)}$$

    >>> round(gamma(1.0, 252.81 / 4.27111111), 8)
    0.06535138
    """
    r, v = ratio, divergence_ratio
    return (r + 1) ** 2 * v / ((r * v + 1) * (r + v))


def panel(problem: LabelProblem, fraction: float) -> list[Row]:
    """All cells of one first logger, one for each ratio of the log sizes."""
    found = exact_moments(problem, [mix_of(ratio) for ratio in RATIOS])
    return [
        {"fraction": fraction, "r": ratio, **cell(moments, ratio)}
        for ratio, moments in zip(RATIOS, found, strict=True)
    ]


def cell(moments: MomentsByLogger, ratio: float) -> Row:
    """Variances of one cell, and the ratios that the figures show."""
    known = divergences(moments)
    exact = {name: e.estimate(moments) for name, e in estimators(known).items()}
    var = {name: estimate.variance for name, estimate in exact.items()}
    alone = {i: Naive().estimate({i: m}).variance for i, m in moments.items()}
    best = min(*(var[name] for name in ("naive", "balanced", "weighted")), *alone.values())
    v = known[FIRST] / known[SECOND]
    return {
        "n1": moments[FIRST].count,
        "n2": moments[SECOND].count,
        "v": v,
        "value": exact["naive"].value,
        "divergence_1": known[FIRST],
        "divergence_2": known[SECOND],
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
