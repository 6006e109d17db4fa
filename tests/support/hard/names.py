"""Logs whose loggers, targets or columns have unusual names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.support.hard.case import Case, base, mapped, put, renamed

if TYPE_CHECKING:
    from collections.abc import Callable

TYPED = ("parquet", "frame")  # formats that keep the type of a column
BY_ROW = {"logger": "logger", "reward": "reward", "propensity": "p"}

# by what they replace: names of the loggers "a" and "b"
LABELS = {
    "loggers with spaces": ("first logger", "second  logger"),
    "loggers with spaces around": (" a ", "\u00a0b"),
    "loggers with quotes": ('it\'s "one"', "`two`''"),
    "loggers of unicode": ("логгер-é", "记录器🦆"),
    "loggers that differ in one accent": ("e\u0301", "\u00e9"),
    "loggers written from right to left": ("\u05d0\u05d1", "\u202eabc"),
    "loggers of 10,000 characters": ("x" * 10_000, "x" * 9_999 + "y"),
    "loggers that look like numbers": ("1", "02"),
    "loggers that look like other numbers": ("1e3", "1000"),
    "loggers that look like dates": ("2024-01-01", "2024-02-30"),
    "loggers that differ in case": ("Policy", "policy"),
    "loggers that differ in a space": ("v1", "v1 "),
    "loggers with lines and tabs": ("one\ntwo", "one\ttwo"),
    "loggers that look like code": ("'; DROP TABLE log; --", "<script>alert(1)</script>"),
    "loggers that look like nothing": ("null", "NaN"),
    "loggers that look like patterns": ("%", "_"),
    "loggers with braces": ("{0}", "{logger}"),
    "loggers named like roles": ("reward", "p_0"),
    "loggers with backslashes": ("a\\", "\\n"),
}
# the command line takes spaces around a name away
# CSV guesses types: what looks like numbers or dates is read as such, or as null
IN_PYTHON = {"loggers with spaces around", "loggers that differ in a space"}
GUESSED = {
    "loggers that look like numbers",
    "loggers that look like other numbers",
    "loggers that look like dates",
    "loggers that look like nothing",
}

# by what they replace: names of the columns reward, p, p_a, p_b, t, logger
COLUMNS = {
    "columns named like SQL words": ("select", "from", "where", "group", "order", "table"),
    "columns named like SQL functions": ("sum", "count", "avg", "abs", "exp", "min"),
    "columns with spaces": (
        "the reward",
        " p ",
        "p of a",
        "p of b",
        "a target",
        "who wrote it",
    ),
    "columns with quotes": ('r"w', "p'", "p`a", 'p""b', "t''", "l'ogger"),
    "columns with dots": ("r.w", "p.own", "p.a", "p.b", "t.new", "l.ogger"),
    "columns of unicode": ("награда", "вер", "概率a", "概率b", "ziel🎯", "é"),
    "columns named like our own": ("t_0", "p_1", "propensity", "own", "p_0", "rows"),
    "columns named like others of our own": ("logger", "reward", "t_0", "v_0", "bad", "labels"),
    "columns that look like numbers": ("1", "2.5", "3e4", "-1", "0x10", "1_000"),
    "columns that look like expressions": ("a+b", "1-p", "p*2", "p/2", "t;", "l--"),
    "columns that look like calls": ("f(x)", "count(*)", "a(b", "c)d", "[0]", "{k}"),
    "columns of 1,000 characters": tuple(letter * 1_000 for letter in "rpabtl"),
}
PLAIN = ("reward", "p", "p_a", "p_b", "t", "logger")


def _labelled(name: str) -> Case:
    first, second = LABELS[name]
    names = {"a": first, "b": second}
    table = mapped("logger", lambda label: names[label])
    crossed = {first: "p_a", second: "p_b"}
    forms: tuple[str, ...] = TYPED if name in GUESSED else ("parquet", "csv", "frame")
    return Case(table, propensities=crossed, forms=("frame",) if name in IN_PYTHON else forms)


def _columned(name: str) -> Case:
    names = dict(zip(PLAIN, COLUMNS[name], strict=True))
    return Case(
        renamed(base(), names),
        roles={"logger": names["logger"], "reward": names["reward"], "propensity": names["p"]},
        propensities={"a": names["p_a"], "b": names["p_b"]},
        targets={"new": names["t"]},
    )


def _named(*targets: str) -> Case:
    return Case(base(), targets=dict.fromkeys(targets, "t"))


def _upper() -> Case:
    """Two columns that differ in case only; the one that is meant is spelled as it is."""
    table = base()
    return Case(table.append_column("T", table["p"]), forms=TYPED)


def _typed(
    values: Callable[[str], object], kind: pa.DataType, *, texts: tuple[str, str]
) -> Case:
    """Labels that are not text: they equal their text."""
    table = base()
    labels = [values(label) for label in table["logger"].to_pylist()]
    names = dict(zip("ab", texts, strict=True))
    return Case(
        put(table, "logger", pa.array(labels, type=kind)),
        meaning=put(table, "logger", [names[label] for label in table["logger"].to_pylist()]),
        propensities={texts[0]: "p_a", texts[1]: "p_b"},
        forms=TYPED,
    )


CASES: dict[str, Callable[[], Case]] = {
    **{name: partial(_labelled, name) for name in LABELS},
    **{name: partial(_columned, name) for name in COLUMNS},
    "a logger without a name": lambda: Case(
        mapped("logger", lambda label: "" if label == "b" else label),
        propensities={},
        forms=TYPED,
    ),
    "columns that differ in case": _upper,
    "targets of strange names": lambda: _named('it\'s "x"', "<b>ж🦆</b>", "a"),
    "a target of 10,000 characters": lambda: _named("x" * 10_000),
    "integers as loggers": lambda: _typed(
        lambda label: {"a": 1, "b": 2**62}[label], pa.int64(), texts=("1", str(2**62))
    ),
    "booleans as loggers": lambda: _typed(
        lambda label: label == "b", pa.bool_(), texts=("false", "true")
    ),
    "a logger that the command line cannot spell": lambda: Case(
        mapped("logger", lambda label: f" {label}"),
        refused=True,
        propensities={" a": "p_a", " b": "p_b"},
        forms=("parquet", "csv"),
    ),
    "a logger that nobody listed": lambda: Case(
        mapped("logger", lambda label: "c" if label == "b" else label), refused=True
    ),
    "a listed logger without rows": lambda: Case(
        base(), refused=True, propensities={"a": "p_a", "b": "p_b", "c": "p_b"}
    ),
    "loggers and propensities of each row only": lambda: Case(base(), propensities={}),
    "a column that is not there": lambda: Case(base(), refused=True, targets={"new": "tt"}),
    "a column misspelled in case": lambda: Case(
        base(),
        meaning=base().append_column("REWARD", base()["reward"]),
        roles={**BY_ROW, "reward": "REWARD"},
    ),
    "an expression that does not parse": lambda: Case(
        base(), refused=True, targets={"new": "t +"}, forms=("parquet", "csv", "json")
    ),
    "an expression that asks for another table": lambda: Case(
        base(),
        refused=True,
        targets={"new": "(select max(x) from other)"},
        forms=("parquet", "csv", "json"),
    ),
    "an aggregate as a target": lambda: Case(
        base(), refused=True, targets={"new": "max(t)"}, forms=("parquet", "csv", "json")
    ),
}
