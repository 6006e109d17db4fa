"""Recipe: one policy from one set of rows, started at the best logger and kept near it.

Three quarters of the rows train, one quarter chooses: every strength and smoothing, soft and
greedy, and the anchor itself compete by their calibrated value less one standard error.  The
winner is fitted again to all rows.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from poolwise.errors import UsageError, did_you_mean
from poolwise.learning.data import fold_of, mix
from poolwise.learning.features import fit_encoding
from poolwise.learning.fit import SoftmaxProblem, Trees, boost, clone, greedy, maximise, softmax
from poolwise.learning.objectives import REWARD_FOLDS, DoublyRobustMean, Regression, fit_rewards
from poolwise.learning.policy import LinearPolicy, masked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from poolwise.learning.data import LearningRows
    from poolwise.learning.features import Encoding
    from poolwise.learning.objectives import RidgeRewards, Sample
    from poolwise.log.policy import Distribution, FloatArray, IntArray

BEST = "best"  # the logger with the largest value
UNIFORM = "uniform"  # name of the anchor that plays every action alike
QUARTERS = 4
FEWEST_ROWS = 200  # with fewer, the anchor is all that can be learned
VALIDATION, REWARDS = 1, 2  # numbers that make splits of the same rows differ


@dataclass(frozen=True)
class Trial:
    """One setting to try.

    Attributes:
        strength: Strength of the penalty; infinite for the anchor itself, 0 with trees.
        smoothing: Exponent of the propensity in the doubly robust correction.
        rounds: Rounds of boosting; 0 without trees.
    """

    strength: float
    smoothing: float
    rounds: int


AS_ANCHOR = Trial(np.inf, 1.0, 0)


@dataclass(frozen=True)
class Settings:
    """Settings of the recipe.

    Attributes:
        anchor: "best", the label of a logger, the name of a policy, or "uniform".
        strengths: Strengths of the penalty, in units of the reward.
        smoothing: Exponents of the propensity in the doubly robust correction.
        epsilon: Share of uniform exploration of the policy.
        workers: Threads.
        rounds: Rounds of boosting, for a policy with trees; empty for a linear one.
        eligible: Column with the list of actions that could be played; None for all.
        policies: Policies that give the probability of every action, by name.
    """

    anchor: str = BEST
    strengths: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
    smoothing: tuple[float, ...] = (0.5, 0.8)
    epsilon: float = 0.0
    workers: int = 2
    rounds: tuple[int, ...] = ()
    eligible: str | None = None
    policies: Mapping[str, Distribution] = field(default_factory=dict)

    @property
    def tried(self) -> list[Trial]:
        """Every strength, or number of rounds, with every exponent."""
        if self.rounds:
            return [Trial(0.0, c, r) for c in self.smoothing for r in self.rounds]
        return [Trial(s, c, 0) for s in self.strengths for c in self.smoothing]

    @property
    def fits(self) -> int:
        """Fits of one policy, for a progress bar."""
        return len(self.tried) + 3


@dataclass(frozen=True)
class Candidate(Trial):
    """One setting and its value on the validation rows.

    Attributes:
        greedy: True if it plays the best action always.
        value: Calibrated value.
        std_error: Its standard error.
    """

    greedy: bool
    value: float
    std_error: float

    @property
    def is_anchor(self) -> bool:
        return self.strength == np.inf

    @property
    def score(self) -> float:
        """The criterion: the value less one standard error."""
        return self.value - self.std_error


@dataclass(frozen=True, eq=False)
class Outcome:
    """A learned policy, the anchor, and the reward model of the same rows.

    Attributes:
        policy: The chosen policy.
        anchor: Greedy version of the anchor, to compare with.
        rewards: Reward model.
        candidates: All candidates, in the order in which they were fitted.
        chosen: The best of them.
    """

    policy: LinearPolicy
    anchor: LinearPolicy
    rewards: RidgeRewards
    candidates: tuple[Candidate, ...]
    chosen: Candidate


def run(
    data: LearningRows, rows: IntArray, settings: Settings, advance: Callable[[int], None]
) -> Outcome:
    """Learn a policy from some rows.

    Args:
        data: All rows.
        rows: Indices of those to learn from.
        settings: Settings of the recipe.
        advance: Receives the number of fits since the last call.
    """
    salted = mix(data.hashes[rows], np.full(len(rows), VALIDATION))
    quarter = fold_of(salted, data.groups[rows], QUARTERS)
    training, validation = rows[quarter > 0], rows[quarter == 0]
    with threadpool_limits(limits=1):  # fits run in threads of their own
        anchor = choose_anchor(data, training, settings.anchor)
        part = Fits(data, training, anchor, settings)
        flat = len(rows) < FEWEST_ROWS or np.ptp(data.reward[rows]) == 0
        fits = {} if flat else part.all_fits(advance)
        fits[AS_ANCHOR] = Scores(part.start)
        candidates = tuple(part.candidates(fits, validation))
        del part  # and its features, before those of all rows
        return _refitted(Fits(data, rows, anchor, settings), candidates)


def _refitted(whole: Fits, candidates: tuple[Candidate, ...]) -> Outcome:
    """Fit the best setting to all rows."""
    chosen = max(candidates, key=lambda c: c.score)
    fitted = Scores(whole.start) if chosen.is_anchor else whole.fit(chosen)
    policy = LinearPolicy(
        actions=whole.data.actions,
        encoding=whole.encoding,
        coefficients=fitted.coefficients,
        trees=fitted.trees,
        greedy=chosen.greedy,
        epsilon=whole.settings.epsilon,
        anchor=whole.anchor,
        base=whole.settings.policies.get(whole.anchor),
        eligible=whole.settings.eligible,
    )
    anchor = replace(policy, coefficients=whole.start, trees=None, greedy=True, epsilon=0.0)
    return Outcome(policy, anchor, whole.rewards, candidates, chosen)


def choose_anchor(data: LearningRows, rows: IntArray, wanted: str) -> str:
    """Return the name of the anchor: the logger with the largest value, unless it is named."""
    if wanted != BEST or BEST in data.loggers:
        if wanted not in {*data.loggers, *data.base, UNIFORM}:
            hint = did_you_mean(wanted, data.loggers)
            raise UsageError(
                f"anchor must be 'best' or the label of a logger, got {wanted!r}{hint}"
            )
        return wanted
    sample = data.sample(rows, np.empty((0, 0)))
    values = [_logger_value(sample, k) for k in range(len(data.loggers))]
    return data.loggers[int(np.nanargmax(values))]


def _logger_value(sample: Sample, logger: int) -> float:
    """Return the calibrated value of a logger; its mean reward where others are unknown."""
    if not sample.ratios.shape[1]:
        own = sample.reward[sample.logger == logger]
        return float(own.mean()) if len(own) else -np.inf
    columns = sample.ratios.copy()
    columns[:, -1] = 1.0
    columns[:, :-1] -= 1
    regression = Regression.fit(columns[:, ::-1], sample.ratios[:, logger] * sample.reward)
    return regression.value


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of every action that were fitted.

    Attributes:
        coefficients: Of the features, shape (features, actions).
        trees: Trees that are added, if any.
    """

    coefficients: FloatArray
    trees: Trees | None = None

    def __call__(self, features: FloatArray) -> FloatArray:
        """Return the scores of rows."""
        scores: FloatArray = features @ self.coefficients.astype(features.dtype)
        return scores if self.trees is None else scores + self.trees.scores(features)

    def cut(self, rounds: int) -> Scores:
        """Return the scores after the first rounds of boosting."""
        if self.trees is None:
            return self
        return replace(self, trees=replace(self.trees, rounds=rounds))


@dataclass(frozen=True, eq=False)
class Fits:
    """Fits to one set of rows.

    Attributes:
        data: All rows.
        rows: Indices of those to fit to.
        anchor: Name of the anchor.
        settings: Settings of the recipe.
    """

    data: LearningRows
    rows: IntArray
    anchor: str
    settings: Settings

    @cached_property
    def encoding(self) -> Encoding:
        return fit_encoding(self.data.columns, self.rows)

    def features(self, rows: IntArray) -> FloatArray:
        """Return the features of some rows, standardised on the rows of the fit."""
        columns = {name: values[rows] for name, values in self.data.columns.items()}
        return self.encoding.matrix(columns, len(rows), np.float32)

    @cached_property
    def _matrix(self) -> FloatArray:
        return self.features(self.rows)

    @cached_property
    def _rewards(self) -> tuple[RidgeRewards, FloatArray]:
        data, rows = self.data, self.rows
        salted = mix(data.hashes[rows], np.full(len(rows), REWARDS))
        fold = fold_of(salted, data.groups[rows], REWARD_FOLDS)
        action, reward = data.action[rows], data.reward[rows]
        return fit_rewards(self._matrix, action, reward, fold, len(data.actions))

    @property
    def rewards(self) -> RidgeRewards:
        return self._rewards[0]

    @cached_property
    def problem(self) -> SoftmaxProblem:
        sample = self.data.sample(self.rows, self._rewards[1])
        return SoftmaxProblem(
            self._matrix, sample, len(self.data.actions), self.base(self.rows)
        )

    def base(self, rows: IntArray) -> FloatArray | None:
        """Return the fixed scores of some rows: those of an anchor that is a policy.

        Actions that could not be played in a row have none: they are minus infinity.
        """
        scores, among = self.data.base.get(self.anchor), self.data.among
        fixed = None if scores is None else scores[rows]
        return fixed if among is None else masked(fixed, among[rows])

    @cached_property
    def start(self) -> FloatArray:
        """Coefficients of the anchor: 0 for a policy or uniform, else a clone."""
        problem = self.problem
        if self.anchor in self.data.base or self.anchor == UNIFORM:
            return problem.zeros()
        k = self.data.loggers.index(self.anchor)
        ratios = problem.sample.ratios
        weights = ratios[:, k] if ratios.shape[1] else (problem.sample.logger == k) * 1.0
        return clone(problem, weights)

    @cached_property
    def _scale(self) -> float:
        """Unit of the penalty: the mean of rewards of 0 and 1, else their deviation."""
        reward = self.problem.sample.reward
        binary = np.isin(reward, (0.0, 1.0)).all()
        return float(reward.mean() if binary else reward.std())

    def fit(self, setting: Trial) -> Scores:
        """Fit one setting."""
        exponent = setting.smoothing
        if setting.rounds:
            threads = self.settings.workers
            trees = boost(self.problem, self.start, exponent, setting.rounds, threads=threads)
            return Scores(self.start, trees)
        penalty = setting.strength * self._scale
        return Scores(maximise(self.problem, DoublyRobustMean(exponent), penalty, self.start))

    def all_fits(self, advance: Callable[[int], None]) -> dict[Trial, Scores]:
        """Fit every setting, in threads; fewer rounds are the first ones of the most."""
        most = max(self.settings.rounds, default=0)
        settings = [s for s in self.settings.tried if s.rounds == most]
        advance(len(self.start[:1]))  # computed once, before the threads share it
        fits: dict[Trial, Scores] = {}
        with ThreadPoolExecutor(1 if most else self.settings.workers) as pool:
            for setting, fitted in zip(settings, pool.map(self.fit, settings), strict=True):
                for rounds in self.settings.rounds or (0,):
                    fits[replace(setting, rounds=rounds)] = fitted.cut(rounds)
                    advance(1)
        return fits

    def candidates(self, fits: Mapping[Trial, Scores], rows: IntArray) -> Sequence[Candidate]:
        """Return the value of every fit, soft and greedy, on validation rows."""
        features, base = self.features(rows), self.base(rows)
        sample = self.data.sample(rows, self.rewards.predict(features))
        scored = []
        for setting, fitted in fits.items():
            scores = fitted(features)
            scores = scores if base is None else scores + base
            for best, prob in ((False, softmax(scores)), (True, greedy(scores))):
                fit = Regression.of(sample, prob, model=True)
                error = fit.std_error(sample.logger)
                scored.append(
                    Candidate(**vars(setting), greedy=best, value=fit.value, std_error=error)
                )
        return scored
