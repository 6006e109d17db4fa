"""Two processes add rows to one state: no block is lost, no lock outlives its process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from poolwise.errors import UsageError
from poolwise.evaluation.state import State
from poolwise.files import lock_file
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

TRIALS = 20
WATCH = """
import sys, time
from pathlib import Path
import poolwise as pw
from poolwise.evaluation.state import State

folder, own, trials = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
save = State.save
def slow(state, path):  # the other process has time to come between
    time.sleep(0.02)
    save(state, path)
State.save = slow
rows = {"day": [own] * 20, "reward": [0.0, 1.0] * 10, "p": [0.5] * 20, "t": [0.4, 0.6] * 10}
log = pw.Log(rows, reward="reward", propensity="p", period="day", reward_range=(0.0, 1.0))
for k in range(trials):
    (folder / f"{k}.{own}").touch()
    while len([*folder.glob(f"{k}.[ab]")]) < 2:
        pass
    try:
        pw.watch(folder / f"{k}.npz", log, {"new": "t"})
        print(k, own)
    except pw.PoolwiseError:
        pass
"""
HOLD = """
import sys, time
from poolwise.files import lock_file

with lock_file(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_rows_that_two_processes_add_at_once_are_added_or_refused(tmp_path: Path) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WATCH, str(tmp_path), own, str(TRIALS)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for own in "ab"
    ]
    printed = [process.communicate(timeout=120)[0].split("\n") for process in running]
    added = [line.split() for lines in printed for line in lines if line]
    for k in range(TRIALS):
        blocks = [block.name for block in State.load(tmp_path / f"{k}.npz").blocks]
        assert blocks == sorted(own for trial, own in added if trial == str(k))
    assert not [*tmp_path.glob(".*")]


def test_the_lock_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    state = tmp_path / "state.npz"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state)], stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "locked\n"
            with refused(UsageError), lock_file(state, wait=0.05):
                pass
        finally:
            running.kill()
    assert [path.name for path in tmp_path.iterdir()] == [".state.npz.lock"]
    with lock_file(state, wait=0.05):
        pass
    assert not [*tmp_path.iterdir()]


def test_an_error_while_a_file_is_locked_unlocks_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock_file(tmp_path / "state.npz"):
        _ = 1 / 0
    with lock_file(tmp_path / "state.npz", wait=0.0):
        pass
