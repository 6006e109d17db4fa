"""Reader: scored rows in pieces, and their batches as the arrays that the kernel takes.

A piece is a row group of a Parquet file, a slice of an Arrow table or a batch of a query; its
columns have the names of a `Layout`.  Labels become codes, rows are dealt out to buckets, and
rows of excluded loggers are left out.  Bad rows raise an error in the kernel; where the log
says so they are left out here.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poolwise.rows.clusters import cluster_buckets
from poolwise.rows.computed import Computed, Computer
from poolwise.rows.footers import Footers
from poolwise.rows.labels import code_chunks, constant, count_labels, find_codes
from poolwise.rows.layout import BadRowsError
from poolwise.rows.repeats import Stamp
from poolwise.rows.rules import EXCLUDED, GAP, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from poolwise.rows.labels import Coded, LabelKey
    from poolwise.rows.layout import Layout
    from poolwise.types import AnyArray

Item = TypeVar("Item")
Made = TypeVar("Made")
Files = tuple[tuple[str, str | None], ...]  # paths, with the label of all rows or None
RowArrays = tuple["AnyArray", dict[str, "AnyArray"]]  # groups, and numbers by column
QUERY_ROWS = 131_072  # rows of one piece of a query
LABELLED = 524_288  # rows whose labels are read together
BUFFER = 1 << 16  # bytes of a file that are read at once: they stay in the cache
GATHERED = 65_536  # rows of small pieces that are read together
WIDE = 10  # columns of joined tables: to copy wider ones takes longer than it saves
LAST_PARTS = 4  # a task takes at most this part of the rows that are left
MOST_GATHERED = 1_048_576  # rows of a thread before its sums are added to those of others
MEASURES = re.compile(r"reward|m_\d+")  # columns of a layout
LARGE_GROUP = 8_000_000  # values of a row group that is not read at once: 64 MB


# Streams.


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file.

    Attributes:
        path: The file.
        group: Number of the row group.
        num_rows: Its rows.
        logger: Label of all rows, where the file has no column of labels.
        head: Rows to read from its beginning; 0 for all.
    """

    path: str
    group: int
    num_rows: int
    logger: str | None = None
    head: int = 0


Piece = RowGroup | Any  # rows that one thread reads at once: a row group or an Arrow table


@dataclass(frozen=True, eq=False)
class Stream:
    """Scored rows under the names of a layout.

    Attributes:
        pieces: All pieces, in the order of the rows; those of a query can be read once.
        columns: Column of the files for each column of the layout; empty without files.
        footers: Footers of the files.
        computed: Columns of the layout that are computed from others.
    """

    pieces: Iterable[Piece]
    columns: Mapping[str, str] = field(default_factory=dict)
    footers: Footers = field(default_factory=Footers)
    computed: Computed = field(default_factory=lambda: Computed({}))

    def reader(self) -> Reader:
        """Return a function that reads pieces; each thread has its own."""
        return Reader(self.columns, self.footers, self.computed)


class Reader:
    """Reads pieces; keeps its last file open."""

    def __init__(
        self,
        columns: Mapping[str, str],
        footers: Footers | None = None,
        computed: Computed | None = None,
    ) -> None:
        self.columns = columns
        self._footers = footers or Footers()
        self._compute = Computer(computed or Computed({}))
        self._path, self._stamp = "", Stamp()
        self._file: pq.ParquetFile

    def __call__(self, pieces: Iterable[Piece], names: Sequence[str]) -> Iterator[pa.Table]:
        """Read some columns of neighbouring pieces; small ones become one table."""
        wanted = {name: self.columns[name] for name in names if name in self.columns}
        wanted |= self._compute.computed.operands(names)
        sources = list(dict.fromkeys(wanted.values()))
        width = self._width(names)
        for label, neighbours in groupby(pieces, _piece_label):
            tables = (
                table for piece in neighbours for table in self._tables(piece, sources, width)
            )
            for table in join_tables(tables, width=width):
                named = _rename_columns(table, wanted, label) if self.columns else table
                yield self._compute(named, names)

    def _width(self, names: Sequence[str]) -> int:
        """Count the columns that are read, with one for the reward and all other measures."""
        rest = [name for name in names if not MEASURES.fullmatch(name)]
        sources = {self.columns[name] for name in rest if name in self.columns}
        return 1 + len(sources.union(self._compute.computed.operands(rest).values()))

    def labels(self, pieces: Iterable[Piece]) -> list[Coded]:
        """Read the labels of neighbouring pieces; keep those of files for later passes."""
        name = self.columns.get("logger", "logger")
        read: list[tuple[LabelKey, int]] = []

        def tables() -> Iterator[pa.Table]:
            for piece in pieces:
                yield from self._tables(piece, [name], 1)
                if isinstance(piece, RowGroup):
                    read.append((self._key(piece), piece.num_rows))

        parts = [
            part for table in join_tables(tables()) for part in code_chunks(table.column(name))
        ]
        self._footers.labels.keep(read, parts)
        return parts

    def _tables(self, piece: Piece, names: list[str], width: int) -> Iterator[pa.Table]:
        """Read columns of a row group; a table in memory as it is, chunk by chunk.

        Where tables end depends on `width`, so that no number depends on other measures.
        """
        if not isinstance(piece, RowGroup):
            yield from (pa.Table.from_batches([batch]) for batch in piece.to_batches())
            return
        if not names:
            yield pa.table({"row": pa.nulls(piece.num_rows)})
            return
        self._open(piece.path)
        kept = self._kept(piece, names)
        read = [name for name in names if kept is None or name != self.columns["logger"]]
        first = 0
        for table in self._read_columns(piece, read, width):
            if table.num_columns < len(read):
                raise pa.ArrowInvalid(f"{piece.path} has lost a column since it was opened")
            if kept is not None:
                labels = kept.slice(first, table.num_rows)
                table = table.append_column(self.columns["logger"], labels)  # noqa: PLW2901
            yield table
            first += table.num_rows

    def _open(self, path: str) -> None:
        if path == self._path:
            return
        label = self.columns.get("logger")
        footer = self._footers(path)
        self._file = pq.ParquetFile(
            pa.OSFile(path),
            metadata=footer.parsed,
            read_dictionary=[label] if label else None,
            pre_buffer=False,  # the system reads ahead, and threads read other groups
            buffer_size=BUFFER,
        )
        self._path, self._stamp = path, footer.stamp

    def _read_columns(
        self, piece: RowGroup, names: list[str], width: int
    ) -> Iterator[pa.Table]:
        if piece.head:
            batches = self._file.iter_batches(
                piece.head, [piece.group], names, use_threads=False
            )
            yield pa.Table.from_batches([next(batches)])
            return
        if piece.num_rows * width <= LARGE_GROUP:
            yield self._file.read_row_group(piece.group, columns=names, use_threads=False)
            return
        rows = max(LARGE_GROUP // 8 // width, 1)
        for batch in self._file.iter_batches(rows, [piece.group], names, use_threads=False):
            yield pa.Table.from_batches([batch])

    def _key(self, piece: RowGroup) -> LabelKey:
        return self._stamp, piece.group, self.columns["logger"]

    def _kept(self, piece: RowGroup, names: list[str]) -> pa.ChunkedArray | None:
        """Return the labels of a row group, if an earlier pass kept them."""
        label = self.columns.get("logger")
        roles = [name for name, column in self.columns.items() if column == label]
        if roles != ["logger"] or label not in names or len(names) == 1:
            return None  # another role may need its type
        return self._footers.labels.get(self._key(piece))


def _piece_label(piece: Piece) -> str | None:
    """Return the label of all rows of a file; None where a column has it."""
    return piece.logger if isinstance(piece, RowGroup) else None


def _rename_columns(table: pa.Table, wanted: Mapping[str, str], label: str | None) -> pa.Table:
    """Return the columns of a table under the names of a layout, with the label of all rows."""
    of_source = {source: name for name, source in wanted.items()}
    if wanted and label is None and len(of_source) == len(wanted):  # fastest, for small files
        return table.rename_columns([of_source[source] for source in table.column_names])
    arrays = {name: table.column(source) for name, source in wanted.items()}
    if label is not None:
        arrays["logger"] = constant(label, table.num_rows)
    return pa.table(arrays)


# Passes.


def label_counts(stream: Stream, threads: int) -> list[Counter[str | None]]:
    """Count the rows of each label, and of none, in pieces of `LABELLED` rows together."""
    own = PerThread(stream.reader)

    def count(pieces: Sequence[Piece]) -> Counter[str | None]:
        counts: Counter[str | None] = Counter()
        for label, neighbours in groupby(pieces, _piece_label):
            if label is not None:
                counts[label] += sum(piece.num_rows for piece in neighbours)
                continue
            for part in own.value.labels(neighbours):
                counts += count_labels(*part)
        return counts

    pieces = list(stream.pieces)
    sizes = [piece.num_rows for piece in pieces]
    placed = zip(pieces, accumulate(sizes, initial=0), strict=False)
    gathered = gather(placed, LABELLED, sum(sizes))
    return list(in_order(count, (together for together, _ in gathered), threads))


def number_pieces(stream: Stream) -> Iterator[tuple[Piece, int]]:
    """Yield pieces with the number of rows before each."""
    first_row = 0
    for piece in stream.pieces:
        yield piece, first_row
        first_row += piece.num_rows


class PerThread(threading.local, Generic[Made]):
    """A value that each thread makes for itself."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self.value = make()


def in_order(
    work: Callable[[Item], Made], items: Iterable[Item], threads: int
) -> Iterator[Made]:
    """Yield results of work in threads, a few items ahead, in the order of the items."""
    if threads == 1:
        yield from map(work, items)
        return
    waiting: deque[Future[Made]] = deque()
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


# Batches as arrays.


def to_rows(
    tables: Iterable[pa.Table], layout: Layout, first_row: int, size: int
) -> Iterator[RowArrays]:
    """Yield groups and numbers of rows, at most `size` at once.

    Args:
        tables: Columns of the layout, and ``logger``; with buckets ``bucket`` or ``cluster``,
            unless rows are dealt out one by one.
        layout: The columns, and the rows to leave out.
        first_row: Number of rows before the first table.
        size: Rows of one result.
    """
    for table in tables:
        codes = find_codes(table.column("logger"), layout.codes)
        columns = {name: _read_values(table.column(name)) for name in layout.columns}
        strata = _strata(table, codes, layout)
        groups = _groups(table, strata, layout, first_row)
        used = _is_labelled(table, strata)
        if layout.drop:
            used &= good_rows(codes, columns, layout)
        elif not used.all():
            raise BadRowsError
        if layout.excluded:
            used &= codes != EXCLUDED
        if not used.all():
            groups = groups[used]
            columns = {name: values[used] for name, values in columns.items()}
        yield from cut(groups, columns, size)
        first_row += int(np.count_nonzero(codes != EXCLUDED))


def cut(groups: AnyArray, columns: Mapping[str, AnyArray], size: int) -> Iterator[RowArrays]:
    """Yield slices of at most `size` rows."""
    for start in range(0, len(groups), size):
        rows = slice(start, start + size)
        yield groups[rows], {name: values[rows] for name, values in columns.items()}


def _strata(table: pa.Table, codes: AnyArray, layout: Layout) -> AnyArray:
    """Return the number of each row's cell, or of its logger where periods do not matter."""
    if "period" not in layout.names:
        return codes
    if not layout.cells:
        known = table.column("period").is_valid().to_numpy()
        return np.where(known | (codes < 0), codes, UNKNOWN)
    periods = find_codes(table.column("period"), layout.period_codes)
    return np.where(codes < 0, codes, layout.cell_numbers[periods, codes])


def _read_values(column: pa.ChunkedArray) -> AnyArray:
    """Return values for NumPy, without a copy where they are adjacent; nulls are NaN.

    `to_numpy` of a number without nulls would load pandas, if that is installed.
    """
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if column.num_chunks == 1 and not column.null_count:
        return np.from_dlpack(column.chunk(0))
    values: AnyArray = column.to_numpy()
    return values


def _groups(table: pa.Table, codes: AnyArray, layout: Layout, first_row: int) -> AnyArray:
    """Return the group of each row."""
    names = table.schema.names
    if layout.buckets == 1:
        return codes
    if "bucket" in names:
        buckets = _read_values(table.column("bucket"))
    elif "cluster" in names:
        buckets = cluster_buckets(table.column("cluster"), layout.buckets)
    else:
        buckets = layout.deal(first_row + 1 + np.arange(len(codes)))
    return buckets.astype(np.int64) * len(layout.strata) + codes


def _is_labelled(table: pa.Table, strata: AnyArray) -> NDArray[np.bool]:
    """Return True for rows that keep the rules of labels: each one is known."""
    known = np.asarray(strata != UNKNOWN)
    names = table.schema.names
    if "no_cluster" in names:
        known &= _read_values(table.column("no_cluster")) == 0.0
    elif "cluster" in names and table.column("cluster").null_count:
        known &= table.column("cluster").is_valid().to_numpy()
    return known


def good_rows(
    codes: AnyArray, columns: Mapping[str, AnyArray], layout: Layout
) -> NDArray[np.bool]:
    """Return True for rows that keep the rules of numbers; NaN breaks each."""
    good = np.ones(len(codes), dtype=bool)
    for name, (low, top) in layout.limits.items():
        values = (
            columns[name] if name in columns else _derive_columns(name, codes, columns, layout)
        )
        if len(values) and not (values.min() >= low and values.max() <= top):
            good &= (values >= low) & (values <= top)
    return good


def _derive_columns(
    name: str, codes: AnyArray, columns: Mapping[str, AnyArray], layout: Layout
) -> AnyArray:
    """Return the probability under each row's own logger, or the logged one less it.

    The gap is 0 for loggers without cross-propensities.
    """
    values = np.zeros(len(codes))
    for place, label in enumerate(layout.crossed):
        if label in layout.codes:
            rows = np.flatnonzero(codes == layout.codes[label])
            values[rows] = columns[f"p_{place}"].take(rows)
            if name == GAP:
                with np.errstate(invalid="ignore"):  # inf - inf: outside of the limits
                    values[rows] -= columns["propensity"].take(rows)
    return values


# Small pieces together: a pass over a batch has a fixed cost, which few rows do not repay.


def gather(
    pieces: Iterable[tuple[Piece, int]], rows: int = GATHERED, total: int | None = None
) -> Iterator[tuple[list[Piece], int]]:
    """Yield neighbouring pieces together, up to so many rows, with the rows before them.

    Fewer towards the end, if the rows of all pieces are known: threads end at about the same
    time.

    >>> small = [(pa.table({"x": [0] * n}), first) for n, first in ((2, 0), (3, 2), (4, 5))]
    >>> [(len(pieces), first) for pieces, first in gather(small, 5)]
    [(2, 0), (1, 5)]
    """
    together: list[Piece] = []
    first = count = 0
    for piece, first_row in pieces:
        left = rows if total is None else max((total - first_row) // LAST_PARTS, GATHERED)
        if together and count + piece.num_rows > min(rows, left):
            yield together, first
            together, count = [], 0
        first = first if together else first_row
        together.append(piece)
        count += piece.num_rows
    if together:
        yield together, first


def join_tables(
    tables: Iterable[pa.Table], rows: int = GATHERED, width: int = 0
) -> Iterator[pa.Table]:
    """Yield small neighbours of one schema as one table, up to so many rows.

    Tables of many rows and columns are not joined; `width` replaces their number of columns.

    >>> tables = [pa.table({"x": [0] * n}) for n in (2, 3, 4, 9, 1)]
    >>> [table.num_rows for table in join_tables(tables, 5)]
    [5, 4, 9, 1]
    """
    small: list[pa.Table] = []
    count = 0
    for table in tables:
        if small and (
            count + table.num_rows > rows or not table.schema.equals(small[0].schema)
        ):
            yield _join_tables(small)
            small, count = [], 0
        wide = table.num_rows * (width or table.num_columns) >= WIDE * rows
        if table.num_rows >= rows or wide:  # not held while the next one is read
            yield table
        else:
            small.append(table)
            count += table.num_rows
    if small:
        yield _join_tables(small)


def _join_tables(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]
