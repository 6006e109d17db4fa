"""Simulation: draws logs, to estimate weights (figure 5) and to check variances (figure 6)."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.estimators.calibrated import least_squares, logger_columns
from poolwise.estimators.ips import Weighted
from poolwise.moments.coverage import Coverage
from poolwise.moments.linear import Score, row_variance
from poolwise.moments.moments import Moments
from poolwise.moments.pool import Pool
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    WEIGHTED_REWARD,
    Factor,
    Term,
)
from reproduction.enumeration import LabelProblem, Mix, exact_fourth, exact_moments
from reproduction.panels import FIRST, RATIOS, SECOND, divergences, estimators

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from poolwise.moments.estimate import Estimate
    from poolwise.types import FloatArray
    from reproduction.figures import CsvRow

DRAWN_ROWS = 1 << 16  # of all replications drawn at once


@dataclass(frozen=True, eq=False)
class Simulator:
    """Draws logs of a problem.

    Attributes:
        problem: The problem.
    """

    problem: LabelProblem

    @cached_property
    def _log_none(self) -> dict[str, FloatArray]:
        policies = {**self.problem.policies, "": self.problem.target}
        return {name: s.policy.log_none_at(s.scores) for name, s in policies.items()}

    def moments(
        self,
        mix: Mix,
        terms: Sequence[Term],
        replications: int,
        rng: np.random.Generator,
    ) -> Iterator[dict[str, Moments]]:
        """Yield the moments of each replication, with the scatter of all pairs of terms."""
        step = max(1, DRAWN_ROWS // sum(mix.counts.values()))
        sizes = [min(step, replications - k) for k in range(0, replications, step)]
        task = partial(self._block, mix, tuple(terms))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for block in pool.map(task, sizes, rng.spawn(len(sizes))):
                yield from block

    def _block(
        self, mix: Mix, terms: tuple[Term, ...], size: int, rng: np.random.Generator
    ) -> list[dict[str, Moments]]:
        by_logger = {
            logger: _reduce(self._rows(logger, mix, size * count, rng), terms, size, count)
            for logger, count in mix.counts.items()
        }
        return [
            {logger: blocks[k] for logger, blocks in by_logger.items()} for k in range(size)
        ]

    def _rows(
        self, logger: str, mix: Mix, size: int, rng: np.random.Generator
    ) -> dict[Factor, FloatArray]:
        """Draw rows of one logger, as columns."""
        problem = self.problem
        rows = rng.integers(problem.contexts, size=size)
        own = problem.policies[logger]
        labels = own.policy.sample_at(own.scores[rows], rng)
        probs = {
            name: np.exp(
                s.policy.energy_at(s.scores[rows], labels) + self._log_none[name][rows]
            )
            for name, s in {**problem.policies, "": problem.target}.items()
        }
        target = probs.pop("")
        mixture = sum(
            share * probs[name] for name, share in zip(mix.counts, mix.shares, strict=True)
        )
        reward = (labels == problem.truth[rows]).sum(axis=1).astype(np.float64)
        return {
            Factor("reward"): reward,
            Factor("weight"): target / probs[logger],
            Factor("balanced_weight"): target / mixture,
            **{Factor("ratio", name): p / mixture for name, p in probs.items()},
            **{Factor("inverse_ratio", name): mixture / p for name, p in probs.items()},
        }


def _reduce(
    columns: Mapping[Factor, FloatArray], terms: tuple[Term, ...], size: int, count: int
) -> list[Moments]:
    """Return one `Moments` for each of `size` replications of `count` rows."""
    values = np.empty((size, count, len(terms)))
    for index, term in enumerate(terms):
        product = reduce(np.multiply, (columns[factor] for factor in term.factors))
        values[:, :, index] = product.reshape(size, count)
    means, unknown = values.mean(axis=1), np.full(len(terms), np.nan)
    values -= means[:, None, :]
    scatter = values.transpose(0, 2, 1) @ values
    return [Moments(terms, count, means[k], scatter[k], unknown, unknown) for k in range(size)]


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
    problem: LabelProblem,
    exact: Mapping[str, float],
    size: int,
    rng: np.random.Generator,
    *,
    replications: int = 0,
) -> list[CsvRow]:
    """Return one row per rule for the shares, for logs of one size.

    Args:
        problem: The problem that logs are drawn of.
        exact: Exact divergences.
        size: Rows of each log.
        rng: Source of all randomness.
        replications: Number of replications; 0 chooses by size.
    """
    mix, value = Mix({FIRST: size, SECOND: size}), problem.value()
    rules = {"optimal": Weighted(divergence="known", known=exact), **SHARE_RULES}
    coverage = Coverage.complete((FIRST, SECOND))
    needs = reduce(or_, (rule.needs(coverage) for rule in rules.values()))
    drawn: dict[str, list[tuple[float, float]]] = {name: [] for name in rules}
    count = replications or replications_for(size)
    for moments in Simulator(problem).moments(mix, needs.terms, count, rng):
        for name, rule in rules.items():
            estimate = rule.estimate(Pool(moments))
            drawn[name].append((estimate.shares[FIRST], estimate.value))
    best = np.array(drawn.pop("optimal"))[:, 1] - value
    return [
        {"n": size, "rule": name, **summary(np.array(pairs), best, value, exact)}
        for name, pairs in drawn.items()
    ]


def summary(
    pairs: FloatArray, best: FloatArray, value: float, exact: Mapping[str, float]
) -> CsvRow:
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


REPLICATIONS = 600
WITH_ESTIMATED = 200  # of them with least squares in each replication, which is slow
SIMULATED_ROWS = 2000  # of both logs together; a little less where their ratio requires it
MOST_EXCESS = 1.0  # kurtosis of an estimate: below it, a z-score of its variance is near normal
MOST_TIMES = 40  # largest factor by which logs are enlarged
ESTIMATED = {"cv_loggers": "cv_loggers_estimated", "cv_target": "cv_target_estimated"}
MIXED = ("balanced", *ESTIMATED)  # estimators over the mixture of the loggers
TARGET_COLUMN = Score({BALANCED_WEIGHT: 1.0}, -1.0)


def mix_for(ratio: float) -> Mix:
    """Return whole numbers of rows in exactly this ratio, about `SIMULATED_ROWS` together.

    >>> [tuple(mix_for(ratio).counts.values()) for ratio in (0.1, 1.0, 9.0)]
    [(181, 1810), (1000, 1000), (1800, 200)]
    """
    second = next(k for k in range(1, 101) if math.isclose(k * ratio, round(k * ratio)))
    unit = round(second * (1 + ratio))
    times = SIMULATED_ROWS // unit
    return Mix({FIRST: times * round(second * ratio), SECOND: times * second})


def optimal(moments: Pool, columns: Sequence[Score]) -> Score:
    """Return the balanced reward less columns, with the slopes that exact moments give.

    Slopes that are given numbers make it a plain mean, so it is exactly unbiased.
    """
    outcome = Score({BALANCED_REWARD: 1.0})
    slopes, _ = least_squares(moments, outcome, columns, within=False)
    return outcome.less(slopes, columns)


@dataclass(frozen=True, eq=False)
class ExactCell:
    """Exact numbers of one cell, from enumeration.

    Attributes:
        mix: Rows of each log.
        moments: Exact moments.
        fourth: Fourth central moments of one row, by estimator and logger.
    """

    mix: Mix
    moments: Mapping[str, Moments]
    fourth: Mapping[str, Mapping[str, float]]

    def excess(self, name: str, shares: Mapping[str, float]) -> float:
        """Return the fourth cumulant of the estimate: the sum over its rows."""
        total = 0.0
        for logger, m in self.moments.items():
            cumulant = (
                self.fourth[name][logger] - 3 * row_variance(m, self.fixed[name].parts) ** 2
            )
            total += (shares[logger] / m.count) ** 4 * m.count * cumulant
        return total

    @cached_property
    def fixed(self) -> dict[str, Score]:
        """A row of each estimator, see `row_scores`."""
        return row_scores(Pool(self.moments))


def enlarged(exact: ExactCell, most_excess: float = MOST_EXCESS) -> ExactCell:
    """Return the same cell with logs so large that every estimate is close to normal.

    With few rows a variance depends on weights that occur once in many replications, and its
    z-score is far from normal: with 2,000 rows in every cell of Scene, naive had one of 5.4.
    The exact fourth moments give the rows it takes: the excess of a mean falls as one over
    its rows.
    """
    estimates = {
        name: e.estimate(Pool(exact.moments))
        for name, e in estimators(divergences(Pool(exact.moments))).items()
    }
    worst = max(exact.excess(n, e.shares) / e.variance**2 for n, e in estimates.items())
    times = min(MOST_TIMES, max(1, math.ceil(worst / most_excess)))
    return replace(
        exact,
        mix=Mix({i: times * n for i, n in exact.mix.counts.items()}),
        moments={i: m.recounted(times * m.count) for i, m in exact.moments.items()},
    )


def row_scores(moments: Pool) -> dict[str, Score]:
    """Return a row of each estimator; control variates have their optimal slopes."""
    own, loggers = Score({WEIGHTED_REWARD: 1.0}), list(logger_columns(moments).values())
    return {
        "naive": own,
        "weighted": own,
        "balanced": Score({BALANCED_REWARD: 1.0}),
        "cv_loggers": optimal(moments, loggers),
        "cv_target": optimal(moments, [*loggers, TARGET_COLUMN]),
    }


def exact_cells(problem: LabelProblem, ratios: Sequence[float] = RATIOS) -> list[ExactCell]:
    """Return all cells of one first logger."""
    mixes = [mix_for(ratio) for ratio in ratios]
    moments = exact_moments(problem, mixes)
    parts = [
        [scores[name].parts for name in MIXED] for scores in map(row_scores, map(Pool, moments))
    ]
    mixed, own = exact_fourth(problem, mixes, parts, moments)
    by_logger = dict(zip(problem.loggers, own.tolist(), strict=True))
    alone = {"naive": by_logger, "weighted": by_logger}
    cells = []
    for mix, exact, fourth in zip(mixes, moments, mixed, strict=True):
        columns = zip(MIXED, fourth.T.tolist(), strict=True)
        by_name = {name: dict(zip(problem.loggers, c, strict=True)) for name, c in columns}
        cells.append(enlarged(ExactCell(mix, exact, alone | by_name)))
    return cells


def simulate_cell(
    problem: LabelProblem,
    exact: ExactCell,
    rng: np.random.Generator,
    *,
    replications: int = REPLICATIONS,
) -> list[CsvRow]:
    """Return one row per estimator: simulated mean and variance against the exact ones."""
    chosen = estimators(divergences(Pool(exact.moments)))
    coverage = Coverage.complete(exact.moments)
    needs = reduce(or_, (e.needs(coverage) for e in chosen.values()))
    values: dict[str, list[float]] = {name: [] for name in (*chosen, *ESTIMATED.values())}
    for moments in Simulator(problem).moments(exact.mix, needs.terms, replications, rng):
        for name, estimator in chosen.items():
            if name not in ESTIMATED:
                values[name].append(estimator.estimate(Pool(moments)).value)
            elif len(values[ESTIMATED[name]]) < WITH_ESTIMATED:
                values[ESTIMATED[name]].append(estimator.estimate(Pool(moments)).value)
        for name in ESTIMATED:
            values[name].append(exact.fixed[name].over(Pool(moments)).value(Pool(moments)))
    truths = {
        name: estimator.estimate(Pool(exact.moments)) for name, estimator in chosen.items()
    }
    rows = [compared(name, np.array(values[name]), e, exact) for name, e in truths.items()]
    return rows + [
        _unscored(e, np.array(values[e]), truths[name]) for name, e in ESTIMATED.items()
    ]


def compared(name: str, values: FloatArray, truth: Estimate, exact: ExactCell) -> CsvRow:
    r"""Compare simulated values of an estimator with its exact mean and variance.

    The standard error of the mean of R values is $\sigma / \sqrt R$, that of their variance
    $\sqrt{(\mu_4 - \sigma^4 (R - 3) / (R - 1)) / R}$.
    """
    row, size = _unscored(name, values, truth), len(values)
    fourth = exact.excess(name, truth.shares) + 3 * truth.variance**2
    error = math.sqrt((fourth - truth.variance**2 * (size - 3) / (size - 1)) / size)
    return row | {
        "z_mean": (row["mean"] - truth.value) / math.sqrt(truth.variance / size),
        "z_variance": (row["variance"] - truth.variance) / error,
    }


def _unscored(name: str, values: FloatArray, truth: Estimate) -> dict[str, Any]:
    """Return simulated and exact numbers, with NaN as z-scores."""
    return {
        "estimator": name,
        "replications": len(values),
        "value": truth.value,
        "mean": float(values.mean()),
        "var_exact": truth.variance,
        "variance": float(values.var(ddof=1)),
        "z_mean": math.nan,
        "z_variance": math.nan,
    }
