"""Progress: long stages of the work report how many rows are done, and a viewer may show it.

The command line shows a bar; a notebook shows a line, which ends empty.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

LONG = 2.0  # seconds of a stage that need no bar
PAUSE = 0.2  # seconds between two texts of a line in a notebook
Advance = Callable[[int], None]
Viewer = Callable[[str, int], AbstractContextManager[Advance]]
_viewer: ContextVar[Viewer | None] = ContextVar("poolwise_progress", default=None)


def stage(what: str, total: int) -> AbstractContextManager[Advance]:
    """Report a part of the work; the caller passes the rows done since to the result."""
    viewer = _viewer.get() or _find_notebook()
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


def _find_notebook() -> Viewer | None:
    """Return a viewer if the program runs in a notebook."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return partial(_show_line, LONG) if hasattr(shell, "kernel") else None


@contextmanager
def _show_line(long: float, what: str, total: int) -> Iterator[Advance]:
    """Show a line in a notebook once a stage turns out to be long, and empty it at its end."""
    show: Any = import_module("IPython.display").display

    shown: Any = None
    started = told = time.monotonic()
    done = 0

    def advance(rows: int) -> None:
        nonlocal shown, told, done
        done += rows
        now = time.monotonic()
        seconds = (now - started) * total / max(done, 1)  # of the whole stage
        if seconds <= long or (shown is not None and now < told + PAUSE):
            return
        left = max(seconds - (now - started), 0.0)
        text = {"text/plain": f"{what}: {done / max(total, 1):.0%}, {left:.0f} seconds left"}
        told = now
        if shown is None:
            shown = show(text, raw=True, display_id=True)
        else:
            shown.update(text, raw=True)

    try:
        yield advance
    finally:
        if shown is not None:
            shown.update({"text/plain": ""}, raw=True)
