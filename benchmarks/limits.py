"""Limits of speed and memory: each compares measurements of one run.

Times depend on the machine, ratios much less; so a limit is a ratio where possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from benchmarks.kept import Key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.kept import Measurement

LARGE = 10**8


class Reading(NamedTuple):
    """One number of a measurement."""

    key: Key
    quantity: Literal["seconds", "megabytes"] = "seconds"

    def of(self, found: Mapping[Key, Measurement]) -> float:
        return float(getattr(found[self.key], self.quantity))


@dataclass(frozen=True)
class Limit:
    """A number, or the ratio of two, that must stay on one side of a bound.

    Attributes:
        name: The promise, as one sentence.
        over: The number, or the numerator of the ratio.
        bound: Upper bound; lower bound if `at_least`.
        under: Denominator of the ratio, if any.
        at_least: True if `bound` is a lower bound.
    """

    name: str
    over: Reading
    bound: float
    under: Reading | None = None
    at_least: bool = False

    @property
    def keys(self) -> tuple[Key, ...]:
        """Measurements that the limit needs."""
        return tuple(reading.key for reading in (self.over, self.under) if reading)

    def value(self, found: Mapping[Key, Measurement]) -> float:
        lower = self.under.of(found) if self.under else 1.0
        return self.over.of(found) / lower

    def holds(self, found: Mapping[Key, Measurement]) -> bool:
        value = self.value(found)
        return value >= self.bound if self.at_least else value <= self.bound


EVALUATE = Key("evaluate", LARGE)
LEARN = Key("learn", 10**5, 1, 2)
LEARN_MORE = Key("learn", 10**6, 1, 2)
LIMITS = (
    Limit(
        "evaluate, times decoding, 1e7 rows and 1 target",
        Reading(Key("evaluate", 10**7)),
        2,
        Reading(Key("decode", 10**7)),
    ),
    Limit(
        "evaluate, times decoding, 1e7 rows and 10 targets",
        Reading(Key("evaluate", 10**7, 10)),
        3.5,
        Reading(Key("decode", 10**7, 10)),
    ),
    Limit(
        "the same five estimates in plain NumPy take this many times as long, 1e7 rows and 10 "
        "targets",
        Reading(Key("numpy", 10**7, 10)),
        5,
        Reading(Key("evaluate", 10**7, 10)),
        at_least=True,
    ),
    Limit(
        "three estimators with 100 bootstrap rounds take this many times as long, 1e6 rows in "
        "memory",
        Reading(Key("obp-memory", 10**6)),
        50,
        Reading(Key("memory", 10**6)),
        at_least=True,
    ),
    Limit(
        "four scikit-learn policies, times their predict_proba calls on all rows, 1e6 rows in "
        "memory for both",
        Reading(Key("policies-memory", 10**6, 1, 3)),
        1.3,
        Reading(Key("predict-plain", 10**6, 1, 3)),
    ),
    Limit("seconds of learning, 1e5 rows, 10 actions, 60 features", Reading(LEARN), 60),
    Limit("megabytes of the same", Reading(LEARN, "megabytes"), 1_000),
    Limit("seconds of learning, 1e6 rows", Reading(LEARN_MORE), 600),
    Limit("megabytes of the same", Reading(LEARN_MORE, "megabytes"), 2_000),
    Limit("seconds for 100 targets at 1e6 rows", Reading(Key("evaluate", 10**6, 100)), 10),
    Limit(
        "time with 100 targets, times that with 1, 1e6 rows",
        Reading(Key("evaluate", 10**6, 100)),
        100,  # linear
        Reading(Key("evaluate", 10**6)),
    ),
    Limit(
        "time with 64 loggers, times that with 5, 1e6 rows",
        Reading(Key("evaluate", 10**6, 1, 64)),
        64 / 5,  # linear
        Reading(Key("evaluate", 10**6)),
    ),
    Limit(
        "the command, its start included, times decoding, 1e8 rows",
        Reading(Key("command", LARGE)),
        1.6,
        Reading(Key("decode", LARGE)),
    ),
    Limit(
        "time at 1e8 rows, times that at 1e6",
        Reading(EVALUATE),
        110,  # linear within a tenth; less is better, as fixed costs are shared by more rows
        Reading(Key("evaluate", 10**6)),
    ),
    Limit(
        "peak memory at 1e8 rows, times that at 1e7",
        Reading(EVALUATE, "megabytes"),
        1.1,
        Reading(Key("evaluate", 10**7), "megabytes"),
    ),
    Limit("megabytes at 1e8 rows", Reading(EVALUATE, "megabytes"), 500),
)


def needed(most: int) -> list[Key]:
    """Return the keys that the limits on logs of at most `most` rows need."""
    judged = [limit for limit in LIMITS if all(key.rows <= most for key in limit.keys)]
    return list(dict.fromkeys(key for limit in judged for key in limit.keys))


def report(found: Mapping[Key, Measurement]) -> tuple[list[str], bool]:
    """Return one line per limit, and True if every measured limit holds."""
    lines, well = [], True
    for limit in LIMITS:
        side = "at least" if limit.at_least else "at most"
        text = f"{side} {limit.bound:g}: {limit.name}"
        if any(key not in found for key in limit.keys):
            lines.append(f"{'not measured':>12}          {text}")
            continue
        holds = limit.holds(found)
        well &= holds
        lines.append(f"{limit.value(found):12.2f}  {'ok' if holds else 'FAIL':<6}  {text}")
    return lines, well
