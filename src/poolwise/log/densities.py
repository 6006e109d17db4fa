r"""Densities: policies of a continuous action, such as a price or a bid.

A policy of a continuous action has a density in place of a probability: a positive number,
perhaps above 1, whose integral over all actions is 1.  The weight of a row is the ratio of two
densities, and every estimator works unchanged.  A policy that plays one exact action has no
density.

A reward model is averaged over the actions that a policy draws.  `draw_actions` turns levels
between 0
and 1 into actions, as a quantile function does, so that even levels give even draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.special import betaincinv, betaln, ndtri, xlog1py, xlogy

from poolwise.errors import PolicyError
from poolwise.log.adapters import Mixture
from poolwise.log.policy import Batch, is_distribution

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.log.policy import Policy
    from poolwise.types import FloatArray

Draws: TypeAlias = "tuple[FloatArray, FloatArray | float]"  # actions, and their weights
Number: TypeAlias = "float | str | Callable[[Batch], FloatArray]"
LOG_ROOT_2_PI = math.log(2 * math.pi) / 2
EDGE = 2.0**-53  # least distance of a level from 0 and 1, where a quantile may be infinite
DISCRETE = (
    "a policy of a log with densities must have a density, and one that plays single actions "
    "has none. Spread it around its action: Gaussian(action, scale). A wider scale adds bias, "
    "a narrower one variance"
)


def is_discrete(policy: Policy) -> bool:
    """Return True if a policy gives probabilities of single actions."""
    parts = policy.policies if isinstance(policy, Mixture) else ()
    return is_distribution(policy) or any(map(is_discrete, parts))


def can_draw(policy: Policy) -> bool:
    """Return True if `draw_actions` serves a policy."""
    if isinstance(policy, Mixture):
        return all(map(can_draw, policy.policies))
    return getattr(policy, "draw", None) is not None


def draw_actions(policy: Policy, batch: Batch, level: FloatArray) -> Draws:
    """Return an action for each row, at its level between 0 and 1, and its weight.

    With uniform levels, the mean of weight times f(action) is the mean of f under the policy.
    """
    if not isinstance(policy, Mixture):
        draw: Callable[[Batch, FloatArray], Draws] = getattr(policy, "draw")  # noqa: B009
        return draw(batch, level.clip(EDGE, 1 - EDGE))
    edges = np.cumsum([0.0, *policy.shares])
    part = np.searchsorted(edges[1:-1], level, side="right")
    action, weight = np.zeros(len(batch)), np.zeros(len(batch))
    for k, inner in enumerate(policy.policies):
        rows = np.flatnonzero(part == k)
        within = (level[rows] - edges[k]) / (edges[k + 1] - edges[k])
        action[rows], weight[rows] = draw_actions(inner, batch.take(rows), within)
    return action, weight


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
        scale = _require_positive("Gaussian", _evaluate_number(self.scale, batch))
        z = (_require_numbers("Gaussian", batch) - _evaluate_number(self.mean, batch)) / scale
        return np.asarray(-0.5 * z**2 - np.log(scale) - LOG_ROOT_2_PI)

    def prob(self, batch: Batch) -> FloatArray:
        return np.exp(self.log_prob(batch))

    def draw(self, batch: Batch, level: FloatArray) -> Draws:
        """Return quantiles."""
        scale = _require_positive("Gaussian", _evaluate_number(self.scale, batch))
        return _evaluate_number(self.mean, batch) + scale * ndtri(level), 1.0


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
        scale = _require_positive("LogNormal", _evaluate_number(self.scale, batch))
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(_require_numbers("LogNormal", batch))
            z = (log - _evaluate_number(self.mean, batch)) / scale
            density = -0.5 * z**2 - np.log(scale) - LOG_ROOT_2_PI - log
        return np.where(log > -math.inf, density, -math.inf)  # NaN and 0 are never played

    def prob(self, batch: Batch) -> FloatArray:
        return np.exp(self.log_prob(batch))

    def draw(self, batch: Batch, level: FloatArray) -> Draws:
        """Return quantiles."""
        logs, weight = Gaussian(self.mean, self.scale).draw(batch, level)
        return np.exp(logs), weight


@dataclass(frozen=True)
class Beta:
    r"""Draws a number between 0 and 1, with density proportional to $y^{a-1} (1-y)^{b-1}$.

    After `s` successes and `f` failures, a rate with a uniform prior has the posterior
    ``Beta(1 + s, 1 + f)``: see `Thompson`.

    >>> from poolwise.log.policy import Batch
    >>> Beta(2, "b").prob(Batch(np.array([0.5, 1.5]), {"b": np.ones(2)})).tolist()
    [1.0, 0.0]

    Attributes:
        a: A number, a context column, or a function of a batch; above 0.
        b: The same.
    """

    a: Number
    b: Number

    def log_prob(self, batch: Batch) -> FloatArray:
        a, b = self._parameters(batch)
        y = _require_numbers("Beta", batch)
        inside = (y >= 0) & (y <= 1)
        y = np.where(inside, y, 0.5)
        return np.where(inside, xlogy(a - 1, y) + xlog1py(b - 1, -y) - betaln(a, b), -math.inf)

    def prob(self, batch: Batch) -> FloatArray:
        return np.exp(self.log_prob(batch))

    def draw(self, batch: Batch, level: FloatArray) -> Draws:
        """Return quantiles."""
        return np.asarray(betaincinv(*self._parameters(batch), level)), 1.0

    def _parameters(self, batch: Batch) -> tuple[FloatArray, FloatArray]:
        a, b = _evaluate_number(self.a, batch), _evaluate_number(self.b, batch)
        if not all(np.all((v > 0) & (v < math.inf)) for v in (a, b)):
            raise PolicyError("Beta", "needs finite parameters above 0")
        return a, b


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
        action = _require_numbers("Range", batch)
        inside = (action >= self.lower) & (action <= self.upper)
        return np.where(inside, 1 / (self.upper - self.lower), 0.0)

    def draw(self, batch: Batch, level: FloatArray) -> Draws:
        """Return quantiles."""
        del batch
        return self.lower + level * (self.upper - self.lower), 1.0


@dataclass(frozen=True)
class Density:
    """A density from a function of a batch, or a frozen distribution of SciPy.

    Attributes:
        density: Returns the density of each row's action, or has `pdf`.
        support: Range outside which the density is 0; only reward models need it, and only
            without a quantile function `ppf`.
    """

    density: Any  # a function, or any object with `pdf`
    support: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.support is not None:
            Range(*self.support)  # rejects what is not a range
        if not (callable(self.density) or hasattr(self.density, "pdf")):
            reason = f"needs a function or an object with `pdf`, got {self.density!r}"
            raise PolicyError("Density", reason)

    def prob(self, batch: Batch) -> FloatArray:
        if hasattr(self.density, "pdf"):
            return np.asarray(self.density.pdf(_require_numbers("Density", batch)))
        return np.asarray(self.density(batch))

    @property
    def draw(self) -> Callable[[Batch, FloatArray], Draws] | None:
        """Quantiles, or weighted actions of the support; None without either."""
        if hasattr(self.density, "ppf"):
            return lambda _, level: (np.asarray(self.density.ppf(level)), 1.0)
        return None if self.support is None else self._weighted

    def _weighted(self, batch: Batch, level: FloatArray) -> Draws:
        support = Range(*self.support or ())
        action, _ = support.draw(batch, level)
        density = self.prob(Batch(action, batch.columns))
        return action, density * (support.upper - support.lower)


def _evaluate_number(number: Number, batch: Batch) -> FloatArray:
    """Return a number for each row."""
    value = batch[number] if isinstance(number, str) else number
    return np.asarray(value(batch) if callable(value) else value, dtype=np.float64)


def _require_positive(policy: str, scale: FloatArray) -> FloatArray:
    if not np.all((scale > 0) & (scale < math.inf)):
        raise PolicyError(policy, f"needs a scale above 0 and finite: {DISCRETE}")
    return scale


def _require_numbers(policy: str, batch: Batch) -> FloatArray:
    """Return the logged actions as numbers."""
    if batch.action.dtype.kind not in "iuf" or batch.action.ndim != 1:
        raise PolicyError(policy, f"needs numeric actions, got {batch.action.dtype}")
    return batch.action.astype(np.float64)
