"""Small pieces are read together, and the sums are those of one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.rows.reader import MOST_GATHERED, Reader, RowGroup, gather, join_tables
from tests.support.reference import assert_same, log_of, random_table

if TYPE_CHECKING:
    from pathlib import Path


def test_pieces_are_gathered_up_to_a_number_of_rows() -> None:
    sizes = [3, 3, 5, 9, 1, 1]
    firsts = np.cumsum([0, *sizes[:-1]]).tolist()
    tables = [(pa.table({"x": [0] * n}), first) for n, first in zip(sizes, firsts, strict=True)]
    together = [([t.num_rows for t in ts], first) for ts, first in gather(tables, 7)]
    assert together == [([3, 3], 0), ([5], 6), ([9], 11), ([1, 1], 20)]
    assert list(gather([], 7)) == []


def test_the_last_pieces_are_gathered_less() -> None:
    size = 10_000
    tables = [(pa.table({"x": np.zeros(size)}), size * k) for k in range(200)]
    together = [len(pieces) for pieces, _ in gather(tables, MOST_GATHERED, 200 * size)]
    assert sum(together) == 200
    assert together[0] == 40  # (2,000,000 - 400,000) / 4 is less than 410,000
    assert together == sorted(together, reverse=True)
    assert together[-2] == 6  # never less than 65,536


def test_tables_of_several_schemas_are_not_joined() -> None:
    whole, parts = pa.table({"x": [1]}), pa.table({"x": [0.5]})
    tables = join_tables([whole, whole, parts, whole])
    assert [(table.num_rows, table.schema) for table in tables] == [
        (2, whole.schema),
        (1, parts.schema),
        (1, whole.schema),
    ]


def test_files_of_several_types_give_the_numbers_of_one(tmp_path: Path) -> None:
    table = random_table(np.random.default_rng(7), {"a": 300, "b": 200})
    rounded = table.set_column(
        table.schema.get_field_index("reward"), "reward", pa.compute.round(table["reward"])
    )
    for k in range(50):
        part = rounded.slice(10 * k, 10)
        if k % 3 == 0:  # whole numbers in some files
            index = part.schema.get_field_index("reward")
            part = part.set_column(index, "reward", part["reward"].cast(pa.int32()))
        pq.write_table(part, tmp_path / f"{k:02}.parquet")
    log = log_of(str(tmp_path / "*.parquet"))
    assert_same(pw.evaluate(log, {"t": "t"}), pw.evaluate(log_of(rounded), {"t": "t"}))


def test_small_files_of_several_loggers_give_the_numbers_of_one(tmp_path: Path) -> None:
    table = random_table(np.random.default_rng(8), {"a": 300, "b": 200})
    source: dict[str, list[str]] = {"a": [], "b": []}
    for label, paths in source.items():
        rows = table.filter(pa.compute.equal(table["logger"], label)).drop_columns(["logger"])
        for k in range(rows.num_rows // 10):
            paths.append(str(tmp_path / f"{label}_{k}.parquet"))
            pq.write_table(rows.slice(10 * k, 10), paths[-1])
    log = log_of(source, logger=None)
    assert_same(pw.evaluate(log, {"t": "2 * t / 2"}), pw.evaluate(log_of(table), {"t": "t"}))


def test_a_file_that_loses_a_column_is_refused(tmp_path: Path) -> None:
    table = random_table(np.random.default_rng(9), {"a": 30, "b": 20})
    path = tmp_path / "log.parquet"
    pq.write_table(table, path)
    reader = Reader({"logger": "logger", "reward": "reward"})
    piece = RowGroup(str(path), 0, table.num_rows)
    (whole,) = reader([piece], ["logger", "reward"])
    assert whole.column("reward").to_pylist() == table["reward"].to_pylist()
    pq.write_table(table.drop_columns(["reward"]), path)
    with pytest.raises(pa.ArrowInvalid, match="lost a column"):
        list(Reader({"logger": "logger", "reward": "reward"})([piece], ["logger", "reward"]))
