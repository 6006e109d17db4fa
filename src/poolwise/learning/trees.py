"""Trees: gradient-boosted trees on top of the anchor's scores, by LightGBM.

A weighted classification learns the action with the largest doubly robust score; the anchor's
scores are its starting point, so that no round means no change.  The number of rounds takes
the place of the penalty.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.errors import MissingExtraError
from poolwise.learning.objectives import added
from poolwise.log.policy import pick

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.learning.fit import Problem
    from poolwise.log.policy import FloatArray

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
    problem: Problem, start: FloatArray, exponent: float, rounds: int, *, threads: int = 1
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
    scores = added(sample.predicted.astype(np.float64), sample, gap)
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
    try:
        import lightgbm
    except ImportError:
        raise MissingExtraError("lightgbm", "trees") from None
    return lightgbm
