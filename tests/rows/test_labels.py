"""Labels: codes of each row, and those that are kept from one pass to the next."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise.engines.duckdb import DuckDB
from poolwise.evaluation.evaluate import evaluate
from poolwise.rows import reader
from poolwise.rows.labels import FEW_LABELS, KeptLabels, code_chunks, count_labels, find_codes
from tests.support.reference import assert_same, log_of, random_table

if TYPE_CHECKING:
    from pathlib import Path

LOGGERS = ("a", "b", "c")
ROWS = 600


@pytest.fixture
def path(tmp_path: Path) -> str:
    table = random_table(np.random.default_rng(3), {"a": 100, "b": 200, "c": 300})
    order = np.random.default_rng(4).permutation(ROWS)
    pq.write_table(table.take(order), tmp_path / "log.parquet", row_group_size=250)
    return str(tmp_path / "log.parquet")


@pytest.mark.parametrize("kind", ["int8", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("step", [1, 100])
def test_integer_labels_are_those_of_their_text(kind: str, step: int) -> None:
    least = {"int8": -100, "int64": -(2**63), "uint8": 0, "uint64": 2**64 - 201}[kind]
    numbers = [least + step * k for k in (2, 0, 1, 2)]
    labels = pa.chunked_array([pa.array(numbers, pa.type_for_alias(kind))])
    texts: dict[str | None, int] = {str(least + step * k): k for k in range(3)}
    assert find_codes(labels, texts).tolist() == [2, 0, 1, 2]
    with_null = pa.chunked_array([pa.array([*numbers, None], pa.type_for_alias(kind))])
    assert find_codes(with_null, texts).tolist() == [2, 0, 1, 2, -1]


@pytest.mark.parametrize("number", [2, FEW_LABELS - 1, FEW_LABELS, 200])
def test_labels_are_counted(number: int) -> None:
    texts = [f"v{k % number}" if k % 7 else None for k in range(1_000)]
    (part,) = code_chunks(pa.chunked_array([pa.array(texts)]))
    counts = count_labels(*part)
    assert counts == {text: texts.count(text) for text in set(texts)}
    assert all(type(count) is int for count in counts.values())


def test_labels_of_files_are_read_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain = pq.ParquetFile.read_row_group

    def recorded(
        file: pq.ParquetFile, group: int, *, columns: list[str], **how: bool
    ) -> object:
        read.extend(columns)
        return plain(file, group, columns=columns, **how)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", recorded)
    evaluate(log_of(path, LOGGERS), {"t": "t"})
    assert read.count("logger") == 3
    assert read.count("reward") == 6  # in a second pass for the rows that decide the value


@pytest.mark.parametrize("rows_at_once", [8_000_000, 7])
def test_kept_labels_give_the_numbers_of_those_read(
    path: str, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    expected = evaluate(log_of(pq.read_table(path), LOGGERS), {"t": "t"})
    monkeypatch.setattr(reader, "LARGE_GROUP", rows_at_once)
    kept = evaluate(log_of(path, LOGGERS), {"t": "t"})
    monkeypatch.setattr(KeptLabels, "get", lambda *_: None)
    not_kept = evaluate(log_of(path, LOGGERS), {"t": "t"})
    assert kept.to_dict() == not_kept.to_dict()
    assert_same(kept, expected)


def test_a_file_that_changes_loses_its_labels(path: str) -> None:
    other = pq.read_table(path)
    labels = pa.array(["c" if label == "a" else "a" for label in other["logger"].to_pylist()])
    with DuckDB().open(log_of(path, LOGGERS), {"t": "t"}) as rows:
        assert rows.counts == {"a": 100, "b": 200, "c": 300}
        pq.write_table(other.set_column(0, "logger", labels), path, row_group_size=250)
        stream = rows._plain()  # noqa: SLF001
        assert stream is not None
        first, *_ = stream.pieces
        (table,) = stream.reader()([first], ("logger", "reward"))
    assert other.column_names[0] == "logger"
    assert table.column("logger").to_pylist() == labels[:250].to_pylist()


def test_a_column_of_labels_keeps_its_type_for_another_role(tmp_path: Path) -> None:
    table = random_table(np.random.default_rng(5), {"1": 300, "2": 300, "3": 300})
    numbers = pa.array([int(label) for label in table["logger"].to_pylist()])
    table = table.set_column(0, "logger", numbers)
    pq.write_table(table, tmp_path / "log.parquet")
    of_file, of_table = (
        evaluate(log_of(source, ("1", "2", "3"), reward="logger"), {"t": "t"})
        for source in (str(tmp_path / "log.parquet"), table)
    )
    assert_same(of_file, of_table)


@pytest.mark.parametrize("source", ["sys.argv[1]", "{'a': sys.argv[1]}"])
def test_files_are_evaluated_without_pandas(path: str, source: str) -> None:
    loggers = "propensities={'a': 'p_a', 'b': 'p_b', 'c': 'p_c'}"
    labels = "" if source.startswith("{") else "logger='logger', "
    program = (
        f"import sys, poolwise as pw; log = pw.Log({source}, reward='reward', {labels}"
        f"propensity='p', {loggers if labels else ''}); pw.evaluate(log, {{'t': 't'}});"
        "sys.exit('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, path], check=False)
    assert done.returncode == 0


def test_only_so_many_labels_are_kept() -> None:
    labels = KeptLabels(most=10)
    part = (["x", "y", None], np.array([0, 1, 1, 0, 1, 1], dtype=np.int8))
    labels.keep([(("first",), 2), (("second",), 4)], [part])
    labels.keep([(("third",), 6)], [part])
    kept = [labels.get((key,)) for key in ("first", "second", "third")]
    assert [k and k.to_pylist() for k in kept] == [["x", "y"], ["y", "x", "y", "y"], None]


def test_missing_labels_are_not_kept() -> None:
    labels = KeptLabels()
    labels.keep([(("first",), 2)], [(["x", None], np.array([0, 1], dtype=np.int8))])
    assert labels.get(("first",)) is None
