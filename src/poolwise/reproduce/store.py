"""Finished work on disk: a run that was stopped goes on where it was.

Every unit of work leaves one small file, written beside its place and then moved
there, so that a file is either whole or absent, whenever the run is interrupted.  It
holds the settings that it was computed with; with other settings it is not used.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.errors import SourceError

if TYPE_CHECKING:
    from poolwise.reproduce.panels import Row

Settings = Mapping[str, str | int | float]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is whole or absent, even if interrupted."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise SourceError(str(path), f"it cannot be written: {error}") from error
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        beside.chmod(0o644)  # mkstemp lets nobody else read
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Rows with the same keys, as CSV; numbers keep all their digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def read_csv(path: Path) -> list[Row]:
    """Rows as `write_csv` wrote them; what reads as a number is one."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Store:
    """A folder of finished cells.

    Attributes:
        folder: Where they are.
    """

    folder: Path

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def get(self, key: str, settings: Settings) -> list[Row] | None:
        """Rows of a finished cell, or None if there is none with these settings."""
        try:
            held = json.loads(self._path(key).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return held["rows"] if held.get("settings") == dict(settings) else None

    def put(self, key: str, settings: Settings, rows: Iterable[Row]) -> None:
        """Keep a finished cell."""
        held = {"settings": dict(settings), "rows": list(rows)}
        write_whole(self._path(key), json.dumps(held, indent=1).encode())
