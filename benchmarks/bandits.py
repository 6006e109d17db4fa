"""Labelled data as logs of two or three policies, with the exact value of any policy.

A fifth of the examples train the loggers, half are the contexts of the log (drawn with
replacement), and the rest give exact values.  A poor logger writes most rows, a decent one a
fifth, and with odd seeds an adversarial one another fifth.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import poolwise as pw
from benchmarks.objectives import Direct
from poolwise.learning.fit import SoftmaxProblem, greedy, maximise, softmax
from poolwise.learning.objectives import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poolwise.log.policy import Policy
    from poolwise.types import FloatArray, IntArray

DATA = Path(os.environ.get("POOLWISE_DATA", "../shared/data"))
SETS = ("optdigits", "satimage", "pendigits", "yeast")
RIGHT, WRONG = 0.15, 0.05  # click-like rewards
FLATTENED = 0.5  # factor of the poor logger's scores


@cache
def labelled(name: str) -> tuple[FloatArray, NDArray[np.bool]]:
    """Return standardised features and the actions that are right, shape (n, actions)."""
    path = DATA / (f"{name}.npz" if name == "yeast" else f"multiclass_{name}.npz")
    with np.load(path) as file:
        if name == "yeast":
            x = np.vstack([file["X_train"], file["X_test"]])
            right = np.vstack([file["Y_train"], file["Y_test"]]) > 0
        else:
            x, label = file["X"], file["y"]
            right = np.arange(label.max() + 1) == label[:, None]
    x = x[:, x.std(axis=0) > 0].astype(np.float64)
    return (x - x.mean(axis=0)) / x.std(axis=0), right


@dataclass(frozen=True, eq=False)
class Bandit:
    """A log of several policies, and the examples that give exact values.

    Attributes:
        x: Contexts of the log, shape (n, d).
        expected: Expected reward of every action, shape (n, actions).
        probs: Probability of every action under each logger, shape (loggers, n, actions).
        logger: Logger of each row.
        action: Logged action.
        reward: Logged reward.
        test_x: Contexts of the examples that give exact values.
        test_expected: Their expected rewards.
        test_probs: Their probabilities under each logger.
    """

    x: FloatArray
    expected: FloatArray
    probs: FloatArray
    logger: IntArray
    action: IntArray
    reward: FloatArray
    test_x: FloatArray
    test_expected: FloatArray
    test_probs: FloatArray

    def value(self, prob: FloatArray) -> float:
        """Return the exact value of a policy, given its probabilities on the examples."""
        return float((prob * self.test_expected).sum(axis=1).mean())

    def value_of(self, policy: Policy) -> float:
        """Return the exact value of a policy object."""
        batch = pw.Batch(np.empty((len(self.test_x), 0)), {"x": self.test_x})
        return self.value(policy.distribution(batch))  # type: ignore[attr-defined]

    @cached_property
    def best_logger(self) -> float:
        """Value of the best logger."""
        return max(self.value(prob) for prob in self.test_probs)

    @cached_property
    def skyline(self) -> float:
        """Value of the better of two linear policies that know which actions are right."""
        distinct, index = np.unique(self.x, axis=0, return_index=True)
        expected = self.expected[index]
        right = expected == expected.max(axis=1, keepdims=True)
        fits = (_softmax_fit(distinct, expected), _logistic_fit(distinct, right))
        features = np.column_stack([self.test_x, np.ones(len(self.test_x))])
        return max(self.value(greedy(features @ fitted)) for fitted in fits)

    def normalised(self, value: float) -> float:
        """Return 0 for the best logger and 1 for the skyline."""
        return (value - self.best_logger) / (self.skyline - self.best_logger)

    def log(self) -> pw.Log:
        """Return the rows as a log."""
        rows, size = self.x.shape
        lists = pa.FixedSizeListArray.from_arrays(pa.array(self.x.ravel()), size)
        at = np.arange(rows), self.action
        columns: dict[str, Any] = {"x": lists, "action": self.action, "reward": self.reward}
        columns["logger"] = [f"v{k}" for k in self.logger]
        columns |= {f"p_v{k}": prob[at] for k, prob in enumerate(self.probs)}
        return pw.Log(
            pa.table(columns),
            reward="reward",
            logger="logger",
            action="action",
            context=["x"],
            propensities={f"v{k}": f"p_v{k}" for k in range(len(self.probs))},
        )


def _softmax_fit(x: FloatArray, expected: FloatArray) -> FloatArray:
    """Fit a softmax to the expected rewards of all actions."""
    zeros, ones = np.zeros(len(x), np.int64), np.ones(len(x))
    sample = Sample(zeros, ones, ones, zeros, expected)
    problem = SoftmaxProblem(np.column_stack([x, ones]), sample, expected.shape[1])
    scale = float(expected.max(axis=1).mean() - expected.mean())
    return maximise(problem, Direct(), 1e-3 * scale, problem.zeros(), iterations=200)


def _logistic_fit(x: FloatArray, right: NDArray[np.bool]) -> FloatArray:
    """Fit a logistic regression: one of all actions, or one of each if several are right."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000)
    fits = []
    if (right.sum(axis=1) == 1).all():
        model.fit(x, right.argmax(axis=1))
        fitted: FloatArray = np.vstack([model.coef_.T, model.intercept_])
        return fitted
    for column in right.T:
        model.fit(x, column)
        fits.append(np.append(model.coef_[0], model.intercept_))
    return np.stack(fits, axis=1)


def draw(
    name: str, seed: int, rows: int, *, noisy: bool, flat: float = 0.0, on_log: bool = False
) -> Bandit:
    """Draw a log; every action has the mean reward `flat`, if that is not 0.

    With `on_log` the contexts of the log give the exact values, so that the log is drawn
    from the very population whose value is computed.
    """
    x, right = labelled(name)
    rng = np.random.default_rng([seed, sum(map(ord, name)), rows, noisy])
    order = rng.permutation(len(x))
    fifth, half = len(x) // 5, len(x) // 2
    trained, logged, test = np.split(order, [fifth, fifth + half])
    scores = _scores(x, right, trained, rng, adversarial=seed % 2 == 1)
    expected: FloatArray = np.where(right, RIGHT, WRONG) if noisy else right.astype(np.float64)
    if flat:
        expected = np.full(right.shape, flat)
    at = rng.choice(logged, rows)
    if on_log:
        test = logged
    shares = (0.6, 0.2, 0.2) if len(scores) == 3 else (0.8, 0.2)
    logger = rng.choice(len(scores), rows, p=shares)
    played = scores[logger, at]
    action = (played.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    action = action.clip(max=right.shape[1] - 1)
    reward = (rng.random(rows) < expected[at, action]).astype(np.float64)
    return Bandit(
        x[at], expected[at], scores[:, at], logger, action, reward,
        x[test], expected[test], scores[:, test],
    )  # fmt: skip


def _scores(
    x: FloatArray,
    right: NDArray[np.bool],
    trained: IntArray,
    rng: np.random.Generator,
    *,
    adversarial: bool,
) -> FloatArray:
    """Return the probabilities of all loggers, shape (loggers, examples, actions)."""
    actions = right.shape[1]
    poor = _logits(x, right, trained[: 4 * actions + 20], rng)
    decent = _logits(x, right, trained[: max(12 * actions, 100)], rng)
    probs = [_mixed(FLATTENED * poor, 0.05), _mixed(decent, 0.02)]
    return np.stack([*probs, _mixed(-decent, 0.02)] if adversarial else probs)


def _mixed(scores: FloatArray, uniform: float) -> FloatArray:
    mixed: FloatArray = (1 - uniform) * softmax(scores) + uniform / scores.shape[1]
    return mixed


def _logits(
    x: FloatArray, right: NDArray[np.bool], rows: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Return scores of a logistic regression on few examples; one right label is drawn."""
    from sklearn.linear_model import LogisticRegression

    weights = right[rows] + 1e-9
    drawn = weights.cumsum(axis=1) < rng.random((len(rows), 1)) * weights.sum(axis=1)[:, None]
    label = drawn.sum(axis=1)
    model = LogisticRegression(max_iter=300).fit(x[rows], label)
    scores = np.full((len(x), right.shape[1]), -3.0)
    decided = model.decision_function(x)
    if len(model.classes_) == 2:
        decided = np.column_stack([-decided, decided])
    scores[:, model.classes_] = np.log(softmax(decided))
    return scores.clip(-12, None)
