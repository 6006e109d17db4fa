r"""Repeats: sources that a log names twice, and files with the content of others.

Device and inode identify a file, whatever path, glob or link leads to it.  Files of one
size are compared by a few bytes of their middle, and those that agree byte by byte.

Small files of coarse rows may be equal by chance.  If the number $n_j$ of rows of each content
is Poisson, two files agree in it with probability $e^{-2 n_j} I_0(2 n_j)$, and in all of them,
given the same number of rows $n$, with at most

$$\prod_j e^{-2 n_j} I_0(2 n_j) \;/\; e^{-2 n} I_0(2 n)$$

if the rows are sorted.  Other files also agree in their order: in the length of each run of
equal rows that a sorted file has not, by chance with the sum of the squared shares of these
lengths.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poolwise.errors import SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from poolwise.log.log import Log
    from poolwise.types import IntArray

PROBED = 512  # bytes of the middle of a file
COUNTED = 16_384  # rows of a file whose contents are counted
BYTES = 1 << 22  # of a file of text that are looked at
PARQUET_MARK = b"PAR1"  # first bytes of such a file
CHANCE = math.log(1e-6)  # that some files of a log are equal by coincidence
LEAST_ALIKE = 0.2  # probability that two runs of rows have the same length
REMOTE = re.compile(r"\w+://")
WHOLE_FILE = re.compile(r"\s*(?:SELECT\s+\*\s+)?FROM\s+'([^']+\.parquet)'\s*", re.IGNORECASE)
Stamp = tuple[int, ...]  # changes whenever a file does
LINE = re.compile(rb"\n|(?<=\}),")  # ends of rows, also in an array of JSON


def stamp_file(path: str) -> Stamp:
    """Return the device, inode, size and time of a file."""
    status = os.stat(path)  # noqa: PTH116 - thousands of files
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def whole_file(select: str) -> list[str]:
    """Return the path of a SELECT of all rows of one Parquet file; empty for others.

    >>> whole_file("FROM 'a.parquet'"), whole_file("SELECT * FROM 'a.parquet' WHERE x")
    (['a.parquet'], [])
    """
    match = WHOLE_FILE.fullmatch(select)
    return [match[1]] if match else []


def refuse_repeated(log: Log, files: Sequence[tuple[str, str]]) -> None:
    """Refuse a source that would be read twice.

    Args:
        log: The log.
        files: Its files and remote paths, each with the path or glob that names it.
    """
    seen: dict[Hashable, tuple[str, str]] = {}
    for key, name, path in _identify_sources(log, files):
        if key in seen:
            first, other = seen[key]
            linked = first != name and other == path
            by = f", as {first} and {name}" if linked else f", by {other!r} and {path!r}"
            each = "file" if path else "source"
            raise UsageError(
                f"{name} would be read twice{by if path else ''}: its rows would count twice. "
                f"Name each {each} once."
            )
        seen[key] = name, path


def _identify_sources(
    log: Log, files: Sequence[tuple[str, str]]
) -> Iterator[tuple[Hashable, str, str]]:
    """Yield what identifies each source, its name, and the path or glob that names it."""
    for file, path in files:
        yield file if REMOTE.match(file) else stamp_file(file), repr(file), path
    for part in log.parts:
        if part.kind == "frame":
            yield id(part.value), "a frame", ""
        elif part.kind == "database":
            file, table = part.value
            yield (os.path.realpath(file), table), repr(f"{file}::{table}"), ""


def equal_files(files: Sequence[str]) -> list[list[str]]:
    """Return the groups of files whose content is the same and not by coincidence."""
    groups: list[list[str]] = []
    pairs = math.log(max(1, len(files) * (len(files) - 1) / 2))
    try:
        for size in _group_files(files, _file_size):  # many files of about one size
            for same in _group_files(size, partial(_middle, middle=_file_size(size[0]) // 2)):
                groups += _group_files(same, _digest)
        return [g for g in sorted(groups) if pairs + find_chance(row_codes(g[0])) < CHANCE]
    except OSError as reason:  # a file is gone
        raise SourceError(repr(reason.filename), str(reason.strerror)) from reason


def _group_files(files: Sequence[str], key: Callable[[str], Hashable]) -> list[list[str]]:
    """Return the groups of several files with the same key."""
    groups: dict[Hashable, list[str]] = {}
    for file in files:
        groups.setdefault(key(file), []).append(file)
    return [group for group in groups.values() if len(group) > 1]


def _file_size(file: str) -> int:
    return os.stat(file).st_size  # noqa: PTH116 - thousands of files


def _middle(file: str, middle: int) -> bytes:
    with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - thousands of files
        opened.seek(middle)
        return opened.read(PROBED)


def _digest(file: str) -> bytes:
    with open(file, "rb") as opened:  # noqa: PTH123 - as above
        return hashlib.file_digest(opened, "blake2b").digest()


def row_codes(file: str) -> IntArray:
    """Number the contents of the first rows of a file, in the order of the rows.

    Columns of Parquet that are lists or structures are left out, and so is the first line of
    a text, which may be a header.
    """
    with pa.input_stream(file) as opened:  # decompressed
        if opened.read(len(PARQUET_MARK)) != PARQUET_MARK:
            lines = LINE.split(opened.read(BYTES))[1:-1][:COUNTED]
            numbers = {line: k for k, line in enumerate(dict.fromkeys(lines))}
            return np.array([numbers[line] for line in lines], dtype=np.int64)
    parquet = pq.ParquetFile(file)
    first = islice(parquet.iter_batches(COUNTED), 1)
    table = pa.Table.from_batches(first, parquet.schema_arrow)
    plain = [str(k) for k, t in enumerate(table.schema.types) if not pa.types.is_nested(t)]
    table = table.rename_columns([*map(str, range(table.num_columns))])
    table = table.append_column("row", pa.array(np.arange(table.num_rows)))
    alike = table.group_by(plain, use_threads=False).aggregate([("row", "list")])["row_list"]
    rows = [np.array(each, dtype=np.int64) for each in alike.to_pylist()]
    codes = np.empty(table.num_rows, dtype=np.int64)
    for code, each in enumerate(rows):
        codes[each] = code
    return codes


def find_chance(codes: IntArray) -> float:
    """Return the logarithm of the probability that two files have these rows by chance.

    >>> coins = np.repeat([0, 1], 500)
    >>> round(float(np.exp(find_chance(coins))), 3)  # sorted
    0.018
    >>> find_chance(np.random.default_rng(0).permutation(coins)) < -400
    True
    """
    from scipy.special import ive

    counts = np.bincount(codes)
    of_counts = np.log(ive(0, 2 * counts)).sum() - np.log(ive(0, 2 * len(codes)))
    ends = np.flatnonzero(np.diff(codes, append=-1))
    shares = np.bincount(np.diff(ends, prepend=-1)) / max(1, len(ends))
    alike = max(float((shares**2).sum()), LEAST_ALIKE)
    return float(of_counts + max(0, len(ends) - len(counts)) * math.log(alike))
