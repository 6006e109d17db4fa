"""Worlds of rankings: a list for each request, with a reward at each position.

Lists of phones have two positions, lists of desks three.  Each position is drawn by itself, so
that the probability of an item is the same with and without those above it.  Under the model
"cascade" a reward depends on the item above, under "whole" on the last item of the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from tests.sweep.world import (
    ACTIONS,
    CONTEXTS,
    COUNTS,
    DEVICES,
    ITEMS,
    TARGETS,
    Columns,
    FloatArray,
    mean_rewards,
    rewards,
    softmax,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.sweep.features import Combination

LENGTHS = (3, 2)  # of lists, by device
DULLER = 0.6  # factor of a reward below, or above, a later item


@dataclass(frozen=True, eq=False)
class RankingWorld:
    """Tables of policies by position, and the rows of a log.

    Attributes:
        counts: Requests of each logger.
        chances: Probability of each context.
        means: Mean reward of each context and item, before other items change it.
        policies: Probabilities, shape (positions, contexts, items).
        kind: Kind of the rewards.
        model: Items that a reward depends on.
    """

    counts: Mapping[str, int]
    chances: FloatArray
    means: FloatArray
    policies: Mapping[str, FloatArray]
    kind: str
    model: str

    def value(
        self, policy: str, device: str | None = None, position: int | None = None
    ) -> float:
        """Return the reward per request, of the whole list or at one position."""
        total = mass = 0.0
        for context in range(CONTEXTS):
            if device is not None and DEVICES[context % 2] != device:
                continue
            mass += self.chances[context]
            for items, chance in self._lists(policy, context):
                earned = self._earned(context, items)
                part = sum(earned) if position is None else sum(earned[position - 1 : position])
                total += self.chances[context] * chance * part
        return float(total / mass)

    def supported(self, policy: str, logger: str | None, device: str | None = None) -> float:
        """Return the value: every logger plays every item that a target plays."""
        del logger
        return self.value(policy, device)

    def mass(self, policy: str, logger: str | None = None) -> float:
        """Return 1: every logger plays every item."""
        del policy, logger
        return 1.0

    def _lists(self, policy: str, context: int) -> Iterator[tuple[tuple[int, ...], float]]:
        tables = self.policies[policy]
        for items in product(range(ACTIONS), repeat=LENGTHS[context % 2]):
            yield items, float(np.prod([tables[k, context, i] for k, i in enumerate(items)]))

    def _earned(self, context: int, items: tuple[int, ...]) -> list[float]:
        earned = []
        for k, item in enumerate(items):
            duller = (self.model == "cascade" and k > 0 and items[k - 1] > item) or (
                self.model == "whole" and items[-1] > item
            )
            earned.append(self.means[context, item] / (1 + k) * (DULLER if duller else 1.0))
        return earned

    def draw(self, rng: np.random.Generator, users: int = 0) -> Columns:
        """Draw the rows of the log, one for each request and position."""
        del users
        columns: dict[str, list[object]] = {}
        request = 0
        for label, count in self.counts.items():
            for _ in range(count):
                context = int(rng.choice(CONTEXTS, p=self.chances))
                tables = self.policies[label][:, context]
                items = tuple(
                    int(rng.choice(ACTIONS, p=tables[k])) for k in range(LENGTHS[context % 2])
                )
                means = self._earned(context, items)
                for k, item in enumerate(items):
                    probs = {n: float(p[k, context, item]) for n, p in self.policies.items()}
                    row = {
                        "request": request,
                        "slot": k + 1,
                        "logger": label,
                        "item": ITEMS[item],
                        "mean": means[k],
                        "x": context,
                        "device": DEVICES[context % 2],
                        "p": probs[label],
                        **{f"p_{name}": prob for name, prob in probs.items()},
                    }
                    for name, value in row.items():
                        columns.setdefault(name, []).append(value)
                request += 1
        drawn = {name: np.array(values) for name, values in columns.items()}
        drawn["reward"] = rewards(rng, self.kind, drawn.pop("mean"))
        return drawn


def make_ranking_world(
    rng: np.random.Generator, combination: Combination, scale: int = 1
) -> RankingWorld:
    """Return the world of a combination with rankings."""
    counts = {i: scale * max(12, n // 2) for i, n in COUNTS[combination["loggers"]].items()}
    if combination["probabilities"] == "one":
        counts = {"log": 700 * scale}
    model = combination["structure"]
    scores = rng.normal(scale=0.6, size=(max(LENGTHS), CONTEXTS, ACTIONS))
    policies = {label: softmax((0.4 - 0.3 * k) * scores) for k, label in enumerate(counts)}
    targets = {
        "logger": list(policies.values())[-1],
        "mixture": 0.5 * softmax(0.8 * scores) + 0.5 * softmax(-0.5 * scores),
        "deterministic": softmax(2.5 * scores),
    }
    policies["new"] = targets.get(combination["target"], softmax(0.9 * scores))
    policies["alt"] = softmax(-0.4 * scores)
    assert list(policies)[-2:] == list(TARGETS)
    return RankingWorld(
        counts,
        rng.dirichlet(np.full(CONTEXTS, 6.0)),
        mean_rewards(rng, combination["rewards"], (CONTEXTS, ACTIONS)),
        policies,
        combination["rewards"],
        "independent" if model == "position" else model,
    )
