"""Read: every verb reads its log here.

`opened` opens the log of a `Request` and settles which estimators it can serve; then
`OpenLog.read` unites their needs, makes one pass over the rows, and refuses rewards or
targets that cannot be right.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from poolwise.diagnosis.overlap import shown
from poolwise.diagnosis.trained import check_names, conflicts
from poolwise.engines.base import as_engine
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.intervals.guarantees import (
    GUARANTEES,
    guarantee_needs,
    refuse_outside,
)
from poolwise.moments.buckets import BUCKETS, Split
from poolwise.moments.terms import BALANCED_WEIGHT, WEIGHT, Needs, Term, unite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from poolwise.engines.base import EngineLike, Rows
    from poolwise.evaluation.request import Request
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import Moments, MomentsByLogger


@dataclass(frozen=True)
class Served:
    """Estimators that a log can serve, and their needs.

    Attributes:
        estimators: Usable estimators by name.
        needs: Needs of the estimators and of the tables, for one target.
        refused: Reasons why others are not used.
        uncrossed: Names of estimators that lack nothing but cross-propensities.
    """

    estimators: Mapping[str, Estimator]
    needs: Needs
    refused: tuple[Finding, ...] = ()
    uncrossed: tuple[str, ...] = ()


def served(
    estimators: Sequence[Estimator],
    loggers: Sequence[str],
    *,
    crossed: bool,
    strict: bool,
    modelled: bool = False,
) -> Served:
    """Unite the needs of the estimators that a log with these loggers can serve."""
    needs, refused, uncrossed = shown(loggers, crossed=crossed), [], []
    usable: dict[str, Estimator] = {}
    for estimator in estimators:
        try:
            own = estimator.needs(loggers, crossed=crossed)
            needs |= _with_model(estimator.name, own, modelled=modelled)
        except RefusedError as reason:
            if strict:
                raise
            if crossed or not _lacks_only_crossing(estimator, loggers):
                refused.append(Finding(reason.code, str(reason)))
            else:
                uncrossed.append(estimator.name)
        else:
            usable[_free_name(estimator.name, usable)] = estimator
    return Served(usable, needs, tuple(refused), tuple(uncrossed))


def _with_model(name: str, needs: Needs, *, modelled: bool) -> Needs:
    if needs.modelled and not modelled:
        raise RefusedError(
            f"{name}-refused",
            f"{name} needs a reward model: give `model`, a scikit-learn regressor or "
            "classifier, or GivenModel(...) for predictions that are columns already.",
        )
    return needs


def _lacks_only_crossing(estimator: Estimator, loggers: Sequence[str]) -> bool:
    try:
        estimator.needs(loggers, crossed=True)
    except RefusedError:
        return False
    return True


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """Return the name, numbered where the caller gave the same estimator twice."""
    names = [name, *(f"{name}-{k}" for k in range(2, len(taken) + 3))]
    return next(n for n in names if n not in taken)


@dataclass(frozen=True, eq=False)
class Answers:
    """Moments that a pass over the rows gave.

    Attributes:
        loggers: Labels of the loggers, in the order in which they are shown.
        splits: Moments of each target, by bucket where the pass split the rows.
        whole: Moments of all rows, with tails, histograms and pairs of targets; empty where
            the engine has none of them.
        means: Means of each bucket for the terms that pairs of targets have.
        findings: Findings about the rows as a whole.
    """

    loggers: tuple[str, ...]
    splits: Mapping[str, Split]
    whole: MomentsByLogger
    means: Buckets = ()
    findings: tuple[Finding, ...] = ()

    def view(self, target: str) -> dict[str, Moments]:
        """Return one target's moments, with the tails and histograms of its weights."""
        whole = self.splits[target].whole
        return {i: self._with_tails(i, whole[i], target) for i in self.loggers}

    def _with_tails(self, logger: str, moments: Moments, target: str) -> Moments:
        if logger not in self.whole:
            return moments
        whole = self.whole[logger]
        bound = {t: t.bind(target) for t in (WEIGHT, BALANCED_WEIGHT)}
        bins = {t: whole.histograms[b] for t, b in bound.items() if b in whole.histograms}
        tails = {t: whole.tails[b] for t, b in bound.items() if b in whole.tails}
        return replace(moments, histograms=bins, tails=tails or moments.tails)


@dataclass(frozen=True, eq=False)
class OpenLog:
    """A log that is open, with the estimators that it serves.

    Attributes:
        request: The question.
        rows: The rows.
        served: Estimators and needs.
    """

    request: Request
    rows: Rows
    served: Served = field(repr=False)

    @property
    def loggers(self) -> tuple[str, ...]:
        return tuple(self.rows.counts)

    def read(self, pairs: Needs | None = None) -> Answers:
        """Make the pass over the rows.

        Args:
            pairs: Terms of all targets together, for comparisons.
        """
        asked, pairs = self.request, pairs or Needs()
        bound = [self.served.needs.bind(name) for name in asked.names]
        means: Buckets = ()
        if asked.split:
            *parts, means = self.rows.bucketed([*bound, Needs(means=pairs.terms)], BUCKETS)
            apart = [Needs(tails=b.tails, histograms=b.histograms) for b in bound]
            also = unite([*apart, pairs] if self.rows.by_kernel else [pairs])
            whole = self.rows.moments(also) if also.terms else {}
        else:
            whole = self.rows.moments(unite([*bound, pairs]))
            parts = [[whole]] * len(bound)
        splits = {
            name: Split([view_of(bucket, self.served.needs, name) for bucket in buckets])
            for name, buckets in zip(asked.names, parts, strict=True)
        }
        refuse_outside(asked.log, next(iter(splits.values())).whole)
        refuse_unlogged(splits)
        return Answers(self.loggers, splits, whole, means, self._findings(splits))

    def _findings(self, splits: Mapping[str, Split]) -> tuple[Finding, ...]:
        dropped = self.rows.check() if self.request.log.on_fault == "drop" else ()
        # a report carries no rows, so the example stays out of it
        counted = [replace(fault, example={}) for fault in dropped]
        return (
            *cluster_findings(self.request, splits),
            *(Finding("dropped-rows", f"Dropped: {fault}.") for fault in counted),
            *getattr(self.rows, "notes", ()),
        )


@contextmanager
def opened(asked: Request, engine: EngineLike) -> Iterator[OpenLog]:
    """Open the log of a request; refuse what its loggers cannot serve before the pass."""
    log = asked.log
    with open_rows(asked, engine) as rows:
        loggers = tuple(rows.counts)
        check_names(log.trained_on, [*loggers, *map(str, log.propensities or ()), *asked.names])
        usable = served(
            asked.estimators,
            loggers,
            crossed=log.crossed,
            strict=asked.strict,
            modelled=asked.modelled,
        )
        if asked.method in GUARANTEES:
            _refuse_trained(asked, loggers)
            needs = usable.needs | guarantee_needs(crossed=log.crossed)
            usable = replace(usable, needs=needs)
        yield OpenLog(asked, rows, usable)


def open_rows(asked: Request, engine: EngineLike) -> AbstractContextManager[Rows]:
    """Open the log of a request with the engine that reads it."""
    chosen = as_engine(engine, asked.log)
    if not (asked.modelled or asked.extra.mixture):
        return chosen.open(asked.log, asked.targets)
    if not isinstance(chosen, DuckDB):
        raise UsageError(
            "only the DuckDB engine learns a reward model or an estimated mixture: leave "
            "`engine` out, or write the predictions as columns of the log first"
        )
    return chosen.open(asked.log, asked.targets, asked.extra)


def _refuse_trained(asked: Request, loggers: Sequence[str]) -> None:
    """Refuse a guarantee from pooled rows that a logger's training made dependent."""
    log = asked.log
    trained = [i for i in conflicts(log.trained_on, loggers) if i in loggers]
    if trained and log.crossed and asked.method != "betting":
        raise UsageError(
            f"interval={asked.method!r} pools the rows of all loggers, and {trained[0]!r} was "
            "trained on a log of these: use interval='auto', which remains valid in that case"
        )


def view_of(moments: MomentsByLogger, needs: Needs, target: str) -> dict[str, Moments]:
    """Return the moments of one target, under the names that estimators use."""
    names = {term: term.bind(target) for term in needs.terms}
    return {logger: m.select(names) for logger, m in moments.items()}


def refuse_unlogged(splits: Mapping[str, Split], weight: Term = WEIGHT) -> None:
    """Refuse targets that give probability 0 to every logged action."""
    wholes = {name: split.whole.values() for name, split in splits.items()}
    silent = [name for name, whole in wholes.items() if not any(m.max(weight) for m in whole)]
    if silent:
        names = ", ".join(map(repr, silent))
        raise RefusedError(
            "target-unlogged",
            f"target {names} gives probability 0 to every logged action: these logs say "
            "nothing about it. Check that the probability is that of the *logged* action.",
        )


FEW_CLUSTERS = 20  # below which the error of a jackknife is off by a sixth and more


def cluster_findings(asked: Request, splits: Mapping[str, Split]) -> list[Finding]:
    """Return findings about the clusters of a log."""
    if asked.log.cluster is None:
        return []
    if asked.method == "student":
        return [
            Finding(
                "clusters-ignored",
                "These intervals treat rows as independent, though the log names a `cluster`.",
                "Use interval='auto' (--interval auto), which leaves out clusters in turn.",
            )
        ]
    number = max(len(split.buckets) for split in splits.values())
    if number >= FEW_CLUSTERS:
        return []
    rough = (
        " The bootstrap's interval is then too narrow." if asked.method == "bootstrap" else ""
    )
    return [
        Finding(
            "few-clusters",
            f"The rows belong to only {number} clusters, so the standard error is itself "
            f"uncertain.{rough}",
            "Collect rows of more clusters, or name a finer unit.",
        )
    ]
