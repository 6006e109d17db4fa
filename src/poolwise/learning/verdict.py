"""Verdict: the learned policy against every logger, on rows that it has not seen.

It is better if the one-sided lower bound of its gain over each logger is above 0.  All must
be, so none needs a correction for the number of loggers (an intersection-union test).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from poolwise.errors import Finding, RefusedError
from poolwise.evaluation.compare import compare
from poolwise.evaluation.design import AS_NOW
from poolwise.evaluation.evaluate import evaluate
from poolwise.evaluation.plan import plan
from poolwise.learning.learned import Choice, Gain, Learned
from poolwise.learning.policy import LearnedMixture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.evaluation.compare import Comparison
    from poolwise.evaluation.results import Evaluation
    from poolwise.learning.data import LearningRows
    from poolwise.learning.policy import LinearPolicy
    from poolwise.learning.recipe import Outcome
    from poolwise.learning.unseen import UnseenLog
    from poolwise.moments.estimate import Estimate

OF_OTHERS = frozenset({"model-only"})  # findings about estimators that are not recommended


def result(
    unseen: UnseenLog,
    outcomes: Sequence[Outcome],
    notes: Sequence[Finding],
    data: LearningRows,
    level: float,
) -> Learned:
    """Evaluate the learned policy, the greedy anchor and every logger, and compare them."""
    name = next(iter(unseen.targets))
    evaluation = evaluate(unseen.log, unseen.targets, level=level, model=unseen.model)
    crossed = unseen.log.crossed
    gains = (
        _paired(unseen, evaluation)
        if crossed
        else _apart(evaluation[name].estimates, data, level)
    )
    anchor = outcomes[0].policy.anchor
    shown = all(gain.shown for gain in gains)
    findings = [*notes, *evaluation.findings, *evaluation[name].findings]
    findings = [finding for finding in findings if finding.code not in OF_OTHERS]
    learned = Learned(
        policy=_policy(outcomes),
        evaluation=evaluation,
        comparison=_compared(unseen, anchor, level) if crossed else None,
        gains=tuple(gains),
        name=name,
        choices=tuple(
            Choice(k, o.policy.anchor, o.chosen) for k, o in enumerate(outcomes, start=1)
        ),
        candidates=tuple(outcome.candidates for outcome in outcomes),
        more_rows=None if shown else _more_rows(unseen, gains, level),
        findings=tuple(findings),
    )
    if learned.better:
        return learned
    return replace(learned, findings=(_not_better(learned), *findings))


def _not_better(learned: Learned) -> Finding:
    names = ", ".join(repr(gain.logger) for gain in learned.gains if not gain.shown)
    message = f"The learned policy was not shown to be better than {names}."
    return Finding("not-better", message, "Do not deploy it on this evidence.")


def _policy(outcomes: Sequence[Outcome]) -> LearnedMixture | LinearPolicy:
    policies = [outcome.policy for outcome in outcomes]
    if len(policies) == 1:
        return policies[0]
    return LearnedMixture(policies, [1 / len(policies)] * len(policies))


def _paired(unseen: UnseenLog, evaluation: Evaluation) -> list[Gain]:
    """Return the gain over each logger, paired by row, with its one-sided bound."""
    name, _, *loggers = unseen.targets
    return [_gain(unseen, evaluation, name, logger) for logger in loggers]


def _gain(unseen: UnseenLog, evaluation: Evaluation, name: str, logger: str) -> Gain:
    targets = {key: unseen.targets[key] for key in (name, logger)}
    sided = 2 * evaluation.level - 1  # its lower end is a one-sided bound
    try:
        compared = compare(
            unseen.log, targets, baseline=logger, level=sided, model=unseen.model
        )
    except RefusedError:  # the rows show no spread
        return Gain(logger, 0.0, math.inf, -math.inf, shown=False)
    difference = compared.difference(name)
    return Gain(
        logger,
        difference.value,
        difference.std_error,
        difference.interval.lower,
        shown=difference.verdict == "better",
    )


def _apart(estimates: Mapping[str, Estimate], data: LearningRows, level: float) -> list[Gain]:
    """Return gains over the mean rewards of loggers whose other propensities are unknown.

    The errors of both add up, which holds however the two depend on each other.
    """
    learned = next(iter(estimates.values()))
    critical = float(stats.norm.ppf(level))
    gains = []
    for k, logger in enumerate(data.loggers):
        own = data.reward[data.logger == k]
        error = learned.std_error
        error += float(own.std(ddof=1)) / math.sqrt(len(own)) if len(own) > 1 else math.inf
        value = learned.value - float(own.mean()) if len(own) else math.nan
        lower = value - critical * error
        gains.append(Gain(logger, value, error, lower, shown=bool(lower > 0)))
    return gains


def _compared(unseen: UnseenLog, anchor: str, level: float) -> Comparison | None:
    """Return the comparison of all policies; None if the rows show no spread."""
    baseline = anchor if anchor in unseen.targets else next(iter(unseen.targets))
    try:
        return compare(
            unseen.log, unseen.targets, baseline=baseline, level=level, model=unseen.model
        )
    except RefusedError:
        return None


def _more_rows(unseen: UnseenLog, gains: Sequence[Gain], level: float) -> float | None:
    """Return the new rows that would show gains of the estimated size; None if unknown.

    The interval must shrink by the ratio of the gain to the distance from its bound, and
    `plan` knows how many rows that takes.
    """
    weak = [gain for gain in gains if not gain.shown]
    if not all(-math.inf < gain.lower <= 0 < gain.value for gain in weak):
        return None
    ratios = [gain.value / (gain.value - gain.lower) for gain in weak]
    name, column = next(iter(unseen.targets.items()))
    estimator = "calibrated" if unseen.log.crossed else "naive"
    now = evaluate(unseen.log, {name: column}, estimator, level=level)
    interval = now[name].intervals[estimator]
    half_width = min(ratios) * (interval.upper - interval.lower) / 2
    try:
        outlook = plan(
            unseen.log,
            {name: column},
            half_width=half_width,
            estimators=[estimator],
            level=level,
        )
    except RefusedError:
        return None
    rows = outlook.option(estimator, AS_NOW).rows
    return rows if np.isfinite(rows) else None
