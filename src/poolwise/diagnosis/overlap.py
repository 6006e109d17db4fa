"""Overlap: how well the logs cover a target, in numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from poolwise.diagnosis import agreement
from poolwise.diagnosis.tails import TailIndex, tail_index
from poolwise.estimators.calibrated import UNCOVERED, many
from poolwise.estimators.ips import pooled_divergences
from poolwise.moments.histogram import edges
from poolwise.moments.linear import Score, deviation, shares
from poolwise.moments.moments import Moments, MomentsByLogger, pooled
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
    from collections.abc import Mapping, Sequence

    from poolwise.diagnosis.agreement import Check
    from poolwise.diagnosis.tails import TailIndex
    from poolwise.intervals.student import Interval
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.linear import Deviation

Row = dict[str, object]


@dataclass(frozen=True)
class Bin:
    """Rows whose weights are alike.

    Attributes:
        lower: Smallest weight that belongs here.
        upper: Smallest weight that no longer does; 0 for the weights that are 0.
        rows: How many rows have such a weight.
    """

    lower: float
    upper: float
    rows: int


@dataclass(frozen=True)
class Overlap:
    """How one set of weights covers the target.

    Attributes:
        divergence: Variance of one weighted reward; infinite without support.
        effective_rows: Rows of equal weight that would be worth as much.
        mean_weight: Should be 1; below it, part of the target was not logged.
        largest_weight: Largest single weight.
        mean_weight_z: Distance of the mean weight from 1, in standard errors.
        mean_weight_p: Chance of a larger distance if nothing is wrong.
        largest_share: Part of the sum of all weights that the largest one makes up.
        unsupported: How often the target plays what was never logged.
        tail: How heavy the tail of the weights is; absent where the engine cannot tell.
        histogram: Rows by size of their weight, without empty bins; none where the engine
            does not count them.
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

    def to_dict(self) -> Row:
        """All numbers under flat names."""
        shown = {k: v for k, v in vars(self).items() if k not in {"tail", "histogram"}}
        shown["histogram"] = [vars(b) for b in self.histogram]
        if self.tail is None:
            return {**shown, "tail_index": None}
        tail = self.tail
        shown |= {"tail_index": tail.value, "tail_threshold": tail.threshold}
        return {**shown, "tail_discrete": tail.discrete}


@dataclass(frozen=True)
class Alone:
    """What one logger's rows say by themselves, and how its log compares with others.

    Attributes:
        value: Its own IPS estimate of the target.
        std_error: Standard error of that.
        relative_rows: r, its rows over those of the last logger.
        relative_divergence: v, its divergence over that of the last logger; infinite
            where either cannot play what the target plays.
        best_share: Its share in the weighting of least variance.
    """

    value: float
    std_error: float
    relative_rows: float
    relative_divergence: float
    best_share: float


@dataclass(frozen=True)
class Diagnosis:
    """Whether the logs agree with each other and with the probabilities given for them.

    Attributes:
        alone: What each logger's rows say by themselves.
        gamma: Variance of weighted over that of naive; infinite where it is unknown.
        columns: Mean of each logger's probability over the mixture's; should be 1.
        checks: Tests of agreement, by name.
        typical: Interval of the value of a typical period, if loggers are periods that
            differ (random effects); absent where loggers cannot be compared.
        with_all: Standard error of the estimators that pool, with all loggers.
        without: The same without each logger; empty where it was not asked for.
    """

    alone: Mapping[str, Alone] = field(default_factory=dict)
    gamma: float = math.inf
    columns: Mapping[str, Deviation] = field(default_factory=dict)
    checks: Mapping[str, Check] = field(default_factory=dict)
    typical: Interval | None = None
    with_all: Mapping[str, float] = field(default_factory=dict)
    without: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of_logger(self, logger: str) -> Row:
        """What concerns one logger, under flat names."""
        found: Row = dict(vars(self.alone[logger])) if logger in self.alone else {}
        if logger in self.columns:
            found |= {f"column_{k}": v for k, v in vars(self.columns[logger]).items()}
        for estimator, std_error in self.without.get(logger, {}).items():
            found[f"{estimator}_std_error_without"] = std_error
        return found

    def to_dict(self) -> Row:
        """What concerns all loggers together."""
        found: Row = {"gamma": self.gamma}
        found["checks"] = [{"check": k, **vars(c)} for k, c in self.checks.items()]
        if self.typical is not None:
            found["typical"] = vars(self.typical)
        return found


def shown(loggers: Sequence[str], *, crossed: bool) -> Needs:
    """What the tables show, whoever estimates."""
    own = Needs(
        means=(REWARD,),
        groups=((WEIGHT,), (WEIGHTED_REWARD,)),
        extremes=(REWARD, WEIGHT),
        tails=(WEIGHT,),
        histograms=(WEIGHT,),
    )
    if not crossed:
        return own
    kinds = (second_moment, weight_moment, unsupported_weight)
    # the last one follows from the others
    ratios = () if many(loggers) else tuple(map(ratio, loggers[:-1]))
    groups = (
        (BALANCED_REWARD, BALANCED_WEIGHT, *ratios, WEIGHTED_REWARD),
        (OVERLAP, OVERLAP_REWARD),
    )
    means = tuple(kind(i) for kind in kinds for i in loggers)
    mixed = (BALANCED_WEIGHT,)
    return own | Needs(means, groups, extremes=mixed, tails=mixed, histograms=mixed)


def own_overlap(
    view: MomentsByLogger, buckets: Buckets, *, crossed: bool
) -> dict[str, Overlap]:
    """How each logger's own weights cover the target."""
    known = pooled_divergences(view) if crossed else {}
    together = pooled(view.values())
    found = {}
    for i, m in view.items():
        mean = deviation(Score({WEIGHT: 1.0}).of(i), view, buckets)
        missing = together.mean(unsupported_weight(i)) if crossed else 0.0
        divergence = known[i] if crossed else m.var(WEIGHTED_REWARD)
        found[i] = _overlap(m, WEIGHT, divergence, mean, missing)
    return found


def mixed_overlap(view: MomentsByLogger, buckets: Buckets) -> Overlap:
    """How the balanced weights do; the divergence is the mean of those within loggers.

    Rows cannot show what nobody logged; only a mean weight that is clearly below 1 can.
    """
    together = pooled(view.values())
    rows = sum(m.count * m.var(BALANCED_REWARD) for m in view.values() if m.count > 1)
    mean = deviation(Score({BALANCED_WEIGHT: 1.0}).over(view), view, buckets)
    missing = max(0.0, 1 - mean.value) if mean.z < -UNCOVERED else 0.0
    return _overlap(together, BALANCED_WEIGHT, rows / together.count, mean, missing)


def _overlap(
    moments: Moments, weight: Term, divergence: float, mean: Deviation, unsupported: float
) -> Overlap:
    total = moments.count * moments.mean(weight)
    return Overlap(
        divergence=divergence,
        effective_rows=effective_rows(moments, weight),
        mean_weight=moments.mean(weight),
        largest_weight=moments.max(weight),
        mean_weight_z=mean.z,
        mean_weight_p=mean.p_value,
        largest_share=moments.max(weight) / total if total > 0 else 0.0,
        unsupported=unsupported,
        tail=_tail(moments, weight),
        histogram=_histogram(moments, weight),
    )


def _histogram(moments: Moments, weight: Term) -> tuple[Bin, ...]:
    """Rows by size of a weight, without empty bins."""
    counts = moments.histograms.get(weight)
    if counts is None:
        return ()
    found = edges().tolist()
    lower = [0.0, 0.0, *found[2:]]  # zeros come first; the outermost bins have no end
    upper = [0.0, *found[2:], math.inf]
    return tuple(Bin(lower[k], upper[k], int(counts[k])) for k in counts.nonzero()[0])


def effective_rows(moments: Moments, weight: Term) -> float:
    r"""Rows of equal weight that would be worth as much, $(\sum w)^2 / \sum w^2$."""
    square = moments.mean_square(weight)
    return moments.count * moments.mean(weight) ** 2 / square if square > 0 else 0.0


def _tail(moments: Moments, weight: Term) -> TailIndex | None:
    """Tail index of a weight, from as many of its largest values as were kept."""
    if weight not in moments.tails:
        return None
    largest = moments.tails[weight]
    served = math.floor(((len(largest) - 1) / 3) ** 2)  # rows whose tail is just this long
    complete = len(largest) == moments.count
    return tail_index(largest, moments.count if complete else min(moments.count, served))


def diagnose(
    view: MomentsByLogger, buckets: Buckets, level: float, *, crossed: bool
) -> Diagnosis:
    """What each log says by itself, and whether the logs agree."""
    own = {i: Score({WEIGHTED_REWARD: 1.0}).of(i) for i in view}
    values = {
        i: (mean.value(view), mean.deviation_variance(view, buckets)[0])
        for i, mean in own.items()
    }
    divergence = pooled_divergences(view) if crossed else {}
    known = divergence or {i: m.var(WEIGHTED_REWARD) for i, m in view.items()}
    alone = _alone(view, values, known)
    supported = agreement.comparable(view, values)
    found = agreement.estimates(view, supported)
    typical = agreement.typical(supported, level)
    if not crossed:
        return Diagnosis(alone, gamma(view, known), checks=found, typical=typical)
    columns = agreement.column_means(view, buckets)
    found = {
        **agreement.mean_weight(view, buckets),
        **agreement.columns(columns),
        **agreement.own_columns(view, buckets),
        **agreement.drift(view, buckets),
        **found,
        **agreement.hausman(view, buckets),
    }
    return Diagnosis(alone, gamma(view, known), columns, found, typical)


def _alone(
    view: MomentsByLogger,
    values: Mapping[str, tuple[float, float]],
    divergence: Mapping[str, float],
) -> dict[str, Alone]:
    last = list(view)[-1]
    unit = divergence[last] if 0 < divergence[last] < math.inf else 0.0
    mass = {i: m.count / divergence[i] if divergence[i] else 0.0 for i, m in view.items()}
    best = shares(mass) if sum(mass.values()) > 0 else dict.fromkeys(view, 0.0)
    return {
        i: Alone(
            value=value,
            std_error=math.sqrt(spread),
            relative_rows=view[i].count / view[last].count,
            relative_divergence=divergence[i] / unit if unit else math.inf,
            best_share=best[i],
        )
        for i, (value, spread) in values.items()
    }


def gamma(view: MomentsByLogger, divergence: Mapping[str, float]) -> float:
    r"""Variance of weighted over that of naive; infinite where a divergence is not usable.

    $$\gamma = n^2 \Big/ \Big(\sum_i n_i \sigma_i^2 \sum_i n_i / \sigma_i^2\Big) \le 1$$
    """
    if not all(0 < d < math.inf for d in divergence.values()):
        return math.inf
    total = sum(m.count for m in view.values())
    spread = sum(m.count * divergence[i] for i, m in view.items())
    return total**2 / (spread * sum(m.count / divergence[i] for i, m in view.items()))
