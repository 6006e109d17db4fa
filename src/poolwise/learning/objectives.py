r"""Objectives: estimates of a policy's value that learning maximises, with gradients.

An objective takes a sample and the probabilities $\pi_{ia}$ of every action, and returns its
value and the matrix $M_{ia} = \partial F / \partial \pi_{ia}$.  With the mixture as
`propensity` the weights are balanced; with each row's own propensity they are naive.

Objectives that are `additive` are sums over rows: values and gradients of chunks add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from poolwise.log.policy import FloatArray, IntArray, pick

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_ROWS = 8_192  # rows whose matrices stay in cache
ROUNDING = 1e-12  # relative error of a mean of equal numbers
TINY = 1e-30  # probability below which the logarithm falls no further


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows as an objective reads them.

    Attributes:
        action: Index of the logged action, shape (n,); -1 if the policy never plays it.
        reward: Reward, shape (n,).
        propensity: Denominator of the weights: the mixture, or the own propensity.
        logger: Index of the row's logger, shape (n,).
        predicted: Predicted reward of every action, shape (n, actions); may be empty.
        ratios: Propensity under each logger over the mixture, shape (n, loggers).
        total: Rows of the whole sample, of which these are a part.
    """

    action: IntArray
    reward: FloatArray
    propensity: FloatArray
    logger: IntArray
    predicted: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    ratios: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    total: int = 0

    def __len__(self) -> int:
        return len(self.action)

    @property
    def count(self) -> int:
        """Rows of the whole sample."""
        return self.total or len(self)

    def take(self, rows: slice | IntArray) -> Sample:
        """Return a part of the rows as a sample of its own."""
        names = ("action", "reward", "propensity", "logger", "predicted", "ratios")
        parts = {n: v[rows] for n in names if len(v := getattr(self, n))}
        return replace(self, **parts, total=0)

    def chunks(self) -> Iterator[tuple[slice, Sample]]:
        """Yield consecutive parts that remember the number of all rows."""
        for first in range(0, len(self), CHUNK_ROWS):
            rows = slice(first, first + CHUNK_ROWS)
            yield rows, replace(self.take(rows), total=self.count)


class Objective(Protocol):
    """Returns its value and its derivatives by the probability of every action."""

    @property
    def additive(self) -> bool: ...

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]: ...


def at_logged(sample: Sample, slope: FloatArray, prob: FloatArray) -> FloatArray:
    """Return the matrix whose only entries are at the logged actions."""
    return added(np.zeros_like(prob), sample, slope)


def added(matrix: FloatArray, sample: Sample, slope: FloatArray) -> FloatArray:
    """Add to each row's entry at the logged action."""
    rows = np.flatnonzero(sample.action >= 0)
    matrix[rows, sample.action[rows]] += slope[rows]
    return matrix


def stratified_error(logger: IntArray, score: FloatArray) -> float:
    r"""Return $\sqrt V$ of the mean score: $V = \sum_k n_k \mathrm{var}_k / n^2$."""
    counts = np.bincount(logger)
    centred = score - (np.bincount(logger, score) / np.maximum(counts, 1))[logger]
    spreads = np.bincount(logger, centred**2) / np.maximum(counts - 1, 1)
    return math.sqrt(counts @ spreads) / len(score)


@dataclass(frozen=True)
class DoublyRobust:
    r"""Mean of $\sum_a \pi_a q_a + \pi (r - q) / p^c$.

    $c = 1$ is the doubly robust estimate; a smaller exponent smooths its correction.
    """

    exponent: float = 1.0
    additive: bool = True

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        slope = sample.reward - pick(sample.predicted, sample.action)
        slope = slope / sample.propensity**self.exponent
        values = np.einsum("ij,ij->i", prob, sample.predicted)
        score = values + pick(prob, sample.action) * slope
        value = float(score.sum(dtype=np.float64)) / sample.count
        matrix = sample.predicted / sample.count
        return value, added(matrix, sample, slope / sample.count)


@dataclass(frozen=True, eq=False)
class Regression:
    """Weighted rewards regressed on columns with known means.

    Attributes:
        columns: 1, loggers, the policy's weight and its model, shape (n, columns).
        slopes: Coefficients; the first is the calibrated estimate.
        residual: Residuals, shape (n,).
    """

    columns: FloatArray
    slopes: FloatArray
    residual: FloatArray

    @classmethod
    def of(cls, sample: Sample, prob: FloatArray, *, model: bool) -> Regression:
        weight = pick(prob, sample.action) / sample.propensity
        columns = [np.ones(len(sample)), *(sample.ratios[:, :-1] - 1).T, weight - 1]
        if model:
            logged = pick(sample.predicted, sample.action)
            values = np.einsum("ij,ij->i", prob, sample.predicted)
            columns.append(weight * logged - values)
        return cls.fit(np.stack(columns, axis=1), weight * sample.reward)

    @classmethod
    def fit(cls, columns: FloatArray, outcome: FloatArray) -> Regression:
        """Regress by least squares; columns may repeat each other."""
        slopes = np.linalg.pinv(columns.T @ columns) @ (columns.T @ outcome)
        return cls(columns, slopes, outcome - columns @ slopes)

    @property
    def value(self) -> float:
        return float(self.slopes[0])

    def std_error(self, logger: IntArray) -> float:
        """Return the error of the value, stratified by logger."""
        count, used = self.columns.shape
        error = stratified_error(logger, self.residual)
        if error < ROUNDING * abs(self.value):
            return 0.0
        return error * math.sqrt(count / max(count - used, 1))


@dataclass(frozen=True)
class LogLikelihood:
    r"""Mean of $(r / p) \log \pi$ at the logged actions.

    It is the weighted classification of the Open Bandit Pipeline.  With the propensity under
    logger k in place of the reward, it clones logger k from the rows of all loggers.
    """

    additive: bool = True

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        logged = np.maximum(pick(prob, sample.action, 1.0), TINY)
        slope = sample.reward / sample.propensity / sample.count
        return float(slope @ np.log(logged)), at_logged(sample, slope / logged, prob)
