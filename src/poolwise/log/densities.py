r"""Densities: policies of a continuous action, such as a price or a bid.

A policy of a continuous action has a density in place of a probability: a positive number,
perhaps above 1, whose integral over all actions is 1.  The weight of a row is the ratio of two
densities, and every estimator works unchanged.  A policy that plays one exact action has no
density.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from poolwise.errors import PolicyError
from poolwise.log.policy import is_distribution

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.log.policy import Batch, FloatArray, Policy

Number: TypeAlias = "float | str | Callable[[Batch], FloatArray]"
LOG_ROOT_2_PI = math.log(2 * math.pi) / 2
DISCRETE = (
    "a policy of a log with densities must have a density, and one that plays single actions "
    "has none. Spread it around its action: Gaussian(action, scale). A wider scale adds bias, "
    "a narrower one variance"
)


def is_discrete(policy: Policy) -> bool:
    """Return True if a policy gives probabilities of single actions."""
    parts = getattr(policy, "policies", ())
    return is_distribution(policy) or any(map(is_discrete, parts))


@dataclass(frozen=True)
class Gaussian:
    r"""Draws the action from a normal distribution: mean $m(x)$, standard deviation $s(x)$.

    Attributes:
        mean: A number, a context column, or a function of a batch.
        scale: The same; above 0.

    Examples:
        >>> from poolwise.log.policy import Batch
        >>> batch = Batch(np.array([1.0, 3.0]), {"best": np.array([1.0, 1.0])})
        >>> Gaussian("best", 0.1).prob(batch).round(4).tolist()
        [3.9894, 0.0]
    """

    mean: Number
    scale: Number

    def log_prob(self, batch: Batch) -> FloatArray:
        scale = _positive("Gaussian", _values(self.scale, batch))
        z = (_actions("Gaussian", batch) - _values(self.mean, batch)) / scale
        return np.asarray(-0.5 * z**2 - np.log(scale) - LOG_ROOT_2_PI)

    def prob(self, batch: Batch) -> FloatArray:
        return np.exp(self.log_prob(batch))


@dataclass(frozen=True)
class LogNormal:
    r"""Draws a positive action whose logarithm is normal: median $e^{m(x)}$, deviation $s(x)$.

    Attributes:
        mean: Mean of the logarithm: a number, a context column, or a function of a batch.
        scale: Standard deviation of the logarithm; above 0.
    """

    mean: Number
    scale: Number

    def log_prob(self, batch: Batch) -> FloatArray:
        scale = _positive("LogNormal", _values(self.scale, batch))
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(_actions("LogNormal", batch))
            z = (log - _values(self.mean, batch)) / scale
            density = -0.5 * z**2 - np.log(scale) - LOG_ROOT_2_PI - log
        return np.where(log > -math.inf, density, -math.inf)  # NaN and 0 are never played

    def prob(self, batch: Batch) -> FloatArray:
        return np.exp(self.log_prob(batch))


@dataclass(frozen=True)
class Range:
    """Draws the action uniformly between two numbers; in a `Mixture`, it explores.

    >>> from poolwise.log.policy import Batch
    >>> Range(5, 15).prob(Batch(np.array([5.0, 15.0, 16.0]), {})).tolist()
    [0.1, 0.1, 0.0]
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.upper - self.lower) and self.lower < self.upper):
            reason = f"needs finite bounds, lower < upper, got {self.lower} and {self.upper}"
            raise PolicyError("Range", reason)

    def prob(self, batch: Batch) -> FloatArray:
        action = _actions("Range", batch)
        inside = (action >= self.lower) & (action <= self.upper)
        return np.where(inside, 1 / (self.upper - self.lower), 0.0)


@dataclass(frozen=True)
class Density:
    """A density from a function of a batch, or a frozen distribution of SciPy.

    Attributes:
        density: Returns the density of each logged action, or has `pdf`.
    """

    density: Any  # a function, or any object with `pdf`

    def __post_init__(self) -> None:
        if not (callable(self.density) or hasattr(self.density, "pdf")):
            reason = f"needs a function or an object with `pdf`, got {self.density!r}"
            raise PolicyError("Density", reason)

    def prob(self, batch: Batch) -> FloatArray:
        if hasattr(self.density, "pdf"):
            return np.asarray(self.density.pdf(_actions("Density", batch)))
        return np.asarray(self.density(batch))


def _values(number: Number, batch: Batch) -> FloatArray:
    """Return a number for each row."""
    value = batch[number] if isinstance(number, str) else number
    return np.asarray(value(batch) if callable(value) else value, dtype=np.float64)


def _positive(policy: str, scale: FloatArray) -> FloatArray:
    if not np.all((scale > 0) & (scale < math.inf)):
        raise PolicyError(policy, f"needs a scale above 0 and finite: {DISCRETE}")
    return scale


def _actions(policy: str, batch: Batch) -> FloatArray:
    """Return the logged actions as numbers."""
    if batch.action.dtype.kind not in "iuf" or batch.action.ndim != 1:
        raise PolicyError(policy, f"needs numeric actions, got {batch.action.dtype}")
    return batch.action.astype(np.float64)
