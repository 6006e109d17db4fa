"""Simulated logs, as moments: many replications of the same experiment.

Each replication draws its own test inputs and its own label vectors.  Rows are
reduced to moments at once, and the estimators run on those as they do on any log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from poolwise.moments import FloatArray, Moments
from poolwise.terms import Factor, Term

if TYPE_CHECKING:
    from poolwise.reproduce.enumeration import Mix
    from poolwise.reproduce.problem import LabelProblem

ROWS = 1 << 16  # of all replications drawn at once

Columns = Mapping[Factor, FloatArray]


class Draws:
    """Draws logs of a problem.

    Attributes:
        problem: Where they are drawn from.
    """

    def __init__(self, problem: LabelProblem) -> None:
        self.problem = problem

    @cached_property
    def _log_none(self) -> dict[str, FloatArray]:
        policies = {**self.problem.policies, "": self.problem.target}
        return {name: s.policy.log_none_at(s.scores) for name, s in policies.items()}

    def moments(
        self,
        mix: Mix,
        terms: Sequence[Term],
        replications: int,
        rng: np.random.Generator,
    ) -> Iterator[dict[str, Moments]]:
        """Moments of each replication; all pairs of terms get their scatter."""
        step = max(1, ROWS // sum(mix.counts.values()))
        sizes = [min(step, replications - k) for k in range(0, replications, step)]
        task = partial(self._block, mix, tuple(terms))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for block in pool.map(task, sizes, rng.spawn(len(sizes))):
                yield from block

    def _block(
        self, mix: Mix, terms: tuple[Term, ...], size: int, rng: np.random.Generator
    ) -> list[dict[str, Moments]]:
        found = {
            logger: _reduce(self._rows(logger, mix, size * count, rng), terms, size, count)
            for logger, count in mix.counts.items()
        }
        return [{logger: blocks[k] for logger, blocks in found.items()} for k in range(size)]

    def _rows(self, logger: str, mix: Mix, size: int, rng: np.random.Generator) -> Columns:
        """Columns of rows that one logger writes."""
        problem = self.problem
        rows = rng.integers(problem.contexts, size=size)
        own = problem.policies[logger]
        labels = own.policy.sample_at(own.scores[rows], rng)
        probs = {
            name: np.exp(
                s.policy.energy_at(s.scores[rows], labels) + self._log_none[name][rows]
            )
            for name, s in {**problem.policies, "": problem.target}.items()
        }
        target = probs.pop("")
        mixture = sum(
            share * probs[name] for name, share in zip(mix.counts, mix.shares, strict=True)
        )
        reward = (labels == problem.truth[rows]).sum(axis=1).astype(np.float64)
        return {
            Factor("reward"): reward,
            Factor("weight"): target / probs[logger],
            Factor("balanced_weight"): target / mixture,
            **{Factor("ratio", name): p / mixture for name, p in probs.items()},
            **{Factor("inverse_ratio", name): mixture / p for name, p in probs.items()},
        }


def _reduce(columns: Columns, terms: tuple[Term, ...], size: int, count: int) -> list[Moments]:
    """One `Moments` for each of `size` replications of `count` rows."""
    values = np.empty((size, count, len(terms)))
    for place, term in enumerate(terms):
        product = reduce(np.multiply, (columns[factor] for factor in term.factors))
        values[:, :, place] = product.reshape(size, count)
    means, unknown = values.mean(axis=1), np.full(len(terms), np.nan)
    values -= means[:, None, :]
    scatter = values.transpose(0, 2, 1) @ values
    return [Moments(terms, count, means[k], scatter[k], unknown, unknown) for k in range(size)]
