"""Agreement: tests of numbers that are equal in theory.

Each test compares means of the same pass: the mean weight is 1, the mean of a logger over
the mixture is 1, the loggers' own estimates of a target have one expectation, and so have
two estimators.  Wrong probabilities, drift between the logs, or a logger that was trained on
them break these equalities.  Tests without enough rows are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from poolwise.diagnosis.statistics import ENOUGH, cochran, random_effects, welch
from poolwise.errors import RefusedError
from poolwise.estimators.calibrated import (
    Calibrated,
    Columns,
    logger_columns,
    many,
    supported_columns,
)
from poolwise.estimators.ips import Weighted
from poolwise.moments.deviation import Deviation, deviation
from poolwise.moments.linear import Score, ratio_score, shares
from poolwise.moments.terms import OVERLAP, OVERLAP_REWARD, REWARD, WEIGHTED_REWARD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.diagnosis.overlap import Overlap, Row
    from poolwise.intervals.student import Interval
    from poolwise.moments.pool import Pool

    Estimates = Mapping[str, tuple[float, float]]  # value and variance, by logger

OVERLAP_SQUARE = OVERLAP_REWARD * REWARD
ENOUGH_OVERLAP = 50  # effective sample size of the overlap policy required for the test
FULL: tuple[Columns, ...] = ("loggers", "target")  # columns of calibrated


@dataclass(frozen=True)
class Check:
    """A test of an equality.

    Attributes:
        name: Description of the equality.
        statistic: Distance in standard errors, Q or F.
        p_value: Probability of a larger statistic if the equality holds.
    """

    name: str
    statistic: float
    p_value: float


@dataclass(frozen=True)
class Alone:
    """Estimate from one logger's rows alone, and its log relative to others.

    Attributes:
        value: IPS estimate of the target from its own rows.
        std_error: Standard error of `value`.
        relative_rows: r, its rows over those of the last logger.
        relative_divergence: v, its divergence over that of the last logger; infinite if
            either lacks support.
        best_share: Share that minimises the variance of weighted.
    """

    value: float
    std_error: float
    relative_rows: float
    relative_divergence: float
    best_share: float


@dataclass(frozen=True)
class Diagnosis:
    """Agreement of the logs with each other and with their probabilities.

    Attributes:
        alone: Estimate from each logger's rows alone.
        gamma: Variance of weighted over that of naive; infinite if unknown.
        columns: Mean of each logger over the mixture, 1 in expectation.
        checks: Tests of agreement, by name.
        typical: Random-effects interval of the value in a typical period, if logs are
            periods; None if fewer than two logs are comparable.
        with_all: Standard errors of the pooling estimators with all loggers.
        without: The same without each logger; empty if not requested.
    """

    alone: Mapping[str, Alone] = field(default_factory=dict)
    gamma: float = math.inf
    columns: Mapping[str, Deviation] = field(default_factory=dict)
    checks: Mapping[str, Check] = field(default_factory=dict)
    typical: Interval | None = None
    with_all: Mapping[str, float] = field(default_factory=dict)
    without: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of_logger(self, logger: str) -> Row:
        """Return the numbers of one logger under flat names."""
        row: Row = dict(vars(self.alone[logger])) if logger in self.alone else {}
        if logger in self.columns:
            row |= {f"column_{k}": v for k, v in vars(self.columns[logger]).items()}
        for estimator, std_error in self.without.get(logger, {}).items():
            row[f"{estimator}_std_error_without"] = std_error
        return row

    def to_dict(self) -> Row:
        """Return the numbers of all loggers together."""
        row: Row = {"gamma": self.gamma}
        row["checks"] = [{"check": k, **vars(c)} for k, c in self.checks.items()]
        if self.typical is not None:
            row["typical"] = vars(self.typical)
        return row


def diagnose(
    pool: Pool,
    loggers: Mapping[str, Overlap],
    mixture: Overlap | None,
    level: float,
) -> Diagnosis:
    """Return the estimates from each log alone, and the tests of agreement.

    Args:
        pool: Moments of each logger.
        loggers: Overlap of the target with each logger.
        mixture: Overlap with the mixture; None without cross-propensities.
        level: Level of the interval of a typical log.
    """
    own = {i: Score({WEIGHTED_REWARD: 1.0}).of(i) for i in pool.loggers}
    values = {
        i: (mean.value(pool), mean.deviation_variance(pool)[0]) for i, mean in own.items()
    }
    divergence = {i: overlap.divergence for i, overlap in loggers.items()}
    supported = {i: v for i, v in _with_error(values).items() if not loggers[i].unsupported}
    means: dict[str, Deviation] = {}
    checks = estimates(pool, supported)
    if mixture is not None:
        z, p_value = mixture.mean_weight_z, mixture.mean_weight_p
        means, of_columns = columns(pool)
        checks = {
            "mean-weight": Check("mean balanced weight is 1 (z)", z, p_value),
            **of_columns,
            **drift(pool),
            **checks,
            **hausman(pool),
        }
    return Diagnosis(
        alone=_average_alone(pool, values, divergence),
        gamma=gamma(pool, divergence),
        columns=means,
        checks=checks,
        typical=random_effects(*_unzip_estimates(supported), level)
        if len(supported) > 1
        else None,
    )


def _with_error(values: Estimates) -> dict[str, tuple[float, float]]:
    return {i: v for i, v in values.items() if 0 < v[1] < math.inf}


def _unzip_estimates(values: Estimates) -> tuple[list[float], list[float]]:
    return [value for value, _ in values.values()], [spread for _, spread in values.values()]


def _average_alone(
    pool: Pool, values: Estimates, divergence: Mapping[str, float]
) -> dict[str, Alone]:
    last = pool.loggers[-1]
    unit = divergence[last] if 0 < divergence[last] < math.inf else 0.0
    rows = {i: pool[i].count for i in pool.loggers}
    mass = {i: n / divergence[i] if divergence[i] else 0.0 for i, n in rows.items()}
    best = shares(mass) if sum(mass.values()) > 0 else dict.fromkeys(rows, 0.0)
    return {
        i: Alone(
            value=value,
            std_error=math.sqrt(spread),
            relative_rows=rows[i] / rows[last],
            relative_divergence=divergence[i] / unit if unit else math.inf,
            best_share=best[i],
        )
        for i, (value, spread) in values.items()
    }


def gamma(pool: Pool, divergence: Mapping[str, float]) -> float:
    r"""Return the variance of weighted over that of naive; infinite without divergences.

    $$\gamma = n^2 \Big/ \Big(\sum_i n_i \sigma_i^2 \sum_i n_i / \sigma_i^2\Big) \le 1$$
    """
    if not all(0 < d < math.inf for d in divergence.values()):
        return math.inf
    rows = {i: pool[i].count for i in pool.loggers}
    spread = sum(n * divergence[i] for i, n in rows.items())
    return pool.rows**2 / (spread * sum(n / divergence[i] for i, n in rows.items()))


def columns(pool: Pool) -> tuple[dict[str, Deviation], dict[str, Check]]:
    r"""Test that the mean of each logger over the mixture is 1, and more in its *own* rows.

    $$E_i[\pi_i / \pi_{avg}] = E_{avg}[(\pi_i / \pi_{avg})^2] \ge 1$$

    Swapped columns of two loggers break the second, even if their logs have the same size
    and the means over all rows are 1.  Returns the means over all rows, and the tests of the
    worst logger with Bonferroni's correction; nothing if there are too many loggers for a
    column each.
    """
    if many(pool):
        return {}, {}
    centred = logger_columns(pool)
    ratios = {i: centred[i] + Score({}, 1.0) for i in pool.loggers}
    means = {i: deviation(ratio.over(pool), pool) for i, ratio in ratios.items()}
    if len(pool) < 2:
        return means, {}
    worst = min(means.values(), key=lambda d: d.p_value)
    p_value = min(1.0, len(means) * worst.p_value)
    checks = {"columns": Check("logger / mixture averages 1 (worst z)", worst.z, p_value)}
    large = [i for i in pool.loggers if pool[i].count >= ENOUGH]
    if large:
        own = [deviation(ratios[i].of(i), pool) for i in large]
        worst = min(own, key=lambda d: d.z)
        below = worst.p_value / 2 if worst.z < 0 else 1 - worst.p_value / 2
        name, p_value = "own column is 1 or more (worst z)", min(1.0, len(own) * below)
        checks["own-columns"] = Check(name, worst.z, p_value)
    return means, checks


def drift(pool: Pool) -> dict[str, Check]:
    r"""Test that the overlap policy $\propto \min_k \pi_k$ has one value in all logs.

    Its weights are light under every logger, so the test has more power than one on the
    target.  The self-normalised estimate $v_i$ of each log is compared with the mean of the
    others, in proportion to their effective rows $e$, by a score that allows for skewed
    rewards; the p-value is that of the worst log with Bonferroni's correction.

    If nothing drifted, the rewards of all logs have one distribution under the overlap
    policy, with variance $s^2$.  So the variance of a difference is at least
    $s^2 (1/e_i + 1/\sum_{k \ne i} e_k)$: a log that missed its rare rewards is not precise.
    """
    effective = {i: pool[i].effective(OVERLAP) for i in pool.loggers}
    used = [i for i, e in effective.items() if e >= ENOUGH_OVERLAP]
    if len(used) < 2:
        return {}
    scores = {i: ratio_score(pool[i], OVERLAP_REWARD, OVERLAP) for i in used}
    spread = _overlap_spread(pool.keep(used))
    tests = []
    for i in used:
        rest = shares({k: effective[k] for k in used if k != i})
        others = sum(effective[k] for k in rest)
        expected = sum(part * scores[k].constant for k, part in rest.items())
        gap = scores[i].of(i)
        for k, part in rest.items():
            gap -= (scores[k] * part).of(k)
        gap = replace(gap, constant=gap.constant + expected)
        least = spread * (1 / effective[i] + 1 / others)
        tests.append(deviation(gap, pool, expected=expected, at_least=least))
    worst = min(tests, key=lambda test: test.p_value)
    p_value = min(1.0, len(tests) * worst.p_value)
    return {"drift": Check("overlap policy by logger (worst z)", worst.z, p_value)}


def _overlap_spread(pool: Pool) -> float:
    """Return the variance of rewards under the overlap policy; 0 if the pass has no squares."""
    if not all(m.has(OVERLAP_SQUARE) for m in pool.values()):
        return 0.0
    whole = pool.together
    weight = whole.mean(OVERLAP)
    mean = whole.mean(OVERLAP_REWARD) / weight
    return max(0.0, whole.mean(OVERLAP_SQUARE) / weight - mean**2)


def estimates(pool: Pool, values: Estimates) -> dict[str, Check]:
    """Test that the loggers' own estimates of the target agree, by Welch and by Cochran."""
    test = _by_welch(pool, values)
    if test is None:
        return {}
    return {
        "estimates": Check("target by logger (Welch's F)", *test),
        "estimates-q": Check(
            "target by logger (Cochran's Q)", *cochran(*_unzip_estimates(values))
        ),
    }


def _by_welch(pool: Pool, values: Estimates) -> tuple[float, float] | None:
    used = {i: v for i, v in _with_error(values).items() if pool[i].count > 1}
    if len(used) < 2:
        return None
    return welch(*_unzip_estimates(used), [pool[i].count for i in used])


def hausman(pool: Pool) -> dict[str, Check]:
    """Test that calibrated and reward-free weighted estimate one value (Hausman, 1978).

    The first divides by the mixture, the second by each row's own propensity: wrong
    probabilities, drift, or a logger trained on these logs make them differ.  The variance
    of the difference comes from the rows of each logger; it is at least the difference of
    the variances, since pooled divergences include large own weights that were not observed.
    """
    if supported_columns(pool, FULL)[0] != FULL:
        return {}
    try:
        weighted = Weighted(divergence="reward-free").estimate(pool)
    except RefusedError:
        return {}
    calibrated = Calibrated(FULL, guard=False).estimate(pool)
    gap = calibrated.linear.plain - weighted.linear.plain
    own, _ = calibrated.linear.plain.deviation_variance(pool)
    test = deviation(
        replace(gap, constant=gap.constant + weighted.value),
        pool,
        expected=weighted.value,
        at_least=weighted.variance - own,
    )
    return {"hausman": Check("calibrated = reward-free weighted (z)", test.z, test.p_value)}
