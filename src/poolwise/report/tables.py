"""Tables of text: one grid, shown in a terminal, in a notebook or in a pipe.

A grid holds words only; every number in it was written by `format`.
"""

from __future__ import annotations

import html
from io import StringIO
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, RenderableType

WIDTH = 80
LABEL = 41  # letters of a label that a terminal shows
STYLES = {"alarm": "bold red", "warning": "yellow", "note": "cyan"}


class Grid:
    """A small table of text: header, rows, and which columns are numbers."""

    def __init__(
        self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        self.title, self.header, self.rows = title, list(header), [list(r) for r in rows]

    def rich(self) -> RenderableType:
        """As rich shows it."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=box.SIMPLE_HEAD,
            title=Text(self.title, style="bold") if self.title else None,
            title_justify="left",
            pad_edge=False,
        )
        for place, name in enumerate(self.header):
            side: Literal["left", "right"] = "left" if place == 0 else "right"
            table.add_column(Text(name), justify=side, overflow="fold")
        for label, row in zip(_short_labels([r[0] for r in self.rows]), self.rows, strict=True):
            table.add_row(Text(label), *map(Text, row[1:]))
        return table

    def html(self) -> str:
        """As a notebook shows it; everything is escaped."""
        head = "".join(f"<th>{html.escape(h)}</th>" for h in self.header)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _short_labels(labels: Sequence[str]) -> list[str]:
    """Labels without their middle where they are long, so that a line stays a line or two.

    >>> _short_labels(["the policy of the first week of January, retrained", "b"])
    ['the policy of the fi…f January, retrained', 'b']
    """
    half = LABEL // 2
    cut = [s if len(s) <= LABEL else f"{s[:half]}…{s[-half:]}" for s in labels]
    return cut if len(set(cut)) == len(set(labels)) else list(labels)


def show(
    grids: Sequence[Grid], warnings: Sequence[Mapping[str, object]], console: Console
) -> None:
    """Print tables, and warnings below them."""
    from rich.text import Text

    for grid in grids:
        console.print(grid.rich())
    for warning in warnings:
        severity = str(warning.get("severity", "warning"))
        label = (f"{severity} ({warning['code']}): ", STYLES[severity])
        console.print(Text.assemble(label, str(warning["message"])))


def as_text(grids: Sequence[Grid], warnings: Sequence[Mapping[str, object]]) -> str:
    """Tables and warnings as plain text, 80 columns wide."""
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, highlight=False)
    show(grids, warnings, console)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join(lines).strip("\n")


def as_html(grids: Sequence[Grid], warnings: Sequence[Mapping[str, object]]) -> str:
    """Tables and warnings for a notebook."""
    tables = "".join(grid.html() for grid in grids)
    items = "".join(
        f"<li>{html.escape(str(w.get('severity', 'warning')))} "
        f"(<b>{html.escape(str(w['code']))}</b>): {html.escape(str(w['message']))}</li>"
        for w in warnings
    )
    return f"<div>{tables}{f'<ul>{items}</ul>' if items else ''}</div>"
