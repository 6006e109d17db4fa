"""Logs whose columns have other types than doubles and text, or another shape."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tests.support.hard.case import Case, base, mapped, put, spoil

if TYPE_CHECKING:
    from collections.abc import Callable

TYPED = ("parquet", "frame")
FILES = ("parquet", "csv", "json")
NUMBERS = ("reward", "p", "p_a", "p_b", "t")


def _cast(kind: pa.DataType, names: tuple[str, ...] = NUMBERS) -> Case:
    """Numbers of another type; their meaning is their value as doubles."""
    table = base()
    for name in names:
        table = put(table, name, table[name].cast(kind, safe=False))
    return Case(table, meaning=_doubles(table), forms=TYPED)


def _doubles(table: pa.Table) -> pa.Table:
    for name in NUMBERS:
        table = put(table, name, [float(value) for value in table[name].to_pylist()])
    return table


def _decimals(digits: int) -> Case:
    """Exact decimals: rounded so that they mean the same in every format."""
    table = base()
    for name in NUMBERS:
        exact = [Decimal(f"{value:.{digits}f}") for value in table[name].to_pylist()]
        table = put(table, name, pa.array(exact, type=pa.decimal128(38, digits)))
    return Case(table, meaning=_doubles(table), forms=("parquet", "csv", "frame"))


def _texts(change: Callable[[float], str], *, refused: bool = False) -> Case:
    table = mapped("reward", change)
    meaning = (
        None
        if refused
        else put(table, "reward", [float(x) for x in table["reward"].to_pylist()])
    )
    return Case(table, refused=refused, meaning=meaning)


def _rewards(
    values: pa.Array, *, refused: bool = False, forms: tuple[str, ...] = TYPED
) -> Case:
    table = put(base(), "reward", values)
    meaning = None if refused else _doubles(table)
    return Case(table, refused=refused, meaning=meaning, forms=forms)


def _encoded() -> Case:
    table = base()
    for name in ("logger", *NUMBERS):
        table = put(table, name, table[name].combine_chunks().dictionary_encode())
    return Case(table, meaning=base(), forms=TYPED)


def _wide() -> Case:
    table = base()
    for place in range(300):
        table = table.append_column(f"other {place}", table["reward"])
    return Case(table, meaning=base(), forms=("parquet", "csv"))


def _clustered() -> Case:
    """Ten rows of each hour of a day, in a zone that had one hour twice that day."""
    table = base()
    start = dt.datetime(2024, 10, 26, 20, tzinfo=dt.UTC)
    hours = [start + dt.timedelta(hours=place // 10) for place in range(len(table))]
    kind = pa.timestamp("us", tz="Europe/Berlin")
    return Case(table.append_column("hour", pa.array(hours, type=kind)), meaning=table)


N = len(base())
DAY = dt.datetime(2024, 3, 31, 2, 30, tzinfo=dt.UTC)
BIG = [2**53 + place for place in range(N)]

CASES: dict[str, Callable[[], Case]] = {
    "single precision": lambda: _cast(pa.float32()),
    "half precision": lambda: replace(
        _cast(pa.float16(), ("reward", "t")), forms=("parquet", "frame")
    ),
    "decimals of 6 digits": lambda: _decimals(6),
    "decimals of 30 digits": lambda: _decimals(30),
    "integers as rewards": lambda: _rewards(
        pa.array([k % 3 for k in range(N)]),
        forms=(
            "parquet",
            "csv",
            "json",
            "frame",
        ),
    ),
    "small unsigned integers as rewards": lambda: _rewards(
        pa.array([k % 3 for k in range(N)], type=pa.uint8())
    ),
    "integers beyond doubles as rewards": lambda: _rewards(
        pa.array(BIG),
        forms=(
            "parquet",
            "csv",
            "json",
            "frame",
        ),
    ),
    "unsigned integers of 64 bits as rewards": lambda: _rewards(
        pa.array([2**64 - 1 - k for k in range(N)], type=pa.uint64())
    ),
    "integers of 38 digits as rewards": lambda: _rewards(
        pa.array([Decimal(10**37 + k) for k in range(N)], type=pa.decimal128(38, 0))
    ),
    "integers of 300 digits in text": lambda: _texts(lambda r: str(int(abs(r) * 10) * 10**60)),
    "booleans as rewards": lambda: _rewards(
        pa.array([k % 3 == 0 for k in range(N)]),
        forms=(
            "parquet",
            "csv",
            "json",
            "frame",
        ),
    ),
    "a propensity that is the integer 1": lambda: Case(
        put(put(base(), "p", [1] * N), "p_a", [1] * N),
        propensities={},
        meaning=put(put(base(), "p", [1.0] * N), "p_a", [1.0] * N),
    ),
    "numbers as text": lambda: _texts(repr),
    "numbers as text with spaces": lambda: _texts(lambda r: f" {r!r} "),
    "numbers with decimal commas": lambda: _texts(
        lambda r: f"{r:.3f}".replace(".", ","), refused=True
    ),
    "numbers with units": lambda: _texts(lambda r: f"{r:.2f} EUR", refused=True),
    "percent signs": lambda: Case(mapped("p", lambda p: f"{100 * p:.1f}%"), refused=True),
    "one word among numbers": lambda: Case(
        put(base(), "reward", [*map(repr, base()["reward"].to_pylist()[:-1]), "missing"]),
        refused=True,
    ),
    "the words nan and inf": lambda: Case(
        put(base(), "reward", [*map(repr, base()["reward"].to_pylist()[:-2]), "nan", "inf"]),
        refused=True,
    ),
    "dates as rewards": lambda: _rewards(
        pa.array([DAY.date()] * N), refused=True, forms=("parquet", "csv", "frame")
    ),
    "times with zones as rewards": lambda: _rewards(
        pa.array([DAY] * N, type=pa.timestamp("us", tz="America/New_York")), refused=True
    ),
    "durations as rewards": lambda: _rewards(
        pa.array([dt.timedelta(hours=1)] * N), refused=True, forms=("frame",)
    ),
    "lists as rewards": lambda: _rewards(pa.array([[1.0]] * N), refused=True),
    "structs as rewards": lambda: _rewards(pa.array([{"x": 1.0}] * N), refused=True),
    "bytes as rewards": lambda: _rewards(pa.array([b"\x00\xff"] * N), refused=True),
    "nothing but nulls as rewards": lambda: _rewards(
        pa.nulls(N), refused=True, forms=("parquet", "csv", "json", "frame")
    ),
    "lists as loggers": lambda: Case(
        put(base(), "logger", [["a"]] * N), refused=True, forms=TYPED
    ),
    "dictionary-encoded columns": _encoded,
    "large text as loggers": lambda: Case(
        put(base(), "logger", base()["logger"].cast(pa.large_string())), forms=TYPED
    ),
    "viewed text as loggers": lambda: Case(
        put(base(), "logger", base()["logger"].cast(pa.string_view())),
        forms=("frame",),
        meaning=base(),
    ),
    "bytes as loggers": lambda: Case(
        put(base(), "logger", base()["logger"].cast(pa.binary())), meaning=base(), forms=TYPED
    ),
    "three hundred other columns": _wide,
    "times with zones beside": _clustered,
    "no rows": lambda: Case(base().slice(0, 0), refused=True, forms=("parquet", "frame")),
    "names of columns and no rows": lambda: Case(
        base().slice(0, 0), refused=True, forms=("csv",)
    ),
    "no rows to leave out": lambda: Case(
        base().slice(0, 0),
        refused=True,
        options=("--on-fault", "drop"),
        more={"on_fault": "drop"},
        forms=("parquet", "csv", "frame"),
    ),
    "rewards in every third row": lambda: Case(
        put(base(), "reward", [1.0 if k % 3 == 0 else None for k in range(N)]),
        refused=True,
    ),
    "infinities hidden in single precision": lambda: Case(
        put(base(), "reward", pa.array(np.full(N, np.inf, dtype=np.float32))),
        refused=True,
        forms=TYPED,
    ),
    "a null in an integer column": lambda: Case(
        put(base(), "reward", pa.array([None, *range(N - 1)], type=pa.int32())),
        refused=True,
        forms=("parquet", "csv", "json", "frame"),
    ),
    "a null boolean": lambda: Case(
        put(base(), "reward", pa.array([None, *[True] * (N - 1)])),
        refused=True,
        forms=("parquet", "csv", "json", "frame"),
    ),
    "a target in exact thirds": lambda: Case(spoil("t", 1 / 3)),
}
