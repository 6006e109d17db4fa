"""The pipeline of the design, in order and in one place.

Unite what the estimators declared, pass once over the rows, estimate, present.
No other function both reads a table and makes a result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from poolwise.diagnosis.findings import few_rewarded, judge, one_cause
from poolwise.diagnosis.leave_one_out import affordable, errors, errors_without
from poolwise.diagnosis.overlap import diagnose, mixed_overlap, own_overlap
from poolwise.diagnosis.trained import (
    HONEST,
    check_names,
    conflicts,
    on_own_log,
    pools,
    target_on_log,
    with_honest_interval,
)
from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.estimators import BY_NAME, WITH_MODEL
from poolwise.estimators.crossfit import CrossFitted
from poolwise.evaluation.beside import beside
from poolwise.evaluation.fingerprint import fingerprint
from poolwise.evaluation.read import (
    Plan,
    Read,
    beyond,
    chosen_estimators,
    declare,
    named_targets,
    read,
    refuse_unlogged,
)
from poolwise.evaluation.results import Evaluation, TargetResult
from poolwise.intervals.guarantees import (
    GUARANTEES,
    Guarantee,
    by_betting,
    from_moments,
    guarantee_needs,
    refuse_outside,
)
from poolwise.intervals.student import (
    Interval,
    Limits,
    Sides,
    check_level,
    default_interval,
    one_sided,
)
from poolwise.moments.buckets import BUCKETS, Split, bootstrap, jackknife, together
from poolwise.moments.terms import BALANCED_WEIGHT, REWARD, WEIGHT, Needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolwise.diagnosis.leave_one_out import Errors
    from poolwise.engines.base import Rows
    from poolwise.engines.choose import EngineLike
    from poolwise.errors import Fault
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.moments.moments import MomentsByLogger
    from poolwise.rows.reward_model import ModelLike

Resampling = Literal["auto", "student", "jackknife", "bootstrap"]
IntervalMethod = Resampling | Guarantee
METHODS = ("auto", "student", "jackknife", "bootstrap", *GUARANTEES)
FEW_CLUSTERS = 20  # below which the error of a jackknife is off by a sixth and more
SIDES = ("two", "lower", "upper")
BOOTSTRAP_SEED = 20170813  # the same rows give the same interval


def evaluate(  # noqa: PLR0913 - options are keyword-only, each with a default
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    estimators: Sequence[str | Estimator] | str | Estimator | None = None,
    *,
    level: float = 0.95,
    interval: IntervalMethod = "auto",
    sides: Sides = "two",
    engine: EngineLike = None,
    truth: Mapping[str, float] | None = None,
    which_logs: bool | None = None,
    model: ModelLike | None = None,
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
            "bernstein", "betting" and "likelihood" bound the value itself, the same for
            every estimator; they need the log's `reward_range`.
        sides: "two", or "lower" or "upper" for a one-sided bound.
        engine: What reads the rows: "duckdb" (the default, in this process), "spark", a
            SparkSession, or an object such as ``DuckDB(threads=4)``.
        truth: True values of the targets, where they are known.
        which_logs: Also say how sure the answer would be without each logger, which reads
            the log once more for each; by default where the log is small.
        model: A reward model for the doubly robust estimators and for calibrated: a
            scikit-learn regressor or classifier, a `RewardModel`, or a `GivenModel`.
    """
    check_level(level)
    if sides not in SIDES:
        raise UsageError(f"no sides {sides!r}; there are {', '.join(map(repr, SIDES))}")
    method = _method(interval, log)
    named = named_targets(targets)
    strict = estimators is not None
    extras = beyond(log, named, model, strict=strict)
    names = WITH_MODEL if extras.modelled else BY_NAME
    chosen = extras.adapted(chosen_estimators(estimators, names))
    with extras.open(engine, named) as rows:
        loggers = tuple(rows.counts)
        plan = declare(
            chosen, loggers, crossed=log.crossed, strict=strict, modelled=extras.modelled
        )
        if method in GUARANTEES:
            _refuse_trained(log, loggers, method)
            plan = replace(plan, needs=plan.needs | guarantee_needs(crossed=log.crossed))
        folded = any(isinstance(e, CrossFitted) for e in plan.estimators.values())
        split = folded or method in {"jackknife", "bootstrap"}
        pairs = beside(log, plan.estimators, rows, tuple(named))
        beyond_one = Needs() if pairs is None else pairs.needs
        found = read(rows, plan.needs, tuple(named), beyond_one, split=split)
        refuse_outside(log, together(next(iter(found.buckets.values()))))
        sure = _sure(rows, named, log, method, level, sides)
        dropped = rows.check() if log.on_fault == "drop" else ()
        without = _without(rows, tuple(named), log, method, wanted=which_logs)
    check_names(log.trained_on, [*loggers, *map(str, log.propensities or ()), *named])
    asked = _Asked(log, plan, loggers, level, method, sides, without, sure, found)
    splits = {name: Split(buckets) for name, buckets in found.buckets.items()}
    whole = {name: split.whole for name, split in splits.items()}
    refuse_unlogged(whole)
    results = {name: _result(name, split, asked) for name, split in splits.items()}
    lacking, results = one_cause(plan.uncrossed, results, loggers)
    first = next(iter(whole.values()))
    return Evaluation(
        targets=results,
        rows={i: first[i].count for i in loggers},
        mean_reward={i: first[i].mean(REWARD) for i in loggers},
        level=level,
        findings=(
            *_clusters(log, method, found),
            *_dropped(dropped),
            *lacking,
            *plan.refused,
            *extras.refused,
            *getattr(rows, "notes", ()),
        ),
        truth=truth or {},
        fingerprint=fingerprint(whole, crossed=log.crossed),
        pairs=pairs.pairs(found.whole, found.means, level) if pairs else None,
    )


def _refuse_trained(log: Log, loggers: Sequence[str], method: IntervalMethod) -> None:
    """Refuse a guarantee from pooled rows that a logger's training has made dependent."""
    trained = [i for i in conflicts(log.trained_on, loggers) if i in loggers]
    if trained and log.crossed and method != "betting":
        raise UsageError(
            f"an interval by {method} pools the rows of all loggers, and {trained[0]!r} was "
            "trained on a log of these: use interval='auto', which bears that"
        )


def _method(interval: IntervalMethod, log: Log) -> IntervalMethod:
    if interval not in METHODS:
        raise UsageError(f"no interval {interval!r}; there are {', '.join(METHODS)}")
    if interval == "auto":
        return "jackknife" if log.cluster is not None else "student"
    if interval in GUARANTEES and log.cluster is not None:
        raise UsageError(
            f"an interval by {interval} takes rows as independent, and those of a `cluster` "
            "are not: use interval='auto', which leaves out clusters in turn, or no `cluster` "
            "if rows are independent"
        )
    return interval


@dataclass(frozen=True)
class _Asked:
    """What the caller wants to know of every target."""

    log: Log
    plan: Plan
    loggers: tuple[str, ...]
    level: float
    method: IntervalMethod
    sides: Sides
    without: Mapping[str, Mapping[str, Errors]]
    sure: Mapping[str, Interval]
    read: Read

    @property
    def clustered(self) -> bool:
        """Whether rows belong together, and were split so."""
        return self.log.cluster is not None and self.method in {"jackknife", "bootstrap"}


def _without(
    rows: Rows, targets: Sequence[str], log: Log, method: IntervalMethod, *, wanted: bool | None
) -> dict[str, dict[str, Errors]]:
    """How sure each target's answer would be without each logger."""
    cheap = rows.rereadable and affordable(rows.counts, len(targets))
    by_itself = method == "student" and cheap
    if not log.crossed or not (by_itself if wanted is None else wanted):
        return {}
    return errors_without(rows, targets, BUCKETS if method == "jackknife" else 1)


def _result(target: str, split: Split, asked: _Asked) -> TargetResult:
    buckets = split.buckets
    view = asked.read.counted({i: split.whole[i] for i in asked.loggers}, target)
    estimates, intervals, findings = {}, {}, []
    for name, estimator in asked.plan.estimators.items():
        try:
            estimate, interval, noted = _estimated(estimator, split, asked)
        except RefusedError as reason:
            if asked.plan.strict:
                raise
            findings.append(Finding(reason.code, str(reason)))
            continue
        estimates[name], intervals[name] = estimate, interval
        findings += [*estimate.findings, *noted]
    crossed = asked.plan.crossed
    own = own_overlap(view, buckets, crossed=crossed)
    mixed = mixed_overlap(view, buckets) if crossed else None
    diagnosis = diagnose(view, buckets, asked.level, crossed=crossed)
    without = asked.without.get(target, {})
    if without:
        diagnosis = replace(diagnosis, with_all=errors(split), without=without)
    found = TargetResult(estimates, intervals, own, mixed, diagnosis=diagnosis)
    found, trained = _honest(target, found, split, asked)
    found, bounded = _guaranteed(target, found, view, asked)
    findings += [*bounded, *few_rewarded(view, crossed=crossed)]
    judged = judge(own, mixed, diagnosis, {i: m.count for i, m in view.items()})
    told = {f.code for f in findings}
    every = dict.fromkeys([*findings, *trained, *(f for f in judged if f.code not in told)])
    return replace(found, findings=tuple(sorted(every, key=lambda f: f.rank)))


def _sure(
    rows: Rows,
    targets: Iterable[str],
    log: Log,
    method: IntervalMethod,
    level: float,
    sides: Sides,
) -> dict[str, Interval]:
    """Betting intervals, which need the rows themselves."""
    if method != "betting":
        return {}
    return {name: by_betting(rows, name, log, level, sides) for name in targets}


def _guaranteed(
    target: str, result: TargetResult, view: MomentsByLogger, asked: _Asked
) -> tuple[TargetResult, tuple[Finding, ...]]:
    """Where an interval of the value itself was asked for, give it to every estimator."""
    method = asked.method
    findings: tuple[Finding, ...] = ()
    if method == "betting":
        interval = asked.sure[target]
    elif method in {"bernstein", "likelihood"}:
        interval, findings = from_moments(method, view, asked.log, asked.level, asked.sides)
    else:
        return result, ()
    return replace(result, intervals=dict.fromkeys(result.estimates, interval)), findings


def _honest(
    target: str, result: TargetResult, split: Split, asked: _Asked
) -> tuple[TargetResult, list[Finding]]:
    """Where a logger was trained on a log of these, an interval that bears it."""
    trained = conflicts(asked.log.trained_on, asked.loggers)
    findings = [target_on_log(target, trained[target])] if target in trained else []
    found = {i: logs for i, logs in trained.items() if i in asked.loggers}
    if not found or not asked.plan.crossed:
        return result, findings
    pooling = [n for n, e in asked.plan.estimators.items() if pools(e, asked.loggers)]
    replaced = [name for name in pooling if name in result.intervals]
    try:
        estimate, interval, noted = _estimated(HONEST, split, asked)
    except RefusedError:
        return result, [*findings, on_own_log(found, replaced=())]
    result = with_honest_interval(result, replaced, estimate, interval)
    return result, [*findings, on_own_log(found, replaced=replaced), *noted]


def _estimated(
    estimator: Estimator, split: Split, asked: _Asked
) -> tuple[Estimate, Interval, tuple[Finding, ...]]:
    if isinstance(estimator, CrossFitted):
        estimate = estimator.estimate_folds(split.buckets)
        if asked.method == "jackknife":  # folds change the value a little, its error less
            spread = jackknife(estimator, split)
            estimate = replace(estimate, variance=spread.variance, freedom=spread.freedom)
    elif asked.method == "jackknife" or (asked.method == "bootstrap" and asked.clustered):
        estimate = jackknife(estimator, split)
    else:
        estimate = estimator.estimate(split.whole)
    limits = _limits(split, asked)
    interval, noted = default_interval(estimate, asked.level, limits, asked.sides)
    if asked.method == "bootstrap" and not noted:
        interval = _percentiles(estimator, split, asked)
    return estimate, interval, noted


def _percentiles(estimator: Estimator, split: Split, asked: _Asked) -> Interval:
    values = bootstrap(estimator, split, np.random.default_rng(BOOTSTRAP_SEED))
    tail = (1 - asked.level) / 2 if asked.sides == "two" else 1 - asked.level
    lower, upper = (float(q) for q in np.quantile(values, [tail, 1 - tail]))
    return one_sided(Interval(lower, upper, asked.level), asked.sides)


def _limits(split: Split, asked: _Asked) -> Limits:
    weights = (WEIGHT, BALANCED_WEIGHT) if asked.plan.crossed else (WEIGHT,)
    view = split.whole
    rows = sum(m.count for m in view.values())
    return Limits(
        rows=min(rows, len(split.buckets)) if asked.clustered else rows,  # that are independent
        reward_range=asked.log.reward_range,
        largest_weight=max(m.max(w) for m in view.values() for w in weights),
    )


def _clusters(log: Log, method: IntervalMethod, found: Read) -> list[Finding]:
    """What to know of the clusters of a log, if it has any."""
    if log.cluster is None:
        return []
    if method == "student":
        return [
            Finding(
                "clusters-ignored",
                "These intervals take rows as independent, though the log names a `cluster`.",
                "Use interval='auto' (--interval auto), which leaves out clusters in turn.",
            )
        ]
    number = max(map(len, found.buckets.values()))
    if number >= FEW_CLUSTERS:
        return []
    rough = " The bootstrap's interval is too narrow then." if method == "bootstrap" else ""
    return [
        Finding(
            "few-clusters",
            f"The rows belong to {number} clusters only, so the error itself is known "
            f"roughly.{rough}",
            "Collect rows of more clusters, or name a finer unit.",
        )
    ]


def _dropped(faults: Sequence[Fault]) -> list[Finding]:
    # a report carries no rows, so the example stays out of it
    counted = [replace(fault, example={}) for fault in faults]
    return [Finding("dropped-rows", f"Left out: {fault}.") for fault in counted]
