"""Clicks: support, backtest and estimators of a click log, in place of those of probabilities.

The value of a ranker is its clicks per request, so every ranker of the log is a test: the
others predict its clicks on the items that they show, and it made these clicks itself.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from poolwise.errors import Finding, UsageError
from poolwise.evaluation.backtest import (
    BACKTEST_DIRECTIONS,
    BACKTEST_SEED,
    EARNED,
    HARDLY,
    PREDICTED,
    Backtest,
    Prediction,
    judge_misfit,
)
from poolwise.evaluation.differences import conclude
from poolwise.evaluation.spread import ErrorSource, Spread
from poolwise.intervals.student import Interval
from poolwise.log.clicks import jackknife_variance
from poolwise.moments.buckets import jackknife_freedom
from poolwise.text import join_names, percent, places_for, quote_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.evaluation.read import OpenLog
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
    predictions = judge_predictions(rows.rows.click_predictions(), counts, level)
    requests = rows.request.log.requests
    result = ClickBacktest(
        predictions,
        level,
        rows_per_request=None if requests is None else requests.rows,
    )
    return replace(result, findings=tuple(_findings(result)))


def judge_predictions(
    found: Mapping[str, Predicted], counts: Mapping[str, int], level: float
) -> dict[str, Prediction]:
    """Return the predictions of all rankers, whose intervals hold together.

    Args:
        found: Both sides of each ranker, also without each bucket.
        counts: Rows of each ranker.
        level: Level at which all of them hold.
    """
    without = np.column_stack([p.without[:, 0] - p.without[:, 1] for p in found.values()])
    gaps = without - without.mean(axis=0)
    covariance = (len(gaps) - 1) / len(gaps) * gaps.T @ gaps
    freedom = [
        jackknife_freedom(p.rows, gap) if gap.any() else math.inf
        for p, gap in zip(found.values(), gaps.T, strict=True)
    ]
    spread = Spread(
        np.array([p.predicted - p.earned for p in found.values()]),
        [ErrorSource(csr_array(np.eye(len(found))), covariance, math.inf)],
        np.array(freedom),
    )
    family = spread.together(np.random.default_rng(BACKTEST_SEED), BACKTEST_DIRECTIONS)
    differences = conclude([(PREDICTED, EARNED)] * len(found), spread, family, level)
    predictions = {}
    for (i, p), d in zip(found.items(), differences, strict=True):
        predicted_error, earned_error = np.sqrt(jackknife_variance(p.without)).tolist()
        predictions[i] = Prediction(
            logger=i,
            rows=counts[i],
            supported=p.supported,
            effective_rows=p.effective,
            predicted=p.predicted,
            predicted_error=predicted_error,
            earned=p.earned,
            earned_error=earned_error,
            interval=Interval(p.earned + d.interval.lower, p.earned + d.interval.upper, level),
            z=d.value / d.std_error if d.std_error > 0 else 0.0,
            p_value=d.p_value,
            adjusted=d.adjusted,
        )
    return predictions


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
