"""`poolwise watch`: exit status as a gate, questions in a file, and killed processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import UsageError
from poolwise.evaluation.state import State
from tests.evaluation.test_watch import bounds, day, log

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = """log = "1.parquet"
reward = "click"
logger = "policy"
propensities = "p_{logger}"
targets = {new = "p_new"}
period = "day"
reward_range = "0,1"
state = "state.npz"
better_than = "v2"
"""
OPTIONS = [
    *("--reward", "click", "--logger", "policy", "--propensities", "p_{logger}"),
    *("--target", "new=p_new", "--period", "day", "--reward-range", "0,1"),
]
PROGRAM = "from poolwise.__main__ import main; main()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k in range(1, 5):
        pq.write_table(day(k, 1000), tmp_path / f"{k}.parquet")
    return tmp_path


def start(rows: Path, state: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "watch", str(rows), "--state", str(state), *OPTIONS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["watch", *words])
    return result.exit_code, result.stdout


def test_the_exit_status_is_a_gate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    common = [*OPTIONS, "--state", "s.npz", "--better-than", "v2"]
    assert run("1.parquet", *common, "--above", "0.9")[0] == 1
    status, text = run("2.parquet", *common, "--above", "0.1", "--json")
    assert status == 0
    content = json.loads(text)
    assert content["result"] == "watch"
    assert [claim["holds"] for claim in content["claims"]] == [True, True]
    assert [block["block"] for block in content["blocks"]] == ["2024-05-01", "2024-05-02"]
    assert content["question"]["targets"] == {"new": "p_new"}
    watched = pw.watch("t.npz", log(day(1, 1000), day(2, 1000)), {"new": "p_new"})
    assert content["lower"] == pytest.approx(watched.interval.lower, abs=1e-10)
    no_claim = [*OPTIONS, "--state", "u.npz"]
    assert run("1.parquet", *no_claim)[0] == 0


@pytest.mark.slow
def test_mistakes_exit_with_2_and_a_message(folder: Path) -> None:
    start(folder / "1.parquet", folder / "s.npz").communicate(timeout=120)
    process = start(folder / "1.parquet", folder / "s.npz")
    _, message = process.communicate(timeout=120)
    assert process.returncode == 2
    assert message.startswith("poolwise: the rows of '2024-05-01' were added before")


def test_a_question_file_has_the_state(folder: Path) -> None:
    (folder / "question.toml").write_text(QUESTION, "utf-8")
    status, _ = run(str(folder / "question.toml"))
    assert status == 0  # better than v2 already
    state = State.load(folder / "state.npz")
    assert [block.name for block in state.blocks] == ["2024-05-01"]
    first = pw.Question.read(folder / "question.toml")
    with pytest.raises(UsageError):  # the same rows again
        first.watch()
    watched = first.watch(state="other.npz", above=0.1)
    assert (folder / "other.npz").exists()
    assert [claim.holds for claim in watched.claims] == [True, True]
    later = str(folder / "2.parquet")
    assert run(str(folder / "question.toml"), later)[0] == 0
    assert len(State.load(folder / "state.npz").blocks) == 2


@pytest.mark.slow
def test_a_killed_process_loses_nothing(folder: Path) -> None:
    path = folder / "s.npz"
    start(folder / "1.parquet", path).communicate(timeout=120)
    before = path.read_bytes()
    for delay in (0.3, 0.8, 1.2, 1.6, 2.0, 2.4):
        process = start(folder / "2.parquet", path)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        state = State.load(path)  # the old state or the new one, always whole
        assert path.read_bytes() == before or len(state.blocks) == 2
        if len(state.blocks) == 2:
            break
    else:
        start(folder / "2.parquet", path).communicate(timeout=120)
    watched = pw.watch(path)
    whole = pw.watch(folder / "t.npz", log(day(1, 1000), day(2, 1000)), {"new": "p_new"})
    assert bounds(watched) == pytest.approx(bounds(whole), abs=1e-10)
