r"""Sensitivity: how strong an unseen cause must be to reverse a difference.

Estimated propensities are right only if every cause of both action and reward is in the
context.  In the marginal sensitivity model, an unseen cause changes the odds of a logged action
by a factor between 1 / G and G: the true weight of a row is its estimated weight times m, with

$$p + (1 - p) / G \le m \le p + (1 - p) G$$

for the estimated propensity p.  The figure is the smallest G at which some choice of all m
makes the difference 0.

Tan (JASA 2006); Zhao, Small & Bhattacharya (JRSS B 2019).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from poolwise.types import FloatArray

LARGEST_ODDS = 1e6  # a larger factor is rounding: no factor is enough


def odds_to_reverse(
    contrast: FloatArray,
    propensity: FloatArray,
    reward: FloatArray,
    known: float | None = None,
) -> float:
    r"""Return the smallest factor on the odds at which the difference may be 0.

    The difference is $\sum c_i m_i r_i$, subject to $\sum c_i m_i = 0$: both policies keep the
    same sum of weights.  For a fixed factor G its smallest value is the largest, over
    thresholds t, of

    $$h(t) = \sum_i \min_m c_i m_i (r_i - t)
      = A + B / G - C G$$

    with $A = \sum c p (r - t)$ and B and C the sums of $(1 - p) |c (r - t)|$ over rows with
    a positive and a negative $c (r - t)$.  It is linear between neighbouring rewards, so one
    of the rewards is the threshold, and each has its own root G.

    Args:
        contrast: Weight of each row in one policy, less its weight in the other.
        propensity: Estimated probability of the logged action.
        reward: Rewards.
        known: Value of the other policy, where it does not depend on weights; `contrast` is
            then the weight of the first policy, and the threshold is that value.

    Returns:
        The factor, 1 or more; infinite if no factor is enough.

    Examples:
        >>> half = np.full(4, 0.5)
        >>> odds_to_reverse(np.array([1, 1, -1, -1.0]), half, np.array([1, 0, 0, 0.0]))
        inf
        >>> rewards = np.array([3, 1, 1, 1.0])
        >>> round(odds_to_reverse(np.array([1, 1, 0, 0.0]), half, rewards, 1.5), 3)
        3.0
    """
    centre = float(reward.mean()) if known is None else known
    gap = float(contrast @ (reward - centre))
    contrast = -contrast if gap < 0 else contrast
    if gap == 0:
        return 1.0
    thresholds = np.unique(reward) if known is None else np.array([known])
    above, below = _sums(contrast, propensity, reward, thresholds)
    fixed = contrast * propensity
    a = fixed @ reward - fixed.sum() * thresholds
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(a**2 + 4 * above * below)
        # of two equal forms, the one that subtracts nothing
        roots = np.where(a > 0, (root + a) / (2 * below), 2 * above / (root - a))
    roots = np.where((a > 0) & (below <= 0), math.inf, roots)
    found = max(1.0, float(np.nanmax(roots)))
    return found if found < LARGEST_ODDS else math.inf


def _sums(
    contrast: FloatArray, propensity: FloatArray, reward: FloatArray, thresholds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the sums B and C of each threshold, from cumulative sums of sorted rewards."""
    order = np.argsort(reward, kind="stable")
    ranked = reward[order]
    free = ((1 - propensity) * contrast)[order]
    place = np.searchsorted(ranked, thresholds)

    def over(part: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the sums of part * (r - t) above, and of part * (t - r) below."""
        mass = np.concatenate([[0.0], np.cumsum(part)])
        moment = np.concatenate([[0.0], np.cumsum(part * ranked)])
        higher = (moment[-1] - moment[place]) - thresholds * (mass[-1] - mass[place])
        return higher.clip(min=0), (thresholds * mass[place] - moment[place]).clip(min=0)

    plus, minus = over(free.clip(min=0)), over((-free).clip(min=0))
    return plus[0] + minus[1], plus[1] + minus[0]
