"""Lists, sessions, models and gates: the command line returns the library's numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import UsageError
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # all of them together take seconds
ROLES = ["--reward", "reward", "--logger", "logger", "--propensity", "p"]
CROSSED = [*ROLES, "--propensities", "p_{logger}", "--target", "new=t"]
LOG: dict[str, Any] = {"reward": "reward", "logger": "logger", "propensity": "p"}
REQUESTS = 400


def rows(rng: np.random.Generator) -> pa.Table:
    """Return lists of two positions, each with one of two items."""
    logger = np.repeat(np.where(rng.random(REQUESTS) < 0.5, "a", "b"), 2)
    item = (rng.random(2 * REQUESTS) < np.where(logger == "a", 0.5, 0.25)).astype(int)
    chances = {"p_a": np.full(2 * REQUESTS, 0.5), "p_b": np.where(item, 0.25, 0.75)}
    t = np.where(item, 0.7, 0.3)
    return pa.table(
        {
            "logger": logger,
            "request": np.repeat(np.arange(REQUESTS), 2),
            "position": np.tile([1, 2], REQUESTS),
            "country": np.repeat(np.where(rng.random(REQUESTS) < 0.5, "de", "fr"), 2),
            "x": rng.random(2 * REQUESTS),
            "item": item,
            "reward": (rng.random(2 * REQUESTS) < 0.2 + 0.5 * item).astype(float),
            "p": np.where(logger == "a", chances["p_a"], chances["p_b"]),
            **chances,
            "t": t,
        }
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("lists") / "log.parquet"
    pq.write_table(rows(np.random.default_rng(7)), file)
    return str(file)


def run(*words: object, status: int = 0) -> str:
    """Run the program; an error of ours is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == status
    return result.stdout


def value(text: str, estimator: str = "balanced") -> float:
    estimates = json.loads(text)["targets"][0]["estimates"]
    (number,) = (e["value"] for e in estimates if e["estimator"] == estimator)
    return float(number)


def pattern(path: str, **own: Any) -> dict[str, Any]:  # noqa: ANN401 - arguments
    return {"source": path, "targets": {"new": "t"}, "propensities": "p_{logger}"} | LOG | own


def test_lists_and_sessions_are_options_and_keys(path: str, tmp_path: Path) -> None:
    lists = ["--request", "request", "--position", "position"]
    ranked = pw.ranking_log(
        **pattern(path, request="request", position="position", model="independent")
    )
    expected = pw.evaluate(*ranked)["new"].estimates["balanced"].value
    text = run("evaluate", path, *CROSSED, *lists, "--ranking", "independent", "--json")
    assert value(text) == pytest.approx(expected, rel=1e-12)
    sessions = pw.session_log(
        **pattern(path, session="request", step="position", reward_at="step")
    )
    file = tmp_path / "question.toml"
    file.write_text(
        f'log = "{path}"\nreward = "reward"\nlogger = "logger"\npropensity = "p"\n'
        'propensities = "p_{logger}"\nsession = "request"\nstep = "position"\n'
        '[targets]\nnew = "t"\n'
    )
    expected = pw.evaluate(*sessions)["new"].estimates["balanced"].value
    assert value(run("evaluate", file, "--json")) == pytest.approx(expected, rel=1e-12)
    assert pw.Question.read(file).evaluate()["new"].estimates["balanced"].value == expected


@pytest.mark.parametrize(
    "words",
    [
        ["--position", "position"],
        ["--step", "position", "--request", "request"],
        ["--request", "request", "--session", "request"],
        ["--request", "request", "--period", "x"],
        ["--model", "rigde"],
        ["--require", "best"],
        ["--truth", "new=high"],
        ["--estimator", "balanced-clip-0"],
        ["--estimate-mixture", "forest"],
    ],
)
def test_mistakes_are_one_message(path: str, words: list[str]) -> None:
    result = CliRunner().invoke(app, ["evaluate", path, *CROSSED, *words])
    assert isinstance(result.exception, UsageError)
    with refused(UsageError):
        raise result.exception


def test_models_mixtures_and_shrunk_weights_have_options(path: str) -> None:
    read = ["--action", "item", "--context", "x"]
    text = run("evaluate", path, *CROSSED, *read, "--estimator", "balanced-clip-1.2", "--json")
    shrunk = pw.Balanced(shrink=pw.Shrink("clip", 1.2))
    log = pw.Log(path, propensities="p_{logger}", **LOG)
    expected = pw.evaluate(log, {"new": "t"}, shrunk)["new"].estimates["balanced-clip-1.2"]
    assert value(text, "balanced-clip-1.2") == expected.value
    target = ["--target", 'new={"0": 0.3, "1": 0.7}', "--estimator", "doubly-robust"]
    crossed = [*ROLES, "--propensities", "p_{logger}", *target]
    text = run("evaluate", path, *crossed, *read, "--model", "ridge", "--json")
    from sklearn.linear_model import Ridge

    acted = pw.Log(path, propensities="p_{logger}", action="item", context=["x"], **LOG)
    table = pw.Table({"0": 0.3, "1": 0.7})
    modelled = pw.evaluate(acted, {"new": table}, "doubly-robust", model=Ridge())
    assert value(text, "doubly-robust") == pytest.approx(
        modelled["new"].estimates["doubly-robust"].value, rel=1e-12
    )
    own = [*ROLES, *read, "--target", "new=t", "--estimator", "balanced", "--json"]
    text = run("evaluate", path, *own, "--estimate-mixture", "default")
    guessed = pw.Log(path, action="item", context=["x"], estimate_mixture=True, **LOG)
    found = pw.evaluate(guessed, {"new": "t"}, "balanced")["new"].estimates
    assert value(text, "balanced-estimated") == pytest.approx(
        found["balanced-estimated"].value, rel=1e-12
    )


def test_gates_take_one_target_and_every_segment(path: str) -> None:
    two = [*CROSSED, "--target", "same=p_b", "--baseline", "b"]
    run("evaluate", path, *two, "--require", "better", status=1)
    run("evaluate", path, *two, "--require", "better:new")
    run("compare", path, *two, "--require", "better:new")
    run("compare", path, *two, "--require", "better:same", status=1)
    log = pw.Log(path, propensities="p_{logger}", **LOG)
    found = pw.evaluate(log, {"new": "t"}, baseline="b", by="country")
    assert found.segments is not None
    lowest = min(r.difference.interval.lower for r in found.segments.results if r.difference)
    overall = found.differences["new"].interval.lower
    assert lowest < overall
    by = [*CROSSED, "--baseline", "b", "--by", "country", "--require"]
    run("evaluate", path, *by, "better", "--margin", 0.99 * lowest)
    run("evaluate", path, *by, "better", "--margin", (lowest + overall) / 2, status=1)


def test_a_gate_is_a_key_of_a_question_file(path: str, tmp_path: Path) -> None:
    text = (
        f'log = "{path}"\nreward = "reward"\nlogger = "logger"\npropensity = "p"\n'
        'propensities = "p_{logger}"\nbaseline = "b"\nby = "country"\nhalf_width = 0.01\n'
        'targets = {new = "t", same = "p_b"}\n'
    )
    for required, status in (("better:new", 0), ("not-worse:new", 0), ("better:same", 1)):
        file = tmp_path / "question.toml"
        file.write_text(f'require = "{required}"\n{text}')
        for verb in ("evaluate", "compare"):
            run(verb, file, status=status)
        run("check", file)
        run("plan", file, "--target", "new")
        assert pw.Question.read(file).options["require"] == required


def test_a_target_of_a_file_is_chosen_by_name(path: str, tmp_path: Path) -> None:
    file = tmp_path / "question.toml"
    file.write_text(
        f'log = "{path}"\nreward = "reward"\nlogger = "logger"\npropensity = "p"\n'
        'propensities = "p_{logger}"\nhalf_width = 0.01\nestimators = ["balanced"]\n'
        'cluster = "request"\n[targets]\nnew = "t"\nold = "p_a"\n'
    )
    found = json.loads(run("evaluate", file, "--target", "old", "--json"))
    assert [t["target"] for t in found["targets"]] == ["old"]
    plan = json.loads(run("plan", file, "--target", "new", "--json"))
    assert {o["estimator"] for o in plan["options"]} == {"balanced"}
    result = CliRunner().invoke(app, ["plan", str(file), "--target", "nwe"])
    with refused(UsageError):
        raise result.exception or AssertionError
    result = CliRunner().invoke(app, ["plan", str(file)])
    with refused(UsageError):
        raise result.exception or AssertionError
    assert json.loads(run("check", file, "--json"))["faults"] == []


def test_learn_reads_a_question_file(path: str, tmp_path: Path) -> None:
    file = tmp_path / "question.toml"
    file.write_text(
        f'log = "{path}"\nreward = "reward"\nlogger = "logger"\npropensity = "p"\n'
        'propensities = "p_{logger}"\naction = "item"\nfeatures = ["x"]\nfolds = 2\n'
        'strengths = ["0.1"]\nout = "policy.json"\n[targets]\nnew = "t"\n'
    )
    text = run("learn", file)
    learned = pw.Question.read(file).learn()
    assert (tmp_path / "policy.json").exists()
    assert text.strip() == str(learned)
