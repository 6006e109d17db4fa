r"""Plackett-Luce: a policy that draws the items of a list by scores, without replacement.

Given the items above, the next one is drawn in proportion to $e^{s / \tau}$ among the
candidates that are left.  `ranking_log` turns scores into probabilities: a query does so for an
item given the items above it, and `marginals` for an item at a position, whatever is above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.errors import PolicyError

if TYPE_CHECKING:
    from poolwise.types import FloatArray, IntArray

WIDTH = 0.22  # between nodes; the error falls as exp(-8 / WIDTH)
LEFT, RIGHT = -3.8, 34.0  # ends of the logarithm of an item's arrival, less its score
FURTHEST = 300.0  # difference of scores above which a probability may be 0
MOST_PROBABILITIES = 1 << 18  # probabilities that are computed at once: 2 MB


@dataclass(frozen=True)
class PlackettLuce:
    """A ranking policy that draws items without replacement, in proportion to exp(score).

    `ranking_log` takes it in place of a column of probabilities.

    >>> PlackettLuce({"a": 1.5, "b": 0.0}, temperature=0.5).temperature
    0.5

    Attributes:
        scores: The score of each candidate: a column with a map, a struct or a JSON object
            from items to scores; a column with a list in the order of the list
            `eligible` of `ranking_log`; or a mapping, if scores are the same in all requests.
        temperature: Scores are divided by it; the lower, the more certain the order.
    """

    scores: str | Mapping[Any, float]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            reason = f"needs a finite temperature above 0, got {self.temperature}"
            raise PolicyError("PlackettLuce", reason)
        given: object = self.scores  # annotations are not enforced
        if isinstance(given, str):
            return
        values = [*given.values()] if isinstance(given, Mapping) else []
        if not values or not all(isinstance(v, Real) and math.isfinite(v) for v in values):
            reason = (
                "needs a column of scores, or a mapping of items to finite scores, got "
                f"{given!r}"
            )
            raise PolicyError("PlackettLuce", reason)


def marginals(scores: FloatArray, item: IntArray, place: IntArray) -> FloatArray:
    r"""Return the probability of one item of each row at its place, whatever is above.

    Items arrive after exponential times with rates $e^s$, and the list is the order in which
    they arrive.  The item is at place $k$ if $k - 1$ others arrive before it.

    >>> scores = np.log([[3.0, 2.0, 1.0]] * 3)
    >>> marginals(scores, np.array([0, 0, 0]), np.array([1, 2, 3])).round(6).tolist()
    [0.5, 0.35, 0.15]

    Args:
        scores: Scores divided by the temperature, shape (n, candidates); minus infinity where
            a row has fewer candidates.
        item: Index of the item; -1 if the row has no such candidate.
        place: Its place, from 1.
    """
    found = np.zeros(len(scores))
    size = max(
        1, MOST_PROBABILITIES // (int(place.max(initial=1)) * int((RIGHT - LEFT) / WIDTH))
    )
    known = np.flatnonzero(item >= 0)
    for start in range(0, len(known), size):
        rows = known[start : start + size]
        found[rows] = _marginals(scores[rows], item[rows], place[rows])
    return found


def _marginals(scores: FloatArray, item: IntArray, place: IntArray) -> FloatArray:
    here = np.arange(len(scores))
    ahead = scores - scores[here, item][:, None]
    furthest = min(float(ahead.max(initial=0.0)), FURTHEST)
    times = np.exp(-np.arange(LEFT, RIGHT + furthest, WIDTH))
    before = np.zeros((int(place.max()), len(scores), len(times)))  # by number of earlier items
    before[0] = 1.0
    for k in range(scores.shape[1]):
        with np.errstate(over="ignore"):
            rate = np.exp(np.where(item == k, -math.inf, ahead[:, k]))
        waits = np.exp(-rate[:, None] * times)
        arrives = -np.expm1(-rate[:, None] * times)
        before[1:] = before[1:] * waits + before[:-1] * arrives
        before[0] *= waits
    density = WIDTH * times * np.exp(-times)
    return np.asarray((before[place - 1, here] * density).sum(axis=1))
