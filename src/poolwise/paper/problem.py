"""The paper's problems: CRFs trained on fractions of a data set, and its test inputs.

The first logger is trained on 2% to 20% of the training rows, the second on 30%,
the target on 35%; the input distribution is that of the test rows, and the reward
is the number of labels assigned correctly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from poolwise.log.crf import BitArray, LabelPolicy, PairwiseCRF, UnaryCRF
from poolwise.paper.datasets import RCV1_TRAIN, Dataset, Labelled
from poolwise.paper.enumeration import Mix, Slab

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from poolwise.log.policy import FloatArray

Structure: TypeAlias = Literal["unary", "pairwise"]
CRFS: Mapping[Structure, type[UnaryCRF | PairwiseCRF]] = {
    "unary": UnaryCRF,
    "pairwise": PairwiseCRF,
}
FIRST, SECOND = "first", "second"  # the loggers
FRACTIONS = (0.02, 0.05, 0.08, 0.11, 0.14, 0.17, 0.20)  # training rows of the first logger
SECOND_FRACTION, TARGET_FRACTION = 0.30, 0.35
RATIOS = (0.1, 0.25, 0.5, 1.0, 3.0, 5.0, 7.0, 9.0)  # rows of log 1 over rows of log 2
SECOND_ROWS = 1000  # of log 2; ratios of variances do not depend on it
ORDER_SEED = 2017  # Scene's file is sorted by label, so that rows are shuffled first
FULL_SIZE = "lyrl-shaped"  # name of a synthetic data set
FULL_ROWS = 781_265  # its test rows
FULL_SEED = 781_265
FULL_FEATURES, FULL_LABELS = 20, 4
FULL_NOTE = f"{FULL_SIZE} is synthetic: it has the size of LYRL, to time the computation."


def mix_of(ratio: float, rows: int = SECOND_ROWS) -> Mix:
    """Return the rows of both logs, for a ratio of their sizes."""
    return Mix({FIRST: round(ratio * rows), SECOND: rows})


@dataclass(frozen=True, eq=False)
class Scored:
    """A policy with its scores at the test inputs, which are computed once.

    Attributes:
        policy: The policy.
        scores: Its scores at every test input, shape (X, q).
    """

    policy: LabelPolicy
    scores: FloatArray

    def distribution(self, part: slice) -> FloatArray:
        logs = self.policy.log_distribution_at(self.scores[part])
        return np.exp(logs, out=logs)


@dataclass(frozen=True, eq=False)
class LabelProblem:
    """Test inputs with known labels, two loggers or more, and a target.

    Attributes:
        truth: Labels of the test inputs, shape (X, q).
        policies: The loggers, by name.
        target: The policy to evaluate.
    """

    truth: BitArray
    policies: Mapping[str, Scored]
    target: Scored

    @property
    def contexts(self) -> int:
        return len(self.truth)

    @property
    def loggers(self) -> Sequence[str]:
        return tuple(self.policies)

    def parts(self, cells: int) -> Iterator[slice]:
        step = max(1, cells >> self.truth.shape[1])
        return (slice(first, first + step) for first in range(0, self.contexts, step))

    def slab(self, part: slice) -> Slab:
        loggers = {name: policy.distribution(part) for name, policy in self.policies.items()}
        return Slab(self.rewards(part), self.target.distribution(part), loggers)

    def rewards(self, part: slice) -> FloatArray:
        """Count the labels each vector assigns correctly, shape (x, 2^q), by doubling."""
        truth = self.truth[part]
        rewards = np.empty((len(truth), 1 << truth.shape[1]))
        rewards[:, 0] = (~truth).sum(axis=1)
        for label in range(truth.shape[1]):
            half = 1 << label
            gain = np.where(truth[:, label], 1.0, -1.0)[:, None]
            np.add(rewards[:, :half], gain, out=rewards[:, half : 2 * half])
        return rewards

    def value(self) -> float:
        total = 0.0
        for part in self.parts(1 << 18):
            total += float(np.vdot(self.target.distribution(part), self.rewards(part)))
        return total / self.contexts


@dataclass(frozen=True, eq=False)
class Setting:
    """A data set with the structure of the CRFs: everything of a panel but the first logger.

    Attributes:
        data: The data set.
        structure: Structure of the CRFs.
        second: The second logger, at the test inputs.
        target: The target, at the test inputs.
    """

    data: Dataset
    structure: Structure
    second: Scored
    target: Scored

    @classmethod
    def of(cls, data: Dataset, structure: Structure = "unary") -> Setting:
        """Train the policies that all cells of a panel share."""
        second, target = (
            train(data, fraction, structure) for fraction in (SECOND_FRACTION, TARGET_FRACTION)
        )
        return cls(data, structure, second, target)

    def problem(self, fraction: float) -> LabelProblem:
        """Return the problem whose first logger is trained on this fraction."""
        first = train(self.data, fraction, self.structure)
        truth = self.data.test.labels.astype(np.bool)
        return LabelProblem(truth, {FIRST: first, SECOND: self.second}, self.target)


def training_rows(data: Dataset, fraction: float) -> Labelled:
    """Return a fraction of the training rows; larger fractions contain smaller ones."""
    order = np.random.default_rng(ORDER_SEED).permutation(len(data.train))
    return data.train.take(order[: round(fraction * data.fractions_of)])


def train(data: Dataset, fraction: float, structure: Structure) -> Scored:
    """Return a CRF fitted to a fraction of the training rows, at the test inputs."""
    rows = training_rows(data, fraction)
    policy = CRFS[structure].fit(rows.contexts, rows.labels)
    return Scored(policy, policy.scores(data.test.contexts))


def lyrl_shaped(test_rows: int = FULL_ROWS, train_rows: int = RCV1_TRAIN) -> Dataset:
    """Return a synthetic data set with as many rows and labels as LYRL."""
    rng = np.random.default_rng(FULL_SEED)
    weights = rng.normal(size=(FULL_FEATURES, FULL_LABELS))
    biases = rng.normal(-1.0, 0.5, size=FULL_LABELS)
    train, test = (_rows(size, weights, biases, rng) for size in (train_rows, test_rows))
    names = tuple(f"label {k}" for k in range(FULL_LABELS))
    return Dataset(FULL_SIZE, train, test, names, train_rows, FULL_NOTE)


def _rows(
    size: int,
    weights: FloatArray,
    biases: FloatArray,
    rng: np.random.Generator,
) -> Labelled:
    contexts = rng.normal(size=(size, len(weights)))
    chance = 1 / (1 + np.exp(-(contexts @ weights + biases)))
    return Labelled(contexts, (rng.random(chance.shape) < chance).astype(np.uint8))
