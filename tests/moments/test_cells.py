"""Cells: equality by period and logger, the order of periods, moments over all periods."""

from __future__ import annotations

import pickle

from poolwise.moments.cells import Cell, periods_of
from poolwise.moments.moments import by_logger
from poolwise.moments.terms import REWARD
from tests.support.small import group


def test_cells_are_equal_if_period_and_logger_are() -> None:
    cell = Cell("10", "a", number=1)
    assert cell == Cell("10", "a", number=7)
    assert hash(cell) == hash(Cell("10", "a", number=7))
    others = (Cell("10", "b", 1), Cell("9", "a", 1), Cell("1", "a in 10"), "a in 10")
    assert [cell == other for other in others] == [False] * 4
    assert [cell != other for other in others] == [True] * 4
    assert not cell != Cell("10", "a")  # noqa: SIM202 - tests the operator
    assert len({hash(c) for c in (cell, *others)}) == 5
    copy = pickle.loads(pickle.dumps(cell))  # noqa: S301 - our own bytes
    assert (copy.period, copy.logger, copy.number) == ("10", "a", 1)


def test_periods_are_in_the_order_of_the_log_and_not_of_their_texts() -> None:
    cells = [Cell("10", "a", 2), Cell("9", "b", 1), "c", Cell("9", "a", 1), Cell("10", "b", 2)]
    assert periods_of(cells) == ("9", "10")


def test_moments_of_a_logger_are_pooled_over_periods() -> None:
    moments = {
        Cell("1", "b", 0): group({REWARD: [1, 3]}),
        Cell("2", "b", 1): group({REWARD: [8]}),
        "a": group({REWARD: [5]}),
    }
    pooled = by_logger(moments, ("a", "b", "c"))
    assert list(pooled) == ["a", "b"]  # c has no rows
    assert [(m.count, m.mean(REWARD)) for m in pooled.values()] == [(1, 5.0), (3, 4.0)]
