"""Repeats: a file that is named twice would count its rows twice, and halve no error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb


def refuse_repeats(connection: duckdb.DuckDBPyConnection, patterns: Sequence[str]) -> None:
    """Refuse local files that more than one path or glob stands for."""
    local = [p for p in patterns if not re.match(r"\w+://", p)]
    if len(local) < 2:
        return
    seen: dict[Path, str] = {}
    for pattern in local:
        lines = connection.execute("SELECT file FROM glob(?)", [pattern]).fetchall()
        for (name,) in lines:
            file = Path(str(name)).resolve()
            if file in seen:
                raise UsageError(
                    f"{str(name)!r} would be read twice, by {seen[file]!r} and {pattern!r}: "
                    "its rows would count twice. Name each file once."
                )
            seen[file] = pattern
