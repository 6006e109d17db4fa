"""Work: the units of a reproduction, each computed once and kept."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from poolwise.paper import problem as fullsize
from poolwise.paper.datasets import Dataset, fingerprint, load
from poolwise.paper.panels import SIZES, Row, divergences, estimated_weights, panel
from poolwise.paper.problem import FRACTIONS, RATIOS, LabelProblem, Setting, Structure
from poolwise.paper.simulation import (
    MOST_EXCESS,
    REPLICATIONS,
    ROWS,
    Draws,
    Exact,
    exact_cells,
    simulate_cell,
)
from poolwise.report.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from poolwise.paper.figures import Source
    from poolwise.paper.panels import Row

SEED = 2017
FORMAT = 1  # of what is kept; another number makes all finished work void


@dataclass(frozen=True)
class Effort:
    """How much to compute.

    Attributes:
        fractions: Training fractions of the first logger.
        structures: Of the CRFs, for the panels.
        replications: Of each simulated cell.
        sizes: Rows of each log where weights are estimated.
        weight_replications: Of each size; 0 for as many as the size deserves.
        full_rows: Test rows of the problem of full size; 0 leaves it out.
    """

    fractions: tuple[float, ...] = FRACTIONS
    structures: tuple[Structure, ...] = ("unary", "pairwise")
    replications: int = REPLICATIONS
    sizes: tuple[int, ...] = SIZES
    weight_replications: int = 0
    full_rows: int = fullsize.TEST_ROWS


@dataclass(frozen=True)
class Unit:
    """A piece of work.

    Attributes:
        source: Which table its rows belong to.
        data: The data set as tables name it; a subset says so.
        key: Its name, also of its file.
        settings: What its rows depend on.
        compute: Does the work.
    """

    source: Source
    data: str
    key: str
    settings: Mapping[str, str | int | float]
    compute: Callable[[], list[Row]] = field(compare=False)


class Bench:
    """A data set with the policies trained on it, made when first needed.

    Attributes:
        name: Of the data set.
        folder: Where data sets are.
        effort: How much to compute.
    """

    def __init__(self, name: str, folder: Path | None, effort: Effort) -> None:
        self.name, self.folder, self.effort = name, folder, effort
        self._settings: dict[Structure, Setting] = {}
        self._problem: tuple[tuple[Structure, float], LabelProblem] | None = None
        self._cells: tuple[float, list[Exact]] | None = None

    @cached_property
    def data(self) -> Dataset:
        if self.name == fullsize.NAME:
            return fullsize.lyrl_shaped(self.effort.full_rows)
        return load(self.name, self.folder)

    @cached_property
    def _common(self) -> dict[str, str | int | float]:
        prints = (fingerprint(part)[:16] for part in (self.data.train, self.data.test))
        return {"format": FORMAT, "data": "-".join(prints), "seed": SEED}

    @property
    def label(self) -> str:
        """The data set as tables name it."""
        subset = self.data.note and self.name != fullsize.NAME
        return f"{self.name}-subset" if subset else self.name

    def problem(self, structure: Structure, fraction: float) -> LabelProblem:
        """The problem of one first logger; the last one is kept, for its neighbours."""
        if self._problem is None or self._problem[0] != (structure, fraction):
            if structure not in self._settings:
                self._settings[structure] = Setting.of(self.data, structure)
            problem = self._settings[structure].problem(fraction)
            self._problem = (structure, fraction), problem
        return self._problem[1]

    def _exact(self, fraction: float) -> list[Exact]:
        if self._cells is None or self._cells[0] != fraction:
            self._cells = fraction, exact_cells(self.problem("unary", fraction))
        return self._cells[1]

    def units(self, source: Source) -> Iterator[Unit]:
        """All work of one table, ordered so that neighbours share a problem."""
        made = {
            "panels": self._panels,
            "weights": self._weights,
            "simulation": self._simulations,
        }
        yield from made[source]()

    def _panels(self) -> Iterator[Unit]:
        structures = ("unary",) if self.name == fullsize.NAME else self.effort.structures
        for structure in structures:
            for fraction in self.effort.fractions:
                key = f"{self.name}/panel-{structure}-{fraction}"
                compute = partial(self._panel, structure, fraction)
                yield Unit("panels", self.label, key, self._common, compute)

    def _panel(self, structure: Structure, fraction: float) -> list[Row]:
        rows = panel(self.problem(structure, fraction), fraction)
        return [{"data": self.name, "structure": structure, **row} for row in rows]

    def _weights(self) -> Iterator[Unit]:
        settings = self._common | {"replications": self.effort.weight_replications}
        for fraction in self.effort.fractions:
            for size in self.effort.sizes:
                key = f"{self.name}/weights-{fraction}-{size}"
                compute = partial(self._weighted, key, fraction, size)
                yield Unit("weights", self.label, key, settings, compute)

    def _weighted(self, key: str, fraction: float, size: int) -> list[Row]:
        moments = self._exact(fraction)[0].moments
        known, first, second = divergences(moments), *moments
        rows = estimated_weights(
            Draws(self.problem("unary", fraction)),
            known,
            self.problem("unary", fraction).value(),
            size,
            _rng(key),
            replications=self.effort.weight_replications,
        )
        v = known[first] / known[second]
        cell: Row = {"data": self.name, "fraction": fraction, "v": v}
        return [cell | row for row in rows]

    def _simulations(self) -> Iterator[Unit]:
        settings = self._common | {
            "replications": self.effort.replications,
            "rows": ROWS,
            "excess": MOST_EXCESS,
        }
        for fraction in self.effort.fractions:
            for place, ratio in enumerate(RATIOS):
                key = f"{self.name}/simulation-{fraction}-{ratio}"
                compute = partial(self._simulated, key, fraction, place)
                yield Unit("simulation", self.label, key, settings, compute)

    def _simulated(self, key: str, fraction: float, place: int) -> list[Row]:
        exact, draws = self._exact(fraction)[place], Draws(self.problem("unary", fraction))
        rows = simulate_cell(draws, exact, _rng(key), replications=self.effort.replications)
        known = list(divergences(exact.moments).values())
        first, second = exact.mix.counts.values()
        cell: Row = {"data": self.name, "fraction": fraction, "r": RATIOS[place]}
        cell |= {"v": known[0] / known[1], "n1": first, "n2": second}
        return [cell | row for row in rows]


def _rng(key: str) -> np.random.Generator:
    return np.random.default_rng([SEED, zlib.crc32(key.encode())])


Settings = Mapping[str, str | int | float]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Rows with the same keys, as CSV; numbers keep all their digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def read_csv(path: Path) -> list[Row]:
    """Rows as `write_csv` wrote them; what reads as a number is one."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Store:
    """A folder of finished cells.

    Attributes:
        folder: Where they are.
    """

    folder: Path

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def get(self, key: str, settings: Settings) -> list[Row] | None:
        """Rows of a finished cell, or None if there is none with these settings."""
        try:
            held = json.loads(self._path(key).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return held["rows"] if held.get("settings") == dict(settings) else None

    def put(self, key: str, settings: Settings, rows: Iterable[Row]) -> None:
        """Keep a finished cell."""
        held = {"settings": dict(settings), "rows": list(rows)}
        write_whole(self._path(key), json.dumps(held, indent=1).encode())
