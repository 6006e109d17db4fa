"""Reader: a batch of scored rows becomes the arrays that the kernel takes.

Batches have the columns of a `Layout`, wherever their stream comes from.  Here labels become
codes and numbers doubles, rows are dealt out to buckets, and rows of excluded loggers are left
out.  Bad rows raise an error in the kernel; where the log says so they are left out here.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from poolwise.log.policy import AnyArray
    from poolwise.rows.rules import RoleColumns

Rows = tuple["AnyArray", dict[str, "AnyArray"]]  # groups, and numbers by column
LARGEST = sys.float_info.max
SMALLEST = float(np.nextafter(0.0, 1.0))  # positive double
UNKNOWN, EXCLUDED = -1, -2  # codes of rows that belong to no logger of the layout


class BadRowsError(Exception):
    """A row breaks a rule; a query of `rows.rules` then finds out which one."""


@dataclass(frozen=True)
class Layout:
    """Columns ``logger``, ``reward``, ``p_0``..., ``t_0``... and the rules of their rows.

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
        buckets: Into how many each logger's rows are split: by a column ``bucket`` or
            ``cluster``, or one by one.
        clustered: Whether there is a column ``cluster``, or ``bucket`` in its place.
        excluded: Loggers whose rows are left out.
        drop: Leave bad rows out instead of raising an error.
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
    clustered: bool = False
    excluded: tuple[str, ...] = ()
    drop: bool = False

    @property
    def groups(self) -> tuple[str, ...]:
        """The logger of each group of rows that is summed: bucket after bucket."""
        return self.loggers * self.buckets

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numeric columns, in a fixed order."""
        optional = {
            "propensity": self.propensity,
            "predicted_reward": self.predicted,
            "estimated_mixture": self.mixture,
        }
        return (
            "reward",
            *(f"p_{k}" for k in range(len(self.crossed))),
            *(f"t_{k}" for k in range(len(self.targets))),
            *(f"v_{k}" for k in range(len(self.valued))),
            *(name for name, present in optional.items() if present),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns that a pass reads."""
        clustered = self.clustered and (self.drop or self.buckets > 1)
        return ("logger", *self.columns, *(("cluster",) if clustered else ()))

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """Least and largest value of each column: the rules of `rows.rules.good`."""
        low, positive, top = (-np.inf, -LARGEST, 0.0) if self.logs else (0.0, SMALLEST, 1.0)
        limits = {}
        for name in self.columns:
            if name in {"propensity", "estimated_mixture"}:
                limits[name] = (positive, top)
            else:
                probability = name.startswith(("p_", "t_"))
                limits[name] = (low, top) if probability else (-LARGEST, LARGEST)
        return limits


def layout_of(table: RoleColumns, counts: Mapping[str, int]) -> Layout:
    """The layout of a table whose rows have been counted."""
    parts = table.shares or counts
    total = sum(parts.values()) or 1  # none of them good
    return Layout(
        loggers=tuple(counts),
        crossed=tuple(table.propensities),
        shares=tuple(parts.get(label, 0) / total for label in table.propensities),
        targets=tuple(table.targets),
        valued=tuple(table.predicted_values),
        propensity=table.propensity is not None,
        predicted=table.predicted_reward is not None,
        mixture=table.mixture is not None,
        logs=table.log_probabilities,
        tolerance=table.tolerance,
        clustered=table.cluster is not None,
        drop=table.drop,
    )


def to_rows(
    tables: Iterable[pa.Table], layout: Layout, first_row: int, size: int
) -> Iterator[Rows]:
    """Groups and numbers of rows, at most `size` at once.

    Args:
        tables: Columns of the layout, and ``logger``; with buckets ``bucket`` or ``cluster``,
            unless rows are dealt out one by one.
        layout: The columns, and the rows to leave out.
        first_row: Number of rows before the first table, without those of excluded loggers.
        size: Rows of one result.
    """
    for table in tables:
        codes = _codes(table.column("logger"), layout)
        columns = {name: _numbers(table.column(name)) for name in layout.columns}
        groups, used = _groups(table, codes, layout, first_row)
        if layout.drop:
            used &= (codes >= 0) & good_rows(codes, columns, layout)
        elif not used.all() or (codes == UNKNOWN).any():
            raise BadRowsError
        elif layout.excluded:
            used = codes != EXCLUDED
        if not used.all():
            groups = groups[used]
            columns = {name: values[used] for name, values in columns.items()}
        yield from cut(groups, columns, size)
        first_row += (
            len(codes) - int((codes == EXCLUDED).sum()) if layout.excluded else len(codes)
        )


def cut(groups: AnyArray, columns: Mapping[str, AnyArray], size: int) -> Iterator[Rows]:
    """Slices of at most `size` rows."""
    for start in range(0, len(groups), size):
        rows = slice(start, start + size)
        yield groups[rows], {name: values[rows] for name, values in columns.items()}


def _codes(labels: pa.ChunkedArray, layout: Layout) -> AnyArray:
    """The number of each row's logger in the layout."""
    code: dict[str | None, int] = {label: k for k, label in enumerate(layout.loggers)}
    code |= dict.fromkeys(layout.excluded, EXCLUDED)
    kind = np.min_scalar_type(-max(len(layout.loggers), -EXCLUDED))
    parts = []
    for chunk in labels.chunks:
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        values = [code.get(label, UNKNOWN) for label in texts(coded.dictionary)]
        by_index = np.array([*values, UNKNOWN], dtype=kind)
        indices = coded.indices.fill_null(len(values)) if coded.null_count else coded.indices
        rows: AnyArray = np.from_dlpack(indices)
        parts.append(by_index.take(rows))
    return np.concatenate(parts) if len(parts) != 1 else parts[0]


def texts(labels: pa.Array) -> list[str | None]:
    """Labels as text, as DuckDB writes integers."""
    values: list[str | None] = labels.cast(pa.string()).to_pylist()
    return values


def _numbers(column: pa.ChunkedArray) -> AnyArray:
    """Values as NumPy has them, without a copy where they are adjacent; nulls are NaN.

    `to_numpy` of a number without nulls would load pandas, if that is installed.
    """
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if column.num_chunks == 1 and not column.null_count:
        return np.from_dlpack(column.chunk(0))
    values: AnyArray = column.to_numpy()
    return values


def _groups(
    table: pa.Table, codes: AnyArray, layout: Layout, first_row: int
) -> tuple[AnyArray, NDArray[np.bool]]:
    """The group of each row, and whether its cluster is known."""
    names = table.schema.names
    known = np.ones(len(codes), dtype=bool)
    if "no_cluster" in names:
        known = _numbers(table.column("no_cluster")) == 0.0
    elif "cluster" in names:
        known = table.column("cluster").is_valid().to_numpy()
    if layout.buckets == 1:
        return codes, known
    if "bucket" in names:
        buckets = _numbers(table.column("bucket"))
    elif "cluster" in names:
        buckets = cluster_buckets(table.column("cluster"), layout.buckets)
    else:
        counted = codes != EXCLUDED if layout.excluded else known
        buckets = (first_row + np.cumsum(counted)) % layout.buckets
    return buckets.astype(np.int64) * len(layout.loggers) + codes, known


def cluster_buckets(clusters: pa.ChunkedArray, buckets: int) -> AnyArray:
    """The bucket of each cluster, by DuckDB's hash of its text.

    >>> cluster_buckets(pa.chunked_array([["7", "12", "7"]]), 50).tolist()
    [6, 5, 6]
    """
    import duckdb

    if not hasattr(_own, "connection"):  # opening one takes longer than hashing a batch
        _own.connection = duckdb.connect(config={"threads": 1})
    connection: duckdb.DuckDBPyConnection = _own.connection
    connection.register("clusters", pa.table({"cluster": clusters}))
    query = f"SELECT hash(CAST(cluster AS VARCHAR)) % {buckets} AS bucket FROM clusters"
    return _numbers(connection.sql(query).to_arrow_table().column("bucket"))


_own = threading.local()  # a connection for each thread


def good_rows(
    codes: AnyArray, columns: Mapping[str, AnyArray], layout: Layout
) -> NDArray[np.bool]:
    """Rows that keep every rule of `rows.rules.good`; NaN breaks each of them."""
    good = np.ones(len(codes), dtype=bool)
    for name, (low, top) in layout.limits.items():
        values = columns[name]
        if len(values) and not (values.min() >= low and values.max() <= top):
            good &= (values >= low) & (values <= top)
    for code, label in enumerate(layout.loggers):
        if label in layout.crossed:
            rows = np.flatnonzero(codes == code)
            own = columns[f"p_{layout.crossed.index(label)}"].take(rows)
            good[rows] &= _plays(own, columns, rows, layout)
    return good


def _plays(
    own: AnyArray, columns: Mapping[str, AnyArray], rows: AnyArray, layout: Layout
) -> NDArray[np.bool]:
    """Rows of a logger that it can play, with its own probability as propensity."""
    plays: NDArray[np.bool] = own >= (-LARGEST if layout.logs else SMALLEST)
    if layout.propensity:
        with np.errstate(invalid="ignore"):  # infinite minus infinite: refused by the limits
            plays = np.abs(own - columns["propensity"].take(rows)) <= layout.tolerance
    return plays
