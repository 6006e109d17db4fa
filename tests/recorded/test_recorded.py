"""Values of everything public equal the recorded ones.

A deliberate change is named in `CHANGED` with its reason; or the values are recorded anew,
see `tests.recorded.make`, where the commit says why.
"""

from __future__ import annotations

import math
import numbers
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest

from tests.recorded.engines import pairs, values_of
from tests.recorded.make import OTHER, key, load
from tests.recorded.others import OTHERS
from tests.recorded.verbs import answer

if TYPE_CHECKING:
    from collections.abc import Iterator

RELATIVE = 1e-10
# Patterns of places whose values an optimiser finds.  It stops where its own tolerance is met,
# and the last digits depend on the processor's instructions.
FITTED = {"others/mixtures/*estimated*": 1e-6, "others/learn/*": 1e-3}
# Patterns of places whose values may differ, each with the reason.  A place is made of the
# log, the engine, the question and the keys, as in "plain/duckdb/evaluate/targets/t/gamma".
CHANGED: dict[str, str] = {}
VALUES = load()
# Questions that take seconds of computing.
SLOW = {
    *("estimated_mixture", "faulty", "several"),
    *("clicks", "learn", "lists", "metrics", "mixtures", "other periods", "segments"),
}


def differences(old: Any, new: Any, place: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Return the paths where a recorded value is missing or differs."""
    if any(fnmatchcase(place, pattern) for pattern in CHANGED):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            if name in new:
                yield from differences(value, new[name], f"{place}/{name}")
            elif not any(fnmatchcase(f"{place}/{name}", pattern) for pattern in CHANGED):
                yield f"{place}/{name} is missing; it was {value!r}"
    elif isinstance(old, list) and isinstance(new, list | tuple) and len(old) == len(new):
        for k, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{place}/{k}")
    elif not same(old, new, tolerance(place)):
        yield f"{place} is {new!r}; it was {old!r}"


def tolerance(place: str) -> float:
    """Return the relative error that the numbers of a place may have."""
    return next((t for p, t in FITTED.items() if fnmatchcase(place, p)), RELATIVE)


def same(old: object, new: object, relative: float = RELATIVE) -> bool:
    """Test if two values agree: numbers up to rounding, all else exactly."""
    if not (is_number(old) and is_number(new)):
        return type(old) is type(new) and old == new
    one, other = float(old), float(new)  # type: ignore[arg-type] # numbers, see above
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=relative, abs_tol=relative * 1e-2)


def is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def marks(engine: str, *, slow: bool) -> list[pytest.MarkDecorator]:
    """`make quick` runs what DuckDB answers in a moment."""
    kinds = {"duckdb": [], "batches": [pytest.mark.slow]}.get(engine, [pytest.mark.system])
    return [*kinds, *[pytest.mark.slow] * slow]


@pytest.mark.parametrize(
    ("name", "engine"),
    [pytest.param(*pair, marks=marks(pair[1], slow=pair[0] in SLOW)) for pair in pairs()],
)
def test_the_values_of_a_log_are_those_recorded(name: str, engine: str) -> None:
    old, new = VALUES[key(name, engine)], values_of(name, engine)
    if engine != key(name, engine).split("/")[1]:  # which has fewer questions
        old = {question: old[question] for question in new}
    found = list(differences(old, new, f"{name}/{engine}"))
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks("duckdb", slow=name in SLOW)) for name in OTHERS]
)
def test_other_values_are_those_recorded(name: str) -> None:
    old, new = VALUES[f"{OTHER}/{name}"][""], answer(OTHERS[name])
    found = list(differences(old, new, f"{OTHER}/{name}"))
    assert not found, "\n".join(found[:20])


def test_nothing_was_recorded_that_is_no_longer_asked() -> None:
    asked = {key(*pair) for pair in pairs()} | {f"{OTHER}/{name}" for name in OTHERS}
    assert set(VALUES) == asked


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-11, "b": 2}, 0),
        ({"a": 1.0}, {"a": 1.0 + 1e-9}, 1),
        ({"a": 1.0}, {}, 1),
        ({"a": [1, "x"]}, {"a": [1, "y"]}, 1),
        ({"a": [1, 2]}, {"a": [1]}, 1),
        ({"a": math.inf, "b": math.nan}, {"a": math.inf, "b": math.nan}, 0),
        ({"a": math.inf}, {"a": 1.0}, 1),
        ({"a": None}, {"a": 0.0}, 1),
        ({"a": True}, {"a": 1}, 1),
    ],
)
def test_a_difference_is_seen(old: object, new: object, count: int) -> None:
    assert len(list(differences(old, new, ""))) == count


def test_a_change_with_a_reason_is_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHANGED, "log/*/gamma", "a reason")
    old = {"duckdb": {"gamma": 1.0, "value": 2.0}}
    assert list(differences(old, {"duckdb": {"value": 2.0}}, "log")) == []
    assert list(differences(old, {"duckdb": {"gamma": 3.0, "value": 2.0}}, "log")) == []
    assert len(list(differences(old, {"duckdb": {"gamma": 1.0}}, "log"))) == 1
