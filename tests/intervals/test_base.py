"""The table of interval kinds, and what derives from it."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest

from poolwise import evaluate, summarise
from poolwise.errors import UsageError
from poolwise.intervals.base import DEFAULT, KINDS, IntervalName, find_kind
from tests.support.messages import refused
from tests.support.reference import log_of, random_table

TABLE = random_table(np.random.default_rng(12), {"a": 60, "b": 40}).append_column(
    "user", pa.array(np.arange(100) // 2)
)
RANGE = (-100.0, 100.0)
NAMES = get_args(IntervalName)


def test_every_name_has_a_kind_and_every_kind_a_name() -> None:
    assert ("auto", *KINDS) == NAMES
    assert all(find_kind(name).name == name for name in KINDS)
    assert find_kind("auto") is DEFAULT


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_gives_an_interval(name: IntervalName) -> None:
    result = evaluate(log_of(TABLE, reward_range=RANGE), "t", interval=name)["target"]
    assert result.intervals.keys() == result.estimates.keys()
    assert all(math.isfinite(i.upper - i.lower) for i in result.intervals.values())
    same = len({(i.lower, i.upper) for i in result.intervals.values()}) == 1
    assert same == find_kind(name).guaranteed


@pytest.mark.parametrize("name", NAMES)
def test_a_kind_keeps_clusters_whole_ignores_or_refuses_them(name: IntervalName) -> None:
    log = log_of(TABLE, reward_range=RANGE, cluster="user")
    clusters = find_kind(name).clusters
    if clusters == "refused":
        with refused(UsageError):
            evaluate(log, "t", interval=name)
        return
    codes = {f.code for f in evaluate(log, "t", interval=name).findings}
    assert ("clusters-ignored" in codes) == (clusters == "ignored")


@pytest.mark.parametrize("name", NAMES)
def test_a_guaranteed_kind_requires_a_range_and_has_no_segments(name: IntervalName) -> None:
    kind = find_kind(name)
    for by, reward_range in ((None, None), ("user % 2", RANGE)):
        log = log_of(TABLE, reward_range=reward_range)
        if kind.guaranteed:
            with refused(UsageError):
                evaluate(log, "t", interval=name, by=by)
        else:
            assert evaluate(log, "t", interval=name, by=by)["target"].intervals


@pytest.mark.parametrize("name", NAMES)
def test_moments_serve_the_kinds_that_read_no_blocks(name: IntervalName) -> None:
    log = log_of(TABLE, reward_range=RANGE)
    if find_kind(name).by_block:
        with refused(UsageError):
            summarise(log, "t", interval=name)
        return
    saved = summarise(log, "t", interval=name)
    found, rows = (evaluate(log, "t", interval=name, engine=e) for e in (saved, None))
    assert found["target"].intervals == rows["target"].intervals
