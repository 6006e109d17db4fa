from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from poolwise import evaluate
from poolwise.evaluation.check import check
from poolwise.formats.labelled import LOGGERS, TARGETS, digits_log, digits_path, digits_truth

MOST_BYTES = 1_500_000


def test_the_file_is_small_and_inside_the_package() -> None:
    path = digits_path()
    assert path.is_file()
    assert path.stat().st_size < MOST_BYTES
    assert "poolwise" in path.parts


def test_the_truth_is_in_the_metadata() -> None:
    metadata = pq.read_schema(digits_path()).metadata
    truth = json.loads(metadata[b"poolwise"])["truth"]
    assert digits_truth() == truth
    assert set(truth) == set(TARGETS)
    assert all(0 < value < 1 for value in truth.values())


def test_three_loggers_of_unequal_size_have_all_cross_propensities() -> None:
    log = digits_log()
    assert log.crossed
    assert set(log.propensities or {}) == set(LOGGERS)
    table = pq.read_table(digits_path())
    counts = {k: table["policy"].to_pylist().count(k) for k in LOGGERS}
    assert sum(counts.values()) == len(table)
    assert len(set(counts.values())) == len(LOGGERS)
    for name in ("p", *(f"p_{k}" for k in LOGGERS), *TARGETS.values()):
        values = table[name].to_numpy()
        assert ((values > 0) & (values <= 1)).all()


def test_the_context_is_the_picture() -> None:
    table = pq.read_table(digits_path())
    pixels = np.array(table["pixels"].to_pylist())
    assert pixels.shape == (len(table), 64)
    assert (pixels.min(), pixels.max()) == (0, 16)
    assert set(table["digit"].to_pylist()) <= set(range(10))
    assert set(map(float, table["correct"].to_pylist())) == {0.0, 1.0}


def test_the_log_has_no_faults() -> None:
    report = check(digits_log(), TARGETS)
    assert report.faults == ()
    assert set(report.rows) == set(LOGGERS)


def test_the_logged_propensity_is_that_of_its_logger() -> None:
    table = pq.read_table(digits_path()).to_pandas()
    own = [row[f"p_{row['policy']}"] for _, row in table.iterrows()]
    assert np.abs(table["p"] - own).max() <= 1e-6


def test_every_default_estimate_is_within_four_errors_of_the_truth() -> None:
    evaluation = evaluate(digits_log(), TARGETS, truth=digits_truth())
    for target, truth in digits_truth().items():
        estimates = evaluation[target].estimates
        assert {"naive", "balanced", "weighted"} <= set(estimates)
        for estimate in estimates.values():
            assert 0 < estimate.std_error < 1
            assert abs(estimate.value - truth) < 4 * estimate.std_error


def test_pooling_wisely_is_worth_it_on_this_log() -> None:
    estimates = evaluate(digits_log(), TARGETS)["candidate"].estimates
    assert estimates["balanced"].std_error < estimates["naive"].std_error
    assert estimates["weighted"].std_error < estimates["naive"].std_error


def test_the_mean_weights_are_near_one() -> None:
    """Each within 5 of its standard errors, from the effective rows."""
    result = evaluate(digits_log(), TARGETS, "balanced")["candidate"]
    rows = check(digits_log()).rows
    for logger, overlap in result.loggers.items():
        count = rows[logger]
        square = count * overlap.mean_weight**2 / overlap.effective_rows
        error = ((square - overlap.mean_weight**2) / count) ** 0.5
        assert abs(overlap.mean_weight - 1) < 5 * error
    assert result.mixture is not None
    assert result.mixture.mean_weight == pytest.approx(1, abs=0.1)
