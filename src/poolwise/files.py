"""Files: written whole or not at all, and archives of arrays that are read with care.

Destinations are checked before any work: the ending, an unwritable folder, something that is
not a file and, above all, one of the input files.  Links are followed; a file is written in a
temporary folder next to its destination and moved there.

A few kilobytes of a ZIP archive can claim to be gigabytes, and an array can claim more numbers
than its file has.  Both would fill the memory, so `read_arrays` compares the claims with the
size of the file first.
"""

from __future__ import annotations

import glob
import math
import os
import re
import stat
import struct
import sys
import tempfile
import time
import zipfile
import zlib
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from poolwise.errors import EngineError, SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

    from numpy.typing import NDArray

# Errors of a disk, as DuckDB and the operating system word them.
DISK_FULL = re.compile(
    "No space left on device|File too large|Disk quota exceeded|failed to offload data"
)
MOST_ADDED = 1 << 30  # bytes by which an archive may grow when it is unpacked
ARCHIVE_ERRORS = (  # what NumPy and zipfile raise for a file of another form
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
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
    if any(_matches(os.fspath(source), destination) for source in sources):
        raise _refuse_place(path, "it is one of the sources, which the output would replace")
    if not Path(path).name.lower().endswith(kind.endings):
        listed = " or ".join(kind.endings)
        raise _refuse_place(path, f"the output is {kind.name}, so its name ends in {listed}")
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
            raise _refuse_place(path, str(reason)) from reason
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
        raise _refuse_place(path, f"it is {what}, not a file")
    return Path(path).resolve()


def refuse_missing(path: Path) -> None:
    """Raise SourceError where a file does not exist: readers may only repeat its name."""
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists fails on names that are too long
        raise SourceError(f"{str(path)!r}", "the file does not exist: check the path")


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
def lock_file(path: str | PathLike[str], wait: float = LOCK_SECONDS) -> Iterator[None]:
    """Let one process at a time change a file; refuse if another one takes too long.

    The operating system holds the lock, on an empty file next to it, so that the lock ends with
    its process, however that ends.
    """
    place = real_place(path)
    beside, end = place.with_name(f".{place.name}.lock"), time.monotonic() + wait
    with telling(path):
        place.parent.mkdir(parents=True, exist_ok=True)
        while (number := _lock_file(beside)) is None:
            if time.monotonic() > end:
                raise _refuse_place(path, f"another process has locked it for {wait:g} seconds")
            time.sleep(0.01)
    try:
        yield
    finally:
        if sys.platform != "win32":  # Windows removes no open file: it stays, empty
            beside.unlink(missing_ok=True)
        os.close(number)


def _lock_file(path: Path) -> int | None:
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
        raise _refuse_place(path, reason.strerror or str(reason)) from reason


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
            full = DISK_FULL.search(str(reason))
            if full is None:
                raise
            raise UsageError(
                f"cannot write to the folder for temporary files, {str(Path(name).parent)!r}: "
                f"{full[0]}. CSV, JSON, sorted rows and rows for models are copied there: "
                f"{advice}"
            ) from reason


def _refuse_place(path: str | PathLike[str], why: str) -> UsageError:
    return UsageError(f"cannot write {os.fspath(path)}: {why}")


def _matches(source: str, file: Path) -> bool:
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


def read_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive by name; raise one of DAMAGES if it cannot be used."""
    refuse_bomb(content)
    with zipfile.ZipFile(BytesIO(content)) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                _refuse_claim(file, entry.file_size)
    with np.load(BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def refuse_bomb(content: bytes, most: int = MOST_ADDED) -> None:
    """Raise ValueError if an archive would become much larger when it is unpacked."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > len(content) + most:
        raise ValueError(
            f"its {len(content):,} bytes would become {size:,}: more than {most:,} are refused"
        )


def _refuse_claim(file: Any, size: int) -> None:  # noqa: ANN401 - of zipfile
    """Raise ValueError if the header of an array claims more bytes than its file has."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array holds objects of Python in place of numbers or text")
    claimed = math.prod(shape) * dtype.itemsize
    if not 0 <= claimed <= size:
        raise ValueError(f"an array claims {claimed:,} bytes, and its file has {size:,}")
