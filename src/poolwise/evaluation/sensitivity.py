"""Sensitivity: single rows of a log with estimated propensities, behind each difference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from poolwise.diagnosis.sensitivity import odds_to_reverse
from poolwise.moments.terms import PROPENSITY, REWARD, WEIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.evaluation.differences import Difference
    from poolwise.evaluation.read import OpenLog
    from poolwise.types import FloatArray

MOST_ROWS = 200_000  # of a larger log, a sample


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Rewards, propensities and weights of rows of a log with one logger.

    Attributes:
        reward: Reward of each row.
        propensity: Estimated probability of its action.
        weights: Weight of each row in each target.
        logger: Label of the only logger, whose value is the mean reward.
    """

    reward: FloatArray
    propensity: FloatArray
    weights: Mapping[str, FloatArray]
    logger: str

    def mark(self, difference: Difference) -> Difference:
        """Return the difference with the odds that reverse it."""
        names = (difference.target, difference.other)
        if difference.verdict == "identical" or not {*names} <= {*self.weights, self.logger}:
            return difference
        return replace(difference, odds_to_reverse=self._odds(*names, difference.value))

    def _odds(self, target: str, other: str, value: float) -> float:
        """Return 1 where the self-normalised difference does not have the sign of `value`."""
        known = float(self.reward.mean())
        if self._is_played(target) or self._is_played(other):  # its value needs no weight
            sign = -1 if self._is_played(target) else 1
            contrast, centre = self.weights[target if sign > 0 else other], known
        else:
            scaled = [w / (w.sum() or 1.0) for w in (self.weights[target], self.weights[other])]
            contrast, centre, sign = scaled[0] - scaled[1], None, 1
        gap = sign * float(contrast @ (self.reward - known))
        if gap * value <= 0:
            return 1.0
        return odds_to_reverse(contrast, self.propensity, self.reward, centre)

    def _is_played(self, name: str) -> bool:
        """Test if a name is the logger, and not a target of the same name."""
        weights = self.weights.get(name)
        return name == self.logger and (weights is None or np.allclose(weights, 1.0))


def read_sensitivity(rows: OpenLog) -> Sensitivity | None:
    """Read rows of a log with estimated propensities; None for other logs.

    It is the log of one logger, whose propensity is the mixture.
    """
    asked, loggers = rows.request, rows.coverage.loggers
    if asked.log.confounders is None or len(loggers) > 1 or not rows.coverage.crossed:
        return None
    weights = [WEIGHT.bind(name) for name in asked.names]
    values, _ = rows.rows.sample((REWARD, PROPENSITY, *weights), MOST_ROWS)
    named = dict(zip(asked.names, values[2:], strict=True))
    return Sensitivity(values[0], values[1], named, loggers[0])
