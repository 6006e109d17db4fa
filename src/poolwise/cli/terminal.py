"""Terminal: the progress bar and the console of the commands."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


@contextmanager
def progress() -> Iterator[None]:
    """Show a progress bar with the remaining time, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    from poolwise.rows.output import shown

    with shown(Console(stderr=True)):
        yield


def console() -> Console:
    """Return a console: colour on a terminal, plain text of 80 columns in a pipe."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 80, soft_wrap=False)
