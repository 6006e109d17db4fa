"""Worlds of rankings: a list for each request, with a reward at each position.

Lists of phones have two positions, lists of desks three.  Each position is drawn by itself, so
that the probability of an item is the same with and without those above it.  Under the model
"cascade" a reward depends on the item above, under "whole" on the last item of the list.  Items
that are drawn by "scores" do not occur twice.
"""

from __future__ import annotations

import json
import math
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
    never_played,
    rewards,
    softmax,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tests.sweep.features import Combination

LENGTHS = (3, 2)  # of lists, by device
MODELS = {"position": "independent", "scores": "cascade", "arrays": "cascade"}
MODELS |= {"session": "cascade"}  # others are models
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
        once: Whether an item occurs once in a list: those that are left are drawn in
            proportion to their probabilities at the top.
    """

    counts: Mapping[str, int]
    chances: FloatArray
    means: FloatArray
    policies: Mapping[str, FloatArray]
    kind: str
    model: str
    once: bool = False

    def value(
        self, policy: str, device: str | None = None, position: int | None = None
    ) -> float:
        """Return the reward per request, of the whole list or at one position."""
        return self._sum(policy, device, position)

    def supported(self, policy: str, logger: str | None, device: str | None = None) -> float:
        """Return the part of a value whose items a logger, or any logger, plays."""
        return self._sum(policy, device, played=self._played(logger))

    def mass(self, policy: str, logger: str | None = None) -> float:
        """Return the probability of lists all of whose items loggers play."""
        played = self._played(logger)
        return sum(
            float(self.chances[context]) * chance
            for context in range(CONTEXTS)
            for items, chance in self._lists(policy, context)
            if all(played[k, context, i] for k, i in enumerate(items))
        )

    def _played(self, logger: str | None) -> NDArray[np.bool_]:
        """Return the items that a logger, or any logger, plays at each position."""
        loggers = [logger] if logger else list(self.counts)
        return np.asarray(np.any([self.policies[i] > 0 for i in loggers], axis=0))

    def _sum(
        self,
        policy: str,
        device: str | None = None,
        position: int | None = None,
        played: NDArray[np.bool_] | None = None,
    ) -> float:
        total = mass = 0.0
        for context in range(CONTEXTS):
            if device is not None and DEVICES[context % 2] != device:
                continue
            mass += self.chances[context]
            for items, chance in self._lists(policy, context):
                earned = self._earned(context, items)
                if played is not None:
                    here = [bool(played[k, context, i]) for k, i in enumerate(items)]
                    earned = [e * self._known(here, k) for k, e in enumerate(earned)]
                part = sum(earned) if position is None else sum(earned[position - 1 : position])
                total += self.chances[context] * chance * part
        return float(total / mass)

    def _known(self, played: Sequence[bool], position: int) -> bool:
        """Test if the items that the reward of a position depends on are played."""
        first = {"independent": position, "cascade": 0, "whole": 0}[self.model]
        last = len(played) if self.model == "whole" else position + 1
        return all(played[first:last])

    def _lists(self, policy: str, context: int) -> Iterator[tuple[tuple[int, ...], float]]:
        for items in product(range(ACTIONS), repeat=LENGTHS[context % 2]):
            chances = [self._next(policy, context, items[:k])[i] for k, i in enumerate(items)]
            yield items, float(np.prod(chances))

    def _next(self, policy: str, context: int, above: tuple[int, ...]) -> FloatArray:
        """Return the probability of each item below those above."""
        if not self.once:
            return np.asarray(self.policies[policy][len(above), context])
        left = self.policies[policy][0, context].copy()
        left[list(above)] = 0.0
        return np.asarray(left / left.sum())

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
                items: tuple[int, ...] = ()
                for _ in range(LENGTHS[context % 2]):
                    chances = self._next(label, context, items)
                    items = (*items, int(rng.choice(ACTIONS, p=chances)))
                means = self._earned(context, items)
                for k, item in enumerate(items):
                    probs = {
                        n: float(self._next(n, context, items[:k])[item]) for n in self.policies
                    }
                    scores = self._scores(label, context) if self.once else {}
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
                        **scores,
                    }
                    for name, value in row.items():
                        columns.setdefault(name, []).append(value)
                request += 1
        drawn = {name: np.array(values) for name, values in columns.items()}
        drawn["reward"] = rewards(rng, self.kind, drawn.pop("mean"))
        return drawn

    def _scores(self, label: str, context: int) -> dict[str, str]:
        """Return the scores of items that policies play, and those of a row's own policy."""
        texts = {}
        for name, table in self.policies.items():
            chances = zip(ITEMS.tolist(), table[0, context], strict=True)
            texts[name] = json.dumps({item: math.log(p) for item, p in chances if p > 0})
        return {f"s_{name}": text for name, text in texts.items()} | {"s": texts[label]}


def make_ranking_world(
    rng: np.random.Generator, combination: Combination, scale: int = 1
) -> RankingWorld:
    """Return the world of a combination with rankings."""
    counts = {i: scale * max(12, n // 2) for i, n in COUNTS[combination["loggers"]].items()}
    if combination["probabilities"] == "one":
        counts = {"log": 700 * scale}
    structure = combination["structure"]
    scores = rng.normal(scale=0.6, size=(max(LENGTHS), CONTEXTS, ACTIONS))
    policies = {label: softmax((0.4 - 0.3 * k) * scores) for k, label in enumerate(counts)}
    targets = {
        "logger": list(policies.values())[-1],
        "mixture": 0.5 * softmax(0.8 * scores) + 0.5 * softmax(-0.5 * scores),
        "deterministic": softmax(2.5 * scores),  # as near to it as all loggers can follow
    }
    policies["new"] = targets.get(combination["target"], softmax(0.9 * scores))
    policies["alt"] = softmax(-0.4 * scores)
    for name, items in never_played(combination, list(counts)).items():
        policies[name][..., items] = 0.0
        policies[name] /= policies[name].sum(axis=-1, keepdims=True)
    if combination["target"] == "logger":
        policies["new"] = policies[list(counts)[-1]]
    assert list(policies)[-2:] == list(TARGETS)
    return RankingWorld(
        counts,
        rng.dirichlet(np.full(CONTEXTS, 6.0)),
        mean_rewards(rng, combination["rewards"], (CONTEXTS, ACTIONS)),
        policies,
        combination["rewards"],
        MODELS.get(structure, structure),
        structure == "scores",
    )
