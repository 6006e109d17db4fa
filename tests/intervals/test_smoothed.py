"""The bound by constant bets: its formula, its law, and the same from every engine."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise.engines.duckdb import DuckDB
from poolwise.errors import RefusedError, UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.evaluation.summarise import from_result, query_text, summarise
from poolwise.intervals.smoothed import (
    SCALES,
    smoothed_bound,
    smoothed_interval,
    smoothed_needs,
    smoothed_terms,
)
from poolwise.moments.pool import Pool
from poolwise.moments.terms import Needs
from tests.engines.test_blocks import columns, log_of
from tests.support.messages import refused
from tests.support.postgres import DuckDBConnection, PostgresEngine
from tests.support.small import group
from tests.support.toys import toy

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.engines.base import Engine
    from poolwise.intervals.student import Interval, Sides
    from poolwise.log.log import Log

TARGETS = {"new": "t"}
FloatArray = np.typing.NDArray[np.float64]


def bound(values: FloatArray, error: float) -> float:
    sums = np.array([np.log1p(values / s).sum() for s in SCALES])
    return smoothed_bound(sums, len(values), error)


def interval(log: Log, engine: Any = None, **options: Any) -> Interval:  # noqa: ANN401 - options
    result = evaluate(log, TARGETS, "naive", interval="smoothed", engine=engine, **options)
    return result["new"].intervals["naive"]


def weights(table: dict[str, Any]) -> FloatArray:
    share = {i: np.mean([label == i for label in table["logger"]]) for i in "abc"}
    return np.asarray(table["t"] / sum(share[i] * table[f"p_{i}"] for i in "abc"))


def ends(interval: Interval) -> list[float]:
    return [interval.lower, interval.upper]


def test_the_capital_of_a_bound_is_one_over_the_error() -> None:
    rows = np.random.default_rng(1).exponential(size=400) * 0.3
    lower = bound(rows, 0.05)
    scales = np.array(SCALES)
    prior = np.exp(-0.5 * np.log(scales / (0.3 * 20)) ** 2)
    capital = [math.prod((1 + rows / s) / (1 + lower / s)) for s in SCALES]
    assert prior / prior.sum() @ np.array(capital) == pytest.approx(20, rel=1e-6)
    # no single scale does much better than the average of ten
    single = [
        s * (math.exp(np.log1p(rows / s).mean() - math.log(20) / 400) - 1) for s in SCALES
    ]
    assert 0.75 * max(single) < lower < max(single) < rows.mean()


def test_bounds_miss_no_more_often_than_they_say_by_enumeration() -> None:
    # Two loggers, five rows each: values 2 with chance 1/2 and 1 with chance 1/2 in place of
    # 0, so that the means are 1 and 1/2 and the value is their average, 3/4.
    missed = sum(
        (
            Fraction(1, 2**10)
            for hits in product([0, 1], repeat=10)
            if bound(np.array([2.0 * h for h in hits[:5]] + [1.0 * h for h in hits[5:]]), 0.3)
            > 0.75
        ),
        Fraction(0),
    )
    assert Fraction(1, 1000) < missed <= Fraction(3, 10)


@pytest.mark.parametrize("rows", [[], [0.0] * 9, [1e300], [1e9] * 5])
def test_bounds_are_finite_on_odd_rows(rows: list[float]) -> None:
    assert 0 <= bound(np.array(rows), 0.05) <= 1


def test_the_interval_is_that_of_the_balanced_rows(engine: Engine) -> None:
    table = columns(500)
    weight = weights(table)
    log = log_of(pa.table(table), propensity="own")
    own = np.array([table[f"p_{i}"][k] for k, i in enumerate(table["logger"])])
    log = replace(log, source=pa.table({**table, "own": own}))
    expected = [
        bound(weight * table["reward"], 0.025),
        1 - bound(weight * (1 - table["reward"]), 0.025),
    ]
    assert ends(interval(log, engine)) == pytest.approx(expected, abs=1e-12)


def test_rewards_of_any_range_and_one_side() -> None:
    table = columns(500)
    weight, reward = weights(table), 6 * table["reward"] - 2
    log = log_of({**table, "reward": reward}, reward_range=(-2.0, 4.0))
    lower = -2 + 6 * bound(weight * (reward + 2) / 6, 0.05)
    assert ends(interval(log, sides="lower")) == pytest.approx([lower, 4.0], abs=1e-12)
    upper = 4 - 6 * bound(weight * (4 - reward) / 6, 0.05)
    assert ends(interval(log, sides="upper")) == pytest.approx([-2.0, upper], abs=1e-12)


def test_sums_of_parts_give_the_interval_of_the_whole(tmp_path: Path) -> None:
    table = pa.table(columns(900))
    log = log_of(table)
    whole = interval(log)
    with DuckDB().open(log, TARGETS) as rows:
        counts = dict(rows.counts)
    parts = [replace(log, source=table.slice(k, 300)) for k in (0, 300, 600)]
    first, *rest = (summarise(p, TARGETS, counts=counts, interval="smoothed") for p in parts)
    first.save(tmp_path / "first.parquet")
    total = type(first).load(tmp_path / "first.parquet")
    for part in rest:
        total = total + part
    assert ends(interval(log, total)) == pytest.approx(ends(whole), abs=1e-12)
    with refused(RefusedError):  # the sums were not requested
        interval(log, summarise(log, TARGETS))
    with refused(RefusedError):  # or for another range
        interval(replace(log, reward_range=(0.0, 2.0)), total)


def test_the_answer_of_the_printed_query_has_the_sums(tmp_path: Path) -> None:
    import duckdb

    table = pa.table(columns(400))
    log = log_of(table)
    there = replace(log, source=None, table="logs")
    text = query_text(there, "logs", TARGETS, "duckdb", "smoothed")
    with duckdb.connect() as connection:
        connection.register("logs", table)
        pq.write_table(connection.sql(text).to_arrow_table(), tmp_path / "answer.parquet")
    summary = from_result(tmp_path / "answer.parquet", there, TARGETS, interval="smoothed")
    assert ends(interval(there, summary)) == pytest.approx(ends(interval(log)), abs=1e-12)


def test_own_weights_where_cross_propensities_are_missing() -> None:
    table = columns(300)
    own = np.array([table[f"p_{i}"][k] for k, i in enumerate(table["logger"])])
    log = log_of({**table, "own": own}, propensities=None, propensity="own")
    rows = table["t"] / own * table["reward"]
    assert interval(log, sides="lower").lower == pytest.approx(bound(rows, 0.05), abs=1e-12)


def test_terms_know_their_weights() -> None:
    for crossed, name in ((True, "balanced_log_gain"), (False, "log_gain")):
        gains, losses = smoothed_terms((1.0, 3.0), crossed=crossed)
        assert {t.factors[0].name for t in gains + losses} == {name}
        assert {t.factors[0].zero for t in gains} == {0.0}  # rewards above 0 count from 0
        assert {t.factors[0].zero for t in losses} == {3.0}
        assert [t.factors[0].bound for t in gains] == [3 * s for s in SCALES]
        gains, losses = smoothed_terms((-1.0, 3.0), crossed=crossed)
        assert {t.factors[0].zero for t in gains} == {-1.0}
        assert [t.factors[0].bound for t in gains + losses] == [4 * s for s in SCALES] * 2
        assert len(set(Needs(means=gains + losses).bind("new").terms)) == 20


@pytest.mark.parametrize("crossed", [True, False])
@pytest.mark.parametrize("sides", ["two", "lower", "upper"])
def test_the_interval_has_the_units_of_the_rewards(sides: Sides, *, crossed: bool) -> None:
    limits = (-1.0, 3.0)
    rewards, weight = np.array([2.0, 0.5, 3.0, -1.0, 2.5] * 8), np.array([1.0, 0.5] * 20)
    scaled = (weight * (rewards + 1) / 4, weight * (3 - rewards) / 4)
    names = smoothed_terms(limits, crossed=crossed)
    values = {
        term: np.log1p(rows / s).tolist()
        for rows, terms in zip(scaled, names, strict=True)
        for s, term in zip(SCALES, terms, strict=True)
    }
    assert set(smoothed_needs(limits, crossed=crossed).means) == set(values)
    first, second = ({t: v[k::2] for t, v in values.items()} for k in (0, 1))
    view = Pool({"a": group(first), "b": group(second)})
    interval = smoothed_interval(view, limits, 0.9, sides, crossed=crossed)
    error = 0.05 if sides == "two" else 0.1
    lower, upper = -1 + 4 * bound(scaled[0], error), 3 - 4 * bound(scaled[1], error)
    expected = (-1.0 if sides == "upper" else lower, 3.0 if sides == "lower" else upper)
    assert (interval.lower, interval.upper) == pytest.approx(expected, abs=1e-9)
    assert interval.level == 0.9
    assert -1 < lower < upper < 3


def test_rewards_above_0_count_from_0() -> None:
    gains, losses = smoothed_terms((0.5, 2.0), crossed=True)
    rows = {t: [math.log1p(1 / s)] * 40 for s, t in zip(SCALES, gains, strict=True)}
    view = Pool({"a": group(rows | dict.fromkeys(losses, [0.0] * 40))})
    interval = smoothed_interval(view, (0.5, 2.0), 0.9, "lower", crossed=True)
    assert interval.lower == pytest.approx(2 * bound(np.ones(40), 0.1), rel=1e-9)
    assert interval.upper == 2.0


def test_one_row_is_not_enough_for_a_bound() -> None:
    assert bound(np.array([1.0]), 0.05) == 0.0


def test_policies_that_learned_are_refused() -> None:
    log = log_of(columns(60))
    with refused(UsageError):
        interval(replace(log, trained_on={"b": ["a"]}))
    with refused(UsageError):
        interval(replace(log, source={**columns(60), "day": [0, 1, 2] * 20}, period="day"))
    with refused(UsageError):
        interval(replace(log, reward_range=None))
    with refused(UsageError):
        interval(replace(log, source={**columns(60), "user": range(60)}, cluster="user"))


@pytest.mark.slow
def test_the_interval_holds_the_truth_as_often_as_it_promises() -> None:
    """60 logs at 90%: fewer than 47 hits would be three standard errors too few."""
    hits, widths = 0, []
    for seed in range(60):
        log = replace(toy("T2").draw(np.random.default_rng(seed)), reward_range=(0.0, 1.0))
        result = evaluate(log, "target_prob", "naive", interval="smoothed", level=0.9)
        limits = result["target"].intervals["naive"]
        hits += 0.576 in limits
        widths.append(limits.upper - limits.lower)
    assert hits >= 47
    assert np.median(widths) < 0.6


@pytest.mark.parametrize("engine_of", [DuckDBConnection, PostgresEngine])
def test_bets_on_blocks_need_rows(engine_of: Any) -> None:  # noqa: ANN401 - an engine
    with refused(UsageError):
        evaluate(log_of(pa.table(columns(60))), TARGETS, interval="betting", engine=engine_of())
