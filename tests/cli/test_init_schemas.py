"""`poolwise init` on logs as teams have them: its file is answered, and the answer is right."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from reproduction.datasets import data_folder
from tests.support.schemas import SCHEMAS

pytestmark = pytest.mark.slow
GUIDE = Path(__file__).parents[2] / "docs" / "first-logs.md"
MOST_ERRORS = 4.0  # standard errors of a recommended estimate from the truth
PRECISE = 0.25  # largest standard error, as a part of the truth


def run(*words: object) -> str:
    """Run the program; an error of ours is raised."""
    result = CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def recommended(target: dict[str, Any]) -> tuple[float, float]:
    """Return the first estimate and its standard error."""
    first = target["estimates"][0]
    return first["value"], first["std_error"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_file_is_answered_and_the_answer_is_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = SCHEMAS[name](tmp_path)
    said = run("init", *found.logs)
    keys = tomllib.loads((tmp_path / "question.toml").read_text("utf-8"))
    assert keys.pop("log") == found.logs[0]
    assert keys.pop("options") == {}
    targets = keys.pop("targets")
    assert keys == found.keys
    missing = [line for line in said.splitlines() if line.startswith("missing: ")]
    assert len(missing) == len(found.missing)
    assert all(word in line for word, line in zip(found.missing, missing, strict=True))
    if found.missing:
        refused = CliRunner().invoke(app, [found.command, "question.toml"])
        assert refused.exit_code == 1  # with a message of ours
        assert type(refused.exception).__name__ in {"UsageError", "MissingColumnError"}
    elif keys.get("format") != "decisions":
        assert targets.keys() == found.truth.keys()
    answer = json.loads(run(found.command, "question.toml", *found.more, "--json"))
    values = {target["target"]: recommended(target) for target in answer["targets"]}
    assert values.keys() == found.truth.keys()
    for target, truth in found.truth.items():
        estimate, error = values[target]
        assert abs(estimate - truth) < MOST_ERRORS * error, target
        assert 0 < error < PRECISE * max(abs(truth), 0.2), target


SMALL, ITEMS = (
    data_folder().resolve() / name for name in ("obd_small.parquet", "obd_items.csv")
)
needs_data = pytest.mark.skipif(
    not SMALL.is_file(), reason="obd_small.parquet is not here: set POOLWISE_DATA to its folder"
)
CLICKS, SHOWN = 130, 30_000  # of the random policy, which shows all items equally often


def open_bandit(target: dict[str, Any]) -> None:
    """Compare an estimate of the uniform policy with what the random policy earned."""
    estimate, error = recommended(target)
    truth = CLICKS / SHOWN
    assert abs(estimate - truth) < MOST_ERRORS * (error**2 + truth / SHOWN) ** 0.5
    assert 0 < error < PRECISE * truth


@needs_data
def test_open_bandit_as_it_is_asks_for_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = run("init", SMALL)
    assert [line for line in said.splitlines() if line.startswith("missing")] == [
        "missing: [targets]: the probability of the action under a new policy."
    ]
    keys = tomllib.loads((tmp_path / "question.toml").read_text("utf-8"))
    assert {k: v for k, v in keys.items() if k not in {"log", "targets", "options"}} == {
        "reward": "click",
        "logger": "logger",
        "propensity": "propensity_score",
        "action": "item_id",
    }
    uniform = "1.0 / CASE campaign WHEN 'all' THEN 80 WHEN 'men' THEN 34 ELSE 46 END"
    answer = json.loads(
        run("evaluate", "question.toml", "--target", f"uniform={uniform}", "--json")
    )
    open_bandit(answer["targets"][0])


@needs_data
def test_open_bandit_with_lists_of_items_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    duckdb.execute(f"""
        COPY (SELECT * EXCLUDE (n) FROM '{SMALL}' JOIN (
            SELECT campaign, list(item_id ORDER BY item_id) AS items, count(*) AS n
            FROM '{ITEMS}' GROUP BY campaign) USING (campaign))
        TO 'lists.parquet'""")
    assert "missing" not in run("init", "lists.parquet")
    keys = tomllib.loads((tmp_path / "question.toml").read_text("utf-8"))
    assert keys["eligible"] == "items"
    assert keys["targets"] == {"uniform": "1.0 / len(items)"}
    answer = json.loads(run("evaluate", "question.toml", "--json"))
    open_bandit(answer["targets"][0])
    shown = [line.rstrip() for line in run("evaluate", "question.toml").splitlines()]
    assert "\n".join(shown[: shown.index("")]) in GUIDE.read_text("utf-8")


@needs_data
def test_the_folder_of_open_bandit_is_a_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for policy in ("random", "bts"):
        for campaign in ("men", "women"):
            folder = tmp_path / "obd" / policy / campaign
            folder.mkdir(parents=True)
            duckdb.execute(
                f"COPY (SELECT * EXCLUDE (campaign, logger) FROM '{SMALL}' WHERE "
                f"campaign = '{campaign}' AND logger = '{policy}') "
                f"TO '{folder}/{campaign}.csv' (HEADER)"
            )
    run("init", "obd")
    keys = tomllib.loads((tmp_path / "question.toml").read_text("utf-8"))
    assert keys["format_options"] == {"campaign": "men"}
    answer = json.loads(run("evaluate", "question.toml", "--json"))
    target = answer["targets"][0]
    assert target["target"] == "uniform"
    estimate, error = recommended(target)
    assert abs(estimate - 46 / 10_000) < MOST_ERRORS * error < 0.01


def test_lines_of_the_decision_service_are_a_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data_folder().resolve() / "vw_dsjson" / "dsjson_cb.json"
    if not path.is_file():
        pytest.skip("dsjson_cb.json is not here: set POOLWISE_DATA to its folder")
    monkeypatch.chdir(tmp_path)
    run("init", path)
    answer = json.loads(run("evaluate", "question.toml", "--json"))
    log = pw.from_dsjson(path)
    expected = pw.evaluate(log, {"uniform": "1.0 / action_count"})["uniform"]
    first = answer["targets"][0]["estimates"][0]
    assert first["value"] == expected.estimates[first["estimator"]].value


def test_a_success_is_the_reward_before_a_cost_and_neither_is_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"model": m, "p": 0.5, "solved": k % 3 > 0, "cost": 0.1 + k, "topic": f"t{k % 4}"}
        for k, m in enumerate(["small", "large"] * 50)
    ]
    Path("calls.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    said = run("init", "calls.jsonl")
    text = Path("question.toml").read_text("utf-8")
    assert tomllib.loads(text)["reward"] == "solved"
    assert "cost may be the reward, or a metric, as well" in said
    assert '# context = ["topic"]' in text
