"""Averages: the mean of a model's predictions over the actions of each target.

A list of actions is summed, each with its probability.  A density is drawn from: one action
from each of a few equal parts of its probability, at places that differ from row to row.  The
mean is then unbiased for any model, and for the draws of the rows together nearly exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import PolicyError
from poolwise.log.densities import drawn
from poolwise.rows.score import checked_distribution

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from poolwise.log.policy import AnyArray, Batch, Distribution, FloatArray, IntArray, Policy
    from poolwise.rows.features import Features

Ask = Callable[["AnyArray"], "FloatArray"]  # predicted rewards of one action per row, by code
DRAWS = 32  # actions of each row and target with a density
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples are spread evenly between whole numbers
TOLERANCE = 0.01  # of the integral of a density


@dataclass(frozen=True, eq=False)
class OverActions:
    """Averages over lists of actions.

    Attributes:
        targets: Policies by the column of their predicted value.
        features: Numbers the actions.
    """

    targets: Mapping[str, Distribution]
    features: Features

    def __call__(self, ask: Ask, batch: Batch, number: IntArray) -> dict[str, FloatArray]:
        """Return the mean prediction of each row under each target."""
        del number
        probs = {
            name: checked_distribution(
                name, policy.distribution(batch), (len(batch), len(policy.actions))
            )
            for name, policy in self.targets.items()
        }
        values = {name: np.zeros(len(batch)) for name in self.targets}
        indices = self.features.index(list(self._columns))
        for columns, index in zip(self._columns.values(), indices, strict=True):
            predicted = ask(np.full(len(batch), index))
            for name, column in columns.items():
                values[name] += probs[name][:, column] * predicted
        return values

    @cached_property
    def _columns(self) -> dict[Hashable, dict[str, int]]:
        """Column of each action in the distributions of the targets."""
        columns: dict[Hashable, dict[str, int]] = {}
        for name, policy in self.targets.items():
            for column, action in enumerate(policy.actions):
                columns.setdefault(action, {})[name] = column
        return columns


@dataclass(frozen=True, eq=False)
class OverDensities:
    """Averages over draws from densities.

    Attributes:
        targets: Policies by the column of their predicted value.
        draws: Actions drawn for each row and target.
        seed: Seed of the draws.
    """

    targets: Mapping[str, Policy]
    draws: int = DRAWS
    seed: int = 0

    def __call__(self, ask: Ask, batch: Batch, number: IntArray) -> dict[str, FloatArray]:
        """Return the mean prediction of each row under each target."""
        return {
            name: self._mean(policy, ask, batch, number)
            for name, policy in self.targets.items()
        }

    def _mean(self, policy: Policy, ask: Ask, batch: Batch, number: IntArray) -> FloatArray:
        value, mass = np.zeros(len(batch)), np.zeros(len(batch))
        for level in levels(number, self.draws, self.seed):
            action, weight = drawn(policy, batch, level)
            value += weight * ask(action)
            mass += weight
        _refuse_mass(policy, mass / self.draws)
        return value / self.draws


def levels(number: IntArray, draws: int, seed: int = 0) -> Iterator[FloatArray]:
    """Yield levels of each row, one in each of `draws` equal parts of 0 to 1.

    They follow from the number of the row and the seed, so that batches do not matter.  Lower
    and upper parts mirror each other: draws from a symmetric density have its exact mean.

    >>> sorted(round(float(level[0]), 2) for level in levels(np.array([7]), 4))
    [0.24, 0.49, 0.51, 0.76]
    """
    shift = (np.random.default_rng(seed).random() + number * GOLDEN) % 1.0
    for k in range(draws):
        yield (k + (shift if 2 * k < draws else 1 - shift)) / draws


def _refuse_mass(policy: Policy, mass: FloatArray) -> None:
    """Reject a density whose integral over its support is not 1."""
    total, noise = mass.mean(), mass.std() / math.sqrt(len(mass))
    if abs(total - 1) > TOLERANCE + 4 * noise:
        reason = f"needs a density with integral 1 over its support, got {total:.3g}"
        raise PolicyError(type(policy).__name__, reason)
