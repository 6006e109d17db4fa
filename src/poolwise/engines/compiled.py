"""Compiled: the library of ``native/kernel.c``, and the structures that it takes.

The library is built when poolwise is installed.  The fields of each structure have the names
and the order of ``native/kernel.h``.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from poolwise.errors import PoolwiseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.types import AnyArray

FOLDER = Path(__file__).with_name("native")
SOURCES = ("kernel.h", "kernel.c")
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
ENTRY = "poolwise_add"  # picks the fastest code for this processor
LEFT, RIGHT = 4, 2  # lines of a tile
TYPES = tuple(map(np.dtype, ("f8", "f4", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")))
OPS = (
    "divide",
    "invert",
    "quotient",
    "multiply",
    "subtract",
    "least",
    "clip",
    "switch",
    "optimistic",
    "gain",
    "loss",
    "is_zero",
    "inverse",
    "mix",
)
STEP = np.dtype(
    [(name, "i8") for name in ("op", "out", "left", "right", "inverse")]
    + [(name, "f8") for name in ("bound", "zero")]
)
TILE_TYPE = np.dtype(
    [("left", "i8", (LEFT,)), ("right", "i8", (RIGHT,)), ("place", "i8", (LEFT * RIGHT,))]
)

_number, _double, _pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


def source_hash() -> int:
    """Return a hash of the source files, which the library knows, too."""
    return crc32(b"".join((FOLDER / name).read_bytes() for name in SOURCES))


@cache
def library() -> ctypes.CDLL:
    """Load the compiled kernel; it must be that of the source files."""
    path = FOLDER / f"kernel{SUFFIX}"
    again = "install poolwise again (in a checkout: make demo)"
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as reason:
        raise PoolwiseError(
            f"the compiled kernel cannot be loaded: {reason}: {again}"
        ) from reason
    loaded.poolwise_source.restype = ctypes.c_uint32
    if loaded.poolwise_source() != source_hash():
        raise PoolwiseError(f"{path} was compiled from another kernel.c: {again}")
    return loaded


def _fields(text: str, kind: object) -> list[tuple[str, Any]]:
    return [(name, kind) for name in text.split()]


class Lines(ctypes.Structure):
    """Numbers of lines."""

    _fields_ = [*_fields("size", _number), *_fields("line", _pointer)]


class _Arrays(ctypes.Structure):
    """A structure with pointers to arrays, which it keeps."""

    def set(self, **values: object) -> None:
        """Set fields: numbers as they are, arrays as pointers, `Lines` from their numbers."""
        if not hasattr(self, "arrays"):
            self.arrays: list[AnyArray] = []
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                self.arrays.append(value)
                setattr(self, name, value.ctypes.data)
            elif isinstance(value, (list, tuple)):
                setattr(self, name, Lines(len(value), self._keep(value)))
            else:
                setattr(self, name, value)

    def _keep(self, numbers: Sequence[int]) -> int:
        self.arrays.append(np.array(numbers, dtype=np.int64))
        return self.arrays[-1].ctypes.data


class Program(_Arrays):
    """Steps and products of the kernel, and room to work.

    Attributes:
        measures: Number of columns of other rewards, which the compiled code does not know.
    """

    measures = 0
    _fields_ = [
        *_fields("columns crossed", _number),
        *_fields("lows tops", _pointer),
        *_fields("own mixture period_mixture propensity logs", _number),
        *_fields("logged", Lines),
        *_fields("tolerance least", _double),
        *_fields("groups strata", _number),
        *_fields("place shares own_period periods", _pointer),
        *_fields("steps all_steps", _number),
        *_fields("step", _pointer),
        *_fields("singles extremes tails histograms sliced powered", Lines),
        *_fields("tiles plain_tiles all_plain_tiles", _number),
        *_fields("tile plain_tile", _pointer),
        *_fields("pairs plain", _number),
        *_fields("left right", _pointer),
        *_fields("slices bins first_bin bin_shift", _number),
        *_fields("floors", _pointer),
        *_fields("lines block part room", _number),
        *_fields("line ordered moved order starts ends", _pointer),
    ]


class Input(_Arrays):
    """Rows to be added, and arrays for what is not a sum."""

    _fields_ = [
        *_fields("rows before tail_room", _number),
        *_fields("columns types codes tails tail_strata tail_rows values starts", _pointer),
    ]


class Totals(_Arrays):
    """Sums to which rows are added."""

    _fields_ = _fields(
        "count spans means rest products plain lowest largest histograms slices powers",
        _pointer,
    )


def add(program: Program, rows: Input, totals: Totals) -> bool:
    """Add rows to totals; return False after a bad row."""
    by_reference = map(ctypes.byref, (program, rows, totals))
    return bool(getattr(library(), ENTRY)(*by_reference) == 0)
