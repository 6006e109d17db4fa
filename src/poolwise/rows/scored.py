"""Scored: the rows of a log with the probabilities of its policies beside them.

Policies in Python are asked once, batch by batch, in threads; whatever reads the rows
afterwards reads columns.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from poolwise.errors import NO_ROWS, LogError, SourceError, UsageError
from poolwise.rows.learn import Fill, reading_query, with_folds
from poolwise.rows.output import stage
from poolwise.rows.score import score

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from poolwise.log.log import Log
    from poolwise.rows.reader import Files
    from poolwise.rows.roles import Roles

SCORING_ROWS = 65_536  # rows of one batch that goes to a policy in Python
MOST_HELD = 128_000_000  # bytes of scored rows that are kept in memory


def scored_batches(
    connection: duckdb.DuckDBPyConnection,
    log: Log,
    roles: Roles,
    names: Sequence[str],
    fill: Fill | None = None,
    plain: Files | pa.Table | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of the columns `names`, each policy's probabilities appended.

    `plain` are files or a table that hold the rows as they are.
    """
    counted = connection.execute("SELECT count(*) FROM log").fetchall()
    reader: Any = None if fill is not None else _plain_batches(plain, names)
    if reader is None:
        columns = ", ".join(f'"{n.replace(chr(34), chr(34) * 2)}"' for n in names)
        query = f"SELECT {columns} FROM log" if fill is None else reading_query(roles)
        reader = connection.sql(query).to_arrow_reader(SCORING_ROWS)
    with stage("scoring", int(counted[0][0])) as advance:
        for batch in score(
            reader if fill is None else with_folds(reader, fill.folds),
            roles.scored,
            action=roles.action,
            context=roles.context,
            log_probabilities=log.log_probabilities,
            then=fill,
        ):
            advance(batch.num_rows)
            yield batch


def _plain_batches(
    plain: Files | pa.Table | None, names: Sequence[str]
) -> Iterator[pa.RecordBatch] | None:
    """Columns that can be read without a query: of files that are all alike, or a table."""
    if isinstance(plain, pa.Table):
        known = all(plain.schema.names.count(name) == 1 for name in names)
        return iter(plain.select(list(names)).to_batches(SCORING_ROWS)) if known else None
    return _file_batches(plain, names)


def _file_batches(files: Files | None, names: Sequence[str]) -> Iterator[pa.RecordBatch] | None:
    schemas = [pq.read_schema(path) for path, _ in files or ()]
    if not schemas or any(label is not None for _, label in files or ()):
        return None
    known = all(set(names) <= set(schema.names) for schema in schemas)
    if not known or any("." in name for name in names):
        return None
    kinds = {tuple(schema.field(name).type for name in names) for schema in schemas}
    return _batches([path for path, _ in files or ()], names) if len(kinds) == 1 else None


def _batches(paths: Sequence[str], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(SCORING_ROWS, columns=list(names)):
                    yield batch.select(list(names))
        except (pa.ArrowException, OSError) as reason:
            raise SourceError(repr(path), str(reason).splitlines()[0]) from reason


def keep_batches(
    batches: Iterator[pa.RecordBatch], path: Path, columns: Sequence[str]
) -> pa.Table | None:
    """Some columns as a table if the rows are few; None if they were written to `path`."""
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
    """Write some columns under new names: small, or quickly if they are read `soon`."""
    writer = None
    try:
        for batch in batches:
            narrow = batch.select(list(columns)).rename_columns(list(columns.values()))
            with _room(path):
                writer = writer or _writer(path, narrow.schema, soon=soon)
                writer.write_batch(narrow)
    finally:
        if writer is not None:
            with _room(path):
                writer.close()
    if writer is None:
        raise LogError([NO_ROWS])


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Say what to do where a file cannot be written."""
    try:
        yield
    except OSError as reason:
        raise UsageError(
            f"cannot write {path}: {reason.strerror or reason}. Scored rows need room for "
            "8 bytes for each row and policy: free some, or set TMPDIR to a larger disk."
        ) from reason


def _writer(path: Path, schema: pa.Schema, *, soon: bool) -> pq.ParquetWriter:
    if not soon:
        return pq.ParquetWriter(path, schema, compression="zstd")
    texts = [f.name for f in schema if pa.types.is_string(f.type)]
    # probabilities repeat little: looking for repetition takes longer than writing them
    return pq.ParquetWriter(
        path, schema, compression="none", use_dictionary=texts, write_statistics=False
    )
