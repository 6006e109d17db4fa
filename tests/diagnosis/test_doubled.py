"""Doubled rows: copies are a finding if there are more than chance produces."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import poolwise as pw
from poolwise.cli.commands import app
from poolwise.diagnosis.doubled import doubled_rows, most_pairs
from tests.support.messages import check_findings

if TYPE_CHECKING:
    from pathlib import Path


def contents(values: object) -> Counter[int]:
    """Number of contents that occur 1, 2, 3, ... times."""
    return Counter(np.unique(np.asarray(values), return_counts=True)[1].tolist())


@pytest.mark.parametrize("labels", [2, 50, 1_000, 20_000, 10**6])
@pytest.mark.parametrize("even", [True, False], ids=["even", "skewed"])
def test_rows_that_repeat_by_chance_are_silent(labels: int, even: bool) -> None:  # noqa: FBT001
    found = 0
    for seed in range(40):
        draws = np.random.default_rng(seed).random(5_000)
        found += bool(doubled_rows(contents((draws if even else draws**4) * labels // 1)))
    assert found == 0


@pytest.mark.parametrize("labels", [20_000, 10**9])
@pytest.mark.parametrize("share", [0.1, 1.0], ids=["part", "whole"])
def test_rows_that_were_loaded_twice_are_found(labels: int, share: float) -> None:
    rows = np.random.default_rng(1).integers(labels, size=20_000)
    rows = np.concatenate([rows, rows[: round(share * len(rows))]])
    whole_of_few = labels < 10**6 and share < 1  # chance has more pairs than the copies add
    assert bool(doubled_rows(contents(rows))) != whole_of_few


def test_the_bound_is_that_of_poisson_counts() -> None:
    for mean in (0.01, 0.5, 1.0, 3.0):  # equal means attain the inequality
        singles, pairs, triples = (
            10**6 * np.exp(-mean) * mean**k / f for k, f in ((1, 1), (2, 2), (3, 6))
        )
        assert pairs**2 == pytest.approx(1.5 * singles * triples)
        assert most_pairs(round(singles), round(triples)) > pairs


def table(rows: int) -> pa.Table:
    rng = np.random.default_rng(2)
    half = np.full(rows, 0.5)
    return pa.table(
        {"r": rng.integers(2, size=rows), "x": rng.random(rows), "p": half, "t": half}
    )


def test_check_reports_a_log_that_was_loaded_twice(tmp_path: Path) -> None:
    once = table(200)
    twice = pa.concat_tables([once, once])
    roles: dict[str, Any] = {"reward": "r", "propensity": "p"}
    assert pw.check(pw.Log(once, **roles), {"new": "t"}).findings == ()
    report = pw.check(pw.Log(twice, **roles), {"new": "t"})
    check_findings(report.findings, "doubled-rows")
    assert report.faults == ()
    shared = pw.Log(twice, **roles, cluster="x")
    assert pw.check(shared, {"new": "t"}).findings == ()
    for name in ("one", "two"):
        pq.write_table(once, tmp_path / f"{name}.parquet")
    command = ["check", f"{tmp_path}/*.parquet", "--reward", "r", "--propensity", "p"]
    run = CliRunner().invoke(app, command)
    assert (run.exit_code, "doubled-rows" in run.output) == (0, True)
