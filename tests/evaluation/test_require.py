"""A gate: `Comparison.require` and the exit status of `poolwise compare --require`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.errors import Finding, UsageError
from poolwise.evaluation.evaluate import compare
from poolwise.formats.labelled import TARGETS, digits_log, digits_path
from tests.support.messages import refused

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.evaluation.comparison import Comparison

NEW = {**TARGETS, "same": "p_large", "bad": "p_small"}


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(digits_log(), NEW, baseline="large")


def test_what_was_shown_passes(comparison: Comparison) -> None:
    comparison.require("better", "candidate")
    comparison.require("not-worse", "candidate")
    comparison.require("not-worse", "same")
    lower = comparison.difference("candidate").interval.lower
    comparison.require("better", "candidate", margin=lower - 1e-9)


def test_what_was_not_shown_raises_with_its_reasons(comparison: Comparison) -> None:
    with refused(pw.NotShownError) as caught:
        comparison.require("better")
    assert len(caught.value.reasons) == 2  # "same" and "bad"
    lower = comparison.difference("candidate").interval.lower
    with pytest.raises(pw.NotShownError):
        comparison.require("better", "candidate", margin=lower)
    worst = comparison.difference("bad").interval.lower
    comparison.require("not-worse", "bad", margin=-worst + 1e-9)
    with pytest.raises(pw.NotShownError):
        comparison.require("not-worse", "bad", margin=-worst)


def test_an_alarm_fails_every_requirement(comparison: Comparison) -> None:
    alarmed = replace(comparison, findings=(Finding("weights-off", "Off.", severity="alarm"),))
    assert alarmed.findings[0].severity == "alarm"
    with refused(pw.NotShownError):
        alarmed.require("better", "candidate")


def test_requirements_that_mean_nothing(comparison: Comparison) -> None:
    with refused(UsageError):
        comparison.require("better", "unknown")
    with refused(UsageError):
        comparison.require("better", "candidate", margin=-1)
    with refused(UsageError):
        compare(digits_log(), NEW).require("better")


ROLES = [
    str(digits_path()), "--logger", "policy", "--reward", "correct", "--propensity", "p",
    "--propensities", "small=p_small,medium=p_medium,large=p_large",
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--target", "new=p_candidate", "--require", "better"], 0),
        (["--target", "new=p_small", "--require", "better"], 1),
        (["--target", "new=p_small", "--require", "not-worse", "--margin", "0.5"], 0),
        (["--target", "new=p_small", "--require", "not-worse", "--margin", "0.1"], 1),
        (["--target", "new=p_small", "--require", "best"], 2),
    ],
)
def test_the_exit_status_is_the_gate(options: list[str], status: int) -> None:
    result = CliRunner().invoke(app, ["compare", *ROLES, "--baseline", "large", *options])
    if status == 2:  # the program exits with it; the runner of typer does not
        assert isinstance(result.exception, UsageError)
    else:
        assert result.exit_code == status
    assert ("not shown" in result.stderr) == (status == 1)


def test_a_gate_needs_a_baseline() -> None:
    two = ["--target", "new=p_candidate", "--target", "old=p_large", "--require", "better"]
    result = CliRunner().invoke(app, ["compare", *ROLES, *two])
    assert isinstance(result.exception, UsageError)


def test_a_report_makes_no_folder(tmp_path: Path) -> None:
    page = tmp_path / "typo" / "report.html"
    result = CliRunner().invoke(app, ["demo", "--html", str(page)])
    assert isinstance(result.exception, UsageError)
    assert not page.parent.exists()
