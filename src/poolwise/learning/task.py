"""Task: a request to learn, validated before any row is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from poolwise.errors import UsageError
from poolwise.intervals.student import check_level
from poolwise.learning.recipe import UNIFORM, Settings
from poolwise.learning.trees import library
from poolwise.log.eligible import restricted
from poolwise.log.policies import as_policy
from poolwise.log.policy import expression_of, is_distribution

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from poolwise.log.log import Log
    from poolwise.log.policy import Distribution

GIVEN = "anchor"  # name of an anchor that is a policy and not a logger

POOLS_PERIODS = (
    "learn pools the rows of all periods, and `period` says that policies learned from earlier "
    "ones: leave out `period`, and evaluate the policy on later periods"
)


@dataclass(frozen=True, eq=False)
class Task:
    """A request to learn, validated before any row is read.

    Attributes:
        log: The log, with the features among the columns that are read.
        features: Columns to learn from.
        actions: Actions to learn over; None for all that were logged.
        policies: Policies that give the probability of every action, by name.
        settings: Settings of the recipe.
        folds: Number of folds; 1 with a holdout.
        holdout: Share of the rows that are held out; 0 with folds.
        level: Level of intervals and bounds.
        seed: Seed of splits and of the sample.
        rows: Largest number of rows to learn from.
    """

    log: Log
    features: tuple[str, ...]
    actions: Sequence[Hashable] | None
    policies: Mapping[str, Distribution]
    settings: Settings
    folds: int
    holdout: float
    level: float
    seed: int
    rows: int


def anchor_name(anchor: str | Distribution | None) -> str:
    """Return the name of an anchor in settings and results."""
    if anchor is None:
        return UNIFORM
    return anchor if isinstance(anchor, str) else GIVEN


def policies_of(log: Log, anchor: str | Distribution | None) -> dict[str, Distribution]:
    """Return the loggers, and the anchor, that give the probability of every action."""
    named = {
        k: restricted(as_policy(p), log.eligible)
        for k, p in log.by_label.items()
        if p is not None
    }
    if anchor is not None and not isinstance(anchor, str):
        if not is_distribution(anchor):
            raise UsageError(
                "anchor must be 'best', the label of a logger, None, or a policy with a list "
                f"of actions, got {anchor!r}"
            )
        named[GIVEN] = cast("Distribution", restricted(anchor, log.eligible))
    return {name: policy for name, policy in named.items() if is_distribution(policy)}


def readable(log: Log, features: tuple[str, ...]) -> Log:
    """Return the log with the features, and the lists of actions, among its context."""
    given = [log.propensity, *log.by_label.values()]
    policies = [as_policy(p) for p in given if p is not None]
    all_columns = not log.context and any(expression_of(p) is None for p in policies)
    if all_columns:  # policies in Python see all columns
        return log
    lists = () if log.eligible is None else (log.eligible,)
    return replace(log, context=tuple(dict.fromkeys([*log.context, *features, *lists])))


def validate(task: Task, *, both: bool) -> None:
    """Reject settings that cannot be used."""
    log, settings = task.log, task.settings
    if settings.rounds:
        library()  # or one message that says how to install it
    check_level(task.level)
    roles = {log.reward, log.logger, log.action} & set(task.features)
    problems = [
        (not task.features, "`features` must name the columns to learn from"),
        (log.action is None, "learning needs the column of the logged `action`"),
        (
            bool(roles),
            f"features must not be the reward, logger or action: {sorted(map(str, roles))}",
        ),
        (both, "give either `folds` or `holdout`, not both"),
        (task.folds < 2 and not task.holdout, f"folds must be 2 or more, got {task.folds}"),
        (not 0 <= task.holdout < 1, f"holdout must be in (0, 1), got {task.holdout:g}"),
        (
            not 0 <= settings.epsilon <= 1,
            f"epsilon must be in [0, 1], got {settings.epsilon:g}",
        ),
        (not settings.tried, "strengths and smoothing must not be empty"),
        (any(not s > 0 for s in settings.strengths), "strengths must be positive"),
        (any(not 0 <= c <= 1 for c in settings.smoothing), "smoothing must be in [0, 1]"),
        (task.level <= 1 / 2, f"level must be above 0.5, got {task.level:g}"),
        (task.rows < 1, f"rows must be positive, got {task.rows}"),
        (task.log.period is not None, POOLS_PERIODS),
    ]
    for wrong, message in problems:
        if wrong:
            raise UsageError(message)
