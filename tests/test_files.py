"""Outputs never replace inputs, special files or files of another kind."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import PoolwiseError, SourceError, UsageError
from poolwise.evaluation.summarise import named_files
from poolwise.files import HTML, PARQUET, refuse_output, whole_file, write_whole
from poolwise.formats.vw import from_dsjson
from tests.support.messages import check_text, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Probabilities = NDArray[np.float64]
    Asked = Callable[[pw.Batch], Probabilities]

COLUMNS = {"r": [1.0, 0.0, 3.0, 2.0], "p": [0.5] * 4, "a": [0, 1, 1, 0]}
WORDS = ["--reward", "r", "--propensity", "p", "--target", "new=p"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with one log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    pq.write_table(pa.table(COLUMNS), tmp_path / "logs" / "log.parquet")
    return tmp_path


def refuses(*words: str | Path) -> str:
    """The one message of a command line that is refused."""
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(found.exception, UsageError), found.exception  # main: status 2
    assert found.output == ""
    return str(found.exception)


def log_of(source: object) -> pw.Log:
    return pw.Log(source, reward="r", propensity="p", action="a")


def half(batch: pw.Batch) -> Probabilities:
    return np.full(len(batch), 0.5)


def unasked(batch: pw.Batch) -> Probabilities:
    raise AssertionError(f"{len(batch)} rows were scored before the output was refused")


def score(source: object, path: str | Path, policy: Asked = unasked) -> None:
    pw.score_log(log_of(source), {"new": pw.Function(policy)}, path)


# --- what is read is never written --------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("logs/log.parquet", "logs/log.parquet"),
        ("logs/log.parquet", "./logs/../logs/log.parquet"),
        ("logs/log.parquet", "link.html"),
        ("logs/*.parquet", "link.html"),
        ("logs", "link.html"),
        ("linked", "link.html"),
        ("SELECT * FROM 'logs/log.parquet'", "link.html"),
        ("SELECT * FROM read_parquet(['logs/*.parquet'])", "link.html"),
    ],
)
def test_a_report_is_not_written_over_its_log(folder: Path, source: str, html: str) -> None:
    (folder / "link.html").symlink_to("logs/log.parquet")
    (folder / "linked").symlink_to("logs")
    before = (folder / "logs" / "log.parquet").read_bytes()
    check_text(refuses("evaluate", source, *WORDS, "--html", html))
    assert (folder / "logs" / "log.parquet").read_bytes() == before


def test_a_report_is_not_written_over_its_moments(folder: Path) -> None:
    (folder / "day.parquet").write_text("moments, as far as anybody knows")
    (folder / "link.html").symlink_to("day.parquet")
    words = ["evaluate", *WORDS, "--moments", "*.parquet", "--html", "link.html"]
    check_text(refuses(*words))


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("logs/log.parquet", "logs/log.parquet"),
        ("logs/log.parquet", "link.parquet"),
        ("logs/log.parquet", "hard.parquet"),
        ("link.parquet", "logs/log.parquet"),
        ("logs/log.parquet", "LINKED/log.parquet"),
        ("logs", "logs/log.parquet"),
        ("*/log.parquet", "logs/log.parquet"),
        ("SELECT * FROM 'logs/log.parquet'", "logs/log.parquet"),
        (["logs/log.parquet", "other.csv"], "logs/log.parquet"),
        ({"old": "logs/log.parquet"}, "logs/log.parquet"),
    ],
)
def test_a_scored_log_does_not_replace_its_source(
    folder: Path, source: object, path: str
) -> None:
    (folder / "link.parquet").symlink_to("logs/log.parquet")
    (folder / "hard.parquet").hardlink_to(folder / "logs" / "log.parquet")
    (folder / "LINKED").symlink_to("logs")
    before = (folder / "logs" / "log.parquet").read_bytes()
    with refused(UsageError):
        score(source, path)
    assert (folder / "logs" / "log.parquet").read_bytes() == before
    assert [p.name for p in (folder / "logs").iterdir()] == ["log.parquet"]


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("logs/*.parquet", "logs/deep/scored.parquet"),
        ("logs/l*.parquet", "logs/scored.parquet"),
        ("logs", "scored.parquet"),
        ("SELECT *, '*' AS star FROM 'logs/log.parquet'", "scored.parquet"),
    ],
)
def test_a_place_beside_the_sources_is_free(folder: Path, source: str, path: str) -> None:
    for _ in range(2):  # what it wrote before it replaces
        score(source, path, half)
        assert pq.read_table(folder / path)["t_new"].to_pylist() == [0.5] * 4


def test_the_command_that_scores_does_not_replace_its_source(folder: Path) -> None:
    (folder / "outputs_policies.py").write_text(
        "def even(batch):\n    return [0.5] * len(batch)\n"
    )
    words = ["--reward", "r", "--action", "a", "--propensity", "p"]
    words += ["--target", "new=outputs_policies:even"]
    said = refuses("score", "logs/log.parquet", *words, "--out", "logs/log.parquet")

    check_text(said)


@pytest.mark.slow
def test_a_report_may_lie_in_the_folder_of_the_logs(folder: Path) -> None:
    report = folder / "logs" / "report.html"
    for _ in range(2):
        words = ["evaluate", "logs", *WORDS, "--html", str(report)]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert report.read_text("utf-8").rstrip().endswith("</html>")


def test_decisions_are_not_saved_over_what_is_read(folder: Path) -> None:
    (folder / "lines.parquet").write_text("not even looked at")
    (folder / "link.json").symlink_to("lines.parquet")
    for source in ("lines.parquet", "link.json", ".", "*.json"):
        with refused(UsageError):
            from_dsjson(source, save="lines.parquet")
    assert (folder / "lines.parquet").read_text() == "not even looked at"


def test_a_summary_replaces_summaries_and_nothing_else(folder: Path) -> None:
    path = folder / "logs" / "log.parquet"
    before = path.read_bytes()
    summary = pw.summarise(log_of(path), {"new": "p"})
    with refused(UsageError):
        summary.save(path)
    assert path.read_bytes() == before
    (folder / "day.parquet").touch()  # as tempfile leaves it
    for _ in range(2):
        summary.save(folder / "day.parquet")
    assert pw.Summary.load(folder / "day.parquet").rows == summary.rows


# --- links and special files --------------------------------------------------------------


def save_page(path: Path) -> None:
    write_whole(path, b"new")


def save_score(path: Path) -> None:
    score(pa.table(COLUMNS), path, half)


def save_summary(path: Path) -> None:
    pw.summarise(log_of(pa.table(COLUMNS)), {"new": "p"}).save(path)


def save_decisions(path: Path) -> None:
    line = {"_label_cost": -1.0, "_label_probability": 0.5, "_label_Action": 1}
    more = {"EventId": "e", "a": [1, 2], "p": [0.5, 0.5], "VWState": {"m": "v1"}, "c": {}}
    lines = path.parent / "lines.json"
    lines.write_text(json.dumps(line | more) + "\n")
    try:
        from_dsjson(lines, save=path)
    finally:
        lines.unlink()


WRITERS = [save_page, save_score, save_summary, save_decisions]


@pytest.mark.parametrize("save", WRITERS)
@pytest.mark.parametrize("old", [True, False])
def test_a_link_is_written_through(
    tmp_path: Path, save: Callable[[Path], None], *, old: bool
) -> None:
    real, link = tmp_path / "deep" / "real.parquet", tmp_path / "link.parquet"
    link.symlink_to("deep/real.parquet")
    if old:
        real.parent.mkdir()
        real.touch()
    save(link)
    assert link.is_symlink()
    assert not real.is_symlink()
    assert real.stat().st_size > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "link.parquet"]
    assert [p.name for p in real.parent.iterdir()] == ["real.parquet"]


@pytest.mark.parametrize("save", WRITERS)
@pytest.mark.parametrize("linked", [True, False])
def test_a_pipe_is_not_replaced_by_a_file(
    tmp_path: Path, save: Callable[[Path], None], *, linked: bool
) -> None:
    pipe, link = tmp_path / "pipe.parquet", tmp_path / "link.parquet"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with refused(UsageError):
        save(link if linked else pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()


@pytest.mark.parametrize("save", WRITERS)
def test_a_folder_is_no_place_for_a_file(tmp_path: Path, save: Callable[[Path], None]) -> None:
    (tmp_path / "folder.parquet").mkdir()
    with refused(UsageError):
        save(tmp_path / "folder.parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.parquet"]


@pytest.mark.parametrize("html", ["pipe.html", "linked.html", "", ".", "logs", "file/x.html"])
def test_a_report_without_a_place_is_refused_before_any_work(folder: Path, html: str) -> None:
    os.mkfifo(folder / "pipe.html")
    (folder / "linked.html").symlink_to("pipe.html")
    (folder / "file").touch()
    words = ["evaluate", "not-there.parquet", *WORDS, "--html", html]
    assert refuses(*words).startswith("cannot write")
    assert refuses("demo", "--html", html).startswith("cannot write")
    assert stat.S_ISFIFO((folder / "pipe.html").stat().st_mode)


def test_charts_without_a_folder_are_refused_before_any_work(folder: Path) -> None:
    words = ["evaluate", "not-there.parquet", *WORDS, "--charts"]
    assert refuses(*words, folder / "logs" / "log.parquet").startswith("cannot write")
    assert refuses(*words, folder / "logs" / "log.parquet" / "x").startswith("cannot write")


@pytest.mark.parametrize(
    "path",
    ["", ".", "logs", "logs/log.parquet/s.parquet", "x" * 300 + ".parquet", "a\0.parquet"],
)
def test_a_score_without_a_place_is_refused_before_the_rows_are_scored(
    folder: Path, path: str
) -> None:
    with refused(UsageError):
        score(pa.table(COLUMNS), path)
    assert [p.name for p in folder.iterdir()] == ["logs"]


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="a folder as Linux has it")
def test_a_folder_that_lets_nobody_write_is_told_before_any_work(folder: Path) -> None:
    assert folder.exists()
    with refused(UsageError):
        score(pa.table(COLUMNS), "/proc/s.parquet")
    words = ["evaluate", "not-there.parquet", *WORDS, "--html", "/proc/r.html"]
    assert refuses(*words).startswith("cannot write /proc/r.html")


# --- names that say what is written -------------------------------------------------------


@pytest.mark.parametrize("name", ["r.txt", "r.pdf", "r.json", "r", "html", "r.html.gz"])
def test_a_report_is_called_html(folder: Path, name: str) -> None:
    words = ["evaluate", "not-there.parquet", *WORDS, "--html", name]
    assert re.search(r"HTML, so its name ends in \.html or \.htm$", refuses(*words))
    assert not (folder / name).exists()


@pytest.mark.parametrize("name", ["r.html", "r.htm", "R.HTML"])
def test_endings_of_pages_are_known(tmp_path: Path, name: str) -> None:
    refuse_output(tmp_path / "deep" / name, HTML)
    assert list(tmp_path.iterdir()) == []  # checking creates no folder


@pytest.mark.parametrize("name", ["s.csv", "s.json", "s", "s.parquet.gz"])
def test_a_scored_log_is_called_parquet(folder: Path, name: str) -> None:
    with refused(UsageError):
        score(pa.table(COLUMNS), folder / name)


@pytest.mark.parametrize("name", ["m.csv", "m.json"])
def test_a_summary_is_called_parquet_or_nothing(folder: Path, name: str) -> None:
    with refused(UsageError):
        save_summary(folder / name)
    save_summary(folder / "nothing")
    assert pw.Summary.load(folder / "nothing").rows


# --- whole, and as private as before ------------------------------------------------------


def test_an_error_of_the_writer_is_its_own_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), whole_file(path) as beside:
        beside.write_text((tmp_path / "not there").read_text())
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_rights_of_the_old_file_are_those_of_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o600)
    write_whole(path, b"new")
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (0o600, b"new")


@pytest.mark.parametrize("source", ["file://{}/a.parquet", "file:{}/a.parquet", "~/a.parquet"])
def test_other_spellings_of_a_path_are_seen_through(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for _ in range(2):
        with refused(UsageError):
            refuse_output(tmp_path / "a.parquet", PARQUET, [source.format(tmp_path)])
        (tmp_path / "a.parquet").touch()


# --- the version, and moments that are not there ------------------------------------------


def test_the_version_is_printed() -> None:
    found = CliRunner().invoke(app, ["--version"])
    assert (found.exit_code, found.output) == (0, f"poolwise {pw.__version__}\n")


def test_moments_that_are_not_there_are_told_in_words(folder: Path) -> None:
    words = ["evaluate", *WORDS, "--moments", "none.parquet"]
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, SourceError)
    check_text(str(found.exception))
    with refused(SourceError):
        pw.Summary.load("none.parquet")
    with refused(SourceError):
        pw.from_result("none.parquet", log_of(folder / "logs"), {"new": "p"})
    with refused(PoolwiseError):
        pw.Summary.load("x" * 300)


def test_a_glob_of_moments_stands_for_its_files(folder: Path) -> None:
    log = pw.Log("logs", reward="r", propensity="p")
    for day in ("first", "second"):
        pw.summarise(log, {"new": "p"}).save(folder / f"{day}.day.parquet")
    words = ["evaluate", *WORDS, "--json", "--moments"]
    found = [
        CliRunner().invoke(app, [*words, p]) for p in ("*.day.parquet", f"{folder}/*.day.p*")
    ]
    assert [json.loads(f.output)["loggers"][0]["rows"] for f in found] == [8, 8]
    lost = CliRunner().invoke(app, [*words, "*.nothing"])
    assert isinstance(lost.exception, SourceError)


def test_moments_that_are_named_twice_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "day.parquet"
    file.touch()
    with refused(UsageError):
        named_files([file, tmp_path / "*.parquet"])
    assert named_files([tmp_path / "*.parquet"]) == [file]
