"""Questions about logs of rankings: values are those of requests, or the verb refuses.

The logs are those of `test_rankings`: every list exactly as often as it is probable, so that
averages are expectations and every value is a finite sum.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.errors import UsageError
from poolwise.formats.rankings import RankingLog
from poolwise.log.log import Log
from poolwise.log.requests import Requests
from tests.formats.test_rankings import (
    CONTEXTS,
    LISTS,
    Rewards,
    earned,
    exact_log,
    listed,
    marginals,
    of_item,
    of_items_above,
    read,
    steps,
    value,
)
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from poolwise.evaluation.segments import SegmentResult
    from poolwise.formats.lists import Model
    from poolwise.intervals.student import Interval
    from poolwise.moments.estimate import Estimate

pytestmark = pytest.mark.slow  # all of them together take seconds
DEVICES = ("desktop", "mobile")  # contexts of the exact log


def with_devices(table: pa.Table) -> pa.Table:
    contexts = [int(request.split("-")[1]) for request in table["request"].to_pylist()]
    table = table.append_column("device", pa.array([DEVICES[x] for x in contexts]))
    items = [request.split("-")[2] for request in table["request"].to_pylist()]
    at = [int(k) - 1 for k in table["position"].to_pylist()]
    shown = [int(re.findall(r"\d", lists)[k]) for lists, k in zip(items, at, strict=True)]
    return table.append_column("item", pa.array(shown))


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return with_devices(exact_log(of_items_above))


def expected(
    rewards: Rewards,
    *,
    device: int | None = None,
    place: int | None = None,
    short: bool = False,
) -> float:
    """Return the exact value of a request, of one device or at one position."""
    total = 0.0
    for x, share in enumerate(CONTEXTS):
        if device in {None, x}:
            weight = share if device is None else 1
            for items in LISTS:
                parts = earned(rewards, x, items, short)
                parts = parts if place is None else parts[place : place + 1]
                total += float(weight * listed("target", x, items) * sum(parts))
    return total


def results(found: RankingLog, by: str, *estimators: str) -> dict[str, SegmentResult]:
    segments = pw.evaluate(*found, estimators or None, by=by).segments
    assert segments is not None
    return {r.segment: r for r in segments.results}


def shown(result: SegmentResult) -> tuple[Estimate, Interval]:
    assert result.estimate is not None
    assert result.interval is not None
    return result.estimate, result.interval


@pytest.mark.parametrize("short", [False, True], ids=["equal", "unequal"])
@pytest.mark.parametrize("model", ["cascade", "independent", "whole"])
def test_a_segment_of_requests_has_the_value_of_a_request(
    model: Model,
    short: bool,  # noqa: FBT001
) -> None:
    marginal = model == "independent"
    probabilities, rewards = (marginals, of_item) if marginal else (steps, of_items_above)
    table = with_devices(exact_log(rewards, probabilities, short=short))
    found = results(read(table, model), "device")
    for x, device in enumerate(DEVICES):
        truth = expected(rewards, device=x, short=short)
        assert shown(found[device])[0].value == pytest.approx(truth, rel=1e-9)
        assert truth in shown(found[device])[1]
        assert found[device].rows == (1 if model == "whole" else 2) * (64, 192)[x]
        assert found[device].rows_per_request == (1 if model == "whole" else 2)


@pytest.mark.parametrize("short", [False, True], ids=["equal", "unequal"])
@pytest.mark.parametrize("name", ["position", "rank", "Place"])
@pytest.mark.parametrize("start", [0, 1])
def test_a_position_has_the_part_that_it_earns(
    name: str,
    start: int,
    short: bool,  # noqa: FBT001
) -> None:
    table = with_devices(exact_log(of_items_above, short=short))
    places = pa.compute.add(table["position"], start - 1)
    table = table.set_column(1, name, places)
    log, targets = read(table, position=name)
    found = results(RankingLog(log, targets), name)
    assert list(found) == [str(start), str(start + 1)]
    for k, result in enumerate(found.values()):
        truth = expected(of_items_above, place=k, short=short)
        assert shown(result)[0].value == pytest.approx(truth, rel=1e-9)
        assert (result.rows, result.rows_per_request) == (256, 1)
    parts = sum(shown(result)[0].value for result in found.values())
    assert parts == pytest.approx(float(value(of_items_above, short=short)), rel=1e-9)


@pytest.mark.parametrize("estimator", ["naive", "balanced"])
def test_a_position_is_a_log_whose_other_positions_earn_nothing(
    table: pa.Table, estimator: str
) -> None:
    """Values, errors and differences are those of rewards of this position alone."""
    rng = np.random.default_rng(1)
    noisy = pa.compute.add(table["click"], pa.array(rng.normal(size=len(table))))
    table = table.set_column(3, "click", noisy)
    found = results(read(table), "position", estimator)
    for place, result in found.items():
        alone = read(table, reward=f"CASE WHEN position = {place} THEN click ELSE 0 END")
        whole = pw.evaluate(*alone, estimator, level=0.95**0.5)
        estimate = whole["best"].estimates[estimator]
        assert shown(result)[0].value == pytest.approx(estimate.value, rel=1e-9)
        assert shown(result)[0].std_error == pytest.approx(estimate.std_error, rel=1e-9)
        difference = result.difference
        assert difference is not None
        other = whole.differences["best"]
        assert difference.value == pytest.approx(other.value, rel=1e-9)
        assert 0.5 * other.std_error < difference.std_error < (1 + 1e-9) * other.std_error


def test_contrasts_of_positions_allow_for_any_dependence(table: pa.Table) -> None:
    """After a click nobody looks further: the errors of positions are opposed."""
    clicks = np.array(table["click"].to_pylist())
    second = np.array(table["position"].to_pylist()) == 2
    opposed = np.where(second, -np.roll(clicks, 1), clicks)
    table = table.set_column(3, "click", pa.array(opposed))
    found = results(read(table), "position", "balanced")
    gap = read(table, reward="CASE WHEN position = 1 THEN click ELSE -click END")
    exact = pw.evaluate(*gap, "balanced").differences["best"]
    contrast = found["1"].contrast
    assert contrast is not None
    assert contrast.value == pytest.approx(exact.value, rel=1e-9)
    independent = [r.difference.std_error for r in found.values() if r.difference]
    assert contrast.std_error >= sum(independent) > 1.3 * math.hypot(*independent)
    assert contrast.std_error >= exact.std_error


def test_items_that_every_list_has_are_parts_of_a_request() -> None:
    """With as many positions as items, each item is in every list, at some position."""
    rows = []
    for request in range(240):
        first = request % 3
        items = [(first + k) % 3 for k in range(3)]
        for k, item in enumerate(items):
            step = {"p_old": 1 / (3 - k), "p_new": 1 / (3 - k), "p_target": 1 / (3 - k)}
            logger = "old" if request < 120 else "new"
            row = {"request": request, "position": k + 1, "policy": logger, "item": item}
            rows.append({**row, "click": 10.0**item, **step})
    found = results(read(pa.Table.from_pylist(rows)), "item", "naive")
    assert [shown(r)[0].value for r in found.values()] == pytest.approx([1, 10, 100])


UNLIKE = {
    "an item": "item",
    "device and position": "device || position",
    "half of the requests": "CASE WHEN device = 'mobile' THEN position ELSE 0 END",
}


@pytest.mark.parametrize("name", UNLIKE)
def test_segments_that_split_requests_unlike_each_other_are_refused(
    table: pa.Table, name: str
) -> None:
    with refused(UsageError):
        pw.evaluate(*read(table), by=UNLIKE[name])


@pytest.mark.parametrize("column", ["item", "position"])
def test_a_whole_list_has_no_segments_within_it(table: pa.Table, column: str) -> None:
    with refused(UsageError):
        pw.evaluate(*read(table, "whole"), by=column)


def test_a_request_without_a_segment_is_refused(table: pa.Table) -> None:
    devices = [None if d == "mobile" else d for d in table["device"].to_pylist()]
    place = table.schema.get_field_index("device")
    with refused(UsageError):
        pw.evaluate(*read(table.set_column(place, "device", pa.array(devices))), by="device")


@pytest.mark.parametrize("model", ["cascade", "independent", "whole"])
def test_columns_of_any_type_are_kept(model: Model, table: pa.Table, tmp_path: Path) -> None:
    count = len(table)
    maps = pa.array([[("a", 1)]] * count, pa.map_(pa.string(), pa.int64()))
    table = table.append_column("vector", pa.array([[1.0, 2.0]] * count))
    table = table.append_column("record", pa.array([{"a": 1}] * count))
    table = table.append_column("maps", maps).append_column("empty", pa.nulls(count))
    pq.write_table(table, tmp_path / "log.parquet")
    for source in (table, tmp_path / "log.parquet"):
        log, targets = read(source, model)
        found = results(
            RankingLog(log, targets), "device || vector[1] || record['a'] || maps['a']"
        )
        assert list(found) == ["desktop1.011", "mobile1.011"]


def test_columns_keep_their_names_and_values(table: pa.Table) -> None:
    """Columns that are called like a role, but have another one, are not replaced."""
    taken = ("cluster", "reward", "target_0", "propensity_0", "Logger", "kept_0")
    for name in taken:
        table = table.append_column(name, table["device"])
    log, targets = read(table)
    for name in taken:
        found = results(RankingLog(log, targets), name)
        assert list(found) == list(DEVICES)
        truths = [expected(of_items_above, device=x) for x in range(2)]
        values = [shown(result)[0].value for result in found.values()]
        assert values == pytest.approx(truths, rel=1e-9)
    assert log.requests == Requests("request", 2)


def test_a_pattern_names_the_propensities(table: pa.Table) -> None:
    for source in (table, {"old": table.filter(pa.compute.field("policy") == "old")}):
        logger = None if isinstance(source, dict) else "policy"
        plain = {"old": "p_old"} if isinstance(source, dict) else None
        roles: dict[str, Any] = {"logger": logger} | ({"propensities": plain} if plain else {})
        named = pw.evaluate(*read(source, **roles), "balanced")
        found = pw.evaluate(
            *read(source, **{**roles, "propensities": "p_{logger}"}), "balanced"
        )
        for one, other in zip(found.to_dicts(), named.to_dicts(), strict=True):
            assert one.keys() == other.keys()
            for name, other_value in other.items():  # threads add in any order
                exact = isinstance(other_value, str | bool | None)
                assert one[name] == (
                    other_value if exact else pytest.approx(other_value, rel=1e-12)
                )


@pytest.mark.parametrize("model", ["cascade", "whole"])
def test_values_are_said_to_be_those_of_requests(table: pa.Table, model: Model) -> None:
    log, targets = read(table, model)
    found = pw.evaluate(log, targets, by="device")
    rows = 1 if model == "whole" else 2
    assert " per request (" in found.headline
    text = found.to_text()
    assert "256 requests of 2 loggers" in text
    assert "per row" not in text
    assert json.loads(found.to_json())["rows_per_request"] == rows
    charts = [json.dumps(chart.to_dict()) for chart in found.charts().values()]
    assert any("per request" in chart for chart in charts)
    assert not any("per row" in chart for chart in charts)
    compared = pw.compare(log, targets, baseline="old")
    assert compared.to_dict()["rows_per_request"] == rows
    assert "256 requests" in compared.to_text()
    plain = Log(table, logger="policy", reward="click", propensity="p_old")
    assert "rows_per_request" not in pw.evaluate(plain, "p_target").to_dict()


def test_a_plan_counts_requests(table: pa.Table) -> None:
    """Of naive with loggers as now: the square of the ratio of half-widths, in requests."""
    wide = pw.plan(*read(table), half_width=0.05, lift=0.5, estimators=["naive"])
    option = wide.option("naive", "(as now)")
    now = pw.evaluate(*read(table), "naive")["best"].estimates["naive"].std_error
    requests = 256 * (1.96 * now / 0.05) ** 2
    assert option.rows % 2 == 0
    assert option.rows / 2 + 256 == pytest.approx(requests, rel=0.01)
    shown = f"{option.rows / 2:,.0f}"
    assert f"with the loggers mixed as they are now, {shown} (" in wide.sentence
    assert "more requests for a half-width" in wide.sentence
    assert shown in wide.to_text()
    assert wide.detection is not None
    needed = np.ceil(wide.detection.rows / 2)
    assert f" by {needed:,.0f} requests in all" in wide.sentence
    assert wide.to_dict()["rows_per_request"] == 2


def test_a_period_of_requests_has_the_value_of_a_request(table: pa.Table) -> None:
    log, targets = read(table)
    found = pw.evaluate(replace(log, period="device"), targets)["best"]
    assert found.over_time is not None
    values = [point.value for point in found.over_time.values]
    truths = [expected(of_items_above, device=x) for x in range(2)]
    assert values == pytest.approx(truths, rel=0.05)  # rewards are centred at earlier periods


REFUSED: dict[str, Callable[[Log, dict[str, str]], object]] = {
    "a period within requests": lambda log, targets: pw.evaluate(
        replace(log, period="position"), targets
    ),
    "no cluster": lambda log, _: replace(log, cluster=None),
    "dropped rows": lambda log, _: replace(log, on_fault="drop"),
    "a policy in Python": lambda log, _: pw.evaluate(
        replace(log, action="item"), {"new": pw.Uniform([0, 1, 2])}
    ),
    "a reward model": lambda log, targets: pw.evaluate(
        log, targets, model=pw.GivenModel("item", "item")
    ),
    "learn": lambda log, _: pw.learn(replace(log, action="item"), features=["device"]),
    "watch": lambda log, targets: pw.watch(
        "state.npz", replace(log, reward_range=(0, 100)), targets
    ),
    "scores": lambda log, _: pw.score_log(
        replace(log, action="item"), {"new": pw.Uniform([0, 1, 2])}, "scored.parquet"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_questions_about_single_rows_are_refused(table: pa.Table, name: str) -> None:
    log, targets = read(table)
    with refused(UsageError):
        REFUSED[name](log, targets)


def test_whole_lists_can_be_watched(table: pa.Table, tmp_path: Path) -> None:
    log, targets = read(table, "whole")
    log = replace(log, reward_range=(0, 30))
    watched = pw.watch(tmp_path / "state.npz", log, targets)
    assert watched.rows == 256
    assert float(value(of_items_above)) in watched.interval
    assert pw.check(log, targets).rows == {"new": 192, "old": 64}


@pytest.mark.parametrize("model", ["cascade", "whole"])
def test_a_backtest_predicts_the_rewards_of_requests(model: Model) -> None:
    """Both sides are the same expectation, where the other logger supports it."""
    found = pw.backtest(read(exact_log(of_items_above), model).log)
    for p in found.loggers.values():
        assert 0 < p.supported <= 1
        assert p.earned > 0
        assert p.predicted == pytest.approx(p.earned, rel=1e-9)


def test_check_counts_requests_of_every_length() -> None:
    table = pa.table(
        {
            "id": [1, 1, 1, 2, 2, 3],
            "position": [1, 2, 3, 1, 2, 1],
            "who": ["a", "a", "a", "a", "a", "b"],
            "r": [0.0, 1.0, 0.0, 1.0, 0.0, 1.0],
            "p": [0.5] * 6,
        }
    )
    roles: dict[str, Any] = {"reward": "r", "logger": "who", "propensity": "p"}
    log, targets = pw.ranking_log(
        table, {"new": "p"}, request="id", position="position", **roles
    )
    report = pw.check(log, targets)
    assert (report.counts, report.rows_per_request) == ({"a": 2, "b": 1}, 3)
    assert str(report).startswith("no faults in 3 requests ('a' 2, 'b' 1)")
    assert [grid.title for grid in report.grids()] == ["Requests"]
    found = json.loads(report.to_json())
    assert (found["rows"], found["rows_per_request"]) == ({"a": 6, "b": 3}, 3)
