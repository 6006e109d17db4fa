r"""Fit: a softmax policy that maximises an objective, near an anchor.

A linear policy is $\pi(a \mid x) = \mathrm{softmax}(\phi(x)' \Theta + b(x))_a$ with fixed
scores $b$, which are 0 or the anchor's.  L-BFGS maximises $F(\Theta) - |\Theta - \Theta_0|^2$
times half a penalty.  Additive objectives are computed chunk by chunk, so memory stays flat.

LightGBM boosts trees on top of the anchor's scores: a weighted classification learns the action
with the largest doubly robust score.  No round means no change, and the number of rounds takes
the place of the penalty.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import optimize

from poolwise.errors import optional_module
from poolwise.learning.objectives import LogLikelihood, add_at_action
from poolwise.log.policy import pick

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.learning.objectives import Objective, Sample
    from poolwise.types import FloatArray

ITERATIONS = 30
CLONE_PENALTY = 1e-3
EPS = float(np.finfo(np.float64).eps)
ROUNDS = (3, 10, 30, 100)
NEVER = -1e3  # score of an action that could not be played
PARAMETERS: dict[str, Any] = {
    "objective": "multiclass",
    "learning_rate": 0.1,
    "num_leaves": 15,
    "min_data_in_leaf": 20,
    "min_sum_hessian_in_leaf": 2.0,  # scores far from 0 have small second derivatives
    "lambda_l2": 5.0,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 1,
    "verbose": -1,
}


@dataclass(frozen=True, eq=False)
class SoftmaxProblem:
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
    problem: SoftmaxProblem,
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
    problem: SoftmaxProblem,
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


def classify(problem: SoftmaxProblem) -> FloatArray:
    """Return the coefficients of a logistic regression of the action, weighted by rewards.

    The weights are rewards above the smallest one over the propensity.  The penalty is that
    of scikit-learn's default, C=1, for weights with a mean of 1.

    Args:
        problem: The rows; its fixed scores only exclude actions that could not be played.
    """
    sample = problem.sample
    reward = sample.reward - sample.reward.min()
    penalty = float((reward / sample.propensity).mean()) / len(sample)
    positive = replace(problem, sample=replace(sample, reward=reward))
    return maximise(
        positive,
        LogLikelihood(),
        penalty,
        problem.zeros(),
        free_bias=True,
        iterations=ITERATIONS,
    )


@dataclass(frozen=True, eq=False)
class Trees:
    """Boosted trees that add to the scores of every action.

    Attributes:
        model: LightGBM's text model.
        rounds: Number of rounds to use.
    """

    model: str
    rounds: int

    @cached_property
    def _booster(self) -> Any:  # noqa: ANN401 - of LightGBM
        return library().Booster(model_str=self.model)

    @property
    def most_rounds(self) -> int:
        """Rounds that the model has."""
        return int(self._booster.current_iteration())

    def to_dict(self) -> dict[str, object]:
        """Return the trees as JSON data."""
        return {"rounds": self.rounds, "checksum": self.checksum, "model": self.model}

    @property
    def checksum(self) -> str:
        """Checksum of the model."""
        return hashlib.sha256(self.model.encode()).hexdigest()

    @property
    def shape(self) -> tuple[int, int]:
        """Number of features, without the last one, and of actions."""
        booster = self._booster
        return int(booster.num_feature()), int(booster.num_model_per_iteration())

    def scores(self, features: FloatArray) -> FloatArray:
        """Return what the trees add, shape (n, actions); the last feature, 1, is not used."""
        if not len(features):
            return np.zeros((0, self.shape[1]))
        raw = self._booster.predict(
            features[:, :-1], raw_score=True, num_iteration=self.rounds, num_threads=1
        )
        return np.asarray(raw, dtype=np.float64)


def boost(
    problem: SoftmaxProblem,
    start: FloatArray,
    exponent: float,
    rounds: int,
    *,
    threads: int = 1,
) -> Trees:
    """Boost trees from the anchor's scores on.

    Args:
        problem: The rows.
        start: Coefficients of the anchor.
        exponent: Exponent of the propensity in the doubly robust scores.
        rounds: Rounds of boosting.
        threads: Threads; they do not change the result.
    """
    sample, features = problem.sample, problem.features
    gap = (sample.reward - pick(sample.predicted, sample.action)) / sample.propensity**exponent
    scores = add_at_action(sample.predicted.astype(np.float64), sample, gap)
    anchor = features @ start.astype(features.dtype)
    among = np.ones(scores.shape, dtype=bool)
    if problem.base is not None:
        among = np.isfinite(problem.base)
        anchor = np.where(among, anchor + problem.base, NEVER)
    lightgbm = library()
    data = lightgbm.Dataset(
        features[:, :-1],
        label=np.where(among, scores, -np.inf).argmax(axis=1),
        weight=scores.max(axis=1, where=among, initial=-np.inf)
        - scores.mean(axis=1, where=among),
        init_score=anchor.astype(np.float64),
    )
    settings = {**PARAMETERS, "num_class": problem.actions, "num_threads": threads}
    return Trees(lightgbm.train(settings, data, rounds).model_to_string(), rounds)


def read_trees(data: Mapping[str, Any], features: int, actions: int) -> Trees:
    """Return the trees of JSON data; raise ValueError if they cannot be used.

    LightGBM ends the process on a damaged model, so it reads only one whose checksum is right.
    """
    trees = Trees(str(data["model"]), int(data["rounds"]))
    if data["checksum"] != trees.checksum:
        raise ValueError("its trees were changed: their checksum differs")
    try:
        shape, most = trees.shape, trees.most_rounds
    except library().basic.LightGBMError as error:
        raise ValueError(f"its trees cannot be read: {error}") from None
    if shape != (features, actions):
        raise ValueError(f"its trees must have {features} features and {actions} actions")
    if not 1 <= trees.rounds <= most:
        raise ValueError(f"its trees must have 1 to {most} rounds, got {trees.rounds}")
    return trees


def library() -> Any:  # noqa: ANN401 - a module
    """Import LightGBM; raise MissingExtraError if it is not installed."""
    return optional_module("lightgbm", "lightgbm", "trees")
