"""Groups of adjacent rows: many at once give what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest

from poolwise.engines.groups import Groups
from poolwise.moments.tallies import powers_of

ENDS = np.array([0, 3, 3, 4, 9])  # the second group is empty
VALUES = np.array(
    [
        [1.0, -2.0, 0.0, 4.0, 1.0, 1.0, 0.0, 2.0, -3.0],
        [2.0, 0.0, 1.0, 3.0, 5.0, 1.0, 1.0, 0.0, 1.0],
    ]
)
GROUPS = Groups.between(10, ENDS)
SPANS = [slice(0, 3), slice(3, 4), slice(4, 9)]


def test_empty_groups_are_left_out() -> None:
    assert GROUPS.numbers.tolist() == [10, 12, 13]
    assert GROUPS.counts.tolist() == [3, 1, 5]
    assert GROUPS.spans == SPANS


def test_sums_and_extremes() -> None:
    assert GROUPS.sums(VALUES).tolist() == [[-1.0, 4.0, 1.0], [3.0, 3.0, 8.0]]
    assert GROUPS.lowest(VALUES).tolist() == [[-2.0, 4.0, -3.0], [0.0, 3.0, 0.0]]
    assert GROUPS.largest(VALUES).tolist() == [[1.0, 4.0, 2.0], [2.0, 3.0, 5.0]]


@pytest.mark.parametrize("groups", [GROUPS, Groups.between(0, np.array([0, 9]))])
def test_products_and_powers_are_those_of_each_group(groups: Groups) -> None:
    dots, products = groups.dots(VALUES, VALUES[::-1]), groups.products(VALUES, VALUES)
    powers = groups.powers(VALUES)
    for k, span in enumerate(groups.spans):
        rows = VALUES[:, span]
        assert dots[:, k].tolist() == [rows[0] @ rows[1]] * 2
        assert products[k].tolist() == (rows @ rows.T).tolist()
        assert powers[k].tolist() == powers_of(rows).tolist()


def test_groups_of_some_rows() -> None:
    part = GROUPS.among(np.array([0, 2, 5, 8]))
    assert part.numbers.tolist() == [10, 13]
    assert part.starts.tolist() == [0, 2]
    assert part.counts.tolist() == [2, 2]
    assert not len(GROUPS.among(np.array([], dtype=np.int64)).numbers)


def test_each_group_has_its_own_row_of_a_matrix() -> None:
    places = np.array([0, 1, 1])
    chosen = [*VALUES[0, :3], *VALUES[1, 3:]]
    assert GROUPS.chosen(VALUES, places).tolist() == chosen
    assert GROUPS.spread(places).tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
