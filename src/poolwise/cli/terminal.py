"""The terminal: tables, a bar with the time left, and files beside them.

Colour only where somebody looks; plain text of 80 columns in a pipe.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

    from poolwise.evaluation.results import Evaluation, Presented


def print_found(found: Presented, *, as_json: bool, sentences: Sequence[str] = ()) -> None:
    """A result as tables and sentences, or as JSON."""
    if as_json:
        typer.echo(found.to_json())
        return
    from rich.text import Text

    from poolwise.report.tables import show

    console = terminal()
    show(found.grids(), found.warnings, console)
    for sentence in (*found.sentences, *sentences):
        console.print(Text(sentence))


def save_found(found: Evaluation, html: Path | None, charts: Path | None, command: str) -> None:
    """The report and the charts, where they were asked for."""
    if html is not None:
        found.save(html, command=command)
    if charts is not None:
        from poolwise.report.files import save_charts

        save_charts(found.charts(), charts)


@contextmanager
def watched() -> Iterator[None]:
    """A bar with the time left on whatever takes long, if somebody sits before a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    from poolwise.rows.output import shown

    with shown(Console(stderr=True)):
        yield


def terminal() -> Console:
    """Colour on a terminal, plain text in a pipe, 80 columns where width is unknown."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 80, soft_wrap=False)
