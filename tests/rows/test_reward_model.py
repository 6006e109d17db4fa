"""Reward models: fitted without the row they predict, applied batch by batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import poolwise as pw
from poolwise.engines.duckdb import DuckDB
from poolwise.errors import MissingExtraError, ModelError, PolicyError, RefusedError, UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.log.adapters import Table
from poolwise.log.log import Log
from poolwise.log.policy import Uniform
from poolwise.rows.folds import FOLD, LABEL, NUMBER, Folds
from poolwise.rows.learners import LearnerRows, fit_features
from poolwise.rows.mixture import fit_mixture
from poolwise.rows.reward_model import (
    PREDICTED_REWARD,
    OverDensities,
    RewardModel,
    fit_one,
    levels,
    model_extra,
)
from tests.support.messages import check_findings, refused
from tests.support.toys import toy

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolwise.engines.exact import FiniteProblem
    from poolwise.evaluation.results import TargetResult


def target_of(problem: FiniteProblem) -> Table:
    rows = {
        x: {y: float(p) for y, p in enumerate(probs)} for x, probs in enumerate(problem.target)
    }
    return Table(rows, context="context")


def family(rng: np.random.Generator, rows: int) -> FiniteProblem:
    """A random problem of the noise-free family (family E of `benchmarks.families`)."""
    from poolwise.engines.exact import FiniteProblem

    def softmax(scores: Any) -> Any:  # noqa: ANN401 - an array
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    taste = rng.normal(size=(20, 8))
    context = rng.dirichlet(np.full(20, 2.0))
    loggers = {}
    for k in range(3):
        far = rng.uniform(0, 2.5)
        loggers[f"v{k}"] = softmax((2 - far) * taste + far * rng.normal(size=taste.shape))
    score = -1 + 0.8 * taste + 0.7 * rng.normal(size=taste.shape)
    score += 0.5 * rng.normal(size=(20, 1))
    share = rng.dirichlet(np.full(3, 1.5))
    counts = {f"v{k}": max(20, int(rows * share[k])) for k in range(3)}
    reward = 10 / (1 + np.exp(-score))
    return FiniteProblem(context, reward, softmax(2 * taste), loggers, counts)


def rows_of(log: Log, model: RewardModel, target: Table) -> pa.Table:
    """The rows as the query sees them, with what the model filled in."""
    with DuckDB().open(log, {"t": target}, model_extra(model, {"t": target})) as rows:
        table: pa.Table = rows.connection.sql("FROM scored").to_arrow_table()
        return table


def result(log: Log, target: Any, model: Any, *names: str) -> TargetResult:  # noqa: ANN401
    chosen = list(names) or None
    return evaluate(log, {"t": target}, chosen, model=model, which_logs=False)["t"]


def test_a_row_is_never_predicted_by_a_model_that_saw_it() -> None:
    # every row has a context and a reward of its own: a model of the nearest neighbour
    # that has seen the row predicts it without error
    size = 50
    table = pa.table(
        {
            "x": np.arange(size, dtype=float),
            "item": ["a"] * size,
            "reward": np.arange(size) * 1.0,
            "p": np.ones(size),
        }
    )
    log = Log(table, reward="reward", propensity="p", action="item", context=["x"])
    model = RewardModel(KNeighborsRegressor(n_neighbors=1))
    found = rows_of(log, model, Table({"a": 1.0}))
    gap = np.abs(np.asarray(found["reward"]) - np.asarray(found[PREDICTED_REWARD]))
    assert gap.min() == 1.0  # the neighbour next door, which is in another fold
    assert len(found) == size


def test_rows_of_a_cluster_are_in_one_fold() -> None:
    size = 60
    table = pa.table(
        {
            "user": np.repeat(np.arange(size // 3), 3),
            "x": np.repeat(np.arange(size // 3), 3) * 1.0,
            "item": ["a"] * size,
            "reward": np.repeat(np.arange(size // 3), 3) * 1.0,
            "p": np.ones(size),
        }
    )
    roles = {"reward": "reward", "propensity": "p", "action": "item", "context": ["x"]}
    model = RewardModel(KNeighborsRegressor(n_neighbors=1))
    for cluster, least in (("user", 1.0), (None, 0.0)):
        found = rows_of(Log(table, cluster=cluster, **roles), model, Table({"a": 1.0}))  # type: ignore[arg-type]
        gap = np.abs(np.asarray(found["reward"]) - np.asarray(found[PREDICTED_REWARD]))
        assert gap.min() == least  # without clusters, a user's other rows reveal the reward


@pytest.mark.parametrize("stride", [1, 3, 5])  # 5: as many as folds
def test_every_fold_has_its_part_of_every_logger_and_of_the_sample(stride: int) -> None:
    labels = np.array(["a"] * 100 + ["b"] * 31)
    batches = [pa.record_batch({LABEL: labels[k : k + 7].tolist()}) for k in range(0, 131, 7)]
    rows = pa.Table.from_batches(Folds(5, stride).append(batches)).to_pandas()
    for _, group in rows.groupby(LABEL):
        sizes = np.bincount(group[FOLD], minlength=5)
        assert sizes.max() - sizes.min() <= stride
        sampled = group[group[NUMBER] % stride == 0]
        assert np.ptp(np.bincount(sampled[FOLD], minlength=5)) <= 1


def test_a_tabular_model_fills_in_the_mean_of_the_other_folds() -> None:
    problem = replace(toy("T2"), counts={"1": 400, "2": 600})
    log = problem.draw(np.random.default_rng(2))
    found = rows_of(log, RewardModel(DecisionTreeRegressor()), target_of(problem)).to_pandas()
    source = pa.table(log.source).to_pandas()  # in the same order
    found = found.assign(context=source["context"], action=source["action"])
    assert (found["reward"] == source["reward"]).all()
    fold = found.groupby("logger").cumcount() % 5
    for row in (0, 17, 399, 400, 999):
        alike = (found.context == found.context[row]) & (found.action == found.action[row])
        others = found.reward[alike & (fold != fold[row])]
        assert found[PREDICTED_REWARD][row] == pytest.approx(others.mean(), rel=1e-12)
    values = found["poolwise_predicted_value_0"]
    assert abs(values.mean() - problem.value) < 4 * 0.02  # 0.02: of 1,000 rows


def test_estimates_do_not_depend_on_batches_or_on_where_rows_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = toy("T2")
    log, target = problem.draw(np.random.default_rng(2)), target_of(toy("T2"))
    model = RewardModel(DecisionTreeRegressor(random_state=0))
    whole = result(log, target, model, "doubly-robust").estimates["doubly-robust"]
    rows = log.source
    monkeypatch.setattr("poolwise.rows.append.SCORING_ROWS", 2048)
    monkeypatch.setattr("poolwise.rows.folds.BATCH_ROWS", 2048)
    monkeypatch.setattr("poolwise.rows.reward_model.CELLS", 64)
    parts = result(replace(log, source=rows), target, model, "doubly-robust")
    assert parts.estimates["doubly-robust"].value == pytest.approx(whole.value, rel=1e-12)


def test_a_query_is_read_once_and_learned_from_twice() -> None:
    source = (
        "SELECT 'a' AS item, (range % 7)::DOUBLE AS x, random() AS reward, 1.0 AS p "
        "FROM range(500)"
    )
    log = Log(source, reward="reward", propensity="p", action="item", context=["x"])
    found = result(log, Table({"a": 1.0}), DecisionTreeRegressor(), "doubly-robust-naive")
    assert 0.4 < found.estimates["doubly-robust-naive"].value < 0.6


def test_cross_fitted_doubly_robust_beats_balanced_where_rewards_have_no_noise() -> None:
    errors = {"balanced": [], "doubly-robust": [], "calibrated": []}  # type: dict[str, list[float]]
    model = RewardModel(DecisionTreeRegressor(min_samples_leaf=2, random_state=0))
    for seed in range(6):
        rng = np.random.default_rng(seed)
        problem = family(rng, 1000)
        found = result(problem.draw(rng), target_of(problem), model, *errors)
        for name, estimate in found.estimates.items():
            assert abs(estimate.value - problem.value) < 4.5 * estimate.std_error, name
            errors[name].append(estimate.variance)
    ratios = np.divide(errors["doubly-robust"], errors["balanced"])
    # mean squared error 0.130 of balanced (median of ten problems)
    assert np.median(ratios) < 0.35
    assert np.median(np.divide(errors["calibrated"], errors["balanced"])) < 0.35


def test_a_classifier_predicts_the_probability_of_a_reward() -> None:
    problem = replace(toy("T2"), counts={"1": 400, "2": 600})
    log = problem.draw(np.random.default_rng(4))
    model = RandomForestClassifier(20, min_samples_leaf=5, random_state=0)
    found = result(log, target_of(problem), model).estimates["doubly-robust"]
    assert abs(found.value - 0.576) < 4 * found.std_error
    tens = replace(log, reward="10 * reward")
    with refused(UsageError):
        result(tens, target_of(problem), DecisionTreeClassifier())


def test_rewards_that_are_all_equal_need_no_model() -> None:
    log = replace(toy("T2").draw(np.random.default_rng(4)), reward="reward * 0 + 1")
    for model in (DecisionTreeClassifier(), LinearRegression()):
        found = result(log, target_of(toy("T2")), model, "doubly-robust", "direct-method")
        assert [e.value for e in found.estimates.values()] == pytest.approx([1.0, 1.0])


def test_text_is_encoded_and_interactions_let_a_line_fit_every_action() -> None:
    rng = np.random.default_rng(0)
    size = 400
    x, item = rng.random(size), rng.integers(2, size=size)
    kind = np.where(rng.random(size) < 0.5, "new", "old")
    reward = np.where(item == 0, x, 1 - x) + (kind == "new")
    table = pa.table(
        {"x": x, "kind": kind, "item": item, "reward": reward, "p": np.full(size, 0.5)}
    )
    log = Log(table, reward="reward", propensity="p", action="item")  # context: all the rest
    target = Table({0: 0.2, 1: 0.8})
    errors = []
    for interactions in (False, True):
        model = RewardModel(LinearRegression(), interactions=interactions)
        found = rows_of(log, model, target)
        errors.append(np.ptp(np.asarray(found["reward"]) - np.asarray(found[PREDICTED_REWARD])))
    assert errors[0] > 0.1
    assert errors[1] < 1e-9


def test_a_large_log_is_sampled_and_the_result_says_so() -> None:
    problem = replace(toy("T2"), counts={"1": 800, "2": 1200})
    log = problem.draw(np.random.default_rng(4))
    model = RewardModel(DecisionTreeRegressor(), rows=500)
    found = evaluate(log, {"t": target_of(problem)}, ["doubly-robust"], model=model)
    (note,) = [f for f in found.findings if f.code == "model-sampled"]
    check_findings([note], "model-sampled")
    estimate = found["t"].estimates["doubly-robust"]
    assert abs(estimate.value - 0.576) < 4 * estimate.std_error


def test_a_target_that_is_only_a_column_is_refused_with_the_reason() -> None:
    log = toy("T2").draw(np.random.default_rng(4))
    with refused(RefusedError):
        result(log, "target_prob", DecisionTreeRegressor(), "doubly-robust")
    found = evaluate(log, {"t": "target_prob"}, model=DecisionTreeRegressor())
    assert [f.code for f in found.findings] == ["copies-unknown", "model-refused"]
    assert "doubly-robust" not in found["t"].estimates


def test_labels_of_the_target_must_be_those_of_the_log() -> None:
    log = toy("T2").draw(np.random.default_rng(4))
    with refused(UsageError):
        result(log, Uniform(["a", "b"]), DecisionTreeRegressor())


def test_faults_of_a_model_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    log, target = toy("T2").draw(np.random.default_rng(4)), target_of(toy("T2"))
    with refused(UsageError):
        result(log, target, "linear")
    with refused(UsageError):
        RewardModel(LinearRegression(), folds=1)
    with refused(ModelError):
        result(log, target, KNeighborsRegressor(n_neighbors=-1))
    with refused(UsageError):
        result(replace(log, action=None), target, LinearRegression())
    monkeypatch.setitem(__import__("sys").modules, "sklearn.base", None)
    with refused(MissingExtraError):
        fit_one(LinearRegression(), np.ones((2, 1)), np.array([0.0, 1.0]))


# Densities: closed forms, draws that batches do not change, one message each.

ROWS = 2_000
SQUARES = make_pipeline(PolynomialFeatures(2), LinearRegression())


def means(policy: pw.Policy, predict: Callable[[Any], Any], seed: int = 0) -> Any:  # noqa: ANN401
    """Mean prediction of each row, for rows whose only context is `best` = 2."""
    batch = pw.Batch(np.zeros(ROWS), {"best": np.full(ROWS, 2.0)})
    average = OverDensities({"v": policy}, seed=seed)
    return average(predict, batch, np.arange(ROWS))["v"]


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        (pw.Gaussian(1.5, 0.25), 1.5, 1.5**2 + 0.25**2),
        (pw.Gaussian("best", lambda b: b["best"] / 4), 2.0, 4.25),
        (pw.LogNormal(0.2, 0.3), math.exp(0.2 + 0.3**2 / 2), math.exp(0.4 + 2 * 0.3**2)),
        (pw.Range(1.0, 4.0), 2.5, 7.0),
        (pw.Density(stats.gamma(2.0)), 2.0, 6.0),
        (pw.Density(lambda b: 2 * b.action, support=(0.0, 1.0)), 2 / 3, 1 / 2),
        (pw.Mixture([pw.Gaussian(1.0, 1.0), pw.Range(0, 6)], [0.75, 0.25]), 1.5, 4.5),
    ],
    ids=["gaussian", "by-row", "lognormal", "range", "scipy", "support", "mixture"],
)
def test_draws_have_the_moments_of_the_density(
    policy: pw.Policy, first: float, second: float
) -> None:
    assert means(policy, lambda a: a).mean() == pytest.approx(first, rel=2e-4)
    assert means(policy, np.square).mean() == pytest.approx(second, rel=5e-4)
    share = means(policy, lambda a: (a < first) * 1.0).mean()  # a tree: it only has steps
    below = means(policy, lambda a: (a < first) * 1.0, seed=1).mean()
    assert share == pytest.approx(below, abs=2e-3)


def test_a_symmetric_density_has_its_exact_mean_in_every_row() -> None:
    for policy in (pw.Gaussian(1.5, 0.25), pw.Range(1.0, 2.0)):
        assert means(policy, lambda a: 2 * a) == pytest.approx(3.0, abs=1e-12)


def test_levels_are_one_in_each_part_and_differ_by_seed_and_row() -> None:
    (*parts,) = levels(np.arange(500), 8)
    for k, level in enumerate(parts):
        assert ((level >= k / 8) & (level <= (k + 1) / 8)).all()
    assert np.unique(parts[0]).size == 500
    assert not np.isclose(next(levels(np.arange(5), 8, seed=1)), parts[0][:5]).any()


def log_of(seed: int, rows: int = ROWS, noise: float = 0.5, **roles: Any) -> pw.Log:  # noqa: ANN401
    """A reward of 1 + 2a - a²/2 for an action around 1 or around a context column."""
    rng = np.random.default_rng(seed)
    x, label = rng.normal(size=rows), np.resize(["a", "b"], rows)
    action = np.where(label == "a", rng.normal(1, 1, rows), rng.normal(1.5 + x / 4, 0.8))
    reward = 1 + 2 * action - action**2 / 2 + noise * rng.normal(size=rows)
    table = pa.table({"policy": label, "x": x, "bid": action, "reward": reward})
    own = {"a": pw.Gaussian(1.0, 1.0), "b": pw.Gaussian(lambda b: 1.5 + b["x"] / 4, 0.8)}
    named: dict[str, Any] = {"logger": "policy", "reward": "reward", "action": "bid"}
    named |= {"propensities": own, "context": ["x"], "densities": True}
    return pw.Log(table, **named | roles)


GAUSSIAN = pw.Gaussian(2.0, 0.5)
TRUTH = 1 + 2 * 2.0 - (2.0**2 + 0.5**2) / 2


def estimates(log: pw.Log, target: Any, model: Any) -> Any:  # noqa: ANN401 - any of them
    names = ["balanced", "doubly-robust", "direct-method"]
    return pw.evaluate(log, {"new": target}, names, model=model)["new"].estimates


def test_a_model_without_error_gives_the_closed_form() -> None:
    exact = estimates(log_of(1, noise=0.0), GAUSSIAN, SQUARES)
    for name in ("doubly-robust", "direct-method"):
        assert exact[name].value == pytest.approx(TRUTH, rel=1e-4)
    assert abs(exact["balanced"].value - TRUTH) > 1e-3  # weights alone are not exact


def test_estimates_depend_on_the_seed_and_not_on_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = pw.RewardModel(DecisionTreeRegressor(random_state=0))
    log, name = log_of(2), "doubly-robust"
    whole = estimates(log, GAUSSIAN, model)[name]
    other = estimates(log, GAUSSIAN, pw.RewardModel(model.model, seed=1))[name]
    monkeypatch.setattr("poolwise.rows.append.SCORING_ROWS", 300)
    monkeypatch.setattr("poolwise.rows.reward_model.CELLS", 64)
    parts = estimates(log, GAUSSIAN, model)[name]
    assert parts.value == pytest.approx(whole.value, rel=1e-12)
    assert 0 < abs(other.value - whole.value) < 0.1 * whole.std_error


@pytest.mark.slow  # 24 evaluations
@pytest.mark.parametrize("model", [LinearRegression(), SQUARES], ids=["wrong", "right"])
def test_doubly_robust_is_unbiased_and_its_error_is_that_of_repeated_logs(
    model: Any,  # noqa: ANN401 - a regressor
) -> None:
    repeats = [estimates(log_of(seed), GAUSSIAN, model) for seed in range(12)]
    scores = [
        (e["doubly-robust"].value - TRUTH) / e["doubly-robust"].std_error for e in repeats
    ]
    assert abs(np.mean(scores)) < 4 / math.sqrt(12)
    assert 1.6 < np.sum(np.square(scores)) < 39.1  # chi-squared of 12: 0.01% and 99.99%
    ratio = [e["doubly-robust"].variance / e["balanced"].variance for e in repeats]
    assert np.median(ratio) < 0.6


def test_an_action_with_a_density_is_one_column_of_every_model() -> None:
    seen, other = (pw.Batch(np.array(a), {"x": np.ones(2)}) for a in ([0.5, 9.0], [0.7, -3.0]))
    features = fit_features(seen, ["x"], numeric=True, interactions=True)
    assert features.matrix(other).tolist() == [[1.0, 0.7, 0.7], [1.0, -3.0, -3.0]]
    with refused(UsageError):
        features.matrix(pw.Batch(np.array(["a", "b"]), seen.columns))
    rows = LearnerRows(
        seen,
        ("x",),
        label=np.array(["a", "b"]),
        fold=np.arange(2),
        reward=np.ones(2),
        propensity=np.zeros(2),
        propensities={},
        number=np.zeros(2, dtype=np.int64),
        densities=True,
    )
    assert fit_mixture(None, rows, {"a": 1, "b": 1}).features.numeric


def test_targets_whose_density_elsewhere_is_unknown_are_refused() -> None:
    log = log_of(4, rows=200)
    for target in ("0.3", pw.Density(lambda b: np.exp(-(b.action**2)))):
        with refused(RefusedError):
            pw.evaluate(log, {"new": target}, "doubly-robust", model=SQUARES)
    (finding,) = [
        f for f in pw.evaluate(log, {"new": "0.3"}, model=SQUARES).findings if "model" in f.code
    ]
    assert finding.code == "model-refused"


def test_a_density_without_integral_1_and_mistaken_arguments_are_refused() -> None:
    log, half = log_of(4, rows=200), pw.Density(lambda b: np.abs(b.action), support=(0.0, 1.0))
    with refused(PolicyError):
        pw.evaluate(log, {"new": half}, "doubly-robust", model=SQUARES)
    with refused(PolicyError):
        pw.Density(lambda b: b.action, support=(1.0, 0.0))
    with refused(UsageError):
        pw.RewardModel(SQUARES, draws=0)
