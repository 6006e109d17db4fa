"""Ctrl-C or SIGTERM at any moment: the program stops at once and leaves nothing behind."""

from __future__ import annotations

import signal
import time
from itertools import cycle
from typing import TYPE_CHECKING

import pytest

from tests.support.child import CROSSED, Child, write_log

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 300_000
MOMENTS = (0.05, 0.2, 0.3, 0.5, 0.7, 0.85)  # of the time that a whole run takes
STATUSES = {  # as main says it; as the system does, while Python starts or ends
    signal.SIGINT: (130, -2),
    signal.SIGTERM: (143, -15),
}


@pytest.fixture(scope="module", params=["parquet", "csv"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("log") / f"log.{request.param}"
    write_log(file, ROWS)
    return file


def test_a_signal_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    words = ["evaluate", str(path), *CROSSED, "--json", "--html"]
    whole = Child(tmp_path)
    report = whole.out / "report.html"
    start = time.monotonic()
    ended = whole.run(*words, str(report))
    taken = time.monotonic() - start
    assert (ended.status, ended.written, ended.left) == (0, ("report.html",), ())
    stopped = 0
    for moment, (by, statuses) in zip(MOMENTS, cycle(STATUSES.items()), strict=False):
        report.unlink(missing_ok=True)
        ended = whole.interrupted(moment * taken, *words, str(report), by=by)
        assert ended.left == ()
        if ended.written:  # it was faster this time, and at most leaving
            assert ended.written == ("report.html",)
            assert report.read_bytes().rstrip().endswith(b"</html>")
        else:
            stopped += 1
            assert ended.status in statuses
            assert ended.out == ""
        assert ended.status in {0, *statuses}
        if ended.status == statuses[0]:
            assert ended.err == "poolwise: stopped\n"
    assert stopped


@pytest.mark.parametrize("by", STATUSES)
def test_the_report_of_yesterday_survives_a_signal(
    path: Path, tmp_path: Path, by: signal.Signals
) -> None:
    child = Child(tmp_path)
    report = child.out / "report.html"
    report.write_text("yesterday")
    words = ["evaluate", str(path), *CROSSED, "--html", str(report)]
    ended = child.interrupted(0.8, *words, by=by)
    assert ended.left == ()
    assert ended.written == ("report.html",)
    assert report.read_text("utf-8").rstrip().endswith(("yesterday", "</html>"))
