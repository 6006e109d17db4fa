"""Decisions: verdicts against the differences that they rest on."""

from __future__ import annotations

import json
import math
import pickle
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import poolwise as pw
from poolwise.errors import NotShownError, UsageError
from tests.support.messages import refused

if TYPE_CHECKING:
    from poolwise.evaluation.differences import Difference

POLICIES = {
    "v1": np.array([0.5, 0.3, 0.2]),
    "v2": np.array([0.3, 0.3, 0.4]),
    "new": np.array([0.1, 0.2, 0.7]),
    "same": np.array([0.5, 0.3, 0.2]),
}
CLICKS = np.array([0.1, 0.15, 0.22])  # of each action
LATENCY = np.array([100.0, 101.0, 103.0])
NEW = {"new": "p_new"}


def rows(count: int = 6_000, seed: int = 1) -> pa.Table:
    rng = np.random.default_rng(seed)
    logger = rng.choice(["v1", "v2"], count)
    action = np.array([rng.choice(3, p=POLICIES[name]) for name in logger])
    click = rng.binomial(1, CLICKS[action])
    return pa.table(
        {
            "policy": logger,
            "action": action,
            "click": click,
            "amount": click * rng.lognormal(1, 0.5, count),
            "ms": rng.normal(LATENCY[action], 20),
            **{f"p_{name}": p[action] for name, p in POLICIES.items()},
        }
    )


ROWS = rows()


def log(table: pa.Table = ROWS, **roles: Any) -> pw.Log:  # noqa: ANN401 - of a log
    whole: dict[str, Any] = {"logger": "policy", "action": "action", "reward": "click"}
    whole["propensities"] = {"v1": "p_v1", "v2": "p_v2"}
    return pw.Log(table, **whole | roles)


def decided(**metrics: pw.Metric) -> pw.Decision:
    return pw.decide(log(), NEW, baseline="v1", metrics=metrics)


def gap(metric: pw.Metric, level: float = 0.95) -> Difference:
    """The difference of one metric, asked alone."""
    evaluation = pw.evaluate(log(), NEW, baseline="v1", metrics={"m": metric}, level=level)
    return evaluation.metrics["m"].differences["new"]


def test_a_candidate_that_is_better_ships() -> None:
    decision = pw.decide(log(), NEW, baseline="v1")
    assert (decision.verdict, decision.exit_status) == ("ship", 0)
    judged = decision["new"]["reward"]
    assert (judged.role, judged.primary, judged.more_rows) == ("primary", "yes", 0)
    alone = pw.evaluate(log(), NEW, baseline="v1")
    assert judged.difference == alone.differences["new"]
    assert judged.value == alone["new"].estimates["calibrated"].value
    assert judged.baseline_value == judged.value - alone.differences["new"].value
    decision.require()


def test_a_candidate_that_is_worse_does_not() -> None:
    decision = pw.decide(log(), {"v1": "p_v1"}, baseline="v2")
    assert (decision.verdict, decision.exit_status) == ("don't", 1)
    assert decision["v1"]["reward"].primary == "no"
    with pytest.raises(NotShownError, match="Don't ship 'v1'"):
        decision.require()


def test_few_rows_cannot_tell_and_say_how_many_would() -> None:
    few = log(rows(300, seed=4))
    decision = pw.decide(few, NEW, baseline="v1")
    judged = decision["new"]["reward"]
    assert (decision.verdict, decision.exit_status, judged.primary) == ("can't tell", 3, "open")
    assert judged.difference is not None
    evaluation = pw.evaluate(few, NEW, baseline="v1")
    needed = evaluation.rows_to_detect("new", abs(judged.difference.value))
    assert judged.more_rows == decision["new"].more_rows == needed - 300 > 0
    assert "more rows of loggers mixed as now" in decision.sentence


@pytest.mark.parametrize("better", ["higher", "lower"])
@pytest.mark.parametrize("relative", [False, True])
def test_a_guardrail_turns_exactly_where_its_interval_ends(
    better: Any,  # noqa: ANN401 - a literal
    *,
    relative: bool,
) -> None:
    # lower latency is better, and the candidate has more; of clicks it has more as well
    reward = "ms" if better == "lower" else "-ms"
    found = gap(pw.Metric(reward))
    interval = found.interval
    if relative:
        assert found.relative is not None
        interval = found.relative.interval
    # by how much the candidate is worse: of a value below 0, a larger part is a smaller value
    worse = sorted(abs(end) for end in (interval.lower, interval.upper))
    for margin, shown in (
        (worse[1] * 1.001, "yes"),
        (worse[1] * 0.999, "open"),
        (worse[0] * 1.001, "open"),
        (worse[0] * 0.999, "no"),
    ):
        guard: float | str = f"{100 * margin:.12f}%" if relative else margin
        decision = decided(
            click=pw.Metric("click", primary=True),
            m=pw.Metric(reward, better=better, guard=guard),
        )
        assert decision["new"]["m"].guarded == shown
        wanted = {"yes": "ship", "no": "don't", "open": "can't tell"}[shown]
        assert decision.verdict == wanted


def test_the_direction_of_a_metric_is_only_a_sign() -> None:
    lower = decided(m=pw.Metric("ms", better="lower", primary=True))
    higher = decided(m=pw.Metric("-ms", primary=True))
    assert lower.verdict == higher.verdict == "don't"
    one, two = lower["new"]["m"].difference, higher["new"]["m"].difference
    assert one is not None
    assert two is not None
    assert one.value == pytest.approx(-two.value, rel=1e-12)
    assert one.interval.lower == pytest.approx(-two.interval.upper, rel=1e-9)


def test_intervals_of_two_primaries_hold_together() -> None:
    decision = decided(
        click=pw.Metric("click", primary=True), amount=pw.Metric("amount", primary=True)
    )
    assert decision.evaluation.level == pytest.approx(0.975)
    alone = gap(pw.Metric("amount"), level=0.975)
    assert decision["new"]["amount"].difference == alone
    assert decision.verdict == "ship"
    both = decided(
        click=pw.Metric("click", primary=True),
        ms=pw.Metric("ms", better="lower", primary=True),
    )
    assert both.verdict == "don't"  # one better and one worse


def test_a_metric_without_a_role_decides_nothing() -> None:
    decision = decided(ms=pw.Metric("ms", better="lower"))
    assert decision.verdict == "ship"  # by the log's own reward
    assert decision["new"]["ms"].asked == ()


def test_an_alarm_forbids_a_conclusion() -> None:
    table = ROWS.append_column("p_off", pa.array(np.asarray(ROWS["p_new"]) * 0.4))
    decision = pw.decide(log(table), {"off": "p_off"}, baseline="v1")
    assert decision.verdict == "can't tell"
    assert decision["off"].alarms == ("target-uncovered",)
    assert "resolve the alarm" in decision.sentence


def test_the_same_policy_is_not_worse_and_never_better() -> None:
    decision = pw.decide(
        log(),
        {"same": "p_same"},
        baseline="v1",
        metrics={"ms": pw.Metric("ms", better="lower", guard="1%")},
    )
    judged = decision["same"]
    assert (judged["ms"].guarded, judged["reward"].primary) == ("yes", "open")
    assert decision.verdict == "can't tell"
    assert judged.more_rows == math.inf
    assert "hardly" in judged.sentence


def test_a_margin_that_is_a_part_of_nothing_cannot_be_tested() -> None:
    near = ROWS.append_column(
        "noise", pa.array(np.random.default_rng(7).normal(0, 1, ROWS.num_rows))
    )
    decision = pw.decide(
        log(near),
        NEW,
        baseline="v1",
        metrics={
            "click": pw.Metric("click", primary=True),
            "noise": pw.Metric("noise", guard="5%"),
        },
    )
    judged = decision["new"]["noise"]
    assert (judged.guarded, judged.margin, judged.more_rows) == ("open", None, math.inf)
    assert decision.verdict == "can't tell"


def test_what_is_shown_to_be_better_is_not_worse_by_a_part_of_anything() -> None:
    rng = np.random.default_rng(7)
    logger = rng.choice(["v1", "v2"], 4_000)
    second = rng.random(4_000) < np.where(logger == "v1", 0.3, 0.6)
    code = rng.random(4_000) < 0.5
    share = {"cheap": np.where(code, 0.5, 0.1), "dear": np.where(code, 0.95, 0.6)}
    table = pa.table(
        {
            "action": second.astype(int),
            "policy": logger,
            "price": np.where(second, 1.0, 0.1),  # known given the action: v2 has no error
            **{name: np.where(second, p, 1 - p) for name, p in share.items()},
        }
    )
    propensities = {"v1": {0: 0.7, 1: 0.3}, "v2": {0: 0.4, 1: 0.6}}
    question = log(table, reward="price", propensities=propensities)
    price = pw.Metric("price", better="lower", guard="5%", primary=True)
    for name, verdict, guarded in (("cheap", "ship", "yes"), ("dear", "don't", "open")):
        decision = pw.decide(question, {name: name}, baseline="v2", metrics={"price": price})
        judged = decision[name]["price"]
        assert judged.difference is not None
        assert judged.difference.relative is None
        assert (decision.verdict, judged.guarded) == (verdict, guarded)


def test_costs_below_zero_keep_their_direction() -> None:
    """A cost of -103 is worse than one of -101, by 2% of it."""
    strict = decided(
        click=pw.Metric("click", primary=True), cost=pw.Metric("-ms", guard="0.1%")
    )
    assert strict["new"]["cost"].guarded == "no"
    loose = decided(click=pw.Metric("click", primary=True), cost=pw.Metric("-ms", guard="9%"))
    assert loose["new"]["cost"].guarded == "yes"


def test_several_candidates_are_judged_each() -> None:
    decision = pw.decide(log(), {**NEW, "old": "p_v1"}, baseline="v2")
    assert {n: c.verdict for n, c in decision.candidates.items()} == {
        "new": "ship",
        "old": "don't",
    }
    assert decision.verdict == "ship"
    assert decision.sentence.index("Ship 'new'") < decision.sentence.index("Don't ship 'old'")


def test_outputs_have_the_same_numbers() -> None:
    decision = decided(
        click=pw.Metric("click", primary=True),
        rpc=pw.Metric("amount", per="click", guard=1.0),
    )
    whole = json.loads(decision.to_json())
    assert (whole["result"], whole["verdict"]) == ("decision", "ship")
    judged = decision["new"]["rpc"]
    (line,) = [m for m in whole["candidates"][0]["metrics"] if m["metric"] == "rpc"]
    assert line["value"] == judged.value
    assert line["guard"] == "1"
    metrics = decision.to_metrics()
    assert metrics["new/rpc/value"] == judged.value
    assert all(re.fullmatch(r"[\w\-. /]+", name) for name in metrics)
    assert all(map(math.isfinite, metrics.values()))
    text = decision.to_markdown()
    lines = [row for row in text.splitlines() if row.startswith("|")]
    assert len({row.count("|") for row in lines}) == 1
    assert "rpc (guardrail)" in text
    assert pickle.loads(pickle.dumps(replace(decision, evaluation=None))).verdict == "ship"  # type: ignore[arg-type]  # noqa: S301 - our own


def test_names_become_names_of_trackers_or_are_refused() -> None:
    evaluation = pw.evaluate(log(), {"a|b": "p_new"}, "balanced")
    assert set(evaluation.to_metrics()) >= {"a_b/balanced/value"}
    clash = pw.evaluate(log(), {"a|b": "p_new", "a?b": "p_v1"}, "balanced")
    with refused(UsageError):
        clash.to_metrics()


def test_markdown_shows_names_as_they_are() -> None:
    text = pw.evaluate(log(), {"a|b_<i>": "p_new"}, "balanced").to_markdown()
    assert r"a\|b\_&lt;i>" in text


def test_mistakes_are_refused() -> None:
    with refused(UsageError):
        pw.decide(log(), {"v1": "p_v1"}, baseline="v1")
    with refused(UsageError):
        pw.decide(log(), NEW, level=1.5)


def test_the_page_has_the_verdict_and_escapes_names(tmp_path: Any) -> None:  # noqa: ANN401
    path = tmp_path / "decision.html"
    pw.decide(log(), {"<b>": "p_new"}, baseline="v1").save(path)
    page = path.read_text("utf-8")
    assert "<b>: " not in page
    assert "&lt;b&gt;" in page
    assert "<strong>ship</strong>" in page


def test_the_page_names_the_column_behind_each_metric(tmp_path: Any) -> None:  # noqa: ANN401
    metrics = {"spending": pw.Metric("amount", per="click", primary=True)}
    pw.decide(log(), NEW, baseline="v1", metrics=metrics).save(tmp_path / "decision.html")
    page = (tmp_path / "decision.html").read_text("utf-8")
    columns = re.findall(r"<h2>(\S+) <small><code>(.*?)</code>", page)
    assert columns == [("reward", "click"), ("spending", "amount per click")]
