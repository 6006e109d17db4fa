"""Archives: arrays of a NumPy archive, whose sizes are checked before one is read.

A few kilobytes of a ZIP archive can claim to be gigabytes, and an array can claim more numbers
than its file has: both would fill the memory.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_ADDED = 1 << 30  # bytes by which an archive may grow when it is unpacked
DAMAGES = (  # what NumPy and zipfile raise for a file of another form
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
