"""Request: a question about a log, validated before any row is read.

`request` validates the arguments of a verb; `select_estimators` settles which estimators the
loggers can
serve, and the moments that these need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from poolwise.diagnosis.overlap import list_needs
from poolwise.diagnosis.provenance import HONEST
from poolwise.errors import Finding, RefusedError, UsageError, did_you_mean
from poolwise.estimators import ALL, by_default, find_shrunk
from poolwise.estimators.clicks import of_clicks
from poolwise.evaluation.per_request import refuse_clicks, refuse_estimates, refuse_lists
from poolwise.intervals.base import DEFAULT, check_kind, find_kind
from poolwise.intervals.skew import interval_needs
from poolwise.intervals.student import SIDES, Sides, check_level
from poolwise.log.adapters import as_policy
from poolwise.log.metrics import list_measures, name_metrics
from poolwise.log.policy import find_expression
from poolwise.moments.coverage import Coverage, refuse_uncrossed
from poolwise.rows.learners import NO_EXTRA
from poolwise.rows.mixture import mixture_extra
from poolwise.rows.reward_model import model_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.intervals.base import IntervalKind, IntervalName
    from poolwise.log.log import Log
    from poolwise.log.metrics import Metric, MetricsLike
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.terms import Needs
    from poolwise.rows.learners import Extra
    from poolwise.rows.reward_model import ModelLike


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
        interval: Kind of interval.
        sides: Sides of the intervals.
        extra: Columns that the rows get from models, and that of segments.
        findings: Reasons why a given reward model is not used.
        tests: Number of answers that this one is part of, segments times targets: findings
            allow for so many tests of a kind.
        metrics: Metrics by name; empty for the log's own reward alone.
    """

    log: Log
    targets: Mapping[str, PolicyLike]
    estimators: tuple[Estimator, ...] = ()
    strict: bool = True
    level: float = 0.95
    interval: IntervalKind = DEFAULT
    sides: Sides = "two"
    extra: Extra = NO_EXTRA
    findings: tuple[Finding, ...] = ()
    tests: int = 1
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def measures(self) -> tuple[str, ...]:
        """Columns and expressions that are used as the reward; empty text for the log's own."""
        return ("", *self.extra.measures)

    @property
    def ratios(self) -> tuple[tuple[str, str], ...]:
        """Measures above and below each ratio among the metrics, each pair once."""
        pairs = [
            (self.find_measure(m.reward), self.find_measure(m.per))
            for m in self.metrics.values()
            if m.per is not None
        ]
        return tuple(dict.fromkeys(pairs))

    def find_measure(self, text: str) -> str:
        """Return the measure of a column or expression; empty for the log's own reward."""
        return "" if text == self.log.reward else text

    def measuring(self, measure: str) -> Request:
        """Return the question about one measure, as if it were the reward of the log."""
        if not measure:
            return self
        return replace(self, log=replace(self.log, reward=measure, reward_range=None))

    @property
    def by(self) -> str | None:
        """Column or expression of segments; None without them."""
        return self.extra.segment

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the targets."""
        return tuple(self.targets)

    @property
    def clustered(self) -> bool:
        """True if buckets hold whole clusters, and errors are those between buckets."""
        return self.log.cluster is not None and self.interval.clusters == "whole"

    def needs(self, estimator: Estimator, coverage: Coverage) -> Needs:
        """Return the moments that an estimator needs of a log with this coverage."""
        needs, name = estimator.needs(coverage), estimator.name
        if needs.modelled and not self.extra.predicted_reward:
            raise RefusedError(
                f"{name}-refused",
                f"{name} needs a reward model: give `model`, a scikit-learn regressor or "
                "classifier, or GivenModel(...) for predictions that are columns already.",
            )
        return needs


def request(
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    estimators: Sequence[str | Estimator] | str | Estimator | None = None,
    *,
    level: float = 0.95,
    interval: IntervalName = "auto",
    sides: Sides = "two",
    model: ModelLike | None = None,
    metrics: MetricsLike | None = None,
) -> Request:
    """Validate a question; the arguments are those of `evaluate`."""
    check_level(level)
    if sides not in SIDES:
        raise UsageError(f"sides must be one of {', '.join(map(repr, SIDES))}, got {sides!r}")
    kind = find_kind(interval)
    check_kind(kind, log)
    named = named_targets(targets)
    strict = estimators is not None
    metrics_by_name = name_metrics(metrics, log)
    measures = list_measures(metrics_by_name, log)
    extra, findings = _extra(log, named, model, measures, strict=strict)
    modelled, periods = bool(extra.predicted_reward), log.period is not None
    by_name = by_default(modelled=modelled, periods=periods, clicks=log.clicks is not None)
    if estimators is None:
        estimators = tuple(by_name)
    elif isinstance(estimators, str) or not isinstance(estimators, Sequence):
        estimators = (estimators,)
    if not estimators:
        raise UsageError(f"at least one estimator is required, of {', '.join(by_name)}")
    chosen = tuple(_estimator(e, by_name) for e in estimators)
    if log.clicks is not None:
        chosen = tuple(map(of_clicks, chosen))
    if kind is not DEFAULT:
        refuse_clicks(log, f"interval={interval!r}")
    if kind.guaranteed:
        refuse_estimates(log, f"interval={interval!r}")
    if measures or any(metric.ratio for metric in metrics_by_name.values()):
        _refuse_measures(log, kind)
    return Request(
        log,
        named,
        chosen,
        strict,
        level,
        kind,
        sides,
        extra,
        findings,
        metrics=metrics_by_name,
    )


def _refuse_measures(log: Log, kind: IntervalKind) -> None:
    """Raise UsageError if a log or a question has the log's own reward alone."""
    alone = "evaluate each as the `reward` of a log of its own"
    lacks = {
        "a log of clicks": (log.clicks is not None, "`worth` of click_log weighs its clicks"),
        "a log with `requests`": (log.requests is not None, alone),
        f"interval={kind.name!r}": (kind.guaranteed, alone),
    }
    for what, (lacking, advice) in lacks.items():
        if lacking:
            raise UsageError(
                f"{what} has one reward, and `metrics` may name no other than {log.reward!r}: "
                f"{advice}"
            )


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


def _estimator(
    wanted: str | Estimator, by_name: Mapping[str, Callable[[], Estimator]]
) -> Estimator:
    if not isinstance(wanted, str):
        return wanted
    if (
        wanted in ALL
    ):  # without a model or a period, `select_estimators` refuses it with its reason
        return by_name.get(wanted, ALL[wanted])()
    shrunk = find_shrunk(wanted)
    if shrunk is not None:
        return shrunk
    hint = did_you_mean(wanted, ALL)
    raise UsageError(f"estimators are {', '.join(ALL)}; got {wanted!r}{hint}")


def _extra(
    log: Log,
    targets: Mapping[str, PolicyLike],
    model: ModelLike | None,
    measures: tuple[str, ...],
    *,
    strict: bool,
) -> tuple[Extra, tuple[Finding, ...]]:
    """Return the columns that the rows get, and why a given model is not used."""
    mixed = replace(mixture_extra(log), measures=measures)
    if model is None:
        return mixed, ()
    refuse_clicks(log, "`model`")
    refuse_lists(log, "`model`")
    try:
        modelled = model_extra(
            model, targets, log.eligible, densities=log.densities, measures=measures
        )
    except RefusedError as reason:
        if strict:
            raise
        return mixed, (Finding(reason.code, str(reason)),)
    learners = (*modelled.learners, *mixed.learners)
    modelled = replace(modelled, mixture=mixed.mixture, learners=learners)
    return replace(modelled, measures=measures), ()


def add_segments(asked: Request, by: str | None) -> Request:
    """Return the question with segments; refuse those that segments cannot answer."""
    if by is None:
        return asked
    log = asked.log
    decided = _find_columns(log.reward) | ({log.action} if log.action else set())
    decided = decided.union(*map(_find_columns, asked.extra.measures))
    if log.clicks is not None:
        decided |= {*log.clicks.ranks, *log.clicks.ranks.values(), log.clicks.position}
    read = _find_columns(by)
    if any(_is_inside(a, b) or _is_inside(b, a) for a in read for b in decided):
        raise UsageError(
            f"`by` must be known before the action, as a country or a device is, got {by!r}, "
            "which the action or its reward decides"
        )
    if log.period is not None:
        raise UsageError("`by` must be left out if the log has a `period`")
    if asked.interval.guaranteed:
        raise UsageError(
            f"interval={asked.interval.name!r} has no segments: use interval='auto' with `by`"
        )
    if log.estimated and (others := sorted(read - {*log.context})):
        raise UsageError(
            f"`by` reads {', '.join(map(repr, others))}: list it in `context`, because "
            "estimated propensities are right in a segment only if they depend on it"
        )
    if log.mixture is not None or log.needs_classifier:
        raise UsageError(
            "`by` requires the mixture of each segment, which `propensities` of every logger "
            "give, but not one `mixture` of all rows"
        )
    return replace(asked, extra=replace(asked.extra, segment=by))


def _find_columns(text: PolicyLike) -> set[str]:
    """Return the columns that a name or an SQL expression reads."""
    try:
        tree = find_expression(as_policy(text))
    except UsageError:  # a name that is no expression
        return {str(text)}
    columns = () if tree is None else tree.find_all(exp.Column)
    return {".".join(part.name for part in node.parts) for node in columns}


def _is_inside(name: str, other: str) -> bool:
    """Test if a column is another one, or a struct with that field."""
    return f"{other}.".startswith(f"{name}.")


@dataclass(frozen=True)
class Served:
    """Estimators that a log can serve, and their needs.

    Attributes:
        coverage: Which probabilities of the log are known.
        estimators: Usable estimators by name.
        needs: Needs of the estimators and of the tables, for one target.
        refused: Reasons why others are not used.
        uncrossed: Names of estimators that lack nothing but cross-propensities.
    """

    coverage: Coverage
    estimators: Mapping[str, Estimator]
    needs: Needs
    refused: tuple[Finding, ...] = ()
    uncrossed: tuple[str, ...] = ()


def select_estimators(asked: Request, coverage: Coverage, *, shaped: bool = False) -> Served:
    """Unite the needs of the estimators that a log with this coverage can serve.

    The needs of skewed intervals are among them if `shaped`.
    """
    crossed = coverage.crossed
    ratios = coverage.loggers if crossed else ()
    needs, refused, uncrossed = list_needs(coverage, shaped=shaped), [], []
    if shaped and crossed and asked.log.trained_on:
        needs |= interval_needs(HONEST.needs(coverage))
    usable: dict[str, Estimator] = {}
    for estimator in asked.estimators:
        try:
            own = asked.needs(estimator, coverage)
            needs |= own | interval_needs(own, ratios) if shaped else own
        except RefusedError as reason:
            only_crossing = not crossed and _lacks_only_crossing(estimator, coverage)
            some = len(coverage.missing) < len(coverage.loggers)
            if asked.strict and only_crossing and some:
                refuse_uncrossed(estimator.name, coverage)
            if asked.strict:
                raise
            if not only_crossing:
                refused.append(Finding(reason.code, str(reason)))
            else:
                uncrossed.append(estimator.name)
        else:
            rough = coverage.mixture == "estimate" and own.mixed
            name = f"{estimator.name}-estimated" if rough else estimator.name
            usable[_free_name(name, usable)] = estimator.adapt(coverage)
    return Served(coverage, usable, needs, tuple(refused), tuple(uncrossed))


def _lacks_only_crossing(estimator: Estimator, coverage: Coverage) -> bool:
    try:
        estimator.needs(Coverage.complete(coverage.loggers, coverage.cells))
    except RefusedError:
        return False
    return True


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """Return the name, numbered where the caller gave the same estimator twice."""
    names = [name, *(f"{name}-{k}" for k in range(2, len(taken) + 3))]
    return next(n for n in names if n not in taken)
