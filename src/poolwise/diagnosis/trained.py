"""Loggers that were trained on logs of the same set.

A policy trained on a log gives more probability to actions that had high rewards there by
chance.  In the denominator of the mixture this lowers the weights of these rows, so every
estimator that pools denominators is biased down and its interval undercovers.  Estimates
from own propensities, with shares that do not depend on rewards, remain valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.errors import Finding, UsageError, did_you_mean
from poolwise.estimators.ips import Weighted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from poolwise.moments.estimate import Estimator

HONEST = Weighted(divergence="reward-free")
Conflicts = dict[str, list[str]]


def conflicts(trained_on: Mapping[str, Sequence[str]], loggers: Iterable[str]) -> Conflicts:
    """Return the policies that were trained on logs of these loggers, with the logs.

    >>> conflicts({"v2": ["v1", "v0"], "v3": ["v0"]}, ["v1", "v2", "v3"])
    {'v2': ['v1']}
    """
    present = set(map(str, loggers))
    logs_here = {
        str(name): [str(i) for i in logs if str(i) in present]
        for name, logs in trained_on.items()
    }
    return {name: logs for name, logs in logs_here.items() if logs}


def on_own(trained_on: Mapping[str, Sequence[str]], loggers: Sequence[str]) -> Conflicts:
    """Return the loggers among these that were trained on one of their logs."""
    trained = conflicts(trained_on, loggers)
    return {i: logs for i, logs in trained.items() if i in loggers}


def check_names(trained_on: Mapping[str, Sequence[str]], policies: Iterable[str]) -> None:
    """Reject names that are neither a logger nor a target."""
    names = list(policies)
    for name in map(str, trained_on):
        if name not in names:
            hint = did_you_mean(name, names)
            raise UsageError(f"`trained_on` must name loggers or targets, got {name!r}{hint}")


def pools(estimator: Estimator, loggers: Sequence[str]) -> bool:
    """Test if an estimator's weights have the mixture in the denominator."""
    if estimator == HONEST:
        return False
    needs = estimator.needs(loggers, crossed=True)
    return any(f.name == "balanced_weight" for t in needs.terms for f in t.factors)


def on_own_log(trained: Conflicts, *, replaced: Sequence[str] | None = None) -> Finding:
    """Return the finding that loggers were trained on logs of this set.

    Args:
        trained: Logs that each logger was trained on.
        replaced: Estimators whose intervals were replaced; None if the intervals do not
            allow for the bias.
    """
    pairs = "; ".join(f"{i!r} on {', '.join(map(repr, logs))}" for i, logs in trained.items())
    if replaced is None:
        effect = "The intervals do not allow for this bias."
        advice = "Evaluate each target by itself, or leave those logs out."
    elif replaced:
        effect = f"The intervals of {', '.join(replaced)} are those of {HONEST.name}."
        advice = "Use the interval as the answer; for a narrower one, leave those logs out."
    else:
        effect = "No single logger covers the target, so every interval is affected."
        advice = "Leave those logs out."
    return Finding(
        "trained-on-own-log",
        f"Loggers were trained on logs in this set ({pairs}). This biases estimates that pool "
        f"the loggers' probabilities, mostly down. {effect}",
        advice,
        "alarm",
    )


def target_on_log(target: str, logs: Sequence[str]) -> Finding:
    """Return the finding that the target was trained on these rows."""
    return Finding(
        "target-trained-on-log",
        f"{target!r} was trained on rows of {', '.join(map(repr, logs))} and overfits their "
        "rewards, so the estimates are too high.",
        "Evaluate it on rows that were not used for training.",
        "alarm",
    )
