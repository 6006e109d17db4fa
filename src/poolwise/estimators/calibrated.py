"""Estimators that use known expectations: self-normalised and calibrated.

A logger's probability over the mixture's has expectation 1 under the mixture, and so has
the target's weight.  The distance of such a column's mean from 1 is sampling error, and a
regression on the columns removes the error that they share with the estimate.  With the
columns of the loggers the variance is asymptotically at most that of every weighting of the
logs, the question that the paper left open.

Owen & Zhou (JASA 2000); Kondapaneni et al. (SIGGRAPH 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.moments.coverage import refuse_uncrossed
from poolwise.moments.deviation import skewed_score
from poolwise.moments.estimate import (
    Estimate,
    Estimator,
    make_estimate,
)
from poolwise.moments.linear import (
    NULL_COLUMN,
    Fit,
    Linear,
    Score,
    added_freedom,
    by_count,
    ratio_score,
    shares,
)
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    PREDICTED_REWARD,
    PREDICTED_VALUE,
    REWARD,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    Term,
    ratio,
)
from poolwise.text import list_numbers, percent, short

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from poolwise.moments.coverage import Coverage
    from poolwise.moments.pool import Pool, Stratum

Columns = Literal["loggers", "target", "dr"]
NULL_EIGENVALUE = 1e-9  # per column: smaller eigenvalues are collinear directions
ROWS_PER_COLUMN = 10  # effective rows that each slope requires
SMALL_PART = 0.1  # of all effective rows: a log with less needs so many rows of its own
ROWS_OF_LOGGER = 10  # columns of 2 rows cost 1% of coverage, columns of 10 rows none
MOST_COLUMNS = 64  # loggers with a column; the scatter of all pairs is stored per logger
BALANCED_PREDICTION = BALANCED_WEIGHT * PREDICTED_REWARD
BALANCED_TERMS, OWN_TERMS = (BALANCED_REWARD, BALANCED_WEIGHT), (WEIGHTED_REWARD, WEIGHT)
UNCOVERED = 3.72  # standard errors below 1 of a significantly low mean weight (p 0.0001)


@dataclass(frozen=True)
class SelfNormalised(Estimator):
    r"""IPS divided by the mean of its weights.

    $$\hat U = \sum w \delta \Big/ \sum w$$

    If the log has the propensity of each row's own logger only, the ratio is taken within each
    log $i$, and the logs are averaged in proportion to their effective rows $e_i$:

    $$\hat U = \sum_i \frac{e_i}{\sum_k e_k} \frac{\sum_j w_{ij} \delta_{ij}}{\sum_j w_{ij}},
      \qquad e_i = \frac{(\sum_j w_{ij})^2}{\sum_j w_{ij}^2}$$

    A log of a policy far from the target has large weights, few effective rows and a small
    share; a log that happened to miss its largest weights has a low mean weight, and loses
    share by it.  A log with fewer than 10 effective rows, and less than a tenth of all, is
    left out: so few rows do not show their own variance.  So is a log whose weights average
    significantly less than 1: it does not cover the target.  The shares depend on no reward.

    If a constant is added to all rewards, the estimate grows by the same constant. It lies
    between the smallest and the largest reward; the bias is $O(1/n)$. The estimator
    requires *strict* support: it is inconsistent if the target plays actions that no logger
    plays, even unrewarded actions.

    Attributes:
        weights: "balanced" divides by the mixture, "own" by each row's own logger, both over
            all rows; "log" takes the ratio within each log. "auto" is "balanced" if the
            mixture is known, otherwise "log".
    """

    weights: Literal["auto", "balanced", "own", "log"] = "auto"

    @property
    def name(self) -> str:
        return "self-normalised-own" if self.weights == "own" else "self-normalised"

    @property
    def pools(self) -> bool:
        return self.weights not in {"own", "log"}

    @property
    def formula(self) -> str:
        return "self-normalised" if self.weights in {"auto", "log"} else ""

    @property
    def _terms(self) -> tuple[Term, Term]:
        return OWN_TERMS if self.weights == "own" else BALANCED_TERMS

    def adapt(self, coverage: Coverage) -> SelfNormalised:
        """Return the estimator that takes the ratio within each log, if no mixture is known."""
        by_log = self.weights == "auto" and not coverage.mixture
        return replace(self, weights="log") if by_log else self

    def needs(self, coverage: Coverage) -> Needs:
        if self.adapt(coverage).weights == "log":
            return Needs(means=(REWARD,), groups=(OWN_TERMS,), extremes=(REWARD,))
        if self.weights == "balanced" and not coverage.mixture:
            refuse_uncrossed(self.name, coverage)
        return Needs(groups=(self._terms,))

    def estimate(self, pool: Pool) -> Estimate:
        if self._by_log(pool):
            return normalise_by_log(pool)
        return make_estimate(self._linear(pool), pool)

    def value(self, pool: Pool) -> float:
        if self._by_log(pool):
            return normalise_by_log(pool).value
        return self._linear(pool).value(pool)

    def _by_log(self, pool: Pool) -> bool:
        """Test if each log has a ratio of its own, as "auto" has without a mixture."""
        return self.weights == "log" or not _has_terms(pool, self._terms)

    def _linear(self, pool: Pool) -> Linear:
        reward, weight = self._terms
        whole = pool.together
        if not _divides(whole.mean(weight)):
            raise RefusedError(
                "no-weight", f"{self.name} requires a row with a positive weight"
            )
        return replace(ratio_score(whole, reward, weight).over(pool), ratio=self._terms)


def _has_terms(pool: Pool, terms: Sequence[Term]) -> bool:
    return all(m.has(t) for m in pool.values() for t in terms)


def normalise_by_log(pool: Pool) -> Estimate:
    """Return the self-normalised means of the logs, averaged by their effective rows."""
    low = {i: m.mean(WEIGHT) for i, m in pool.items() if is_uncovered(pool.keep([i]), WEIGHT)}
    effective = effective_rows(pool, low)
    least = least_effective(sum(effective.values()))
    used = [i for i, e in effective.items() if e > least and _divides(pool[i].mean(WEIGHT))]
    if not used:
        raise RefusedError("no-weight", "self-normalised requires a row with a positive weight")
    effective = {i: effective[i] for i in used}
    share: dict[Any, float] = dict.fromkeys(pool, 0.0) | shares(effective)
    scores = {i: ratio_score(pool[i], *OWN_TERMS) * share[i] for i in used}
    constant = sum(score.constant for score in scores.values())
    linear = Linear({i: score.parts for i, score in scores.items()}, constant)
    findings: tuple[Finding, ...] = ()
    if low:
        everywhere = len(low) == len(pool)
        findings = (_low_everywhere(pool, low) if everywhere else _low_in(low),)
    if not pool.exact:  # each log's mean is fitted to its own effective rows
        total, fitted = sum(effective.values()), len(used)
        if total <= fitted:
            return replace(make_estimate(linear, pool, share, findings), variance=math.inf)
        parts = linear.variances(pool)
        free = added_freedom((part, max(1.0, effective[i] - 1)) for i, part in parts.items())
        linear = replace(linear, inflation=total / (total - fitted), most_free=free)
    return make_estimate(linear, pool, share, findings)


def effective_rows(pool: Pool, low: Collection[Stratum]) -> dict[Any, float]:
    """Return the effective rows of each log that covers the target; of all if none does."""
    covering = [i for i in pool if i not in low] or [*pool]
    return {i: pool[i].effective(WEIGHT) for i in covering}


def least_effective(total: float) -> float:
    """Return the effective rows that a log must exceed, of so many in all logs."""
    return min(ROWS_PER_COLUMN, SMALL_PART * total)


def _low_in(means: Mapping[Stratum, float]) -> Finding:
    return Finding(
        "thin-overlap",
        f"Weights against single loggers average less than 1: {list_numbers(means)}. Such a "
        "log covers too little of the target: self-normalised leaves it out, and naive takes "
        "what is missing for reward 0.",
        "Give `propensities` under every logger, so that the logs can be pooled.",
    )


def _low_everywhere(pool: Pool, means: Mapping[Stratum, float]) -> Finding:
    """Return the alarm that no log covers the target, with the values that are possible.

    Actions that no log has may earn as little or as much as any logged row.
    """
    whole = pool.together
    missing, seen = 1 - whole.mean(WEIGHT), whole.mean(WEIGHTED_REWARD)
    least, most = whole.min(REWARD), whole.max(REWARD)
    ends = seen + missing * least, seen + missing * most
    return Finding(
        "target-uncovered",
        f"The weights of every log average less than 1: {list_numbers(means)}. The target "
        f"plays actions that no logger plays, about {percent(missing)} of the time, or "
        f"probabilities are wrong. If such actions earn between {short(least)} and "
        f"{short(most)}, as the logged ones do, the value is between {short(ends[0])} and "
        f"{short(ends[1])}.",
        "Log such actions before relying on any estimate.",
        "alarm",
    )


def _divides(mean: float) -> bool:
    """Test if a mean weight can be divided by."""
    return mean > 0 and not math.isinf(1 / mean)


@dataclass(frozen=True)
class Calibrated(Estimator):
    r"""Balanced IPS, regressed on columns with expectation zero.

    $$\hat U = \frac1n \sum_{rows} \Big( w \delta - \sum_k b_k
      \big(\tfrac{\pi_k}{\pi_{avg}} - 1\big) - b_0 (w - 1) \Big)$$

    where $w$ is the balanced weight, and $b$ comes from least squares over all rows. The
    asymptotic variance is never larger than the variance of naive, balanced, weighted or
    any single log, and another log never raises it. With a reward model, the column "dr" is
    $w \hat q - \sum_y \bar\pi \hat q$, and the variance is never larger than the variance
    of doubly robust. The columns "target" and "dr" require strict support; if the mean
    weight is significantly below 1, the estimator leaves them out and reports a finding.

    Attributes:
        columns: Columns to use.
        guard: Leave columns out if the effective sample size does not support them. False
            uses all columns.
        known: Loggers with a column, if the probabilities of the others are missing and the
            mixture is estimated; None for all loggers.
    """

    columns: tuple[Columns, ...] = ("loggers", "target")
    guard: bool = True
    known: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        columns: object = self.columns
        if not isinstance(columns, tuple) or set(columns) - set(get_args(Columns)):
            raise UsageError(
                f"columns must be a tuple of 'loggers', 'target', 'dr'; got {columns!r}"
            )

    @property
    def name(self) -> str:
        return "calibrated"

    @property
    def rank(self) -> int:
        return 1

    @property
    def formula(self) -> str:
        return "calibrated"

    @property
    def sets_apart(self) -> bool:
        return self.columns == ("loggers", "target") and self.guard and self.known is None

    def adapt(self, coverage: Coverage) -> Calibrated:
        """Return the estimator with columns of the known loggers, if not all are known."""
        known = coverage.known if coverage.mixture and not coverage.crossed else self.known
        return replace(self, known=known)

    def needs(self, coverage: Coverage) -> Needs:
        if not coverage.mixture:
            refuse_uncrossed(self.name, coverage)
        # the last ratio follows from the others, if all are known
        loggers, known = coverage.loggers, self.adapt(coverage).known
        with_ratio = loggers[:-1] if known is None else known
        ratios = () if self.guard and many(loggers) else tuple(map(ratio, with_ratio))
        model = (BALANCED_PREDICTION, PREDICTED_VALUE) if "dr" in self.columns else ()
        return Needs(groups=((BALANCED_REWARD, BALANCED_WEIGHT, *ratios, *model),))

    def estimate(self, pool: Pool) -> Estimate:
        controls, within, findings = self.controls(pool)
        outcome = Score({BALANCED_REWARD: 1.0})
        estimate = regress_outcome(pool, outcome, controls, within=within)
        return replace(estimate, findings=findings)

    def value(self, pool: Pool) -> float:
        controls, within, _ = self.controls(pool)
        outcome = Score({BALANCED_REWARD: 1.0})
        return _fit_linear(pool, outcome, controls, within=within).value(pool)

    def controls(self, pool: Pool) -> tuple[list[Score], bool, tuple[Finding, ...]]:
        """Return the columns, a flag for slopes within loggers, and findings."""
        columns = self.columns
        findings: tuple[Finding, ...] = ()
        if self.guard:
            columns, findings = supported_columns(pool, columns)
        few = few_rows(pool) if self.guard and "loggers" in columns else ()
        if few:
            findings = (*findings, _too_small({i: pool[i].count for i in few}))
        within = "loggers" not in columns or self.known is not None or bool(few)
        return list_controls(pool, columns, self.known, few), within, findings


def many(loggers: Collection[Stratum]) -> bool:
    """Test if there are too many loggers for a column each.

    Every logger stores the scatter of all pairs of columns, so memory grows with the cube
    of their number: half a megabyte at 40, a gigabyte at 500.
    """
    return len(loggers) > MOST_COLUMNS


def few_rows(pool: Pool) -> tuple[str, ...]:
    """Return the loggers with too few rows for a slope, which would overfit them."""
    few = (i for i in pool.loggers if pool[i].ddof and pool[i].count < ROWS_OF_LOGGER)
    return tuple(few)


def list_controls(
    pool: Pool,
    columns: Sequence[Columns],
    known: Sequence[str] | None = None,
    few: Collection[str] = (),
) -> list[Score]:
    """Return the scores of these columns, without the loggers that have `few` rows."""
    if known is not None:
        loggers = [Score({ratio(i): 1.0}, -1.0) for i in known if i not in few]
    elif few:
        loggers = contrast_controls(pool, few)
    else:
        loggers = list(logger_columns(pool).values())
    scores = {
        "loggers": loggers,
        "target": [Score({BALANCED_WEIGHT: 1.0}, -1.0)],
        "dr": [Score({BALANCED_PREDICTION: 1.0, PREDICTED_VALUE: -1.0})],
    }
    return [score for name in columns for score in scores[name]]


def supported_columns(
    pool: Pool, columns: tuple[Columns, ...]
) -> tuple[tuple[Columns, ...], tuple[Finding, ...]]:
    """Return the columns that the rows support, and findings for those left out."""
    if "loggers" in columns and many(pool):
        others = tuple(c for c in columns if c != "loggers")
        fewer, findings = supported_columns(pool, others)
        return fewer, (_too_many(len(pool)), *findings)
    whole = pool.together
    if whole.ddof == 0 or not columns:
        return columns, ()
    if columns != ("loggers",) and is_uncovered(pool):
        finding = target_uncovered(
            whole.mean(BALANCED_WEIGHT),
            "or probabilities are wrong (or roughly estimated). Columns that use the target's "
            "weights are left out.",
        )
        return tuple(c for c in columns if c == "loggers"), (finding,)
    effective = whole.effective(BALANCED_WEIGHT)
    size = ("loggers" in columns) * len(pool) + 1 + ("dr" in columns)
    if effective < ROWS_PER_COLUMN:
        return (), (few_effective_rows(effective, "no column is used"),)
    if effective < ROWS_PER_COLUMN * size:  # never so for the target's column alone
        fewer = ("target",) if "target" in columns else ()
        left_out = " and ".join(repr(c) for c in columns if c not in fewer)
        return fewer, (
            few_effective_rows(effective, f"{left_out} are left out of the columns"),
        )
    return columns, ()


def logger_columns(pool: Pool) -> dict[str, Score]:
    """Return the column of each logger; the last follows from the others and the mixture.

    The last adds nothing to the span, but makes the estimate independent of the order of
    the loggers, which may come in any order.  It is the logger without a ratio.
    """
    first = next(iter(pool.values()))
    last = next((i for i in pool.loggers if not first.has(ratio(i))), pool.loggers[-1])
    others = [i for i in pool.loggers if i != last]
    share = by_count(pool)
    rest = {ratio(i): -share[i] / share[last] for i in others}
    columns = {i: Score({ratio(i): 1.0}, -1.0) for i in others}
    return {**columns, last: Score(rest, 1.0 / share[last] - 1.0)}


def contrast_controls(pool: Pool, few: Collection[str]) -> list[Score]:
    """Return the columns of the loggers with many rows, each less their mean.

    The mean follows from the loggers with few rows and the mixture, so that its slope would
    depend on these few rows.
    """
    large = {i: c for i, c in logger_columns(pool).items() if i not in few}
    if len(large) < 2:
        return []
    share = by_count({i: pool[i] for i in large})
    mean = sum((column * share[i] for i, column in large.items()), Score({}))
    return [column - mean for column in large.values()]


def is_uncovered(pool: Pool, weight: Term = BALANCED_WEIGHT) -> bool:
    """Test if the mean weight is significantly below 1.

    Weights are skewed: a mean without their rare large values is low, and so is its standard
    error.  Where the pass has their cubes, the test is a score test that allows for it.
    """
    share = by_count(pool)
    linear = Linear({i: {weight: share[i]} for i in pool})
    mean = linear.value(pool)
    if mean >= 1:
        return False
    variance = sum(linear.variances(pool).values())
    if not math.isfinite(variance):
        return False
    if variance == 0:
        return mean < 1 - 1e-6
    error = math.sqrt(variance)
    if pool.clustered:
        error = max(error, math.sqrt(linear.deviation_variance(pool)[0]))
    z = (mean - 1) / error
    return z < -UNCOVERED and skewed_score(z, _cubes(pool, weight) / error**3) < -UNCOVERED


def _cubes(pool: Pool, weight: Term) -> float:
    """Return the third cumulant of a mean weight; 0 if the pass has no cubes of weights."""
    cube = weight * weight * weight
    if not all(m.has(cube) for m in pool.values()):
        return 0.0
    share, third = by_count(pool), 0.0
    for i, m in pool.items():
        mean, square = m.mean(weight), m.mean_square(weight)
        of_row = m.mean(cube) - 3 * mean * square + 2 * mean**3
        third += share[i] ** 3 * of_row / m.count**2
    return third


def regress_outcome(
    pool: Pool, outcome: Score, columns: Sequence[Score], *, within: bool
) -> Estimate:
    """Return the mean of an outcome, adjusted by a regression on columns.

    With the columns of all loggers, pooled least squares is best.  Without them the
    differences *between* loggers would bias the slopes, so these use `within` scatter only.
    """
    return make_estimate(_fit_linear(pool, outcome, columns, within=within), pool)


def _fit_linear(
    pool: Pool, outcome: Score, columns: Sequence[Score], *, within: bool
) -> Linear:
    slopes, rank = least_squares(pool, outcome, columns, within=within)
    whole = pool.together
    # a few heavy rows determine the slopes, so the effective sample size counts
    effective = whole.effective(BALANCED_WEIGHT) if whole.ddof else math.inf
    fit = Fit(outcome.less(slopes, columns), tuple(columns), effective, within)
    return fit.linear(pool, rank)


def least_squares(
    pool: Pool, outcome: Score, columns: Sequence[Score], *, within: bool
) -> tuple[list[float], int]:
    """Return the slopes of an outcome on columns, and the rank of the columns.

    Columns are scaled, constant columns get slope 0, and collinear ones the slopes of least
    norm; otherwise slopes from tiny logs would explode.
    """
    whole = pool.together
    terms = list(dict.fromkeys([*outcome.parts, *(t for c in columns for t in c.parts)]))
    groups = list(pool.values()) if within else [whole]
    scatter = sum((m.select_scatter(terms) for m in groups), np.zeros(()))
    covariance = scatter / whole.count
    mix = np.array([[c.parts.get(t, 0.0) for t in terms] for c in columns])
    mix = mix.reshape(len(columns), len(terms))
    response = np.array([outcome.parts.get(t, 0.0) for t in terms])
    inner, outer = mix @ covariance @ mix.T, mix @ covariance @ response
    means = mix @ np.array([whole.mean(t) for t in terms])
    spread = np.sqrt(np.maximum(np.diag(inner), 0.0))
    usable = np.diag(inner) > NULL_COLUMN * (np.diag(inner) + means**2)
    slopes = np.zeros(len(columns))
    if not usable.any():
        return slopes.tolist(), 0
    scale = spread[usable]
    correlation = inner[np.ix_(usable, usable)] / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(correlation)
    large = values > NULL_EIGENVALUE * len(scale)
    rotated = vectors[:, large].T @ (outer[usable] / scale)
    shortest = vectors[:, large] @ (rotated / values[large]) / scale
    null = vectors[:, ~large] / scale[:, None]
    slopes[usable] = shortest - null @ np.linalg.lstsq(null, shortest)[0]
    return slopes.tolist(), int(large.sum())


def target_uncovered(mean: float, consequence: str) -> Finding:
    """Return the finding that the mean balanced weight is significantly below 1."""
    return Finding(
        "target-uncovered",
        f"The balanced weights average {mean:.3f} instead of 1: the target plays actions that "
        f"no logger plays, {percent(1 - mean)} of the time, {consequence}",
        "Log such actions before relying on any estimate, unless they are known to earn 0.",
        "alarm",
    )


def _too_many(loggers: int) -> Finding:
    return Finding(
        "many-loggers",
        f"There are {loggers} loggers, more than {MOST_COLUMNS}, so calibrated has no columns "
        "for them and uses only the target's weights.",
        MERGE_LABELS,
    )


def few_effective_rows(effective: float, consequence: str, weights: str = "") -> Finding:
    """Return the finding that the effective sample size is small."""
    return Finding(
        "few-effective-rows",
        f"The effective sample size{weights} is only {effective:.1f} rows, so {consequence}.",
        "Collect more rows from loggers that are closer to the target.",
    )


def _too_small(rows: Mapping[str, int]) -> Finding:
    counts = ", ".join(f"{i!r} ({count:,})" for i, count in rows.items())
    return Finding(
        "few-rows-of-logger",
        f"Loggers with fewer than {ROWS_OF_LOGGER} rows have no column in calibrated: "
        f"{counts}. A slope would overfit these rows and understate the error.",
        MERGE_LABELS,
        "note",
    )


MERGE_LABELS = "Give loggers with similar policies one label and one column of `propensities`."
