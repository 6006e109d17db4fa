"""Learning in the paper's own setting: CRFs from two logs, with naive and balanced weights.

The paper asks for its estimators to be used for learning.  Here unary CRFs are learned from
logs of the paper's two loggers, started at the better one, with the weights of naive, of
balanced, or from one log alone, and valued exactly over the test inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import optimize
from scipy.special import expit
from threadpoolctl import threadpool_limits

from poolwise.learning.objectives import Regression
from poolwise.moments.pool import Pool
from poolwise.report.tables import Grid
from poolwise.text import with_error
from reproduction.enumeration import LabelProblem, Mix, exact_moments
from reproduction.panels import (
    FIRST,
    RATIOS,
    SECOND,
    SECOND_FRACTION,
    build_mix,
    divergences,
    train,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.types import FloatArray, IntArray
    from reproduction.crf import BitArray
    from reproduction.datasets import Dataset
    from reproduction.figures import CsvRow

RULES = ("balanced", "naive", "log 2 alone", "log 1 alone")
STRENGTHS = (0.01, 0.1, 1.0, 10.0)
LOGS = 3  # drawn for each cell
ITERATIONS = 30


@dataclass(frozen=True, eq=False)
class LabelLog:
    """Rows of one or two loggers.

    Attributes:
        features: Test inputs with a last column of 1, shape (X, d + 1).
        context: Index of each row's input, shape (n,).
        labels: Logged label vectors, shape (n, q).
        reward: Labels assigned correctly.
        propensity: Denominators of the weights.
        ratios: Propensities of the loggers over the mixture; no columns with naive weights.
        logger: Index of each row's logger.
    """

    features: FloatArray
    context: IntArray
    labels: BitArray
    reward: FloatArray
    propensity: FloatArray
    ratios: FloatArray
    logger: IntArray

    def take(self, rows: IntArray) -> LabelLog:
        """Return some of the rows."""
        features, *others = vars(self).values()
        return LabelLog(features, *(values[rows] for values in others))

    def weights(self, coefficients: FloatArray) -> FloatArray:
        """Return the weights of the CRF with these coefficients, shape (d + 1, q)."""
        scores = self.features @ coefficients
        none = np.logaddexp(0.0, scores).sum(axis=1)
        logs = (self.labels * scores[self.context]).sum(axis=1) - none[self.context]
        return np.asarray(np.exp(logs - np.log(self.propensity)))

    def learn(self, start: FloatArray, strength: float) -> FloatArray:
        """Maximise the mean of w (r - mean r), near the start."""
        centred = self.reward - self.reward.mean()
        penalty = strength * float(self.reward.std()) / len(start)

        def loss(flat: FloatArray) -> tuple[float, FloatArray]:
            coefficients = flat.reshape(start.shape)
            score = self.weights(coefficients) * centred / len(centred)
            odds = expit(self.features @ coefficients)[self.context]
            gradient = self.features.T @ self._by_input(score[:, None] * (self.labels - odds))
            moved = coefficients - start
            cost = penalty / 2 * float((moved**2).sum())
            return cost - float(score.sum()), (penalty * moved - gradient).ravel()

        fitted, _, _ = optimize.fmin_l_bfgs_b(loss, start.ravel(), maxiter=ITERATIONS)
        return np.asarray(fitted, dtype=np.float64).reshape(start.shape)

    def _by_input(self, values: FloatArray) -> FloatArray:
        """Add up the values of the rows of each input, shape (X, q)."""
        inputs = len(self.features)
        sums = [np.bincount(self.context, column, inputs) for column in values.T]
        return np.stack(sums, axis=1)

    def score(self, coefficients: FloatArray) -> float:
        """Return the calibrated value less one standard error."""
        weight = self.weights(coefficients)
        columns = [np.ones(len(weight)), weight - 1, *(self.ratios[:, :-1] - 1).T]
        fit = Regression.fit(np.stack(columns, axis=1), weight * self.reward)
        return fit.value - fit.std_error(self.logger)


@dataclass(frozen=True, eq=False)
class LabelLearning:
    """Draws logs of a problem, learns from them and values the result.

    Attributes:
        features: Test inputs with a last column of 1.
        truth: Their labels.
        crfs: The loggers' coefficients, by name.
    """

    features: FloatArray
    truth: BitArray
    crfs: dict[str, FloatArray]

    @classmethod
    def of(cls, data: Dataset, fraction: float) -> LabelLearning:
        """Train the loggers."""
        fractions = {FIRST: fraction, SECOND: SECOND_FRACTION}
        crfs = {name: train(data, f, "unary").policy for name, f in fractions.items()}
        contexts = np.asarray(data.test.contexts)
        return cls(
            np.column_stack([contexts, np.ones(len(contexts))]),
            data.test.labels.astype(np.bool),
            {n: np.vstack([crf.weights.T, crf.biases]) for n, crf in crfs.items()},
        )

    def value(self, coefficients: FloatArray) -> float:
        """Return the expected number of labels that a CRF assigns correctly."""
        odds = expit(self.features @ coefficients)
        return float(np.where(self.truth, odds, 1 - odds).sum(axis=1).mean())

    def draw(self, mix: Mix, rng: np.random.Generator) -> dict[str, LabelLog]:
        """Draw a log of both loggers, with the denominators of every rule."""
        counts = np.array(list(mix.counts.values()))
        logger = np.repeat([0, 1], counts)
        context = rng.integers(len(self.features), size=len(logger))
        scores = [(self.features @ crf)[context] for crf in self.crfs.values()]
        own = np.where(logger[:, None] == 0, *scores)
        labels = rng.random(own.shape) < expit(own)
        logs = [(labels * s - np.logaddexp(0.0, s)).sum(axis=1) for s in scores]
        cross = np.exp(np.stack(logs, axis=1))
        played = cross[np.arange(len(logger)), logger]
        mixture = cross @ (counts / counts.sum())
        reward = (labels == self.truth[context]).sum(axis=1).astype(np.float64)
        none = np.empty((len(logger), 0))
        rows = (self.features, context, labels, reward)
        balanced = LabelLog(*rows, mixture, cross / mixture[:, None], logger)
        naive = LabelLog(*rows, played, none, logger)
        alone = [naive.take(np.flatnonzero(logger == k)) for k in (0, 1)]
        return dict(zip(RULES, (balanced, naive, alone[1], alone[0]), strict=True))

    def learned(self, rule: str, log: LabelLog, rng: np.random.Generator) -> float:
        """Learn from three quarters of a log, choose by the rest, and value the choice."""
        start = self.crfs[FIRST if rule == RULES[-1] else SECOND]
        order = rng.permutation(len(log.reward))
        validation, training = np.split(order, [len(order) // 4])
        fits = [start, *(log.take(training).learn(start, s) for s in STRENGTHS)]
        held = log.take(validation)
        return self.value(max(fits, key=held.score))


def learning_cells(
    data: Dataset,
    problem: LabelProblem,
    fraction: float,
    rng: np.random.Generator,
    *,
    ratios: Sequence[float] = RATIOS,
    logs: int = LOGS,
) -> list[CsvRow]:
    """Return the values of learned CRFs for one first logger, by ratio and rule."""
    exact = divergences(Pool(exact_moments(problem, [build_mix(1.0)])[0]))
    learning = LabelLearning.of(data, fraction)
    best = max(learning.value(crf) for crf in learning.crfs.values())
    cells: list[CsvRow] = []
    for ratio in ratios:
        drawn: dict[str, list[float]] = {rule: [] for rule in RULES}
        for _ in range(logs):
            for rule, log in learning.draw(build_mix(ratio), rng).items():
                with threadpool_limits(limits=1):  # small products
                    drawn[rule].append(learning.learned(rule, log, rng))
        head: CsvRow = {"fraction": fraction, "r": ratio, "v": exact[FIRST] / exact[SECOND]}
        cells += [head | _summary(rule, values, best) for rule, values in drawn.items()]
    return cells


def learning_grid(rows: Sequence[CsvRow]) -> Grid:
    """Return the mean gain of each rule over the best logger, by data set."""
    lines = []
    for data in dict.fromkeys(str(row["data"]) for row in rows):
        for rule in RULES:
            mine = [row for row in rows if (row["data"], row["rule"]) == (data, rule)]
            gains = np.array([float(row["gain"]) for row in mine])
            errors = np.array([float(row["std_error"]) for row in mine])
            error = float(np.sqrt((errors**2).sum())) / len(mine)
            below = f"{int((gains < 0).sum())} of {len(mine)}"
            lines.append([data, rule, with_error(float(gains.mean()), error), below])
    header = ["data", "weights", "gain over the best logger", "cells below it"]
    return Grid("Value of learned CRFs, in labels assigned correctly", header, lines)


def _summary(rule: str, values: Sequence[float], best: float) -> CsvRow:
    array = np.array(values)
    error = float(array.std(ddof=1)) / np.sqrt(len(array)) if len(array) > 1 else np.nan
    return {
        "rule": rule,
        "logs": len(array),
        "value": float(array.mean()),
        "std_error": float(error),
        "best_logger": best,
        "gain": float(array.mean()) - best,
    }
