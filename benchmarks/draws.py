"""Moments of simulated logs, without files or tables.

Rows of a finite problem are drawn as arrays and reduced to the very moments that an engine
computes from them, thousands of times a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from poolwise.moments.moments import Moments
from poolwise.moments.tallies import POWERS, SLICES
from poolwise.moments.terms import UNSUPPORTED, Factor, Needs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.engines.exact import FiniteProblem

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Writer:
    """One logger of a problem, ready to write rows again and again.

    Attributes:
        cumulative: Probabilities of the (context, action) cells, added up, shape (C,).
        columns: Value of each factor but the reward in each cell.
        low: Smaller of the two rewards of each cell.
        high: Larger one.
        odds: Probability of the larger one.
        tail: Standard deviation of the logarithm of a factor of mean 1 on each reward.
        needs: Moments to compute.
        count: Rows that the logger writes.
    """

    cumulative: Array
    columns: Mapping[Factor, Array]
    low: Array
    high: Array
    odds: Array
    tail: float
    needs: Needs
    count: int

    def values(self, rng: np.random.Generator, effects: Array | float = 0.0) -> Array:
        """Draw rows: the value of each term in each of them, shape (k, rows)."""
        cells = np.searchsorted(self.cumulative, rng.random(self.count), side="right")
        high = rng.random(self.count) < self.odds[cells]
        reward = np.where(high, self.high[cells], self.low[cells]) + effects
        if self.tail:
            noise = rng.normal(size=self.count)
            reward *= np.exp(self.tail * noise - self.tail**2 / 2)
        drawn = {f: column[cells] for f, column in self.columns.items()}
        drawn[Factor("reward")] = reward
        if any(f.name == "residual" for t in self.needs.terms for f in t.factors):
            drawn[Factor("residual")] = reward - drawn[Factor("predicted_reward")]
        return np.array([np.prod([drawn[f] for f in t.factors], 0) for t in self.needs.terms])

    def draw(self, rng: np.random.Generator) -> Moments:
        """Moments of one log of this logger."""
        return moments_of(self.values(rng), self.needs)


def moments_of(values: Array, needs: Needs) -> Moments:
    """Moments of rows with these values of the terms, shape (k, rows)."""
    means = values.mean(axis=1)
    centred = values[: len(needs.scattered)] - means[: len(needs.scattered), None]
    place = {term: k for k, term in enumerate(needs.terms)}
    sliced, powered = ([place[t] for t in terms] for terms in (needs.slices, needs.powers))
    slices = np.empty((len(sliced), SLICES[0]))
    deal(values[sliced], slices)
    return Moments(
        needs.terms,
        values.shape[1],
        means,
        centred @ centred.T,
        values.min(axis=1),
        values.max(axis=1),
        slices=dict(zip(needs.slices, slices, strict=True)),
        powers=dict(zip(needs.powers, powers_of(values[powered]), strict=True)),
    )


def deal(values: Array, out: Array) -> None:
    """Set `out`, shape (terms, slices), to the sums of the values, shape (terms, n)."""
    terms, slices = out.shape
    rounds = values.shape[1] // slices
    dealt = rounds * slices
    np.matmul(np.ones(rounds), values[:, :dealt].reshape(terms, rounds, slices), out=out)
    out[:, : values.shape[1] - dealt] += values[:, dealt:]


def powers_of(values: Array) -> Array:
    """Return the powers of terms with these values, shape (terms, n), as (terms, 6)."""
    powers = np.empty((len(values), POWERS))
    room = np.empty((2, values.shape[1]))  # one term at a time stays in the cache
    for of_term, numbers in zip(values, powers, strict=True):
        sizes = np.abs(of_term, out=room[0])
        squares = np.multiply(sizes, sizes, out=room[1])
        numbers[:] = (
            np.count_nonzero(sizes != 0.0),
            sizes.sum(),
            sizes @ sizes,
            sizes @ squares,
            squares @ squares,
            sizes.max(initial=0.0),
        )
    return powers


@dataclass(frozen=True, eq=False)
class Drawing:
    """A problem whose logs are drawn.

    Attributes:
        problem: Contexts, actions, rewards and policies.
        needs: Moments to compute.
        targets: Targets of bound terms, by name; other terms are those of the problem.
        tail: Standard deviation of the logarithm of a factor on each reward.
    """

    problem: FiniteProblem
    needs: Needs
    targets: Mapping[str, Array] = field(default_factory=dict)
    tail: float = 0.0

    def writers(self) -> dict[str, Writer]:
        """What each logger can write."""
        return {i: self._writer(i) for i in self.problem.loggers}

    def _writer(self, logger: str) -> Writer:
        problem = self.problem
        joint = (problem.context_prob[:, None] * problem.loggers[logger]).ravel()
        played = joint > 0
        mean, spread = problem.reward, np.sqrt(problem.reward_variance)
        bernoulli = np.isclose(spread**2, mean * (1 - mean)) & (mean >= 0) & (mean <= 1)
        low = np.where(bernoulli, 0.0, mean - spread).ravel()
        high = np.where(bernoulli, 1.0, mean + spread).ravel()
        odds = np.where(bernoulli, mean, 0.5).ravel()
        factors = {f for t in self.needs.terms for f in t.factors}
        if any(f.name == "residual" for f in factors):
            factors.add(Factor("predicted_reward"))
        columns = {
            f: np.broadcast_to(self._factor(f, logger), mean.shape).ravel()[played]
            for f in factors
            if f.name not in {"reward", "residual"}
        }
        cumulative = np.cumsum(joint[played] / joint.sum())
        cumulative[-1] = 1.0
        two_points = (low[played], high[played], odds[played])
        count = problem.counts[logger]
        return Writer(cumulative, columns, *two_points, self.tail, self.needs, count)

    def _factor(self, factor: Factor, logger: str) -> Array:
        """A row column in each cell; cells that are never played hold anything finite."""
        problem = self.problem
        own, mixture = problem.loggers[logger], problem.mixture
        target = self.targets[factor.target] if factor.target else problem.target
        if factor.definition.modelled:
            return self._predicted(factor, target)
        with np.errstate(divide="ignore", invalid="ignore"):
            if factor.name == "overlap":
                column = np.min(list(problem.loggers.values()), axis=0) / own
            elif factor.name in {"weight", "balanced_weight"}:
                column = target / (own if factor.name == "weight" else mixture)
            else:
                column = _about(factor, problem.loggers[factor.logger], mixture)
        finite: Array = np.nan_to_num(column, nan=0.0, posinf=0.0)
        return finite

    def _predicted(self, factor: Factor, target: Array) -> Array:
        model = self.problem.predicted_reward
        if model is None:
            raise ValueError("this problem has no reward model")
        if factor.name == "predicted_reward":
            return model
        value: Array = (target * model).sum(axis=1)[:, None]
        return value


def _about(factor: Factor, policy: Array, mixture: Array) -> Array:
    if factor.name == "ratio":
        return policy / mixture
    if factor.name == "unsupported":
        return np.where(policy > 0, 0.0, 1.0)
    return np.where(policy > 0, mixture / policy, UNSUPPORTED)


def cells_of(problem: FiniteProblem, needs: Needs) -> dict[str, Writer]:
    """What each logger of a problem can write."""
    return Drawing(problem, needs).writers()


def draw(writers: Mapping[str, Writer], rng: np.random.Generator) -> dict[str, Moments]:
    """Moments of one simulated log."""
    return {i: writer.draw(rng) for i, writer in writers.items()}


def draw_clustered(
    writers: Mapping[str, Writer],
    rng: np.random.Generator,
    users: int,
    effect: float,
    buckets: int = 200,
) -> list[dict[str, Moments]]:
    """Moments of each bucket of a log whose rows belong to users in turn.

    The rows of a user share an effect on their rewards, of mean 0 and this size.
    """
    effects = rng.normal(0.0, effect, users)
    bucket_of = rng.integers(0, buckets, users)
    parts: list[dict[str, Moments]] = [{} for _ in range(buckets)]
    for i, writer in writers.items():
        user = rng.integers(0, users, writer.count)
        values = writer.values(rng, effects[user])
        order = np.argsort(bucket_of[user], kind="stable")
        numbers, starts = np.unique(bucket_of[user][order], return_index=True)
        for number, rows in zip(numbers, np.split(order, starts[1:]), strict=True):
            parts[number][i] = moments_of(values[:, rows], writer.needs)
    return [part for part in parts if part]
