"""Moments in a file: Parquet, one line per logger, readable by anything.

Arrays are lists of doubles, so that nothing is rounded; what the places of these lists
mean stands in the file's metadata as JSON.  Nothing in a file is ever executed, and a file
that does not hold together is refused with one sentence.
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

from poolwise.engines.saved import FORMAT
from poolwise.errors import SourceError, UsageError
from poolwise.moments.histogram import BINS
from poolwise.moments.moments import FloatArray, IntArray, Moments
from poolwise.moments.terms import Factor, Term
from poolwise.rows.output import PARQUET, real_place, refuse_output, telling, whole_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.moments import MomentsByLogger

KEY = b"poolwise"
DAMAGED = "it is damaged: summarise the log again, or take a copy"
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
Header = dict[str, Any]  # JSON: what the numbers are about


def write_moments(path: Path, moments: MomentsByLogger, header: Mapping[str, Any]) -> None:
    """Write moments of each logger, and JSON that says what they are about."""
    _refuse_place(path)
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
    with whole_file(path) as beside, telling(path):
        pq.write_table(table, beside, compression="zstd")


def _refuse_place(path: Path) -> None:
    """Refuse a name that says something else, and a file that may well be the log."""
    place = real_place(path)
    if path.suffix:  # without an ending a name says nothing
        refuse_output(path, PARQUET)
    if place.exists() and place.stat().st_size > 0 and not holds_moments(place):
        raise UsageError(
            f"cannot write {path}: the file that is there was not written by `Summary.save`, "
            "and would be lost: choose another name"
        )


def named_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files that paths and globs stand for, in order; refuses what is not there.

    A file that is named twice would count its rows twice, and is refused too.
    """
    found = [file for path in paths for file in _named(Path(path))]
    seen: set[Path] = set()
    for file in found:
        if file.resolve() in seen:
            raise UsageError(f"{str(file)!r} is named twice: its rows would count twice")
        seen.add(file.resolve())
    return found


def _named(path: Path) -> list[Path]:
    if not glob.has_magic(str(path)) or path.exists():
        refuse_missing(path)
        return [path]
    found = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    if not found:
        raise SourceError(f"{str(path)!r}", "no file fits this pattern")
    return found


def refuse_missing(path: Path) -> None:
    """Refuse a file that is not there, in words: pyarrow only repeats its name."""
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists fails on names that are too long
        raise SourceError(f"{str(path)!r}", "there is no such file: check the path")


def holds_moments(path: Path) -> bool:
    """Whether a file says that `write_moments` wrote it."""
    try:
        return KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def read_moments(path: Path) -> tuple[dict[str, Moments], Header]:
    """Moments of each logger and what they are about; refuses what does not hold together."""
    refuse_missing(path)
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as reason:
        raise SourceError(f"{str(path)!r}", str(reason).splitlines()[0]) from reason
    raw = (table.schema.metadata or {}).get(KEY)
    if raw is None:
        raise SourceError(f"{str(path)!r}", "it was not written by `Summary.save`")
    try:
        return _decoded(table, json.loads(raw))
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as reason:
        why = str(reason) if isinstance(reason, _DamagedError) else DAMAGED
        raise SourceError(f"{str(path)!r}", why) from reason


class _DamagedError(ValueError):
    """A file that does not hold together, with the sentence that says so."""


def _decoded(table: pa.Table, meta: Header) -> tuple[dict[str, Moments], Header]:
    if meta["format"] != FORMAT:
        raise _DamagedError(
            f"it has format {meta['format']!r}, and this version of poolwise reads {FORMAT}: "
            "read it with the version that wrote it"
        )
    _require(table.schema.equals(SCHEMA))
    _require(table.num_rows > 0)
    terms = tuple(Term(tuple(Factor(**f) for f in factors)) for factors in meta["terms"])
    _require(all(isinstance(f.bound, float) for t in terms for f in t.factors))
    _require(len(set(terms)) == len(terms) > 0)
    found = {line["logger"]: _moments(line, terms, meta) for line in table.to_pylist()}
    _require(len(found) == table.num_rows and None not in found)
    return found, meta


def _moments(line: Mapping[str, Any], terms: tuple[Term, ...], meta: Header) -> Moments:
    size, count = int(meta["scattered"]), int(line["rows"])
    _require(0 <= size <= len(terms) and count > 0 and meta["ddof"] in {0, 1})
    means = _array(line["means"], len(terms))
    scatter = _array(line["scatter"], size * size).reshape(size, size)
    _require(bool(np.array_equal(scatter, scatter.T, equal_nan=True)))
    _require(not bool((np.diag(scatter) < 0).any()))
    tails = {
        terms[place]: _array(values, len(values))
        for place, values in zip(meta["tails"], line["tails"], strict=True)
    }
    _require(all(_falling(tail) and 0 < len(tail) <= count for tail in tails.values()))
    histograms = {
        terms[place]: np.array(values, dtype=np.int64)
        for place, values in zip(meta["histograms"], line["histograms"], strict=True)
    }
    _require(all(_counts(seen, count) for seen in histograms.values()))
    lowest, largest = (_array(line[name], len(terms)) for name in ("lowest", "largest"))
    _require(not bool((lowest > largest).any() or np.isinf([lowest, largest]).any()))
    _require(bool(np.array_equal(np.isnan(lowest), np.isnan(largest))))
    found = Moments(
        terms, count, means, scatter, lowest, largest, meta["ddof"], tails, histograms
    )
    _require(found.bounded)
    return found


def _array(values: list[float | None], size: int) -> FloatArray:
    array = np.array([math.nan if v is None else v for v in values], dtype=np.float64)
    _require(array.shape == (size,))
    return array


def _falling(values: FloatArray) -> bool:
    return bool(np.isfinite(values).all() and (values[1:] <= values[:-1]).all())


def _counts(seen: IntArray, rows: int) -> bool:
    return seen.shape == (BINS,) and bool((seen >= 0).all()) and int(seen.sum()) <= rows


def _require(holds: bool) -> None:  # noqa: FBT001 - a condition
    if not holds:
        raise _DamagedError(DAMAGED)
