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

from tests.recorded.engines import end_session, pairs, values_of
from tests.recorded.make import OTHER, key, load
from tests.recorded.others import OTHERS
from tests.recorded.verbs import answer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RELATIVE, ABSOLUTE = 1e-10, 1e-12
# Patterns of places whose values may differ, each with the reason.  A place is made of the
# log, the engine, the question and the keys, as in "plain/duckdb/evaluate/targets/t/gamma".
CHANGED: dict[str, str] = {
    "*_std_error_without": "computed on request only, whatever the number of rows",
    "others/exact/drawn/warnings": "logger-hurts-balanced needs errors without each log",
    "shifted/*/evaluate/warnings": "logger-hurts-balanced follows from the same numbers",
    "*/comparison/warnings*": "a comparison carries the findings of every target",
    "*/compare/warnings*": "likewise",
    "*/pairs */warnings*": "likewise",
    "*/baseline */warnings*": "likewise",
    "*/plan*/warnings*": "likewise, of its target",
    "wrong/*compar*": "no verdict on targets whose probabilities cannot be right",
    "wrong/*/pairs *": "likewise",
    "wrong/*/baseline *": "likewise",
    "shifted/*compar*": "likewise",
    "shifted/*/pairs *": "likewise",
    "shifted/*/baseline *": "likewise",
    "*clusters/*compar*": "a difference keeps the jackknife's error and degrees of freedom",
    "*clusters/*/pairs *": "likewise",
    "*clusters/*/baseline *": "likewise",
    "given_mixture/*compar*": "compare uses the mixture column, as evaluate does",
    "given_mixture/*/pairs *": "likewise",
    "given_mixture/*/baseline *": "likewise",
    "estimated_mixture/*compar*": "likewise, where it is estimated",
    "estimated_mixture/*/pairs *": "likewise",
    "estimated_mixture/*/baseline *": "likewise",
    "*compar*lower": "limits and p-values come from one max-T distribution, over all pairs",
    "*compar*upper": "likewise",
    "*compar*/adjusted": "likewise, in place of Holm's",
    "*/pairs */differences/*/[235]": "likewise: lower, upper, adjusted",
    "*/baseline */differences/*/[235]": "likewise",
    "policies/*compar*/p_value": "1 where the ranking contradicts the paired estimate",
    "faulty/*/interval *": "a missing reward_range is refused before any row is read",
    "faulty/*/lower *": "likewise",
    "*/numbers/[23]": "limits of the skew-score interval, the default in place of Student's",
    "*/evaluate/targets/*/lower": "likewise",
    "*/evaluate/targets/*/upper": "likewise",
    "*/upper/targets/*/2": "likewise",
    "*/lower auto/targets/*/1": "likewise",
    "*/p_value": "likewise, of a difference",
    "*/differences/*/4": "likewise",
    "single/*": "the own propensity of an only logger is its mixture",
    "tiny/*/verdict": "skewed and stretched limits decide less of few rows",
    "tiny/*/better_than": "likewise",
    "tiny/*/worse_than": "likewise",
    "tiny/*/group": "likewise",
    "tiny/*/differences/*/6": "likewise",
    "others/policy_words/targets/*/[12]": "limits of the skew-score interval",
    "*/interval betting*": "bets are placed on blocks, with weights against a block's mixture",
    "*/lower betting*": "likewise",
    "*/checks/columns/statistic": "of two loggers the columns tie, and so do their signs",
}
# Findings whose thresholds and severities follow the default interval, now the skew-score one.
REVISED = frozenset({"few-effective-rows", "few-rewarded-rows"})
VALUES = load()


def differences(old: Any, new: Any, place: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Return the paths where a recorded value is missing or differs."""
    if any(fnmatchcase(place, pattern) for pattern in CHANGED):
        return
    if place.endswith("/warnings") and isinstance(new, list | tuple):
        old, new = ([f for f in each if f[0] not in REVISED] for each in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            if name in new:
                yield from differences(value, new[name], f"{place}/{name}")
            elif not any(fnmatchcase(f"{place}/{name}", pattern) for pattern in CHANGED):
                yield f"{place}/{name} is missing; it was {value!r}"
    elif isinstance(old, list) and isinstance(new, list | tuple) and len(old) == len(new):
        for k, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{place}/{k}")
    elif not same(old, new):
        yield f"{place} is {new!r}; it was {old!r}"


def same(old: object, new: object) -> bool:
    """Test if two values agree: numbers up to rounding, all else exactly."""
    if not (is_number(old) and is_number(new)):
        return type(old) is type(new) and old == new
    one, other = float(old), float(new)  # type: ignore[arg-type] # numbers, see above
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@pytest.fixture(scope="module", autouse=True)
def _session_ends() -> Iterator[None]:
    yield
    end_session()


@pytest.mark.parametrize(("name", "engine"), pairs())
def test_the_values_of_a_log_are_those_recorded(name: str, engine: str, tmp_path: Path) -> None:
    old, new = VALUES[key(name, engine)], values_of(name, engine, tmp_path)
    if engine != key(name, engine).split("/")[1]:  # which has fewer questions
        old = {question: old[question] for question in new}
    found = list(differences(old, new, f"{name}/{engine}"))
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("name", OTHERS)
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
