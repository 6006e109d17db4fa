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
LEADING = 1 << (64 - SHIFT - 1)  # patterns of the remaining bits, without the sign
FIRST = (1023 + SMALLEST) << 1  # pattern of the smallest power


def counts(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of values in each bin, shape (BINS,); none may be negative.

    NaN is counted in the last bin.

    >>> np.flatnonzero(counts(np.array([0.0, 1.0, 1.4, 1.5, 2.0]))).tolist()
    [0, 129, 130, 131]
    """
    leading = values.view(np.int64) >> SHIFT
    leading &= LEADING - 1  # the sign of -0.0
    patterns = np.bincount(leading, minlength=LEADING)
    inner = patterns[FIRST:]
    zeros = np.count_nonzero(values == 0) if patterns[0] else 0
    small = patterns[:FIRST].sum() + inner[0] - zeros
    large = inner[BINS - 2 :].sum()
    return np.concatenate([[zeros, small], inner[1 : BINS - 2], [large]])


def edges() -> NDArray[np.float64]:
    """Return the lower edge of each bin, shape (BINS,).

    >>> edges()[[0, 129, 130, 131]].tolist()
    [0.0, 1.0, 1.5, 2.0]
    """
    powers = 2.0 ** np.arange(SMALLEST, LARGEST)
    return np.concatenate([[0.0], np.stack([powers, 1.5 * powers], axis=1).ravel()])
