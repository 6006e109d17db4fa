"""Clicks: support, backtest and estimators of a click log, in place of those of probabilities.

The value of a ranker is its clicks per request, so every ranker of the log is a test: the
others predict its clicks on the items that they show, and it made these clicks itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from poolwise.errors import Finding, UsageError
from poolwise.evaluation.backtest import (
    BACKTEST_DIRECTIONS,
    BACKTEST_SEED,
    HARDLY,
    Backtest,
    Prediction,
    judge_misfit,
)
from poolwise.intervals.simultaneous import ALONE, factor_correlation, max_t
from poolwise.intervals.student import Interval
from poolwise.log.clicks import jackknife_variance
from poolwise.moments.buckets import jackknife_freedom
from poolwise.text import join_names, percent, places_for, quote_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.evaluation.read import OpenLog
    from poolwise.intervals.simultaneous import MaxT
    from poolwise.log.clicks import Predicted, Support
    from poolwise.moments.estimate import Estimate

BALANCED = "balanced"
ENOUGH_SUPPORT = 0.99  # support below which a warning says what is missing


class ClickBacktest(Backtest):
    """Each ranker's clicks, predicted from the requests of the other rankers."""

    @property
    def sentence(self) -> str:
        off = [p for p in self.loggers.values() if not p.fits]
        if not any(p.compared for p in self.loggers.values()):
            return "No ranker shows items that others show: there is nothing to compare."
        if not off:
            return (
                "Each ranker had the clicks that the other rankers predict, within the error."
            )
        clauses = "; ".join(map(_contradiction, off))
        why = "position alone does not explain these clicks."
        return f"Predicted from the other rankers, {clauses}: {why}"


def _contradiction(p: Prediction) -> str:
    digits = places_for(p.predicted_error)
    return (
        f"{p.logger!r} would have {p.predicted:.{digits}f} "
        f"clicks per request; it had {p.earned:.{digits}f}"
    )


def click_backtest(rows: OpenLog) -> ClickBacktest:
    """Predict the clicks of each ranker from the requests of the others."""
    level, counts = rows.request.level, rows.rows.counts
    if len(counts) < 2:
        raise UsageError(
            "a backtest predicts each logger from the others, and this log has one logger: "
            "add the rows of others"
        )
    tests = ClickTests.of(rows.rows.click_predictions(), level)
    requests = rows.request.log.requests
    result = ClickBacktest(
        {i: tests.prediction(i, count) for i, count in counts.items()},
        level,
        rows_per_request=None if requests is None else requests.rows,
    )
    return replace(result, findings=tuple(_findings(result)))


@dataclass(frozen=True, eq=False)
class ClickTests:
    """ClickTests of all predictions, which hold together.

    Attributes:
        found: Both sides of each ranker.
        level: Level at which all of them hold.
        errors: Standard error of each difference.
        freedom: Degrees of freedom of each error.
        family: Distribution of the largest of the differences.
    """

    found: Mapping[str, Predicted]
    level: float
    errors: Mapping[str, float]
    freedom: Mapping[str, float]
    family: MaxT

    @classmethod
    def of(cls, found: Mapping[str, Predicted], level: float) -> ClickTests:
        """Return the tests of these predictions."""
        without = np.column_stack([p.without[:, 0] - p.without[:, 1] for p in found.values()])
        gaps = without - without.mean(axis=0)
        covariance = (len(gaps) - 1) / len(gaps) * gaps.T @ gaps
        errors = np.sqrt(np.diag(covariance)).tolist()
        freedom = [
            jackknife_freedom(p.rows, gap) if gap.any() else math.inf
            for p, gap in zip(found.values(), gaps.T, strict=True)
        ]
        family = max_t(
            factor_correlation(covariance),
            np.random.default_rng(BACKTEST_SEED),
            BACKTEST_DIRECTIONS,
        )
        return cls(
            found,
            level,
            dict(zip(found, errors, strict=True)),
            dict(zip(found, freedom, strict=True)),
            family,
        )

    def prediction(self, logger: str, rows: int) -> Prediction:
        """Return the prediction of one ranker with its test."""
        found, error = self.found[logger], self.errors[logger]
        freedom = self.freedom[logger]
        predicted_error, earned_error = np.sqrt(jackknife_variance(found.without)).tolist()
        z = (found.predicted - found.earned) / error if error > 0 else 0.0
        critical, score = self.family.critical(self.level), np.array([abs(z)])
        if math.isfinite(freedom):
            critical = -float(stdtrit(freedom, float(ndtr(-critical))))
            tail = stdtr(freedom, -score)
            score = np.where(tail > 0, -ndtri(tail), score)
        reach = critical * error if error > 0 else math.inf
        return Prediction(
            logger=logger,
            rows=rows,
            supported=found.supported,
            effective_rows=found.effective,
            predicted=found.predicted,
            predicted_error=predicted_error,
            earned=found.earned,
            earned_error=earned_error,
            interval=Interval(found.predicted - reach, found.predicted + reach, self.level),
            z=z,
            p_value=float(ALONE.p_values(score)[0]),
            adjusted=float(self.family.p_values(score)[0]),
        )


def _findings(result: ClickBacktest) -> list[Finding]:
    """Return the findings that predictions fail, and that rankers share few items."""
    findings = []
    if not result.fits:
        least = min(p.adjusted for p in result.loggers.values())
        findings.append(
            Finding(
                "backtest-off",
                result.sentence,
                "Users may stop at the first good item, or rankers may have been live at "
                "different times: values may be off by as much.",
                judge_misfit(least),
            )
        )
    few = [i for i, p in result.loggers.items() if p.supported < HARDLY]
    if few:
        findings.append(
            Finding(
                "backtest-unsupported",
                f"Other rankers do not show most items of {quote_names(few, 'rankers')}: less "
                "than half of these items are compared.",
                "The backtest says nothing about the rest.",
                "note",
            )
        )
    return findings


def support_findings(support: Support, estimates: Mapping[str, Estimate]) -> list[Finding]:
    """Return the findings that items of a target were not shown."""
    findings = []
    if support.together < ENOUGH_SUPPORT:
        missing = 1 - support.together
        findings.append(
            Finding(
                "items-not-shown",
                f"No ranker shows items with {percent(missing)} of the target's "
                "examinations: the clicks on them are missing in its value.",
                "Compare it with rankers whose lists it shares, or log some requests with it.",
            )
        )
    apart = {name: support.alone(e.shares) for name, e in estimates.items() if name != BALANCED}
    low = {name: part for name, part in apart.items() if part < ENOUGH_SUPPORT}
    if low:
        parts = join_names([f"{percent(part)} ({name})" for name, part in low.items()])
        findings.append(
            Finding(
                "items-not-shown-by-each",
                "Single rankers show items with less of the target's examinations: "
                f"{parts}. Clicks on the others are missing in these estimates.",
                "Rely on balanced, which only requires that some ranker shows an item.",
                "note",
            )
        )
    return findings
