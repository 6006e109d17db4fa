"""SLOPE: how far to go on the way from little bias to little variance.

Clipping, shrinkage and bandwidths trade bias for variance.  The bias cannot be seen,
but where it begins to matter the estimates stop agreeing with those before them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.moments import FloatArray


REACH = math.sqrt(6) - 1  # the constant of Tucker & Lee (2021)


def slope(
    values: Sequence[float] | FloatArray,
    half_widths: Sequence[float] | FloatArray,
) -> int:
    r"""Index of the narrowest candidate that agrees with all wider ones.

    $$|\theta_i - \theta_j| \le c_i + (\sqrt 6 - 1) c_j \quad \text{for all } j < i$$

    in the order of decreasing half-width $c$; the last candidate before the first one
    that disagrees is taken.  Assumes that the bias grows as the half-width falls.  The
    interval of the chosen candidate knows nothing of the choice or of the bias: do not
    report it as if there had been none.

    Args:
        values: Estimate of each candidate.
        half_widths: Half-width of the interval of each, without bias.

    References:
        Su, Srinath & Krishnamurthy (ICML 2020); Tucker & Lee (2021).

    Examples:
        >>> slope([1.00, 0.90, 0.60], [0.30, 0.10, 0.05])  # 0.30 > 0.05 + 0.145
        1
    """
    estimates = np.asarray(values, dtype=np.float64)
    widths = np.asarray(half_widths, dtype=np.float64)
    if not len(estimates) or len(estimates) != len(widths):
        raise UsageError("SLOPE takes one candidate at least, and one half-width for each")
    if not (np.isfinite(estimates).all() and (widths >= 0).all()):
        raise UsageError("SLOPE takes finite estimates and half-widths of 0 or more")
    order = np.argsort(-widths, kind="stable")
    chosen = order[0]
    for place, candidate in enumerate(order[1:], start=1):
        wider = order[:place]
        gaps = np.abs(estimates[candidate] - estimates[wider])
        if not (gaps <= widths[candidate] + REACH * widths[wider]).all():
            break
        chosen = candidate
    return int(chosen)
