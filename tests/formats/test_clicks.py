"""Click logs: golden numbers, a slow reference, and logs that break a rule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from benchmarks.clicks import World
from poolwise.engines import as_engine
from poolwise.engines.clicks import ClickRows
from poolwise.errors import LogError, MissingColumnError, PoolwiseError, UsageError
from poolwise.evaluation.read import audit_rows
from poolwise.formats.shown import FIXED
from tests.support.clicks import Reference, as_lists, distinct_buckets
from tests.support.messages import check_findings, refused

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow  # all of them together take seconds
SUPPORT = Path(__file__).parents[1] / "support"
SMALL = SUPPORT / "clicks_small.csv"
GOLDEN: dict[str, Any] = json.loads((SUPPORT / "golden_clicks.json").read_text("utf-8"))
RANKERS = ("a", "b", "c")
POLICIES = (*RANKERS, "new")
ROLES: dict[str, Any] = {
    "request": "request",
    "position": "position",
    "click": "click",
    "logger": "ranker",
    "ranks": "rank_{logger}",
}
TARGETS = {"new": "rank_new", **{f"again {i}": f"rank_{i}" for i in RANKERS}}


@pytest.fixture(scope="module")
def small() -> pd.DataFrame:
    """Rows of the golden numbers, whose buckets are clusters."""
    rows = pd.read_csv(SMALL)
    texts = distinct_buckets(range(20))
    return rows.assign(bucket=[texts[r % 20] for r in rows.request])


@pytest.fixture(scope="module")
def golden(small: pd.DataFrame) -> pw.Evaluation:
    log, targets = pw.click_log(small, TARGETS, cluster="bucket", **ROLES)
    return pw.evaluate(log, targets)


# --- golden numbers ----------------------------------------------------------------------


def test_position_bias_is_golden(small: pd.DataFrame) -> None:
    found = pw.position_bias(small, cluster="bucket", **ROLES)
    assert list(found.curve.values()) == pytest.approx(GOLDEN["theta"], abs=1e-9)
    errors = [p.log_error for p in found.positions]
    assert errors == pytest.approx(GOLDEN["log_se"], abs=1e-9)
    assert found.misfit == pytest.approx(GOLDEN["misfit"], abs=1e-9)
    assert found.freedom == GOLDEN["freedom"]
    assert found.requests == {"a": 301, "b": 175, "c": 124}


def test_values_are_golden(golden: pw.Evaluation) -> None:
    expected = {"new": GOLDEN["new"]}
    expected |= {f"again {i}": GOLDEN["rankers"][i] for i in RANKERS}
    for name, numbers in expected.items():
        estimate = golden[name].estimates["balanced"]
        assert estimate.value == pytest.approx(numbers["value"], abs=1e-9)
        assert estimate.std_error == pytest.approx(numbers["se"], abs=1e-9)
    for i in RANKERS:
        assert golden.mean_reward[i] == pytest.approx(GOLDEN["rankers"][i]["mean_clicks"])


def test_support_and_backtest_are_golden(golden: pw.Evaluation) -> None:
    support = golden["new"].support
    assert support is not None
    assert support.together == pytest.approx(GOLDEN["new"]["support"], abs=1e-9)
    assert golden.backtest is not None
    for i, numbers in GOLDEN["backtest"].items():
        found = golden.backtest[i]
        assert found.earned == pytest.approx(numbers["actual"], abs=1e-9)
        assert found.predicted == pytest.approx(numbers["predicted"], abs=1e-9)
        assert found.z == pytest.approx(numbers["z"], abs=1e-9)


def test_a_given_curve_has_no_error(small: pd.DataFrame) -> None:
    curve = dict(enumerate(GOLDEN["theta"], 1))
    log, targets = pw.click_log(small, TARGETS, bias=curve, cluster="bucket", **ROLES)
    estimate = pw.evaluate(log, targets, "balanced")["new"].estimates["balanced"]
    assert estimate.value == pytest.approx(GOLDEN["new"]["value"], abs=1e-9)
    assert estimate.std_error == pytest.approx(GOLDEN["new"]["se_bias_known"], abs=1e-9)


def test_a_curve_counts_up_to_a_factor(small: pd.DataFrame) -> None:
    """Weights are ratios, so that a curve above 1 gives the same as one below."""
    values = []
    for factor in (1.0, 5.0):
        curve = {k: factor * e for k, e in enumerate(GOLDEN["theta"], 1)}
        log, targets = pw.click_log(small, TARGETS, bias=curve, **ROLES)
        values.append(pw.evaluate(log, targets, "balanced")["new"].estimates["balanced"].value)
    assert values[0] == pytest.approx(values[1], rel=1e-12)


# --- against the slow reference -------------------------------------------------------------


def uneven() -> pd.DataFrame:
    """Lists of 3 and of 6 items, in buckets of which some lack a ranker."""
    world = World((240, 160, 40), positions=6, items=7, shorter=0.4, rate=0.5, fall=0.5)
    rows: pd.DataFrame = world.table(3).to_pandas()
    texts = distinct_buckets(range(30))
    return rows.assign(bucket=[texts[r % 30] for r in rows.request], half=rows.request % 2)


def test_lists_of_unequal_length_agree_with_the_reference() -> None:
    rows = uneven()
    assert rows.groupby("request").size().agg(["min", "max"]).tolist() == [3, 6]
    reference = Reference(rows, ["r0", "r1", "r2"])
    log, targets = pw.click_log(
        rows, {"new": "rank_new", "one": "rank_r1"}, cluster="bucket", **ROLES
    )
    found = pw.evaluate(log, targets, baseline="r0")
    bias = found.position_bias
    assert bias is not None
    assert np.log(list(bias.curve.values())) == pytest.approx(reference.fit[0], abs=1e-9)
    lefts = {}
    for name, policy in (("new", "new"), ("one", "r1")):
        value, error, lefts[name] = reference.estimate(policy)
        estimate = found[name].estimates["balanced"]
        assert estimate.value == pytest.approx(value, abs=1e-9)
        assert estimate.std_error == pytest.approx(error, rel=1e-7)
    value, _, left = reference.estimate("r0")
    difference = found.differences["new"]
    assert difference.value == pytest.approx(reference.estimate("new")[0] - value, abs=1e-9)
    gaps = lefts["new"] - left
    plain = float(np.sqrt(((gaps - gaps.mean()) ** 2).sum() * 29 / 30))
    assert difference.std_error == pytest.approx(plain, rel=1e-4)
    ranked = {d.target: d for d in pw.compare(log, targets, baseline="r0").differences}
    assert ranked["new"].std_error == pytest.approx(plain, rel=1e-4)


def test_segments_share_the_curve_of_all_requests() -> None:
    rows = uneven()
    whole = Reference(rows, ["r0", "r1", "r2"])
    log, targets = pw.click_log(rows, {"new": "rank_new"}, cluster="bucket", **ROLES)
    found = pw.evaluate(log, targets, "balanced", by="half")
    assert found.segments is not None
    for half in (0, 1):
        part = Reference(rows[rows.half == half], whole.rankers, np.exp(whole.fit[0]).tolist())
        estimate = found.segments[str(half)]["new"].estimate
        assert estimate is not None
        assert estimate.value == pytest.approx(part.estimate("new")[0], abs=1e-9)
        # buckets of the other half carry the error of the curve, too: they are in no row here
        assert estimate.std_error > 0.5 * part.estimate("new")[1]


def test_a_ranker_has_the_value_of_its_own_clicks_if_it_is_alone() -> None:
    rows = pd.read_csv(SMALL)
    alone = rows[rows.ranker == "a"]
    curve = {k: 1 / k for k in range(1, 6)}
    log, targets = pw.click_log(
        alone, {"new": "rank_a"}, bias=curve, **{**ROLES, "ranks": {"a": "rank_a"}}
    )
    found = pw.evaluate(log, targets, "balanced")
    value = found["new"].estimates["balanced"].value
    assert value == pytest.approx(alone.click.sum() / alone.request.nunique(), abs=1e-9)
    assert found.differences["new"].verdict == "identical"


# --- sources -------------------------------------------------------------------------------


def test_every_source_gives_the_same(tmp_path: Path) -> None:
    rows = pd.read_csv(SMALL)
    parquet, csv = tmp_path / "rows.parquet", tmp_path / "rows.csv"
    pq.write_table(pa.Table.from_pandas(rows), parquet)
    rows.to_csv(csv, index=False)
    sources: list[Any] = [
        rows,
        pl.from_pandas(rows),
        pa.Table.from_pandas(rows),
        str(parquet),
        str(csv),
        f"SELECT * FROM '{parquet}'",
        {i: rows[rows.ranker == i].drop(columns="ranker") for i in RANKERS},
        as_lists(rows, POLICIES),
    ]
    found = []
    for source in sources:
        roles = dict(ROLES)
        if isinstance(source, dict):
            roles["logger"] = None
        if source is sources[-1]:
            roles["position"] = None
        log, targets = pw.click_log(source, {"new": "rank_new"}, **roles)
        found.append(pw.evaluate(log, targets, "balanced")["new"].estimates["balanced"])
    for estimate in found[1:]:
        assert estimate.value == pytest.approx(found[0].value, rel=1e-12)
        assert estimate.std_error == pytest.approx(found[0].std_error, rel=1e-9)


def test_worth_counts_clicks_by_position() -> None:
    """DCG: the value of a ranker is what its own clicks are worth, and a target's likewise."""
    rows = pd.read_csv(SMALL)
    worth = {k: 1 / np.log2(k + 1) for k in range(1, 6)}
    curve = dict(enumerate(GOLDEN["theta"], 1))
    log, targets = pw.click_log(rows, {"new": "rank_new"}, bias=curve, worth=worth, **ROLES)
    assert list(targets) == ["a", "b", "c", "new"]
    found = pw.evaluate(log, targets, "balanced")
    assert found.baseline == "a"
    theta = np.append(0.0, GOLDEN["theta"])
    shares = {"a": 301 / 600, "b": 175 / 600, "c": 124 / 600}
    clicked = rows[rows.click == 1]
    below = sum(s * theta[clicked[f"rank_{i}"]] for i, s in shares.items())
    weights = np.append(0.0, list(worth.values()))
    for name in (*RANKERS, "new"):
        rank = clicked[f"rank_{name}"]
        value = float((weights[rank] * theta[rank] / below).sum() / 600)
        assert found[name].estimates["balanced"].value == pytest.approx(value, abs=1e-9)


def test_worth_needs_a_baseline_among_the_targets() -> None:
    worth = {k: 1 / k for k in range(1, 6)}
    log, targets = pw.click_log(SMALL, {"new": "rank_new"}, worth=worth, **ROLES)
    alone = {"new": targets["new"]}
    with refused(UsageError):
        pw.evaluate(log, alone)
    with refused(UsageError):
        pw.compare(log, alone, baseline="a")
    with refused(UsageError):
        pw.click_log(SMALL, {"a": "rank_new"}, worth=worth, **ROLES)
    found = pw.compare(log, targets, baseline="a")
    values = pw.evaluate(log, targets, "balanced")
    for ranked in found.ranking:
        expected = values[ranked.target].estimates["balanced"].value
        assert ranked.estimate.value == pytest.approx(expected, rel=1e-12)


def test_a_log_whose_rows_were_exchanged_is_refused(small: pd.DataFrame) -> None:
    log, targets = pw.click_log(small, {"new": "rank_new"}, cluster="bucket", **ROLES)
    kept = small.bucket != small.bucket.iloc[0]
    part, _ = pw.click_log(small[kept], {"new": "rank_new"}, cluster="bucket", **ROLES)
    with refused(LogError):
        pw.evaluate(replace(log, source=part.source), targets, "balanced")


def test_columns_may_have_the_names_of_roles() -> None:
    rows = pd.read_csv(SMALL).rename(
        columns={"request": "reward", "ranker": "cluster", "position": "target_0"}
    )
    rows["position"] = "shelf"
    roles = ROLES | {"request": "reward", "logger": "cluster", "position": "target_0"}
    log, targets = pw.click_log(rows, {"new": "rank_new"}, **roles)
    plain, same = pw.click_log(SMALL, {"new": "rank_new"}, **ROLES)
    values = [
        pw.evaluate(*asked, "balanced")["new"].estimates["balanced"].value
        for asked in ((log, targets), (plain, same))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


# --- what is refused ------------------------------------------------------------------------


def broken(change: dict[str, Any], where: str = "request == 7") -> pd.DataFrame:
    rows = pd.read_csv(SMALL)
    at = rows.query(where).index
    for name, value in change.items():
        rows[name] = rows[name].astype(object)
        rows.loc[at, name] = value
    return rows


BROKEN: dict[str, pd.DataFrame] = {
    "two rankers": broken({"ranker": "b"}, "request == 0 and position == 1"),
    "a position twice": broken({"position": 1}, "request == 7 and position == 2"),
    "a gap": pd.read_csv(SMALL).query("not (request == 7 and position == 2)"),
    "half a click": broken({"click": 0.5}),
    "no click": broken({"click": None}),
    "a rank below 0": broken({"rank_b": -1}),
    "half a rank": broken({"rank_b": 1.5}),
    "a rank that is no number": broken({"rank_b": "first"}),
    "another rank than the position": broken({"rank_a": 5}, "request == 0 and position == 1"),
    "two items at one rank": broken({"rank_new": 2}),
    "a rank without a position": broken({"rank_new": 6}, "request == 7 and position == 2"),
    "no ranker": broken({"ranker": None}),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_rows_are_refused(fault: str) -> None:
    with refused(LogError):
        pw.click_log(BROKEN[fault], {"new": "rank_new"}, **ROLES)


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": {**{i: f"rank_{i}" for i in RANKERS}, "d": "rank_new"}},
        {"ranks": {"a": "rank_a"}},
        {"ranks": "rank"},
        {"ranks": {"a": 1}},
        {"position": None},
        {"bias": {1: 1.0, 2: 0.6}},
        {"bias": {1: 1.0, 2: 0.6, 3: 0.0, 4: 0.3, 5: 0.2}},
        {"bias": [1.0, 0.6]},
        {"bias": {**dict.fromkeys(range(1, 6), 1.0), 2: "half"}},
        {"worth": dict.fromkeys(range(1, 6), 0.0)},
        {"cluster": "item"},
    ],
)
def test_other_arguments_are_refused(change: dict[str, Any]) -> None:
    with refused(PoolwiseError):
        pw.click_log(SMALL, {"new": "rank_new"}, **{**ROLES, **change})


def test_missing_columns_are_reported_together() -> None:
    with refused(MissingColumnError):
        pw.click_log(SMALL, {"new": "rank_next"}, **{**ROLES, "click": "clicks"})
    with refused(UsageError):
        pw.click_log(SMALL, {}, **ROLES)


def test_an_item_twice_in_a_list_is_refused() -> None:
    lists = as_lists(pd.read_csv(SMALL), POLICIES)
    lists["rank_new"] = [[1, 1, 2, 3, 4], *lists.rank_new[1:]]
    with refused(LogError):
        pw.click_log(lists, {"new": "rank_new"}, **{**ROLES, "position": None})
    lacking: list[Any] = [[], None]
    for nothing in lacking:
        empty = lists.assign(rank_a=[nothing, *lists.rank_a[1:]])
        with refused(LogError):
            pw.click_log(empty, {"new": "rank_new"}, **{**ROLES, "position": None})
    with refused(MissingColumnError):  # lists have no position
        pw.click_log(lists, {"new": "rank_new"}, **ROLES)
    with refused(UsageError):
        pw.click_log(lists.assign(click=1), {"new": "rank_new"}, **{**ROLES, "position": None})


def test_positions_that_nothing_connects_are_named() -> None:
    rows = pd.read_csv(SMALL)
    apart = rows.assign(**{f"rank_{i}": rows.position for i in RANKERS})
    with refused(UsageError):
        pw.position_bias(apart, **ROLES)
    lower = [
        rows[f"rank_{i}"].where((rows[f"rank_{i}"] > 3) == (rows.position > 3), 0)
        for i in RANKERS
    ]
    with refused(UsageError):
        pw.position_bias(
            rows.assign(**dict(zip([f"rank_{i}" for i in RANKERS], lower, strict=True))),
            **ROLES,
        )


@pytest.fixture(scope="module")
def asked() -> tuple[pw.Log, dict[str, str]]:
    log, targets = pw.click_log(pd.read_csv(SMALL), {"new": "rank_new"}, **ROLES)
    return log, targets


def test_a_decision_has_a_margin_of_clicks(asked: Any) -> None:  # noqa: ANN401 - a pair
    log, targets = asked
    plain = pw.evaluate(log, targets, baseline="c").differences["new"]
    assert plain.relative is not None
    for margin, shown in ((1.001, "yes"), (0.999, "open")):
        guard = f"{100 * margin * abs(plain.relative.interval.lower):.10f}%"
        clicks = pw.Metric(log.reward, primary=True, guard=guard)
        judged = pw.decide(log, targets, baseline="c", metrics={"clicks": clicks})["new"]
        assert judged["clicks"].difference == plain
        assert judged["clicks"].guarded == shown


def test_questions_about_probabilities_are_refused(asked: Any, tmp_path: Path) -> None:  # noqa: ANN401 - a pair
    log, targets = asked
    questions: list[Callable[[], object]] = [
        lambda: pw.evaluate(log, targets, "calibrated"),
        lambda: pw.evaluate(log, targets, pw.Balanced(pw.Shrink("clip", 2.0))),
        lambda: pw.evaluate(log, targets, pw.Weighted("reward-free")),
        lambda: pw.evaluate(log, targets, interval="student"),
        lambda: pw.evaluate(replace(log, reward_range=(0, 5)), targets, interval="betting"),
        lambda: pw.evaluate(log, targets, which_logs=True),
        lambda: pw.evaluate(log, targets, model=pw.RewardModel(None)),
        lambda: pw.evaluate(log, {"x": f"0.5 * {targets['new']}"}),
        lambda: pw.evaluate(log, targets, by="position"),
        lambda: pw.evaluate(log, targets, engine="spark"),
        lambda: pw.plan(log, targets, half_width=0.1),
        lambda: pw.watch(tmp_path / "state.npz", log, targets),
        lambda: pw.summarise(log, targets),
        lambda: pw.score_log(log, targets, tmp_path / "out.parquet"),
        lambda: pw.learn(replace(log, action="item")),
        lambda: pw.evaluate(log, targets, metrics={"twice": f"2 * {log.reward}"}),
        lambda: pw.evaluate(log, targets, metrics={"one": f"{log.reward} per {log.reward}"}),
    ]
    for question in questions:
        with refused(PoolwiseError):
            question()


@pytest.mark.parametrize(
    ("role", "value"),
    [
        ("cluster", "item"),
        ("reward", "click"),
        ("period", "item"),
        ("trained_on", {"a": ["b"]}),
    ],
)
def test_roles_of_a_click_log_stay(asked: Any, role: str, value: object) -> None:  # noqa: ANN401 - a pair
    assert role in FIXED
    with refused(UsageError):
        replace(asked[0], **{role: value})


def test_examinations_are_not_audited_as_frequencies(asked: Any) -> None:  # noqa: ANN401 - a pair
    """They do not sum to 1 over the items, so an audit of propensities would mean nothing."""
    with as_engine(None, asked[0]).open(asked[0], asked[1]) as rows:
        assert isinstance(rows, ClickRows)
        assert audit_rows(rows, asked[0]) == ()


# --- findings -------------------------------------------------------------------------------


def test_findings_name_what_is_missing(golden: pw.Evaluation) -> None:
    check_findings(golden["new"].findings, "items-not-shown", "items-not-shown-by-each")
    assert golden.backtest is not None
    assert golden.backtest.fits


def test_a_cascade_is_an_alarm() -> None:
    world = World((2_400, 1_200, 400), model="cascade")
    log, _ = pw.click_log(world.table(1), {"new": "rank_new"}, **ROLES)
    found = pw.backtest(log)
    assert not found.fits
    check_findings(found.findings, "backtest-off")
    assert "position alone" in found.sentence


def test_reports_show_the_curve(golden: pw.Evaluation, tmp_path: Path) -> None:
    text = golden.page_text()
    assert "Position bias" in text
    assert "Backtest" in text
    assert "Which logs help" not in text
    golden.save(tmp_path / "report.html")
    assert set(golden.charts()) == {
        "estimates",
        "targets",
        "backtest",
        "position-bias",
        "differences",
    }
    assert golden.to_dict()["position_bias"]
