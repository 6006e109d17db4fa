"""Overlap: statistics of the weights of a target, against each logger and their mixture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolwise.diagnosis.statistics import TailIndex, tail_index
from poolwise.estimators.calibrated import is_uncovered, logger_columns, many
from poolwise.estimators.divergences import pooled_divergences
from poolwise.moments.deviation import deviation
from poolwise.moments.linear import Score, row_variance
from poolwise.moments.tallies import edges
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    OVERLAP,
    OVERLAP_REWARD,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    Term,
    ratio,
    second_moment,
    unsupported_weight,
    weight_moment,
)

if TYPE_CHECKING:
    from poolwise.moments.coverage import Coverage
    from poolwise.moments.deviation import Deviation
    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import Pool

Row = dict[str, object]


@dataclass(frozen=True)
class Bin:
    """One bin of the histogram of weights.

    Attributes:
        lower: Smallest weight in the bin.
        upper: Smallest weight above the bin; 0 for the bin of zeros.
        rows: Number of rows.
    """

    lower: float
    upper: float
    rows: int


@dataclass(frozen=True)
class Overlap:
    """Statistics of one set of weights.

    Attributes:
        divergence: Variance of one weighted reward; infinite without support.
        effective_rows: Effective sample size.
        mean_weight: Mean weight, 1 in expectation; lower if part of the target was not logged.
        largest_weight: Largest weight.
        mean_weight_z: Distance of the mean weight from 1, in standard errors.
        mean_weight_p: Probability of a larger distance if the probabilities are right.
        largest_share: Share of the largest weight in the sum of all weights.
        unsupported: Probability with which the target plays actions that were never logged.
        tail: Tail index of the weights, or None if the engine does not return tails.
        histogram: Non-empty bins of the weights; empty if the engine does not count them.
        decisive_rows: Heavy rows that were set apart; None if none were.
        decisive_share: Share of the target's decisions that rests on them.
    """

    divergence: float
    effective_rows: float
    mean_weight: float
    largest_weight: float
    mean_weight_z: float
    mean_weight_p: float
    largest_share: float
    unsupported: float
    tail: TailIndex | None
    histogram: tuple[Bin, ...] = ()
    decisive_rows: int | None = None
    decisive_share: float = 0.0

    def to_dict(self) -> Row:
        """Return all numbers under flat names."""
        row = {k: v for k, v in vars(self).items() if k not in {"tail", "histogram"}}
        row["histogram"] = [vars(b) for b in self.histogram]
        if self.decisive_rows is None:
            del row["decisive_rows"], row["decisive_share"]
        if self.tail is None:
            return {**row, "tail_index": None}
        return {
            **row,
            "tail_index": self.tail.value,
            "tail_threshold": self.tail.threshold,
            "tail_discrete": self.tail.discrete,
        }


def list_needs(coverage: Coverage, *, shaped: bool = False) -> Needs:
    """Return the moments that the diagnosis needs, with slices if tests are `shaped`."""
    own = Needs(
        means=(REWARD,),
        groups=((WEIGHT,), (WEIGHTED_REWARD,)),
        extremes=(REWARD, WEIGHT),
        tails=(WEIGHT,),
        histograms=(WEIGHT,),
    )
    if not coverage.crossed:
        return own
    loggers = coverage.loggers
    kinds = (second_moment, weight_moment, unsupported_weight)
    # the last ratio follows from the others
    ratios = () if many(loggers) else tuple(map(ratio, loggers[:-1]))
    groups = (
        (BALANCED_REWARD, BALANCED_WEIGHT, *ratios, WEIGHTED_REWARD),
        (OVERLAP, OVERLAP_REWARD),
    )
    means = (*(kind(i) for kind in kinds for i in loggers), OVERLAP_REWARD * REWARD)
    mixed = (BALANCED_WEIGHT,)
    sliced = (OVERLAP, OVERLAP_REWARD) if shaped else ()
    return own | Needs(means, groups, mixed, mixed, mixed, slices=sliced)


def own_overlap(pool: Pool, coverage: Coverage) -> dict[str, Overlap]:
    """Return the statistics of each logger's own weights."""
    if coverage.crossed:
        divergence = pooled_divergences(pool)
    else:
        divergence = {i: pool[i].var(WEIGHTED_REWARD) for i in pool.loggers}
    whole = pool.together
    overlaps = {}
    for i in pool.loggers:
        mean = deviation(Score({WEIGHT: 1.0}).of(i), pool)
        missing = whole.mean(unsupported_weight(i)) if coverage.crossed else 0.0
        overlaps[i] = _measure_overlap(pool[i], WEIGHT, divergence[i], mean, missing)
    return overlaps


def mixed_overlap(pool: Pool) -> Overlap:
    """Return the statistics of the balanced weights.

    The divergence is the mean of those within loggers.  Actions that were never logged leave
    no rows; they show only in a mean weight significantly below 1.
    """
    whole = pool.together
    rows = sum(m.count * m.var(BALANCED_REWARD) for m in pool.values() if m.count > 1)
    mean = deviation(Score({BALANCED_WEIGHT: 1.0}).over(pool), pool)
    missing = max(0.0, 1 - mean.value) if is_uncovered(pool) else 0.0
    bounded, divergence = _is_logger(pool), rows / whole.count
    return _measure_overlap(whole, BALANCED_WEIGHT, divergence, mean, missing, bounded=bounded)


def _is_logger(pool: Pool) -> bool:
    """Test if the target is a logger: its balanced weights are then at most $n / n_i$."""
    whole, weight = pool.together, Score({BALANCED_WEIGHT: 1.0})
    ratios = () if many(pool) else logger_columns(pool).values()
    gaps = [(weight - column).parts for column in ratios]
    return any(all(map(whole.has, g)) and row_variance(whole, g) == 0 for g in gaps)


def _measure_overlap(
    moments: Moments,
    weight: Term,
    divergence: float,
    mean: Deviation,
    unsupported: float,
    *,
    bounded: bool = False,
) -> Overlap:
    total = moments.count * moments.mean(weight)
    return Overlap(
        divergence=divergence,
        effective_rows=moments.effective(weight),
        mean_weight=moments.mean(weight),
        largest_weight=moments.max(weight),
        mean_weight_z=mean.z,
        mean_weight_p=mean.p_value,
        largest_share=moments.max(weight) / total if total > 0 else 0.0,
        unsupported=unsupported,
        tail=_measure_tail(moments, weight, bounded=bounded),
        histogram=_histogram(moments, weight),
    )


def _histogram(moments: Moments, weight: Term) -> tuple[Bin, ...]:
    """Return the non-empty bins of a weight."""
    counts = moments.histograms.get(weight)
    if counts is None:
        return ()
    inner = edges().tolist()[2:]
    lower = [0.0, 0.0, *inner]  # zeros come first; the outermost bins are open
    upper = [0.0, *inner, math.inf]
    return tuple(Bin(lower[k], upper[k], int(counts[k])) for k in counts.nonzero()[0])


def _measure_tail(moments: Moments, weight: Term, *, bounded: bool) -> TailIndex | None:
    """Return the tail index of a weight, if the moments have its tail."""
    if weight not in moments.tails:
        return None
    largest, rows = moments.tails[weight], moments.count
    if len(largest) < rows:
        rows = min(rows, math.floor(((len(largest) - 1) / 3) ** 2))  # for which it suffices
    return tail_index(largest, rows, bounded=bounded)
