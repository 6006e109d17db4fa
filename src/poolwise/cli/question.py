"""Question: the log, the roles of its columns, the targets and the options, from a TOML file.

A key is an option of the command line with underscores (``on_fault``); options that can be
repeated are plural (``targets``) and take a table or a list.  An option on the command line
replaces its key.  Relative paths start at the folder of the file.
"""

from __future__ import annotations

import inspect
import os
import shlex
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from typer.core import TyperCommand

from poolwise.cli.keys import KEYS, Key, by_name, texts
from poolwise.cli.loading import (
    FILE_ENDINGS,
    MODELS,
    build_clicks,
    build_question,
    by_position,
    list_metrics,
    named_model,
    number_list,
    numbers,
    pairs,
)
from poolwise.cli.options import (
    ClickOptions,
    RankerOptions,
    RoleOptions,
    SourceOptions,
    list_options,
)
from poolwise.errors import UsageError, did_you_mean
from poolwise.log.log import SELECT, as_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    import typer

    from poolwise.evaluation.backtest import Backtest
    from poolwise.evaluation.check import CheckReport
    from poolwise.evaluation.comparison import Comparison
    from poolwise.evaluation.decide import Decision
    from poolwise.evaluation.plan import Plan
    from poolwise.evaluation.results import Evaluation
    from poolwise.evaluation.watch import Watched
    from poolwise.learning.gains import Learned
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike

Answer = TypeVar("Answer")  # of a verb
OptionGroup = TypeVar("OptionGroup")
Values = dict[str, Any]  # of options, as TOML or the command line gives them
ENDING = ".toml"
META = "poolwise.question"  # of a command's context: the file that it reads
OF_OUTPUT = frozenset({"html", "charts", "as_json", "as_markdown", "out", "verbose"})


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
        text, values = read_file(source)
        options = as_options(source, values)
        if "click" in options:
            return cls._from_clicks(source, text, values, options)
        if not {"reward", "format"} & options.keys():
            raise UsageError(f"{source}: the key `reward` is required: a column or SQL")
        roles = _choose_options(RoleOptions, options)
        rows = _choose_options(SourceOptions, options | {"trust": trust})
        used = {"logs", *vars(roles), *vars(rows)}
        others = {
            name: texts(value) if KEYS[name].repeated else value
            for name, value in values.items()
            if KEYS[name].option not in used
        }
        if "engine" in options:
            others["engine"] = rows.start()
        log, targets = build_question(options["logs"], roles, rows, optional=True)
        if "model" in others:
            others["model"] = named_model(str(others["model"]), MODELS, trust=trust)
        for name in {"strengths", "smoothing", "thresholds", "quantiles"} & others.keys():
            others[name] = number_list(others[name], name)
        if "truth" in others:
            others["truth"] = numbers(others["truth"], "truth")
        if "metrics" in others:
            others["metrics"] = list_metrics(others["metrics"], "metrics")
        return cls(log, targets, others, source, text)

    @classmethod
    def _from_clicks(cls, path: str, text: str, values: Values, options: Values) -> Question:
        """Return a question about clicks on ranked lists."""
        missing = [name for name in ("request", "ranks") if name not in options]
        if missing:
            raise UsageError(f"{path}: [clicks] requires the key `{missing[0]}`")
        from poolwise.formats.clicks import click_log

        roles, rankers = (
            _choose_options(ClickOptions, options),
            _choose_options(RankerOptions, options),
        )
        source, given = build_clicks(options["logs"], roles, rankers)
        log, targets = click_log(
            source,
            pairs(rankers.target or [], "targets"),
            bias=by_position(roles.bias, "bias"),
            worth=by_position(roles.worth, "worth"),
            **given,
        )
        verbs = ("baseline", "by", "level")
        others = {name: value for name, value in values.items() if name in verbs}
        return cls(log, targets, others, path, text)

    def evaluate(self, **options: object) -> Evaluation:
        """Call `evaluate`; an argument here replaces that of the file."""
        from poolwise.evaluation.evaluate import evaluate

        return self._call(evaluate, options)

    def compare(self, **options: object) -> Comparison:
        """Call `compare`; an argument here replaces that of the file."""
        from poolwise.evaluation.evaluate import compare

        return self._call(compare, options)

    def decide(self, **options: object) -> Decision:
        """Call `decide`; an argument here replaces that of the file."""
        from poolwise.evaluation.decide import decide

        return self._call(decide, options)

    def backtest(self, **options: Any) -> Backtest:  # noqa: ANN401 - any option of `backtest`
        """Call `backtest`; an argument here replaces that of the file."""
        from poolwise.evaluation.backtest import backtest

        own = {name: self.options[name] for name in ("level", "engine") if name in self.options}
        return backtest(self.log, **own | options)

    def plan(self, **options: object) -> Plan:
        """Call `plan`; an argument here replaces that of the file."""
        from poolwise.evaluation.plan import plan

        return self._call(plan, options)

    def watch(self, **options: Any) -> Watched:  # noqa: ANN401 - any option of `watch`
        """Call `watch`; an argument here replaces that of the file."""
        from poolwise.evaluation.watch import watch

        state = options.pop("state", self.options.get("state"))
        if state is None:
            raise UsageError(f"{self.path}: watch requires `state`, the file to add rows to")
        return self._call(partial(watch, Path(self.path).parent / state), options)

    def learn(self, **options: Any) -> Learned:  # noqa: ANN401 - any option of `learn`
        """Call `learn`; an argument here replaces that of the file."""
        from poolwise.learning.learn import learn

        parameters = inspect.signature(learn).parameters
        own = {name: value for name, value in self.options.items() if name in parameters}
        return learn(self.log, **own | options)

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


def _choose_options(group: type[OptionGroup], options: Values) -> OptionGroup:
    """Return a group with those of its options that are given."""
    own = {option.name for option in list_options(group)}
    return group(**{name: value for name, value in options.items() if name in own})


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


def record_question(
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
        if "click" in values and all(p.name != "click" for p in self.params):
            raise UsageError(
                f"{files[0]} has clicks of rankers: run poolwise clicks {files[0]}"
            )
        own = (Key(str(p.name), getattr(p, "multiple", False)) for p in self.params)
        options = as_options(files[0], values, by_name(own))
        context = super().make_context(info_name, args, parent, default_map=options, **extra)
        others = [source for source in context.params["logs"] if source != files[0]]
        context.params["logs"] = others or options["logs"]
        chosen = context.params.get("target") or ()
        if any("=" not in text for text in chosen):
            known = pairs(options.get("target", ()), "targets")
            context.params["target"] = [_choose_target(t, known, files[0]) for t in chosen]
        context.meta[META] = (files[0], text)
        return context


def _choose_target(text: str, known: Mapping[str, str], path: str) -> str:
    """Return NAME=COLUMN, of the question file where a text only has the name."""
    if "=" in text:
        return text
    if text not in known:
        hint = did_you_mean(text, known)
        raise UsageError(f"{path} has no target {text!r}{hint}")
    return f"{text}={known[text]}"


def read_file(path: str) -> tuple[str, Values]:
    """Return the text and the keys of a file; those of tables are like all others."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        values = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, or not UTF-8
        raise UsageError(f"{path} must be TOML: {error}") from None
    for name in ("options", "clicks"):
        table = values.pop(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"{path}: `{name}` must be a table, got {table!r}")
        twice = sorted(values.keys() & table.keys())
        if twice:
            raise UsageError(f"{path} has the key {twice[0]!r} twice")
        values |= table
    unknown = [key for key in values if key not in KEYS]
    if unknown:
        hint = did_you_mean(unknown[0], KEYS)
        raise UsageError(f"{path}: there is no key {unknown[0]!r}{hint}")
    own = {o.name for g in (ClickOptions, RankerOptions) for o in list_options(g)}
    other = [name for name in values if KEYS[name].option not in {"logs", *own}]
    if "click" in values and other:
        raise UsageError(f"{path}: the key {other[0]!r} has no meaning with [clicks]")
    if "log" not in values:
        raise UsageError(f"{path}: the key `log` is required: a path, a glob, a SELECT, a list")
    return text, {name: KEYS[name].typed(path, value) for name, value in values.items()}


def as_options(path: str, values: Values, own: Mapping[str, Key] = KEYS) -> Values:
    """Return the values of some keys by name of the option, in the form of the command line.

    Args:
        path: The file.
        values: Its keys, typed.
        own: Keys of a command; others are left out.
    """
    folder = Path(path).parent
    return {
        key.option: _locate_value(folder, key.option, key.as_option(value))
        for name, value in values.items()
        if (key := own.get(name))
    }


def _locate_value(folder: Path, name: str, value: Any) -> Any:  # noqa: ANN401 - any option
    """Return paths of a question file from the current folder."""
    if name == "logs":
        return [_from(folder, source) for source in value]
    if name in {"state", "out", "outcomes"}:
        return _from(folder, value)
    if name == "action_group" and Path(value).suffix.lower() == ".json":
        return _from(folder, value)
    if name in {"model", "estimate_mixture"}:
        return _from(folder, value) if Path(value).suffix.lower() in FILE_ENDINGS else value
    if name in {"target", "propensities"}:
        return [_policy_from(folder, text) for text in value]
    return value


def _policy_from(folder: Path, text: str) -> str:
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
