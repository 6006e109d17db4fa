"""The command line: the library's numbers, messages for mistakes, nothing else."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import poolwise
from poolwise import evaluate
from poolwise.cli.commands import app, main
from poolwise.errors import UsageError
from poolwise.formats.labelled import digits_truth
from tests.support.reference import PAPER, log_of, random_table

if TYPE_CHECKING:
    from pathlib import Path

TABLE: pa.Table = random_table(np.random.default_rng(80), {"a": 60, "b": 40})
ROLES = ["--reward", "reward", "--logger", "logger", "--propensity", "p"]
CROSSED = [*ROLES, "--propensities", "a=p_a,b=p_b"]
TARGET = ["--target", "new=t"]
COMMANDS = ("evaluate", "check", "sql", "demo", "init")
ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("logs") / "log.parquet"
    pq.write_table(TABLE, file)
    return str(file)


class Outcome:
    """Result of a run of the program."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


class Run:
    """Run the program in this process, as the console script does."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> Outcome:
        self.monkeypatch.setattr(sys, "argv", ["poolwise", *arguments])
        status: object = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        assert isinstance(status, int)
        captured = self.capsys.readouterr()
        return Outcome(status, captured.out, captured.err)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


def start(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program in its own process."""
    program = code or "from poolwise.__main__ import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )


def paper() -> list[str]:
    return [argument for name in PAPER for argument in ("--estimator", name)]


def test_json_has_the_shape_that_is_promised(run: Run, path: str) -> None:
    found = run("evaluate", path, *CROSSED, *TARGET, "--target", "old=p_a", *paper(), "--json")
    assert (found.status, found.err) == (0, "")
    text = json.loads(found.out)
    assert set(text) == {
        "headline", "baseline", "targets", "loggers", "reward",
        "warnings", "comparison", "fingerprint",
        "backtest", "question", "schema_version", "result",
    }  # fmt: skip
    assert [t["target"] for t in text["targets"]] == ["new", "old"]
    for target in text["targets"]:
        assert {"target", "estimates"} <= set(target)
        assert [e["estimator"] for e in target["estimates"]] == [
            "naive",
            "balanced",
            "weighted",
        ]
        for estimate in target["estimates"]:
            assert set(estimate) == {
                "estimator", "value", "std_error", "lower", "upper", "level", "shares",
                "recommended", "assumes_fixed",
            }  # fmt: skip
            assert set(estimate["shares"]) == {"a", "b"}
            assert sum(estimate["shares"].values()) == pytest.approx(1, rel=1e-12)
            assert estimate["level"] == 0.95
    assert [(k["logger"], k["rows"]) for k in text["loggers"]] == [("a", 60), ("b", 40)]
    assert all({"code", "message"} <= set(w) for w in text["warnings"])


def test_json_has_the_numbers_of_the_library(run: Run, path: str) -> None:
    found = run("evaluate", path, *CROSSED, *TARGET, *paper(), "--level", "0.8", "--json")
    expected = evaluate(log_of(TABLE), {"new": "t"}, PAPER, level=0.8)
    for row, judge in zip(
        json.loads(found.out)["targets"][0]["estimates"], expected.to_dicts(), strict=True
    ):
        for name in ("value", "std_error", "lower", "upper", "level"):
            assert row[name] == pytest.approx(judge[name], rel=1e-9)


def test_warnings_are_in_the_json(run: Run, path: str) -> None:
    text = json.loads(run("evaluate", path, *ROLES, *TARGET, "--json").out)
    codes = [warning["code"] for warning in text["warnings"]]
    assert "no-cross-propensities" in codes
    assert all(warning["message"] for warning in text["warnings"])


def test_the_table_is_that_of_the_library(run: Run, path: str) -> None:
    found = run("evaluate", path, *CROSSED, *TARGET, *paper())
    assert (found.status, found.err) == (0, "")
    text = "\n".join(line.rstrip() for line in found.out.splitlines()).strip("\n")
    assert text == str(evaluate(log_of(TABLE), {"new": "t"}, PAPER))
    assert ESCAPE not in found.out


def test_several_files_options_and_pairs_are_read(run: Run, tmp_path: Path) -> None:
    for place, part in enumerate((TABLE.slice(0, 50), TABLE.slice(50))):
        pq.write_table(part, tmp_path / f"{place}.parquet")
    files = [str(tmp_path / f"{place}.parquet") for place in range(2)]
    each = ["--propensities", "a=least(p_a, 1)", "--propensities", "b = p_b"]
    found = run("evaluate", *files, *ROLES, *each, *TARGET, *paper(), "--json")
    assert found.status == 0
    naive = json.loads(found.out)["targets"][0]["estimates"][0]
    expected = evaluate(log_of(TABLE), {"new": "t"}, PAPER)["new"].estimates["naive"]
    assert naive["value"] == pytest.approx(expected.value, rel=1e-9)


def test_a_select_is_a_source(run: Run, path: str) -> None:
    query = f"select * from '{path}' where logger = 'a'"
    found = run("evaluate", query, *ROLES, *TARGET, "--estimator", "naive", "--json")
    assert json.loads(found.out)["loggers"][0]["rows"] == 60


MISTAKES = {
    "missing file": (["no.parquet", *CROSSED, *TARGET], "no.parquet"),
    "missing column": (["LOG", *CROSSED, "--target", "new=tt"], "there is no column 'tt'"),
    "level in percent": (["LOG", *CROSSED, *TARGET, "--level", "95"], "0.95"),
    "pair without equals": (["LOG", *ROLES, "--propensities", "p_a", *TARGET], "NAME=COLUMN"),
    "pair without value": (["LOG", *CROSSED, "--target", "new="], "NAME=COLUMN"),
    "pair twice": (["LOG", *ROLES, "--propensities", "a=p,a=p", *TARGET], "twice"),
    "unknown estimator": (["LOG", *CROSSED, *TARGET, "--estimator", "best"], "'best'"),
    "no target": (["LOG", *CROSSED], "target"),
    "no propensity": (["LOG", "--reward", "reward", *TARGET], "propensity"),
    "balanced refused": (["LOG", *ROLES, *TARGET, "--estimator", "balanced"], "balanced"),
    "unknown ending": (["log.xlsx", *CROSSED, *TARGET], ".parquet"),
    "faults": (["LOG", *CROSSED, "--target", "new=t * 9"], "outside [0, 1]"),
    "bad range": (["LOG", *CROSSED, *TARGET, "--reward-range", "1"], "LOWER,UPPER"),
    "reversed range": (["LOG", *CROSSED, *TARGET, "--reward-range", "1,0"], "reward_range"),
    "not a select": (["select 1; select 2", *CROSSED, *TARGET], "SELECT"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message_and_status_two(run: Run, path: str, mistake: str) -> None:
    arguments, message = MISTAKES[mistake]
    found = run("evaluate", *(path if a == "LOG" else a for a in arguments))
    assert found.status == 2
    assert found.out == ""
    assert message in found.err
    assert found.err.startswith("poolwise: ")
    assert "Traceback" not in found.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["no.parquet", *CROSSED, *TARGET],
        ["LOG", *CROSSED, "--target", "new=t * 9", "--json"],
        ["LOG", *CROSSED, *TARGET, "--on-fault", "ignore"],
        ["LOG", *TARGET],
    ],
    ids=["missing file", "faults", "unknown choice", "missing option"],
)
def test_a_mistake_in_a_process_of_its_own(path: str, arguments: list[str]) -> None:
    found = start("evaluate", *(path if a == "LOG" else a for a in arguments))
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr
    assert "Traceback" not in found.stderr


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("poolwise.evaluation.evaluate.evaluate", broken)
    result = CliRunner().invoke(app, ["evaluate", path, *CROSSED, *TARGET])
    assert isinstance(result.exception, ZeroDivisionError)


def test_the_runner_of_typer_sees_our_errors_as_they_are() -> None:
    result = CliRunner().invoke(app, ["evaluate", "no.xlsx", *CROSSED, *TARGET])
    assert isinstance(result.exception, UsageError)


def test_bad_rows_can_be_dropped(run: Run, path: str) -> None:
    bad = ["--target", "new=case when reward > 1 then 2 else t end", "--on-fault", "drop"]
    found = run("evaluate", path, *CROSSED, *bad, "--estimator", "naive", "--json")
    text = json.loads(found.out)
    kept = sum(k["rows"] for k in text["loggers"])
    assert kept == sum(r <= 1 for r in TABLE["reward"].to_pylist())
    assert "dropped-rows" in {w["code"] for w in text["warnings"]}


def test_checking_a_good_log(run: Run, path: str) -> None:
    found = run("check", path, *CROSSED, *TARGET)
    assert found.status == 0
    assert found.out.startswith("no faults in 100 rows ('a' 60, 'b' 40)\nnote (no-audit): ")
    text = json.loads(run("check", path, *CROSSED, *TARGET, "--json").out)
    numbers = {"faults": [], "rows": {"a": 60, "b": 40}, "warnings": text["warnings"]}
    assert text == {"schema_version": 1, "result": "check", **numbers}
    assert [w["code"] for w in text["warnings"]] == ["no-audit"]


def test_checking_a_bad_log_reports_and_fails(run: Run, path: str) -> None:
    wrong = ["--propensities", "a=p_a,b=p_a"]
    found = run("check", path, *ROLES, *wrong, *TARGET)
    assert found.status == 2
    assert "logger 'b': 40 rows: the logged propensity is not that" in found.out + found.err
    report = run("check", path, *ROLES, *wrong, *TARGET, "--json")
    assert report.status == 2
    (fault,) = json.loads(report.out)["faults"]
    assert (fault["logger"], fault["rows"]) == ("b", 40)


def test_the_printed_query_runs_where_the_data_is(run: Run, path: str) -> None:
    found = run("sql", f"select * from '{path}'", *CROSSED, *TARGET)
    assert found.status == 0
    with duckdb.connect() as connection:
        lines = connection.execute(found.out).fetchall()
    assert [line[:3] for line in lines] == [("a", 60, 0), ("b", 40, 0)]


def test_the_query_is_printed_for_other_dialects(run: Run) -> None:
    found = run("sql", "my.log", *CROSSED, *TARGET, "--dialect", "bigquery")
    assert found.status == 0
    assert "`p_a`" in found.out
    wrong = run("sql", "my.log", *CROSSED, *TARGET, "--dialect", "klingon")
    assert (wrong.status, wrong.out) == (2, "")


@pytest.mark.slow
def test_the_demo_shows_the_truth_and_what_it_teaches() -> None:
    found = start("demo", "--verbose")
    assert (found.returncode, found.stderr) == (0, "")
    assert ESCAPE not in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80
    (truth,) = digits_truth().values()
    assert f"{truth:.4f}" in found.stdout
    for name in ("naive", "balanced", "weighted", "small", "medium", "large"):
        assert name in found.stdout
    # two sentences after the table
    assert re.search(r"[A-Z][^.]*\w[^§]*\. [A-Z][^§]*\.\s*$", found.stdout)


def test_the_demo_as_json_has_the_truth(run: Run) -> None:
    (target,) = json.loads(run("demo", "--json").out)["targets"]
    assert target["truth"] == pytest.approx(digits_truth()["candidate"])


def test_options_of_the_rows_reach_compare_and_plan(run: Run, path: str) -> None:
    named = [path, *CROSSED, *TARGET]
    for command in ("compare", "plan"):
        more = ["--half-width", "0.1"] if command == "plan" else ["--target", "old=p_a"]
        wrong = run(command, *named, *more, "--reward-range", "1")
        assert (wrong.status, "LOWER,UPPER" in wrong.err) == (2, True)
        lost = run(command, *named, *more, "--cluster", "user")
        assert (lost.status, "user" in lost.err) == (2, True)


def test_help_names_the_commands_and_loads_nothing_heavy() -> None:
    """`--help` is fast because it imports no slow module."""
    code = """
import sys
from poolwise.cli.commands import main
try:
    main()
except SystemExit as end:
    heavy = {"numpy", "duckdb", "pyarrow", "sqlglot", "scipy", "pandas", "polars", "sklearn"}
    print(sorted(heavy & set(sys.modules)), end.code or 0)
"""
    found = start("--help", code=code)
    *text, last = found.stdout.splitlines()
    assert last == "[] 0"
    for command in COMMANDS:
        assert any(line.split()[:1] == [command] for line in text if line.strip())


def test_the_examples_of_help_name_commands() -> None:
    lines = start("--help").stdout.partition("Examples:")[2].splitlines()
    shown = [line.split()[1] for line in lines if line.split()[:1] == ["poolwise"]]
    assert {"demo", "init", "check", "evaluate"} <= set(shown) <= set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "place", "found"),
    [
        ("poolwise eva", 1, ["evaluate"]),
        ("poolwise evaluate --prop", 2, ["--propensity", "--propensities"]),
    ],
)
def test_a_shell_completes_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, words: str, place: int, found: list[str]
) -> None:
    for name, value in {"WORDS": words, "CWORD": str(place)}.items():
        monkeypatch.setenv(f"COMP_{name}", value)
    monkeypatch.setenv("_POOLWISE_COMPLETE", "complete_bash")
    done = start(
        code="import sys; sys.argv[0] = 'poolwise'; from poolwise.__main__ import main; main()"
    )
    assert (done.stdout.split(), done.returncode) == (found, 0)


def test_a_shell_that_is_unknown_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 1 means that a requirement was not shown, and nothing else."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = start("--show-completion", "no-shell")
    assert done.returncode == 2


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, poolwise; print(sorted({'numpy', 'duckdb', 'pyarrow'} & set(sys.modules)))"
    )
    assert start(code=code).stdout.strip() == "[]"


def test_public_names_are_found_when_asked_for() -> None:
    for name in poolwise.__all__:
        assert getattr(poolwise, name) is not None
    assert set(poolwise.__all__) <= set(dir(poolwise))
    assert not hasattr(poolwise, "nothing")


def test_a_comma_in_parentheses_separates_nothing(run: Run, path: str) -> None:
    chosen = ["--target", "new=least(t, greatest(t, 0)),old=p_a"]
    found = run("evaluate", path, *CROSSED, *chosen, "--estimator", "naive", "--json")
    assert [t["target"] for t in json.loads(found.out)["targets"]] == ["new", "old"]


def test_an_equals_sign_in_an_expression_stays_in_it(run: Run, path: str) -> None:
    chosen = ["--target", "new=case when logger='a' then t else t end"]
    found = run("evaluate", path, *CROSSED, *chosen, "--estimator", "naive", "--json")
    expected = evaluate(log_of(TABLE), {"new": "t"}, "naive")["new"].estimates["naive"]
    value = json.loads(found.out)["targets"][0]["estimates"][0]["value"]
    assert value == pytest.approx(expected.value, rel=1e-9)


# Policies in Python, and files that are scored once.

POLICIES = """
import numpy as np

def even(batch):
    return np.full(len(batch), 0.5)
"""


def test_policies_in_python_are_scored_once_and_evaluated_from_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cli_policies.py").write_text(POLICIES)
    monkeypatch.chdir(tmp_path)
    rows = "who,a,r\nold,0,1.0\nold,1,0.0\nnew,1,3.0\nnew,0,2.0\n"
    (tmp_path / "log.csv").write_text(rows)
    named = ["--logger", "who", "--reward", "r", "--action", "a"]
    named += ["--propensities", "old=cli_policies:even,new=0.5e0", "--target", "t=0.25e0"]
    done = run("score", "log.csv", *named, "--out", "deep/scored.parquet")
    assert done.status == 0, done.err
    command = done.out.splitlines()[-1]
    assert command.startswith("poolwise evaluate deep/scored.parquet")
    again = run(*shlex.split(command)[1:], "--json", "--estimator", "naive")
    direct = run("evaluate", "log.csv", *named, "--json", "--estimator", "naive")
    found = [json.loads(r.out)["targets"][0]["estimates"][0]["value"] for r in (again, direct)]
    assert found == [0.75, 0.75]  # half of the mean reward, 1.5


def test_options_of_the_reader_and_of_engines_are_read(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("r;p;t\n1,5;0,5;0,5\n2,5;0,5;0,5\n")
    roles = ["--reward", "r", "--propensity", "p", "--target", "t=t", "--json"]
    options = ["--reader-option", "delim=;", "--reader-option", "decimal_separator=,"]
    done = run("evaluate", str(path), *roles, *options, "--estimator", "naive")
    assert json.loads(done.out)["targets"][0]["estimates"][0]["value"] == 2.0
    wrong = run("evaluate", str(path), *roles, "--reader-option", "delim")
    assert (wrong.status, "KEY=VALUE" in wrong.err) == (2, True)
    lost = run("evaluate", str(path), *roles, "--master", "local[2]")
    assert (lost.status, "--engine spark" in lost.err) == (2, True)
    nothing = run("evaluate", *roles)
    assert (nothing.status, "LOGS" in nothing.err) == (2, True)


@pytest.mark.slow
def test_backtest_prints_and_writes_its_report(run: Run, path: str, tmp_path: Path) -> None:
    found = run("backtest", path, *CROSSED, "--level", "0.9", "--json")
    assert (found.status, found.err) == (0, "")
    text = json.loads(found.out)
    assert (text["result"], text["level"]) == ("backtest", 0.9)
    assert [entry["logger"] for entry in text["loggers"]] == ["a", "b"]
    html, charts = tmp_path / "report.html", tmp_path / "charts"
    shown = run("backtest", path, *CROSSED, "--html", str(html), "--charts", str(charts))
    assert shown.status == 0
    assert "Predicted from the other logs" in shown.out
    assert "poolwise backtest" in html.read_text("utf-8")
    assert sorted(p.name for p in charts.iterdir()) == ["backtest.png", "backtest.svg"]
    tested = run("evaluate", path, *CROSSED, *TARGET, "--json")
    assert [entry["logger"] for entry in json.loads(tested.out)["backtest"]["loggers"]] == [
        "a",
        "b",
    ]
    untested = run("evaluate", path, *CROSSED, *TARGET, "--no-backtest", "--json")
    assert "backtest" not in json.loads(untested.out)
    own = run("backtest", path, "--logger", "logger", "--reward", "reward", "--propensity", "p")
    assert (own.status, "--propensities" in own.err) == (2, True)
