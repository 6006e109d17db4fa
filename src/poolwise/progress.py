"""Progress: how far a long pass over the rows has come.

Work that takes long says how many rows are done; whether anybody looks is decided
elsewhere.  The command line shows a bar on a terminal, once something takes more than
two seconds; in a program or a notebook ``with progress.shown():`` does the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

LONG = 2.0  # seconds that need no bar
Advance = Callable[[int], None]


class Viewer(Protocol):
    """Somebody who looks."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, rows: int) -> None: ...

    def end(self) -> None: ...


_viewer: ContextVar[Viewer | None] = ContextVar("poolwise_progress", default=None)


@contextmanager
def stage(what: str, total: int) -> Iterator[Advance]:
    """A part of the work; call what it gives with the rows that were done meanwhile."""
    viewer = _viewer.get()
    if viewer is None:
        yield lambda _: None
        return
    viewer.begin(what, total)
    try:
        yield viewer.advance
    finally:
        viewer.end()


@contextmanager
def shown(console: Console | None = None) -> Iterator[None]:
    """Show a bar with the time left for whatever takes long within this block."""
    token = _viewer.set(Bar(console))
    try:
        yield
    finally:
        _viewer.reset(token)


class Bar:
    """A bar that appears when a stage turns out to be long, and leaves nothing behind."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def begin(self, what: str, total: int) -> None:
        self._started, self._done, self._total = time.monotonic(), 0, total
        self._task = self._bar.add_task(what, total=total)

    def advance(self, rows: int) -> None:
        self._done += rows
        self._bar.update(self._task, completed=self._done)
        if not self._bar.live.is_started and self._long():
            self._bar.start()

    def _long(self) -> bool:
        """Whether the whole stage will take long, at the pace so far."""
        passed = time.monotonic() - self._started
        return passed * self._total / max(self._done, 1) > LONG

    def end(self) -> None:
        self._bar.stop()
        self._bar.remove_task(self._task)
