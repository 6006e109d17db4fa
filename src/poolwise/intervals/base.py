"""Base: the kinds of intervals, each with its traits.

`KINDS` is the only list of them: requests, the needs of a pass, options of the command line and
messages derive from it.  The module imports no arrays, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from poolwise.errors import UsageError
from poolwise.intervals.student import student_interval
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    NO_NEEDS,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
)

if TYPE_CHECKING:
    from poolwise.errors import Finding
    from poolwise.intervals.student import Interval, Limits, Sides
    from poolwise.log.log import Log
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.estimate import Estimate
    from poolwise.moments.pool import Pool

IntervalName = Literal["auto", "skew", "student", "betting", "smoothed"]
Clusters = Literal["whole", "ignored", "refused"]
CLUSTERED = "'auto' instead, with `cluster` if rows depend on each other"
REMOVED = {  # and what replaces them
    "bernstein": "'betting' instead",
    "likelihood": "'betting' instead",
    "jackknife": CLUSTERED,
    "bootstrap": CLUSTERED,
}


class IntervalKind:
    """A kind of interval: what it requires of a log, and how it is computed.

    Attributes:
        name: Name that users give.
        clusters: What becomes of a `cluster`: clusters stay "whole", so that errors are those
            between clusters, or they are "ignored" or "refused".
        shaped: True if limits allow for the skewness that slices, powers or buckets show.
        guaranteed: True if the interval bounds the value itself, for any number of rows: the
            same for every estimator, in a known `reward_range`, without segments.
        learning: True if a guaranteed interval holds for policies that learned from the log.
        by_block: True if a guaranteed interval reads the rows in blocks, not their moments.
    """

    name: ClassVar[IntervalName]
    clusters: ClassVar[Clusters] = "whole"
    shaped: ClassVar[bool] = False
    guaranteed: ClassVar[bool] = False
    learning: ClassVar[bool] = False
    by_block: ClassVar[bool] = False

    def needs(self, log: Log, coverage: Coverage) -> Needs:
        """Return what a pass adds up for the interval, besides the needs of estimators.

        Args:
            log: The log.
            coverage: Which probabilities are known.
        """
        del log
        return pair_needs(coverage) if self.guaranteed else NO_NEEDS

    def surround(
        self,
        estimate: Estimate,
        pool: Pool,
        level: float,
        limits: Limits,
        sides: Sides = "two",
    ) -> tuple[Interval, tuple[Finding, ...]]:
        """Return the interval around an estimate, and findings about it: Student's.

        A guaranteed interval replaces it.
        """
        del pool
        return student_interval(estimate, level, limits, sides)

    def bound(
        self, pool: Pool, log: Log, coverage: Coverage, level: float, sides: Sides
    ) -> Interval | None:
        """Return the guaranteed interval that moments give; None if they give none."""
        del pool, log, coverage, level, sides
        return None


class Skew(IntervalKind):
    """The skew-score interval of `intervals.skew`, which is the default."""

    name = "skew"
    shaped = True

    def surround(
        self,
        estimate: Estimate,
        pool: Pool,
        level: float,
        limits: Limits,
        sides: Sides = "two",
    ) -> tuple[Interval, tuple[Finding, ...]]:
        """Return the skew-score interval, and findings about it."""
        from poolwise.intervals.skew import auto_interval

        return auto_interval(estimate, pool, level, limits, sides)


class Student(IntervalKind):
    """Student's interval of `intervals.student`."""

    name = "student"
    clusters = "ignored"


class Betting(IntervalKind):
    """The interval of `intervals.betting`."""

    name = "betting"
    guaranteed = True
    learning = True
    by_block = True


class Smoothed(IntervalKind):
    """The interval of `intervals.smoothed`."""

    name = "smoothed"
    clusters = "refused"
    guaranteed = True

    def needs(self, log: Log, coverage: Coverage) -> Needs:
        """Return weight, weighted reward and the logarithms of smoothed gains."""
        from poolwise.intervals.smoothed import smoothed_needs

        sums = smoothed_needs(known_range(log, self.name), crossed=coverage.crossed)
        return pair_needs(coverage) | sums

    def bound(
        self, pool: Pool, log: Log, coverage: Coverage, level: float, sides: Sides
    ) -> Interval | None:
        """Return the smoothed interval."""
        from poolwise.intervals.smoothed import smoothed_interval

        reward_range = known_range(log, self.name)
        crossed = coverage.crossed
        return smoothed_interval(pool, reward_range, level, sides, crossed=crossed)


KINDS: dict[str, IntervalKind] = {
    kind.name: kind for kind in (Skew(), Student(), Betting(), Smoothed())
}
DEFAULT = KINDS["skew"]  # what "auto" means


def find_kind(name: str) -> IntervalKind:
    """Return the kind of interval with a name; raise UsageError if there is none."""
    if name == "auto":
        return DEFAULT
    if name not in KINDS:
        hint = f": use {REMOVED[name]}" if name in REMOVED else ""
        raise UsageError(
            f"interval must be one of {', '.join(get_args(IntervalName))}, got {name!r}{hint}"
        )
    return KINDS[name]


def check_kind(kind: IntervalKind, log: Log) -> None:
    """Raise UsageError if a log lacks what a kind of interval requires."""
    if kind.guaranteed:
        known_range(log, kind.name)
    if log.cluster is not None and kind.clusters == "refused":
        others = [k.name for k in KINDS.values() if k.guaranteed and k.clusters == "whole"]
        raise UsageError(
            f"interval={kind.name!r} requires independent rows, and rows of a `cluster` are "
            "not: use interval='auto', which leaves out clusters in turn, "
            f"{', '.join(map(repr, others))}, or no `cluster` if rows are independent"
        )


def pair_needs(coverage: Coverage) -> Needs:
    """Return the needs of weight and weighted reward, balanced if every logger scores."""
    crossed = coverage.crossed
    pair = (BALANCED_REWARD, BALANCED_WEIGHT) if crossed else (WEIGHTED_REWARD, WEIGHT)
    return Needs(groups=(pair,))


def known_range(log: Log, name: str) -> tuple[float, float]:
    """Return the range of the rewards; raise UsageError if it is not given."""
    if log.reward_range is None:
        raise UsageError(
            f"interval={name!r} requires the smallest and largest possible reward: "
            "give reward_range=(lower, upper) (--reward-range lower,upper)"
        )
    return log.reward_range


def lack_blocks(kind: IntervalKind) -> UsageError:
    """Return the error that a kind of interval reads rows, of which there are only moments."""
    others = [repr(k.name) for k in KINDS.values() if k.guaranteed and not k.by_block]
    return UsageError(
        f"interval={kind.name!r} reads the rows in blocks, which requires the DuckDB or the "
        f"Spark engine; saved moments and databases have interval={' or '.join(others)}"
    )
