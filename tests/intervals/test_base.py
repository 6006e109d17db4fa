"""The table of interval kinds, and what derives from it."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest

from poolwise import evaluate, summarise
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import UsageError
from poolwise.intervals.base import DEFAULT, KINDS, IntervalName, find_kind, pair_needs
from poolwise.intervals.smoothed import smoothed_interval
from poolwise.intervals.student import Limits, Sides, student_interval
from poolwise.moments.coverage import Coverage
from poolwise.moments.estimate import Estimate
from poolwise.moments.pool import Pool
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    NO_NEEDS,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
)
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


@pytest.mark.parametrize("name", ["bernstein", "jackknife", "Student"])
def test_another_name_is_refused_with_what_replaces_it(name: str) -> None:
    with refused(UsageError):
        find_kind(name)


OWN, CROSSED = Coverage(("a", "b")), Coverage.complete(["a", "b"])


def test_guaranteed_kinds_read_one_weight_and_its_rewards() -> None:
    assert pair_needs(OWN) == Needs(groups=((WEIGHTED_REWARD, WEIGHT),))
    assert pair_needs(CROSSED) == Needs(groups=((BALANCED_REWARD, BALANCED_WEIGHT),))
    log = log_of(TABLE, reward_range=RANGE)
    for coverage in (OWN, CROSSED):
        assert KINDS["betting"].needs(log, coverage) == pair_needs(coverage)
        assert KINDS["skew"].needs(log, coverage) == NO_NEEDS
        assert KINDS["student"].needs(log, coverage) == NO_NEEDS


@pytest.mark.parametrize("sides", ["two", "lower", "upper"])
@pytest.mark.parametrize("name", ["student", "betting", "skew"])
@pytest.mark.parametrize("variance", [0.04, 0.0])
def test_without_moments_to_shape_it_the_interval_is_students(
    variance: float, name: str, sides: Sides
) -> None:
    estimate = Estimate(0.3, variance, {"a": 1.0}, 12.0)
    limits, kind = Limits(40, (-5.0, 6.0), 2.0), KINDS[name]
    expected, findings = student_interval(estimate, 0.9, limits, sides)
    found = [kind.surround(estimate, Pool({}), 0.9, limits, sides)]
    found += [kind.surround(estimate, Pool({}), 0.9, limits)] if sides == "two" else []
    for interval, notes in found:
        ends = (interval.lower, interval.upper)
        assert ends == pytest.approx((expected.lower, expected.upper), rel=1e-9)
        assert notes == findings


@pytest.mark.parametrize("sides", ["two", "lower", "upper"])
def test_the_smoothed_interval_may_have_one_side(sides: Sides) -> None:
    log, kind = log_of(TABLE, reward_range=RANGE), KINDS["smoothed"]
    needs = kind.needs(log, CROSSED)
    with DuckDB().open(log, {"t": "t"}) as rows:
        pool = rows.moments(needs.bind("t")).select({t: t.bind("t") for t in needs.terms})
    found = kind.bound(pool, log, CROSSED, 0.9, sides)
    assert found == smoothed_interval(pool, RANGE, 0.9, sides, crossed=True)
