"""Backtests of logs that fit, and of logs with one logger that does not.

Each log has loggers with softmax policies, and rewards that depend on context and action.  In
clean logs every prediction has the expectation of what was earned: z has mean 0 and standard
deviation 1, and 5% of the logs have a prediction that fails.  In spoilt logs one logger has
wrong rewards, wrong probabilities or rows of another time; the backtest should name it.

Run: python -m benchmarks.backtest [logs of each shape, 500] [names of shapes]
Prints a line for each shape.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

import poolwise as pw
from benchmarks.families import softmax

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poolwise.evaluation.backtest import Backtest

    Floats = NDArray[np.float64]

LOGS = 500
CONTEXTS, ACTIONS = 6, 5
Fault = Literal["", "rewards", "clicks lost", "drift", "reversed", "flattened"]


@dataclass(frozen=True)
class Shape:
    """How a log is written.

    Attributes:
        rows: Rows of each logger.
        rate: Mean probability of a reward.
        tail: Standard deviation of the logarithm of a reward; 0 for clicks.
        sharp: Factor on the scores of all policies; a larger one makes weights heavier.
        offset: Number that is added to every reward.
        private: Whether the first logger has an action that no other logger plays.
        clusters: Rows of a user, who has rows of all loggers; 1 for independent rows.
        fault: What is wrong with the logger `spoilt`.
        spoilt: Number of that logger.
        size: Size of the fault.
    """

    rows: tuple[int, ...] = (4_000,) * 5
    rate: float = 0.3
    tail: float = 0.0
    sharp: float = 1.0
    offset: float = 0.0
    private: bool = False
    clusters: int = 1
    fault: Fault = ""
    spoilt: int = 2
    size: float = 0.0

    @property
    def policies(self) -> Floats:
        """Probabilities of the loggers, shape (loggers, contexts, actions)."""
        scores = np.random.default_rng(20170813).normal(
            size=(len(self.rows), CONTEXTS, ACTIONS)
        )
        policies = np.array([softmax(self.sharp * each) for each in scores])
        if self.private:
            policies[1:, :, 0] = 0.0
            policies /= policies.sum(axis=2, keepdims=True)
        return policies

    def log(self, seed: int) -> pw.Log:
        """Return one log."""
        rng = np.random.default_rng([seed, *self.rows])
        loggers, rows = len(self.rows), sum(self.rows)
        logger = np.repeat(np.arange(loggers), self.rows)
        user = rng.permutation(rows) // self.clusters
        context = rng.integers(CONTEXTS, size=rows)
        policies = self.policies
        drawn = policies[logger, context]
        action = (rng.random(rows)[:, None] > drawn.cumsum(axis=1)).sum(axis=1)
        action = np.minimum(action, ACTIONS - 1)
        rates = np.random.default_rng(1).uniform(0.7, 1.3, (CONTEXTS, ACTIONS))
        rate = self.rate * (rates * np.linspace(0.5, 1.5, ACTIONS))[context, action]
        if self.clusters > 1:
            rate *= rng.choice([0.2, 1.8], size=rows)[user]
        reward = (rng.random(rows) < rate).astype(np.float64)
        if self.tail:
            reward *= np.exp(self.tail * rng.normal(size=rows) - self.tail**2 / 2)
        logged, reward = self._spoil(policies, logger, reward, rng)
        columns: dict[str, Any] = {"logger": [f"v{k}" for k in logger], "user": user}
        columns["reward"] = reward + self.offset
        columns |= {f"p{k}": logged[k, context, action] for k in range(loggers)}
        return pw.Log(
            pa.table(columns),
            reward="reward",
            logger="logger",
            propensities={f"v{k}": f"p{k}" for k in range(loggers)},
            cluster="user" if self.clusters > 1 else None,
        )

    def _spoil(
        self,
        policies: Floats,
        logger: NDArray[np.int64],
        reward: Floats,
        rng: np.random.Generator,
    ) -> tuple[Floats, Floats]:
        """Return the logged probabilities and rewards, with the fault of one logger."""
        logged, own = policies.copy(), logger == self.spoilt
        if self.fault == "rewards":  # all of them are too high
            reward = np.where(own, reward + self.size, reward)
        elif self.fault == "clicks lost":  # some of them
            reward = np.where(own & (rng.random(len(reward)) < self.size), 0.0, reward)
        elif self.fault == "drift":  # rows of a better season
            more = (rng.random(len(reward)) < self.size).astype(np.float64)
            reward = np.where(own, np.maximum(reward, more), reward)
        elif self.fault == "reversed":  # the actions are numbered the other way round
            logged[self.spoilt] = policies[self.spoilt][:, ::-1]
        elif self.fault == "flattened":  # the temperature of the policy is not the logged one
            flat = policies[self.spoilt] ** self.size
            logged[self.spoilt] = flat / flat.sum(axis=1, keepdims=True)
        return logged, reward


@dataclass
class Tally:
    """What was found in logs of one shape."""

    shape: Shape

    def __post_init__(self) -> None:
        self.scores: list[list[float]] = []
        self.alarms, self.named, self.right, self.worst = 0, 0, 0, 0

    def add(self, found: Backtest) -> None:
        """Add one backtest."""
        scores = {i: p.z for i, p in found.loggers.items()}
        self.scores.append(list(scores.values()))
        self.alarms += not found.fits
        self.named += bool(found.misfit)
        self.right += found.misfit == f"v{self.shape.spoilt}"
        self.worst += max(scores, key=lambda i: abs(scores[i])) == f"v{self.shape.spoilt}"

    @property
    def means(self) -> Floats:
        """Mean z of each logger."""
        means: Floats = np.mean(self.scores, axis=0)
        return means

    @property
    def spreads(self) -> Floats:
        """Standard deviation of the z of each logger."""
        spreads: Floats = np.std(self.scores, axis=0, ddof=1)
        return spreads

    def __str__(self) -> str:
        logs, means, spreads = len(self.scores), self.means, self.spreads
        text = f"alarm {self.alarms / logs:.3f}"
        if self.shape.fault:
            largest = self.worst / logs
            return f"{text}  named {self.right / logs:.3f}  (largest z: {largest:.3f})"
        return (
            f"{text}  named {self.named / logs:.3f}  mean z {means.min():+.2f} to "
            f"{means.max():+.2f}  spread {spreads.min():.2f} to {spreads.max():.2f}"
        )


def measure(shape: Shape, logs: int, first: int = 0) -> Tally:
    """Return what backtests find in logs of one shape."""
    tally = Tally(shape)
    for seed in range(first, first + logs):
        tally.add(pw.backtest(shape.log(seed)))
    return tally


SHAPES = {
    "five": Shape(),
    "two": Shape(rows=(2_000, 1_000)),
    "unequal": Shape(rows=(8_000, 2_000, 1_000, 500, 250)),
    "small": Shape(rows=(100,) * 5),
    "rare": Shape(rate=0.01),
    "amounts": Shape(rate=0.3, tail=1.0),
    "offset": Shape(offset=100.0),
    "heavy": Shape(sharp=3.0),
    "two, heavy": Shape(rows=(1_000, 1_000), sharp=3.0),
    "private": Shape(private=True),
    "users": Shape(clusters=5),
    "rewards": Shape(fault="rewards", size=0.07),
    "clicks lost": Shape(fault="clicks lost", size=0.25),
    "drift": Shape(fault="drift", size=0.1),
    "reversed": Shape(fault="reversed", sharp=1.5),
    "flattened": Shape(fault="flattened", sharp=2.0, size=0.0),
    "largest": Shape(rows=(1_000, 1_000, 16_000, 1_000, 1_000), fault="clicks lost", size=0.35),
}


def main() -> None:
    """Measure all shapes and print them."""
    logs = int(sys.argv[1]) if len(sys.argv) > 1 else LOGS
    for name in sys.argv[2:] or list(SHAPES):
        print(f"{name:>12}: {measure(SHAPES[name], logs)}", flush=True)


if __name__ == "__main__":
    main()
