"""PostgreSQL for tests: a server on this machine that stops after the tests.

It comes from Debian's packages, keeps its data in a temporary folder and listens on
loopback only.  `PostgresEngine` puts a log's frame into a table and reads it back through
the warehouse engine, so that every test of engines runs on a real database.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from poolwise.engines.base import Engine
from poolwise.engines.warehouse import Warehouse
from poolwise.rows.learners import NO_EXTRA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from poolwise.engines.answer import WarehouseRows
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.rows.learners import Extra

START_SECONDS = 30
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=20")


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        port: Port on 127.0.0.1.
        folder: Where its data and its log are.
        process: The process that was started.
    """

    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=poolwise dbname=postgres"

    @property
    def uri(self) -> str:
        return f"postgresql://poolwise@127.0.0.1:{self.port}/postgres"

    def connect(self, *, autocommit: bool = False) -> Any:  # noqa: ANN401 - an optional package
        psycopg = pytest.importorskip("psycopg")
        return psycopg.connect(self.address, autocommit=autocommit)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # SIGTERM would wait for clients
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def server() -> Server:
    """The server of this test process; skips the test where there can be none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        pytest.skip("PostgreSQL is not installed: scripts/system.sh postgresql")
    pytest.importorskip("psycopg")
    started = _start(found[-1].parent)
    atexit.register(started.stop)
    return started


def _start(programs: Path) -> Server:
    """Make a database and start its server; it refuses to run as root."""
    folder = Path(tempfile.mkdtemp(prefix="poolwise-postgres-"))
    prefix = _prefix(folder)
    data, port = folder / "data", _free_port()
    subprocess.run(
        [
            *prefix,
            programs / "initdb",
            *("-D", data, "-U", "poolwise", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"),
        ],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    settings = [part for setting in QUICK for part in ("-c", setting)]
    listen = ["-h", "127.0.0.1", "-p", str(port), "-k", ""]
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(
            [*prefix, programs / "postgres", "-D", data, *listen, *settings],
            stdout=output,
            stderr=output,
            cwd=folder,
        )
    started = Server(port, folder, process)
    try:
        _wait(started)
    except BaseException:
        started.stop()
        raise
    return started


def _prefix(folder: Path) -> list[str]:
    """Return the command prefix that ends a program with this process, and drops root."""
    setpriv = shutil.which("setpriv")
    root = os.geteuid() == 0
    if setpriv is None:
        if root:
            pytest.skip("PostgreSQL refuses to run as root, and there is no setpriv")
        return []
    ids = []
    if root:
        names = {user.pw_name for user in pwd.getpwall()}
        user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return [setpriv, "--pdeathsig=INT", *ids, "--"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(started: Server) -> None:
    import psycopg

    until = time.monotonic() + START_SECONDS
    while True:
        try:
            started.connect().close()
        except psycopg.OperationalError:
            if time.monotonic() > until or started.process.poll() is not None:
                shown = (started.folder / "server.log").read_text("utf-8", errors="replace")
                pytest.fail(f"PostgreSQL did not start:\n{shown[-2_000:]}")
            time.sleep(0.05)
        else:
            return


TYPES = {
    "double": "double precision",
    "timestamp[s, tz=UTC]": "timestamptz",
    "string": "text",
    "large_string": "text",
    "int64": "bigint",
    "int32": "integer",
    "int16": "smallint",
    "int8": "smallint",
    "float": "real",
    "bool": "boolean",
    "list<item: string>": "text[]",
    "list<element: string>": "text[]",
}


def load(connection: Any, table: pa.Table, name: str) -> None:  # noqa: ANN401 - as above
    """Put a frame into a temporary table."""
    kinds = {f.name: TYPES.get(str(f.type), "double precision[]") for f in table.schema}
    listed = ", ".join(f"{_quoted(column)} {kind}" for column, kind in kinds.items())
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {name}")
        cursor.execute(f"CREATE TEMP TABLE {name} ({listed})")
        with cursor.copy(f"COPY {name} FROM STDIN") as copy:
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                copy.write_row(row)
    connection.commit()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class PostgresEngine(Engine):
    """Reads a log whose source is an Arrow table through PostgreSQL."""

    widest: int = 700

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NO_EXTRA
    ) -> Iterator[WarehouseRows]:
        with server().connect() as connection:
            load(connection, frame(log), "log_of_test")
            there = replace(log, source=None, table="log_of_test", connection=connection)
            with Warehouse(widest=self.widest).open(there, targets, extra) as rows:
                yield rows


@dataclass(frozen=True)
class DuckDBConnection(Engine):
    """Reads such a log through the warehouse engine over a DuckDB connection."""

    widest: int = 700

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NO_EXTRA
    ) -> Iterator[WarehouseRows]:
        with duckdb.connect() as connection:
            connection.register("log_of_test", frame(log))
            there = replace(log, source=None, table="log_of_test", connection=connection)
            with Warehouse(widest=self.widest).open(there, targets, extra) as rows:
                yield rows


def frame(log: Log) -> pa.Table:
    """The Arrow table that a log of the tests reads."""
    if not isinstance(log.source, pa.Table):
        pytest.skip("a database of the tests holds one Arrow table")
    return log.source
