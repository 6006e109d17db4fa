"""The paper's three estimators: naive, balanced and weighted IPS.

Naive and balanced differ in the denominator of the weight, naive and weighted in the
shares of the loggers.

Agarwal, Basu, Schnabel & Joachims, "Effective Evaluation Using Logged Bandit
Feedback from Multiple Loggers", KDD 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.estimators.divergences import (
    differences,
    pooled_divergences,
    weight_moments,
    with_variance,
)
from poolwise.estimators.shrink import Shrink, shrink_findings, shrink_means, shrunk_weight
from poolwise.moments.coverage import refuse_uncrossed
from poolwise.moments.estimate import (
    Estimate,
    Estimator,
    average_term,
    stratified_mean,
)
from poolwise.moments.linear import (
    Linear,
    row_variances,
    shares,
)
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    WEIGHTED_REWARD,
    Needs,
    Term,
    second_moment,
    weight_moment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.moments.coverage import Coverage
    from poolwise.moments.pool import Pool

Divergence = Literal["auto", "pooled", "own", "known", "reward-free"]
VARIANCE_ROUNDING = 1e-24  # relative to the squared mean: a smaller variance is rounding


@dataclass(frozen=True)
class Naive(Estimator):
    r"""IPS with each row weighted against its own logger.

    $$\hat U = \frac1n \sum_i \sum_j \delta_{ij} \frac{\bar\pi(y_{ij}|x_{ij})}{p_{ij}}$$

    It is unbiased only if every logger supports the target; another log can raise the
    variance.
    """

    @property
    def name(self) -> str:
        return "naive"

    @property
    def pools(self) -> bool:
        return False

    @property
    def rank(self) -> int:
        return -1

    @property
    def formula(self) -> str:
        return "naive"

    def needs(self, coverage: Coverage) -> Needs:
        del coverage
        return Needs(groups=((WEIGHTED_REWARD,),))

    def estimate(self, pool: Pool) -> Estimate:
        return average_term(pool, WEIGHTED_REWARD)

    def value(self, pool: Pool) -> float:
        return stratified_mean(pool, WEIGHTED_REWARD)


@dataclass(frozen=True)
class Balanced(Estimator):
    r"""IPS with each row weighted against the mixture of the loggers.

    $$\hat U = \frac1n \sum_i \sum_j \delta_{ij}
      \frac{\bar\pi(y_{ij}|x_{ij})}{\pi_{avg}(y_{ij}|x_{ij})},
      \qquad \pi_{avg} = \sum_i \frac{n_i}{n} \pi_i$$

    It is unbiased if the mixture supports the target, and its variance is never larger than
    the variance of `Naive`. It requires the probability of every row under every logger.

    Attributes:
        shrink: Rule that shrinks the weights: less variance, more bias.
    """

    shrink: Shrink | None = None

    @property
    def name(self) -> str:
        return "balanced" if self.shrink is None else f"balanced-{self.shrink.suffix}"

    @property
    def formula(self) -> str:
        return "balanced" if self.shrink is None else ""

    @property
    def _term(self) -> Term:
        return REWARD * shrunk_weight(self.shrink)

    def needs(self, coverage: Coverage) -> Needs:
        if not coverage.mixture:
            refuse_uncrossed(self.name, coverage)
        return Needs(shrink_means(self.shrink), ((self._term,),))

    def estimate(self, pool: Pool) -> Estimate:
        estimate = average_term(pool, self._term)
        return replace(estimate, findings=shrink_findings(pool, self.shrink))

    def value(self, pool: Pool) -> float:
        return stratified_mean(pool, self._term)


@dataclass(frozen=True)
class Weighted(Estimator):
    r"""IPS per logger, combined with the shares that minimise the variance.

    $$\hat U = \sum_i s_i \frac{1}{n_i} \sum_j w_{ij} \delta_{ij},
      \qquad s_i = \lambda_i n_i \propto n_i / \sigma_i^2$$

    with $\sigma_i^2$ the divergence of the target from logger $i$:

    - "pooled" estimates it from the rows of all loggers, the default if there are
      cross-propensities;
    - "own" estimates it from the logger's own rows, as in the paper; the estimate is biased
      down, and unreliable with heavy weights;
    - "known" takes the numbers in `known`;
    - "reward-free" replaces it by $E_i[w_i^2]$, from the rows of all loggers. These shares
      do not depend on rewards, so they stay valid if a logger was trained on these logs
      (Zhan et al., 2021), but the variance is a few percent higher. The variance is
      computed from pooled divergences.

    Examples:
        >>> Weighted(divergence="known", known={"a": 252.81, "b": 4.2711}).name
        'weighted'
    """

    divergence: Divergence = "auto"
    known: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.divergence not in get_args(Divergence):
            choices = ", ".join(map(repr, get_args(Divergence)))
            raise UsageError(f"divergence must be one of {choices}, got {self.divergence!r}")
        if (self.divergence == "known") != bool(self.known):
            raise UsageError("divergence='known' requires known={logger: divergence}")
        if not all(value >= 0 for value in self.known.values()):
            raise UsageError(f"divergences must be 0 or more, got {dict(self.known)}")

    @property
    def name(self) -> str:
        return "weighted-reward-free" if self.divergence == "reward-free" else "weighted"

    @property
    def pools(self) -> bool:
        return self.divergence not in {"known", "reward-free"}

    @property
    def formula(self) -> str:
        return "" if self.divergence == "reward-free" else "weighted"

    def needs(self, coverage: Coverage) -> Needs:
        loggers = coverage.loggers
        if self.divergence in {"auto", "pooled", "reward-free"} and not coverage.crossed:
            refuse_uncrossed(self.name, coverage)
        missing = [i for i in loggers if self.known and i not in self.known]
        if missing:
            raise UsageError(
                f"`known` must have a divergence for {', '.join(map(repr, missing))}"
            )
        groups = ((WEIGHTED_REWARD,),)
        if self.known or not coverage.crossed:
            return Needs(groups=groups)
        needs = Needs(tuple(map(second_moment, loggers)), ((BALANCED_REWARD,), *groups))
        if self.divergence == "reward-free":
            needs |= Needs(tuple(map(weight_moment, loggers)), ((BALANCED_WEIGHT,),))
        return needs

    def estimate(self, pool: Pool) -> Estimate:
        if self.known:
            return with_divergences(pool, self.known)
        if self.divergence == "reward-free":
            return _reward_free(pool)
        if self.divergence == "own":
            return _weigh_by_sample(pool, crossed=_crossed(pool))
        estimate = with_divergences(pool, pooled_divergences(pool))
        return with_row_errors(pool, estimate)

    def value(self, pool: Pool) -> float:
        if self.divergence in {"auto", "pooled"}:
            return with_divergences(pool, pooled_divergences(pool)).value
        return self.estimate(pool).value


def _crossed(pool: Pool) -> bool:
    """Test if every logger has the second moments of all."""
    seconds = tuple(map(second_moment, pool.loggers))
    return all(m.has(term) for term in seconds for m in pool.values())


def with_row_errors(pool: Pool, estimate: Estimate) -> Estimate:
    """Return an estimate of own weights with the variance of pooled divergences."""
    error = average_term(pool, BALANCED_REWARD).variance
    return differences(pool).with_errors(estimate, pool, error)


def _reward_free(pool: Pool) -> Estimate:
    """Return the estimate with shares from weights and variance from pooled divergences."""
    second = weight_moments(pool)
    if not any(0 < v < math.inf for v in second.values()):
        return with_divergences(pool, dict.fromkeys(pool.loggers, math.inf))
    share = shares({i: pool[i].count / second[i] for i in pool.loggers})
    estimate = with_divergences(pool, pooled_divergences(pool), share)
    return with_row_errors(pool, estimate)


def with_divergences(
    pool: Pool,
    divergence: Mapping[str, float],
    share: Mapping[str, float] | None = None,
    terms: Sequence[Term] = (WEIGHTED_REWARD,),
) -> Estimate:
    """Return the estimate with shares and variance from these divergences.

    The value of a logger is the sum of the means of the `terms`.
    """
    outside = [i for i in pool.loggers if math.isinf(divergence[i])]
    if len(outside) == len(pool):
        raise RefusedError(
            "weighted-refused",
            "weighted requires a logger that can play every rewarded action of the target, "
            "but each of these gives probability 0 to at least one. Use balanced.",
        )
    if share is None:
        certain = {i for i in pool.loggers if divergence[i] == 0}  # these take all of the share
        share = shares(
            {
                i: float(rows) * (i in certain) if certain else rows / divergence[i]
                for i, rows in ((i, pool[i].count) for i in pool.loggers)
            }
        )
    linear = Linear({i: dict.fromkeys(terms, share[i]) for i in pool.loggers})
    used = {i: s for i, s in share.items() if s > 0}
    variance = sum(s**2 * divergence[i] / pool[i].count for i, s in used.items())
    freedom = math.inf if pool.exact else float(max(1, pool.rows - len(pool)))
    findings = (_warn_unsupported_loggers(outside),) if outside else ()
    return Estimate(linear.value(pool), variance, share, freedom, findings, linear)


def _warn_unsupported_loggers(loggers: Sequence[str]) -> Finding:
    return Finding(
        "logger-unsupported",
        f"{', '.join(map(repr, loggers))} gave probability 0 to rewarded actions of the "
        "target: weighted leaves such logs out, and naive is biased by them.",
        "Use balanced, which only requires that the loggers together cover the target.",
    )


def _weigh_by_sample(pool: Pool, *, crossed: bool) -> Estimate:
    """Return the paper's plug-in: shares from each log's own sample variance."""
    own = row_variances(pool, {WEIGHTED_REWARD: 1.0})
    flat = [
        i
        for i, m in ((i, pool[i]) for i in pool.loggers)
        if m.count <= m.ddof or not own[i] > VARIANCE_ROUNDING * m.mean(WEIGHTED_REWARD) ** 2
    ]
    if flat:
        findings = (_no_spread(flat, pool),)
        return average_term(pool, WEIGHTED_REWARD, findings=findings)
    share = shares({i: m.count / own[i] for i, m in pool.items()})
    plain = average_term(pool, WEIGHTED_REWARD, share)
    if pool.exact:
        return plain
    if crossed and all(map(math.isfinite, pooled_divergences(pool).values())):
        variance = with_row_errors(pool, plain).variance
    else:  # Meier (1953): estimated shares inflate the variance, even of normal rows
        lost = sum(share[i] * (1 - share[i]) / (m.count - 1) for i, m in pool.items())
        variance = plain.variance * (1 + 4 * lost)
    estimate = with_variance(plain, pool, variance, plain.freedom)
    return replace(estimate, findings=(OWN_SHARES,))


OWN_SHARES = Finding(
    "own-divergence",
    "The shares of weighted were estimated from the rows that they weight: a log that missed "
    "its rare large weights gets too large a share, so the estimate is biased down.",
    "Use self-normalised, or pooled divergences, which require `propensities` under every "
    "logger.",
)


def _no_spread(loggers: Sequence[str], pool: Pool) -> Finding:
    counts = ", ".join(f"{i!r} ({pool[i].count:,} rows)" for i in loggers)
    return Finding(
        "no-spread",
        f"The weighted rewards do not vary within {counts}, so their variance would give such "
        "a logger all of the share; the shares of naive are used.",
        "Use balanced, or weighted with pooled divergences.",
    )
