"""DuckDB: the embedded engine, and the default.

It prepares the rows (a view of all sources, scored policies, fitted models), counts the rows
of each logger, which fix the mixture, and then runs the kernel over the stream of scored rows.
A log with bad rows is recognised in that same pass and never averaged.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from sqlglot import exp

from poolwise.engines.base import CHANGED, Engine
from poolwise.engines.copies import CopySample, copies_query
from poolwise.engines.heavy_clusters import find_clusters
from poolwise.engines.kernel import Kernel
from poolwise.engines.parallel import (
    KernelRows,
    Pass,
    fold,
    good_counts,
    read_rows,
    sample_rows,
    workers,
)
from poolwise.engines.workspace import MOST_ROWS as MOST_BATCH_ROWS
from poolwise.engines.workspace import Workspace
from poolwise.errors import EngineError, LogError, RefusedError
from poolwise.files import temporary_folder
from poolwise.moments.terms import Needs, ratio
from poolwise.progress import stage
from poolwise.rows.action_groups import find_unlogged, read_groups
from poolwise.rows.actions import SAMPLED_ROWS, UNNAMED, rows_query, sample_sums, sum_batches
from poolwise.rows.append import append_scores, fix_order, scored_batches, write_batches
from poolwise.rows.distributions import has_distributions, read_frequencies
from poolwise.rows.folds import OrderedRows, learn
from poolwise.rows.footers import Footers, plain_parquet
from poolwise.rows.frames import PlainFrame, plain_frame
from poolwise.rows.groups import candidates, pairs_query, read_pairs
from poolwise.rows.guard import lock, named_files, read_batches
from poolwise.rows.layout import TIME, BadRowsError, plan_layout, times_query
from poolwise.rows.learners import NO_EXTRA, Extra
from poolwise.rows.mixture import learner_extra
from poolwise.rows.reader import QUERY_ROWS, Stream, label_counts
from poolwise.rows.repeats import REMOTE
from poolwise.rows.roles import Roles, assign
from poolwise.rows.rules import rows
from poolwise.rows.streams import has_numbers, plain_stream
from poolwise.rows.values import attach_values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from poolwise.engines.base import Answer, Rows
    from poolwise.engines.blocks import Added, Folding
    from poolwise.engines.sums import Sums
    from poolwise.errors import Fault, Finding
    from poolwise.log.action_groups import Unlogged
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.heavy import Contrast, FoundClusters
    from poolwise.moments.terms import Term
    from poolwise.rows.actions import AuditSums
    from poolwise.rows.distributions import FrequencySums
    from poolwise.rows.groups import PairSums
    from poolwise.rows.layout import Layout
    from poolwise.rows.reader import Files, RowArrays
    from poolwise.rows.rules import RoleColumns
    from poolwise.types import FloatArray


@dataclass(frozen=True)
class DuckDB(Engine):
    """Evaluates files, frames and queries in this process.

    Attributes:
        threads: Threads to use; 0 means one for each core.
        memory_limit: Such as "2GB"; empty means DuckDB's own choice.
        batch_rows: Largest number of rows that a thread works on at once.
    """

    threads: int = 0
    memory_limit: str = ""
    batch_rows: int = MOST_BATCH_ROWS

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NO_EXTRA
    ) -> Iterator[DuckDBRows]:
        """Open a log with its targets; policies in Python are scored first.

        The models of `extra` are fitted to the rows before that. Frames and plain
        files may need no query at all, so for them DuckDB starts with the first one.
        """
        log, targets = attach_values(log, targets)
        plain = plain_frame(log) or plain_parquet(log)
        plain = plain if log.action_group is None else None
        with ExitStack() as stack:

            @cache
            def opened() -> tuple[duckdb.DuckDBPyConnection, Path, Roles]:
                return stack.enter_context(self._opened(log, targets, extra))

            source: Files | PlainFrame | None
            known = None if plain is None else _roles(log, targets, plain.names, extra)
            if plain is None or known is None or not has_numbers(known.table, plain.schema):
                from poolwise.rows.sources import plain_files

                plain = None  # DuckDB knows the types of distributions, and reads them fast
                connection, folder, roles = opened()
                source = plain_files(connection, log, folder)
            else:
                source, roles = plain.source, known
            table: RoleColumns = roles.table
            notes: tuple[Finding, ...] = ()
            if roles.scored or extra.learners:
                table, source, notes = append_scores(*opened(), log, extra, source)
            rows = _kind(log)
            yield rows(
                table,
                lambda: opened()[0],
                source,
                notes,
                self,
                footers=Footers() if plain is None else plain.footers,
                timed=plain is None or plain.timed,
                roles=roles,
                find_unlogged=cache(lambda: _unlogged(opened, roles, log, targets)),
            )

    @property
    def local(self) -> DuckDB:
        return self

    @contextmanager
    def learner_rows(self, log: Log) -> Iterator[OrderedRows]:
        """Open a log for a learner, which can read all rows again in the same order."""
        log, _ = attach_values(log, {})
        extra = learner_extra(log)
        with self._opened(log, {}, extra) as (connection, folder, roles):
            fix_order(connection, log, folder)
            yield OrderedRows(connection, roles, learn(connection, roles, extra))

    def score(
        self,
        log: Log,
        targets: Mapping[str, PolicyLike],
        path: Path,
        name: Callable[[Roles], Mapping[str, str]],
    ) -> tuple[Roles, Mapping[str, str]]:
        """Write all columns and those of the policies, under the names that `name` returns."""
        with self._opened(*attach_values(log, targets)) as (connection, _, roles):
            names = name(roles)
            batches = scored_batches(connection, roles, [*roles.columns, *roles.fields])
            every = (*roles.columns, *names)
            write_batches(batches, path, {c: names.get(c, c) for c in every})
            return roles, names

    @contextmanager
    def _opened(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NO_EXTRA
    ) -> Iterator[tuple[duckdb.DuckDBPyConnection, Path, Roles]]:
        """Open a locked connection with the view of the log, a folder, and the roles."""
        import duckdb

        from poolwise.rows.sources import create_view

        with (
            _stoppable(),
            temporary_folder() as folder,
            duckdb.connect(config={"temp_directory": str(folder), **self.limits}) as connection,
        ):
            columns = create_view(connection, log, folder)
            roles = _roles(read_groups(connection, log, columns), targets, columns, extra)
            lock(connection)
            yield connection, folder, roles

    @property
    def limits(self) -> dict[str, Any]:
        """Settings of DuckDB."""
        limits = {"threads": self.threads, "memory_limit": self.memory_limit}
        return {name: value for name, value in limits.items() if value}


def _kind(log: Log) -> Callable[..., DuckDBRows]:
    """Return the kind of rows of a log."""
    if log.clicks is None:
        return DuckDBRows
    from poolwise.engines.clicks import ClickRows

    return partial(ClickRows, clicks=log.clicks)


def _roles(
    log: Log,
    targets: Mapping[str, PolicyLike],
    columns: Sequence[str] | Mapping[str, str],
    extra: Extra,
) -> Roles:
    return assign(log, targets, columns, exp.to_table("log"), extra)


def _unlogged(
    opened: Callable[[], tuple[duckdb.DuckDBPyConnection, Path, Roles]],
    roles: Roles,
    log: Log,
    targets: Mapping[str, PolicyLike],
) -> Mapping[str, Unlogged]:
    """Return what targets play that is in no row; without a query where none is known."""
    if not (roles.scored or roles.known) or log.densities or log.requests is not None:
        return {}
    return find_unlogged(opened()[0], roles, log, targets)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn DuckDB's error for Ctrl-C while a query runs into a KeyboardInterrupt."""
    try:
        yield
    except RuntimeError as reason:
        if str(reason) == "Query interrupted":
            raise KeyboardInterrupt from reason
        raise


@dataclass(frozen=True, eq=False)
class DuckDBRows(KernelRows):
    """An open log; implements `engines.base.Rows`.

    Attributes:
        connect: Returns the connection with the view of the log; opens it the first time.
        source: Parquet files, each with the label of its rows where no column has it, or a
            table in memory, that hold the rows as they are; None where DuckDB must read them.
        notes: Findings about models that were fitted to the rows.
        engine: Settings of the engine.
        footers: Footers of the files.
        timed: Whether the log may have a column of times.
        hopeful: Whether the rows are read as if none were bad: a bad row raises an error at
            once, without a diagnosis.
        copied: Hashes of rows of the first pass, once there was one.
        roles: Roles of the log before policies in Python were scored.
        find_unlogged: Returns what each target plays that is in no row.
    """

    connect: Callable[[], duckdb.DuckDBPyConnection]
    source: Files | PlainFrame | None = None
    notes: tuple[Finding, ...] = ()
    engine: DuckDB = field(default_factory=DuckDB)
    footers: Footers = field(default_factory=Footers, kw_only=True)
    timed: bool = field(default=False, kw_only=True)
    hopeful: bool = field(default=False, kw_only=True)
    copied: CopySample = field(default_factory=CopySample, kw_only=True)
    roles: Roles | None = field(default=None, kw_only=True)
    find_unlogged: Callable[[], Mapping[str, Unlogged]] = field(default=dict, kw_only=True)

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        return self.connect()

    @property
    def batch_rows(self) -> int:
        return self.engine.batch_rows

    @property
    def _threads(self) -> int:
        return workers(self.engine.threads)

    @cached_property
    def _frame(self) -> Stream | None:
        return plain_stream(self.table, self.source, self._threads, computing=True)

    def _plain(self) -> Stream | None:
        """Return a table, or files as they are, listed anew since they may have changed."""
        if isinstance(self.source, tuple):
            return plain_stream(self.table, self.source, 1, self.footers, computing=True)
        return self._frame

    def _stream(self, layout: Layout) -> tuple[Stream, Layout]:
        """Return all rows as they are, or as DuckDB reads them, without excluded loggers."""
        stream, table = self._plain(), self.table
        if stream is not None:
            return stream, replace(layout, excluded=self.excluded)
        if layout.buckets > 1 and table.cluster is not None:
            unit = exp.cast(table.cluster.copy(), "varchar")
            number = exp.Anonymous(this="hash", expressions=[unit])
            bucket = exp.Mod(this=number, expression=exp.convert(layout.buckets))
            table = replace(table, bucket=bucket)
        query = _code_labels(rows(table), layout.loggers)
        batches = self._batches(query.sql(dialect="duckdb"), QUERY_ROWS)
        stream = Stream(pa.Table.from_batches([b]) for b in batches if b.num_rows)
        return stream, replace(layout, excluded=())  # the query leaves these loggers out

    @cached_property
    def _labels(self) -> dict[str | None, int]:
        """Rows of each label, bad ones included."""
        with _reading():
            stream = self._plain()
            if stream is None:
                return super()._count(replace(self.table, drop=False))
            threads = self._threads if stream.columns else 1  # labels of a frame are codes
            counts = sum(label_counts(stream, threads), Counter[str | None]())
        labels = [label for label in counts if label not in self.excluded]
        return {label: counts[label] for label in sorted(labels, key=str)}

    @cached_property
    def _good(self) -> dict[str | None, int]:
        """Good rows of each label."""
        table = self.table
        labels = table.labels or [label for label in self._labels if label is not None]
        layout = plan_layout(table, {label: self._labels.get(label, 0) for label in labels})
        with _reading():
            return good_counts(*self._stream(layout), self._threads)

    def _count(self, table: RoleColumns) -> dict[str | None, int]:
        return self._good if table.drop else self._labels

    @property
    def _all_good(self) -> bool:
        """True if bad rows are dropped and there are none, and every logger has rows."""
        labels = self._labels
        complete = bool(labels) and {*self.table.labels} <= {*labels}
        return self.table.drop and complete and self._good == labels

    def attempt(self, ask: Callable[[Rows], Answer]) -> Answer:
        """Ask a question; if bad rows are dropped, first as if there were none.

        To drop bad rows takes two passes, since the good rows fix the mixture.  Most logs have
        no bad row, and are read in one.
        """
        if not self.table.drop:
            return ask(self)
        kept = replace(self.table, drop=False)
        try:
            return ask(replace(self, table=kept, hopeful=True, copied=CopySample()))
        except (LogError, RefusedError):  # of bad rows, or of what they seem to say
            return ask(self)

    def check(self) -> tuple[Fault, ...]:
        return () if self.hopeful or self._all_good else super().check()

    def _sums(self, layout: Layout, workspace: Workspace) -> Sums | None:
        (sums,) = self._sum_parts([(layout, workspace)])
        return sums

    def _sum_parts(self, parts: Sequence[tuple[Layout, Workspace]]) -> list[Sums | None]:
        first, drop = parts[0][0], self.table.drop and not self._all_good
        with self._pass() as advance:
            stream, first = self._stream(replace(first, drop=drop))
            copies = self.copied.start(sum(self.counts.values()), len(first.strata))
            copies = None if first.clustered else copies  # rows of a cluster may be copies
            parts = [
                (replace(layout, drop=drop, excluded=first.excluded), w) for layout, w in parts
            ]
            return Pass(first, self.engine.threads, advance, copies).sum_layouts(stream, parts)

    @contextmanager
    def _pass(self) -> Iterator[Callable[[int], object]]:
        """Show the progress of a pass, and report bad rows that it finds."""
        try:
            with stage("reading", sum(self.counts.values())) as advance, _reading():
                yield advance
        except BadRowsError:
            raise LogError(self.check() or (CHANGED,)) from None

    def _fold(self, work: Folding[Added]) -> Added:
        with _reading():
            stream, layout = self._stream(work.layout)
            return fold(stream, work, layout, self._threads)

    @property
    def missing(self) -> tuple[str, ...]:
        stream, names = self._plain(), [f"p_{k}" for k in range(len(self.table.propensities))]
        if isinstance(self.source, tuple) and stream and stream.columns.keys() >= {*names}:
            columns = {stream.columns[name] for name in names}
            if all(self.footers.lists_no_null(path, columns) for path, _ in self.source):
                return ()
        return super().missing

    def action_sums(self) -> AuditSums | None:
        table = self.table
        known = table.propensity is not None or bool(table.propensities)
        if table.scale.densities or not known:
            return None
        named = table.action is not None
        most = SAMPLED_ROWS if named else UNNAMED
        with _reading():
            place = self.source, self.counts, self.footers, self._threads
            sums = sample_sums(table, *place, most)
        if sums is None:
            query = rows_query(table, sum(self.all_counts.values()), most)
            batches = self._batches(query.sql(dialect="duckdb"), QUERY_ROWS)
            sums = sum_batches(batches, self.counts, lists=table.eligible is not None)
        return replace(sums, named=named, frequencies=self._frequencies())

    def _frequencies(self) -> tuple[FrequencySums, ...]:
        """Return how often loggers with whole distributions played each action."""
        if self.roles is None or not has_distributions(self.roles):
            return ()
        return read_frequencies(self._read_table, self.roles, self.counts)

    def heaviest_clusters(
        self, contrasts: Sequence[Contrast], centre: float
    ) -> dict[Contrast, FoundClusters] | None:
        if self.table.period is not None or self.excluded:
            return None
        columns = tuple(map(ratio, plan_layout(self.table, self.counts).crossed))
        place = self.table, self.counts
        return find_clusters(self._read_table, *place, contrasts, columns, centre)

    def _read_table(self, query: exp.Select) -> pa.Table | None:
        batches = list(self._batches(query.sql(dialect="duckdb"), QUERY_ROWS))
        return pa.Table.from_batches(batches) if batches else None

    def unlogged(self) -> Mapping[str, Unlogged]:
        return self.find_unlogged()

    def local_files(self, log: Log) -> list[str]:
        files = (file for file, _ in named_files(log, self.connect))
        return [file for file in files if not REMOTE.match(file)]

    def copies(self, part: int = 1) -> dict[int, int]:
        return {n["copies"]: n["contents"] for n in self._answer(copies_query(part))}

    def sampled_copies(self) -> dict[int, int] | None:
        return self.copied.contents() if self.copied.watched else None

    def sample(self, terms: tuple[Term, ...], most: int) -> tuple[FloatArray, FloatArray]:
        layout = plan_layout(self.table, self.counts)
        kernel = Kernel(layout, Workspace(Needs(means=terms, extremes=terms), self.batch_rows))
        counts = np.array(list(self.counts.values()))
        steps = -(-counts * len(counts) // most)
        batches = self._rows(layout, kernel.rows)
        codes, values = sample_rows(batches, kernel, terms, steps.tolist())
        taken = np.bincount(codes, minlength=len(counts))
        shares = (counts / counts.sum() / np.maximum(taken, 1))[codes]
        return values, shares / shares.sum()

    def times(self) -> dict[str, tuple[object, object]]:
        if not self.timed:
            return {}
        columns = self._answer("DESCRIBE log")
        named = [c["column_name"] for c in columns if TIME.match(c["column_type"])]
        lines = self._lines(times_query(self.table.logger, named[0])) if named else []
        return {i["logger"]: (i["first"], i["last"]) for i in lines if i["first"] is not None}

    def pair_sums(self, among: Collection[str] | None = None) -> dict[str, PairSums]:
        names = candidates(self._answer("DESCRIBE log"), self.table)
        rows = sum(self.all_counts.values())
        return {
            name: read_pairs(line)
            for name in names
            if among is None or name in among
            for line in self._lines(pairs_query(self.table, name, rows))
        }

    def _rows(self, layout: Layout, size: int) -> Iterator[RowArrays]:
        with _reading():
            yield from read_rows(*self._stream(layout), self._threads, size)

    def _lines(self, query: exp.Select) -> list[dict[str, Any]]:
        return self._answer(query.sql(dialect="duckdb"))

    def _answer(self, text: str) -> list[dict[str, Any]]:
        return [line for batch in self._batches(text, 1024) for line in batch.to_pylist()]

    def _batches(self, text: str, size: int) -> Iterator[pa.RecordBatch]:
        """Run a query; the connection runs one at a time."""
        yield from read_batches(self.connection, text, size)


def _code_labels(query: exp.Select, labels: Sequence[str]) -> exp.Select:
    """Let DuckDB return labels, the first column, as codes; NULL for unknown ones."""
    if not labels:
        return query
    first, *others = query.selects
    texts = ", ".join(exp.Literal.string(label).sql(dialect="duckdb") for label in labels)
    kind = exp.DataType.build(f"ENUM({texts})", dialect="duckdb")
    codes = exp.TryCast(this=first.unalias().copy(), to=kind)
    return query.select(codes.as_(first.alias, quoted=True), *others, append=False)


@contextmanager
def _reading() -> Iterator[None]:
    """Translate errors of pyarrow."""
    try:
        yield
    except (pa.ArrowException, OSError) as reason:
        raise EngineError("pyarrow", "reading Parquet", reason) from reason
