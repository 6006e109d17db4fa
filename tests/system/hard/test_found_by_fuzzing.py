"""Findings of fuzzing: numbers out of the range of doubles, in a log and in saved moments."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.engines.saved import Summary
from poolwise.engines.saved_files import KEY, checksum
from poolwise.errors import RefusedError, SourceError
from tests.support.hard.case import Case, base
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = Case(base())


def _equal_rows(power: int) -> pw.Log:
    """Four equal rows: target 1, propensity and reward two to a power below zero."""
    rows = {"logger": ["a", "a", "b", "b"], "t": [1.0] * 4}
    small = [2.0**-power] * 4
    table = pa.table({**rows, "p": small, "reward": small})
    return pw.Log(table, reward="reward", logger="logger", propensity="p")


def test_equal_rows_with_a_tiny_propensity_have_their_exact_value() -> None:
    found = pw.evaluate(_equal_rows(500), {"new": "t"}, "naive")
    assert found["new"].estimates["naive"].value == 1.0  # 2^500 times 2^-500


def test_equal_rows_whose_squared_weight_is_no_double_are_refused() -> None:
    with refused(RefusedError) as caught:
        pw.evaluate(_equal_rows(600), {"new": "t"})  # the square is 2^1200
    assert caught.value.code == "overflow"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "moments.parquet"
    log = PLAIN.log(PLAIN.table)
    pw.summarise(log, PLAIN.targets).save(path)
    return path


def _refused(path: Path, table: pa.Table, header: dict[str, Any]) -> None:
    raw = json.dumps({**header, "checksum": checksum(header, table.to_pylist())}).encode()
    pq.write_table(table.replace_schema_metadata({KEY: raw}), path)
    with refused(SourceError):
        Summary.load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("scattered", math.inf, id="an infinite size"),
        pytest.param("manifest", {"a": 10**400, "b": 1}, id="a count beyond doubles"),
    ],
)
def test_a_header_with_a_number_beyond_doubles_is_refused(
    saved: Path, name: str, value: object
) -> None:
    table = pq.read_table(saved)
    header = json.loads(table.schema.metadata[KEY])
    _refused(saved, table, {**header, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("lowest", None, id="a lowest value unknown where the largest is known"),
        pytest.param("largest", None, id="a largest value unknown where the lowest is known"),
        pytest.param("lowest", -math.inf, id="a lowest value without end"),
        pytest.param("largest", math.inf, id="a largest value without end"),
        pytest.param("means", 1e308, id="a mean whose square is no double"),
        pytest.param("means", -1e308, id="a mean below zero whose square is no double"),
    ],
)
def test_a_line_that_no_rows_can_have_is_refused(
    saved: Path, name: str, value: float | None
) -> None:
    table = pq.read_table(saved)
    lines = table.to_pylist()
    lines[0][name][0] = value  # of the first term, which has extremes and a scatter
    changed = pa.Table.from_pylist(lines, schema=table.schema)
    _refused(saved, changed, json.loads(table.schema.metadata[KEY]))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_tail_without_numbers_is_refused_and_warns_nobody(saved: Path, value: float) -> None:
    table = pq.read_table(saved)
    lines = table.to_pylist()
    lines[0]["tails"][0] = [value] * len(lines[0]["tails"][0])
    changed = pa.Table.from_pylist(lines, schema=table.schema)
    _refused(saved, changed, json.loads(table.schema.metadata[KEY]))


@pytest.mark.parametrize("least", [5e-324, 1e-310])
def test_a_mean_weight_without_an_inverse_is_refused(least: float) -> None:
    """The inverse of a mean weight of 1e-310 overflows: infinity times 0 followed."""
    table = pa.table(
        {
            "l": ["b", "a"],
            "r": [0.9, 0.0],
            "p_a": [0.0, 1.0],
            "p_b": [0.5, 0.0],
            "t": [least, 0.0],
        }
    )
    log = pw.Log(table, logger="l", reward="r", propensities={"a": "p_a", "b": "p_b"})
    found = pw.evaluate(log, {"new": "t"})["new"]
    assert "self-normalised" not in found.estimates
    assert "no-weight" in {f.code for f in found.findings}
