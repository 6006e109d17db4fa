"""FiniteProblem: moments by enumeration of a small bandit problem.

It returns the `Moments` that an engine returns from rows, but exactly, so that the same
estimators can be tested to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poolwise.engines.workspace import shrink
from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.log.log import Log
from poolwise.moments.moments import Moments
from poolwise.moments.terms import OF_MODEL, UNSUPPORTED, WEIGHTED_REWARD, Factor, Needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from poolwise.log.policy import FloatArray
    from poolwise.moments.estimate import Estimate, Estimator

TARGET = "target_prob"  # column of the target's probability in drawn logs
OF_REWARD = frozenset({"reward", "residual"})


def drawn_log(
    tables: Sequence[pa.Table], loggers: Iterable[str], context: Sequence[str]
) -> Log:
    """Return drawn rows as a log, with one column propensity_k for the k-th logger."""
    import pyarrow as pa

    return Log(
        pa.concat_tables(tables),
        logger="logger",
        action="action",
        reward="reward",
        propensity="propensity",
        propensities={name: f"propensity_{k}" for k, name in enumerate(loggers)},
        context=context,
    )


@dataclass(frozen=True)
class Support:
    """Coverage of the target by the loggers.

    Attributes:
        each: True for a logger that plays every rewarded action of the target.
        mixture: True if the loggers together do.
        strict: True if the loggers together play every action of the target, rewarded or
            not.
    """

    each: Mapping[str, bool]
    mixture: bool
    strict: bool


@dataclass(frozen=True, eq=False)
class FiniteProblem:
    """Contexts, actions, rewards and policies as small arrays.

    Attributes:
        context_prob: Pr(x), shape (X,).
        reward: Mean reward of each context and action, shape (X, Y).
        target: Target policy, shape (X, Y); rows sum to 1.
        loggers: Logging policies, each of shape (X, Y).
        counts: Rows that each logger writes.
        reward_variance: Variance of the reward given context and action, shape (X, Y).
        predicted_reward: Prediction of a reward model for each context and action, shape
            (X, Y); None without a model.

    Examples:
        >>> from poolwise.estimators.ips import Balanced
        >>> problem = FiniteProblem(
        ...     context_prob=[0.5, 0.5],
        ...     reward=[[10, 1], [1, 10]],
        ...     target=[[0.8, 0.2], [0.2, 0.8]],
        ...     loggers={"first": [[0.2, 0.8], [0.8, 0.2]], "second": [[0.9, 0.1], [0.1, 0.9]]},
        ...     counts={"first": 1, "second": 1},
        ... )
        >>> exact = problem.exact(Balanced())
        >>> round(exact.value, 12), round(exact.variance, 2)
        (8.2, 12.43)
    """

    context_prob: FloatArray
    reward: FloatArray
    target: FloatArray
    loggers: Mapping[str, FloatArray]
    counts: Mapping[str, int]
    reward_variance: FloatArray = field(default_factory=lambda: np.zeros(()))
    predicted_reward: FloatArray | None = None

    def __post_init__(self) -> None:
        shape = np.asarray(self.target).shape
        self._set("context_prob", np.asarray(self.context_prob, dtype=np.float64))
        self._set("target", np.asarray(self.target, dtype=np.float64))
        modelled = self.predicted_reward is not None
        for name in ("reward", "reward_variance", *(["predicted_reward"] * modelled)):
            array = np.asarray(getattr(self, name), dtype=np.float64)
            if array.shape not in {(), shape} or not np.isfinite(array).all():
                raise UsageError(f"{name} must hold one finite number per context and action")
            self._set(name, np.broadcast_to(array, shape))
        policies = {str(k): np.asarray(v, dtype=np.float64) for k, v in self.loggers.items()}
        self._set("loggers", policies)
        self._set("counts", {str(k): int(v) for k, v in self.counts.items()})
        _check(self)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # inputs become arrays once

    @cached_property
    def mixture(self) -> FloatArray:
        """The loggers mixed in proportion to their rows, shape (X, Y)."""
        total = sum(self.counts.values())
        parts = [self.counts[i] / total * policy for i, policy in self.loggers.items()]
        mixed: FloatArray = np.sum(parts, axis=0)
        return mixed

    @cached_property
    def value(self) -> float:
        """True mean reward of the target."""
        return float(np.einsum("x,xy,xy->", self.context_prob, self.target, self.reward))

    @cached_property
    def support(self) -> Support:
        """Coverage of the target by each logger and by the mixture."""
        played = self.context_prob[:, None] * self.target > 0
        rewarded = played & ((self.reward != 0) | (self.reward_variance > 0))
        return Support(
            each={i: bool((p[rewarded] > 0).all()) for i, p in self.loggers.items()},
            mixture=bool((self.mixture[rewarded] > 0).all()),
            strict=bool((self.mixture[played] > 0).all()),
        )

    @cached_property
    def divergence(self) -> dict[str, float]:
        r"""Divergence of the target from each logger; infinite without support.

        $$\sigma_i^2 = \sum_{x,y} \Pr(x) \bar\pi^2 (\delta^2 + s^2) / \pi_i - U^2$$
        """
        moments = self.moments(Needs(groups=((WEIGHTED_REWARD,),)))
        supported = self.support.each
        return {
            logger: m.var(WEIGHTED_REWARD) if supported[logger] else math.inf
            for logger, m in moments.items()
        }

    @cached_property
    def gamma(self) -> float:
        r"""Variance of weighted over that of naive (both exact).

        $$\gamma = \frac{(\sum r_i)^2}{(\sum r_i v_i)(\sum r_i / v_i)} \le 1$$

        with $r_i$ and $v_i$ the sizes and divergences relative to the last logger.
        """
        if not all(0 < d < math.inf for d in self.divergence.values()):
            raise RefusedError(
                "gamma-refused",
                f"gamma requires positive, finite divergences, got {self.divergence}",
            )
        last = list(self.loggers)[-1]
        r = np.array([self.counts[i] / self.counts[last] for i in self.loggers])
        v = np.array([self.divergence[i] / self.divergence[last] for i in self.loggers])
        return float(r.sum() ** 2 / ((r * v).sum() * (r / v).sum()))

    def exact(self, estimator: Estimator) -> Estimate:
        """Return the mean and variance of an estimator for these counts, to rounding.

        Without support the mean differs from the target's value: the estimate then has the
        finding ``biased``.
        """
        needs = estimator.needs(tuple(self.loggers), crossed=True)
        estimate = estimator.estimate(self.moments(needs))
        gap = estimate.value - self.value
        if abs(gap) <= 1e-9 * max(1.0, abs(self.value)):
            return estimate
        note = f"The mean is {estimate.value:g}; the value of the target is {self.value:g}."
        return replace(estimate, findings=(*estimate.findings, Finding("biased", note)))

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """Return the expected moments of each logger, for these counts."""
        return {logger: self._moments_of(logger, needs) for logger in self.loggers}

    def _moments_of(self, logger: str, needs: Needs) -> Moments:
        """Enumerate contexts, actions and two rewards of each: exact for squares of rewards."""
        terms, count = needs.terms, self.counts[logger]
        _refuse_cubic(needs)
        joint = self.context_prob[:, None] * self.loggers[logger]
        spread = np.sqrt(self.reward_variance)
        rewards = np.stack([self.reward - spread, self.reward + spread])
        values = np.ones((len(terms), *rewards.shape))
        for k, term in enumerate(terms):
            for factor in term.factors:
                values[k] *= _column(factor, self, logger, rewards)
        means = (values * joint).sum(axis=(1, 2, 3)) / 2
        centred = {t: v - m for t, v, m in zip(terms, values, means, strict=True)}
        index = {t: k for k, t in enumerate(terms)}
        scatter = np.full((len(terms), len(terms)), np.nan)
        for left, right in needs.pairs:
            i, j = index[left], index[right]
            cov = float(np.sum(joint * centred[left] * centred[right])) / 2
            scatter[i, j] = scatter[j, i] = count * cov
        possible = values.mean(axis=1)[:, joint > 0]
        lowest, largest = possible.min(axis=1), possible.max(axis=1)
        return Moments(terms, count, means, scatter, lowest, largest, ddof=0)

    def draw(self, rng: np.random.Generator) -> Log:
        """Draw one log, with all cross-propensities and the target's probability.

        With a reward model the log has the columns ``predicted_reward`` and
        ``predicted_value``.  Rewards are Bernoulli where the variance is that of a Bernoulli
        variable, and otherwise one standard deviation below or above the mean, at even odds.
        """
        import pyarrow as pa

        tables = [pa.table(self._draw(logger, rng)) for logger in self.loggers]
        return drawn_log(tables, self.loggers, ("context",))

    def _draw(self, logger: str, rng: np.random.Generator) -> dict[str, object]:
        joint = self.context_prob[:, None] * self.loggers[logger]
        cells = rng.choice(joint.size, size=self.counts[logger], p=joint.ravel() / joint.sum())
        policies = {f"propensity_{k}": p for k, p in enumerate(self.loggers.values())}
        columns = {"propensity": self.loggers[logger], TARGET: self.target, **policies}
        if self.predicted_reward is not None:
            value = (self.target * self.predicted_reward).sum(axis=1, keepdims=True)
            columns["predicted_reward"] = self.predicted_reward
            columns["predicted_value"] = np.broadcast_to(value, self.target.shape)
        return {
            "logger": [logger] * len(cells),
            "context": cells // joint.shape[1],
            "action": cells % joint.shape[1],
            "reward": self._rewards(cells, rng),
            **{name: array.ravel()[cells] for name, array in columns.items()},
        }

    def _rewards(self, cells: NDArray[np.int64], rng: np.random.Generator) -> FloatArray:
        mean, spread = self.reward.ravel()[cells], self.reward_variance.ravel()[cells]
        bernoulli = np.isclose(spread, mean * (1 - mean)) & (mean >= 0) & (mean <= 1)
        uniform = rng.random(len(cells))
        two_point = mean + np.sqrt(spread) * np.where(2 * uniform < 1, -1.0, 1.0)
        drawn: FloatArray = np.where(bernoulli, (uniform < mean).astype(np.float64), two_point)
        return drawn


def _refuse_cubic(needs: Needs) -> None:
    """Reject products of more than two rewards, whose mean no variance gives."""
    products = [*((term,) for term in needs.terms), *needs.pairs]
    degrees = [sum(f.name in OF_REWARD for t in p for f in t.factors) for p in products]
    if max(degrees, default=0) > 2:
        raise UsageError(
            f"terms must be at most quadratic in the reward, got degree {max(degrees)}"
        )


def _column(
    factor: Factor, problem: FiniteProblem, logger: str, rewards: FloatArray
) -> FloatArray:
    """Return a factor in every cell; 0 where its divisor is 0."""
    if factor.name == "reward" or factor.name in OF_MODEL:
        return _reward_column(factor, problem, rewards)
    if factor.name in {"weight", "balanced_weight"}:
        below = problem.loggers[logger] if factor.name == "weight" else problem.mixture
        weight = _divide(problem.target, below)
        shrink(factor, weight)
        return weight
    if factor.name == "overlap":
        smallest: FloatArray = np.min(list(problem.loggers.values()), axis=0)
        return _divide(smallest, problem.loggers[logger])
    policy = problem.loggers[factor.logger]
    if factor.name == "ratio":
        return _divide(policy, problem.mixture)
    zero = policy <= 0
    if factor.name == "unsupported":
        return zero.astype(np.float64)
    return np.where(zero, UNSUPPORTED, _divide(problem.mixture, policy))


def _reward_column(factor: Factor, problem: FiniteProblem, rewards: FloatArray) -> FloatArray:
    """Return the rewards, their prediction or the difference."""
    model = problem.predicted_reward
    if factor.name == "reward":
        return rewards
    if model is None:
        raise UsageError("this estimator requires `predicted_reward` of the problem")
    if factor.name == "residual":
        return rewards - model
    if factor.name == "predicted_reward":
        return model
    value: FloatArray = (problem.target * model).sum(axis=1, keepdims=True)
    return value


def _divide(above: FloatArray, below: FloatArray) -> FloatArray:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _check(problem: FiniteProblem) -> None:
    problems = []
    shape = problem.target.shape
    if not np.isclose(problem.context_prob.sum(), 1) or (problem.context_prob < 0).any():
        problems.append("context_prob must be a distribution")
    for name, policy in {"target": problem.target, **problem.loggers}.items():
        if policy.shape != shape or len(shape) != 2 or shape[0] != len(problem.context_prob):
            problems.append(f"{name} must have shape (contexts, actions), got {policy.shape}")
        elif (policy < 0).any() or not np.allclose(policy.sum(axis=1), 1):
            problems.append(f"{name} must be a distribution over actions in every context")
    if (
        set(problem.counts) != set(problem.loggers)
        or min(problem.counts.values(), default=0) < 1
    ):
        problems.append("counts must be at least 1 for every logger")
    if (problem.reward_variance < 0).any():
        problems.append("reward_variance must not be negative")
    if problems:
        raise UsageError("\n".join(problems))
