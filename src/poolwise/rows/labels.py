"""Labels: which logger wrote each row, as codes.

The shares of the loggers must be known before rows can be added up, so files are read for
their labels first.  These are kept for later passes, mostly a byte for each row.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from poolwise.rows.rules import EXCLUDED, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from poolwise.types import AnyArray

LabelKey = tuple[object, ...]  # a row group of a file as it was, and its column of labels
Coded = tuple[list[str | None], "AnyArray"]  # distinct labels, and the index of each row
MOST_KEPT = 10 << 20  # bytes of labels: those of ten million rows
FEW_LABELS = 16  # labels that are counted one after the other
CLOSE = 1_024  # difference of integer labels, or from 0, that need not be looked up


def constant(label: str, rows: int) -> pa.Array:
    """Return the same label for every row."""
    return make_labels([label], np.zeros(rows, dtype=np.int8))


def make_labels(texts: Sequence[str], indices: AnyArray) -> pa.DictionaryArray:
    """Return the text of each index; `pa.array` would load pandas, if that is installed."""
    parts = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    joined = map(pa.py_buffer, (ends, b"".join(parts)))
    kind = pa.from_numpy_dtype(indices.dtype)
    codes = pa.Array.from_buffers(kind, len(indices), [None, pa.py_buffer(indices)])
    dictionary = pa.StringArray.from_buffers(len(parts), *joined)
    return pa.DictionaryArray.from_arrays(codes, dictionary, safe=False)


def code_chunks(labels: pa.ChunkedArray) -> Iterator[Coded]:
    """Yield the distinct labels of each chunk as text, and the index of each row in them.

    Text as DuckDB writes integers; the last label is None, that of NULL. Integers that are
    small or close to each other are their own indices.
    """
    for chunk in labels.chunks:
        texts, indices = _integers(chunk) or _encode_chunk(chunk)
        yield [*texts, None], indices.astype(np.min_scalar_type(-1 - len(texts)), copy=False)


def _integers(chunk: pa.Array) -> tuple[list[str], AnyArray] | None:
    if not pa.types.is_integer(chunk.type) or chunk.null_count or not len(chunk):
        return None
    numbers = np.from_dlpack(chunk)
    low, top = 0, int(numbers.view(f"u{numbers.itemsize}").max())  # negative is large
    if top >= min(CLOSE, 1 << 8 * numbers.itemsize - 1):
        low, top = int(numbers.min()), int(numbers.max())
    if top - low >= CLOSE:
        return None
    texts = [*map(str, range(low, top + 1))]
    if not low:
        return texts, numbers
    wide = np.uint64 if numbers.dtype.kind == "u" else np.int64
    return texts, np.subtract(numbers.astype(wide), low)


def _encode_chunk(chunk: pa.Array) -> tuple[list[str], AnyArray]:
    encoded = pa.types.is_dictionary(chunk.type)
    values = chunk if encoded else chunk.dictionary_encode()
    texts, indices = values.dictionary, values.indices
    if texts.type != pa.string():
        texts = texts.cast(pa.string())
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(len(texts))
    return texts.to_pylist(), np.from_dlpack(indices)


def count_labels(labels: Sequence[str | None], indices: AnyArray) -> Counter[str | None]:
    """Count the rows of each label."""
    if len(labels) <= FEW_LABELS:  # the fastest way
        numbers = [np.count_nonzero(indices == k) for k in range(len(labels))]
    else:
        numbers = np.bincount(indices, minlength=len(labels)).tolist()
    counts: Counter[str | None] = Counter()
    for label, number in zip(labels, numbers, strict=True):
        counts[label] += int(number)
    return +counts


def find_codes(labels: pa.ChunkedArray, code: Mapping[str | None, int]) -> AnyArray:
    """Return the code of each row's label; `UNKNOWN` without one."""
    kind = np.min_scalar_type(-max(len(code), -EXCLUDED))
    parts = []
    for texts, indices in code_chunks(labels):
        by_index = np.array([code.get(text, UNKNOWN) for text in texts], dtype=kind)
        if by_index.itemsize == indices.itemsize == 1:  # the fastest way
            table = by_index.tobytes().ljust(256)
            parts.append(np.frombuffer(indices.tobytes().translate(table), dtype=kind))
        else:
            parts.append(by_index.take(indices))
    return np.concatenate(parts) if len(parts) != 1 else parts[0]


class KeptLabels:
    """Labels of row groups that were read; threads share one.

    Args:
        most: Number of bytes that they take together.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._room = most
        self._kept: dict[LabelKey, pa.ChunkedArray] = {}

    def keep(self, read: Sequence[tuple[LabelKey, int]], parts: Sequence[Coded]) -> None:
        """Keep labels, if there is room and none is missing.

        Args:
            read: Row groups that were read, with their rows.
            parts: Labels of these rows.
        """
        chunks = []
        for labels, indices in parts if read else ():
            self._room -= indices.nbytes
            texts = [label for label in labels if label is not None]
            if self._room < 0 or (indices >= len(texts)).any():
                return
            own = np.array(indices)  # not what was read, of which it may be a part
            chunks.append(make_labels(texts, own))
        first = 0
        for key, rows in read if chunks else ():
            self._kept[key] = pa.chunked_array(chunks).slice(first, rows)
            first += rows

    def get(self, key: LabelKey) -> pa.ChunkedArray | None:
        """Return the labels of a row group; None if they were not kept."""
        return self._kept.get(key)
