"""Bad input at the command line: one message, exit status 2, nothing written."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolwise.cli.commands import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 60
QUESTION = """
log = "log.parquet"
reward = "r"
logger = "policy"
propensities = "p_{logger}"
[targets]
new = "t"
"""
POLICIES = "import poolwise as pw\nboth = pw.Uniform(['x', 'y'])\n"


def table(**columns: object) -> pa.Table:
    rng = np.random.default_rng(1)
    half = np.full(ROWS, 0.5)
    rows: dict[str, object] = {
        "r": rng.integers(2, size=ROWS),
        "policy": np.resize(["a", "b"], ROWS),
    }
    rows |= {"p": half, "p_a": half, "p_b": half, "t": rng.random(ROWS)}
    rows |= {"item": ["x"] * ROWS, "stock": [["x", "y"]] * ROWS, "country": ["de"] * ROWS}
    return pa.table(rows | columns)


def one(values: list[object], value: object) -> list[object]:
    return [value, *values[1:]]


def question(text: str) -> tuple[pa.Table, str, list[str]]:
    return table(), text, ["question.toml"]


def log(rows: pa.Table, *words: str) -> tuple[pa.Table, str, list[str]]:
    roles = ["--reward", "r", "--propensity", "p"]
    return rows, QUESTION, ["log.parquet", *roles, *words]


DENSITIES = ("--densities", "--target", "new=t")
ELIGIBLE = ("--action", "item", "--eligible", "stock", "--target", "new=policies:both")
CASES: dict[str, Callable[[], tuple[pa.Table, str, list[str]]]] = {
    "malformed": lambda: question(QUESTION.replace('"r"', '"r')),
    "unknown key": lambda: question(QUESTION.replace("reward", "rewrd")),
    "pattern": lambda: question(QUESTION.replace("p_{logger}", "q_{logger}")),
    "density of 0": lambda: log(table(p=one([2.0] * ROWS, 0.0)), *DENSITIES),
    "infinite density": lambda: log(table(p=one([2.0] * ROWS, math.inf)), *DENSITIES),
    "not eligible": lambda: log(table(stock=one([["x", "y"]] * ROWS, ["y"])), *ELIGIBLE),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_message_and_status_2(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, text, words = CASES[case]()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    pq.write_table(rows, "log.parquet")
    (tmp_path / "question.toml").write_text(text)
    (tmp_path / "policies.py").write_text(POLICIES)
    given = {path.name for path in tmp_path.iterdir()}
    output = ["--html", "report.html", "--charts", "charts"]
    monkeypatch.setattr(sys, "argv", ["poolwise", "evaluate", *words, *output])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.count("poolwise: ") == 1
    assert "Traceback" not in printed.err
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == given
