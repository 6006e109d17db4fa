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
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.moments.coverage import refuse_uncrossed
from poolwise.moments.estimate import (
    Estimate,
    Estimator,
    estimated,
    stratified,
)
from poolwise.moments.linear import NULL_COLUMN, Fit, Linear, Score, by_count, ratio_score
from poolwise.moments.moments import together
from poolwise.moments.terms import (
    BALANCED_REWARD,
    BALANCED_WEIGHT,
    PREDICTED_REWARD,
    PREDICTED_VALUE,
    WEIGHT,
    WEIGHTED_REWARD,
    Needs,
    Term,
    ratio,
)
from poolwise.text import percent

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from poolwise.moments.coverage import Coverage
    from poolwise.moments.moments import MomentsByLogger

Columns = Literal["loggers", "target", "dr"]
NULL_EIGENVALUE = 1e-9  # per column: smaller eigenvalues are collinear directions
ROWS_PER_COLUMN = 10  # effective rows that each slope requires
ROWS_OF_LOGGER = 10  # columns of 2 rows cost 1% of coverage, columns of 10 rows none
MOST_COLUMNS = 64  # loggers with a column; the scatter of all pairs is stored per logger
BALANCED_PREDICTION = BALANCED_WEIGHT * PREDICTED_REWARD
UNCOVERED = 3.29  # standard errors below 1 of a significantly low mean weight (p 0.0005)


@dataclass(frozen=True)
class SelfNormalised(Estimator):
    r"""IPS divided by the mean of its weights.

    $$\hat U = \sum w \delta \Big/ \sum w$$

    Adding a constant to the rewards adds it to the estimate, which lies between the
    smallest and the largest reward; the bias is $O(1/n)$.  Requires *strict* support: it is
    inconsistent if the target plays actions that no logger plays, even unrewarded ones.
    """

    weights: Literal["balanced", "own"] = "balanced"

    @property
    def name(self) -> str:
        return "self-normalised" if self.weights == "balanced" else "self-normalised-own"

    @property
    def pools(self) -> bool:
        return self.weights == "balanced"

    @property
    def _terms(self) -> tuple[Term, Term]:
        if self.weights == "own":
            return WEIGHTED_REWARD, WEIGHT
        return BALANCED_REWARD, BALANCED_WEIGHT

    def needs(self, coverage: Coverage) -> Needs:
        if self.weights == "balanced" and not coverage.mixture:
            refuse_uncrossed(self.name, coverage)
        return Needs(groups=(self._terms,))

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        return estimated(self._linear(moments), moments)

    def value(self, moments: MomentsByLogger) -> float:
        return self._linear(moments).value(moments)

    def _linear(self, moments: MomentsByLogger) -> Linear:
        reward, weight = self._terms
        whole = together(moments)
        mean = whole.mean(weight)
        if mean <= 0 or math.isinf(1 / mean):
            raise RefusedError(
                "no-weight", f"{self.name} requires a row with a positive weight"
            )
        return replace(ratio_score(whole, reward, weight).over(moments), ratio=self._terms)


@dataclass(frozen=True)
class Calibrated(Estimator):
    r"""Balanced IPS, regressed on columns with expectation zero.

    $$\hat U = \frac1n \sum_{rows} \Big( w \delta - \sum_k b_k
      \big(\tfrac{\pi_k}{\pi_{avg}} - 1\big) - b_0 (w - 1) \Big)$$

    with $w$ the balanced weight and $b$ by least squares over all rows.  Its asymptotic
    variance is at most that of naive, balanced, weighted and any single log, and adding a log
    never raises it.  With a reward model, the column "dr" is
    $w \hat q - \sum_y \bar\pi \hat q$, and the variance is at most that of doubly robust.  The
    columns "target" and "dr" require strict support; they are left out, with a finding, if
    the mean weight is significantly below 1.

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

    def adapt(self, coverage: Coverage) -> Calibrated:
        """Return the estimator with columns of the known loggers, if not all are known."""
        known = coverage.known if coverage.mixture and not coverage.crossed else self.known
        return replace(self, known=known)

    def needs(self, coverage: Coverage) -> Needs:
        if not coverage.mixture:
            return Needs(groups=((WEIGHTED_REWARD,),))
        # the last ratio follows from the others, if all are known
        loggers, known = coverage.loggers, self.adapt(coverage).known
        with_ratio = loggers[:-1] if known is None else known
        ratios = () if self.guard and many(loggers) else tuple(map(ratio, with_ratio))
        model = (BALANCED_PREDICTION, PREDICTED_VALUE) if "dr" in self.columns else ()
        return Needs(groups=((BALANCED_REWARD, BALANCED_WEIGHT, *ratios, *model),))

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        first = next(iter(moments.values()))
        if not first.has(BALANCED_REWARD):
            return stratified(moments, WEIGHTED_REWARD, findings=(AS_NAIVE,))
        controls, within, findings = self.controls(moments)
        outcome = Score({BALANCED_REWARD: 1.0})
        estimate = regressed(moments, outcome, controls, within=within)
        return replace(estimate, findings=findings)

    def value(self, moments: MomentsByLogger) -> float:
        if not next(iter(moments.values())).has(BALANCED_REWARD):
            return self.estimate(moments).value
        controls, within, _ = self.controls(moments)
        outcome = Score({BALANCED_REWARD: 1.0})
        return _fitted(moments, outcome, controls, within=within).value(moments)

    def controls(
        self, moments: MomentsByLogger
    ) -> tuple[list[Score], bool, tuple[Finding, ...]]:
        """Return the columns, a flag for slopes within loggers, and findings."""
        columns = self.columns
        findings: tuple[Finding, ...] = ()
        if self.guard:
            columns, findings = supported_columns(moments, columns)
        few = few_rows(moments) if self.guard and "loggers" in columns else ()
        if few:
            findings = (*findings, _too_small({i: moments[i].count for i in few}))
        within = "loggers" not in columns or self.known is not None or bool(few)
        return controls_of(moments, columns, self.known, few), within, findings


def many(loggers: Collection[str]) -> bool:
    """Test if there are too many loggers for a column each.

    Every logger stores the scatter of all pairs of columns, so memory grows with the cube
    of their number: half a megabyte at 40, a gigabyte at 500.
    """
    return len(loggers) > MOST_COLUMNS


def few_rows(moments: MomentsByLogger) -> tuple[str, ...]:
    """Return the loggers with too few rows for a slope, which would overfit them."""
    return tuple(i for i, m in moments.items() if m.ddof and m.count < ROWS_OF_LOGGER)


def controls_of(
    moments: MomentsByLogger,
    columns: Sequence[Columns],
    known: Sequence[str] | None = None,
    few: Collection[str] = (),
) -> list[Score]:
    """Return the scores of these columns, without the loggers that have `few` rows."""
    if known is not None:
        loggers = [Score({ratio(i): 1.0}, -1.0) for i in known if i not in few]
    elif few:
        loggers = contrast_controls(moments, few)
    else:
        loggers = list(logger_columns(moments).values())
    scores = {
        "loggers": loggers,
        "target": [Score({BALANCED_WEIGHT: 1.0}, -1.0)],
        "dr": [Score({BALANCED_PREDICTION: 1.0, PREDICTED_VALUE: -1.0})],
    }
    return [score for name in columns for score in scores[name]]


def supported_columns(
    moments: MomentsByLogger, columns: tuple[Columns, ...]
) -> tuple[tuple[Columns, ...], tuple[Finding, ...]]:
    """Return the columns that the rows support, and findings for those left out."""
    if "loggers" in columns and many(moments):
        others = tuple(c for c in columns if c != "loggers")
        fewer, findings = supported_columns(moments, others)
        return fewer, (_too_many(len(moments)), *findings)
    whole = together(moments)
    if whole.ddof == 0 or not columns:
        return columns, ()
    if columns != ("loggers",) and uncovered(moments):
        finding = target_uncovered(
            whole.mean(BALANCED_WEIGHT),
            "or probabilities are wrong (or roughly estimated). Columns that use the target's "
            "weights are left out.",
        )
        return tuple(c for c in columns if c == "loggers"), (finding,)
    effective = whole.effective(BALANCED_WEIGHT)
    size = ("loggers" in columns) * len(moments) + 1 + ("dr" in columns)
    if effective < ROWS_PER_COLUMN:
        return (), (few_effective_rows(effective, "no column is used"),)
    if effective < ROWS_PER_COLUMN * size:  # never so for the target's column alone
        fewer = ("target",) if "target" in columns else ()
        left_out = " and ".join(repr(c) for c in columns if c not in fewer)
        return fewer, (
            few_effective_rows(effective, f"{left_out} are left out of the columns"),
        )
    return columns, ()


def logger_columns(moments: MomentsByLogger) -> dict[str, Score]:
    """Return the column of each logger; the last follows from the others and the mixture.

    The last adds nothing to the span, but makes the estimate independent of the order of
    the loggers, which may come in any order.  It is the logger without a ratio.
    """
    first = next(iter(moments.values()))
    last = next((i for i in moments if not first.has(ratio(i))), list(moments)[-1])
    others = [i for i in moments if i != last]
    share = by_count(moments)
    rest = {ratio(i): -share[i] / share[last] for i in others}
    columns = {i: Score({ratio(i): 1.0}, -1.0) for i in others}
    return {**columns, last: Score(rest, 1.0 / share[last] - 1.0)}


def contrast_controls(moments: MomentsByLogger, few: Collection[str]) -> list[Score]:
    """Return the columns of the loggers with many rows, each less their mean.

    The mean follows from the loggers with few rows and the mixture, so that its slope would
    depend on these few rows.
    """
    large = {i: c for i, c in logger_columns(moments).items() if i not in few}
    if len(large) < 2:
        return []
    share = by_count({i: moments[i] for i in large})
    mean = sum((column * share[i] for i, column in large.items()), Score({}))
    return [column - mean for column in large.values()]


def uncovered(moments: MomentsByLogger) -> bool:
    """Test if the mean balanced weight is significantly below 1."""
    mean = stratified(moments, BALANCED_WEIGHT)
    if not math.isfinite(mean.variance):
        return False
    if mean.variance == 0:
        return mean.value < 1 - 1e-6
    return mean.value < 1 - UNCOVERED * mean.std_error


def regressed(
    moments: MomentsByLogger, outcome: Score, columns: Sequence[Score], *, within: bool
) -> Estimate:
    """Return the mean of an outcome, adjusted by a regression on columns.

    With the columns of all loggers, pooled least squares is best.  Without them the
    differences *between* loggers would bias the slopes, so these use `within` scatter only.
    """
    return estimated(_fitted(moments, outcome, columns, within=within), moments)


def _fitted(
    moments: MomentsByLogger, outcome: Score, columns: Sequence[Score], *, within: bool
) -> Linear:
    slopes, rank = least_squares(moments, outcome, columns, within=within)
    whole = together(moments)
    # a few heavy rows determine the slopes, so the effective sample size counts
    effective = whole.effective(BALANCED_WEIGHT) if whole.ddof else math.inf
    fit = Fit(outcome.less(slopes, columns), tuple(columns), effective, within)
    return fit.linear(moments, rank)


def least_squares(
    moments: MomentsByLogger, outcome: Score, columns: Sequence[Score], *, within: bool
) -> tuple[list[float], int]:
    """Return the slopes of an outcome on columns, and the rank of the columns.

    Columns are scaled, constant columns get slope 0, and collinear ones the slopes of least
    norm; otherwise slopes from tiny logs would explode.
    """
    whole = together(moments)
    terms = list(dict.fromkeys([*outcome.parts, *(t for c in columns for t in c.parts)]))
    groups = list(moments.values()) if within else [whole]
    scatter = sum((m.scatter_of(terms) for m in groups), np.zeros(()))
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
AS_NAIVE = Finding(
    "calibrated-as-naive",
    "Without the probability of each row under every logger, calibrated has no columns and "
    "falls back on naive.",
    "Give `propensities` (--propensities) under every logger.",
)
