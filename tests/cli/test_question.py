"""Question files: the same numbers as arguments, one message for each mistake."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import UsageError
from tests.support.messages import refused
from tests.support.reference import random_table

if TYPE_CHECKING:
    from pathlib import Path

TABLE: pa.Table = random_table(np.random.default_rng(80), {"a": 60, "b": 40})
QUESTION = """
log = "log.parquet"
reward = "reward"
logger = "logger"
propensity = "p"
propensities = "p_{logger}"
reward_range = [-9, 9]
trained_on = {b = ["a"]}

[targets]
new = "t"
old = "p_a"

[options]
level = 0.9
interval = "student"
estimators = ["balanced"]
estimator = "balanced"
baseline = "b"
half_width = 0.1
"""
LOG: dict[str, Any] = {"reward": "reward", "logger": "logger", "propensity": "p"}
CROSSED = {"a": "p_a", "b": "p_b"}
TARGETS = {"new": "t", "old": "p_a"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pq.write_table(TABLE, tmp_path / "log.parquet")
    path = tmp_path / "question.toml"
    path.write_text(QUESTION)
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def values(text: str) -> dict[str, float]:
    answer = json.loads(text)
    return {t["target"]: t["estimates"][0]["value"] for t in answer["targets"]}


def balanced() -> dict[str, float]:
    """Balanced estimates of the targets, from their definition."""
    columns = {name: np.asarray(TABLE[name]) for name in TABLE.column_names}
    mixture = 0.6 * columns["p_a"] + 0.4 * columns["p_b"]
    return {
        name: float(np.mean(columns["reward"] * columns[column] / mixture))
        for name, column in TARGETS.items()
    }


def test_a_question_file_gives_the_numbers_of_its_arguments(file: Path) -> None:
    question = pw.Question.read(file)
    log = pw.Log(
        str(file.parent / "log.parquet"),
        **LOG,
        propensities=CROSSED,
        reward_range=(-9, 9),
        trained_on={"b": ["a"]},
    )
    evaluation = question.evaluate()
    same = pw.evaluate(log, TARGETS, ["balanced"], level=0.9, interval="student")
    assert evaluation.to_dicts() == same.to_dicts()
    for name, value in balanced().items():
        assert evaluation[name].estimates["balanced"].value == pytest.approx(value, rel=1e-12)
    assert question.log.reward_range == (-9, 9)
    assert question.compare().to_dict()["baseline"] == "b"
    assert question.check().rows == {"a": 60, "b": 40}
    assert question.evaluate(level=0.8).level == 0.8


def test_a_plan_takes_its_half_width_from_the_file(file: Path) -> None:
    file.write_text(QUESTION.replace('old = "p_a"\n', ""))
    answer = json.loads(run("plan", file, "--json").stdout)
    assert answer["half_width"] == 0.1
    assert pw.Question.read(file).plan().half_width == 0.1


@pytest.mark.slow
def test_the_command_line_reads_the_file_and_records_the_question(file: Path) -> None:
    page = file.parent / "report.html"
    outcome = run("evaluate", file, "--json", "--html", page)
    assert outcome.exit_code == 0
    assert values(outcome.stdout) == pytest.approx(balanced(), rel=1e-12)
    asked = json.loads(outcome.stdout)["question"]
    assert asked["file"] == str(file)
    assert asked["text"] == QUESTION
    assert asked["targets"] == TARGETS
    assert asked["log"]["source"] == str(file.parent / "log.parquet")
    assert asked["log"]["propensities"] == "p_{logger}"
    assert asked["date"].endswith("+00:00")
    assert "--propensities 'p_{logger}'" in asked["command"]
    html = page.read_text("utf-8")
    for text in (asked["date"][:10], "half_width = 0.1", "<th>target new</th>"):
        assert text in html


def test_options_of_the_command_line_replace_those_of_the_file(file: Path) -> None:
    outcome = run("evaluate", file, "--target", "one=p_b", "--level", "0.8", "--json")
    answer = json.loads(outcome.stdout)
    assert [t["target"] for t in answer["targets"]] == ["one"]
    assert answer["targets"][0]["estimates"][0]["level"] == 0.8
    other = file.parent / "other.parquet"
    pq.write_table(TABLE.slice(0, 50), other)
    answer = json.loads(run("evaluate", file, other, "--json").stdout)
    assert sum(logger["rows"] for logger in answer["loggers"]) == 50


@pytest.mark.parametrize("verb", ["compare", "check"])
def test_other_commands_read_the_same_file(file: Path, verb: str) -> None:
    outcome = run(verb, file, "--json")
    assert outcome.exit_code == 0
    assert json.loads(outcome.stdout).get("baseline", "b") == "b"


@pytest.mark.parametrize(
    "text",
    [
        "log = ",
        'log = "log.parquet"\nrewrd = "reward"',
        'reward = "reward"',
        'log = "log.parquet"',
        QUESTION.replace('reward = "reward"', 'reward = ["reward"]'),
        QUESTION.replace("[options]", '[options]\nlog = "b.parquet"'),
        'options = 3\nlog = "log.parquet"',
        QUESTION + "trust = true\n",
    ],
)
def test_a_wrong_file_is_one_message(file: Path, text: str) -> None:
    file.write_text(text)
    with refused(UsageError):
        pw.Question.read(file)
    outcome = run("evaluate", file, "--html", file.parent / "report.html")
    assert isinstance(outcome.exception, UsageError | SystemExit)
    assert outcome.exit_code in {1, 2}  # `main` turns our errors into status 2
    assert not (file.parent / "report.html").exists()


def test_a_missing_file_and_two_files_are_named(file: Path) -> None:
    with refused(UsageError):
        pw.Question.read(file.with_name("absent.toml"))
    file.with_name("binary.toml").write_bytes(b"\xff\xfe")
    with refused(UsageError):
        pw.Question.read(file.with_name("binary.toml"))
    outcome = run("evaluate", file, file.with_name("absent.toml"))
    assert isinstance(outcome.exception, UsageError)


def test_a_value_of_the_wrong_type_ends_with_status_2(file: Path) -> None:
    file.write_text(QUESTION.replace("level = 0.9", 'level = "high"'))
    assert isinstance(run("evaluate", file).exception, UsageError)  # which main exits 2 for
    file.write_text(QUESTION.replace('reward = "reward"\n', ""))
    with refused(UsageError):
        raise run("evaluate", file).exception or AssertionError


@pytest.mark.parametrize(
    "line",
    [
        f"level = {'9' * 400}",
        "level = true",
        "level = [0.9]",
        "baseline = 2024-05-01",
        "half_width = 07:32:00",
        "planned = 1.5",
        "state = false",
        "which_logs = 1",
        'interval = "wide"',
        'on_fault = "ignore"',
        "estimators = [[1]]",
        "reader_options = {a = {b = 1}}",
        'reward_range = [0, "x"]',
        "reward_range = false",
    ],
)
def test_a_value_of_another_type_is_one_message(file: Path, line: str) -> None:
    name = line.partition(" ")[0]
    kept = [part for part in QUESTION.splitlines() if not part.startswith(f"{name} ")]
    file.write_text("\n".join([line, *kept]))
    with refused(UsageError):
        pw.Question.read(file)


@pytest.mark.parametrize("opening", ["x = " + "[" * 5000, "x = " + "{a=" * 5000])
def test_a_file_that_is_nested_too_deeply_is_one_message(file: Path, opening: str) -> None:
    file.write_text(opening)
    with pytest.raises(UsageError):
        pw.Question.read(file)


def test_numbers_may_be_texts_and_texts_numbers(file: Path) -> None:
    changed = QUESTION.replace("level = 0.9", 'level = "0.9"')
    file.write_text(changed.replace('baseline = "b"', "baseline = 5"))
    assert dict(pw.Question.read(file).options)["level"] == 0.9
    assert dict(pw.Question.read(file).options)["baseline"] == "5"


def test_policies_in_files_start_at_the_folder_of_the_question(file: Path) -> None:
    file.write_text(QUESTION.replace('new = "t"', 'new = "model.skops"'))
    with refused(UsageError):
        pw.Question.read(file)


@pytest.mark.parametrize("pattern", ["p_{logger}", "exp(ln(p_{logger}))", "P_{logger}"])
def test_a_pattern_names_one_column_for_each_logger(file: Path, pattern: str) -> None:
    log = file.parent / "log.parquet"
    roles = [word for role, name in LOG.items() for word in (f"--{role}", name)]
    outcome = run(
        "evaluate", log, *roles, "--propensities", pattern, "--target", "new=t",
        "--estimator", "balanced", "--json",
    )  # fmt: skip
    assert values(outcome.stdout)["new"] == pytest.approx(balanced()["new"], rel=1e-12)


def test_a_backtest_reads_the_log_of_a_question_file(file: Path) -> None:
    found = pw.Question.read(file).backtest()
    assert found.level == 0.9
    assert list(found.loggers) == ["a", "b"]
    printed = json.loads(run("backtest", file, "--json").output)
    assert [e["predicted"] for e in printed["loggers"]] == [
        p.predicted for p in found.loggers.values()
    ]
    assert pw.Question.read(file).backtest(level=0.5).level == 0.5


def test_a_target_may_be_a_table_of_probabilities(file: Path) -> None:
    text = QUESTION.replace('new = "t"', "").replace('baseline = "b"', 'action = "item"')
    rng = np.random.default_rng(1)
    items = rng.choice(["x", "y"], TABLE.num_rows)
    rows = TABLE.append_column("item", pa.array(items))
    pq.write_table(rows, file.parent / "log.parquet")
    file.write_text(f"{text}\n[targets.new]\nx = 0.75\ny = 0.25\n")
    expected = pw.evaluate(
        pw.Log(rows, **LOG, propensities=CROSSED, action="item"),
        {"new": pw.Table({"x": 0.75, "y": 0.25})},
        "balanced",
    )["new"].estimates["balanced"]
    question = pw.Question.read(file)
    assert question.evaluate()["new"].estimates["balanced"].value == expected.value
    result = run("evaluate", file, "--json", "--estimator", "balanced")
    assert values(result.stdout)["new"] == expected.value
