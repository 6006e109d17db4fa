"""Compare the texts that users read with one reviewed file, tests/messages.txt.

A test asserts classes, codes, attributes and numbers.  The words belong to the
file: `pytest --update-messages` rewrites the entries of the tests that ran, and
a person reads the difference before it is committed.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from poolwise.errors import Finding

E = TypeVar("E", bound=BaseException)

TESTS = Path(__file__).parents[1]
FILE = TESTS / "messages.txt"
HEAD = "# Texts of errors and findings, by test.  Update: pytest -n 0 --update-messages\n"
UPDATE = "pytest -n 0 --update-messages"

Entries = dict[str, dict[int, str]]  # test -> ordinal within the test -> text

CONTROL = {
    code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) != "\n"
}

# Parts of a text that depend on the machine or on the run.
VARYING = (
    (
        re.compile(r"/[^\s'\"]*/pytest-of-[^/]+/pytest-\d+/(?:popen-gw\d+/)?[^/\s'\",:;)]+"),
        "<tmp>",
    ),
    (re.compile(re.escape(str(TESTS.parent))), "<repository>"),
    (re.compile(r"(<module '[\w.]+' from) '[^']*'"), r"\1 '<path>'"),
    (re.compile(r"\b0x[0-9a-f]{6,}"), "0x<address>"),
    (re.compile(r"\b(\d+ )?([A-Z]\w+ )+Error: .*"), "<error of DuckDB or requests>"),
    (
        re.compile(r"(cannot be loaded|that skops can read): [\s\S]*"),
        r"\1: <error of the loader>",
    ),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:<port>"),
)

LONG = re.compile(r"\d+\.\d{7,}(e[+-]?\d+)?")  # shown with all digits; compared to 6


def parse(text: str) -> Entries:
    """Read entries: lines with test and ordinal, then the text they share, indented."""
    entries: Entries = {}
    for block in re.findall(r"(?:^[^\s#].*\n)+(?:^(?: {4}.*)?(?:\n|\Z))*", text, re.MULTILINE):
        lines = block.rstrip("\n").split("\n")
        names = [line for line in lines if line and not line.startswith(" ")]
        body = "\n".join(line.removeprefix("    ") for line in lines[len(names) :])
        for test, _, ordinal in (name.rpartition(" ") for name in names):
            entries.setdefault(test, {})[int(ordinal)] = body
    return entries


def printed(entries: Mapping[str, Mapping[int, str]]) -> str:
    """Return the file that `parse` reads, sorted; cases of one test share equal texts."""
    names: dict[tuple[str, str], list[str]] = {}
    for test, texts in sorted(entries.items()):
        for ordinal, text in sorted(texts.items()):
            names.setdefault((test.partition("[")[0], text), []).append(f"{test} {ordinal}\n")
    blocks = [
        "".join(same) + "".join(f"    {line}".rstrip() + "\n" for line in text.split("\n"))
        for (_, text), same in names.items()
    ]
    return "\n".join([HEAD, *blocks])


class Snapshot:
    """The entries of the file, and those of the tests that have run."""

    def __init__(self, *, update: bool, partial: bool) -> None:
        self.update = update
        self.partial = partial  # some files are collected in part, so no entry is stale
        self.known = parse(FILE.read_text("utf-8")) if FILE.exists() else {}
        self.seen: Entries = {}  # of the tests that passed
        self.collected: set[str] = set()
        self.test = ""
        self.texts: dict[int, str] = {}  # of the running test
        self.folder: Path | None = None

    def begin(self, item: pytest.Item) -> None:
        """Count the texts of one test from 1."""
        self.test, self.texts, self.folder = name_of(item), {}, None
        folder = getattr(item, "funcargs", {}).get("tmp_path")
        if isinstance(folder, Path):
            self.folder = folder

    def compare(self, text: str) -> None:
        """Require that the next text of the running test is the one in the file."""
        __tracebackhide__ = True
        text = self._steady(text)
        ordinal = len(self.texts) + 1
        self.texts[ordinal] = text
        reviewed = self.known.get(self.test, {}).get(ordinal)
        if reviewed == text or self.update:
            return
        lines = difflib.ndiff((reviewed or "").splitlines(), text.splitlines())
        what = "differs from" if reviewed is not None else "is missing in"
        pytest.fail(
            f"{self.test} {ordinal}: the text {what} tests/{FILE.name}:\n"
            + "\n".join(lines)
            + f"\nIf the new text is right, run: {UPDATE} tests/{self.test.partition('::')[0]}",
            pytrace=True,
        )

    def end(self) -> None:
        """Require that a test that passed compared all its entries."""
        if self.seen.setdefault(self.test, self.texts) != self.texts:
            pytest.fail(f"{self.test}: the texts differ between engines", pytrace=False)
        left = self.known.get(self.test, {}).keys() - self.texts.keys()
        if left and not self.update:
            numbers = ", ".join(map(str, sorted(left)))
            pytest.fail(
                f"tests/{FILE.name} has entries of {self.test} that the test did not compare: "
                f"{numbers}\nRun: {UPDATE} tests/{self.test.partition('::')[0]}",
                pytrace=False,
            )

    def stale(self) -> list[str]:
        """Return the entries whose test does not exist, for the collected files."""
        if self.partial:
            return []
        files = {test.partition("::")[0] for test in self.collected}
        return [
            test
            for test in self.known
            if test not in self.collected
            and ((file := test.partition("::")[0]) in files or not (TESTS / file).exists())
        ]

    def save(self) -> None:
        """Merge the texts of this run into the file and drop stale entries."""
        stale = set(self.stale())
        entries = {test: texts for test, texts in self.known.items() if test not in stale}
        entries |= self.seen
        FILE.write_text(printed({t: texts for t, texts in entries.items() if texts}), "utf-8")

    def _steady(self, text: str) -> str:
        if self.folder is not None:
            text = text.replace(str(self.folder), "<tmp>")
        for pattern, name in VARYING:
            text = pattern.sub(name, text)
        text = LONG.sub(lambda number: f"{float(number[0]):.6g}", text)
        lines = (line.rstrip() for line in text.strip().split("\n"))
        return "\n".join(lines).translate(CONTROL)


def name_of(item: pytest.Item) -> str:
    """Return the test's id below tests/, the same for every engine."""
    name = item.nodeid.removeprefix("tests/")
    callspec = getattr(item, "callspec", None)
    if callspec is None or "engine" not in callspec.params:
        return name
    ids = [part for part in callspec.id.split("-") if part != callspec.params["engine"]]
    stem = name.partition("[")[0]
    return f"{stem}[{'-'.join(ids)}]" if ids else stem


SNAPSHOT = pytest.StashKey[Snapshot]()
_running: list[Snapshot] = []


def start(config: pytest.Config) -> None:
    """Read the file once per process."""
    partial = any("::" in argument for argument in config.args)
    snapshot = Snapshot(update=config.getoption("--update-messages"), partial=partial)
    config.stash[SNAPSHOT] = snapshot
    _running[:] = [snapshot]


def check_text(text: str) -> None:
    """Compare one text with the entry of the running test."""
    __tracebackhide__ = True
    _running[0].compare(text)


def check_findings(findings: Iterable[Finding], *codes: str) -> None:
    """Require findings of these codes, with the words and severities that the file has."""
    __tracebackhide__ = True
    listed = list(findings)
    assert [f.code for f in listed] == [*codes]
    lines = (f"finding {f.code} ({f.severity}): {f.message}\n  {f.advice}" for f in listed)
    check_text("\n".join(lines))


class Refused(Generic[E]):
    """`pytest.raises` with the text compared; a class, since a generator would keep frames."""

    def __init__(self, kind: type[E]) -> None:
        self.raises: AbstractContextManager[pytest.ExceptionInfo[E], bool] = pytest.raises(kind)

    def __enter__(self) -> pytest.ExceptionInfo[E]:
        return self.raises.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        __tracebackhide__ = True
        expected = self.raises.__exit__(kind, error, trace)
        if expected:
            check_text(f"{type(error).__name__}: {error}")
        return expected


def refused(kind: type[E]) -> Refused[E]:
    """Require an error of this class, with the text that the file has.

    Takes the place of ``pytest.raises(kind, match=...)``; enters with the same
    information, for assertions on codes and attributes.
    """
    return Refused(kind)
