"""Question files: the log, the roles of its columns, the targets and the options, in TOML.

A key is an option of the command line with underscores (``on_fault``); options that can be
repeated are plural (``targets``) and take a table or a list.  An option on the command line
replaces its key.  Relative paths start at the folder of the file.
"""

from __future__ import annotations

import inspect
import os
import tomllib
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand

from poolwise.cli.options import EngineOptions, ReadOptions, RoleOptions, RowOptions, build_log
from poolwise.errors import UsageError, did_you_mean
from poolwise.log.log import SELECT, Log, as_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from poolwise.evaluation.check import CheckReport
    from poolwise.evaluation.compare import Comparison
    from poolwise.evaluation.plan import Plan
    from poolwise.evaluation.results import Evaluation
    from poolwise.log.policy import PolicyLike

Values = dict[str, Any]  # of options, as TOML or the command line gives them
Answer = TypeVar("Answer")  # of a verb
VERBS = ("evaluate", "compare", "plan", "check")
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
PLURALS = {"target": "targets", "estimator": "estimators", "reader_option": "reader_options"}


@dataclass(frozen=True)
class Question:
    """A question that is written in a TOML file.

    Attributes:
        log: The log.
        targets: Target policies by name.
        options: Other options by name, such as ``level`` and ``baseline``.
        path: The file.
        text: Content of the file.
    """

    log: Log
    targets: Mapping[str, PolicyLike]
    options: Mapping[str, Any]
    path: str
    text: str

    @classmethod
    def read(cls, path: str | PathLike[str], *, trust: bool = False) -> Question:
        """Read a file; modules that it names are imported, pickles need `trust`.

        Raises:
            UsageError: There is no such file, it is not TOML, or a key or value is wrong.
        """
        source = os.fspath(path)
        text, values = _read(source)
        options = _as_options(source, values)
        if "reward" not in options:
            raise UsageError(f"{source}: the key `reward` is required: a column or SQL")
        groups: list[Any] = [
            group(**{f.name: options[f.name] for f in fields(group) if f.name in options})
            for group in (RoleOptions, RowOptions, EngineOptions)
        ]
        roles, rows, engine = groups
        shared = {f.name for f in fields(ReadOptions)} & options.keys()
        read = ReadOptions(**{name: options[name] for name in shared}, trust=trust)
        used = {"logs", *shared, *(f.name for group in groups for f in fields(group))}
        others = {k: v for k, v in values.items() if k not in used | {*PLURALS.values(), "log"}}
        others |= {k: v for k, v in values.items() if k == "estimators"}
        others |= {"engine": engine.start()} if "engine" in options else {}
        targets = roles.targets(trust=trust, optional=True)
        return cls(build_log(options["logs"], roles, rows, read), targets, others, source, text)

    def evaluate(self, **options: object) -> Evaluation:
        """Call `evaluate`; an argument here replaces that of the file."""
        from poolwise.evaluation.evaluate import evaluate

        return self._call(evaluate, options)

    def compare(self, **options: object) -> Comparison:
        """Call `compare`; an argument here replaces that of the file."""
        from poolwise.evaluation.compare import compare

        return self._call(compare, options)

    def plan(self, **options: object) -> Plan:
        """Call `plan`; an argument here replaces that of the file."""
        from poolwise.evaluation.plan import plan

        return self._call(plan, options)

    def check(self, **options: object) -> CheckReport:
        """Call `check`; an argument here replaces that of the file."""
        from poolwise.evaluation.check import check

        return self._call(check, options)

    def record(self, command: str = "") -> dict[str, object]:
        """Return the question for an audit, with the present date."""
        return record(self.log, self.targets, command, (self.path, self.text))

    def _call(self, verb: Callable[..., Answer], options: Mapping[str, object]) -> Answer:
        parameters = inspect.signature(verb).parameters
        own = {name: value for name, value in self.options.items() if name in parameters}
        return verb(self.log, self.targets, **own | dict(options))


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
        text, values = _read(files[0])
        options = _as_options(files[0], values, self)
        context = super().make_context(info_name, args, parent, default_map=options, **extra)
        others = [source for source in context.params["logs"] if source != files[0]]
        context.params["logs"] = others or options["logs"]
        context.meta[META] = (files[0], text)
        return context


def _read(path: str) -> tuple[str, Values]:
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


def _as_options(path: str, values: Values, only: TyperCommand | None = None) -> Values:
    """Return values by name of the option, in the form of the command line.

    Keys of other commands are allowed, and left out if there is one command `only`.
    """
    commands = typer.main.get_command(_app()).commands  # type: ignore[attr-defined]
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


def _app() -> typer.Typer:
    from poolwise.cli.commands import app

    return app


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
