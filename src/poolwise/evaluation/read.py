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
from poolwise.engines.base import only_crossed
from poolwise.engines.duckdb import DuckDB, DuckDBRows
from poolwise.errors import (
    Finding,
    LogError,
    PoolwiseError,
    RefusedError,
)
from poolwise.evaluation.per_request import refuse_split, rows_by_segment
from poolwise.evaluation.request import BY_BUCKET, served
from poolwise.evaluation.spread import united
from poolwise.intervals.guarantees import (
    GUARANTEES,
    guarantee_needs,
    refuse_adaptive,
    refuse_outside,
)
from poolwise.intervals.student import Limits
from poolwise.log.log import CleanLog, LiveLog, Log
from poolwise.moments.buckets import BUCKETS, Split
from poolwise.moments.cells import periods_of
from poolwise.moments.moments import PooledLoggers, by_logger, selected_each
from poolwise.moments.terms import BALANCED_WEIGHT, PERIOD_WEIGHT, WEIGHT, Needs, unite
from poolwise.rows.repeats import equal_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from poolwise.engines.base import EngineLike, Rows
    from poolwise.evaluation.request import Request, Served
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import MomentsByLogger

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
    return rows.missing if _may_be_live(log) else ()


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
        splits: Moments of each target, by bucket where the pass split the rows.
        whole: Moments of all rows, with tails, histograms and pairs of targets; empty where
            the engine has none of them.
        compared: Estimator that targets are compared in; empty where they are not.
        pairs: Needs of a comparison: terms of all targets together.
        means: Means of each bucket for these terms.
        findings: Findings about the rows as a whole.
        apart: The same by period and logger, if the log has periods.
    """

    request: Request
    served: Served
    loggers: tuple[str, ...]
    splits: Mapping[str, Split]
    whole: MomentsByLogger
    compared: str
    pairs: Needs
    means: Buckets
    findings: tuple[Finding, ...]
    apart: Answers | None = None

    def view(self, target: str) -> PooledLoggers:
        """Return one target's moments, with the tails and histograms of its weights."""
        view = PooledLoggers((i, self.splits[target].whole[i]) for i in self.loggers)
        bound = {t: t.bind(target) for t in (WEIGHT, BALANCED_WEIGHT)}
        for i in view.keys() & self.whole.keys():
            whole = self.whole[i]
            bins = {t: whole.histograms[b] for t, b in bound.items() if b in whole.histograms}
            tails = {t: whole.tails[b] for t, b in bound.items() if b in whole.tails}
            view[i] = replace(view[i], histograms=bins, tails=tails or view[i].tails)
        return view

    def limits(self, target: str) -> Limits:
        """Return the bounds on the rows of a target, for intervals without spread."""
        asked, split = self.request, self.splits[target]
        whole = split.whole.values()
        weights = [WEIGHT, BALANCED_WEIGHT] if asked.log.crossed else [WEIGHT]
        weights += [PERIOD_WEIGHT] if all(m.has(PERIOD_WEIGHT) for m in whole) else []
        rows = sum(m.count for m in whole)
        return Limits(
            rows=min(rows, len(split.buckets)) if asked.clustered else rows,  # independent ones
            reward_range=asked.log.reward_range,
            largest_weight=max(m.max(w) for m in whole for w in weights),
        )

    def suited(self, estimator: Estimator) -> Answers:
        """Return the answers that an estimator reads: by cell or by logger."""
        return self.apart if self.apart and estimator.by_cell else self

    def merged(self) -> Answers:
        """Return answers by logger, which keep these, by cell, as `apart`."""
        return replace(
            self,
            splits={
                name: Split(
                    [by_logger(bucket, self.loggers) for bucket in split.buckets], self.loggers
                )
                for name, split in self.splits.items()
            },
            whole=by_logger(self.whole, self.loggers),
            means=[by_logger(bucket, self.loggers) for bucket in self.means],
            apart=self,
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

    def strata_of(self, estimator: Estimator) -> tuple[str, ...]:
        """Return the keys of the moments that an estimator reads: cells or loggers."""
        return tuple(self.rows.cells if estimator.by_cell else self.rows.counts)

    def needs_of(self, estimator: Estimator) -> Needs:
        """Return the moments that an estimator needs of this log."""
        return self.request.needs(estimator, self.strata_of(estimator))

    def read(self, compared: str = "", also: Needs = NOTHING) -> Answers:
        """Make the pass, also for the needs of an incumbent.

        `compared` names the estimator that targets are compared in; empty if they are not.
        """
        asked, needs, pairs = self.request, self.served.needs | also, NOTHING
        rows = self.rows if asked.log.period is None else self.rows.by_period
        if compared:
            own = self.needs_of(self.served.estimators[compared])
            pairs = united(own, asked.names, crossed=asked.log.crossed)
        bound = [needs.bind(name) for name in asked.names]
        means: Buckets = ()
        if asked.clustered or asked.method in BY_BUCKET:
            every = [*bound, Needs(means=pairs.terms)]
            (*parts, means), whole = rows.bucketed_and_tallied(every, BUCKETS, pairs)
        else:
            whole = rows.moments(unite([*bound, pairs]))
            parts = [[whole]] * len(bound)
        splits = {
            name: split_of(buckets, needs, name)
            for name, buckets in zip(asked.names, parts, strict=True)
        }
        refuse_outside(asked.log, next(iter(splits.values())).whole)
        _refuse_unlogged(splits)
        dropped = rows.check() if asked.log.on_fault == "drop" else ()
        clusters = max(len(split.buckets) for split in splits.values())
        clustered = asked.log.cluster is not None
        findings = (
            *(cluster_findings(clusters, asked.method) if clustered else ()),
            # a report carries no rows, so the example stays out of it
            *(Finding("dropped-rows", f"Dropped: {replace(f, example={})}.") for f in dropped),
            *rows.notes,
            *_undeclared(asked.log, rows, next(iter(splits.values())).whole),
            *copy_findings(rows, asked.log, sampled=True),
            *(() if asked.log.period is None else text_order(periods_of(self.rows.cells))),
        )
        moments = (splits, whole, compared, pairs, means)
        answers = Answers(asked, self.served, tuple(rows.counts), *moments, findings)
        return answers if asked.log.period is None else answers.merged()


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


def _settled(asked: Request, rows: Rows) -> OpenLog:
    """Settle which estimators the rows can serve."""
    rows, log = only_crossed(rows, asked.log)
    asked, loggers = replace(asked, log=log), tuple(rows.counts)
    check_names(log.trained_on, [*loggers, *log.by_label, *asked.names])
    shaped = asked.method == "skew" and rows.shaped
    cells = () if log.period is None else tuple(rows.cells)
    usable = served(asked, loggers, cells, shaped=shaped)
    if asked.method in GUARANTEES:
        refuse_adaptive(asked.method, log, on_own(log.trained_on, loggers))
        needs = guarantee_needs(log, asked.method, crossed=log.crossed)
        usable = replace(usable, needs=usable.needs | needs)
    settled = OpenLog(asked, rows, usable)
    if log.requests is not None and log.period is not None:
        refuse_split(settled.rows, log.requests)
    if asked.by is not None:
        settled.request_rows  # noqa: B018 - refuses segments before the pass
    return settled


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


def open_rows(asked: Request, engine: EngineLike) -> AbstractContextManager[Rows]:
    """Open the log of a request with the engine that reads it."""
    return as_engine(engine, asked.log).open(asked.log, asked.targets, asked.extra)


def split_of(buckets: Buckets, needs: Needs, target: str) -> Split:
    """Return the moments of one target, under the names that estimators use."""
    terms = {term: term.bind(target) for term in needs.terms}
    return Split(selected_each(buckets, terms))


def _refuse_unlogged(splits: Mapping[str, Split]) -> None:
    """Refuse targets that give probability 0 to every logged action."""
    silent = [n for n, s in splits.items() if not any(m.max(WEIGHT) for m in s.whole.values())]
    if silent:
        raise RefusedError(
            "target-unlogged",
            f"target {', '.join(map(repr, silent))} gives probability 0 to every logged "
            "action: these logs say nothing about it. Check that the probability is that of "
            "the *logged* action.",
        )


def _undeclared(log: Log, rows: Rows, moments: MomentsByLogger) -> tuple[Finding, ...]:
    """Return the finding that loggers follow each other, if the log declares nothing.

    It matters only where estimates pool the loggers, which requires cross-propensities.
    """
    declared = log.period is not None or bool(log.trained_on)
    if declared or not log.crossed or len(moments) < 2:
        return ()
    return succession(moments, rows.times())
