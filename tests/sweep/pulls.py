"""Pulls: larger logs of a few kinds, and the distribution of every kind of number.

The pull of a number is its distance from the truth in standard errors.  Over many logs the
pulls of right numbers have mean 0, and a spread near 1 if the standard errors are right.
Numbers of one log depend on each other, so each log gives one pull of each kind.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.sweep.answers import answer
from tests.sweep.ask import make_question
from tests.sweep.features import PLAIN, shown
from tests.sweep.judge import collect_numbers
from tests.sweep.run import seed_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.sweep.features import Combination
    from tests.sweep.world import FloatArray

LARGER = 4  # times the rows of a usual log
LOGS = 200  # of each question
NARROW, WIDE = 0.8, 1.2  # limits of the spread
WIDENED = 0.6  # for learned policies, whose errors count as larger
SIGMAS = 5.0
QUESTIONS: tuple[Mapping[str, str], ...] = (
    {"structure": "by"},
    {"structure": "period", "source": "frame"},
    {"structure": "cluster", "source": "frame"},
    {"structure": "cascade", "loggers": "two"},
    {"verb": "compare", "loggers": "five"},
    {"verb": "backtest"},
    {"verb": "learn", "source": "frame"},
    {"probabilities": "own", "rewards": "amounts"},
    {"rewards": "costs", "estimator": "doubly-robust"},
)


def draw_pulls(question: Mapping[str, str], logs: int, seed: int = 0) -> dict[str, FloatArray]:
    """Return one pull for each log and kind of number."""
    combination: Combination = {**PLAIN, **question}
    rng = np.random.default_rng([seed, seed_of(combination)])
    found: dict[str, list[float]] = {}
    for _ in range(logs):
        with tempfile.TemporaryDirectory() as folder:
            drawn = int(rng.integers(2**32))
            asked = make_question(combination, drawn, Path(folder), LARGER)
            first: dict[str, float] = {}
            for number in collect_numbers(asked, answer(asked)):
                if number.std_error > 0:
                    first.setdefault(number.kind, number.pull)
        for kind, pull in first.items():
            found.setdefault(kind, []).append(pull)
    return {kind: np.array(pulls) for kind, pulls in found.items()}


def judge_pulls(pulls: FloatArray, narrow: float = NARROW) -> str:
    """Return what is wrong with the pulls of a kind of number; empty if they are right.

    Few pulls leave the spread open by five of its standard errors.

    Args:
        pulls: One pull of each log.
        narrow: Smallest spread.
    """
    mean, spread = float(pulls.mean()), float(pulls.std(ddof=1))
    loose = SIGMAS / np.sqrt(2 * len(pulls)) if len(pulls) < LOGS else 0.0
    right = abs(mean) < SIGMAS / np.sqrt(len(pulls)) and narrow - loose < spread < WIDE + loose
    return "" if right else f"{len(pulls)} pulls, mean {mean:.2f}, spread {spread:.2f}"


def pull_lines(logs: int = LOGS, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return a line for each question and kind of number, and those that are wrong."""
    lines, wrong = [], []
    for question in QUESTIONS:
        for kind, pulls in draw_pulls(question, logs, seed).items():
            text = f"{shown({**PLAIN, **question})}: {kind}"
            lines.append(
                f"{text}: {len(pulls)} pulls, mean {pulls.mean():.2f}, "
                f"spread {pulls.std(ddof=1):.2f}"
            )
            widened = question.get("verb") == "learn"
            if problem := judge_pulls(pulls, WIDENED if widened else NARROW):
                wrong.append(f"{text}: {problem}")
    return lines, wrong
