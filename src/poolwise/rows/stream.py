"""Stream: scored rows in Arrow batches, under fixed column names.

A stream can be read again and again.  Plain columns of Parquet files come from pyarrow, row
group by row group, in threads; plain columns of an Arrow table are cut into pieces; every
other source comes through DuckDB.  Counting, moments, buckets, leaving a logger out, samples
and betting all read a stream.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sqlglot import exp

from poolwise.rows.reader import texts

if TYPE_CHECKING:
    from poolwise.rows.reader import Layout
    from poolwise.rows.rules import RoleColumns

Item = TypeVar("Item")
Result = TypeVar("Result")
Files = tuple[tuple[str, str | None], ...]  # paths, with the label of all rows or None
Counts = dict[str | None, int]  # rows of each label, and of none
Read = Callable[[Any, Sequence[str]], Iterator[pa.Table]]  # a piece, and some columns
TABLE_ROWS = 131_072  # rows of one batch of a table in memory, or of a query
LARGE_GROUP = 8_000_000  # values of a row group that is not read at once: 64 MB


class Piece(Protocol):
    """Rows that one thread reads at once."""

    @property
    def rows(self) -> int: ...


class Stream(Protocol):
    """Scored rows under the names of a layout, in pieces; can be read again and again."""

    @property
    def pieces(self) -> Iterable[Piece]:
        """All pieces, in the order of the rows."""
        ...

    def counts(self, threads: int) -> Counts:
        """Rows of each label."""
        ...

    def reader(self) -> Read:
        """A function that reads pieces; each thread has its own."""
        ...


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file.

    Attributes:
        path: The file.
        group: Number of the row group.
        rows: Its rows.
        logger: Label of all rows, where the file has no column of labels.
    """

    path: str
    group: int
    rows: int
    logger: str | None = None


@dataclass(frozen=True)
class ParquetStream:
    """Plain columns of Parquet files.

    Attributes:
        files: Path of each file, and the label of its rows where no column has it.
        columns: Column of the files for each column of the layout.
    """

    files: Files
    columns: Mapping[str, str]

    @cached_property
    def pieces(self) -> list[RowGroup]:
        """Every row group of every file, without the empty ones."""
        groups = []
        for path, logger in self.files:
            meta = pq.read_metadata(path)
            sizes = [meta.row_group(k).num_rows for k in range(meta.num_row_groups)]
            groups += [RowGroup(path, k, rows, logger) for k, rows in enumerate(sizes) if rows]
        return groups

    def counts(self, threads: int) -> Counts:
        return total_counts(label_counts(self, threads))

    def reader(self) -> ParquetReader:
        return ParquetReader(self.columns)


class ParquetReader:
    """Reads row groups; keeps its last file open."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self.columns = columns
        self._path = ""
        self._file: pq.ParquetFile | None = None

    def __call__(self, piece: RowGroup, names: Sequence[str]) -> Iterator[pa.Table]:
        """Read some columns of a row group, under the names of the layout."""
        wanted = {name: self.columns[name] for name in names if name in self.columns}
        for table in self._tables(piece, list(dict.fromkeys(wanted.values()))):
            if table.num_columns < len(set(wanted.values())):
                raise pa.ArrowInvalid(f"{piece.path} has lost a column since it was opened")
            arrays = {name: table.column(source) for name, source in wanted.items()}
            if piece.logger is not None:
                arrays["logger"] = _constant(piece.logger, table.num_rows)
            yield pa.table(arrays)

    def _tables(self, piece: RowGroup, names: list[str]) -> Iterator[pa.Table]:
        if not names:
            yield pa.table({"row": pa.nulls(piece.rows)})
        elif piece.rows * len(names) <= LARGE_GROUP:
            file = self._open(piece.path)
            yield file.read_row_group(piece.group, columns=names, use_threads=False)
        else:
            rows = max(LARGE_GROUP // 8 // len(names), 1)
            file = self._open(piece.path)
            for batch in file.iter_batches(
                rows, row_groups=[piece.group], columns=names, use_threads=False
            ):
                yield pa.Table.from_batches([batch])

    def _open(self, path: str) -> pq.ParquetFile:
        if self._file is None or path != self._path:
            self.close()
            label = self.columns.get("logger")
            self._path = path
            self._file = pq.ParquetFile(path, read_dictionary=[label] if label else None)
        return self._file

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _constant(label: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int8), [label])


@dataclass(frozen=True, eq=False)
class Held:
    """Rows in memory, as batches."""

    batches: Sequence[pa.RecordBatch]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


def read_held(piece: Held, names: Sequence[str]) -> Iterator[pa.Table]:
    """Read rows in memory; columns that are not requested cost nothing."""
    del names
    for batch in piece.batches:
        yield pa.Table.from_batches([batch])


@dataclass(frozen=True, eq=False)
class TableStream:
    """Plain columns of a table in memory, cut into pieces; labels are coded."""

    pieces: list[Held]

    def counts(self, threads: int) -> Counts:
        return total_counts(label_counts(self, threads))

    def reader(self) -> Read:
        return read_held


@dataclass(frozen=True, eq=False)
class QueryStream:
    """Rows that DuckDB reads.

    Attributes:
        query: Runs SQL and returns its answer in batches of so many rows.
        text: SQL of the rows.
    """

    query: Callable[[str, int], Iterator[pa.RecordBatch]]
    text: str

    @property
    def pieces(self) -> Iterator[Held]:
        """The batches of a new run of the query."""
        return (Held([batch]) for batch in self.query(self.text, TABLE_ROWS) if batch.num_rows)

    def counts(self, threads: int) -> Counts:
        del threads  # DuckDB has its own
        text = f"SELECT logger, count(*) AS rows FROM ({self.text}) GROUP BY logger"
        lines = [line for batch in self.query(text, TABLE_ROWS) for line in batch.to_pylist()]
        return {line["logger"]: line["rows"] for line in lines}

    def reader(self) -> Read:
        return read_held


# Plain columns.


def plain_stream(
    table: RoleColumns, source: Files | pa.Table | None, threads: int = 1
) -> ParquetStream | TableStream | None:
    """A stream of files or a table as they are; None where DuckDB must read the rows."""
    columns = _plain_columns(table)
    if source is None or columns is None:
        return None
    label = table.logger.name if isinstance(table.logger, exp.Literal) else None
    if isinstance(source, tuple):
        files = tuple((path, label if own is None else own) for path, own in source)
        if all(own is not None for _, own in files):
            columns.pop("logger", None)
        schemas = (pq.read_schema(path) for path, _ in files)
        return ParquetStream(files, columns) if all(_has(s, columns) for s in schemas) else None
    frame: pa.Table = source
    if label is not None:
        frame = frame.append_column("", _constant(label, frame.num_rows))
        columns["logger"] = ""
    return _table_stream(frame, columns, threads) if _has(frame.schema, columns) else None


def _plain_columns(table: RoleColumns) -> dict[str, str] | None:
    """The source's column for each column of the layout, if each is a column as it is."""
    values = {
        "reward": table.reward,
        **{f"p_{k}": value for k, value in enumerate(table.propensities.values())},
        **{f"t_{k}": value for k, value in enumerate(table.targets.values())},
        **table.predictions,
    }
    optional = {
        "propensity": table.propensity,
        "estimated_mixture": table.mixture,
        "cluster": table.cluster,
        "logger": None if isinstance(table.logger, exp.Literal) else table.logger,
    }
    values |= {name: value for name, value in optional.items() if value is not None}
    if not all(isinstance(value, exp.Column) for value in values.values()):
        return None
    return {name: value.name for name, value in values.items()}


def _has(schema: pa.Schema, columns: Mapping[str, str]) -> bool:
    """Test if a schema has every column, of a type that all readers read alike."""
    for name, source in columns.items():
        if schema.names.count(source) != 1 or "." in source:
            return False
        kind = schema.field(source).type
        if not (_is_label(kind) if name in {"logger", "cluster"} else _is_number(kind)):
            return False
    return True


def _is_number(kind: pa.DataType) -> bool:
    is_a = pa.types
    return bool(is_a.is_floating(kind) or is_a.is_integer(kind) or is_a.is_boolean(kind))


def _is_label(kind: pa.DataType) -> bool:
    is_a = pa.types
    if is_a.is_dictionary(kind):
        return _is_label(kind.value_type)
    return bool(is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_integer(kind))


def _table_stream(table: pa.Table, columns: Mapping[str, str], threads: int) -> TableStream:
    """The columns of a table in pieces; only labels are copied."""
    arrays = {name: table.column(source) for name, source in columns.items()}
    batches = pa.table(arrays).to_batches(TABLE_ROWS)
    parts: list[list[pa.RecordBatch]] = []
    with ThreadPoolExecutor(threads) as pool:
        for batch in pool.map(_coded, batches):
            if not parts or sum(b.num_rows for b in parts[-1]) > TABLE_ROWS:
                parts.append([])
            parts[-1].append(batch)
    return TableStream([Held(batches) for batches in parts])


def _coded(batch: pa.RecordBatch) -> pa.RecordBatch:
    place = batch.schema.names.index("logger")
    return batch.set_column(place, "logger", batch.column(place).dictionary_encode())


# Passes.


def label_counts(stream: Stream, threads: int) -> list[Counts]:
    """Rows of each label, piece by piece."""
    own = PerThread(stream.reader)

    def count(piece: Piece) -> Counts:
        return total_counts(
            _label_counts(t.column("logger")) for t in own.value(piece, ["logger"])
        )

    return list(in_order(count, stream.pieces, threads))


def _label_counts(labels: pa.ChunkedArray) -> Counts:
    counts: Counter[str | None] = Counter()
    for chunk in labels.chunks:
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        known = coded.indices.drop_null() if coded.null_count else coded.indices
        rows = np.bincount(np.from_dlpack(known), minlength=len(coded.dictionary)).tolist()
        for label, count in zip(texts(coded.dictionary), rows, strict=True):
            counts[label] += count
        counts[None] += coded.null_count
    return +counts


def total_counts(counts: Iterable[Counts]) -> Counts:
    """Counts added up."""
    total: Counter[str | None] = Counter()
    for some in counts:
        total.update(some)
    return dict(total)


def numbered(stream: Stream, layout: Layout, threads: int) -> Iterator[tuple[Piece, int]]:
    """Pieces with the number of rows before each; rows of excluded loggers do not count."""
    if layout.buckets > 1 and layout.excluded:
        counts = label_counts(stream, threads)
        sizes = [sum(n for i, n in c.items() if i not in layout.excluded) for c in counts]
        yield from zip(stream.pieces, accumulate(sizes, initial=0), strict=False)
        return
    first_row = 0
    for piece in stream.pieces:
        yield piece, first_row
        first_row += piece.rows


class PerThread(threading.local, Generic[Result]):
    """A value that each thread makes for itself."""

    def __init__(self, make: Callable[[], Result]) -> None:
        self.value = make()


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Results of work in threads, a few items ahead, in the order of the items."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
