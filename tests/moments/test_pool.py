"""Pool: one order of strata, merged over periods or buckets, with one bucket left out."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from poolwise.moments.pool import Cell, Pool, list_periods
from poolwise.moments.terms import REWARD, WEIGHT
from tests.support.small import group

FIRST_A, FIRST_B = Cell("9", "a", 0), Cell("9", "b", 0)
SECOND_A, SECOND_B = Cell("10", "a", 1), Cell("10", "b", 1)


def test_a_cell_is_its_period_logger_and_number() -> None:
    cell = pickle.loads(pickle.dumps(Cell("10", "a", 7)))  # noqa: S301 - our own bytes
    assert (cell, str(cell)) == (Cell("10", "a", 7), "a in 10")
    assert Cell("2", "v in 1") != Cell("1 in 2", "v")


def test_periods_are_in_the_order_of_the_log_and_not_of_their_texts() -> None:
    assert list_periods([SECOND_A, FIRST_B, "c", FIRST_A, SECOND_B]) == ("9", "10")


@pytest.mark.parametrize("loggers", [("a", "b"), ("b", "a", "c")])
def test_strata_are_ordered_by_period_then_by_logger(loggers: tuple[str, ...]) -> None:
    moments = {c: group({REWARD: [1.0]}) for c in (SECOND_B, FIRST_A, SECOND_A, FIRST_B)}
    for given in (moments, dict(reversed(moments.items()))):
        pool = Pool(given, loggers=loggers)
        assert pool.loggers == tuple(i for i in loggers if i != "c")
        assert list(pool) == [
            Cell(d, i, k) for k, d in enumerate(("9", "10")) for i in pool.loggers
        ]
        assert list(pool.by_logger) == list(pool.loggers)
        assert {d: list(p.loggers) for d, p in pool.by_period.items()} == {
            "9": list(pool.loggers),
            "10": list(pool.loggers),
        }


def test_the_first_bucket_may_lack_a_logger() -> None:
    buckets = [{"b": group({REWARD: [3.0]})}, {"a": group({REWARD: [1.0, 2.0]})}]
    pool = Pool(None, buckets, ("a", "b"))
    assert [(i, m.count, m.mean(REWARD)) for i, m in pool.items()] == [
        ("a", 2, 1.5),
        ("b", 1, 3.0),
    ]
    assert pool.bucket_rows.tolist() == [1.0, 2.0]
    assert (pool.rows, pool.clustered, pool.whole.clustered) == (3, True, False)
    present, counts, means = pool.bucket_means("a", [REWARD])
    assert (present, counts.tolist(), means.tolist()) == ([1], [2.0], [[1.5]])


def test_cells_of_a_logger_are_merged_in_every_bucket() -> None:
    buckets = [
        {FIRST_A: group({REWARD: [1.0]}), SECOND_A: group({REWARD: [3.0]})},
        {SECOND_A: group({REWARD: [8.0]}), FIRST_B: group({REWARD: [5.0]})},
    ]
    pool = Pool(None, buckets, ("b", "a")).by_logger
    assert {i: (m.count, m.mean(REWARD)) for i, m in pool.items()} == {
        "b": (1, 5.0),
        "a": (3, 4.0),
    }
    means = [{i: m.mean(REWARD) for i, m in bucket.items()} for bucket in pool.buckets]
    assert means == [{"a": 2.0}, {"a": 8.0, "b": 5.0}]
    assert pool.by_logger is pool
    assert pool.together.mean(REWARD) == 17 / 4
    assert pool.together is pool.together  # pooled once


def test_a_period_keeps_the_number_of_buckets() -> None:
    buckets = [{FIRST_A: group({REWARD: [1.0]})}, {SECOND_A: group({REWARD: [8.0]})}]
    first = Pool(None, buckets).by_period["9"]
    assert [list(bucket) for bucket in first.buckets] == [[FIRST_A], []]


def test_terms_are_selected_in_all_rows_and_in_every_bucket() -> None:
    buckets = [{"a": group({REWARD: [1.0], WEIGHT: [2.0]})}] * 2
    found = Pool(None, buckets).select({REWARD: WEIGHT})
    assert found["a"].terms == (REWARD,)
    assert [bucket["a"].mean(REWARD) for bucket in found.buckets] == [2.0, 2.0]


def test_changed_moments_keep_buckets_and_order() -> None:
    buckets = [{"b": group({REWARD: [1.0]}), "a": group({REWARD: [2.0]})}] * 2
    pool = Pool(None, buckets, ("a", "b"))
    found = pool.change(lambda stratum, m: replace(m, count=9) if stratum == "b" else m)
    assert [(i, m.count) for i, m in found.items()] == [("a", 2), ("b", 9)]
    assert found.buckets == pool.buckets


def test_only_the_last_few_results_are_kept() -> None:
    pool, computed = Pool({}), []

    def compute() -> int:
        computed.append(1)
        return len(computed)

    assert [pool.recall(key, compute) for key in "aab"] == [1, 1, 2]
    assert [pool.recall(key, compute) for key in "cde"] == [3, 4, 5]
    assert pool.recall("b", compute) == 2
    assert pool.recall("a", compute) == 6
