"""The paper's three estimators: naive, balanced and weighted IPS.

Naive and balanced differ in the denominator of the weight, naive and weighted in
the shares of the loggers; the code below is as long as these differences.

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
    by_count,
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
FLOOR = 1e-3  # of its second moment: a divergence below it is the noise of a difference
ROUNDING = 1e-24  # of the squared mean: a variance below it is the noise of equal rows


@dataclass(frozen=True)
class Naive:
    r"""IPS with each row weighted against its own logger.

    $$\hat U = \frac1n \sum_i \sum_j \delta_{ij} \frac{\bar\pi(y_{ij}|x_{ij})}{p_{ij}}$$

    Unbiased only if every logger supports the target; adding a log can make it worse.
    """

    @property
    def name(self) -> str:
        return "naive"

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        del loggers, crossed
        return Needs(groups=((WEIGHTED_REWARD,),))

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        return stratified(moments, WEIGHTED_REWARD, by_count(moments))


@dataclass(frozen=True)
class Balanced:
    r"""IPS with each row weighted against the mixture of the loggers.

    $$\hat U = \frac1n \sum_i \sum_j \delta_{ij}
      \frac{\bar\pi(y_{ij}|x_{ij})}{\pi_{avg}(y_{ij}|x_{ij})},
      \qquad \pi_{avg} = \sum_i \frac{n_i}{n} \pi_i$$

    Unbiased if the mixture supports the target, and never worse than `Naive`. It needs
    the probability of every row under every logger.

    Attributes:
        shrink: Hold the weights back: less variance, some bias.
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
        found = stratified(moments, self._term, by_count(moments))
        return replace(found, findings=shrink_findings(moments, self.shrink))


def require_crossed(name: str, loggers: Sequence[str], *, crossed: bool) -> None:
    """Refuse an estimator that needs what the log does not have."""
    if not crossed:
        found = ", ".join(map(repr, loggers))
        raise RefusedError(
            f"{name}-refused",
            f"{name} needs the probability of each row's action under every logger, not "
            f"only under the one that wrote it. Give `propensities` (--propensities) for "
            f"{found}: a column, an expression or a policy for each.",
        )


@dataclass(frozen=True)
class Weighted:
    r"""IPS within each logger, combined in the shares of least variance.

    $$\hat U = \sum_i s_i \frac{1}{n_i} \sum_j w_{ij} \delta_{ij},
      \qquad s_i = \lambda_i n_i \propto n_i / \sigma_i^2$$

    with $\sigma_i^2$ the divergence of the target from logger $i$.  Divergences are
    estimated from the rows: "pooled" lets every row speak for every logger and is the
    default where cross-propensities exist; "own" is the paper's plug-in, biased down and
    unreliable with heavy weights; "known" takes the numbers in `known`.  "reward-free" sets
    $E_i[w_i^2]$ in their place, from the rows of all loggers: such shares never look at a
    reward, which keeps them honest where a logger was trained on these logs (Zhan et al.,
    2021), at the price of some percent of variance; the variance is that of pooled
    divergences.  With own propensities only, and no choice made, the shares are those of
    `Naive`, and a finding says so.

    Examples:
        >>> Weighted(divergence="known", known={"a": 252.81, "b": 4.2711}).name
        'weighted'
    """

    divergence: Divergence = "auto"
    known: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.divergence not in get_args(Divergence):
            known = ", ".join(map(repr, get_args(Divergence)))
            raise UsageError(f"divergence is one of {known}, not {self.divergence!r}")
        if (self.divergence == "known") != bool(self.known):
            raise UsageError("divergence='known' goes with known={logger: divergence}")
        if not all(value >= 0 for value in self.known.values()):
            raise UsageError(f"divergences cannot be negative or NaN: {dict(self.known)}")

    @property
    def name(self) -> str:
        return "weighted-reward-free" if self.divergence == "reward-free" else "weighted"

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        if self.divergence in {"pooled", "reward-free"}:
            what = f"weighted with {self.divergence} divergences"
            require_crossed(what, loggers, crossed=crossed)
        missing = [i for i in loggers if self.known and i not in self.known]
        if missing:
            raise UsageError(f"`known` has no divergence for {', '.join(map(repr, missing))}")
        groups = ((WEIGHTED_REWARD,),)
        if self.known or not crossed:
            return Needs(groups=groups)
        found = Needs(tuple(map(second_moment, loggers)), ((BALANCED_REWARD,), *groups))
        if self.divergence == "reward-free":
            found |= Needs(tuple(map(weight_moment, loggers)), ((BALANCED_WEIGHT,),))
        return found

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
            found = with_divergences(moments, pooled_divergences(moments))
            return _with_row_errors(moments, found)
        return _as_naive(moments, OWN_ONLY)


@dataclass(frozen=True)
class Differences:
    """Divergences as they come from rows: second moments less a squared value.

    Attributes:
        second: Second moment of one row of each logger; infinite without support.
        value: The mean that all loggers have in common.
        floor: Part of its second moment below which a difference is noise.
    """

    second: Mapping[str, float]
    value: float
    floor: float

    def floored(self) -> dict[str, float]:
        """Divergences for the shares: noise must not give a logger the whole estimate."""
        return {
            i: max(second - self.value**2, self.floor * second) if second < math.inf else second
            for i, second in self.second.items()
        }

    def with_errors(
        self,
        found: Estimate,
        moments: MomentsByLogger,
        own: Mapping[str, float],
        error: float,
    ) -> Estimate:
        r"""An estimate in given shares, with the variance that the rows really show.

        $E[\hat U^2]$ is larger than $U^2$ by the variance of $\hat U$, the `error`; added to
        a difference, it makes that unbiased (of one logger: $n / (n - 1)$).  Where the
        difference is noise, the variance of the logger's `own` rows speaks instead, which
        is 0 where they do not vary.
        """
        if not self.floor:
            return found
        noise = {i for i, s in self.second.items() if s - self.value**2 <= self.floor * s}
        rows = {
            i: own[i] if i in noise else second - self.value**2 + error
            for i, second in self.second.items()
        }
        parts = {i: s**2 * rows[i] / moments[i].count for i, s in found.shares.items() if s > 0}
        noisy = {i: part for i, part in parts.items() if i in noise}
        variance, rest = sum(parts.values()), sum(parts[i] for i in parts if i not in noise)
        freedom = found.freedom
        if noisy:
            from_own = (sum(noisy.values()), satterthwaite_freedom(moments, noisy))
            freedom = added_freedom([from_own, (rest, found.freedom)])
        return with_variance(found, moments, variance, freedom)


def _differences(moments: MomentsByLogger) -> Differences:
    together = pooled(moments.values())
    value, square = together.mean(BALANCED_REWARD), together.mean_square(BALANCED_REWARD)
    second = {i: together.mean(second_moment(i)) for i in moments}
    return Differences(supported(second, square), value, FLOOR if together.ddof else 0.0)


def supported(second: Mapping[str, float], square: float) -> dict[str, float]:
    """Second moments, infinite where a logger cannot have written a row that counts."""
    beyond = math.sqrt(UNSUPPORTED) * square
    return {i: s if s < beyond or s == 0 else math.inf for i, s in second.items()}


def pooled_divergences(moments: MomentsByLogger) -> dict[str, float]:
    r"""Divergence of the target from each logger, from the rows of all loggers.

    $$D_i = \frac1n \sum_{rows} \frac{\delta^2 \bar\pi^2}{\pi_i \pi_{avg}} - \hat U_{bal}^2$$

    Infinite where a logger cannot have written a row that counts; of rows, never below a
    floor, as shares must have it.
    """
    return _differences(moments).floored()


def _with_row_errors(moments: MomentsByLogger, found: Estimate) -> Estimate:
    own = row_variances(moments, {WEIGHTED_REWARD: 1.0})
    error = stratified(moments, BALANCED_REWARD, by_count(moments)).variance
    return _differences(moments).with_errors(found, moments, own, error)


def weight_moments(moments: MomentsByLogger) -> dict[str, float]:
    r"""Mean square of each logger's own weights, from the rows of all loggers.

    $$v_i = \frac1n \sum_{rows} \frac{\bar\pi^2}{\pi_i \pi_{avg}} \approx E_i[w_i^2]$$

    Infinite where a logger never plays what the target plays, rewarded or not.
    """
    together = pooled(moments.values())
    square = together.mean_square(BALANCED_WEIGHT)
    return supported({i: together.mean(weight_moment(i)) for i in moments}, square)


def _reward_free(moments: MomentsByLogger) -> Estimate:
    """Shares from weights alone; the variance from pooled divergences."""
    second = weight_moments(moments)
    known = pooled_divergences(moments)
    if not any(0 < v < math.inf for v in second.values()):
        return with_divergences(moments, dict.fromkeys(moments, math.inf))
    share = shares({i: m.count / second[i] for i, m in moments.items()})
    return _with_row_errors(moments, with_divergences(moments, known, share))


def with_divergences(
    moments: MomentsByLogger,
    divergence: Mapping[str, float],
    share: Mapping[str, float] | None = None,
    terms: Sequence[Term] = (WEIGHTED_REWARD,),
) -> Estimate:
    """Shares and variance from divergences that do not hang on one log's own rows.

    The value of a logger is the sum of the means of its `terms`.
    """
    outside = [i for i in moments if math.isinf(divergence[i])]
    if len(outside) == len(moments):
        raise RefusedError(
            "weighted-refused",
            "weighted needs one logger at least that can play every rewarded action of the "
            "target, and each of these gives probability 0 to some. Use balanced.",
        )
    share = share or shares(_precisions(moments, divergence))
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
    """Return the estimate with another variance, which its differences share.

    Where it exceeds the variance that the rows show, the combination is inflated to it.
    """
    rows, _ = estimate.linear.plain.variance(moments)
    inflation = max(1.0, variance / rows) if 0 < rows < math.inf else 1.0
    linear = replace(estimate.linear, inflation=inflation, most_free=freedom)
    return replace(estimate, variance=variance, freedom=freedom, linear=linear)


def _precisions(moments: MomentsByLogger, divergence: Mapping[str, float]) -> dict[str, float]:
    certain = {i for i in moments if divergence[i] == 0}
    if certain:  # no error at all: nothing else may dilute it
        return {i: float(m.count) if i in certain else 0.0 for i, m in moments.items()}
    return {i: m.count / divergence[i] for i, m in moments.items()}


def _unsupported(loggers: Sequence[str]) -> Finding:
    found = ", ".join(map(repr, loggers))
    return Finding(
        "logger-unsupported",
        f"{found} gave probability 0 to actions that the target plays and that were "
        "rewarded: weighted leaves such logs out, and naive is biased by them.",
        "Rely on balanced, which needs only that the loggers together cover the target.",
    )


def _own(moments: MomentsByLogger, *, crossed: bool) -> Estimate:
    """The paper's plug-in: each log's own sample variance sets its share."""
    variance = row_variances(moments, {WEIGHTED_REWARD: 1.0})
    flat = [
        i
        for i, m in moments.items()
        if m.count <= m.ddof or not variance[i] > ROUNDING * m.mean(WEIGHTED_REWARD) ** 2
    ]
    if flat:
        return _as_naive(moments, _no_spread(flat, moments))
    share = shares({i: m.count / variance[i] for i, m in moments.items()})
    plain = stratified(moments, WEIGHTED_REWARD, share)
    if any(m.ddof == 0 for m in moments.values()):
        return plain
    if crossed and all(map(math.isfinite, pooled_divergences(moments).values())):
        known = _with_row_errors(moments, plain)
        found = with_variance(plain, moments, known.variance, plain.freedom)
        return replace(found, findings=(OWN_SHARES,))
    # Meier (1953): estimated shares inflate the variance, already under normal rows
    inflation = 1 + 4 * sum(
        share[i] * (1 - share[i]) / (m.count - 1) for i, m in moments.items()
    )
    found = with_variance(plain, moments, plain.variance * inflation, plain.freedom)
    return replace(found, findings=(OWN_SHARES,))


def _as_naive(moments: MomentsByLogger, finding: Finding) -> Estimate:
    naive = stratified(moments, WEIGHTED_REWARD, by_count(moments))
    return replace(naive, findings=(finding,))


OWN_ONLY = Finding(
    "weighted-as-naive",
    "Without cross-propensities the shares of weighted would rest on each log's own few large "
    "weights, which biases it down; the shares of naive are used instead.",
    "Give `propensities` under every logger, or ask for Weighted(divergence='own').",
)
OWN_SHARES = Finding(
    "own-divergence",
    "The shares of weighted were estimated from the same rows they weight: a log that missed "
    "its rare large weights gets too large a share, so the estimate is biased down.",
    "Prefer pooled divergences, which need `propensities` under every logger.",
)


def _no_spread(loggers: Sequence[str], moments: MomentsByLogger) -> Finding:
    found = ", ".join(f"{i!r} ({moments[i].count:,} rows)" for i in loggers)
    return Finding(
        "no-spread",
        f"The weighted rewards do not vary within {found}; its own variance would give such a "
        "logger the whole estimate, so the shares of naive are used.",
        "Use balanced, or weighted with pooled divergences.",
    )
