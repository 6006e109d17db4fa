"""Spark reads the entry of the logged action as DuckDB does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.errors import LogError
from poolwise.log.log import Log
from tests.rows.test_entries import (
    COMPLETE,
    FAULTY,
    KINDS,
    ROLES,
    TARGETS,
    flat,
    three,
    whole,
)
from tests.support.reference import assert_same

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.engines.spark import Spark

STUDENT: dict[str, Any] = {"interval": "student"}  # slices follow the order of the rows


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_flat_columns(kind: str, spark: Spark) -> None:
    roles = ROLES | {"log_probabilities": True}
    found = pw.evaluate(Log(whole(kind, logs=True), **roles), TARGETS, engine=spark, **STUDENT)
    expected = pw.evaluate(Log(flat(logs=True), **roles), TARGETS, **STUDENT)
    assert_same(found, expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["map", "json"])
def test_files_give_what_flat_columns_give(kind: str, spark: Spark, tmp_path: Path) -> None:
    pq.write_table(whole(kind), tmp_path / "log.parquet")
    log = Log(str(tmp_path / "log.parquet"), **ROLES)
    found = pw.evaluate(log, TARGETS, engine=spark, **STUDENT)
    assert_same(found, pw.evaluate(Log(flat(), **ROLES), TARGETS, **STUDENT), rel=1e-9)


@pytest.mark.parametrize("kind", COMPLETE)
def test_a_missing_entry_is_0_if_the_others_sum_to_1(kind: str, spark: Spark) -> None:
    found = pw.evaluate(three(COMPLETE[kind]), {"new": "probs"}, "naive", engine=spark)
    assert found["new"].estimates["naive"].value == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["missing", "missing-fields", "empty", "null", "scores"])
def test_faults_are_those_of_duckdb(name: str, spark: Spark) -> None:
    faults = []
    for engine in (spark, None):
        with pytest.raises(LogError) as caught:
            pw.evaluate(three(FAULTY[name]), {"new": "probs"}, engine=engine)
        faults.append([(f.rule, f.logger, f.rows) for f in caught.value.faults])
    assert faults[0] == faults[1]


def test_learning_copies_distributions(spark: Spark) -> None:
    log = Log(whole("map"), **ROLES)
    found, expected = (
        pw.learn(log, features=["age"], folds=2, strengths=[0.1], engine=engine)
        for engine in (spark, None)
    )
    assert found.estimate.value == pytest.approx(expected.estimate.value, rel=1e-9)
