"""The panels of the paper: exact variances over all loggers and log sizes.

One row per training fraction of the first logger and ratio of the log sizes.  The
estimators are those of the package: they run on exact moments here and on the
moments of rows elsewhere.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from poolwise.estimators.calibrated import Calibrated
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.moments.terms import WEIGHTED_REWARD
from poolwise.paper.enumeration import Mix, exact_moments
from poolwise.paper.problem import FIRST, RATIOS, SECOND, LabelProblem, mix_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import FloatArray, MomentsByLogger
    from poolwise.paper.simulation import Draws

Row: TypeAlias = dict[str, float | int | str]


def divergences(moments: MomentsByLogger) -> dict[str, float]:
    """Return the exact divergence of the target from each logger."""
    return {logger: m.var(WEIGHTED_REWARD) for logger, m in moments.items()}


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


def panel(problem: LabelProblem, fraction: float) -> list[Row]:
    """Return the cells of one first logger, one for each ratio of the log sizes."""
    by_ratio = exact_moments(problem, [mix_of(ratio) for ratio in RATIOS])
    return [
        {"fraction": fraction, "r": ratio, **cell(moments, ratio)}
        for ratio, moments in zip(RATIOS, by_ratio, strict=True)
    ]


def cell(moments: MomentsByLogger, ratio: float) -> Row:
    """Return the variances of one cell, and the ratios that the figures show."""
    divergence = divergences(moments)
    exact = {name: e.estimate(moments) for name, e in estimators(divergence).items()}
    var = {name: estimate.variance for name, estimate in exact.items()}
    alone = {i: Naive().estimate({i: m}).variance for i, m in moments.items()}
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


SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)  # rows of each log
SHARE_RULES = {"own": Weighted(divergence="own"), "pooled": Weighted(divergence="pooled")}
MOST_ROWS = 2_000_000  # of each log over all replications
MOST_REPLICATIONS = 2000
FEWEST_REPLICATIONS = 400


def replications_for(size: int) -> int:
    """Return the number of replications: many for small logs, fewer for large ones.

    >>> replications_for(10), replications_for(10_000)
    (2000, 400)
    """
    return max(FEWEST_REPLICATIONS, min(MOST_REPLICATIONS, MOST_ROWS // size))


def estimated_weights(
    draws: Draws,
    exact: Mapping[str, float],
    value: float,
    size: int,
    rng: np.random.Generator,
    *,
    replications: int = 0,
) -> list[Row]:
    """Return one row per rule for the shares, for logs of one size.

    Args:
        draws: Draws the logs.
        exact: Exact divergences.
        value: True value of the target.
        size: Rows of each log.
        rng: Source of all randomness.
        replications: Number of replications; 0 chooses by size.
    """
    mix = Mix({FIRST: size, SECOND: size})
    optimal = Weighted(divergence="known", known=exact)
    rules = {"optimal": optimal, **SHARE_RULES}
    needs = reduce(or_, (rule.needs((FIRST, SECOND), crossed=True) for rule in rules.values()))
    drawn: dict[str, list[tuple[float, float]]] = {name: [] for name in rules}
    count = replications or replications_for(size)
    for moments in draws.moments(mix, needs.terms, count, rng):
        for name, rule in rules.items():
            estimate = rule.estimate(moments)
            drawn[name].append((estimate.shares[FIRST], estimate.value))
    best = np.array(drawn.pop("optimal"))[:, 1] - value
    return [
        {"n": size, "rule": name, **_summary(np.array(pairs), best, value, exact)}
        for name, pairs in drawn.items()
    ]


def _summary(
    pairs: FloatArray, best: FloatArray, value: float, exact: Mapping[str, float]
) -> Row:
    """Compare shares and estimates of one rule with the errors of the optimal shares.

    Both use the same rows, so that ratios and differences have little noise.
    """
    share, errors = pairs[:, 0], pairs[:, 1] - value
    optimum = 1 / sum(1 / divergence for divergence in exact.values())
    fixed = (share**2 * exact[FIRST] + (1 - share) ** 2 * exact[SECOND]) / optimum
    gap = errors - best
    spread = float(best.std(ddof=1))
    return {
        "replications": len(share),
        "fixed_ratio": float(fixed.mean()),
        "fixed_ratio_90": float(np.quantile(fixed, 0.9)),
        "variance_ratio": float(errors.var(ddof=1)) / spread**2,
        "mse_ratio": float((errors**2).mean() / (best**2).mean()),
        "bias": float(gap.mean()),
        "bias_error": float(gap.std(ddof=1)) / float(np.sqrt(len(gap))),
        "bias_sd": float(gap.mean()) / spread,
    }
