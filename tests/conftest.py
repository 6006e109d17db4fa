"""What all tests share: the engines under test, and examples that repeat themselves.

A test that asks for `engine` runs on every engine; a new one is a new line of
`ENGINES`.  `tests.support.reference` is the judge of all of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from poolwise.engines.duckdb import DuckDB
from tests.support.postgres import DuckDBConnection, PostgresEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.engines.base import Engine

# Examples come from the test's name, not from the clock: a run tells about the code.
settings.register_profile("poolwise", derandomize=True, deadline=None)
settings.load_profile("poolwise")

ENGINES: dict[str, Callable[[], Engine]] = {
    "duckdb": partial(DuckDB, compiled=False),
    "compiled": partial(DuckDB, compiled=True),
    "connection": DuckDBConnection,  # the query, by way of a connection that is not ours
    "postgres": PostgresEngine,
}


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    name: str = request.param
    return ENGINES[name]()
