"""Feeds: where batches of rows come from.

Parquet files with plain columns are read by pyarrow, row group by row group, in as many
threads as there are cores.  Everything else (CSV, frames, queries, SQL expressions, rows to
be left out) is read by DuckDB and handed over as Arrow batches.  Both give the same columns
under the names of the `Layout`.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sqlglot import exp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from poolwise.log.policy import AnyArray
    from poolwise.rows.rules import RoleColumns


Rows = tuple["AnyArray", dict[str, "AnyArray"]]
Files = tuple[tuple[str, str | None], ...]  # paths, with the label of all rows or None
TABLE_ROWS = (
    131_072  # of one batch of a table in memory; threads take such until they have more
)
LARGE_GROUP = 8_000_000  # values of a row group that is not read at once: 64 MB


class BadRowsError(Exception):
    """Some row breaks a rule; which one is found out by a query made for that."""


@dataclass(frozen=True)
class Piece:
    """Some rows of one file, read by one thread.

    Attributes:
        path: The file.
        group: Number of its row group.
        rows: Rows of it.
        logger: Label of all rows, where the file has no column that says so.
    """

    path: str
    group: int
    rows: int
    logger: str | None = None


@dataclass(frozen=True)
class ParquetFeed:
    """Plain columns of Parquet files.

    Attributes:
        files: Path of each file, and the label of its rows where no column has it.
        columns: Column of the files for each number of the layout.
        logger: Column of the label, empty where every file has one of its own.
        loggers: Labels, in the order of their codes.
    """

    files: Files
    columns: Mapping[str, str]
    logger: str
    loggers: tuple[str, ...]

    @cached_property
    def pieces(self) -> list[Piece]:
        """Every row group of every file, without the empty ones."""
        found = []
        for path, logger in self.files:
            meta = pq.read_metadata(path)
            sizes = [meta.row_group(k).num_rows for k in range(meta.num_row_groups)]
            found += [Piece(path, k, rows, logger) for k, rows in enumerate(sizes) if rows]
        return found


class ParquetReader:
    """Reads pieces of a feed; one for each thread, since it keeps its last file open."""

    def __init__(self, feed: ParquetFeed) -> None:
        self.feed = feed
        self._path = ""
        self._file: pq.ParquetFile | None = None

    def read(self, piece: Piece, size: int) -> Iterator[Rows]:
        """Batches of at most `size` rows."""
        feed = self.feed
        for table in self._tables(piece):
            if piece.logger is None:
                codes = _codes(table.column(feed.logger), feed.loggers)
            else:
                place = feed.loggers.index(piece.logger)
                codes = np.full(table.num_rows, place, dtype=_code_type(feed.loggers))
            columns = {n: _numbers(table.column(source)) for n, source in feed.columns.items()}
            yield from cut(codes, columns, size)

    def _tables(self, piece: Piece) -> Iterator[pa.Table]:
        file = self._open(piece.path)
        labels = [self.feed.logger] if piece.logger is None else []
        wanted = list(dict.fromkeys([*self.feed.columns.values(), *labels]))
        if piece.rows * len(wanted) <= LARGE_GROUP:
            yield file.read_row_group(piece.group, columns=wanted, use_threads=False)
            return
        batches = file.iter_batches(
            max(LARGE_GROUP // 8 // len(wanted), 1),
            row_groups=[piece.group],
            columns=wanted,
            use_threads=False,
        )
        for batch in batches:
            yield pa.Table.from_batches([batch])

    def _open(self, path: str) -> pq.ParquetFile:
        if self._file is None or path != self._path:
            self.close()
            labels = [self.feed.logger] if self.feed.logger else None
            self._path = path
            self._file = pq.ParquetFile(path, read_dictionary=labels)
        return self._file

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None


def cut(codes: AnyArray, columns: Mapping[str, AnyArray], size: int) -> Iterator[Rows]:
    """Batches of at most so many rows."""
    for start in range(0, len(codes), size):
        rows = slice(start, start + size)
        yield codes[rows], {name: values[rows] for name, values in columns.items()}


def arrow_rows(batch: pa.RecordBatch, loggers: Sequence[str], size: int) -> Iterator[Rows]:
    """Batches of at most `size` rows of what a database handed over."""
    codes = _codes(pa.chunked_array([batch.column("logger")]), loggers)
    columns = {
        name: _numbers(pa.chunked_array([batch.column(name)]))
        for name in batch.schema.names
        if name != "logger"
    }
    if "no_cluster" in columns and columns.pop("no_cluster").any():
        raise BadRowsError
    if "bucket" in columns:
        codes = columns.pop("bucket").astype(np.int64) * len(loggers) + codes
    yield from cut(codes, columns, size)


def _numbers(column: pa.ChunkedArray) -> AnyArray:
    """Values as NumPy has them, without a copy where they lie together.

    Where it can be, not by pyarrow's own way, which loads pandas if it is installed.
    """
    if column.num_chunks == 1 and not column.null_count and _is_number(column.type):
        return np.from_dlpack(column.chunk(0))
    found: AnyArray = column.to_numpy()
    return found


def _code_type(loggers: Sequence[str]) -> type[np.uint8 | np.uint16 | np.uint32]:
    if len(loggers) <= np.iinfo(np.uint8).max:
        return np.uint8
    return np.uint16 if len(loggers) <= np.iinfo(np.uint16).max else np.uint32


def _codes(labels: pa.ChunkedArray, loggers: Sequence[str]) -> AnyArray:
    """Place of each row's logger; a row of an unknown one is bad."""
    if labels.null_count:
        raise BadRowsError
    place: dict[Any, int] = {label: k for k, label in enumerate(loggers)}
    found = []
    for chunk in labels.chunks:
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        listed = coded.dictionary.to_pylist()
        known = np.array([place.get(label, -1) for label in listed], dtype=np.int64)
        used: AnyArray = np.from_dlpack(coded.indices)
        strange = np.flatnonzero(known < 0)
        if len(strange) and np.isin(used, strange).any():
            raise BadRowsError
        found.append(known.astype(_code_type(loggers)).take(used))
    return np.concatenate(found) if len(found) != 1 else found[0]


def plain_columns(table: RoleColumns) -> dict[str, str] | None:
    """The source's column for each number of the layout, if each is a column as it is."""
    values = {
        "reward": table.reward,
        **{f"p_{k}": value for k, value in enumerate(table.propensities.values())},
        **{f"t_{k}": value for k, value in enumerate(table.targets.values())},
        **{f"v_{k}": value for k, value in enumerate(table.predicted_values.values())},
    }
    optional = {
        "propensity": table.propensity,
        "predicted_reward": table.predicted_reward,
        "estimated_mixture": table.mixture,
    }
    values |= {name: value for name, value in optional.items() if value is not None}
    if table.drop or not all(isinstance(v, exp.Column) for v in values.values()):
        return None
    return {name: value.name for name, value in values.items()}


def readable(feed: ParquetFeed) -> bool:
    """Whether every file has every column, as a number that means the same to all readers."""
    schemas = (pq.read_schema(path) for path, _ in feed.files)
    return all(_has(schema, feed.columns.values(), feed.logger) for schema in schemas)


def feed_of(
    table: RoleColumns, files: Files | None, loggers: tuple[str, ...]
) -> ParquetFeed | None:
    """The files of a log, where they can be read as they are."""
    columns, label = plain_columns(table), table.logger
    if files is None or columns is None:
        return None
    labelled = all(of is not None for _, of in files)
    if not labelled and not isinstance(label, exp.Column):
        return None
    feed = ParquetFeed(files, columns, "" if labelled else label.name, loggers)
    return feed if readable(feed) else None


def _has(schema: pa.Schema, columns: Iterable[str], logger: str) -> bool:
    names = [*columns, *([logger] if logger else [])]
    if any(schema.names.count(n) != 1 or "." in n for n in names):
        return False
    kinds = [schema.field(n).type for n in columns]
    if not all(map(_is_number, kinds)):
        return False
    return not logger or _is_text(schema.field(logger).type)


@dataclass(frozen=True, eq=False)
class Frame:
    """A table in memory, cut into batches.

    Attributes:
        parts: Some batches each, columns under the names of the layout; labels are coded.
        counts: Rows of each label, and of none.
    """

    parts: list[list[pa.RecordBatch]]
    counts: dict[str | None, int]


def frame_of(
    table: pa.Table, columns: Mapping[str, str], logger: str, threads: int
) -> Frame | None:
    """The columns of a table in memory, if they are plain; only labels are copied."""
    if not _has(table.schema, columns.values(), logger):
        return None
    names = {"logger": logger, **columns}
    arrays = [table.column(source) for source in names.values()]
    batches = pa.Table.from_arrays(arrays, names=list(names)).to_batches(TABLE_ROWS)
    counts: Counter[str | None] = Counter()
    parts: list[list[pa.RecordBatch]] = []
    with ThreadPoolExecutor(threads) as pool:
        for batch, rows in pool.map(_coded, batches):
            if not parts or sum(b.num_rows for b in parts[-1]) > TABLE_ROWS:
                parts.append([])
            parts[-1].append(batch)
            counts.update(rows)
    return Frame(parts, dict(counts))


def _coded(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str | None, int]]:
    """A batch with its labels as codes, and how often it has each label, or none."""
    labels = batch.column(0).dictionary_encode()
    nulls, codes = labels.null_count, labels.indices
    used = np.bincount(np.from_dlpack(codes.drop_null() if nulls else codes))
    counts = dict(zip(labels.dictionary.to_pylist(), used.tolist(), strict=True))
    return batch.set_column(0, "logger", labels), counts | ({None: nulls} if nulls else {})


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


@dataclass(frozen=True)
class Layout:
    """Columns ``logger``, ``reward``, ``p_0``..., ``t_0``... and what else there is.

    Attributes:
        loggers: Every logger, in the order in which their moments come.
        crossed: Loggers whose probability is known in every row, in the order of ``p_*``.
        shares: Share of each of `crossed` in the mixture.
        targets: Targets, in the order of ``t_*``.
        valued: Targets with a predicted value, in the order of ``v_*``.
        propensity: Whether there is a column ``propensity``.
        predicted: Whether there is a column ``predicted_reward``.
        mixture: Whether there is a column ``estimated_mixture``.
        logs: Whether probabilities are given as logarithms.
        tolerance: How far ``propensity`` may be from the row's own ``p_*``.
        buckets: Into how many each logger's rows are split, by a column ``bucket``.
    """

    loggers: tuple[str, ...]
    crossed: tuple[str, ...]
    shares: tuple[float, ...]
    targets: tuple[str, ...]
    valued: tuple[str, ...] = ()
    propensity: bool = True
    predicted: bool = False
    mixture: bool = False
    logs: bool = False
    tolerance: float = 1e-6
    buckets: int = 1

    @property
    def groups(self) -> tuple[str, ...]:
        """The logger of each group of rows that is summed: bucket after bucket."""
        return self.loggers * self.buckets

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numeric columns, in a fixed order."""
        asked = {
            "propensity": self.propensity,
            "predicted_reward": self.predicted,
            "estimated_mixture": self.mixture,
        }
        return (
            "reward",
            *(f"p_{k}" for k in range(len(self.crossed))),
            *(f"t_{k}" for k in range(len(self.targets))),
            *(f"v_{k}" for k in range(len(self.valued))),
            *(name for name, there in asked.items() if there),
        )


def layout_of(table: RoleColumns, counts: Mapping[str, int]) -> Layout:
    """The layout of a table whose rows have been counted."""
    total = sum(counts.values())
    return Layout(
        loggers=tuple(counts),
        crossed=tuple(table.propensities),
        shares=tuple(counts.get(label, 0) / total for label in table.propensities),
        targets=tuple(table.targets),
        valued=tuple(table.predicted_values),
        propensity=table.propensity is not None,
        predicted=table.predicted_reward is not None,
        mixture=table.mixture is not None,
        logs=table.log_probabilities,
        tolerance=table.tolerance,
    )
