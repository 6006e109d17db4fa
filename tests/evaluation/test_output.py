"""Fingerprint: results of the same rows have the same hash."""

from __future__ import annotations

import math
from hashlib import sha256

import numpy as np
import pytest

from poolwise.evaluation.output import cut, fingerprint
from poolwise.moments.coverage import Coverage
from poolwise.moments.moments import Moments
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, WEIGHT


@pytest.mark.parametrize(
    ("value", "scale", "expected"),
    [
        (1.0, 1.0, (0, 2**26)),
        (0.96, 0.96, (0, math.floor(0.96 * 2**26))),  # 0.96 pi / 3 is above 1
        (0.95, 0.95, (-1, math.floor(1.9 * 2**26))),
        (-3.0, 4.0, (2, -3 * 2**24)),
        (0.0, 0.0, (0, 0)),
        (math.inf, 2.0, (0, 0)),
    ],
)
def test_a_number_is_cut_to_eight_digits_of_its_scale(
    value: float, scale: float, expected: tuple[int, int]
) -> None:
    assert cut(value, scale) == expected


def described(low: float, high: float, mean: float) -> Moments:
    """Two rows whose reward has these extremes and mean; both weights are 1."""
    terms = (REWARD, WEIGHT, BALANCED_WEIGHT)
    extremes = (np.array([low, 1.0, 1.0]), np.array([high, 1.0, 1.0]))
    return Moments(terms, 2, np.array([mean, 1.0, 2.0]), np.empty((0, 0)), *extremes)


def test_a_fingerprint_digests_counts_extremes_and_means() -> None:
    one, two = (0, 2**26), (1, 2**26)
    line = ("t", "a", 2, one, two, (0, 3 * 2**25), one, one, one)
    hashed = {
        crossed: sha256(f"{(*line, *more)!r}\n".encode()).hexdigest()[:16]
        for crossed, more in ((False, ()), (True, (one, one, two)))
    }
    pools = {"t": Pool({"a": described(1.0, 2.0, 1.5)})}
    assert fingerprint(pools, Coverage(("a",))) == hashed[False]
    assert fingerprint(pools, Coverage.complete("a")) == hashed[True]


@pytest.mark.parametrize(
    ("low", "high", "mean", "gap", "same"),
    [
        (0.0, 1.0, 1e-6, 1e-12, False),  # no cancellation: digits of the mean
        (0.5, 1e3, 0.6, 1e-7, False),
        (-1.0, 1.0, 1e-9, 1e-9, True),  # those of the largest summand
        (-1e3, 1.0, 0.5, 1e-7, True),
        (-1.0, 1e3, 0.5, 1e-7, True),
        (-1.0, 1e3, 0.5, 1e-4, False),
    ],
)
def test_a_fingerprint_has_the_digits_that_a_sum_has(
    low: float, high: float, mean: float, gap: float, *, same: bool
) -> None:
    first, second = (
        fingerprint({"t": Pool({"a": described(low, high, m)})}, Coverage.complete("a"))
        for m in (mean, mean + gap)
    )
    assert (first == second) is same
