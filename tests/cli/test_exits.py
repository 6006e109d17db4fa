"""Exit statuses and encodings: 1 means not shown, nothing else; every text is printed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise.cli.commands import app, main

if TYPE_CHECKING:
    from pathlib import Path

ENCODINGS = ("ascii", "cp1252", "iso-8859-1", "utf-8")
ROWS = 40
LABELS = ["größe", "日本"]
COLUMNS = {
    "reward": [0.0, 1.0, 1.0, 0.0, 1.0] * 8,
    "who": LABELS * 20,
    "day": ["1"] * 20 + ["2"] * 20,
    "p": [0.5] * ROWS,
    "größe": [0.5] * ROWS,
    "日本": [0.5] * ROWS,
    "t": [0.4, 0.6] * 20,
    "ware": ["äl", "bier"] * 20,
    "u★": [0.6, 0.4] * 20,
}
ROLES = ["--reward", "reward", "--logger", "who", "--propensities", "größe=größe,日本=日本"]
ASKED = [*ROLES, "--target", "neu→=t"]
BOTH = [*ASKED, "--target", 'alt="u★"']
WATCH = ["--state", "state.npz", "--period", "day", "--reward-range", "0,1"]
SHOWN = {  # two rankers of lists of two items
    "who": [LABELS[k // 2 % 2] for k in range(8 * ROWS)],
    "liste": [k // 2 for k in range(8 * ROWS)],
    "ört": [1, 2] * 4 * ROWS,
    "click": [1, 0, 0, 1, 1, 0, 0, 0, 1, 1] * (8 * ROWS // 10),
    "r_größe": [1, 2, 2, 1] * 2 * ROWS,
    "r_日本": [2, 1, 1, 2] * 2 * ROWS,
}
CLICKS = ["--request", "liste", "--click", "click", "--position", "ört", "--logger", "who"]
CLICKS += ["--ranks", "r_{logger}", "--target", "neu→=r_日本"]
TABLE = ["--action", "ware", "--target", 'neu→={"äl": 0.4, "bier": 0.6}']
COMMANDS = {
    "evaluate": ["evaluate", "log.parquet", *ASKED],
    "compare": ["compare", "log.parquet", *BOTH, "--baseline", "日本"],
    "plan": ["plan", "log.parquet", *ASKED, "--half-width", "0.05"],
    "check": ["check", "log.parquet", *ASKED],
    "watch": ["watch", "log.parquet", *ASKED, *WATCH],
    "backtest": ["backtest", "log.parquet", *ROLES],
    "clicks": ["clicks", "clicks.parquet", *CLICKS],
    "learn": ["learn", "log.parquet", *ROLES, "--action", "ware", "--features", "t"],
    "score": ["score", "log.parquet", *ROLES, *TABLE, "--out", "scored.parquet"],
    "init": ["init", "log.parquet"],
    "demo": ["demo"],
}
OTHER = {"sql", "decide"}  # commands with a test of their own
IN_JSON = set(COMMANDS) - {"watch", "score", "init"}  # which write files, too


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pq.write_table(pa.table(COLUMNS), tmp_path / "log.parquet")
    pq.write_table(pa.table(SHOWN), tmp_path / "clicks.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Run:
    """Run the program in this process, with streams of some encoding."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def __call__(self, encoding: str, *words: str) -> tuple[object, str, str]:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            self.monkeypatch.setattr(sys, name, stream)
        self.monkeypatch.setattr(sys, "argv", ["poolwise", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        for stream in streams:
            stream.flush()
        out, err = (s.buffer.getvalue().decode(encoding) for s in streams)
        return ended.value.code, out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_in_every_encoding(run: Run, command: str, encoding: str) -> None:
    status, out, err = run(encoding, *COMMANDS[command])
    assert (status, err) == (0, "")
    assert out


def test_every_command_is_among_them() -> None:
    callbacks = [command.callback for command in app.registered_commands]
    assert {getattr(f, "__name__", "") for f in callbacks} == {*COMMANDS, *OTHER}


def without_date(text: str) -> Any:  # noqa: ANN401 - JSON
    found = json.loads(text)
    found.get("question", {}).pop("date", None)
    return found


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", sorted(IN_JSON))
def test_json_says_the_same_in_every_encoding(run: Run, command: str) -> None:
    said = []
    for encoding in ENCODINGS:
        status, out, err = run(encoding, *COMMANDS[command], "--json")
        assert (status, err) == (0, "")
        said.append(without_date(out))
    assert said == [said[-1]] * len(ENCODINGS)


def test_signs_that_a_terminal_lacks_are_written_in_ascii(run: Run) -> None:
    outputs = [run(encoding, "demo")[1] for encoding in ("utf-8", "ascii")]
    assert "0.6771 ± 0.0040" in outputs[0]
    assert "0.6771 +/- 0.0040" in outputs[1]
    assert outputs[1].isascii()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_message_is_printed_in_every_encoding(run: Run, encoding: str) -> None:
    status, out, err = run(encoding, "evaluate", "log.parquet", *ROLES, "--target", "neu→=★")
    assert (status, out) == (2, "")
    assert err.startswith("poolwise: ")
    assert ("★" in err) == (encoding == "utf-8")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_query_is_printed_as_it_is_or_not_at_all(run: Run, encoding: str) -> None:
    status, out, err = run(encoding, "sql", "logs", *ASKED)
    if encoding == "utf-8":
        assert (status, err) == (0, "")
        assert '"日本"' in out
    else:
        assert (status, out) == (2, "")
        assert "PYTHONIOENCODING" in err


# In a process of its own.

POLICY = """
import sys
def ending(batch):
    sys.exit(1)
"""
FAILING = """
import sys
from poolwise.cli import commands
def fail():
    raise {}
commands._run = fail
from poolwise.__main__ import main
main()
"""
INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.{signal})
sys.meta_path.insert(0, Finder())
from poolwise.__main__ import main
main()
"""
PROGRAM = "from poolwise.__main__ import main; main()"


def start(*words: str, code: str = PROGRAM, **options: Any) -> tuple[int, str, str]:  # noqa: ANN401 - of Popen
    ended = subprocess.run(
        [sys.executable, "-c", code, *words],
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        **options,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    "error",
    ["ZeroDivisionError()", "EOFError()", "OSError()", "MemoryError()", "SystemExit(1)"],
)
def test_a_bug_has_a_traceback_and_a_status_of_its_own(error: str) -> None:
    status, out, err = start(code=FAILING.format(error))
    assert (status, out) == (70, "")
    assert err.startswith("Traceback")
    assert error.split("(", maxsplit=1)[0] in err


def test_a_bug_of_an_import_has_that_status_too() -> None:
    code = f"import sys; sys.modules['typer'] = None; {PROGRAM}"
    status, _, err = start("demo", code=code)
    assert status == 70
    assert "ModuleNotFoundError" in err


@pytest.mark.parametrize("name", ["typer", "pyarrow", "numpy"])
@pytest.mark.parametrize(("signal", "number"), [("SIGINT", 2), ("SIGTERM", 15), ("SIGHUP", 1)])
@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
def test_a_signal_during_imports_is_no_traceback(name: str, signal: str, number: int) -> None:
    heard = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # also below nohup
    code = heard + INTERRUPTED.format(name=name, signal=signal)
    assert start("demo", code=code) == (128 + number, "", "poolwise: stopped\n")


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code = ignoring + INTERRUPTED.format(name="typer", signal="SIGTERM")
    status, out, _ = start("--version", code=code)
    assert (status, out[:8]) == (0, "poolwise")


def test_a_policy_that_exits_is_not_taken_for_a_claim_that_was_not_shown(folder: Path) -> None:
    (folder / "mine.py").write_text(POLICY)
    words = ["evaluate", "log.parquet", *ROLES, "--target", "new=mine:ending"]
    status, out, _ = start(*words)
    assert status not in {0, 1}
    assert out == ""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="pipes of Windows break otherwise")
@pytest.mark.parametrize("words", [["demo"], ["demo", "--json"], ["--help"]])
def test_a_pipe_that_nobody_reads_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    status, _, err = start(*words, stdout=writer)
    os.close(writer)
    assert (status, err) == (141, "")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a shell of Unix")
@pytest.mark.parametrize(("closed", "expected"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0)])
def test_closed_streams_are_no_error(closed: str, expected: int) -> None:
    command = f"{sys.executable} -m poolwise demo {closed}"
    ended = subprocess.run(["sh", "-c", command], check=False, capture_output=True)
    assert ended.returncode == expected
    assert b"Traceback" not in ended.stderr
