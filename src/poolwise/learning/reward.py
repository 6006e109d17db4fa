"""Reward: one ridge regression per action, cross-fitted, from sums of products.

A row's prediction for learning comes from the other folds; new rows are predicted by the fit
to all folds.  The penalty is the one whose cross-fitted squared error is least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.learning.objectives import CHUNK_ROWS
from poolwise.log.policy import pick

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.log.policy import FloatArray, IntArray

FOLDS = 3
PENALTIES = (0.03, 0.3, 3.0, 30.0)  # times the number of features


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
        fold: Fold of each row, from 0 to `FOLDS` - 1.
        actions: Number of actions.
        penalties: Candidates of the penalty over d.
    """
    centre = float(reward.mean())
    products, sums = _products(features, action, reward - centre, fold, actions)
    best: tuple[float, float, FloatArray] | None = None
    for penalty in penalties:
        fits = _solved(products.sum(axis=0) - products, sums.sum(axis=0) - sums, penalty)
        models = [_model(fit, centre, reward) for fit in fits]
        predicted = _predicted(models, features, fold)
        gaps = (reward - pick(predicted, action))[action >= 0]
        error = float(gaps @ gaps)
        if best is None or error < best[0]:
            best = error, penalty, predicted
    assert best is not None  # noqa: S101 - there is a candidate
    whole = _solved(products.sum(axis=0)[None], sums.sum(axis=0)[None], best[1])[0]
    return _model(whole, centre, reward), best[2]


def _model(coefficients: FloatArray, centre: float, reward: FloatArray) -> RidgeRewards:
    return RidgeRewards(coefficients, centre, float(reward.min()), float(reward.max()))


def _products(
    features: FloatArray, action: IntArray, reward: FloatArray, fold: IntArray, actions: int
) -> tuple[FloatArray, FloatArray]:
    """Return sums of products of the features, and with the reward, by fold and action."""
    size = features.shape[1]
    products = np.zeros((FOLDS, actions, size, size))
    sums = np.zeros((FOLDS, actions, size))
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


def _solved(products: FloatArray, sums: FloatArray, penalty: float) -> FloatArray:
    """Return coefficients of shape (folds, features, actions); 1 is the penalty of the bias."""
    size = products.shape[-1]
    ridge = np.full(size, penalty * size)
    ridge[-1] = 1.0
    solved = np.linalg.solve(products + np.diag(ridge), sums[..., None])
    return np.asarray(solved[..., 0], dtype=np.float64).transpose(0, 2, 1)


def _predicted(
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
