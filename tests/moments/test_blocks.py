"""Histograms that settle bets: never more than the rows would win, and they add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from poolwise.moments.blocks import BLOCK_BINS, NO_BLOCKS, Blocks, BlockSums, hash_blocks
from poolwise.moments.tallies import mixed_bits

FloatArray = NDArray[np.float64]

values_of = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40)


def won(blocks: Blocks, bet: float) -> float:
    atoms = blocks.atoms()
    return float(atoms.rows @ np.log1p(bet * atoms.value))


def one_group(values: FloatArray) -> Blocks:
    return Blocks.of(np.zeros(len(values), dtype=np.int64), values)


def test_a_bin_of_two_values_is_worked_out_by_hand() -> None:
    # 1 and 1 + 1/64 share the bin [1, 1 + 1/32): distances 0 and 1/64, so that the atoms are
    # one row at 1 and (1/64)^2 / (1/64)^2 = 1 row at 1 + 1/64: the values themselves.
    atoms = one_group(np.array([1.0, 1 + 1 / 64])).atoms()
    assert atoms.value.tolist() == [1.0, 1 + 1 / 64]
    assert atoms.rows.tolist() == [1.0, 1.0]
    # Of 1, 1 + 1/128 and 1 + 1/64: distances sum to 3/128, squares to 5/128², so that
    # 9/5 rows are at 1 + 5/3/128 and 6/5 at 1.
    atoms = one_group(np.array([1.0, 1 + 1 / 128, 1 + 1 / 64])).atoms()
    assert atoms.value == pytest.approx([1.0, 1 + 5 / 3 / 128], abs=1e-15)
    assert atoms.rows == pytest.approx([6 / 5, 9 / 5])


@given(values_of, st.floats(1e-6, 1e3))
def test_atoms_never_win_more_than_the_rows(values: list[float], bet: float) -> None:
    rows = np.array(values)
    exact = float(np.log1p(bet * rows).sum())
    assert won(one_group(rows), bet) <= exact + 1e-12 * (1 + exact)


@given(values_of, st.floats(1e-6, 1e3))
def test_atoms_win_nearly_as_much(values: list[float], bet: float) -> None:
    # the third derivative bounds the loss of a row by (1/32)³ / 27, but for values that are
    # rounded to 0
    rows = np.array(values)
    exact = float(np.log1p(bet * rows).sum())
    assert won(one_group(rows), bet) >= exact - len(rows) * (1.2e-6 + bet * 2.0**-64) - 1e-12


@given(values_of)
def test_moments_are_those_of_the_rows(values: list[float]) -> None:
    rows = np.array([v if v >= 2.0**-64 else 0.0 for v in values])
    count, first, second = one_group(rows).moments(1)[:, 0]
    assert count == len(rows)
    assert first == pytest.approx(rows.sum(), rel=1e-12, abs=1e-12)
    assert second == pytest.approx((rows**2).sum(), rel=1e-12, abs=1e-12)


@given(values_of, st.integers(0, 40), st.integers(1, 5))
def test_histograms_add_up(values: list[float], cut: int, groups: int) -> None:
    rows = np.array(values)
    group = np.arange(len(rows)) % groups
    whole = Blocks.of(group, rows)
    split = Blocks.of(group[:cut], rows[:cut]) + Blocks.of(group[cut:], rows[cut:])
    assert split.keys.tolist() == whole.keys.tolist()
    np.testing.assert_allclose(split.sums, whole.sums, rtol=1e-12, atol=1e-15)
    assert (NO_BLOCKS + whole).keys.tolist() == whole.keys.tolist()


def test_extreme_values_are_rounded_down() -> None:
    blocks = one_group(np.array([0.0, 5e-324, 1e-300, 1e300, np.inf, 2.0**64]))
    atoms = blocks.atoms()
    assert atoms.value.tolist() == [0.0, 2.0**64]
    assert atoms.rows.tolist() == [3.0, 3.0]


def test_groups_keep_their_numbers() -> None:
    blocks = Blocks.of(np.array([7, 3, 7]), np.array([1.0, 2.0, 1.0]))
    assert (blocks.keys // BLOCK_BINS).tolist() == [3, 7]
    assert (blocks.moved(2).keys // BLOCK_BINS).tolist() == [5, 9]
    assert blocks.moments(8)[0].tolist() == [0, 0, 0, 1, 0, 0, 0, 2]


def test_the_smallest_bins_are_the_powers_of_two() -> None:
    least = 2.0**-64
    values = np.array([0.0, least / 2, least, least * (1 + 1 / 32), 2.0**64, 1e300])
    blocks = one_group(values)
    assert (blocks.keys.tolist(), blocks.sums[0].tolist()) == (
        [0, 1, 2, BLOCK_BINS - 1],  # the first has values that are rounded to 0
        [2.0, 1.0, 1.0, 2.0],
    )
    assert blocks.atoms().value.tolist() == [0.0, least, least * (1 + 1 / 32), 2.0**64]
    assert blocks.sums.dtype.name == "float64"


def test_the_first_groups_are_cut_off() -> None:
    blocks = Blocks.of(np.array([0, 1, 1, 3]), np.array([1.0, 2.0, 0.0, 5.0]))
    for groups, bins in ((0, 0), (1, 1), (2, 3), (3, 3), (4, 4)):
        first = blocks.until(groups)
        assert first.keys.tolist() == blocks.keys[:bins].tolist()
        assert first.sums.tolist() == blocks.sums[:, :bins].tolist()


def test_sums_of_blocks_add_up() -> None:
    groups = np.array([0, 1])
    left, right = (Blocks.of(groups, np.array(v)) for v in ([1.0, 2.0], [1.0, 3.0]))
    first = BlockSums((left, right), np.array([[1], [2]]), np.array([5, 2**64 - 1], np.uint64))
    second = BlockSums((right, left), np.array([[3], [5]]), np.array([7, 3], np.uint64))
    both = first + second
    assert both.counts.tolist() == [[4], [7]]
    assert both.marks.tolist() == [12, 2]  # modulo 2**64
    for histogram in both.histograms:
        assert histogram.keys.tolist() == (left + right).keys.tolist()
        assert histogram.sums.tolist() == (left + right).sums.tolist()
        assert histogram.moments(2).tolist() == [[2.0, 2.0], [2.0, 5.0], [2.0, 13.0]]


def test_marks_are_sums_of_hashes_in_any_order() -> None:
    label = np.array([3, 9, 3], dtype=np.uint64)
    columns = [np.array([0.5, -0.0, 2.0]), np.array([1.0, 4.0, 0.0])]
    block = np.array([1, 1, 0])
    hashes = label
    for column in ([0.5, 0.0, 2.0], columns[1]):  # -0 is 0
        hashes = mixed_bits(hashes ^ np.array(column).view(np.uint64))
    expected = [int(hashes[2]), (int(hashes[0]) + int(hashes[1])) % 2**64, 0]
    assert hash_blocks(block, label, columns, 3).tolist() == expected
    back = [column[::-1] for column in columns]
    assert hash_blocks(block[::-1], label[::-1], back, 3).tolist() == expected
