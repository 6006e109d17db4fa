"""Breakdown: the table and the chart of periods show every period they can."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from poolwise.evaluation.evaluate import evaluate
from poolwise.report.breakdown import MOST_LINES, periods, periods_chart
from tests.support.periods import daily, daily_log

if TYPE_CHECKING:
    from poolwise.evaluation.results import Evaluation

TARGETS = {"t": "t"}


def facts(evaluation: Evaluation) -> Any:  # noqa: ANN401 - nested dictionaries
    """Return the dictionary of the only target."""
    whole: Any = evaluation.to_dict()
    (target,) = whole["targets"]
    return target


def test_a_period_with_one_row_is_shown_without_an_interval() -> None:
    columns = daily(control=0.0)
    columns["day"][-1], columns["logger"][-1] = 9, "v9"
    columns["p_v9"] = columns["p_v2"]
    evaluation = evaluate(daily_log(columns), TARGETS)
    target = facts(evaluation)
    last = target["periods"][-1]
    assert (last["rows"], last["std_error"]) == (1, math.inf)
    (table,) = periods(target)
    assert table.rows[-1][3] == "–"
    assert periods_chart(target).to_dict()["layer"]


def test_a_long_table_shows_the_last_periods() -> None:
    columns = daily(1_500, days=70, control=0.0)
    target = facts(evaluate(daily_log(columns), TARGETS, "period-balanced"))
    (table,) = periods(target)
    assert len(table.rows) == MOST_LINES
    assert table.rows[-1][0] == "69"
    assert len(target["periods"]) == 70
