"""The command that decides: its statuses, and the same answer in every form."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

import poolwise as pw
from poolwise.cli.commands import main
from poolwise.formats.labelled import digits_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROLES = ["decide", str(digits_path()), "--logger", "policy", "--reward", "correct"]
ROLES += ["--propensities", "p_{logger}", "--baseline", "large"]


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    def run(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["poolwise", *ROLES, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        read = capsys.readouterr()
        return ended.value.code, read.out, read.err

    return run


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [("p_candidate", 0, "Ship"), ("p_small", 1, "Don't ship"), ("p_large", 3, "Can't tell")],
)
def test_the_status_is_the_verdict(
    run: Callable[..., tuple[object, str, str]], target: str, status: int, words: str
) -> None:
    code, out, err = run("--target", f"new={target}")
    assert (code or 0, err) == (status, "")
    assert out.startswith(words)


def test_metrics_and_forms_are_those_of_the_library(
    run: Callable[..., tuple[object, str, str]], tmp_path: Path
) -> None:
    metrics = {
        "right": pw.Metric("correct", primary=True),
        "sevens": pw.Metric("(digit = 7)::INT", better="lower", guard="25%"),
    }
    words = ["--target", "new=p_candidate", "--metric", "right=correct, primary"]
    words += ["--metric", "sevens=(digit = 7)::INT, lower, guard 25%"]
    log = pw.Log(digits_path(), logger="policy", reward="correct", propensities="p_{logger}")
    decision = pw.decide(log, {"new": "p_candidate"}, baseline="large", metrics=metrics)
    code, out, _ = run(*words, "--json", "--html", str(tmp_path / "d.html"))
    found = json.loads(out)
    found.pop("question")
    expected = json.loads(decision.to_json())
    assert (code or 0) == 0
    assert {k: v for k, v in found.items() if k != "fingerprint"} == {
        k: v for k, v in expected.items() if k != "fingerprint"
    }
    assert (tmp_path / "d.html").stat().st_size > 10_000
    _, out, _ = run(*words, "--markdown")
    assert out.strip() == decision.to_markdown().strip()
    code, out, err = run(*words, "--markdown", "--json")
    assert (code, out) == (2, "")
    assert "choose one" in err


def test_a_mistake_is_status_two(run: Callable[..., tuple[object, str, str]]) -> None:
    code, out, err = run("--target", "new=p_candidat")
    assert (code, out) == (2, "")
    assert err.startswith("poolwise: ")
