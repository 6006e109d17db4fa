"""Coverage: intervals cover the truth as often as their level says.

A nominal 95% interval over 4,000 seeded logs has a standard error of 0.0034, so the
limits 0.935 and 0.965 are more than four of them away from 0.95.  The family problems
here have at least 150 effective rows; `benchmarks/accuracy.py` measures coverage with
fewer, for which there is a finding.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.draws import cells_of, draw
from benchmarks.families import FAMILIES, draw_problem
from poolwise.estimators.calibrated import Calibrated
from poolwise.estimators.ips import Balanced, Weighted
from poolwise.evaluation.evaluate import evaluate
from poolwise.intervals.student import student
from poolwise.log.log import Log
from poolwise.moments.buckets import jackknife
from poolwise.moments.coverage import Coverage
from poolwise.moments.estimate import average_term
from poolwise.moments.linear import by_count
from poolwise.moments.moments import Moments
from poolwise.moments.pool import Pool
from poolwise.moments.terms import BALANCED_REWARD
from tests.support.messages import check_findings
from tests.support.toys import toy

if TYPE_CHECKING:
    from poolwise.engines.exact import FiniteProblem
    from poolwise.intervals.base import IntervalName
    from poolwise.moments.estimate import Estimator

LOGS = 4_000
ESTIMATORS: tuple[Estimator, ...] = (Balanced(), Calibrated(), Weighted())


def problem(name: str) -> FiniteProblem:
    if name == "T2":
        return toy("T2")
    family, rows = name.rsplit(" ", 1)
    return draw_problem(FAMILIES[family], int(rows), np.random.default_rng(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["T2", *(f"{f} {n}" for f in ("F floor", "B mixed") for n in (300, 2000))]
)
def test_nominal_intervals_cover(name: str) -> None:
    chosen = problem(name)
    needs = reduce(or_, (e.needs(Coverage.complete(tuple(chosen.loggers))) for e in ESTIMATORS))
    cells, rng = cells_of(chosen, needs), np.random.default_rng(20170813)
    covered = np.zeros(len(ESTIMATORS))
    for _ in range(LOGS):
        moments = draw(cells, rng)
        covered += [
            chosen.value in student(e.estimate(Pool(moments)), 0.95) for e in ESTIMATORS
        ]
    for share in covered / LOGS:
        assert 0.935 <= share <= 0.965


USERS, ROWS = 60, 20


def users_log(rng: np.random.Generator) -> list[dict[str, Moments]]:
    """Moments of each user: two loggers, and a taste that a user's rows share.

    Each row's weight has mean 1 and its reward is 1 + taste + noise, so the value is 1.
    """
    buckets = []
    for user in range(USERS):
        taste = rng.normal(0, 1)
        weight = rng.choice([0.5, 1.5], size=ROWS)
        rows = weight * (1 + taste + rng.normal(0, 1, ROWS))
        centred = rows - rows.mean()
        buckets.append(
            {
                "ab"[user % 2]: Moments(
                    (BALANCED_REWARD,),
                    ROWS,
                    np.array([rows.mean()]),
                    np.array([[centred @ centred]]),
                    np.array([rows.min()]),
                    np.array([rows.max()]),
                )
            }
        )
    return buckets


@pytest.mark.slow
def test_rows_of_a_user_need_the_clustered_interval() -> None:
    """Row-wise errors treat 20 rows of a user as independent; clustered ones do not."""
    rng = np.random.default_rng(3)
    logs = 1_000
    by_row, by_user = 0, 0
    for _ in range(logs):
        buckets = users_log(rng)
        moments = Pool(None, buckets)
        by_row += 1.0 in student(
            average_term(moments, BALANCED_REWARD, by_count(moments)), 0.95
        )
        by_user += 1.0 in student(jackknife(Balanced(), moments), 0.95)
    assert by_row / logs < 0.60
    # standard error 0.007: four of them below 0.95
    assert 0.92 <= by_user / logs <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(("family", "most"), [("B mixed", 0.75), ("E noise-free", 0.35)])
def test_calibrated_beats_balanced_by_a_margin(family: str, most: float) -> None:
    """Median over ten problems of 1,000 rows of the ratio of mean squared errors."""
    ratios = []
    for k in range(10):
        chosen = draw_problem(FAMILIES[family], 1000, np.random.default_rng([2017, k]))
        estimators = (Calibrated(), Balanced())
        loggers = tuple(chosen.loggers)
        needs = reduce(or_, (e.needs(Coverage.complete(loggers)) for e in estimators))
        cells, rng = cells_of(chosen, needs), np.random.default_rng(k)
        gaps = [
            [e.estimate(Pool(moments)).value - chosen.value for e in estimators]
            for moments in (draw(cells, rng) for _ in range(200))
        ]
        ours, theirs = np.square(gaps).mean(axis=0)
        ratios.append(ours / theirs)
    assert np.median(ratios) <= most


@pytest.mark.parametrize(("name", "seed"), [("B mixed", 6), ("F floor", 6), ("B mixed", 2)])
@pytest.mark.parametrize(("interval", "least"), [("auto", 45), ("student", 100)])
def test_a_log_whose_interval_is_optimistic_says_so(
    name: str, seed: int, interval: IntervalName, least: int
) -> None:
    """The hard problems of benchmarks/coverage.py: uneven weights worth 60 of 300 rows."""
    chosen = draw_problem(FAMILIES[name], 300, np.random.default_rng(seed))
    for k in range(10):
        log = chosen.draw(np.random.default_rng(k))
        options: dict[str, Any] = {"interval": interval, "which_logs": False}
        found = evaluate(log, "target_prob", **options)["target"]
        assert found.mixture is not None
        warned = "few-effective-rows" in {f.code for f in found.findings}
        assert warned == (found.mixture.effective_rows < least)


# Rows of weight 1 / p, which are as many effective rows, among rows of weight 0: at most 49
# are set apart if 100 others are left.
EFFECTIVE = [
    (44, 44, {"auto"}),
    (45, 45, set()),
    (29, 29, {"auto", "student"}),
    (44, 140, {"auto", "student"}),
    (45, 135, {"student"}),
    (9, 176, set()),
    (49, 196, set()),
    (50, 200, {"student"}),
    (99, 396, {"student"}),
    (100, 400, set()),
]


@pytest.mark.parametrize(("effective", "rows", "warned"), EFFECTIVE)
@pytest.mark.parametrize("interval", ["auto", "student"])
def test_effective_rows_from_which_coverage_is_claimed(
    effective: int, rows: int, warned: set[str], interval: IntervalName
) -> None:
    table = pa.table(
        {
            "logger": ["a"] * rows,
            "reward": [k % 3 / 2 for k in range(rows)],
            "p": [effective / rows] * rows,
            "t": [1.0] * effective + [0.0] * (rows - effective),
        }
    )
    log = Log(table, logger="logger", reward="reward", propensities={"a": "p"})
    found = evaluate(log, "t", interval=interval)["target"].findings
    codes = {f.code for f in found}
    assert ("few-effective-rows" in codes) == (interval in warned)
    assert ("decisive-rows" in codes) == (effective < 50 and rows - effective >= 100)


def test_few_effective_rows_are_those_of_the_loggers_that_are_named() -> None:
    """Without cross-propensities: 2 heavy rows of one logger, 100 even ones of the other."""
    table = pa.table(
        {
            "logger": ["a"] * 100 + ["b"] * 2,
            "reward": [0.0, 1.0] * 51,
            "p": [0.5] * 100 + [0.5, 0.25],
            "t": [0.5] * 102,
        }
    )
    log = Log(table, logger="logger", reward="reward", propensity="p")
    findings = evaluate(log, "t")["target"].findings
    few = [f for f in findings if f.code == "few-effective-rows"]
    check_findings(few, "few-effective-rows")  # 1.8 rows of b: (1 + 2)^2 / (1 + 4)
