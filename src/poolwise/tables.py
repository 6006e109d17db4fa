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
        for row in self.rows:
            table.add_row(*map(Text, row))
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


def show(
    grids: Sequence[Grid], warnings: Sequence[Mapping[str, object]], console: Console
) -> None:
    """Print tables, and warnings below them."""
    from rich.text import Text

    for grid in grids:
        console.print(grid.rich())
    for warning in warnings:
        severity = str(warning.get("severity", "warning"))
        label = Text(f"{severity} ({warning['code']}): ", style=STYLES[severity])
        console.print(label + Text(str(warning["message"]), style="default"))


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
