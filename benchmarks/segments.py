"""Claims and findings about segments.

Each log has loggers with softmax policies, and a reward that depends on the segment only.  All
policies then have the value of the segment, and every difference is 0: a verdict other than
"undecided" is false, and so is an alarm.  The log goes through `evaluate` with `by`.  In logs
with a defect, one segment has it: the target there plays an action that no logger plays, or
the propensities of one logger there are not those of its policy.

Run: python -m benchmarks.segments [logs of each shape, 300] [shapes]
     python -m benchmarks.segments findings [logs of each shape, 200]
The first prints a line for each shape: the share of logs with a false claim, with a false claim
of segments that differ, and with a value outside its interval.  The second prints two tables:
how often clean logs raise an alarm or a warning of any segment, and how often an alarm names
the segment with a defect, and another one.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import poolwise as pw
from benchmarks.families import softmax

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from poolwise.evaluation.segments import Segments

LOGS, FINDING_LOGS = 300, 200
CHOSEN = 50_000  # seeds from here on were not used to choose thresholds
FAULTY = 7  # the segment that has a defect
ACTIONS, CONTEXTS = 5, 6


@dataclass(frozen=True)
class Shape:
    """How a log is written.

    Attributes:
        segments: Number of segments.
        smallest: Expected rows of the smallest segment.
        largest: Expected rows of the largest one; those between grow by a common factor.
        rate: Probability of a reward.
        tail: Standard deviation of the logarithm of a reward; 0 for clicks.
        own: Whether each row has only the propensity of its own logger.
        loggers: Number of loggers.
        sharp: Factor on the scores of all policies; a larger one makes weights heavier.
        users: Number of clusters, whose rows have a common part of the reward; 0 for none.
        defect: What is wrong in segment `FAULTY`: "unsupported" or "propensities".
    """

    segments: int = 20
    smallest: int = 70
    largest: int = 600
    rate: float = 0.3
    tail: float = 0.0
    own: bool = False
    loggers: int = 3
    sharp: float = 1.0
    users: int = 0
    defect: str = ""

    def log(self, seed: int) -> pw.Log:
        """Return one log."""
        rng = np.random.default_rng([seed, self.segments, self.smallest, self.loggers])
        sizes = np.geomspace(self.smallest, self.largest, self.segments)
        rows = int(sizes.sum())
        segment = rng.choice(self.segments, rows, p=sizes / sizes.sum())
        context = rng.integers(CONTEXTS, size=rows)
        logger = rng.choice(self.loggers, rows, p=_shares(self.loggers))
        policies = _policies(self.loggers, self.sharp)
        faulty = (segment == FAULTY) & bool(self.defect)
        true = policies[logger, context]
        if self.defect == "unsupported":
            true[faulty, 0] = 0.0
        draws = rng.random(rows)[:, None]
        action = (draws > (true / true.sum(axis=1, keepdims=True)).cumsum(axis=1)).sum(axis=1)
        action = np.minimum(action, ACTIONS - 1)
        rate, user = self.rates[segment], rng.integers(max(self.users, 1), size=rows)
        if self.users:
            own = rng.uniform(0.2, 1.8, size=self.users)
            rate = rate * own[user]
        reward = (rng.random(rows) < rate).astype(np.float64)
        if self.tail:
            reward *= np.exp(self.tail * rng.normal(size=rows) - self.tail**2 / 2)
        played = policies[:, context, action]
        if self.defect == "unsupported":
            left = 1 - policies[:-1, context, 0]
            played[:-1] = np.where(faulty, played[:-1] / left, played[:-1])
        if self.defect == "propensities":
            played[0] = np.where(faulty, 1 / ACTIONS, played[0])
        columns: dict[str, Any] = {"segment": segment, "logger": [f"v{k}" for k in logger]}
        columns |= {"r": reward, "t": played[-1], "own": played[logger, np.arange(rows)]}
        columns["user"] = user
        columns |= {f"p{k}": played[k] for k in range(self.loggers)}
        crossed = {f"v{k}": f"p{k}" for k in range(self.loggers)}
        return pw.Log(
            pa.table(columns),
            reward="r",
            logger="logger",
            cluster="user" if self.users else None,
            propensity="own" if self.own else None,
            propensities=None if self.own else crossed,
        )

    @property
    def rates(self) -> NDArray[np.float64]:
        """Value of every policy in each segment."""
        return self.rate * np.linspace(0.7, 1.3, self.segments)


def _shares(loggers: int) -> NDArray[np.float64]:
    """Return the part of each logger in the rows: the first has the most."""
    mass = np.arange(loggers, 0, -1.0)
    shares: NDArray[np.float64] = mass / mass.sum()
    return shares


def _policies(loggers: int, sharp: float) -> NDArray[np.float64]:
    """Return the probabilities of the loggers and, last, of the target."""
    scores = np.random.default_rng(20170813).normal(size=(loggers + 1, CONTEXTS, ACTIONS))
    return np.array([softmax(sharp * each) for each in scores])


@dataclass
class Tally:
    """What was found in logs of one shape; shares of logs."""

    logs: int = 0
    claims: int = 0
    differing: int = 0
    missed: int = 0
    gap_width: float = 0.0

    def __post_init__(self) -> None:
        self.by_segment = Counter[str]()

    def add(self, shape: Shape, segments: Segments) -> None:
        """Count the false claims of one log."""
        gaps = {r.segment: r.difference for r in segments.results if r.difference is not None}
        false = [s for s, d in gaps.items() if d.verdict in {"better", "worse"}]
        self.logs += 1
        self.claims += bool(false)
        self.differing += bool(segments.differing)
        values = shape.rates.tolist()
        shown = {r.segment: r.interval for r in segments.results if r.interval is not None}
        self.missed += any(values[int(s)] not in interval for s, interval in shown.items())
        self.by_segment.update(false)
        widths = [d.interval.upper - d.interval.lower for d in gaps.values()]
        self.gap_width += float(np.median(widths))

    def __str__(self) -> str:
        shares = [self.claims, self.differing, self.missed]
        text = "  ".join(f"{k / self.logs:.3f} ± {_error(k, self.logs):.3f}" for k in shares)
        most = self.by_segment.most_common(3)
        return f"{text}  width {self.gap_width / self.logs:.4g}  {most}"


def _error(count: int, logs: int) -> float:
    """Return the standard error of a share."""
    share = max(count, 1) / logs
    return float(np.sqrt(share * (1 - share) / logs))


def measured(shape: Shape, logs: int, first: int = 0) -> Tally:
    """Return what is claimed in logs of one shape."""
    tally = Tally()
    for seed in range(first, first + logs):
        found = pw.evaluate(shape.log(seed), {"new": "t"}, by="segment", which_logs=False)
        if found.segments is not None:
            tally.add(shape, found.segments)
    return tally


SHAPES = {
    "twenty": Shape(),
    "five": Shape(segments=5),
    "fifty": Shape(segments=50, smallest=40, largest=300),
    "rare": Shape(rate=0.03, smallest=150, largest=1500),
    "amounts": Shape(rate=0.3, tail=1.0),
    "unbalanced": Shape(smallest=30, largest=5_000),
    "own": Shape(own=True),
    "two loggers": Shape(loggers=2),
    "heavy": Shape(sharp=1.5),
    "users": Shape(segments=5, smallest=200, largest=600, users=200),
}


CLEAN = {
    "5 segments": Shape(segments=5, smallest=200, largest=600),
    "20 segments": Shape(smallest=200, largest=600),
    "60 segments": Shape(segments=60, smallest=200, largest=600),
    "60 segments, smaller": Shape(segments=60, smallest=100, largest=300),
    "20 segments, rare clicks": Shape(rate=0.03, smallest=150, largest=1500),
    "20 segments, amounts": Shape(smallest=200, largest=600, tail=1.0),
    "20 segments, own propensities": Shape(smallest=200, largest=600, own=True),
    "20 segments, heavier weights": Shape(smallest=200, largest=600, sharp=1.5),
    "20 segments, users": Shape(smallest=200, largest=600, users=200),
}
SIZES = (250, 500, 1_000, 2_000, 4_000)
DEFECTS = ("unsupported", "propensities")


def find(shape: Shape, seed: int) -> list[tuple[str, str, str]]:
    """Return segment, severity and code of the findings of one log."""
    segments = pw.evaluate(shape.log(seed), {"new": "t"}, by="segment").segments
    results = () if segments is None else segments.results
    return [(r.segment, f.severity, f.code) for r in results for f in r.findings]


def print_clean(logs: int) -> None:
    """Print how often clean logs raise an alarm or a warning of a segment."""
    print("| clean logs | an alarm | a warning | which |\n|---|--:|--:|---|")
    for name, shape in CLEAN.items():
        severities, codes = Counter[str](), Counter[str]()
        for seed in range(CHOSEN, CHOSEN + logs):
            found = find(shape, seed)
            severities.update({severity for _, severity, _ in found})
            codes.update({code for _, _, code in found})
        shares = [f"{severities[s] / logs:.1%}" for s in ("alarm", "warning")]
        which = ", ".join(f"{code} {n / logs:.1%}" for code, n in codes.most_common())
        print(f"| {name} | {' | '.join(shares)} | {which} |", flush=True)


def print_defects(logs: int) -> None:
    """Print how often the segment with a defect is named, and another one."""
    print("| defect in one of 20 segments | rows of it | named | another one |")
    print("|---|--:|--:|--:|")
    for defect in DEFECTS:
        for size in SIZES:
            shape = Shape(smallest=size, largest=size, defect=defect)
            named = others = 0
            for seed in range(CHOSEN, CHOSEN + logs):
                alarms = {s for s, severity, _ in find(shape, seed) if severity == "alarm"}
                named += str(FAULTY) in alarms
                others += bool(alarms - {str(FAULTY)})
            shares = f"{named / logs:.1%} | {others / logs:.1%}"
            print(f"| {defect} | {size:,} | {shares} |", flush=True)


def main() -> None:
    """Measure all shapes and print them."""
    if sys.argv[1:2] == ["findings"]:
        logs = int(sys.argv[2]) if len(sys.argv) > 2 else FINDING_LOGS
        print_clean(logs)
        print_defects(logs // 2)
        return
    logs = int(sys.argv[1]) if len(sys.argv) > 1 else LOGS
    names = sys.argv[2:] or list(SHAPES)
    print("shape: false claims, false claims of differing segments, missed values")
    for name in names:
        print(f"{name:>12}: {measured(SHAPES[name], logs)}", flush=True)


if __name__ == "__main__":
    main()
