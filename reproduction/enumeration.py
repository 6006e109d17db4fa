"""Exact moments of large finite problems, a few contexts at a time.

`FiniteProblem` holds every cell of a problem in memory, which suits small problems.
Yeast has 917 x 16,384 cells, and the panels of the paper need 56 mixtures of loggers.
Here the cells are read in slabs, and each slab is reduced to a small matrix of sums,
from which the moments under every mixture follow.

All terms are centred *before* they are squared: at 1 where the mean is known to be
1, and at the target's value for rewards.  So no variance is a difference of large
numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import RefusedError
from poolwise.moments.moments import Moments
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    WEIGHTED_REWARD,
    Term,
    ratio,
)
from poolwise.types import FloatArray

if TYPE_CHECKING:
    from reproduction.crf import BitArray, LabelPolicy

CELLS = 1 << 14  # of a slab, so that its columns stay in the cache
RUNS = 64  # groups of slabs with sums of their own, so that the order of adding is fixed


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
        """Return the probability of every vector at some inputs, shape (x, 2^q)."""
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

    def slabs(self, cells: int) -> Iterator[slice]:
        """Return the inputs of each slab, for slabs of about so many cells."""
        step = max(1, cells >> self.truth.shape[1])
        return (slice(first, first + step) for first in range(0, self.contexts, step))

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
        """Return the true value of the target."""
        total = 0.0
        for part in self.slabs(1 << 18):
            total += float(np.vdot(self.target.distribution(part), self.rewards(part)))
        return total / self.contexts


@dataclass(frozen=True, eq=False)
class Mix:
    """One mixture of the loggers, which derives its terms from the sums of a problem.

    The columns of a problem with loggers 1..J are t (r - U), t - p_J, p_1 - p_J, ...,
    p_{J-1} - p_J and p_J, where t is the target and U its value.  Each term, less its
    centre, is a combination of them over the mixture.

    Attributes:
        counts: Rows of each logger.
    """

    counts: Mapping[str, int]

    @property
    def shares(self) -> FloatArray:
        sizes = np.array(list(self.counts.values()), dtype=np.float64)
        return np.asarray(sizes / sizes.sum())

    @property
    def mixture(self) -> FloatArray:
        """Coefficients of the mixture itself."""
        return np.array([0.0, 0.0, *self.shares[:-1], 1.0])

    def centred(self, value: float) -> dict[Term, FloatArray]:
        """Return the coefficients of each term, less its centre."""
        excess = np.array([0.0, 0.0, *self.shares[:-1], 0.0])  # mixture - p_J
        unit = np.eye(len(excess))
        coefficients = {
            BALANCED_REWARD: unit[0] + value * (unit[1] - excess),
            BALANCED_WEIGHT: unit[1] - excess,
        }
        for index, logger in enumerate(self.counts):
            own = unit[2 + index] if index < len(self.counts) - 1 else 0.0 * excess
            coefficients[ratio(logger)] = own - excess
        return coefficients

    def centres(self, value: float) -> dict[Term, float]:
        """Return the centre of each term."""
        return {BALANCED_REWARD: value, BALANCED_WEIGHT: 1.0} | {
            ratio(logger): 1.0 for logger in self.counts
        }


def exact_moments(
    problem: LabelProblem, mixes: Sequence[Mix], cells: int = CELLS
) -> list[dict[str, Moments]]:
    """Return the moments of each logger under each mixture, as of infinitely many rows."""
    value = problem.value()
    sums, own = _total(partial(_sums, mixes=mixes, value=value), problem, value, cells)
    return [
        {
            logger: _moments(mix, logger, value, sums[m, i], float(own[i]))
            for i, logger in enumerate(problem.loggers)
        }
        for m, mix in enumerate(mixes)
    ]


Combination = Mapping[Term, float]  # of the terms of one row
SumPair = tuple[FloatArray, FloatArray]


def exact_fourth(
    problem: LabelProblem,
    mixes: Sequence[Mix],
    combinations: Sequence[Sequence[Combination]],
    moments: Sequence[Mapping[str, Moments]],
) -> SumPair:
    """Return the fourth central moments of one row, which give the error of a variance.

    Args:
        problem: The problem.
        mixes: Mixtures of its loggers.
        combinations: For each mixture, k combinations of the terms over the mixture.
        moments: For each mixture, its `exact_moments`.

    Returns:
        Those of the combinations, shape (mixes, loggers, k), and those of each logger's
        own weighted reward, shape (loggers,).
    """
    value = problem.value()
    parts, means = [], []
    for mix, combos, exact in zip(mixes, combinations, moments, strict=True):
        columns, centres = mix.centred(value), mix.centres(value)
        parts.append(np.array([sum(c * columns[t] for t, c in k.items()) for k in combos]))
        means.append(
            [
                [sum(c * (m.mean(t) - centres[t]) for t, c in k.items()) for k in combos]
                for m in exact.values()
            ]
        )
    task = partial(_fourth, mixes=mixes, value=value, parts=parts, means=np.array(means))
    return _total(task, problem, value)


Reduction = Callable[[FloatArray, FloatArray], SumPair]  # of `_columns`


def _total(task: Reduction, problem: LabelProblem, value: float, cells: int = CELLS) -> SumPair:
    """Average a task's sums over all contexts, in a fixed order."""
    from threadpoolctl import threadpool_limits

    parts = list(problem.slabs(cells))
    runs = [parts[k::RUNS] for k in range(min(RUNS, len(parts)))]
    with threadpool_limits(limits=1), ThreadPoolExecutor(os.cpu_count()) as pool:
        totals = list(pool.map(partial(_run, task, problem, value), runs))
    first, second = (np.sum(side, axis=0) for side in zip(*totals, strict=True))
    return first / problem.contexts, second / problem.contexts


def _run(
    task: Reduction, problem: LabelProblem, value: float, parts: Sequence[slice]
) -> SumPair:
    first, second = task(*_columns(problem, parts[0], value))
    for part in parts[1:]:
        more_first, more_second = task(*_columns(problem, part, value))
        first += more_first
        second += more_second
    return first, second


def _columns(problem: LabelProblem, part: slice, value: float) -> SumPair:
    """Return columns (see `Mix`), shape (J + 2, cells), and loggers, shape (J, cells)."""
    probs = np.stack([p.distribution(part).ravel() for p in problem.policies.values()])
    if not (probs > 0).all():
        raise RefusedError(
            "no-support", "every logger must give every action a positive probability"
        )
    target, last = problem.target.distribution(part).ravel(), probs[-1]
    rewarded = target * (problem.rewards(part).ravel() - value)
    return np.stack([rewarded, target - last, *(p - last for p in probs[:-1]), last]), probs


def _own(columns: FloatArray, probs: FloatArray, value: float) -> FloatArray:
    """Return centred weighted rewards times the logger's probability, shape (J, cells)."""
    target = columns[1] + probs[-1]
    return np.asarray(columns[0] + value * (target - probs))


def _sums(
    columns: FloatArray, probs: FloatArray, *, mixes: Sequence[Mix], value: float
) -> SumPair:
    """Sum products of columns over the squared mixture, by logger; and own variances."""
    left, right = np.triu_indices(len(columns))
    over = np.empty((len(mixes), *probs.shape))
    for index, mix in enumerate(mixes):
        mixture = mix.mixture @ columns
        np.divide(probs, mixture * mixture, out=over[index])
    flat = over.reshape(-1, probs.shape[1]) @ (columns[left] * columns[right]).T
    sums = np.empty((len(mixes), len(probs), len(columns), len(columns)))
    sums[..., left, right] = sums[..., right, left] = flat.reshape(*sums.shape[:2], -1)
    return sums, (_own(columns, probs, value) ** 2 / probs).sum(axis=1)


def _fourth(
    columns: FloatArray,
    probs: FloatArray,
    *,
    mixes: Sequence[Mix],
    value: float,
    parts: Sequence[FloatArray],
    means: FloatArray,
) -> SumPair:
    """Sum fourth powers of centred combinations, by mixture and logger; and own ones."""
    fourth = np.empty(means.shape)
    for index, mix in enumerate(mixes):
        rows = (parts[index] @ columns) / (mix.mixture @ columns)
        for logger, prob in enumerate(probs):
            gap = rows - means[index, logger][:, None]
            fourth[index, logger] = (gap * gap) ** 2 @ prob
    return fourth, ((_own(columns, probs, value) ** 2 / probs) ** 2 / probs).sum(axis=1)


def _moments(mix: Mix, logger: str, value: float, sums: FloatArray, own: float) -> Moments:
    columns, centres = mix.centred(value), mix.centres(value)
    terms = tuple(sorted([*columns, WEIGHTED_REWARD]))
    mixed = [t for t in terms if t in columns]
    combined = np.array([columns[t] for t in mixed])
    means = combined @ sums @ mix.mixture
    covariance = combined @ sums @ combined.T - np.outer(means, means)
    indices = [terms.index(t) for t in mixed]
    scatter = np.full((len(terms), len(terms)), np.nan)
    scatter[np.ix_(indices, indices)] = covariance
    alone = terms.index(WEIGHTED_REWARD)
    scatter[alone, alone] = own
    centred = dict(zip(mixed, means, strict=True))
    unknown, count = np.full(len(terms), np.nan), mix.counts[logger]
    return Moments(
        terms,
        count,
        np.array([centred[t] + centres[t] if t in centred else value for t in terms]),
        scatter * count,
        unknown,
        unknown,
        ddof=0,
    )
