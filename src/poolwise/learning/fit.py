r"""Fit: a linear softmax policy that maximises an objective, near an anchor.

The policy is $\pi(a \mid x) = \mathrm{softmax}(\phi(x)' \Theta + b(x))_a$ with fixed scores
$b$, which are 0 or the anchor's.  L-BFGS maximises $F(\Theta) - |\Theta - \Theta_0|^2$ times
half a penalty.  Additive objectives are computed chunk by chunk, so memory stays flat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import optimize

from poolwise.learning.objectives import LogLikelihood

if TYPE_CHECKING:
    from poolwise.learning.objectives import Objective, Sample
    from poolwise.log.policy import FloatArray

ITERATIONS = 30
CLONE_PENALTY = 1e-3
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows with their features.

    Attributes:
        features: Standardised features, the last of them 1, shape (n, d).
        sample: Actions, rewards, propensities and predictions.
        actions: Number of actions.
        base: Fixed scores of every action, shape (n, actions), or None for 0.
    """

    features: FloatArray
    sample: Sample
    actions: int
    base: FloatArray | None = None

    def zeros(self) -> FloatArray:
        """Return coefficients of the uniform policy."""
        return np.zeros((self.features.shape[1], self.actions))

    def prob(self, coefficients: FloatArray, rows: slice = slice(None)) -> FloatArray:
        """Return the probability of every action, shape (n, actions)."""
        features = self.features[rows]
        scores = features @ coefficients.astype(features.dtype)
        return softmax(scores if self.base is None else scores + self.base[rows])

    def evaluate(
        self, objective: Objective, coefficients: FloatArray
    ) -> tuple[float, FloatArray]:
        """Return an objective and its gradient by the coefficients."""
        whole = ((slice(None), self.sample),)
        value, gradient = 0.0, self.zeros()
        for rows, sample in self.sample.chunks() if objective.additive else whole:
            prob = self.prob(coefficients, rows)
            part, slopes = objective(sample, prob)
            slopes = prob * (slopes - np.einsum("ij,ij->i", prob, slopes)[:, None])
            value += part
            gradient += self.features[rows].T @ slopes.astype(prob.dtype)
        return value, gradient


def softmax(scores: FloatArray) -> FloatArray:
    """Return probabilities in proportion to the exponentials of scores, row by row.

    >>> softmax(np.array([[1e4, 1e4, -np.inf]])).tolist()
    [[0.5, 0.5, 0.0]]
    """
    weights: FloatArray = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def greedy(scores: FloatArray) -> FloatArray:
    """Return probabilities of playing the best action; ties are split evenly.

    >>> greedy(np.array([[1.0, 3.0, 3.0]])).tolist()
    [[0.0, 0.5, 0.5]]
    """
    best = scores == scores.max(axis=1, keepdims=True)
    shares: FloatArray = best / best.sum(axis=1, keepdims=True)
    return shares


def maximise(
    problem: Problem,
    objective: Objective,
    penalty: float,
    start: FloatArray,
    *,
    free_bias: bool = False,
    iterations: int = ITERATIONS,
    tolerance: float = 1e-9,
) -> FloatArray:
    """Return the coefficients that maximise an objective less a penalty.

    Args:
        problem: The rows.
        objective: The objective.
        penalty: Twice the factor of the squared distance from `start`.
        start: Coefficients to start at and to stay near to.
        free_bias: Leave the last feature, which is 1, out of the penalty.
        iterations: Largest number of L-BFGS steps.
        tolerance: Largest entry of the gradient, and relative gain of a step, at the end.
    """
    strength = np.full((len(start), 1), penalty)
    if free_bias:
        strength[-1] = 0.0

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        moved = flat.reshape(start.shape) - start
        value, gradient = problem.evaluate(objective, start + moved)
        cost = float((strength * moved**2).sum()) / 2
        return cost - value, (strength * moved - gradient).ravel()

    solution, _, _ = optimize.fmin_l_bfgs_b(
        loss, start.ravel(), maxiter=iterations, pgtol=tolerance, factr=tolerance / EPS
    )
    return np.asarray(solution, dtype=np.float64).reshape(start.shape)


def clone(
    problem: Problem,
    weights: FloatArray,
    *,
    iterations: int = ITERATIONS,
    tolerance: float = 1e-9,
) -> FloatArray:
    """Return the coefficients nearest to a logger, from the rows of all loggers.

    Args:
        problem: The rows; its fixed scores only exclude actions that could not be played.
        weights: The logger's propensity over the mixture, shape (n,).
        iterations: Largest number of L-BFGS steps.
        tolerance: As for `maximise`.
    """
    ones = np.ones(len(weights))
    sample = replace(problem.sample, reward=weights, propensity=ones)
    return maximise(
        replace(problem, sample=sample),
        LogLikelihood(),
        CLONE_PENALTY,
        problem.zeros(),
        free_bias=True,
        iterations=iterations,
        tolerance=tolerance,
    )
