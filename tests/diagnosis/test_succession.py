"""Succession: loggers that follow each other are noticed, those side by side are not."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from poolwise.engines.duckdb import DuckDB
from poolwise.evaluation.evaluate import evaluate
from poolwise.log.log import Log
from tests.support.messages import check_findings
from tests.support.periods import daily, daily_log

if TYPE_CHECKING:
    from poolwise.errors import Finding

pytestmark = pytest.mark.slow  # all of them together take seconds
CODE = "loggers-in-succession"
TARGETS = {"t": "t"}


def findings(log: Log) -> list[Finding]:
    return [f for f in evaluate(log, TARGETS, "balanced").findings if f.code == CODE]


def sorted_by(columns: dict[str, Any], key: Any) -> dict[str, Any]:  # noqa: ANN401 - an array
    order = np.argsort(key, kind="stable")
    return {name: values[order] for name, values in columns.items()}


def test_versions_in_the_order_of_rows_are_noticed() -> None:
    check_findings(findings(daily_log(daily(control=0.0), period=None)), CODE)
    (finding,) = findings(daily_log(daily(control=0.3), period=None))
    assert finding.severity == "note"


@pytest.mark.parametrize("declared", [{}, {"period": None, "trained_on": {"v1": ["v0"]}}])
def test_a_declaration_is_enough(declared: dict[str, Any]) -> None:
    assert not findings(daily_log(daily(), **declared))


def test_labels_that_are_not_versions_may_be_sorted() -> None:
    columns = daily(control=0.0)
    names = {"v0": "red", "v1": "green", "v2": "blue"}
    columns["logger"] = np.array([names[i] for i in columns["logger"]])
    columns |= {f"p_{names[i]}": columns[f"p_{i}"] for i in names}
    assert not findings(daily_log(columns, period=None))


def test_versions_in_another_order_than_their_numbers_are_not_noticed() -> None:
    columns = daily(control=0.0)
    assert not findings(daily_log(sorted_by(columns, -columns["day"]), period=None))


def with_times(columns: dict[str, Any], day: Any, *, dates: bool = True) -> Log:  # noqa: ANN401
    first = dt.date(2024, 1, 1) if dates else dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    times = pa.array([first + dt.timedelta(days=int(d)) for d in day])
    log = daily_log(columns, period=None)
    return Log(
        pa.table(columns).append_column("logged at", times),
        logger="logger",
        reward="reward",
        propensities=log.propensities,
    )


@pytest.mark.parametrize("dates", [False, True])
def test_times_decide_whatever_the_order_of_rows(*, dates: bool) -> None:
    columns = daily(control=0.3)
    rng = np.random.default_rng(1)
    shuffled = sorted_by(columns, rng.random(len(columns["day"])))
    assert findings(with_times(shuffled, shuffled["day"], dates=dates))
    assert not findings(with_times(columns, rng.integers(0, 9, 900), dates=dates))


def test_loggers_side_by_side_are_not_noticed() -> None:
    rng = np.random.default_rng(0)
    noticed = 0
    for seed in range(60):
        columns = daily(int(rng.integers(30, 300)), control=0.0, seed=seed)
        shuffled = sorted_by(columns, rng.random(len(columns["day"])))
        day = rng.integers(0, 30, len(columns["day"]))
        noticed += bool(findings(daily_log(shuffled, period=None)))
        noticed += bool(findings(with_times(shuffled, day)))
    assert noticed == 0


def test_the_range_of_rows_does_not_depend_on_batches() -> None:
    log = daily_log(daily(), period=None)
    (whole,) = findings(log)
    small = evaluate(log, TARGETS, "balanced", engine=DuckDB(batch_rows=16))
    assert whole in small.findings
