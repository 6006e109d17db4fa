"""The composite action: its steps run as a runner would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import poolwise as pw
from poolwise.formats.labelled import digits_path

if TYPE_CHECKING:
    from collections.abc import Callable

yaml = pytest.importorskip("yaml", reason="the group `docs` is not installed")
ROOT = Path(__file__).resolve().parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
QUESTION = f"""
log = "{digits_path()}"
logger = "policy"
reward = "correct"
propensities = "p_{{logger}}"
baseline = "large"

[targets]
candidate = "p_candidate"
"""


@pytest.fixture
def decide(tmp_path: Path) -> Callable[..., tuple[int, dict[str, str], str, str]]:
    """Run the step that decides; return its status, outputs, summary and stderr."""

    def run(text: str = QUESTION, **inputs: str) -> tuple[int, dict[str, str], str, str]:
        (tmp_path / "question.toml").write_text(text)
        (step,) = [s for s in ACTION["runs"]["steps"] if s.get("id") == "decide"]
        values = {name: str(i["default"]) for name, i in ACTION["inputs"].items()} | inputs
        env = {}
        for name, expression in step["env"].items():
            key = expression.removeprefix("${{ inputs.").removesuffix(" }}")
            env[name] = values[key]
        files = {n: tmp_path / n for n in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
        for path in files.values():
            path.write_text("")
        scripts = Path(sys.executable).parent
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=tmp_path,
            env={
                **os.environ,
                **env,
                **{n: str(p) for n, p in files.items()},
                "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        lines = files["GITHUB_OUTPUT"].read_text("utf-8").splitlines()
        outputs = dict(line.split("=", 1) for line in lines)
        return (
            done.returncode,
            outputs,
            files["GITHUB_STEP_SUMMARY"].read_text("utf-8"),
            done.stderr,
        )

    return run


def test_a_candidate_that_may_ship_passes(decide: Any, tmp_path: Path) -> None:  # noqa: ANN401
    status, outputs, summary, _ = decide()
    assert (status, outputs["verdict"], outputs["status"]) == (0, "ship", "0")
    question = pw.Question.read(tmp_path / "question.toml")
    assert summary.strip() == question.decide().to_markdown().strip()
    assert (tmp_path / outputs["report"]).read_text("utf-8").startswith("<!DOCTYPE html>")


def test_another_verdict_fails_where_it_is_asked_to(decide: Any) -> None:  # noqa: ANN401
    worse = QUESTION.replace('candidate = "p_candidate"', 'candidate = "p_small"')
    status, outputs, summary, _ = decide(worse)
    assert (status, outputs["verdict"], outputs["status"]) == (1, "don't", "1")
    assert "Don't ship 'candidate'" in summary.replace("&#x27;", "'")
    status, outputs, _, _ = decide(worse, **{"fail-on": "can't tell"})
    assert (status, outputs["verdict"]) == (0, "don't")
    status, outputs, _, _ = decide(options="--baseline nobody")
    assert (status, outputs) == (2, {})


def test_a_same_policy_cannot_tell(decide: Any) -> None:  # noqa: ANN401
    same = QUESTION.replace('candidate = "p_candidate"', 'candidate = "p_large"')
    status, outputs, _, _ = decide(same)
    assert (status, outputs["verdict"], outputs["status"]) == (1, "can't tell", "3")


def test_inputs_reach_the_step_through_the_environment_only() -> None:
    """A text that a pull request can set must not be a part of a script."""
    assert all("${{" not in step["run"] for step in ACTION["runs"]["steps"])
