"""Every argument of every verb has an option and a key in question files."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, get_args

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.cli.keys import KEYS
from poolwise.cli.options import FormatName
from poolwise.cli.readers import READERS as FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
VERBS: dict[str, Callable[..., object]] = {
    "evaluate": pw.evaluate,
    "compare": pw.compare,
    "decide": pw.decide,
    "plan": pw.plan,
    "watch": pw.watch,
    "learn": pw.learn,
    "check": pw.check,
    "backtest": pw.backtest,
    "clicks": pw.click_log,
}
READERS: dict[str, Callable[..., object]] = {
    "log": pw.Log,
    "ranking": pw.ranking_log,
    "session": pw.session_log,
}
SAID = {  # arguments whose option has another name
    "source": "logs",
    "log": "logs",
    "estimators": "estimator",
    "targets": "target",
    "metrics": "metric",
    "reader_options": "reader_option",
}
OF_MODEL = {"ranking": {"model": "ranking"}}
ONLY_PYTHON = {
    "connection": "an open connection is an object",
    "table": "a table behind a connection; the command line reads tables of files and SELECTs",
    "requests": "ranking_log sets it",
    "clicks": "click_log sets it",
    "notes": "readers set it",
}


def arguments(function: Callable[..., object], own: dict[str, str]) -> list[str]:
    """Return the options that the arguments of a function need."""
    names = [name for name in inspect.signature(function).parameters if name != "_"]
    return [own.get(n, SAID.get(n, n)) for n in names if n not in ONLY_PYTHON]


def options(command: str) -> set[str]:
    return {str(parameter.name) for parameter in COMMANDS[command].params}


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_of_a_verb_has_an_option_and_a_key(verb: str) -> None:
    wanted = arguments(VERBS[verb], {})
    assert [name for name in wanted if name not in options(verb)] == []
    keys = {key.option for key in KEYS.values()}
    assert [name for name in wanted if name not in keys] == []


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "verb", ["evaluate", "compare", "decide", "plan", "watch", "check", "backtest"]
)
def test_every_argument_of_a_log_has_an_option_and_a_key(verb: str, reader: str) -> None:
    wanted = arguments(READERS[reader], OF_MODEL.get(reader, {}))
    assert [name for name in wanted if name not in options(verb)] == []
    keys = {key.option for key in KEYS.values()}
    assert [name for name in wanted if name not in keys] == []


@pytest.mark.parametrize("verb", ["evaluate", "compare", "plan", "watch", "learn", "check"])
def test_every_format_and_the_join_have_an_option_and_a_key(verb: str) -> None:
    wanted = {"format", "format_option", "outcomes", "join"}
    assert wanted <= options(verb)
    assert wanted <= {key.option for key in KEYS.values()}
    assert {*get_args(FormatName)} == {*FORMATS}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_sentence(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    listed = result.output.partition("Options:")[2]
    sentences = re.split(r"^  --.*?(?:  +|\n)", listed, flags=re.MULTILINE)[1:]
    assert all(re.match(r"\s*[\w`]", sentence) for sentence in sentences)


@pytest.mark.parametrize("command", [*VERBS])
def test_a_command_takes_a_question_file(command: str) -> None:
    assert type(COMMANDS[command]).__name__ == "QuestionCommand"
