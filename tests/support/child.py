"""A run of the program in its own process, with a folder for all its files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROGRAM = "from poolwise.__main__ import main; main()"
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.dont_write_bytecode = True
del sys.argv[1]
"""
ROLES = ["--reward", "reward", "--logger", "logger", "--propensity", "p"]
CROSSED = [*ROLES, "--propensities", "a=p_a,b=p_b", "--target", "new=t"]


@dataclass(frozen=True)
class Ended:
    """Exit status, output, and the files in its folders."""

    status: int
    out: str
    err: str
    written: tuple[str, ...]
    left: tuple[str, ...]


class Child:
    """Starts the program; its reports go to `out`, its temporary files to `temp`."""

    def __init__(self, folder: Path) -> None:
        self.out, self.temp = folder / "out", folder / "temp"
        self.out.mkdir()
        self.temp.mkdir()

    def start(self, code: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.temp)},
        )

    def end(self, running: subprocess.Popen[str], *, timeout: float = 120) -> Ended:
        try:
            out, err = running.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()
            raise
        return Ended(
            running.returncode, out, err, self._names(self.out), self._names(self.temp)
        )

    def run(self, *arguments: str, code: str = PROGRAM) -> Ended:
        return self.end(self.start(code, arguments))

    def interrupted(
        self, after: float, *arguments: str, by: signal.Signals = signal.SIGINT
    ) -> Ended:
        """Send a signal, so many seconds after the start, if it still runs then."""
        running = self.start(PROGRAM, arguments)
        try:
            running.wait(timeout=after)
        except subprocess.TimeoutExpired:
            running.send_signal(by)
        return self.end(running)

    @staticmethod
    def _names(folder: Path) -> tuple[str, ...]:
        return tuple(sorted(path.name for path in folder.iterdir()))


def write_log(path: Path, rows: int, targets: int = 1) -> None:
    """A log of two loggers; rewards 0 to 2, probabilities from 0.2 to 0.7."""
    probability = "0.2 + 0.5 * random()"
    columns = "".join(f", {probability} AS t_{k}" for k in range(1, targets))
    query = f"""
        SELECT *, CASE WHEN logger = 'a' THEN p_a ELSE p_b END AS p
        FROM (
            SELECT CASE WHEN i % 3 = 0 THEN 'a' ELSE 'b' END AS logger,
                2 * random() AS reward, i % 4 AS action, {probability} AS p_a,
                {probability} AS p_b, {probability} AS t{columns}
            FROM range({rows}) AS numbers (i)
        )
    """
    with duckdb.connect() as connection:
        connection.execute("SELECT setseed(0.5)")
        connection.execute(f"COPY ({query}) TO '{path}'")
