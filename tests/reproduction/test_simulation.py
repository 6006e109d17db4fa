from __future__ import annotations

import math

import numpy as np
import pytest

from poolwise.estimators.calibrated import Calibrated
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_REWARD, WEIGHTED_REWARD
from reproduction import simulation
from reproduction.enumeration import LabelProblem, Mix, exact_moments
from reproduction.panels import FIRST, SECOND, build_problem, divergences
from reproduction.simulation import (
    ExactCell,
    Simulator,
    estimated_weights,
    exact_cells,
    mix_for,
    simulate_cell,
)
from tests.support.synthetic import small_data

REPLICATIONS = 300


@pytest.fixture(scope="module")
def problem() -> LabelProblem:
    return build_problem(small_data(), 0.05)


@pytest.fixture(scope="module")
def cell(problem: LabelProblem) -> ExactCell:
    return exact_cells(problem, (3.0,))[0]


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.5, 1.0, 3.0, 5.0, 7.0, 9.0])
def test_the_logs_have_exactly_the_ratio_asked_for(ratio: float) -> None:
    first, second = mix_for(ratio).counts.values()
    assert first == pytest.approx(ratio * second, abs=1e-9)
    assert 1900 <= first + second <= 2000


def test_known_slopes_have_the_variance_of_the_calibrated_estimator(cell: ExactCell) -> None:
    for name, columns in (("cv_loggers", ("loggers",)), ("cv_target", ("loggers", "target"))):
        calibrated = Calibrated(columns=columns).estimate(Pool(cell.moments))  # type: ignore[arg-type]
        known = cell.fixed[name]
        assert known.over(Pool(cell.moments)).value(Pool(cell.moments)) == pytest.approx(
            calibrated.value, rel=1e-12
        )
        weights = np.array(list(known.parts.values()))
        total = sum(m.count for m in cell.moments.values())
        variance = sum(
            m.count * weights @ m.covariance(list(known.parts)) @ weights
            for m in cell.moments.values()
        )
        assert variance / total**2 == pytest.approx(calibrated.variance, rel=1e-9)


def test_logs_are_enlarged_until_estimates_are_near_normal(cell: ExactCell) -> None:
    larger = simulation.enlarged(cell, most_excess=1e-3)
    times = larger.mix.counts[FIRST] / cell.mix.counts[FIRST]
    assert 1 < times <= simulation.MOST_TIMES
    for logger, m in larger.moments.items():
        assert m.var(WEIGHTED_REWARD) == pytest.approx(
            cell.moments[logger].var(WEIGHTED_REWARD)
        )
    shares = {FIRST: 0.5, SECOND: 0.5}
    assert larger.excess("naive", shares) * times**3 == pytest.approx(
        cell.excess("naive", shares)
    )


def test_simulated_means_and_variances_are_the_exact_ones(
    problem: LabelProblem, cell: ExactCell
) -> None:
    rows = simulate_cell(problem, cell, np.random.default_rng(1), replications=REPLICATIONS)
    named = {str(row["estimator"]): row for row in rows}
    assert list(named)[:5] == ["naive", "balanced", "weighted", "cv_loggers", "cv_target"]
    for name in list(named)[:5]:
        assert abs(float(named[name]["z_mean"])) < 4
        assert abs(float(named[name]["z_variance"])) < 4
        assert named[name]["value"] == pytest.approx(problem.value())
    for name in ("cv_loggers_estimated", "cv_target_estimated"):
        assert math.isnan(float(named[name]["z_mean"]))


def test_a_wrong_variance_would_be_seen(problem: LabelProblem, cell: ExactCell) -> None:
    """The same draws, compared with a variance that is a third too large."""
    rows = simulate_cell(problem, cell, np.random.default_rng(1), replications=REPLICATIONS)
    for row in rows[:5]:
        z, found, exact = (float(row[k]) for k in ("z_variance", "variance", "var_exact"))
        error = (found - exact) / z
        assert (found - 4 / 3 * exact) / error < -2


def test_replications_are_drawn_apart_and_have_the_exact_means(
    problem: LabelProblem,
) -> None:
    mix = Mix({FIRST: 20, SECOND: 30})
    exact = exact_moments(problem, [mix])[0]
    found = list(
        Simulator(problem).moments(mix, (BALANCED_REWARD,), 2000, np.random.default_rng(2))
    )
    assert len(found) == 2000
    for logger, m in exact.items():
        means = np.array([moments[logger].mean(BALANCED_REWARD) for moments in found])
        error = math.sqrt(m.var(BALANCED_REWARD) / m.count / 2000)
        assert abs(means.mean() - m.mean(BALANCED_REWARD)) < 4 * error
        assert len(set(means.tolist())) > 1990  # no two replications are the same


def test_estimated_weights_come_close_to_the_optimum(problem: LabelProblem) -> None:
    mix = Mix({FIRST: 10, SECOND: 10})
    known = divergences(Pool(exact_moments(problem, [mix])[0]))
    sizes = {}
    for size in (20, 500):
        rows = estimated_weights(
            problem, known, size, np.random.default_rng(3), replications=400
        )
        sizes[size] = {str(row["rule"]): row for row in rows}
    assert list(sizes[20]) == ["own", "pooled"]
    for rule in ("own", "pooled"):
        few, many = (float(sizes[n][rule]["fixed_ratio"]) for n in (20, 500))
        assert 1 <= many < few
        assert many < 1.05
    assert abs(float(sizes[20]["pooled"]["bias_sd"])) < abs(float(sizes[20]["own"]["bias_sd"]))
