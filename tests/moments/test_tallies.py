"""Tallies: slices dealt in turn, hashes of row numbers, powers and the edges of bins."""

from __future__ import annotations

import numpy as np
import pytest

from poolwise.moments.tallies import (
    BINS,
    add_powers,
    add_slices,
    edges,
    hash_buckets,
    mixed_bits,
    slice_rows,
    slices_for,
)


@pytest.mark.parametrize(
    ("terms", "slices"),
    [(0, 509), (7_858, 509), (7_859, 251), (31_000, 127), (32_000, 61), (400_000, 13)],
)
def test_more_terms_have_fewer_slices(terms: int, slices: int) -> None:
    assert slices_for(terms) == slices  # the first for which terms * slices <= 4,000,000


def test_later_rows_continue_at_the_next_slice() -> None:
    sums = np.array([[10.0, 20.0, 30.0], [0.0, 0.0, 0.0]])
    add_slices(sums, np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), 5)
    assert sums.tolist() == [[12.0, 23.0, 31.0], [5.0, 6.0, 4.0]]
    counts = slice_rows(5, 3)
    assert (counts.tolist(), counts.dtype.name) == ([2.0, 2.0, 1.0], "float64")
    assert [slice_rows(n, 3).tolist() for n in (2, 3)] == [[1.0, 1.0], [1.0, 1.0, 1.0]]


def test_hashes_are_the_published_ones_of_splitmix64() -> None:
    hashes = mixed_bits(np.array([0, 1, 2, 3], dtype=np.uint64))
    published = [0, 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert hashes.tolist() == published
    found = hash_buckets(np.array([1, 2, 3]))
    assert (found.tolist(), found.dtype.name) == ([h % 4_096 for h in published[1:]], "int64")


def test_powers_add_and_the_largest_value_is_that_of_both() -> None:
    left = np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 1.0, 1.0, 1.0, 1e308, 9.0]])
    right = np.array([[1.0, 1.0, 2.0, 3.0, 5.0, 8.0], [1.0, 1.0, 1.0, 1.0, 1e308, 2.0]])
    with np.errstate(over="raise"):  # powers may overflow
        both = add_powers(left, right)
    assert both.tolist() == [[2.0, 3.0, 5.0, 7.0, 10.0, 8.0], [2.0, 2.0, 2.0, 2.0, np.inf, 9.0]]


def test_bins_have_two_edges_per_power_of_two() -> None:
    lower = edges()
    assert lower.shape == (BINS,) == (257,)
    assert lower[[0, 1, 2, 3, 129, 130, 131]].tolist() == [
        *(0.0, 2.0**-64, 1.5 * 2.0**-64, 2.0**-63),
        *(1.0, 1.5, 2.0),
    ]
    assert lower[-1] == 1.5 * 2.0**63
