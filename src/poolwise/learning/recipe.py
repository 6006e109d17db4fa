"""Recipe: one policy from one set of rows, started at the best logger and kept near it.

The best action of the best logger is the policy to beat.  The logger as it is, every strength
and smoothing, a weighted classification and boosted trees compete with it, soft and greedy.
Each is fitted to three quarters of the rows and played on the fourth, in turn, and its gain is
estimated from all of them, row by row.  The candidate with the largest gain less two standard
errors wins, and is fitted again to all rows; if no such bound is above 0, nothing beats the
logger.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from poolwise.errors import UsageError, did_you_mean
from poolwise.learning.data import assign_folds, mix
from poolwise.learning.features import fit_encoding
from poolwise.learning.fit import (
    SoftmaxProblem,
    Trees,
    boost,
    classify,
    clone,
    greedy,
    maximise,
    softmax,
)
from poolwise.learning.objectives import (
    REWARD_FOLDS,
    DoublyRobustMean,
    Plays,
    Regression,
    fit_rewards,
)
from poolwise.learning.policy import LinearPolicy, mask_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from poolwise.learning.data import LearningRows
    from poolwise.learning.features import Encoding
    from poolwise.learning.objectives import RidgeRewards, Sample
    from poolwise.log.policy import Distribution
    from poolwise.types import FloatArray, IntArray

BEST = "best"  # the logger with the largest value
UNIFORM = "uniform"  # name of the anchor that plays every action alike
QUARTERS = 4
MANY_ROWS = 50_000  # with more, one quarter of them is enough to choose
FEWEST_ROWS = 200  # with fewer, the anchor is all that can be learned
VALIDATION, REWARDS = 1, 2  # numbers that make splits of the same rows differ
ERRORS = 2.0  # standard errors of a bound: with 1, the luckiest of 24 candidates wins too often
ROUNDING = 1e-9  # relative gain that is rounding
EVEN = 1e-6  # relative error of a propensity that was stored as float32


@dataclass(frozen=True)
class Trial:
    """One setting to try.

    Attributes:
        method: "anchor" for the logger itself, "linear" and "trees" for scores that are added
            to its own, "classification" for a policy that learns from the rows alone.
        strength: Strength of the penalty of a linear policy.
        smoothing: Exponent of the propensity in the doubly robust correction.
        rounds: Rounds of boosting; 0 without trees.
    """

    method: str
    strength: float = 0.0
    smoothing: float = 1.0
    rounds: int = 0


AS_ANCHOR, CLASSIFICATION = Trial("anchor"), Trial("classification")
Setting = tuple[Trial, bool]  # of a candidate: what was fitted, and whether it plays greedily


@dataclass(frozen=True)
class Settings:
    """Settings of the recipe.

    Attributes:
        anchor: "best", the label of a logger, the name of a policy, or "uniform".
        strengths: Strengths of the penalty, in units of the reward.
        smoothing: Exponents of the propensity in the doubly robust correction.
        epsilon: Share of uniform exploration of the policy.
        workers: Threads.
        rounds: Rounds of boosting, for policies with trees; empty for none.
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
        """Every strength with every exponent, a classification, and trees if there are any."""
        linear = [Trial("linear", s, c) for s in self.strengths for c in self.smoothing]
        trees = [Trial("trees", 0.0, c, r) for c in self.smoothing for r in self.rounds]
        return [*linear, CLASSIFICATION, *trees]

    @property
    def fits(self) -> int:
        """Fits of one policy, for a progress bar."""
        return QUARTERS * len(self.tried)


@dataclass(frozen=True)
class Candidate(Trial):
    """One setting and its value on rows that it was not fitted to.

    Attributes:
        greedy: True if it plays the best action always.
        value: Calibrated value.
        std_error: Its standard error.
        gain: Its value less that of the best actions of the anchor.
        gain_error: Standard error of the gain.
    """

    greedy: bool = False
    value: float = 0.0
    std_error: float = 0.0
    gain: float = 0.0
    gain_error: float = 0.0

    @property
    def is_anchor(self) -> bool:
        return self.method == AS_ANCHOR.method

    @property
    def score(self) -> float:
        """The criterion: a lower bound of the gain; that of the greedy anchor is 0."""
        return self.gain - ERRORS * self.gain_error


@dataclass(frozen=True, eq=False)
class Outcome:
    """A learned policy, the anchor, and the reward model of the same rows.

    Attributes:
        policy: The chosen policy.
        anchor: Greedy version of the anchor, to compare with.
        rewards: Reward model.
        candidates: All candidates; the first is the greedy version of the anchor.
        chosen: The best of them.
    """

    policy: LinearPolicy
    anchor: LinearPolicy
    rewards: RidgeRewards
    candidates: tuple[Candidate, ...]
    chosen: Candidate


def learn_part(
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
    quarter = assign_folds(salted, data.groups[rows], QUARTERS)
    flat = len(rows) < FEWEST_ROWS or np.ptp(data.reward[rows]) == 0
    parts: list[Mapping[Setting, Plays]] = []
    count = 1 if flat or len(rows) > MANY_ROWS else QUARTERS
    tested = [np.flatnonzero(quarter == k) for k in range(count)]
    with threadpool_limits(limits=1):  # fits run in threads of their own
        anchor = choose_anchor(data, rows, settings.anchor)
        for k, places in enumerate(tested):
            part = Fits(data, rows[quarter != k], anchor, settings)
            fits = {AS_ANCHOR: Scores(part.start)}
            fits |= {} if flat else part.all_fits(advance)
            parts.append(part.plays(fits, rows[places]))
            del part, fits  # and their features, before those of the next rows
        sample = data.sample(rows[np.concatenate(tested)], np.empty((0, 0)))
        return _refit_policy(Fits(data, rows, anchor, settings), value_plays(sample, parts))


def value_plays(
    sample: Sample, parts: Sequence[Mapping[Setting, Plays]]
) -> tuple[Candidate, ...]:
    """Return the value of every setting, and its gain over the first one.

    Args:
        sample: Rows of all parts.
        parts: What the policies of each part do in its rows.
    """
    largest = np.abs(sample.reward).max(initial=0.0)
    found, first = [], None
    for trial, best in parts[0]:
        plays = _join([part[trial, best] for part in parts])
        first = plays if first is None else first
        fit, pair = Regression.of(sample, plays), Regression.of(sample, plays, first)
        gain = 0.0 if abs(pair.value) <= ROUNDING * largest else pair.value
        error = pair.left_out_error(sample.logger) if plays.prob.any() else np.inf
        error = 0.0 if plays is first else error
        found.append(
            Candidate(
                **vars(trial),
                greedy=best,
                value=fit.value,
                std_error=fit.std_error(sample.logger),
                gain=gain,
                gain_error=error,
            )
        )
    return tuple(found)


def _join(parts: Sequence[Plays]) -> Plays:
    """Return what policies do in the rows of all parts."""

    def whole(columns: list[FloatArray | None]) -> FloatArray | None:
        known = [column for column in columns if column is not None]
        return np.concatenate(known) if known else None

    prob = np.concatenate([part.prob for part in parts])
    return Plays(prob, whole([p.value for p in parts]), whole([p.logged for p in parts]))


def _refit_policy(whole: Fits, candidates: tuple[Candidate, ...]) -> Outcome:
    """Fit the best setting to all rows; the first of equal ones is the simplest."""
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
        base=whole.settings.policies.get(whole.anchor) if fitted.anchored else None,
        eligible=whole.settings.eligible,
    )
    base = whole.settings.policies.get(whole.anchor)
    anchor = replace(policy, coefficients=whole.start, base=base, trees=None)
    anchor = replace(anchor, greedy=True, epsilon=0.0)
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
    values = np.array([_logger_value(sample, k) for k in range(len(data.loggers))])
    highest = float(np.nanmax(values))
    equal = values >= highest - ROUNDING * abs(highest)
    return data.loggers[int(equal.argmax())]


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
        anchored: Whether the scores of an anchor that is a policy are added.
    """

    coefficients: FloatArray
    trees: Trees | None = None
    anchored: bool = True

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
        fold = assign_folds(salted, data.groups[rows], REWARD_FOLDS)
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

    def base(self, rows: IntArray, *, anchored: bool = True) -> FloatArray | None:
        """Return the fixed scores of some rows: those of an anchor that is a policy.

        Actions that could not be played in a row have none: they are minus infinity.
        """
        scores, among = self.data.base.get(self.anchor), self.data.among
        fixed = None if scores is None or not anchored else scores[rows]
        return fixed if among is None else mask_scores(fixed, among[rows])

    @cached_property
    def start(self) -> FloatArray:
        """Coefficients of the anchor: 0 for a policy or uniform, else a clone."""
        problem = self.problem
        if self.anchor in self.data.base or self.anchor == UNIFORM or self._is_even:
            return problem.zeros()
        k = self.data.loggers.index(self.anchor)
        ratios = problem.sample.ratios
        weights = ratios[:, k] if ratios.shape[1] else (problem.sample.logger == k) * 1.0
        return clone(problem, weights)

    @property
    def _is_even(self) -> bool:
        """True if the anchor's propensity is the same for all actions that could be played."""
        data, rows, k = self.data, self.rows, self.data.loggers.index(self.anchor)
        own = data.logger[rows] == k
        known = data.cross[rows, k] if data.crossed else data.own[rows][own]
        count = np.full(len(rows), len(data.actions))
        count = count if data.among is None else data.among[rows].sum(axis=1)
        count = count if data.crossed else count[own]
        return bool(np.allclose(known * count, 1.0, rtol=EVEN, atol=0.0))

    @cached_property
    def _scale(self) -> float:
        """Unit of the penalty: the mean of rewards of 0 and 1, else their deviation."""
        reward = self.problem.sample.reward
        binary = np.isin(reward, (0.0, 1.0)).all()
        return float(reward.mean() if binary else reward.std())

    def fit(self, setting: Trial) -> Scores:
        """Fit one setting."""
        exponent = setting.smoothing
        if setting.method == CLASSIFICATION.method:
            free = self.base(self.rows, anchored=False)
            return Scores(classify(replace(self.problem, base=free)), anchored=False)
        if setting.rounds:
            threads = self.settings.workers
            trees = boost(self.problem, self.start, exponent, setting.rounds, threads=threads)
            return Scores(self.start, trees)
        penalty = setting.strength * self._scale
        return Scores(maximise(self.problem, DoublyRobustMean(exponent), penalty, self.start))

    def all_fits(self, advance: Callable[[int], None]) -> dict[Trial, Scores]:
        """Fit every setting, in threads; fewer rounds are the first ones of the most."""
        most = max(self.settings.rounds, default=0)
        tried = self.settings.tried
        quick = [trial for trial in tried if not trial.rounds]
        self.start  # noqa: B018 - computed once, before the threads share it
        fits: dict[Trial, Scores] = {}
        with ThreadPoolExecutor(self.settings.workers) as pool:
            for trial, fitted in zip(quick, pool.map(self.fit, quick), strict=True):
                fits[trial] = fitted
                advance(1)
        boosted: dict[float, Scores] = {}  # by the exponent; threads are LightGBM's own
        for trial in tried[len(quick) :]:
            if trial.smoothing not in boosted:
                boosted[trial.smoothing] = self.fit(replace(trial, rounds=most))
            fits[trial] = boosted[trial.smoothing].cut(trial.rounds)
            advance(1)
        return fits

    def plays(self, fits: Mapping[Trial, Scores], rows: IntArray) -> dict[Setting, Plays]:
        """Return what every fit does in rows that it was not fitted to, greedy and soft."""
        features = self.features(rows)
        bases = {kind: self.base(rows, anchored=kind) for kind in (True, False)}
        sample = self.data.sample(rows, self.rewards.predict(features))
        found: dict[Setting, Plays] = {}
        for trial, fitted in fits.items():
            base, scores = bases[fitted.anchored], fitted(features)
            scores = scores if base is None else scores + base
            found[trial, True] = Plays.of(sample, greedy(scores))
            found[trial, False] = Plays.of(sample, softmax(scores))
        return found
