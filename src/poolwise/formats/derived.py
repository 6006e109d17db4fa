"""Derived: the rows of a source, changed by a query of DuckDB.

A reader that has to join rows, number them or leave some out writes one query over the view
`log`.  Parquet files and queries can be read again at any time, so their result stays a query;
that of other sources is a table in memory.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from poolwise.errors import MissingColumnError
from poolwise.log.log import PART_LOGGER, Log
from poolwise.rows.guard import read_table
from poolwise.rows.rules import double
from poolwise.rows.values import attach_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import duckdb

BARE: Mapping[str, Any] = {  # other roles of a log of which the rows are read
    "propensity": "1",
    "propensities": None,
    "mixture": None,
    "estimate_mixture": False,
    "action": None,
    "eligible": None,
    "context": (),
    "period": None,
    "trained_on": {},
    "log_probabilities": False,
    "densities": False,
    "reward_range": None,
    "on_fault": "raise",
}


class OpenSource(NamedTuple):
    """The rows of a log, without their roles.

    Attributes:
        connection: DuckDB, with the view `log`.
        types: Type of each column.
        lasting: Whether a query over the view can be run again later.
        reward: Reward of a row, as a query reads it.
    """

    connection: duckdb.DuckDBPyConnection
    types: Mapping[str, str]
    lasting: bool
    reward: str

    def run(self, query: str) -> Any:  # noqa: ANN401 - an Arrow table
        """Run a query and return an Arrow table."""
        return read_table(self.connection, query)

    def source(self, query: str) -> Any:  # noqa: ANN401 - a SELECT or an Arrow table
        """Return what a query over the view returns, as the source of a log."""
        return query_text(self.connection, query) if self.lasting else self.run(query)

    def find(self, name: str, role: str) -> str:
        """Return a column as the source spells it; raise if there is none."""
        found = {column.lower(): column for column in self.types}.get(name.lower())
        if found is None:
            raise MissingColumnError({name: role}, [c for c in self.types if c != PART_LOGGER])
        return found


@contextmanager
def open_source(log: Log, reward: str = "1") -> Iterator[OpenSource]:
    """Open the rows of a log, without roles other than a reward."""
    from poolwise.engines.duckdb import DuckDB

    bare = replace(attach_values(log, {})[0], **BARE, reward=reward)
    with DuckDB().open(bare, {}) as rows:
        lines = read_table(rows.connection, "DESCRIBE log").to_pylist()
        types = {str(line["column_name"]): str(line["column_type"]) for line in lines}
        text = double(rows.table.reward).sql(dialect="duckdb")
        yield OpenSource(rows.connection, types, is_lasting(bare), text)


def is_lasting(log: Log) -> bool:
    """Test if the parts of a log can be read again later."""
    return all(part.kind in {"parquet", "select"} for part in log.parts)


def query_text(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return a query with the definition of the view `log`, so that it runs anywhere."""
    definition = "SELECT sql FROM duckdb_views() WHERE view_name = 'log'"
    view = str(read_table(connection, definition)["sql"][0])
    body = view.partition(" AS ")[2].rstrip(";\n ")
    return f"WITH log AS (\n{body}\n)\nFROM (\n{query}\n)"
