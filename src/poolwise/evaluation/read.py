"""Read: what the estimators need becomes one pass over the rows.

Every verb resolves its targets and estimators here, opens the log and reads its moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poolwise.diagnosis.overlap import shown
from poolwise.engines.choose import as_engine
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import Finding, RefusedError, UsageError, nearest
from poolwise.estimators import BY_NAME, WITH_MODEL
from poolwise.moments.buckets import BUCKETS
from poolwise.moments.terms import BALANCED_WEIGHT, WEIGHT, Needs, Term, unite
from poolwise.rows.mixture import mixture_extra, with_mixture
from poolwise.rows.reward_model import model_extra

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from poolwise.engines.base import Rows
    from poolwise.engines.choose import EngineLike
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.buckets import Buckets
    from poolwise.moments.estimate import Estimator
    from poolwise.moments.moments import Moments, MomentsByLogger
    from poolwise.rows.learn import Extra
    from poolwise.rows.reward_model import ModelLike


def named_targets(targets: Mapping[str, PolicyLike] | PolicyLike) -> dict[str, PolicyLike]:
    """Targets by name; one alone is called "target"."""
    if isinstance(targets, Mapping):
        if not targets:
            raise UsageError("there is no target: name one policy at least")
        if "" in map(str, targets):
            raise UsageError("a target needs a name")
        if all(isinstance(value, int | float) for value in targets.values()):
            raise UsageError(
                "these targets are numbers: name a policy for each, as in "
                "{'candidate': 'p_candidate'}; one table of probabilities by action is "
                "{'candidate': pw.Table({...})}"
            )
        return {str(name): policy for name, policy in targets.items()}
    return {"target": targets}


def refuse_unlogged(views: Mapping[str, MomentsByLogger], weight: Term = WEIGHT) -> None:
    """Refuse targets of which the logs say nothing at all."""
    silent = [t for t, view in views.items() if not any(m.max(weight) for m in view.values())]
    if silent:
        found = ", ".join(map(repr, silent))
        raise RefusedError(
            "target-unlogged",
            f"target {found} gives probability 0 to every logged action: these logs say "
            "nothing about it. Check that the probability is that of the *logged* action.",
        )


def chosen_estimators(
    wanted: Sequence[str | Estimator] | str | Estimator | None,
    names: Mapping[str, Callable[[], Estimator]] = BY_NAME,
) -> list[Estimator]:
    """The estimators that were asked for, by name or as objects; None asks for all names."""
    return [_estimator(e, names) for e in _listed(wanted, names)]


def _listed(
    estimators: Sequence[str | Estimator] | str | Estimator | None, names: Iterable[str]
) -> Sequence[str | Estimator]:
    if estimators is None:
        return tuple(names)
    if isinstance(estimators, Sequence) and not isinstance(estimators, str):
        if not estimators:
            raise UsageError(f"no estimator was asked for; there are {', '.join(names)}")
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
    close = nearest(wanted, WITH_MODEL)
    hint = f"did you mean {close!r}? " if close else ""
    raise UsageError(f"no estimator {wanted!r}; {hint}There are {', '.join(WITH_MODEL)}.")


@dataclass(frozen=True)
class Plan:
    """Which estimators run, and what they and the tables ask of the rows.

    Attributes:
        estimators: Those that this log can serve, by name.
        needs: What they and the tables ask of one target.
        refused: Why others do not run.
        uncrossed: Names of those that only lack cross-propensities.
        crossed: Whether every logger's probability of every row is known.
        strict: Whether the estimators were asked for by name.
    """

    estimators: Mapping[str, Estimator]
    needs: Needs
    refused: tuple[Finding, ...]
    uncrossed: tuple[str, ...]
    crossed: bool
    strict: bool


def declare(
    chosen: Sequence[Estimator],
    loggers: Sequence[str],
    *,
    crossed: bool,
    strict: bool,
    modelled: bool = False,
) -> Plan:
    """Unite the needs of the estimators that this log can serve."""
    needs, refused, uncrossed = shown(loggers, crossed=crossed), [], []
    usable: dict[str, Estimator] = {}
    for estimator in chosen:
        try:
            asked = estimator.needs(loggers, crossed=crossed)
            needs |= require_model(estimator.name, asked, modelled=modelled)
        except RefusedError as reason:
            if strict:
                raise
            if crossed or not _served(estimator, loggers):
                refused.append(Finding(reason.code, str(reason)))
            else:
                uncrossed.append(estimator.name)
        else:
            usable[_free_name(estimator.name, usable)] = estimator
    return Plan(usable, needs, tuple(refused), tuple(uncrossed), crossed, strict)


def _served(estimator: Estimator, loggers: Sequence[str]) -> bool:
    """Whether cross-propensities are all that an estimator lacks."""
    try:
        estimator.needs(loggers, crossed=True)
    except RefusedError:
        return False
    return True


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """The same estimator may be asked for twice, with other settings."""
    names = [name, *(f"{name}-{k}" for k in range(2, len(taken) + 3))]
    return next(n for n in names if n not in taken)


@dataclass(frozen=True, eq=False)
class Read:
    """What the rows answered.

    Attributes:
        buckets: Moments of each bucket, by target; of all rows, where they were not split.
        whole: Moments of all rows, with tails, histograms and the pairs of targets; empty
            where the engine has none of them beside the buckets.
        means: Means of each bucket, of the terms that pairs of targets have.
    """

    buckets: Mapping[str, Buckets]
    whole: MomentsByLogger
    means: Buckets

    def counted(self, view: MomentsByLogger, target: str) -> dict[str, Moments]:
        """The moments of one target, with the tails and histograms of its weights."""
        return {i: self._counted(i, m, target) for i, m in view.items()}

    def _counted(self, logger: str, moments: Moments, target: str) -> Moments:
        if logger not in self.whole:
            return moments
        whole = self.whole[logger]
        bound = {t: t.bind(target) for t in (WEIGHT, BALANCED_WEIGHT)}
        bins = {t: whole.histograms[b] for t, b in bound.items() if b in whole.histograms}
        tails = {t: whole.tails[b] for t, b in bound.items() if b in whole.tails}
        return replace(moments, histograms=bins, tails=tails or moments.tails)


def read(
    rows: Rows, needs: Needs, targets: Sequence[str], pairs: Needs, *, split: bool
) -> Read:
    """Ask the rows.

    Args:
        rows: The rows.
        needs: What every bucket must tell of each target.
        targets: Names of the targets.
        pairs: What is to be known of all rows together.
        split: Whether there are to be buckets.
    """
    bound = [needs.bind(name) for name in targets]
    if not split:
        found = rows.moments(unite([*bound, pairs]))
        views = {name: [_view(found, needs, name)] for name in targets}
        return Read(views, found, ())
    *parts, means = rows.bucketed([*bound, Needs(means=pairs.terms)], BUCKETS)
    views = {
        name: [_view(bucket, needs, name) for bucket in mine]
        for name, mine in zip(targets, parts, strict=True)
    }
    if not rows.by_kernel:  # a database has no histograms, and no short pass
        return Read(views, {}, means)
    apart = [Needs(tails=b.tails, histograms=b.histograms) for b in bound]
    return Read(views, rows.moments(unite([*apart, pairs])), means)


def _view(moments: MomentsByLogger, needs: Needs, target: str) -> dict[str, Moments]:
    """The moments of one target, under the names that estimators use."""
    names = {term: term.bind(target) for term in needs.terms}
    return {logger: m.select(names) for logger, m in moments.items()}


@dataclass(frozen=True, eq=False)
class Beyond:
    """What an evaluation has beyond the log.

    Attributes:
        log: The log.
        extra: What the rows get.
        refused: Why there is no reward model, although one was given.
    """

    log: Log
    extra: Extra
    refused: tuple[Finding, ...] = ()

    @property
    def modelled(self) -> bool:
        return bool(self.extra.predicted_reward)

    def adapted(self, estimators: Sequence[Estimator]) -> list[Estimator]:
        """The estimators, with the mixture of the log under those that need it."""
        if not self.extra.mixture:
            return list(estimators)
        return [with_mixture(e, self.log) for e in estimators]

    def open(
        self, engine: EngineLike, targets: Mapping[str, PolicyLike]
    ) -> AbstractContextManager[Rows]:
        """Open the log with whatever it gets beyond its columns."""
        chosen = as_engine(engine, self.log)
        if not (self.modelled or self.extra.mixture):
            return chosen.open(self.log, targets)
        if not isinstance(chosen, DuckDB):
            raise UsageError(
                "only the DuckDB engine learns a reward model or an estimated mixture: leave "
                "`engine` out, or write the predictions as columns of the log first"
            )
        return chosen.open(self.log, targets, self.extra)


def beyond(
    log: Log, targets: Mapping[str, PolicyLike], model: ModelLike | None, *, strict: bool
) -> Beyond:
    """What the log gets: refusals are errors where an estimator was asked for by name."""
    mixed = mixture_extra(log)
    if model is None:
        return Beyond(log, mixed)
    try:
        found = model_extra(model, targets)
    except RefusedError as reason:
        if strict:
            raise
        return Beyond(log, mixed, (Finding(reason.code, str(reason)),))
    learners = (*found.learners, *mixed.learners)
    return Beyond(log, replace(found, mixture=mixed.mixture, learners=learners))


def require_model(name: str, needs: Needs, *, modelled: bool) -> Needs:
    """Refuse an estimator that needs a reward model where there is none."""
    if needs.modelled and not modelled:
        raise RefusedError(
            f"{name}-refused",
            f"{name} needs a reward model: give `model`, a scikit-learn regressor or "
            "classifier, or GivenModel(...) for predictions that are columns already.",
        )
    return needs
