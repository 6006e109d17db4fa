"""SIGTERM while Spark starts or runs: the program stops, and so does its JVM."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.child import CROSSED, PROGRAM, Child, write_log

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not (os.environ.get("JAVA_HOME") or shutil.which("java")), reason="needs Java"
)
PATIENCE = 90.0  # seconds in which a loaded machine starts a JVM


@pytest.mark.parametrize("later", [0.0, 1.0], ids=["at once", "a second later"])
def test_a_signal_ends_the_jvm_too(tmp_path: Path, later: float) -> None:
    """A JVM that was starting found its folder gone, and waited for ever."""
    log = tmp_path / "log.parquet"
    write_log(log, 1000)
    child = Child(tmp_path)
    words = ["evaluate", str(log), *CROSSED, "--json", "--engine", "spark"]
    running = child.start(PROGRAM, words)
    started: list[psutil.Process] = []
    end = time.monotonic() + PATIENCE
    while not started and time.monotonic() < end:
        started = psutil.Process(running.pid).children(recursive=True)
        time.sleep(0.02)
    time.sleep(later)
    running.send_signal(signal.SIGTERM)
    ended = child.end(running)  # when all processes have closed stdout
    assert (ended.status, ended.out, ended.left) == (143, "", ())
    assert ended.err.endswith("poolwise: stopped\n")
    assert started
    assert not psutil.wait_procs(started, timeout=PATIENCE)[1]
