from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from reproduction.datasets import Dataset, load, lyrl_shaped
from reproduction.panels import (
    RATIOS,
    Structure,
    build_problem,
    gamma,
    panel,
    training_rows,
)
from tests.support.synthetic import small_data

if TYPE_CHECKING:
    from reproduction.figures import CsvRow

HERE = Path(os.environ.get("POOLWISE_DATA") or Path(__file__).parents[2] / "../shared/data")
SLICE = 40  # test inputs: enough for every law, small enough for every day


def sliced(name: str) -> Dataset:
    if not HERE.is_dir():
        pytest.skip("the data sets are not here: set POOLWISE_DATA to their folder")
    data = load(name, HERE)
    return Dataset(
        name, data.train, data.test.take(slice(SLICE)), data.label_names, data.fractions_of
    )


def laws(rows: list[CsvRow]) -> None:
    """Check the laws in every cell."""
    assert [row["r"] for row in rows] == list(RATIOS)
    for row in rows:
        number = {key: float(value) for key, value in row.items()}
        assert number["balanced_naive"] <= 1 + 1e-12
        assert number["weighted_naive"] <= 1 + 1e-12
        assert number["weighted_naive"] == pytest.approx(number["gamma"], rel=1e-10)
        assert number["cv_loggers_best"] <= 1 + 1e-12
        assert number["cv_target_best"] <= number["cv_loggers_best"] + 1e-12
        assert (number["drop_naive"] < 1) == (number["v"] > 2 + number["r"])


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["unary", "pairwise"])
@pytest.mark.parametrize("fraction", [0.02, 0.2])
def test_the_laws_hold_in_every_cell(structure: Structure, fraction: float) -> None:
    laws(panel(build_problem(small_data(), fraction, structure), fraction))


@pytest.mark.parametrize("name", ["scene", "yeast"])
def test_the_laws_hold_on_a_slice_of_the_papers_data(name: str) -> None:
    rows = panel(build_problem(sliced(name), 0.02), 0.02)
    laws(rows)
    assert max(float(row["cv_target_best"]) for row in rows) <= 0.6
    assert float(rows[0]["drop_naive"]) < 1


def test_a_problem_of_the_shape_of_lyrl_runs() -> None:
    data = lyrl_shaped(test_rows=5000, train_rows=2000)
    assert data.test.labels.shape == (5000, 4)
    laws(panel(build_problem(data, 0.05), 0.05))


def test_gamma_is_symmetric_in_the_sizes_and_least_where_they_are_equal() -> None:
    for v in (1.5, 3.0, 60.0):
        ratios = np.array([gamma(r, v) for r in RATIOS])
        assert RATIOS[int(ratios.argmin())] == 1
        assert gamma(4.0, v) == pytest.approx(gamma(0.25, v), rel=1e-12)
    assert gamma(3.0, 1.0) == 1


def test_smaller_fractions_are_parts_of_larger_ones() -> None:
    data = small_data()
    few, many = (training_rows(data, fraction) for fraction in (0.05, 0.35))
    assert (len(few), len(many)) == (20, 140)
    assert (np.asarray(many.contexts)[:20] == np.asarray(few.contexts)).all()
    assert (np.asarray(many.contexts) != np.asarray(data.train.contexts)[:140]).any()
