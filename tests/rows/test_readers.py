"""Files and frames: encodings, decimal commas, partitions, types, remote files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

from poolwise import Log, evaluate
from poolwise.errors import LogError, MissingColumnError, PoolwiseError, SourceError
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TABLE = pa.table(
    {
        "logger": ["größe", "größe", "b", "b"],
        "reward": [1.0, 0.0, 1.0, 3.0],
        "p": [0.5, 0.25, 0.5, 0.75],
        "t": [0.5, 0.5, 0.25, 0.75],
    }
)
EXACT = (1 * 1 + 2 * 0 + 0.5 * 1 + 1 * 3) / 4  # each weight times its reward
COMMAS = "logger;reward;p;t\ngröße;1,0;0,5;0,5\ngröße;0;0,25;0,5\nb;1;0,5;0,25\nb;3;0,75;0,75\n"
EUROPEAN = {"delim": ";", "decimal_separator": ","}


def naive(source: object, **roles: Any) -> float:  # noqa: ANN401
    log = Log(source, **({"logger": "logger", "reward": "reward", "propensity": "p"} | roles))
    found = evaluate(log, "t", "naive")
    assert found.rows in ({"b": 2, "größe": 2}, {"1": 2, "2": 2})
    return found["target"].estimates["naive"].value


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """DuckDB without extensions, and without permission to download any."""
    connect = duckdb.connect
    rules = {"autoinstall_known_extensions": False, "extension_directory": str(tmp_path)}

    def without(config: dict[str, Any]) -> duckdb.DuckDBPyConnection:
        return connect(config=config | rules)

    monkeypatch.setattr(duckdb, "connect", without)


@pytest.mark.parametrize(
    ("encoding", "options"),
    [
        ("utf-8", {}),
        ("utf-8-sig", {}),
        ("latin-1", {"encoding": "latin-1"}),
        ("utf-16", {"encoding": "utf-16"}),
    ],
)
def test_encodings_and_decimal_commas_are_options(
    encoding: str, options: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(COMMAS.encode(encoding))
    assert naive(path, reader_options=EUROPEAN | options) == pytest.approx(EXACT, rel=1e-12)


@pytest.mark.usefixtures("offline")
def test_an_encoding_that_duckdb_does_not_know_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(COMMAS.encode("cp1252"))
    with refused(SourceError):
        naive(path, reader_options=EUROPEAN | {"encoding": "windows-1252"})


def test_an_option_that_the_reader_does_not_have_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(COMMAS, "utf-8")
    with refused(SourceError):
        naive(path, reader_options={"decimal": ","})


def test_a_wrong_encoding_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(COMMAS.encode("latin-1"))
    with refused(SourceError):
        naive(path, reader_options=EUROPEAN)


def test_decimal_commas_that_nobody_announced_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(COMMAS, "utf-8")
    with refused(PoolwiseError):
        naive(path, reader_options={"delim": ";"})


def test_a_partition_may_be_the_logger(tmp_path: Path) -> None:
    pq.write_to_dataset(TABLE, tmp_path / "logs", partition_cols=["logger"])
    told = {"hive_partitioning": True}
    assert naive(tmp_path / "logs", reader_options=told) == pytest.approx(EXACT, rel=1e-12)
    glob = f"{tmp_path}/logs/*/*.parquet"
    assert naive(glob, reader_options=told) == pytest.approx(EXACT, rel=1e-12)
    assert naive(tmp_path / "logs") == pytest.approx(EXACT, rel=1e-12)
    with refused(MissingColumnError):
        naive(tmp_path / "logs", reader_options={"hive_partitioning": False})


def test_partitions_may_be_numbers_and_nested(tmp_path: Path) -> None:
    numbered = TABLE.set_column(0, "version", pa.array([1, 1, 2, 2]))
    dated = numbered.append_column("day", pa.array(["2024-01-01", "2024-01-02"] * 2))
    pq.write_to_dataset(dated, tmp_path / "logs", partition_cols=["version", "day"])
    assert naive(tmp_path / "logs", logger="version") == pytest.approx(EXACT, rel=1e-12)


def categories() -> pd.DataFrame:
    frame: pd.DataFrame = TABLE.to_pandas()
    return frame.convert_dtypes().astype({"logger": "category"})


FRAMES: dict[str, Callable[[], object]] = {
    "pandas": TABLE.to_pandas,
    "pandas, nullable and categories": categories,
    "pandas on Arrow": lambda: TABLE.to_pandas().convert_dtypes(dtype_backend="pyarrow"),
    "Polars": lambda: pl.from_arrow(TABLE),
    "Polars, lazy": lambda: pl.DataFrame(TABLE.to_pydict()).lazy(),
    "Polars, categories": lambda: pl.DataFrame(
        TABLE.to_pydict(), schema_overrides={"logger": pl.Categorical}
    ),
    "Polars, an enumeration": lambda: pl.DataFrame(
        TABLE.to_pydict(), schema_overrides={"logger": pl.Enum(["größe", "b"])}
    ),
    "Polars, decimals": lambda: pl.DataFrame(TABLE.to_pydict()).with_columns(
        pl.col("p").cast(pl.Decimal(10, 4))
    ),
    "Arrow": lambda: TABLE,
    "Arrow, a batch": lambda: TABLE.to_batches()[0],
    "Arrow, a dictionary": lambda: TABLE.set_column(
        0, "logger", TABLE["logger"].dictionary_encode()
    ),
    "Arrow, float32": lambda: TABLE.set_column(2, "p", TABLE["p"].cast(pa.float32())),
    "Arrow, integers": lambda: TABLE.set_column(1, "reward", TABLE["reward"].cast(pa.uint8())),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_of_every_kind_give_the_same_number(kind: str) -> None:
    assert naive(FRAMES[kind]()) == pytest.approx(EXACT, rel=1e-12)


def test_an_arrow_dataset_is_a_frame(tmp_path: Path) -> None:
    """The way to read remote places with the credentials that pyarrow finds."""
    pq.write_to_dataset(TABLE, tmp_path / "logs", partition_cols=["logger"])
    dataset = pds.dataset(tmp_path / "logs", partitioning="hive")
    assert naive(dataset) == pytest.approx(EXACT, rel=1e-12)


def test_a_missing_value_of_a_nullable_type_is_a_fault() -> None:
    frame = categories()
    frame.loc[1, "p"] = pd.NA
    with refused(LogError):
        naive(frame)


def test_an_index_is_no_column() -> None:
    with refused(MissingColumnError):
        naive(TABLE.to_pandas().set_index("logger"))


def test_logarithms_serve_in_every_frame() -> None:
    logs = {name: np.log(TABLE[name].to_numpy()) for name in ("p", "t")}
    frame = TABLE.to_pandas().assign(**logs)
    for source in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        found = naive(source, log_probabilities=True)
        assert found == pytest.approx(EXACT, rel=1e-12)


REMOTE = {
    "s3://bucket/logs/*.parquet": "httpfs",
    "gs://bucket/log.csv": "httpfs",
    "https://example.org/log.jsonl": "httpfs",
    "az://container/log.parquet": "azure",
    "SELECT * FROM delta_scan('s3://bucket/table')": "delta",
    "SELECT * FROM iceberg_scan('table')": "iceberg",
}


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("source", REMOTE)
def test_without_its_extension_a_place_is_refused_in_one_line(source: str) -> None:
    with pytest.raises(SourceError) as caught:
        naive(source)
    assert "\n" not in str(caught.value)
    assert f"extension '{REMOTE[source]}" in str(caught.value)
    if not source.startswith("SELECT"):
        assert repr(source) in str(caught.value)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("source", REMOTE)
def test_the_refusal_says_how_to_get_the_extension(source: str) -> None:
    with refused(SourceError):
        naive(source)


@pytest.mark.parametrize("source", [s for s in REMOTE if not s.startswith("SELECT")])
def test_an_address_reaches_duckdb_as_it_is(source: str) -> None:
    (part,) = Log(source, reward="reward", propensity="p").parts
    assert part.value == (source,)


def write_delta(folder: Path) -> Path:
    """A Delta table of one version: a Parquet file and the log that names it."""
    pq.write_table(TABLE, folder / "part.parquet")
    pq.write_table(TABLE, folder / "removed.parquet")  # no version has it
    text = [
        {"name": "logger", "type": "string", "nullable": True, "metadata": {}},
        *(
            {"name": name, "type": "double", "nullable": True, "metadata": {}}
            for name in ("reward", "p", "t")
        ),
    ]
    entries = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "6f1b6c0e-0000-4000-8000-000000000001",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": text}),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": 0,
            }
        },
        {
            "add": {
                "path": "part.parquet",
                "partitionValues": {},
                "size": (folder / "part.parquet").stat().st_size,
                "modificationTime": 0,
                "dataChange": True,
            }
        },
    ]
    log = folder / "_delta_log" / "00000000000000000000.json"
    log.parent.mkdir()
    log.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), "utf-8")
    return folder


def test_a_delta_table_is_read_where_the_extension_is_there(tmp_path: Path) -> None:
    with duckdb.connect(config={"autoinstall_known_extensions": False}) as connection:
        query = "SELECT installed FROM duckdb_extensions() WHERE extension_name = 'delta'"
        row = connection.execute(query).fetchone()
    if row is None or not row[0]:
        pytest.skip("DuckDB's extension 'delta' is not installed: run INSTALL delta once")
    source = f"SELECT * FROM delta_scan('{write_delta(tmp_path)}')"
    assert naive(source) == pytest.approx(EXACT, rel=1e-12)
