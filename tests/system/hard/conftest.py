"""Fixture of the tests of hard logs: run the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.hard.outcome import Run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    return Run(monkeypatch, capsys, tmp_path)
