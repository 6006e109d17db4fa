from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import poolwise as pw
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import LogError, MissingColumnError, UsageError
from poolwise.evaluation import read
from poolwise.evaluation.differences import Difference
from poolwise.intervals.student import Interval
from poolwise.learning.data import Collector, LearningRows
from poolwise.learning.gains import allowance, contrast_means, find_gain
from poolwise.learning.policy import LearnedMixture, LinearPolicy
from tests.support.learning import segments, segments_log
from tests.support.messages import check_findings, refused
from tests.support.periods import daily, daily_log

if TYPE_CHECKING:
    from pathlib import Path

    from poolwise.evaluation.differences import Verdict
    from poolwise.evaluation.request import Request

pytestmark = pytest.mark.slow  # all of them together take seconds
FEW: dict[str, Any] = {"strengths": [0.01, 1], "smoothing": [0.8], "folds": 2}
TABLE = segments(3_000)


@pytest.fixture(scope="module")
def learned() -> pw.Learned:
    return pw.learn(segments_log(TABLE), **FEW)


def true_value(policy: pw.Policy, gain: float = 0.5) -> float:
    """Return the exact value over the contexts of another draw."""
    table = segments(20_000, seed=1)
    columns = {name: table[name].to_numpy() for name in ("segment", "x")}
    prob = policy.prob(pw.Batch(table["best"].to_numpy(), columns))
    return float(0.2 + gain * prob.mean())


def test_a_better_policy_is_learned_and_its_value_is_covered(learned: pw.Learned) -> None:
    truth = true_value(learned.policy)
    assert truth > 0.57  # of 0.7, where the better logger has 0.4
    assert learned.better
    assert abs(learned.estimate.value - truth) < 3 * learned.estimate.std_error
    assert learned.sentence.startswith("The learned policy is better than every logger")
    assert {gain.logger for gain in learned.gains} == {"old", "new"}
    assert all(gain.shown and gain.lower > 0 for gain in learned.gains)
    assert list(learned.evaluation.targets) == ["learned", "greedy new", "new", "old"]
    assert learned.comparison is not None
    assert learned.comparison.difference("learned", "old").verdict == "better"


def test_the_gain_is_the_difference_of_the_calibrated_estimates(learned: pw.Learned) -> None:
    values = {n: t.estimates["calibrated"].value for n, t in learned.evaluation.targets.items()}
    for gain in learned.gains:
        assert gain.value == pytest.approx(values["learned"] - values[gain.logger], abs=2e-3)


def test_folds_give_a_mixture_and_a_holdout_one_policy(learned: pw.Learned) -> None:
    assert isinstance(learned.policy, LearnedMixture)
    assert len(learned.policy.policies) == 2
    assert sum(learned.evaluation.rows.values()) == 3_000
    held = pw.learn(segments_log(TABLE), strengths=[0.1], smoothing=[0.8], holdout=0.3)
    assert isinstance(held.policy, LinearPolicy)
    assert sum(held.evaluation.rows.values()) == pytest.approx(900, abs=1)


def test_rows_are_evaluated_by_the_policy_that_has_not_seen_them() -> None:
    # Rewards that are a coin flip of the row: only a policy that saw the row can be right.
    rng = np.random.default_rng(3)
    table = segments(600).set_column(2, "reward", pa.array(rng.integers(0, 2, 600) * 1.0))
    noise = rng.normal(size=(600, 100))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(noise.ravel()), 100)
    log = segments_log(table.append_column("noise", lists), context=["noise"])
    result = pw.learn(log, strengths=[1e-3], smoothing=[0.8], folds=2)
    assert not result.better
    assert abs(result.estimate.value - 0.5) < 3 * result.estimate.std_error


def test_the_order_of_rows_does_not_matter(learned: pw.Learned) -> None:
    order = np.random.default_rng(0).permutation(3_000)
    again = pw.learn(segments_log(TABLE.take(order)), **FEW)
    rows = TABLE.select(["segment", "x"])
    first, second = (policy.decide(rows, seed=0) for policy in (learned.policy, again.policy))
    np.testing.assert_array_equal(first.probability, second.probability)
    assert again.estimate.value == pytest.approx(learned.estimate.value, abs=1e-12)


def test_the_learned_policy_can_be_evaluated_and_saved(
    learned: pw.Learned, tmp_path: Path
) -> None:
    learned.save(tmp_path / "policy.json")
    loaded = pw.load_policy(tmp_path / "policy.json")
    log = segments_log(segments(500, seed=5))
    values = [
        pw.evaluate(log, {"new policy": p}, "calibrated")["new policy"].estimates["calibrated"]
        for p in (learned.policy, loaded)
    ]
    assert values[0].value == values[1].value


def test_exploration_is_evaluated_as_deployed(learned: pw.Learned) -> None:
    explored = pw.learn(segments_log(TABLE), epsilon=0.5, **FEW)
    mean = 0.2 + 0.5 / 4
    truth = true_value(explored.policy)
    assert truth == pytest.approx((true_value(learned.policy) + mean) / 2, abs=1e-9)
    assert abs(explored.estimate.value - truth) < 3 * explored.estimate.std_error


def test_results_are_tables_json_and_a_page(learned: pw.Learned, tmp_path: Path) -> None:
    data = json.loads(learned.to_json())
    assert data["better"] is True
    assert [gain["logger"] for gain in data["gains"]] == ["new", "old"]
    assert len(data["choices"]) == 2
    assert len(data["candidates"][0]) == 2 * (2 + 1) + 2
    assert str(learned).startswith(learned.sentence)
    assert learned.to_arrow().num_rows == 2
    assert learned.sentence[:20] in learned._repr_html_()
    learned.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "Gain of the learned policy over each logger" in page
    assert "The learned policy is better than every logger" in page


def test_where_nothing_can_be_gained_the_first_sentence_says_so() -> None:
    result = pw.learn(segments_log(segments(1_000, gain=0.0)), **FEW)
    assert not result.better
    first = result.sentence
    assert first.startswith("The learned policy is not shown to be better than every logger")
    assert str(result).startswith(first)
    assert result.findings[0].code == "not-better"


def test_a_small_gain_says_how_many_rows_would_show_it() -> None:
    result = pw.learn(segments_log(segments(1_000, gain=0.06)), **FEW)
    weak = [gain for gain in result.gains if not gain.shown]
    assert weak
    ratio = max((gain.value - gain.lower) / gain.value for gain in weak)
    assert result.more_rows == pytest.approx(1_000 * (ratio**2 - 1), rel=0.05)


@pytest.mark.slow
def test_clusters_stay_in_one_fold_and_widen_the_errors() -> None:
    few = TABLE.slice(0, 1_000)
    twice = pa.concat_tables([few, few])
    user = pa.array(np.tile(np.arange(1_000), 2))
    table = twice.set_column(twice.schema.get_field_index("user"), "user", user)
    result = pw.learn(segments_log(table, cluster="user"), **FEW)
    once = pw.learn(segments_log(few), **FEW)
    assert result.estimate.std_error == pytest.approx(once.estimate.std_error, rel=0.25)


CHANCES = np.array([0.9, 0.5, 0.1])  # of a reward, by action
UNLIKE = {"v1": np.array([0.1, 0.3, 0.6]), "v2": np.array([0.6, 0.2, 0.2])}


def proportional(*, python: bool) -> pw.Log:
    """Return a log with every action and reward exactly as often as it is probable."""
    rng, parts = np.random.default_rng(0), []
    for logger, rows in {"v1": 1_500, "v2": 500}.items():
        for action, prob in enumerate(UNLIKE[logger]):
            count = round(rows * prob)
            reward = np.arange(count) < round(count * CHANCES[action])
            parts.append((np.full(count, logger), np.full(count, action), reward * 1.0))
    label, played, reward = map(np.concatenate, zip(*parts, strict=True))
    columns = {"policy": label, "action": played, "reward": reward}
    columns |= {f"p_{k}": prob[played] for k, prob in UNLIKE.items()}
    columns["x"] = rng.normal(size=len(label))
    tables = {k: pw.Table(dict(enumerate(prob.tolist()))) for k, prob in UNLIKE.items()}
    names: Any = tables if python else {k: f"p_{k}" for k in UNLIKE}
    return segments_log(pa.table(columns), context=["x"], propensities=names)


@pytest.mark.parametrize("python", [False, True], ids=["columns", "policies"])
def test_every_estimate_of_a_logger_is_its_value(python: bool) -> None:  # noqa: FBT001
    result = pw.learn(proportional(python=python), **FEW)
    for logger, prob in UNLIKE.items():
        estimates = result.evaluation[logger].estimates
        assert list(estimates) == list(result.evaluation[logger].intervals)
        assert {"calibrated", "naive", "balanced", "weighted"} <= estimates.keys()
        for name, estimate in estimates.items():
            error = abs(estimate.value - float(prob @ CHANCES))
            assert error < estimate.std_error, (logger, name)
    assert "doubly-robust-weighted" in result.evaluation["learned"].estimates
    found = [f for f in result.findings if f.code in {"loggers-unmodelled", "model-only"}]
    check_findings(found, "loggers-unmodelled")


def test_a_mean_reward_of_clusters_has_the_error_of_clusters() -> None:
    """Four copies of each row, in one cluster, say no more about a logger than one."""
    table = TABLE.slice(0, 1_000)
    user = pa.array(np.arange(1_000))
    table = table.set_column(table.schema.get_field_index("user"), "user", user)
    data = with_rows(segments_log(table))
    copies = with_rows(segments_log(pa.concat_tables([table] * 4), cluster="user"))
    estimate = pw.Estimate(0.5, 0.0, {})
    once, often = (contrast_means(estimate, rows, "new", 0.9) for rows in (data, copies))
    for one, other in zip(once, often, strict=True):
        own = table.filter(pa.compute.field("policy") == one.other)["reward"].to_numpy()
        assert one.std_error == pytest.approx(own.std(ddof=1) / np.sqrt(len(own)), rel=1e-12)
        assert other.std_error == pytest.approx(one.std_error, rel=1e-12)


def test_more_rows_than_allowed_are_sampled_and_all_are_evaluated() -> None:
    result = pw.learn(segments_log(TABLE), rows=1_000, **FEW)
    check_findings([f for f in result.findings if f.code == "rows-sampled"], "rows-sampled")
    assert sum(result.evaluation.rows.values()) == 3_000
    assert abs(result.estimate.value - true_value(result.policy)) < 0.05


def test_a_sample_with_a_holdout_evaluates_all_rows_that_were_not_learned_from() -> None:
    options = {"strengths": [0.1], "smoothing": [0.8]}
    result = pw.learn(segments_log(TABLE), rows=1_000, holdout=0.5, **options)  # type: ignore[arg-type]
    assert sum(result.evaluation.rows.values()) == pytest.approx(2_500, abs=40)


def test_a_logger_in_python_is_the_anchor_itself() -> None:
    rows = {k: {a: 0.4 if a == k else 0.2 for a in range(4)} for k in range(4)}
    new = pw.Table(rows, context="best")
    propensities = {"old": pw.Uniform([0, 1, 2, 3]), "new": new}
    log = segments_log(TABLE, context=["segment", "x", "best"], propensities=propensities)
    result = pw.learn(log, features=["segment", "x"], strengths=[1e6], smoothing=[0.8], folds=2)
    greedy = pw.EpsilonGreedy("best", actions=[0, 1, 2, 3], epsilon=0.0)
    assert {choice.anchor for choice in result.choices} == {"new"}
    columns = {name: TABLE[name].to_numpy() for name in ("segment", "x", "best")}
    batch = pw.Batch(TABLE["action"].to_numpy(), columns)
    assert result.policy.prob(batch).tolist() == greedy.prob(batch).tolist()


@pytest.mark.parametrize(
    ("anchor", "name"),
    [("old", "old"), (None, "uniform"), (pw.Uniform([0, 1, 2, 3]), "anchor")],
)
def test_the_anchor_can_be_named(anchor: Any, name: str) -> None:  # noqa: ANN401 - any policy
    result = pw.learn(segments_log(TABLE), anchor=anchor, **FEW)
    assert {choice.anchor for choice in result.choices} == {name}
    assert f"greedy {name}" in result.evaluation.targets


def test_one_logger_with_its_propensity_alone_is_enough() -> None:
    table = TABLE.filter(pa.compute.equal(TABLE["policy"], "old"))
    log = segments_log(table, logger=None, propensities=None, propensity="p_old")
    result = pw.learn(log, **FEW)
    assert result.better
    assert [gain.logger for gain in result.gains] == ["log"]


def with_own(**roles: Any) -> pw.Log:  # noqa: ANN401 - roles
    """Return the log with own propensities and the mixture, instead of cross-propensities."""
    old, new = (TABLE[name].to_numpy() for name in ("p_old", "p_new"))
    wrote = TABLE["policy"].to_numpy() == "new"
    table = TABLE.append_column("p", pa.array(np.where(wrote, new, old)))
    table = table.append_column("mixed", pa.array(new * wrote.mean() + old * (~wrote).mean()))
    return segments_log(table, propensities=None, propensity="p", **roles)


def test_own_propensities_of_several_loggers_are_enough_to_learn() -> None:
    result = pw.learn(with_own(), **FEW)
    assert result.comparison is None
    assert result.better
    check_findings(
        [f for f in result.findings if f.code == "own-propensities"], "own-propensities"
    )


@pytest.mark.parametrize("roles", [{"mixture": "mixed"}, {"estimate_mixture": True}])
def test_a_mixture_is_the_denominator(roles: dict[str, Any]) -> None:
    result = pw.learn(with_own(**roles), **FEW)
    own = pw.learn(with_own(), **FEW)
    error = result.estimate.std_error
    assert result.better
    assert abs(result.estimate.value - true_value(result.policy)) < 3 * error
    assert error < 0.8 * own.evaluation["learned"].estimates["naive"].std_error
    check_findings(
        [f for f in result.findings if f.code == "unpaired-loggers"], "unpaired-loggers"
    )


def test_a_logged_mixture_gives_the_objective_of_cross_propensities() -> None:
    full, mixed = (with_rows(log) for log in (segments_log(TABLE), with_own(mixture="mixed")))
    rows, predicted = np.arange(len(TABLE)), np.zeros((len(TABLE), 4))
    np.testing.assert_allclose(
        mixed.sample(rows, predicted).propensity,
        full.sample(rows, predicted).propensity,
        rtol=1e-12,
    )


def with_rows(log: pw.Log) -> LearningRows:
    clustered = log.cluster is not None
    collector = Collector(("segment", "x"), ("new", "old"), {}, 1.0, 0, clustered)
    with DuckDB().learner_rows(log) as source:
        for rows in source.read():
            collector.add(rows)
    return collector.rows(None)


@pytest.mark.parametrize("value", [None, 0.0, 1.5])
def test_a_mixture_that_is_no_probability_is_a_fault(value: float | None) -> None:
    log = with_own(mixture="mixed")
    table: Any = log.source
    bad = pa.array([value, *table["mixed"].to_pylist()[1:]], pa.float64())
    log = replace(log, source=table.drop(["mixed"]).append_column("mixed", bad))
    with refused(LogError):
        pw.learn(log, **FEW)
    dropped = pw.learn(replace(log, on_fault="drop"), **FEW)
    assert sum(dropped.evaluation.rows.values()) == len(TABLE) - 1


def test_log_probabilities_give_the_same_policy(learned: pw.Learned) -> None:
    table = TABLE
    for name in ("p_old", "p_new"):
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, pa.compute.ln(table[name]))
    result = pw.learn(segments_log(table, log_probabilities=True), **FEW)
    assert result.estimate.value == pytest.approx(learned.estimate.value, abs=1e-6)


def test_a_subset_of_the_actions_can_be_learned() -> None:
    result = pw.learn(segments_log(TABLE), actions=[0, 1], **FEW)
    assert tuple(result.policy.actions) == (0, 1)


def test_actions_with_few_rows_are_named() -> None:
    """Of the rows of action 2, all but 19 are left out; 20 would be enough."""
    action = TABLE["action"].to_numpy()
    kept = {n: np.flatnonzero((action != 2) | (np.cumsum(action == 2) <= n)) for n in (19, 20)}
    few, enough = (
        pw.learn(segments_log(TABLE.take(rows)), **FEW).findings for rows in kept.values()
    )
    check_findings([f for f in few if f.code == "rare-actions"], "rare-actions")
    assert "rare-actions" not in {f.code for f in enough}


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_constant_rewards_leave_the_anchor(reward: float) -> None:
    table = TABLE.set_column(2, "reward", pa.array(np.full(3_000, reward)))
    result = pw.learn(segments_log(table), **FEW)
    assert not result.better
    nothing = [f for f in result.findings if f.code == "nothing-learned"]
    check_findings(nothing, "nothing-learned")


def test_few_rows_leave_the_anchor() -> None:
    result = pw.learn(segments_log(TABLE.slice(0, 150)), **FEW)
    assert "nothing-learned" in {finding.code for finding in result.findings}


def test_negative_and_continuous_rewards_are_fine() -> None:
    shifted = pa.compute.subtract(pa.compute.multiply(TABLE["reward"], 10.0), 7.0)
    result = pw.learn(segments_log(TABLE.set_column(2, "reward", shifted)), **FEW)
    assert result.better


def test_bad_rows_are_refused_or_dropped() -> None:
    reward = TABLE["reward"].to_numpy().copy()
    reward[:5] = np.nan
    table = TABLE.set_column(2, "reward", pa.array(reward))
    with pytest.raises(LogError):
        pw.learn(segments_log(table), **FEW)
    result = pw.learn(segments_log(table, on_fault="drop"), **FEW)
    assert sum(result.evaluation.rows.values()) == 2_995
    assert "dropped-rows" in {finding.code for finding in result.findings}


def test_a_logger_without_rows_is_refused() -> None:
    table = TABLE.filter(pa.compute.equal(TABLE["policy"], "old"))
    with refused(LogError):
        pw.learn(segments_log(table), **FEW)


def gap(lower: float, *, value: float = 0.5, verdict: Verdict = "better") -> Difference:
    """A difference with a standard error of 0.1."""
    interval = Interval(lower, 2 * value - lower, 0.9)
    return Difference("new", "v", value, 0.1, interval, 0.01, 0.01, verdict)


def test_a_bound_is_at_most_the_normal_one() -> None:
    skewed = find_gain(gap(0.4), "v", 0.95, alarmed=False)
    assert skewed.lower == pytest.approx(0.5 - 1.6448536 * 0.1)
    assert skewed.shown
    assert find_gain(gap(0.2), "v", 0.95, alarmed=False).lower == 0.2


def test_an_alarm_a_verdict_or_a_normal_bound_forbids_a_conclusion() -> None:
    assert find_gain(gap(0.01, value=0.17), "v", 0.95, alarmed=False).shown
    assert not find_gain(gap(0.01, value=0.16), "v", 0.95, alarmed=False).shown
    assert not find_gain(gap(0.4), "v", 0.95, alarmed=True).shown
    assert not find_gain(gap(0.4, verdict="unreliable"), "v", 0.95, alarmed=False).shown
    unknown = find_gain(None, "v", 0.95, alarmed=False)
    assert (unknown.std_error, unknown.lower, unknown.shown) == (np.inf, -np.inf, False)


def test_a_mean_without_an_error_gives_no_gain() -> None:
    """One cluster shows no spread: neither a difference nor NaN follows from it."""
    one = with_rows(segments_log(TABLE.slice(0, 1), cluster="user"))
    assert contrast_means(pw.Estimate(0.5, 0.01, {}), one, "new", 0.9) == []


def test_gains_over_many_loggers_take_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for the values, one for all differences; a gain itself reads nothing."""
    opened: list[object] = []
    real = read.open_rows

    def counted(asked: Request, engine: object) -> object:
        opened.append(asked)
        return real(asked, engine)

    monkeypatch.setattr(read, "open_rows", counted)
    result = pw.learn(segments_log(TABLE), **FEW)
    assert len(result.gains) == 2
    planned = 0 if result.better else 2  # `more_rows` evaluates and plans
    assert len(opened) == 2 + planned


def test_five_folds_count_errors_as_larger() -> None:
    assert allowance(1) == 1.0
    assert allowance(5) == pytest.approx(np.sqrt(1.25))


WRONG: dict[str, dict[str, Any]] = {
    "no-features": {"log": {"context": []}},
    "no-action": {"log": {"action": None}},
    "reward-as-feature": {"features": ["x", "reward"]},
    "both-splits": {"folds": 2, "holdout": 0.5},
    "one-fold": {"folds": 1},
    "large-holdout": {"holdout": 1.5},
    "epsilon": {"epsilon": 2.0},
    "no-strength": {"strengths": []},
    "negative-strength": {"strengths": [-1.0]},
    "smoothing": {"smoothing": [2.0]},
    "level": {"level": 0.4},
    "rows": {"rows": 0},
    "unknown-action": {"actions": [0, 7]},
    "unknown-anchor": {"anchor": "newer"},
    "anchor-without-actions": {"anchor": pw.Column("p_old")},
    "missing-values": {"features": ["gap"]},
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_requests_are_refused(name: str) -> None:
    options = dict(WRONG[name])
    table = TABLE.append_column("gap", pa.nulls(3_000, pa.float64()))
    log = segments_log(table, **options.pop("log", {}))
    with refused(UsageError):
        pw.learn(log, **options)


def test_a_missing_feature_column_is_named() -> None:
    with refused(MissingColumnError):
        pw.learn(segments_log(TABLE), features=["x", "sgement"])


def test_files_give_the_same_policy_as_a_frame(learned: pw.Learned, tmp_path: Path) -> None:
    pq.write_table(TABLE.slice(1_000), tmp_path / "b.parquet")
    pq.write_table(TABLE.slice(0, 1_000), tmp_path / "a.parquet")
    files = pw.learn(segments_log(str(tmp_path / "*.parquet")), **FEW)
    assert files.estimate.value == pytest.approx(learned.estimate.value, abs=1e-12)


def test_the_rows_of_a_database_are_copied(learned: pw.Learned) -> None:
    with duckdb.connect() as connection:
        connection.register("clicks", TABLE)
        log = replace(segments_log(TABLE), source=None, table="clicks", connection=connection)
        result = pw.learn(log, **FEW)
    assert result.estimate.value == learned.estimate.value


def test_moments_without_rows_are_refused() -> None:
    log = segments_log(TABLE)
    summary = pw.summarise(replace(log, action=None, context=()), {"t": "p_new"})
    with refused(UsageError):
        pw.learn(log, engine=summary, **FEW)


def test_a_log_with_periods_is_refused() -> None:
    with refused(UsageError):
        pw.learn(daily_log(daily(60), action="logger"))
