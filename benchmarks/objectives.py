r"""Objectives of other recipes, to compare with and to test gradients on.

They have the form of `poolwise.learning.objectives`: a value, and its derivatives by the
probability of every action.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poolwise.learning.objectives import Plays, Regression, Sample, add_at_action, at_logged
from poolwise.log.policy import pick

if TYPE_CHECKING:
    from poolwise.types import FloatArray, IntArray


@dataclass(frozen=True)
class Ips:
    r"""Inverse propensity scores with a baseline: mean of $w (r - b) + b$."""

    baseline: float = 0.0
    additive: bool = True

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        slope = (sample.reward - self.baseline) / sample.propensity / sample.count
        value = float(pick(prob, sample.action) @ slope)
        share = len(sample) / sample.count
        return value + share * self.baseline, at_logged(sample, slope, prob)


@dataclass(frozen=True)
class SelfNormalised:
    r"""Weighted mean of rewards: $\sum w r / \sum w$."""

    additive: bool = False

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        weight = pick(prob, sample.action) / sample.propensity
        value = float(weight @ sample.reward / weight.sum())
        slope = (sample.reward - value) / (sample.propensity * weight.sum())
        return value, at_logged(sample, slope, prob)


@dataclass(frozen=True)
class Clipped:
    r"""Mean of $\min(w, M) r$."""

    most: float
    additive: bool = True

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        weight = pick(prob, sample.action) / sample.propensity
        value = float(np.minimum(weight, self.most) @ sample.reward / sample.count)
        slope = (weight < self.most) * sample.reward / (sample.propensity * sample.count)
        return value, at_logged(sample, slope, prob)


@dataclass(frozen=True)
class Smoothed:
    r"""Mean of $\pi r / (p^c + g)$.

    With $c = 1$ it is implicit exploration, with $g = 0$ exponential smoothing.
    """

    exponent: float = 1.0
    added: float = 0.0
    additive: bool = True

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        slope = sample.reward / (sample.propensity**self.exponent + self.added) / sample.count
        return float(pick(prob, sample.action) @ slope), at_logged(sample, slope, prob)


@dataclass(frozen=True)
class LogSmoothed:
    r"""Mean of $\log(1 + l w r) / l$; rewards must not be negative."""

    strength: float
    additive: bool = True

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        score = self.strength * pick(prob, sample.action) * sample.reward / sample.propensity
        value = float(np.log1p(score).sum() / self.strength / sample.count)
        slope = sample.reward / (sample.propensity * sample.count * (1 + score))
        return value, at_logged(sample, slope, prob)


def _penalty(logger: IntArray, score: FloatArray, strength: float) -> tuple[float, FloatArray]:
    r"""Return $l \sqrt V$ of the mean score, and its derivative by each score.

    $V = \sum_k n_k \mathrm{var}_k / n^2$ over loggers.
    """
    counts = np.bincount(logger)
    centred = score - (np.bincount(logger, score) / np.maximum(counts, 1))[logger]
    freedom = np.maximum(counts - 1, 1)
    spreads = np.bincount(logger, centred**2) / freedom
    error = math.sqrt(counts @ spreads) / len(score)
    if error == 0:
        return 0.0, np.zeros(len(score))
    factors = (counts / freedom)[logger] / len(score) ** 2
    return strength * error, strength * factors * centred / error


@dataclass(frozen=True)
class Poem:
    r"""Ips less its estimated error, times a strength (POEM); stratified by logger or not."""

    strength: float
    baseline: float = 0.0
    stratified: bool = True
    additive: bool = False

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        slope = (sample.reward - self.baseline) / sample.propensity
        score = pick(prob, sample.action) * slope
        logger = sample.logger if self.stratified else np.zeros_like(sample.logger)
        cost, by_score = _penalty(logger, score, self.strength)
        value = float(score.mean()) + self.baseline - cost
        return value, at_logged(sample, (1 / len(sample) - by_score) * slope, prob)


@dataclass(frozen=True)
class Direct:
    r"""Direct method: mean of $\sum_a \pi_a q_a$."""

    additive: bool = True

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        value = float(np.einsum("ij,ij->", prob, sample.predicted)) / sample.count
        return value, sample.predicted / sample.count


@dataclass(frozen=True)
class PenalisedDoublyRobust:
    r"""Doubly robust less its estimated error, times a strength."""

    strength: float
    additive: bool = False

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        slope = (sample.reward - pick(sample.predicted, sample.action)) / sample.propensity
        values = np.einsum("ij,ij->i", prob, sample.predicted)
        score = values + pick(prob, sample.action) * slope
        cost, by_score = _penalty(sample.logger, score, self.strength)
        effect = 1 / len(sample) - by_score
        matrix = effect[:, None] * sample.predicted
        return float(score.mean()) - cost, add_at_action(matrix, sample, effect * slope)


@dataclass(frozen=True)
class Calibrated:
    r"""Intercept of the regression of $w r$ on columns whose mean is known to be 0.

    These are $\pi_k / p - 1$ of all loggers but one, $w - 1$ and, with a reward model,
    $w q - \sum_a \pi_a q_a$.
    """

    model: bool = False
    additive: bool = False

    def __call__(self, sample: Sample, prob: FloatArray) -> tuple[float, FloatArray]:
        plays = Plays.of(sample, prob) if self.model else Plays(pick(prob, sample.action))
        fit = Regression.of(sample, plays)
        solved = np.linalg.pinv(fit.columns.T @ fit.columns)[0]
        effect, column = fit.columns @ solved, sample.ratios.shape[1]
        residual = fit.residual
        slope = effect * (sample.reward - fit.slopes[column]) + solved[column] * residual
        if not self.model:
            return fit.value, at_logged(sample, slope / sample.propensity, prob)
        by_value = solved[column + 1] * residual - effect * fit.slopes[column + 1]
        slope = slope + by_value * pick(sample.predicted, sample.action)
        matrix = -by_value[:, None] * sample.predicted
        return fit.value, add_at_action(matrix, sample, slope / sample.propensity)
