"""A sample of the sweep of click logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sweep.clicks import FEATURES, must_refuse, propose, run

if TYPE_CHECKING:
    from pathlib import Path

SAMPLED = 39


@pytest.mark.slow
def test_sampled_click_logs_are_right_or_refused(tmp_path: Path) -> None:
    choices = [propose(seed) for seed in range(SAMPLED)]
    found = [run(choice, 100 + seed, tmp_path) for seed, choice in enumerate(choices)]
    assert [f for f in found if f.kind == "wrong"] == []
    assert [f for f in found if (f.kind == "refused") != must_refuse(f.choice)] == []
    assert sum(f.kind == "right" for f in found) > SAMPLED / 6


def test_the_sample_has_every_value() -> None:
    choices = [propose(seed) for seed in range(SAMPLED)]
    for name, values in FEATURES.items():
        assert {choice[name] for choice in choices} == set(values)
