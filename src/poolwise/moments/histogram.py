"""Histograms of weights: two bins per power of two, from the bits of the doubles.

These bins do not depend on the data, so the counts of two groups of rows add.  On a
logarithmic scale they have almost equal widths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALLEST, LARGEST = -64, 64  # powers of two; the outermost bins also count values outside
BINS = 2 * (LARGEST - SMALLEST) + 1  # the first bin holds zeros
SHIFT = 51  # bits below the exponent and the first bit of the fraction
FIRST = (1023 + SMALLEST) << 1  # remaining bits of the smallest power


def bins(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each non-negative value; NaN counts in the last.

    >>> bins(np.array([0.0, 1.0, 1.4, 1.5, 2.0])).tolist()
    [0, 129, 129, 130, 131]
    """
    numbers = values.view(np.int64) >> SHIFT
    numbers -= FIRST - 1
    np.clip(numbers, 1, BINS - 1, out=numbers)
    if not values.min(initial=1.0) > 0:
        numbers[values == 0] = 0
    return numbers


def edges() -> NDArray[np.float64]:
    """Return the lower edge of each bin, shape (BINS,).

    >>> edges()[[0, 129, 130, 131]].tolist()
    [0.0, 1.0, 1.5, 2.0]
    """
    powers = 2.0 ** np.arange(SMALLEST, LARGEST)
    return np.concatenate([[0.0], np.stack([powers, 1.5 * powers], axis=1).ravel()])
