"""Comparison: which target is better, and which differences are real.

Estimates from the same rows share their luck, so a difference is far surer than its
two ends; and the best of many estimates is also the luckiest.  Differences are
therefore estimated in pairs, from one pass, and their intervals hold together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from poolwise.diagnosis.trained import refuse_estimated, trained_notes
from poolwise.engines.choose import as_engine
from poolwise.errors import Finding, UsageError, nearest
from poolwise.estimators import BY_NAME
from poolwise.evaluation.contrasts import Candidates, Comparable, united, weight_of
from poolwise.evaluation.ranking import Comparison, Difference, Ranked, Verdict
from poolwise.evaluation.read import named_targets, refuse_unlogged
from poolwise.intervals.simultaneous import holm
from poolwise.intervals.student import Interval, Limits, check_level, default_interval
from poolwise.moments.buckets import BUCKETS
from poolwise.moments.terms import Needs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.engines.base import Rows
    from poolwise.engines.choose import EngineLike
    from poolwise.evaluation.contrasts import Spread
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.estimate import Estimate

SEED = 20170813  # the same rows give the same intervals
Reward = tuple[float, float] | None  # smallest and largest possible reward


def compare(
    log: Log,
    targets: Mapping[str, PolicyLike],
    *,
    baseline: str | None = None,
    estimator: str | Comparable = "calibrated",
    level: float = 0.95,
    engine: EngineLike = None,
) -> Comparison:
    """Rank targets, and say which differences between them are real.

    Intervals of the estimates cover all targets together, those of the differences from
    the baseline cover all of these together, and so do those of all pairs, on which the
    groups of the ranking rest.  A difference is estimated in pairs, for which the
    calibrated estimator regresses it on the columns of both targets: it may miss the
    difference of the two estimates by a small part of their errors.

    Args:
        log: The rows and what their columns mean.
        targets: Probability of the logged action under each new policy, by name.
        baseline: Name of a target, or label of a logger: then its policy joins the
            targets. Without one, targets are compared with each other only.
        estimator: calibrated, balanced, naive or self-normalised.
        level: Level of each family of intervals.
        engine: What reads the rows: "duckdb" (the default, in this process), "spark", a
            SparkSession, or an object such as ``DuckDB(threads=4)``.
    """
    check_level(level)
    chosen = _comparable(estimator)
    named = _with_baseline(log, named_targets(targets), baseline)
    if len(named) < 2:
        raise UsageError("a comparison needs two targets at least, or a target and a baseline")
    refuse_estimated(log, "compare")
    with as_engine(engine, log).open(log, named) as rows:
        candidates, clusters = _read(rows, log, chosen, tuple(named))
        dropped = rows.check() if log.on_fault == "drop" else ()
    refuse_unlogged(candidates.views, weight_of(crossed=candidates.crossed))
    found = Compared(candidates, clusters, level, log.reward_range)
    noted = [Finding("dropped-rows", f"Left out: {fault}.") for fault in dropped]
    noted += trained_notes(log, tuple(candidates.moments))
    return found.comparison(baseline or "", tuple(noted))


def _comparable(wanted: str | Comparable) -> Comparable:
    if isinstance(wanted, str) and wanted not in BY_NAME:
        close = nearest(wanted, BY_NAME)
        hint = f"; did you mean {close!r}?" if close else ""
        raise UsageError(f"no estimator {wanted!r}{hint}")
    chosen = BY_NAME[wanted]() if isinstance(wanted, str) else wanted
    if not isinstance(chosen, Comparable):
        raise UsageError(
            f"{chosen.name} does not give differences in pairs: use calibrated, balanced, "
            "naive or self-normalised"
        )
    return chosen


def _with_baseline(
    log: Log, named: dict[str, PolicyLike], baseline: str | None
) -> dict[str, PolicyLike]:
    """The targets, and the baseline's own policy where it is a logger."""
    if baseline is None or baseline in named:
        return named
    loggers = {str(label): policy for label, policy in (log.propensities or {}).items()}
    policy = loggers.get(baseline)
    if policy is not None and log.crossed:
        return {**named, baseline: policy}
    if baseline in loggers or not log.crossed:
        raise UsageError(
            f"the baseline {baseline!r} is no target; as a logger it needs its probability of "
            "every row: give `propensities` (--propensities) for every logger"
        )
    close = nearest(baseline, [*named, *loggers])
    hint = f"; did you mean {close!r}?" if close else ""
    raise UsageError(f"the baseline {baseline!r} is neither a target nor a logger{hint}")


def _read(
    rows: Rows, log: Log, estimator: Comparable, names: tuple[str, ...]
) -> tuple[Candidates, Buckets]:
    """Moments of all targets together, and of clusters where the log names them."""
    needs = estimator.needs(tuple(rows.counts), crossed=log.crossed)
    wanted = united(needs, names, crossed=log.crossed)
    moments = rows.moments(wanted)
    clusters: Buckets = ()
    if log.cluster is not None:
        (clusters,) = rows.bucketed([Needs(means=wanted.terms)], BUCKETS)
    return Candidates(estimator, needs, moments, names, log.crossed), clusters


@dataclass(frozen=True, eq=False)
class Compared:
    """Candidates, and how their errors are to be read."""

    candidates: Candidates
    clusters: Buckets
    level: float
    reward_range: Reward

    def comparison(self, baseline: str, noted: tuple[Finding, ...]) -> Comparison:
        """All families of intervals; an empty baseline is none."""
        estimates = self.candidates.estimates
        firsts, place = self.candidates.firsts, {n: k for k, n in enumerate(estimates)}
        # targets that play alike stand side by side, however their last digits fell
        order = sorted(
            estimates, key=lambda n: (-estimates[firsts[n]].value, place[firsts[n]], place[n])
        )
        pairs = self._differences(list(combinations(order, 2)))
        others = [(name, baseline) for name in order if baseline and name != baseline]
        ranking, unsure = self._ranking(order, pairs)
        return Comparison(
            ranking=ranking,
            differences=self._differences(others),
            pairs=pairs,
            baseline=baseline,
            estimator=self.candidates.estimator.name,
            level=self.level,
            rows={i: m.count for i, m in self.candidates.moments.items()},
            findings=(*noted, *self._findings(), *unsure),
        )

    def _differences(self, pairs: list[tuple[str, str]]) -> tuple[Difference, ...]:
        """Differences of a family of pairs, whose intervals hold together.

        Targets that play alike are one target: they count once in the family, and what is
        between them is 0 for certain.
        """
        firsts = self.candidates.firsts
        alike = [(firsts[left], firsts[right]) for left, right in pairs]
        family = list(dict.fromkeys(pair for pair in alike if pair[0] != pair[1]))
        found = dict(zip(family, self._family(family), strict=True))
        tie = Difference(
            "", "", 0.0, 0.0, Interval(0.0, 0.0, self.level), 1.0, 1.0, "identical"
        )
        return tuple(
            replace(found.get(one, tie), target=target, other=other)
            for one, (target, other) in zip(alike, pairs, strict=True)
        )

    def _family(self, pairs: list[tuple[str, str]]) -> list[Difference]:
        """Differences of pairs of which no two are the same."""
        if not pairs:
            return []
        contrasts = [self.candidates.paired(*pair) for pair in pairs]
        spread = self.candidates.spread(contrasts, self.clusters)
        halves = spread.half_widths(spread.critical(self.level, np.random.default_rng(SEED)))
        p_values = spread.p_values()
        adjusted = holm(p_values)
        return [
            self._difference(pair, spread, k, (halves[k], p_values[k], adjusted[k]))
            for k, pair in enumerate(pairs)
        ]

    def _difference(
        self, pair: tuple[str, str], spread: Spread, place: int, found: tuple[float, ...]
    ) -> Difference:
        half, p_value, adjusted = map(float, found)
        value, error = float(spread.values[place]), float(spread.errors[place])
        if 0 < error < math.inf:
            lower, upper = value - half, value + half
        else:  # no spread: only what is possible can be said
            lower, upper = _possible(self.reward_range)
        verdict: Verdict = "better" if lower > 0 else "worse" if upper < 0 else "undecided"
        interval = Interval(lower, upper, self.level)
        return Difference(*pair, value, error, interval, p_value, adjusted, verdict)

    def _ranking(
        self, order: list[str], pairs: tuple[Difference, ...]
    ) -> tuple[tuple[Ranked, ...], list[Finding]]:
        beaten: dict[str, list[str]] = {name: [] for name in order}
        better: dict[str, list[str]] = {name: [] for name in order}
        for pair in pairs:
            if pair.verdict in {"better", "worse"}:
                first, last = (pair.target, pair.other)
                winner, loser = (first, last) if pair.verdict == "better" else (last, first)
                better[winner].append(loser)
                beaten[loser].append(winner)
        group: dict[str, int] = {}
        for name in order:
            group[name] = 1 + max((group.get(other, 0) for other in beaten[name]), default=0)
        estimates, intervals, unsure = self._estimated(order)
        ranking = tuple(
            Ranked(
                target=name,
                estimate=estimates[name],
                interval=intervals[name],
                group=group[name],
                better_than=tuple(better[name]),
                worse_than=tuple(beaten[name]),
            )
            for name in order
        )
        return ranking, unsure

    def _estimated(
        self, order: list[str]
    ) -> tuple[dict[str, Estimate], dict[str, Interval], list[Finding]]:
        """Estimates, and intervals that cover all targets together."""
        firsts = self.candidates.firsts
        place = {first: k for k, first in enumerate(dict.fromkeys(firsts[n] for n in order))}
        singles = [self.candidates.single(first) for first in place]
        spread = self.candidates.spread(singles, self.clusters)
        halves = spread.half_widths(spread.critical(self.level, np.random.default_rng(SEED)))
        estimates, intervals, unsure = {}, {}, []
        for name in order:
            k = place[firsts[name]]
            error, freedom = float(spread.errors[k]), float(spread.freedom[k])
            plain = self.candidates.estimates[name]
            estimates[name] = replace(plain, variance=error**2, freedom=freedom)
            half = float(halves[k])
            intervals[name] = Interval(plain.value - half, plain.value + half, self.level)
            if not 0 < half < math.inf:
                limits = self._limits(name)
                intervals[name], notes = default_interval(estimates[name], self.level, limits)
                unsure += [_of(name, note) for note in notes]
        return estimates, intervals, unsure

    def _limits(self, name: str) -> Limits:
        weight = weight_of(crossed=self.candidates.crossed)
        view = self.candidates.views[name].values()
        return Limits(
            sum(m.count for m in view), self.reward_range, max(m.max(weight) for m in view)
        )

    def _findings(self) -> list[Finding]:
        """Findings of each target; one that all share is told once."""
        estimates = self.candidates.estimates
        found = {f: [n for n, e in estimates.items() if f in e.findings] for f in self._all()}
        return [
            finding if len(names) == len(estimates) else _of(name, finding)
            for finding, names in found.items()
            for name in (names[:1] if len(names) == len(estimates) else names)
        ]

    def _all(self) -> list[Finding]:
        estimates = self.candidates.estimates.values()
        return list(dict.fromkeys(f for e in estimates for f in e.findings))


def _of(name: str, finding: Finding) -> Finding:
    message = f"Target {name!r}: {finding.message}"
    return Finding(finding.code, message, finding.advice, finding.severity)


def _possible(reward_range: Reward) -> tuple[float, float]:
    if reward_range is None:
        return -math.inf, math.inf
    width = reward_range[1] - reward_range[0]
    return -width, width
