"""Sensitivity: the factor equals the one that an enumeration of all extreme weights finds."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from poolwise.diagnosis.sensitivity import odds_to_reverse

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

ROWS = 6


def bisect(lowest: Callable[[float], float]) -> float:
    """Return the smallest factor at which the lowest value is 0."""
    low, high = 1.0, 1e6
    if lowest(high) > 0:
        return math.inf
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if lowest(middle) > 0 else (low, middle)
    return high


def bounds(propensity: Array, factor: float) -> tuple[Array, Array]:
    """Return the smallest and the largest multiplier of each weight."""
    rest = 1 - propensity
    return propensity + rest / factor, propensity + rest * factor


def lowest_ratio(weight: Array, propensity: Array, reward: Array, factor: float) -> float:
    """Return the lowest self-normalised mean; it has every multiplier at one of its bounds."""
    ends = np.stack(bounds(propensity, factor))
    found = []
    for bits in itertools.product([0, 1], repeat=len(weight)):
        chosen = weight * ends[list(bits), np.arange(len(weight))]
        found.append(float(chosen @ reward / chosen.sum()))
    return min(found)


def lowest_contrast(contrast: Array, propensity: Array, reward: Array, factor: float) -> float:
    """Return the lowest difference with equal sums of weights.

    A vertex of this polytope has all multipliers but one at their bounds.
    """
    ends = np.stack(bounds(propensity, factor))
    found = [math.inf]
    for free in np.flatnonzero(contrast):
        others = np.delete(np.arange(len(contrast)), free)
        for bits in itertools.product([0, 1], repeat=len(others)):
            chosen = np.empty(len(contrast))
            chosen[others] = ends[list(bits), others]
            chosen[free] = -(contrast[others] @ chosen[others]) / contrast[free]
            if ends[0, free] - 1e-12 <= chosen[free] <= ends[1, free] + 1e-12:
                found.append(float(contrast * chosen @ reward))
    return min(found)


def draw(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return propensities, rewards, and the weights of two policies."""
    rng = np.random.default_rng([seed, 61])
    propensity = rng.uniform(0.05, 0.9, ROWS)
    reward = rng.integers(0, 4, ROWS) * 1.0 if seed % 2 else rng.normal(size=ROWS)
    weights = rng.random((2, ROWS)) * (rng.random((2, ROWS)) < 0.8) / propensity
    return propensity, reward, *np.maximum(weights, 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_two_targets_are_reversed_where_an_enumeration_says(seed: int) -> None:
    propensity, reward, one, two = draw(seed)
    contrast = one / one.sum() - two / two.sum()
    sign = np.sign(contrast @ reward)
    expected = bisect(lambda g: lowest_contrast(sign * contrast, propensity, reward, g))
    assert odds_to_reverse(contrast, propensity, reward) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_a_known_value_is_passed_where_an_enumeration_says(seed: int) -> None:
    propensity, reward, weight, _ = draw(seed)
    known = float(reward.mean())
    sign = np.sign(weight @ (reward - known))
    expected = bisect(
        lambda g: lowest_ratio(weight, propensity, sign * reward, g) - float(sign * known)
    )
    found = odds_to_reverse(weight, propensity, reward, known)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_figure_depends_on_no_sign_no_scale_and_no_origin(seed: int) -> None:
    propensity, reward, one, two = draw(seed)
    contrast = one / one.sum() - two / two.sum()
    found = odds_to_reverse(contrast, propensity, reward)
    assert odds_to_reverse(-contrast, propensity, reward) == pytest.approx(found)
    assert odds_to_reverse(7 * contrast, propensity, 3 * reward + 5) == pytest.approx(found)


def test_an_action_that_was_certain_cannot_be_reversed() -> None:
    reward = np.array([1.0, 0.0, 0.5])
    certain = odds_to_reverse(np.array([2.0, 0.5, 0.5]), np.ones(3), reward, 0.5)
    assert certain == math.inf


def test_a_difference_of_zero_needs_no_cause() -> None:
    equal = odds_to_reverse(np.ones(2), np.full(2, 0.5), np.array([0.0, 1.0]), 0.5)
    assert equal == 1.0
