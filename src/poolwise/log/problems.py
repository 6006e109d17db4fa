"""Problems: what is wrong with the arguments of a log, each in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from poolwise.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from poolwise.log.log import Log

UTC = "UTC"  # time zone of a log that names none
LARGEST_REWARD = 1e100  # of a range, so that its square, times weights, does not overflow


def role_problems(log: Log) -> Iterator[str]:
    """Yield the problems of the source and of the roles of its columns."""
    if log.source is None and log.table is None:
        yield "a `source` is required, or a `table` with a `connection`"
    elif log.source is not None and log.table is not None:
        yield "give either a `source` or a `table`, not both"
    elif log.connection is not None and log.table is None:
        yield "`connection` requires `table`: the name of a table, or a SELECT"
    mapped = isinstance(log.source, Mapping)
    if log.estimated:
        yield from _estimate_problems(log)
    elif log.propensity is None and not log.crossed:
        yield (
            "`propensity` is required (of the logged action under the logger that wrote the "
            "row), or `propensities` of every logger"
        )
    if not mapped and log.logger is None and len(log.by_label) > 1:
        yield "`propensities` of several loggers require the column of the `logger`"
    if mapped and log.logger is not None:
        yield "`logger` must be left out if the source is a mapping of loggers"
    yield from _name_problems(log)
    trained: object = log.trained_on  # annotations are not enforced
    lists = trained.values() if isinstance(trained, Mapping) else ("",)
    if any(isinstance(names, str) or not isinstance(names, Sequence) for names in lists):
        yield "`trained_on` must map loggers to lists of loggers: {'v2': ['v1']}"


def _estimate_problems(log: Log) -> Iterator[str]:
    """Yield the problems of a log whose propensities are to be estimated."""
    if log.action is None:
        yield "propensities='estimate' requires `action`, the column of the logged action"
    if not log.context:
        yield "propensities='estimate' requires `context`, the columns that decided the action"
    given = {
        "logger": log.logger is not None or isinstance(log.source, Mapping),
        "propensity": log.propensity is not None,
        "mixture": log.mixture is not None,
        "period": log.period is not None,
        "eligible": log.eligible is not None,
        "densities": log.densities,
        "requests": log.requests is not None,
        "clicks": log.clicks is not None,
    }
    if any(given.values()):
        names = ", ".join(f"`{name}`" for name, is_given in given.items() if is_given)
        yield (
            f"propensities='estimate' has no meaning with {names}: all rows count as rows of "
            "one logger that played one action in each. Leave that out; if loggers or periods "
            "played differently for a reason that affects rewards, list their column in "
            "`context`"
        )


def _name_problems(log: Log) -> Iterator[str]:
    names: Iterable[object] = log.context  # annotations are not enforced
    others: list[object] = [names] if isinstance(names, str) else []
    others += [name for name in names if not isinstance(name, str)]
    if others:
        yield f"`context` must be a list of columns, got {others[0]!r}"
    roles: Mapping[str, object] = {"action": log.action, "eligible": log.eligible}
    for role, name in roles.items():
        if not isinstance(name, str | None):
            yield f"`{role}` must be a column, got a value of type {type(name).__name__}"


def rule_problems(log: Log) -> Iterator[str]:
    """Yield the problems of the rules."""
    classifier = log.estimate_mixture
    if not isinstance(classifier, bool) and not hasattr(classifier, "predict_proba"):
        yield f"`estimate_mixture` must be True or a classifier, got {classifier!r}"
    if log.confounders not in {None, "unknown", "in-context"}:
        yield f"`confounders` must be 'in-context' or 'unknown', got {log.confounders!r}"
    if log.mixture is not None and (log.crossed or classifier is not False):
        yield (
            "`mixture` must be left out if `propensities` are known for every logger, or if "
            "`estimate_mixture` is set"
        )
    yield from _group_problems(log)
    if log.eligible is not None and log.densities:
        yield "`eligible` lists actions, and `densities` are those of a number: leave one out"
    yield from _zone_problems(log.timezone)
    if log.on_fault not in {"raise", "drop"}:
        yield f"`on_fault` must be 'raise' or 'drop', got {log.on_fault!r}"
    if log.requests is not None:
        drops = log.on_fault == "drop"
        yield from log.requests.problems(clustered=log.cluster is not None, drops=drops)
    if log.clicks is not None:
        yield from log.clicks.problems(log)
    if not log.replay_tolerance >= 0:
        yield f"`replay_tolerance` must be 0 or more, got {log.replay_tolerance}"
    lower, upper = (0.0, 1.0) if log.reward_range is None else log.reward_range
    if not -LARGEST_REWARD <= lower < upper <= LARGEST_REWARD:
        yield (
            "`reward_range` must be (lower, upper) with lower < upper, both within "
            f"±{LARGEST_REWARD:g}, got {log.reward_range}"
        )


def _group_problems(log: Log) -> Iterator[str]:
    given: object = log.action_group  # annotations are not enforced
    if given is None:
        return
    if not isinstance(given, str | Mapping) or not given:
        yield (
            "`action_group` must be a column, or map actions to groups, as in "
            f"{{'tea': 'drinks'}}; got {given!r}"
        )
    if log.action is None:
        yield "`action_group` requires the column of the `action`"
    others: Mapping[str, object] = {
        "densities": log.densities,
        "log_probabilities": log.log_probabilities,
        "requests": log.requests,
        "estimate_mixture": log.estimate_mixture is not False,
    }
    for role in (role for role, value in others.items() if value):
        yield f"`action_group` requires the probability of each action: leave out `{role}`"


def _zone_problems(zone: str) -> Iterator[str]:
    from zoneinfo import available_timezones

    zones = {UTC} if zone == UTC else available_timezones()
    if zones and zone not in zones:  # a system may have no list
        hint = did_you_mean(str(zone), zones)
        yield f"`timezone` must be a name such as 'Europe/Berlin', got {zone!r}{hint}"
