"""The run of a reproduction: compute the missing jobs, write tables, figures and page.

Rows of a finished job are stored as JSON below ``cells``, with the settings they depend on;
a run that was interrupted and is started again computes only the missing jobs.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError, did_you_mean
from poolwise.files import write_whole
from poolwise.moments.pool import Pool
from poolwise.report.tables import Grid, show
from reproduction import clicks, toy
from reproduction.claims import claims
from reproduction.datasets import (
    FULL_ROWS,
    FULL_SIZE,
    Dataset,
    fingerprint,
    load,
    lyrl_shaped,
)
from reproduction.figures import (
    FIGURES,
    LEARNING,
    CsvRow,
    Figure,
    TableName,
    read_csv,
    write_csv,
    write_figure,
)
from reproduction.learning import LOGS, learning_cells, learning_grid
from reproduction.panels import (
    FRACTIONS,
    RATIOS,
    Structure,
    build_problem,
    divergences,
    panel,
)
from reproduction.simulation import (
    MOST_EXCESS,
    REPLICATIONS,
    SIMULATED_ROWS,
    SIZES,
    estimated_weights,
    exact_cells,
    simulate_cell,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console


DATA = ("scene", "yeast", "lyrl")
NUMBERED = {f"figure{figure.number}": figure for figure in FIGURES}
EXPERIMENTS = ("toy", *DATA, "learning", "clicks", "all", *NUMBERED)
OUT = Path("build", "reproduce")
SOURCES: tuple[TableName, ...] = ("panels", "weights", "simulation")
LEARNED = ("scene", "yeast")  # data sets that CRFs are learned for
SEED = 2017
FORMAT = 1  # of the stored jobs; a new number discards all of them


@dataclass(frozen=True)
class Effort:
    """Amount of computation.

    Attributes:
        fractions: Training fractions of the first logger.
        structures: Structures of the CRFs, for the panels.
        replications: Replications of each simulated cell.
        sizes: Rows of each log where weights are estimated.
        weight_replications: Replications of each size; 0 chooses by size.
        full_rows: Test rows of the problem of full size; 0 leaves it out.
        ratios: Ratios of the log sizes that CRFs are learned with.
        logs: Logs of each of these cells.
        click_replications: Replications of each size where shares of click logs are estimated.
    """

    fractions: tuple[float, ...] = FRACTIONS
    structures: tuple[Structure, ...] = ("unary", "pairwise")
    replications: int = REPLICATIONS
    sizes: tuple[int, ...] = SIZES
    weight_replications: int = 0
    full_rows: int = FULL_ROWS
    ratios: tuple[float, ...] = RATIOS
    logs: int = LOGS
    click_replications: int = clicks.REPLICATIONS


FULL = Effort()


@dataclass(frozen=True)
class Job:
    """A unit of work.

    Attributes:
        key: Its name, also of its file.
        settings: Everything else that its rows depend on.
        compute: Computes its rows.
    """

    key: str
    settings: CsvRow
    compute: Callable[[], list[CsvRow]]

    def rows(self, folder: Path) -> list[CsvRow]:
        """Return the stored rows if their settings match; compute and store them otherwise."""
        path = folder / f"{self.key}.json"
        try:
            stored = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            stored = {}
        if stored.get("settings") != self.settings:
            stored = {"settings": self.settings, "rows": self.compute()}
            write_whole(path, json.dumps(stored, indent=1).encode())
        rows: list[CsvRow] = stored["rows"]
        return rows


class Bench:
    """A data set with the policies trained on it; each is computed when first needed.

    Attributes:
        name: Name of the data set.
        folder: Folder of the data sets.
        effort: Amount of computation.
    """

    def __init__(self, name: str, folder: Path | None, effort: Effort) -> None:
        self.name, self.folder, self.effort = name, folder, effort
        # neighbouring jobs share a problem, so that the last one is enough
        self._problem = lru_cache(1)(lambda f, s="unary": build_problem(self.data, f, s))
        self._exact = lru_cache(1)(lambda fraction: exact_cells(self._problem(fraction)))

    @cached_property
    def data(self) -> Dataset:
        if self.name == FULL_SIZE:
            return lyrl_shaped(self.effort.full_rows)
        return load(self.name, self.folder)

    @property
    def label(self) -> str:
        """Name of the data set in the tables; a subset is marked."""
        subset = self.data.note and self.name != FULL_SIZE
        return f"{self.name}-subset" if subset else self.name

    @cached_property
    def _common(self) -> CsvRow:
        prints = (fingerprint(part)[:16] for part in (self.data.train, self.data.test))
        return {"format": FORMAT, "data": "-".join(prints), "seed": SEED}

    def jobs(self, source: TableName) -> Iterator[Job]:
        """Return all work of one table."""
        work = {
            "panels": self._panels(),
            "weights": self._weights(),
            "simulation": self._simulations(),
            "learning": self._learning(),
        }
        return work[source]

    def _panels(self) -> Iterator[Job]:
        structures = ("unary",) if self.name == FULL_SIZE else self.effort.structures
        for structure in structures:
            for fraction in self.effort.fractions:
                key = f"{self.name}/panel-{structure}-{fraction}"
                yield Job(key, self._common, partial(self._panel, structure, fraction))

    def _panel(self, structure: Structure, fraction: float) -> list[CsvRow]:
        rows = panel(self._problem(fraction, structure), fraction)
        return [{"structure": structure, **row} for row in rows]

    def _weights(self) -> Iterator[Job]:
        settings = self._common | {"replications": self.effort.weight_replications}
        for fraction in self.effort.fractions:
            for size in self.effort.sizes:
                key = f"{self.name}/weights-{fraction}-{size}"
                yield Job(key, settings, partial(self._weighted, key, fraction, size))

    def _weighted(self, key: str, fraction: float, size: int) -> list[CsvRow]:
        problem, count = self._problem(fraction), self.effort.weight_replications
        exact = divergences(Pool(self._exact(fraction)[0].moments))
        rows = estimated_weights(problem, exact, size, _rng(key), replications=count)
        cell: CsvRow = {"fraction": fraction, "v": _v(exact)}
        return [cell | row for row in rows]

    def _simulations(self) -> Iterator[Job]:
        settings = self._common | {
            "replications": self.effort.replications,
            "rows": SIMULATED_ROWS,
            "excess": MOST_EXCESS,
        }
        for fraction in self.effort.fractions:
            for index, ratio in enumerate(RATIOS):
                key = f"{self.name}/simulation-{fraction}-{ratio}"
                yield Job(key, settings, partial(self._simulated, key, fraction, index))

    def _simulated(self, key: str, fraction: float, index: int) -> list[CsvRow]:
        problem, count = self._problem(fraction), self.effort.replications
        exact = self._exact(fraction)[index]
        rows = simulate_cell(problem, exact, _rng(key), replications=count)
        first, second = exact.mix.counts.values()
        cell: CsvRow = {"fraction": fraction, "r": RATIOS[index]}
        cell |= {"v": _v(divergences(Pool(exact.moments))), "n1": first, "n2": second}
        return [cell | row for row in rows]

    def _learning(self) -> Iterator[Job]:
        settings = self._common | {"logs": self.effort.logs, "ratios": repr(self.effort.ratios)}
        for fraction in self.effort.fractions:
            key = f"{self.name}/learning-{fraction}"
            yield Job(key, settings, partial(self._learned, key, fraction))

    def _learned(self, key: str, fraction: float) -> list[CsvRow]:
        problem, effort = self._problem(fraction), self.effort
        return learning_cells(
            self.data, problem, fraction, _rng(key), ratios=effort.ratios, logs=effort.logs
        )


def _v(exact: Mapping[str, float]) -> float:
    first, second = exact.values()
    return first / second


def _rng(key: str) -> np.random.Generator:
    return np.random.default_rng([SEED, zlib.crc32(key.encode())])


def run(
    what: str, data: Path | None, out: Path | None, *, console: Console, effort: Effort = FULL
) -> None:
    """Reproduce one part of the paper, or all of it.

    Writes one CSV file per table, one CSV, SVG and PNG file per figure, ``claims.csv`` and
    ``reproduction.md``, which has every claim with its verdicts.

    Args:
        what: "toy", the name of a data set, "all" of these, "learning", "clicks", or one of
            "figure1" to "figure7", which computes only the table that the figure shows.
        data: Folder of the data sets; None for the folder in POOLWISE_DATA.
        out: Folder to write to; None is `OUT`, or no folder for the toy.
        console: Prints progress and the summary.
        effort: Amount of computation.
    """
    if what not in EXPERIMENTS:
        hint = did_you_mean(what, EXPERIMENTS)
        raise UsageError(f"experiments are {', '.join(EXPERIMENTS)}; got {what!r}{hint}")
    if what == "clicks":
        _click(out or OUT, console, effort)
        return
    if what == "learning":
        _learn(data, out or OUT, console, effort)
        return
    if what in NUMBERED:
        _draw(NUMBERED[what], data, out or OUT, console, effort)
        return
    show([toy.grid(toy.numbers())], toy.notes(), console)
    if out is None and what == "toy":
        return
    out = out or OUT
    write_csv(out / "toy.csv", toy.rows())
    if what == "toy":
        return
    benches = [Bench(name, data, effort) for name in (DATA if what == "all" else (what,))]
    tables = _tables(benches, SOURCES, out, console)
    full_size: Sequence[CsvRow] = ()
    if what in {"lyrl", "all"} and effort.full_rows:
        large = [Bench(FULL_SIZE, data, effort)]
        full_size = _tables(large, ("panels",), out, console, prefix="full_size_")["panels"]
    for figure in FIGURES:
        write_figure(figure, tables[figure.source], out)
    notes = [bench.data.note for bench in benches if bench.data.note]
    _report(claims(tables, toy.numbers(), full_size), notes, out, console)


def _click(out: Path, console: Console, effort: Effort) -> None:
    """Judge the claims for clicks of rankers, and write tables, figures and page."""
    found = clicks.tables(effort.click_replications)
    for name, rows in found.items():
        write_csv(out / f"clicks_{name}.csv", rows)
    found = {name: read_csv(out / f"clicks_{name}.csv") for name in found}
    for figure in clicks.FIGURES:
        write_figure(figure, found[figure.source], out)
    verdicts = clicks.click_claims(found)
    write_csv(out / "clicks_claims.csv", verdicts)
    write_whole(out / "clicks.md", page(verdicts, (), clicks.FIGURES).encode())
    answers = {row["claim"]: row["verdict"] for row in verdicts}
    console.print(Grid("", ["claim", "verdict"], [*map(list, answers.items())]).rich())
    console.print(f"Verdicts by setting, with their evidence: {out / 'clicks.md'}")


def _learn(data: Path | None, out: Path, console: Console, effort: Effort) -> None:
    """Learn CRFs from the logs of two loggers, and write the table and its figure."""
    benches = [Bench(name, data, effort) for name in LEARNED]
    rows = _tables(benches, ("learning",), out, console)["learning"]
    write_figure(LEARNING, rows, out)
    show([learning_grid(rows)], (), console)
    console.print(f"Wrote {out / LEARNING.stem}.csv, .svg and .png")


def _draw(
    figure: Figure, data: Path | None, out: Path, console: Console, effort: Effort
) -> None:
    """Compute the table of one figure over all data sets, and write the figure."""
    benches = [Bench(name, data, effort) for name in DATA]
    write_figure(figure, _tables(benches, (figure.source,), out, console)[figure.source], out)
    console.print(f"Wrote {out / figure.stem}.csv, .svg and .png")
    for note in filter(None, (bench.data.note for bench in benches)):
        console.print(note)


def _tables(
    benches: Sequence[Bench],
    sources: Sequence[TableName],
    out: Path,
    console: Console,
    prefix: str = "",
) -> dict[TableName, list[CsvRow]]:
    """Compute the missing jobs, write each table, and return it as read back."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    work = [(bench, s, job) for bench in benches for s in sources for job in bench.jobs(s)]
    rows: dict[TableName, list[CsvRow]] = {source: [] for source in sources}
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=len(work))
            for bench, source, job in work:
                bar.update(task, description=job.key)
                named = {"data": bench.label}
                rows[source] += [named | row | named for row in job.rows(out / "cells")]
                bar.advance(task)
    except KeyboardInterrupt:
        console.print("Stopped. Run the same command again to continue from here.")
        raise
    for source, table in rows.items():
        write_csv(out / f"{prefix}{source}.csv", table)
    return {source: read_csv(out / f"{prefix}{source}.csv") for source in sources}


def _report(
    verdicts: Sequence[CsvRow], notes: Sequence[str], out: Path, console: Console
) -> None:
    """Write and print the claims with their verdicts."""
    write_csv(out / "claims.csv", verdicts)
    write_whole(out / "reproduction.md", page(verdicts, notes).encode())
    answers = {row["claim"]: row["verdict"] for row in verdicts}
    console.print(Grid("", ["claim", "verdict"], [*map(list, answers.items())]).rich())
    for note in notes:
        console.print(note)
    console.print(f"Verdicts by data set, with their evidence: {out / 'reproduction.md'}")


INTRODUCTION = """\
# The paper, reproduced

Claims of Agarwal, Basu, Schnabel and Joachims, *Effective Evaluation Using Logged Bandit
Feedback from Multiple Loggers* (KDD 2017), each with a verdict. Variances are exact, by
enumeration over inputs and outputs; r is the size of log 1 over that of log 2, v the
divergence of logger 1 over that of logger 2. The CSV files have the numbers of every cell.
"""


def page(
    verdicts: Sequence[CsvRow], notes: Sequence[str], shown: Sequence[Figure] = FIGURES
) -> str:
    """Return the page, with links to the figures in its own folder."""
    figures = (
        f"![{figure.title}]({figure.stem}.svg)\n\n*Figure {figure.number}. {figure.caption}*\n"
        for figure in shown
    )
    quoted = (f"> {note}\n" for note in notes)
    return "\n".join([INTRODUCTION, *quoted, *figures, claims_table(verdicts), ""])


def claims_table(verdicts: Sequence[CsvRow]) -> str:
    """Return a Markdown table of the rows of ``claims.csv``, one line per verdict."""
    lines = ["| claim | where | verdict | evidence |", "|---|---|---|---|"]
    previous = None
    for row in verdicts:
        claim = "" if row["claim"] == previous else f"{row['claim']} ({row['by']})"
        previous = row["claim"]
        cells = [claim, row["where"], row["verdict_there"], row["evidence"]]
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)
