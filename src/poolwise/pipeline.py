"""The pipeline of the design, in order and in one place.

Unite what the estimators declared, pass once over the rows, estimate, present.
No other function both reads a table and makes a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from poolwise.engine.duckdb import DuckDB
from poolwise.errors import LogError, RefusedError, UsageError, nearest
from poolwise.estimators import BY_NAME
from poolwise.estimators.ips import pooled_divergences
from poolwise.findings import Finding
from poolwise.intervals import Limits, check_level, default_interval
from poolwise.moments import Moments, MomentsByLogger, pooled
from poolwise.result import Evaluation, Overlap, TargetResult
from poolwise.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    Term,
    second_moment,
)

if TYPE_CHECKING:
    from poolwise.engine.base import Engine
    from poolwise.errors import Fault
    from poolwise.estimators.base import Estimator
    from poolwise.log import Log
    from poolwise.policy import PolicyLike

DEFAULT = ("naive", "balanced", "weighted")


def evaluate(
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    estimators: Sequence[str | Estimator] | str | Estimator | None = None,
    *,
    level: float = 0.95,
    engine: Engine | None = None,
    truth: Mapping[str, float] | None = None,
) -> Evaluation:
    """Estimate the value of each target with each estimator, in one pass over the log.

    Args:
        log: The rows and what their columns mean.
        targets: Probability of the logged action under each new policy, by name: a
            column, a SQL expression or a `Policy`. One alone is called "target".
        estimators: Names or objects; by default naive, balanced and weighted, and one
            that the log cannot serve becomes a warning. One that was asked for by name
            and cannot be served is an error.
        level: Level of the intervals.
        engine: What reads the rows; by default DuckDB, in this process.
        truth: True values of the targets, where they are known.
    """
    check_level(level)
    named = named_targets(targets)
    chosen = [_estimator(e) for e in _listed(estimators)]
    with (engine or DuckDB()).open(log, named) as rows:
        loggers = tuple(rows.counts)
        plan = _declare(chosen, loggers, crossed=log.crossed, strict=estimators is not None)
        bound = [plan.needs.bind(name) for name in named]
        moments = rows.moments(reduce(or_, bound))
        dropped = rows.check() if log.on_fault == "drop" else ()
    views = {name: _view(moments, plan.needs, name) for name in named}
    _refuse_unlogged(views)
    results = {name: _result(view, plan, log, level) for name, view in views.items()}
    first = next(iter(views.values()))
    return Evaluation(
        targets=results,
        rows={i: m.count for i, m in first.items()},
        mean_reward={i: m.mean(REWARD) for i, m in first.items()},
        level=level,
        findings=(*_dropped(dropped), *plan.refused),
        truth=truth or {},
    )


def named_targets(targets: Mapping[str, PolicyLike] | PolicyLike) -> dict[str, PolicyLike]:
    """Targets by name; one alone is called "target"."""
    if isinstance(targets, Mapping):
        if not targets:
            raise UsageError("there is no target: name one policy at least")
        return {str(name): policy for name, policy in targets.items()}
    return {"target": targets}


def _listed(
    estimators: Sequence[str | Estimator] | str | Estimator | None,
) -> Sequence[str | Estimator]:
    if estimators is None:
        return DEFAULT
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
        hint = f"; did you mean {close!r}?" if close else ""
        raise UsageError(f"no estimator {wanted!r}{hint} There are {', '.join(BY_NAME)}.")
    return BY_NAME[wanted]()


@dataclass(frozen=True)
class _Plan:
    """Which estimators run, what they and the tables ask of the rows."""

    estimators: Mapping[str, Estimator]
    needs: Needs
    refused: tuple[Finding, ...]
    crossed: bool
    strict: bool


def _declare(
    chosen: Sequence[Estimator], loggers: Sequence[str], *, crossed: bool, strict: bool
) -> _Plan:
    needs, refused = _shown(loggers, crossed=crossed), []
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
    return _Plan(usable, needs, tuple(refused), crossed, strict)


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """The same estimator may be asked for twice, with other settings."""
    names = [name, *(f"{name}-{k}" for k in range(2, len(taken) + 3))]
    return next(n for n in names if n not in taken)


def _shown(loggers: Sequence[str], *, crossed: bool) -> Needs:
    """What the table of loggers shows, whoever estimates."""
    own = Needs((REWARD,), ((WEIGHT,), (WEIGHTED_REWARD,)), (WEIGHT,))
    if not crossed:
        return own
    groups = ((BALANCED_WEIGHT,), (BALANCED_REWARD,))
    return own | Needs(tuple(map(second_moment, loggers)), groups, (BALANCED_WEIGHT,))


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


def _result(view: MomentsByLogger, plan: _Plan, log: Log, level: float) -> TargetResult:
    estimates, intervals, findings = {}, {}, []
    for name, estimator in plan.estimators.items():
        try:
            estimate = estimator.estimate(view)
        except RefusedError as reason:
            if plan.strict:
                raise
            findings.append(Finding(reason.code, str(reason)))
            continue
        weight = WEIGHT if name == "naive" or not plan.crossed else BALANCED_WEIGHT
        limits = Limits(
            rows=sum(m.count for m in view.values()),
            reward_range=log.reward_range,
            largest_weight=max(m.max(weight) for m in view.values()),
        )
        estimates[name] = estimate
        intervals[name], noted = default_interval(estimate, level, limits)
        findings += [*estimate.findings, *noted]
    own = _own_overlap(view, crossed=plan.crossed)
    mixed = _mixed_overlap(view) if plan.crossed else None
    return TargetResult(estimates, intervals, own, mixed, tuple(dict.fromkeys(findings)))


def _own_overlap(view: MomentsByLogger, *, crossed: bool) -> dict[str, Overlap]:
    pooled_known = pooled_divergences(view) if crossed else {}
    return {
        i: _overlap(m, WEIGHT, pooled_known.get(i, _own_divergence(m))) for i, m in view.items()
    }


def _own_divergence(moments: Moments) -> float:
    return moments.var(WEIGHTED_REWARD)


def _mixed_overlap(view: MomentsByLogger) -> Overlap:
    together = pooled(view.values())
    rows = sum(m.count * m.var(BALANCED_REWARD) for m in view.values() if m.count > 1)
    return _overlap(together, BALANCED_WEIGHT, rows / together.count)


def _overlap(moments: Moments, weight: Term, divergence: float) -> Overlap:
    return Overlap(
        divergence=divergence,
        effective_rows=effective_rows(moments, weight),
        mean_weight=moments.mean(weight),
        largest_weight=moments.max(weight),
    )


def effective_rows(moments: Moments, weight: Term) -> float:
    r"""Rows of equal weight that would be worth as much, $(\sum w)^2 / \sum w^2$."""
    square = moments.mean_square(weight)
    return moments.count * moments.mean(weight) ** 2 / square if square > 0 else 0.0


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
        import json

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
    chosen = [BY_NAME[name]() for name in DEFAULT]
    plan = _declare(chosen, loggers, crossed=log.crossed, strict=False)
    needs = reduce(or_, (plan.needs.bind(name) for name in targets))
    return standalone_query(log, table, targets, needs, dialect)
