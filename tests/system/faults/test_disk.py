"""A full disk: one clear error, and nothing half-written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from poolwise.errors import UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.log.log import Log
from tests.support.child import CROSSED, LIMITED, PROGRAM, Child, write_log
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("resource")  # limits of the size of files, as Unix has them
SMALL = "30000"  # bytes that any file may have in these runs


CUSTOM = """
import numpy as np
import poolwise as pw
from poolwise.rows import append

append.MOST_HELD = 0  # as if there were too many rows to hold them
class Mine(pw.Policy):
    def prob(self, batch):
        return np.random.default_rng(len(batch)).uniform(0.2, 0.9, len(batch))

log = pw.Log(
    sys.argv[1], reward="reward", logger="logger", propensity="p", action="action",
    context=["p_a"],
)
try:
    pw.evaluate(log, {"new": Mine()})
except pw.PoolwiseError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("log") / "log.parquet"
    write_log(file, 100_000)
    return file


def test_the_disk_is_full_while_policies_are_scored(path: Path, tmp_path: Path) -> None:
    ended = Child(tmp_path).run(SMALL, str(path), code=LIMITED + CUSTOM)
    assert (ended.status, ended.err, ended.left) == (0, "", ())
    assert ended.out.startswith("UsageError cannot write")
    assert len(ended.out.splitlines()) == 1
    assert "File too large" in ended.out


LEARNING = """
import poolwise as pw

roles = dict(reward="reward", logger="logger", propensity="p", action="action")
try:
    pw.learn(pw.Log(f"SELECT * FROM '{sys.argv[1]}' ORDER BY p", **roles, context=["p_a"]))
except pw.PoolwiseError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("command", ["evaluate", "check", "init"])
def test_the_disk_is_full_while_csv_is_copied(command: str, path: Path, tmp_path: Path) -> None:
    child = Child(tmp_path)
    file = tmp_path / "log.csv"
    csv.write_csv(pq.read_table(path), file)
    roles = {"init": ["--out", str(child.out / "q.toml")]}.get(command, CROSSED)
    ended = child.run(SMALL, command, str(file), *roles, code=LIMITED + PROGRAM)
    assert (ended.status, ended.out, ended.written, ended.left) == (2, "", (), ())
    begin = f"poolwise: cannot write to the folder for temporary files, '{child.temp}': "
    assert ended.err.startswith(begin)
    assert "TMPDIR" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_the_disk_is_full_while_rows_are_copied_for_a_learner(
    path: Path, tmp_path: Path
) -> None:
    ended = Child(tmp_path).run(SMALL, str(path), code=LIMITED + LEARNING)
    assert (ended.status, ended.err, ended.left) == (0, "", ())
    assert ended.out.startswith("UsageError cannot write to the folder for temporary files")


def test_there_is_no_folder_for_temporary_files(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    log = Log(f"SELECT * FROM '{path}' WHERE p > 0", reward="reward", propensity="p")
    with refused(UsageError):
        evaluate(log, {"new": "t"})


def test_the_disk_is_full_while_the_report_is_written(path: Path, tmp_path: Path) -> None:
    child = Child(tmp_path)
    report = child.out / "report.html"
    words = ["evaluate", str(path), *CROSSED, "--html", str(report), "--json"]
    ended = child.run(SMALL, *words, code=LIMITED + PROGRAM)
    assert ended.status == 2
    assert ended.err.startswith("poolwise: cannot write")
    assert (ended.out, ended.written, ended.left) == ("", (), ())


def test_the_disk_is_full_where_the_output_goes(path: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, "evaluate", str(path), *CROSSED, "--json"]
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        found = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert found.returncode == 2
    assert found.stderr.startswith("poolwise: ")
    assert "Traceback" not in found.stderr


def test_a_reader_that_leaves_early_is_no_error(path: Path) -> None:
    """As in `poolwise evaluate ... | head -1`."""
    words = [sys.executable, "-c", PROGRAM, "evaluate", str(path), *CROSSED]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    err = running.stderr.read()
    running.stderr.close()
    assert (running.wait(timeout=60), err) == (141, "")
