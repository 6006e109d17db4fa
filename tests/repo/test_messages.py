"""tests/messages.txt has an entry for every text, and no others."""

from __future__ import annotations

import re

import pytest

from tests.support.messages import FILE, SNAPSHOT, Entries, parse, printed


def test_the_file_of_messages_is_sorted_and_has_no_stale_entries(
    request: pytest.FixtureRequest,
) -> None:
    snapshot = request.config.stash[SNAPSHOT]
    if not snapshot.update:
        assert snapshot.stale() == []
        text = FILE.read_text("utf-8")
        assert printed(parse(text)) == text


def test_advice_to_drop_rows_names_the_function_that_takes_the_argument() -> None:
    advice = re.findall(r".*on_fault=.*", FILE.read_text("utf-8"))
    assert len(advice) > 50
    assert [line for line in advice if not re.search(r"pw\.\w+\(\.\.\., on_fault=", line)] == []


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"a.py::test_a": {1: "one line"}},
        {"a.py::test_a[x y]": {1: "several\n\n  lines", 2: "same"}, "b.py::test": {1: "same"}},
        {"a.py::test_a[1]": {1: "same", 2: "other"}, "a.py::test_a[2]": {1: "same"}},
        {"a.py::test_a[#]": {1: "# not a comment"}},
    ],
)
def test_entries_are_read_as_they_are_printed(entries: Entries) -> None:
    assert parse(printed(entries)) == entries
