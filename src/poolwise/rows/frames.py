"""Frames: tables in memory that are read as they are, without DuckDB.

Numbers of pandas and Polars frames are read where they are.  Labels become codes, slice by
slice and in threads; those of pandas are often few Python objects in many places.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from poolwise.rows.footers import Footers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poolwise.log.log import Log
    from poolwise.types import AnyArray

FEW_OBJECTS = 64  # rows for each Python object, at least, where labels are told by address
PLAIN_TYPES = frozenset({"f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})
POLARS = frozenset(
    {"Boolean", "Categorical", "Date", "Enum", "Float32", "Float64", "String"}
    | {f"{sign}nt{bits}" for sign in ("I", "UI") for bits in (8, 16, 32, 64)}
)


class OddLabelsError(Exception):
    """Labels are neither texts nor missing."""


@dataclass(frozen=True, eq=False)
class PlainFrame:
    """Columns of a frame, without copies.

    Attributes:
        table: All columns; one of type null in place of a column that only DuckDB reads.
        objects: Python objects of columns of pandas, which may be labels.
        other: Whether the frame is not an Arrow table.
        footers: Footers of files, of which a frame has none.
    """

    table: pa.Table
    objects: Mapping[str, AnyArray] = field(default_factory=dict)
    other: bool = False
    footers: Footers = field(default_factory=Footers)

    @property
    def source(self) -> PlainFrame:
        """The frame itself."""
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.table.schema.names)

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns."""
        return self.table.schema

    @property
    def timed(self) -> bool:
        """True if there may be a column of times."""
        texts = {name for name, values in self.objects.items() if type(values[0]) is str}
        rest = [column.type for column in self.table.schema if column.name not in texts]
        return any(pa.types.is_temporal(t) or pa.types.is_null(t) for t in rest)

    def batches(self, names: list[str], rows: int) -> Iterator[pa.RecordBatch] | None:
        """Return some columns in batches; None if DuckDB must read them."""
        unique = all(self.table.schema.names.count(name) == 1 for name in names)
        usable = unique and not self.other
        return iter(self.table.select(names).to_batches(rows)) if usable else None


def plain_frame(log: Log) -> PlainFrame | None:
    """Return the log's frame; None for other sources, and if names collide in DuckDB."""
    source = log.parts[0].value
    if len(log.parts) > 1 or isinstance(log.source, Mapping):
        return None
    frame = PlainFrame(source) if isinstance(source, pa.Table) else _read_pandas(source)
    frame = _read_polars(source) if frame is None else frame
    if frame is None:
        return None
    names = {name.lower() for name in frame.table.schema.names}
    return frame if len(names) == frame.table.num_columns else None


def _read_pandas(source: Any) -> PlainFrame | None:  # noqa: ANN401 - pandas may not be installed
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or type(source) is not pandas.DataFrame or not len(source):
        return None
    if not all(type(name) is str for name in source.columns) or not source.columns.is_unique:
        return None
    columns, objects = {}, {}
    for name, series in source.items():
        if series.dtype == object:
            objects[name] = series.to_numpy()
        columns[name] = _read_series(series)
        if columns[name] is None:
            return None
    return PlainFrame(pa.table(columns), objects, other=True)


def _read_series(series: Any) -> pa.Array | pa.ChunkedArray | None:  # noqa: ANN401 - see above
    """Return numbers and Arrow texts as they are, nulls for objects and times, else None."""
    dtype = series.dtype
    if isinstance(dtype, np.dtype):
        if dtype.kind in "OM":
            return pa.nulls(len(series))
        native = dtype.isnative and dtype.str[1:] in PLAIN_TYPES
        return pa.array(series.to_numpy()) if native else None
    arrow = getattr(dtype, "storage", "") == "pyarrow" or dtype.name == "category"
    return pa.array(series.array, from_pandas=True) if arrow else None


def _read_polars(source: Any) -> PlainFrame | None:  # noqa: ANN401 - Polars may not be installed
    polars: Any = sys.modules.get("polars")
    level = getattr(polars, "CompatLevel", None)  # since Polars 1
    if level is None or type(source) is not polars.DataFrame or not len(source):
        return None
    types = {name: str(dtype.base_type()) for name, dtype in source.schema.items()}
    plain = [name for name, text in types.items() if text in POLARS]
    table = source.select(plain).to_arrow(compat_level=level.newest())
    for place, name in enumerate(types):
        if name not in plain:
            table = table.add_column(place, name, pa.nulls(len(source)))
    return PlainFrame(table, other=True)


def coded_objects(labels: AnyArray) -> pa.DictionaryArray:
    """Return Python texts as codes; None is a missing label.

    >>> coded_objects(np.array(["b", "a", None, "b"], dtype=object)).to_pylist()
    ['b', 'a', None, 'b']
    """
    labels = np.ascontiguousarray(labels)
    size = len(labels)
    addresses = (ctypes.c_ssize_t * size).from_address(labels.ctypes.data)
    places = pa.array(np.ctypeslib.as_array(addresses)).dictionary_encode()
    if len(places.dictionary) * FEW_OBJECTS > size:
        return _texts(labels).dictionary_encode()
    codes = np.from_dlpack(places.indices)
    highest = np.maximum.accumulate(codes)  # a new object has the next code
    first = np.searchsorted(highest, np.arange(len(places.dictionary)))
    texts = _texts(labels[first])
    if not texts.null_count:
        return pa.DictionaryArray.from_arrays(places.indices, texts)
    return texts.take(places.indices).dictionary_encode()


def _texts(labels: AnyArray) -> pa.Array:
    """Return Python texts as Arrow's."""
    try:
        texts = pa.array(labels)
    except (pa.ArrowException, UnicodeError) as reason:
        raise OddLabelsError from reason
    if texts.type != pa.string():
        raise OddLabelsError
    return texts
