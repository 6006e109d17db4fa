"""Moments of simulated logs, without writing their rows.

A log of a finite problem is a table of counts of each (context, action, reward).
Drawing the counts and weighting the cells with them gives the moments that an engine
would compute from the rows, thousands of times a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poolwise.moments.moments import Moments
from poolwise.moments.terms import OF_MODEL, UNSUPPORTED, Factor, Needs, Term

if TYPE_CHECKING:
    from poolwise.engines.exact import FiniteProblem

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Cells:
    """All possible rows of one logger.

    Attributes:
        prob: Probability of each cell, shape (C,).
        values: Value of each term in each cell, shape (C, k).
        needs: Terms and products to compute.
        count: Rows that the logger writes.
    """

    prob: Array
    values: Array
    needs: Needs
    count: int

    def draw(self, rng: np.random.Generator) -> Moments:
        """Draw one log of this logger and return its moments."""
        times = rng.multinomial(self.count, self.prob).astype(np.float64)
        means = times @ self.values / self.count
        centred = self.values - means
        scatter = (centred * times[:, None]).T @ centred
        seen = self.values[times > 0]
        return Moments(
            self.needs.terms,
            self.count,
            means,
            scatter,
            seen.min(axis=0),
            seen.max(axis=0),
        )


def cells_of(problem: FiniteProblem, needs: Needs) -> dict[str, Cells]:
    """Return the possible rows of each logger, to draw logs from."""
    return {i: _cells(problem, i, needs) for i in problem.loggers}


def draw(cells: dict[str, Cells], rng: np.random.Generator) -> dict[str, Moments]:
    """Draw one log and return its moments."""
    return {i: c.draw(rng) for i, c in cells.items()}


def _cells(problem: FiniteProblem, logger: str, needs: Needs) -> Cells:
    joint = problem.context_prob[:, None] * problem.loggers[logger]
    spread = np.sqrt(problem.reward_variance)
    mean = problem.reward
    bernoulli = np.isclose(spread**2, mean * (1 - mean)) & (mean >= 0) & (mean <= 1)
    low = np.where(bernoulli, 0.0, mean - spread)
    high = np.where(bernoulli, 1.0, mean + spread)
    odds = np.where(bernoulli, mean, 0.5)
    prob = np.stack([joint * (1 - odds), joint * odds], axis=-1).ravel()
    reward = np.stack([low, high], axis=-1)
    columns = [_term(t, problem, logger, reward) for t in needs.terms]
    values = np.stack([np.broadcast_to(c, reward.shape).ravel() for c in columns], axis=-1)
    kept = prob > 0
    return Cells(prob[kept] / prob.sum(), values[kept], needs, problem.counts[logger])


def _term(term: Term, problem: FiniteProblem, logger: str, reward: Array) -> Array:
    product = np.ones_like(reward)
    for factor in term.factors:
        product = product * _factor(factor, problem, logger, reward)
    return product


def _factor(factor: Factor, problem: FiniteProblem, logger: str, reward: Array) -> Array:
    """Return a row column in every cell; cells of probability 0 hold any finite value."""
    own, mixture = problem.loggers[logger], problem.mixture
    with np.errstate(divide="ignore", invalid="ignore"):
        if factor.name == "reward":
            return reward
        if factor.name in OF_MODEL:
            return _predicted(factor, problem, reward)
        if factor.name == "overlap":
            column = np.min(list(problem.loggers.values()), axis=0) / own
        elif factor.name in {"weight", "balanced_weight"}:
            column = problem.target / (own if factor.name == "weight" else mixture)
        else:
            column = _about(factor, problem.loggers[factor.logger], mixture)
    finite: Array = np.nan_to_num(column, nan=0.0, posinf=0.0)[..., None]
    return finite


def _predicted(factor: Factor, problem: FiniteProblem, reward: Array) -> Array:
    model = problem.predicted_reward
    if model is None:
        raise ValueError("this problem has no reward model")
    if factor.name == "residual":
        return reward - model[..., None]
    if factor.name == "predicted_reward":
        return model[..., None]
    value: Array = (problem.target * model).sum(axis=1)[:, None, None]
    return value


def _about(factor: Factor, policy: Array, mixture: Array) -> Array:
    if factor.name == "ratio":
        return policy / mixture
    if factor.name == "unsupported":
        return np.where(policy > 0, 0.0, 1.0)
    return np.where(policy > 0, mixture / policy, UNSUPPORTED)
