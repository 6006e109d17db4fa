"""Fuzz the file of moments: other bytes, other metadata, other numbers.

Other bytes must be refused or change nothing.  Other metadata and numbers come with the
checksum that they should have: they must be refused, or be moments.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path

import harness

harness.instrument(
    "poolwise.engines.saved_files", "poolwise.moments.moments", "poolwise.moments.terms"
)

import atheris
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import poolwise as pw
from poolwise.engines.duckdb import DuckDB
from poolwise.engines.saved import Summary
from poolwise.engines.saved_files import (
    ARRAYS,
    KEY,
    TALLIES,
    checksum,
    holds_moments,
    read_moments,
    write_moments,
)
from poolwise.moments.moments import Moments, pool_moments
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
)

FOLDER = Path(tempfile.mkdtemp(prefix="poolwise-fuzz-"))
PATH, AGAIN = FOLDER / "moments.parquet", FOLDER / "again.parquet"
HEADER = {
    "roles": "0123",
    "targets": {"new": "4567"},
    "mixture": "89ab",
    "manifest": {"a": 10, "b": 10},
}


def _good() -> tuple[bytes, pa.Table, dict[str, Moments]]:
    table = harness.small_log()
    log = pw.Log(table, reward="reward", logger="logger", propensities={"a": "p_a", "b": "p_b"})
    needs = Needs(
        groups=((BALANCED_REWARD, BALANCED_WEIGHT), (WEIGHTED_REWARD,)),
        extremes=(WEIGHT,),
        tails=(WEIGHT,),
    )
    with DuckDB().open(log, {"new": "t"}) as rows:
        write_moments(PATH, rows.moments(needs.bind("new")), HEADER)
    return PATH.read_bytes(), pq.read_table(PATH), read_moments(PATH)[0]


GOOD, TABLE, EXPECTED = _good()
META = json.loads(TABLE.schema.metadata[KEY])


def _flipped(data: atheris.FuzzedDataProvider) -> bytes:
    content = bytearray(GOOD)
    for _ in range(data.ConsumeIntInRange(1, 6)):
        place = data.ConsumeIntInRange(0, len(content) - 1)
        content[place] ^= data.ConsumeIntInRange(1, 255)
    return bytes(content)


def _mutated(data: atheris.FuzzedDataProvider) -> bytes:
    if data.ConsumeBool():
        text = json.dumps(META)
        place = data.ConsumeIntInRange(0, len(text))
        drop = data.ConsumeIntInRange(0, 8)
        raw = text[:place] + data.ConsumeUnicodeNoSurrogates(12) + text[place + drop :]
    else:
        keys = sorted(META)
        chosen = keys[data.ConsumeIntInRange(0, len(keys) - 1)]
        values: tuple[object, ...] = (
            None,
            -1,
            0,
            1,
            1e308,
            "x",
            [],
            {},
            [[]],
            [0],
            [10**9],
            True,
            2**70,
        )
        changed_meta = {**META, chosen: values[data.ConsumeIntInRange(0, len(values) - 1)]}
        raw = json.dumps(changed_meta)
    lines = TABLE.to_pylist()
    if data.ConsumeBool():
        line = lines[data.ConsumeIntInRange(0, len(lines) - 1)]
        name = sorted(line)[data.ConsumeIntInRange(0, len(line) - 1)]
        if name == "rows":
            line[name] = data.ConsumeInt(8)
        elif name == "logger":
            line[name] = None if data.ConsumeBool() else "a"
        elif pa.types.is_list(TABLE.schema.field(name).type.value_type):
            line[name] = [[data.ConsumeIntInRange(-9, 9)]] if data.ConsumeBool() else None
        else:
            size = data.ConsumeIntInRange(0, 9)
            line[name] = [data.ConsumeFloatInRange(-1e9, 1e9) for _ in range(size)]
    changed = pa.Table.from_pylist(lines, schema=TABLE.schema)
    try:
        meta = json.loads(raw)
        raw = json.dumps({**meta, "checksum": checksum(meta, changed.to_pylist())})
    except (AttributeError, TypeError, ValueError, RecursionError):
        pass  # no metadata that could have a checksum
    sink = io.BytesIO()
    pq.write_table(changed.replace_schema_metadata({KEY: raw.encode()}), sink)
    return sink.getvalue()


def one_input(content: bytes) -> None:
    """Read one file; write and read it again if it is accepted."""
    data = atheris.FuzzedDataProvider(content)
    kind = data.ConsumeIntInRange(0, 3)
    flipped = kind == 1
    PATH.write_bytes(
        bytes(data.ConsumeBytes(3000))
        if kind == 0
        else (_flipped(data) if flipped else _mutated(data))
    )
    holds_moments(PATH)
    with contextlib.suppress(pw.PoolwiseError):
        Summary.load(PATH)
    try:
        found, meta = read_moments(PATH)
    except pw.PoolwiseError:
        return
    if flipped:
        _check_same(found)
    # accepted moments can be merged, written and read again, with equal numbers
    both = pool_moments(found.values())
    if both.count != sum(m.count for m in found.values()):
        raise AssertionError("rows were lost")
    write_moments(AGAIN, found, {k: v for k, v in meta.items() if k in HEADER})
    again, _ = read_moments(AGAIN)
    for label, moments in found.items():
        np.testing.assert_array_equal(again[label].means, moments.means)
        np.testing.assert_array_equal(again[label].scatter, moments.scatter)


def _check_same(found: dict[str, Moments]) -> None:
    """Check that a file with other bytes, which is accepted, holds the same numbers."""
    if list(found) != list(EXPECTED):
        raise AssertionError(f"loggers {list(found)}")
    for label, moments in EXPECTED.items():
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(found[label], name), getattr(moments, name))
        for name in TALLIES:
            np.testing.assert_equal(getattr(found[label], name), getattr(moments, name))


if __name__ == "__main__":
    harness.run(one_input)
