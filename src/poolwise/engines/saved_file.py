"""Moments as a Parquet file: one line per logger, arrays as lists of doubles.

The file's metadata holds, as JSON, the terms that the lists refer to.  Reading never executes
anything from the file, and rejects an inconsistent file with one message.
"""

from __future__ import annotations

import glob
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poolwise.errors import SourceError, UsageError
from poolwise.moments.moments import BINS, FloatArray, IntArray, Moments
from poolwise.moments.terms import Factor, Term
from poolwise.rows.output import PARQUET, real_place, refuse_output, telling, whole_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.moments import MomentsByLogger

FORMAT = 1  # version of saved files, of their hashes and of the answer's columns
KEY = b"poolwise"
DAMAGED = "the file is damaged: summarise the log again, or restore a copy"
SCHEMA = pa.schema(
    [
        ("logger", pa.string()),
        ("rows", pa.int64()),
        ("means", pa.list_(pa.float64())),
        ("scatter", pa.list_(pa.float64())),
        ("lowest", pa.list_(pa.float64())),
        ("largest", pa.list_(pa.float64())),
        ("tails", pa.list_(pa.list_(pa.float64()))),
        ("histograms", pa.list_(pa.list_(pa.int64()))),
    ]
)
Header = dict[str, Any]  # the JSON in the metadata


def write_moments(path: Path, moments: MomentsByLogger, header: Mapping[str, Any]) -> None:
    """Write the moments of each logger, with `header` in the file's metadata."""
    _refuse_path(path)
    first = next(iter(moments.values()))
    tails, histograms = sorted(first.tails), sorted(first.histograms)
    meta = {
        **header,
        "format": FORMAT,
        "terms": [[asdict(f) for f in term.factors] for term in first.terms],
        "scattered": len(first.scatter),
        "tails": [first.terms.index(t) for t in tails],
        "histograms": [first.terms.index(t) for t in histograms],
        "ddof": first.ddof,
    }
    lines = [
        {
            "logger": logger,
            "rows": m.count,
            "means": m.means.tolist(),
            "scatter": m.scatter.ravel().tolist(),
            "lowest": m.lowest.tolist(),
            "largest": m.largest.tolist(),
            "tails": [m.tails[t].tolist() for t in tails],
            "histograms": [m.histograms[t].tolist() for t in histograms],
        }
        for logger, m in moments.items()
    ]
    schema = SCHEMA.with_metadata({KEY: json.dumps(meta, sort_keys=True).encode()})
    table = pa.Table.from_pylist(lines, schema=schema)
    with whole_file(path) as unfinished, telling(path):
        pq.write_table(table, unfinished, compression="zstd")


def _refuse_path(path: Path) -> None:
    """Reject another file extension, and an existing file without moments."""
    if path.suffix:
        refuse_output(path, PARQUET)
    there = real_place(path)
    if there.exists() and there.stat().st_size > 0 and not holds_moments(there):
        raise UsageError(
            f"cannot write {path}: the existing file was not written by `Summary.save`; choose "
            "another name"
        )


def named_files(paths: Sequence[str | Path]) -> list[Path]:
    """Expand paths and globs in order; reject missing and repeated files."""
    files = [file for path in paths for file in _expanded(Path(path))]
    real = [file.resolve() for file in files]
    for k, file in enumerate(files):
        if real[k] in real[:k]:
            raise UsageError(f"{str(file)!r} is listed twice: its rows would count twice")
    return files


def _expanded(path: Path) -> list[Path]:
    if not glob.has_magic(str(path)) or path.exists():
        refuse_missing(path)
        return [path]
    files = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    if not files:
        raise SourceError(f"{str(path)!r}", "no file matches this pattern")
    return files


def refuse_missing(path: Path) -> None:
    """Raise SourceError where a file does not exist: pyarrow only repeats its name."""
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists fails on names that are too long
        raise SourceError(f"{str(path)!r}", "the file does not exist: check the path")


def holds_moments(path: Path) -> bool:
    """Return True if the metadata of a file is that of `write_moments`."""
    try:
        return KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def read_moments(path: Path) -> tuple[dict[str, Moments], Header]:
    """Read the moments of each logger and the header; reject an inconsistent file."""
    refuse_missing(path)
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as reason:
        raise SourceError(f"{str(path)!r}", str(reason).splitlines()[0]) from reason
    text = (table.schema.metadata or {}).get(KEY)
    if text is None:
        raise SourceError(f"{str(path)!r}", "the file was not written by `Summary.save`")
    try:
        return _decoded(table, json.loads(text))
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as reason:
        why = str(reason) if isinstance(reason, _DamagedError) else DAMAGED
        raise SourceError(f"{str(path)!r}", why) from reason


class _DamagedError(ValueError):
    """An inconsistent file; the text is the message."""


def _decoded(table: pa.Table, meta: Header) -> tuple[dict[str, Moments], Header]:
    if meta["format"] != FORMAT:
        raise _DamagedError(
            f"the file must have format {FORMAT}, got {meta['format']!r}: read it with the "
            "version of poolwise that wrote it"
        )
    _require(table.schema.equals(SCHEMA) and table.num_rows > 0)
    terms = tuple(Term(tuple(Factor(**f) for f in factors)) for factors in meta["terms"])
    _require(all(isinstance(f.bound, float) for t in terms for f in t.factors))
    _require(len(set(terms)) == len(terms) > 0)
    moments = {line["logger"]: _moments(line, terms, meta) for line in table.to_pylist()}
    _require(len(moments) == table.num_rows and None not in moments)
    return moments, meta


def _moments(line: Mapping[str, Any], terms: tuple[Term, ...], meta: Header) -> Moments:
    size, count = int(meta["scattered"]), int(line["rows"])
    _require(0 <= size <= len(terms) and count > 0 and meta["ddof"] in {0, 1})
    moments = Moments(
        terms,
        count,
        _array(line["means"], len(terms)),
        _array(line["scatter"], size * size).reshape(size, size),
        _array(line["lowest"], len(terms)),
        _array(line["largest"], len(terms)),
        meta["ddof"],
        {
            terms[k]: _array(values, len(values))
            for k, values in zip(meta["tails"], line["tails"], strict=True)
        },
        {
            terms[k]: np.array(values, dtype=np.int64)
            for k, values in zip(meta["histograms"], line["histograms"], strict=True)
        },
    )
    _require(_consistent(moments))
    return moments


def _consistent(m: Moments) -> bool:
    """Return True if the numbers could be moments of some rows."""
    extremes = np.array([m.lowest, m.largest])
    return (
        m.bounded
        and bool(np.array_equal(m.scatter, m.scatter.T, equal_nan=True))
        and not bool((np.diag(m.scatter) < 0).any())
        and not bool((m.lowest > m.largest).any() or np.isinf(extremes).any())
        and bool(np.array_equal(*np.isnan(extremes)))
        and all(_falling(tail) and 0 < len(tail) <= m.count for tail in m.tails.values())
        and all(_counts(rows, m.count) for rows in m.histograms.values())
    )


def _array(values: list[float | None], size: int) -> FloatArray:
    array = np.array([math.nan if v is None else v for v in values], dtype=np.float64)
    _require(array.shape == (size,))
    return array


def _falling(values: FloatArray) -> bool:
    return bool(np.isfinite(values).all() and (values[1:] <= values[:-1]).all())


def _counts(rows: IntArray, total: int) -> bool:
    return rows.shape == (BINS,) and bool((rows >= 0).all()) and int(rows.sum()) <= total


def _require(holds: bool) -> None:  # noqa: FBT001 - a condition
    if not holds:
        raise _DamagedError(DAMAGED)
