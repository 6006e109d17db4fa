"""Keys of question files: a TOML file in place of the options of a command.

A key is an option of the command line with underscores (``on_fault``); options that can be
repeated are plural (``targets``) and take a table or a list.  An option on the command line
replaces its key.  Relative paths start at the folder of the file.
"""

from __future__ import annotations

import os
import shlex
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from poolwise.errors import UsageError, did_you_mean
from poolwise.log.log import SELECT, as_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import typer

    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike

Values = dict[str, Any]  # of options, as TOML or the command line gives them
VERBS = ("evaluate", "compare", "plan", "check", "watch")
ENDING = ".toml"
META = "poolwise.question"  # of a command's context: the file that it reads
NOT_IN_FILES = {
    "html",
    "charts",
    "as_json",
    "verbose",
    "moments",
    "trust",
}  # of one run, or a permission
OF_OUTPUT = frozenset({"html", "charts", "as_json", "out", "verbose"})
PLURALS = {"target": "targets", "estimator": "estimators", "reader_option": "reader_options"}


def record(
    log: Log,
    targets: Mapping[str, PolicyLike],
    command: str = "",
    file: tuple[str, str] = ("", ""),
) -> dict[str, object]:
    """Return a question for an audit: date, command, log, targets, and the file's content."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "log": log.described(),
        "targets": {name: as_line(policy) for name, policy in targets.items()},
        "file": file[0],
        "text": file[1],
    }


def asked(
    context: typer.Context, log: Log, targets: Mapping[str, PolicyLike]
) -> dict[str, object]:
    """Return the record of the question that a command asks."""
    return record(log, targets, command_text(context), context.meta.get(META, ("", "")))


def command_text(context: typer.Context) -> str:
    """Return the command line that was run, without the options that name its output."""
    words = ["poolwise", str(context.command.name)]
    for param in context.command.params:
        value = context.params.get(str(param.name))
        if param.name in OF_OUTPUT or value in (None, param.default):
            continue
        flag = [param.opts[-1]] if param.param_type_name == "option" else []
        if value is True:
            words += flag
        else:
            each = value if isinstance(value, list | tuple) else [value]
            words += [word for v in each for word in (*flag, str(v))]
    return shlex.join(words)


class QuestionCommand(TyperCommand):
    """A command whose LOGS may be a question file: its keys are defaults of the options."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: Any = None,  # noqa: ANN401 - of click or typer
        **extra: Any,  # noqa: ANN401 - click's own
    ) -> Any:  # noqa: ANN401
        files = [word for word in args if word.lower().endswith(ENDING)]
        if not files:
            return super().make_context(info_name, args, parent, **extra)
        if len(files) > 1:
            raise UsageError(f"one question file at a time, got {', '.join(files)}")
        text, values = read_file(files[0])
        options = as_options(files[0], values, parent.command.commands, self)
        context = super().make_context(info_name, args, parent, default_map=options, **extra)
        others = [source for source in context.params["logs"] if source != files[0]]
        context.params["logs"] = others or options["logs"]
        context.meta[META] = (files[0], text)
        return context


def read_file(path: str) -> tuple[str, Values]:
    """Return the text and the keys of a file; those of ``[options]`` are like all others."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        values = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} must be TOML: {error}") from None
    options = values.pop("options", {})
    if not isinstance(options, dict):
        raise UsageError(f"{path}: `options` must be a table, got {options!r}")
    twice = sorted(values.keys() & options.keys())
    if twice:
        raise UsageError(f"{path} has the key {twice[0]!r} twice")
    return text, values | options


def as_options(
    path: str,
    values: Values,
    commands: Mapping[str, Any],
    only: TyperCommand | None = None,
) -> Values:
    """Return values by name of the option, in the form of the command line.

    Args:
        path: The file.
        values: Its keys.
        commands: All commands by name; each key must be an option of one of them.
        only: Leave out the keys of all commands but this one.
    """
    every = {_key(p): p for verb in VERBS for p in commands[verb].params}
    every = {key: p for key, p in every.items() if key not in NOT_IN_FILES}
    unknown = [key for key in values if key not in every]
    if unknown:
        hint = did_you_mean(unknown[0], every)
        raise UsageError(f"{path}: there is no key {unknown[0]!r}{hint}")
    if "log" not in values:
        raise UsageError(f"{path}: the key `log` is required: a path, a glob, a SELECT, a list")
    own = every if only is None else {_key(p): p for p in only.params}
    options = {
        str(own[key].name): _option(path, key, value, own[key])
        for key, value in values.items()
        if key in own
    }
    folder = Path(path).parent
    return {name: _located(folder, name, value) for name, value in options.items()}


def _key(param: Any) -> str:  # noqa: ANN401 - of click or typer
    """Return the key of an option in a file."""
    name = str(param.name)
    repeated = getattr(param, "multiple", False)
    return "log" if name == "logs" else PLURALS.get(name, name) if repeated else name


def _option(path: str, key: str, value: object, param: Any) -> object:  # noqa: ANN401
    """Return a TOML value as the command line gives it: texts of tables are NAME=VALUE."""
    if param.name == "reward_range" and isinstance(value, list):
        return ",".join(map(str, value))
    if param.name == "logs" or getattr(param, "multiple", False):
        return _texts(value)
    if isinstance(value, list | dict):
        raise UsageError(f"{path}: `{key}` must be one value, got {value!r}")
    return value


def _texts(value: object) -> list[str]:
    """Return the texts of a table, a list or a single value.

    >>> _texts({"v2": ["v1", "v0"], "v1": "p_v1"}), _texts("p_{logger}")
    (['v2=v1', 'v2=v0', 'v1=p_v1'], ['p_{logger}'])
    """
    if isinstance(value, dict):
        return [f"{name}={text}" for name, part in value.items() for text in _texts(part)]
    if isinstance(value, list):
        return [str(part) for part in value]
    return [str(value)]


def _located(folder: Path, name: str, value: Any) -> Any:  # noqa: ANN401 - any option
    """Return paths of a question file from the current folder."""
    if name == "logs":
        return [_from(folder, source) for source in value]
    if name == "state":
        return _from(folder, value)
    if name in {"target", "propensities"}:
        return [_policy_from(folder, text) for text in value]
    return value


def _policy_from(folder: Path, text: str) -> str:
    from poolwise.cli.loading import FILE_ENDINGS

    name, equals, value = text.partition("=")
    is_file = Path(value).suffix.lower() in FILE_ENDINGS
    return f"{name}{equals}{_from(folder, value)}" if is_file else text


def _from(folder: Path, source: str) -> str:
    elsewhere = SELECT.match(source) or "://" in source or source.startswith(("/", "~"))
    return source if elsewhere or folder == Path() else str(folder / source)


def relative(sources: Sequence[str], folder: Path) -> list[str]:
    """Return sources as a question file in a folder names them."""
    return [
        source if _from(folder, source) == source else os.path.relpath(source, folder)
        for source in sources
    ]
