"""Keys: the keys of question files, each an option, and the types of their values."""

from __future__ import annotations

import json
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin

from poolwise.cli.options import (
    ClickOptions,
    CompareOptions,
    DecideOptions,
    EvaluateOptions,
    LearnOptions,
    PlanOptions,
    RoleOptions,
    SourceOptions,
    WatchOptions,
    list_options,
)
from poolwise.errors import UsageError
from poolwise.log.log import as_line

if TYPE_CHECKING:
    import inspect
    from collections.abc import Iterable

PLURALS = {
    "target": "targets",
    "estimator": "estimators",
    "metric": "metrics",
    "reader_option": "reader_options",
    "format_option": "format_options",
}
POLICIES = {"target", "propensities"}  # options whose values may be tables of probabilities


class Key(NamedTuple):
    """A key of question files.

    Attributes:
        option: Name of the option.
        repeated: True if the option can be repeated.
        kinds: Types that the option takes; a Literal lists its values.
    """

    option: str
    repeated: bool
    kinds: tuple[Any, ...] = (str,)

    @property
    def name(self) -> str:
        if self.option == "logs":
            return "log"
        return PLURALS.get(self.option, self.option) if self.repeated else self.option

    def typed(self, path: str, value: Any) -> Any:  # noqa: ANN401 - of TOML
        """Return a TOML value in the type of the option; raise UsageError if it has another."""
        try:
            if self.option == "reward_range" and isinstance(value, list):
                return [_convert_number(part) for part in value]
            if self.option in POLICIES and isinstance(value, dict):
                value = {name: _write_table(part) for name, part in value.items()}
            if self.option == "format_option" and isinstance(value, dict):
                value = {name: _as_json(part) for name, part in value.items()}
            if self.option == "metric" and isinstance(value, dict):
                value = {name: _metric(part) for name, part in value.items()}
            return (
                _flat(value)
                if self.repeated
                else _convert_value(value, self.kinds, self.choices)
            )
        except (KeyError, OverflowError, TypeError, ValueError):
            text = as_line(repr(value))
            raise UsageError(
                f"{path}: `{self.name}` must be {self.wanted}, got {text}"
            ) from None

    @property
    def wanted(self) -> str:
        """Type of a value, in words."""
        if self.option == "reward_range":
            return "a list of two numbers"
        if self.option in POLICIES:
            return "text, a list of texts, or a table of texts and of tables of probabilities"
        if self.option == "metric":
            return "a table of texts and of tables with reward, per, better, primary, guard"
        if self.repeated:
            return "text, a list of texts or a table of them"
        choices = [repr(choice) for choice in self.choices]
        names = {bool: "true or false", float: "a number", int: "a whole number"}
        return ", ".join(choices) or names.get(self.kinds[0], "text")

    @property
    def choices(self) -> list[Any]:
        """Values of a Literal; none for other types."""
        return [choice for kind in self.kinds for choice in get_args(kind)]

    def as_option(self, value: object) -> object:
        """Return a typed value as the command line gives it: texts of tables are NAME=VALUE."""
        if self.option == "reward_range" and isinstance(value, list):
            return ",".join(map(str, value))
        return texts(value) if self.option == "logs" or self.repeated else value


def _convert_value(value: Any, kinds: tuple[Any, ...], choices: list[Any]) -> Any:  # noqa: ANN401 - of TOML
    """Return one value in a type; raise TypeError or ValueError if it has another."""
    if choices or bool in kinds:
        if value not in (choices or [True, False]) or type(value) not in {str, bool}:
            raise ValueError
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    if int in kinds:
        return int(str(value))
    return _convert_number(value) if float in kinds else str(value)


def _convert_number(value: Any) -> float:  # noqa: ANN401 - of TOML
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _write_table(value: object) -> object:
    """Return a table of actions and probabilities as JSON, other values unchanged."""
    if not isinstance(value, dict):
        return value
    if not value or any(type(part) not in {int, float} for part in value.values()):
        raise TypeError
    return json.dumps(value, ensure_ascii=False)


def _as_json(value: object) -> object:
    """Return a list or a table as JSON, other values unchanged."""
    nested = isinstance(value, list | dict)
    return json.dumps(value, ensure_ascii=False, default=str) if nested else value


def _metric(value: object) -> object:
    """Return a table of a metric as the command line gives it, a text unchanged.

    >>> _metric({"reward": "ms", "better": "lower", "guard": 20})
    'ms, lower, guard 20'
    """
    if not isinstance(value, dict):
        return value
    kinds = {"reward": str, "per": str, "better": str, "primary": bool, "guard": object}
    if "reward" not in value or not all(isinstance(value[k], kinds[k]) for k in value):
        raise TypeError
    per, guard = value.get("per"), value.get("guard")
    words = [str(value["reward"]) + (f" per {per}" if per else "")]
    words += [str(value["better"])] if "better" in value else []
    words += ["primary"] if value.get("primary") else []
    words += [] if guard is None else [f"guard {guard}"]
    return ", ".join(words)


def _flat(value: object) -> object:
    """Return a text, a list of texts or a table of both; raise TypeError if it is nested."""
    if isinstance(value, dict):
        if any(isinstance(part, dict) for part in value.values()):
            raise TypeError
        return {name: _flat(part) for name, part in value.items()}
    if isinstance(value, list):
        if any(isinstance(part, list | dict) for part in value):
            raise TypeError
        return [str(part) for part in value]
    return str(value)


def by_name(keys: Iterable[Key]) -> dict[str, Key]:
    """Return keys by their names in a file.

    Of a key that several commands have, the kind that takes most values: a command with fewer
    choices checks them itself.
    """
    return {key.name: key for key in sorted(keys, key=lambda key: not key.choices)}


def _key(option: inspect.Parameter) -> Key:
    annotated = get_args(option.annotation)[0]
    kinds = get_args(annotated) if isinstance(annotated, UnionType) else (annotated,)
    if get_origin(annotated) is Union:  # a Literal or None
        kinds = get_args(annotated)
    return Key(option.name, list[str] in kinds, tuple(k for k in kinds if k is not NoneType))


GROUPS = (
    ClickOptions,
    RoleOptions,
    SourceOptions,
    EvaluateOptions,
    CompareOptions,
    DecideOptions,
    PlanOptions,
    WatchOptions,
    LearnOptions,
)
KEYS = by_name(
    _key(option)
    for group in GROUPS
    for option in list_options(group)
    if option.name != "trust"  # a permission is given for each run
) | {"log": Key("logs", repeated=True)}


def texts(value: object) -> list[str]:
    """Return the texts of a table, a list or a single value.

    >>> texts({"v2": ["v1", "v0"], "v1": "p_v1"}), texts("p_{logger}")
    (['v2=v1', 'v2=v0', 'v1=p_v1'], ['p_{logger}'])
    """
    if isinstance(value, dict):
        return [f"{name}={text}" for name, part in value.items() for text in texts(part)]
    if isinstance(value, list):
        return [str(part) for part in value]
    return [str(value)]
