"""Run: put combinations to poolwise one after the other, and keep what each gave."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from poolwise.errors import PoolwiseError
from tests.sweep.answers import answer
from tests.sweep.ask import Wrong, make_question
from tests.sweep.features import shown
from tests.sweep.judge import FarFromTruth, Number, judge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.sweep.features import Combination

AGAIN = 4  # times the rows, where a number was far from its truth
USUAL = {
    "loggers": ("two", "five", "order", "integers"),
    "rewards": ("clicks", "costs", "amounts"),
}


@dataclass(frozen=True)
class Outcome:
    """What a combination gave: numbers, or the reason why there are none."""

    combination: Combination
    kind: str  # "right", "refused" or "wrong"
    reason: str = ""
    numbers: tuple[Number, ...] = ()
    seconds: float = 0.0


def seed_of(combination: Combination) -> int:
    """Return a seed that depends on the combination alone."""
    return crc32(repr(sorted(combination.items())).encode())


def run(combination: Combination) -> Outcome:
    """Ask, and judge; a number far from its truth is drawn again, with more rows."""
    begun = time.perf_counter()
    kind, reason, numbers = _tried(combination, 1)
    if kind == "far":
        kind, reason, numbers = _tried(combination, AGAIN)
        kind = "wrong" if kind == "far" else kind
    return Outcome(combination, kind, reason, tuple(numbers), time.perf_counter() - begun)


def _tried(combination: Combination, scale: int) -> tuple[str, str, list[Number]]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=ResourceWarning)
        try:
            asked = make_question(
                combination, seed_of(combination) + scale, Path(folder), scale
            )
            try:
                return "right", "", judge(asked, answer(asked))
            finally:
                if asked.log.connection is not None:
                    asked.log.connection.close()
        except PoolwiseError as reason:
            return "refused", f"{type(reason).__name__}: {reason}", []
        except FarFromTruth as reason:
            return "far", str(reason), []
        except Wrong as reason:
            return "wrong", str(reason), []
        except Exception as error:  # noqa: BLE001 - anything else is what the sweep looks for
            import traceback

            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            return "wrong", f"{type(error).__name__} at {place}: {str(error)[:300]}", []


@dataclass
class Tally:
    """Outcomes by kind, and the pulls of each kind of number."""

    outcomes: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def count(self, kind: str) -> int:
        return sum(o.kind == kind for o in self.outcomes)

    def reasons(self) -> list[tuple[str, int]]:
        """Return the beginnings of the messages of refusals, the most frequent first."""
        found = Counter(o.reason[:90] for o in self.outcomes if o.kind == "refused")
        return found.most_common()

    def pulls(self) -> dict[str, np.ndarray]:
        """Return one pull for each kind of number and combination, of usual logs only.

        Pulls of one combination depend on each other, so only the first of them counts.
        """
        found: dict[str, list[float]] = {}
        for outcome in self.outcomes:
            usual = all(outcome.combination[name] in values for name, values in USUAL.items())
            if not usual or outcome.combination["target"] in {"partly", "deterministic"}:
                continue
            first: dict[str, float] = {}
            for number in outcome.numbers:
                if number.std_error > 0 and np.isfinite(number.pull):
                    first.setdefault(number.kind, number.pull)
            for kind, pull in first.items():
                found.setdefault(kind, []).append(pull)
        return {kind: np.array(values) for kind, values in sorted(found.items())}

    def off(self, least: int = 30) -> list[str]:
        """Return kinds of numbers whose pulls are not those of right numbers."""
        lines = []
        for kind, pulls in self.pulls().items():
            if len(pulls) < least:
                continue
            mean, spread = float(pulls.mean()), float(pulls.std(ddof=1))
            loose = 5 / np.sqrt(2 * len(pulls))
            if abs(mean) > 5 / np.sqrt(len(pulls)) or not 0.8 - loose < spread < 1.2 + loose:
                lines.append(
                    f"{kind}: {len(pulls)} pulls, mean {mean:.2f}, spread {spread:.2f}"
                )
        return lines


def sweep(combinations: Iterable[Combination], seconds: float = float("inf")) -> Tally:
    """Run combinations until the time is over."""
    tally, until = Tally(), time.monotonic() + seconds
    for combination in combinations:
        tally.add(run(combination))
        if time.monotonic() > until:
            break
    return tally


def line(outcome: Outcome) -> str:
    """Return an outcome as one line."""
    return f"{outcome.kind}: {shown(outcome.combination)}: {outcome.reason}"
