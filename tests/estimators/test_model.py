from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolwise.errors import RefusedError, UsageError
from poolwise.estimators.calibrated import Calibrated, SelfNormalised
from poolwise.estimators.ips import Balanced, Naive, Weighted
from poolwise.estimators.model import (
    OWN_SCORE,
    DirectMethod,
    DoublyRobust,
)
from poolwise.estimators.shrink import Shrink
from poolwise.evaluation.evaluate import evaluate
from poolwise.moments.coverage import Coverage
from poolwise.moments.terms import Needs, ratio
from poolwise.rows.reward_model import GivenModel
from tests.support.messages import refused
from tests.support.toys import GOLDEN, TOYS, toy

if TYPE_CHECKING:
    from poolwise.engines.exact import FiniteProblem
    from poolwise.log.log import Log
    from poolwise.moments.estimate import Estimator
    from poolwise.types import FloatArray

GIVEN = GivenModel("predicted_reward", "predicted_value")
WITH_DR = Calibrated(columns=("loggers", "target", "dr"))
LISTED: dict[str, tuple[str, Estimator]] = {
    "DM(q true)": ("true", DirectMethod()),
    "naive DR(q true)": ("true", DoublyRobust("naive")),
    "balanced DR(q true)": ("true", DoublyRobust()),
    "DM(q wrong)": ("wrong", DirectMethod()),
    "balanced DR(q wrong)": ("wrong", DoublyRobust()),
    "balanced DR(q wrong) + CV loggers,target": ("wrong", WITH_DR),
    "clipped balanced M=1.5": ("wrong", Balanced(Shrink("clip", 1.5))),
    "SWITCH tau=1.5 (q wrong)": ("wrong", DoublyRobust(shrink=Shrink("switch", 1.5))),
    "DRos lam=2 (q wrong)": ("wrong", DoublyRobust(shrink=Shrink("optimistic", 2))),
}


def modelled(name: str, model: str) -> FiniteProblem:
    """A toy with the true rewards as its model, or with their mean over the actions."""
    problem = toy(name)
    wrong = np.broadcast_to(problem.reward.mean(axis=1, keepdims=True), problem.reward.shape)
    return replace(problem, predicted_reward=problem.reward if model == "true" else wrong)


def columns(problem: FiniteProblem, seed: int) -> tuple[Log, dict[str, FloatArray]]:
    log = problem.draw(np.random.default_rng(seed))
    source: Any = log.source  # an Arrow table
    return log, {n: np.asarray(source[n]) for n in source.column_names}


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("listed", LISTED)
def test_means_and_variances_are_those_of_the_reference_toys(name: str, listed: str) -> None:
    model, estimator = LISTED[listed]
    found = modelled(name, model).exact(estimator)
    expected = GOLDEN[name]["estimators"][listed]
    assert found.value == pytest.approx(expected["mean"], abs=1e-8)
    assert found.variance == pytest.approx(expected["variance"], abs=1e-8)


@given(st.lists(st.integers(-500, 500).map(lambda k: k / 100), min_size=6, max_size=6))
def test_doubly_robust_is_unbiased_whatever_the_model_says(model: list[float]) -> None:
    problem = replace(toy("T2"), predicted_reward=np.reshape(model, (2, 3)))
    for weights in ("balanced", "naive", "weighted"):
        found = problem.exact(DoublyRobust(weights))
        assert found.value == pytest.approx(0.576, abs=1e-12)


@given(st.lists(st.integers(-500, 500).map(lambda k: k / 100), min_size=6, max_size=6))
def test_calibrated_with_a_model_is_never_worse_than_without_or_than_doubly_robust(
    model: list[float],
) -> None:
    problem = replace(toy("T2"), predicted_reward=np.reshape(model, (2, 3)))
    ours = problem.exact(WITH_DR).variance
    assert ours <= problem.exact(DoublyRobust()).variance + 1e-12
    assert ours <= problem.exact(Calibrated()).variance + 1e-12


@pytest.mark.parametrize("name", ["T1", "T2", "T4"])
def test_weighted_scores_have_the_shares_of_least_variance(name: str) -> None:
    problem = modelled(name, "wrong")
    # 1 / sum of n_i / Var_i, with Var_i the variance of one score of logger i
    moments = problem.moments(Needs(groups=(OWN_SCORE,)))
    ones = np.ones(2)
    spread = {i: ones @ m.covariance(OWN_SCORE) @ ones for i, m in moments.items()}
    expected = 1 / sum(n / spread[i] for i, n in problem.counts.items())
    found = problem.exact(DoublyRobust("weighted"))
    assert found.variance == pytest.approx(expected, rel=1e-10)
    assert found.variance <= problem.exact(DoublyRobust("naive")).variance


def test_rows_give_the_formula() -> None:
    problem = modelled("T2", "wrong")
    log, rows = columns(problem, seed=3)
    share = np.array([0.4, 0.6])
    mixture = share[0] * rows["propensity_0"] + share[1] * rows["propensity_1"]
    residual = rows["reward"] - rows["predicted_reward"]
    score = rows["predicted_value"] + rows["target_prob"] / mixture * residual
    own = rows["predicted_value"] + rows["target_prob"] / rows["propensity"] * residual
    found = evaluate(log, "target_prob", model=GIVEN)["target"].estimates
    assert found["doubly-robust"].value == pytest.approx(score.mean(), rel=1e-12)
    assert found["doubly-robust-naive"].value == pytest.approx(own.mean(), rel=1e-12)
    assert found["direct-method"].value == pytest.approx(rows["predicted_value"].mean())
    first = rows["logger"] == "1"
    variance = sum(score[g].var(ddof=1) * g.sum() for g in (first, ~first)) / 100**2
    assert found["doubly-robust"].variance == pytest.approx(variance, rel=1e-10)


def test_estimates_are_centred_on_the_true_value() -> None:
    problem = replace(modelled("T2", "wrong"), counts={"1": 400, "2": 600})
    log, _ = columns(problem, seed=20170813)
    found = evaluate(log, "target_prob", model=GIVEN)["target"].estimates
    for name in (
        "doubly-robust",
        "doubly-robust-naive",
        "doubly-robust-weighted",
        "calibrated",
    ):
        assert abs(found[name].value - 0.576) < 4 * found[name].std_error, name


def test_a_model_that_must_guess_what_nobody_logged_is_an_alarm() -> None:
    problem = replace(modelled("T5", "wrong"), counts={"1": 500, "2": 500})
    log, _ = columns(problem, seed=1)
    result = evaluate(log, "target_prob", ["doubly-robust"], model=GIVEN)
    alarms = {f.code for f in result["target"].findings if f.severity == "alarm"}
    assert "target-uncovered" in alarms
    calibrated = evaluate(log, "target_prob", ["calibrated"], model=GIVEN)
    plain = Calibrated(columns=("loggers",), guard=False)
    kept = evaluate(log, "target_prob", [plain])
    assert calibrated["target"].estimates["calibrated"].value == pytest.approx(
        kept["target"].estimates["calibrated"].value
    )


def test_doubly_robust_requires_cross_propensities_unless_it_is_naive() -> None:
    log = modelled("T2", "wrong").draw(np.random.default_rng(1))
    alone = replace(log, propensities=None)
    for weights in ("balanced", "weighted"):
        with refused(RefusedError):
            evaluate(alone, "target_prob", [DoublyRobust(weights)], model=GIVEN)
    found = evaluate(alone, "target_prob", [DoublyRobust("naive")], model=GIVEN)["target"]
    assert list(found.estimates) == ["doubly-robust-naive"]


def test_without_a_model_the_refusal_says_what_is_missing() -> None:
    log = toy("T2").draw(np.random.default_rng(1))
    for name in ("doubly-robust", "direct-method"):
        with refused(RefusedError):
            evaluate(log, "target_prob", [name])
    with refused(RefusedError):
        evaluate(log, "target_prob", [WITH_DR])


def test_a_given_model_needs_a_value_for_every_target() -> None:
    log = modelled("T2", "wrong").draw(np.random.default_rng(1))
    targets = {"a": "target_prob", "b": "propensity_1"}
    with refused(UsageError):
        evaluate(log, targets, model=GIVEN)
    partial = GivenModel("predicted_reward", {"a": "predicted_value"})
    with refused(RefusedError):
        evaluate(log, targets, ["doubly-robust"], model=partial)
    assert "model-refused" in {f.code for f in evaluate(log, targets, model=partial).findings}


def test_options_that_make_no_sense_are_refused() -> None:
    with refused(UsageError):
        DoublyRobust("own")  # type: ignore[arg-type]
    with refused(UsageError):
        DoublyRobust("naive", Shrink("clip", 2))
    with refused(UsageError):
        toy("T2").exact(DirectMethod())


COLUMN = Coverage(("a", "b", "c"), known=("a", "c"), mixture="column")
ESTIMATE = replace(COLUMN, mixture="estimate")


@pytest.mark.parametrize("coverage", [COLUMN, ESTIMATE])
@pytest.mark.parametrize("estimator", [SelfNormalised(), DoublyRobust(), Balanced()])
def test_balanced_weights_take_the_mixture_of_the_log(
    estimator: Estimator, coverage: Coverage
) -> None:
    assert estimator.adapt(coverage) is estimator
    assert estimator.needs(coverage) == estimator.needs(Coverage.complete("abc"))
    assert estimator.needs(coverage).mixed


@pytest.mark.parametrize("coverage", [COLUMN, ESTIMATE])
def test_calibrated_has_columns_of_the_loggers_with_propensities_alone(
    coverage: Coverage,
) -> None:
    plain = Calibrated(guard=False)
    adapted = plain.adapt(coverage)
    assert adapted == Calibrated(guard=False, known=("a", "c"))
    assert adapted.needs(coverage) == plain.needs(coverage)
    ratios = {ratio("a"), ratio("c")}
    assert {t for t in plain.needs(coverage).terms if t in map(ratio, "abc")} == ratios
    assert plain.adapt(Coverage.complete("abc")) == plain
    assert plain.adapt(Coverage(("a", "b"))) == plain


@pytest.mark.parametrize(
    "estimator",
    [
        Naive(),
        Weighted("own"),
        SelfNormalised("own"),
        DoublyRobust("naive"),
    ],
)
def test_other_weights_do_without_the_mixture(estimator: Estimator) -> None:
    assert estimator.needs(COLUMN) == estimator.needs(Coverage(COLUMN.loggers))
    assert not estimator.needs(COLUMN).mixed
