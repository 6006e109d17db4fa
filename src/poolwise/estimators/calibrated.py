"""Estimators that use means which are known: self-normalised and calibrated.

A logger's probability over the mixture's has mean 1 under the mixture, and so has
the target's weight.  How far such a column is from 1 in the rows at hand tells how
lucky the sample was, and regression takes that luck back out.  With the columns of
the loggers alone this is at least as good as every way of weighting the logs: the
question that the paper left open.

Owen & Zhou (JASA 2000); Kondapaneni et al. (SIGGRAPH 2019); METHODS B1, B2, B7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from poolwise.errors import Finding, RefusedError, UsageError
from poolwise.estimators.ips import require_crossed
from poolwise.moments.estimate import Estimate, estimated, stratified
from poolwise.moments.linear import Fit, Score, by_count
from poolwise.moments.moments import Moments, MomentsByLogger, pooled
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

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

Columns = Literal["loggers", "target", "dr"]
COLUMNS = ("loggers", "target", "dr")
NULL_COLUMN = 1e-10  # of its mean square: a column with less variance is constant
NULL_EIGENVALUE = 1e-9  # per column: directions below it are collinear
ROWS_PER_COLUMN = 10  # effective rows that a slope must rest on
ROWS_OF_LOGGER = 10  # a column of 2 rows costs a point of coverage, one of 10 none that shows
MOST_COLUMNS = 64  # loggers with a column: each logger keeps the scatter of all pairs of them
BALANCED_PREDICTION = BALANCED_WEIGHT * PREDICTED_REWARD
UNCOVERED = 3.29  # standard errors below 1: a mean weight there is no accident (p 0.0005)


@dataclass(frozen=True)
class SelfNormalised:
    r"""IPS divided by the mean of its weights.

    $$\hat U = \sum w \delta \Big/ \sum w$$

    It moves with the rewards when a constant is added to them, and stays between their
    extremes; biased by $O(1/n)$. It needs *strict* support: where the target plays actions
    that nobody logged, even unrewarded ones, it is wrong.
    """

    weights: Literal["balanced", "own"] = "balanced"

    @property
    def name(self) -> str:
        return "self-normalised" if self.weights == "balanced" else "self-normalised-own"

    @property
    def _terms(self) -> tuple[Term, Term]:
        if self.weights == "own":
            return WEIGHTED_REWARD, WEIGHT
        return BALANCED_REWARD, BALANCED_WEIGHT

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        if self.weights == "balanced":
            require_crossed(self.name, loggers, crossed=crossed)
        return Needs(groups=(self._terms,))

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        reward, weight = self._terms
        together = pooled(moments.values())
        mean = together.mean(weight)
        if mean <= 0 or math.isinf(1 / mean):
            raise RefusedError("no-weight", f"{self.name} needs one row with a positive weight")
        value = together.mean(reward) / mean
        score = Score({reward: 1 / mean, weight: -value / mean}, value)
        return estimated(score.over(moments), moments)


@dataclass(frozen=True)
class Calibrated:
    r"""Balanced IPS, regressed on what is known to have mean zero.

    $$\hat U = \frac1n \sum_{rows} \Big( w \delta - \sum_k b_k
      \big(\tfrac{\pi_k}{\pi_{avg}} - 1\big) - b_0 (w - 1) \Big)$$

    with $w$ the balanced weight and $b$ by least squares over all rows.  In large logs it is
    never worse than naive, balanced, weighted or any single log, and adding a log never
    hurts.  Where there is a reward model, "dr" is $w \hat q - \sum_y \bar\pi \hat q$, and it is
    never worse than doubly robust either.  The columns "target" and "dr" need strict support;
    they are left out, with a finding, where the mean weight shows that support is missing.

    Attributes:
        columns: Which known means to use.
        guard: Fall back on fewer columns where the rows cannot bear them. Without it the
            columns are used as they are, as the formulas have it.
        known: Loggers that have a column, where the others' probabilities are unknown and
            the mixture was estimated; None says that all are known.
    """

    columns: tuple[Columns, ...] = ("loggers", "target")
    guard: bool = True
    known: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_columns(self.columns)

    @property
    def name(self) -> str:
        return "calibrated"

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        if not crossed:
            return Needs(groups=((WEIGHTED_REWARD,),))
        # the last one follows from the others, if all are known
        wanted = loggers[:-1] if self.known is None else self.known
        ratios = () if self.guard and many(loggers) else tuple(map(ratio, wanted))
        model = (BALANCED_PREDICTION, PREDICTED_VALUE) if "dr" in self.columns else ()
        return Needs(groups=((BALANCED_REWARD, BALANCED_WEIGHT, *ratios, *model),))

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        first = next(iter(moments.values()))
        if not first.has(BALANCED_REWARD):
            naive = stratified(moments, WEIGHTED_REWARD, by_count(moments))
            return replace(naive, findings=(AS_NAIVE,))
        controls, within, findings = self.controls(moments)
        outcome = Score({BALANCED_REWARD: 1.0})
        estimate = regressed(moments, outcome, controls, within=within)
        return replace(estimate, findings=findings)

    def controls(
        self, moments: MomentsByLogger
    ) -> tuple[list[Score], bool, tuple[Finding, ...]]:
        """Known means, whether slopes are those within loggers, and what was left out."""
        columns = self.columns
        findings: tuple[Finding, ...] = ()
        if self.guard:
            columns, findings = bearable(moments, columns)
        few = few_rows(moments) if self.guard and "loggers" in columns else ()
        if few:
            findings = (
                *findings,
                _too_small({i: moments[i].count for i in few}, ROWS_OF_LOGGER),
            )
        within = "loggers" not in columns or self.known is not None or bool(few)
        return controls_of(moments, columns, self.known, few), within, findings


def many(loggers: Collection[str]) -> bool:
    """Whether there are too many loggers to give each a column.

    The scatter of all pairs of columns is kept for each logger, and so grows with the cube
    of their number: half a megabyte at 40, a gigabyte at 500.
    """
    return len(loggers) > MOST_COLUMNS


def check_columns(columns: object) -> None:
    """Refuse what is no column."""
    if not isinstance(columns, tuple) or set(columns) - set(COLUMNS):
        raise UsageError(f"columns are 'loggers', 'target' and 'dr', not {columns!r}")


def few_rows(moments: MomentsByLogger) -> tuple[str, ...]:
    """Loggers whose slope would fit their own few rows, whose residuals then hide the error."""
    return tuple(i for i, m in moments.items() if m.ddof and m.count < ROWS_OF_LOGGER)


def controls_of(
    moments: MomentsByLogger,
    columns: Sequence[Columns],
    known: Sequence[str] | None = None,
    few: Collection[str] = (),
) -> list[Score]:
    """The known means that some columns stand for; loggers with `few` rows have none."""
    alone = [Score({ratio(i): 1.0}, -1.0) for i in known or () if i not in few]
    every = contrast_controls(moments, few) if few else logger_controls(moments)
    chosen = {
        "loggers": every if known is None else alone,
        "target": [Score({BALANCED_WEIGHT: 1.0}, -1.0)],
        "dr": [Score({BALANCED_PREDICTION: 1.0, PREDICTED_VALUE: -1.0})],
    }
    return [control for name in columns for control in chosen[name]]


def bearable(
    moments: MomentsByLogger, columns: tuple[Columns, ...]
) -> tuple[tuple[Columns, ...], tuple[Finding, ...]]:
    """Columns that these rows can bear, and why others were left out."""
    if "loggers" in columns and many(moments):
        others = tuple(c for c in columns if c != "loggers")
        fewer, findings = bearable(moments, others)
        return fewer, (_too_many(len(moments), MOST_COLUMNS), *findings)
    together = pooled(moments.values())
    if together.ddof == 0 or not columns:
        return columns, ()
    if columns != ("loggers",) and uncovered(moments):
        return tuple(c for c in columns if c == "loggers"), (
            _no_cover(together.mean(BALANCED_WEIGHT)),
        )
    effective = effective_balanced(together)
    size = ("loggers" in columns) * len(moments) + 1 + ("dr" in columns)
    if effective < ROWS_PER_COLUMN:
        return (), (_too_few(effective, "no column is used"),)
    if effective < ROWS_PER_COLUMN * size:  # never so for the target's column alone
        kept: tuple[Columns, ...] = ("target",) if "target" in columns else ()
        left_out = " and ".join(repr(c) for c in columns if c not in kept)
        return kept, (_too_few(effective, f"{left_out} are left out of the columns"),)
    return columns, ()


def logger_controls(moments: MomentsByLogger) -> list[Score]:
    """One column per logger; the last is what the others leave of the mixture.

    It adds nothing to the span, but keeps the answer from hanging on the loggers' order.
    """
    return list(_by_logger(moments).values())


def contrast_controls(moments: MomentsByLogger, few: Collection[str]) -> list[Score]:
    """Columns of the loggers with many rows, each less their mean.

    The mean itself is what the loggers with few rows leave of the mixture, and so rests on
    these few rows again.
    """
    large = {i: c for i, c in _by_logger(moments).items() if i not in few}
    if len(large) < 2:
        return []
    share = by_count({i: moments[i] for i in large})
    mean = sum((column * share[i] for i, column in large.items()), Score({}))
    return [column - mean for column in large.values()]


def _by_logger(moments: MomentsByLogger) -> dict[str, Score]:
    # loggers may come in any order; the last one is that which has no column of its own
    first = next(iter(moments.values()))
    last = next((i for i in moments if not first.has(ratio(i))), list(moments)[-1])
    others = [i for i in moments if i != last]
    share = by_count(moments)
    rest = {ratio(i): -share[i] / share[last] for i in others}
    known = {i: Score({ratio(i): 1.0}, -1.0) for i in others}
    return {**known, last: Score(rest, 1.0 / share[last] - 1.0)}


def uncovered(moments: MomentsByLogger) -> bool:
    """Whether the mean balanced weight is too far below 1 to be an accident."""
    mean = stratified(moments, BALANCED_WEIGHT, by_count(moments))
    if not math.isfinite(mean.variance):
        return False
    if mean.variance == 0:
        return mean.value < 1 - 1e-6
    return mean.value < 1 - UNCOVERED * mean.std_error


def regressed(
    moments: MomentsByLogger, outcome: Score, columns: Sequence[Score], *, within: bool
) -> Estimate:
    """Return the mean of an outcome, less what the columns explain of its luck.

    With the columns of all loggers, pooled least squares is best; without them the spread
    *between* loggers would mislead it, so that only the spread `within` them counts.
    """
    slopes, rank = least_squares(moments, outcome, columns, within=within)
    together = pooled(moments.values())
    # few heavy rows decide the slopes: they are worth `effective` rows, not all
    effective = effective_balanced(together) if together.ddof else math.inf
    fit = Fit(outcome.less(slopes, columns), tuple(columns), effective)
    return estimated(fit.linear(moments, rank), moments)


def effective_balanced(together: Moments) -> float:
    """Rows of equal balanced weight that would be worth as much."""
    square = together.mean_square(BALANCED_WEIGHT)
    return together.count * together.mean(BALANCED_WEIGHT) ** 2 / square if square > 0 else 0.0


def least_squares(
    moments: MomentsByLogger, outcome: Score, columns: Sequence[Score], *, within: bool
) -> tuple[list[float], int]:
    """Return the slopes of an outcome on columns, and their rank.

    Columns are scaled, constant ones get slope 0, and of collinear ones the shortest slopes
    are taken; otherwise tiny logs would blow the slopes up.
    """
    together = pooled(moments.values())
    terms = list(dict.fromkeys([*outcome.parts, *(t for c in columns for t in c.parts)]))
    groups = list(moments.values()) if within else [together]
    scatter = sum((m.scatter_of(terms) for m in groups), np.zeros(()))
    covariance = scatter / together.count
    mix = np.array([[c.parts.get(t, 0.0) for t in terms] for c in columns])
    mix = mix.reshape(len(columns), len(terms))
    wanted = np.array([outcome.parts.get(t, 0.0) for t in terms])
    inner, outer = mix @ covariance @ mix.T, mix @ covariance @ wanted
    means = mix @ np.array([together.mean(t) for t in terms])
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


def _no_cover(mean: float) -> Finding:
    """The target plays what nobody logged, so that its weights do not average 1."""
    return Finding(
        "target-uncovered",
        f"The balanced weights average {mean:.3f} instead of 1: the target plays actions that "
        f"no logger plays, about {1 - mean:.1%} of the time, or probabilities are wrong (or, "
        "where they were estimated, rough). The columns that rest on the target's weights are "
        "left out.",
        "Log such actions before relying on any estimate, unless they are known to earn 0.",
        "alarm",
    )


def _too_many(loggers: int, most: int) -> Finding:
    """There are more loggers than can have a column each."""
    return Finding(
        "many-loggers",
        f"There are {loggers} loggers, more than {most}: their columns are left out of "
        "calibrated, which then knows only that the target's weights average 1.",
        "Give loggers that play nearly alike one label and one column of `propensities`.",
    )


def _too_few(effective: float, what: str) -> Finding:
    """The weights are too uneven for these columns."""
    return Finding(
        "few-effective-rows",
        f"The weights are worth {effective:.1f} rows only, so {what}.",
        "Collect more rows from loggers that are closer to the target.",
    )


def _too_small(rows: Mapping[str, int], fewest: int) -> Finding:
    """Some loggers wrote too few rows for a column of their own."""
    found = ", ".join(f"{i!r} ({count:,})" for i, count in rows.items())
    return Finding(
        "few-rows-of-logger",
        f"Loggers with fewer than {fewest} rows have no column in calibrated: {found}. A slope "
        "would fit those rows alone and hide their error.",
        "Give loggers that play nearly alike one label and one column of `propensities`.",
        "note",
    )


AS_NAIVE = Finding(
    "calibrated-as-naive",
    "Without the probability of each row under every logger there is nothing to calibrate "
    "on: calibrated falls back on naive.",
    "Give `propensities` (--propensities) under every logger.",
)
