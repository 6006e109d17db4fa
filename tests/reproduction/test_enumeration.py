from __future__ import annotations

import itertools

import numpy as np
import pytest

from poolwise.engines.exact import FiniteProblem
from poolwise.errors import RefusedError
from poolwise.formats.labelled import true_value
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    Term,
    ratio,
)
from reproduction.crf import UnaryCRF, count_correct
from reproduction.enumeration import LabelProblem, Mix, Scored, exact_fourth, exact_moments
from reproduction.panels import FIRST, SECOND, build_problem
from tests.support.messages import refused
from tests.support.synthetic import LABELS, small_data

FRACTION = 0.05
COUNTS = {FIRST: 30, SECOND: 50}


@pytest.fixture(scope="module")
def problem() -> LabelProblem:
    return build_problem(small_data(), FRACTION)


def finite(problem: LabelProblem, counts: dict[str, int]) -> FiniteProblem:
    everything = slice(None)
    return FiniteProblem(
        context_prob=np.full(problem.contexts, 1 / problem.contexts),
        reward=problem.rewards(everything),
        target=problem.target.distribution(everything),
        loggers={i: policy.distribution(everything) for i, policy in problem.policies.items()},
        counts=counts,
    )


def test_rewards_count_the_labels_that_are_right(problem: LabelProblem) -> None:
    rewards = problem.rewards(slice(None))
    for row, mask in itertools.product((0, 7, 59), range(1 << LABELS)):
        truth = problem.truth[row : row + 1]
        assert rewards[row, mask] == count_correct(truth, np.array([mask]))[0]


def test_the_value_is_that_of_the_target(problem: LabelProblem) -> None:
    test = small_data().test
    contexts, policy = np.asarray(test.contexts), problem.target.policy
    expected = true_value(contexts, test.labels, policy, reward=count_correct)
    assert problem.value() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("cells", [8, 64, 1 << 14])
def test_slabs_of_any_size_give_the_moments_of_the_whole(
    problem: LabelProblem, cells: int
) -> None:
    mixes = [Mix(COUNTS), Mix({FIRST: 900, SECOND: 100})]
    group = (BALANCED_REWARD, BALANCED_WEIGHT, ratio(FIRST), ratio(SECOND))
    for mix, found in zip(mixes, exact_moments(problem, mixes, cells), strict=True):
        expected = finite(problem, dict(mix.counts)).moments(
            Needs(groups=(group, (WEIGHTED_REWARD,)))
        )
        for logger, moments in found.items():
            assert moments.terms == expected[logger].terms
            assert (moments.count, moments.ddof) == (mix.counts[logger], 0)
            np.testing.assert_allclose(moments.means, expected[logger].means, rtol=1e-12)
            np.testing.assert_allclose(
                moments.scatter, expected[logger].scatter, rtol=1e-9, atol=1e-9
            )


def test_three_loggers_mix_as_well_as_two(problem: LabelProblem) -> None:
    third = build_problem(small_data(), 0.2).policies[FIRST]
    wider = LabelProblem(problem.truth, {**problem.policies, "third": third}, problem.target)
    counts = {**COUNTS, "third": 20}
    (found,) = exact_moments(wider, [Mix(counts)])
    group = (BALANCED_REWARD, BALANCED_WEIGHT, *map(ratio, counts))
    expected = finite(wider, counts).moments(Needs(groups=(group, (WEIGHTED_REWARD,))))
    for logger in counts:
        np.testing.assert_allclose(found[logger].means, expected[logger].means, rtol=1e-12)
        np.testing.assert_allclose(
            found[logger].scatter, expected[logger].scatter, rtol=1e-9, atol=1e-9
        )


def test_fourth_moments_are_sums_over_all_cells(problem: LabelProblem) -> None:
    mix = Mix(COUNTS)
    (moments,) = exact_moments(problem, [mix])
    parts: dict[Term, float] = {BALANCED_REWARD: 1.0, ratio(FIRST): -0.7, BALANCED_WEIGHT: 2.0}
    mixed, own = exact_fourth(problem, [mix], [[{BALANCED_REWARD: 1.0}, parts]], [moments])
    cells = finite(problem, COUNTS)
    loggers = cells.loggers.values()
    mixture = sum(share * p for share, p in zip(mix.shares, loggers, strict=True))
    weight = cells.target / mixture
    rows = [weight * cells.reward]
    rows.append(rows[0] - 0.7 * cells.loggers[FIRST] / mixture + 2 * weight)
    for i, prob in enumerate(loggers):
        joint = prob / problem.contexts
        for k, row in enumerate(rows):
            mean = (joint * row).sum()
            assert mixed[0, i, k] == pytest.approx((joint * (row - mean) ** 4).sum(), rel=1e-9)
        alone = cells.target / prob * cells.reward
        expected = (joint * (alone - problem.value()) ** 4).sum()
        assert own[i] == pytest.approx(expected, rel=1e-9)


def test_a_logger_that_leaves_actions_out_is_refused() -> None:
    """One context, one label; the logger assigns it with a probability that rounds to 0."""
    crf = UnaryCRF(np.zeros((1, 1)), np.zeros(1))
    never, even = (Scored(crf, np.array([[score]])) for score in (-800.0, 0.0))
    problem = LabelProblem(np.array([[True]]), {"only": never}, even)
    with refused(RefusedError):
        exact_moments(problem, [Mix({"only": 1})])
