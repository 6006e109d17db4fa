"""Trained on these logs: when a logger has learned from rows that it now weighs.

A policy that was trained on a log gives more mass to actions that were lucky there.  In
the mixture's denominator this takes weight from the lucky rows, and every estimator that
pools denominators is biased down; its error may still be the smallest, but its interval
misses.  Own propensities, in shares that never saw a reward, stay honest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from poolwise.errors import Finding, UsageError, nearest
from poolwise.estimators.ips import Weighted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolwise.evaluation.results import TargetResult
    from poolwise.intervals.student import Interval
    from poolwise.log.log import Log
    from poolwise.moments.estimate import Estimate, Estimator

HONEST = Weighted(divergence="reward-free")
Conflicts = dict[str, list[str]]


def conflicts(trained_on: Mapping[str, Sequence[str]], loggers: Iterable[str]) -> Conflicts:
    """Policies that were trained on logs of these loggers, and on which.

    >>> conflicts({"v2": ["v1", "v0"], "v3": ["v0"]}, ["v1", "v2", "v3"])
    {'v2': ['v1']}
    """
    present = set(map(str, loggers))
    found = {
        str(name): [str(i) for i in logs if str(i) in present]
        for name, logs in trained_on.items()
    }
    return {name: logs for name, logs in found.items() if logs}


def check_names(trained_on: Mapping[str, Sequence[str]], known: Iterable[str]) -> None:
    """Refuse a name that is neither a logger nor a target: it may be a slip."""
    names = list(known)
    for name in map(str, trained_on):
        if name not in names:
            close = nearest(name, names)
            hint = f"; did you mean {close!r}?" if close else ""
            raise UsageError(f"`trained_on` names {name!r}, which is no logger{hint}")


def pools(estimator: Estimator, loggers: Sequence[str]) -> bool:
    """Whether an estimator's weights have the mixture in the denominator."""
    if estimator == HONEST:
        return False
    needs = estimator.needs(loggers, crossed=True)
    return any(f.name == "balanced_weight" for t in needs.terms for f in t.factors)


def with_honest_interval(
    result: TargetResult, estimators: Sequence[str], estimate: Estimate, interval: Interval
) -> TargetResult:
    """Show the reward-free estimate, and give its interval to those that pool."""
    name = HONEST.name
    intervals = {i: interval if i in estimators else v for i, v in result.intervals.items()}
    return replace(
        result,
        estimates={**result.estimates, name: estimate},
        intervals={**intervals, name: interval},
    )


def on_own_log(found: Conflicts, *, replaced: Sequence[str]) -> Finding:
    """What to know where a logger was trained on a log of these."""
    pairs = "; ".join(f"{i!r} on {', '.join(map(repr, logs))}" for i, logs in found.items())
    said = (
        f"The intervals of {', '.join(replaced)} are those of {HONEST.name}."
        if replaced
        else "No logger alone covers the target, so that no interval here is free of it."
    )
    return Finding(
        "trained-on-own-log",
        f"Loggers were trained on logs in this set ({pairs}). This biases estimates that pool "
        f"the loggers' probabilities, mostly down. {said}",
        "Take the interval as the answer; for a surer one, leave those logs out.",
        "alarm",
    )


def target_on_log(target: str, logs: Sequence[str]) -> Finding:
    """What to know where the target itself was trained on these rows."""
    return Finding(
        "target-trained-on-log",
        f"{target!r} was trained on rows of {', '.join(map(repr, logs))}: what it learned "
        "of their luck looks like merit here, and the estimates are too high.",
        "Evaluate it on rows that it has not seen.",
        "alarm",
    )


def trained_notes(log: Log, loggers: Sequence[str]) -> list[Finding]:
    """The same for results that have no interval to put in its place."""
    found = {i: logs for i, logs in conflicts(log.trained_on, loggers).items() if i in loggers}
    if not found:
        return []
    pairs = "; ".join(f"{i!r} on {', '.join(map(repr, logs))}" for i, logs in found.items())
    return [
        Finding(
            "trained-on-own-log",
            f"Loggers were trained on logs in this set ({pairs}). This biases estimates that "
            "pool the loggers' probabilities, and the intervals here do not allow for it.",
            "Evaluate each target by itself, or leave those logs out.",
            "alarm",
        )
    ]


def refuse_estimated(log: Log, what: str) -> None:
    """Say that an estimated mixture serves `evaluate` only."""
    if log.estimate_mixture and not log.crossed:
        raise UsageError(
            f"{what} does not estimate mixtures: give `propensities` under every logger, or "
            "evaluate the targets"
        )
