"""Output: files are written whole or not at all, and long stages report their progress.

Destinations are checked before any work: the ending, an unwritable folder, something that is
not a file and, above all, one of the input files.  Links are followed; a file is written in a
temporary folder next to its destination and moved there.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from poolwise.errors import EngineError, SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

    from rich.console import Console


# Errors of a disk, as DuckDB and the operating system word them.
FULL = re.compile(
    "No space left on device|File too large|Disk quota exceeded|failed to offload data"
)


class Kind(NamedTuple):
    """A file format and the endings of its names."""

    name: str
    endings: tuple[str, ...]


HTML = Kind("HTML", (".html", ".htm"))
PARQUET = Kind("Parquet", (".parquet",))
JSON = Kind("JSON", (".json",))


def refuse_output(
    path: str | PathLike[str], kind: Kind, sources: Iterable[str | PathLike[str]] = ()
) -> None:
    """Refuse a path that cannot be written, before there is something to write.

    Args:
        path: Where the output will be written.
        kind: Its format.
        sources: Paths and globs of the input files; the output must not be one of them.
    """
    destination = real_place(path)
    if any(_reads(os.fspath(source), destination) for source in sources):
        raise _refused(path, "it is one of the sources, which the output would replace")
    if not Path(path).name.lower().endswith(kind.endings):
        listed = " or ".join(kind.endings)
        raise _refused(path, f"the output is {kind.name}, so its name ends in {listed}")
    refuse_folder(destination.parent, path)


def refuse_folder(folder: str | PathLike[str], path: str | PathLike[str] | None = None) -> None:
    """Refuse a folder that is not one or cannot be written; `path` is named in the error."""
    place = Path(folder)
    existing = next((f for f in (place, *place.parents) if os.path.lexists(f)), place)
    with telling(folder if path is None else path), tempfile.TemporaryFile(dir=existing):
        pass


def real_place(path: str | PathLike[str]) -> Path:
    """Return the file that a path leads to through links; refuse anything else."""
    with telling(path):
        try:
            mode = Path(path).stat().st_mode
        except FileNotFoundError:
            return Path(path).resolve()
        except ValueError as reason:  # no file can have this name
            raise _refused(path, str(reason)) from reason
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
        raise _refused(path, f"it is {what}, not a file")
    return Path(path).resolve()


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[Path]:
    """Yield a path to write to, and move that file to its destination at the end.

    An error leaves the old file as it was.  The new file has the old one's permissions.
    """
    destination = real_place(path)
    with telling(path):
        destination.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=destination.parent, prefix=".poolwise-")
    with folder as name:
        written = Path(name) / destination.name
        yield written
        with telling(path):
            if destination.exists():
                written.chmod(stat.S_IMODE(destination.stat().st_mode))
            written.replace(destination)


def write_whole(path: str | PathLike[str], content: bytes) -> None:
    """Write a file in another folder and move it into place, so that it is whole or absent."""
    with whole_file(path) as beside, telling(path):
        beside.write_bytes(content)


LOCK_SECONDS = 60.0  # to wait for another process


@contextmanager
def locked(path: str | PathLike[str], wait: float = LOCK_SECONDS) -> Iterator[None]:
    """Let one process at a time change a file; refuse if another one takes too long.

    The operating system holds the lock, on an empty file next to it, so that the lock ends with
    its process, however that ends.
    """
    place = real_place(path)
    beside, end = place.with_name(f".{place.name}.lock"), time.monotonic() + wait
    with telling(path):
        place.parent.mkdir(parents=True, exist_ok=True)
        while (number := _lock(beside)) is None:
            if time.monotonic() > end:
                raise _refused(path, f"another process has locked it for {wait:g} seconds")
            time.sleep(0.01)
    try:
        yield
    finally:
        if sys.platform != "win32":  # Windows removes no open file: it stays, empty
            beside.unlink(missing_ok=True)
        os.close(number)


def _lock(path: Path) -> int | None:
    """Return the descriptor of a file that this process has locked; None if another has."""
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
            return number
        import fcntl

        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(number), path.stat()):
            return number
    except (BlockingIOError, PermissionError, FileNotFoundError):
        pass  # locked, or removed by the process that had locked it
    except BaseException:
        os.close(number)
        raise
    os.close(number)
    return None


@contextmanager
def telling(path: str | PathLike[str]) -> Iterator[None]:
    """Name the output in errors of the operating system."""
    try:
        yield
    except OSError as reason:
        raise _refused(path, reason.strerror or str(reason)) from reason


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder for temporary files, and name it in errors about its disk."""
    import duckdb

    advice = "free some room, or set TMPDIR to a folder on a larger disk"
    try:
        folder = tempfile.TemporaryDirectory(prefix="poolwise-")
    except OSError as reason:
        why = reason.strerror or str(reason)
        raise UsageError(
            f"cannot create a folder for temporary files: {why} ({advice})"
        ) from reason
    with folder as name:
        try:
            yield Path(name)
        except (duckdb.Error, EngineError, SourceError, OSError) as reason:
            full = FULL.search(str(reason))
            if full is None:
                raise
            raise UsageError(
                f"cannot write to the folder for temporary files, {str(Path(name).parent)!r}: "
                f"{full[0]}. CSV, JSON, sorted rows and rows for models are copied there: "
                f"{advice}"
            ) from reason


def _refused(path: str | PathLike[str], why: str) -> UsageError:
    return UsageError(f"cannot write {os.fspath(path)}: {why}")


def _reads(source: str, file: Path) -> bool:
    """Test if a path or glob matches a file."""
    if "\0" in source:
        return False
    pattern = Path(re.sub(r"^file:(//)?(?=/)", "", source)).expanduser()
    # glob takes absolute patterns, which Path.glob does not
    names = glob.iglob(str(pattern), recursive=True, include_hidden=True)  # noqa: PTH207
    return any(_same(name, file) for name in (str(pattern), *names))


def _same(name: str, file: Path) -> bool:
    path = Path(name)
    try:
        return path.resolve() == file or (file.exists() and path.samefile(file))
    except (OSError, ValueError):
        return False


# Progress.

LONG = 2.0  # seconds of a stage that need no bar
Advance = Callable[[int], None]


_viewer: ContextVar[Callable[[str, int], AbstractContextManager[Advance]] | None] = ContextVar(
    "poolwise_progress", default=None
)


def stage(what: str, total: int) -> AbstractContextManager[Advance]:
    """Report a part of the work; the caller passes the rows done since to the result."""
    viewer = _viewer.get()
    return nullcontext(lambda _: None) if viewer is None else viewer(what, total)


@contextmanager
def shown(console: Console | None = None, long: float = LONG) -> Iterator[None]:
    """Show a bar with the time left for stages of more than `long` seconds."""
    token = _viewer.set(partial(_bar, console, long))
    try:
        yield
    finally:
        _viewer.reset(token)


@contextmanager
def _bar(console: Console | None, long: float, what: str, total: int) -> Iterator[Advance]:
    """Show a bar once a stage turns out to be long, and remove it at its end."""
    from rich import progress

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(what, total=total)
    started, done = time.monotonic(), 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        bar.update(task, completed=done)
        if (time.monotonic() - started) * total / max(done, 1) > long:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
