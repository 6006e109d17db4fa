"""Cross-fitting: calibrated without the bias of its slopes.

Slopes that are fitted to the rows that they correct bias the estimate by the order of
columns over rows.  Slopes from the other folds are independent of a fold's rows, and the
estimate is exactly unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from poolwise.errors import RefusedError, UsageError
from poolwise.estimators.calibrated import Calibrated, least_squares
from poolwise.moments.estimate import Estimate
from poolwise.moments.linear import Linear, Score, by_count
from poolwise.moments.moments import pooled_buckets
from poolwise.moments.terms import BALANCED_REWARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.errors import Finding
    from poolwise.moments.moments import MomentsByLogger
    from poolwise.moments.terms import Needs


@dataclass(frozen=True)
class CrossFitted:
    """Calibrated, with each fold corrected by slopes from the other folds.

    Attributes:
        inner: Estimator with the columns to use.
        folds: Number of parts into which the rows are split.
    """

    inner: Calibrated = field(default_factory=Calibrated)
    folds: int = 5

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise UsageError(f"folds must be at least 2, got {self.folds}")

    @property
    def name(self) -> str:
        return "cross-fitted"

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        if not crossed:
            raise RefusedError(
                "cross-fitted-refused",
                "cross-fitted requires `propensities` under every logger",
            )
        return self.inner.needs(loggers, crossed=crossed)

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        """Return the estimate without folds, the limit in large logs."""
        return self.inner.estimate(moments)

    def estimate_folds(self, buckets: Sequence[MomentsByLogger]) -> Estimate:
        """Return the estimate from the moments per bucket."""
        whole = pooled_buckets(buckets)
        folds = [pooled_buckets(buckets[k :: self.folds]) for k in range(self.folds)]
        absent = [i for i in whole if any(i not in fold for fold in folds)]
        if absent:
            counts = ", ".join(f"{i!r} ({whole[i].count:,} rows)" for i in absent)
            raise RefusedError(
                "too-few-for-folds",
                f"every logger must have rows in each of the {self.folds} folds, but these do "
                f"not: {counts}. Use fewer folds, or leave them out.",
            )
        columns, within, findings = self.inner.controls(whole)  # with the mixture of all rows
        outcome = Score({BALANCED_REWARD: 1.0})
        scores = []
        for k in range(self.folds):
            others = pooled_buckets([fold for j, fold in enumerate(folds) if j != k])
            slopes, _ = least_squares(others, outcome, columns, within=within)
            scores.append(outcome.less(slopes, columns))
        return _combined(whole, folds, scores, findings)


def _combined(
    whole: MomentsByLogger,
    folds: Sequence[MomentsByLogger],
    scores: Sequence[Score],
    findings: tuple[Finding, ...],
) -> Estimate:
    """Combine folds in proportion to their rows, and loggers to their rows in all folds.

    `linear` has the mean score of the folds.
    """
    share, rows = by_count(whole), sum(m.count for m in whole.values())
    value, variance, mean = 0.0, 0.0, Score({})
    for fold, score in zip(folds, scores, strict=True):
        size = sum(m.count for m in fold.values()) / rows
        means = Linear({i: {t: share[i] * c for t, c in score.parts.items()} for i in fold})
        value += size * (means.value(fold) + score.constant)
        variance += size**2 * score.over(fold).variance(fold)[0]
        mean += score * size
    freedom = scores[0].over(whole).variance(whole)[1]
    linear = mean.over(whole)
    linear = replace(linear, constant=linear.constant + value - linear.value(whole))
    return Estimate(value, variance, share, freedom, findings, linear)
