"""A case of the battery: a log as users write it, and the expected result.

`base` is a good log; a case changes one thing.  The files contain `table`; `meaning` is the
same log in plain doubles and text, from which `tests.support.reference` computes the result.
A case without a result expects an error instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from poolwise.log.log import Log
from tests.support.reference import random_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FORMS = ("parquet", "csv", "json", "frame")
USUAL = ("parquet", "csv", "frame")  # JSON is read as CSV is, and takes as long to test
ROLES = {"logger": "logger", "reward": "reward", "propensity": "p"}
Values = list[Any]  # of one column: any value of a file


@dataclass(frozen=True)
class Case:
    """One log, and its expected result.

    Attributes:
        table: Content of the files.
        refused: True if poolwise must raise an error.
        meaning: The same log in doubles and text, where `table` is not that.
        roles: Columns by role; without "propensity" none is given.
        propensities: Column of each logger; empty where they are not given.
        targets: Column of each target.
        options: More arguments of the command line, in addition to the roles.
        more: The same for `Log`.
        forms: Formats in which this log can be written at all.
        finds: Codes of warnings that must be there.
        to: Relative error that the answer may have.
    """

    table: pa.Table
    refused: bool = False
    meaning: pa.Table | None = None
    roles: Mapping[str, str] = field(default_factory=lambda: ROLES)
    propensities: Mapping[str, str] = field(default_factory=lambda: {"a": "p_a", "b": "p_b"})
    targets: Mapping[str, str] = field(default_factory=lambda: {"new": "t"})
    options: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    forms: tuple[str, ...] = USUAL
    finds: tuple[str, ...] = ()
    to: float = 1e-9

    def words(self) -> list[str]:
        """Arguments of the command line, without the source."""
        named = [word for role, name in self.roles.items() for word in (f"--{role}", name)]
        for label, name in self.propensities.items():
            named += ["--propensities", f"{label}={name}"]
        for label, name in self.targets.items():
            named += ["--target", f"{label}={name}"]
        return [*named, *self.options]

    def log(self, source: object) -> Log:
        """The same as a `Log`."""
        known: Any = {
            **self.roles,
            "propensities": dict(self.propensities) or None,
            **self.more,
        }
        return Log(source, **known)


def base(rows: int = 40, seed: int = 7, loggers: tuple[str, ...] = ("a", "b")) -> pa.Table:
    """A good log: logger, reward, p, p_a, p_b and t, rows in no order."""
    counts = {label: rows + 10 * place for place, label in enumerate(loggers)}
    return random_table(np.random.default_rng(seed), counts)


def put(table: pa.Table, name: str, values: Values | pa.Array) -> pa.Table:
    """The table with other values in one column."""
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return table.set_column(table.column_names.index(name), name, array)


def spoil(name: str, value: object, row: int = 3, table: pa.Table | None = None) -> pa.Table:
    """A good log with one other value, which its columns must be able to hold."""
    table = base() if table is None else table
    values = table[name].to_pylist()
    values[row] = value
    return put(table, name, pa.array(values, type=table[name].type))


def mapped(name: str, change: Callable[[Any], Any], table: pa.Table | None = None) -> pa.Table:
    """A good log with each value of one column changed."""
    table = base() if table is None else table
    return put(table, name, [change(value) for value in table[name].to_pylist()])


def renamed(table: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """The same columns under other names."""
    return table.rename_columns([names.get(n, n) for n in table.column_names])


def write(table: pa.Table, form: str, folder: Path) -> object:
    """The log as a source: the path of a file, or the table itself."""
    path = folder / f"log.{form}"
    if form == "frame":
        return table
    if form == "parquet":
        pq.write_table(table, path, row_group_size=32)
    elif form == "csv":
        pc.write_csv(table, path)
    else:
        path.write_text(_json_lines(table), encoding="utf-8")
    return str(path)


def _json_lines(table: pa.Table) -> str:
    import json

    return "\n".join(json.dumps(row, default=str) for row in table.to_pylist())
