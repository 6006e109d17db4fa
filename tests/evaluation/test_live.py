"""Probabilities that are missing where their policy was not live: as with all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.dummy import DummyRegressor

from poolwise.engines import with_loggers
from poolwise.errors import LogError, RefusedError, UsageError
from poolwise.evaluation.check import check
from poolwise.evaluation.evaluate import compare, evaluate
from poolwise.evaluation.plan import plan
from poolwise.evaluation.read import live_log
from poolwise.evaluation.watch import watch
from poolwise.log.log import LiveLog, Log
from tests.support.messages import check_findings, refused
from tests.support.periods import daily, period_mixture, with_holes

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.log.policy import FloatArray

pytestmark = pytest.mark.slow
TARGETS = {"t": "t"}


def log_of(table: object, **roles: Any) -> Log:  # noqa: ANN401 - of `Log`
    names = {"logger": "logger", "reward": "reward", "propensities": "p_{logger}"}
    return Log(table, **(names | {"period": "day", "reward_range": (0.0, 1.0)} | roles))


def test_values_of_periods_are_those_of_a_complete_log() -> None:
    columns = daily()
    part, whole = (
        evaluate(log_of(table), TARGETS) for table in (with_holes(columns), pa.table(columns))
    )
    values, others = (e["t"].over_time.values for e in (part, whole))  # type: ignore[union-attr]
    assert [v.value for v in values] == pytest.approx([v.value for v in others], rel=1e-12)
    errors = [v.std_error for v in others]
    assert [v.std_error for v in values] == pytest.approx(errors, rel=1e-12)
    rows = np.bincount(columns["day"])
    assert [v.share for v in values] == pytest.approx(rows / 900, rel=1e-12)
    estimate = part["t"].estimates["period-balanced"]
    expected = np.average([v.value for v in others], weights=rows)
    assert estimate.value == pytest.approx(expected, rel=1e-12)
    assert "balanced" not in part["t"].estimates
    check_findings(part.findings, "no-cross-propensities")


def test_a_model_of_earlier_periods_does_without_them_too() -> None:
    columns = daily(300, seed=2)
    probs = np.unique(columns["t"])
    columns["action"] = np.unique(columns["t"], return_inverse=True)[1]
    log = log_of(with_holes(columns), action="action", context=["t"])
    result = evaluate(
        log, {"t": Fixed(probs / probs.sum())}, "period-dr", model=DummyRegressor()
    )
    day, reward = columns["day"], columns["reward"]
    predicted = np.array([reward[day < d].mean() if d else 0.0 for d in range(3)])[day]
    weight = (probs / probs.sum())[columns["action"]] / period_mixture(columns)
    expected = np.mean(predicted + weight * (reward - predicted))
    assert result["t"].estimates["period-dr"].value == pytest.approx(expected, rel=1e-12)


class Fixed:
    """A target that plays four actions with fixed probabilities."""

    actions = (0, 1, 2, 3)

    def __init__(self, probs: FloatArray) -> None:
        self.probs = probs

    def prob(self, batch: Any) -> FloatArray:  # noqa: ANN401 - a batch
        return self.probs.take(np.asarray(batch.action, dtype=int))

    def distribution(self, batch: Any) -> FloatArray:  # noqa: ANN401 - a batch
        return np.tile(self.probs, (len(batch), 1))


def test_bets_are_those_of_a_complete_log() -> None:
    columns = daily()
    part, whole = (
        evaluate(log_of(table), TARGETS, "naive", interval="betting")["t"].intervals["naive"]
        for table in (with_holes(columns), pa.table(columns))
    )
    assert part == whole


@pytest.mark.parametrize("other", ["control", "v0"])
def test_a_watch_is_that_of_a_complete_log(other: str, tmp_path: Path) -> None:
    columns = daily()
    part, whole = (
        watch(tmp_path / f"{k}.npz", log_of(table), TARGETS, better_than=other)
        for k, table in enumerate((with_holes(columns), pa.table(columns)))
    )
    assert part.to_dicts() == whole.to_dicts()
    assert part.difference == whole.difference


def test_a_probability_that_is_missing_where_it_is_needed_stays_a_fault() -> None:
    log = log_of(with_holes(daily(), [(1, "control")]))
    assert live_log(with_loggers(log), None) is None
    with pytest.raises(LogError):
        evaluate(log, TARGETS)
    assert check(log, TARGETS).faults
    assert live_log(with_loggers(log_of(pa.table(daily()))), None) is None
    assert live_log(log_of(with_holes(daily()), period=None), None) is None


def test_no_row_is_dropped_for_it() -> None:
    log = log_of(with_holes(daily()))
    dropped = evaluate(log_of(with_holes(daily()), on_fault="drop"), TARGETS)
    assert sum(dropped.rows.values()) == 900
    assert dropped["t"].estimates == evaluate(log, TARGETS)["t"].estimates
    assert not check(log, TARGETS).faults


def test_logarithms_are_missing_likewise() -> None:
    columns = daily()
    logs = {k: np.log(v) if k[0] in "pt" else v for k, v in columns.items()}
    names = {"propensities": "p_{logger}", "log_probabilities": True}
    ours, theirs = (
        evaluate(log_of(with_holes(c), **roles), TARGETS)["t"].estimates["period-balanced"]
        for c, roles in ((logs, names), (columns, {}))
    )
    assert ours.value == pytest.approx(theirs.value, rel=1e-12)


def test_other_verbs_say_what_they_cannot_do() -> None:
    log = log_of(with_holes(daily()))
    with refused(RefusedError) as error:
        evaluate(log, TARGETS, "balanced")
    assert error.value.code == "balanced-refused"
    assert compare(log, TARGETS, baseline="control").differences
    with refused(UsageError):
        compare(log, TARGETS, baseline="v0")
    assert "period-balanced" in {
        r["estimator"] for r in plan(log, TARGETS, half_width=0.1).to_dicts()
    }
    live = live_log(with_loggers(log), None)
    assert isinstance(live, LiveLog)
    assert live.incomplete == ("v0", "v1", "v2")
