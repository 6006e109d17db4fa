"""Gather: small pieces of a stream, such as thousands of small files, are read together.

A pass over a batch has a fixed cost, which a few thousand rows do not repay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from poolwise.rows.reader import Piece

GATHERED = 65_536  # rows of small pieces that are read together
WIDE = 10  # columns of joined tables: to copy wider ones takes longer than it saves
LAST_PARTS = 4  # a task takes at most this part of the rows that are left
MOST_GATHERED = 1_048_576  # rows of a thread before its sums are added to those of others


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


def joined(tables: Iterable[pa.Table], rows: int = GATHERED) -> Iterator[pa.Table]:
    """Yield small neighbours of one schema as one table, up to so many rows.

    >>> tables = [pa.table({"x": [0] * n}) for n in (2, 3, 4, 9, 1)]
    >>> [table.num_rows for table in joined(tables, 5)]
    [5, 4, 9, 1]
    """
    small: list[pa.Table] = []
    count = 0
    for table in tables:
        if small and (
            count + table.num_rows > rows or not table.schema.equals(small[0].schema)
        ):
            yield _one(small)
            small, count = [], 0
        wide = table.num_rows * table.num_columns >= WIDE * rows
        if table.num_rows >= rows or wide:  # not held while the next one is read
            yield table
        else:
            small.append(table)
            count += table.num_rows
    if small:
        yield _one(small)


def _one(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]
