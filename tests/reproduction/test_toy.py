from __future__ import annotations

from fractions import Fraction

import pytest

from poolwise.report.tables import as_text
from reproduction import toy


def test_every_number_is_the_fraction_that_it_should_be() -> None:
    found = {number.what: number for number in toy.numbers()}
    for number in found.values():
        assert number.ours == pytest.approx(float(number.exact), rel=1e-12)
    assert found["naive, both logs"].exact == Fraction(231373, 3600)
    assert found["balanced, both logs"].exact == Fraction(121801, 9801)
    assert found["weighted, both logs"].exact == Fraction(24295041, 5784325)


def test_one_number_of_the_paper_is_wrong_and_the_text_says_why() -> None:
    wrong = [number for number in toy.numbers() if not number.agrees]
    assert [(n.what, n.paper, f"{n.ours:.2f}") for n in wrong] == [
        ("weighted, both logs", "4.19", "4.20")
    ]
    assert "4.1991" in wrong[0].note
    text = as_text([toy.grid(toy.numbers())], toy.notes())
    assert "24295041/5784325" in text
    assert "4.1991" in text
    assert max(map(len, text.splitlines())) <= 80


def test_rows_are_ready_for_a_csv_file() -> None:
    rows = toy.rows()
    assert [row["agrees"] for row in rows].count("false") == 1
    assert all(list(row) == list(rows[0]) for row in rows)
