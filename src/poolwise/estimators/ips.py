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
from poolwise.estimators.shrink import Shrink, shrink_findings, shrink_means, shrunk_weight
from poolwise.moments.estimate import Estimate, stratified
from poolwise.moments.linear import (
    Linear,
    added_freedom,
    row_variances,
    satterthwaite_freedom,
    shares,
)
from poolwise.moments.moments import MomentsByLogger, pooled
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    REWARD,
    UNSUPPORTED,
    WEIGHTED_REWARD,
    Needs,
    Term,
    second_moment,
    weight_moment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Divergence = Literal["auto", "pooled", "own", "known", "reward-free"]
FLOOR = 1e-3  # relative to the second moment: a smaller divergence is noise
ROUNDING = 1e-24  # relative to the squared mean: a smaller variance is rounding


@dataclass(frozen=True)
class Naive:
    r"""IPS with each row weighted against its own logger.

    $$\hat U = \frac1n \sum_i \sum_j \delta_{ij} \frac{\bar\pi(y_{ij}|x_{ij})}{p_{ij}}$$

    Unbiased only if every logger supports the target; adding a log can raise the variance.
    """

    @property
    def name(self) -> str:
        return "naive"

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        del loggers, crossed
        return Needs(groups=((WEIGHTED_REWARD,),))

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        return stratified(moments, WEIGHTED_REWARD)


@dataclass(frozen=True)
class Balanced:
    r"""IPS with each row weighted against the mixture of the loggers.

    $$\hat U = \frac1n \sum_i \sum_j \delta_{ij}
      \frac{\bar\pi(y_{ij}|x_{ij})}{\pi_{avg}(y_{ij}|x_{ij})},
      \qquad \pi_{avg} = \sum_i \frac{n_i}{n} \pi_i$$

    Unbiased if the mixture supports the target, with a variance never above that of
    `Naive`.  Requires the probability of every row under every logger.

    Attributes:
        shrink: Rule that shrinks the weights: less variance, more bias.
    """

    shrink: Shrink | None = None

    @property
    def name(self) -> str:
        return "balanced" if self.shrink is None else f"balanced-{self.shrink.suffix}"

    @property
    def _term(self) -> Term:
        return REWARD * shrunk_weight(self.shrink)

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        require_crossed(self.name, loggers, crossed=crossed)
        return Needs(shrink_means(self.shrink), ((self._term,),))

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        estimate = stratified(moments, self._term)
        return replace(estimate, findings=shrink_findings(moments, self.shrink))


def require_crossed(name: str, loggers: Sequence[str], *, crossed: bool) -> None:
    """Raise RefusedError if the log has no cross-propensities."""
    if not crossed:
        raise RefusedError(
            f"{name}-refused",
            f"{name} requires the probability of each row's action under every logger, not "
            f"only under its own. Give `propensities` (--propensities) for "
            f"{', '.join(map(repr, loggers))}: a column, an expression or a policy for each; "
            "or estimate the mixture from `context` with Log(estimate_mixture=True).",
        )


@dataclass(frozen=True)
class Weighted:
    r"""IPS per logger, combined with the shares that minimise the variance.

    $$\hat U = \sum_i s_i \frac{1}{n_i} \sum_j w_{ij} \delta_{ij},
      \qquad s_i = \lambda_i n_i \propto n_i / \sigma_i^2$$

    with $\sigma_i^2$ the divergence of the target from logger $i$:

    - "pooled" estimates it from the rows of all loggers, the default if there are
      cross-propensities;
    - "own" is the paper's plug-in from the logger's own rows, biased down and unreliable
      with heavy weights;
    - "known" takes the numbers in `known`;
    - "reward-free" replaces it by $E_i[w_i^2]$, from the rows of all loggers.  These shares
      do not depend on rewards, so they stay valid if a logger was trained on these logs
      (Zhan et al., 2021), with a variance higher by a few percent; the variance is computed
      from pooled divergences.

    "auto" without cross-propensities falls back on the shares of `Naive`, with a finding.

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

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        if self.divergence in {"pooled", "reward-free"}:
            name = f"weighted with {self.divergence} divergences"
            require_crossed(name, loggers, crossed=crossed)
        missing = [i for i in loggers if self.known and i not in self.known]
        if missing:
            raise UsageError(
                f"`known` must have a divergence for {', '.join(map(repr, missing))}"
            )
        groups = ((WEIGHTED_REWARD,),)
        if self.known or not crossed:
            return Needs(groups=groups)
        needs = Needs(tuple(map(second_moment, loggers)), ((BALANCED_REWARD,), *groups))
        if self.divergence == "reward-free":
            needs |= Needs(tuple(map(weight_moment, loggers)), ((BALANCED_WEIGHT,),))
        return needs

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        if self.known:
            return with_divergences(moments, self.known)
        if self.divergence == "reward-free":
            return _reward_free(moments)
        seconds = tuple(map(second_moment, moments))
        crossed = all(m.has(term) for term in seconds for m in moments.values())
        if self.divergence == "own":
            return _own(moments, crossed=crossed)
        if crossed:
            estimate = with_divergences(moments, pooled_divergences(moments))
            return _with_row_errors(moments, estimate)
        return as_naive(moments, OWN_ONLY)


@dataclass(frozen=True)
class Differences:
    """Divergences estimated from rows: second moments less a squared value.

    Attributes:
        second: Second moment of one row of each logger; infinite without support.
        value: Mean that all loggers have in common.
        floor: Share of its second moment below which a difference is noise.
    """

    second: Mapping[str, float]
    value: float
    floor: float

    def floored(self) -> dict[str, float]:
        """Return divergences for shares: noise near 0 would give a logger all of the share."""
        return {
            i: max(second - self.value**2, self.floor * second) if second < math.inf else second
            for i, second in self.second.items()
        }

    def with_errors(
        self,
        estimate: Estimate,
        moments: MomentsByLogger,
        error: float,
        terms: Sequence[Term] = (WEIGHTED_REWARD,),
    ) -> Estimate:
        r"""Return an estimate with the variance of these divergences, unbiased.

        $E[\hat U^2]$ exceeds $U^2$ by the variance of $\hat U$, the `error`; added to a
        difference, it removes the bias (with one logger: $n / (n - 1)$).  A difference below
        the floor is replaced by the variance of the logger's own rows.
        """
        if not self.floor:
            return estimate
        own = row_variances(moments, dict.fromkeys(terms, 1.0))
        noise = {i for i, s in self.second.items() if s - self.value**2 <= self.floor * s}
        rows = {
            i: own[i] if i in noise else second - self.value**2 + error
            for i, second in self.second.items()
        }
        used = {i: s for i, s in estimate.shares.items() if s > 0}
        parts = {i: s**2 * rows[i] / moments[i].count for i, s in used.items()}
        noisy = {i: part for i, part in parts.items() if i in noise}
        variance, rest = sum(parts.values()), sum(parts[i] for i in parts if i not in noise)
        freedom = estimate.freedom
        if noisy:
            from_own = (sum(noisy.values()), satterthwaite_freedom(moments, noisy))
            freedom = added_freedom([from_own, (rest, estimate.freedom)])
        return with_variance(estimate, moments, variance, freedom)


def _differences(moments: MomentsByLogger) -> Differences:
    together = pooled(moments.values())
    value, square = together.mean(BALANCED_REWARD), together.mean_square(BALANCED_REWARD)
    second = {i: together.mean(second_moment(i)) for i in moments}
    return Differences(supported(second, square), value, FLOOR if together.ddof else 0.0)


def supported(second: Mapping[str, float], square: float) -> dict[str, float]:
    """Replace second moments that contain `UNSUPPORTED` by infinity."""
    limit = math.sqrt(UNSUPPORTED) * square
    return {i: s if s < limit or s == 0 else math.inf for i, s in second.items()}


def pooled_divergences(moments: MomentsByLogger) -> dict[str, float]:
    r"""Return the divergence of the target from each logger, from the rows of all loggers.

    $$D_i = \frac1n \sum_{rows} \frac{\delta^2 \bar\pi^2}{\pi_i \pi_{avg}} - \hat U_{bal}^2$$

    Infinite if the logger never plays a rewarded action of the target; from rows, at
    least `FLOOR` times the second moment.
    """
    return _differences(moments).floored()


def _with_row_errors(moments: MomentsByLogger, estimate: Estimate) -> Estimate:
    error = stratified(moments, BALANCED_REWARD).variance
    return _differences(moments).with_errors(estimate, moments, error)


def weight_moments(moments: MomentsByLogger) -> dict[str, float]:
    r"""Return the mean square of each logger's own weights, from the rows of all loggers.

    $$v_i = \frac1n \sum_{rows} \frac{\bar\pi^2}{\pi_i \pi_{avg}} \approx E_i[w_i^2]$$

    Infinite if the logger never plays an action of the target, rewarded or not.
    """
    together = pooled(moments.values())
    square = together.mean_square(BALANCED_WEIGHT)
    return supported({i: together.mean(weight_moment(i)) for i in moments}, square)


def _reward_free(moments: MomentsByLogger) -> Estimate:
    """Return the estimate with shares from weights and variance from pooled divergences."""
    second = weight_moments(moments)
    if not any(0 < v < math.inf for v in second.values()):
        return with_divergences(moments, dict.fromkeys(moments, math.inf))
    share = shares({i: m.count / second[i] for i, m in moments.items()})
    estimate = with_divergences(moments, pooled_divergences(moments), share)
    return _with_row_errors(moments, estimate)


def with_divergences(
    moments: MomentsByLogger,
    divergence: Mapping[str, float],
    share: Mapping[str, float] | None = None,
    terms: Sequence[Term] = (WEIGHTED_REWARD,),
) -> Estimate:
    """Return the estimate with shares and variance from these divergences.

    The value of a logger is the sum of the means of the `terms`.
    """
    outside = [i for i in moments if math.isinf(divergence[i])]
    if len(outside) == len(moments):
        raise RefusedError(
            "weighted-refused",
            "weighted requires a logger that can play every rewarded action of the target, "
            "but each of these gives probability 0 to at least one. Use balanced.",
        )
    if share is None:
        certain = {i for i in moments if divergence[i] == 0}  # these take all of the share
        share = shares(
            {
                i: float(m.count) * (i in certain) if certain else m.count / divergence[i]
                for i, m in moments.items()
            }
        )
    linear = Linear({i: dict.fromkeys(terms, share[i]) for i in moments})
    used = {i: s for i, s in share.items() if s > 0}
    variance = sum(s**2 * divergence[i] / moments[i].count for i, s in used.items())
    exact = any(m.ddof == 0 for m in moments.values())
    rows = sum(m.count for m in moments.values())
    freedom = math.inf if exact else float(max(1, rows - len(moments)))
    findings = (_unsupported(outside),) if outside else ()
    return Estimate(linear.value(moments), variance, share, freedom, findings, linear)


def with_variance(
    estimate: Estimate, moments: MomentsByLogger, variance: float, freedom: float
) -> Estimate:
    """Return the estimate with another variance, for shares that were adapted to the rows.

    If it exceeds that of `linear`, `linear` is inflated, so that differences use it too.
    """
    rows, _ = estimate.linear.plain.variance(moments)
    inflation = max(1.0, variance / rows) if 0 < rows < math.inf else 1.0
    linear = replace(estimate.linear, inflation=inflation, most_free=freedom, adapted=True)
    return replace(estimate, variance=variance, freedom=freedom, linear=linear)


def _unsupported(loggers: Sequence[str]) -> Finding:
    return Finding(
        "logger-unsupported",
        f"{', '.join(map(repr, loggers))} gave probability 0 to rewarded actions of the "
        "target: weighted leaves such logs out, and naive is biased by them.",
        "Use balanced, which only requires that the loggers together cover the target.",
    )


def _own(moments: MomentsByLogger, *, crossed: bool) -> Estimate:
    """Return the paper's plug-in: shares from each log's own sample variance."""
    own = row_variances(moments, {WEIGHTED_REWARD: 1.0})
    flat = [
        i
        for i, m in moments.items()
        if m.count <= m.ddof or not own[i] > ROUNDING * m.mean(WEIGHTED_REWARD) ** 2
    ]
    if flat:
        return as_naive(moments, _no_spread(flat, moments))
    share = shares({i: m.count / own[i] for i, m in moments.items()})
    plain = stratified(moments, WEIGHTED_REWARD, share)
    if any(m.ddof == 0 for m in moments.values()):
        return plain
    if crossed and all(map(math.isfinite, pooled_divergences(moments).values())):
        variance = _with_row_errors(moments, plain).variance
    else:  # Meier (1953): estimated shares inflate the variance, even of normal rows
        lost = sum(share[i] * (1 - share[i]) / (m.count - 1) for i, m in moments.items())
        variance = plain.variance * (1 + 4 * lost)
    estimate = with_variance(plain, moments, variance, plain.freedom)
    return replace(estimate, findings=(OWN_SHARES,))


def as_naive(moments: MomentsByLogger, finding: Finding) -> Estimate:
    """Return the naive estimate, with the finding that says why."""
    return replace(stratified(moments, WEIGHTED_REWARD), findings=(finding,))


OWN_ONLY = Finding(
    "weighted-as-naive",
    "Without cross-propensities the shares of weighted would depend on the few largest "
    "weights of each log, which biases the estimate down; the shares of naive are used.",
    "Give `propensities` under every logger, or use Weighted(divergence='own').",
)
OWN_SHARES = Finding(
    "own-divergence",
    "The shares of weighted were estimated from the rows that they weight: a log that missed "
    "its rare large weights gets too large a share, so the estimate is biased down.",
    "Use pooled divergences, which require `propensities` under every logger.",
)


def _no_spread(loggers: Sequence[str], moments: MomentsByLogger) -> Finding:
    counts = ", ".join(f"{i!r} ({moments[i].count:,} rows)" for i in loggers)
    return Finding(
        "no-spread",
        f"The weighted rewards do not vary within {counts}, so their variance would give such "
        "a logger all of the share; the shares of naive are used.",
        "Use balanced, or weighted with pooled divergences.",
    )
