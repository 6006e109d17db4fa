"""FiniteProblem: moments by enumeration of a small bandit problem.

It returns the `Moments` that an engine returns from rows, but exactly, so that the same
estimators can be tested to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.engines.base import Rows
from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.log.log import Log
from poolwise.moments.coverage import Coverage
from poolwise.moments.moments import Moments
from poolwise.moments.pool import Cell, Pool, Stratum
from poolwise.moments.terms import AT_MOST, WEIGHTED_REWARD, Factor, Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from poolwise.moments.estimate import Estimate, Estimator
    from poolwise.types import FloatArray

TARGET_COLUMN = "target_prob"  # column of the target's probability in drawn logs


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
class SupportFlags:
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
class FiniteProblem(Rows):
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
        measures: Values of other measures, by name: one for each context and action, or two,
            of shape (2, X, Y), that go with the lower and the higher reward, a standard
            deviation below and above its mean.
        periods: Rows that each logger writes in each period, which add up to `counts`;
            empty without periods. With periods, there are moments for each logger in each
            period, as estimators of periods need them.

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
    measures: Mapping[str, FloatArray] = field(default_factory=dict)
    periods: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

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
        measures = {k: np.asarray(v, dtype=np.float64) for k, v in self.measures.items()}
        if any(v.shape not in {(), shape, (2, *shape)} for v in measures.values()):
            raise UsageError("measures must hold one or two numbers per context and action")
        self._set("measures", {k: np.broadcast_to(v, (2, *shape)) for k, v in measures.items()})
        policies = {str(k): np.asarray(v, dtype=np.float64) for k, v in self.loggers.items()}
        self._set("loggers", policies)
        self._set("counts", {str(k): int(v) for k, v in self.counts.items()})
        periods = {
            str(d): {str(k): int(v) for k, v in of_period.items()}
            for d, of_period in self.periods.items()
        }
        self._set("periods", periods)
        _check_problem(self)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # inputs become arrays once

    @cached_property
    def mixture(self) -> FloatArray:
        """The loggers mixed in proportion to their rows, shape (X, Y)."""
        return _mix(self.loggers, self.counts)

    @cached_property
    def strata(self) -> dict[Stratum, tuple[str, str, int]]:
        """Logger, period and rows of each key of `moments`: a logger, or one in a period."""
        if not self.periods:
            return {logger: (logger, "", self.counts[logger]) for logger in self.loggers}
        return {
            Cell(period, logger, number): (logger, period, of_period[logger])
            for number, (period, of_period) in enumerate(self.periods.items())
            for logger in self.loggers
            if of_period.get(logger)
        }

    @property
    def coverage(self) -> Coverage:
        """Every probability is known; if there are periods, loggers are those of cells."""
        keys: tuple[Any, ...] = tuple(self.strata)
        return Coverage.complete(keys, [key for key in keys if isinstance(key, Cell)])

    @cached_property
    def value(self) -> float:
        """True mean reward of the target."""
        return float(np.einsum("x,xy,xy->", self.context_prob, self.target, self.reward))

    @cached_property
    def support(self) -> SupportFlags:
        """Coverage of the target by each logger and by the mixture."""
        played = self.context_prob[:, None] * self.target > 0
        rewarded = played & ((self.reward != 0) | (self.reward_variance > 0))
        return SupportFlags(
            each={i: bool((p[rewarded] > 0).all()) for i, p in self.loggers.items()},
            mixture=bool((self.mixture[rewarded] > 0).all()),
            strict=bool((self.mixture[played] > 0).all()),
        )

    @cached_property
    def divergence(self) -> dict[str, float]:
        r"""Divergence of the target from each logger; infinite without support.

        $$\sigma_i^2 = \sum_{x,y} \Pr(x) \bar\pi^2 (\delta^2 + s^2) / \pi_i - U^2$$
        """
        needs = Needs(groups=((WEIGHTED_REWARD,),))
        moments = {i: self._compute_moments(i, "", self.counts[i], needs) for i in self.loggers}
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
        needs = estimator.needs(self.coverage)
        estimate = estimator.estimate(self.moments(needs))
        gap = estimate.value - self.value
        if abs(gap) <= 1e-9 * max(1.0, abs(self.value)):
            return estimate
        note = f"The mean is {estimate.value:g}; the value of the target is {self.value:g}."
        return replace(estimate, findings=(*estimate.findings, Finding("biased", note)))

    def moments(self, needs: Needs) -> Pool:
        """Return the expected moments of each stratum, for these counts."""
        moments = {
            key: self._compute_moments(*part, needs) for key, part in self.strata.items()
        }
        return Pool(moments, loggers=self.loggers)

    def _compute_moments(self, logger: str, period: str, count: int, needs: Needs) -> Moments:
        """Enumerate contexts, actions and two rewards of each: exact for squares of rewards."""
        terms = needs.terms
        self._refuse_cubic(needs)
        joint = self.context_prob[:, None] * self.loggers[logger]
        values = np.ones((len(terms), 2, *joint.shape))
        for k, term in enumerate(terms):
            for factor in term.factors:
                quantity = partial(self._quantity, factor, logger, period)
                values[k] *= compute_factor(factor, quantity)
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

    def _refuse_cubic(self, needs: Needs) -> None:
        """Reject products of more than two rewards, whose mean no variance gives."""
        products = [*((term,) for term in needs.terms), *needs.pairs]
        degrees = [sum(f.definition.degree for t in p for f in t.factors) for p in products]
        most = max(degrees, default=0.0)
        if math.isinf(most) and self.reward_variance.any():
            raise UsageError("logarithms of gains require rewards without variance")
        if 2 < most < math.inf:
            raise UsageError(
                f"terms must be at most quadratic in the reward, got degree {most:g}"
            )

    def _quantity(self, factor: Factor, logger: str, period: str, name: str) -> FloatArray:
        """Return a quantity of a logger's rows in every context and action."""
        if name == "reward" and factor.measure:
            return self.measures[factor.measure]
        if name == "reward":
            spread = np.sqrt(self.reward_variance)
            return np.stack([self.reward - spread, self.reward + spread])
        if name == "least":
            least: FloatArray = np.min(list(self.loggers.values()), axis=0)
            return least
        if name in {"period", "period_mixture"}:
            return self._mix_loggers(factor.logger if name == "period" else period)
        policies = {"target": self.target, "own": self.loggers[logger], "mixture": self.mixture}
        if name == "logger":
            policies[name] = self.loggers[factor.logger]
        elif name == "others":
            rest = {i: p for i, p in self.loggers.items() if i != factor.logger}
            policies[name] = _mix(rest, {i: self.counts[i] for i in rest})
        return policies[name] if name in policies else self._predictions[name]

    def _mix_loggers(self, period: str) -> FloatArray:
        """Return the loggers of a period mixed in proportion to their rows in it."""
        if period not in self.periods:
            raise UsageError("this estimator requires `periods` of the problem")
        return _mix(self.loggers, self.periods[period])

    @cached_property
    def _predictions(self) -> dict[str, FloatArray]:
        """Columns of the reward model, each of shape (X, Y)."""
        model = self.predicted_reward
        if model is None:
            raise UsageError("this estimator requires `predicted_reward` of the problem")
        value = (self.target * model).sum(axis=1, keepdims=True)
        return {
            "predicted_reward": model,
            "predicted_value": np.broadcast_to(value, model.shape),
        }

    def draw(self, rng: np.random.Generator) -> Log:
        """Draw one log, with all cross-propensities and the target's probability.

        With a reward model the log has the columns ``predicted_reward`` and
        ``predicted_value``, with periods the column ``period``. Rewards are Bernoulli if
        they have the variance of a Bernoulli variable; otherwise they are one standard
        deviation below or above the mean, with equal probability, as they always are if there
        are measures, which have columns of their names.
        """
        import pyarrow as pa

        tables = [pa.table(self._draw(*part, rng)) for part in self.strata.values()]
        log = drawn_log(tables, self.loggers, ("context",))
        return replace(log, period="period") if self.periods else log

    def _draw(
        self, logger: str, period: str, count: int, rng: np.random.Generator
    ) -> dict[str, object]:
        joint = self.context_prob[:, None] * self.loggers[logger]
        cells = rng.choice(joint.size, size=count, p=joint.ravel() / joint.sum())
        policies = {f"propensity_{k}": p for k, p in enumerate(self.loggers.values())}
        columns = {"propensity": self.loggers[logger], TARGET_COLUMN: self.target, **policies}
        if self.predicted_reward is not None:
            columns |= self._predictions
        return {
            "logger": [logger] * len(cells),
            **({"period": [period] * len(cells)} if self.periods else {}),
            "context": cells // joint.shape[1],
            "action": cells % joint.shape[1],
            **self._rewards(cells, rng),
            **{name: array.ravel()[cells] for name, array in columns.items()},
        }

    def _rewards(
        self, cells: NDArray[np.int64], rng: np.random.Generator
    ) -> dict[str, FloatArray]:
        """Draw the reward and the measures of cells."""
        mean, spread = self.reward.ravel()[cells], self.reward_variance.ravel()[cells]
        bernoulli = np.isclose(spread, mean * (1 - mean)) & (mean >= 0) & (mean <= 1)
        uniform = rng.random(len(cells))
        higher = 2 * uniform >= 1
        drawn = mean + np.sqrt(spread) * np.where(higher, 1.0, -1.0)
        if not self.measures:
            drawn = np.where(bernoulli, (uniform < mean).astype(np.float64), drawn)
        pairs = {name: value.reshape(2, -1)[:, cells] for name, value in self.measures.items()}
        return {"reward": drawn, **{k: np.where(higher, b, a) for k, (a, b) in pairs.items()}}


def compute_factor(factor: Factor, quantity: Callable[[str], FloatArray]) -> FloatArray:
    """Return a factor by its definition, from quantities by name."""
    made = factor.definition
    if made.minus:
        return quantity(made.above) - quantity(made.minus)
    if factor.rule == AT_MOST:
        return np.where(quantity(made.above) <= factor.bound, 1.0, 0.0)
    if not made.below:
        return quantity(made.above)
    below = quantity(made.below)
    above = quantity(made.above) if made.above else np.zeros_like(below)
    quotient = np.divide(above, below, out=np.full_like(below, made.at_zero), where=below > 0)
    bound = factor.bound
    if factor.rule == "clip":
        np.minimum(quotient, bound, out=quotient)
    elif factor.rule == "switch":
        quotient[quotient > bound] = 0.0
    elif factor.rule == "within":
        return np.where((quotient > 0) & (quotient <= bound), 1.0, 0.0)
    elif factor.rule == "optimistic":
        quotient *= bound / (quotient * quotient + bound)
    elif made.logarithmic:
        sign = 1.0 if factor.rule == "gain" else -1.0
        gain = np.maximum(sign * (quantity("reward") - factor.zero), 0.0)
        return np.log1p(quotient * gain / bound)
    return quotient


def _mix(policies: Mapping[str, FloatArray], counts: Mapping[str, int]) -> FloatArray:
    """Return policies mixed in proportion to their rows."""
    total = sum(counts.values())
    parts = [counts.get(i, 0) / total * policy for i, policy in policies.items()]
    mixed: FloatArray = np.sum(parts, axis=0)
    return mixed


def _check_problem(problem: FiniteProblem) -> None:
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
    periods = problem.periods.values()
    summed = {i: sum(rows.get(i, 0) for rows in periods) for i in set().union(*periods)}
    written = all(min(rows.values(), default=0) >= 0 < sum(rows.values()) for rows in periods)
    if periods and not (written and summed == problem.counts):
        problems.append("periods must have rows that add up to counts, logger by logger")
    if (problem.reward_variance < 0).any():
        problems.append("reward_variance must not be negative")
    if problems:
        raise UsageError("\n".join(problems))
