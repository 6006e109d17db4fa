"""Averages over densities: closed forms, draws that batches do not change, one message each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.tree import DecisionTreeRegressor

import poolwise as pw
from poolwise.errors import PolicyError, RefusedError, UsageError
from poolwise.rows.averages import OverDensities, levels
from poolwise.rows.features import fit_features
from poolwise.rows.learn import LearnerRows
from poolwise.rows.mixture import fit_mixture
from tests.support.messages import refused

if TYPE_CHECKING:
    from collections.abc import Callable

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
    monkeypatch.setattr("poolwise.rows.score.SCORING_ROWS", 300)
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
