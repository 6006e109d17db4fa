"""What was done, in words: formulas, assumptions and versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMULAS = {
    "naive": "The mean, over all rows, of reward × weight. The weight of a row is the "
    "probability of its action under the target over that under the logger that wrote it.",
    "balanced": "The same with balanced weights: the target's probability over that of the "
    "mixture of all loggers, each in proportion to its rows.",
    "weighted": "The naive estimate of each log by itself, combined in the shares of least "
    "variance: in proportion to rows over divergence.",
    "self-normalised": "The balanced estimate over the mean of the balanced weights.",
    "calibrated": "The balanced estimate, corrected by regression on what is known without "
    "any rewards: the mean weight of the target and of each logger against the mixture is 1.",
    "doubly-robust": "The mean prediction of a reward model under the target, plus the "
    "balanced mean of what the model got wrong.",
    "doubly-robust-naive": "Doubly robust, with the weights of naive.",
    "doubly-robust-weighted": "Doubly robust, with the shares of weighted.",
    "direct-method": "The mean prediction of a reward model under the target, and nothing "
    "that would correct it.",
}
TERMS = (
    "± is one standard error.",
    "Divergence is the variance of one weighted reward: how little one row of a log tells.",
    "Share is the part of a log in the weighting of least variance.",
    "The fewest logs whose shares reach 90% are said to carry the answer.",
    "Effective rows are as many rows of equal weight as would be worth as much.",
    "The tail index says how heavy the tail of the weights is: from 0.5, without variance.",
    "It is 'none' where there are few distinct weights, '?' where it was not computed.",
    "Unsupported is how often the target plays what the logger never does.",
    "What the best logger earned is the mean reward of its own log, taken as exact.",
    "To compare with a logger in pairs, with its uncertainty: poolwise compare --baseline.",
    "Targets of the same group were not shown to differ.",
)
FINGERPRINT = (
    "A digest of the rows, rewards and weights of every logger and target, to eight digits: it "
    "is the same for the same rows, whatever engine read them and in whatever order."
)
ASSUMPTIONS = (
    "The probabilities of the loggers are those with which the actions were drawn.",
    "Every action that the target may play could have been logged by some logger.",
    "Contexts and rewards come from the same source in every log; see the tests of agreement.",
    "Rows, or clusters of rows where the log names them, do not influence each other.",
)


def formulas(estimators: Iterable[str]) -> list[tuple[str, str]]:
    """What each estimator computes, where it is one of ours.

    >>> formulas(["self-normalised", "mine"])
    [('self-normalised', 'The balanced estimate over the mean of the balanced weights.')]
    """
    return [(name, FORMULAS[name]) for name in dict.fromkeys(estimators) if name in FORMULAS]


def versions() -> list[str]:
    """What computed the numbers."""
    return [f"{name} {_version(name)}" for name in ("poolwise", "duckdb", "numpy")]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(version unknown)"
