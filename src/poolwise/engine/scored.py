"""Scored: the rows of a log with the probabilities of its policies beside them, in a file.

Policies in Python are asked once, batch by batch, in threads; whatever reads the rows
afterwards reads columns.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from poolwise.engine.learned import Fill, reading_query, with_folds
from poolwise.errors import Fault, LogError, SourceError, UsageError
from poolwise.progress import stage
from poolwise.score import score

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from poolwise.engine.feed import Files
    from poolwise.engine.roles import Roles
    from poolwise.log import Log

SCORING_ROWS = 65_536  # rows of one batch that goes to a policy in Python


def scored_batches(
    connection: duckdb.DuckDBPyConnection,
    log: Log,
    roles: Roles,
    names: Sequence[str],
    fill: Fill | None = None,
    files: Files | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of the columns `names`, each policy's probabilities appended."""
    counted = connection.execute("SELECT count(*) FROM log").fetchall()
    plain = None if fill is not None else _plain_batches(files, names)
    reader: Any = plain
    if plain is None:
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
    files: Files | None, names: Sequence[str]
) -> Iterator[pa.RecordBatch] | None:
    """Columns of Parquet files that are all alike, read without a query; None for others."""
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


def write_batches(
    batches: Iterator[pa.RecordBatch],
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
        raise LogError([Fault("the log has no rows", "", 0)])


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
