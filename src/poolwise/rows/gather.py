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


def gather(
    pieces: Iterable[tuple[Piece, int]], rows: int = GATHERED
) -> Iterator[tuple[list[Piece], int]]:
    """Yield neighbouring pieces together, up to so many rows, with the rows before them.

    >>> small = [(pa.table({"x": [0] * n}), first) for n, first in ((2, 0), (3, 2), (4, 5))]
    >>> [(len(pieces), first) for pieces, first in gather(small, 5)]
    [(2, 0), (1, 5)]
    """
    together: list[Piece] = []
    first = count = 0
    for piece, first_row in pieces:
        if together and count + piece.num_rows > rows:
            yield together, first
            together, count = [], 0
        first = first if together else first_row
        together.append(piece)
        count += piece.num_rows
    if together:
        yield together, first


def joined(tables: list[pa.Table]) -> list[pa.Table]:
    """Return tables of one schema as one; others as they are."""
    same = all(table.schema.equals(tables[0].schema) for table in tables)
    return [pa.concat_tables(tables).combine_chunks()] if same and tables else tables
