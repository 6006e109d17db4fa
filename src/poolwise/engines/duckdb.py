"""DuckDB: the embedded engine, and the default.

It counts each logger's rows first, since they fix the mixture, and then reads the log
once, batch by batch, through the kernel.  A log with bad rows is recognised in that same
pass and never averaged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from poolwise.engines.parallel import Pass, workers
from poolwise.engines.query import CHANGED, QueryRows
from poolwise.engines.sums import Sums, bucketed_moments, moments_of
from poolwise.engines.workspace import MOST_ROWS, Workspace
from poolwise.errors import EngineError, LogError
from poolwise.moments.terms import unite
from poolwise.rows.guard import lock, refuse_reaching
from poolwise.rows.guessed import literal
from poolwise.rows.learn import NOTHING, Extra, Fill, learn
from poolwise.rows.output import stage
from poolwise.rows.reader import (
    BadRowsError,
    Files,
    Frame,
    feed_of,
    frame_of,
    layout_of,
    plain_columns,
)
from poolwise.rows.roles import Roles, assign
from poolwise.rows.rules import row_steps, rows_name
from poolwise.rows.scored import keep_batches, scored_batches, write_batches
from poolwise.rows.sources import create_view, first_line, plain_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.errors import Finding
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.moments import Moments
    from poolwise.moments.terms import Needs
    from poolwise.rows.reader import Layout
    from poolwise.rows.rules import RoleColumns

STREAM_ROWS = 131_072  # rows of one batch that DuckDB hands to the kernel


@dataclass(frozen=True)
class DuckDB:
    """Evaluates files, frames and queries in this process.

    Attributes:
        threads: Threads to use; 0 means one for each core.
        memory_limit: Such as "2GB"; empty means DuckDB's own choice.
        batch_rows: Largest number of rows that a thread works on at once.
    """

    threads: int = 0
    memory_limit: str = ""
    batch_rows: int = MOST_ROWS

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NOTHING
    ) -> Iterator[DuckDBRows]:
        """Open a log with its targets; policies in Python are scored on the way.

        What `extra` asks for is learned from the rows first, and scored with them. A table
        in memory may need no query at all, so for it DuckDB starts with the first one.
        """
        frame = plain_frame(log)
        roles = None if frame is None else _roles(log, targets, frame.schema.names, extra)
        if roles is None or roles.scored or extra.learners:
            with self._open_now(log, targets, extra) as rows:
                yield rows
            return
        with ExitStack() as stack:

            @cache
            def connect() -> duckdb.DuckDBPyConnection:
                connection, *_ = stack.enter_context(self._opened(log, targets, extra))
                lock(connection)
                return connection

            yield DuckDBRows(roles.table, connect, None, frame, (), self)

    @contextmanager
    def _open_now(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra
    ) -> Iterator[DuckDBRows]:
        with self._opened(log, targets, extra) as (connection, folder, named):
            roles = named
            notes: tuple[Finding, ...] = ()
            files, frame = plain_files(connection, log), plain_frame(log)
            path = folder / "scored.parquet"
            if extra.learners:
                _fix_order(connection, log, folder / "log.parquet")
                fill = learn(connection, roles, extra)
                roles, frame = _score(connection, log, roles, path, fill)
                notes = tuple(note for fit in fill.fitted for note in fit.findings())
            elif roles.scored:
                plain = files if frame is None else frame
                roles, frame = _score(connection, log, roles, path, plain=plain)
            if roles is not named:
                files = ((str(path), None),) if frame is None else None
            lock(connection)
            yield DuckDBRows(roles.table, lambda: connection, files, frame, notes, self)

    def score(
        self,
        log: Log,
        targets: Mapping[str, PolicyLike],
        path: Path,
        name: Callable[[Roles], Mapping[str, str]],
    ) -> tuple[Roles, Mapping[str, str]]:
        """Write all columns and those of the policies, under the names that `name` gives."""
        with self._opened(log, targets) as (connection, _, roles):
            names = name(roles)
            batches = scored_batches(connection, log, roles, roles.columns)
            every = (*roles.columns, *names)
            write_batches(batches, path, {c: names.get(c, c) for c in every})
            return roles, names

    @contextmanager
    def _opened(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NOTHING
    ) -> Iterator[tuple[duckdb.DuckDBPyConnection, Path, Roles]]:
        """A connection that sees the log and nothing else, a folder, and the roles."""
        with (
            _stoppable(),
            tempfile.TemporaryDirectory(prefix="poolwise-") as folder,
            duckdb.connect(config=self._config(folder)) as connection,
        ):
            roles = _roles(log, targets, create_view(connection, log, Path(folder)), extra)
            yield connection, Path(folder), roles

    def _config(self, folder: str) -> dict[str, str | bool | int | float | list[str]]:
        config: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": folder,
        }
        if self.threads:
            config["threads"] = self.threads
        if self.memory_limit:
            config["memory_limit"] = self.memory_limit
        return config


def _roles(
    log: Log, targets: Mapping[str, PolicyLike], columns: Sequence[str], extra: Extra
) -> Roles:
    roles = assign(log, targets, columns, _named("log"), extra)
    refuse_reaching(roles.table)
    return roles


def plain_frame(log: Log) -> pa.Table | None:
    """The one Arrow table that is the log, if it is one whose names differ for DuckDB too."""
    frame = log.parts[0].value
    if len(log.parts) > 1 or not isinstance(frame, pa.Table) or isinstance(log.source, Mapping):
        return None
    names = {name.lower() for name in frame.schema.names}
    return frame if len(names) == frame.num_columns else None


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C while a query runs: DuckDB turns it into an error of its own."""
    try:
        yield
    except RuntimeError as reason:
        if str(reason) == "Query interrupted":
            raise KeyboardInterrupt from reason
        raise


def _named(name: str) -> exp.Table:
    return exp.to_table(name)


def _fix_order(connection: duckdb.DuckDBPyConnection, log: Log, path: Path) -> None:
    """Write what a query returns to a file: it may return other rows the second time."""
    if any(part.kind == "select" for part in log.parts):
        connection.execute(f"COPY (FROM log) TO {literal(str(path))} (FORMAT parquet)")
        source = f"read_parquet({literal(str(path))})"
        connection.execute(f"CREATE OR REPLACE TEMP VIEW log AS FROM {source}")


def _score(
    connection: duckdb.DuckDBPyConnection,
    log: Log,
    roles: Roles,
    path: Path,
    fill: Fill | None = None,
    plain: Files | pa.Table | None = None,
) -> tuple[Roles, pa.Table | None]:
    """The needed columns with the policies' probabilities beside them.

    Returns them as a table where the rows are few; others are written to a file.
    """
    names = list(dict.fromkeys([*roles.needed, *roles.context]))
    kept = [*roles.queried, *roles.scored, *(fill.columns if fill else ())]
    batches = scored_batches(connection, log, roles, names, fill, plain)
    frame = keep_batches(batches, path, kept)
    if frame is None:
        source = f"read_parquet({literal(str(path))})"
        connection.execute(f"CREATE TEMP VIEW scored AS FROM {source}")
    else:
        connection.register("scored", frame)
    table = replace(roles.table, relation=_named("scored"))
    return replace(roles, table=table, scored={}), frame


@dataclass(frozen=True, eq=False)
class DuckDBRows(QueryRows):
    """An open log; answers what `engines.base.Rows` promises.

    Attributes:
        connect: Opens the connection where the view of the log is; always the same one.
        files: Parquet files that hold the rows as they are, each with the label of its
            rows where no column has it; None where DuckDB must read them.
        frame: Table in memory that holds them as they are, or None.
        notes: What was found on the way to these rows.
        engine: How to go through them.
    """

    connect: Callable[[], duckdb.DuckDBPyConnection]
    files: Files | None = None
    frame: pa.Table | None = None
    notes: tuple[Finding, ...] = ()
    engine: DuckDB = field(default_factory=DuckDB)

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        return self.connect()

    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        text = query.sql(dialect="duckdb")
        try:
            result = self.connection.execute(text)
            names = [str(d[0]) for d in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
        except duckdb.Error as reason:
            raise EngineError("DuckDB", text, RuntimeError(first_line(reason))) from reason

    @property
    def by_kernel(self) -> bool:
        return True

    def _bucket(self, buckets: int) -> Expression:
        place: Expression = exp.Window(this=exp.RowNumber())
        if self.table.cluster is not None:
            unit = exp.cast(self.table.cluster.copy(), "varchar")
            place = exp.Anonymous(this="hash", expressions=[unit])
        return exp.cast(exp.Mod(this=place, expression=exp.convert(buckets)), "int")

    def without(self, logger: str) -> DuckDBRows:
        """The same rows without those of one logger, and without it in the mixture."""
        return replace(super().without(logger), files=None, frame=None)

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Moments of each logger: batches of rows go through the kernel, in threads."""
        layout = layout_of(self.table, self.counts)
        workspace = Workspace(needs, self.engine.batch_rows)
        found = moments_of(self._sums(layout, workspace, self._read), workspace, self.counts)
        if found is None:
            raise LogError([CHANGED])
        return found

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> list[list[dict[str, Moments]]]:
        """Moments of each bucket and logger, without tails and histograms."""
        table = replace(self.table, bucket=self._bucket(buckets))
        layout = replace(layout_of(table, self.counts), buckets=buckets)
        united = replace(unite(needs), tails=(), histograms=())
        workspace = Workspace(united, self.engine.batch_rows)
        sums = self._sums(layout, workspace, partial(self._stream, table=table))
        moments = bucketed_moments(sums, workspace, needs, self.counts)
        if moments is None:
            raise LogError([CHANGED])
        return moments

    def _sums(self, layout: Layout, workspace: Workspace, read: Callable[[Pass], Sums]) -> Sums:
        """Sums over all rows, as one way of reading gives them."""
        rows = sum(self.counts.values())
        try:
            with stage("reading", rows) as advance:
                return read(Pass(layout, workspace, self.engine.threads, advance))
        except BadRowsError:
            raise LogError(self.check() or (CHANGED,)) from None
        except (pa.ArrowException, OSError) as reason:
            raise EngineError("pyarrow", "reading Parquet", reason) from reason

    def _read(self, reading: Pass) -> Sums:
        """All rows, by the shortest way that they can take."""
        feed = feed_of(self.table, self.files, tuple(self.counts))
        if feed is not None:
            return reading.parquet(feed)
        coded = self._coded
        if coded is not None:
            return reading.arrow(coded.parts)
        return self._stream(reading, self.table)

    @cached_property
    def _coded(self) -> Frame | None:
        """The table in memory, where it can be read as it is."""
        columns, label = plain_columns(self.table), self.table.logger
        if self.frame is None or columns is None or not isinstance(label, exp.Column):
            return None
        return frame_of(self.frame, columns, label.name, workers(self.engine.threads))

    def _count(self, table: RoleColumns) -> dict[str | None, int]:
        return super()._count(table) if self._coded is None else self._coded.counts

    def _stream(self, reading: Pass, table: RoleColumns) -> Sums:
        """All rows through DuckDB, as batches."""
        query = exp.select("*").from_(rows_name(table))
        for name, step in row_steps(table):
            query = query.with_(name, as_=step)
        text = query.sql(dialect="duckdb")
        try:
            reader: Any = self.connection.sql(text).to_arrow_reader(STREAM_ROWS)
            try:
                return reading.arrow([batch] for batch in reader)
            finally:
                reader.close()  # the connection answers one query at a time
        except (duckdb.Error, pa.ArrowException) as reason:
            raise EngineError("DuckDB", text, RuntimeError(first_line(reason))) from reason
