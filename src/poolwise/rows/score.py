"""Score: policies in Python become columns of probabilities of one batch.

The values that a policy returns are checked here, so that engines need not.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolwise.errors import (
    MissingColumnError,
    PolicyError,
    PoolwiseError,
    UsageError,
)
from poolwise.log.action_groups import GroupEntries
from poolwise.log.policy import SUM_TOLERANCE, Batch, Function, Policy, log_prob

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from poolwise.rows.roles import Roles
    from poolwise.types import AnyArray, FloatArray

ROUNDED_EXCESS = 1e-9  # rounding may carry a probability this far below 0 or above 1
SHOWN_ROWS = 5  # row numbers that an error names


@dataclass(frozen=True)
class Scorer:
    """Scores one batch; can be sent to another process if its policies can.

    Attributes:
        policies: Policies by the name of the column to append.
        action: Column of the logged action; None if no policy needs it.
        context: Columns that the policies see.
        log_probabilities: Whether to append logarithms.
        densities: Whether the policies give densities.
    """

    policies: Mapping[str, Policy]
    action: str | None
    context: tuple[str, ...]
    log_probabilities: bool = False
    densities: bool = False

    def __call__(self, rows: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
        """Append a column for each policy; `first_row` is for error messages."""
        batch = to_batch(rows, self.action, self.context)
        for name, policy in self.policies.items():
            if name in rows.schema.names:
                raise UsageError(f"the rows already have a column {name!r}: rename the policy")
            if isinstance(policy, GroupEntries):
                policy = Function(partial(policy.sum_rows, rows))  # noqa: PLW2901
            # models refuse to predict nothing
            values = self._column(name, policy, batch, first_row) if len(batch) else np.empty(0)
            rows = rows.append_column(name, pa.array(values))
        return rows

    def _column(self, name: str, policy: Policy, batch: Batch, first_row: int) -> FloatArray:
        logs = self.log_probabilities and hasattr(policy, "log_prob")
        ask = partial(log_prob, policy) if logs else policy.prob
        values = _ask(name, ask, batch, first_row)
        wide = self.densities
        values = check_values(name, values, len(batch), first_row, logs=logs, densities=wide)
        if self.log_probabilities and not logs:
            with np.errstate(divide="ignore"):
                values = np.log(values)
        return values


def make_scorer(roles: Roles) -> Scorer:
    """Return the scorer of all policies in Python."""
    scale = roles.table.scale
    return Scorer(dict(roles.scored), roles.action, roles.context, scale.logs, scale.densities)


def _ask(
    name: str, ask: Callable[[Batch], FloatArray], batch: Batch, first_row: int
) -> AnyArray:
    """Return the policy's values; name the policy and the rows in its errors."""
    where = f"failed on rows {first_row} to {first_row + len(batch) - 1}"
    try:
        return np.asarray(ask(batch))
    except PolicyError as error:
        rows = [first_row + row for row in error.rows]
        which = f" (rows {', '.join(map(str, rows))})" if rows else ""
        reason = f"{where}: {error.policy} {error.reason}{which}"
        raise PolicyError(name, reason, rows) from error
    except PoolwiseError as error:
        raise PolicyError(name, f"{where}: {error}") from error
    except Exception as error:
        raise PolicyError(name, f"{where}: {type(error).__name__}: {error}") from error


def check_values(
    name: str,
    values: object,
    length: int,
    first_row: int = 0,
    *,
    logs: bool = False,
    densities: bool = False,
) -> FloatArray:
    """Return probabilities (or logarithms) as float64, or raise an error with the rows.

    Numbers outside [0, 1] by no more than rounding are clipped.

    >>> check_values("v1", [0.5, 1.0000000001], length=2).tolist()
    [0.5, 1.0]
    >>> check_values("v1", [0.5, 1.5], length=2, first_row=100)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    poolwise.errors.PolicyError: policy 'v1' gives ... in 1 of the 2 rows ...: 101 (1.5)
    """
    top = sys.float_info.max if densities else 0.0 if logs else 1.0
    return _to_numbers(name, values, (length,), first_row, (-math.inf if logs else 0.0, top))


def checked_distribution(
    name: str, values: object, shape: tuple[int, int], first_row: int = 0
) -> FloatArray:
    """Return probabilities of every action, shape (rows, actions), which must sum to 1."""
    array = _to_numbers(name, values, shape, first_row)
    total = array.sum(axis=1)
    off = np.abs(total - 1) > SUM_TOLERANCE
    _refuse_rows(name, "gives probabilities that do not sum to 1", total, off, first_row)
    return array


def _to_numbers(
    name: str,
    values: object,
    shape: tuple[int, ...],
    first_row: int,
    limits: tuple[float, float] = (0.0, 1.0),
) -> FloatArray:
    """Return values of the right shape, type and range."""
    array = np.asarray(values)
    if array.shape != shape:
        batch = f"a batch of {shape[0]} rows from row {first_row}"
        raise PolicyError(name, f"returns shape {array.shape} for {batch}, not {shape}")
    if array.dtype.kind not in "biuf":
        raise PolicyError(name, f"returns values of type {array.dtype}, not numbers")
    array = array.astype(np.float64, copy=False)
    _refuse_rows(name, "gives NaN", array, np.isnan(array), first_row)
    lower, upper = limits
    what = "probabilities outside [0, 1]" if upper else "log-probabilities above 0"
    what = what if upper <= 1 else "densities that are negative or infinite"
    outside = (array < lower - ROUNDED_EXCESS) | (array > upper + ROUNDED_EXCESS)
    _refuse_rows(name, f"gives {what}", array, outside, first_row)
    clipped: FloatArray = array.clip(lower, upper)
    return clipped


def _refuse_rows(
    name: str, fault: str, array: FloatArray, bad: NDArray[np.bool], first_row: int
) -> None:
    if not bad.any():
        return
    places = np.unique(bad.nonzero()[0])  # rows, whatever the shape
    shown = places[:SHOWN_ROWS].tolist()
    values = [f" ({array[k]:.12g})" if array.ndim == 1 else "" for k in shown]
    listed = ", ".join(f"{first_row + k}{v}" for k, v in zip(shown, values, strict=True))
    more = ", ..." if len(places) > len(shown) else ""
    where = f"{len(places):,} of the {len(array):,} rows from row {first_row}"
    reason = f"{fault} in {where}: {listed}{more}"
    raise PolicyError(name, reason, [first_row + k for k in shown])


def to_batch(rows: pa.RecordBatch, action: str | None, context: Sequence[str]) -> Batch:
    """Return Arrow columns as NumPy arrays, without a copy where the two agree.

    Without an action column the labels have shape (n, 0): a policy that reads
    them fails, instead of finding every label unknown.

    >>> rows = pa.record_batch({"item": [3, 5], "x": [[1.0, 2.0], [3.0, None]]})
    >>> to_batch(rows, "item", ["x"]).context.tolist()
    [[1.0, 2.0], [3.0, nan]]
    """
    roles = dict.fromkeys(context, "context") | ({} if action is None else {action: "action"})
    missing = {name: role for name, role in roles.items() if name not in rows.schema.names}
    if missing:
        raise MissingColumnError(missing, rows.schema.names)
    labels = np.empty((len(rows), 0)) if action is None else _to_labels(rows.column(action))
    return Batch(labels, {name: _to_numpy(rows.column(name)) for name in context})


def _to_labels(column: pa.Array) -> AnyArray:
    if column.null_count:  # as floats with nan, long integers would lose digits
        return np.array([*column.to_pylist(), None], dtype=object)[:-1]
    return _to_numpy(column)


def _to_numpy(column: pa.Array) -> AnyArray:
    kind, is_a = column.type, pa.types
    if is_a.is_dictionary(kind):
        return _to_numpy(column.dictionary_decode())
    if is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
        return _to_matrix(column)
    if (
        is_a.is_decimal(kind)
        or is_a.is_null(kind)
        or (is_a.is_boolean(kind) and column.null_count)
    ):
        column = column.cast(pa.float64())
    array: AnyArray = column.to_numpy(zero_copy_only=False)
    return array


def _to_matrix(column: pa.Array) -> AnyArray:
    """Return lists of one length as rows of a matrix; others as an array of lists."""
    if column.null_count or len(pc.unique(pc.list_value_length(column))) > 1:
        ragged: AnyArray = column.to_numpy(zero_copy_only=False)
        return ragged
    flat = _to_numpy(column.flatten())
    return flat.reshape(len(column), len(flat) // max(1, len(column)))
