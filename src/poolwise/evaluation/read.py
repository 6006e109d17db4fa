"""Read: every verb validates its question and reads its log here.

`request` validates a question before any row is read.  `opened` opens the log and settles
which estimators it can serve; then `OpenLog.read` unites their needs, makes one pass over
the rows, and refuses rewards or targets that cannot be right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from poolwise.diagnosis.findings import cluster_findings
from poolwise.diagnosis.provenance import check_names, doubled_rows, on_own
from poolwise.engines import as_engine
from poolwise.engines.base import only_crossed
from poolwise.engines.duckdb import DuckDB, DuckDBRows
from poolwise.engines.parallel import KernelRows
from poolwise.errors import Finding, RefusedError, UsageError, did_you_mean
from poolwise.estimators import ALL, by_default
from poolwise.estimators.crossfit import CrossFitted
from poolwise.estimators.model import with_mixture
from poolwise.evaluation.contrasts import united
from poolwise.evaluation.periods import (
    by_period,
    is_periodic,
    merged,
    needs_of,
    strata_of,
    undeclared,
)
from poolwise.evaluation.served import Served, served
from poolwise.intervals.guarantees import (
    GUARANTEES,
    Guarantee,
    guarantee_needs,
    known_range,
    refuse_adaptive,
    refuse_outside,
)
from poolwise.intervals.student import SIDES, Sides, check_level
from poolwise.moments.buckets import BUCKETS, Split
from poolwise.moments.moments import selected_each
from poolwise.moments.terms import BALANCED_WEIGHT, WEIGHT, Needs, unite
from poolwise.rows.mixture import mixture_extra
from poolwise.rows.reward_model import model_extra
from poolwise.rows.roles import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from poolwise.engines.base import EngineLike, Rows
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import Moments, MomentsByLogger
    from poolwise.rows.reward_model import ModelLike
    from poolwise.rows.roles import Extra

IntervalMethod = Literal["auto", "skew", "student", "jackknife", "bootstrap"] | Guarantee
METHODS = ("auto", "skew", "student", "jackknife", "bootstrap", *GUARANTEES)
BY_BUCKET = frozenset({"jackknife", "bootstrap"})
MOST_COMPARED = 1 << 22  # contents of rows that are compared after a pass


@dataclass(frozen=True, eq=False)
class Request:
    """A question about a log, validated before any row is read.

    Attributes:
        log: The rows and what their columns mean.
        targets: Policies to evaluate, by name.
        estimators: Estimators to use.
        strict: Whether the caller named the estimators: one that the log cannot serve is
            then an error, otherwise a finding.
        level: Level of the intervals.
        method: Kind of interval; never "auto".
        sides: Sides of the intervals.
        extra: Columns that the rows get from a reward model or an estimated mixture.
        findings: Reasons why a given reward model is not used.
    """

    log: Log
    targets: Mapping[str, PolicyLike]
    estimators: tuple[Estimator, ...] = ()
    strict: bool = True
    level: float = 0.95
    method: IntervalMethod = "student"
    sides: Sides = "two"
    extra: Extra = NOTHING
    findings: tuple[Finding, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the targets."""
        return tuple(self.targets)

    @property
    def clustered(self) -> bool:
        """True if buckets hold whole clusters, and errors are those between buckets."""
        return self.log.cluster is not None and self.method in {"skew", "betting", *BY_BUCKET}


def request(
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    estimators: Sequence[str | Estimator] | str | Estimator | None = None,
    *,
    level: float = 0.95,
    interval: IntervalMethod = "auto",
    sides: Sides = "two",
    model: ModelLike | None = None,
) -> Request:
    """Validate a question; the arguments are those of `evaluate`."""
    check_level(level)
    if sides not in SIDES:
        raise UsageError(f"sides must be one of {', '.join(map(repr, SIDES))}, got {sides!r}")
    method = _method(interval, log)
    named = named_targets(targets)
    strict = estimators is not None
    extra, findings = _extra(log, named, model, strict=strict)
    modelled, periods = bool(extra.predicted_reward), log.period is not None
    by_name = by_default(modelled=modelled, periods=periods)
    if estimators is None:
        estimators = tuple(by_name)
    elif isinstance(estimators, str) or not isinstance(estimators, Sequence):
        estimators = (estimators,)
    if not estimators:
        raise UsageError(f"at least one estimator is required, of {', '.join(by_name)}")
    chosen = tuple(_estimator(e, by_name) for e in estimators)
    if extra.mixture:
        chosen = tuple(with_mixture(e, log) for e in chosen)
    return Request(log, named, chosen, strict, level, method, sides, extra, findings)


def named_targets(targets: Mapping[str, PolicyLike] | PolicyLike) -> dict[str, PolicyLike]:
    """Return targets by name; a single one is called "target"."""
    if not isinstance(targets, Mapping):
        return {"target": targets}
    if not targets:
        raise UsageError("at least one target is required, e.g. {'candidate': 'p_candidate'}")
    if "" in map(str, targets):
        raise UsageError("a target needs a name")
    if all(isinstance(value, int | float) for value in targets.values()):
        raise UsageError(
            "targets must be policies, got numbers: name a policy for each, as in "
            "{'candidate': 'p_candidate'}; one table of probabilities by action is "
            "{'candidate': pw.Table({...})}"
        )
    return {str(name): policy for name, policy in targets.items()}


def _method(interval: IntervalMethod, log: Log) -> IntervalMethod:
    if interval not in METHODS:
        raise UsageError(f"interval must be one of {', '.join(METHODS)}, got {interval!r}")
    if interval == "auto":
        return "skew"
    if interval in GUARANTEES:
        known_range(log, interval)
        if log.cluster is not None and interval != "betting":
            raise UsageError(
                f"interval={interval!r} requires independent rows, and rows of a `cluster` are "
                "not: use interval='auto', which leaves out clusters in turn, 'betting', or no "
                "`cluster` if rows are independent"
            )
    return interval


def _estimator(
    wanted: str | Estimator, by_name: Mapping[str, Callable[[], Estimator]]
) -> Estimator:
    if not isinstance(wanted, str):
        return wanted
    if wanted in ALL:  # without a model or a period, `served` refuses it with its reason
        return by_name.get(wanted, ALL[wanted])()
    hint = did_you_mean(wanted, ALL)
    raise UsageError(f"estimators are {', '.join(ALL)}; got {wanted!r}{hint}")


def _extra(
    log: Log, targets: Mapping[str, PolicyLike], model: ModelLike | None, *, strict: bool
) -> tuple[Extra, tuple[Finding, ...]]:
    """Return the columns that the rows get, and why a given model is not used."""
    mixed = mixture_extra(log)
    if model is None:
        return mixed, ()
    try:
        modelled = model_extra(model, targets, log.eligible, densities=log.densities)
    except RefusedError as reason:
        if strict:
            raise
        return mixed, (Finding(reason.code, str(reason)),)
    learners = (*modelled.learners, *mixed.learners)
    return replace(modelled, mixture=mixed.mixture, learners=learners), ()


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

    def view(self, target: str) -> dict[str, Moments]:
        """Return one target's moments, with the tails and histograms of its weights."""
        view = {i: self.splits[target].whole[i] for i in self.loggers}
        bound = {t: t.bind(target) for t in (WEIGHT, BALANCED_WEIGHT)}
        for i in view.keys() & self.whole.keys():
            whole = self.whole[i]
            bins = {t: whole.histograms[b] for t, b in bound.items() if b in whole.histograms}
            tails = {t: whole.tails[b] for t, b in bound.items() if b in whole.tails}
            view[i] = replace(view[i], histograms=bins, tails=tails or view[i].tails)
        return view


@dataclass(frozen=True, eq=False)
class OpenLog:
    """A log that is open, with the estimators that it serves."""

    request: Request
    rows: Rows
    served: Served

    def read(self, compared: str = "") -> Answers:
        """Make the pass; `compared` names the estimator that targets are compared in."""
        asked, needs, pairs = self.request, self.served.needs, Needs()
        rows, crossed = by_period(self.rows, asked.log), asked.log.crossed
        if compared:
            chosen = self.served.estimators[compared]
            strata = strata_of(rows, asked.log) if is_periodic(chosen) else tuple(rows.counts)
            own = needs_of(chosen, strata, asked.log)
            pairs = united(own, asked.names, crossed=crossed)
        bound = [needs.bind(name) for name in asked.names]
        means: Buckets = ()
        folded = any(isinstance(e, CrossFitted) for e in asked.estimators)
        if folded or asked.clustered or asked.method in BY_BUCKET:
            (*parts, means), whole = _bucketed(rows, bound, pairs)
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
            *getattr(rows, "notes", ()),
            *undeclared(asked.log, rows, next(iter(splits.values())).whole),
            *copy_findings(rows, asked.log, sampled=True),
        )
        moments = (splits, whole, compared, pairs, means)
        answers = Answers(asked, self.served, tuple(rows.counts), *moments, findings)
        return answers if asked.log.period is None else merged(answers)


@contextmanager
def opened(asked: Request, engine: EngineLike) -> Iterator[OpenLog]:
    """Open the log of a request; refuse what its loggers cannot serve before the pass."""
    with open_rows(asked, engine) as rows:
        yield settled(asked, rows)


def settled(asked: Request, rows_of_log: Rows) -> OpenLog:
    """Settle which estimators the rows can serve."""
    rows, log = only_crossed(rows_of_log, asked.log)
    asked, loggers = replace(asked, log=log), tuple(rows.counts)
    check_names(log.trained_on, [*loggers, *log.by_label, *asked.names])
    shaped = asked.method == "skew" and rows.shaped
    cells = () if log.period is None else strata_of(rows, log)
    usable = served(asked, loggers, cells, shaped=shaped)
    if asked.method in GUARANTEES:
        refuse_adaptive(asked.method, log, on_own(log.trained_on, loggers))
        needs = guarantee_needs(log, asked.method, crossed=log.crossed)
        usable = replace(usable, needs=usable.needs | needs)
    return OpenLog(asked, rows, usable)


def copy_findings(rows: Rows, log: Log, *, sampled: bool = False) -> tuple[Finding, ...]:
    """Return a finding if rows are exact copies of others, more often than by chance.

    All columns are compared, after a pass only if its sample has copies.  Rows of one
    `cluster` may be copies.
    """
    if not isinstance(rows, DuckDBRows) or log.cluster is not None:
        return ()
    if sampled and not doubled_rows(rows.copied.contents()):
        return ()
    return doubled_rows(
        rows.copies(1 + sum(rows.counts.values()) // MOST_COMPARED if sampled else 1)
    )


def open_rows(asked: Request, engine: EngineLike) -> AbstractContextManager[Rows]:
    """Open the log of a request with the engine that reads it."""
    chosen = as_engine(engine, asked.log)
    if not (asked.extra.predicted_reward or asked.extra.mixture):
        return chosen.open(asked.log, asked.targets)
    if not isinstance(chosen, DuckDB):
        raise UsageError(
            "only the DuckDB engine learns a reward model or an estimated mixture: leave "
            "`engine` out, or write the predictions as columns of the log first"
        )
    return chosen.open(asked.log, asked.targets, asked.extra)


def _bucketed(
    rows: Rows, bound: Sequence[Needs], pairs: Needs
) -> tuple[list[Buckets], MomentsByLogger]:
    """Return moments of the buckets, and of all rows what is not needed of each bucket."""
    needs = [*bound, Needs(means=pairs.terms)]
    if isinstance(rows, KernelRows) and not pairs.terms:
        buckets, whole = rows.bucketed_and_tallied(needs, BUCKETS)
        return [*buckets], whole
    apart = [Needs(tails=b.tails, histograms=b.histograms) for b in bound]
    also = unite([*apart, pairs] if rows.by_kernel else [pairs])
    return [*rows.bucketed(needs, BUCKETS)], rows.moments(also) if also.terms else {}


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
