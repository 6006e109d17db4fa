"""Read: every verb reads its log here.

`run` opens the log of a request and runs a verb on it.  An `OpenLog` has the `Coverage` of the
rows and the estimators that it supports; `OpenLog.read` unites their needs, makes one pass over
the rows, and refuses rewards or targets that cannot be right.

One pass by period and logger serves all estimators: those of periods read the moments of
cells; all others read the same moments, merged over the periods of each logger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from poolwise.diagnosis.audit import audit_findings
from poolwise.diagnosis.findings import cluster_findings
from poolwise.diagnosis.provenance import (
    check_names,
    doubled_rows,
    equal_files_found,
    hidden_copies,
    on_own,
    succession,
    text_order,
)
from poolwise.engines import as_engine
from poolwise.errors import (
    Finding,
    RefusedError,
)
from poolwise.estimators import recommend
from poolwise.evaluation.per_request import refuse_split, rows_by_segment
from poolwise.evaluation.request import served
from poolwise.evaluation.spread import united
from poolwise.intervals.guarantees import refuse_adaptive, refuse_outside
from poolwise.intervals.student import Limits
from poolwise.moments.buckets import BUCKETS
from poolwise.moments.coverage import Coverage
from poolwise.moments.pool import Pool, list_periods
from poolwise.moments.terms import BALANCED_WEIGHT, PERIOD_WEIGHT, WEIGHT, Needs, unite
from poolwise.rows.repeats import equal_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from poolwise.engines.base import EngineLike, Rows
    from poolwise.evaluation.request import Request, Served
    from poolwise.log.log import Log
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import Stratum

T = TypeVar("T")
NOTHING = Needs()
MOST_COMPARED = 1 << 22  # contents of rows that are compared after a pass
CHECKED = "`pw.check` (`poolwise check`) compares all columns of the rows."


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
    """

    request: Request
    served: Served
    loggers: tuple[str, ...]
    pools: Mapping[str, Pool]
    compared: str
    pairs: Pool
    findings: tuple[Finding, ...]

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
        return any(self.part_of(segment) < 1 for segment in self.request_rows)

    def part_of(self, segment: str) -> float:
        """Return the share of a request's rows that are in a segment."""
        requests = self.request.log.requests
        whole = 1 if requests is None else requests.rows
        return self.request_rows.get(segment, whole) / whole

    @property
    def coverage(self) -> Coverage:
        """Which probabilities of the log are known."""
        return self.served.coverage

    def needs_of(self, estimator: Estimator) -> Needs:
        """Return the moments that an estimator needs of this log."""
        return self.request.needs(estimator, self.coverage)

    def read(self, compared: str = "", also: Needs = NOTHING) -> Answers:
        """Make the pass, also for the needs of an incumbent.

        `compared` names the estimator that targets are compared in; empty if they are not.
        """
        asked, needs, pairs = self.request, self.served.needs | also, NOTHING
        rows = self.rows if asked.log.period is None else self.rows.by_period
        if compared:
            own = self.needs_of(self.served.estimators[compared])
            pairs = united(own, asked.names, self.coverage)
        bound = {name: needs.bind(name) for name in asked.names}
        if asked.clustered:
            pools, of_pairs = _read_buckets(rows, bound, pairs)
        else:
            whole = rows.moments(unite([*bound.values(), pairs]))
            pools, of_pairs = dict.fromkeys(bound, whole), whole
        pools = {name: select_target(pool, needs, name) for name, pool in pools.items()}
        of_pairs = of_pairs.select({t: t for t in pairs.terms})
        first = next(iter(pools.values()))
        refuse_outside(asked.log, first)
        _refuse_unlogged(pools)
        dropped = rows.check() if asked.log.on_fault == "drop" else ()
        clusters = max(1, *(len(pool.buckets) for pool in pools.values()))
        ignored = asked.interval.clusters == "ignored"
        named = asked.log.cluster is not None
        findings = (
            *(cluster_findings(clusters, ignored=ignored) if named else ()),
            # a report carries no rows, so the example stays out of it
            *(Finding("dropped-rows", f"Dropped: {replace(f, example={})}.") for f in dropped),
            *rows.notes,
            *_undeclared(asked.log, self.coverage, rows, first),
            *copy_findings(rows, asked.log, sampled=True),
            *audit_rows(rows, asked.log),
            *text_order(list_periods(self.coverage.cells)),
        )
        answers = (asked, self.served, tuple(rows.counts), pools, compared, of_pairs)
        return Answers(*answers, findings)


def run(asked: Request, engine: EngineLike, verb: Callable[[OpenLog], T]) -> T:
    """Open the log of a request, and run a verb on it."""
    with open_rows(asked, engine) as rows:
        return rows.complete().attempt(lambda view: verb(settle(asked, view)))


def settle(asked: Request, rows: Rows) -> OpenLog:
    """Keep the estimators that the rows support; refuse other questions before the pass."""
    log, (rows, coverage) = asked.log, cover(asked.log, rows)
    loggers = coverage.loggers
    check_names(log.trained_on, [*loggers, *log.by_label, *asked.names])
    shaped = asked.interval.shaped and rows.shaped
    usable = served(asked, coverage, shaped=shaped)
    refuse_adaptive(asked.interval, log, coverage, on_own(log.trained_on, loggers))
    needs = usable.needs | asked.interval.needs(log, coverage)
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
    return replace(rows, request=asked, served=served(asked, rows.coverage, shaped=shaped))


def cover(log: Log, rows: Rows) -> tuple[Rows, Coverage]:
    """Return rows, and which of their probabilities are known.

    With a single logger, its propensity is the mixture.
    """
    cells = () if log.period is None else tuple(rows.cells)
    coverage = Coverage.declared(log, rows.counts, cells, rows.live)
    if coverage.mixture or len(coverage.loggers) > 1 or log.propensity is None:
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


def open_rows(asked: Request, engine: EngineLike) -> AbstractContextManager[Rows]:
    """Open the log of a request with the engine that reads it."""
    return as_engine(engine, asked.log).open(asked.log, asked.targets, asked.extra)


def _read_buckets(
    rows: Rows, bound: Mapping[str, Needs], pairs: Needs
) -> tuple[dict[str, Pool], Pool]:
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


def select_target(pool: Pool, needs: Needs, target: str) -> Pool:
    """Return the moments of one target, under the names that estimators use."""
    return pool.select({term: term.bind(target) for term in needs.terms})


def _refuse_unlogged(pools: Mapping[str, Pool]) -> None:
    """Refuse targets that give probability 0 to every logged action."""
    silent = [n for n, pool in pools.items() if not any(m.max(WEIGHT) for m in pool.values())]
    if silent:
        raise RefusedError(
            "target-unlogged",
            f"target {', '.join(map(repr, silent))} gives probability 0 to every logged "
            "action: these logs say nothing about it. Check that the probability is that of "
            "the *logged* action.",
        )


def _undeclared(log: Log, coverage: Coverage, rows: Rows, pool: Pool) -> tuple[Finding, ...]:
    """Return the finding that loggers follow each other, if the log declares nothing.

    It matters only where estimates pool the loggers, which requires cross-propensities.
    """
    declared = log.period is not None or bool(log.trained_on)
    if declared or not coverage.crossed or len(pool) < 2:
        return ()
    return succession(pool, rows.times())
