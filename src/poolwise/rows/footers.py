"""Footers: names, types and row groups of Parquet files, which each file's end lists.

A log of plain files is opened from these, without a query; thousands of small files are
parsed once, not once in each pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from poolwise.log.log import PART_LOGGER
from poolwise.rows.guard import refuse_tables
from poolwise.rows.labels import KeptLabels
from poolwise.rows.repeats import stamp_file, whole_file

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from poolwise.log.log import Log, Part
    from poolwise.rows.reader import Files
    from poolwise.rows.repeats import Stamp

NOT_PLAIN = re.compile(r"[*?\[{]|=.*/|^~|^\w+://")  # paths that DuckDB reads in its own way


class Footer(NamedTuple):
    """Footer of a file as it was read.

    Attributes:
        stamp: That of the file.
        parsed: The footer itself.
        kind: Footer of the first file with the same columns of the same types.
        rows: Rows of each row group.
    """

    stamp: Stamp
    parsed: pq.FileMetaData
    kind: pq.FileMetaData
    rows: tuple[int, ...]


class Footers:
    """Footers of files that were read, parsed again where a file changed; threads share one.

    Attributes:
        labels: Labels of row groups of these files.
    """

    def __init__(self) -> None:
        self.labels = KeptLabels()
        self._read: dict[str, Footer] = {}
        self._kind: pq.FileMetaData | None = None

    def __call__(self, path: str) -> Footer:
        """Return the footer of a file as it is now."""
        stamp = stamp_file(path)
        footer = self._read.get(path)
        if footer is None or footer.stamp != stamp:
            parsed = pq.read_metadata(pa.OSFile(path))
            kind = self._kind = self._kind or parsed
            rows = tuple(parsed.row_group(k).num_rows for k in range(parsed.num_row_groups))
            footer = Footer(
                stamp, parsed, kind if _same_columns(kind, parsed) else parsed, rows
            )
            self._read[path] = footer
        return footer

    def lists_no_null(self, path: str, columns: Collection[str]) -> bool:
        """Test if the statistics of a file show that each of these columns has no NULL."""
        parsed = self(path).parsed
        places = [
            k for k in range(parsed.num_columns) if parsed.schema.column(k).path in columns
        ]
        groups = [parsed.row_group(k) for k in range(parsed.num_row_groups)]
        statistics = [group.column(k).statistics for group in groups for k in places]
        return all(s is not None and s.has_null_count and not s.null_count for s in statistics)


def _same_columns(left: pq.FileMetaData, right: pq.FileMetaData) -> bool:
    """Test if two files have the same columns of the same types."""
    if left is right:
        return True
    types = [(footer.metadata or {}).get(b"ARROW:schema") for footer in (left, right)]
    return types[0] == types[1] and left.schema.equals(right.schema)


@dataclass(frozen=True, eq=False)
class PlainFiles:
    """Parquet files of the same columns, which need no query to be opened.

    Attributes:
        source: Paths, each with the label of its rows where no column has it.
        names: Columns of the log.
        schema: Types of the columns of the files.
        timed: Whether there is a column of times.
        footers: Footers of the files.
    """

    source: Files
    names: tuple[str, ...]
    schema: pa.Schema
    timed: bool
    footers: Footers = field(default_factory=Footers)


def _paths(part: Part) -> Sequence[str]:
    """Return the paths of Parquet files, and of a SELECT of one whole file; else a pattern."""
    if part.kind == "select":
        return whole_file(part.value) or ["*"]
    return part.value if part.kind == "parquet" else ["*"]


def plain_parquet(log: Log) -> PlainFiles | None:
    """Return the files of a log that are plain; None for others, and for unreadable ones."""
    files = tuple((path, part.logger) for part in log.parts for path in _paths(part))
    if not files or log.reader_options or any(NOT_PLAIN.search(path) for path, _ in files):
        return None
    refuse_tables(path for part in log.parts if part.kind == "parquet" for path in part.value)
    footers = Footers()
    try:
        all_footers = [footers(path) for path, _ in files]
        kind = all_footers[0].kind
        schema = kind.schema.to_arrow_schema()
        same = all(footer.kind is kind for footer in all_footers)
        once = len({footer.stamp[:2] for footer in all_footers}) == len(files)
    except (pa.ArrowException, OSError, ValueError):  # DuckDB says what is wrong
        return None
    names = [*schema.names, *([] if files[0][1] is None else [PART_LOGGER])]
    if not (same and once) or len({name.lower() for name in names}) < len(names):
        return None
    return PlainFiles(
        files, tuple(names), schema, any(map(pa.types.is_temporal, schema.types)), footers
    )
