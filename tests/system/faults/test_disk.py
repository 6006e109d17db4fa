"""A full disk: one clear error, and nothing half-written."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.child import CROSSED, LIMITED, PROGRAM, Child, write_log

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
    running.wait(timeout=60)
    assert "Traceback" not in err
