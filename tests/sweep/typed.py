"""Typed: the same questions as words of the command line, or in a question file.

A policy or a model in Python is an attribute of a module, which is written beside the log.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import pickle
import shlex
import sys
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest import mock

import poolwise as pw
from poolwise.cli.commands import main
from poolwise.learning.unseen import LEARNED
from tests.sweep.answers import (
    ESTIMATORS,
    LEARNING,
    SEGMENTS,
    WATCHED_LEVEL,
    evaluate_now,
    given_model,
    measures,
    planned_width,
)
from tests.sweep.ask import Wrong
from tests.sweep.features import RANKED
from tests.sweep.rankings import MODELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.sweep.ask import Asked

NUMBERS = count()  # of modules, whose names must differ within a process
PLURALS = {
    "target": "targets",
    "estimator": "estimators",
    "metric": "metrics",
}  # keys of lists and tables
OF_SCORE = {"propensity", "propensities", "target", "action", "eligible", "context", "timezone"}
OF_SCORE |= {"reward", "logger", "log_probabilities", "densities"}
MODULE = """import pickle, pathlib
globals().update(pickle.loads(pathlib.Path(__file__).with_suffix(".pickle").read_bytes()))
"""
BESIDE = ("moments", "out")  # files, which are no keys of a question
SHRUNK = "balanced-clip-1000"
EVALUATED = ("baseline", "interval", "by", "estimator", "model", "metric", "thresholds")
BY_VERB = {  # command and options
    "evaluate": ("evaluate", EVALUATED),
    "backtested": ("evaluate", (*EVALUATED, "backtest")),
    "compare": ("compare", ("baseline", "estimator", "model", "metric")),
    "plan": ("plan", ("half_width",)),
    "watch": ("watch", ("state", "level")),
    "learn": ("learn", (*LEARNING, "out")),
    "check": ("check", ()),
    "backtest": ("backtest", ()),
}


def printed(asked: Asked) -> dict[str, Any]:
    """Run a command in this process, with options or a question file."""
    verb = asked.combination["verb"]
    with _imports(asked):
        if verb == "score":
            return _scored(asked)
        now = evaluate_now(asked) if verb == "plan" else None
        options = _options(asked) | ({"half_width": planned_width(now)} if now else {})
        options |= {"state": str(asked.folder / "state.npz"), "level": WATCHED_LEVEL}
        options |= LEARNING | {"out": str(asked.folder / "policy.json"), "backtest": True}
        command, own = BY_VERB[verb]
        kept = {name: options[name] for name in (*_roles(asked), *own) if name in options}
        if verb in {"plan", "watch"}:
            kept["target"] = {"new": kept["target"]["new"]}
        if verb == "learn":
            kept.pop("target")
        found = print_json(_words(asked, command, kept), may_fail=verb == "check")
        if verb == "learn":
            loggers: dict[str, Any] = dict(asked.log.by_label)
            policy = pw.load_policy(asked.folder / "policy.json", loggers=loggers)
            found |= {"policy": policy, "name": LEARNED}
    if now:
        found["evaluated"] = now.to_dict()
        for option in found["options"]:
            for name in ("rows", "upper"):  # JSON has no infinity
                option[name] = math.inf if option[name] is None else option[name]
    return found


def _scored(asked: Asked) -> dict[str, Any]:
    """Score the log, and run the command that is printed, with all other options."""
    options = _options(asked)
    first = {name: value for name, value in options.items() if name in OF_SCORE}
    out = str(asked.folder / "scored.parquet")
    text = _run([*_words(asked, "score", first), "--out", out])[1]
    command = shlex.split(text.splitlines()[-1])
    if command[:2] != ["poolwise", "evaluate"]:
        raise Wrong(f"score prints {text!r}")
    own = BY_VERB["evaluate"][1]
    rest = {n: v for n, v in options.items() if n not in OF_SCORE and n != "engine"}
    rest = {n: v for n, v in rest.items() if n in own or n in _roles(asked)}
    return print_json(command[1:] + option_words(rest))


@contextlib.contextmanager
def _imports(asked: Asked) -> Iterator[None]:
    """Let modules in the folder of the log be imported, and forget them."""
    path, modules = [*sys.path], {*sys.modules}
    with contextlib.chdir(asked.folder):
        try:
            yield
        finally:
            sys.path[:] = path
            for name in {n for n in sys.modules if n.startswith("policies_")} - modules:
                del sys.modules[name]


def _words(asked: Asked, command: str, options: Mapping[str, Any]) -> list[str]:
    """Return the arguments of `poolwise`; policies and models get names."""
    named, objects = _named(options)
    if objects:
        place = asked.folder / f"policies_{next(NUMBERS)}.py"
        place.write_text(MODULE, encoding="utf-8")
        place.with_suffix(".pickle").write_bytes(pickle.dumps(objects))
        named = _resolve(named, place.stem)
    if asked.combination["source"] == "saved":
        named["moments"] = str(asked.folder / "moments.parquet")
        pw.summarise(asked.log, asked.targets).save(named["moments"])
    if asked.combination["face"] == "question" and command != "score":
        beside = [w for n in BESIDE if n in named for w in (f"--{n}", named.pop(n))]
        return [command, question_file(asked.folder, asked.source, named), *beside]
    words = [command, *([] if "moments" in named else [str(asked.source)])]
    return words + option_words(named)


class _Place(str):
    """Name of an object, before its module is known."""

    __slots__ = ()


def _named(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options with names in place of objects, and the objects by name."""
    objects: dict[str, Any] = {}

    def name(value: Any) -> Any:  # noqa: ANN401 - any value of an option
        if isinstance(value, dict):
            return {k: name(v) for k, v in value.items()}
        if value is None or isinstance(value, str | int | float | list | tuple):
            return value
        objects[f"object_{len(objects)}"] = value
        return _Place([*objects][-1])

    return {key: name(value) for key, value in options.items()}, objects


def _resolve(value: Any, module: str) -> Any:  # noqa: ANN401 - any value of an option
    if isinstance(value, dict):
        return {k: _resolve(v, module) for k, v in value.items()}
    return f"{module}:{value}" if isinstance(value, _Place) else value


def _roles(asked: Asked) -> dict[str, Any]:
    """Return the options that declare the log and its targets."""
    combination = asked.combination
    roles = {k: v for k, v in asked.roles.items() if v is not False}
    roles |= {"target": dict(asked.declared)}
    if "trained_on" in roles:
        roles["trained_on"] = {k: v[0] for k, v in roles["trained_on"].items()}
    structure = combination["structure"]
    if structure == "session":
        roles |= {"session": "request", "step": "slot"}
    elif structure in RANKED:
        roles |= {"request": "request", "position": "slot"}
        roles["ranking"] = MODELS.get(structure, structure)
    return roles | ({"engine": "spark"} if combination["source"] == "spark" else {})


def _options(asked: Asked) -> dict[str, Any]:
    """Return all options but those of a single verb."""
    combination = asked.combination
    options = _roles(asked)
    options |= {"baseline": asked.baseline, "interval": combination["interval"]}
    options |= {"metric" if k == "metrics" else k: v for k, v in measures(asked).items()}
    if combination["source"] == "saved":  # moments have no differences
        options.pop("baseline")
    if combination["structure"] in SEGMENTS:
        options["by"] = SEGMENTS[combination["structure"]]
    chosen = combination["estimator"]
    if chosen != "default":
        text = SHRUNK if chosen == "clipped" else chosen
        assert chosen != "clipped" or ESTIMATORS[chosen].name == SHRUNK
        options["estimator"] = text if combination["verb"] == "compare" else [text]
    return options | ({"model": given_model(asked)} if chosen == "doubly-robust" else {})


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of the command line."""
    return [word for name, value in options.items() for word in _option(name, value)]


def _option(name: str, value: Any) -> list[str]:  # noqa: ANN401 - any value of an option
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return [flag]
    if isinstance(value, dict):
        return [w for k, v in value.items() for w in (flag, f"{k}={v}")]
    if isinstance(value, list):
        return [w for v in value for w in (flag, str(v))]
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return [flag, text]


def question_file(folder: Path, source: object, given: Mapping[str, Any]) -> str:
    """Write a question file with these options; return its path."""
    lines = [f"log = {json.dumps(source)}"]
    tables = []
    for name, value in given.items():
        key = PLURALS.get(name, name) if isinstance(value, dict | list) else name
        if isinstance(value, dict):
            pairs = [f"{json.dumps(str(k))} = {json.dumps(v)}" for k, v in value.items()]
            tables += [f"[{key}]", *pairs]
        else:
            shown = list(value) if isinstance(value, tuple) else value
            lines.append(f"{key} = {json.dumps(shown)}")
    path = folder / "question.toml"
    path.write_text("\n".join([*lines, *tables]), encoding="utf-8")
    return str(path)


def print_json(words: list[str], *, may_fail: bool = False) -> dict[str, Any]:
    """Return the JSON of a command; `check` prints it with status 2, too."""
    status, out = _run([*words, "--json"], may_fail=may_fail)
    if status and not out:
        raise Wrong(f"status {status} without output")
    found: dict[str, Any] = json.loads(out, parse_constant=_no_number)
    return found


def _run(words: list[str], *, may_fail: bool = False) -> tuple[int, str]:
    """Return the status and the output of the program; raise its refusal."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["poolwise", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1 if end.code else 0
    shown = f"{out.getvalue()[:200]} {err.getvalue()[:300]}"
    if status == 2 and not (may_fail and out.getvalue()):
        if not err.getvalue().startswith(("poolwise: ", "Usage: ")) or out.getvalue():
            raise Wrong(f"status 2 with this output: {shown}")
        raise pw.PoolwiseError(err.getvalue())
    if status not in {0, 2} or err.getvalue():
        raise Wrong(f"status {status}: {shown}")
    return status, out.getvalue()


def _no_number(text: str) -> float:
    raise Wrong(f"{text} is not JSON")
