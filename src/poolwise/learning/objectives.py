r"""Objectives: estimates of a policy's value that learning maximises, with gradients.

An objective takes a sample and the probabilities $\pi_{ia}$ of every action, and returns its
value and the matrix $M_{ia} = \partial F / \partial \pi_{ia}$.  With the mixture as
`propensity` the weights are balanced; with each row's own propensity they are naive.

Objectives that are `additive` are sums over rows: values and gradients of chunks add up.

Predicted rewards come from one ridge regression per action, cross-fitted, from sums of
products: a row's prediction for learning from the other folds, that of new rows from all.  The
penalty is the one whose cross-fitted squared error is least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from poolwise.log.policy import pick

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from poolwise.types import FloatArray, IntArray

CHUNK_ROWS = 8_192  # rows whose matrices stay in cache
LEFT_OUT = 1e-9  # 1 minus the leverage of a row that alone determines a slope
MEAN_ROUNDING = 1e-12  # relative error of a mean of equal numbers
TINY_PROBABILITY = 1e-30  # probability below which the logarithm falls no further
REWARD_FOLDS = 3
PENALTIES = (0.03, 0.3, 3.0, 30.0)  # times the number of features


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
        arrays = {n: v for n, v in vars(self).items() if isinstance(v, np.ndarray) and len(v)}
        return replace(self, **{n: v[rows] for n, v in arrays.items()}, total=0)

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
    return add_at_action(np.zeros_like(prob), sample, slope)


def add_at_action(matrix: FloatArray, sample: Sample, slope: FloatArray) -> FloatArray:
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
class DoublyRobustMean:
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
        return value, add_at_action(matrix, sample, slope / sample.count)


@dataclass(frozen=True, eq=False)
class Plays:
    """A policy in some rows: the numbers that its value depends on.

    Attributes:
        prob: Probability of the logged action, shape (n,).
        value: Predicted value of the policy, shape (n,); None without predictions.
        logged: Predicted reward of the logged action, shape (n,).
    """

    prob: FloatArray
    value: FloatArray | None = None
    logged: FloatArray | None = None

    @classmethod
    def of(cls, sample: Sample, prob: FloatArray) -> Plays:
        """Return what follows from the probability of every action."""
        logged = pick(sample.predicted, sample.action)
        values = np.einsum("ij,ij->i", prob, sample.predicted)
        return cls(pick(prob, sample.action), values, logged)

    def columns(self, sample: Sample) -> tuple[FloatArray, list[FloatArray]]:
        """Return the weights, and columns with mean 0."""
        weight = self.prob / sample.propensity
        if self.value is None or self.logged is None:
            return weight, [weight - 1]
        return weight, [weight - 1, weight * self.logged - self.value]


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
    def of(cls, sample: Sample, plays: Plays, other: Plays | None = None) -> Regression:
        """Return the regression of a policy, or of its gain over another one, row by row."""
        weight, columns = plays.columns(sample)
        if other is not None:
            less, more = other.columns(sample)
            weight, columns = weight - less, [*columns, *more]
        shared = [np.ones(len(sample)), *(sample.ratios[:, :-1] - 1).T]
        return cls.fit(np.stack([*shared, *columns], axis=1), weight * sample.reward)

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
        if error < MEAN_ROUNDING * abs(self.value):
            return 0.0
        return error * math.sqrt(count / max(count - used, 1))

    def left_out_error(self, logger: IntArray) -> float:
        """Return the error of the value from residuals of rows that were left out of the fit.

        One row with a large weight determines a slope, and with it the value, but its own
        residual is then small: only without that row does the fit show how wrong it may be.
        """
        inverse = np.linalg.pinv(self.columns.T @ self.columns)
        leverage = np.einsum("ij,jk,ik->i", self.columns, inverse, self.columns)
        share = len(self.columns) * (self.columns @ inverse[0])
        if leverage.max() > 1 - LEFT_OUT:
            return math.inf  # without that row the value is unknown
        return stratified_error(logger, share * self.residual / (1 - leverage))


@dataclass(frozen=True)
class LogLikelihood:
    r"""Mean of $(r / p) \log \pi$ at the logged actions.

    It is the weighted classification of the Open Bandit Pipeline.  With the propensity under
    logger k in place of the reward, it clones logger k from the rows of all loggers.
    """

    additive: bool = True

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        logged = np.maximum(pick(prob, sample.action, 1.0), TINY_PROBABILITY)
        slope = sample.reward / sample.propensity / sample.count
        return float(slope @ np.log(logged)), at_logged(sample, slope / logged, prob)


@dataclass(frozen=True, eq=False)
class RidgeRewards:
    """Predicted rewards that are linear in the features.

    Attributes:
        coefficients: Shape (features, actions).
        centre: Mean reward, which is the prediction without any row.
        lowest: Smallest reward.
        highest: Largest reward.
    """

    coefficients: FloatArray
    centre: float
    lowest: float
    highest: float

    def predict(self, features: FloatArray) -> FloatArray:
        """Predict the reward of every action, shape (n, actions)."""
        values = features @ self.coefficients.astype(features.dtype)
        return (values + self.centre).clip(self.lowest, self.highest).astype(features.dtype)


def fit_rewards(
    features: FloatArray,
    action: IntArray,
    reward: FloatArray,
    fold: IntArray,
    actions: int,
    penalties: Sequence[float] = PENALTIES,
) -> tuple[RidgeRewards, FloatArray]:
    """Fit a model to all rows, and predict each row from the other folds.

    Args:
        features: Shape (n, d); the last is 1.
        action: Index of the logged action; -1 for one that is not listed.
        reward: Shape (n,).
        fold: Fold of each row, from 0 to `REWARD_FOLDS` - 1.
        actions: Number of actions.
        penalties: Candidates of the penalty over d.
    """
    centre = float(reward.mean())
    products, sums = _products(features, action, reward - centre, fold, actions)
    best = math.inf, math.nan, np.empty(0)
    for penalty in penalties:
        fits = _solve_normal(products.sum(axis=0) - products, sums.sum(axis=0) - sums, penalty)
        models = [_model(fit, centre, reward) for fit in fits]
        predicted = _predict_rewards(models, features, fold)
        gaps = (reward - pick(predicted, action))[action >= 0]
        error = float(gaps @ gaps)
        if error < best[0]:
            best = error, penalty, predicted
    whole = _solve_normal(products.sum(axis=0)[None], sums.sum(axis=0)[None], best[1])[0]
    return _model(whole, centre, reward), best[2]


def _model(coefficients: FloatArray, centre: float, reward: FloatArray) -> RidgeRewards:
    return RidgeRewards(coefficients, centre, float(reward.min()), float(reward.max()))


def _products(
    features: FloatArray, action: IntArray, reward: FloatArray, fold: IntArray, actions: int
) -> tuple[FloatArray, FloatArray]:
    """Return sums of products of the features, and with the reward, by fold and action."""
    size = features.shape[1]
    products = np.zeros((REWARD_FOLDS, actions, size, size))
    sums = np.zeros((REWARD_FOLDS, actions, size))
    order = np.argsort(fold * (actions + 1) + action, kind="stable")
    cells, first = np.unique((fold * (actions + 1) + action)[order], return_index=True)
    for cell, rows in zip(cells.tolist(), np.split(order, first[1:]), strict=True):
        k, a = divmod(cell, actions + 1)
        if a == actions:  # action -1 of the next fold
            continue
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS]
            block = features[chunk].astype(np.float64)
            products[k, a] += block.T @ block
            sums[k, a] += reward[chunk] @ block
    return products, sums


def _solve_normal(products: FloatArray, sums: FloatArray, penalty: float) -> FloatArray:
    """Return coefficients of shape (folds, features, actions); 1 is the penalty of the bias."""
    size = products.shape[-1]
    ridge = np.full(size, penalty * size)
    ridge[-1] = 1.0
    solved = np.linalg.solve(products + np.diag(ridge), sums[..., None])
    return np.asarray(solved[..., 0], dtype=np.float64).transpose(0, 2, 1)


def _predict_rewards(
    models: Sequence[RidgeRewards], features: FloatArray, fold: IntArray
) -> FloatArray:
    """Predict each row by the model of its fold."""
    predicted = np.empty((len(features), models[0].coefficients.shape[1]), features.dtype)
    for k, model in enumerate(models):
        rows = np.flatnonzero(fold == k)
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS]
            predicted[chunk] = model.predict(features[chunk])
    return predicted
