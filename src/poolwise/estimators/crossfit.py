"""Cross-fitted slopes: the last bias of calibrated, taken out.

Slopes that were fitted to the same rows they correct leave a bias of the order of
columns over rows.  Fitted to the other folds, they are numbers given beforehand as far
as a fold is concerned, and the estimate is exactly unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from poolwise.errors import RefusedError, UsageError
from poolwise.estimators.calibrated import Calibrated, least_squares
from poolwise.moments.estimate import Estimate
from poolwise.moments.linear import Linear, Score, by_count
from poolwise.moments.moments import MomentsByLogger, pooled
from poolwise.moments.terms import BALANCED_REWARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolwise.errors import Finding
    from poolwise.moments.terms import Needs


@dataclass(frozen=True)
class CrossFitted:
    """Calibrated, each fold corrected with slopes from the others.

    Attributes:
        inner: Which columns to use.
        folds: Into how many parts the rows are split.
    """

    inner: Calibrated = field(default_factory=Calibrated)
    folds: int = 5

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise UsageError(f"cross-fitting needs two folds at least, not {self.folds}")

    @property
    def name(self) -> str:
        return "cross-fitted"

    def needs(self, loggers: Sequence[str], *, crossed: bool) -> Needs:
        if not crossed:
            raise RefusedError(
                "cross-fitted-refused", "cross-fitted needs `propensities` under every logger"
            )
        return self.inner.needs(loggers, crossed=crossed)

    def estimate(self, moments: MomentsByLogger) -> Estimate:
        """What it tends to in large logs, where the folds no longer matter."""
        return self.inner.estimate(moments)

    def estimate_folds(self, buckets: Sequence[MomentsByLogger]) -> Estimate:
        """The estimate from rows that were split into buckets."""
        whole = _merged(buckets)
        folds = [_merged(buckets[k :: self.folds]) for k in range(self.folds)]
        short = [i for i in whole if any(i not in fold for fold in folds)]
        if short:
            found = ", ".join(f"{i!r} ({whole[i].count:,} rows)" for i in short)
            raise RefusedError(
                "too-few-for-folds", f"{found} has no rows in some of the {self.folds} folds"
            )
        columns, within, findings = self.inner.controls(whole)  # the mixture is of all rows
        outcome = Score({BALANCED_REWARD: 1.0})
        scores = []
        for k in range(self.folds):
            others = _merged([fold for j, fold in enumerate(folds) if j != k])
            slopes, _ = least_squares(others, outcome, columns, within=within)
            scores.append(outcome.less(slopes, columns))
        return _combined(whole, folds, scores, findings)


def _merged(buckets: Sequence[MomentsByLogger]) -> MomentsByLogger:
    loggers = dict.fromkeys(i for bucket in buckets for i in bucket)
    return {i: pooled(b[i] for b in buckets if i in b) for i in loggers}


def _combined(
    whole: MomentsByLogger,
    folds: Sequence[MomentsByLogger],
    scores: Sequence[Score],
    findings: tuple[Finding, ...],
) -> Estimate:
    """Return the folds in proportion to their rows, loggers in proportion to all of theirs.

    Differences from other estimates use the mean score of the folds.
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
