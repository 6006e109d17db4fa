"""Runs a reproduction: finds what is missing, computes it, writes what is shown.

Finished cells are kept below ``cells``; a run that is stopped and started again
computes only what is not there.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.errors import PoolwiseError, UsageError, nearest
from poolwise.paper import problem as fullsize
from poolwise.paper import toy
from poolwise.paper.claims import Claim, claims
from poolwise.paper.figures import FIGURES, Source, write_figure
from poolwise.paper.page import page
from poolwise.paper.work import Bench, Effort, Store, read_csv, write_csv
from poolwise.report.files import write_whole
from poolwise.report.tables import show

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from poolwise.paper.panels import Row

DATA = ("scene", "yeast", "lyrl")
WHAT = ("toy", *DATA, "all")
SOURCES: tuple[Source, ...] = ("panels", "weights", "simulation")
FULL = Effort()


def run(
    what: str, data: Path | None, out: Path | None, *, console: Console, effort: Effort = FULL
) -> None:
    """Reproduce one part of the paper, or all of it.

    Writes one CSV file per table, one CSV, SVG and PNG file per figure, and
    ``reproduction.html``, which sets every claim beside what was found.

    Args:
        what: "toy", the name of a data set, or "all".
        data: Folder of the data sets; None for the one that POOLWISE_DATA names.
        out: Folder to write to; None is "reproduction", or nowhere for the toy.
        console: Where progress and the summary are printed.
        effort: How much to compute.
    """
    if what not in WHAT:
        close = nearest(what, WHAT)
        hint = f"; did you mean {close!r}?" if close else ""
        raise UsageError(f"there is no experiment {what!r}{hint} There are {', '.join(WHAT)}.")
    show([toy.grid(toy.numbers())], toy.notes(), console)
    if out is None and what == "toy":
        return
    out = out or Path("reproduction")
    write_csv(out / "toy.csv", toy.rows())
    if what == "toy":
        return
    benches = [Bench(name, data, effort) for name in (DATA if what == "all" else (what,))]
    tables = _tables(benches, SOURCES, out, console)
    large: Sequence[Row] = ()
    if what in {"lyrl", "all"} and effort.full_rows:
        full = Bench(fullsize.NAME, data, effort)
        large = _tables([full], ("panels",), out, console, prefix="full_size_")["panels"]
    found = claims(tables, toy.numbers(), large)
    _present(benches, tables, found, out)
    _report(found, benches, out, console)


def figure(number: int, data: Path | None, out: Path, *, console: Console) -> None:
    """Compute and write one figure, over all data sets."""
    benches = [Bench(name, data, FULL) for name in DATA]
    chosen = next(f for f in FIGURES if f.number == number)
    tables = _tables(benches, (chosen.source,), out, console)
    write_figure(chosen, tables[chosen.source], out)
    console.print(f"Wrote {chosen.stem(out)}.csv, .svg and .png")
    for note in filter(None, (b.data.note for b in benches)):
        console.print(note)


def figure_command(number: int) -> None:
    """The command line of one script below ``experiments``."""
    from rich.console import Console

    title = next(f.title for f in FIGURES if f.number == number)
    parser = ArgumentParser(description=f"Figure {number}: {title}.")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("reproduction"), help="where to write")
    chosen = parser.parse_args()
    try:
        figure(number, chosen.data, chosen.out, console=Console())
    except PoolwiseError as error:
        parser.exit(2, f"{error}\n")


def _tables(
    benches: Sequence[Bench],
    sources: Sequence[Source],
    out: Path,
    console: Console,
    prefix: str = "",
) -> dict[Source, list[Row]]:
    """Do all work that is not done, write each table, and read it back."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    store = Store(out / "cells")
    units = [unit for bench in benches for source in sources for unit in bench.units(source)]
    rows: dict[Source, list[Row]] = {source: [] for source in sources}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
            task = bar.add_task("starting", total=len(units))
            for unit in units:
                bar.update(task, description=unit.key)
                found = store.get(unit.key, unit.settings)
                if found is None:
                    found = unit.compute()
                    store.put(unit.key, unit.settings, found)
                rows[unit.source] += [row | {"data": unit.data} for row in found]
                bar.advance(task)
    except KeyboardInterrupt:
        console.print("Stopped. Finished cells are kept: the same command goes on from here.")
        raise
    return {
        source: _kept(out / f"{prefix}{source}.csv", found) for source, found in rows.items()
    }


def _kept(path: Path, rows: Sequence[Row]) -> list[Row]:
    write_csv(path, rows)
    return read_csv(path)


def _present(
    benches: Sequence[Bench],
    tables: dict[Source, list[Row]],
    found: Sequence[Claim],
    out: Path,
) -> None:
    """Figures, claims and page, all from the tables as written."""
    notes = [b.data.note for b in benches if b.data.note]
    charts = {f.number: write_figure(f, tables[f.source], out) for f in FIGURES}
    write_csv(out / "claims.csv", list(_claim_rows(found)))
    html = page(found, tables, charts, notes)
    write_whole(out / "reproduction.html", html.encode())


def _claim_rows(found: Iterable[Claim]) -> Iterable[Row]:
    for claim in found:
        for check in claim.checks:
            yield {
                "claim": claim.text,
                "by": claim.source,
                "figure": claim.figure,
                "verdict": claim.verdict,
                "where": check.where,
                "verdict_there": check.verdict,
                "found": check.found,
            }


def _report(
    found: Sequence[Claim], benches: Sequence[Bench], out: Path, console: Console
) -> None:
    from poolwise.report.tables import Grid

    lines = [[claim.text, claim.verdict] for claim in found]
    console.print(Grid("", ["claim", "verdict"], lines).rich())
    for note in filter(None, (b.data.note for b in benches)):
        console.print(note)
    console.print(f"Where a claim holds only in part: {out / 'reproduction.html'}")
