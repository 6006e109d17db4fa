"""Share the engines under test, repeatable examples and the snapshot of messages.

A test with the parameter `engine` runs on every engine of `ENGINES`, and
`tests.support.reference` computes the expected numbers for all of them.
`tests.support.messages` compares texts with tests/messages.txt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from poolwise.engines.duckdb import DuckDB
from tests.support import messages
from tests.support.postgres import DuckDBConnection, PostgresEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from poolwise.engines.base import Engine

# Seed examples by the test's name, so that every run draws the same ones.
settings.register_profile("poolwise", derandomize=True, deadline=None)
settings.load_profile("poolwise")

ENGINES: dict[str, Callable[[], Engine]] = {
    "duckdb": DuckDB,
    "connection": DuckDBConnection,  # runs the SQL query through a DB-API connection
    "postgres": PostgresEngine,
}

SYSTEM = ("tests/repo/", "tests/system/")  # folders that `make quick` leaves out, except:
QUICK = ("tests/repo/test_architecture.py", "tests/repo/test_wording.py")


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    name: str = request.param
    return ENGINES[name]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-messages",
        action="store_true",
        help="write the texts of the tests that run to tests/messages.txt (with -n 0)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-messages") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--update-messages requires -n 0")
    messages.start(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        left_out = item.nodeid.startswith(SYSTEM) and not item.nodeid.startswith(QUICK)
        if left_out or any("postgres" in name for name in used(item)):
            item.add_marker(pytest.mark.system)


def used(item: pytest.Item) -> list[str]:
    """Return the names of the item's fixtures and of its parameters, in small letters."""
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec else ()
    texts = [v if isinstance(v, str) else getattr(v, "__name__", "") for v in values]
    return [text.lower() for text in (*texts, *getattr(item, "fixturenames", ()))]


def pytest_itemcollected(item: pytest.Item) -> None:
    item.config.stash[messages.SNAPSHOT].collected.add(messages.name_of(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    snapshot = item.config.stash[messages.SNAPSHOT]
    snapshot.begin(item)
    yield
    snapshot.end()


def pytest_sessionfinish(session: pytest.Session) -> None:
    snapshot = session.config.stash[messages.SNAPSHOT]
    if snapshot.update:
        snapshot.save()
