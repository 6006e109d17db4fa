"""Question: the log, the roles of its columns, the targets and the options, from a file."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from poolwise.cli.commands import app
from poolwise.cli.keys import PLURALS, as_options, read_file, record
from poolwise.cli.options import EngineOptions, ReadOptions, RoleOptions, RowOptions, build_log
from poolwise.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from poolwise.evaluation.check import CheckReport
    from poolwise.evaluation.compare import Comparison
    from poolwise.evaluation.plan import Plan
    from poolwise.evaluation.results import Evaluation
    from poolwise.evaluation.watch import Watched
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike

Answer = TypeVar("Answer")  # of a verb
WATCHED = ("state", "above", "better_than", "planned", "level", "engine")  # options of watch


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
        commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
        options = as_options(source, values, commands)
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

    def watch(self, **options: Any) -> Watched:  # noqa: ANN401 - any option of `watch`
        """Call `watch`; an argument here replaces that of the file."""
        from poolwise.evaluation.watch import watch

        of_file = {name: self.options[name] for name in WATCHED if name in self.options}
        arguments = {**of_file, **options}
        if "state" not in arguments:
            raise UsageError(f"{self.path}: watch requires `state`, the file to add rows to")
        path = Path(self.path).parent / arguments.pop("state")
        return watch(path, self.log, self.targets, **arguments)

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
