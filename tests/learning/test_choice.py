"""The choice among candidates, on logs whose best candidate follows by hand.

Logs hold every context, action and reward exactly as often as it is probable, so that averages
are expectations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from poolwise.learning.data import LearningRows, number_bits, row_hashes
from poolwise.learning.fit import ROUNDS
from poolwise.learning.learn import learn
from poolwise.learning.objectives import Plays, Regression, Sample
from poolwise.learning.policy import as_scores
from poolwise.learning.recipe import AS_ANCHOR, Settings, Trial, learn_part, value_plays
from tests.support.learning import segments, segments_log

if TYPE_CHECKING:
    from poolwise.learning.recipe import Outcome
    from poolwise.types import FloatArray

pytestmark = pytest.mark.slow  # all of them together take seconds


def rows_of(
    points: FloatArray,
    chances: FloatArray,
    probs: FloatArray,
    *,
    copies: int,
    known: bool = True,
) -> LearningRows:
    """Return rows of loggers of equal size, with every reward as often as it is probable.

    Args:
        points: Features of each context, shape (contexts, features).
        chances: Chance of a reward of 1, shape (contexts, actions).
        probs: Probabilities of each logger, shape (loggers, contexts, actions).
        copies: Rows of each logger in each context.
        known: Whether the whole distribution of the loggers is known.
    """
    lines = []
    for k, logger in enumerate(probs):
        for c, prob in enumerate(logger):
            for a, share in enumerate(prob):
                count = round(copies * share)
                wins = round(count * chances[c, a])
                lines += [(k, c, a, float(i < wins)) for i in range(count)]
    logger, context, action, reward = np.array(lines)[
        np.random.default_rng(0).permutation(len(lines))
    ].T
    logger, context, action = (v.astype(np.int64) for v in (logger, context, action))
    cross = probs[:, context, action].T
    bits = [number_bits(v.astype(float)) for v in (logger, context, action, reward)]
    names = tuple(f"v{k}" for k in range(len(probs)))
    base = {
        n: as_scores(p)[context].astype(np.float32) for n, p in zip(names, probs, strict=True)
    }
    return LearningRows(
        columns={"x": points[context].astype(np.float32)},
        actions=tuple(range(chances.shape[1])),
        loggers=names,
        action=action,
        logger=logger,
        reward=reward,
        own=cross[np.arange(len(cross)), logger],
        cross=cross,
        base=base if known else {},
        hashes=row_hashes(bits, len(lines), 0),
    )


def choose(rows: LearningRows, **options: Any) -> Outcome:  # noqa: ANN401 - of `Settings`
    settings = Settings(workers=1, **options)
    return learn_part(rows, np.arange(len(rows)), settings, lambda _: None)


def plays(outcome: Outcome, points: FloatArray, base: FloatArray | None) -> FloatArray:
    """Return the probability of every action in every context."""
    policy = outcome.policy
    features = policy.encoding.matrix({"x": points.astype(np.float32)}, len(points))
    return policy.play(features, None if base is None else as_scores(base))


POINTS = np.array([[0.0], [1.0]])
UNIFORM = np.full((2, 2), 0.5)
RIGHT = np.array([[0.7, 0.3], [0.2, 0.8]])  # a logger whose best actions earn most
CHANCES = np.array([[0.6, 0.2], [0.2, 0.6]])


def test_the_best_actions_of_the_best_logger_are_kept_if_nothing_earns_more() -> None:
    """They earn 0.6 in both contexts, and no policy earns more."""
    outcome = choose(rows_of(POINTS, CHANCES, np.stack([UNIFORM, RIGHT]), copies=500))
    assert outcome.policy.anchor == "v1"
    assert (outcome.chosen.method, outcome.chosen.greedy) == ("anchor", True)
    assert outcome.chosen.value == pytest.approx(0.6, abs=1e-3)
    assert plays(outcome, POINTS, RIGHT).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_an_action_that_the_logger_underrates_is_found() -> None:
    """In the second context the logger's best action earns 0.2, and another one 0.6."""
    wrong = np.array([[0.7, 0.3], [0.7, 0.3]])
    outcome = choose(rows_of(POINTS, CHANCES, np.stack([UNIFORM, wrong]), copies=500))
    assert outcome.chosen.score > 0
    assert outcome.chosen.gain == pytest.approx(0.2, abs=5e-3)  # 0.6 less (0.6 + 0.2) / 2
    base = None if outcome.chosen.method == "classification" else wrong
    assert plays(outcome, POINTS, base).argmax(axis=1).tolist() == [0, 1]


def test_a_classification_leaves_a_logger_that_a_penalty_holds() -> None:
    """With a penalty that forbids any change, only a policy without an anchor can improve."""
    wrong = np.array([[0.95, 0.05], [0.95, 0.05]])
    rows = rows_of(POINTS, CHANCES, np.stack([UNIFORM, wrong]), copies=500)
    outcome = choose(rows, anchor="v1", strengths=(1e6,), smoothing=(0.5,))
    assert (outcome.chosen.method, outcome.chosen.greedy) == ("classification", True)
    assert outcome.policy.base is None
    assert plays(outcome, POINTS, None).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_trees_win_where_no_line_separates_the_contexts() -> None:
    """The right action is 1 if exactly one of two features is 1: no line says so.

    The rewards differ a little, since trees find no first split in a symmetric log.
    """
    points = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    chances = np.array([[0.7, 0.1], [0.1, 0.7], [0.1, 0.6], [0.7, 0.1]])
    even = np.full((1, 4, 2), 0.5)
    rows = rows_of(points, chances, even, copies=500)
    assert choose(rows).chosen.value < 0.57  # (0.7 + 0.7 + 0.6 + 0.1) / 4 = 0.525
    outcome = choose(rows, rounds=ROUNDS)
    assert outcome.chosen.method == "trees"
    assert outcome.chosen.value == pytest.approx(0.675, abs=1e-2)
    assert plays(outcome, points, even[0]).argmax(axis=1).tolist() == [0, 1, 1, 0]


def test_a_logger_that_plays_all_actions_alike_stays_so_without_its_distribution() -> None:
    """A clone of it would be noise, and its best actions would be arbitrary."""
    flat = np.full((2, 3), 0.4)
    rows = rows_of(POINTS, flat, np.full((1, 2, 3), 1 / 3), copies=300, known=False)
    outcome = choose(rows)
    assert outcome.chosen.is_anchor
    assert plays(outcome, POINTS, None) == pytest.approx(np.full((2, 3), 1 / 3))


def test_a_candidate_with_one_lucky_row_is_not_chosen() -> None:
    """One reward with a weight of 300: the fit explains it, and the plain error is small.

    With that row left out, nothing supports the candidate.
    """
    size = 400
    action, reward = np.zeros(size, np.int64), np.zeros(size)
    action[0], reward[0] = 1, 1.0
    reward[1::20] = 1.0  # 5% of the others
    p = np.where(action == 1, 1 / 300, 1 - 1 / 300)
    sample = Sample(action, reward, p, np.zeros(size, np.int64), ratios=np.ones((size, 1)))
    first, lucky = Plays((action == 0) * 1.0), Plays((action == 1) * 1.0)
    fit = Regression.of(sample, lucky, first)
    assert fit.value > 5 * fit.std_error(sample.logger)  # which is wrong by far
    assert fit.left_out_error(sample.logger) == np.inf
    never = Plays(np.zeros(size))
    names = [(AS_ANCHOR, True), (Trial("linear"), True), (Trial("trees"), True)]
    parts = dict(zip(names, (first, lucky, never), strict=True))
    scores = [candidate.score for candidate in value_plays(sample, [parts])]
    assert scores == [0.0, -np.inf, -np.inf]


def test_the_left_out_error_is_that_of_fits_without_a_row() -> None:
    """The jackknife: n - 1 times the change of the value when each row is left out."""
    rng = np.random.default_rng(1)
    columns = np.column_stack([np.ones(30), rng.normal(size=(30, 2))])
    outcome = rng.normal(size=30)
    fit = Regression.fit(columns, outcome)
    left = [np.arange(30) != i for i in range(30)]
    values = np.array([Regression.fit(columns[k], outcome[k]).value for k in left])
    influence = 30 * (fit.value - values)
    expected = influence.std(ddof=1) / np.sqrt(30)
    assert fit.left_out_error(np.zeros(30, np.int64)) == pytest.approx(expected, rel=1e-9)


def test_rewards_that_do_not_depend_on_the_action_are_rarely_called_better() -> None:
    """Nothing can be gained, so "better" may be said in 5% of logs: 30 logs, at most 4."""
    few: dict[str, Any] = {"folds": 2, "strengths": [0.01, 1], "smoothing": [0.8]}
    verdicts = [
        learn(segments_log(segments(600, seed, gain=0.0)), **few).better for seed in range(30)
    ]
    assert sum(verdicts) <= 4  # 2.1 standard errors above 1.5
