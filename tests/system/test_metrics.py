"""Metrics on Spark: the numbers of the default engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from poolwise import evaluate
from tests.evaluation.test_metrics import METRICS, TARGETS, log, table

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pyspark")


def test_spark_has_every_metric_and_threshold(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(table(), path)
    spark, duckdb = (
        evaluate(log(path), TARGETS, metrics=METRICS, engine=engine, thresholds=[0.5])
        for engine in ("spark", None)
    )
    for name, own in duckdb.metrics.items():
        for target in TARGETS:
            expected, found = own[target].estimates, spark.metrics[name][target].estimates
            for estimator, estimate in expected.items():
                assert found[estimator].value == pytest.approx(estimate.value, rel=1e-12)
                assert found[estimator].variance == pytest.approx(estimate.variance, rel=1e-9)
    assert spark.distribution is not None
    assert duckdb.distribution is not None
    for target in TARGETS:
        assert spark.distribution[target] == duckdb.distribution[target]
