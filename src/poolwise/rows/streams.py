"""Streams: files and frames that hold the rows as they are, in pieces for the reader."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from poolwise.rows.computed import OPERAND, computed_roles
from poolwise.rows.footers import Footers
from poolwise.rows.frames import OddLabelsError, coded_objects
from poolwise.rows.labels import constant
from poolwise.rows.reader import RowGroup, Stream, in_order
from poolwise.rows.rules import LABELS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.rows.frames import PlainFrame
    from poolwise.rows.reader import Files, Piece
    from poolwise.rows.rules import RoleColumns

PIECE = 262_144  # rows of a frame that a thread works on at once


def plain_stream(
    table: RoleColumns,
    source: Files | PlainFrame | None,
    threads: int = 1,
    footers: Footers | None = None,
    *,
    computing: bool = False,
) -> Stream | None:
    """Return files or a frame as they are; None where DuckDB must read the rows.

    With `computing`, roles may be arithmetic of columns.
    """
    roles = table.roles
    label = roles.pop("logger").name if isinstance(table.logger, exp.Literal) else None
    columns = {name: v.name for name, v in roles.items() if isinstance(v, exp.Column)}
    others = {name: v for name, v in roles.items() if name not in columns}
    computed = computed_roles(others) if computing or not others else None
    if source is None or computed is None or others.keys() & LABELS:
        return None
    columns |= computed.operands(others)
    if isinstance(source, tuple):
        files = [(path, label if own is None else own) for path, own in source]
        stream = file_stream(files, columns, footers)
    else:
        stream = frame_stream(*_add_label(source, columns, label), threads)
    return None if stream is None else replace(stream, computed=computed)


def _add_label(
    frame: PlainFrame, columns: dict[str, str], label: str | None
) -> tuple[PlainFrame, dict[str, str]]:
    """Append the label of all rows, where no column has it."""
    if label is None:
        return frame, columns
    labels = constant(label, frame.table.num_rows)
    table = frame.table.append_column("", labels)
    return replace(frame, table=table), columns | {"logger": ""}


def file_stream(
    files: Sequence[tuple[str, str | None]],
    columns: Mapping[str, str],
    footers: Footers | None = None,
) -> Stream | None:
    """Return all row groups, without the empty ones; None if a file lacks a column."""
    footers = footers or Footers()
    if all(label is not None for _, label in files):
        columns = {name: source for name, source in columns.items() if name != "logger"}
    pieces: list[Piece] = []
    last = None
    for path, label in files:
        footer = footers(path)
        if footer.kind is not last and not _has_columns(
            footer.kind.schema.to_arrow_schema(), columns
        ):
            return None
        last = footer.kind
        pieces += [RowGroup(path, k, n, label) for k, n in enumerate(footer.rows) if n]
    return Stream(pieces, columns, footers)


def _has_columns(
    schema: pa.Schema, columns: Mapping[str, str], *, framed: bool = False
) -> bool:
    """Test if a schema has every column, of a type that all readers read alike."""
    is_a = pa.types
    for name, source in columns.items():
        if schema.names.count(source) != 1 or "." in source:
            return False
        kind = schema.field(source).type
        if name in LABELS:
            kind = kind.value_type if is_a.is_dictionary(kind) else kind
            fits = is_a.is_string(kind) or is_a.is_large_string(kind)
            fits |= framed and is_a.is_string_view(kind)
            fits |= name == "period" and is_a.is_date32(kind)
        else:
            fits = is_a.is_floating(kind) or is_a.is_boolean(kind)
            fits &= not (name.startswith(OPERAND) and is_a.is_float16(kind))
        if not (fits or is_a.is_integer(kind)):
            return False
    return True


def has_numbers(table: RoleColumns, schema: pa.Schema) -> bool:
    """Test if the columns of all probabilities are numbers, and none is a distribution."""
    probs = [value for name, value in table.numbers.items() if name != "reward"]
    names = {node.name for value in probs for node in value.find_all(exp.Column)}
    is_a = pa.types
    kinds = [schema.field(name).type for name in names & {*schema.names}]
    flat = [is_a.is_floating(k) or is_a.is_integer(k) or is_a.is_boolean(k) for k in kinds]
    return all(flat)


def frame_stream(frame: PlainFrame, columns: Mapping[str, str], threads: int) -> Stream | None:
    """Return the columns of a frame in pieces; only labels are copied, as codes.

    None if a column is missing, or of a type that only DuckDB reads.
    """
    labels = [name for name in columns if name in LABELS]
    objects = {k: frame.objects[columns[k]] for k in labels if columns[k] in frame.objects}
    others = {k: v for k, v in columns.items() if k not in objects}
    if not _has_columns(frame.table.schema, others, framed=True):
        return None

    def coded(item: tuple[int, pa.Table]) -> pa.Table:
        first, piece = item
        for name in labels:
            place = piece.schema.names.index(name)
            column = piece.column(place)
            if name in objects:
                column = coded_objects(objects[name][first : first + piece.num_rows])
            elif name == "logger" or pa.types.is_string_view(column.type):
                column = column.dictionary_encode()
            piece = piece.set_column(place, name, column)
        return piece

    renamed = pa.table({k: frame.table.column(source) for k, source in columns.items()})
    pieces = list(map(pa.Table.from_batches, _split_table(renamed)))
    starts = accumulate((piece.num_rows for piece in pieces), initial=0)
    try:
        return Stream(list(in_order(coded, zip(starts, pieces, strict=False), threads)))
    except OddLabelsError:
        return None


def _split_table(table: pa.Table) -> list[list[pa.RecordBatch]]:
    """Return the batches of each piece: chunks stay whole, small ones together."""
    parts: list[list[pa.RecordBatch]] = []
    for batch in table.to_batches(PIECE):
        if not parts or sum(b.num_rows for b in parts[-1]) + batch.num_rows > PIECE:
            parts.append([])
        parts[-1].append(batch)
    return parts
