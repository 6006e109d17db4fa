"""A log without a SELECT reads its own files and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise import Log, evaluate
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import PoolwiseError, SourceError, UsageError
from poolwise.rows.guard import close_files, lock
from tests.support.messages import refused
from tests.support.reference import log_of, random_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TABLE: pa.Table = random_table(np.random.default_rng(30), {"a": 30, "b": 20})
SECRET = "correct horse battery staple"  # noqa: S105 - the bait


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log, and a file that is not part of it."""
    pq.write_table(TABLE, tmp_path / "log.parquet")
    (tmp_path / "secret.txt").write_text(SECRET, "utf-8")
    (tmp_path / "secret.csv").write_text(f"a\n{SECRET}\n", "utf-8")
    return tmp_path


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def rows_of(log: Log) -> dict[str, int]:
    return dict(evaluate(log, "t").rows)


TABLE_THAT_IS_A_VARIABLE = TABLE


@pytest.mark.parametrize(
    "text",
    [
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 1",
        "PRAGMA database_list",
        "COPY (SELECT 1) TO 'out.csv'",
        "SELECT 1; ATTACH 'other.db'",
    ],
)
def test_statements_that_change_something_are_refused(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    with pytest.raises(PoolwiseError):
        evaluate(log_of(text), "t")
    assert sorted(folder.iterdir()) == before


def test_a_select_reads_what_its_author_may_read(folder: Path) -> None:
    select = f"""
        SELECT l.*, length(s.content) > 0 AS open
        FROM '{folder}/log.parquet' l, read_text('{folder}/secret.txt') s
    """
    assert rows_of(log_of(select)) == {"a": 30, "b": 20}


def test_after_a_select_was_opened_no_setting_changes(folder: Path) -> None:
    with (
        DuckDB().open(log_of(f"FROM '{folder}/log.parquet'"), {"target": "t"}) as rows,
        pytest.raises(duckdb.Error, match="locked"),
    ):
        rows.connection.execute("SET threads = 1")


ROLES = [
    "(SELECT content FROM read_text('secret.txt'))",
    "reward + (SELECT 1 FROM 'secret.csv')",
    "exists(FROM glob('*'))",
    "length(getenv('HOME'))",
    "length(current_setting('temp_directory'))",
    "length(read_text('secret.txt'))",
]


@pytest.mark.parametrize("expression", ROLES)
def test_a_role_cannot_reach_beyond_its_row(
    expression: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with refused(UsageError):
        evaluate(log_of("log.parquet", reward=expression), "t")


def test_the_refusal_names_the_target_too() -> None:
    with refused(UsageError):
        evaluate(log_of(TABLE), {"new": "length(getenv('HOME')) / 100"})


def opens(log: Log, query: str) -> list[tuple[object, ...]]:
    """Run a query in DuckDB while a log is open."""
    with DuckDB().open(log, {"target": "t"}) as rows:
        return rows.connection.execute(query).fetchall()


@pytest.mark.parametrize(
    "query",
    [
        "FROM read_text('secret.txt')",
        "FROM 'secret.csv'",
        "FROM glob('*')",
        "FROM read_text('/etc/hostname')",
        "COPY (SELECT 1) TO 'out.csv'",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET allowed_paths = ['secret.txt']",
        "SET threads = 1",
        "FROM TABLE_THAT_IS_A_VARIABLE",
        "FROM 'https://example.org/a.csv'",
    ],
)
@pytest.mark.parametrize("source", ["log.parquet", TABLE], ids=type)
def test_an_open_log_is_closed_to_everything_else(
    query: str, source: object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(duckdb.Error):
        opens(log_of(source), query)
    assert sorted(p.name for p in folder.iterdir()) == [
        "log.parquet",
        "secret.csv",
        "secret.txt",
    ]


EXPECTED = {"a": 30, "b": 20}


def test_relative_paths_links_and_globs_stay_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = folder / "elsewhere" / "day=1"
    logs.mkdir(parents=True)
    (folder / "log.parquet").rename(logs / "log.parquet")
    (folder / "link.parquet").symlink_to(logs / "log.parquet")
    (folder / "linked").symlink_to(folder / "elsewhere", target_is_directory=True)
    monkeypatch.chdir(folder)
    for source in (
        "link.parquet",
        "./link.parquet",
        "*.parquet",
        "linked",
        "linked/**/*.parquet",
        "elsewhere/../linked/day=*/l?g.parquet",
        "FROM 'linked/*/*.parquet'",
        "FROM read_parquet(['link.parquet'], hive_partitioning = true)",
        f"FROM '{logs}/[l]og.parquet'",
        f"FROM 'file://{logs}/log.parquet'",
    ):
        assert rows_of(log_of(source)) == EXPECTED, source


def test_a_glob_opens_its_files_and_not_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    pq.write_table(TABLE, "not-mine.parquet")
    log = log_of("lo*.parquet")
    assert opens(log, "SELECT count(*) FROM 'log.parquet'") == [(50,)]
    with pytest.raises(duckdb.PermissionException):
        opens(log, "FROM 'not-mine.parquet'")


def test_a_link_to_another_file_is_not_a_way_out(folder: Path) -> None:
    (folder / "logs").mkdir()
    (folder / "logs" / "way-out.csv").symlink_to(folder / "secret.csv")
    with duckdb.connect(config={"temp_directory": str(folder / "logs")}) as connection:
        close_files(connection, [], [])
        with pytest.raises(duckdb.PermissionException):
            connection.execute(f"FROM '{folder}/logs/way-out.csv'")


def test_of_a_remote_glob_what_comes_before_the_star_is_open(
    monkeypatch: pytest.MonkeyPatch, connection: duckdb.DuckDBPyConnection
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(
        "poolwise.rows.guard.load_extension", lambda _c, name, _s: loaded.append(name)
    )
    files = ["s3://b/logs/2*/x.parquet", "https://h/a.csv?x=1", "az://c/log.parquet"]
    close_files(connection, files, [])
    assert sorted(loaded) == ["azure", "httpfs"]
    for path in ["s3://b/logs/2025/x.parquet", *files[1:]]:
        assert not is_closed(connection, path)
    for path in ["s3://b/x.parquet", "s3://b/logs/../x.csv", "https://h/a.csv", "az://c/x.csv"]:
        assert is_closed(connection, path)


def is_closed(connection: duckdb.DuckDBPyConnection, path: str) -> bool:
    """Test if DuckDB refuses a path; an allowed one fails without network."""
    with pytest.raises(duckdb.Error) as caught:
        connection.execute(f"FROM read_csv('{path}')")
    return isinstance(caught.value, duckdb.PermissionException)


def test_policies_in_python_and_sorting_on_disk_still_work(folder: Path) -> None:
    """The temporary files of poolwise are in its own folder, which stays open."""
    path = folder / "many.parquet"
    many = pa.concat_tables([TABLE] * 2_000).combine_chunks()
    pq.write_table(many.append_column("x", pa.array(np.arange(100_000.0))), path)
    log = Log(
        f"SELECT * FROM '{path}' ORDER BY x",
        reward="reward",
        logger="logger",
        propensity="p",
        action="x",
        context=["x"],
    )
    found = evaluate(log, lambda batch: np.full(len(batch), 0.5), "naive")
    assert found.rows == {"a": 60_000, "b": 40_000}
    with DuckDB(memory_limit="60MB", threads=1).open(log, {"target": "t"}) as rows:
        query = "SELECT count(*) FROM (SELECT DISTINCT repeat(x::VARCHAR, 20) FROM log)"
        assert rows.connection.execute(query).fetchall() == [(100_000,)]


def test_a_frame_is_read_and_its_variable_is_not() -> None:
    mine = TABLE
    assert rows_of(log_of(mine)) == EXPECTED
    with refused(SourceError):
        evaluate(log_of("SELECT * FROM mine"), "t")


def test_settings_are_closed_and_locked(connection: duckdb.DuckDBPyConnection) -> None:
    close_files(connection, [], [])
    lock(connection)
    names = (
        "enable_external_access",
        "autoinstall_known_extensions",
        "autoload_known_extensions",
    )
    asked = ", ".join(f"current_setting('{name}')" for name in names)
    assert connection.execute(f"SELECT {asked}").fetchall() == [(False,) * len(names)]
    with pytest.raises(duckdb.Error, match="locked"):
        connection.execute("SET threads = 1")


@pytest.mark.parametrize("depth", [50, 900])
def test_a_deep_select_is_refused_or_read_and_never_a_traceback(
    depth: int, folder: Path
) -> None:
    text = f"SELECT *, {' + '.join(['p'] * depth)} AS x FROM '{folder}/log.parquet'"
    try:
        assert rows_of(log_of(text)) == EXPECTED
    except UsageError as error:
        assert "nested too deeply" in str(error)  # noqa: PT017 - either is right


def test_nothing_changes_for_the_process(folder: Path) -> None:
    """The limits apply to one connection, not to other connections of DuckDB."""
    log = log_of(str(folder / "log.parquet"))
    evaluate(log, "t")
    with duckdb.connect() as other:
        assert other.execute(f"FROM read_text('{folder}/secret.txt')").fetchall()
