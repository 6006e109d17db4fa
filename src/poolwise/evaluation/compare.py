"""Compare: which of several targets is better, and which differences are real."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.errors import UsageError, did_you_mean
from poolwise.evaluation.evaluate import results_of
from poolwise.evaluation.families import comparing, pair_needs
from poolwise.evaluation.read import opened
from poolwise.evaluation.request import named_targets, request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.engines.base import EngineLike
    from poolwise.evaluation.ranking import Comparison
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimator
    from poolwise.rows.reward_model import ModelLike


def compare(
    log: Log,
    targets: Mapping[str, PolicyLike],
    *,
    baseline: str | None = None,
    estimator: str | Estimator = "calibrated",
    level: float = 0.95,
    engine: EngineLike = None,
    model: ModelLike | None = None,
) -> Comparison:
    """Rank targets, and say which differences between them are real.

    Intervals of the estimates cover all targets together, those of the differences from
    the baseline cover all of these together, and so do those of all pairs, on which the
    groups of the ranking rest.  Every finding of `evaluate` appears here as well; a target
    whose probabilities cannot be right is neither better nor worse than another.

    Args:
        log: The rows and what their columns mean.
        targets: Probability of the logged action under each new policy, by name.
        baseline: Name of a target, or label of a logger, whose policy then joins the
            targets. Without one, targets are compared with each other only.
        estimator: Name of an estimator, or an estimator.
        level: Level of each family of intervals.
        engine: As for `evaluate`.
        model: A reward model, as for `evaluate`.
    """
    named = _with_baseline(log, named_targets(targets), baseline)
    if len(named) < 2:
        raise UsageError("compare needs at least two targets, or a target and a baseline")
    asked = request(log, named, estimator, level=level, model=model)
    with opened(asked, engine) as rows:
        (name,) = rows.served.estimators
        pairs = pair_needs(rows, name)
        answers = rows.read(pairs)
    evaluation = results_of(asked, answers, rows)
    return comparing(asked, answers, evaluation, pairs, name).comparison(baseline or "")


def _with_baseline(
    log: Log, named: dict[str, PolicyLike], baseline: str | None
) -> dict[str, PolicyLike]:
    """Return the targets, and the baseline's own policy where it is a logger."""
    if baseline is None or baseline in named:
        return named
    loggers = {str(label): policy for label, policy in (log.propensities or {}).items()}
    policy = loggers.get(baseline)
    if policy is not None and log.crossed:
        return {**named, baseline: policy}
    if baseline in loggers or not log.crossed:
        raise UsageError(
            f"baseline {baseline!r} is not a target; to use a logger as baseline, give "
            "`propensities` (--propensities) for every logger"
        )
    hint = did_you_mean(baseline, [*named, *loggers])
    raise UsageError(f"baseline {baseline!r} is neither a target nor a logger{hint}")
