"""The fingerprint: equal for the same rows, and for no others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolwise import evaluate
from poolwise.engines.duckdb import DuckDB
from poolwise.evaluation.evaluate import cut
from tests.support.reference import Reference, log_of, random_table

if TYPE_CHECKING:
    from poolwise.log.log import Log

TABLE = random_table(np.random.default_rng(80), {"a": 3_000, "b": 2_000})
TARGETS = {"new": "t", "old": "p_a"}


def fingerprint_of(table: pa.Table, **options: Any) -> str:  # noqa: ANN401 - of evaluate
    found = evaluate(log_of(table), TARGETS, **options)
    assert len(found.fingerprint) == 16
    return found.fingerprint


@pytest.mark.slow
def test_neither_order_nor_engine_nor_threads_nor_estimators_change_it() -> None:
    expected = fingerprint_of(TABLE)
    shuffled = TABLE.take(np.random.default_rng(81).permutation(len(TABLE)))
    others: list[tuple[pa.Table, dict[str, Any]]] = [
        (shuffled, {}),
        (TABLE, {"engine": Reference()}),
        (TABLE, {"engine": DuckDB(threads=1)}),
        (TABLE, {"estimators": "naive"}),
        (TABLE, {"interval": "jackknife", "level": 0.9}),
    ]
    for table, options in others:
        assert fingerprint_of(table, **options) == expected


def test_the_order_of_targets_and_loggers_does_not_change_it() -> None:
    log: Log = log_of(TABLE, ["b", "a"])
    swapped = dict(reversed(TARGETS.items()))
    assert evaluate(log, swapped).fingerprint == fingerprint_of(TABLE)


@pytest.mark.parametrize("column", ["reward", "t", "p_a"])
def test_one_changed_number_changes_it(column: str) -> None:
    values = TABLE[column].to_numpy().copy()
    values[7] *= 0.99
    place = TABLE.column_names.index(column)
    changed = TABLE.set_column(place, column, pa.array(values))
    if column == "p_a":  # also the probability under the logger that wrote the row
        own = np.where(TABLE["logger"].to_numpy() == "a", values, TABLE["p"].to_numpy())
        changed = changed.set_column(TABLE.column_names.index("p"), "p", pa.array(own))
    assert fingerprint_of(changed) != fingerprint_of(TABLE)


def test_a_missing_row_or_another_name_changes_it() -> None:
    found = {
        fingerprint_of(TABLE),
        fingerprint_of(TABLE.slice(1)),
        evaluate(log_of(TABLE), {"new": "t", "older": "p_a"}).fingerprint,
    }
    assert len(found) == 3


def test_own_propensities_have_one_too() -> None:
    own = log_of(TABLE, propensities=None)
    assert evaluate(own, TARGETS).fingerprint != fingerprint_of(TABLE)
    table = TABLE.append_column("action", pa.array(np.arange(len(TABLE)) % 3))
    estimated = log_of(table, propensities=None, estimate_mixture=True, action="action")
    assert evaluate(estimated, TARGETS).fingerprint == evaluate(own, TARGETS).fingerprint


@given(st.integers(1, 10_000), st.integers(0, 20), st.sampled_from([1, -1]))
def test_a_number_that_people_use_is_far_from_every_cut(
    top: int, power: int, sign: int
) -> None:
    for value in (sign * top / 2**power, sign * float(top)):
        for moved in (1 - 1e-13, 1 + 1e-13):
            assert cut(value, abs(value)) == cut(value * moved, abs(value) * moved)


@given(st.floats(1e-300, 1e300))
def test_eight_digits_count(value: float) -> None:
    assert cut(value, value) != cut(value * (1 + 1e-7), value * (1 + 1e-7))


def test_what_has_no_scale_is_nothing() -> None:
    assert cut(0.0, 0.0) == (0, 0)
    assert cut(math.inf, 1.0) == (0, 0)
