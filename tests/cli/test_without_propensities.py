"""Logs without propensities: from a raw file to the right answer with one command."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # all of them together take seconds
ROWS = 6_000
TARGET = "CASE WHEN offer = 'discount' THEN 1 ELSE 0 END"
WORDS = ["--reward", "bought", "--action", "offer", "--context", "device,hour"]
WORDS += ["--propensities", "estimate", "--target", f"discount={TARGET}"]


def chance(device: int, hour: int, offer: int) -> float:
    """Return the chance of a sale: a discount helps on phones, where it is common."""
    return 0.1 + 0.4 * (1 - device) + 0.25 * offer * device + 0.05 * hour


def plays(device: int, hour: int) -> float:
    """Return the chance of a discount, which nobody logged."""
    return 0.3 + 0.5 * device - 0.2 * hour


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(12)
    file = tmp_path_factory.mktemp("raw") / "sales.csv"
    with file.open("w", newline="", encoding="utf-8") as text:
        lines = csv.writer(text)
        lines.writerow(["device", "hour", "offer", "bought"])
        for device, hour, one, two in zip(
            rng.integers(2, size=ROWS),
            rng.integers(2, size=ROWS),
            rng.random(ROWS),
            rng.random(ROWS),
            strict=True,
        ):
            offer = int(one < plays(device, hour))
            names = (["laptop", "phone"][device], ["day", "night"][hour])
            sold = int(two < chance(device, hour, offer))
            lines.writerow([*names, ["standard", "discount"][offer], sold])
    return str(file)


def truth() -> tuple[float, float]:
    """Return the value of discounts for all, and the value of what was played."""
    cells = [(d, h) for d in (0, 1) for h in (0, 1)]
    always = sum(chance(d, h, 1) for d, h in cells) / 4
    mixed = [
        plays(d, h) * chance(d, h, 1) + (1 - plays(d, h)) * chance(d, h, 0) for d, h in cells
    ]
    return always, sum(mixed) / 4


def run(*words: object, status: int = 0) -> str:
    """Run the program; an error of ours is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == status
    return result.stdout


def recommended(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recommended estimate and the difference."""
    (target,) = json.loads(text)["targets"]
    (estimate,) = (e for e in target["estimates"] if e["recommended"])
    return estimate, target["difference"]


def test_one_command_goes_from_a_raw_file_to_the_answer(path: str) -> None:
    estimate, difference = recommended(
        run("evaluate", path, *WORDS, "--confounders", "in-context", "--json")
    )
    value, played = truth()
    assert abs(estimate["value"] - value) < 3 * estimate["std_error"]
    assert abs(difference["difference"] - (value - played)) < 3 * difference["std_error"]
    assert difference["verdict"] == "better"
    assert difference["odds_to_reverse"] > 1
    # a discount is played where sales are rare, so that its own rows show the opposite
    with open(path, encoding="utf-8") as text:  # noqa: PTH123 - a path as the program takes it
        rows = list(csv.DictReader(text))
    own = [int(row["bought"]) for row in rows if row["offer"] == "discount"]
    assert sum(own) / len(own) < value - 3 * estimate["std_error"]


def test_a_question_file_says_the_same(path: str, tmp_path: Path) -> None:
    file = tmp_path / "question.toml"
    file.write_text(
        f'log = "{path}"\nreward = "bought"\naction = "offer"\ncontext = ["device", "hour"]\n'
        'propensities = "estimate"\nconfounders = "in-context"\n'
        f'[targets]\ndiscount = "{TARGET}"\n'
    )
    same = run("evaluate", path, *WORDS, "--confounders", "in-context", "--json")
    assert recommended(run("evaluate", file, "--json")) == recommended(same)
    found = pw.Question.read(file).evaluate()
    assert found.differences["discount"].verdict == "better"


def test_a_gate_fails_unless_confounders_are_in_the_context(path: str) -> None:
    gate = ["evaluate", path, *WORDS, "--require", "better:discount"]
    run(*gate, "--confounders", "in-context")
    run(*gate, status=1)


def test_a_classifier_by_name(path: str) -> None:
    plain, _ = recommended(run("evaluate", path, *WORDS, "--json"))
    text = run("evaluate", path, *WORDS, "--estimate-mixture", "logistic", "--json")
    estimate, _ = recommended(text)
    assert estimate["value"] == pytest.approx(plain["value"], abs=0.5 * plain["std_error"])
    assert estimate["value"] != plain["value"]
