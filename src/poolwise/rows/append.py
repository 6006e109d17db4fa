"""Append: columns of policies in Python and of models, before an engine reads the rows.

SQL cannot call a policy or a model in Python, so their columns are computed first, batch by
batch.  Batches run in threads, with BLAS limited to one thread each, since many small products
are faster in parallel; only a few batches are in memory at any time.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlglot import exp
from threadpoolctl import threadpool_limits

from poolwise.errors import NO_ROWS, LogError, SourceError, UsageError
from poolwise.progress import stage
from poolwise.rows.folds import learn
from poolwise.rows.frames import PlainFrame
from poolwise.rows.guard import count_rows, duckdb_errors, read_batches
from poolwise.rows.reader import in_order
from poolwise.rows.score import make_scorer
from poolwise.rows.sources import copy_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from poolwise.errors import Finding
    from poolwise.log.log import Log
    from poolwise.rows.folds import Fill
    from poolwise.rows.learners import Extra
    from poolwise.rows.reader import Files
    from poolwise.rows.roles import Roles
    from poolwise.rows.rules import RoleColumns
    from poolwise.rows.score import Scorer

SCORING_ROWS = 65_536  # rows of one batch that goes to a policy in Python
MOST_HELD = 128_000_000  # bytes of scored rows that are kept in memory


def score(
    batches: Iterable[pa.RecordBatch],
    scorer: Scorer,
    *,
    workers: int | None = None,
    then: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Append to each batch one column per policy, in the order of the batches.

    The number of BLAS threads is a setting of the process: it is lowered when the
    first batch is requested and restored when the iterator ends or is closed.

    Args:
        batches: Rows, in any number of batches.
        scorer: The policies.
        workers: Threads; by default one for each core.
        then: Applied to each scored batch, in the same threads.

    >>> from poolwise.log.policy import Uniform
    >>> from poolwise.rows.score import Scorer
    >>> scorer = Scorer({"p": Uniform(["a", "b"])}, action="item", context=())
    >>> [b.to_pylist() for b in score([pa.record_batch({"item": ["a", "z"]})], scorer)]
    [[{'item': 'a', 'p': 0.5}, {'item': 'z', 'p': 0.0}]]
    """

    def work(item: tuple[pa.RecordBatch, int]) -> pa.RecordBatch:
        with threadpool_limits(limits=1):  # OpenMP counts its threads per caller
            scored = scorer(*item)
            return scored if then is None else then(scored)

    with threadpool_limits(limits=1):
        yield from in_order(work, _number_batches(batches), workers or os.cpu_count() or 1)


def _number_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches with the number of their first row."""
    first_row = 0
    for rows in batches:
        yield rows, first_row
        first_row += rows.num_rows


def scored_batches(
    connection: duckdb.DuckDBPyConnection,
    roles: Roles,
    names: Sequence[str],
    fill: Fill | None = None,
    source: Files | PlainFrame | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read batches of the columns `names`, with the probabilities of each policy appended.

    `source` are files or a table that hold the rows as they are.
    """
    total = count_rows(connection)
    reader: Any = None if fill else _source_batches(source, list(names))
    if fill is not None:
        reader = fill.read(connection, SCORING_ROWS)
    elif reader is None:
        query = exp.select(*roles.selected(names)).from_("log").sql(dialect="duckdb")
        reader = read_batches(connection, query, SCORING_ROWS)
    with stage("scoring", total) as advance:
        for batch in score(reader, make_scorer(roles), then=fill):
            advance(batch.num_rows)
            yield batch


def _source_batches(
    source: Files | PlainFrame | None, names: list[str]
) -> Iterator[pa.RecordBatch] | None:
    """Read columns of a table, or of files with the same types; None for others."""
    if source is None or any("." in name for name in names):
        return None
    if not isinstance(source, tuple):
        return source.batches(names, SCORING_ROWS)
    schemas = [pq.read_schema(path) for path, _ in source]
    labelled = any(label is not None for _, label in source)
    if labelled or not all(set(names) <= set(schema.names) for schema in schemas):
        return None
    types = {tuple(schema.field(name).type for name in names) for schema in schemas}
    return _file_batches([path for path, _ in source], names) if len(types) == 1 else None


def _file_batches(paths: Sequence[str], names: list[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(SCORING_ROWS, columns=names):
                    yield batch.select(names)
        except (pa.ArrowException, OSError) as reason:
            raise SourceError(repr(path), str(reason).splitlines()[0]) from reason


def keep_batches(
    batches: Iterator[pa.RecordBatch], path: Path, columns: Sequence[str]
) -> pa.Table | None:
    """Return some columns as a table if they are small; else write them to `path`."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch.select(list(columns)))
        size += held[-1].nbytes
        if size > MOST_HELD:
            names = {name: name for name in columns}
            write_batches(chain(held, batches), path, names, soon=True)
            return None
    if not held:
        raise LogError([NO_ROWS])
    return pa.Table.from_batches(held)


def write_batches(
    batches: Iterable[pa.RecordBatch],
    path: Path,
    columns: Mapping[str, str],
    *,
    soon: bool = False,
) -> None:
    """Write some columns under new names: compressed, or fast if they are read `soon`."""
    writer = None
    try:
        for batch in batches:
            narrow = batch.select(list(columns)).rename_columns(list(columns.values()))
            with _room(path):
                if writer is None:
                    texts = [f.name for f in narrow.schema if pa.types.is_string(f.type)]
                    # probabilities repeat little: looking for repetition takes long
                    fast = {"use_dictionary": texts, "write_statistics": False}
                    options = (
                        {"compression": "none", **fast} if soon else {"compression": "zstd"}
                    )
                    writer = pq.ParquetWriter(path, narrow.schema, **options)
                writer.write_batch(narrow)
    finally:
        if writer is not None:
            with _room(path):
                writer.close()
    if writer is None:
        raise LogError([NO_ROWS])


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Add advice to errors of writing."""
    try:
        yield
    except OSError as reason:
        raise UsageError(
            f"cannot write {path}: {reason.strerror or reason}. Scored rows need room for "
            "8 bytes for each row and policy: free some, or set TMPDIR to a larger disk."
        ) from reason


def fix_order(connection: duckdb.DuckDBPyConnection, log: Log, folder: Path) -> None:
    """Write the rows of a SELECT to a file: a second run may return other rows."""
    from poolwise.rows.sources import literal

    if any(part.kind == "select" for part in log.parts):
        copy = literal(str(folder / "log.parquet"))
        with duckdb_errors("FROM log"):
            rows = copy_rows(connection, "log", copy)
        connection.execute(f"CREATE OR REPLACE TEMP VIEW log AS FROM {rows}")


def append_scores(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    roles: Roles,
    log: Log,
    extra: Extra,
    source: Files | PlainFrame | None,
) -> tuple[RoleColumns, Files | PlainFrame, tuple[Finding, ...]]:
    """Append the probabilities of policies and the columns of models to the needed columns.

    Returns their roles, the rows as a table if they are few, else the file that they were
    written to, and findings about the models.
    """
    from poolwise.rows.sources import literal

    fill = None
    if extra.learners:
        fix_order(connection, log, folder)
        fill = learn(connection, roles, extra)
    batches = scored_batches(connection, roles, roles.read, fill, source)
    columns = [*roles.queried, *roles.scored, *extra.filled]
    path = folder / "scored.parquet"
    frame = keep_batches(batches, path, columns)
    if frame is None:
        file = f"read_parquet({literal(str(path))})"
        connection.execute(f"CREATE TEMP VIEW scored AS FROM {file}")
    else:
        connection.register("scored", frame)
    notes = tuple(note for fit in fill.fitted for note in fit.findings()) if fill else ()
    table = replace(roles.table, relation=exp.to_table("scored"))
    return table, ((str(path), None),) if frame is None else PlainFrame(frame), notes
