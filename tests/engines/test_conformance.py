"""Every engine has each method of `Rows`, or says which engines have it."""

from __future__ import annotations

import ast
from inspect import signature
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from poolwise.engines.base import CAPABILITIES, Engine, Rows, lacking, refuse_extra
from poolwise.engines.duckdb import DuckDB
from poolwise.engines.exact import FiniteProblem
from poolwise.engines.saved import Summary
from poolwise.engines.spark import Spark
from poolwise.engines.warehouse import Warehouse
from poolwise.errors import UsageError
from poolwise.evaluation.segments import Parts, SegmentRows
from poolwise.evaluation.summarise import summarise
from poolwise.rows.learners import Extra, Learner
from tests.support.conformance import (
    BLOCKS,
    CALLS,
    NO_ROWS,
    PERIODS,
    find_lacking,
    log_of_rows,
    table_of_rows,
    with_periods,
)
from tests.support.messages import refused
from tests.support.postgres import DuckDBConnection
from tests.support.reference import Reference

ENGINES = Path(__file__).resolve().parents[2] / "src" / "poolwise" / "engines"
TARGETS = {"t": "t"}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_method_is_called() -> None:
    assert set(CALLS) == public(Rows)


def test_duckdb_has_all() -> None:
    log = with_periods()
    with DuckDB().open(log, TARGETS) as rows:
        assert find_lacking(rows, log) == set()


def test_duckdb_lists_its_files(tmp_path: Path) -> None:
    pq.write_table(table_of_rows(), tmp_path / "log.parquet")
    log = log_of_rows(str(tmp_path / "*.parquet"))
    with DuckDB().open(log, TARGETS) as rows:
        assert rows.local_files(log) == [str(tmp_path / "log.parquet")]


def test_a_warehouse_has_no_periods_blocks_and_single_rows() -> None:
    log = log_of_rows(cluster="id")
    with DuckDBConnection().open(log, TARGETS) as rows:
        assert find_lacking(rows, log) == BLOCKS


def test_the_reference_has_what_it_is_compared_for() -> None:
    log = log_of_rows()
    with Reference().open(log, TARGETS) as rows:
        assert find_lacking(rows, log) == BLOCKS | {"with_shares"}


def test_saved_moments_have_no_rows() -> None:
    log = log_of_rows()
    with summarise(log, TARGETS).open(log, TARGETS) as rows:
        assert find_lacking(rows, log) == NO_ROWS


def test_a_problem_has_no_rows() -> None:
    half = np.full((2, 2), 0.5)
    counts = {"a": 3, "b": 4}
    problem = FiniteProblem(half[0], half, half, {"a": half, "b": half}, counts)
    assert problem.counts == counts
    assert find_lacking(problem, log_of_rows()) == NO_ROWS


def test_a_segment_is_part_of_a_pass() -> None:
    log = log_of_rows()
    with DuckDB().open(log, TARGETS, Extra(segment="day")) as rows:
        segment = SegmentRows(Parts(rows.by_period, rows.cells), "1")
        assert find_lacking(segment, log) == PERIODS | {
            "settle",
            "sample",
            "without",
            "mix_own",
            "with_shares",
        }


EXTRAS = {
    "learners": Extra(mixture="m", learners=(Learner("m", ("m",), lambda *_: None),)),  # type: ignore[arg-type]
    "segment": Extra(segment="day"),
    "metrics": Extra(measures=("id",)),
    "columns": Extra(predicted_reward="t"),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_columns_that_an_engine_cannot_add_are_refused(name: str) -> None:
    for columns in (True, False):
        able = columns and name != "learners"
        if able:
            refuse_extra(EXTRAS[name], columns=columns)
            continue
        with refused(UsageError) as error:
            refuse_extra(EXTRAS[name], columns=columns)
        assert str(error.value) == str(lacking(name))
    refuse_extra(Extra())


@pytest.mark.parametrize("kind", [DuckDB, Spark, Warehouse, Summary])
def test_engines_open_logs_alike(kind: type[Engine]) -> None:
    assert issubclass(kind, Engine)
    assert [*signature(kind.open).parameters] == ["self", "log", "targets", "extra"]


@pytest.mark.parametrize("call", ["score", "learn"])
def test_an_engine_without_rows_says_so(call: str) -> None:
    with refused(UsageError) as error:
        if call == "score":
            Engine().score(log_of_rows(), TARGETS, Path("x.parquet"), lambda _: {})
        else:
            Engine().learner_batches(log_of_rows())
    assert str(error.value) == str(lacking(call))


def test_every_capability_is_refused_somewhere() -> None:
    """A text that no engine raises is out of date."""
    sources = [*ENGINES.glob("*.py")]
    raised = {
        str(node.args[0].value)
        for path in sources
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "lacking"
        and isinstance(node.args[0], ast.Constant)
    }
    assert raised == set(CAPABILITIES)
