"""Extras: what an evaluation may use beyond the columns of the log.

A reward model and an estimated mixture are learned from the rows before they are
averaged.  Which estimators use them is decided here, in one place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poolwise.engine.choose import as_engine
from poolwise.engine.duckdb import DuckDB
from poolwise.errors import RefusedError, UsageError
from poolwise.findings import Finding
from poolwise.learned.mixture import mixture_extra, with_mixture
from poolwise.learned.reward_model import model_extra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from poolwise.engine.base import Extra, Rows
    from poolwise.engine.choose import EngineLike
    from poolwise.estimators.base import Estimator
    from poolwise.learned.reward_model import ModelLike
    from poolwise.log import Log
    from poolwise.policy import PolicyLike
    from poolwise.terms import Needs


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
