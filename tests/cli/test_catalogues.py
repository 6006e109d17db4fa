"""A catalogue of 50,000 items: from the raw file to the right answer, by command."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import UsageError
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow  # all of them together take seconds
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "catalogue.py"
REQUESTS = 12_000
WORDS = [
    *("--logger", "version", "--reward", "clicked", "--action", "item"),
    *("--eligible", "candidates", "--propensities", "p_{logger}", "--target", "new=p_new"),
]
MODEL = pw.GivenModel("predicted", "predicted_new")
FILE = """
log = "requests.parquet"
reward = "clicked"
logger = "version"
action = "item"
eligible = "candidates"
propensities = "p_{logger}"
action_group = "categories.json"
targets = { new = "p_new" }
"""


@pytest.fixture(scope="module")
def write() -> Callable[..., float]:
    names = runpy.run_path(str(SCRIPT))
    found: Callable[..., float] = names["write_log"]
    found.__globals__["REQUESTS"] = REQUESTS
    return found


@pytest.fixture(scope="module")
def category(
    write: Callable[..., float], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, float]:
    """Return a folder with a log whose rewards depend on the category, and the truth."""
    folder = tmp_path_factory.mktemp("category")
    return folder, write(folder)


def run(*words: object) -> dict[str, Any]:
    """Return the target of a result; an error of ours is raised."""
    asked = [str(word) for word in (*words, "--json")]
    result = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    target: dict[str, Any] = found["targets"][0]
    return {**target, "codes": {w["code"]: w for w in found["warnings"]}}


def estimate(target: dict[str, Any], name: str) -> tuple[float, float]:
    (found,) = (e for e in target["estimates"] if e["estimator"] == name)
    return found["value"], found["std_error"]


def test_the_command_goes_from_the_file_to_the_right_answer(
    category: tuple[Path, float],
) -> None:
    folder, truth = category
    groups = folder / "categories.json"
    found = run("evaluate", folder / "requests.parquet", *WORDS, "--action-group", groups)
    for name in ("calibrated", "balanced"):
        value, error = estimate(found, name)
        assert abs(value - truth) < 4 * error
        assert error < 0.01
    assert not found["codes"].keys() & {"actions-unlogged", "target-uncovered"}
    (folder / "question.toml").write_text(FILE, encoding="utf-8")
    assert run("evaluate", folder / "question.toml")["estimates"] == found["estimates"]


def test_without_groups_the_mass_of_new_items_is_known(category: tuple[Path, float]) -> None:
    folder, truth = category
    found = run("evaluate", folder / "requests.parquet", *WORDS)
    message = found["codes"]["actions-unlogged"]["message"]
    assert "no logger plays 10.0% of the time: '4" in message
    named = [int(word.strip("'")) for word in message.split() if word.startswith("'4")]
    assert len(named) == 5
    assert min(named) >= 45_000
    assert found["codes"]["actions-unlogged"]["severity"] == "alarm"
    value, error = estimate(found, "balanced")  # without what new items earn
    assert truth - value > 3 * error


def test_a_model_of_the_rest_removes_the_bias_of_groups(
    write: Callable[..., float], tmp_path: Path
) -> None:
    truth = write(tmp_path, effect=0.05)
    groups = json.loads((tmp_path / "categories.json").read_text("utf-8"))
    roles: dict[str, Any] = {
        "reward": "clicked",
        "logger": "version",
        "action": "item",
        "eligible": "candidates",
        "propensities": "p_{logger}",
    }
    file = tmp_path / "requests.parquet"
    log = pw.Log(file, action_group=groups, **roles)
    plain = pw.evaluate(log, {"new": "p_new"}, "balanced")["new"].estimates["balanced"]
    assert truth - plain.value > 3 * plain.std_error
    modelled = pw.evaluate(log, {"new": "p_new"}, "doubly-robust", model=MODEL)["new"]
    estimate = modelled.estimates["doubly-robust"]
    assert abs(estimate.value - truth) < 4 * estimate.std_error
    apart = pw.evaluate(pw.Log(file, **roles), {"new": "p_new"}, model=MODEL)["new"]
    assert apart.recommended == "doubly-robust"


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"a": {"b": 1}}', '{"a": null}'])
def test_a_file_of_groups_has_one_form(text: str, tmp_path: Path, monkeypatch: Any) -> None:  # noqa: ANN401 - a fixture
    monkeypatch.chdir(tmp_path)
    Path("groups.json").write_text(text, encoding="utf-8")
    with refused(UsageError):
        run("evaluate", "requests.parquet", *WORDS, "--action-group", "groups.json")
