"""Shapes of a log: every one of them gives the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from benchmarks import data, shapes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 3_000
SMALL = [shape for shape in shapes.SHAPES if shape.part == 1.0]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files go to a folder of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "FOLDER", tmp_path_factory.mktemp("shapes"))
        yield data.FOLDER


def numbers(evaluation: pw.Evaluation) -> dict[str, tuple[float, ...]]:
    estimates = evaluation["t_0"].estimates
    intervals = evaluation["t_0"].intervals
    return {
        name: (e.value, e.variance, intervals[name].lower, intervals[name].upper)
        for name, e in estimates.items()
    }


def in_doubles(shape: shapes.Shape) -> dict[str, tuple[float, ...]]:
    """Evaluate the rows of a shape as one Arrow table of text labels and doubles."""
    plain = pq.read_table(data.log_file(ROWS))
    table = shape.change(plain).set_column(0, "logger", plain["logger"])
    roles: dict[str, Any] = {"cluster": "user"} if "user" in table.schema.names else {}
    labels = {"logger", "user"}
    fields = [f if f.name in labels else f.with_type(pa.float64()) for f in table.schema]
    loggers = data.loggers_of(data.log_file(ROWS))
    log = pw.Log(
        table.cast(pa.schema(fields)),
        logger="logger",
        reward="reward",
        propensity="p",
        propensities=loggers,
        **roles,
    )
    return numbers(pw.evaluate(log, {"t_0": "t_0"}))


@pytest.mark.parametrize("shape", SMALL, ids=lambda shape: shape.name)
def test_every_shape_of_the_same_rows_gives_the_same_numbers(shape: shapes.Shape) -> None:
    if shape.name in {"pandas", "polars"}:
        pytest.importorskip(shape.name)
    paths = shapes.files_of(shape, ROWS)
    evaluation = shapes.evaluate(shape, shapes.log_of(shape, paths))
    for name, expected in in_doubles(shape).items():
        assert numbers(evaluation)[name] == pytest.approx(expected, rel=1e-12), name
    again = shapes.evaluate(shape, shapes.log_of(shape, paths))
    assert numbers(again) == numbers(evaluation)


def test_decoding_reads_every_row_group(monkeypatch: pytest.MonkeyPatch) -> None:
    paths, groups = shapes.files_of(shapes.BY_NAME["files"], ROWS), []
    read = pq.ParquetFile.read_row_group

    def noted(file: pq.ParquetFile, group: int, **options: object) -> pa.Table:
        table = read(file, group, **options)
        groups.append(table.num_rows)
        return table

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    shapes.decode(paths)
    assert sum(groups) == ROWS
    assert len(paths) == len(groups)


def test_a_table_of_shapes() -> None:
    line = {"shape": "a", "decode": "2", "evaluate": "3", "megabytes": "1200", "limit": "1.4"}
    assert shapes.table([line]).splitlines()[-1] == "| a | 2.00 | 3.00 | 1.50 | 1.4 | 1,200 |"
