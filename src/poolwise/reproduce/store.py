"""Finished work on disk: a run that was stopped goes on where it was.

Every unit of work leaves one small file, written beside its place and then moved
there, so that a file is either whole or absent, whenever the run is interrupted.  It
holds the settings that it was computed with; with other settings it is not used.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolwise.report.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.reproduce.panels import Row

Settings = Mapping[str, str | int | float]


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
