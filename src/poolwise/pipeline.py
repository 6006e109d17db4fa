"""The pipeline of the design, in order and in one place.

Unite what the estimators declared, pass once over the rows, estimate, present.
No other function both reads a table and makes a result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal

import numpy as np

from poolwise.diagnostics import mixed_overlap, own_overlap, shown
from poolwise.engine.duckdb import DuckDB
from poolwise.errors import LogError, RefusedError, UsageError, nearest
from poolwise.estimators import BY_NAME
from poolwise.findings import Finding
from poolwise.intervals import Interval, Limits, Sides, check_level, default_interval, one_sided
from poolwise.resample import BUCKETS, Buckets, bootstrap, jackknife, together
from poolwise.result import Evaluation, TargetResult
from poolwise.terms import BALANCED_WEIGHT, REWARD, WEIGHT, Needs

if TYPE_CHECKING:
    from poolwise.engine.base import Engine
    from poolwise.errors import Fault
    from poolwise.estimators.base import Estimate, Estimator
    from poolwise.log import Log
    from poolwise.moments import Moments, MomentsByLogger
    from poolwise.policy import PolicyLike

IntervalMethod = Literal["auto", "student", "jackknife", "bootstrap"]
METHODS = ("auto", "student", "jackknife", "bootstrap")
BOOTSTRAP_SEED = 20170813  # the same rows give the same interval


def evaluate(
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    estimators: Sequence[str | Estimator] | str | Estimator | None = None,
    *,
    level: float = 0.95,
    interval: IntervalMethod = "auto",
    sides: Sides = "two",
    engine: Engine | None = None,
    truth: Mapping[str, float] | None = None,
) -> Evaluation:
    """Estimate the value of each target with each estimator, in one pass over the log.

    Args:
        log: The rows and what their columns mean.
        targets: Probability of the logged action under each new policy, by name: a
            column, a SQL expression or a `Policy`. One alone is called "target".
        estimators: Names or objects; by default calibrated, with the others beside it, and
            one that the log cannot serve becomes a warning. One that was asked for by name
            and cannot be served is an error.
        level: Level of the intervals.
        interval: "student" (stratified, Satterthwaite), "jackknife" or "bootstrap" over
            buckets of rows; "auto" is the jackknife where the log names a `cluster`.
        sides: "two", or "lower" or "upper" for a one-sided bound.
        engine: What reads the rows; by default DuckDB, in this process.
        truth: True values of the targets, where they are known.
    """
    check_level(level)
    method = _method(interval, log)
    named = named_targets(targets)
    chosen = [_estimator(e) for e in _listed(estimators)]
    with (engine or DuckDB()).open(log, named) as rows:
        loggers = tuple(rows.counts)
        plan = declare(chosen, loggers, crossed=log.crossed, strict=estimators is not None)
        needs = reduce(or_, (plan.needs.bind(name) for name in named))
        buckets: Buckets = (
            [rows.moments(needs)] if method == "student" else rows.bucketed(needs, BUCKETS)
        )
        dropped = rows.check() if log.on_fault == "drop" else ()
    views = {name: [_view(b, plan.needs, name) for b in buckets] for name in named}
    asked = _Asked(log, plan, level, method, sides)
    _refuse_unlogged({name: together(view) for name, view in views.items()})
    results = {name: _result(view, asked) for name, view in views.items()}
    first = together(next(iter(views.values())))
    return Evaluation(
        targets=results,
        rows={i: first[i].count for i in loggers},
        mean_reward={i: first[i].mean(REWARD) for i in loggers},
        level=level,
        findings=(*_dropped(dropped), *plan.refused),
        truth=truth or {},
    )


def _method(interval: IntervalMethod, log: Log) -> IntervalMethod:
    if interval not in METHODS:
        raise UsageError(f"no interval {interval!r}; there are {', '.join(METHODS)}")
    if interval == "auto":
        return "jackknife" if log.cluster is not None else "student"
    return interval


def named_targets(targets: Mapping[str, PolicyLike] | PolicyLike) -> dict[str, PolicyLike]:
    """Targets by name; one alone is called "target"."""
    if isinstance(targets, Mapping):
        if not targets:
            raise UsageError("there is no target: name one policy at least")
        if "" in map(str, targets):
            raise UsageError("a target needs a name")
        return {str(name): policy for name, policy in targets.items()}
    return {"target": targets}


def _listed(
    estimators: Sequence[str | Estimator] | str | Estimator | None,
) -> Sequence[str | Estimator]:
    if estimators is None:
        return tuple(BY_NAME)
    if isinstance(estimators, Sequence) and not isinstance(estimators, str):
        if not estimators:
            raise UsageError(f"no estimator was asked for; there are {', '.join(BY_NAME)}")
        return estimators
    return [estimators]


def _estimator(wanted: str | Estimator) -> Estimator:
    if not isinstance(wanted, str):
        return wanted
    if wanted not in BY_NAME:
        close = nearest(wanted, BY_NAME)
        hint = f"did you mean {close!r}? " if close else ""
        raise UsageError(f"no estimator {wanted!r}; {hint}There are {', '.join(BY_NAME)}.")
    return BY_NAME[wanted]()


@dataclass(frozen=True)
class Plan:
    """Which estimators run, and what they and the tables ask of the rows."""

    estimators: Mapping[str, Estimator]
    needs: Needs
    refused: tuple[Finding, ...]
    crossed: bool
    strict: bool


def declare(
    chosen: Sequence[Estimator], loggers: Sequence[str], *, crossed: bool, strict: bool
) -> Plan:
    """Unite the needs of the estimators that this log can serve."""
    needs, refused = shown(loggers, crossed=crossed), []
    usable: dict[str, Estimator] = {}
    for estimator in chosen:
        try:
            needs |= estimator.needs(loggers, crossed=crossed)
        except RefusedError as reason:
            if strict:
                raise
            refused.append(Finding(reason.code, str(reason)))
        else:
            usable[_free_name(estimator.name, usable)] = estimator
    return Plan(usable, needs, tuple(refused), crossed, strict)


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """The same estimator may be asked for twice, with other settings."""
    names = [name, *(f"{name}-{k}" for k in range(2, len(taken) + 3))]
    return next(n for n in names if n not in taken)


def _view(moments: MomentsByLogger, needs: Needs, target: str) -> dict[str, Moments]:
    """The moments of one target, under the names that estimators use."""
    names = {term: term.bind(target) for term in needs.terms}
    return {logger: m.select(names) for logger, m in moments.items()}


def _refuse_unlogged(views: Mapping[str, MomentsByLogger]) -> None:
    silent = [t for t, view in views.items() if not any(m.max(WEIGHT) for m in view.values())]
    if silent:
        found = ", ".join(map(repr, silent))
        raise RefusedError(
            "target-unlogged",
            f"target {found} gives probability 0 to every logged action: these logs say "
            "nothing about it. Check that the probability is that of the *logged* action.",
        )


@dataclass(frozen=True)
class _Asked:
    """What the caller wants to know of every target."""

    log: Log
    plan: Plan
    level: float
    method: IntervalMethod
    sides: Sides


def _result(buckets: Buckets, asked: _Asked) -> TargetResult:
    view = together(buckets)
    estimates, intervals, findings = {}, {}, []
    for name, estimator in asked.plan.estimators.items():
        try:
            estimate, interval, noted = _estimated(estimator, buckets, asked)
        except RefusedError as reason:
            if asked.plan.strict:
                raise
            findings.append(Finding(reason.code, str(reason)))
            continue
        estimates[name], intervals[name] = estimate, interval
        findings += [*estimate.findings, *noted]
    own = own_overlap(view, crossed=asked.plan.crossed)
    mixed = mixed_overlap(view) if asked.plan.crossed else None
    return TargetResult(estimates, intervals, own, mixed, tuple(dict.fromkeys(findings)))


def _estimated(
    estimator: Estimator, buckets: Buckets, asked: _Asked
) -> tuple[Estimate, Interval, tuple[Finding, ...]]:
    view = together(buckets)
    if asked.method == "jackknife":
        estimate = jackknife(estimator, buckets)
    else:
        estimate = estimator.estimate(view)
    interval, noted = default_interval(estimate, asked.level, _limits(view, asked), asked.sides)
    if asked.method == "bootstrap" and not noted:
        interval = _percentiles(estimator, buckets, asked)
    return estimate, interval, noted


def _percentiles(estimator: Estimator, buckets: Buckets, asked: _Asked) -> Interval:
    values = bootstrap(estimator, buckets, np.random.default_rng(BOOTSTRAP_SEED))
    tail = (1 - asked.level) / 2 if asked.sides == "two" else 1 - asked.level
    lower, upper = (float(q) for q in np.quantile(values, [tail, 1 - tail]))
    return one_sided(Interval(lower, upper, asked.level), asked.sides)


def _limits(view: MomentsByLogger, asked: _Asked) -> Limits:
    weights = (WEIGHT, BALANCED_WEIGHT) if asked.plan.crossed else (WEIGHT,)
    return Limits(
        rows=sum(m.count for m in view.values()),
        reward_range=asked.log.reward_range,
        largest_weight=max(m.max(w) for m in view.values() for w in weights),
    )


def _dropped(faults: Sequence[Fault]) -> list[Finding]:
    return [Finding("dropped-rows", f"Left out: {fault}.") for fault in faults]


@dataclass(frozen=True)
class CheckReport:
    """What `check` found.

    Attributes:
        faults: Every rule that rows break, by logger.
        rows: Rows of each logger, bad ones included.
    """

    faults: tuple[Fault, ...]
    rows: Mapping[str, int]

    def to_json(self) -> str:
        """The faults and the rows, for programs."""
        faults = [
            {**vars(f), "example": {k: str(v) for k, v in f.example.items()}}
            for f in self.faults
        ]
        return json.dumps({"faults": faults, "rows": dict(self.rows)}, indent=2)

    def __str__(self) -> str:
        if self.faults:
            return str(LogError(self.faults))
        found = ", ".join(f"{i!r} {n:,}" for i, n in self.rows.items())
        return f"no faults in {sum(self.rows.values()):,} rows ({found})"


def check(
    log: Log, targets: Mapping[str, PolicyLike] | None = None, *, engine: Engine | None = None
) -> CheckReport:
    """Count the rows that break each rule, by logger, without estimating anything."""
    with (engine or DuckDB()).open(log, targets or {}) as rows:
        return CheckReport(rows.check(), rows.found)


def query_text(log: Log, table: str, targets: Mapping[str, PolicyLike], dialect: str) -> str:
    """The one query whose result is all that an evaluation of a table needs."""
    from poolwise.engine.sql import standalone_query

    if not targets:
        raise UsageError("name one target at least: --target candidate=p_candidate")
    loggers = tuple(map(str, log.propensities or ()))
    plan = declare(
        [make() for make in BY_NAME.values()], loggers, crossed=log.crossed, strict=False
    )
    needs = reduce(or_, (plan.needs.bind(name) for name in targets))
    return standalone_query(log, table, targets, needs, dialect)
