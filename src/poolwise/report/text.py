"""The terminal's tables, and the same tables for notebooks.

Every number is written by `format`; nothing is computed here.
"""

from __future__ import annotations

import html
from io import StringIO
from typing import TYPE_CHECKING, Literal

from poolwise.format import count_text, interval_text, percent, short, with_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from poolwise.result import Evaluation, TargetResult

WIDTH = 80


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


def estimates_grid(evaluation: Evaluation, name: str) -> Grid:
    """Estimates of one target, one line per estimator."""
    result = evaluation.targets[name]
    truth = evaluation.truth.get(name)
    header = ["estimator", "estimate", f"{evaluation.level:.4g} interval"]
    rows = []
    for estimator, estimate in result.estimates.items():
        interval = result.intervals[estimator]
        row = [
            estimator,
            with_error(estimate.value, estimate.std_error),
            interval_text(interval.lower, interval.upper, estimate.std_error),
        ]
        if truth is not None:
            row.append("yes" if truth in interval else "no")
        rows.append(row)
    if truth is not None:
        header.append("has the truth")
    total = count_text(sum(evaluation.rows.values()))
    loggers = len(evaluation.rows)
    known = f"; its true value is {truth:.4f}" if truth is not None else ""
    plural = "s" if loggers != 1 else ""
    return Grid(f"{name}: {total} rows of {loggers} logger{plural}{known}", header, rows)


def loggers_grid(evaluation: Evaluation, name: str) -> Grid:
    """How each log covers one target."""
    result = evaluation.targets[name]
    share = _shown_share(result)
    header = ["logger", "rows", "diver-\ngence", "effective\nrows", "mean\nweight"]
    header += ["largest\nweight"]
    if share is not None:
        header.insert(2, f"{share}\nshare")
    rows = []
    for logger, overlap in result.loggers.items():
        row = [logger, count_text(evaluation.rows[logger]), short(overlap.divergence)]
        row += [count_text(overlap.effective_rows), short(overlap.mean_weight)]
        row += [short(overlap.largest_weight)]
        if share is not None:
            row.insert(2, percent(result.estimates[share].shares[logger]))
        rows.append(row)
    if result.mixture is not None:
        mixed = result.mixture
        total = count_text(sum(evaluation.rows.values()))
        row = ["(mixture)", total, short(mixed.divergence), count_text(mixed.effective_rows)]
        row += [short(mixed.mean_weight), short(mixed.largest_weight)]
        if share is not None:
            row.insert(2, "")
        rows.append(row)
    return Grid("", header, rows)


def _shown_share(result: TargetResult) -> str | None:
    """The estimator whose shares are worth showing: rows already say naive's."""
    return "weighted" if "weighted" in result.estimates else None


def grids(evaluation: Evaluation) -> list[Grid]:
    """All tables of an evaluation, in order."""
    return [
        grid
        for name in evaluation.targets
        for grid in (estimates_grid(evaluation, name), loggers_grid(evaluation, name))
    ]


def evaluation_text(evaluation: Evaluation) -> str:
    """The tables and the warnings as plain text, 80 columns wide."""
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, highlight=False)
    show(evaluation, console)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join(lines).strip("\n")


def show(evaluation: Evaluation, console: Console) -> None:
    """Print the tables and the warnings."""
    from rich.text import Text

    for grid in grids(evaluation):
        console.print(grid.rich())
    for warning in evaluation.warnings:
        label = Text(f"{warning['code']}: ", style="yellow")
        console.print(label + Text(str(warning["message"]), style="default"))


def evaluation_html(evaluation: Evaluation) -> str:
    """The tables and the warnings for a notebook."""
    tables = "".join(grid.html() for grid in grids(evaluation))
    warnings = "".join(
        f"<li><b>{html.escape(str(w['code']))}</b>: {html.escape(str(w['message']))}</li>"
        for w in evaluation.warnings
    )
    return f"<div>{tables}{f'<ul>{warnings}</ul>' if warnings else ''}</div>"


def lesson(evaluation: Evaluation) -> str:
    """Two sentences on what an evaluation teaches about pooling, from its numbers."""
    (name, result), *_ = evaluation.targets.items()
    naive, best = result.estimates["naive"], result.estimates["balanced"]
    total = sum(evaluation.rows.values())
    biggest = max(evaluation.rows, key=lambda i: evaluation.rows[i])
    share = result.estimates["weighted"].shares[biggest]
    worth = (naive.std_error / best.std_error) ** 2
    return (
        f"Logger {biggest!r} wrote {percent(evaluation.rows[biggest] / total)} of the rows, "
        f"but it is so unlike {name!r} that weighted gives it a share of {percent(share)} only. "
        f"Pooling naively lets its few large weights drown the rest: balanced is as sure from "
        f"these {count_text(total)} rows as naive would be from {count_text(worth * total)}."
    )
