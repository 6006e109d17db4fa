"""Frames: tables in memory that are read as they are, without DuckDB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from poolwise.log.log import Log


def plain_frame(log: Log) -> pa.Table | None:
    """Return the log's Arrow table; None for others, and if names collide in DuckDB."""
    frame = log.parts[0].value
    if len(log.parts) > 1 or not isinstance(frame, pa.Table) or isinstance(log.source, Mapping):
        return None
    names = {name.lower() for name in frame.schema.names}
    return frame if len(names) == frame.num_columns else None
