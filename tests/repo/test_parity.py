"""Parity: on Open Bandit Pipeline's data, its formulas and ours give the same numbers."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import parity
from benchmarks.kept import part
from benchmarks.parity import Line, Rounds, formulas, ours, synthetic, table_of

# Four rows, two actions, no context.  Logger 0 plays (1/2, 1/2), logger 1 (1/4, 3/4), the
# target (3/4, 1/4); weighted rewards are 3/2, 1/2 | 3, 0; the mixture is (3/8, 5/8).
SMALL = Rounds(
    stratum=np.array([0, 0, 1, 1]),
    action=np.array([0, 1, 0, 1]),
    reward=np.array([1.0, 1.0, 1.0, 0.0]),
    policies=np.array([[[0.5, 0.5]] * 4, [[0.25, 0.75]] * 4]),
    target=np.array([[0.75, 0.25]] * 4),
    value=math.nan,
)


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_formulas_are_those_of_the_paper(ddof: int) -> None:
    found = formulas(SMALL, ddof=ddof)
    assert found["naive"] == pytest.approx((3 / 2 + 1 / 2 + 3) / 4, rel=1e-15)
    assert found["balanced"] == pytest.approx((2 + 2 / 5 + 2) / 4, rel=1e-15)
    # means 1 and 3/2, variances 1 : 9, so shares 9/10 and 1/10, whatever the divisor
    assert found["weighted"] == pytest.approx(9 / 10 * 1 + 1 / 10 * 3 / 2, rel=1e-15)


def test_dividing_by_n_moves_the_shares_of_logs_of_different_size() -> None:
    more = [0, 0, 0, 1, 1]
    rounds = Rounds(
        stratum=np.array(more),
        action=np.array([0, 1, 1, 0, 1]),
        reward=np.array([1.0, 1.0, 1.0, 1.0, 0.0]),
        policies=np.array([[[0.5, 0.5]] * 5, [[0.25, 0.75]] * 5]),
        target=np.array([[0.75, 0.25]] * 5),
        value=math.nan,
    )
    # weighted rewards 3/2, 1/2, 1/2 | 3, 0: means 5/6 and 3/2, scatters 2/3 and 9/2
    for ddof in (0, 1):
        first, second = 3 * (3 - ddof) / (2 / 3), 2 * (2 - ddof) / (9 / 2)
        expected = (first * 5 / 6 + second * 3 / 2) / (first + second)
        assert formulas(rounds, ddof=ddof)["weighted"] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("line", parity.compared(), ids=lambda x: f"{x.data}: {x.estimator}")
def test_ours_equals_the_formula(line: Line) -> None:
    assert line.ours == pytest.approx(line.formula, rel=1e-10, abs=1e-10)
    assert line.agrees


def test_every_data_set_and_estimator_is_compared() -> None:
    pairs = {(line.data, line.estimator) for line in parity.compared()}
    assert pairs == {(d, e) for d in parity.DATA for e in parity.ESTIMATORS}


def test_a_difference_is_seen() -> None:
    line = parity.compared()[0]
    assert not line._replace(ours=line.ours + 1e-9).agrees


def test_the_data_are_unbiased_for_the_value_they_state() -> None:
    rounds = synthetic((2000, 3000), (-1.0, 2.0), seed=8)
    balanced = ours(table_of(rounds))["balanced"]
    assert abs(balanced.value - rounds.value) < 4 * balanced.std_error
    assert rounds.policies.sum(axis=2) == pytest.approx(np.ones((2, 5000)))


def test_where_the_formula_has_no_answer_ours_is_right() -> None:
    cases = parity.broken()
    assert [case.formula for case in cases] == ["nan", "nan", "IndexError", "nan", "nan"]
    assert [case.name for case in cases if not case.right] == []


def test_a_silent_log_leaves_the_formula_without_a_number_by_itself() -> None:
    silent = replace(SMALL, reward=np.array([0.0, 0.0, 1.0, 0.0]))
    assert math.isnan(formulas(silent)["weighted"])
    assert formulas(silent)["naive"] == 3 / 4


def test_the_page_and_the_file_are_what_the_script_gives() -> None:
    assert part(parity.PAGE.read_text("utf-8"), parity.MARKER) == parity.text()
    with parity.CSV.open(newline="", encoding="utf-8") as file:
        kept = list(csv.DictReader(file))
    assert len(kept) == len(parity.compared())
    for line, found in zip(kept, parity.compared(), strict=True):
        assert (line["data"], line["estimator"]) == (found.data, found.estimator)
        assert float(line["ours"]) == pytest.approx(found.ours, abs=1e-8)
        assert float(line["formula"]) == pytest.approx(found.formula, abs=1e-8)
