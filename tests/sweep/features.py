"""Features of a question, and combinations that cover all pairs of their values.

A combination takes one value of each feature; pairs that cannot be expressed are left out.
`Cover` proposes combinations until every pair of values was answered in one of them, and then
combinations with as many new triples as a quick search finds.  A pair that poolwise refused in
several combinations counts as covered.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

Combination = dict[str, str]  # value of each feature
Values = tuple[tuple[str, str], ...]  # feature and value, a few of them

FEATURES: dict[str, tuple[str, ...]] = {
    "probabilities": (
        "columns",
        "own",
        "both",
        "pattern",
        "mixture",
        "estimated",
        "unlogged",
        "policies",
        "sampled",
        "one",
        "logarithms",
        "densities",
        "eligible",
        "map",
        "struct",
        "json",
        "list",
        "groups",
    ),
    "structure": (
        "plain",
        "cluster",
        "period",
        "live",
        "zone",
        "struct",
        "by",
        "trained",
        "dropped",
        "mapping",
        "joined",
        "cascade",
        "independent",
        "whole",
        "position",
        "scores",
        "arrays",
        "session",
    ),
    "rewards": ("clicks", "amounts", "costs", "rare", "heavy"),
    "loggers": ("two", "five", "tiny", "narrow", "order", "integers", "greedy"),
    "target": ("supported", "partly", "logger", "mixture", "deterministic"),
    "source": (
        "parquet",
        "frame",
        "csv",
        "json",
        "select",
        "files",
        "spark",
        "postgres",
        "saved",
    ),
    "verb": (
        "evaluate",
        "compare",
        "plan",
        "watch",
        "learn",
        "check",
        "score",
        "backtest",
        "backtested",
    ),
    "face": ("python", "command", "question"),
    "estimator": (
        "default",
        "naive",
        "balanced",
        "weighted",
        "self-normalised",
        "calibrated",
        "clipped",
        "doubly-robust",
    ),
    "interval": ("auto", "student", "betting", "smoothed"),
    "measures": ("none", "again", "ratio", "thresholds"),
}
RANKED = ("cascade", "independent", "whole", "position", "scores", "arrays", "session")
TYPED = ("question", "command")  # faces of the program
WHOLE = ("map", "struct", "json", "list", "groups")  # distributions per row
MEASURES = ("again", "ratio", "thresholds")
UNMEASURED = ("plan", "watch", "learn", "check", "score", "backtest")
COMPUTED = (
    *("mixture", "estimated", "unlogged", "policies", "sampled", "densities", "eligible"),
    *WHOLE,
)
# Pairs that no argument, option or key can express.
INEXPRESSIBLE: frozenset[Values] = frozenset(
    ((first, one), (second, other))
    for first, ones, second, others in (
        ("probabilities", COMPUTED, "structure", RANKED),
        ("probabilities", ("pattern",), "structure", ("scores",)),
        ("probabilities", ("densities",), "structure", ("live",)),
        ("structure", ("struct",), "source", ("csv", "postgres")),
        ("structure", ("zone",), "source", ("postgres",)),
        ("probabilities", ("one", "unlogged"), "structure", ("mapping",)),
        ("probabilities", WHOLE, "structure", ("struct",)),
        ("probabilities", ("map", "struct", "list", "groups"), "source", ("csv",)),
        ("probabilities", ("map", "struct", "groups"), "source", ("postgres",)),
        ("structure", ("mapping",), "source", ("saved", "postgres")),
        ("structure", RANKED, "source", ("postgres",)),
        ("structure", ("arrays",), "source", ("csv",)),
        ("structure", ("mapping", "joined"), "face", TYPED),
        ("structure", ("joined",), "source", ("postgres", "saved")),
        ("source", ("frame", "postgres"), "face", TYPED),
        ("verb", ("score",), "face", ("question",)),
        ("verb", UNMEASURED, "measures", MEASURES),
        ("verb", ("compare",), "measures", ("thresholds",)),
    )
    for one in ones
    for other in others
)
PLAIN: Combination = {name: values[0] for name, values in FEATURES.items()}
TRIED = 30  # random candidates for each combination
REFUSALS = 3  # combinations in which a pair is refused before it counts as covered
PLAINNESS = (0.5, 0.8, 1.0)  # chance of the plain value, by the refusals so far


def parts(combination: Combination, size: int) -> Iterator[Values]:
    """Yield the pairs or triples of values in a combination."""
    yield from combinations(combination.items(), size)


def all_parts(size: int) -> Iterator[Values]:
    """Yield the pairs or triples of values that can be expressed."""
    for names in combinations(FEATURES, size):
        chosen: list[Values] = [()]
        for name in names:
            chosen = [(*part, (name, value)) for part in chosen for value in FEATURES[name]]
        yield from (part for part in chosen if _expressible(part))


def _expressible(part: Values) -> bool:
    return INEXPRESSIBLE.isdisjoint(combinations(part, 2))


@dataclass
class Cover:
    """Pairs, then triples, that no answer has covered so far.

    Attributes:
        rng: Source of all randomness.
        size: Values that must meet in a combination: 2, later 3.
        missing: Parts of this size that were in no answer.
        refusals: Refused combinations that were proposed for each of these parts.
        refused: Pairs that were refused in every combination.
        tried: The missing part that the last combination is about.
    """

    rng: np.random.Generator
    size: int = 2
    missing: list[Values] = field(default_factory=lambda: list(all_parts(2)))
    refusals: Counter[Values] = field(default_factory=Counter)
    refused: list[Values] = field(default_factory=list)
    tried: Values = ()

    def propose(self) -> Combination:
        """Return a combination with a missing part, and with as many others as possible."""
        if not self.missing:
            self.size, self.missing = 3, list(all_parts(3))
            refused = set(self.refused)
            self.missing = [p for p in self.missing if refused.isdisjoint(combinations(p, 2))]
            self.refusals.clear()
        lacking = set(self.missing)
        best, most = PLAIN, -1
        self.tried = self.missing[int(self.rng.integers(len(self.missing)))]
        plainness = PLAINNESS[min(self.refusals[self.tried], len(PLAINNESS) - 1)]
        for _ in range(TRIED):
            found = fill(self.rng, dict(self.tried), plainness)
            new = sum(part in lacking for part in parts(found, self.size))
            if new > most:
                best, most = found, new
        return best

    def learn(self, combination: Combination, *, answered: bool) -> None:
        """Take the parts of an answered combination out, or count its refusal."""
        done = set(parts(combination, self.size)) if answered else set()
        if not answered:
            self.refusals[self.tried] += 1
            if self.refusals[self.tried] >= REFUSALS:
                done = {self.tried}
                self.refused += [self.tried] if self.size == 2 else []
        self.missing = [part for part in self.missing if part not in done]


def fill(rng: np.random.Generator, fixed: Combination, plainness: float) -> Combination:
    """Return a random combination with some given values, the others often the plain ones."""
    while True:
        found = {
            name: fixed.get(name)
            or values[0 if rng.random() < plainness else int(rng.integers(len(values)))]
            for name, values in FEATURES.items()
        }
        if _expressible(tuple(found.items())):
            return found


def sample(seed: int, size: int, without: tuple[str, ...] = ()) -> list[Combination]:
    """Return some combinations, each with a pair that those before it do not have."""
    rng = np.random.default_rng(seed)
    chosen: list[Combination] = []
    met: set[Values] = set()
    pairs = [p for p in all_parts(2) if not {value for _, value in p} & set(without)]
    while len(chosen) < size:
        pair = pairs[int(rng.integers(len(pairs)))]
        found = fill(rng, dict(pair), 0.5)
        if pair not in met and not set(found.values()) & set(without):
            chosen.append(found)
            met.update(parts(found, 2))
    return chosen


def shown(combination: Combination) -> str:
    """Return a combination as one line; values that are the plain ones are left out."""
    odd = [f"{n}={v}" for n, v in combination.items() if v != PLAIN[n]]
    return " ".join(odd) or "plain"
