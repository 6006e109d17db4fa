r"""Backtest: predict what each logger earned from the rows of the other loggers.

Several loggers make a test possible that one log does not allow.  The policy of logger i is
estimated from the rows of the others, and compared with the mean reward of its own rows:

$$d_i = \frac{1}{n - n_i} \sum_{\text{rows of others}} w_i (r - b_i)
  - \frac{1}{n_i} \sum_{\text{rows of } i} s_i (r - b_i)$$

with $w_i$ the probability of logger i over the mixture of the others, where that is at most a
bound, and $s_i$ 1 in these rows and 0 in others: where the others hardly ever play what logger
i plays, both sides are silent.  Both sums have the same expectation for every constant $b_i$,
whose value by regression minimises the variance.  All rewards, probabilities and rows of the
log enter, so a logger that does not fit shows; to name it, the log is read once more without
each logger in turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from poolwise.diagnosis.findings import ALARMING, RARE
from poolwise.diagnosis.provenance import on_own, target_on_log
from poolwise.engines import as_engine, with_loggers
from poolwise.errors import Finding, UsageError
from poolwise.estimators.calibrated import MOST_COLUMNS, ROWS_PER_COLUMN
from poolwise.estimators.ips import Balanced
from poolwise.evaluation.differences import Bonferroni, conclude
from poolwise.evaluation.output import Reported, Row, of_requests
from poolwise.evaluation.read import run
from poolwise.evaluation.request import request
from poolwise.evaluation.spread import Candidates
from poolwise.intervals.simultaneous import factor_correlation, max_t
from poolwise.intervals.student import Interval
from poolwise.moments.buckets import BUCKETS
from poolwise.moments.estimate import Estimate, make_estimate
from poolwise.moments.linear import Linear, by_count
from poolwise.moments.terms import NO_NEEDS, REWARD, Needs, others_play, others_weight, unite
from poolwise.moments.units import centre_units
from poolwise.report.breakdown import backtest_chart, backtest_table
from poolwise.text import join_names, p_text, quote_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import altair as alt

    from poolwise.engines.base import EngineLike, Rows
    from poolwise.errors import Severity
    from poolwise.evaluation.differences import Difference, Family
    from poolwise.evaluation.read import Answers, OpenLog
    from poolwise.evaluation.spread import Spread
    from poolwise.log.log import Log
    from poolwise.moments.pool import Pool
    from poolwise.moments.terms import Term
    from poolwise.report.tables import Grid
    from poolwise.types import FloatArray

MOST_WEIGHT = 100.0  # of a row: others that play an action less often say nothing about it
ROWS_PER_WEIGHT = 50  # rows of the others for each unit of the bound, so that no row dominates
LEAST_WEIGHT = 2.0  # of the bound, in small logs
HARDLY = 0.5  # share of a logger's rows below which a note says that few are compared
LEAST_WARNING = 1e-3  # p-value below which a failed prediction is more than a note
QUICK_ROWS, QUICK_LOGGERS = 1_000_000, 20  # at most: predictions then take little time
BACKTEST_DIRECTIONS = 20_000  # drawn for a critical value: a standard error of 0.01 at most
BACKTEST_SEED = 20170813  # the same rows give the same critical value
SAVED = "a backtest reads rows, which saved moments lack: read the log itself"
PREDICTED, EARNED = "predicted", "earned"  # names of the two sides


# --- results -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """Prediction of what one logger earned, from the rows of the others.

    Attributes:
        logger: Label of the logger.
        rows: Its rows.
        supported: Share of its rows whose action the others play often enough.
        effective_rows: Effective rows of the others behind the prediction.
        predicted: Mean reward of its policy where it is supported, from the rows of others.
        predicted_error: Standard error of `predicted`.
        earned: Mean reward of its own rows where it is supported; others count as 0.
        earned_error: Standard error of `earned`.
        interval: Range that `earned` is expected in; it holds for all loggers together.
        z: Distance of the two in standard errors, which allows for few and skewed rows.
        p_value: P-value of no difference, for this logger alone.
        adjusted: P-value adjusted for all loggers: below 1 - level if and only if `earned` is
            outside the interval.
        p_without: P-value that all other loggers agree with each other if this one is left
            out; None if no logger had to be left out.
    """

    logger: str
    rows: int
    supported: float
    effective_rows: float
    predicted: float
    predicted_error: float
    earned: float
    earned_error: float
    interval: Interval
    z: float
    p_value: float
    adjusted: float
    p_without: float | None = None

    @property
    def fits(self) -> bool:
        """True if the logger earned what the others predict, within the error."""
        return self.earned in self.interval

    @property
    def compared(self) -> bool:
        """True if the rows show an error, so that the prediction says something."""
        return math.isfinite(self.interval.upper - self.interval.lower)

    def to_dict(self) -> Row:
        """Return the prediction under flat names."""
        row = {name: value for name, value in vars(self).items() if name != "interval"}
        ends = {"lower": self.interval.lower, "upper": self.interval.upper}
        return row | ends | {"fits": self.fits}


@dataclass(frozen=True, repr=False)
class Backtest(Reported):
    """Each logger's mean reward, predicted from the rows of the other loggers.

    Attributes:
        loggers: Prediction of each logger.
        level: Level at which the intervals of all loggers hold together.
        findings: Findings about the log; one says if predictions fail.
        rows_per_request: Rows of a request; None if values are those of rows.
    """

    kind = "backtest"
    labels = ("logger",)
    loggers: Mapping[str, Prediction]
    level: float
    findings: tuple[Finding, ...] = ()
    rows_per_request: int | None = None

    def __getitem__(self, logger: str) -> Prediction:
        return self.loggers[logger]

    @property
    def fits(self) -> bool:
        """True if all loggers earned what the others predict."""
        return all(p.fits for p in self.loggers.values())

    @property
    def misfit(self) -> str:
        """Label of the logger that does not fit; empty if all fit, or if there are but two.

        It is the logger without which the others agree best with each other.
        """
        left_out = {i: p.p_without for i, p in self.loggers.items() if p.p_without is not None}
        return max(left_out, key=lambda i: left_out[i]) if left_out else ""

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        return _sentence(self)

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per logger, with unrounded numbers."""
        return [{**p.to_dict(), "level": self.level} for p in self.loggers.values()]

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        return {
            "sentence": self.sentence,
            "fits": self.fits,
            "misfit": self.misfit,
            "level": self.level,
            "loggers": [p.to_dict() for p in self.loggers.values()],
            "warnings": self.warnings,
            **of_requests(self.rows_per_request),
        }

    @property
    def opening(self) -> Sequence[str]:
        return (self.sentence,)

    def grids(self) -> list[Grid]:
        """Return the table of the loggers."""
        return [backtest_table(self.to_dict())]

    def charts(self) -> dict[str, alt.LayerChart]:
        """Return the chart of the report by name, as an Altair object."""
        return {"backtest": backtest_chart(self.to_dict())}

    def page_text(self, command: str = "", question: Mapping[str, object] | None = None) -> str:
        from poolwise.report.page import backtest_page

        return backtest_page(self.to_dict(), command=command, question=question)


def _sentence(result: Backtest) -> str:
    """Return the result of a backtest in words."""
    off = [i for i, p in result.loggers.items() if not p.fits]
    silent = [i for i, p in result.loggers.items() if not p.compared]
    if len(silent) == len(result.loggers):
        return "The other logs predict no logger: there is nothing to compare."
    if not off:
        each = (
            f"Each logger except {quote_names(silent, 'loggers')}" if silent else "Each logger"
        )
        return f"{each} earned what the other logs predict, within the error."
    apart = f"{quote_names(off, 'loggers')} did not earn what the other logs predict"
    if not result.misfit:
        return f"The logs contradict each other: {apart}. Which of two is wrong is unknown."
    misfit, alpha = result.loggers[result.misfit], 1 - result.level
    rest = {i: p.p_without or 0.0 for i, p in result.loggers.items() if i != result.misfit}
    agree = "agree with each other" if (misfit.p_without or 0.0) >= alpha else "agree best"
    start = f"Logger {result.misfit!r} does not fit: without it the others {agree}"
    start += f" (p {_equals(misfit.p_without or 0.0)})"
    also = [f"{i!r} (p {_equals(p)})" for i, p in rest.items() if p >= alpha]
    return f"{start}. They also do without {join_names(also, 'or')}." if also else f"{start}."


def _equals(p_value: float) -> str:
    text = p_text(p_value)
    return text if text.startswith("<") else f"= {text}"


# --- the question ------------------------------------------------------------------------


def backtest(log: Log, *, level: float = 0.95, engine: EngineLike = None) -> Backtest:
    """Predict what each logger earned from the other logs, and compare.

    One pass over the rows; if a prediction fails, one more without each logger, which names
    the logger that does not fit.

    Args:
        log: The rows, of at least two loggers, with `propensities` of every logger.
        level: Level at which all predictions hold together.
        engine: As for `evaluate`.
    """
    if as_engine(engine, log).saved:
        raise UsageError(SAVED)
    log = with_loggers(log, engine)
    refuse_backtest(log)
    first = next((i, p) for i, p in log.by_label.items() if p is not None)
    asked = request(log, dict([first]), Balanced(), level=level)  # a pass has a target
    return run(asked, engine, _backtest_in_pass if log.clicks is None else _backtest_clicks)


def _backtest_clicks(rows: OpenLog) -> Backtest:
    from poolwise.evaluation.clicks import click_backtest  # which imports this module

    return click_backtest(rows)


def _backtest_in_pass(rows: OpenLog) -> Backtest:
    answers = rows.read(also=backtest_needs(rows))
    found = compute_backtest(rows, answers)
    return replace(found, findings=(*found.findings, *answers.findings))


def refuse_backtest(log: Log) -> None:
    """Raise UsageError if a log lacks what the predictions need."""
    if log.period is not None:
        raise UsageError(
            "a backtest requires policies that were fixed before the first row: leave out "
            "`period` (--period), or take the rows of one period"
        )
    if not log.crossed:
        missing = [i for i, policy in log.by_label.items() if policy is None]
        lacking = f", also for {quote_names(missing, 'loggers')}" if missing else ""
        raise UsageError(
            "a backtest requires the probability of each row's action under every logger: give "
            f"`propensities` (--propensities) for each of them{lacking}"
        )


def is_quick(rows: OpenLog) -> bool:
    """Test if a backtest applies to an open log, and takes little time."""
    log, counts = rows.request.log, rows.rows.counts
    if log.clicks is not None:
        return len(counts) > 1
    applies = log.crossed and rows.coverage.crossed and log.period is None
    few = 2 <= len(counts) <= QUICK_LOGGERS and sum(counts.values()) <= QUICK_ROWS
    return applies and few and rows.rows.by_kernel and not log.trained_on


def backtest_needs(rows: OpenLog) -> Needs:
    """Return the moments that a backtest of an open log needs; none for a log of clicks."""
    if rows.request.log.clicks is not None:  # which has sums of its own
        return NO_NEEDS
    refuse_backtest(rows.request.log)
    if rows.rows.saved:
        raise UsageError(SAVED)
    if len(rows.rows.counts) < 2:
        raise UsageError(
            "a backtest predicts each logger from the others, and this log has one logger: "
            "add the rows of others"
        )
    if len(rows.rows.counts) > MOST_COLUMNS:
        raise UsageError(
            f"a backtest takes at most {MOST_COLUMNS} loggers, got {len(rows.rows.counts):,}: "
            "merge loggers, or take the rows of some of them"
        )
    shaped = rows.request.interval.shaped and rows.rows.shaped
    return _needs(rows.rows.counts, shaped=shaped)


def _needs(counts: Mapping[str, int], *, shaped: bool) -> Needs:
    groups = [_Terms.of(i, counts).group for i in counts]
    sliced = tuple(term for group in groups for term in group) if shaped else ()
    return unite([Needs((REWARD,), tuple(groups), slices=sliced)])


def compute_backtest(rows: OpenLog, answers: Answers) -> Backtest:
    """Return the predictions from a pass that had `backtest_needs`.

    If one of them fails, the rows are read again without each logger in turn.
    """
    asked, target = answers.request, answers.request.names[0]
    found = _Comparison(answers.pool(target), asked.level).predictions()
    if len(found) > 2 and not all(p.fits for p in found.values()):
        found = {
            i: replace(p, p_without=_test_rest(rows, i, asked.level)) for i, p in found.items()
        }
    log = asked.log
    result = Backtest(
        loggers=found,
        level=asked.level,
        rows_per_request=None if log.requests is None else log.requests.rows,
    )
    trained = on_own(log.trained_on, tuple(found))
    overfitted = [target_on_log(i, logs) for i, logs in trained.items()]
    return replace(result, findings=(*_misfit_findings(result), *overfitted))


def _test_rest(rows: OpenLog, logger: str, level: float) -> float:
    """Return the p-value that the loggers except one agree."""
    rest: Rows = rows.rows.without(logger)
    clustered = rows.request.clustered
    shaped = rows.request.interval.shaped and rows.rows.shaped
    needs = _needs(rest.counts, shaped=shaped and not clustered)
    pool = rest.bucketed([needs], BUCKETS)[0] if clustered else rest.moments(needs)
    found = _Comparison(pool, level)
    return min(difference.adjusted for difference in found.differences.values())


def judge_misfit(p_value: float) -> Severity:
    """Return the severity of a failed prediction: some fail in clean logs, at their level."""
    if p_value >= LEAST_WARNING:
        return "note"
    return "alarm" if p_value < ALARMING else "warning"


def _misfit_findings(result: Backtest) -> list[Finding]:
    """Return the findings that predictions fail, and that loggers are hardly supported."""
    findings = []
    if not result.fits:
        least = min(p.adjusted for p in result.loggers.values())
        which = f"logger {result.misfit!r}" if result.misfit else "both loggers"
        findings.append(
            Finding(
                "backtest-off",
                f"{result.sentence} Wrong probabilities or rewards, or a change between the "
                "logs, do this.",
                f"Check probabilities, rewards and dates of {which} before you pool the logs.",
                judge_misfit(least),
            )
        )
    few = [i for i, p in result.loggers.items() if p.supported < HARDLY]
    if few:
        findings.append(
            Finding(
                "backtest-unsupported",
                f"The others hardly ever play most actions of {quote_names(few, 'loggers')}: "
                "less than half of these rows are compared.",
                "Log more of these actions with another policy.",
                "note",
            )
        )
    return findings


# --- one comparison ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Terms:
    """Terms of the prediction of one logger.

    Attributes:
        weight: Its probability over the mixture of the others, where at most a bound.
        supported: 1 in the same rows, 0 in others.
    """

    weight: Term
    supported: Term

    @classmethod
    def of(cls, logger: str, counts: Mapping[str, int]) -> _Terms:
        others = sum(counts.values()) - counts[logger]
        bound = max(LEAST_WEIGHT, min(MOST_WEIGHT, others / ROWS_PER_WEIGHT))
        return cls(others_weight(logger, bound), others_play(logger, bound))

    @property
    def group(self) -> tuple[Term, ...]:
        """All terms, with the rewards."""
        own = (self.weight, self.supported)
        return (*own, *(term * REWARD for term in own))


class _Comparison:
    """Both sides of all loggers and their differences, from the moments of one pass."""

    def __init__(self, pool: Pool, level: float) -> None:
        self.pool, self.level = pool, level
        counts = {i: pool[i].count for i in pool.loggers}
        self.terms = {i: _Terms.of(i, counts) for i in pool.loggers}
        self.effective = {
            i: pool.keep(k for k in pool if k != i).together.effective(t.weight)
            for i, t in self.terms.items()
        }
        self.sides = {i: self._sides(i) for i in pool.loggers}
        self.spreads = {i: self._spread(i) for i in pool.loggers}
        family = self._family()
        self.differences: dict[str, Difference] = {}
        for i, spread in self.spreads.items():
            (self.differences[i],) = conclude([(PREDICTED, EARNED)], spread, family, level)

    def predictions(self) -> dict[str, Prediction]:
        """Return the prediction of each logger."""
        return {i: self._prediction(i) for i in self.pool.loggers}

    def _prediction(self, logger: str) -> Prediction:
        difference, (predicted, earned) = self.differences[logger], self.sides[logger].values()
        score = float(self.spreads[logger].scores()[0])
        ends = difference.interval
        return Prediction(
            logger=logger,
            rows=self.pool[logger].count,
            supported=self.pool[logger].mean(self.terms[logger].supported),
            effective_rows=self.effective[logger],
            predicted=predicted.value,
            predicted_error=predicted.std_error,
            earned=earned.value,
            earned_error=earned.std_error,
            interval=Interval(earned.value + ends.lower, earned.value + ends.upper, self.level),
            z=math.copysign(score, difference.value),
            p_value=difference.p_value,
            adjusted=difference.adjusted,
        )

    def _sides(self, logger: str) -> dict[str, Estimate]:
        """Return what is predicted and what was earned, each with its linear combination."""
        terms = self.terms[logger]
        share = by_count({k: m for k, m in self.pool.items() if k != logger})
        weighted = Linear({k: {terms.weight * REWARD: part} for k, part in share.items()})
        earned = Linear({logger: {terms.supported * REWARD: 1.0}})
        column = Linear({k: {terms.weight: part} for k, part in share.items()})
        column -= Linear({logger: {terms.supported: 1.0}})
        slope, rank = self._slope(logger, weighted - earned, column)
        effective = self.effective[logger]
        predicted = replace(
            weighted - column * slope,
            inflation=max(1.0, effective / max(1.0, effective - rank)),
            most_free=max(1.0, effective - rank - 1),
        )
        return {PREDICTED: self._estimate(predicted), EARNED: self._estimate(earned)}

    def _slope(self, logger: str, gap: Linear, column: Linear) -> tuple[float, int]:
        """Return the slope of a difference on a column of mean 0, and the slopes fitted.

        With few effective rows it is the mean reward of the logger's supported rows.
        """
        own, terms = self.pool[logger], self.terms[logger]
        spread, unit = self._variance(gap), self._variance(column)
        if self.effective[logger] >= ROWS_PER_COLUMN and 0 < spread < math.inf and unit > 0:
            scaled = column * math.sqrt(spread / unit)
            both = self._variance(gap + scaled) - self._variance(gap - scaled)
            return both / (4 * spread) * math.sqrt(spread / unit), 1
        supported = own.mean(terms.supported)
        return (own.mean(terms.supported * REWARD) / supported if supported else 0.0), 0

    def _variance(self, linear: Linear) -> float:
        return linear.deviation_variance(self.pool)[0]

    def _estimate(self, linear: Linear) -> Estimate:
        if not self.pool.buckets:
            return make_estimate(linear, self.pool, {})
        variance, freedom = linear.deviation_variance(self.pool)
        value, freedom = linear.value(self.pool), min(freedom, linear.most_free)
        return Estimate(value, linear.inflation * variance, {}, freedom, linear=linear)

    def _spread(self, logger: str) -> Spread:
        """Return the difference of both sides with its error and its shape."""
        candidates = Candidates(self.sides[logger], self.pool)
        spread = candidates.differences([(PREDICTED, EARNED)])
        # weights are bounded: no rows are missing
        return replace(spread.widen(self._lack(logger, spread)), stretch=np.ones(()))

    def _lack(self, logger: str, spread: Spread) -> float:
        """Return the factor on the error if few rows of a side have a reward.

        They may happen to show less variance than there is: the rewards of all rows then give
        a lower bound.
        """
        terms, own = self.terms[logger], self.pool[logger]
        others = self.pool.keep(k for k in self.pool if k != logger).together
        outcome, weighted = terms.supported * REWARD, terms.weight * REWARD
        spread_of_all, more = self.pool.together.var(outcome), 0.0
        if own.effective(outcome) < RARE:
            more += max(0.0, spread_of_all - own.var(outcome)) / own.count
        if others.effective(weighted) < RARE:
            bound = others.mean_square(terms.weight) * spread_of_all
            more += max(0.0, bound - others.var(weighted)) / others.count
        error = float(spread.errors[0])
        return math.sqrt(1 + more / error**2) if 0 < error < math.inf else 1.0

    def _family(self) -> Family:
        """Return how the differences hold together: by their correlation, if units show it."""
        strata = [
            centre_units(side[PREDICTED].linear - side[EARNED].linear, self.pool)
            for side in self.sides.values()
        ]
        known = [units for units in strata if units is not None]
        if len(known) < len(strata):
            return Bonferroni(len(strata))
        covariance: FloatArray = np.sum(
            [np.array(units) @ np.array(units).T for units in zip(*known, strict=True)], axis=0
        )
        return max_t(
            factor_correlation(covariance),
            np.random.default_rng(BACKTEST_SEED),
            BACKTEST_DIRECTIONS,
        )
