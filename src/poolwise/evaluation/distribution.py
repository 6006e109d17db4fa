"""Distribution: how often a target's reward is at most a threshold, and its quantiles.

The indicator of a reward up to a threshold is a reward of 0 or 1, whose mean under the target
is estimated as any other, in the same pass.  The intervals of one target hold together for all
thresholds (Bonferroni), and so do those of its quantiles, since both come from one band.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import UsageError
from poolwise.estimators import recommend
from poolwise.evaluation.output import Result, Row
from poolwise.intervals.student import Interval
from poolwise.moments.buckets import jackknife
from poolwise.moments.terms import REWARD
from poolwise.report.tables import Grid, distribution_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.errors import Finding
    from poolwise.evaluation.read import Answers, OpenLog
    from poolwise.evaluation.request import Request
    from poolwise.moments.pool import Pool

MOST_STEPS = 64  # thresholds of quantiles
EVENLY, NEAREST = 16, 0.03  # of them over all logged rewards; least distance of the others
SAMPLED = 100_000  # rows that show which values rewards have


@dataclass(frozen=True)
class Probability:
    """Probability that the reward of a target is at most a threshold.

    Attributes:
        threshold: The threshold.
        value: Estimated probability, which grows with the threshold.
        std_error: Standard error of the estimate.
        interval: Interval that holds for all thresholds of the target together.
    """

    threshold: float
    value: float
    std_error: float
    interval: Interval


@dataclass(frozen=True)
class Quantile:
    """A quantile of the reward of a target.

    Attributes:
        share: Part of the rewards that are at most the quantile.
        value: The least threshold that so many rewards are estimated to be at most.
        interval: Interval that holds for all quantiles of the target together.
    """

    share: float
    value: float
    interval: Interval


@dataclass(frozen=True, repr=False)
class Distribution(Result):
    """Distribution of the reward under each target.

    Attributes:
        probabilities: Probability of a reward up to each threshold, by target.
        quantiles: Quantiles of the reward, by target.
        level: Level of the intervals.
        findings: Always empty: findings are those of the evaluation.
    """

    kind = "distribution"
    probabilities: Mapping[str, tuple[Probability, ...]]
    quantiles: Mapping[str, tuple[Quantile, ...]]
    level: float
    findings: tuple[Finding, ...] = ()

    def __getitem__(self, target: str) -> tuple[Probability, ...]:
        return self.probabilities[target]

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per target and threshold, with unrounded numbers."""
        return [
            {
                "target": target,
                "threshold": p.threshold,
                "probability": p.value,
                "std_error": p.std_error,
                "lower": p.interval.lower,
                "upper": p.interval.upper,
            }
            for target, own in self.probabilities.items()
            for p in own
        ]

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        quantiles = [
            {
                "target": target,
                "share": q.share,
                "value": q.value,
                "lower": q.interval.lower,
                "upper": q.interval.upper,
            }
            for target, own in self.quantiles.items()
            for q in own
        ]
        return {"level": self.level, "thresholds": self.to_dicts(), "quantiles": quantiles}

    def grids(self) -> list[Grid]:
        """Return all tables, in reading order."""
        return distribution_tables(self.to_dict())


@dataclass(frozen=True)
class Wanted:
    """Thresholds and quantiles that a question asks for.

    Attributes:
        thresholds: The thresholds, in order; empty where the rows decide.
        shares: The quantiles.
    """

    thresholds: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.thresholds or self.shares)


@dataclass(frozen=True)
class Steps:
    """Thresholds of a pass.

    Attributes:
        thresholds: The thresholds, in order.
        complete: True if rewards have no other values.
    """

    thresholds: tuple[float, ...] = ()
    complete: bool = False


def want(
    asked: Request, thresholds: Sequence[float] | None, quantiles: Sequence[float] | None
) -> Wanted:
    """Validate thresholds and quantiles of a question."""
    steps = _numbers("thresholds", thresholds)
    shares = _numbers("quantiles", quantiles)
    if any(not 0 < share < 1 for share in shares):
        raise UsageError(f"quantiles must be between 0 and 1, got {list(shares)}")
    if not (steps or shares):
        return Wanted()
    lacks = {
        "a log of clicks": asked.log.clicks is not None,
        "a log with `requests`": asked.log.requests is not None,
        f"interval={asked.interval.name!r}": asked.interval.guaranteed,
        "`model`": bool(asked.extra.predicted_reward),
    }
    for what, lacking in lacks.items():
        if lacking:
            raise UsageError(
                f"{what} has no distribution of single rewards: leave out `thresholds` and "
                "`quantiles`, or ask for them without it"
            )
    return Wanted(steps, shares)


def _numbers(name: str, values: Sequence[float] | None) -> tuple[float, ...]:
    """Return finite numbers in order, each once."""
    try:
        found = sorted({float(value) for value in values or ()})
    except (TypeError, ValueError):
        found = [math.nan]
    if not all(map(math.isfinite, found)) or len(found) > MOST_STEPS:
        raise UsageError(
            f"{name} must be a list of at most {MOST_STEPS} finite numbers, got {values!r}"
        )
    return tuple(found)


def choose_steps(rows: OpenLog, wanted: Wanted) -> Steps:
    """Return the thresholds of a question: for quantiles alone, values of the rewards.

    A sample of the rows shows them.
    """
    if wanted.thresholds or not wanted.shares:
        return Steps(wanted.thresholds)
    values, _ = rows.rows.sample((REWARD,), SAMPLED)
    known = np.unique(values[0])
    whole = values.shape[1] == sum(rows.rows.counts.values())
    if len(known) <= MOST_STEPS:
        return Steps(tuple(known.tolist()), complete=whole)
    steps = np.unique(np.quantile(values[0], _near(wanted.shares), method="inverted_cdf"))
    return Steps(tuple(steps.tolist()))


def _near(shares: Sequence[float]) -> list[float]:
    """Return shares of the logged rewards: some evenly, and more near the quantiles."""
    evenly = (np.arange(EVENLY) + 1) / EVENLY
    each = max(1, (MOST_STEPS - EVENLY) // (2 * len(shares)))
    parts = np.geomspace(NEAREST, 1, each, endpoint=False)
    near = [q + sign * min(q, 1 - q) * parts for q in shares for sign in (-1, 1)]
    every = sorted({float(share) for share in np.concatenate([evenly, shares, *near])})
    return [*every[: MOST_STEPS - 1], 1.0]


def find_distribution(answers: Answers, steps: Steps, wanted: Wanted) -> Distribution:
    """Return the distribution of the reward under each target, from the moments of a pass."""
    probabilities = {t: _find_probabilities(answers, t, steps) for t in answers.request.names}
    known = answers.request.log.reward_range
    quantiles = {
        target: tuple(_find_quantile(share, own, steps, known) for share in wanted.shares)
        for target, own in probabilities.items()
        if own
    }
    return Distribution(probabilities, quantiles, answers.request.level)


def _find_probabilities(answers: Answers, target: str, steps: Steps) -> tuple[Probability, ...]:
    """Return the probabilities of one target; none without an estimate."""
    asked, name = answers.request, recommend(answers.served.estimators)
    if not name:
        return ()
    estimator = answers.served.estimators[name]
    level = 1 - (1 - asked.level) / len(steps.thresholds)
    limits = replace(answers.limits(target), reward_range=(0.0, 1.0))
    found = []
    for pool in answers.steps[target]:
        own: Pool = pool if estimator.by_cell else pool.by_logger
        estimate = jackknife(estimator, own) if asked.clustered else estimator.estimate(own)
        interval, _ = asked.interval.surround(estimate, own, level, limits, asked.sides)
        found.append((estimate.value, estimate.std_error, interval.lower, interval.upper))
    values, errors, lower, upper = np.array(found).T
    lower = np.maximum.accumulate(np.clip(lower, 0.0, 1.0))
    upper = np.minimum.accumulate(np.clip(upper, 0.0, 1.0)[::-1])[::-1]
    values = np.maximum.accumulate(np.clip(values, 0.0, 1.0))
    numbers = zip(
        steps.thresholds, *map(np.ndarray.tolist, (values, errors, lower, upper)), strict=True
    )
    return tuple(
        Probability(
            step, value, error, Interval(min(low, value), max(high, value), asked.level)
        )
        for step, value, error, low, high in numbers
    )


def _find_quantile(
    share: float,
    band: Sequence[Probability],
    steps: Steps,
    reward_range: tuple[float, float] | None,
) -> Quantile:
    """Return a quantile with the limits at which the band passes its share."""
    least, most = reward_range or (-math.inf, math.inf)
    reached = [p.threshold for p in band if p.value >= share]
    short = [k for k, p in enumerate(band) if p.interval.upper < share]
    past = [p.threshold for p in band if p.interval.lower >= share]
    lower = band[short[-1]].threshold if short else least
    if steps.complete:  # no reward is between two thresholds, or outside of them
        lower = band[min(short[-1] + 1 if short else 0, len(band) - 1)].threshold
        most = min(most, band[-1].threshold)
    ends = Interval(lower, past[0] if past else most, band[0].interval.level)
    return Quantile(share, reached[0] if reached else most, ends)
