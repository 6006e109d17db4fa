"""Bad logs: the exact result or a named error."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from poolwise import evaluate
from poolwise.errors import PoolwiseError
from tests.support.hard import names, types, values
from tests.support.hard.case import FORMS, write
from tests.support.hard.outcome import check_answer, check_refused, expected, read_answer
from tests.support.messages import check_text, refused

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.evaluation.results import Evaluation
    from tests.support.hard.outcome import Run

CASES = {**values.CASES, **names.CASES, **types.CASES}
ALL = [(name, form) for name, make in CASES.items() for form in make().forms]
ALONE = "one logger without crossed propensities"
WITH_PAGE = "parquet"  # a page of each case in one format is enough


@cache
def judged(name: str) -> Evaluation:
    """Return the result of the reference, computed once for all formats."""
    case = CASES[name]()
    if name == ALONE:  # its own propensity is its cross-propensity
        case = replace(case, propensities=values.ONLY_A)
    return expected(case)


def test_the_battery_is_as_large_as_promised() -> None:
    assert len(CASES) >= 60
    assert all(set(make().forms) <= set(FORMS) for make in CASES.values())


@pytest.mark.parametrize(("name", "form"), [pair for pair in ALL if pair[1] != "frame"])
def test_a_file_gives_the_answer_or_a_named_error(
    run: Run, tmp_path: Path, name: str, form: str
) -> None:
    case = CASES[name]()
    path = str(write(case.table, form, tmp_path))
    page = form == WITH_PAGE
    found = run("evaluate", path, *case.words(), "--json", page=page)
    if case.refused:
        check_refused(found)
        check_text(found.err)
        return
    answer = read_answer(found)
    check_answer(answer, judged(name), case.to)
    assert found.files == (("report.html",) if page else ())
    codes = {warning["code"] for warning in answer["warnings"]}
    assert set(case.finds) <= codes


@pytest.mark.parametrize("name", [name for name, form in ALL if form == "frame"])
def test_a_frame_gives_the_answer_or_a_named_error(name: str) -> None:
    import json

    case = CASES[name]()
    log, targets = case.log(case.table), dict(case.targets)
    if case.refused:
        with refused(PoolwiseError):
            evaluate(log, targets)
        return
    found = evaluate(log, targets)
    check_answer(json.loads(found.to_json()), judged(name), case.to)
