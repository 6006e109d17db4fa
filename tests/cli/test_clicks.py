"""Clicks of rankers: the command and question files return the library's numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import PoolwiseError, UsageError
from poolwise.formats.clicks import search_log
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # all of them together take seconds
ROLES: dict[str, Any] = {
    "request": "request",
    "position": "position",
    "click": "click",
    "logger": "ranker",
    "ranks": "rank_{logger}",
}
WORDS = [word for role, text in ROLES.items() for word in (f"--{role}", text)]
TARGET = ["--target", "candidate=rank_candidate"]
FILE = """
log = "{log}"
logger = "ranker"
baseline = "classic"

[clicks]
request = "request"
position = "position"
click = "click"
ranks = "rank_{{logger}}"
{more}

[targets]
candidate = "rank_candidate"
"""


def run(*words: object) -> str:
    """Run the program; an error of ours is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def value(text: str) -> float:
    targets = {t["target"]: t["estimates"] for t in json.loads(text)["targets"]}
    (number,) = (e["value"] for e in targets["candidate"] if e["estimator"] == "balanced")
    return float(number)


def question(folder: Path, more: str = "") -> Path:
    path = folder / "question.toml"
    path.write_text(FILE.format(log=search_log(), more=more), encoding="utf-8")
    return path


def expected(**more: Any) -> float:  # noqa: ANN401 - arguments of click_log
    targets = {"candidate": "rank_candidate"}
    asked = pw.click_log(search_log(), targets, **ROLES, **more)
    return pw.evaluate(*asked, "balanced")["candidate"].estimates["balanced"].value


def test_the_command_and_a_file_give_the_numbers_of_the_library(tmp_path: Path) -> None:
    path = question(tmp_path)
    found = run("clicks", search_log(), *WORDS, *TARGET, "--baseline", "classic", "--json")
    assert value(found) == expected()
    assert value(run("clicks", path, "--json")) == expected()
    asked = pw.Question.read(path)
    assert asked.evaluate()["candidate"].estimates["balanced"].value == expected()
    assert asked.compare().baseline == "classic"
    assert asked.backtest().fits


def test_curves_and_weights_of_positions_are_mappings(tmp_path: Path) -> None:
    curve = {k: 1 / k for k in range(1, 11)}
    worth = {k: 2 / (k + 1) for k in range(1, 11)}
    options = [
        word
        for name, numbers in (("bias", curve), ("worth", worth))
        for word in (f"--{name}", ",".join(f"{k}={v!r}" for k, v in numbers.items()))
    ]
    tables = "\n".join(
        f"{name} = {{ {', '.join(f'{k} = {v!r}' for k, v in numbers.items())} }}"
        for name, numbers in (("bias", curve), ("worth", worth))
    )
    wanted = expected(bias=curve, worth=worth)
    assert value(run("clicks", search_log(), *WORDS, *TARGET, *options, "--json")) == wanted
    assert value(run("clicks", question(tmp_path, tables), "--json")) == wanted


def test_ranks_may_be_pairs_and_the_bias_needs_no_target() -> None:
    names = ("classic", "fresh", "learned")
    by_name = ",".join(f"{i}=rank_{i}" for i in names)
    plain = json.loads(run("clicks", search_log(), *WORDS, "--json"))
    named = [*WORDS[:-1], by_name]
    again = json.loads(run("clicks", search_log(), *named, "--json"))
    library = pw.position_bias(search_log(), **ROLES)
    for found in (plain, again):
        curve = {p["position"]: p["examination"] for p in found["positions"]}
        assert curve == library.curve


def test_a_report_shows_what_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    run("clicks", search_log(), *WORDS, *TARGET, "--html", path)
    text = path.read_text("utf-8")
    assert "rank_{logger}" in text
    assert "examination_0" not in text  # a column of ours
    assert "mean examination under all rankers" in text
    assert "Effective rows" not in text


@pytest.mark.parametrize(
    "words",
    [
        ["--bias", "1=1,2=0.5"],
        ["--baseline", "classic"],
        [*TARGET, "--bias", "1=1,2=0.5"],
        [*TARGET, "--bias", "first=1"],
        [*TARGET, "--worth", "1=-1"],
        [*TARGET, "--baseline", "other"],
        ["--target", "candidate=rank_nobody"],
        ["--ranks", "classic=rank_classic"],
    ],
)
def test_mistakes_are_one_message(words: list[str]) -> None:
    with refused(PoolwiseError):
        run("clicks", search_log(), *WORDS, *words)


def test_a_file_with_clicks_belongs_to_one_command(tmp_path: Path) -> None:
    with refused(UsageError):
        run("plan", question(tmp_path))
    with refused(UsageError):
        run("clicks", question(tmp_path, 'propensities = "p_{logger}"'))
