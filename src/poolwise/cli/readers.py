"""Readers: logs in another format, and outcomes in another source, as options describe them."""

from __future__ import annotations

import importlib
import inspect
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poolwise.cli.loading import declare, role_values
from poolwise.errors import UsageError, did_you_mean
from poolwise.log.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from poolwise.cli.options import RoleOptions, SourceOptions

READERS: Mapping[str, str] = {  # function of each format
    "decisions": "poolwise.formats.decisions:from_decisions",
    "growthbook": "poolwise.formats.platforms:from_growthbook",
    "eppo": "poolwise.formats.platforms:from_eppo",
    "dsjson": "poolwise.formats.vw:from_dsjson",
    "open-bandit": "poolwise.formats.open_bandit:from_obd",
}
FIRST = {"source", "paths", "path", "save"}  # arguments that no option of the format gives


def read_log(
    logs: Sequence[str], roles: RoleOptions, source: SourceOptions
) -> tuple[Log, dict[str, str]]:
    """Return the log of a format, joined with its outcomes, and the targets that it has."""
    if source.format is None and source.format_option:
        raise UsageError("--format-option requires --format")
    if source.join and source.outcomes is None:
        raise UsageError("--join requires --outcomes")
    if source.format is None:
        plain = replace(source, outcomes=None, join=None)
        log, targets = declare(logs, roles, plain)
    else:
        log, targets = _read_format(logs, roles, source)
    if source.outcomes is None:
        return log, targets
    from poolwise.formats.outcomes import join_outcomes

    options = _arguments(join_outcomes, source.join or [], "--join", {"log", "outcomes"})
    if "key" not in options:
        raise UsageError("--join key=COLUMN is required: the column that outcomes refer to")
    return join_outcomes(log, source.outcomes, **options).log, targets


def _read_format(
    logs: Sequence[str], roles: RoleOptions, source: SourceOptions
) -> tuple[Log, dict[str, str]]:
    """Return the log of a format with the roles that options name, and its targets."""
    module, _, name = READERS[str(source.format)].partition(":")
    reader: Callable[..., Any] = getattr(importlib.import_module(module), name)
    accepted = inspect.signature(reader).parameters
    default = Log(reward="", propensity="", source="log.parquet")
    values = role_values(roles, source)
    given = {
        name: value
        for name, value in values.items()
        if value and value != getattr(default, name) and value is not None
    }
    if "reward" in accepted and "reward" not in given:
        raise UsageError(f"--reward is required with --format {source.format}")
    taken = FIRST | (values.keys() - {"logger"})
    options = _arguments(reader, source.format_option or [], "--format-option", taken)
    options |= {name: value for name, value in given.items() if name in accepted}
    found = reader(logs[0] if len(logs) == 1 else list(logs), **options)
    log, targets = (found, {}) if isinstance(found, Log) else (found.log, dict(found.targets))
    others = {name: value for name, value in given.items() if name not in accepted}
    return replace(log, **others), targets


def _arguments(
    function: Callable[..., Any], texts: Sequence[str], option: str, taken: set[str]
) -> dict[str, Any]:
    """Return the arguments of a function that KEY=VALUE give; JSON is parsed."""
    kinds = {
        name: str(parameter.annotation)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in taken
    }
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{option} must be KEY=VALUE, got {text!r}")
        if name not in kinds:
            hint = did_you_mean(name, kinds) or "."
            listed = ", ".join(kinds) or "none"
            raise UsageError(f"{option}: there is no {name!r}{hint} There is {listed}.")
        if name in values:
            raise UsageError(f"{option} names {name!r} twice")
        try:
            values[name] = _value(value, kinds[name])
        except (ValueError, RecursionError):
            raise UsageError(
                f"{option} {name} must be a number, or JSON, got {value!r}"
            ) from None
    return values


def _value(text: str, kind: str) -> Any:  # noqa: ANN401 - JSON
    """Return a number, a list or a table that a text holds, or the text.

    >>> _value('["a", "b"]', "Sequence[str]"), _value("0.5", "float"), _value("7", "str")
    (['a', 'b'], 0.5, '7')
    """
    if text[0] in "[{":
        return json.loads(text)
    return float(text) if kind == "float" else text
