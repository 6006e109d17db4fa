"""Run a case as a user does, and check what holds for every log."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest

from poolwise import evaluate
from poolwise.cli.commands import main
from tests.support.reference import Reference

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.evaluation.results import Evaluation
    from tests.support.hard.case import Case

NUMBERS = ("value", "std_error", "lower", "upper")


@dataclass(frozen=True)
class Outcome:
    """Result of one run of the program."""

    status: int
    out: str
    err: str
    files: tuple[str, ...]


class Run:
    """Runs the program in this process; its report goes to a folder of its own."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        folder: Path,
    ) -> None:
        self.monkeypatch, self.capsys, self.folder = monkeypatch, capsys, folder

    def __call__(self, *arguments: str, page: bool = True) -> Outcome:
        target = self.folder / "out" / "report.html"
        target.parent.mkdir(exist_ok=True)
        words = [*arguments, *(["--html", str(target)] if page else [])]
        self.monkeypatch.setattr(sys, "argv", ["poolwise", *words])
        status: object = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        assert isinstance(status, int)
        captured = self.capsys.readouterr()
        parent = target.parent
        files = tuple(sorted(p.name for p in parent.iterdir())) if parent.exists() else ()
        return Outcome(status, captured.out, captured.err, files)


def check_refused(found: Outcome) -> None:
    """Require one named error, status 2, nothing printed and nothing written."""
    assert found.err.startswith(("poolwise: ", "Usage: "))
    assert "Traceback" not in found.err
    assert (found.status, found.out, found.files) == (2, "", ())


def read_answer(found: Outcome) -> dict[str, Any]:
    """Return the result: standard JSON, and no other output."""
    assert (found.status, found.err) == (0, "")
    answer: dict[str, Any] = json.loads(found.out, parse_constant=_no_number)
    return answer


def _no_number(text: str) -> NoReturn:
    raise AssertionError(f"{text} is not JSON")


def expected(case: Case) -> Evaluation:
    """Return the result of the reference, which adds exactly and uses no SQL."""
    meaning = case.table if case.meaning is None else case.meaning
    return evaluate(case.log(meaning), dict(case.targets), engine=Reference())


def check_answer(answer: dict[str, Any], judge: Evaluation, to: float) -> None:
    """The same estimators for every target, with the same numbers."""
    assert {k["logger"]: k["rows"] for k in answer["loggers"]} == dict(judge.rows)
    assert [t["target"] for t in answer["targets"]] == list(judge.targets)
    for found in answer["targets"]:
        known = {e["estimator"]: e for e in judge.to_dicts() if e["target"] == found["target"]}
        assert [e["estimator"] for e in found["estimates"]] == list(known)
        for estimate in found["estimates"]:
            _check_estimate(estimate, known[estimate["estimator"]], to)


def _check_estimate(found: dict[str, Any], judge: dict[str, Any], to: float) -> None:
    scale = max(abs(judge["value"]), judge["std_error"] or 0.0)
    for name in NUMBERS:
        if judge[name] is None or not np.isfinite(judge[name]):
            assert found[name] is None
        else:
            assert found[name] == pytest.approx(judge[name], rel=to, abs=to * scale)
