"""Outputs: a file goes where it may, whole, and replaces nothing but a file of its kind.

What cannot be written is refused before any work: an ending that would lie, a place that is
no file, a folder that lets nobody write, and above all a file that is read.  Links are
followed; the file is written beside its place and moved there.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from poolwise.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from os import PathLike

    from rich.console import Console


class Kind(NamedTuple):
    """What is written, and the endings that say so."""

    name: str
    endings: tuple[str, ...]


HTML = Kind("HTML", (".html", ".htm"))
PARQUET = Kind("Parquet", (".parquet",))


def refuse_output(
    path: str | PathLike[str], kind: Kind, sources: Iterable[str | PathLike[str]] = ()
) -> None:
    """Refuse a place that an output cannot have, before there is one.

    Args:
        path: Where the output shall go.
        kind: What it will be.
        sources: Paths and globs of the files that are read; the output is none of them.
    """
    place = real_place(path)
    if any(_names(os.fspath(source), place) for source in sources):
        raise _refused(path, "it is one of the sources, which the output would replace")
    if not Path(path).name.lower().endswith(kind.endings):
        listed = " or ".join(kind.endings)
        raise _refused(path, f"what is written is {kind.name}, so its name ends in {listed}")
    with telling(path), tempfile.TemporaryFile(dir=_there(place.parent)):
        pass  # it can be written there


def refuse_folder(path: str | PathLike[str]) -> None:
    """Refuse a folder for outputs that is something else, or lets nobody write."""
    with telling(path), tempfile.TemporaryFile(dir=_there(Path(path))):
        pass


def real_place(path: str | PathLike[str]) -> Path:
    """The file that a path leads to, through links; refused if something else is there."""
    with telling(path):
        try:
            mode = Path(path).stat().st_mode
        except FileNotFoundError:
            return Path(path).resolve()
        except ValueError as reason:  # a name that no file can have
            raise _refused(path, str(reason)) from reason
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
            raise _refused(path, f"it is {what}, not a file")
        return Path(path).resolve()


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[Path]:
    """A path to write to; what is there in the end takes its place as a whole.

    An error leaves what was there, and nothing else.  Who may read the old file may read
    the new one.
    """
    place = real_place(path)
    with telling(path):
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=place.parent, prefix=".poolwise-")
    with folder as name:
        beside = Path(name) / place.name
        yield beside
        with telling(path):
            if place.exists():
                beside.chmod(stat.S_IMODE(place.stat().st_mode))
            beside.replace(place)


@contextmanager
def telling(path: str | PathLike[str]) -> Iterator[None]:
    """Say of which output the operating system complains."""
    try:
        yield
    except OSError as reason:
        raise _refused(path, reason.strerror or str(reason)) from reason


def _refused(path: str | PathLike[str], why: str) -> UsageError:
    return UsageError(f"cannot write {os.fspath(path)}: {why}")


def _there(folder: Path) -> Path:
    """The nearest folder above that exists: the others would be made in it."""
    return next((f for f in (folder, *folder.parents) if os.path.lexists(f)), folder)


def _names(source: str, place: Path) -> bool:
    """Whether a path or glob stands for a file, or would once that file is there."""
    if "\0" in source:
        return False  # the name of no file
    path = Path(re.sub(r"^file:(//)?(?=/)", "", source))
    if path.parts[:1] == ("~",):
        path = path.expanduser()
    if place.exists():
        # with absolute paths too, which Path.glob does not take
        found = glob.iglob(str(path), recursive=True, include_hidden=True)  # noqa: PTH207
        return any(_same(file, place) for file in chain([str(path)], found))
    parts = (Path.cwd() / path).parts
    fixed = next((k for k, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    base = Path(*parts[:fixed]).resolve()
    return place.is_relative_to(base) and _fits(place.relative_to(base).parts, parts[fixed:])


def _same(one: str, other: Path) -> bool:
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):
        return False


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether parts of a path fit a glob, where two stars stand for any folders.

    >>> _fits(("a", "b", "c.csv"), ("**", "*.csv")), _fits(("a", "c.csv"), ("*.csv",))
    (True, False)
    """
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fits(parts[k:], pattern[1:]) for k in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


LONG = 2.0  # seconds that need no bar
Advance = Callable[[int], None]


class Viewer(Protocol):
    """Somebody who looks."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, rows: int) -> None: ...

    def end(self) -> None: ...


_viewer: ContextVar[Viewer | None] = ContextVar("poolwise_progress", default=None)


@contextmanager
def stage(what: str, total: int) -> Iterator[Advance]:
    """A part of the work; call what it gives with the rows that were done meanwhile."""
    viewer = _viewer.get()
    if viewer is None:
        yield lambda _: None
        return
    viewer.begin(what, total)
    try:
        yield viewer.advance
    finally:
        viewer.end()


@contextmanager
def shown(console: Console | None = None) -> Iterator[None]:
    """Show a bar with the time left for whatever takes long within this block."""
    token = _viewer.set(Bar(console))
    try:
        yield
    finally:
        _viewer.reset(token)


class Bar:
    """A bar that appears when a stage turns out to be long, and leaves nothing behind."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def begin(self, what: str, total: int) -> None:
        self._started, self._done, self._total = time.monotonic(), 0, total
        self._task = self._bar.add_task(what, total=total)

    def advance(self, rows: int) -> None:
        self._done += rows
        self._bar.update(self._task, completed=self._done)
        if not self._bar.live.is_started and self._long():
            self._bar.start()

    def _long(self) -> bool:
        """Whether the whole stage will take long, at the pace so far."""
        passed = time.monotonic() - self._started
        return passed * self._total / max(self._done, 1) > LONG

    def end(self) -> None:
        self._bar.stop()
        self._bar.remove_task(self._task)
