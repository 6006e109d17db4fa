"""World: contexts, actions, rewards and policies as finite tables, hence known truths.

A `World` draws the rows of a log and computes by enumeration what every policy would have
earned, in all contexts or in some of them.  A context has a device, which never changes the
policies' support.  With periods the loggers change from day to day; contexts, rewards and
targets do not, so that every day has the same truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.sweep.features import Combination

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Columns = dict[str, Any]

CONTEXTS, ACTIONS, DAYS = 6, 4, 4
ITEMS = np.array(["ale", "bun", "cod", "dip"])
SHELVES = np.array(["left", "left", "right", "end"])  # groups of the items
DEVICES = np.array(["desk", "phone"])
ZONE = "Pacific/Auckland"  # where a day begins eleven or twelve hours before UTC's
PERIODIC = ("period", "live", "zone")
EXPLORED = 0.02  # by nearly deterministic loggers
PAYING, HEAVY_SPREAD = 0.05, 1.0  # share and spread of heavy amounts
LIVE_DAYS = 2  # of each logger, where not all are live
TARGETS = ("new", "alt")
SIGNS = {"amounts": 1.0, "heavy": 1.0, "costs": -1.0}
QUANTILES = 120  # of a normal distribution, in sums
COUNTS = {
    "two": {"v1": 900, "v2": 700},
    "five": {"v1": 400, "v2": 300, "v3": 350, "v4": 250, "v5": 300},
    "tiny": {"v1": 900, "v2": 650, "v3": 12},
    "narrow": {"v1": 900, "v2": 700},  # v2 never plays the first action
    "order": {"zed": 800, "amy": 500, "mid": 300},  # neither by name nor by rows
    "integers": {"10": 700, "9": 500, "2": 400},
    "greedy": {"v1": 2_400, "v2": 2_000},  # nearly deterministic
}


def softmax(scores: FloatArray) -> FloatArray:
    """Return probabilities in proportion to the exponents of scores, over the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Sampled:
    """A policy that plays the action with the highest draw from normal posteriors.

    Attributes:
        mean: Shape (days, contexts, actions).
        scale: Standard deviation of every posterior.
        actions: Indices of the actions that it may play.
    """

    mean: FloatArray
    scale: float
    actions: tuple[int, ...]

    @property
    def table(self) -> FloatArray:
        """Probabilities, shape (days, contexts, actions), by sums over even quantiles."""
        table = np.zeros(self.mean.shape)
        if not self.scale:
            known = np.where(np.isin(np.arange(ACTIONS), self.actions), self.mean, -np.inf)
            table[known == known.max(axis=-1, keepdims=True)] = 1.0
            return table
        z, weight = np.polynomial.hermite_e.hermegauss(QUANTILES)
        for k in self.actions:
            gap = (self.mean[..., k, None] - self.mean) / self.scale
            below = stats.norm.cdf(z + gap[..., None])  # days, contexts, actions, nodes
            others = [below[..., j, :] for j in self.actions if j != k]
            table[..., k] = (np.prod(others, axis=0) * weight).sum(axis=-1)
        return np.asarray(table / table.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class World:
    """Finite tables, and the rows of a log.

    Attributes:
        counts: Rows of each logger.
        chances: Probability of each context, shape (contexts,).
        means: Mean reward, shape (contexts, actions).
        policies: Probabilities of each logger and target, shape (days, contexts, actions).
        live: Days on which each logger writes rows.
        kind: Kind of the rewards.
        scores: Scores of the actions, from which softmax policies are made.
        eligible: Which actions a context allows.
        posteriors: Policies that sample.
        grouped: Whether items of one shelf have one mean, and may stand for each other.
    """

    counts: Mapping[str, int]
    chances: FloatArray
    means: FloatArray
    policies: Mapping[str, FloatArray]
    live: Mapping[str, IntArray]
    kind: str
    scores: FloatArray
    eligible: NDArray[np.bool_]
    posteriors: Mapping[str, Sampled] = field(default_factory=dict)
    grouped: bool = False

    def _played(self, logger: str | None) -> NDArray[np.bool_]:
        """Return which actions, or shelves, a logger or any logger plays in each context."""
        loggers = [logger] if logger else list(self.counts)
        played = np.any([self.policies[i].max(axis=0) > 0 for i in loggers], axis=0)
        if self.grouped:
            played = np.stack(
                [played[:, shelf == SHELVES].any(axis=1) for shelf in SHELVES], axis=1
            )
        return np.asarray(played)

    def value(self, policy: str, device: str | None = None) -> float:
        """Return the true value of a policy, on all contexts or on those of a device."""
        return self._expect(self.policies[policy].mean(axis=0) * self.means, device)

    def supported(self, policy: str, logger: str | None, device: str | None = None) -> float:
        """Return the part of a value on actions that a logger, or any logger, plays."""
        played = self._played(logger)
        return self._expect(self.policies[policy].mean(axis=0) * self.means * played, device)

    def mass(self, policy: str, logger: str | None = None) -> float:
        """Return the probability with which a policy plays actions that loggers play."""
        played = self._played(logger)
        return self._expect(self.policies[policy].mean(axis=0) * played, None)

    def _expect(self, by_action: FloatArray, device: str | None) -> float:
        chances = self.chances.copy()
        if device is not None:
            chances = np.where(DEVICES[np.arange(CONTEXTS) % 2] == device, chances, 0.0)
        return float(chances @ by_action.sum(axis=1) / chances.sum())

    def draw(self, rng: np.random.Generator, users: int = 0) -> Columns:
        """Draw the rows of the log; with users, three rows in a row share a context."""
        total = sum(self.counts.values())
        labels = np.repeat(list(self.counts), list(self.counts.values()))
        context = rng.choice(CONTEXTS, total, p=self.chances)
        user = np.arange(total)
        if users:
            user = np.concatenate(
                [1_000 * k + np.arange(n) // 3 for k, n in enumerate(self.counts.values())]
            )
            _, first, back = np.unique(user, return_index=True, return_inverse=True)
            context = context[first][back]
        day = np.array([rng.choice(self.live[label]) for label in labels])
        every = {name: p[day, context] for name, p in self.policies.items()}
        own = np.stack([every[label][k] for k, label in enumerate(labels)])
        action = (own.cumsum(axis=1) < rng.random((total, 1))).sum(axis=1).clip(0, ACTIONS - 1)
        here = np.arange(total)
        while (bad := own[here, action] == 0).any():  # an edge that rounding left over
            action[bad] -= 1
        shares = np.array(list(self.counts.values())) / total
        whole = {f"whole_{name}": p.tolist() for name, p in every.items()}
        if self.grouped:  # the probability of a row is that of its shelf
            same = (SHELVES[:, None] == SHELVES).astype(float)
            own, every = own @ same, {name: p @ same for name, p in every.items()}
        parts = np.stack([every[i][here, action] for i in self.counts])
        columns: Columns = {
            "logger": labels,
            "reward": rewards(rng, self.kind, self.means[context, action]),
            "item": ITEMS[action],
            **({"shelf": SHELVES[action]} if self.grouped else {}),
            "x": context,
            "x1": np.cos(context),
            "x2": np.sin(2 * context),
            "device": DEVICES[context % 2],
            "day": np.array([f"2026-03-0{d + 1}" for d in day]),
            "at": times(rng, day),
            "user": user,
            "p": own[here, action],
            "average": shares @ parts,
            "allowed": [list(ITEMS[row]) for row in self.eligible[context]],
            **{f"p_{name}": p[here, action] for name, p in every.items()},
            **whole,
            **{f"s_{name}": self.scores[context, k] for k, name in enumerate(ITEMS)},
            **self._predictions(context, action),
            **self.sampled_means(day, context),
        }
        return columns

    def sampled_means(self, day: IntArray, context: IntArray) -> Columns:
        """Return the means of posteriors, by policy and action."""
        return {
            f"m_{name}_{k}": part.mean[day, context, k]
            for name, part in self.posteriors.items()
            for k in part.actions
        }

    def _predictions(self, context: IntArray, action: IntArray) -> Columns:
        """Return predictions of a reward model that is half right."""
        guess = 0.5 * self.means + 0.1
        columns: Columns = {"q": guess[context, action]}
        for name in self.policies:
            expected = (self.policies[name].mean(axis=0) * guess).sum(axis=1)
            columns[f"q_{name}"] = expected[context]
        return columns


def times(rng: np.random.Generator, day: IntArray) -> NDArray[np.datetime64]:
    """Draw times in UTC, each on its day in the zone of the log."""
    midnight = [datetime(2026, 3, d + 1, tzinfo=ZoneInfo(ZONE)) for d in range(DAYS)]
    first = np.array(
        [m.astimezone(UTC).replace(tzinfo=None) for m in midnight], "datetime64[s]"
    )
    return np.asarray(
        first[day] + rng.integers(24 * 3600, size=len(day)).astype("timedelta64[s]")
    )


def rewards(rng: np.random.Generator, kind: str, means: FloatArray) -> FloatArray:
    """Draw rewards with these means."""
    if kind in {"clicks", "rare"}:
        return np.asarray(rng.random(len(means)) < means, dtype=float)
    if kind == "heavy":  # few amounts, some of them large
        amounts = rng.lognormal(-(HEAVY_SPREAD**2) / 2, HEAVY_SPREAD, len(means)) / PAYING
        return np.asarray(means * amounts * (rng.random(len(means)) < PAYING))
    return np.asarray(means * rng.gamma(4.0, 0.25, len(means)))


def mean_rewards(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> FloatArray:
    """Return the mean reward of each context and action."""
    base = rng.uniform(0.15, 0.75, shape)
    scale = {"clicks": 1.0, "rare": 0.06, "amounts": 12.0, "heavy": 12.0, "costs": -3.0}[kind]
    return np.asarray(scale * base)


def make_world(rng: np.random.Generator, combination: Combination, scale: int = 1) -> World:
    """Return the world of a combination; `scale` multiplies the rows."""
    counts = COUNTS[combination["loggers"]]
    if combination["probabilities"] == "one":
        counts = {"log": 1_500}
    counts = {label: scale * n for label, n in counts.items()}
    periodic = combination["structure"] in PERIODIC
    scores = rng.normal(scale=0.8, size=(CONTEXTS, ACTIONS))
    eligible = np.ones((CONTEXTS, ACTIONS), dtype=bool)
    if combination["probabilities"] == "eligible":
        eligible[:2, 1] = eligible[2, 2] = False
    tables = {}
    for k, label in enumerate(counts):
        slopes = [0.9 - 0.45 * k + (0.25 * day if periodic else 0.0) for day in range(DAYS)]
        tables[label] = np.stack([softmax(slope * scores) for slope in slopes])
        if combination["loggers"] == "greedy":
            best = np.eye(ACTIONS)[tables[label].argmax(axis=-1)]
            tables[label] = (1 - EXPLORED) * best + EXPLORED / ACTIONS
    never = never_played(combination, list(counts))
    tables["new"] = _target(rng, combination, scores, tables)
    tables["alt"] = np.repeat(softmax(-0.5 * scores)[None], DAYS, axis=0)
    allowed = {name: np.where(eligible, table, 0.0) for name, table in tables.items()}
    for name, actions in never.items():
        allowed[name][..., actions] = 0.0
    policies = {name: p / p.sum(axis=-1, keepdims=True) for name, p in allowed.items()}
    posteriors: dict[str, Sampled] = {}
    if combination["probabilities"] == "sampled":
        posteriors = _posteriors(combination, scores, list(counts), never, periodic=periodic)
        policies = {name: part.table for name, part in posteriors.items()}
    days = np.arange(DAYS)
    live = {
        label: np.sort((k + np.arange(LIVE_DAYS)) % DAYS)
        if combination["structure"] == "live"
        else days
        for k, label in enumerate(counts)
    }
    chances = rng.dirichlet(np.full(CONTEXTS, 6.0))
    means = mean_rewards(rng, combination["rewards"], (CONTEXTS, ACTIONS))
    grouped = combination["probabilities"] == "groups"
    if grouped:
        means[:, 1] = means[:, 0]
    if combination["probabilities"] == "unlogged":  # rows of all loggers are rows of one
        total = sum(counts.values())
        policies["log"] = sum(n / total * policies.pop(i) for i, n in counts.items())
        counts, live = {"log": total}, {"log": days}
    return World(
        counts,
        chances,
        means,
        policies,
        live,
        combination["rewards"],
        scores,
        eligible,
        posteriors,
        grouped,
    )


def _posteriors(
    combination: Combination,
    scores: FloatArray,
    labels: list[str],
    never: Mapping[str, list[int]],
    *,
    periodic: bool,
) -> dict[str, Sampled]:
    """Return the posteriors of policies that sample; those of loggers change with the days."""
    slopes = {name: (0.9 - 0.45 * k, 1.0) for k, name in enumerate(labels)}
    slopes |= {"new": (1.2, 0.8), "alt": (-0.5, 1.1)}
    found = {}
    for name, (slope, scale) in slopes.items():
        days = [slope + (0.2 * d if periodic and name in labels else 0) for d in range(DAYS)]
        mean = np.array(days)[:, None, None] * scores
        allowed = tuple(k for k in range(ACTIONS) if k not in never.get(name, ()))
        found[name] = Sampled(mean, scale, allowed)
    if combination["target"] == "logger" and not periodic:
        found["new"] = found[labels[-1]]
    if combination["target"] == "deterministic":
        played = (0, 3) if combination["loggers"] != "narrow" else (3,)
        found["new"] = Sampled(found["new"].mean, 0.0, played)
    return found


def _target(
    rng: np.random.Generator,
    combination: Combination,
    scores: FloatArray,
    tables: Mapping[str, FloatArray],
) -> FloatArray:
    """Return the policy to evaluate; only that of a logger may change from day to day."""
    kind = combination["target"]
    if kind == "logger":
        table = list(tables.values())[-1]
        if combination["structure"] == "live":  # its days would be those of the loggers
            return np.repeat(table.mean(axis=0)[None], DAYS, axis=0)
        return table.copy()
    if kind == "deterministic":  # the last action is always eligible, and every logger plays it
        allowed = [0, 3] if combination["loggers"] != "narrow" else [3]
        table = np.eye(ACTIONS)[rng.choice(allowed, size=CONTEXTS)]
    elif kind == "mixture":
        table = 0.5 * softmax(1.5 * scores) + 0.5 * softmax(-scores)
    else:
        table = softmax(1.4 * scores)
    return np.repeat(table[None], DAYS, axis=0)


def never_played(combination: Combination, labels: list[str]) -> dict[str, list[int]]:
    """Return the actions that each policy never plays."""
    never: dict[str, list[int]] = {}
    if combination["target"] == "partly":
        never = {label: [ACTIONS - 1] for label in [*labels, "alt"]}
    if combination["loggers"] == "narrow" and len(labels) > 1:
        never.setdefault(labels[-1], []).append(0)
    return never


@dataclass(frozen=True, eq=False)
class DensityWorld:
    """Policies that draw a number: normal around a mean for each context."""

    counts: Mapping[str, int]
    chances: FloatArray
    centres: Mapping[str, FloatArray]
    spreads: Mapping[str, float]
    kind: str
    parts: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def value(self, policy: str, device: str | None = None) -> float:
        """Return the true value of a policy, on all contexts or on those of a device."""
        if policy in self.parts:
            return sum(self.value(part, device) for part in self.parts[policy]) / 2
        chances = self.chances
        if device is not None:
            chances = np.where(DEVICES[np.arange(CONTEXTS) % 2] == device, chances, 0.0)
        centre, spread = self.centres[policy], self.spreads[policy]
        if self.kind in {"clicks", "rare"}:
            shift = 0.3 if self.kind == "clicks" else 2.2
            means = stats.norm.cdf((centre - shift) / np.hypot(1, spread))
        else:
            means = SIGNS[self.kind] * (4 + 0.5 * centre)
        return float(chances @ means / chances.sum())

    def supported(self, policy: str, logger: str | None, device: str | None = None) -> float:
        """Return the value: every density is positive everywhere."""
        del logger
        return self.value(policy, device)

    def mass(self, policy: str, logger: str | None = None) -> float:
        """Return 1: every density is positive everywhere."""
        del policy, logger
        return 1.0

    def _density(self, policy: str, context: IntArray, action: FloatArray) -> FloatArray:
        if policy in self.parts:
            both = [self._density(part, context, action) for part in self.parts[policy]]
            return np.asarray(sum(both) / 2)
        return np.asarray(
            stats.norm.pdf(action, self.centres[policy][context], self.spreads[policy])
        )

    def draw(self, rng: np.random.Generator, users: int = 0) -> Columns:
        """Draw the rows of the log; with users, three rows in a row share a context."""
        total = sum(self.counts.values())
        labels = np.repeat(list(self.counts), list(self.counts.values()))
        context, user = rng.choice(CONTEXTS, total, p=self.chances), np.arange(total)
        if users:
            user = np.concatenate(
                [1_000 * k + np.arange(n) // 3 for k, n in enumerate(self.counts.values())]
            )
            _, first, back = np.unique(user, return_index=True, return_inverse=True)
            context = context[first][back]
        centre = np.array([self.centres[i][c] for i, c in zip(labels, context, strict=True)])
        spread = np.array([self.spreads[i] for i in labels])
        action = centre + spread * rng.normal(size=total)
        day = rng.integers(DAYS, size=total)
        names = [*self.counts, *TARGETS]
        every = {name: self._density(name, context, action) for name in names}
        shares = np.array(list(self.counts.values())) / total
        if self.kind in {"clicks", "rare"}:
            shift = 0.3 if self.kind == "clicks" else 2.2
            reward = (rng.normal(size=total) < action - shift).astype(float)
        else:
            reward = SIGNS[self.kind] * (4 + 0.5 * action + 0.5 * rng.normal(size=total))
            if self.kind == "heavy":
                reward = rewards(rng, "heavy", reward)
        return {
            "logger": labels,
            "reward": reward,
            "item": action,
            "x": context,
            "x1": np.cos(context),
            "x2": np.sin(2 * context),
            "device": DEVICES[context % 2],
            "day": np.array([f"2026-03-0{d + 1}" for d in day]),
            "at": times(rng, day),
            "user": user,
            "p": np.array([every[i][k] for k, i in enumerate(labels)]),
            "average": shares @ np.stack([every[i] for i in self.counts]),
            **{f"p_{name}": density for name, density in every.items()},
            "q": np.full(total, reward.mean()),
            **{f"q_{name}": np.full(total, reward.mean()) for name in names},
        }


def make_density_world(
    rng: np.random.Generator, combination: Combination, scale: int = 1
) -> DensityWorld:
    """Return the world of a combination with continuous actions."""
    counts = {i: scale * n for i, n in COUNTS[combination["loggers"]].items()}
    centres = {i: rng.normal(scale=0.3, size=CONTEXTS) for i in counts}
    spreads = dict.fromkeys(counts, 1.0)
    for name in ("new", "alt", "first", "second"):
        centres[name], spreads[name] = rng.normal(0.2, 0.3, CONTEXTS), 0.9
    parts = {}
    if combination["target"] == "logger":
        centres["new"], spreads["new"] = centres[list(counts)[-1]], 1.0
    if combination["target"] == "mixture":
        parts["new"] = ("first", "second")
    if combination["target"] == "deterministic":  # as near to it as a density can be
        spreads["new"] = 0.35
    chances = rng.dirichlet(np.full(CONTEXTS, 6.0))
    return DensityWorld(counts, chances, centres, spreads, combination["rewards"], parts)
