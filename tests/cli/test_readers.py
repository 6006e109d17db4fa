"""Formats and outcomes on the command line and in question files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import PoolwiseError
from tests.support.messages import refused
from tests.support.schemas import SCHEMAS, shoes, write_lines

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
TARGET = ["--target", 'puma={"puma": 1.0}']
EVENTS = ["evaluate", "bandit.jsonl", "--format", "eppo", "--reward", "amount", *TARGET]
JOIN = {"key": "subject", "time": "timestamp", "outcome_time": "at", "window": "1 day"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    events, purchases = shoes(400)
    write_lines(tmp_path / "bandit.jsonl", events)
    write_lines(tmp_path / "purchases.jsonl", purchases)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: object) -> str:
    """Run the program; an error of ours is raised."""
    result = CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def values(text: str) -> dict[str, float]:
    estimates = json.loads(text)["targets"][0]["estimates"]
    return {e["estimator"]: e["value"] for e in estimates}


def expected(folder: Path, **change: Any) -> dict[str, float]:  # noqa: ANN401 - of a join
    log = pw.from_eppo(folder / "bandit.jsonl", reward="amount")
    joined = pw.join_outcomes(log, folder / "purchases.jsonl", **({**JOIN} | change))
    found = pw.evaluate(joined.log, {"puma": {"puma": 1.0}})["puma"].estimates
    return {name: estimate.value for name, estimate in found.items()}


def test_options_and_keys_read_a_format_and_its_outcomes(folder: Path) -> None:
    given = [w for key, text in JOIN.items() for w in ("--join", f"{key}={text}")]
    outcomes = ["--outcomes", "purchases.jsonl", *given]
    assert values(run(*EVENTS, *outcomes, "--json")) == expected(folder)
    below = folder / "asked"
    below.mkdir()
    keys = "".join(f'{key} = "{text}"\n' for key, text in JOIN.items())
    (below / "question.toml").write_text(
        'log = "../bandit.jsonl"\nformat = "eppo"\nreward = "amount"\n'
        'outcomes = "../purchases.jsonl"\nformat_options = {bandit = "shoe-bandit"}\n'
        f"[join]\n{keys}missing = 0.25\n[targets]\npuma = {{puma = 1.0}}\n"
    )
    text = run("evaluate", "asked/question.toml", "--json")
    assert values(text) == expected(folder, missing=0.25)
    question = pw.Question.read("asked/question.toml").evaluate()
    assert {n: e.value for n, e in question["puma"].estimates.items()} == values(text)
    report = json.loads(text)
    assert {"outcomes-joined", "unfinished-windows"} <= {f["code"] for f in report["warnings"]}
    assert "decisions" in run("check", "asked/question.toml")


@pytest.mark.usefixtures("folder")
def test_outcomes_join_rows_that_are_in_no_format() -> None:
    roles = ["--reward", "amount", "--propensity", "actionProbability", "--action", "action"]
    given = ["--outcomes", "purchases.jsonl", "--join", "key=subject"]
    text = run("evaluate", "bandit.jsonl", *roles, *given, *TARGET, "--json")
    log = pw.Log(
        "bandit.jsonl", reward="amount", propensity="actionProbability", action="action"
    )
    joined = pw.join_outcomes(log, "purchases.jsonl", key="subject").log
    found = pw.evaluate(joined, {"puma": {"puma": 1.0}})["puma"].estimates
    assert values(text) == {name: estimate.value for name, estimate in found.items()}


def test_roles_of_a_format_can_be_replaced(folder: Path) -> None:
    SCHEMAS["decisions"](folder)
    plain = run("evaluate", "decisions.jsonl", "--format", "decisions", "--json")
    log, targets = pw.from_decisions("decisions.jsonl")
    first = next(iter(pw.evaluate(log, targets)["new"].estimates.items()))
    assert values(plain)[first[0]] == first[1].value
    half = run("evaluate", "decisions.jsonl", "--format", "decisions", "--reward",
               "0.5 * reward", "--cluster", "context.segment", "--json")  # fmt: skip
    assert values(half)["naive"] == pytest.approx(values(plain)["naive"] / 2, rel=1e-12)
    windowed = ["--format-option", "window=30 seconds"]  # rewards come after a minute
    result = CliRunner().invoke(
        app, ["evaluate", "decisions.jsonl", "--format", "decisions", *windowed]
    )
    with refused(PoolwiseError):
        raise result.exception or AssertionError


@pytest.mark.parametrize(
    "words",
    [
        ["--format-option", "bandit=x"],
        ["--format-option", "bandits=x"],
        ["--format-option", "bandit"],
        ["--format-option", "reward=x"],
        ["--format-option", "shares={"],
        ["--format-option", "bandit=a", "--format-option", "bandit=b"],
        ["--join", "key=subject"],
        ["--outcomes", "purchases.jsonl"],
        ["--outcomes", "purchases.jsonl", "--join", "key=subject", "--join", "missing=none"],
        ["--outcomes", "nothing.jsonl", "--join", "key=subject"],
        ["--request", "subject", "--position", "x"],
    ],
)
def test_mistakes_are_one_message(folder: Path, words: list[str]) -> None:
    assert (folder / "bandit.jsonl").is_file()
    result = CliRunner().invoke(app, [*EVENTS, *words])
    with refused(PoolwiseError):
        raise result.exception or AssertionError


def test_what_a_format_needs_is_asked_for(folder: Path) -> None:
    assert (folder / "bandit.jsonl").is_file()
    for words in (
        ["evaluate", "bandit.jsonl", "--format", "eppo", *TARGET],
        ["evaluate", "bandit.jsonl", "--format-option", "a=b", "--reward", "r", *TARGET],
        ["evaluate", "--format", "eppo", "--moments", "m.npz", "--reward", "r", *TARGET],
    ):
        result = CliRunner().invoke(app, words)
        with refused(PoolwiseError):
            raise result.exception or AssertionError
