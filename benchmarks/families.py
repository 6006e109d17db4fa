"""Random problems: the six families on which estimators are compared.

Twenty contexts, eight actions, softmax policies; a logger's distance from the target
is drawn from `spread`, and it is mixed with the uniform policy by `floor`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poolwise.engines.exact import FiniteProblem

CONTEXTS, ACTIONS = 20, 8
FEWEST = 20  # rows of the smallest log

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """Parameters of one family of random problems.

    Attributes:
        loggers: Number of loggers.
        spread: Range of the loggers' distances from the target.
        floor: Share of uniform exploration in every logger.
        noisy: Bernoulli rewards; otherwise ten times their mean, without noise.
    """

    loggers: int
    spread: tuple[float, float]
    floor: float = 0.0
    noisy: bool = True


FAMILIES = {
    "A near": Family(3, (0.0, 0.8)),
    "B mixed": Family(3, (0.0, 2.5)),
    "C far": Family(2, (0.3, 3.0)),
    "D many": Family(8, (0.0, 2.5)),
    "E noise-free": Family(3, (0.0, 2.5), noisy=False),
    "F floor": Family(3, (0.0, 2.5), floor=0.1),
}


def draw_problem(family: Family, rows: int, rng: np.random.Generator) -> FiniteProblem:
    """Draw one problem of a family, with about `rows` rows in all."""
    shape = (CONTEXTS, ACTIONS)
    scores = rng.normal(size=shape)
    policies = {}
    for k in range(family.loggers):
        distance = rng.uniform(*family.spread)
        noise = rng.normal(size=shape)
        policy = softmax((2 - distance) * scores + distance * noise)
        policies[f"v{k}"] = (1 - family.floor) * policy + family.floor / ACTIONS
    lift = 0.7 * rng.normal(size=shape) + 0.5 * rng.normal(size=(CONTEXTS, 1))
    chance = 1 / (1 + np.exp(1 - 0.8 * scores - lift))
    share = rng.dirichlet(np.full(family.loggers, 1.5))
    return FiniteProblem(
        context_prob=rng.dirichlet(np.full(CONTEXTS, 2.0)),
        reward=chance if family.noisy else 10 * chance,
        target=softmax(2 * scores),
        loggers=policies,
        counts={k: max(FEWEST, int(rows * s)) for k, s in zip(policies, share, strict=True)},
        reward_variance=chance * (1 - chance) if family.noisy else np.zeros(shape),
    )


def softmax(scores: Array) -> Array:
    """Probabilities in proportion to the exponentials of scores, row by row."""
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    policy: Array = raised / raised.sum(axis=1, keepdims=True)
    return policy
