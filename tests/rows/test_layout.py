"""Periods: rows are counted and summed by period and logger, in the order of values."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise.engines.duckdb import DuckDB
from poolwise.errors import LogError, UsageError
from poolwise.evaluation.check import check
from poolwise.evaluation.evaluate import evaluate
from poolwise.moments.pool import Cell, list_periods
from poolwise.moments.terms import (
    BALANCED_REWARD,
    PERIOD_REWARD,
    PERIOD_WEIGHT,
    Needs,
    period_moment,
)
from tests.support.messages import refused
from tests.support.periods import daily, daily_log, period_mixture

if TYPE_CHECKING:
    from pathlib import Path

TARGETS = {"t": "t"}
NEEDS = Needs(groups=((PERIOD_REWARD,), (PERIOD_WEIGHT,), (BALANCED_REWARD,))).bind("t")
DATES = [dt.date(2024, 1, 9), dt.date(2024, 1, 10), dt.date(2024, 2, 1)]
ORDERED: dict[str, list[Any]] = {
    "integers": [2, 9, 10],
    "dates": DATES,
    "timestamps": [dt.datetime(2024, 1, day, 12, 30, tzinfo=dt.UTC) for day in (1, 2, 11)],
    "text": ["a", "b", "ba"],
    "doubles": [0.5, 1.0, 10.0],
}


def test_labels_that_name_a_period_stay_apart() -> None:
    columns = daily(control=0.3)
    plain = evaluate(daily_log(columns), {"t": "t"}, "period-balanced")["t"]
    names = {"v0": "v", "v1": "v in 1", "v2": "v2", "control": "control"}
    days = np.array(["1 in 2", "2", "3"])[columns["day"]]
    probs = {f"p_{names[i]}": columns[f"p_{i}"] for i in names}
    logger = np.array([names[i] for i in columns["logger"]])
    kept = {k: columns[k] for k in ("reward", "t")}
    renamed = daily_log({"day": days, "logger": logger, **kept, **probs})
    result = evaluate(renamed, {"t": "t"}, "period-balanced")["t"]
    ours, theirs = (r.estimates["period-balanced"] for r in (result, plain))
    assert ours.value == pytest.approx(theirs.value, rel=1e-12)
    assert ours.variance == pytest.approx(theirs.variance, rel=1e-12)


@pytest.mark.parametrize("kind", ORDERED)
@pytest.mark.parametrize("as_file", [False, True])
def test_periods_come_in_the_order_of_their_values(
    kind: str, *, as_file: bool, tmp_path: Path
) -> None:
    columns = daily(300)
    values = pa.array(ORDERED[kind]).take(pa.array(columns["day"]))
    table = pa.table(columns | {"day": values}).slice(0, 300).take(np.arange(299, -1, -1))
    source: Any = table
    if as_file:
        source = tmp_path / "log.parquet"
        pq.write_table(table, source)
    log = replace(daily_log(columns), source=source)
    with DuckDB().open(log, TARGETS) as rows:
        cells = rows.cells
        sums = rows.by_period.moments(NEEDS)
    counts = [np.count_nonzero(columns["day"] == d) for d in range(3)]
    periods = list_periods(cells)
    assert [sum(n for c, n in cells.items() if c.period == p) for p in periods] == counts
    assert {c: m.count for c, m in sums.items()} == cells


@pytest.mark.parametrize("buckets", [1, 7])
def test_a_row_is_weighed_by_the_mixture_of_its_own_period(buckets: int) -> None:
    columns = daily()
    weight = columns["t"] / period_mixture(columns)
    with DuckDB(batch_rows=64).open(daily_log(columns), TARGETS) as rows:
        if buckets == 1:
            pool = rows.by_period.moments(NEEDS)
        else:
            (pool,) = rows.by_period.bucketed([NEEDS], buckets)
    for cell, sums in pool.items():
        assert isinstance(cell, Cell)
        mine = (columns["day"] == int(cell.period)) & (columns["logger"] == cell.logger)
        assert sums.count == np.count_nonzero(mine)
        values = (weight * columns["reward"])[mine]
        assert sums.mean(PERIOD_REWARD.bind("t")) == pytest.approx(values.mean(), rel=1e-12)
        assert sums.var(PERIOD_WEIGHT.bind("t")) == pytest.approx(weight[mine].var(ddof=1))


def test_cells_merge_into_the_moments_of_loggers() -> None:
    columns = daily()
    with DuckDB().open(daily_log(columns), TARGETS) as rows:
        needs = Needs(groups=((BALANCED_REWARD,),)).bind("t")
        merged, plain = rows.by_period.moments(needs).by_logger, rows.moments(needs)
    assert list(merged) == list(plain)
    for i, m in plain.items():
        assert merged[i].count == m.count
        assert merged[i].means == pytest.approx(m.means, rel=1e-12)
        assert merged[i].scatter == pytest.approx(m.scatter, rel=1e-12)


@pytest.mark.parametrize("logs", [False, True])
def test_the_second_moment_of_a_period_uses_all_rows(*, logs: bool) -> None:
    columns = daily()
    day, logger = columns["day"], columns["logger"]
    labels = np.unique(logger)
    shares = {d: {i: np.mean(logger[day == d] == i) for i in labels} for d in range(3)}
    within = {d: sum(s[i] * columns[f"p_{i}"] for i in labels) for d, s in shares.items()}
    overall = sum(np.mean(logger == i) * columns[f"p_{i}"] for i in labels)
    expected = [np.mean(columns["t"] ** 2 / (within[d] * overall)) for d in range(3)]
    needs = Needs(means=tuple(period_moment(str(d)) for d in range(3))).bind("t")
    if logs:
        probs = {k: np.log(v) for k, v in columns.items() if k == "t" or k.startswith("p")}
        columns = columns | probs
    with DuckDB().open(daily_log(columns, log_probabilities=logs), TARGETS) as rows:
        together = rows.by_period.moments(needs).together
    values = [together.mean(period_moment(str(d)).bind("t")) for d in range(3)]
    assert values == pytest.approx(expected, rel=1e-12)


def with_null() -> dict[str, Any]:
    columns = daily(60)
    return columns | {"day": [None if k == 5 else int(d) for k, d in enumerate(columns["day"])]}


def test_a_period_that_is_null_is_reported() -> None:
    log = daily_log(with_null())
    (fault,) = check(log, TARGETS).faults
    assert (fault.rule, fault.rows, fault.example) == ("the period is null", 1, {"day": None})
    with refused(LogError) as error, DuckDB().open(log, TARGETS) as rows:
        rows.by_period.moments(NEEDS)
    assert error.value.faults == (fault,)


def test_rows_without_a_period_are_dropped_on_request() -> None:
    with DuckDB().open(daily_log(with_null(), on_fault="drop"), TARGETS) as rows:
        assert sum(rows.counts.values()) == 59
        balanced = Needs(groups=((BALANCED_REWARD,),)).bind("t")
        for moments in (rows.by_period.moments(NEEDS), rows.moments(balanced)):
            assert sum(m.count for m in moments.values()) == 59


@pytest.mark.parametrize("role", ["period", "by"])
def test_nan_has_no_place_among_periods_and_segments(role: str) -> None:
    """Sorted with NaN, cells of a period were apart, and estimates wrong."""
    columns = daily(600)
    lost = columns["day"] == 1
    columns |= {"day": np.where(lost, np.nan, columns["day"])}
    log = daily_log(columns, period="day" if role == "period" else None)
    with refused(LogError) as error:
        evaluate(log, TARGETS, by=None if role == "period" else "day")
    assert sum(fault.rows for fault in error.value.faults) == lost.sum()


def test_a_column_of_single_times_is_not_a_period() -> None:
    columns = daily(1_200) | {"day": np.arange(1_200)}
    with refused(UsageError), DuckDB().open(daily_log(columns), TARGETS) as rows:
        _ = rows.cells
