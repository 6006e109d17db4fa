"""Metrics: several rewards, ratios and relative differences from one pass."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from typer.testing import CliRunner

from poolwise import DuckDB, GivenModel, Log, LogError, Metric, Table, compare, evaluate
from poolwise.cli.commands import app
from poolwise.errors import UsageError
from poolwise.evaluation.output import finite
from tests.support.messages import check_findings, refused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from poolwise import Evaluation

POLICIES = {"v1": [0.7, 0.2, 0.1], "v2": [0.2, 0.6, 0.2]}
TARGETS = {"new": "t", "other": "u"}
METRICS = {
    "revenue": Metric("amount"),
    "latency": Metric("ms", better="lower"),
    "rpc": Metric("amount", per="click"),
}
FEW = settings(max_examples=3)  # each one is a few evaluations


def table(seed: int = 0, rows: int = 600, **more: Any) -> pa.Table:  # noqa: ANN401 - columns
    """Return rows of two loggers with clicks, amounts and times."""
    rng = np.random.default_rng(seed)
    logger = rng.choice([*POLICIES], rows, p=[0.6, 0.4])
    own = np.array([POLICIES[label] for label in logger])
    action = (rng.random(rows)[:, None] > own.cumsum(axis=1)).sum(axis=1)
    x = rng.integers(0, 3, rows)
    click = (rng.random(rows) < 0.2 + 0.15 * action + 0.05 * x).astype(float)
    columns = {
        "logger": logger,
        **{f"p_{name}": np.array(policy)[action] for name, policy in POLICIES.items()},
        "p": own[np.arange(rows), action],
        "t": np.array([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6]])[x, action],
        "u": np.array([0.3, 0.3, 0.4])[action],
        "click": click,
        "amount": click * rng.exponential(5.0 + action),
        "ms": rng.exponential(100.0 - 5 * action),
        "x": x,
        "action": action,
        "user": rng.integers(0, rows // 5, rows),
        "day": np.arange(rows) * 3 // rows,
    }
    return pa.table(columns | more)


def log(source: Any = None, reward: str = "click", **roles: Any) -> Log:  # noqa: ANN401
    roles = {"propensities": "p_{logger}"} | roles
    return Log(table() if source is None else source, logger="logger", reward=reward, **roles)


def is_about_copies(part: Any) -> bool:  # noqa: ANN401 - of JSON
    return isinstance(part, dict) and part.get("code") == "copies-unknown"


def numbers(evaluation: Evaluation) -> str:
    """Return the results of a metric as text, with every bit, and without its definition.

    Copies of rows are found by the columns that a pass reads, so that finding is left out.
    """

    def strip(value: Any) -> Any:  # noqa: ANN401 - of JSON
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in {"measured", "metrics"}}
        if isinstance(value, list):
            return [strip(part) for part in value if not is_about_copies(part)]
        return value

    return json.dumps(strip(finite(evaluation.to_dict())), indent=0)


# --- one pass --------------------------------------------------------------------------------

KINDS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "plain": ({}, {}),
    "clusters": ({"cluster": "user"}, {}),
    "periods": ({"period": "day"}, {}),
    "segments": ({}, {"by": "x"}),
    "clusters by segment": ({"cluster": "user"}, {"by": "x"}),
    "own propensities": ({"propensities": None, "propensity": "p"}, {}),
    "student": ({}, {"interval": "student"}),
    "baseline": ({}, {"baseline": "other"}),
    "left out": ({}, {"which_logs": True}),
    "trained": ({"trained_on": {"v2": ["v1"]}}, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_metric_alone_and_among_others_has_the_same_bits(kind: str) -> None:
    roles, options = KINDS[kind]
    options = {"backtest": False, **options}
    among = evaluate(log(**roles), TARGETS, metrics=METRICS, **options).metrics
    for name, reward in (("reward", "click"), ("revenue", "amount")):
        alone = evaluate(log(reward=reward, **roles), TARGETS, **options)
        assert numbers(among[name]) == numbers(alone)
    alone = evaluate(
        log(reward="amount", **roles), TARGETS, metrics={"rpc": METRICS["rpc"]}, **options
    )
    assert numbers(among["rpc"]) == numbers(alone.metrics["rpc"])


@pytest.mark.parametrize("groups", [50, 600])
def test_files_give_the_same_bits_however_many_metrics(tmp_path: Path, groups: int) -> None:
    wide: Mapping[str, Any] = {
        f"m{k}": np.random.default_rng(k).exponential(1.0, 600) for k in range(9)
    }
    path = tmp_path / "rows.parquet"
    pq.write_table(table(**wide), path, row_group_size=groups)
    among = evaluate(log(path), TARGETS, metrics={name: name for name in wide}).metrics
    assert numbers(among["m8"]) == numbers(evaluate(log(path, "m8"), TARGETS, backtest=False))


def test_each_metric_has_a_model_of_its_own() -> None:
    new = {"new": Table({0: 0.2, 1: 0.2, 2: 0.6})}
    roles: Mapping[str, Any] = {"action": "action", "context": ["x"]}
    among = evaluate(log(**roles), new, model=Ridge(), metrics=METRICS, backtest=False).metrics
    alone = evaluate(log(reward="amount", **roles), new, model=Ridge(), backtest=False)
    assert numbers(among["revenue"]) == numbers(alone)
    assert among["revenue"]["new"].estimates["direct-method"].value > 0.5
    for own in among.values():  # without the columns of the incumbent
        relative, difference = own.differences["new"].relative, own.differences["new"]
        assert relative is not None
        base = own["new"].estimates["calibrated"].value - difference.value
        assert relative.value == pytest.approx(difference.value / base)


def test_a_metric_is_an_expression_too() -> None:
    among = evaluate(log(), TARGETS, metrics={"tax": "0.2 * amount + 1"}).metrics["tax"]
    alone = evaluate(log(reward="0.2 * amount + 1"), TARGETS, backtest=False)
    assert numbers(among) == numbers(alone)


def test_the_own_reward_is_a_metric_unless_another_name_has_it() -> None:
    assert [*evaluate(log(), TARGETS, metrics={"revenue": "amount"}).metrics] == [
        "reward",
        "revenue",
    ]
    named = evaluate(log(), TARGETS, metrics={"revenue": "amount", "clicks": "click"})
    assert [*named.metrics] == ["revenue", "clicks"]
    assert named.metrics["clicks"]["new"].estimates == named["new"].estimates
    assert not evaluate(log(), TARGETS).metrics


def test_compare_ranks_by_every_metric() -> None:
    among = compare(log(), TARGETS, baseline="v1", metrics=METRICS)
    alone = compare(log(reward="amount"), TARGETS, baseline="v1")
    assert among.metrics["revenue"].to_dicts() == alone.to_dicts()
    latency = among.metrics["latency"]
    values = [ranked.estimate.value for ranked in latency.ranking]
    assert values == sorted(values)  # lower is better
    for pair in latency.pairs:
        if pair.verdict == "better":
            assert pair.interval.upper < 0


def test_every_segment_has_every_metric() -> None:
    evaluation = evaluate(log(), {"new": "t"}, by="x", metrics=METRICS)
    for name, own in evaluation.metrics.items():
        assert own.segments is not None
        for k in range(3):
            part = table().filter(pa.compute.equal(table()["x"], k))
            alone = evaluate(log(part), {"new": "t"}, metrics=METRICS).metrics[name]
            found = own.segments[str(k)]["new"].estimate
            value = alone["new"].estimates[alone["new"].recommended].value
            assert found is not None
            assert found.value == pytest.approx(value, rel=1e-9)


# --- rows that break a rule ------------------------------------------------------------------


def test_each_metric_has_the_rules_of_a_reward() -> None:
    broken = table(amount=np.where(np.arange(600) == 7, np.nan, 1.0))
    with refused(LogError):
        evaluate(log(broken), TARGETS, metrics=METRICS)
    infinite = table(ms=np.where(np.arange(600) < 3, np.inf, 1.0))
    with refused(LogError):
        evaluate(log(infinite), TARGETS, metrics=METRICS)


def test_rows_without_a_metric_are_dropped_for_all() -> None:
    bad = np.arange(600) % 50 == 7
    broken = table(amount=np.where(bad, np.nan, np.arange(600.0)))
    found = evaluate(log(broken, on_fault="drop"), TARGETS, metrics={"revenue": "amount"})
    kept = evaluate(log(broken.filter(~bad)), TARGETS, metrics={"revenue": "amount"})
    assert found.metrics["revenue"].to_dicts() == kept.metrics["revenue"].to_dicts()
    assert found.rows == kept.rows
    dropped = [f for f in found.warnings if f["code"] == "dropped-rows"]
    assert len(dropped) == 2  # one for each logger
    assert not any("metric" in finding for finding in dropped)


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metrics",
    [
        {"reward": "amount"},
        {"a": "click", "b": "click"},
        {"": "amount"},
        {"a": 5},
        {"a": "amount per click per ms"},
        {"a": "amount, guard"},
        {"a": "amount, primary 5%"},
        {"a": "amount, lower, higher"},
        ["amount"],
    ],
)
def test_metrics_that_are_refused(metrics: Any) -> None:  # noqa: ANN401 - of wrong types
    with refused(UsageError):
        evaluate(log(), TARGETS, metrics=metrics)


@pytest.mark.parametrize(
    "wrong", [{"better": "more"}, {"guard": "much"}, {"guard": -1}, {"guard": True}]
)
def test_wrong_metrics_are_refused(wrong: Mapping[str, Any]) -> None:
    with refused(UsageError):
        Metric("amount", **wrong)


def test_what_has_one_reward_says_so() -> None:
    ranged = log(reward_range=(0, 1))
    with refused(UsageError):
        evaluate(ranged, TARGETS, metrics=METRICS, interval="betting")
    with refused(UsageError):
        evaluate(log(), TARGETS, metrics=METRICS, by="amount > 3")
    with refused(UsageError):
        evaluate(log(), {"new": "t"}, metrics=METRICS, model=GivenModel("x", "x"))


def test_what_has_one_reward_has_it_as_a_metric() -> None:
    own = {"clicks": Metric("click", guard="5%")}
    ranged = log(reward_range=(0, 1))
    found = evaluate(ranged, TARGETS, metrics=own, interval="betting", baseline="v1")
    plain = evaluate(ranged, TARGETS, interval="betting", baseline="v1")
    assert found.metrics["clicks"].differences == plain.differences
    for target in TARGETS:
        assert found.metrics["clicks"][target].intervals == plain[target].intervals


# --- findings --------------------------------------------------------------------------------


def test_findings_that_do_not_depend_on_the_reward_appear_once() -> None:
    wrong = table()
    wrong = wrong.set_column(
        wrong.schema.get_field_index("t"), "t", [wrong["t"].to_numpy() / 3]
    )
    found = evaluate(log(wrong), {"new": "t"}, metrics=METRICS).warnings
    codes = [(f["code"], f.get("metric")) for f in found]
    assert codes.count(("target-uncovered", None)) == 1
    assert not any(metric for code, metric in codes if code == "target-uncovered")
    assert len(codes) == len(set(codes))


def test_a_ratio_whose_denominator_may_be_0_is_refused() -> None:
    rare = np.zeros(600)
    rare[[3, 500]] = 1.0
    found = evaluate(log(table(rare=rare)), {"new": "t"}, metrics={"q": "amount per rare"})
    result = found.metrics["q"]["new"]
    assert not result.estimates
    assert not found.metrics["q"].differences
    (finding,) = (f for f in result.findings if f.code == "metric-refused")
    check_findings([finding], "metric-refused")
    assert ("metric-refused", "q") in {(f["code"], f.get("metric")) for f in found.warnings}
    json.dumps(finite(found.to_dict()), allow_nan=False)
    assert "–" in str(found)


def test_a_denominator_that_never_varies_is_refused_with_its_reason() -> None:
    rows = table(shown=np.ones(600))
    found = evaluate(log(rows), {"new": "t"}, metrics={"q": "amount per shown"})
    (finding,) = (f for f in found.metrics["q"]["new"].findings if f.code == "metric-refused")
    check_findings([finding], "metric-refused")


# --- laws ------------------------------------------------------------------------------------


@FEW
@given(st.integers(0, 2**16), st.sampled_from([{}, {"cluster": "user"}, {"period": "day"}]))
@pytest.mark.slow
def test_laws_of_ratios_and_relative_differences(seed: int, roles: Mapping[str, Any]) -> None:
    found = evaluate(
        log(table(seed), **roles),
        {"new": "t"},
        backtest=False,
        metrics={
            "one": "amount per amount",
            "rpc": "amount per click",
            "cents": "100 * amount per click",
            "revenue": "amount",
            "scaled": "7 * amount",
        },
    ).metrics

    def limits(name: str) -> np.ndarray[Any, Any]:
        result = found[name]["new"]
        ends = result.intervals[result.recommended]
        return np.array([result.estimates[result.recommended].value, ends.lower, ends.upper])

    assert limits("one").tolist() == [1.0, 1.0, 1.0]
    assert limits("cents") == pytest.approx(100 * limits("rpc"), rel=1e-7)
    relative, scaled = (found[k].differences["new"].relative for k in ("revenue", "scaled"))
    assert relative is not None
    assert scaled is not None
    assert scaled.value == pytest.approx(relative.value, rel=1e-9)
    pair = (scaled.interval.lower, scaled.interval.upper)
    assert pair == pytest.approx((relative.interval.lower, relative.interval.upper), rel=1e-6)


@FEW
@given(st.integers(0, 2**16))
@pytest.mark.slow
def test_relative_and_absolute_differences_agree_on_the_sign(seed: int) -> None:
    rows = table(seed, rows=3000)  # no row decides a value
    clusters: Mapping[str, Any] = {"cluster": "user"}
    for baseline, roles in product(("v1", "other"), ({}, clusters)):
        found = evaluate(
            log(rows, **roles), TARGETS, baseline=baseline, backtest=False, metrics=METRICS
        )
        for own in found.metrics.values():
            for difference in own.differences.values():
                relative = difference.relative
                if relative is None:
                    continue
                assert np.sign(relative.value) == np.sign(difference.value)
                assert (0.0 in relative.interval) == (0.0 in difference.interval)


def test_few_rows_that_decide_a_ratio_widen_it() -> None:
    """Limits are those of both values, each by itself, where heavy rows were set apart."""
    rows = table(rows=400)
    weight = rows["t"].to_numpy() * 0.02
    heavy = np.flatnonzero(rows["click"].to_numpy() > 0)[:2]
    weight[heavy] = 0.9
    own = [rows[name].to_numpy().copy() for name in ("p_v1", "p_v2")]
    for column in own:
        column[heavy] = 0.004
    rows = rows.set_column(rows.schema.get_field_index("t"), "t", [weight])
    for name, column in zip(("p_v1", "p_v2"), own, strict=True):
        rows = rows.set_column(rows.schema.get_field_index(name), name, [column])
    found = evaluate(log(rows), {"new": "t"}, metrics={"rpc": "amount per click"})
    above = evaluate(log(rows, "amount"), {"new": "t"})["new"].intervals["calibrated"]
    below = found["new"].intervals["calibrated"]
    interval = found.metrics["rpc"]["new"].intervals["calibrated"]
    corners = [a / b for a in (above.lower, above.upper) for b in (below.lower, below.upper)]
    assert (interval.lower, interval.upper) == pytest.approx((min(corners), max(corners)))


# --- other engines and the command line ------------------------------------------------------


def test_engines_that_lack_metrics_say_so(tmp_path: Path) -> None:
    from poolwise import summarise
    from tests.support.postgres import DuckDBConnection

    with refused(UsageError):
        evaluate(log(), TARGETS, metrics=METRICS, engine=DuckDBConnection())
    saved = summarise(log(), TARGETS)
    with refused(UsageError):
        evaluate(log(), TARGETS, metrics=METRICS, engine=saved)
    del tmp_path


def test_threads_do_not_matter() -> None:
    one, two = (
        evaluate(log(), TARGETS, metrics=METRICS, engine=DuckDB(threads=n)) for n in (1, 2)
    )
    assert one.to_dicts() == two.to_dicts()


ROLES = [
    *("--logger", "logger", "--reward", "click"),
    *("--propensities", "p_{logger}", "--target", "new=t"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(table(), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_the_command_line_and_question_files_name_metrics(path: Path) -> None:
    options = ["--metric", "rpc=amount per click", "--metric", "latency=ms, lower, guard 5%"]
    result = CliRunner().invoke(app, ["evaluate", str(path), *ROLES, *options, "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)["metrics"]
    assert [(m["metric"], m["per"], m["better"], m["guard"]) for m in shown] == [
        ("reward", None, "higher", None),
        ("rpc", "click", "higher", None),
        ("latency", None, "lower", {"margin": 0.05, "relative": True}),
    ]
    question = path.with_suffix(".toml")
    question.write_text(
        'log = "rows.parquet"\nlogger = "logger"\nreward = "click"\n'
        'propensities = "p_{logger}"\ntargets = { new = "t" }\n'
        '[metrics]\nrpc = "amount per click"\n'
        'latency = { reward = "ms", better = "lower", guard = "5%" }\n'
    )
    for verb in ("evaluate", "compare"):
        more = ["--baseline", "v1"] if verb == "compare" else []
        result = CliRunner().invoke(app, [verb, str(question), *more, "--json"])
        assert result.exit_code == 0, result.output
        of_file = json.loads(result.stdout)["metrics"]
        strip = [{k: v for k, v in m.items() if k != "targets"} for m in of_file]
        assert strip == [{k: v for k, v in m.items() if k != "targets"} for m in shown]


def test_wrong_options_of_metrics_are_refused(path: Path) -> None:
    for wrong in (["amount"], ["a=amount", "a=ms"]):
        options = [word for text in wrong for word in ("--metric", text)]
        result = CliRunner().invoke(app, ["evaluate", str(path), *ROLES, *options])
        assert isinstance(result.exception, UsageError)


def test_tables_have_a_row_for_each_metric() -> None:
    text = str(evaluate(log(), {"new": "t"}, metrics=METRICS))
    assert "Metrics: 600 rows" in text
    for name in ("reward", "revenue", "latency ↓", "rpc"):
        assert f"\n {name} " in text


def test_a_metric_without_spread_stops_no_other() -> None:
    """Its interval is unbounded, and so is that of its ratio."""
    nothing = table(none=np.zeros(600))
    found = evaluate(
        log(nothing), {"new": "t"}, metrics={"none": "none", "q": "none per click"}
    )
    assert found.metrics["none"]["new"].estimates["calibrated"].value == 0
    ratio = found.metrics["q"]["new"]
    assert ratio.estimates["calibrated"].value == 0
    assert np.isinf(ratio.intervals["calibrated"].upper)
    assert "no-spread" in {f.code for f in ratio.findings}
