"""Read: every verb reads its log here.

`answered` asks the question of a verb, of the log in the form that takes the fewest passes.
`opened` opens the log of a request and settles which estimators it can serve; then
`OpenLog.read` unites their needs, makes one pass over the rows, and refuses rewards or targets
that cannot be right.

One pass by period and logger serves all estimators: those of periods read the moments of
cells; all others read the same moments, merged over the periods of each logger.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

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
from poolwise.engines import as_engine, labelled
from poolwise.engines.base import TalliedRows, only_crossed
from poolwise.engines.duckdb import DuckDB, DuckDBRows
from poolwise.engines.parallel import KernelRows
from poolwise.engines.spark import Spark
from poolwise.errors import (
    Finding,
    LogError,
    PoolwiseError,
    RefusedError,
    UsageError,
)
from poolwise.evaluation.per_request import refuse_split, rows_by_segment
from poolwise.evaluation.request import served
from poolwise.evaluation.spread import united
from poolwise.intervals.guarantees import refuse_adaptive, refuse_outside
from poolwise.intervals.student import Limits
from poolwise.log.log import CleanLog, LiveLog, Log
from poolwise.moments.buckets import BUCKETS
from poolwise.moments.pool import Pool, list_periods
from poolwise.moments.terms import BALANCED_WEIGHT, PERIOD_WEIGHT, WEIGHT, Needs, unite
from poolwise.rows.guard import named_files
from poolwise.rows.repeats import REMOTE, equal_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from poolwise.engines.base import EngineLike, Rows
    from poolwise.evaluation.request import Request, Served
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import Moments
    from poolwise.moments.pool import Stratum

T = TypeVar("T")
NOTHING = Needs()
MOST_COMPARED = 1 << 22  # contents of rows that are compared after a pass
CHECKED = "`pw.check` (`poolwise check`) compares all columns of the rows."
READ_AGAIN = frozenset({"parquet", "frame"})  # kinds of sources whose rows are not copied


class IncompleteError(Exception):
    """A log lacks probabilities, but only of policies that are not live.

    Attributes:
        missing: Loggers whose probabilities are missing.
    """

    def __init__(self, missing: tuple[str, ...]) -> None:
        self.missing = missing
        super().__init__(*missing)


def answered(log: Log, engine: EngineLike, ask: Callable[[Log], T]) -> T:
    """Ask a question of a log; if bad rows are dropped, first as if there were none.

    To drop bad rows takes two passes, since the good rows fix the mixture.  Most logs have no
    bad row: as a `CleanLog` they are read in one.  If that fails for any reason, the log is
    read as it is, and `ask` raises its own error.
    """
    log = named_log(log, engine)
    if _may_be_clean(log, engine):
        try:
            return ask(CleanLog(**_arguments(log) | {"on_fault": "raise"}))
        except IncompleteError as error:
            return ask(_live(log, error.missing))
        except PoolwiseError:
            pass
    return answered_live(log, engine, ask)


def answered_live(log: Log, engine: EngineLike, ask: Callable[[Log], T]) -> T:
    """Ask a question of a log that may lack probabilities of policies that are not live.

    Complete logs are read once: missing probabilities are counted after the rows were
    refused, or before if they would be dropped.
    """
    log = named_log(log, engine)
    if log.on_fault == "drop":
        return ask(live_log(log, engine) or log)
    try:
        return ask(log)
    except IncompleteError as error:
        return ask(_live(log, error.missing))


def named_log(log: Log, engine: EngineLike) -> Log:
    """Return the log with propensities by label, as a `LiveLog` if some are missing.

    The rows that are open for a pattern are looked at; the question reports other faults.
    """
    with labelled(log, engine) as (named, rows):
        if isinstance(rows, DuckDBRows) and named.period is not None:
            with suppress(PoolwiseError):
                return live_in(rows.with_roles(named), named) or named
    return named


def live_log(log: Log, engine: EngineLike) -> Log | None:
    """Return a log that lacks only probabilities of policies that are not live; else None."""
    if not _may_be_live(log):
        return None
    with as_engine(engine, log).open(log, {}) as rows:
        return live_in(rows, log)


def live_in(rows: Rows, log: Log) -> Log | None:
    """Return the log of open rows that lacks no other probabilities than such; else None.

    A policy that was live on some days often has a probability only in the rows of these
    days.  The mixture of a period needs no other: the estimates by period of a `LiveLog` are
    those of a complete log but for the shares of the periods.
    """
    missing = missing_in(rows, log)
    return _live(log, missing) if missing else None


def missing_in(rows: Rows, log: Log) -> tuple[str, ...]:
    """Return the loggers whose probabilities are missing where they are not live."""
    return rows.missing if _may_be_live(log) and isinstance(rows, KernelRows) else ()


def _live(log: Log, missing: tuple[str, ...]) -> Log:
    return LiveLog(**_arguments(log), incomplete=missing)


def _may_be_live(log: Log) -> bool:
    return log.period is not None and log.crossed and log.estimate_mixture is False


def _arguments(log: Log) -> dict[str, Any]:
    return {f.name: getattr(log, f.name) for f in fields(log)}


def _may_be_clean(log: Log, engine: EngineLike) -> bool:
    """Test if bad rows would be dropped by DuckDB, from a source that is cheap to open."""
    if type(log) is not Log or log.on_fault != "drop" or log.connection is not None:
        return False
    if not all(part.kind in READ_AGAIN for part in log.parts):
        return False
    chosen = as_engine(None, log) if engine is None else engine
    return isinstance(chosen, DuckDB) or engine == "duckdb"


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
        weights = [WEIGHT, BALANCED_WEIGHT] if asked.log.crossed else [WEIGHT]
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
        return rows_by_segment(self.kernel_rows, requests, asked.by)

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
    def kernel_rows(self) -> KernelRows:
        """The rows, where they can be summed by period or by segment."""
        return _kernel_rows(self.rows)

    def strata_of(self, estimator: Estimator) -> tuple[Any, ...]:
        """Return the keys of the moments that an estimator reads: cells or loggers."""
        return tuple(self.kernel_rows.cells if estimator.by_cell else self.rows.counts)

    def needs_of(self, estimator: Estimator) -> Needs:
        """Return the moments that an estimator needs of this log."""
        return self.request.needs(estimator, self.strata_of(estimator))

    def read(self, compared: str = "", also: Needs = NOTHING) -> Answers:
        """Make the pass, also for the needs of an incumbent.

        `compared` names the estimator that targets are compared in; empty if they are not.
        """
        asked, needs, pairs = self.request, self.served.needs | also, NOTHING
        rows = self.rows if asked.log.period is None else self.kernel_rows.by_period
        if compared:
            own = self.needs_of(self.served.estimators[compared])
            pairs = united(own, asked.names, crossed=asked.log.crossed)
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
            *getattr(rows, "notes", ()),
            *_undeclared(asked.log, rows, first),
            *copy_findings(rows, asked.log, sampled=True),
            *audit_rows(rows, asked.log),
            *(
                ()
                if asked.log.period is None
                else text_order(list_periods(self.kernel_rows.cells))
            ),
        )
        answers = (asked, self.served, tuple(rows.counts), pools, compared, of_pairs)
        return Answers(*answers, findings)


@contextmanager
def opened(asked: Request, engine: EngineLike) -> Iterator[OpenLog]:
    """Open the log of a request; refuse what its loggers cannot serve before the pass."""
    with open_rows(asked, engine) as rows:
        try:
            yield _settled(asked, rows)
        except LogError as error:  # look at the rows while they are open
            if missing := missing_in(rows, asked.log):
                raise IncompleteError(missing) from error
            raise


def _kernel_rows(rows: Rows) -> KernelRows:
    """Return rows that can be summed by period or segment; reject others."""
    if isinstance(rows, KernelRows):
        return rows
    raise UsageError(
        "`period` requires an engine that reads rows, DuckDB or Spark: leave out `engine` "
        "and `connection`, or leave out `period`"
    )


def _settled(asked: Request, rows: Rows) -> OpenLog:
    """Settle which estimators the rows can serve."""
    rows, log = only_crossed(rows, asked.log)
    asked, loggers = replace(asked, log=log), tuple(rows.counts)
    check_names(log.trained_on, [*loggers, *log.by_label, *asked.names])
    shaped = asked.interval.shaped and rows.shaped
    cells = () if log.period is None else tuple(_kernel_rows(rows).cells)
    usable = served(asked, loggers, cells, shaped=shaped)
    refuse_adaptive(asked.interval, log, on_own(log.trained_on, loggers))
    needs = usable.needs | asked.interval.needs(log, crossed=log.crossed)
    usable = replace(usable, needs=needs)
    settled = OpenLog(asked, rows, usable)
    if log.requests is not None and log.period is not None:
        refuse_split(settled.kernel_rows, log.requests)
    if asked.by is not None:
        settled.request_rows  # noqa: B018 - refuses segments before the pass
    return settled


def copy_findings(rows: Rows, log: Log, *, sampled: bool = False) -> tuple[Finding, ...]:
    """Return findings about files with equal content, and about rows that are copies.

    All columns are compared, after a pass only if its sample has copies.  Rows of one
    `cluster` may be copies.
    """
    if not isinstance(rows, KernelRows) or log.cluster is not None:
        return ()
    connect = rows.connect if isinstance(rows, DuckDBRows) else None
    files = [file for file, _ in named_files(log, connect) if not REMOTE.match(file)]
    equal = equal_files_found(equal_files(files))
    if equal or not isinstance(rows, DuckDBRows):
        return equal
    if not sampled:
        contents = rows.copies()
        return doubled_rows(contents) or hidden_copies(contents)
    contents = rows.copied.contents()
    if doubled_rows(contents):
        return doubled_rows(rows.copies(1 + sum(rows.counts.values()) // MOST_COMPARED))
    return hidden_copies(contents, CHECKED) if rows.copied.watched else ()


def audit_rows(rows: Rows, log: Log) -> tuple[Finding, ...]:
    """Return findings about propensities that the frequencies of actions contradict."""
    sums = rows.action_sums()
    return () if sums is None else audit_findings(sums, clustered=log.cluster is not None)


def open_rows(asked: Request, engine: EngineLike) -> AbstractContextManager[Rows]:
    """Open the log of a request with the engine that reads it."""
    chosen, extra = as_engine(engine, asked.log), asked.extra
    if not (extra.predicted_reward or extra.mixture or extra.segment):
        return chosen.open(asked.log, asked.targets)
    if extra.learners and not isinstance(chosen, DuckDB):
        raise UsageError(
            "only the DuckDB engine learns a reward model or an estimated mixture: leave "
            "`engine` out, or write the predictions as columns of the log first"
        )
    if extra.segment and not isinstance(chosen, DuckDB | Spark):
        raise UsageError(
            "`by` sums rows by segment, which requires rows and the DuckDB or Spark engine"
        )
    if not isinstance(chosen, DuckDB | Spark):
        raise UsageError(
            "columns of a `mixture` or of predicted rewards require the DuckDB or the Spark "
            "engine: read the rows with one of them, or leave these columns out"
        )
    return chosen.open(asked.log, asked.targets, extra)


def _read_buckets(
    rows: Rows, bound: Mapping[str, Needs], pairs: Needs
) -> tuple[dict[str, Pool], Pool]:
    """Return the moments of each target and those of all of them, by bucket, in one pass.

    Tails, histograms and the pairs of targets are summed over all rows, not by bucket.
    """
    needs = [*bound.values(), Needs(means=pairs.terms)]
    if isinstance(rows, TalliedRows):
        (*pools, means), whole = rows.bucketed_and_tallied(needs, BUCKETS, pairs)
    else:
        *pools, means = rows.bucketed(needs, BUCKETS)
        whole = rows.moments(pairs) if pairs.terms else Pool({})

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


def _undeclared(log: Log, rows: Rows, pool: Pool) -> tuple[Finding, ...]:
    """Return the finding that loggers follow each other, if the log declares nothing.

    It matters only where estimates pool the loggers, which requires cross-propensities.
    """
    declared = log.period is not None or bool(log.trained_on)
    if declared or not log.crossed or len(pool) < 2 or not isinstance(rows, DuckDBRows):
        return ()
    return succession(pool, rows.times())
