"""Pytest plugin of mutate.sh: runs the tests of each mutant in a forked process.

pytest collects the tests once, in the folder that mutmut made.  One process runs all of them
unchanged and records the seconds of each and the functions that it calls.  Then each mutant
has a process of its own.  It runs the tests that call the changed function up to the first
failure: first those that killed other mutants of the function, then those of its module, then
the quickest.

Writes the outcome of each mutant to the file RESULTS.  Environment variables limit the work:
LONGEST leaves out tests of other modules that take more seconds, MINUTES the mutants that
remain after that time, and ONLY names a file with patterns of the mutants to run.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import sys
import time
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import given, settings
from hypothesis import strategies as st
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LONGEST = float(os.environ.get("LONGEST", "inf"))
MINUTES = float(os.environ.get("MINUTES", "inf"))
ONLY = (
    Path(os.environ["ONLY"]).read_text(encoding="utf-8").split()
    if "ONLY" in os.environ
    else ["*"]
)
SLOWER, ALLOWED = 6, 20  # seconds of a mutant: SLOWER times those of its tests, and ALLOWED
REPORT: list[int] = []  # in a process that tests a mutant, the pipe to its parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """End the process of a mutant at the first failure, without a traceback."""
    if not REPORT or call.excinfo is None or item.get_closest_marker("xfail"):
        return
    if not call.excinfo.errisinstance(pytest.skip.Exception):
        send(REPORT[0], "killed", item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run the tests of each mutant instead of those of the session."""
    end = time.monotonic() + 60 * MINUTES
    tests = {item.nodeid: item for item in session.items}
    seconds, callers = recorded(list(tests.values()))
    prepare()
    results, outcomes = Path(os.environ["RESULTS"]), dict[str, str]()
    kills: Counter[tuple[str, str]] = Counter()
    for name in mutants():
        if time.monotonic() > end:
            break
        function, own = name.rpartition("__mutmut_")[0], own_tests(name)
        chosen = [
            test
            for test in callers.get(function, ())
            if seconds[test] <= LONGEST or test.startswith(own)
        ]
        chosen.sort(key=lambda t: (-kills[function, t], not t.startswith(own), seconds[t], t))
        limit = ALLOWED + SLOWER * sum(seconds[test] for test in chosen)
        outcomes[name], by = outcome(name, [tests[test] for test in chosen], limit)
        kills[function, by] += 1
        if len(outcomes) % 50 == 0:
            results.write_text(json.dumps(outcomes), encoding="utf-8")
    results.write_text(json.dumps(outcomes), encoding="utf-8")
    return True


def mutants() -> Iterator[str]:
    """Yield the names of the mutants, one module after the other."""
    for path in sorted(Path("src").rglob("*.py.meta")):
        names = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        yield from (n for n in names if any(fnmatchcase(n, pattern) for pattern in ONLY))


def own_tests(name: str) -> str:
    """Return the file of the tests of a mutant's module."""
    _, package, module, *_ = name.split(".")
    return f"tests/{package}/test_{module}.py"


def run(items: Sequence[pytest.Item], after: Callable[[pytest.Item, bool], None]) -> None:
    """Run tests; call `after` with each test and True if it failed."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        reports = runtestprotocol(item, log=False, nextitem=following)
        after(item, any(report.failed for report in reports))


def recorded(items: Sequence[pytest.Item]) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Return the seconds of each test and the tests that call each function.

    The tests run in a process of their own, so that no cache has results of the unchanged
    code.  Modules that they import while they run are imported here, too.
    """
    reader, writer = os.pipe()
    before = set(sys.modules)
    if not (child := os.fork()):
        send(writer, *measured(items), [name for name in sys.modules if name not in before])
    failed, seconds, callers, modules = received(reader, writer, child)
    for test in failed:
        print(f"mutate: left out, it fails on the unchanged code: {test}")
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"mutate: {name} was not imported: {error}")
    passed = {function: sorted(set(tests) - set(failed)) for function, tests in callers.items()}
    return seconds, passed


def measured(
    items: Sequence[pytest.Item],
) -> tuple[list[str], dict[str, float], dict[str, list[str]]]:
    """Run all tests; return those that failed, their seconds and the callers of functions."""
    failures: list[str] = []
    seconds: dict[str, float] = {}
    callers: dict[str, list[str]] = {}
    set_mutant_under_test("stats")
    called = state()._stats  # noqa: SLF001 - mutmut writes the names of called functions there
    began = [time.monotonic()]

    def after(item: pytest.Item, failed: bool) -> None:  # noqa: FBT001 - of `run`
        failures.extend([item.nodeid] * failed)
        seconds[item.nodeid] = time.monotonic() - began[0]
        for function in called:
            callers.setdefault(function, []).append(item.nodeid)
        called.clear()
        began[0] = time.monotonic()

    run(items, after)
    return failures, seconds, callers


def prepare() -> None:
    """Do here, once, what each process would have to do again."""

    @settings(max_examples=1, database=None)
    @given(st.floats(), st.integers(), st.text())
    def drawn(_real: float, _integer: int, _text: str) -> None:
        """Draw, so that hypothesis reads the sources for constants."""

    drawn()
    gc.collect()
    gc.freeze()


def outcome(name: str, items: Sequence[pytest.Item], limit: float) -> tuple[str, str]:
    """Return killed, survived, untested or stopped, and the test that killed the mutant."""
    if not items:
        return "untested", ""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit) + 1))
            try_mutant(name, items, writer)
        finally:
            os._exit(1)
    words = received(reader, writer, child, within=3 * limit)
    return (words[0], words[1]) if words else ("stopped", "")


def try_mutant(name: str, items: Sequence[pytest.Item], writer: int) -> None:
    """Run the tests of a mutant, silently, and end this process."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    set_mutant_under_test(name)
    REPORT.append(writer)
    run(items, lambda item, failed: send(writer, "killed", item.nodeid) if failed else None)
    send(writer, "survived", "")


def send(writer: int, *values: object) -> None:
    """Send values to the parent and end this process."""
    with os.fdopen(writer, "w", encoding="utf-8") as pipe:
        json.dump(values, pipe)
    os._exit(0)


def received(reader: int, writer: int, child: int, within: float | None = None) -> list[Any]:
    """Return the values that a child sends; nothing if it ends or takes too long before."""
    os.close(writer)
    if not select.select([reader], [], [], within)[0]:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return list(json.loads(text)) if text else []
