"""Value over time: periods add up to the estimate, and a change of the value is found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from poolwise.evaluation.evaluate import evaluate
from tests.support.messages import check_findings
from tests.support.periods import daily, daily_changed, daily_log, period_mixture

if TYPE_CHECKING:
    from poolwise.diagnosis.over_time import OverTime
    from poolwise.evaluation.results import Evaluation
    from poolwise.intervals.base import IntervalName
    from poolwise.intervals.student import Sides

TARGETS = {"t": "t"}


def course(columns: dict[str, Any]) -> OverTime:
    over_time = evaluate(daily_log(columns), TARGETS, "period-balanced")["t"].over_time
    assert over_time is not None
    return over_time


def facts(evaluation: Evaluation) -> Any:  # noqa: ANN401 - nested dictionaries
    """Return the dictionary of the only target."""
    whole: Any = evaluation.to_dict()
    (target,) = whole["targets"]
    return target


def test_the_periods_are_the_parts_of_the_estimate() -> None:
    columns = daily()
    result = evaluate(daily_log(columns), TARGETS, "period-balanced")["t"]
    estimate, values = result.estimates["period-balanced"], course(columns).values
    weight = columns["t"] / period_mixture(columns)
    day, reward = columns["day"], columns["reward"]
    pasts = [np.average(reward[day < d], weights=weight[day < d]) for d in (1, 2)]
    scores = [centre + weight * (reward - centre) for centre in (0.0, *pasts)]
    means = [scores[d][day == d].mean() for d in range(3)]
    assert [v.value for v in values] == pytest.approx(means, rel=1e-12)
    assert [v.rows for v in values] == np.bincount(columns["day"]).tolist()
    assert sum(v.share for v in values) == pytest.approx(1)
    assert sum(v.share * v.value for v in values) == pytest.approx(estimate.value, rel=1e-12)
    variance = sum((v.share * v.std_error) ** 2 for v in values)
    assert variance == pytest.approx(estimate.variance, rel=1e-12)


@pytest.mark.parametrize("method", ["auto", "student"])
@pytest.mark.parametrize("clustered", [False, True])
def test_the_running_estimate_ends_with_the_estimate(
    method: IntervalName, *, clustered: bool
) -> None:
    columns = daily()
    columns["user"] = np.arange(900) // 3
    log = daily_log(columns, **({"cluster": "user"} if clustered else {}))
    result = evaluate(log, TARGETS, "period-balanced", interval=method)["t"]
    assert result.over_time is not None
    first, *_, last = result.over_time.values
    interval = result.intervals["period-balanced"]
    assert last.running == pytest.approx(result.estimates["period-balanced"].value, rel=1e-12)
    assert (last.running_lower, last.running_upper) == (interval.lower, interval.upper)
    assert first.running == pytest.approx(first.value, rel=1e-12)
    alone = first.lower, first.upper
    assert (first.running_lower, first.running_upper) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("sides", ["two", "lower"])
def test_running_intervals_are_those_of_the_log_so_far(sides: Sides) -> None:
    columns = daily(control=0.0)
    so_far = {name: values[columns["day"] < 2] for name, values in columns.items()}
    own = {"propensities": None, "propensity": "p"}  # shares of the periods are those of rows
    whole, part = (
        evaluate(daily_log(c, **own), TARGETS, "period-balanced", sides=sides)["t"]
        for c in (columns, so_far)
    )
    assert whole.over_time is not None
    middle, interval = whole.over_time.values[1], part.intervals["period-balanced"]
    ends = middle.running_lower, middle.running_upper
    assert ends == pytest.approx((interval.lower, interval.upper), rel=1e-12)
    assert middle.running == pytest.approx(part.estimates["period-balanced"].value, rel=1e-12)


def test_a_change_of_the_value_is_a_finding() -> None:
    columns = daily(3_000, days=6)
    assert course(columns).drift > 0.01
    over_time = course(daily_changed())
    assert over_time.drift < 1e-6
    check_findings(over_time.findings(), "period-drift")


@pytest.mark.slow
def test_a_constant_value_seldom_drifts() -> None:
    logs = 60
    tests = [course(daily(600, days=6, seed=seed)).drift for seed in range(logs)]
    rejected = sum(test < 0.05 for test in tests)
    assert rejected <= logs * (0.05 + 3 * math.sqrt(0.05 * 0.95 / logs))
    assert min(tests) > 1e-5


def test_one_period_has_no_drift() -> None:
    columns = daily() | {"day": np.zeros(900, dtype=int)}
    over_time = course(columns)
    assert math.isnan(over_time.drift)
    assert over_time.findings() == ()


def test_a_log_without_periods_has_no_values_over_time() -> None:
    evaluation = evaluate(daily_log(daily(), period=None), TARGETS)
    assert evaluation["t"].over_time is None
    assert "periods" not in facts(evaluation)
