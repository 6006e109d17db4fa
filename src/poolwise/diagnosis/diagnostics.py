"""Diagnostics: whether the weights can bear the answer, and whether the logs agree.

Everything here comes from the same pass as the estimates; `alarms` says what to make
of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from poolwise.diagnosis import checks
from poolwise.diagnosis.deviations import deviation, mean_of, mean_over, variance
from poolwise.diagnosis.evidence import Alone, Bin, Diagnosis, Overlap
from poolwise.estimators.base import shares
from poolwise.estimators.control import UNCOVERED, many
from poolwise.estimators.ips import pooled_divergences
from poolwise.moments import Moments, MomentsByLogger, pooled
from poolwise.statistics.histogram import edges
from poolwise.statistics.tails import TailIndex, tail_index
from poolwise.terms import (
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

    from poolwise.diagnosis.deviations import Deviation
    from poolwise.resample import Buckets


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
        mean = deviation(mean_of(view, i, {WEIGHT: 1.0}), view, buckets)
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
    mean = deviation(mean_over(view, {BALANCED_WEIGHT: 1.0}), view, buckets)
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
    own = {i: mean_of(view, i, {WEIGHTED_REWARD: 1.0}) for i in view}
    values = {i: (own[i].value, variance(own[i], view, buckets)[0]) for i in view}
    divergence = pooled_divergences(view) if crossed else {}
    known = divergence or {i: m.var(WEIGHTED_REWARD) for i, m in view.items()}
    alone = _alone(view, values, known)
    supported = checks.comparable(view, values)
    found = checks.estimates(view, supported)
    typical = checks.typical(supported, level)
    if not crossed:
        return Diagnosis(alone, gamma(view, known), checks=found, typical=typical)
    columns = checks.column_means(view, buckets)
    found = {
        **checks.mean_weight(view, buckets),
        **checks.columns(columns),
        **checks.own_columns(view, buckets),
        **checks.drift(view, buckets),
        **found,
        **checks.hausman(view, buckets),
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
