"""Read: every verb reads its log here.

`run` opens the log of a request and runs a verb on it.  An `OpenLog` has the `Coverage` of the
rows and the estimators that it supports; `OpenLog.read` unites their needs, makes one pass over
the rows, and refuses rewards or targets that cannot be right.

One pass by period and logger serves all estimators: those of periods read the moments of
cells; all others read the same moments, merged over the periods of each logger.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from poolwise.diagnosis.audit import audit_findings
from poolwise.diagnosis.dependence import dependence_findings
from poolwise.diagnosis.findings import cluster_findings
from poolwise.diagnosis.provenance import (
    check_names,
    doubled_rows,
    equal_files_found,
    hidden_copies,
    in_succession,
    on_own,
    text_order,
)
from poolwise.engines import as_engine
from poolwise.errors import (
    Finding,
    RefusedError,
)
from poolwise.estimators import recommend
from poolwise.estimators.model import star_model
from poolwise.evaluation.decisive import Heavies, find_heavy
from poolwise.evaluation.per_request import refuse_split, rows_by_segment
from poolwise.evaluation.request import select_estimators
from poolwise.evaluation.spread import unite_targets
from poolwise.intervals.guarantees import refuse_adaptive, refuse_outside
from poolwise.intervals.skew import interval_needs
from poolwise.intervals.student import Limits
from poolwise.moments.buckets import BUCKETS
from poolwise.moments.coverage import Coverage
from poolwise.moments.heavy import FOURTH
from poolwise.moments.pool import Pool, list_periods
from poolwise.moments.terms import (
    BALANCED_WEIGHT,
    NO_NEEDS,
    PERIOD_WEIGHT,
    WEIGHT,
    Needs,
    unite,
)
from poolwise.rows.repeats import equal_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from poolwise.engines.base import EngineLike, Rows
    from poolwise.evaluation.request import Request, Served
    from poolwise.log.action_groups import Unlogged
    from poolwise.log.clicks import Support
    from poolwise.log.log import Log
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import Stratum

T = TypeVar("T")
Key = TypeVar("Key")
Measured = str | tuple[str, str] | float  # a measure, the two of a ratio, or a threshold
NO_HEAVY = Heavies()
MUCH_UNLOGGED = 0.01  # of what a target plays: actions of no row, which only a model predicts
MOST_COMPARED = 1 << 22  # contents of rows that are compared after a pass
CHECKED = "`pw.check` (`poolwise check`) compares all columns of the rows."


class Joint(NamedTuple):
    """Moments of two measures together, whose terms name their measure.

    Attributes:
        pools: Moments of each target.
        pairs: Moments of all targets, where they are compared.
    """

    pools: Mapping[str, Pool]
    pairs: Pool


@dataclass(frozen=True, eq=False)
class Answers:
    """Moments that a pass over the rows gave.

    Attributes:
        request: The question.
        served: Estimators that the log serves.
        loggers: Labels of the loggers, in the order in which they are shown.
        pools: Moments of each target, by cell if the log has periods, otherwise by logger.
        compared: Estimator that targets are compared in; empty where they are not.
        pairs: Moments of the terms of all targets together, where they are compared.
        findings: Findings about the rows as a whole.
        heavy: Rows that decide values and differences.
        support: Part of each target's examinations on shown items, in a click log.
        chain: Loggers that follow each other in time, if the log declares no training.
        unlogged: What each target plays that is in no row, where that is known.
        measures: The same for each other measure, as if it were the reward of the log.
        ratios: Moments of two measures together, for each ratio among the metrics.
        steps: Moments of each target with the indicator of each threshold as the reward.
    """

    request: Request
    served: Served
    loggers: tuple[str, ...]
    pools: Mapping[str, Pool]
    compared: str
    pairs: Pool
    findings: tuple[Finding, ...]
    heavy: Heavies = NO_HEAVY
    support: Mapping[str, Support] = field(default_factory=dict)
    chain: tuple[str, ...] = ()
    unlogged: Mapping[str, Unlogged] = field(default_factory=dict)
    measures: Mapping[str, Answers] = field(default_factory=dict)
    ratios: Mapping[tuple[str, str], Joint] = field(default_factory=dict)
    steps: Mapping[str, Sequence[Pool]] = field(default_factory=dict)

    def measuring(self, measure: str) -> Answers:
        """Return the moments with a measure as the reward; without one, with the log's own."""
        return self.measures[measure] if measure else self

    def pool(self, target: str, estimator: Estimator | None = None) -> Pool:
        """Return the moments of a target, with the strata that an estimator reads."""
        pool = self.pools[target]
        return pool if estimator is not None and estimator.by_cell else pool.by_logger

    def limits(self, target: str) -> Limits:
        """Return the bounds on the rows of a target, for intervals without spread."""
        asked, pool = self.request, self.pools[target]
        moments = pool.values()
        weights = [WEIGHT, BALANCED_WEIGHT] if self.served.coverage.crossed else [WEIGHT]
        weights += [PERIOD_WEIGHT] if all(m.has(PERIOD_WEIGHT) for m in moments) else []
        rows = pool.rows
        return Limits(
            rows=min(rows, len(pool.buckets)) if asked.clustered else rows,  # independent ones
            reward_range=asked.log.reward_range,
            largest_weight=max(m.max(w) for m in moments for w in weights),
        )


@dataclass(frozen=True, eq=False)
class OpenLog:
    """A log that is open, with the estimators that it serves."""

    request: Request
    rows: Rows
    served: Served

    @cached_property
    def request_rows(self) -> dict[str, int]:
        """Rows of a request in each segment; empty if values are those of rows."""
        asked, requests = self.request, self.request.log.requests
        if asked.by is None or requests is None:
            return {}
        return rows_by_segment(self.rows, requests, asked.by)

    @property
    def splits_requests(self) -> bool:
        """True if a segment has some rows of a request, and another segment has others."""
        return any(self.find_part(segment) < 1 for segment in self.request_rows)

    def find_part(self, segment: str) -> float:
        """Return the share of a request's rows that are in a segment."""
        requests = self.request.log.requests
        whole = 1 if requests is None else requests.rows
        return self.request_rows.get(segment, whole) / whole

    @property
    def coverage(self) -> Coverage:
        """Which probabilities of the log are known."""
        return self.served.coverage

    def find_needs(self, estimator: Estimator) -> Needs:
        """Return the moments that an estimator needs of this log."""
        return self.request.needs(estimator, self.coverage)

    def read(
        self,
        compared: str = "",
        also: Needs = NO_NEEDS,
        tested: Needs = NO_NEEDS,
        *,
        against: str = "",
        steps: Sequence[float] = (),
    ) -> Answers:
        """Make the pass, and another one for rows that decide values or differences.

        Args:
            compared: Estimator that targets are compared in; empty if they are not.
            also: Needs of an incumbent.
            tested: Needs of a backtest, which is one of the log's own reward.
            against: Logger whose policy is subtracted from each target; empty for none.
            steps: Thresholds of the distribution of the reward.
        """
        asked, needs, pairs = self.request, self.served.needs | also, NO_NEEDS
        rows = self.rows if asked.log.period is None else self.rows.by_period
        if compared:
            own = self.find_needs(self.served.estimators[compared])
            pairs = unite_targets(own, asked.names, self.coverage)
        found = self._sum(rows, needs, pairs, also, tested, steps)
        pools, of_pairs = found.select(needs | tested, pairs, "")
        first = next(iter(pools.values()))
        refuse_outside(asked.log, first)
        if asked.tests == 1:
            _refuse_unlogged(pools)
        dropped = rows.check() if asked.log.on_fault == "drop" else ()
        clusters = max(1, *(len(pool.buckets) for pool in pools.values()))
        ignored = asked.interval.clusters == "ignored"
        named = asked.log.cluster is not None
        findings = (
            *(cluster_findings(clusters, ignored=ignored) if named else ()),
            # a report carries no rows, so the example stays out of it
            *(Finding("dropped-rows", f"Dropped: {replace(f, example={})}.") for f in dropped),
            *asked.log.notes,
            *rows.notes,
            *copy_findings(rows, asked.log, sampled=True),
            *audit_rows(rows, asked.log),
            *(unit_findings(rows, asked.log, asked.log.context) if asked.log.context else ()),
            *text_order(list_periods(self.coverage.cells)),
        )
        answers = (asked, self.served, tuple(rows.counts), pools, compared, of_pairs)
        support = self.rows.click_support()
        heavy = self._heavy("", pools, of_pairs, compared, against)
        chain = _undeclared(asked.log, self.coverage, rows, first)
        own_reward = Answers(*answers, findings, heavy, support, chain, self.rows.unlogged())
        measures = {}
        for measure in asked.extra.measures:
            pools, of_pairs = found.select(needs, pairs, measure)
            measures[measure] = replace(
                own_reward,
                request=asked.measuring(measure),
                pools=pools,
                pairs=of_pairs,
                heavy=self._heavy(measure, pools, of_pairs, compared, against),
            )
        ratios = {both: found.join(pairs, both) for both in asked.ratios}
        at_steps = {name: found.select_steps(name, steps) for name in asked.names if steps}
        return replace(own_reward, measures=measures, ratios=ratios, steps=at_steps)

    def _sum(
        self,
        rows: Rows,
        needs: Needs,
        pairs: Needs,
        also: Needs,
        tested: Needs,
        steps: Sequence[float],
    ) -> _Found:
        """Make the pass: sum the terms of all targets and measures.

        Args:
            rows: The rows, by period if the log has periods.
            needs: Needs of one target and measure.
            pairs: Needs of all targets together, for one measure.
            also: Needs of an incumbent.
            tested: Needs of a backtest.
            steps: Thresholds of the distribution of the reward.
        """
        asked = self.request
        bound: dict[tuple[str, Measured], Needs] = {
            (t, m): (needs if m else needs | tested).bind(t, m)
            for m in asked.measures
            for t in asked.names
        }
        every = unite(pairs.bind(measure=m) for m in asked.measures)
        joint = self._find_ratio_needs(also)
        for both in asked.ratios:
            bound |= {(t, both): join_measures(joint.bind(t), both) for t in asked.names}
            every |= join_measures(pairs, both)
        lean = self._find_ratio_needs(NO_NEEDS)
        bound |= {(t, step): lean.bind(t, most=step) for step in steps for t in asked.names}
        if asked.clustered:
            pools, of_pairs = _read_buckets(rows, bound, every)
        else:
            whole = rows.moments(unite([*bound.values(), every]))
            pools, of_pairs = dict.fromkeys(bound, whole), whole
        return _Found(pools, of_pairs, joint, lean)

    def _find_ratio_needs(self, also: Needs) -> Needs:
        """Return the moments that a ratio needs of each measure: of one estimator only."""
        asked, usable = self.request, self.served.estimators
        name = recommend(usable)
        own = self.find_needs(usable[name]) if name else NO_NEEDS
        if asked.interval.shaped and self.rows.shaped:
            crossed = self.coverage.loggers if self.coverage.crossed else ()
            own |= interval_needs(own, crossed)
        return own | also

    def _heavy(
        self,
        measure: str,
        pools: Mapping[str, Pool],
        pairs: Pool,
        compared: str,
        against: str,
    ) -> Heavies:
        """Return the rows that decide values or differences of a measure."""
        asked, usable = self.request.measuring(measure), self.served.estimators
        if not self.coverage.crossed or not any(e.sets_apart for e in usable.values()):
            return NO_HEAVY
        paired = bool(compared) and usable[compared].sets_apart
        return find_heavy(
            self.rows.measuring(measure) if measure else self.rows,
            {name: pool.by_logger for name, pool in pools.items()},
            pairs.by_logger if paired else Pool({}),
            against,
            asked.log.reward_range,
            clustered=asked.clustered,
        )


def run(asked: Request, engine: EngineLike, verb: Callable[[OpenLog], T]) -> T:
    """Open the log of a request, and run a verb on it."""
    with open_rows(asked, engine) as rows:
        return rows.complete().attempt(lambda view: verb(open_supported(asked, view)))


def open_supported(asked: Request, rows: Rows) -> OpenLog:
    """Keep the estimators that the rows support; refuse other questions before the pass."""
    log, (rows, coverage) = asked.log, cover(asked.log, rows)
    loggers = coverage.loggers
    check_names(log.trained_on, [*loggers, *log.by_label, *asked.names])
    shaped = asked.interval.shaped and rows.shaped
    usable = select_estimators(asked, coverage, shaped=shaped)
    refuse_adaptive(asked.interval, log, coverage, on_own(log.trained_on, loggers))
    needs = usable.needs | asked.interval.needs(log, coverage)
    if coverage.crossed and not (rows.by_kernel or rows.saved):  # it returns no tails
        needs |= Needs(means=(FOURTH,))
    if any(u.mass >= MUCH_UNLOGGED for u in rows.unlogged().values()):
        starred = {name: star_model(e) for name, e in usable.estimators.items()}
        usable = replace(usable, estimators=starred)
    usable = replace(usable, needs=needs)
    settled = OpenLog(asked, rows, usable)
    if log.requests is not None and log.period is not None:
        refuse_split(rows, log.requests)
    if asked.by is not None:
        settled.request_rows  # noqa: B018 - refuses segments before the pass
    return settled


def keep_recommended(rows: OpenLog, *, strict: bool) -> OpenLog:
    """Return the open log with the recommended estimator only.

    Args:
        rows: The open log.
        strict: Whether a refusal of the estimator is an error, not a finding.
    """
    by_name = rows.served.estimators
    chosen = [by_name[name] for name in [recommend(by_name)] if name]
    asked = replace(rows.request, estimators=tuple(chosen), strict=strict)
    shaped = asked.interval.shaped and rows.rows.shaped
    return replace(
        rows, request=asked, served=select_estimators(asked, rows.coverage, shaped=shaped)
    )


def cover(log: Log, rows: Rows) -> tuple[Rows, Coverage]:
    """Return rows, and which of their probabilities are known.

    With a single logger, its propensity is the mixture.
    """
    cells = () if log.period is None else tuple(rows.cells)
    coverage = Coverage.declared(log, rows.counts, cells, rows.live)
    known = log.propensity is not None or log.estimated
    if coverage.mixture or len(coverage.loggers) > 1 or not known:
        return rows, coverage
    own = rows.mix_own()
    if own is None:
        return rows, coverage
    return own, replace(coverage, known=coverage.loggers, mixture="own")


def copy_findings(rows: Rows, log: Log, *, sampled: bool = False) -> tuple[Finding, ...]:
    """Return findings about files with equal content, and about rows that are copies.

    All columns are compared, after a pass only if its sample has copies.  Rows of one
    `cluster` may be copies.
    """
    if log.cluster is not None:
        return ()
    equal = equal_files_found(equal_files(rows.local_files(log)))
    contents = None if equal else rows.sampled_copies() if sampled else rows.copies()
    if contents is None:
        return equal
    doubled = doubled_rows(contents)
    if doubled and sampled:
        part = 1 + sum(rows.counts.values()) // MOST_COMPARED
        return doubled_rows(rows.copies(part) or {})
    return doubled or hidden_copies(contents, CHECKED if sampled else "")


def audit_rows(rows: Rows, log: Log) -> tuple[Finding, ...]:
    """Return findings about propensities that the frequencies of actions contradict."""
    sums = rows.action_sums()
    return () if sums is None else audit_findings(sums, clustered=log.cluster is not None)


def unit_findings(
    rows: Rows, log: Log, among: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """Return the finding that rows depend on each other, though the log has no `cluster`.

    Args:
        rows: The open log.
        log: The log.
        among: Columns that may name units, such as users; by default all.
    """
    if log.cluster is not None or log.requests is not None:
        return ()
    return dependence_findings(rows.pair_sums(among))


def open_rows(asked: Request, engine: EngineLike) -> AbstractContextManager[Rows]:
    """Open the log of a request with the engine that reads it."""
    return as_engine(engine, asked.log).open(asked.log, asked.targets, asked.extra)


@dataclass(frozen=True, eq=False)
class _Found:
    """Moments that a pass added up, of terms that name their target and measure.

    Attributes:
        pools: Moments of each target and measure, or ratio of two.
        pairs: Moments of all targets together, where they are compared.
        joint: Needs of one of the two measures of a ratio.
        lean: Needs of a threshold.
    """

    pools: Mapping[tuple[str, Measured], Pool]
    pairs: Pool
    joint: Needs = NO_NEEDS
    lean: Needs = NO_NEEDS

    def select_steps(self, target: str, steps: Sequence[float]) -> list[Pool]:
        """Return the moments of a target with the indicator of each threshold as the reward."""
        pools = [self.pools[target, step] for step in steps]
        terms = self.lean.terms
        pairs = zip(pools, steps, strict=True)
        return [
            pool.select({t: t.bind(target, most=step) for t in terms}) for pool, step in pairs
        ]

    def select(self, needs: Needs, pairs: Needs, measure: str) -> tuple[dict[str, Pool], Pool]:
        """Return the moments of each target, and those of all, of one measure."""
        pools = {
            name: select_target(pool, needs, name, measure)
            for (name, of), pool in self.pools.items()
            if of == measure
        }
        return pools, self.pairs.select({t: t.bind(measure=measure) for t in pairs.terms})

    def join(self, pairs: Needs, both: tuple[str, str]) -> Joint:
        """Return the moments of two measures together."""
        own = self.joint.terms
        pools = {
            name: pool.select({t.bind(measure=m): t.bind(name, m) for m in both for t in own})
            for (name, of), pool in self.pools.items()
            if of == both
        }
        every = {t.bind(measure=m): t.bind(measure=m) for m in both for t in pairs.terms}
        return Joint(pools, self.pairs.select(every))


def join_measures(needs: Needs, both: tuple[str, str]) -> Needs:
    """Return the needs of two measures, with the scatter between their terms."""
    groups = [
        tuple(dict.fromkeys(t.bind(measure=m) for m in both for t in group))
        for group in needs.groups
    ]
    return replace(unite(needs.bind(measure=m) for m in both), groups=tuple(groups))


def _read_buckets(
    rows: Rows, bound: Mapping[Key, Needs], pairs: Needs
) -> tuple[dict[Key, Pool], Pool]:
    """Return the moments of each target and those of all of them, by bucket, in one pass.

    Tails, histograms and the pairs of targets are summed over all rows, not by bucket.
    """
    needs = [*bound.values(), Needs(means=pairs.terms)]
    (*pools, means), whole = rows.bucketed_and_tallied(needs, BUCKETS, pairs)

    def add_tallies(stratum: Stratum, moments: Moments) -> Moments:
        found = whole.get(stratum, moments)
        return replace(moments, tails=found.tails, histograms=found.histograms)

    tallied = {name: pool.change(add_tallies) for name, pool in zip(bound, pools, strict=True)}
    return tallied, Pool(whole, means.buckets, means.loggers)


def select_target(pool: Pool, needs: Needs, target: str, measure: str = "") -> Pool:
    """Return the moments of one target and measure, under the names that estimators use."""
    return pool.select({term: term.bind(target, measure) for term in needs.terms})


def is_unlogged(pool: Pool) -> bool:
    """Test if a target gives probability 0 to every logged action."""
    return not any(m.max(WEIGHT) for m in pool.values())


def unlogged(targets: Sequence[str]) -> RefusedError:
    """Return the refusal of targets that give probability 0 to every logged action."""
    return RefusedError(
        "target-unlogged",
        f"target {', '.join(map(repr, targets))} gives probability 0 to every logged "
        "action: these logs say nothing about it. Check that the probability is that of "
        "the *logged* action.",
    )


def _refuse_unlogged(pools: Mapping[str, Pool]) -> None:
    silent = [name for name, pool in pools.items() if is_unlogged(pool)]
    if silent:
        raise unlogged(silent)


def _undeclared(log: Log, coverage: Coverage, rows: Rows, pool: Pool) -> tuple[str, ...]:
    """Return the loggers that follow each other in time, if the log declares no training.

    It matters only where estimates pool the loggers, which requires cross-propensities.
    """
    declared = log.period is not None or bool(log.trained_on) or log.clicks is not None
    if declared or not coverage.crossed or len(pool) < 2:
        return ()
    return in_succession(pool.by_logger, rows.times())
