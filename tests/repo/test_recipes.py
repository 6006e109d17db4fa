"""The recipes of the documentation: each of them runs, and fails where it has to fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import duckdb
import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.evaluation.decide import EXITS
from poolwise.evaluation.output import json_text
from poolwise.formats.clicks import search_log
from poolwise.formats.labelled import TARGETS, digits_log, digits_truth

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
POLICIES = {"v1": [0.5, 0.3, 0.2], "v2": [0.2, 0.3, 0.5], "candidate": [0.1, 0.2, 0.7]}
QUESTION = """log = "decisions.parquet"
reward = "click"
logger = "policy"
propensities = {v1 = "p_v1", v2 = "p_v2"}
targets = {candidate = "p_candidate"}
baseline = "v2"
"""


def recipe(title: str) -> list[str]:
    """Blocks of a section of the page."""
    sections = dict(SECTION.findall((ROOT / "docs" / "recipes.md").read_text("utf-8")))
    return [text for _, text in FENCE.findall(sections[title])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a log and a question."""
    rng = np.random.default_rng(6)
    parts = []
    for logger, rows in (("v1", 600), ("v2", 400)):
        item = rng.choice(3, size=rows, p=POLICIES[logger])
        columns = {f"p_{name}": np.array(p)[item] for name, p in POLICIES.items()}
        click = rng.binomial(1, np.array([0.1, 0.2, 0.4])[item])
        parts.append(pa.table({"policy": [logger] * rows, "click": click, **columns}))
    pq.write_table(pa.concat_tables(parts), tmp_path / "decisions.parquet")
    (tmp_path / "question.toml").write_text(QUESTION, "utf-8")
    return tmp_path


def run(command: list[str] | str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-e", "-c", command] if isinstance(command, str) else command
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize(("margin", "status"), [("0.05", 0), ("0.0", 1)])
def test_pytest(folder: Path, margin: str, status: int) -> None:
    (text,) = recipe("pytest")
    if status:  # the candidate is better: the other way round it fails
        text = text.replace('"candidate", margin=0.05', f'"v2", margin={margin}')
        question = QUESTION.replace('baseline = "v2"', 'baseline = "candidate"')
        question = question.replace(
            '{candidate = "p_candidate"}', '{candidate = "p_candidate", v2 = "p_v2"}'
        )
        (folder / "question.toml").write_text(question, "utf-8")
    (folder / "test_policy.py").write_text(text, "utf-8")
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], folder)
    assert done.returncode == status, done.stdout
    assert ("NotShownError" in done.stdout) == bool(status)


def test_github_actions(folder: Path) -> None:
    (text,) = recipe("GitHub Actions")
    workflow = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - texts only; `on` stays a text
    assert set(workflow) == {"name", "on", "permissions", "jobs"}
    ((_, job),) = workflow["jobs"].items()
    assert job["runs-on"] == "ubuntu-latest"
    assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    lines = [step["run"] for step in job["steps"] if "run" in step]
    assert [line.split()[0] for line in lines] == ["python", "poolwise", "poolwise"]
    for line in lines[1:]:
        done = run(line, folder)
        assert done.returncode == 0, done.stderr
    (kept,) = [s["with"]["path"] for s in job["steps"] if "upload" in s.get("uses", "")]
    assert (folder / kept).read_text("utf-8").startswith("<!DOCTYPE html>")
    assert (
        run(
            lines[-1].replace("not-worse --margin 0.05", "better --margin 9"), folder
        ).returncode
        == 1
    )


class Task:
    """A stand-in for Airflow's classes, which keeps its arguments."""

    made: list[dict[str, Any]] = []  # noqa: RUF012 - one list for all tasks

    def __init__(self, *names: str, **options: object) -> None:
        self.made.append({"names": names, **options})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def test_airflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = recipe("Airflow")
    monkeypatch.setattr(Task, "made", [])
    for name in re.findall(r"^from (\S+) import", text, re.MULTILINE):
        module: Any = types.ModuleType(name)
        module.BashOperator = module.DAG = Task
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(text, "dag.py", "exec"), {})  # noqa: S102 - the text of our own page
    dag, task = Task.made
    assert (dag["names"], dag["schedule"], task["task_id"]) == (("policy",), "@daily", "gate")
    done = run(task["bash_command"], folder)
    assert done.returncode == 0, done.stderr
    validate((folder / "verdict.json").read_text("utf-8"))


def test_mlflow(folder: Path) -> None:
    (text,) = recipe("MLflow")
    (folder / "log.py").write_text(text, "utf-8")
    store = {
        "MLFLOW_TRACKING_URI": (folder / "runs").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    assigned = " ".join(f"{k}={v}" for k, v in store.items())
    done = run(f"{assigned} {sys.executable} log.py", folder)
    assert done.returncode == 0, done.stderr
    evaluation = pw.Question.read(folder / "question.toml").evaluate()
    metrics = {
        p.relative_to(p.parents[2]).as_posix(): p for p in folder.glob("runs/*/*/metrics/*/*/*")
    }
    value = evaluation["candidate"].estimates["calibrated"].value
    logged = metrics["candidate/calibrated/value"].read_text("utf-8").split()
    assert float(logged[1]) == value
    assert len(metrics) == 4 * len(evaluation["candidate"].estimates)
    (whole,) = folder.glob("runs/*/*/artifacts/evaluation.json")
    validate(whole.read_text("utf-8"))
    assert list(folder.glob("runs/*/*/artifacts/report.html"))


def test_dbt(folder: Path) -> None:
    command, evaluate = recipe("dbt")
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    model = (folder / "policy_moments.sql").read_text("utf-8")
    assert model.count('{{ ref("decisions") }}') == 1
    assert model.count("{") == 2
    query = model.replace('{{ ref("decisions") }}', "decisions")
    with duckdb.connect() as warehouse:
        warehouse.execute(f"CREATE VIEW decisions AS FROM '{folder}/decisions.parquet'")
        warehouse.execute(f"COPY ({query}) TO '{folder}/policy_moments.parquet'")
    done = run(evaluate.strip() + " --json > there.json", folder)
    assert done.returncode == 0, done.stderr
    there = validate((folder / "there.json").read_text("utf-8"))
    here = pw.Question.read(folder / "question.toml").evaluate()["candidate"].estimates
    values = {e["estimator"]: e["value"] for e in there["targets"][0]["estimates"]}
    assert values == pytest.approx({k: e.value for k, e in here.items()}, rel=1e-9)


def schema() -> dict[str, Any]:
    text = (ROOT / "docs" / "schema" / "poolwise-1.json").read_text("utf-8")
    whole: dict[str, Any] = json.loads(text)
    return whole


def strict(part: Any, *, inline: bool = True) -> Any:  # noqa: ANN401 - any JSON
    """The schema without keys that it does not describe."""
    if isinstance(part, list):
        return [strict(item) for item in part]
    if not isinstance(part, dict):
        return part
    closed = {
        k: {n: strict(v, inline=k != "$defs") for n, v in value.items()}
        if k in {"properties", "$defs"}
        else strict(value)
        for k, value in part.items()
    }
    described = "$ref" in part or ("properties" in part and part["properties"])
    return closed | ({"unevaluatedProperties": False} if inline and described else {})


def validate(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Check a result against the schema; a key that the schema does not have is an error."""
    result = json.loads(text)
    jsonschema.Draft202012Validator(strict(schema())).validate(result)
    return result


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["title"].endswith("version 1")


def test_the_schema_describes_every_result(tmp_path: Path) -> None:
    log = digits_log()
    ranged = replace(log, reward_range=(0.0, 1.0))
    watched = pw.watch(tmp_path / "s.npz", ranged, TARGETS, above=0.1, better_than="large")
    validate(watched.to_json())
    targets = {**TARGETS, "old": "p_medium"}
    evaluation = pw.evaluate(log, targets, truth=digits_truth(), which_logs=True)
    validate(evaluation.to_json())
    validate(pw.evaluate(log, targets, baseline="old").to_json())
    validate(pw.compare(log, targets, baseline="large").to_json())
    validate(pw.evaluate(log, TARGETS, "calibrated", backtest=True).to_json())
    spoilt = replace(log, reward=f"{log.reward} + 0.1 * (policy = 'large')::INT")
    for tested in (pw.backtest(log), pw.backtest(spoilt)):
        validate(tested.to_json())
    validate(pw.compare(log, targets).to_json())
    by_half = pw.evaluate(log, targets, "calibrated", by="pixels[29] > 8")
    validate(by_half.to_json())
    assert by_half.segments is not None
    validate(by_half.segments.to_json())
    metrics = {
        "correct": pw.Metric("correct", primary=True),
        "sevens": pw.Metric("(digit = 7)::INT", per="correct", guard="5%"),
    }
    for kept in (metrics, {"off": pw.Metric("p_small - p_small", guard="5%")}):
        validate(pw.decide(log, targets, baseline="large", metrics=kept).to_json())
    bias = pw.position_bias(
        search_log(),
        request="request",
        position="position",
        click="click",
        logger="ranker",
        ranks="rank_{logger}",
    )
    validate(bias.to_json())
    validate(pw.plan(log, TARGETS, half_width=0.005, lift=0.01).to_json())
    validate(pw.plan(log, TARGETS, lift=0.01).to_json())
    validate(pw.check(log, TARGETS).to_json())
    faulty = pw.Log(
        {"r": [1.0, 0.0], "p": [0.5, 2.0], "t": [0.5, 0.5]}, reward="r", propensity="p"
    )
    report = validate(pw.check(faulty, {"t": "t"}).to_json())
    assert len(report["faults"]) == 1


def test_the_schema_describes_what_a_command_prints(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for verb in ("evaluate", "compare", "check", "backtest", "plan --half-width 0.01"):
        words = [*verb.split(), "question.toml", "--json"]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        result = validate(done.stdout)
        assert result["result"] == {"compare": "comparison", "evaluate": "evaluation"}.get(
            verb, verb.split()[0]
        )


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"result": "evaluations"},
        {"headline": None},
        {"unknown": 1},
        {"loggers": [{"logger": "v1", "rows": 1.5}]},
    ],
    ids=str,
)
def test_the_schema_rejects_another_result(change: dict[str, object]) -> None:
    whole = pw.evaluate(digits_log(), TARGETS, "calibrated").to_dict()
    validate(json_text("evaluation", whole))
    with pytest.raises(jsonschema.ValidationError):
        validate(json_text("evaluation", whole | change))


def test_the_table_of_exit_statuses_has_those_of_decisions() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    table = page.partition("## Exit statuses")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (\d+)[\d, ]* \| (.*) \|$", table, re.MULTILINE))
    for verdict, status in EXITS.items():
        assert status == 0 or f"*{verdict}*" in rows[str(status)]
