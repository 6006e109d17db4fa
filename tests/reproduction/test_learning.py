from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console

from reproduction.figures import LEARNING, read_csv
from reproduction.learning import RULES, LabelLearning
from reproduction.panels import FIRST, SECOND, build_mix
from reproduction.run import Effort, run
from tests.support.synthetic import save_as

if TYPE_CHECKING:
    from pathlib import Path


def problem() -> LabelLearning:
    """Two inputs and two labels; the loggers differ in their biases."""
    features = np.array([[1.0, 1.0], [-1.0, 1.0]])
    truth = np.array([[True, False], [False, False]])
    first = np.array([[0.0, 0.0], [0.0, 0.0]])
    second = np.array([[1.0, 0.0], [0.0, -1.0]])
    return LabelLearning(features, truth, {FIRST: first, SECOND: second})


def test_values_are_expected_correct_labels() -> None:
    # The first logger tosses coins: one of two labels. The second: sigmoid(1) for each.
    learning = problem()
    assert learning.value(learning.crfs[FIRST]) == 1.0
    assert learning.value(learning.crfs[SECOND]) == pytest.approx(2 / (1 + np.exp(-1)))


def test_weights_have_mean_1_and_value_the_policy() -> None:
    learning, rng = problem(), np.random.default_rng(0)
    target = np.array([[2.0, 0.5], [0.0, -0.5]])
    for rule, log in learning.draw(build_mix(1.0, 100_000), rng).items():
        weights = log.weights(target)
        assert weights.mean() == pytest.approx(1, abs=0.02), rule
        assert (weights * log.reward).mean() == pytest.approx(learning.value(target), abs=0.02)


def test_learning_improves_on_the_loggers_and_a_penalty_holds_it_back() -> None:
    learning, rng = problem(), np.random.default_rng(1)
    log = learning.draw(build_mix(1.0, 1_000), rng)["balanced"]
    start = learning.crfs[SECOND]
    assert learning.value(log.learn(start, 1e-3)) > learning.value(start) + 0.2
    np.testing.assert_allclose(log.learn(start, 1e9), start, atol=1e-6)


def test_the_choice_is_never_from_rows_that_were_learned_from() -> None:
    learning, rng = problem(), np.random.default_rng(2)
    log = learning.draw(build_mix(1.0, 400), rng)["balanced"]
    flat = replace(log, reward=np.ones(len(log.reward)))
    value = learning.learned("balanced", flat, np.random.default_rng(0))
    assert value == pytest.approx(learning.value(learning.crfs[SECOND]), abs=1e-6)


@pytest.mark.slow
def test_the_command_writes_a_table_and_a_figure(tmp_path: Path) -> None:
    for name in ("scene", "yeast"):
        save_as(tmp_path, name)
    little = Effort(fractions=(0.05,), ratios=(1.0,), logs=2)
    out = StringIO()
    run("learning", tmp_path, tmp_path / "out", console=Console(file=out), effort=little)
    rows = read_csv(tmp_path / "out" / "learning.csv")
    assert [row["rule"] for row in rows] == [*RULES, *RULES]
    assert list(read_csv(tmp_path / "out" / f"{LEARNING.stem}.csv")[0]) == list(
        LEARNING.columns
    )
    for row in rows:
        assert row["gain"] == pytest.approx(float(row["value"]) - float(row["best_logger"]))
    assert "gain over the best logger" in out.getvalue()
