"""Logs with bad or extreme numbers."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.support.hard.case import FORMS, Case, base, mapped, put, spoil

if TYPE_CHECKING:
    from collections.abc import Callable

NO_JSON = ("parquet", "csv", "frame")  # JSON has no NaN or infinity
LOGS: dict[str, Any] = {
    "options": ("--log-probabilities",),
    "more": {"log_probabilities": True},
}
PROBABILITIES = ("p", "p_a", "p_b", "t")


def _all(change: Callable[[float], float], names: tuple[str, ...] = PROBABILITIES) -> pa.Table:
    table = base()
    for name in names:
        table = mapped(name, change, table)
    return table


def _of_logger(table: pa.Table, label: str, name: str, value: float) -> pa.Table:
    pairs = zip(table["logger"].to_pylist(), table[name].to_pylist(), strict=True)
    return put(table, name, [value if logger == label else old for logger, old in pairs])


def _exchanged(left: str, right: str) -> pa.Table:
    table = base()
    return put(put(table, left, table[right]), right, base()[left])


def _tiny(propensity: float) -> pa.Table:
    """One row that its logger hardly ever plays; the other logger plays it as before."""
    table = spoil("p", propensity, 0)
    label = table["logger"].to_pylist()[0]
    return spoil(f"p_{label}", propensity, 0, table)


def _rewards(change: Callable[[float], float]) -> Case:
    return Case(mapped("reward", change))


def _one_row(*, loggers: int = 1) -> pa.Table:
    return pa.table(
        {
            "logger": ["a", "b"][:loggers],
            "reward": [2.0, 3.0][:loggers],
            "p": [0.5, 0.25][:loggers],
            "p_a": [0.5, 0.75][:loggers],
            "p_b": [0.25, 0.25][:loggers],
            "t": [0.25, 0.5][:loggers],
        }
    )


def _spoiled(column: str, value: object, forms: tuple[str, ...] = FORMS) -> Case:
    return Case(spoil(column, value), refused=True, forms=forms)


ONLY_A = {"a": "p_a"}
NULLS = {
    "a null reward": ("reward", None),
    "a null propensity": ("p", None),
    "a null target": ("t", None),
    "a null logger": ("logger", None),
    "a null under another logger": ("p_b", None),
}
NANS = {
    "a NaN reward": ("reward", math.nan),
    "a NaN propensity": ("p", math.nan),
    "a NaN target": ("t", math.nan),
    "a NaN under another logger": ("p_b", math.nan),
    "an infinite reward": ("reward", math.inf),
    "a reward of minus infinity": ("reward", -math.inf),
    "an infinite propensity": ("p", math.inf),
    "an infinite target": ("t", math.inf),
}
OUTSIDE = {
    "a propensity of 0": ("p", 0.0),
    "a propensity of -0.0": ("p", -0.0),
    "a negative propensity": ("p", -0.5),
    "a propensity just above 1": ("p", 1 + 1e-15),
    "a negative target": ("t", -1e-300),
    "a propensity of the wrong action": ("p", 0.987654),
}

CASES: dict[str, Callable[[], Case]] = {
    **{name: partial(_spoiled, *spoiled) for name, spoiled in NULLS.items()},
    **{name: partial(_spoiled, *spoiled, forms=NO_JSON) for name, spoiled in NANS.items()},
    **{name: partial(_spoiled, *spoiled) for name, spoiled in OUTSIDE.items()},
    "a target of -0.0": lambda: Case(spoil("t", -0.0)),
    "propensities in percent": lambda: Case(
        _all(lambda p: 100 * p, ("p", "p_a", "p_b")), refused=True
    ),
    "targets in percent": lambda: Case(_all(lambda p: 100 * p, ("t",)), refused=True),
    "logarithms nobody told of": lambda: Case(_all(math.log), refused=True),
    "logarithms": lambda: Case(_all(math.log), **LOGS),
    "logarithms as small as -700": lambda: Case(_all(lambda p: math.log(p) - 700), **LOGS),
    "logarithms beyond doubles": lambda: Case(_all(lambda p: math.log(p) - 5000), **LOGS),
    "logarithms to base 10 that are positive": lambda: Case(
        _all(lambda p: -math.log10(p)), refused=True, **LOGS
    ),
    "probabilities called logarithms": lambda: Case(base(), refused=True, **LOGS),
    "a log-propensity of minus infinity": lambda: Case(
        spoil("p", -math.inf, table=_all(math.log)), refused=True, forms=NO_JSON, **LOGS
    ),
    "a target of log-probability minus infinity": lambda: Case(
        spoil("t", -math.inf, table=_all(math.log)), forms=NO_JSON, **LOGS
    ),
    "reward and propensity swapped": lambda: Case(_exchanged("reward", "p"), refused=True),
    "reward and target swapped": lambda: Case(_exchanged("reward", "t"), refused=True),
    "the columns of two loggers swapped": lambda: Case(_exchanged("p_a", "p_b"), refused=True),
    "swapped and without logged propensities": lambda: Case(
        _exchanged("p_a", "p_b"), roles={"logger": "logger", "reward": "reward"}
    ),
    "one minus the propensity": lambda: Case(_all(lambda p: 1 - p, ("p",)), refused=True),
    "a propensity within the tolerance": lambda: Case(_all(lambda p: p * (1 - 1e-7), ("p",))),
    "an action that another logger never plays": lambda: Case(
        _of_logger(base(), "a", "p_b", 0.0)
    ),
    "a target of 0 everywhere": lambda: Case(_all(lambda _: 0.0, ("t",)), refused=True),
    "a target of 0 in one log": lambda: Case(_of_logger(base(), "a", "t", 0.0)),
    "a target of 1e-300 everywhere": lambda: Case(_all(lambda _: 1e-300, ("t",))),
    "every probability 1": lambda: Case(_all(lambda _: 1.0)),
    "weights of 1e300": lambda: Case(_tiny(1e-300), refused=True),
    "weights beyond doubles": lambda: Case(_tiny(5e-324), refused=True),
    "weights of 1e12": lambda: Case(_tiny(1e-12), to=1e-6),
    "rewards of 0": lambda: _rewards(lambda _: 0.0),
    "rewards that are all alike": lambda: _rewards(lambda _: 2.5),
    "negative rewards": lambda: _rewards(lambda r: -abs(r)),
    "rewards of 1e-300": lambda: _rewards(lambda r: 1e-300 * r),
    "rewards of 1e-150": lambda: _rewards(lambda r: 1e-150 * r),
    "rewards below the normal doubles": lambda: _rewards(lambda r: math.copysign(5e-324, r)),
    "rewards of 1e300": lambda: Case(mapped("reward", lambda r: 1e300 * r), refused=True),
    "the largest doubles as rewards": lambda: Case(
        mapped("reward", lambda r: math.copysign(1.7976931348623157e308, r)),
        refused=True,
    ),
    "rewards of 1e100": lambda: _rewards(lambda r: 1e100 * r),
    "rewards far from 0": lambda: Case(mapped("reward", lambda r: r + 1e8), to=1e-7),
    "one row": lambda: Case(_one_row(), propensities=ONLY_A),
    "one row of each logger": lambda: Case(_one_row(loggers=2)),
    "one logger": lambda: Case(base(loggers=("a",)), propensities=ONLY_A),
    "one logger without crossed propensities": lambda: Case(
        base(loggers=("a",)), propensities={}
    ),
    "every row twice": lambda: Case(pa.concat_tables([base(), base()])),
    "one row a thousand times": lambda: Case(pa.concat_tables([_one_row(loggers=2)] * 1000)),
    "a logger of one row among many": lambda: Case(
        pa.concat_tables([base(loggers=("a", "b")), _one_row()])
    ),
    "a bad row that is left out": lambda: Case(
        spoil("t", 7.0),
        options=("--on-fault", "drop"),
        more={"on_fault": "drop"},
        finds=("dropped-rows",),
    ),
    "nothing but bad rows to leave out": lambda: Case(
        mapped("t", lambda _: 7.0),
        refused=True,
        options=("--on-fault", "drop"),
        more={"on_fault": "drop"},
    ),
    "a NaN in a column that nobody reads": lambda: Case(
        base().append_column("other", pa.array([math.nan] * len(base()))), forms=NO_JSON
    ),
}
