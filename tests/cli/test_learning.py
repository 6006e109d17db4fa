"""`poolwise learn`: its files, its exit status, and learned policies in other commands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import UsageError
from tests.support.learning import segments, segments_log
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # all of them together take seconds
ROLES = ["--reward", "reward", "--logger", "policy", "--propensities", "old=p_old,new=p_new"]
ROWS = ["--action", "action", "--context", "segment,x"]
FAST = ["--holdout", "0.4"]


def run(*words: str, status: int = 0) -> str:
    """Run the program; an error of ours is raised."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == status
    return result.stdout


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("logs")
    paths = {}
    for name, gain in (("good", 0.5), ("flat", 0.0)):
        paths[name] = str(folder / f"{name}.parquet")
        pq.write_table(segments(1_500, gain=gain), paths[name])
    return paths


def test_a_policy_and_a_report_are_written(logs: dict[str, str], tmp_path: Path) -> None:
    out, html = tmp_path / "policy.json", tmp_path / "report.html"
    files = ["--out", str(out), "--html", str(html)]
    text = run("learn", logs["good"], *ROLES, *ROWS, *FAST, *files, "--require", "better")
    log = segments_log(logs["good"])
    learned = pw.learn(log, holdout=0.4)
    assert text.strip() == str(learned)
    assert "poolwise learn" in html.read_text("utf-8")
    found = json.loads(
        run("evaluate", logs["good"], *ROLES, *ROWS, "--target", f"new={out}", "--json")
    )
    value = pw.evaluate(log, {"new": learned.policy})["new"].estimates["calibrated"].value
    assert found["targets"][0]["estimates"][0]["value"] == value


def test_trees_are_loaded_with_trust(logs: dict[str, str], tmp_path: Path) -> None:
    out = str(tmp_path / "policy.json")
    run("learn", logs["good"], *ROLES, *ROWS, *FAST, "--trees", "--out", out)
    words = ["evaluate", logs["good"], *ROLES, *ROWS, "--target", f"new={out}", "--json"]
    with refused(UsageError):
        run(*words)
    learned = pw.learn(segments_log(logs["good"]), holdout=0.4, trees=True)
    evaluation = pw.evaluate(segments_log(logs["good"]), {"new": learned.policy})
    found = json.loads(run(*words, "--trust"))["targets"][0]["estimates"][0]["value"]
    assert found == evaluation["new"].estimates["calibrated"].value


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "--baseline", "old"],
        ["plan", "--half-width", "0.01"],
        ["check"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_takes_a_learned_policy(
    logs: dict[str, str], tmp_path: Path, words: list[str]
) -> None:
    out = tmp_path / "policy.json"
    pw.learn(segments_log(logs["good"]), holdout=0.4, strengths=[1], smoothing=[0.5]).save(out)
    run(words[0], logs["good"], *ROLES, *ROWS, *words[1:], "--target", f"new={out}")


def test_the_gate_has_status_1_where_nothing_is_shown(logs: dict[str, str]) -> None:
    gate = [*ROLES, *ROWS, *FAST, "--json"]
    data = json.loads(run("learn", logs["flat"], *gate, "--require", "better", status=1))
    assert data["better"] is False
    assert json.loads(run("learn", logs["flat"], *gate)) == data


def test_mistakes_are_refused_and_nothing_is_written(
    logs: dict[str, str], tmp_path: Path
) -> None:
    words = ["learn", logs["good"], *ROLES, *ROWS]
    with refused(UsageError):
        run(*words, "--target", "new=p_new")
    with refused(UsageError):
        run(*words, "--out", str(tmp_path / "policy.pkl"))
    with refused(UsageError):
        run(*words, "--out", logs["good"])
    with refused(UsageError):
        run(*words, "--anchor", "newest", "--out", str(tmp_path / "policy.json"))
    assert list(tmp_path.iterdir()) == []
