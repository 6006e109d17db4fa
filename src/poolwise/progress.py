"""Progress: long stages of the work report how many rows are done, and a viewer may show it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

LONG = 2.0  # seconds of a stage that need no bar
Advance = Callable[[int], None]
_viewer: ContextVar[Callable[[str, int], AbstractContextManager[Advance]] | None] = ContextVar(
    "poolwise_progress", default=None
)


def stage(what: str, total: int) -> AbstractContextManager[Advance]:
    """Report a part of the work; the caller passes the rows done since to the result."""
    viewer = _viewer.get()
    return nullcontext(lambda _: None) if viewer is None else viewer(what, total)


@contextmanager
def show_progress(console: Console | None = None, long: float = LONG) -> Iterator[None]:
    """Show a bar with the time left for stages of more than `long` seconds."""
    token = _viewer.set(partial(_show_bar, console, long))
    try:
        yield
    finally:
        _viewer.reset(token)


@contextmanager
def _show_bar(console: Console | None, long: float, what: str, total: int) -> Iterator[Advance]:
    """Show a bar once a stage turns out to be long, and remove it at its end."""
    from rich import progress

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(what, total=total)
    started, done = time.monotonic(), 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        bar.update(task, completed=done)
        if (time.monotonic() - started) * total / max(done, 1) > long:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
