"""Trained on these logs: when a logger has learned from rows that it now weighs.

A policy that was trained on a log gives more mass to actions that were lucky there.  In
the mixture's denominator this takes weight from the lucky rows, and every estimator that
pools denominators is biased down; its error may still be the smallest, but its interval
misses.  Own propensities, in shares that never saw a reward, stay honest.
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
            hint = did_you_mean(name, names)
            raise UsageError(f"`trained_on` names {name!r}, which is not a logger{hint}")


def pools(estimator: Estimator, loggers: Sequence[str]) -> bool:
    """Whether an estimator's weights have the mixture in the denominator."""
    if estimator == HONEST:
        return False
    needs = estimator.needs(loggers, crossed=True)
    return any(f.name == "balanced_weight" for t in needs.terms for f in t.factors)


def on_own_log(trained: Conflicts, *, replaced: Sequence[str] | None = None) -> Finding:
    """Return the finding that loggers were trained on logs of this set.

    Args:
        trained: The logs that each of them was trained on.
        replaced: Estimators whose intervals were replaced; None where intervals do not
            allow for it at all.
    """
    pairs = "; ".join(f"{i!r} on {', '.join(map(repr, logs))}" for i, logs in trained.items())
    if replaced is None:
        effect = "The intervals here do not allow for it."
        advice = "Evaluate each target by itself, or leave those logs out."
    elif replaced:
        effect = f"The intervals of {', '.join(replaced)} are those of {HONEST.name}."
        advice = "Use the interval as the answer; for a narrower one, leave those logs out."
    else:
        effect = "No single logger covers the target, so every interval here is affected."
        advice = "Leave those logs out."
    return Finding(
        "trained-on-own-log",
        f"Loggers were trained on logs in this set ({pairs}). This biases estimates that pool "
        f"the loggers' probabilities, mostly down. {effect}",
        advice,
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
