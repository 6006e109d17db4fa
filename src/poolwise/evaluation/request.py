"""Request: a question about a log, validated before any row is read.

Every verb builds one: the same names, levels, intervals and models are refused everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from poolwise.errors import Finding, RefusedError, UsageError, did_you_mean
from poolwise.estimators import BY_NAME, WITH_MODEL
from poolwise.estimators.crossfit import CrossFitted
from poolwise.estimators.given_mixture import with_mixture
from poolwise.intervals.guarantees import GUARANTEES, Guarantee, known_range
from poolwise.intervals.student import SIDES, Sides, check_level
from poolwise.rows.learn import NOTHING
from poolwise.rows.mixture import mixture_extra
from poolwise.rows.reward_model import model_extra

if TYPE_CHECKING:
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimator
    from poolwise.rows.learn import Extra
    from poolwise.rows.reward_model import ModelLike

IntervalMethod = Literal["auto", "student", "jackknife", "bootstrap"] | Guarantee
METHODS = ("auto", "student", "jackknife", "bootstrap", *GUARANTEES)
BY_BUCKET = frozenset({"jackknife", "bootstrap"})


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
    def modelled(self) -> bool:
        """True if the rows get predictions of a reward model."""
        return bool(self.extra.predicted_reward)

    @property
    def split(self) -> bool:
        """True if the pass must split the rows into buckets."""
        folded = any(isinstance(e, CrossFitted) for e in self.estimators)
        return folded or self.method in BY_BUCKET

    @property
    def clustered(self) -> bool:
        """True if buckets hold whole clusters, and errors are those between buckets."""
        return self.log.cluster is not None and self.method in BY_BUCKET


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
    names = WITH_MODEL if extra.predicted_reward else BY_NAME
    chosen = [_estimator(e, names) for e in _listed(estimators, names)]
    if extra.mixture:
        chosen = [with_mixture(e, log) for e in chosen]
    return Request(log, named, tuple(chosen), strict, level, method, sides, extra, findings)


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
        return "jackknife" if log.cluster is not None else "student"
    if interval in GUARANTEES:
        known_range(log, interval)
        if log.cluster is not None:
            raise UsageError(
                f"interval={interval!r} requires independent rows, and rows of a `cluster` are "
                "not: use interval='auto', which leaves out clusters in turn, or no `cluster` "
                "if rows are independent"
            )
    return interval


def _listed(
    estimators: Sequence[str | Estimator] | str | Estimator | None, names: Iterable[str]
) -> Sequence[str | Estimator]:
    if estimators is None:
        return tuple(names)
    if isinstance(estimators, Sequence) and not isinstance(estimators, str):
        if not estimators:
            raise UsageError(f"at least one estimator is required, of {', '.join(names)}")
        return estimators
    return [estimators]


def _estimator(
    wanted: str | Estimator, names: Mapping[str, Callable[[], Estimator]]
) -> Estimator:
    if not isinstance(wanted, str):
        return wanted
    if wanted in names:
        return names[wanted]()
    if wanted in WITH_MODEL:  # refused with its reason once its needs are known
        return WITH_MODEL[wanted]()
    hint = did_you_mean(wanted, WITH_MODEL)
    raise UsageError(f"estimators are {', '.join(WITH_MODEL)}; got {wanted!r}{hint}")


def _extra(
    log: Log, targets: Mapping[str, PolicyLike], model: ModelLike | None, *, strict: bool
) -> tuple[Extra, tuple[Finding, ...]]:
    """Return the columns that the rows get, and why a given model is not used."""
    mixed = mixture_extra(log)
    if model is None:
        return mixed, ()
    try:
        modelled = model_extra(model, targets)
    except RefusedError as reason:
        if strict:
            raise
        return mixed, (Finding(reason.code, str(reason)),)
    learners = (*modelled.learners, *mixed.learners)
    return replace(modelled, mixture=mixed.mixture, learners=learners), ()
