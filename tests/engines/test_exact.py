"""Exact answers: the reference toys, and the paper's theorems on thousands of problems."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolwise import Balanced, FiniteProblem, Naive, Weighted
from poolwise.errors import RefusedError, UsageError
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    ratio,
    second_moment,
)
from tests.support.messages import refused
from tests.support.reference import Reference, frame_of
from tests.support.toys import GOLDEN, IN_GOLDEN, TOYS, toy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.moments.estimate import Estimator

ESTIMATORS: Mapping[str, Estimator] = {
    "naive": Naive(),
    "balanced": Balanced(),
    "weighted": Weighted(),
}


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_toy_has_its_golden_mean_and_variance(name: str, estimator: str) -> None:
    golden = GOLDEN[name]["estimators"].get(IN_GOLDEN[estimator])
    if golden is None:  # T3: no logger supports the target
        with refused(RefusedError):
            toy(name).exact(ESTIMATORS[estimator])
        return
    found = toy(name).exact(ESTIMATORS[estimator])
    assert found.value == pytest.approx(golden["mean"], rel=1e-12)
    assert found.variance == pytest.approx(golden["variance"], rel=1e-11)
    assert sum(found.shares.values()) == pytest.approx(1, rel=1e-14)


@pytest.mark.parametrize("name", TOYS)
def test_every_toy_has_its_golden_value_divergence_and_support(name: str) -> None:
    golden, problem = GOLDEN[name], toy(name)
    assert problem.value == pytest.approx(golden["U"], rel=1e-12)
    expected = [np.inf if d is None else d for d in golden["divergence"]]
    assert list(problem.divergence.values()) == pytest.approx(expected, rel=1e-12)
    assert list(problem.support.each.values()) == golden["support_each"]
    assert problem.support.mixture is golden["support_mixture"]
    assert problem.support.strict is (name != "T5")  # T5: an action that no logger plays


@pytest.mark.parametrize("name", ["T1", "T2", "T4", "T5"])
def test_weighted_shares_are_the_golden_lambdas(name: str) -> None:
    problem = toy(name)
    shares = problem.exact(Weighted()).shares
    lambdas = [shares[i] / problem.counts[i] for i in problem.loggers]
    assert lambdas == pytest.approx(GOLDEN[name]["lambda_opt"], rel=1e-12)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (Naive(), Fraction(231373, 3600)),  # 64.27 in the paper
        (Balanced(), Fraction(121801, 9801)),  # 12.43
        (Weighted(), Fraction(24295041, 5784325)),  # 4.20; the paper prints 4.19
        (Weighted(divergence="own"), Fraction(24295041, 5784325)),
    ],
    ids=["naive", "balanced", "weighted", "weighted-own"],
)
def test_the_papers_toy_has_exact_variances_from_one_row_each(
    estimator: Estimator, expected: Fraction
) -> None:
    problem = toy("T1")
    assert problem.counts == {"1": 1, "2": 1}
    found = problem.exact(estimator)
    assert found.value == pytest.approx(8.2, rel=1e-14)
    assert found.variance == pytest.approx(float(expected), rel=1e-13)


def test_one_log_of_the_papers_toy_alone() -> None:
    problem = toy("T1")
    for label, expected in (("1", Fraction("252.81")), ("2", Fraction(961, 225))):
        alone = replace(problem, loggers={label: problem.loggers[label]}, counts={label: 1})
        for estimator in ESTIMATORS.values():
            variance = alone.exact(estimator).variance
            assert variance == pytest.approx(float(expected), rel=1e-13)


def test_the_papers_toy_enumerated_outcome_by_outcome() -> None:
    """Every pair of rows that the two loggers can write, each with its probability."""
    problem = toy("T1")
    first, second = problem.loggers.values()
    moments = {"naive": [0.0, 0.0], "balanced": [0.0, 0.0]}
    for x1, y1, x2, y2 in product(range(2), repeat=4):
        chance = 0.25 * first[x1, y1] * second[x2, y2]
        rows = [(x1, y1, first), (x2, y2, second)]
        naive = sum(problem.reward[x, y] * problem.target[x, y] / p[x, y] for x, y, p in rows)
        balanced = sum(
            problem.reward[x, y] * problem.target[x, y] / ((first + second)[x, y] / 2)
            for x, y, _ in rows
        )
        for name, value in (("naive", naive / 2), ("balanced", balanced / 2)):
            moments[name][0] += chance * value
            moments[name][1] += chance * value**2
    for name, (mean, square) in moments.items():
        found = problem.exact(ESTIMATORS[name])
        assert found.value == pytest.approx(mean, rel=1e-13)
        assert found.variance == pytest.approx(square - mean**2, rel=1e-12)


@pytest.mark.parametrize(("name", "gamma"), [("T1", 0.06535138), ("T2", 0.58740551)])
def test_gamma_is_the_papers(name: str, gamma: float) -> None:
    assert toy(name).gamma == pytest.approx(gamma, abs=5e-9)


def test_gamma_needs_support() -> None:
    with refused(RefusedError):
        _ = toy("T3").gamma


def test_a_biased_mean_is_returned_and_flagged() -> None:
    found = toy("T3").exact(Naive())
    assert found.value == pytest.approx(1.2, rel=1e-14)
    assert found.variance == pytest.approx(7 / 1200, rel=1e-13)
    assert [f.code for f in found.findings] == ["biased"]
    assert "2.2" in str(found.findings[0])
    assert toy("T3").exact(Balanced()).findings == ()


def test_an_action_without_reward_needs_no_support() -> None:
    for estimator in ESTIMATORS.values():
        found = toy("T5").exact(estimator)
        assert found.findings == ()
        assert found.value == pytest.approx(1.1, rel=1e-14)


def test_weighted_leaves_out_a_log_without_support() -> None:
    problem = replace(
        toy("T3"), loggers={"1": np.array([[0.5, 0.5, 0.0]]), "3": np.array([[0.2, 0.3, 0.5]])},
        counts={"1": 50, "3": 50},
    )  # fmt: skip
    found = problem.exact(Weighted())
    assert found.shares == {"1": 0.0, "3": 1.0}
    assert found.value == pytest.approx(2.2, rel=1e-14)
    assert found.variance == pytest.approx(problem.divergence["3"] / 50, rel=1e-12)
    assert "logger-unsupported" in [f.code for f in found.findings]


def test_noise_of_the_rewards_is_part_of_every_variance() -> None:
    """One context, one action, weight 1: the variance is the reward's own, over n."""
    problem = FiniteProblem(
        context_prob=np.ones(1),
        reward=np.full((1, 1), 3.0),
        target=np.ones((1, 1)),
        loggers={"a": np.ones((1, 1)), "b": np.ones((1, 1))},
        counts={"a": 1, "b": 3},
        reward_variance=np.full((1, 1), 2.0),
    )
    for estimator in ESTIMATORS.values():
        found = problem.exact(estimator)
        assert (found.value, found.variance) == pytest.approx((3, 0.5), rel=1e-14)


@pytest.mark.parametrize(
    "change",
    [
        {"context_prob": np.array([0.5, 0.6])},
        {"context_prob": np.array([1.5, -0.5])},
        {"target": np.array([[0.8, 0.3], [0.2, 0.8]])},
        {"loggers": {"1": np.array([[1.2, -0.2], [0.5, 0.5]])}, "counts": {"1": 1}},
        {"loggers": {"1": np.array([[0.5, 0.5]])}, "counts": {"1": 1}},
        {"counts": {"1": 1}},
        {"counts": {"1": 0, "2": 1}},
        {"reward": np.ones((2, 3))},
        {"reward": np.array([[1.0, np.nan], [0.0, 1.0]])},
        {"reward_variance": -np.ones((2, 2))},
    ],
)
def test_what_is_not_a_problem_is_refused(change: dict[str, object]) -> None:
    with refused(UsageError):
        replace(toy("T1"), **change)  # type: ignore[arg-type]


def test_lists_will_do_for_arrays() -> None:
    problem = FiniteProblem(
        context_prob=[1],  # type: ignore[arg-type]
        reward=[[1, 2]],  # type: ignore[arg-type]
        target=[[0.5, 0.5]],  # type: ignore[arg-type]
        loggers={7: [[0.5, 0.5]]},  # type: ignore[dict-item]
        counts={7: 2},  # type: ignore[dict-item]
    )
    assert problem.value == 1.5
    assert list(problem.loggers) == ["7"]


def test_drawn_logs_have_the_moments_of_the_problem() -> None:
    problem = replace(toy("T2"), counts={"1": 6_000, "2": 4_000})
    needs = Needs((REWARD,), ((WEIGHT,), (WEIGHTED_REWARD,), (BALANCED_REWARD,), (ratio("1"),)))
    log = problem.draw(np.random.default_rng(2017))
    with Reference().open(log, {"": "target_prob"}) as rows:
        drawn = rows.moments(needs)
    exact = problem.moments(Needs(groups=tuple((t,) for t in needs.terms)))
    for logger, count in problem.counts.items():
        assert drawn[logger].count == count
        for term in needs.terms:
            error = np.sqrt(exact[logger].var(term) / count)
            assert abs(drawn[logger].mean(term) - exact[logger].mean(term)) < 4 * error


def test_drawn_rewards_have_their_mean_and_variance() -> None:
    """Two-point noise where it is not a Bernoulli's: its variance is exact in every draw."""
    problem = replace(toy("T1"), counts={"1": 4_000, "2": 4_000}, reward_variance=np.full(
        (2, 2), 4.0))  # fmt: skip
    table = frame_of(problem.draw(np.random.default_rng(5))).to_pandas()
    for (x, y), rows in table.groupby(["context", "action"]):
        mean = problem.reward[x, y]
        assert set(rows["reward"]) == {mean - 2, mean + 2}
        assert abs(rows["reward"].mean() - mean) < 4 * 2 / np.sqrt(len(rows))


def test_drawing_is_seeded_and_carries_every_probability() -> None:
    problem = toy("T2")
    one, same, other = (frame_of(problem.draw(np.random.default_rng(k))) for k in (1, 1, 2))
    assert one.equals(same)
    assert not one.equals(other)
    table = one.to_pandas()
    assert dict(table["logger"].value_counts()) == problem.counts
    for _, row in table.iterrows():
        x, y = row["context"], row["action"]
        assert row["target_prob"] == problem.target[x, y]
        assert row["propensity"] == problem.loggers[row["logger"]][x, y]
        assert row["propensity_1"] == problem.loggers["2"][x, y]
    assert set(table["reward"]) == {0.0, 1.0}


def random_problem(seed: int, *, noise: bool = True) -> FiniteProblem:
    """A problem with full support: 1-4 contexts, 2-4 actions, 1-4 loggers, unequal logs."""
    rng = np.random.default_rng(seed)
    contexts, actions, loggers = rng.integers(1, 5), rng.integers(2, 5), rng.integers(1, 5)
    shape = (int(contexts), int(actions))
    sharp = float(rng.uniform(0, 3))

    def policy() -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        score = np.exp(sharp * rng.normal(size=shape))
        return np.asarray(score / score.sum(axis=1, keepdims=True))

    labels = [f"logger {k}" for k in range(loggers)]
    return FiniteProblem(
        context_prob=rng.dirichlet(np.ones(shape[0])),
        reward=rng.normal(rng.normal() * 3, 1, size=shape),
        target=policy(),
        loggers={k: policy() for k in labels},
        counts={k: int(rng.integers(1, 200)) for k in labels},
        reward_variance=rng.random(shape) if noise else np.zeros(shape),
    )


problems = st.builds(random_problem, st.integers(0, 2**32 - 1), noise=st.booleans())
MANY = settings(max_examples=500)  # four laws: thousands of problems in all


@pytest.mark.slow
@MANY
@given(problems)
def test_the_three_estimators_are_unbiased(problem: FiniteProblem) -> None:
    for estimator in ESTIMATORS.values():
        found = problem.exact(estimator)
        assert found.value == pytest.approx(problem.value, rel=1e-9, abs=1e-9)
        assert found.findings == ()
        assert sum(found.shares.values()) == pytest.approx(1, rel=1e-12)


@pytest.mark.slow
@MANY
@given(problems)
def test_balanced_is_never_worse_than_naive(problem: FiniteProblem) -> None:
    naive, balanced = problem.exact(Naive()), problem.exact(Balanced())
    assert balanced.variance <= naive.variance * (1 + 1e-9) + 1e-12


@pytest.mark.slow
@MANY
@given(problems)
def test_gamma_is_the_ratio_of_the_exact_variances(problem: FiniteProblem) -> None:
    naive, weighted = problem.exact(Naive()), problem.exact(Weighted())
    assert problem.gamma == pytest.approx(weighted.variance / naive.variance, rel=1e-9)
    assert problem.gamma <= 1 + 1e-12
    precision = sum(problem.counts[i] / d for i, d in problem.divergence.items())
    assert weighted.variance == pytest.approx(1 / precision, rel=1e-9)


@pytest.mark.slow
@MANY
@given(problems, st.integers(0, 2**32 - 1))
def test_no_other_shares_are_better_than_weighted(problem: FiniteProblem, seed: int) -> None:
    """Shares that sum to 1 keep the mean; negative ones do not lower the variance."""
    rng = np.random.default_rng(seed)
    best = problem.exact(Weighted())
    start = np.array(list(best.shares.values()))
    step = rng.normal(size=len(start)) * rng.choice([1e-3, 1.0])
    shares = start + step - step.mean()
    divergence = np.array(list(problem.divergence.values()))
    counts = np.array(list(problem.counts.values()))
    variance = float((shares**2 * divergence / counts).sum())
    assert best.variance <= variance * (1 + 1e-12)


@settings(max_examples=300)
@given(problems)
def test_the_balanced_variance_is_the_sum_over_loggers(problem: FiniteProblem) -> None:
    """Computed as in the paper, without shared code."""
    total = sum(problem.counts.values())
    mixture = sum(n / total * problem.loggers[i] for i, n in problem.counts.items())
    weight = problem.target / mixture
    variance = 0.0
    for logger, count in problem.counts.items():
        joint = problem.context_prob[:, None] * problem.loggers[logger]
        mean = (joint * weight * problem.reward).sum()
        square = (joint * weight**2 * (problem.reward**2 + problem.reward_variance)).sum()
        variance += count / total**2 * (square - mean**2)
    found = problem.exact(Balanced())
    assert found.variance == pytest.approx(variance, rel=1e-7, abs=1e-12)


@settings(max_examples=300)
@given(problems)
def test_the_mixture_knows_every_divergence(problem: FiniteProblem) -> None:
    """The pooled formula: the mean of z^2 mixture / logger is that logger's second moment."""
    needs = Needs(tuple(map(second_moment, problem.loggers)), ((BALANCED_WEIGHT,),))
    moments = problem.moments(needs)
    total = sum(problem.counts.values())
    for logger, divergence in problem.divergence.items():
        second = sum(
            n / total * moments[i].mean(second_moment(logger))
            for i, n in problem.counts.items()
        )
        assert second - problem.value**2 == pytest.approx(divergence, rel=1e-6, abs=1e-9)
    weight = sum(
        n / total * moments[i].mean(BALANCED_WEIGHT) for i, n in problem.counts.items()
    )
    assert weight == pytest.approx(1, rel=1e-12)
