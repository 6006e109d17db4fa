"""Gradient-boosted trees that start at the anchor: LightGBM in place of the linear policy.

A weighted classification learns the action with the largest doubly robust score, with the
anchor's scores as `init_score`.  The number of rounds takes the place of the penalty; the
recipe's split, reward model and criterion choose among the candidates, the anchor included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.learning.fit import greedy, softmax
from poolwise.learning.objectives import Regression, added
from poolwise.learning.recipe import QUARTERS, VALIDATION, Fits, Settings, choose_anchor
from poolwise.learning.split import fold_of, mix
from poolwise.log.policy import pick

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.learning.data import LearningRows
    from poolwise.log.policy import FloatArray

ROUNDS = (0, 3, 10, 30, 100)  # 0 is the anchor itself
PARAMETERS: dict[str, Any] = {
    "objective": "multiclass",
    "learning_rate": 0.1,
    "num_leaves": 15,
    "min_data_in_leaf": 20,
    "num_threads": 1,
    "verbose": -1,
    "seed": 1,
}


@dataclass(frozen=True)
class Choice:
    """One candidate.

    Attributes:
        exponent: Exponent of the propensity in the doubly robust scores.
        rounds: Rounds of boosting.
        greedy: True if it plays the best action always.
    """

    exponent: float
    rounds: int
    greedy: bool

    def play(self, scores: FloatArray) -> FloatArray:
        return greedy(scores) if self.greedy else softmax(scores)


def fitted(fits: Fits, exponent: float, rounds: int) -> Any:  # noqa: ANN401 - LightGBM's
    """Boost trees from the anchor's scores on."""
    import lightgbm as lgb

    problem = fits.problem
    sample = problem.sample
    gap = (sample.reward - pick(sample.predicted, sample.action)) / sample.propensity**exponent
    scores = added(sample.predicted.astype(np.float64), sample, gap)
    data = lgb.Dataset(
        problem.features[:, :-1],
        label=scores.argmax(axis=1),
        weight=scores.max(axis=1) - scores.mean(axis=1),
        init_score=(problem.features @ fits.start).astype(np.float64),
    )
    return lgb.train({**PARAMETERS, "num_class": problem.actions}, data, rounds)


def scored(fits: Fits, model: Any, features: FloatArray, rounds: int) -> FloatArray:  # noqa: ANN401
    """Return the scores of the anchor and of so many rounds together."""
    start: FloatArray = features @ fits.start
    if not rounds:
        return start
    raised = model.predict(features[:, :-1], raw_score=True, num_iteration=rounds)
    return start + np.asarray(raised, dtype=np.float64)


def learned(data: LearningRows) -> Callable[[FloatArray], FloatArray]:
    """Choose and refit; returns the probabilities of all actions as a function of contexts."""
    rows, settings = np.arange(len(data)), Settings(workers=1)
    salted = mix(data.hashes, np.full(len(rows), VALIDATION))
    quarter = fold_of(salted, data.groups, QUARTERS)
    training, validation = rows[quarter > 0], rows[quarter == 0]
    part = Fits(data, training, choose_anchor(data, training, settings.anchor), settings)
    features = part.features(validation)
    sample = data.sample(validation, part.rewards.predict(features))
    values: dict[Choice, float] = {}
    for exponent in settings.smoothing:
        model = fitted(part, exponent, ROUNDS[-1])
        for rounds in ROUNDS:
            scores = scored(part, model, features, rounds)
            for choice in (Choice(exponent, rounds, best) for best in (False, True)):
                fit = Regression.of(sample, choice.play(scores), model=True)
                values[choice] = fit.value - fit.std_error(sample.logger)
    chosen = max(values, key=lambda choice: values[choice])
    whole = Fits(data, rows, part.anchor, settings)
    final = fitted(whole, chosen.exponent, chosen.rounds) if chosen.rounds else None

    def policy(x: FloatArray) -> FloatArray:
        matrix = whole.encoding.matrix({"x": x.astype(np.float32)}, len(x), np.float32)
        return chosen.play(scored(whole, final, matrix, chosen.rounds))

    return policy
