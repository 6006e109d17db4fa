"""Values: arrays of probabilities become columns of the frame whose rows they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from poolwise.errors import UsageError
from poolwise.log.adapters import as_policy
from poolwise.log.policy import Values

if TYPE_CHECKING:
    from poolwise.log.log import Frame, Log
    from poolwise.log.policy import PolicyLike

Policies = Mapping[str, "PolicyLike"]


def listed(policy: PolicyLike | None) -> bool:
    """Test if a policy is an array, a list or a Series of values."""
    array = hasattr(policy, "__array__") and getattr(policy, "shape", None) != ()
    return isinstance(policy, list | tuple) or array


def attach_values(log: Log, targets: Policies) -> tuple[Log, Policies]:
    """Return the log with a column for each array among its policies, and their names.

    Raises:
        UsageError: The rows are not one frame, or the array has another length or index.
    """
    columns: dict[str, Values] = {}

    def named(policy: PolicyLike | None, role: str) -> PolicyLike | None:
        values = as_policy(policy, role=role) if policy is not None and listed(policy) else None
        if not isinstance(values, Values):
            return policy
        columns[role] = values
        return role

    own = named(log.propensity, "propensity in an array")
    loggers = {k: named(v, f"propensities[{k!r}]") for k, v in log.by_label.items()}
    new = {k: named(v, f"target {k!r}") for k, v in targets.items()}
    if not columns:
        return log, targets
    frame = _extend_frame(log, columns)
    probs = loggers if log.by_label else log.propensities
    log = replace(log, source=frame, propensity=own, propensities=probs)
    return log, {name: policy for name, policy in new.items() if policy is not None}


def _extend_frame(log: Log, columns: Mapping[str, Values]) -> Frame:
    """Return the frame of a log with more columns."""
    role, part = next(iter(columns)), log.parts[0]
    single = (
        len(log.parts) == 1 and part.kind == "frame" and not isinstance(log.source, Mapping)
    )
    if not single or not hasattr(part.value, "__len__"):
        raise UsageError(
            f"{role}: an array has one value per row of a frame, and these rows are none: read "
            "them into one frame, or add the values to the rows as a column"
        )
    frame: Frame = part.value
    for name, values in columns.items():
        array = values.array
        if len(array) != len(frame):
            raise UsageError(
                f"{name}: an array must have one value per row: the frame has {len(frame):,} "
                f"rows, got {len(array):,} values"
            )
        index: Any = getattr(values.given, "index", None)
        own: Any = getattr(frame, "index", None)
        both = hasattr(index, "equals") and hasattr(own, "equals")
        if both and not index.equals(own):
            raise UsageError(
                f"{name}: the Series has another index than the frame: reorder it, or pass "
                ".to_numpy() if its values are in the order of the rows"
            )
        frame = _appended(frame, name, array)
    return frame


def _appended(frame: Frame, name: str, array: Any) -> Frame:  # noqa: ANN401 - of NumPy
    if isinstance(frame, pa.Table):
        return frame.append_column(name, pa.array(array))
    if hasattr(frame, "assign"):  # pandas
        return frame.assign(**{name: array})
    if hasattr(frame, "with_columns"):
        import polars as pl

        return frame.with_columns(pl.Series(name, array))
    raise UsageError(f"{name}: an array requires an Arrow, pandas or Polars frame")
