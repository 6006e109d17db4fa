"""DuckDB: the embedded engine, and the default.

It counts each logger's rows first, since they fix the mixture, and then reads the log
once, batch by batch, through the kernel.  A log with bad rows is recognised in that same
pass and never averaged.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from poolwise.engine.answer import refuse_infinite
from poolwise.engine.base import NOTHING, Extra
from poolwise.engine.feed import ParquetFeed, plain_columns, readable
from poolwise.engine.kernel import BadRowsError
from poolwise.engine.layout import layout_of
from poolwise.engine.learned import Fill, learn, reading_query, with_folds
from poolwise.engine.parallel import Pass
from poolwise.engine.program import Program
from poolwise.engine.query import QueryRows
from poolwise.engine.roles import Roles, assign
from poolwise.engine.rows import row_steps, rows_name
from poolwise.engine.sources import create_view, first_line, literal, plain_files
from poolwise.engine.sums import Sums, to_moments
from poolwise.errors import EngineError, Fault, LogError
from poolwise.moments import LONGEST_TAIL, Moments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlglot.expressions import Expr as Expression

    from poolwise.findings import Finding
    from poolwise.log import Log
    from poolwise.policy import PolicyLike
    from poolwise.terms import Needs

SCORING_ROWS = 65_536  # rows of one batch that goes to a policy in Python
STREAM_ROWS = 131_072  # rows of one batch that DuckDB hands to the kernel


@dataclass(frozen=True)
class DuckDB:
    """Evaluates files, frames and queries in this process.

    Attributes:
        threads: Threads to use; 0 means one for each core.
        memory_limit: Such as "2GB"; empty means DuckDB's own choice.
    """

    threads: int = 0
    memory_limit: str = ""

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NOTHING
    ) -> Iterator[DuckDBRows]:
        """Open a log with its targets; policies in Python are scored on the way.

        What `extra` asks for is learned from the rows first, and scored with them.
        """
        with (
            tempfile.TemporaryDirectory(prefix="poolwise-") as folder,
            duckdb.connect(config=self._config(folder)) as connection,
        ):
            columns = create_view(connection, log)
            roles = assign(log, targets, columns, _named("log"), extra)
            notes: tuple[Finding, ...] = ()
            files = plain_files(connection, log)
            path = Path(folder) / "scored.parquet"
            if extra.learners:
                _fix_order(connection, log, Path(folder) / "log.parquet")
                fill = learn(connection, roles, extra)
                roles = _score(connection, log, roles, path, fill)
                notes = tuple(note for fit in fill.fitted for note in fit.findings())
            elif roles.scored:
                roles = _score(connection, log, roles, path)
            if path.exists():
                files = ((str(path), None),)
            yield DuckDBRows(roles.table, connection, files, self.threads, notes)

    def _config(self, folder: str) -> dict[str, str | bool | int | float | list[str]]:
        config: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": folder,
            "preserve_insertion_order": False,
        }
        if self.threads:
            config["threads"] = self.threads
        if self.memory_limit:
            config["memory_limit"] = self.memory_limit
        return config


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
) -> Roles:
    """Write the needed columns with the policies' probabilities beside them."""
    import pyarrow.parquet as pq

    from poolwise.score import score

    names = list(dict.fromkeys([*roles.needed, *roles.context]))
    columns = ", ".join(f'"{n.replace(chr(34), chr(34) * 2)}"' for n in names)
    query = f"SELECT {columns} FROM log" if fill is None else reading_query(roles)
    reader: Any = connection.sql(query).to_arrow_reader(SCORING_ROWS)
    scored = score(
        reader if fill is None else with_folds(reader, fill.folds),
        roles.scored,
        action=roles.action,
        context=roles.context,
        log_probabilities=log.log_probabilities,
        then=fill,
    )
    kept = [*roles.needed, *roles.scored, *(fill.columns if fill else ())]
    writer = None
    try:
        for batch in scored:
            narrow = batch.select(kept)
            writer = writer or pq.ParquetWriter(path, narrow.schema, compression="zstd")
            writer.write_batch(narrow)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise LogError([Fault("the log has no rows", "", 0)])
    connection.execute(f"CREATE TEMP VIEW scored AS FROM read_parquet({literal(str(path))})")
    return replace(roles, table=replace(roles.table, relation=_named("scored")), scored={})


@dataclass(frozen=True, eq=False)
class DuckDBRows(QueryRows):
    """An open log; answers what `engine.base.Rows` promises.

    Attributes:
        connection: Where the view of the log is.
        files: Parquet files that hold the rows as they are, each with the label of its
            rows where no column has it; None where DuckDB must read them.
        threads: Threads to use; 0 means one for each core.
        notes: What was found on the way to these rows.
    """

    connection: duckdb.DuckDBPyConnection
    files: tuple[tuple[str, str | None], ...] | None = None
    threads: int = 0
    notes: tuple[Finding, ...] = ()

    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        text = query.sql(dialect="duckdb")
        try:
            result = self.connection.execute(text)
            names = [str(d[0]) for d in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
        except duckdb.Error as reason:
            raise EngineError("DuckDB", text, RuntimeError(first_line(reason))) from reason

    @property
    def _tail(self) -> int:
        return LONGEST_TAIL

    def _bucket(self, buckets: int) -> Expression:
        place: Expression = exp.Window(this=exp.RowNumber())
        if self.table.cluster is not None:
            unit = exp.cast(self.table.cluster.copy(), "varchar")
            place = exp.Anonymous(this="hash", expressions=[unit])
        return exp.cast(exp.Mod(this=place, expression=exp.convert(buckets)), "int")

    def without(self, logger: str) -> DuckDBRows:
        """The same rows without those of one logger, and without it in the mixture."""
        return replace(super().without(logger), files=None)

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Moments of each logger: batches of rows go through the kernel, in threads."""
        layout, program = layout_of(self.table, self.counts), Program(needs)
        reading = Pass(layout, program, self.threads)
        feed = self._feed()
        try:
            sums = self._stream(reading) if feed is None else reading.parquet(feed)
        except BadRowsError:
            raise LogError(self.check() or (CHANGED,)) from None
        except (pa.ArrowException, OSError) as reason:
            raise EngineError("pyarrow", "reading Parquet", reason) from reason
        found = to_moments(sums, program, layout.loggers)
        if {i: m.count for i, m in found.items()} != self.counts:
            raise LogError([CHANGED])
        refuse_infinite(found)
        return found

    def _feed(self) -> ParquetFeed | None:
        """The files, where they can be read as they are."""
        columns = plain_columns(self.table)
        if self.files is None or columns is None:
            return None
        labelled = all(label is not None for _, label in self.files)
        label = self.table.logger
        if not labelled and not isinstance(label, exp.Column):
            return None
        name = "" if labelled else label.name
        feed = ParquetFeed(self.files, columns, name, tuple(self.counts))
        return feed if readable(feed) else None

    def _stream(self, reading: Pass) -> Sums:
        """All rows through DuckDB, as batches."""
        query = exp.select("*").from_(rows_name(self.table))
        for name, step in row_steps(self.table):
            query = query.with_(name, as_=step)
        text = query.sql(dialect="duckdb")
        try:
            reader: Any = self.connection.sql(text).to_arrow_reader(STREAM_ROWS)
            try:
                return reading.arrow(reader)
            finally:
                reader.close()  # the connection answers one query at a time
        except (duckdb.Error, pa.ArrowException) as reason:
            raise EngineError("DuckDB", text, RuntimeError(first_line(reason))) from reason


CHANGED = Fault(
    "the log changed while it was read: its rows are no longer those that were counted",
    "",
    0,
    advice="Evaluate a log that is no longer written to, or a copy of it.",
)
